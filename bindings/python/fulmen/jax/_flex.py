"""flex_attention of JAX arrays, on the CPU and on GPUs: inside and outside of jax.jit,
differentiable by query, key, value and the arrays that functions capture, under jax.vmap call by
call. It is the custom call of fulmen.attention, with functions."""

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
from fulmen.jax._calls import (
    _DLSE,
    _DOUT,
    _DQ,
    _LSE,
    _OUT,
    _described,
    _is_for_cpu,
    _without_other_derivatives,
)
from fulmen.jax._flex_trace import traced
from fulmen.jax._sharding import differing, manual_axes


class _Static(NamedTuple):
    """What is compiled: all but the arrays."""

    problem: Problem  # without its tensors and lists
    scale: float | None
    options: _kernel.Options
    want_lse: bool


def _call(
    target: str,
    static: _Static,
    placed: dict[int, Any],
    arrays: tuple[Any, ...],
    results: dict[int, Any],
    gradients: tuple[int, ...] = (),
) -> tuple[Any, ...]:
    """The custom call's results, in the order of places, then gradients of those tensors. placed,
    results: arrays and ShapeDtypeStructs by the places of tensors (call.h)."""
    _, _, _, tensors, lists = arrays
    made, options = static.problem, static.options
    attributes: dict[str, Any] = {
        "arguments": np.int64(sum(1 << at for at in placed)),
        "results": np.int64(sum(1 << at for at in results)),
        "bhsd": np.int64(1),
        "num_threads": np.int64(options.num_threads),
        "verify": np.int64(options.verify),
        "score_mod": made.score_mod,
        "mask_mod": made.mask_mod,
        "function_tensors": " ".join(made.names),
        "function_gradients": np.int64(sum(1 << at for at in gradients)),
        "block_lists": np.int64(sum(1 << at for at, one in enumerate(lists) if one is not None)),
        "mask_block_q": np.int64(made.block[0] if lists else 0),
        "mask_block_k": np.int64(made.block[1] if lists else 0),
    }
    if static.scale is not None:
        attributes["softmax_scale"] = np.float32(static.scale)
    if options.deterministic is not None:
        attributes["deterministic"] = np.int64(options.deterministic)
    for name in ("kernel", "tuning", "device"):
        if value := getattr(options, name):
            attributes[name] = value
    shapes = [results[at] for at in sorted(results)]
    shapes += [jax.ShapeDtypeStruct(tensors[at].shape, tensors[at].dtype) for at in gradients]
    operands = [*(placed[at] for at in sorted(placed)), *tensors]
    operands += [one for one in lists if one is not None]
    # A mapped dim is a call for each index: functions read the number of a sequence.
    made_call = jax.ffi.ffi_call(target, shapes, vmap_method="sequential")
    axes = manual_axes(operands)
    return tuple(differing(one, axes) for one in made_call(*operands, **attributes))


def _computed(static: _Static, arrays: tuple[Any, ...], want_lse: bool) -> tuple[Any, Any]:
    q, k, v = arrays[:3]
    results = {_OUT: jax.ShapeDtypeStruct((*q.shape[:3], v.shape[3]), q.dtype)}
    if want_lse:
        results[_LSE] = jax.ShapeDtypeStruct(q.shape[:3], jnp.float32)
    found = _call("fulmen_attention", static, {0: q, 1: k, 2: v}, arrays, results)
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
    results = {
        _DQ + bit: jax.ShapeDtypeStruct(one.shape, one.dtype)
        for bit, one in enumerate(values[:3])
        if bits >> bit & 1
    }
    found = []
    if bits or of_tensors:
        given = {0: values[0], 1: values[1], 2: values[2], _OUT: out, _LSE: lse, _DOUT: dout}
        if dlse is not None:
            given[_DLSE] = dlse
        # The tuning is the forward kernel's.
        static = static._replace(options=static.options._replace(tuning=None))
        found = list(_call("fulmen_attention_backward", static, given, values, results, of_tensors))
    own = [found.pop(0) if bits >> bit & 1 else None for bit in range(3)]
    by_place = dict(zip(of_tensors, found, strict=True))
    tensors = tuple(by_place.get(at) for at in range(len(values[3])))
    return ((*own, tensors, tuple(None for _ in values[4])),)


_attention.defvjp(_attention_forward, _attention_backward, symbolic_zeros=True)
# Outside of any trace compiled calls are looked up by their shapes.
_compiled = jax.jit(_attention, static_argnums=0)

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
    is_for_cpu = _is_for_cpu((query, key, value))
    _check(static, (query, key, value), tensors, given_lists, is_for_cpu)
    with _without_other_derivatives("fulmen.flex_attention"):
        given = (*map(jnp.asarray, (query, key, value)), tensors, given_lists)
        # A device's gradient of what all have is a part of it (jax.shard_map).
        axes = manual_axes(jax.tree.leaves(given))
        given = jax.tree.map(lambda one: differing(one, axes), given)
        traced_now = any(isinstance(one, jax.core.Tracer) for one in jax.tree.leaves(given))
        out, lse = (_attention if traced_now else _compiled)(static, given)
    if not wanted[1]:
        return out, lse, None
    from fulmen.flex._max_scores import max_scores

    stopped = map(jax.lax.stop_gradient, (query, key))
    top = max_scores(*stopped, both, made._replace(tensors=tensors), static.scale, jnp)
    return out, lse, jax.lax.stop_gradient(top)


def _check(
    static: _Static, inputs: tuple[Any, ...], tensors: Any, lists: Any, is_for_cpu: bool
) -> None:
    """Raises what the call would, when it is traced: XLA's own errors come late, and have one
    type. A GPU's kernels are known when it runs."""
    options = static.options
    if not is_for_cpu:
        options = options._replace(kernel=None, tuning=None, device=None)
    made = static.problem._replace(
        tensors=tuple(map(_described, tensors)),
        lists=tuple(None if one is None else _described(one) for one in lists),
    )
    _kernel.explain(*map(_described, inputs), made, static.scale, options, static.want_lse, 0, {})


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
