"""fulmen.attention of torch tensors with sequences of different lengths, and its gradients."""

from __future__ import annotations

from typing import Any

import torch

from fulmen import _core
from fulmen._arguments import with_lengths
from fulmen.torch import _frontend
from fulmen.torch._ops import cast_for_autocast


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q, k, v, sinks, bias, keep_mask, alibi_slopes, lengths, scalars, device, bhsd):
        ctx.set_materialize_grads(False)
        tensors = (q, k, v, None, bias, keep_mask, alibi_slopes, sinks)
        out, lse = _core.forward(with_lengths(tensors, lengths), scalars, device, bhsd, True)
        ctx.save_for_backward(q, k, v, out, bias, keep_mask, alibi_slopes, sinks, lse, *lengths)
        ctx.rest = scalars, device, bhsd
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
        if dout is None and dlse is None:
            return (None,) * 11
        *tensors, lse = ctx.saved_tensors[:9]
        lengths = ctx.saved_tensors[9:]
        wanted = sum(1 << bit for bit, at in enumerate((0, 1, 2, 4, 3)) if ctx.needs_input_grad[at])
        dout = torch.zeros_like(tensors[3]) if dout is None else dout.contiguous()
        places = with_lengths((*tensors, lse, dout, dlse), lengths)
        dq, dk, dv, dbias, dsinks = _core.backward(places, *ctx.rest, wanted)
        return dq, dk, dv, dsinks, dbias, *(None,) * 6


def forward(
    tensors: tuple[Any, ...], lengths: tuple[Any, ...], scalars: tuple[Any, ...], device: str | None, bhsd: bool, want_lse: bool
) -> Any:
    where = tensors[0].device.type
    if torch.is_autocast_enabled(where):
        cast = cast_for_autocast(where, *tensors[:3])
        with torch.autocast(where, enabled=False):
            return forward((*cast, *tensors[3:]), lengths, scalars, device, bhsd, want_lse)
    if torch.compiler.is_compiling() or _frontend.observed((*tensors, *lengths)):
        raise NotImplementedError(
            "sequences of different lengths under torch.compile, torch.func or a mode: plain tensors are accepted"
        )
    scalars = _frontend.with_seed(scalars)
    if not _frontend.requires_grad(tensors):
        return _core.forward(with_lengths(tensors, lengths), scalars, device, bhsd, want_lse)
    q, k, v, given_out, bias, keep_mask, alibi_slopes, sinks = tensors
    if given_out is not None:
        raise ValueError("out is given and an input requires grad: autograd keeps a result of its own, pass out=None")
    out, lse = _Attention.apply(q, k, v, sinks, bias, keep_mask, alibi_slopes, lengths, scalars, device, bhsd)
    return (out, lse) if want_lse else out
