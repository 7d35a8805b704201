"""FlashAttention 3's functions, with the names, arguments and results of its module
flash_attn_interface.

They take what fulmen.flash_attn takes, and v's head_dim may differ from q's. They take descale
factors and k and v in 8 bits, too, without gradients and without attention_chunk; qv is refused.
num_splits, pack_gqa, sm_margin and scheduler_metadata change nothing: plans cut the work by the
problem.
"""

from __future__ import annotations

from typing import Any

import torch

from fulmen._arguments import rename
from fulmen._core import ArgumentError
from fulmen._functions import append_kv, as_numbers, attention
from fulmen.flash_attn import _install
from fulmen.flash_attn import flash_attn_interface as flash_attn_2
from fulmen.flash_attn._chunks import check_chunk, chunk_mask, first_used_rows, packed_chunks
from fulmen.flash_attn.flash_attn_interface import CACHES, named
from fulmen.flash_attn.layers.rotary import rotate

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
    "install",
    "uninstall",
]

__version__ = "3.0.0"
_PACKAGE = _install.Package(
    "flash_attn_interface", "flash_attn_3", __version__, ("",), "fulmen.flash_attn_interface"
)


def install(force: bool = False) -> None:
    """Makes `import flash_attn_interface` give this module, and transformers' "flash_attention_3"
    run on it, on any device.

    force: hide a flash_attn_interface that is installed until uninstall(). Otherwise that raises a
        RuntimeError.
    """
    _install.install(_PACKAGE, force)


def uninstall() -> None:
    """Takes install() back. Does nothing where it was not called."""
    _install.uninstall(_PACKAGE)


# Errors name the arguments of this module's functions. What flash_attn's functions raise has
# flash_attn's names.
_named = named(
    block_table="page_table", q_scale="q_descale", k_scale="k_descale", v_scale="v_descale"
)


def _refuse(attention_chunk: int, **absent: Any) -> None:
    for name, value in absent.items():
        if value is not None:
            raise NotImplementedError(
                f"{name} is given: Fulmen has no such attention, None is accepted"
            )
    check_chunk(attention_chunk)


_Descale = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]  # of q, k, v


def _in_8_bits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, descale: _Descale) -> bool:
    return any(one is not None for one in descale) or any(
        isinstance(one, torch.Tensor) and one.element_size() == 1 for one in (q, k, v)
    )


def _quantized(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    descale: _Descale,
    attention_chunk: int,
    window_size: tuple[int, int],
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse of k and v that are stored in 8 bits."""
    if attention_chunk > 0:
        raise NotImplementedError(
            f"attention_chunk is {attention_chunk} beside descale factors or k and v in 8 bits: 0 "
            "is accepted"
        )
    q_scale, k_scale, v_scale = descale
    if q.element_size() == 1:
        q = q.to(torch.bfloat16)
    left, right = flash_attn_2.sides(window_size)
    return attention(
        q,
        k,
        v,
        q_scale=q_scale,
        k_scale=k_scale,
        v_scale=v_scale,
        window_left=left,
        window_right=right,
        return_lse=True,
        **options,
    )


@_named
def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q [batch, seqlen_q, heads, head_dim] with k and v
    [batch, seqlen_k, kv_heads, head_dim].

    Args:
      softmax_scale: None is 1 / sqrt(head_dim).
      causal, window_size: query i attends keys i + seqlen_k - seqlen_q - left to … + right; -1 is
          unlimited, causal is right = 0.
      softcap: 0 is off. deterministic: gradients are the same in every bit from run to run.
      attention_chunk: 0 is off; else query i attends, of these keys, those of its own chunk alone:
        attention_chunk keys from the multiple of it at or before i + seqlen_k - seqlen_q. Chunks
        are computed as packed sequences, with a KV cache by leftpad_k or, of several queries, a
        keep_mask: FLASH_ATTENTION_DEBUG=1 says which.
      qv: refused with a NotImplementedError.
      q_descale, k_descale, v_descale: [batch, kv_heads], float32: factors of q's, k's and v's
        numbers, for k and v in float8_e4m3fn, float8_e5m2 or int8; q may be in float8, too, and
        becomes bfloat16. out is then bfloat16, and there are no gradients.
      num_splits, pack_gqa, sm_margin: change nothing.

    Returns:
      out [batch, seqlen_q, heads, head_dim]; with return_attn_probs (out, softmax_lse
          [batch, heads, seqlen_q]).
    """
    _refuse(attention_chunk, qv=qv)
    descale = (q_descale, k_descale, v_descale)
    if _in_8_bits(q, k, v, descale):
        rest = {"softmax_scale": softmax_scale, "causal": bool(causal), "softcap": softcap}
        out, lse = _quantized(q, k, v, descale, attention_chunk, window_size, **rest)
        return (out, lse) if return_attn_probs else out
    options = (
        0.0,
        softmax_scale,
        causal,
        window_size,
        softcap,
        None,
        deterministic,
        return_attn_probs,
    )
    if attention_chunk > 0:
        return _dense_chunks(q, k, v, attention_chunk, options)
    result = flash_attn_2.flash_attn_func(q, k, v, *options)
    return result[:2] if return_attn_probs else result


def _dense_chunks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int, options: tuple[Any, ...]
) -> Any:
    """flash_attn_func with an attention_chunk: its rows packed, and each chunk a sequence."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise ArgumentError(
                f"{name} has shape {list(tensor.shape)}: [batch, seqlen, heads, head_dim] is "
                "accepted"
            )
    if not q.shape[0] == k.shape[0] == v.shape[0] or k.shape[1] != v.shape[1]:
        shapes = f"k has shape {list(k.shape)} and v {list(v.shape)} beside q's {list(q.shape)}"
        raise ArgumentError(f"{shapes}: one batch, and as many rows of k as of v, are accepted")
    batch, seqlen_q, seqlen_k = q.shape[0], q.shape[1], k.shape[1]
    cu_q, cu_k = (torch.arange(batch + 1, device=q.device) * rows for rows in (seqlen_q, seqlen_k))
    lengths = packed_chunks(cu_q, cu_k, chunk, seqlen_q, seqlen_k, max(seqlen_q - seqlen_k, 0))
    result = flash_attn_2.flash_attn_varlen_func(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), *lengths, *options
    )
    if not options[-1]:
        return result.unflatten(0, (batch, seqlen_q))
    out, lse = result[:2]
    return out.unflatten(0, (batch, seqlen_q)), lse.unflatten(1, (batch, seqlen_q)).transpose(0, 1)


@_named
def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: int | None = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of the slices of qkv [batch, seqlen, 3, heads, head_dim], which are read
    where they are.

    With num_heads_q, qkv is [batch, seqlen, num_heads_q + 2 * kv_heads, head_dim].
    """
    if qkv.dim() == 5 and qkv.shape[2] == 3:
        q, k, v = qkv.unbind(2)
    elif (
        qkv.dim() == 4
        and num_heads_q is not None
        and qkv.shape[2] > num_heads_q
        and (qkv.shape[2] - num_heads_q) % 2 == 0
    ):
        kv_heads = (qkv.shape[2] - num_heads_q) // 2
        q, k, v = qkv.split([num_heads_q, kv_heads, kv_heads], 2)
    else:
        accepted = (
            "[batch, seqlen, 3, heads, head_dim], or with num_heads_q [batch, seqlen, num_heads_q "
            "+ 2 * kv_heads, head_dim]"
        )
        raise ArgumentError(
            f"qkv has shape {list(qkv.shape)} and num_heads_q is {num_heads_q}: {accepted} is "
            "accepted"
        )
    shared = {
        "window_size": window_size,
        "attention_chunk": attention_chunk,
        "softcap": softcap,
        "deterministic": deterministic,
    }
    descale = (q_descale, k_descale, v_descale)
    return flash_attn_func(
        q,
        k,
        v,
        softmax_scale,
        causal,
        None,
        *descale,
        **shared,
        return_attn_probs=return_attn_probs,
    )


@_named
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """flash_attn_func of sequences one after another: q [total_q, heads, head_dim], k and v
    [total_k, kv_heads, head_dim].

    Args:
      cu_seqlens_q, cu_seqlens_k: [batch + 1], int32: sequence n is rows cu_seqlens[n] to
          cu_seqlens[n + 1] - 1.
      max_seqlen_q, max_seqlen_k: no sequence is longer; None is as long as the packed rows allow.
      seqused_q, seqused_k: [batch], int32: of each sequence only so many rows count, the first
        ones; they are copied then, and the host waits for their number. Other rows of out are 0, of
        the lse -inf.
      the others: see flash_attn_func.

    Returns:
      out [total_q, heads, head_dim]; with return_attn_probs (out, softmax_lse [heads, total_q]).
    """
    _refuse(attention_chunk, qv=qv)
    descale = (q_descale, k_descale, v_descale)
    options = (0.0, softmax_scale, causal, window_size, softcap, None, deterministic)
    total, rows_q = q.shape[0], None
    if seqused_q is not None:
        rows_q, cu_seqlens_q = _used_rows(cu_seqlens_q, seqused_q)
        q = _selected(q, rows_q)
    if seqused_k is not None:
        rows_k, cu_seqlens_k = _used_rows(cu_seqlens_k, seqused_k)
        k, v = _selected(k, rows_k), _selected(v, rows_k)
    longest = [
        rows.shape[0] if most is None else most
        for rows, most in ((q, max_seqlen_q), (k, max_seqlen_k))
    ]
    lengths = (cu_seqlens_q, cu_seqlens_k, *longest)
    in_8_bits = _in_8_bits(q, k, v, descale)
    if attention_chunk > 0 and not in_8_bits:
        cu_q, cu_k = (torch.as_tensor(cu, device=q.device) for cu in lengths[:2])
        most_q, most_k = (
            int(cu.diff().max()) if n is None else int(n)
            for cu, n in zip((cu_q, cu_k), lengths[2:], strict=True)
        )
        lengths = packed_chunks(cu_q, cu_k, attention_chunk, most_q, most_k, most_q)
    if in_8_bits:
        names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
        rest = {"softmax_scale": softmax_scale, "causal": bool(causal), "softcap": softcap}
        rest |= dict(zip(names, lengths, strict=True))
        out, lse = _quantized(q, k, v, descale, attention_chunk, window_size, **rest)
    else:
        out = flash_attn_2.flash_attn_varlen_func(q, k, v, *lengths, *options, return_attn_probs)
        out, lse = out[:2] if return_attn_probs else (out, None)
    if rows_q is not None:
        out = out.new_zeros(total, *out.shape[1:]).index_copy(0, rows_q, out)
        lse = (
            None
            if lse is None
            else lse.new_full((lse.shape[0], total), -torch.inf).index_copy(1, rows_q, lse)
        )
    return (out, lse) if return_attn_probs else out


def _selected(rows: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    """Some rows, of dtypes that torch cannot select, too."""
    if rows.element_size() > 1:
        return rows.index_select(0, which)
    return rows.view(torch.int8).index_select(0, which).view(rows.dtype)


def _used_rows(cu_seqlens: torch.Tensor, used: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The packed rows that count, and cu_seqlens of these alone."""
    cumulative = torch.nn.functional.pad(used.cumsum(0, dtype=torch.int32), (1, 0))
    sequence, place = _places(cumulative, int(cumulative[-1]))
    return cu_seqlens[sequence].long() + place, cumulative


def _places(cu_seqlens: torch.Tensor, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Which sequence each packed row is of, and which row of that."""
    row = torch.arange(total, device=cu_seqlens.device)
    sequence = torch.bucketize(row, cu_seqlens[1:], right=True).clamp(
        max=max(len(cu_seqlens) - 2, 0)
    )
    return sequence, row - cu_seqlens[sequence]


@_named
@torch.no_grad()
def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    qv: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: torch.Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention of q with a cache, to which k and v are appended first, in place. Without
    gradients.

    Args:
      q: [batch, seqlen_q, heads, head_dim], or with cu_seqlens_q and max_seqlen_q packed,
          [total_q, heads, head_dim].
      k_cache, v_cache: [batch, rows, kv_heads, head_dim], or with a page_table
          [num_pages, page_size, kv_heads, head_dim].
      k, v: [batch, seqlen_new, kv_heads, head_dim], or with cu_seqlens_k_new packed: become the
          rows from cache_seqlens on.
      rotary_cos, rotary_sin: [positions, rotary_dim / 2]: k and q are rotated before; row i is at
        position cache_seqlens + i, or rotary_seqlens + i where that is given, but without causal,
        window and chunk all of q is at the first. q is not written.
      cache_seqlens: how many rows of the cache are used before, int or [batch], int32; None is all.
      cache_batch_idx: [batch], int32: which sequence of the cache, or row of page_table, each of
          q's has.
      q_descale, k_descale, v_descale: as in flash_attn_func, of each of q's sequences. New rows in
        float32, float16 or bfloat16 are divided by them and rounded to a cache in 8 bits; rows in
        its dtype are copied.
      cache_leftpad: [batch], int32: where a sequence's used rows begin.
      page_table: [batch, max_pages], int32, with a cache_batch_idx of any number of rows. Checked
          as flash_attn's block_table.
      max_seqlen_q: no sequence of a packed q is longer; None is as long as its rows allow.
      the others: see flash_attn_func. scheduler_metadata changes nothing.

    Returns:
      out, of q's shape; with return_softmax_lse (out, lse [batch, heads, seqlen_q] or
      [heads, total_q], and two empty tensors, where FlashAttention 3 has the partial results of its
      splits).
    """
    _refuse(attention_chunk, qv=qv)
    flash_attn_2.check_new_rows(k, v, rotary_cos)
    options: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal, "softcap": softcap}
    if page_table is not None and cache_batch_idx is not None:
        page_table, cache_batch_idx = (
            _rows_of_table(as_numbers("block_table", page_table, q), cache_batch_idx),
            None,
        )
    descale = (q_descale, k_descale, v_descale)
    if _in_8_bits(q, k_cache, v_cache, descale):
        if rotary_seqlens is not None or cu_seqlens_k_new is not None:
            raise NotImplementedError(
                "rotary_seqlens or cu_seqlens_k_new is given beside a cache in 8 bits: None is "
                "accepted"
            )
        batch = q.shape[0] if cu_seqlens_q is None else len(cu_seqlens_q) - 1
        page_table = flash_attn_2.pages_of(page_table, cache_batch_idx, q, batch, "page_table")
        cache_seqlens = flash_attn_2.lengths_of(cache_seqlens, k, q, batch)
        if q.element_size() == 1:
            q = q.to(torch.bfloat16)
        if k is not None and v is not None:
            advance = bool(causal) or any(side >= 0 for side in window_size)
            turn = (rotary_cos, rotary_sin, rotary_interleaved, advance, cu_seqlens_q is not None)
            q, cache_seqlens = _append_in_8_bits(
                q, k_cache, v_cache, k, v, cache_seqlens, page_table, descale, turn
            )
        if cu_seqlens_q is not None:
            options |= {
                "cu_seqlens_q": cu_seqlens_q,
                "max_seqlen_q": q.shape[0] if max_seqlen_q is None else max_seqlen_q,
            }
        options |= {
            "causal": bool(causal),
            "seqlens_k": cache_seqlens,
            "leftpad_k": cache_leftpad,
            "block_table": page_table,
        }
        try:
            result = _quantized(
                q, k_cache, v_cache, descale, attention_chunk, window_size, **options
            )
        except (TypeError, ValueError, NotImplementedError) as error:
            rename(error, CACHES)
            raise
        empty = q.new_empty(0, dtype=torch.float32)
        return (*result, empty, empty.clone()) if return_softmax_lse else result[0]
    if (
        cu_seqlens_q is None
        and cu_seqlens_k_new is None
        and rotary_seqlens is None
        and attention_chunk == 0
    ):
        result = flash_attn_2.flash_attn_with_kvcache(
            q,
            k_cache,
            v_cache,
            k,
            v,
            rotary_cos,
            rotary_sin,
            cache_seqlens,
            cache_batch_idx,
            cache_leftpad,
            page_table,
            window_size=window_size,
            rotary_interleaved=rotary_interleaved,
            return_softmax_lse=return_softmax_lse,
            **options,
        )
    else:
        if cu_seqlens_q is not None and max_seqlen_q is None:
            max_seqlen_q = int(cu_seqlens_q.diff().max()) if attention_chunk > 0 else q.shape[0]
        batch = q.shape[0] if cu_seqlens_q is None else len(cu_seqlens_q) - 1
        page_table = flash_attn_2.pages_of(page_table, cache_batch_idx, q, batch, "page_table")
        cache_seqlens = flash_attn_2.lengths_of(cache_seqlens, k, q, batch)
        left, right = flash_attn_2.sides(window_size)
        if k is not None and v is not None and cache_seqlens is not None:
            start = cache_seqlens if rotary_seqlens is None else rotary_seqlens
            new = _flat_places(k, cu_seqlens_k_new)
            if rotary_cos is not None and rotary_sin is not None:
                k = _rotated(k, rotary_cos, rotary_sin, start, new, True, rotary_interleaved)
                advance = bool(causal) or left >= 0 or right >= 0 or attention_chunk > 0
                at = _flat_places(q, cu_seqlens_q)
                q = _rotated(q, rotary_cos, rotary_sin, start, at, advance, rotary_interleaved)
            _write(k_cache, k, new, cache_seqlens, page_table)
            _write(v_cache, v, new, cache_seqlens, page_table)
            added = torch.bincount(new[0], minlength=batch)
            cache_seqlens = (cache_seqlens + added).to(torch.int32)
        keep_mask = None
        if attention_chunk > 0:
            rows = k_cache.shape[1] * (1 if page_table is None else page_table.shape[1])
            chunk = min(attention_chunk, max(rows, 1))
            if cache_seqlens is None:
                cache_seqlens = torch.full((batch,), rows, dtype=torch.int32, device=q.device)
            if cu_seqlens_q is None and q.shape[1] == 1:
                cache_leftpad = first_used_rows(cache_seqlens, cache_leftpad, chunk)
            else:
                lengths_q, most_q = (
                    (q.shape[1], q.shape[1])
                    if cu_seqlens_q is None
                    else (cu_seqlens_q.diff(), int(max_seqlen_q))
                )
                keep_mask = chunk_mask(cache_seqlens, cache_leftpad, lengths_q, chunk, most_q, rows)
        (q,) = flash_attn_2.readable(q=q)
        state = flash_attn_2.unchecked(
            page_table,
            cache_seqlens,
            cache_leftpad,
            cu_seqlens_q,
            sizes=(*k_cache.shape[:2], q.shape[0]),
        )
        try:
            result = attention(
                q,
                k_cache,
                v_cache,
                keep_mask=keep_mask,
                cu_seqlens_q=cu_seqlens_q,
                max_seqlen_q=max_seqlen_q,
                seqlens_k=cache_seqlens,
                leftpad_k=cache_leftpad,
                block_table=page_table,
                window_left=left,
                window_right=right,
                validate=state is not None,
                return_lse=return_softmax_lse,
                **{**options, "causal": bool(causal)},
            )
        except (TypeError, ValueError, NotImplementedError) as error:
            rename(error, CACHES)
            raise
        if state is not None:
            flash_attn_2.were_right(state)
    if return_softmax_lse:
        return (*result, q.new_empty(0, dtype=torch.float32), q.new_empty(0, dtype=torch.float32))
    return result


def _append_in_8_bits(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: torch.Tensor,
    table: torch.Tensor | None,
    descale: _Descale,
    turn: tuple[torch.Tensor | None, torch.Tensor | None, bool, bool, bool],
) -> tuple[torch.Tensor, torch.Tensor]:
    """q rotated, and the lengths with the new rows, which are copied where they are in the cache's
    dtype already, else rotated, divided by their descale factors and rounded."""
    cos, sin, interleaved, advance, is_packed = turn
    if k.dtype == k_cache.dtype and v.dtype == v_cache.dtype:
        if cos is not None:
            raise NotImplementedError(
                f"rotary_cos is given and k is {str(k.dtype).rpartition('.')[2]}: new rows in 8 "
                "bits are copied as they are, float32, float16 and bfloat16 are rotated"
            )
        for name, cache, rows in (("k", k_cache, k), ("v", v_cache, v)):
            want = [len(lengths), k.shape[1], *cache.shape[2:]]
            if list(rows.shape) != want:
                raise ArgumentError(
                    f"{name}.shape is {list(rows.shape)}: [batch, seqlen_new, kv_heads, head_dim] "
                    f"= {want} is needed"
                )
        at = _flat_places(k, None)
        for cache, rows in ((k_cache, k), (v_cache, v)):
            _write(cache.view(torch.int8), rows.contiguous().view(torch.int8), at, lengths, table)
        return q, (lengths + k.shape[1]).to(torch.int32)
    if is_packed and cos is not None:
        raise NotImplementedError(
            "rotary_cos is given beside cu_seqlens_q and a cache in 8 bits: None is accepted"
        )
    k_scale, v_scale = (None if s is None else s[:, None, :, None] for s in descale[1:])
    rotated, lengths = append_kv(
        k_cache,
        v_cache,
        lengths,
        k.contiguous(),
        v.contiguous(),
        block_table=table,
        rotary_cos=cos,
        rotary_sin=sin,
        q=None if cos is None else q,
        k_scale=k_scale,
        v_scale=v_scale,
        rotary_interleaved=interleaved,
        queries_advance=advance,
    )
    return q if rotated is None else rotated, lengths


def _rows_of_table(page_table: torch.Tensor, rows: Any) -> torch.Tensor:
    """The rows of a page table that cache_batch_idx names; a row that does not exist gets pages
    that do not exist.
    """
    rows = as_numbers("cache_batch_idx", rows, page_table)
    count = page_table.shape[0]
    there = (rows >= 0) & (rows < count)
    if rows.device.type == "cpu" and not there.all():
        at = int((~there).nonzero()[0])
        raise ArgumentError(
            f"cache_batch_idx[{at}] is {int(rows[at])}: 0 to {count - 1} are accepted, page_table "
            f"has {count} rows"
        )
    if count == 0:
        return page_table.new_full((len(rows), page_table.shape[1]), -1)
    return torch.where(there[:, None], page_table[rows.clamp(0, count - 1).long()], -1)


_Places = tuple[torch.Tensor, torch.Tensor]


def _flat_places(rows: torch.Tensor, cu_seqlens: torch.Tensor | None) -> _Places:
    """_places of [batch, seqlen, ...] flattened, or of packed rows."""
    if cu_seqlens is not None:
        return _places(cu_seqlens, rows.shape[0])
    sequence = torch.arange(rows.shape[0], device=rows.device).repeat_interleave(rows.shape[1])
    return sequence, torch.arange(rows.shape[1], device=rows.device).repeat(rows.shape[0])


def _rotated(
    x: torch.Tensor,
    cos: Any,
    sin: Any,
    start: torch.Tensor,
    at: _Places,
    advance: bool,
    interleaved: bool,
) -> Any:
    positions = start[at[0]] + (at[1] if advance else 0)
    return rotate(x.reshape(-1, *x.shape[-2:]), cos, sin, positions, interleaved).view(x.shape)


def _write(
    cache: torch.Tensor,
    rows: torch.Tensor,
    at: _Places,
    lengths: torch.Tensor,
    table: torch.Tensor | None,
) -> None:
    sequence, row = at[0], lengths[at[0]].long() + at[1]
    places = cache.shape[1] * (1 if table is None else table.shape[1])
    # Numbers in a GPU's memory are not read by the host: torch checks them there.
    if row.device.type == "cpu" and row.numel() and (row.max() >= places or row.min() < 0):
        raise ArgumentError(
            f"cache_seqlens leads to row {int(row.max())} of the cache: with the new rows 0 to "
            f"{places} are accepted"
        )
    row = torch.where(row < 0, places, row)  # never one counted from the end
    if table is not None:
        sequence, row = table[sequence, row // cache.shape[1]].long(), row % cache.shape[1]
        pages = cache.shape[0]
        outside = (sequence < 0) | (sequence >= pages)
        if row.device.type == "cpu" and outside.any():
            page = int(sequence[outside][0])
            raise ArgumentError(
                f"page_table has page {page}: 0 to {pages - 1} are accepted, k_cache and v_cache "
                f"have {pages} pages"
            )
        sequence = torch.where(outside, pages, sequence)
    cache[sequence, row] = rows.reshape(-1, *rows.shape[-2:])


@_named
def flash_attn_combine(
    out_partial: torch.Tensor,
    lse_partial: torch.Tensor,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges results of parts of the keys.

    Args:
      out_partial: [parts, batch, seqlen, heads, head_dim], float32. lse_partial:
          [parts, batch, seqlen, heads], float32.
      out: written, where given. out_dtype: None is float32.

    Returns:
      (out [batch, seqlen, heads, head_dim], lse [batch, seqlen, heads]).
    """
    if lse_partial.shape != out_partial.shape[:-1]:
        shapes = f"{list(lse_partial.shape)} beside out_partial's {list(out_partial.shape)}"
        raise ArgumentError(
            f"lse_partial.shape is {shapes}: the same without the last dim is accepted"
        )
    lse = lse_partial.float().logsumexp(0)
    weights = (lse_partial.float() - torch.where(lse == -torch.inf, 0.0, lse)).exp()
    # A part without keys may hold anything.
    merged = torch.where(weights[..., None] > 0, out_partial.float() * weights[..., None], 0.0).sum(
        0
    )
    merged = merged.to(out_partial.dtype if out_dtype is None else out_dtype)
    return (merged if out is None else out.copy_(merged)), lse


@_named
def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: torch.Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> torch.Tensor:
    """An empty int32 tensor: plans need no metadata."""
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)
