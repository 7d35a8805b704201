"""Attention by the names of jax.nn and flax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fulmen._arguments import rename
from fulmen._core import ArgumentError
from fulmen._functions import attention

# Names that differ from fulmen.attention's.
_NAMES = {"q": "query", "k": "key", "v": "value", "keep_mask": "mask", "softmax_scale": "scale"}


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """What jax.nn.dot_product_attention computes, with its arguments.

    Args:
      query: [batch, seqlen_q, heads, head_dim], or without a batch; key, value: [batch, seqlen_k,
        kv_heads, head_dim], kv_heads divides heads. float32, float16 or bfloat16.
      bias: added to the scores, broadcasts to [batch, heads, seqlen_q, seqlen_k]; differentiable.
      mask: bool, True attends; broadcasts likewise.
      scale: a number; None is 1 / sqrt(head_dim).
      is_causal: aligned top left.
      query_seq_lengths, key_value_seq_lengths: int32 [batch]. Rows of the result from a query's
        length on are 0.
      local_window_size: keys on the left and the right of a query's own position.
      implementation: None, or "fulmen"; "xla" and "cudnn" are jax.nn's own.
      return_residual: returns (out, lse [batch, seqlen_q, heads]), lse of key's dtype, without a
        derivative.

    Returns:
      An array like query. A row that attends no key is 0, its lse -inf; jax.nn gives the mean of
      all values there.
    """
    if implementation not in (None, "fulmen"):
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            bias,
            mask,
            scale=scale,
            is_causal=is_causal,
            query_seq_lengths=query_seq_lengths,
            key_value_seq_lengths=key_value_seq_lengths,
            local_window_size=local_window_size,
            implementation=implementation,
            **({"return_residual": True} if return_residual else {}),
        )
    query, key, value = map(jnp.asarray, (query, key, value))
    shape = query.shape
    for name, array in (("query", query), ("key", key), ("value", value)):
        if array.ndim != query.ndim or array.ndim not in (3, 4):
            raise ArgumentError(
                f"{name} has shape {list(array.shape)}: [batch, seqlen, heads, head_dim] is "
                "accepted, or all three without a batch"
            )
    q, k, v = (_in_four_dims(array) for array in (query, key, value))
    batch, seqlen_q, seqlen_k = q.shape[0], q.shape[1], k.shape[1]
    if mask is not None and jnp.asarray(mask).dtype != bool:
        raise TypeError(
            f"mask has dtype {jnp.asarray(mask).dtype}: bool is accepted; bias is added"
        )
    lengths_q = _lengths("query_seq_lengths", query_seq_lengths, batch)
    lengths_k = _lengths("key_value_seq_lengths", key_value_seq_lengths, batch)
    keep = _over_keys(mask, seqlen_k)
    if lengths_k is not None:
        keep = _both(keep, (jnp.arange(seqlen_k) < lengths_k[:, None])[:, None, None])
    left, right, outside = _window(local_window_size, is_causal, seqlen_q, seqlen_k)
    keep = _both(keep, outside)
    bias = _over_keys(bias, seqlen_k)
    if bias is not None and bias.dtype not in (q.dtype, jnp.float32):
        bias = bias.astype(jnp.float32)
    try:
        out, lse = attention(
            q,
            k,
            v,
            bias=bias,
            keep_mask=keep,
            softmax_scale=scale,
            causal="top_left" if is_causal else False,
            window_left=left,
            window_right=right,
            return_lse=True,
        )
    except (TypeError, ValueError, NotImplementedError) as error:
        rename(error, _NAMES)
        raise
    lse = jax.lax.stop_gradient(jnp.swapaxes(lse, 1, 2))
    if lengths_q is not None:
        used = (jnp.arange(seqlen_q) < lengths_q[:, None])[:, :, None]
        out = jnp.where(used[..., None], out, 0)
        lse = jnp.where(used, lse, -jnp.inf)
    out = out.reshape((*shape[:-1], v.shape[-1]))
    return (out, lse.astype(key.dtype).reshape(shape[:-1])) if return_residual else out


def flax_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    broadcast_dropout: bool = True,
    dropout_rng: Any = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Any = None,
    precision: Any = None,
    module: Any = None,
    promote_dtype: Any = None,
    is_causal: bool = False,
) -> Any:
    """For flax's modules: nnx.MultiHeadAttention(..., attention_fn=fulmen.jax.flax_attention), and
    linen's. Their arguments, their shapes: query [..., seqlen_q, heads, head_dim], the same leading
    dims in all.

    Dropout differs by sequence and head whatever broadcast_dropout says. Products are accumulated
    in float32 whatever precision says. dtype: of the computation and the result; promote_dtype:
    flax's function for that.
    """
    if module is not None:
        raise NotImplementedError(
            "module is given, to keep attention weights: there are none here, "
            "sow_weights=False is accepted"
        )
    if promote_dtype is not None:
        query, key, value = promote_dtype((query, key, value), dtype=dtype)
    dtype = dtype or jnp.result_type(query, key, value)
    query, key, value = (jnp.asarray(one, dtype) for one in (query, key, value))
    leading = query.shape[:-3]
    q, k, v = (one.reshape((-1, *one.shape[-3:])) for one in (query, key, value))
    full = (*leading, query.shape[-2], query.shape[-3], key.shape[-3])

    def scores(array: Any) -> Any:
        if array is None:
            return None
        array = jnp.asarray(array)
        if all(size == 1 for size in array.shape[:-3]):
            return _over_keys(array.reshape(array.shape[-3:]), full[-1])
        shape = (*leading, *array.shape[-3:])
        return _over_keys(jnp.broadcast_to(array, shape).reshape((-1, *shape[-3:])), full[-1])

    rate = 0.0 if deterministic else dropout_rate
    bias = scores(bias)
    out = attention(
        q,
        k,
        v,
        bias=bias if bias is None or bias.dtype == dtype else bias.astype(jnp.float32),
        keep_mask=None if mask is None else scores(jnp.asarray(mask) != 0),
        causal="top_left" if is_causal else False,
        dropout=rate,
        dropout_seed=dropout_rng if rate else None,
    )
    return out.reshape((*leading, *out.shape[1:]))


def _in_four_dims(array: Any) -> Any:
    return array[None] if array.ndim == 3 else array


def _over_keys(scores: Any, seqlen_k: int) -> Any:
    """A mask or bias with its last dim in full: one that is the same for all keys has one element
    there."""
    if scores is None:
        return None
    scores = jnp.asarray(scores)
    if scores.ndim == 0 or scores.shape[-1] == 1 != seqlen_k:
        return jnp.broadcast_to(scores, (*scores.shape[:-1], seqlen_k))
    return scores


def _both(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _lengths(name: str, given: Any, batch: int) -> Any:
    if given is None:
        return None
    given = jnp.asarray(given)
    if given.shape != (batch,) or not jnp.issubdtype(given.dtype, jnp.integer):
        raise ArgumentError(
            f"{name} has shape {list(given.shape)} and dtype {given.dtype}: integers [{batch}] are "
            "accepted"
        )
    return given


def _window(
    given: int | tuple[int, int] | None, is_causal: bool, seqlen_q: int, seqlen_k: int
) -> tuple[int, int, Any]:
    """(window_left, window_right, None), or a mask where these can't say it."""
    if given is None:
        return -1, -1, None
    left, right = (given, given) if isinstance(given, int | np.integer) else given
    if left < 0 or right < 0:
        raise ArgumentError(f"local_window_size is {given}: numbers from 0 on are accepted")
    # Positions count from the first query and key; without a causal mask fulmen.attention's from
    # the last ones.
    offset = 0 if is_causal else seqlen_k - seqlen_q
    if left + offset >= 0 and right - offset >= 0:
        return left + offset, right - offset, None
    distance = jnp.arange(seqlen_k) - jnp.arange(seqlen_q)[:, None]
    return -1, -1, (distance >= -left) & (distance <= right)
