"""flex_attention of JAX arrays on the CPU: inside and outside of jax.jit, differentiable by query,
key, value and the arrays that functions capture, under jax.vmap call by call."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from fulmen._core import ArgumentError
from fulmen._numbers import is_of_torch
from fulmen.flex import _kernel
from fulmen.flex._block_mask import is_block_mask
from fulmen.flex._problem import Problem, lists_of, with_lists
from fulmen.jax._calls import _described, _is_for_cpu, _without_other_derivatives
from fulmen.jax._flex_trace import traced


class _Static(NamedTuple):
    """What is compiled: all but the arrays."""

    problem: Problem  # without its tensors and lists
    scale: float | None
    options: _kernel.Options
    want_lse: bool


def _problem(static: _Static, arrays: tuple[Any, ...]) -> Problem:
    """With arrays that kernels read."""
    _, _, _, tensors, lists = arrays
    return static.problem._replace(
        tensors=tuple(map(np.asarray, tensors)),
        lists=tuple(None if one is None else np.asarray(one, np.int32) for one in lists),
    )


def _forward_on_host(static: _Static, want_lse: bool, *arrays: Any) -> tuple[Any, ...]:
    q, k, v = map(np.asarray, arrays[:3])
    result = _kernel.forward(
        q, k, v, _problem(static, arrays), static.scale, static.options, want_lse
    )
    return tuple(map(np.ascontiguousarray, result if want_lse else (result,)))


def _backward_on_host(static: _Static, wanted: tuple[int, tuple[int, ...]], *given: Any) -> Any:
    arrays, (out, lse, dout, dlse) = given[:5], given[5:]
    made = _problem(static, arrays)
    gradients = {made.names[at]: np.zeros_like(made.tensors[at]) for at in wanted[1]}
    tensors = tuple(
        None if one is None else np.asarray(one) for one in (*arrays[:3], out, lse, dout, dlse)
    )
    found = _kernel.backward(tensors, made, static.scale, static.options, wanted[0], gradients)
    own = [one for bit, one in enumerate(found) if wanted[0] >> bit & 1]
    return tuple(map(np.ascontiguousarray, (*own, *gradients.values())))


def _computed(static: _Static, arrays: tuple[Any, ...], want_lse: bool) -> tuple[Any, Any]:
    q, v = arrays[0], arrays[2]
    shapes = [jax.ShapeDtypeStruct((*q.shape[:3], v.shape[3]), q.dtype)]
    if want_lse:
        shapes.append(jax.ShapeDtypeStruct(q.shape[:3], jnp.float32))
    call = functools.partial(_forward_on_host, static, want_lse)
    found = jax.pure_callback(call, tuple(shapes), *arrays, vmap_method="sequential")
    return found[0], found[1] if want_lse else None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static: _Static, arrays: tuple[Any, ...]) -> tuple[Any, Any]:
    return _computed(static, arrays, static.want_lse)


def _is_perturbed(one: Any) -> bool:
    return one.perturbed and jnp.issubdtype(one.value.dtype, jnp.floating)


@jax.tree_util.register_static
class _Wanted(tuple):
    pass


def _attention_forward(static: _Static, arrays: Any) -> tuple[Any, Any]:
    q, k, v, tensors, lists = arrays
    wanted = sum(1 << bit for bit, one in enumerate((q, k, v)) if _is_perturbed(one))
    of_tensors = tuple(at for at, one in enumerate(tensors) if _is_perturbed(one))
    values = (
        *(one.value for one in (q, k, v)),
        tuple(one.value for one in tensors),
        tuple(None if one is None else one.value for one in lists),
    )
    out, lse = _computed(static, values, True)
    return (out, lse if static.want_lse else None), (
        values,
        out,
        lse,
        _Wanted((wanted, of_tensors)),
    )


def _attention_backward(static: _Static, saved: Any, cotangents: Any) -> tuple[Any]:
    values, out, lse, wanted = saved
    dout, dlse = (None if isinstance(one, SymbolicZero) else one for one in cotangents)
    dout = jnp.zeros_like(out) if dout is None else dout
    bits, of_tensors = wanted
    like = [one for bit, one in enumerate(values[:3]) if bits >> bit & 1]
    like += [values[3][at] for at in of_tensors]
    shapes = tuple(jax.ShapeDtypeStruct(one.shape, one.dtype) for one in like)
    call = functools.partial(_backward_on_host, static, (bits, of_tensors))
    found = list(
        jax.pure_callback(call, shapes, *values, out, lse, dout, dlse, vmap_method="sequential")
        if shapes
        else ()
    )
    own = [found.pop(0) if bits >> bit & 1 else None for bit in range(3)]
    by_place = dict(zip(of_tensors, found, strict=True))
    tensors = tuple(by_place.get(at) for at in range(len(values[3])))
    return ((*own, tensors, tuple(None for _ in values[4])),)


_attention.defvjp(_attention_forward, _attention_backward, symbolic_zeros=True)

_DTYPES = ("float32", "float16", "bfloat16")


def computed(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any,
    block_mask: Any,
    scale: Any,
    sizes: tuple[int, int, int, int],
    options: _kernel.Options,
    wanted: tuple[bool, bool],
) -> tuple[Any, Any, Any]:
    arrays = {"query": query, "key": key, "value": value}
    for name, one in arrays.items():
        if not isinstance(one, jax.Array | np.ndarray):
            raise TypeError(f"{name} is of type {type(one).__name__}: a JAX array is accepted")
        if one.dtype.name not in _DTYPES or one.dtype != query.dtype:
            raise TypeError(
                f"{name} has dtype {one.dtype.name}: {', '.join(_DTYPES)} are accepted, the same "
                "for all three"
            )
    if not _is_for_cpu((query, key, value)):
        raise NotImplementedError(
            "fulmen.flex_attention takes JAX arrays on the CPU: for those on a GPU torch tensors "
            "are accepted"
        )
    if block_mask is not None and not is_block_mask(block_mask):
        raise TypeError(f"block_mask is of type {type(block_mask).__name__}: a BlockMask is needed")
    mask_mod = None if block_mask is None else block_mask.mask_mod
    both = traced(score_mod, mask_mod, query)
    lists = () if block_mask is None else lists_of(block_mask, sizes)
    lists = tuple(np.asarray(one) if is_of_torch(one) else one for one in lists)
    block = () if block_mask is None else block_mask.BLOCK_SIZE
    made, both = with_lists(both, lists, block, sizes)
    tensors = tuple(map(_as_read, made.tensors))
    given_lists = tuple(
        None if one is None else jnp.asarray(one)
        for one in (made.lists if made.read_by_kernel else ())
    )
    key, value = (
        jnp.broadcast_to(one, (sizes[0], *one.shape[1:])) if one.shape[0] != sizes[0] else one
        for one in (key, value)
    )
    static = _Static(
        made._replace(tensors=(), lists=()),
        None if scale is None else _number("scale", scale),
        options,
        wanted[0],
    )
    _check(static, (query, key, value), tensors, given_lists)
    with _without_other_derivatives("fulmen.flex_attention"):
        out, lse = _attention(
            static, (*map(jnp.asarray, (query, key, value)), tensors, given_lists)
        )
    if not wanted[1]:
        return out, lse, None
    from fulmen.flex._max_scores import max_scores

    stopped = map(jax.lax.stop_gradient, (query, key))
    top = max_scores(*stopped, both, made._replace(tensors=tensors), static.scale, jnp)
    return out, lse, jax.lax.stop_gradient(top)


def _check(static: _Static, inputs: tuple[Any, ...], tensors: Any, lists: Any) -> None:
    """Raises what the call would, in the program and not in a callback."""
    made = static.problem._replace(
        tensors=tuple(map(_described, tensors)),
        lists=tuple(None if one is None else _described(one) for one in lists),
    )
    _kernel.explain(
        *map(_described, inputs), made, static.scale, static.options, static.want_lse, 0
    )


def _number(name: str, value: Any) -> float:
    if isinstance(value, jax.core.Tracer):
        raise ArgumentError(f"{name} is traced: a number is accepted, or scale query by it")
    return float(value)


def _as_read(array: Any) -> Any:
    """In a dtype that kernels read."""
    array = jnp.asarray(np.asarray(array) if is_of_torch(array) else array)
    converted = {"float64": "float32", "int16": "int32", "uint16": "int32", "uint32": "int64"}
    name = converted.get(array.dtype.name)
    return array if name is None else array.astype(name)
