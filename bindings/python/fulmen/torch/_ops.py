"""torch.ops.fulmen.attention and attention_backward: what compilation, torch.func, autocast and export see.

Tensors are [batch, seqlen, heads, head_dim]. The options follow in the order of the schema; rng is an int64 tensor on the CPU,
(seed, offset) of the dropout, so that drawing it is a part of a traced graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fulmen import _core

_OPTIONS = (
    "Tensor? rng, float? softmax_scale, float softcap, str causal, SymInt window_left, SymInt window_right, float dropout, "
    "bool deterministic, str? kernel, int num_threads, bool verify, str? device"
)
_INPUTS = "Tensor q, Tensor k, Tensor v"
_OPTIONAL = "Tensor? bias, Tensor? keep_mask, Tensor? alibi_slopes, Tensor? sinks"
_FORWARD = f"attention({_INPUTS}, {_OPTIONAL}, {_OPTIONS}, bool need_lse) -> (Tensor out, Tensor lse)"
_BACKWARD = (
    f"attention_backward({_INPUTS}, {_OPTIONAL}, {_OPTIONS}, Tensor out, Tensor lse, Tensor dout, Tensor? dlse, int wanted)"
    " -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsinks)"
)
# Arguments of both ops come first: 7 tensors, then rng and the options.
_TENSORS, SHARED = 7, 19
# Of the shared arguments, those with a gradient, in the order of the bits of wanted.
_DIFFERENTIABLE = (0, 1, 2, 3, 6)

# Compiled graphs keep the strides that tensors have in eager mode: kernels read them as they are.
_TAGS = (torch.Tag.needs_fixed_stride_order,)

library = torch.library.Library("fulmen", "DEF")
library.define(_FORWARD, tags=_TAGS)
library.define(_BACKWARD, tags=_TAGS)


def last_dim_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 or tensor.size(-1) <= 1 else tensor.contiguous()


def _scalars(rng: torch.Tensor | None, options: tuple[Any, ...]) -> tuple[Any, ...]:
    """fulmen._core's tuple."""
    scale, softcap, causal, left, right, dropout, deterministic, kernel, num_threads, verify = options
    seed, offset = (None, 0) if rng is None else rng.tolist()
    return (scale, softcap, causal, left, right, dropout, seed, offset, deterministic, kernel, num_threads, verify)


def _forward(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, bias, keep_mask, alibi_slopes, sinks, rng, *options, device, need_lse = args
    tensors = (q, k, v, None, bias, keep_mask, alibi_slopes, sinks)
    result = _core.forward(tensors, _scalars(rng, options), device, False, need_lse)
    return result if need_lse else (result, q.new_empty(0, dtype=torch.float32))


def _forward_fake(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, need_lse = args[0], args[1], args[2], args[-1]
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} has {tensor.dim()} dims: [batch, seqlen, heads, head_dim] is accepted")
    batch, seqlen, heads, _ = q.shape
    lse = q.new_empty((batch, heads, seqlen) if need_lse else (0,), dtype=torch.float32)
    return q.new_empty((batch, seqlen, heads, v.shape[3])), lse


def _backward(*args: Any) -> tuple[torch.Tensor, ...]:
    q, k, v, bias, keep_mask, alibi_slopes, sinks, rng, *options, device, out, lse, dout, dlse, wanted = args
    tensors = (q, k, v, out, bias, keep_mask, alibi_slopes, sinks, lse, last_dim_contiguous(dout), dlse)
    gradients = _core.backward(tensors, _scalars(rng, options), device, False, wanted)
    return tuple(q.new_empty(0) if one is None else one for one in gradients)


def _backward_fake(*args: Any) -> tuple[torch.Tensor, ...]:
    wanted = args[-1]
    like = (args[at] for at in _DIFFERENTIABLE)
    return tuple(t.new_empty(t.shape) if wanted >> bit & 1 else args[0].new_empty(0) for bit, t in enumerate(like))


def refuse_gradient_by_slopes(needed: bool) -> None:
    if needed:
        raise ValueError("alibi_slopes requires grad: it has no gradient here, pass alibi_slopes.detach()")


def save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    refuse_gradient_by_slopes(ctx.needs_input_grad[5])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[: _TENSORS + 1], *output)
    ctx.options = inputs[_TENSORS + 1 : SHARED]
    ctx.has_lse = inputs[-1]


def gradients(backward: Callable[..., Any], ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    results: list[Any] = [None] * (SHARED + 1)
    if dout is None and dlse is None:
        return tuple(results)
    if not ctx.has_lse:
        raise RuntimeError("need_lse is False: the gradients of fulmen.attention need the lse, call it with need_lse=True")
    *shared, out, lse = ctx.saved_tensors
    wanted = sum(1 << bit for bit, at in enumerate(_DIFFERENTIABLE) if ctx.needs_input_grad[at])
    dout = torch.zeros_like(out) if dout is None else dout
    computed = backward(*shared, *ctx.options, out, lse, dout, dlse, wanted)
    for bit, at in enumerate(_DIFFERENTIABLE):
        if wanted >> bit & 1:
            results[at] = computed[bit]
    return tuple(results)


def _gradients(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    return gradients(torch.ops.fulmen.attention_backward, ctx, dout, dlse)


def refuse_double_backward(*_: Any) -> Any:
    raise RuntimeError("fulmen.attention has no second derivative: its backward pass is not differentiable")


def cast_for_autocast(device_type: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    dtype = torch.get_autocast_dtype(device_type)
    return tuple(t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


def _register_autocast(device_type: str, key: str) -> None:
    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))):
            return torch.ops.fulmen.attention(*cast_for_autocast(device_type, q, k, v), *rest)

    library.impl("attention", forward, key)


for _key in ("CPU", "CUDA"):
    library.impl("attention", _forward, _key)
    library.impl("attention_backward", _backward, _key)
    _register_autocast(_key.lower(), f"Autocast{_key}")
torch.library.register_fake("fulmen::attention", _forward_fake, lib=library)
torch.library.register_fake("fulmen::attention_backward", _backward_fake, lib=library)
torch.library.register_autograd("fulmen::attention", _gradients, setup_context=save_for_backward, lib=library)
torch.library.register_autograd("fulmen::attention_backward", refuse_double_backward, lib=library)
