"""fulmen.flex_attention without torch's dispatcher, which takes longer for an operator with
gradients than many kernels.

A call that nothing but autograd observes goes straight to the kernels."""

from __future__ import annotations

from typing import Any

import torch

from fulmen import _core
from fulmen._arguments import NOBODY, OTHERS
from fulmen.flex import _kernel
from fulmen.flex._problem import Problem
from fulmen.torch import _flex_operator, _ops

# Most tensors that torch_observers takes: the places of arguments/call.h.
_MOST = 24
_NO_LISTS = (None,) * 4


def _observers(tensors: tuple[torch.Tensor | None, ...]) -> int:
    if len(tensors) > _MOST or torch.autograd._profiler_enabled():
        return OTHERS
    return _core.torch_observers(tensors)


def observers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, made: Problem) -> int:
    """Who observes a call: NOBODY, autograd alone, or OTHERS: a mode, a transform, a tracer, a
    subclass, the profiler."""
    return _observers((q, k, v, *made.tensors, *made.lists))


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    made: Problem,
    scale: float | None,
    options: _kernel.Options,
    want_lse: bool,
    seen: int,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out and lse, which may be None where it isn't wanted. seen: what observers() says, not
    OTHERS."""
    if seen != NOBODY:
        given = (made._replace(tensors=(), lists=()), made.lists or _NO_LISTS, scale, options)
        return _apply(given, q, k, v, *made.tensors)
    result = _kernel.forward(q, k, v, made, scale, options, want_lse)
    return result if want_lse else (result, None)


def _with_arrays(made: Problem, lists: tuple[Any, ...], tensors: tuple[Any, ...]) -> Problem:
    has_lists = any(one is not None for one in lists)
    return made._replace(tensors=tensors, lists=lists if has_lists else ())


class _Flex(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        given: tuple[Any, ...],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        made, lists, scale, options = given
        made = _with_arrays(made, lists, tensors)
        out, lse = _kernel.forward(q, k, v, made, scale, options, True)
        # As the operator saves them: a checkpoint's second forward pass may be the operator's.
        ctx.save_for_backward(q, k, v, *lists, *tensors, out, lse)
        ctx.set_materialize_grads(False)
        ctx.given = (given[0], scale, options)
        return out, lse

    @staticmethod
    def backward(
        ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        if dout is None and dlse is None:
            return (None,) * len(ctx.needs_input_grad)
        made, scale, options = ctx.given
        q, k, v, *rest, out, lse = ctx.saved_tensors
        made = _with_arrays(made, tuple(rest[:4]), tuple(rest[4:]))
        dout = torch.zeros_like(out) if dout is None else dout
        wanted = _flex_operator.bits(ctx.needs_input_grad[1:4])
        places = _flex_operator.differentiable(ctx.needs_input_grad[4:], made.tensors)
        tensors = (q, k, v, out, lse, dout, dlse)
        if _observers(tensors) == NOBODY:
            q, k, v, dout = map(_ops.last_dim_contiguous, (q, k, v, dout))
            tensors = (q, k, v, out, lse, dout, dlse)
            own, found = _flex_operator.gradients(tensors, made, scale, options, wanted, places)
        else:
            # For create_graph the operator refuses a second derivative, in its words.
            arguments = _flex_operator.arguments(made, scale, options)
            *own, found = torch.ops.fulmen.flex_attention_backward(
                q, k, v, *arguments, out, lse, dout, dlse, wanted, places
            )
            own = [one if wanted >> bit & 1 else None for bit, one in enumerate(own)]
        return (None, *own, *_flex_operator.of_all(made.tensors, places, found))


# Without Function.apply's Python code for torch.func's transforms: with those, OTHERS look on.
_apply = super(torch.autograd.Function, _Flex).apply
