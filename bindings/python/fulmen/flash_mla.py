"""FlashMLA's functions (https://github.com/deepseek-ai/FlashMLA): decode of latent attention over
pages, on CPUs and every GPU, by the arguments of its versions before and since its
FlashMLASchedMeta.

On top of what that package takes: any dtype of fulmen.attention, any page size, head_dim up to 576
and head_dim_v up to 512, and attn_sink over all keys. fp8 caches and sparse indices are refused.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from fulmen._arguments import rename
from fulmen._core import ArgumentError
from fulmen._functions import attention
from fulmen.flash_attn import _install
from fulmen.flash_attn.flash_attn_interface import named

__all__ = ["flash_mla_with_kvcache", "get_mla_metadata", "install", "uninstall"]

__version__ = "1.0.0"
_PACKAGE = _install.Package("flash_mla", "flash_mla", __version__, ("",), "fulmen.flash_mla")


def install(force: bool = False) -> None:
    """Makes `import flash_mla` give this module.

    force: hide a flash_mla that is installed until uninstall(). Otherwise that raises a
        RuntimeError.
    """
    _install.install(_PACKAGE, force)


def uninstall() -> None:
    """Takes install() back. Does nothing where it was not called."""
    _install.uninstall(_PACKAGE)


def _refuse_unserved(is_fp8_kvcache: bool, **sparse: Any) -> None:
    if is_fp8_kvcache:
        raise NotImplementedError("is_fp8_kvcache is True: caches of q's dtype are accepted")
    for name, value in sparse.items():
        if value is not None:
            raise NotImplementedError(f"{name} is given: attention to all keys alone is accepted")


@named()
def get_mla_metadata(
    cache_seqlens: torch.Tensor | None = None,
    num_q_tokens_per_head_k: int | None = None,
    num_heads_k: int | None = None,
    num_heads_q: int | None = None,
    is_fp8_kvcache: bool = False,
    topk: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What flash_mla_with_kvcache takes as tile_scheduler_metadata and num_splits: empty, as
    Fulmen's plans cut the keys. Without cache_seqlens num_splits is None, as FlashMLA's is now."""
    _refuse_unserved(is_fp8_kvcache, topk=topk)
    for name, value in (
        ("num_q_tokens_per_head_k", num_q_tokens_per_head_k),
        ("num_heads_k", num_heads_k),
    ):
        if value is not None and value < 1:
            raise ArgumentError(f"{name} is {value}: 1 or more is accepted")
    device = None if cache_seqlens is None else cache_seqlens.device
    empty = torch.empty(0, dtype=torch.int32, device=device)
    return empty, None if cache_seqlens is None else empty.clone()


@named(q="q")
@torch.no_grad()
def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: Any = None,
    num_splits: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q with pages of latent keys, whose first head_dim_v dims are the values. Without
    gradients.

    Args: q: [batch, seqlen_q, heads, head_dim]. k_cache: [num_pages, page_size, kv_heads,
    head_dim], q's dtype. block_table: [batch, max_pages], int32. cache_seqlens: [batch], int32:
    rows that are used. tile_scheduler_metadata, num_splits: of get_mla_metadata, ignored.
    softmax_scale: None is 1 / sqrt(head_dim). causal: the last query attends all keys. attn_sink:
    [heads], float32: out is multiplied by exp(lse) / (exp(lse) + exp(attn_sink)), lse is not
    changed. The other arguments are those of sparse attention, and refused.

    Returns:
      (out [batch, seqlen_q, heads, head_dim_v], lse [batch, heads, seqlen_q], float32). A row that
      attends no key has an lse of -inf, where FlashMLA's is +inf.
    """
    _refuse_unserved(
        is_fp8_kvcache,
        indices=indices,
        extra_k_cache=extra_k_cache,
        extra_indices_in_kvcache=extra_indices_in_kvcache,
        topk_length=topk_length,
        extra_topk_length=extra_topk_length,
    )
    if k_cache.element_size() == 1:
        dtype = str(k_cache.dtype).removeprefix("torch.")
        raise NotImplementedError(f"k_cache has dtype {dtype}: caches of q's dtype are accepted")
    for name, value in (("block_table", block_table), ("cache_seqlens", cache_seqlens)):
        if value is None:
            raise TypeError(f"{name} is None: a tensor of int32 is accepted")
    try:
        dims = operator.index(head_dim_v)
    except TypeError:
        raise TypeError(f"head_dim_v is {head_dim_v!r}: an integer is accepted") from None
    if not 1 <= dims <= k_cache.shape[-1]:
        raise ArgumentError(
            f"head_dim_v is {dims}: 1 to {k_cache.shape[-1]}, k_cache's dims, are accepted"
        )
    try:
        out, lse = attention(
            q,
            k_cache,
            k_cache[..., :dims],
            seqlens_k=cache_seqlens,
            block_table=block_table,
            softmax_scale=softmax_scale,
            causal=causal,
            return_lse=True,
        )
    except (TypeError, ValueError, NotImplementedError) as error:
        rename(error, {"k and v have": "k_cache has", "k": "k_cache", "v": "k_cache"})
        raise
    return (out if attn_sink is None else _with_sink(out, lse, attn_sink)), lse


def _with_sink(out: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """out with one more score a head in the softmax's denominator, which lse does not count."""
    heads = out.shape[2]
    if tuple(sink.shape) != (heads,) or not sink.is_floating_point():
        raise ArgumentError(
            f"attn_sink has shape {list(sink.shape)} and dtype "
            f"{str(sink.dtype).removeprefix('torch.')}: [heads], here [{heads}], of float32 is "
            "accepted"
        )
    share = torch.sigmoid(lse.transpose(1, 2) - sink.float())  # [batch, seqlen_q, heads]
    share = share.masked_fill(lse.transpose(1, 2) == -torch.inf, 0.0)
    return (out.float() * share[..., None]).to(out.dtype)
