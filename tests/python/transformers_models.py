"""Tiny random models of transformers, with attn_implementation "fulmen" and "eager"."""

import copy

import fulmen.transformers as ours
import problems
import torch

VOCABULARY = 97


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


def tokens(rng, batch=2, length=19):
    return torch.from_numpy(rng.integers(2, VOCABULARY, (batch, length)))


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
