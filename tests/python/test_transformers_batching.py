"""transformers' continuous batching with attn_implementation="fulmen" beside its own: the same
tokens, from steps over pages and from steps of several tokens a request."""

import gc

import problems
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")

import fulmen.transformers as ours  # noqa: E402
from fulmen import _continuous_batching as batching  # noqa: E402
from transformers_models import VOCABULARY, pair  # noqa: E402

ours.register()

TINY = dict(
    vocab_size=VOCABULARY,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=12,
    max_position_embeddings=64,
    pad_token_id=0,
    eos_token_id=None,
)
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}
MODELS = {
    "llama": ("Llama", "sdpa", {}),
    "mistral": ("Mistral", "sdpa", {"sliding_window": 7}),
    "gpt_oss": (
        "GptOss",
        "paged|eager",
        {**LAYERS, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}


@pytest.fixture(autouse=True)
def nothing_collected(monkeypatch):
    """generate_batch ends in gc.collect(), which takes most of a small model's time."""
    monkeypatch.setattr(gc, "collect", lambda *given: 0)


def generated(model, implementation, prompts, **settings):
    """The new tokens and their log probabilities."""
    model.set_attn_implementation(implementation)
    batching_config = transformers.ContinuousBatchingConfig(
        **dict(
            page_size=8,
            num_blocks=32,
            max_batch_tokens=16,  # the longest prompt is read in two parts
            max_requests_per_batch=8,
            return_logprobs=True,
            **settings,
        )
    )
    found = model.generate_batch(
        inputs=prompts,
        generation_config=transformers.GenerationConfig(
            max_new_tokens=6, do_sample=False, eos_token_id=-1
        ),
        continuous_batching_config=batching_config,
        progress_bar=False,
    )
    assert model.config._attn_implementation == implementation
    results = list(found.values())
    assert [one.error for one in results] == [None] * len(prompts)
    return [one.generated_tokens for one in results], torch.tensor(
        [one.logprobs for one in results]
    )


def steps(monkeypatch):
    """How each call was served, from now on."""
    seen = []

    def count(name):
        own = getattr(batching, name)

        def counted(*given, **options):
            seen.append((name, options))
            return own(*given, **options)

        monkeypatch.setattr(batching, name, counted)

    for name in ("_over_pages", "attention", "step_by_sdpa"):
        count(name)
    return seen


def prompts_of(rng):
    return [rng.integers(2, VOCABULARY, n).tolist() for n in (3, 11, 19)]


@pytest.mark.parametrize("name", MODELS)
def test_same_tokens(name, rng, monkeypatch):
    family, own, options = MODELS[name]
    config = getattr(transformers, family + "Config")(**TINY, **options)
    model, _ = pair(getattr(transformers, family + "ForCausalLM"), config, rng)
    prompts = prompts_of(rng)
    tokens, theirs = generated(model, own, prompts)
    seen = steps(monkeypatch)
    found, ours_ = generated(model, "fulmen", prompts)
    assert found == tokens, f"{problems.SEED=}"
    assert (ours_ - theirs).abs().max() < 1e-4
    ways = [way for way, _ in seen]
    # Ring buffers of windows cannot be read by a block table.
    assert ("_over_pages" in ways) == (name == "llama")
    assert {o["window_left"] for w, o in seen if w == "attention"} == {
        "llama": {-1},
        "mistral": {6},
        "gpt_oss": {6, -1},
    }[name]
    if name == "llama":  # every step gathers keys
        seen.clear()
        assert generated(model, "fulmen", prompts, max_blocks_per_request=0)[0] == tokens
        assert {way for way, _ in seen} == {"attention"}


def test_what_is_not_served_is_sdpas(rng, monkeypatch):
    lines = []
    monkeypatch.setattr(ours._log, "warning_once", lines.append)
    seen = steps(monkeypatch)
    config = transformers.MistralConfig(**{**TINY, "head_dim": 600}, sliding_window=7)
    model, _ = pair(transformers.MistralForCausalLM, config, rng)
    prompts = prompts_of(rng)
    assert generated(model, "fulmen", prompts)[0] == generated(model, "sdpa", prompts)[0]
    assert set(lines) == {
        "fulmen: query has a head_dim of 600: torch's scaled_dot_product_attention computes such "
        "attention"
    }
    assert {way for way, _ in seen} == {"step_by_sdpa"}


def test_doubles(rng):
    config = transformers.LlamaConfig(**TINY)
    model = pair(transformers.LlamaForCausalLM, config, rng)[0].double()
    prompts = prompts_of(rng)
    assert generated(model, "fulmen", prompts)[0] == generated(model, "sdpa", prompts)[0]


def test_windows_that_only_a_mask_knows(rng):
    """Qwen2-MoE's layers do not hand their window over; generate()'s masks have it."""
    config = transformers.Qwen2MoeConfig(
        **TINY,
        use_sliding_window=True,
        sliding_window=7,
        max_window_layers=2,
        layer_types=["sliding_attention"] * 2,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    model, _ = pair(transformers.Qwen2MoeForCausalLM, config, rng)
    prompts = prompts_of(rng)
    found, _ = generated(model, "fulmen", prompts)
    model.set_attn_implementation("eager")
    for prompt, tokens in zip(prompts, found, strict=True):
        whole = model.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False)
        assert whole[0, len(prompt) :].tolist() == tokens, f"{problems.SEED=}"


def test_padded_steps_and_refusals(rng):
    """Requests that pad a step over pages have no keys and no pages: 0, and pages of others are as
    they were."""
    q, k, v = (torch.from_numpy(rng.standard_normal((1, 2, 3, 8))).float() for _ in "qkv")
    cache = torch.from_numpy(rng.standard_normal((2, 4, 4, 2, 8))).float()
    before = cache.clone()
    given = dict(
        write_index=[],
        block_table=torch.tensor([[2, 3], [1, -1], [-1, -1]], dtype=torch.int32),
        k_cache=cache[0],
        v_cache=cache[1],
        cu_seq_lens_k=torch.tensor([0, 6, 7, 7], dtype=torch.int32),
    )
    out, _ = ours.attention_forward(torch.nn.Module(), q, k, v, None, **given)
    rows = [
        torch.cat([before[i, 2], before[i, 3, :1], t[0, :, :1].transpose(0, 1)])
        for i, t in enumerate((k, v))
    ]
    scores = torch.einsum("hd,nhd->hn", q[0, :, 0], rows[0]) / 8**0.5
    assert (out[0, 0] - torch.einsum("hn,nhd->hd", scores.softmax(-1), rows[1])).abs().max() < 1e-5
    assert (out[0, 1] - v[0, :, 1]).abs().max() < 1e-5
    assert not out[0, 2].any()
    before[:, 3, 1], before[:, 1, 0] = cache[:, 3, 1], cache[:, 1, 0]
    assert torch.equal(cache[0, 3, 1], k[0, :, 0]) and torch.equal(cache[1, 1, 0], v[0, :, 1])
    assert torch.equal(cache[:, 1:], before[:, 1:])

    mask = torch.zeros(1, 1, 3, 7)
    with pytest.raises(NotImplementedError, match="attention_mask is given in a step of contin"):
        ours.attention_forward(torch.nn.Module(), q, k, v, mask, **given)
    # What Fulmen does not compute, torch does, of gathered pages.
    given["k_cache"], given["v_cache"] = cache.double()
    doubles, _ = ours.attention_forward(
        torch.nn.Module(), *(x.double() for x in (q, k, v)), None, **given
    )
    assert (doubles[0, :2] - out[0, :2]).abs().max() < 1e-5
    assert torch.equal(given["k_cache"].float(), cache[0])
