"""vLLM's calls as Fulmen's, without vLLM: caches, steps of several requests, packed encoders."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fulmen._functions import attention


class Settings(NamedTuple):
    """What a layer's calls have in common."""

    scale: float
    softcap: float = 0.0
    sliding_window: int | None = None  # how many keys a query attends, its own among them
    alibi_slopes: torch.Tensor | None = None  # [heads], float32
    sinks: torch.Tensor | None = None  # [heads]


class Step(NamedTuple):
    """The requests of a step: request n's queries, rows query_start_loc[n] to
    query_start_loc[n + 1] - 1, are the last of its seq_lens[n] keys."""

    query_start_loc: torch.Tensor  # [requests + 1], int32
    seq_lens: torch.Tensor  # [requests], int32
    block_table: torch.Tensor  # [requests, blocks], int32
    max_query_len: int
    max_seq_len: int  # or more
    causal: bool = True


def pages_of(cache: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of a layer's cache, [blocks, kv_heads, block_size, head_dim of k and of v], as k and v
    in pages, [blocks, block_size, kv_heads, head_dim]."""
    rows = cache.transpose(1, 2)
    return rows[..., :head_dim], rows[..., head_dim:]


def write_cache(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """Writes new rows into a layer's cache.

    Args:
      cache: [blocks, kv_heads, block_size, head_dim of k and of v].
      key, value: [rows, kv_heads, head_dim]; rows beyond those of slots are not read.
      slots: [rows], integers: block * block_size + row of it; negative ones are not written.
    """
    rows = slots.shape[0]
    block, row = slots // cache.shape[2], slots % cache.shape[2]
    new = torch.cat((key[:rows], value[:rows]), -1).to(cache.dtype)
    if slots.device.type == "cpu":
        kept = slots >= 0
        if not bool(kept.all()):
            block, row, new = block[kept], row[kept], new[kept]
    else:
        # Without waiting for the GPU: what is not written rewrites what is there. Negative slots
        # are padding behind the requests; their block is one that vLLM gives to no request.
        kept = (slots >= 0)[:, None, None]
        block = torch.where(slots >= 0, block, 0)
        new = torch.where(kept, new, cache[block, :, row])
    cache[block, :, row] = new


def _options(settings: Settings) -> dict[str, Any]:
    return {
        "softmax_scale": settings.scale,
        "softcap": settings.softcap,
        "alibi_slopes": settings.alibi_slopes,
        "sinks": settings.sinks,
    }


def over_pages(
    query: torch.Tensor, cache: torch.Tensor, step: Step, settings: Settings, out: torch.Tensor
) -> torch.Tensor:
    """Attention of a step's rows over the cache.

    Args:
      query: [rows, heads, head_dim], the dtype of the cache; out: [rows, heads, head_dim of v], is
        written and returned.
    """
    k, v = pages_of(cache, query.shape[-1])
    window = -1 if settings.sliding_window is None else settings.sliding_window - 1
    return attention(
        query,
        k,
        v,
        cu_seqlens_q=step.query_start_loc,
        seqlens_k=step.seq_lens,
        block_table=step.block_table,
        max_seqlen_q=step.max_query_len,
        max_seqlen_k=min(step.max_seq_len, step.block_table.shape[1] * cache.shape[2]),
        causal=step.causal,
        window_left=window,
        window_right=-1 if step.causal else window,
        out=out,
        **_options(settings),
    )


def over_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    step: Step,
    settings: Settings,
    out: torch.Tensor,
) -> torch.Tensor:
    """Attention of an encoder: each sequence's rows to all of its rows, without a cache."""
    window = -1 if settings.sliding_window is None else settings.sliding_window - 1
    return attention(
        query,
        key,
        value,
        cu_seqlens_q=step.query_start_loc,
        cu_seqlens_k=step.query_start_loc,
        max_seqlen_q=step.max_query_len,
        max_seqlen_k=step.max_query_len,
        causal=False,
        window_left=window,
        window_right=window,
        out=out,
        **_options(settings),
    )
