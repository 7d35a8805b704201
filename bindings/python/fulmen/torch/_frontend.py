"""Torch tensors for fulmen.attention: straight to the kernels where nothing observes the call, else
through torch's dispatcher.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from typing import Any

import torch

from fulmen import _core, _functions
from fulmen._arguments import (
    LONGEST,
    OTHERS,
    PLACE_OF_LENGTHS,
    SCALARS,
    TENSOR_NAMES,
    Framework,
    _frameworks,
)
from fulmen._core import ArgumentError
from fulmen._numbers import INTEGERS, host_numbers, of_one_dim, wrong_sinks
from fulmen.torch import _flops, _ops, _transforms

_functorch_interpreter = torch._C._functorch.peek_interpreter_stack
_is_compiling = torch.compiler.is_compiling

_SINKS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def _numbers(name: str, value: Any, like: torch.Tensor) -> Any:
    """Converts to int32, and sinks to float32, on a GPU without waiting.

    So values of int64 are not checked: beyond int32 they become its limits. The conversion of
    sinks is differentiable: their gradient has their own dtype.
    """
    value = of_one_dim(name, value)
    if isinstance(value, torch.Tensor):
        if name == "sinks":
            if value.dtype not in _SINKS:
                raise wrong_sinks(str(value.dtype).removeprefix("torch."))
            return value.to(torch.float32)
        if value.dtype == torch.int32 or name not in INTEGERS:
            return value
        if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
            dtype = str(value.dtype).removeprefix("torch.")
            raise TypeError(
                f"{name} has dtype {dtype}: int32 is accepted, and other integers, which are "
                "converted"
            )
        return value.long().clamp(-(2**31), 2**31 - 1).to(torch.int32)
    if isinstance(value, list | tuple):
        if _is_compiling():
            return torch.tensor(
                value, dtype=torch.int32 if name in INTEGERS else torch.float32, device=like.device
            )
        host = torch.from_numpy(host_numbers(name, value))
        return (
            host.pin_memory().to(like.device, non_blocking=True)
            if like.device.type == "cuda"
            else host.to(like.device)
        )
    return host_numbers(name, value)


def _seed() -> int:
    """Draws from torch's generator."""
    return torch.empty((), dtype=torch.int64, device="cpu").random_().item()


class _RefuseDoubleBackward(torch.autograd.Function):
    """Makes gradients that were computed with create_graph=True raise an error that says why they
    have no gradients.
    """

    @staticmethod
    def forward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return gradients

    backward = staticmethod(_ops.refuse_double_backward)


class _Attention(torch.autograd.Function):
    """Its passes are in C++: each line of Python would add to the cost of a training step."""

    forward = staticmethod(_core.autograd_forward)

    @staticmethod
    def backward(
        ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None = None
    ) -> tuple[Any, ...]:
        # One line of Python: for anything else torch's compiled autograd warns that it can't look
        # into it.
        return _core.autograd_backward(ctx, dout, dlse)


def _refuse_double_backward(
    gradients: tuple[Any, ...], saved: tuple[Any, ...], *cotangents: Any
) -> tuple[Any, ...]:
    seen = [t for t in (*saved, *cotangents) if t is not None and t.requires_grad]
    return _RefuseDoubleBackward.apply(*gradients, *seen)[:5] if seen else gradients


def _check_for_dispatcher(tensors: tuple[Any, ...]) -> None:
    """Refuses what torch's dispatcher would refuse without the argument's name, or would ignore."""
    forward_mode = torch.autograd.forward_ad._current_level >= 0
    for name, tensor in zip(TENSOR_NAMES, tensors, strict=False):
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{name} is of type {type(tensor).__name__}: a torch tensor is needed, as a "
                "transform or mode looks on"
            )
        if tensor.is_meta != tensors[0].is_meta:
            raise ArgumentError(
                f"{name} is on {tensor.device}, q on {tensors[0].device}: one device is needed"
            )
        # An operator with no more than a backward pass drops tangents.
        if forward_mode and torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotImplementedError(
                f"{name} has a tangent: fulmen.attention has no derivative by forward mode"
            )


_FLOATS, _INTEGERS = (float, int, torch.SymFloat, torch.SymInt), (int, torch.SymInt)


def _plain(name: str, value: Any, is_integer: bool = False) -> Any:
    """A number of NumPy or torch as Python's, which is all that the dispatcher takes."""
    if isinstance(value, _INTEGERS if is_integer else _FLOATS):
        return value
    try:
        return (
            operator.index(value)
            if is_integer
            else float("nothing" if isinstance(value, str) else value)
        )
    except (TypeError, ValueError):
        accepted = "an integer" if is_integer else "a number"
        raise TypeError(
            f"{name} is {value!r}, of type {type(value).__name__}: {accepted} is accepted"
        ) from None


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value is None or isinstance(value, str) or value not in (0, 1):
        raise TypeError(
            f"{name} is {value!r}, of type {type(value).__name__}: True or False is accepted"
        )
    return bool(value)


_is_profiled = torch._C._autograd._profiler_enabled


def _event(name: str, tensors: Sequence[torch.Tensor]) -> Any:
    """An event of torch.profiler as a context: what torch's dispatcher makes for its operators."""
    try:
        return torch._C._profiler._RecordFunctionFast(name, tensors, {})
    except (AttributeError, TypeError):
        return torch.profiler.record_function(name)


def _profiled(op: str, tensors: tuple[Any, ...]) -> Any:
    if not _is_profiled():
        return contextlib.nullcontext()
    return _event(f"fulmen::{op}", [t for t in tensors if isinstance(t, torch.Tensor)])


def _dispatched(
    tensors: tuple[Any, ...],
    scalars: tuple[Any, ...],
    device: str | None,
    bhsd: bool,
    want_lse: bool,
) -> Any:
    if not _is_compiling():
        _flops.register()
        _check_for_dispatcher(tensors)
        for name, value in zip(SCALARS, scalars, strict=False):
            if getattr(value, "requires_grad", False):
                raise ArgumentError(
                    f"{name} requires grad: it has no gradient here, pass {name}.item(), or scale "
                    "q by what is learned"
                )
    q, k, v, given_out, bias, keep_mask, alibi_slopes, sinks = tensors[:8]
    (
        scale,
        softcap,
        causal,
        left,
        right,
        dropout,
        seed,
        offset,
        deterministic,
        kernel,
        tuning,
        *rest,
    ) = scalars[:13]
    num_threads, verify = rest
    rng = None
    if dropout != 0:
        if seed is None:
            rng = torch.randint(0, 2**63 - 1, (2,), dtype=torch.int64, device="cpu")
        else:
            # The same 64 bits. index() is called only where it is needed: a compiler would take an
            # integer for a constant.
            integers = (n if isinstance(n, int) else operator.index(n) for n in (seed, offset))
            rng = torch.tensor(
                [(n + 2**63) % 2**64 - 2**63 for n in integers], dtype=torch.int64, device="cpu"
            )
    # The dispatcher knows Python's alone.
    scale = None if scale is None else _plain("softmax_scale", scale)
    softcap, dropout = _plain("softcap", softcap), _plain("dropout", dropout)
    left, right = _plain("window_left", left, True), _plain("window_right", right, True)
    num_threads, verify = _plain("num_threads", num_threads, True), _flag("verify", verify)
    deterministic = None if deterministic is None else _flag("deterministic", deterministic)
    causal = causal if isinstance(causal, str) else _flag("causal", causal)
    longest = tuple(
        [
            None if n is None else _plain(name, n, True)
            for name, n in zip(LONGEST, scalars[13:], strict=False)
        ]
    )
    validate = tuple([_flag("validate", one) for one in scalars[13 + len(LONGEST) :]])
    if isinstance(causal, bool):
        causal = "bottom_right" if causal else "none"
    lengths = (*tensors[PLACE_OF_LENGTHS:], *longest, *validate)
    if bhsd:
        _ops.refuse_packed_heads_first(lengths)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    # torch.jit.trace records it, and traces again without gradients to compare.
    need_lse = (
        want_lse
        or torch.is_grad_enabled()
        or (not _is_compiling() and torch._C._get_tracing_state() is not None)
    )
    options = (
        rng,
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
        device,
    )
    if not _is_compiling() and _functorch_interpreter() is not None:
        op = _transforms.Attention.apply
    else:
        op = torch.ops.fulmen.attention_varlen if lengths else torch.ops.fulmen.attention
    out, lse = op(q, k, v, bias, keep_mask, alibi_slopes, sinks, *options, *lengths, need_lse)
    if bhsd:
        out = out.transpose(1, 2)
    if given_out is not None:
        if given_out.shape != out.shape:
            raise ArgumentError(
                f"out has shape {list(given_out.shape)}: {list(out.shape)} is needed"
            )
        out = given_out.copy_(out)
    return (out, lse) if want_lse else out


def _forward(
    tensors: tuple[Any, ...],
    scalars: tuple[Any, ...],
    device: str | None,
    bhsd: bool,
    want_lse: bool,
) -> Any:
    """Tensors and scalars, with those of LENGTHS and OF_LENGTHS if there are any."""
    if _is_compiling():
        return _dispatched(tensors, scalars, device, bhsd, want_lse)
    return _core.torch_forward(tensors, scalars, device, bhsd, want_lse)


_CACHE_TENSORS = 9  # of append_kv, before scales; q is the last one


def _append_kv(
    tensors: tuple[Any, ...],
    device: str | None,
    interleaved: bool,
    advance: bool,
    num_threads: int,
    validate: bool,
) -> tuple[Any, Any]:
    if not _is_compiling() and _core.torch_observers(tensors) != OTHERS:
        with _profiled("append_kv", tensors):
            return _core.append_kv(tensors, device, interleaved, advance, num_threads, validate)
    interleaved, advance = (
        _flag("rotary_interleaved", interleaved),
        _flag("queries_advance", advance),
    )
    num_threads, validate = _plain("num_threads", num_threads, True), _flag("validate", validate)
    scales = tensors[_CACHE_TENSORS:] or (None, None)
    queries, lengths = torch.ops.fulmen.append_kv(
        *tensors[:_CACHE_TENSORS], *scales, interleaved, advance, num_threads, validate, device
    )
    return None if tensors[_CACHE_TENSORS - 1] is None else queries, lengths


def _backward(tensors: tuple[Any, ...], *options: Any) -> tuple[Any, ...]:
    with _profiled(
        "attention_varlen_backward" if len(tensors) > PLACE_OF_LENGTHS else "attention_backward",
        tensors,
    ):
        return _ops.core_backward(tensors, *options)


FRAMEWORK = Framework(
    forward=_forward,
    backward=_backward,
    to_host=lambda tensor: tensor.detach().cpu(),
    from_host=lambda array, like: torch.from_numpy(array).to(like.device),
    append_kv=_append_kv,
    numbers=_numbers,
    settled=_ops.settled,
)


def _allocator(name: str) -> Any:
    """The allocator of inductor's programs, which takes half of empty_strided's time; None where
    this torch has none.
    """
    function = getattr(torch._C._dynamo.guards, name, None)
    try:
        torch._C._dynamo.guards._empty_strided_cpu((2,), (1,), torch.float32)
    except Exception:
        return None
    return function


def _written(tensors: tuple[torch.Tensor, ...]) -> None:
    """What torch has in C++ since it takes several: an inference tensor has no count, and none is
    needed."""
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def _counts_changes() -> Any:
    function = getattr(torch._C, "_increment_version", None)
    try:
        function((torch.empty(0),))
    except Exception:
        return _written
    return function


_types = (torch.Tensor, torch.nn.Parameter)
_TORCH = {
    "questions": (
        torch._C._len_torch_function_stack,
        torch._C._len_torch_dispatch_stack,
        _functorch_interpreter,
        getattr(torch._C, "_is_any_autocast_enabled", lambda: True),
        torch._C._get_tracing_state,
    ),
    "forward_ad": torch.autograd.forward_ad,
    "grad_enabled": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "profiled": _is_profiled,
    "event": _event,
    "seed": _seed,
    "dispatched": _dispatched,
    # Skips the Python code of Function.apply, which handles transforms, absent here, and unwraps.
    "apply": super(torch.autograd.Function, _Attention).apply,
    "refuse_double_backward": _refuse_double_backward,
    "tensor": torch.Tensor,
    "plain_types": _types,
    "empty_cpu": _allocator("_empty_strided_cpu"),
    "empty_gpu": _allocator("_empty_strided_cuda"),
    "current_gpu": getattr(torch._C, "_cuda_getDevice", None),
    "written": _counts_changes(),
}
_core.set_torch(_TORCH)
# Registered before the first call: otherwise that call, if compiled, would be compiled again after
# changing this state.
for _type in _types:
    _frameworks[_type] = FRAMEWORK
_functions.being_compiled = torch.compiler.is_dynamo_compiling
