"""Attention in float64 and in the inputs' precision, a few rows and one KV head at a time, for
sequences that ring.py spreads."""

import math

import torch
from gpu_checks import worst

Tensor = torch.Tensor
ROWS = 1024  # of the scores that are in memory at once


def standard(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool, documents: list[int] | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """out, lse, dq, dk, dv of one KV head by three steps. q, dout: [seqlen, group, dim]; k, v:
    [seqlen, dim]."""
    length = q.shape[0]
    positions = torch.arange(length, device=q.device)
    bounds = torch.tensor(documents or [0, length], device=q.device)
    document = torch.bucketize(positions, bounds, right=True)
    k, v = k.detach().requires_grad_(), v.detach().requires_grad_()
    outs, lses, dqs, dk, dv = [], [], [], 0, 0
    for first in range(0, length, ROWS):
        rows = slice(first, min(first + ROWS, length))
        part = q[rows].detach().requires_grad_()
        scores = part.transpose(0, 1) @ k.T * q.shape[2] ** -0.5
        attended = document[rows, None] == document
        if causal:
            attended = attended & (positions <= positions[rows, None])
        scores = scores.masked_fill(~attended, -math.inf)
        out = (scores.softmax(-1) @ v).transpose(0, 1)
        of_q, of_k, of_v = torch.autograd.grad(out, (part, k, v), dout[rows])
        lses.append(scores.detach().double().logsumexp(-1))
        outs.append(out.detach())
        dqs.append(of_q)
        dk, dv = dk + of_k.double(), dv + of_v.double()
    return torch.cat(outs), torch.cat(lses, 1), torch.cat(dqs), dk, dv


def judge(
    ours: list[Tensor], whole: list[Tensor], causal: bool, documents: list[int] | None
) -> tuple[dict[str, list[float]], bool]:
    """Errors and their bounds by the tolerance rule (gpu_checks.py), of the first and the last KV
    head; and whether all are within.

    ours: out, lse, dq, dk, dv; whole: q, k, v, dout; [1, seqlen, heads, dim], lse
        [1, heads, seqlen].
    """
    kv_heads, judged, right = whole[1].shape[2], {}, True
    group = whole[0].shape[2] // kv_heads
    for head in {0, kv_heads - 1}:
        queries = slice(head * group, (head + 1) * group)
        q, k, v, dout = (
            t[0, :, of] for t, of in zip(whole, (queries, head, head, queries), strict=True)
        )
        exact = standard(*(t.double() for t in (q, k, v, dout)), causal, documents)
        same = standard(q, k, v, dout, causal, documents)
        mine = (
            ours[0][0, :, queries],
            ours[1][0, queries],
            ours[2][0, :, queries],
            ours[3][0, :, head],
            ours[4][0, :, head],
        )
        for what, one, reference, baseline in zip(
            ("out", "lse", "dq", "dk", "dv"), mine, exact, same, strict=True
        ):
            baseline = reference if what == "lse" else baseline  # within 1e-5: its maths is fp32
            error, bound = worst(one, reference, baseline, what[0] == "d", 0.0)
            right = right and error <= bound
            if what not in judged or error / bound > judged[what][0] / judged[what][1]:
                judged[what] = [round(error, 8), round(bound, 8)]
    return judged, right
