"""vLLM's calls as Fulmen's, without vLLM: steps of several requests, packed encoders."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fulmen._functions import attention
from fulmen.vllm._cache import Cache, pages_of


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


def _options(settings: Settings) -> dict[str, Any]:
    return {
        "softmax_scale": settings.scale,
        "softcap": settings.softcap,
        "alibi_slopes": settings.alibi_slopes,
        "sinks": settings.sinks,
    }


def over_pages(
    query: torch.Tensor, cache: Cache, step: Step, settings: Settings, out: torch.Tensor
) -> torch.Tensor:
    """Attention of a step's rows over the cache.

    Args:
      query: [rows, heads, head_dim], the dtype of a cache that is not of 8 bits; out: [rows, heads,
        head_dim of v], is written and returned.
    """
    pages = pages_of(cache)
    window = -1 if settings.sliding_window is None else settings.sliding_window - 1
    return attention(
        query,
        pages.k,
        pages.v,
        k_scale=pages.k_scale,
        v_scale=pages.v_scale,
        cu_seqlens_q=step.query_start_loc,
        seqlens_k=step.seq_lens,
        block_table=step.block_table,
        max_seqlen_q=step.max_query_len,
        max_seqlen_k=min(step.max_seq_len, step.block_table.shape[1] * pages.k.shape[1]),
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
