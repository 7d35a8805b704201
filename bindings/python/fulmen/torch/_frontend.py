"""Torch tensors for fulmen.attention: straight to the kernels where nothing else looks on, else through torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fulmen import _core
from fulmen._arguments import Framework
from fulmen.torch import _ops, _transforms

_PLAIN_TYPES = frozenset({torch.Tensor, torch.nn.Parameter, type(None)})
_SEED, _OFFSET, _DROPOUT, _CAUSAL = 6, 7, 5, 2  # in the tuple of fulmen._core

_function_modes = torch._C._len_torch_function_stack
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_interpreter = torch._C._functorch.peek_interpreter_stack
_tracing_state = torch._C._get_tracing_state
_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
_grad_enabled = torch.is_grad_enabled
_forward_ad = torch.autograd.forward_ad
_is_compiling = torch.compiler.is_compiling


def observed(tensors: tuple[Any, ...]) -> bool:
    """Whether something besides autograd has to see the operation: a mode, a transform, a tracer, a subclass of Tensor."""
    if (
        _function_modes()
        or _dispatch_modes()
        or _functorch_interpreter() is not None
        or _any_autocast()
        or _tracing_state() is not None
        or _forward_ad._current_level >= 0
        or tensors[0].is_meta
    ):
        return True
    if _PLAIN_TYPES.issuperset(map(type, tensors)):
        return False
    # What is no tensor is refused by the extension module, in its words.
    return all(t is None or isinstance(t, torch.Tensor) for t in tensors)


def requires_grad(tensors: tuple[Any, ...]) -> bool:
    if _grad_enabled():
        for tensor in tensors:
            if tensor is not None and getattr(tensor, "requires_grad", False):
                return True
    return False


def with_seed(scalars: tuple[Any, ...]) -> tuple[Any, ...]:
    """With dropout and no seed: one from torch's generator."""
    if scalars[_DROPOUT] == 0 or scalars[_SEED] is not None:
        return scalars
    seed = torch.empty((), dtype=torch.int64, device="cpu").random_().item()
    return (*scalars[:_SEED], seed, *scalars[_SEED + 1 :])


class _RefuseDoubleBackward(torch.autograd.Function):
    """Makes gradients that were computed with create_graph=True say why they have none themselves."""

    @staticmethod
    def forward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return gradients

    backward = staticmethod(_ops.refuse_double_backward)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q, k, v, bias, sinks, keep_mask, alibi_slopes, scalars, device, bhsd):
        _ops.refuse_gradient_by_slopes(ctx.needs_input_grad[6])
        ctx.set_materialize_grads(False)
        out, lse = _core.forward((q, k, v, None, bias, keep_mask, alibi_slopes, sinks), scalars, device, bhsd, True)
        ctx.save_for_backward(q, k, v, bias, sinks, keep_mask, alibi_slopes, out, lse)
        ctx.rest = scalars, device, bhsd
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
        nothing = (None,) * 5
        if dout is None and dlse is None:
            return nothing + nothing
        q, k, v, bias, sinks, keep_mask, alibi_slopes, out, lse = ctx.saved_tensors
        scalars, device, bhsd = ctx.rest
        wanted = sum(1 << bit for bit in range(5) if ctx.needs_input_grad[bit])
        dout = torch.zeros_like(out) if dout is None else _ops.last_dim_contiguous(dout)
        tensors = (q, k, v, out, bias, keep_mask, alibi_slopes, sinks, lse, dout, dlse)
        gradients = _core.backward(tensors, scalars, device, bhsd, wanted)
        if torch.is_grad_enabled():  # create_graph=True
            seen = [t for t in (q, k, v, bias, sinks, dout, dlse) if t is not None and t.requires_grad]
            if seen:
                gradients = _RefuseDoubleBackward.apply(*gradients, *seen)[:5]
        return *gradients, *nothing


def _dispatched(
    op: Callable[..., Any], tensors: tuple[Any, ...], scalars: tuple[Any, ...], device: str | None, bhsd: bool, want_lse: bool
) -> Any:
    q, k, v, given_out, bias, keep_mask, alibi_slopes, sinks = tensors
    scale, softcap, causal, left, right, dropout, seed, offset, deterministic, kernel, num_threads, verify = scalars
    rng = None
    if dropout != 0:
        if seed is None:
            rng = torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device="cpu")
        else:
            # As the same 64 bits.
            rng = torch.tensor([(n + 2**63) % 2**64 - 2**63 for n in (seed, offset)], dtype=torch.int64, device="cpu")
    if isinstance(causal, bool):
        causal = "bottom_right" if causal else "none"
    if bhsd:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    need_lse = want_lse or torch.is_grad_enabled()
    options = (rng, scale, softcap, causal, left, right, dropout, deterministic, kernel, num_threads, verify, device)
    out, lse = op(q, k, v, bias, keep_mask, alibi_slopes, sinks, *options, need_lse)
    if bhsd:
        out = out.transpose(1, 2)
    if given_out is not None:
        out = given_out.copy_(out)
    return (out, lse) if want_lse else out


def _forward(tensors: tuple[Any, ...], scalars: tuple[Any, ...], device: str | None, bhsd: bool, want_lse: bool) -> Any:
    if _is_compiling():
        return _dispatched(torch.ops.fulmen.attention, tensors, scalars, device, bhsd, want_lse)
    if observed(tensors):
        op = torch.ops.fulmen.attention if _functorch_interpreter() is None else _transforms.Attention.apply
        return _dispatched(op, tensors, scalars, device, bhsd, want_lse)
    scalars = with_seed(scalars)
    if not requires_grad(tensors):
        return _core.forward(tensors, scalars, device, bhsd, want_lse)
    q, k, v, given_out, bias, keep_mask, alibi_slopes, sinks = tensors
    if given_out is not None:
        raise ValueError("out is given and an input requires grad: autograd keeps a result of its own, pass out=None")
    result = _Attention.apply(q, k, v, bias, sinks, keep_mask, alibi_slopes, scalars, device, bhsd)
    return result if want_lse else result[0]


def _forward_lengths(*arguments: Any) -> Any:
    from fulmen.torch import _lengths  # which needs this file

    return _lengths.forward(*arguments)


FRAMEWORK = Framework(
    forward=_forward,
    backward=_core.backward,
    to_host=lambda tensor: tensor.detach().cpu(),
    from_host=lambda array, like: torch.from_numpy(array).to(like.device),
    forward_lengths=_forward_lengths,
)
