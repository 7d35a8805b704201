"""Attention by torch's own arithmetic in float64, differentiable, and how near to it results of
float32 must be."""

import torch
from problems import SEED


def attention_float64(
    q,
    k,
    v,
    *,
    bias=None,
    keep_mask=None,
    alibi_slopes=None,
    sinks=None,
    softcap=0.0,
    causal=False,
    window_left=-1,
    kept=None,
    p=0.0,
):
    """(out, lse) of [batch, seqlen, heads, head_dim]; kept, p: what dropout keeps, and its
    probability."""
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    distance = torch.arange(k.shape[2]) - (
        torch.arange(q.shape[2])[:, None] + (0 if causal == "top_left" else k.shape[2] - q.shape[2])
    )
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.double()[:, None, None] * distance.abs()
    attended = torch.ones_like(distance, dtype=torch.bool) if keep_mask is None else keep_mask
    if causal:
        attended = attended & (distance <= 0)
    if window_left >= 0:
        attended = attended & (distance >= -window_left)
    scores = scores.masked_fill(~attended, -torch.inf)
    lse = scores.logsumexp(-1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.double()[:, None])
    weights = (scores - lse[..., None]).exp()
    if kept is not None:
        weights = weights * kept / (1 - p)
    return (weights @ v).transpose(1, 2), lse


def close(found, right, bound=2e-5):
    """The tolerance for numbers around 1."""
    assert found.shape == right.shape
    error = (found.double() - right.double()).abs().max().item() if found.numel() else 0.0
    bound *= max(1.0, right.abs().max().item() if right.numel() else 0.0)
    assert error <= bound, f"error {error:.3g} > {bound:.3g} ({SEED=})"
