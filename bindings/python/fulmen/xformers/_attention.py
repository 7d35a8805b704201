"""memory_efficient_attention and its forms."""

from __future__ import annotations

from typing import Any

import torch

import fulmen.torch  # noqa: F401  registers torch.ops.fulmen
from fulmen._core import ArgumentError
from fulmen._functions import attention
from fulmen.torch._ops import last_dim_contiguous
from fulmen.xformers.fmha._blocks import key_rows
from fulmen.xformers.fmha.attn_bias import band_of


def memory_efficient_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """softmax(scale * query key^T + attn_bias) value. Differentiable, by a tensor attn_bias, too.

    Args:
      query: [batch, seqlen_q, heads, head_dim], [batch, seqlen_q, groups, heads, head_dim] or
          [batch, seqlen_q, head_dim].
      key, value: the same of seqlen_k; value's head_dim may differ. Groups whose heads are expanded
          (stride 0) are read once.
      attn_bias: None, a tensor added to the scores, [batch, heads, seqlen_q, seqlen_k]
        ([batch, groups, heads, …] with groups, [batch, seqlen_q, seqlen_k] without heads), one of
        bool, where True attends, or a bias of fmha.attn_bias, xformers' own included. One that is
        neither is asked to materialize() itself.
      p: probability of dropout; torch's generator draws. scale: None is 1 / sqrt(head_dim).
      op: changes nothing: plans choose by the problem. output_dtype: None is query's.

    Returns:
      query's shape with value's head_dim. Rows that attend no key are 0.
    """
    return _attention(query, key, value, attn_bias, p, scale, output_dtype)[0]


def memory_efficient_attention_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """memory_efficient_attention without gradients."""
    with torch.no_grad():
        return _attention(query, key, value, attn_bias, p, scale, output_dtype)[0]


def memory_efficient_attention_forward_requires_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(memory_efficient_attention's result, lse [batch, heads, seqlen_q], with groups
    [batch, groups, heads, seqlen_q])."""
    if p != 0:
        raise NotImplementedError(
            f"p is {p}: 0 is accepted, memory_efficient_attention has dropout"
        )
    return _attention(query, key, value, attn_bias, p, scale, output_dtype)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: Any,
    p: float,
    scale: float | None,
    dtype: torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    dims = query.dim()
    if dims not in (3, 4, 5) or key.dim() != dims or value.dim() != dims:
        shapes = ", ".join(
            f"{n} {list(t.shape)}" for n, t in (("query", query), ("key", key), ("value", value))
        )
        raise ArgumentError(
            f"shapes are {shapes}: [batch, seqlen, heads, head_dim] of all is accepted, or 3 or 5 "
            "dims of all"
        )
    shape = (*query.shape[:-1], value.shape[-1])
    heads = query.shape[2:-1]
    query, key, value = (_with_heads(t) for t in (query, key, value))
    options: dict[str, Any] = {"softmax_scale": scale, "dropout": p}
    band = None if bias is None or isinstance(bias, torch.Tensor) else band_of(bias)
    blocks = band is not None and hasattr(bias, "q_seqinfo")
    if band is not None:
        options |= band._asdict()
        # LowerTriangularMaskWithTensorBias
        bias = getattr(bias, "_bias", None) if not blocks else bias
    elif bias is not None and not isinstance(bias, torch.Tensor):
        matrix = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
        bias = bias.materialize(matrix, dtype=query.dtype, device=query.device)
        dims = 4
    if blocks:
        q, k, v = query[0], key, value
        if any(t.shape[0] != 1 for t in (query, key, value)):
            raise ArgumentError(
                f"query has batch {query.shape[0]} and key {key.shape[0]}: 1 is accepted with "
                f"{type(bias).__name__}"
            )
        k, v, lengths = _keys_of_blocks(
            k[0],
            v[0],
            bias,
            torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)),
        )
        out, lse = attention(
            last_dim_contiguous(q),
            last_dim_contiguous(k),
            last_dim_contiguous(v),
            cu_seqlens_q=bias.q_seqinfo.seqstart,
            max_seqlen_q=bias.q_seqinfo.max_seqlen,
            return_lse=True,
            **lengths,
            **options,
        )
        lse = lse[None]
    else:
        if bias is not None:
            bias = (
                bias.unsqueeze(1)
                if dims == 3 and bias.dim() == 3
                else bias.flatten(1, 2)
                if dims == 5 and bias.dim() == 5
                else bias
            )
            options["keep_mask" if bias.dtype == torch.bool else "bias"] = last_dim_contiguous(bias)
        out, lse = attention(
            *(last_dim_contiguous(t) for t in (query, key, value)), return_lse=True, **options
        )
    if len(heads) == 2:
        lse = lse.unflatten(1, heads)
    return out.reshape(shape).to(out.dtype if dtype is None else dtype), lse


def _with_heads(t: torch.Tensor) -> torch.Tensor:
    """[batch, seqlen, heads, dim]."""
    if t.dim() == 3:
        return t.unsqueeze(2)
    if t.dim() == 5:
        # Heads that are one expanded are a head of k or v that several of query read.
        return t[:, :, :, 0] if t.stride(3) == 0 and t.shape[3] > 1 else t.flatten(2, 3)
    return t


def _keys_of_blocks(
    k: torch.Tensor, v: torch.Tensor, bias: Any, gradients: bool
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """k and v [rows, heads, dim] as fulmen.attention takes them, and its options. Nothing is copied
    without gradients."""
    info, table = bias.k_seqinfo, getattr(bias, "block_tables", None)
    if not hasattr(info, "seqlen"):
        return k, v, {"cu_seqlens_k": info.seqstart, "max_seqlen_k": info.max_seqlen}
    if gradients:  # which fulmen.attention has for packed keys
        rows = key_rows(bias)
        lengths = torch.tensor([0, *(len(r) for r in rows)], device=k.device).cumsum(
            0, dtype=torch.int32
        )
        at = torch.cat(rows).to(k.device)
        return (
            k.index_select(0, at),
            v.index_select(0, at),
            {"cu_seqlens_k": lengths, "max_seqlen_k": max(len(r) for r in rows)},
        )
    if table is not None:
        options = {"block_table": table.to(torch.int32), "seqlens_k": info.seqlen}
        if not hasattr(info, "padding"):
            options["leftpad_k"] = info.seqstart[: len(table)]
        return k.unflatten(0, (-1, bias.page_size)), v.unflatten(0, (-1, bias.page_size)), options
    if hasattr(info, "padding"):
        blocks = (len(info.seqlen_py), info.padding)
        return k.unflatten(0, blocks), v.unflatten(0, blocks), {"seqlens_k": info.seqlen}
    # Rows anywhere are pages of one row.
    table = info.seqstart[:-1, None] + torch.arange(
        max(info.max_seqlen, 1), dtype=torch.int32, device=k.device
    )
    return (
        k.unsqueeze(1),
        v.unsqueeze(1),
        {"block_table": table.clamp(max=max(k.shape[0] - 1, 0)), "seqlens_k": info.seqlen},
    )
