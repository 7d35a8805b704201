"""torch.ops.fulmen.flex_attention: attention with functions, and its backward pass.

Tensors are [batch, heads, seqlen, head_dim]. The functions are text; x0, x1, ... in it are the
tensors of the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fulmen.flex import _kernel
from fulmen.flex._problem import Problem
from fulmen.torch import _ops

_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor[] tensors, Tensor? kv_num_blocks, Tensor? kv_indices, "
    "Tensor? full_kv_num_blocks, Tensor? full_kv_indices, str score_mod, str mask_mod, str "
    "names, int block_q, int block_k, float? scale, str? kernel, str? tuning, int num_threads, "
    "bool? deterministic, bool verify, str? device"
)
_SHARED = 20
_LISTS = slice(4, 8)

_ops.library.define(
    f"flex_attention({_INPUTS}, bool need_lse) -> (Tensor out, Tensor lse)", tags=_ops._TAGS
)
_ops.library.define(
    f"flex_attention_backward({_INPUTS}, Tensor out, Tensor lse, Tensor dout, Tensor? dlse, "
    "int wanted, int[] wanted_tensors) -> (Tensor dq, Tensor dk, Tensor dv, Tensor[] gradients)",
    tags=_ops._TAGS,
)


def arguments(problem: Problem, scale: float | None, options: _kernel.Options) -> tuple[Any, ...]:
    """Those of the operators behind q, k and v."""
    lists = problem.lists if problem.lists and problem.read_by_kernel else (None,) * 4
    block = problem.block if problem.read_by_kernel else (0, 0)
    return (
        list(problem.tensors),
        *lists,
        problem.score_mod,
        problem.mask_mod,
        " ".join(problem.names),  # torch takes no list but those of tensors beside gradients
        *block,
        scale,
        options.kernel,
        options.tuning,
        options.num_threads,
        options.deterministic,
        options.verify,
        options.device,
    )


def _read(args: tuple[Any, ...]) -> tuple[Problem, float | None, _kernel.Options]:
    """What arguments() made, again."""
    _, _, _, tensors, *lists = args[:8]
    score_mod, mask_mod, names, block_q, block_k, scale = args[8:14]
    kernel, tuning, num_threads, deterministic, verify, device = args[14:_SHARED]
    given = tuple(lists) if lists[1] is not None else ()
    made = Problem(
        score_mod, mask_mod, tuple(names.split()), tuple(tensors), given, (block_q, block_k), True
    )
    return made, scale, _kernel.Options(kernel, tuning, num_threads, deterministic, verify, device)


def _forward(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = map(_ops.last_dim_contiguous, args[:3])
    result = _kernel.forward(q, k, v, *_read(args), args[-1])
    return result if args[-1] else (result, q.new_empty(0, dtype=torch.float32))


def _forward_fake(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    q, v = args[0], args[2]
    # As a kernel makes it: positions before heads in memory.
    out = q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3])).transpose(1, 2)
    return out, q.new_empty(q.shape[:3] if args[-1] else (0,), dtype=torch.float32)


def _backward(*args: Any) -> tuple[Any, ...]:
    out, lse, dout, dlse, wanted, wanted_tensors = args[_SHARED:]
    q, k, v = map(_ops.last_dim_contiguous, args[:3])
    made, scale, options = _read(args)
    tensors = (q, k, v, out, lse, _ops.last_dim_contiguous(dout), dlse)
    own, found = gradients(tensors, made, scale, options, wanted, wanted_tensors)
    return (*[q.new_empty(0) if one is None else one for one in own], found)


def gradients(
    tensors: tuple[torch.Tensor | None, ...],
    made: Problem,
    scale: float | None,
    options: _kernel.Options,
    wanted: int,
    wanted_tensors: Sequence[int],
) -> tuple[tuple[torch.Tensor | None, ...], list[torch.Tensor]]:
    """dq, dk and dv, those of the bits of wanted, and the gradients of the functions' tensors at
    those places. tensors: q, k, v, out, lse, dout, dlse."""
    given = {
        made.names[at]: torch.empty_like(made.tensors[at], memory_format=torch.contiguous_format)
        for at in wanted_tensors
    }
    settled = torch.are_deterministic_algorithms_enabled()
    if settled or options.deterministic is None:
        options = options._replace(deterministic=settled)
    own = _kernel.backward(tensors, made, scale, options, wanted, given)
    return own, list(given.values())


def _backward_fake(*args: Any) -> tuple[Any, ...]:
    wanted, wanted_tensors = args[-2:]
    own = []
    for bit, one in enumerate(args[:3]):
        shape = (one.shape[0], one.shape[2], one.shape[1], one.shape[3])
        own.append(one.new_empty(shape).transpose(1, 2) if wanted >> bit & 1 else one.new_empty(0))
    return (*own, [args[3][at].new_empty(args[3][at].shape) for at in wanted_tensors])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    tensors = inputs[3]
    ctx.save_for_backward(*inputs[:3], *inputs[_LISTS], *tensors, *output)
    ctx.count, ctx.options, ctx.has_lse = len(tensors), inputs[8:_SHARED], inputs[-1]


def bits(needed: Sequence[bool]) -> int:
    return sum(1 << bit for bit, one in enumerate(needed) if one)


def differentiable(needed: Sequence[bool], tensors: Sequence[torch.Tensor]) -> list[int]:
    """Places of tensors whose gradients are wanted: integers have none."""
    return [at for at, one in enumerate(needed) if one and tensors[at].is_floating_point()]


def of_all(
    tensors: Sequence[torch.Tensor], places: Sequence[int], found: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Gradients found at places of tensors; None for the others."""
    by_place = dict(zip(places, found, strict=True))
    return [by_place.get(at) for at in range(len(tensors))]


def _gradients(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
    results: list[Any] = [None] * (_SHARED + 1)
    if dout is None and dlse is None:
        return tuple(results)
    if not ctx.has_lse:
        raise RuntimeError(
            "need_lse is False: the gradients of fulmen.flex_attention need the lse, call it with "
            "need_lse=True"
        )
    q, k, v, *rest = ctx.saved_tensors
    lists, tensors, (out, lse) = rest[:4], rest[4:-2], rest[-2:]
    wanted = bits(ctx.needs_input_grad[:3])
    needed = ctx.needs_input_grad[3]
    needed = needed if isinstance(needed, list | tuple) else [needed] * len(tensors)
    wanted_tensors = differentiable(needed, tensors)
    dout = torch.zeros_like(out) if dout is None else dout
    *own, found = torch.ops.fulmen.flex_attention_backward(
        q, k, v, tensors, *lists, *ctx.options, out, lse, dout, dlse, wanted, wanted_tensors
    )
    for bit in range(3):
        if wanted >> bit & 1:
            results[bit] = own[bit]
    results[3] = of_all(tensors, wanted_tensors, found)
    return tuple(results)


def _refuse_double_backward(*_: Any) -> Any:
    raise RuntimeError(
        "fulmen.flex_attention has no second derivative: its backward pass is not differentiable"
    )


def _register() -> None:
    library = _ops.library
    for key in ("CPU", "CUDA"):
        library.impl("flex_attention", _forward, key)
        library.impl("flex_attention_backward", _backward, key)
        _register_autocast(f"Autocast{key}", key.lower())
    torch.library.register_fake("fulmen::flex_attention", _forward_fake, lib=library)
    torch.library.register_fake("fulmen::flex_attention_backward", _backward_fake, lib=library)
    torch.library.register_autograd(
        "fulmen::flex_attention", _gradients, setup_context=_save, lib=library
    )
    torch.library.register_autograd(
        "fulmen::flex_attention_backward", _refuse_double_backward, lib=library
    )


def _register_autocast(key: str, device_type: str) -> None:
    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(
            torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        ):
            cast = _ops.cast_for_autocast(device_type, q, k, v)
            return torch.ops.fulmen.flex_attention(*cast, *rest)

    _ops.library.impl("flex_attention", forward, key)


_register()
