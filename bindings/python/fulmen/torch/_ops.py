"""torch.ops.fulmen: the operators that compilation, torch.func, autocast and export see.

attention and attention_varlen, which has sequences of different lengths, their backward passes, and
append_kv. Tensors are [batch, seqlen, heads, head_dim], packed ones [total, heads, head_dim]. The
options follow in the order of the schema; rng is an int64 tensor on the CPU, (seed, offset) of the
dropout, so that drawing it is a part of a traced graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fulmen import _core
from fulmen._arguments import LENGTHS, LONGEST, with_lengths
from fulmen._core import ArgumentError
from fulmen.torch import _flops

_OPTIONS = (
    "Tensor? rng, float? softmax_scale, float softcap, str causal, SymInt window_left, SymInt "
    "window_right, float dropout, bool? deterministic, str? kernel, str? tuning, int num_threads, "
    "bool verify, str? device"
)
_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? keep_mask, Tensor? alibi_slopes, Tensor? "
    "sinks"
)
_VARLEN = (
    "".join(f", Tensor? {name}" for name in LENGTHS)
    + "".join(f", SymInt? {name}" for name in LONGEST)
    + ", bool validate"
)
_RESULTS = "(Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dsinks)"
_APPEND_KV = (
    "append_kv(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor seqlens_k, Tensor? block_table, "
    "Tensor? k, Tensor? v, Tensor? rotary_cos, Tensor? rotary_sin, Tensor? q, Tensor(c!)? k_scale, "
    "Tensor(d!)? v_scale, bool rotary_interleaved, bool queries_advance, int num_threads, "
    "bool validate, str? device) -> (Tensor q_rotated, Tensor seqlens)"
)
# Arguments of all four ops of attention come first: 7 tensors, then rng and the options. Those of
# _VARLEN are next.
_TENSORS, SHARED = 7, 20
_DETERMINISTIC = 8  # in fulmen._core's tuple
_TUNING = 8  # of the options behind rng
# The shared arguments that have a gradient, in the order of the bits of wanted.
_DIFFERENTIABLE = (0, 1, 2, 3, 6)

# Compiled graphs keep the strides that tensors have in eager mode: kernels read them as they are.
_TAGS = (torch.Tag.needs_fixed_stride_order,)

library = torch.library.Library("fulmen", "DEF")
for _name, _lengths in (("attention", ""), ("attention_varlen", _VARLEN)):
    library.define(
        f"{_name}({_INPUTS}, {_OPTIONS}{_lengths}, bool need_lse) -> (Tensor out, Tensor lse)",
        tags=_TAGS,
    )
    _tail = "Tensor out, Tensor lse, Tensor dout, Tensor? dlse, int wanted"
    library.define(
        f"{_name}_backward({_INPUTS}, {_OPTIONS}{_lengths}, {_tail}) -> {_RESULTS}", tags=_TAGS
    )
library.define(_APPEND_KV, tags=_TAGS)


def last_dim_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy in which expanded dims remain so: a transposed bias that all sequences
    share is copied once."""
    if tensor.stride(-1) == 1 or tensor.size(-1) <= 1:
        return tensor
    once = tensor
    for dim in range(tensor.dim() - 1):
        if tensor.stride(dim) == 0 and tensor.size(dim) > 1:
            once = once.narrow(dim, 0, 1)
    return once.contiguous().expand(tensor.shape)


def refuse_packed_heads_first(lengths: tuple[Any, ...]) -> None:
    """lengths: in the order of _VARLEN, or none."""
    if lengths and (lengths[0] is not None or lengths[1] is not None):
        raise ArgumentError(
            'layout is "bhsd": "bshd" is accepted with cu_seqlens_q or cu_seqlens_k'
        )


def _scalars(
    rng: torch.Tensor | None, options: tuple[Any, ...], of_lengths: tuple[Any, ...]
) -> tuple[Any, ...]:
    """fulmen._core's tuple."""
    (
        scale,
        softcap,
        causal,
        left,
        right,
        dropout,
        deterministic,
        kernel,
        tuning,
        num_threads,
        verify,
    ) = options
    seed, offset = (None, 0) if rng is None else rng.tolist()
    first = (scale, softcap, causal, left, right, dropout, seed, offset, deterministic)
    return (*first, kernel, tuning, num_threads, verify, *of_lengths)


def settled(scalars: tuple[Any, ...]) -> tuple[Any, ...]:
    """Deterministic as torch.use_deterministic_algorithms says, where it is on or the caller says
    nothing."""
    asked = torch.are_deterministic_algorithms_enabled()
    if asked or scalars[_DETERMINISTIC] is None:
        scalars = (*scalars[:_DETERMINISTIC], asked, *scalars[_DETERMINISTIC + 1 :])
    return scalars


def core_backward(
    tensors: tuple[Any, ...], scalars: tuple[Any, ...], *rest: Any
) -> tuple[torch.Tensor | None, ...]:
    return _core.backward(tensors, settled(scalars), *rest)


def _forward(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    _flops.register()  # for direct callers of the operator
    q, k, v, bias, keep_mask, alibi_slopes, sinks, rng, *options, device = args[:SHARED]
    lengths, need_lse = args[SHARED:-1], args[-1]
    tensors = with_lengths(
        (q, k, v, None, bias, keep_mask, alibi_slopes, sinks), lengths[: len(LENGTHS)]
    )
    result = _core.forward(
        tensors, _scalars(rng, options, lengths[len(LENGTHS) :]), device, False, need_lse
    )
    return result if need_lse else (result, q.new_empty(0, dtype=torch.float32))


def _forward_fake(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v, need_lse = args[0], args[1], args[2], args[-1]
    lengths = dict(zip(LENGTHS, args[SHARED:-1], strict=False))
    packed_q, packed_k = (
        lengths.get(name) is not None for name in ("cu_seqlens_q", "cu_seqlens_k")
    )
    packed_k = packed_k and lengths["block_table"] is None
    for name, tensor, packed in (("q", q, packed_q), ("k", k, packed_k), ("v", v, packed_k)):
        if tensor.dim() != (3 if packed else 4):
            accepted = "[total, heads, head_dim]" if packed else "[batch, seqlen, heads, head_dim]"
            raise ArgumentError(f"{name} has {tensor.dim()} dims: {accepted} is accepted")
    *leading, rows, heads, _ = q.shape
    lse = q.new_empty((*leading, heads, rows) if need_lse else (0,), dtype=torch.float32)
    return q.new_empty((*leading, rows, heads, v.shape[-1])), lse


def _backward(*args: Any) -> tuple[torch.Tensor, ...]:
    q, k, v, bias, keep_mask, alibi_slopes, sinks, rng, *options, device = args[:SHARED]
    *lengths, out, lse, dout, dlse, wanted = args[SHARED:]
    tensors = (
        q,
        k,
        v,
        out,
        bias,
        keep_mask,
        alibi_slopes,
        sinks,
        lse,
        last_dim_contiguous(dout),
        dlse,
    )
    tensors = with_lengths(tensors, tuple(lengths[: len(LENGTHS)]))
    gradients = core_backward(
        tensors, _scalars(rng, options, lengths[len(LENGTHS) :]), device, False, wanted
    )
    return tuple(q.new_empty(0) if one is None else one for one in gradients)


def _backward_fake(*args: Any) -> tuple[torch.Tensor, ...]:
    wanted = args[-1]
    like = (args[at] for at in _DIFFERENTIABLE)
    return tuple(
        t.new_empty(t.shape) if wanted >> bit & 1 else args[0].new_empty(0)
        for bit, t in enumerate(like)
    )


# The inputs that have no gradient, by their places among an operator's.
_WITHOUT_GRADIENT = {5: "alibi_slopes"} | {
    SHARED + LENGTHS.index(name): name for name in ("k_scale", "v_scale", "q_scale")
}


def refuse_gradients(needed: Sequence[bool]) -> None:
    for at, name in _WITHOUT_GRADIENT.items():
        if at < len(needed) and needed[at]:
            raise ArgumentError(
                f"{name} requires grad: it has no gradient here, pass {name}.detach()"
            )


def save_for_backward(
    ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]
) -> None:
    refuse_gradients(ctx.needs_input_grad)
    ctx.set_materialize_grads(False)
    lengths = inputs[SHARED:-1]
    ctx.save_for_backward(*inputs[: _TENSORS + 1], *lengths[: len(LENGTHS)], *output)
    ctx.options, ctx.of_lengths, ctx.has_lse = (
        inputs[_TENSORS + 1 : SHARED],
        lengths[len(LENGTHS) :],
        inputs[-1],
    )


def gradients(
    backward: Callable[..., Any], ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None
) -> tuple[Any, ...]:
    results: list[Any] = [None] * len(ctx.needs_input_grad)
    if dout is None and dlse is None:
        return tuple(results)
    if not ctx.has_lse:
        raise RuntimeError(
            "need_lse is False: the gradients of fulmen.attention need the lse, call it with "
            "need_lse=True"
        )
    *given, out, lse = ctx.saved_tensors
    tensors, lengths = given[: _TENSORS + 1], given[_TENSORS + 1 :]
    wanted = sum(1 << bit for bit, at in enumerate(_DIFFERENTIABLE) if ctx.needs_input_grad[at])
    dout = torch.zeros_like(out) if dout is None else dout
    options = list(ctx.options)
    options[_TUNING] = None  # the forward kernel's
    computed = backward(*tensors, *options, *lengths, *ctx.of_lengths, out, lse, dout, dlse, wanted)
    for bit, at in enumerate(_DIFFERENTIABLE):
        if wanted >> bit & 1:
            results[at] = computed[bit]
    return tuple(results)


def refuse_double_backward(*_: Any) -> Any:
    raise RuntimeError(
        "fulmen.attention has no second derivative: its backward pass is not differentiable"
    )


def cast_for_autocast(device_type: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    dtype = torch.get_autocast_dtype(device_type)
    return tuple(
        t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors
    )


def _append_kv(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    *tensors, interleaved, advance, num_threads, validate, device = args
    queries, lengths = _core.append_kv(
        tuple(tensors), device, interleaved, advance, num_threads, validate
    )
    return args[0].new_empty(0) if queries is None else queries, lengths


def _append_kv_fake(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    k_cache, seqlens, q = args[0], args[2], args[8]
    return k_cache.new_empty(0) if q is None else q.new_empty(q.shape), seqlens.new_empty(
        seqlens.shape
    )


def _register_autocast(op: Any, name: str, device_type: str, key: str) -> None:
    def forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with torch._C._ExcludeDispatchKeyGuard(
            torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        ):
            return op(*cast_for_autocast(device_type, q, k, v), *rest)

    library.impl(name, forward, key)


def _register_autograd(name: str) -> None:
    backward = getattr(torch.ops.fulmen, f"{name}_backward")
    torch.library.register_autograd(
        f"fulmen::{name}",
        lambda ctx, dout, dlse: gradients(backward, ctx, dout, dlse),
        setup_context=save_for_backward,
        lib=library,
    )
    torch.library.register_autograd(f"fulmen::{name}_backward", refuse_double_backward, lib=library)


for _name in ("attention", "attention_varlen"):
    for _key in ("CPU", "CUDA"):
        library.impl(_name, _forward, _key)
        library.impl(f"{_name}_backward", _backward, _key)
        _register_autocast(getattr(torch.ops.fulmen, _name), _name, _key.lower(), f"Autocast{_key}")
    torch.library.register_fake(f"fulmen::{_name}", _forward_fake, lib=library)
    torch.library.register_fake(f"fulmen::{_name}_backward", _backward_fake, lib=library)
    _register_autograd(_name)
for _key in ("CPU", "CUDA"):
    library.impl("append_kv", _append_kv, _key)
torch.library.register_fake("fulmen::append_kv", _append_kv_fake, lib=library)
