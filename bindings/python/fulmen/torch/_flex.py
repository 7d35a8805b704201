"""Calls of fulmen.flex_attention with torch tensors, [batch, heads, seqlen, head_dim]."""

from __future__ import annotations

from typing import Any

import torch

from fulmen._arguments import OTHERS
from fulmen._core import ArgumentError
from fulmen.flex import _kernel
from fulmen.flex._captured import as_kind
from fulmen.flex._problem import Problem, problem
from fulmen.flex._recent import find, remember, watch_of
from fulmen.flex._trace import Traced
from fulmen.torch import _flex_direct, _flex_operator, _ops


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
    known = find(score_mod, block_mask, query, sizes)
    if known is not None:
        return known
    watch = watch_of(score_mod, block_mask, query)
    made, both = problem(score_mod, block_mask, query, sizes)
    found = on_device(made, query), both
    remember(score_mod, block_mask, query, sizes, found, watch)
    return found


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
    seen = _flex_direct.observers(query, key, value, made)
    if seen == OTHERS:
        need_lse = wanted[0] or torch.is_grad_enabled()
        out, lse = torch.ops.fulmen.flex_attention(
            query, key, value, *_flex_operator.arguments(made, scale, options), need_lse
        )
    else:
        q, k, v = map(_ops.last_dim_contiguous, (query, key, value))
        out, lse = _flex_direct.forward(q, k, v, made, scale, options, wanted[0], seen)
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
