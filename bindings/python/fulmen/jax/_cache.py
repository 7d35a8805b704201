"""Appending to a KV cache of JAX arrays, for fulmen.append_kv."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fulmen import _core
from fulmen.jax._calls import (
    _check_arrays,
    _described,
    _kept,
    _shapes,
)
from fulmen.jax._custom_call import Call, custom_call
from fulmen.jax._sharding import Layout

_CACHE_NAMES = (
    "k_cache",
    "v_cache",
    "seqlens_k",
    "block_table",
    "k",
    "v",
    "rotary_cos",
    "rotary_sin",
    "q",
)
# How many caches come first, and the places of seqlens_k, block_table and q.
_CACHES, _USED, _TABLE, _TURNED = 2, 2, 3, 8


@_kept
def _check_cache(shapes: tuple[Any, ...], *rest: Any) -> None:
    _core.check_append_kv(
        tuple(None if shape is None else _described(shape) for shape in shapes), *rest
    )


def _appended(
    device: str | None,
    interleaved: bool,
    advance: bool,
    num_threads: int,
    validate: bool,
    tensors: tuple[Any, ...],
) -> tuple[jax.Array, ...]:
    """The caches, the lengths and, with queries, these."""
    attributes = {
        "arguments": np.int64(
            sum(1 << at for at, tensor in enumerate(tensors) if tensor is not None)
        ),
        "rotary_interleaved": np.int64(interleaved),
        "queries_advance": np.int64(advance),
        "num_threads": np.int64(num_threads),
        "validate": np.int64(validate),
        **({"device": device} if device else {}),
    }
    places = [at for at, tensor in enumerate(tensors) if tensor is not None]
    results = (*tensors[: _USED + 1], *(() if tensors[_TURNED] is None else (tensors[_TURNED],)))
    call = Call(
        "fulmen_append_kv",
        tuple(attributes.items()),
        tuple(_CACHE_NAMES[at] for at in places),
        ("k_cache", "v_cache", "seqlens_k_out", "q_out")[: len(results)],
        Layout(pages=tensors[_TABLE] is not None),
        # Under vmap each call has a cache of its own, even if all begin as the same cache.
        aliases=tuple(range(_CACHES)),
        function="fulmen.append_kv",
        has_gradient=False,
    )
    shapes = tuple((one.shape, one.dtype.name) for one in results)
    return custom_call(call, shapes, *(tensors[at] for at in places))


_append_compiled = jax.jit(_appended, static_argnums=(0, 1, 2, 3, 4))


def _append_kv(tensors: tuple[Any, ...], *options: Any) -> tuple[Any, ...]:
    """options: device, rotary_interleaved, queries_advance, num_threads, validate."""
    if any(tensor is not None for tensor in tensors[len(_CACHE_NAMES) :]):
        raise NotImplementedError(
            "k_scale or v_scale is given: caches that are JAX arrays have none, None is accepted"
        )
    tensors = tensors[: len(_CACHE_NAMES)]
    _check_arrays(_CACHE_NAMES, tensors)
    _check_cache(_shapes(tensors), *options)
    traced = any(isinstance(one, jax.core.Tracer) for one in tensors)
    call = _appended if traced else _append_compiled
    k_cache, v_cache, lengths, *queries = call(*options, tensors)
    return queries[0] if queries else None, lengths, k_cache, v_cache
