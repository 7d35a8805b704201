"""FlashMLA's functions (https://github.com/deepseek-ai/FlashMLA): decode of latent attention over
pages, on CPUs and every GPU.

On top of what that package takes: any dtype of fulmen.attention, any page size, head_dim up to 576
and head_dim_v up to 512. fp8 caches and sparse indices are refused.
"""

from __future__ import annotations

from typing import Any

import torch

from fulmen._core import ArgumentError
from fulmen._functions import attention
from fulmen.flash_attn.flash_attn_interface import named

__all__ = ["flash_mla_with_kvcache", "get_mla_metadata"]


def _refuse_unserved(is_fp8_kvcache: bool, **sparse: Any) -> None:
    if is_fp8_kvcache:
        raise NotImplementedError("is_fp8_kvcache is True: caches of q's dtype are accepted")
    for name, value in sparse.items():
        if value is not None:
            raise NotImplementedError(f"{name} is given: attention to all keys alone is accepted")


@named()
def get_mla_metadata(
    cache_seqlens: torch.Tensor,
    num_q_tokens_per_head_k: int,
    num_heads_k: int,
    num_heads_q: int | None = None,
    is_fp8_kvcache: bool = False,
    topk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What flash_mla_with_kvcache takes as tile_scheduler_metadata and num_splits: empty, as
    Fulmen's plans cut the keys."""
    _refuse_unserved(is_fp8_kvcache, topk=topk)
    for name, value in (
        ("num_q_tokens_per_head_k", num_q_tokens_per_head_k),
        ("num_heads_k", num_heads_k),
    ):
        if value < 1:
            raise ArgumentError(f"{name} is {value}: 1 or more is accepted")
    empty = torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)
    return empty, empty.clone()


@named(q="q", k="k_cache", v="k_cache", seqlens_k="cache_seqlens")
@torch.no_grad()
def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    head_dim_v: int,
    tile_scheduler_metadata: torch.Tensor,
    num_splits: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q with pages of latent keys, whose first head_dim_v dims are the values. Without
    gradients.

    Args: q: [batch, seqlen_q, heads, head_dim]. k_cache: [num_pages, page_size, kv_heads,
    head_dim]. block_table: [batch, max_pages], int32. cache_seqlens: [batch], int32: rows that are
    used. tile_scheduler_metadata, num_splits: of get_mla_metadata, ignored. softmax_scale: None is
    1 / sqrt(head_dim). causal: the last query attends all keys.

    Returns:
      (out [batch, seqlen_q, heads, head_dim_v], lse [batch, heads, seqlen_q], float32). A row that
      attends no key has an lse of -inf, where FlashMLA's is +inf.
    """
    _refuse_unserved(is_fp8_kvcache, indices=indices)
    if not 1 <= head_dim_v <= k_cache.shape[-1]:
        raise ArgumentError(
            f"head_dim_v is {head_dim_v}: 1 to {k_cache.shape[-1]}, k_cache's dims, are accepted"
        )
    return attention(
        q,
        k_cache,
        k_cache[..., :head_dim_v],
        seqlens_k=cache_seqlens,
        block_table=block_table,
        softmax_scale=softmax_scale,
        causal=causal,
        return_lse=True,
    )
