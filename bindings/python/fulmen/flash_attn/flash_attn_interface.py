"""The functions of flash_attn (2.8), with its names, defaults and results."""

from __future__ import annotations

import functools
import inspect
import operator
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

import fulmen.torch  # noqa: F401  registers torch.ops.fulmen
from fulmen._arguments import rename, unexpected
from fulmen._core import ArgumentError, max_head_dim_v
from fulmen._functions import append_kv, as_numbers, attention, dropout_mask
from fulmen._numbers import is_of_numpy

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


# Names that differ from those of fulmen.attention and fulmen.append_kv.
_NAMES = {
    "seqlens_k": "cache_seqlens",
    "leftpad_k": "cache_leftpad",
    "dropout": "dropout_p",
    "window_left": "window_size[0]",
    "window_right": "window_size[1]",
}
# Names of the caches in fulmen.attention.
CACHES = {"k": "k_cache", "v": "v_cache"}
_ONE_LENGTH = {f"{name}_{one}": name for name in ("cu_seqlens", "max_seqlen") for one in "qk"}
_is_compiling = torch.compiler.is_dynamo_compiling
_F = TypeVar("_F", bound=Callable[..., Any])


def named(**names: str) -> Callable[[_F], _F]:
    """With errors that name the arguments of this module's functions; names: those of one function
    alone."""
    names = {**_NAMES, **names}

    def of(function: _F) -> _F:
        accepted = tuple(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                return function(*args, **kwargs)
            for name in kwargs:
                if name not in accepted:
                    raise TypeError(unexpected(function.__name__, name, accepted))
            try:
                return function(*args, **kwargs)
            except (TypeError, ValueError, NotImplementedError) as error:
                rename(error, names)
                raise

        return call  # type: ignore[return-value]

    return of


def readable(**tensors: Any) -> tuple[Any, ...]:
    """The tensors, those whose last dim is not contiguous as copies: autograd goes through them."""
    return tuple([_copied(name, t) if _is_strided(t) else t for name, t in tensors.items()])


def _is_strided(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.dim() > 0
        and tensor.shape[-1] > 1
        and tensor.stride(-1) != 1
    )


def say(text: str) -> None:
    """One line on stderr about how a call is served, with FLASH_ATTENTION_DEBUG=1."""
    if not _is_compiling() and os.environ.get("FLASH_ATTENTION_DEBUG", "0") not in ("", "0"):
        print(f"fulmen: {text}", file=sys.stderr)


def _copied(name: str, tensor: torch.Tensor) -> torch.Tensor:
    say(f"{name} is copied before: its last dim has a stride of {tensor.stride(-1)}")
    return tensor.contiguous()


@named()
def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q [batch, seqlen_q, heads, head_dim] with k and v
    [batch, seqlen_k, kv_heads, head_dim].

    Args:
      dropout_p: probability that an element of the softmax is dropped; torch's generator draws.
      softmax_scale: None is 1 / sqrt(head_dim).
      q, k, v: one whose last dim is not contiguous is copied before, which FLASH_ATTENTION_DEBUG=1
          says.
      causal, window_size: query i attends keys i + seqlen_k - seqlen_q - left to … + right; below 0
        is unlimited, causal is right = 0.
      softcap: 0 is off. alibi_slopes: [heads] or [batch, heads], float32; other floats are
          converted.
      deterministic: gradients are the same in every bit from run to run.
      return_attn_probs: for tests.

    Returns:
      out [batch, seqlen_q, heads, head_dim]; with return_attn_probs (out, softmax_lse
      [batch, heads, seqlen_q], S_dmask). S_dmask is empty without dropout; else the softmax
      [batch, heads, seqlen_q, seqlen_k], negative where it was dropped.
    """
    shared, settings = _read(
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
    q, k, v = readable(q=q, k=k, v=v)
    if not return_attn_probs:
        return attention(q, k, v, **shared, **settings)
    out, lse = attention(q, k, v, return_lse=True, **shared, **settings)
    if dropout_p == 0:
        return out, lse, q.new_empty(0)
    softmax = _softmax(
        q, k, torch.arange(k.shape[1], device=k.device).expand(k.shape[:2]), k.shape[1], shared
    )
    return out, lse, _signed(softmax.transpose(1, 2), q, k, settings)


@named(q="qkv[:, :, 0]", k="qkv[:, :, 1]", v="qkv[:, :, 2]")
def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of the slices of qkv [batch, seqlen, 3, heads, head_dim], which are read
    where they are."""
    _check_packed("qkv", qkv, 5, "[batch, seqlen, 3, heads, head_dim]", 3)
    q, k, v = qkv.unbind(2)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


@named(k="kv[:, :, 0]", v="kv[:, :, 1]")
def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of q and the slices of kv [batch, seqlen_k, 2, kv_heads, head_dim], which are
    read where they are."""
    _check_packed("kv", kv, 5, "[batch, seqlen_k, 2, kv_heads, head_dim]", 2)
    k, v = kv.unbind(2)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


@named()
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Any:
    """flash_attn_func of sequences one after another: q [total_q, heads, head_dim], k and v
    [total_k, kv_heads, head_dim].

    Args:
      cu_seqlens_q, cu_seqlens_k: [batch + 1], int32: sequence n is rows cu_seqlens[n] to
          cu_seqlens[n + 1] - 1.
      max_seqlen_q, max_seqlen_k: no sequence is longer.
      block_table: [batch, max_pages], int32: k and v are in pages,
        [num_pages, page_size, kv_heads, head_dim], and cu_seqlens_k says how many of its rows each
        sequence uses. Without dropout and gradients. Checked as in flash_attn_with_kvcache.
      the others: see flash_attn_func.

    Returns:
      out [total_q, heads, head_dim]; with return_attn_probs (out, softmax_lse [heads, total_q],
      S_dmask), where S_dmask is empty without dropout, else
      [batch, heads, max_seqlen_q, max_seqlen_k].
    """
    shared, settings = _read(
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
    for name, cumulative in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if cumulative is None:
            raise TypeError(f"{name} is None: [batch + 1] integers, or a list of them, are needed")
    (q,) = readable(q=q)
    if block_table is None:
        k, v = readable(k=k, v=v)
    if return_attn_probs and isinstance(q, torch.Tensor):
        cu_seqlens_q, cu_seqlens_k = (
            as_numbers("cu_seqlens_q", cu_seqlens_q, q),
            as_numbers("cu_seqlens_k", cu_seqlens_k, q),
        )
    shared = {
        **shared,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
        "block_table": block_table,
    }
    if block_table is not None and dropout_p != 0:
        raise NotImplementedError(f"dropout_p is {dropout_p} beside a block_table: 0 is accepted")
    if block_table is not None:
        state = unchecked(block_table, cu_seqlens_q, cu_seqlens_k, sizes=(*k.shape[:2], q.shape[0]))
        result = attention(
            q,
            k,
            v,
            return_lse=bool(return_attn_probs),
            validate=state is not None,
            **shared,
            **settings,
        )
        if state is not None:
            were_right(state)
        return (*result, q.new_empty(0)) if return_attn_probs else result
    if not return_attn_probs:
        return attention(q, k, v, **shared, **settings)
    out, lse = attention(q, k, v, return_lse=True, **shared, **settings)
    if dropout_p == 0:
        return out, lse, q.new_empty(0)
    rows = _softmax(q, k, _positions(cu_seqlens_k, k), int(max_seqlen_k), shared)
    batch = len(cu_seqlens_q) - 1
    softmax = q.new_zeros(batch, int(max_seqlen_q), *rows.shape[1:])
    sequence = torch.bucketize(torch.arange(len(q), device=q.device), cu_seqlens_q[1:], right=True)
    softmax[sequence, _positions(cu_seqlens_q, q)] = rows
    # Only the shapes of these are read.
    padded_q = q.new_empty(q.shape[-1]).expand(batch, int(max_seqlen_q), *q.shape[1:])
    padded_k = k.new_empty(k.shape[-1]).expand(batch, int(max_seqlen_k), *k.shape[1:])
    return out, lse, _signed(softmax.transpose(1, 2), padded_q, padded_k, settings)


@named(q="qkv[:, 0]", k="qkv[:, 1]", v="qkv[:, 2]", **_ONE_LENGTH)
def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func of the slices of qkv [total, 3, heads, head_dim], which are read where
    they are."""
    _check_packed("qkv", qkv, 4, "[total, 3, heads, head_dim]", 3)
    q, k, v = qkv.unbind(1)
    lengths = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    options = (
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
    return flash_attn_varlen_func(q, k, v, *lengths, *options)


@named(k="kv[:, 0]", v="kv[:, 1]")
def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_varlen_func of q and the slices of kv [total_k, 2, kv_heads, head_dim], which are
    read where they are."""
    _check_packed("kv", kv, 4, "[total_k, 2, kv_heads, head_dim]", 2)
    k, v = kv.unbind(1)
    lengths = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    options = (
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )
    return flash_attn_varlen_func(q, k, v, *lengths, *options)


@named()
@torch.no_grad()
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention of q with a cache, to which k and v are appended first, in place. Without
    gradients.

    Args: q: [batch, seqlen_q, heads, head_dim]. k_cache, v_cache: [batch, rows, kv_heads,
    head_dim], or with a block_table pages, [num_pages, page_size, kv_heads, head_dim] of any size.
    k, v: [batch, seqlen_new, kv_heads, head_dim]: become the rows from cache_seqlens on.
    rotary_cos, rotary_sin: [positions, rotary_dim / 2]: k and q are rotated before; k's row i is at
    position cache_seqlens + i, and so is q's with causal or a window, else all of q is at
    cache_seqlens. q itself is not written. cache_seqlens: how many rows of the cache are used
    before, int or [batch] of integers; None is all. cache_batch_idx: [batch], int32: which sequence
    of the cache each of q's is. Not with a block_table. cache_leftpad: [batch], int32: where a
    sequence's used rows begin. block_table: [batch, max_pages], int32. It, cache_batch_idx,
    cache_seqlens and cache_leftpad are checked: those on a GPU when they are new or were written by
    torch since the last check, for which the call waits, and not while a CUDA graph is captured.
    With an unchecked table results are NaN where a page does not exist. rotary_interleaved: pairs
    are elements 2 i and 2 i + 1, else i and i + rotary_dim / 2. num_splits: ignored: plans cut the
    keys by the problem. the others: see flash_attn_func.

    Returns:
      out [batch, seqlen_q, heads, head_dim]; with return_softmax_lse (out, lse
          [batch, heads, seqlen_q]).
    """
    for name, tensor in (("q", q), ("k_cache", k_cache), ("v_cache", v_cache)):
        _check_tensor(name, tensor)
    new_rows = k.shape[1] if isinstance(k, torch.Tensor) and k.dim() > 1 else 0
    state = unchecked(
        block_table,
        cache_batch_idx,
        cache_seqlens,
        cache_leftpad,
        sizes=(*k_cache.shape[:2], new_rows),
    )
    validate = state is not None
    block_table = pages_of(block_table, cache_batch_idx, q, q.shape[0])
    check_new_rows(k, v, rotary_cos)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if _is_strided(cache):
            strides = list(cache.stride())
            raise ArgumentError(
                f"{name} has strides {strides}: the last dim of a cache must be contiguous, it is "
                "used in place"
            )
    q, k, v = readable(q=q, k=k, v=v)
    cache_seqlens = lengths_of(cache_seqlens, k, q, q.shape[0])
    left, right = sides(window_size)
    if k is not None:
        rotated, cache_seqlens = append_kv(
            k_cache,
            v_cache,
            cache_seqlens,
            k,
            v,
            block_table=block_table,
            rotary_cos=rotary_cos,
            rotary_sin=rotary_sin,
            q=q if rotary_cos is not None else None,
            rotary_interleaved=rotary_interleaved,
            queries_advance=bool(causal) or left >= 0 or right >= 0,
            validate=validate,
        )
        q = q if rotated is None else rotated
    try:
        result = attention(
            q,
            k_cache,
            v_cache,
            seqlens_k=cache_seqlens,
            leftpad_k=cache_leftpad,
            block_table=block_table,
            softmax_scale=softmax_scale,
            causal=bool(causal),
            window_left=left,
            window_right=right,
            softcap=softcap,
            alibi_slopes=_as_float32(alibi_slopes),
            validate=validate,
            return_lse=return_softmax_lse,
        )
    except (TypeError, ValueError, NotImplementedError) as error:
        if not _is_compiling():
            indexed = (
                {"block_table": "cache_batch_idx", "pages": "sequences"}
                if cache_batch_idx is not None
                else {}
            )
            rename(error, {**CACHES, **indexed})
        raise
    if state is not None:
        were_right(state)
    return result


_right: tuple[Any, ...] | None = None  # what were_right() saw last


def unchecked(*tables: Any, sizes: tuple[int, ...]) -> tuple[Any, ...] | None:
    """The state of tables that say where keys lie in a cache; None where a call need not check
    them.

    It waits to check those in a GPU's memory, so not those that were right last and that torch has
    not written to since.
    """
    if _is_compiling() or not any(
        isinstance(one, torch.Tensor) and one.device.type == "cuda" for one in tables
    ):
        return None
    state = (*map(_state, tables), sizes)
    return None if state == _right or torch.cuda.is_current_stream_capturing() else state


def were_right(state: tuple[Any, ...]) -> None:
    """A call has checked tables in that state."""
    global _right
    _right = state


def _state(table: Any) -> Any:
    """Equal for a table that is the same and was not written."""
    if not isinstance(table, torch.Tensor):
        return table if table is None or isinstance(table, int) else object()
    # An inference tensor counts no writes.
    return object() if table.is_inference() else _Written(table)


class _Written:
    """A tensor, and how often it was written."""

    def __init__(self, table: torch.Tensor) -> None:
        self._table = weakref.ref(table)
        self._version = table._version

    def __eq__(self, other: object) -> bool:
        # == would compare tensors.
        return (
            isinstance(other, _Written)
            and self._table() is other._table() is not None
            and self._version == other._version
        )

    __hash__ = None  # type: ignore[assignment]


def pages_of(
    table: Any, cache_batch_idx: Any, q: torch.Tensor, batch: int, name: str = "block_table"
) -> Any:
    """A cache's page table: the one that is given, or pages of one sequence each, those of
    cache_batch_idx."""
    if cache_batch_idx is None:
        return table
    if table is not None:
        raise ArgumentError(f"cache_batch_idx is given beside a {name}: one of them is accepted")
    cache_batch_idx = as_numbers("cache_batch_idx", cache_batch_idx, q)
    if cache_batch_idx.dim() != 1 or len(cache_batch_idx) != batch:
        given = list(cache_batch_idx.shape)
        raise ArgumentError(f"cache_batch_idx has shape {given}: [batch] = [{batch}] is accepted")
    return cache_batch_idx.unsqueeze(1)


def check_new_rows(
    k: torch.Tensor | None, v: torch.Tensor | None, rotary_cos: torch.Tensor | None
) -> None:
    """Whether what goes with a cache's new rows is there when they are."""
    if (k is None) != (v is None):
        raise ArgumentError(
            f"k is {'absent' if k is None else 'given'} and v is not so: both or neither are "
            "accepted"
        )
    if rotary_cos is not None and k is None:
        raise ArgumentError(
            "rotary_cos is given and k is None: rotary embeddings are accepted with new keys"
        )


def lengths_of(cache_seqlens: Any, k: torch.Tensor | None, q: torch.Tensor, batch: int) -> Any:
    """A cache's lengths, [batch], where one number is given, too. k: the new keys, which need
    some."""
    if k is not None and cache_seqlens is None:
        raise ArgumentError(
            "cache_seqlens is None and k is given: the lengths that k is appended to are needed"
        )
    if isinstance(cache_seqlens, torch.Tensor) and cache_seqlens.dim() == 0:
        return cache_seqlens.expand(batch).contiguous()
    if isinstance(cache_seqlens, int) or is_of_numpy(cache_seqlens, "integer"):
        return torch.full((batch,), int(cache_seqlens), dtype=torch.int32, device=q.device)
    return cache_seqlens


def _read(
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
    return_attn_probs: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """fulmen.attention's options: those that the softmax depends on, and the others."""
    left, right = sides(window_size)
    shared: dict[str, Any] = {
        "softmax_scale": softmax_scale,
        "causal": bool(causal),
        "window_left": left,
        "window_right": right,
        "softcap": softcap,
        "alibi_slopes": _as_float32(alibi_slopes),
    }
    settings: dict[str, Any] = {"deterministic": bool(deterministic), "dropout": dropout_p}
    if dropout_p != 0 and return_attn_probs:
        settings["dropout_seed"] = torch.empty((), dtype=torch.int64).random_().item()
    return shared, settings


def sides(window_size: tuple[int, int]) -> tuple[int, int]:
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise ArgumentError(
            f"window_size is {window_size!r}: (left, right) is accepted, below 0 is unlimited"
        ) from None
    if not all(isinstance(side, int | float | torch.SymInt) for side in (left, right)):
        left, right = (
            operator.index(side) if hasattr(side, "__index__") else side for side in (left, right)
        )
    return tuple(
        [
            -1 if isinstance(side, int | torch.SymInt) and side < 0 else side
            for side in (left, right)
        ]
    )


def _as_float32(slopes: Any) -> Any:
    return (
        slopes.float()
        if isinstance(slopes, torch.Tensor) and slopes.is_floating_point()
        else slopes
    )


def _check_tensor(name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        given = "None" if tensor is None else f"of type {type(tensor).__name__}"
        raise TypeError(f"{name} is {given}: a torch tensor is needed")


def _check_packed(name: str, tensor: torch.Tensor, dims: int, accepted: str, slices: int) -> None:
    _check_tensor(name, tensor)
    if tensor.dim() != dims or tensor.shape[-3] != slices:
        raise ArgumentError(f"{name} has shape {list(tensor.shape)}: {accepted} is accepted")


def _positions(cu_seqlens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Where each row is in its sequence."""
    lengths = cu_seqlens.diff()
    return torch.arange(len(rows), device=rows.device) - cu_seqlens[:-1].repeat_interleave(
        lengths, output_size=len(rows)
    )


@torch.no_grad()
def _softmax(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, columns: int, shared: dict[str, Any]
) -> torch.Tensor:
    """[…, heads, columns]: attention to rows of the unit matrix, that of each key's position, is
    the softmax itself."""
    unit = torch.eye(columns, dtype=q.dtype, device=q.device)
    parts = []
    for part in unit.split(max_head_dim_v, dim=1):
        v = part[positions].unsqueeze(-2).expand(*k.shape[:-1], part.shape[1]).contiguous()
        parts.append(attention(q, k, v, **shared))
    return torch.cat(parts, dim=-1)


def _signed(
    softmax: torch.Tensor, q: torch.Tensor, k: torch.Tensor, settings: dict[str, Any]
) -> torch.Tensor:
    """Negative where it was dropped."""
    kept = dropout_mask(q, k, dropout=settings["dropout"], dropout_seed=settings["dropout_seed"])
    return torch.where(kept, softmax, -softmax)
