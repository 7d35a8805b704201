"""torch.ops.fulmen.flex_attention: attention with functions, its backward pass, and calls of it.

Tensors are [batch, heads, seqlen, head_dim]. The functions are text; x0, x1, ... in it are the
tensors of the list.
"""

from __future__ import annotations

from typing import Any

import torch

from fulmen import _core
from fulmen._arguments import NOBODY
from fulmen._core import ArgumentError
from fulmen.flex import _kernel
from fulmen.flex._captured import as_kind
from fulmen.flex._problem import Problem, problem
from fulmen.flex._trace import Traced
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


def _arguments(problem: Problem, scale: float | None, options: _kernel.Options) -> tuple[Any, ...]:
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
    """What _arguments() made, again."""
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
    gradients = {
        made.names[at]: torch.empty_like(made.tensors[at], memory_format=torch.contiguous_format)
        for at in wanted_tensors
    }
    settled = torch.are_deterministic_algorithms_enabled()
    if settled or options.deterministic is None:
        options = options._replace(deterministic=settled)
    tensors = (q, k, v, out, lse, _ops.last_dim_contiguous(dout), dlse)
    found = _kernel.backward(tensors, made, scale, options, wanted, gradients)
    own = [q.new_empty(0) if one is None else one for one in found]
    return (*own, list(gradients.values()))


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
    wanted = sum(1 << bit for bit in range(3) if ctx.needs_input_grad[bit])
    needed = ctx.needs_input_grad[3]
    needed = needed if isinstance(needed, list | tuple) else [needed] * len(tensors)
    wanted_tensors = [
        at for at, one in enumerate(needed) if one and tensors[at].is_floating_point()
    ]
    dout = torch.zeros_like(out) if dout is None else dout
    *own, found = torch.ops.fulmen.flex_attention_backward(
        q, k, v, tensors, *lists, *ctx.options, out, lse, dout, dlse, wanted, wanted_tensors
    )
    for bit in range(3):
        if wanted >> bit & 1:
            results[bit] = own[bit]
    by_place = dict(zip(wanted_tensors, found, strict=True))
    results[3] = [by_place.get(at) for at in range(len(tensors))]
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


def _plain_scale(scale: Any) -> float | None:
    if getattr(scale, "requires_grad", False):
        raise ArgumentError(
            "scale requires grad: it has no gradient here, scale query by what is learned"
        )
    return None if scale is None else float(scale)


# What kernels read as it is.
_READ = frozenset(
    (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int32,
        torch.int64,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
)
_LIST = frozenset((torch.int32,))


def _is_there(one: Any, device: torch.device, dtypes: frozenset[torch.dtype]) -> bool:
    return type(one) is torch.Tensor and one.device == device and one.dtype in dtypes


def on_device(problem: Problem, query: torch.Tensor) -> Problem:
    """With tensors that kernels read beside query."""
    device = query.device
    tensors = tuple(
        [
            one if _is_there(one, device, _READ) else as_kind(one, torch, device, name)
            for name, one in zip(problem.names, problem.tensors, strict=True)
        ]
    )
    lists = tuple(
        [
            one
            if one is None or _is_there(one, device, _LIST)
            else as_kind(one, torch, device, "block_mask").to(torch.int32)
            for one in problem.lists
        ]
    )
    return problem._replace(tensors=tensors, lists=lists)


def torch_problem(
    query: torch.Tensor, score_mod: Any, block_mask: Any, sizes: tuple[int, int, int, int]
) -> tuple[Problem, Traced]:
    """What kernels compute, and the functions' graphs."""
    made, both = problem(score_mod, block_mask, query, sizes)
    return on_device(made, query), both


def in_batch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """key and value, which may have a batch of 1, of query's."""
    batch = query.shape[0]
    if key.shape[0] == batch:
        return key, value
    return key.expand(batch, *key.shape[1:]), value.expand(batch, *value.shape[1:])


def in_autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """query, key and value in the dtype that torch.autocast gives the operator."""
    kind = tensors[0].device.type
    return _ops.cast_for_autocast(kind, *tensors) if torch.is_autocast_enabled(kind) else tensors


def as_kernels_read(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: Any
) -> tuple[Any, ...]:
    """query, key, value and scale as the operator gives them to kernels."""
    key, value = in_batch(query, key, value)
    tensors = in_autocast(query, key, value)
    return *map(_ops.last_dim_contiguous, tensors), _plain_scale(scale)


def _is_seen_by_nobody(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, made: Problem
) -> bool:
    """Whether the kernel can be called without torch's dispatcher: no gradient is wanted, and no
    mode, transform, tracer, subclass or profiler looks on."""
    return (
        _core.torch_observers((query, key, value)) == NOBODY
        and not torch.autograd._profiler_enabled()
        and not (
            torch.is_grad_enabled()
            and any([getattr(one, "requires_grad", False) for one in made.tensors])
        )
        and all(
            [type(one) is torch.Tensor for one in (*made.tensors, *made.lists) if one is not None]
        )
    )


def run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    made: Problem,
    both: Any,
    scale: Any,
    options: _kernel.Options,
    wanted: tuple[bool, bool],
) -> tuple[Any, Any, Any]:
    """out, and what is wanted of lse and the largest scores. made: with tensors of on_device()."""
    scale = _plain_scale(scale)
    key, value = in_batch(query, key, value)
    if options.deterministic is not None:
        options = options._replace(deterministic=bool(options.deterministic))
    if _is_seen_by_nobody(query, key, value, made):
        q, k, v = map(_ops.last_dim_contiguous, (query, key, value))
        result = _kernel.forward(q, k, v, made, scale, options, wanted[0])
        out, lse = result if wanted[0] else (result, None)
    else:
        need_lse = wanted[0] or torch.is_grad_enabled()
        out, lse = torch.ops.fulmen.flex_attention(
            query, key, value, *_arguments(made, scale, options), need_lse
        )
    top = None
    if wanted[1]:
        from fulmen.flex._max_scores import max_scores

        with torch.no_grad():
            query, key, _ = in_autocast(query, key, value)
            top = max_scores(query, key, both, made, scale, torch)
    return out, lse if wanted[0] else None, top


def computed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    block_mask: Any,
    scale: Any,
    sizes: tuple[int, int, int, int],
    options: _kernel.Options,
    wanted: tuple[bool, bool],
) -> tuple[Any, Any, Any]:
    for name, one in (("key", key), ("value", value)):
        if not isinstance(one, torch.Tensor):
            raise TypeError(f"{name} is of type {type(one).__name__}: a torch tensor is needed")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise NotImplementedError(
            "fulmen.flex_attention has no rule for torch.func (vmap, grad, jvp): autograd's "
            "backward is accepted"
        )
    made, both = torch_problem(query, score_mod, block_mask, sizes)
    return run(query, key, value, made, both, scale, options, wanted)
