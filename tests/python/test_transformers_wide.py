"""Models with wide heads: Gemma 4 (full attention of 512 dims) and DeepSeek (192 dims of q and k,
128 of v)."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.24")

import fulmen.transformers as ours  # noqa: E402
from transformers_models import VOCABULARY, close, pair, tokens  # noqa: E402

ours.register()

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GEMMA = {
    "num_key_value_heads": 2,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
}
MODELS = {
    "gemma4": ("Gemma4TextConfig", "Gemma4ForCausalLM", GEMMA, ["d=256", "d=512"]),
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM", DEEPSEEK, ["d=192/128"]),
}


def models(name, rng):
    config, model, options, _ = MODELS[name]
    made = getattr(transformers, config)(**{**COMMON, **options})
    return pair(getattr(transformers, model), made, rng)


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients(name, rng, plans):
    eager, model = models(name, rng)
    ids, mask = tokens(rng), torch.ones(2, 19, dtype=torch.long)
    mask[1, :5] = 0
    weight = torch.from_numpy(rng.standard_normal((2, 19, VOCABULARY))).float() * mask[..., None]
    logits = []
    for m in (model, eager):
        out = m(ids, attention_mask=mask).logits
        (out * weight).sum().backward()
        logits.append(out.detach()[mask.bool()])
    close(*logits)
    for (what, p), expected in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert (p.grad is None) == (expected.grad is None), what
        if p.grad is not None:
            close(p.grad, expected.grad, 1e-4)
    planned = plans()
    for dims in MODELS[name][3]:
        assert any(f" {dims} " in line for line in planned), (dims, planned)


@pytest.mark.parametrize("name", MODELS)
def test_generate(name, rng):
    eager, model = models(name, rng)
    ids = tokens(rng, length=11)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    settings = {
        "attention_mask": mask,
        "max_new_tokens": 9,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    ours_, theirs = (m.generate(ids, **settings) for m in (model, eager))
    assert torch.equal(ours_.sequences, theirs.sequences)
    close(torch.stack(ours_.logits), torch.stack(theirs.logits), 5e-5)
