"""Rotary embeddings: the functions of flash_attn.layers.rotary, on any device. Angles are
multiplied in float32."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from fulmen._core import ArgumentError

__all__ = [
    "RotaryEmbedding",
    "apply_rotary_emb",
    "apply_rotary_emb_kv_",
    "apply_rotary_emb_qkv_",
    "apply_rotary_emb_torch",
]


def rotate(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    interleaved: bool = False,
) -> torch.Tensor:
    """x [..., heads, dim] with its first rotary_dim elements rotated by the rows `positions` [...]
    of cos and sin.

    cos, sin: [rows, rotary_dim / 2]. A position outside of the rows rotates nothing.
    """
    half = cos.shape[-1]
    if 2 * half > x.shape[-1]:
        raise ArgumentError(
            f"cos.shape is {list(cos.shape)}: at most {x.shape[-1] // 2} columns are accepted for "
            "x's head_dim"
        )
    if cos.shape != sin.shape or cos.dim() != 2:
        raise ArgumentError(
            f"cos.shape is {list(cos.shape)} and sin.shape {list(sin.shape)}: both [rows, "
            "rotary_dim / 2] are accepted"
        )
    # One more row, which rotates by nothing.
    rows = torch.where(
        (positions >= 0) & (positions < cos.shape[0]), positions, cos.shape[0]
    ).long()
    c = F.pad(cos.float(), (0, 0, 0, 1), value=1.0)[rows].unsqueeze(-2)
    s = F.pad(sin.float(), (0, 0, 0, 1))[rows].unsqueeze(-2)
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    pair = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    first, second = pair[0] * c - pair[1] * s, pair[0] * s + pair[1] * c
    joined = (
        torch.stack((first, second), -1).flatten(-2)
        if interleaved
        else torch.cat((first, second), -1)
    )
    return torch.cat((joined.to(x.dtype), rest), -1)


def positions_of(
    x: torch.Tensor, offsets: int | torch.Tensor, cu_seqlens: torch.Tensor | None
) -> torch.Tensor:
    """Where each row of x is in its sequence: [batch, seqlen], or [total] where x is packed."""
    if cu_seqlens is None:
        row = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
        return row + (offsets[:, None] if isinstance(offsets, torch.Tensor) else offsets)
    row = torch.arange(x.shape[0], device=x.device)
    sequence = torch.bucketize(row, cu_seqlens[1:], right=True).clamp(max=len(cu_seqlens) - 2)
    row = row - cu_seqlens[sequence]
    return row + (offsets[sequence] if isinstance(offsets, torch.Tensor) else offsets)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Any, cos: Any, sin: Any, positions: Any, interleaved: bool, inplace: bool
    ) -> torch.Tensor:
        ctx.save_for_backward(cos, sin, positions)
        ctx.interleaved = interleaved
        out = rotate(x, cos, sin, positions, interleaved)
        if inplace:
            ctx.mark_dirty(x)
            return x.copy_(out)
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[Any, ...]:
        cos, sin, positions = ctx.saved_tensors
        return rotate(dout, cos, -sin, positions, ctx.interleaved), None, None, None, None, None


def apply_rotary_emb(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    cu_seqlens: torch.Tensor | None = None,
    max_seqlen: int | None = None,
) -> torch.Tensor:
    """x with its first rotary_dim elements rotated. Differentiable by x.

    Args:
      x: [batch, seqlen, heads, head_dim], or with cu_seqlens [total, heads, head_dim].
      cos, sin: [positions, rotary_dim / 2].
      interleaved: pairs are elements 2 i and 2 i + 1; else i and i + rotary_dim / 2.
      inplace: x is written and returned.
      seqlen_offsets: int or [batch]: the position of each sequence's first row.
      cu_seqlens: [batch + 1]: sequence n is rows cu_seqlens[n] to cu_seqlens[n + 1] - 1. max_seqlen
          is not needed.
    """
    dims = 4 if cu_seqlens is None else 3
    if x.dim() != dims:
        accepted = (
            "[batch, seqlen, heads, head_dim]"
            if dims == 4
            else "with cu_seqlens [total, heads, head_dim]"
        )
        raise ArgumentError(f"x has shape {list(x.shape)}: {accepted} is accepted")
    if (
        cu_seqlens is None
        and isinstance(seqlen_offsets, int)
        and x.shape[1] + seqlen_offsets > cos.shape[0]
    ):
        raise ArgumentError(
            f"cos.shape is {list(cos.shape)}: {x.shape[1] + seqlen_offsets} rows are needed for "
            "these positions"
        )
    positions = positions_of(x, seqlen_offsets, cu_seqlens)
    return _Rotary.apply(x, cos, sin, positions, interleaved, inplace)


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_torch(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False
) -> torch.Tensor:
    """apply_rotary_emb of x [batch, seqlen, heads, head_dim]; cos and sin may be
    [batch, seqlen, rotary_dim / 2], too."""
    if cos.dim() == 3:
        return torch.stack(
            [
                apply_rotary_emb_torch(*one, interleaved)
                for one in zip(x[:, None], cos, sin, strict=True)
            ]
        )[:, 0]
    return apply_rotary_emb(x, cos, sin, interleaved)


def apply_rotary_emb_qkv_(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cos_k: torch.Tensor | None = None,
    sin_k: torch.Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
    num_heads_q: int | None = None,
) -> torch.Tensor:
    """Rotates q and k of qkv in place, and returns it.

    Args:
      qkv: [batch, seqlen, 3, heads, head_dim], or with num_heads_q
          [batch, seqlen, num_heads_q + 2 * kv_heads, head_dim].
      cos_k, sin_k: of k, where they differ from q's.
      the others: see apply_rotary_emb.
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
    q = apply_rotary_emb(q, cos, sin, interleaved, seqlen_offsets=seqlen_offsets)
    k = apply_rotary_emb(
        k, *_keys(cos, sin, cos_k, sin_k), interleaved, seqlen_offsets=seqlen_offsets
    )
    return qkv.copy_(torch.stack((q, k, v), 2) if qkv.dim() == 5 else torch.cat((q, k, v), 2))


def apply_rotary_emb_kv_(
    kv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    interleaved: bool = False,
    seqlen_offsets: int | torch.Tensor = 0,
) -> torch.Tensor:
    """Rotates k of kv [batch, seqlen, 2, heads, head_dim] in place, and returns kv."""
    if kv.dim() != 5 or kv.shape[2] != 2:
        raise ArgumentError(
            f"kv has shape {list(kv.shape)}: [batch, seqlen, 2, heads, head_dim] is accepted"
        )
    k, v = kv.unbind(2)
    k = apply_rotary_emb(k, cos, sin, interleaved, seqlen_offsets=seqlen_offsets)
    return kv.copy_(torch.stack((k, v), 2))


def _keys(cos: Any, sin: Any, cos_k: Any, sin_k: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return (cos if cos_k is None else cos_k), (sin if sin_k is None else sin_k)


class RotaryEmbedding(torch.nn.Module):
    """Rotary embeddings (Su et al. 2021) as a module; with scale_base xPos (Sun et al. 2022).

    Args:
      dim: rotary_dim. base: of the frequencies base ** (-2 i / dim).
      interleaved: see apply_rotary_emb. scale_base: None is no scaling; 512 is usual.
    """

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved, self.scale_base = (
            dim,
            float(base),
            interleaved,
            scale_base,
        )
        self._tables: dict[Any, tuple[torch.Tensor, ...]] = {}
        even = torch.arange(0, dim, 2, dtype=torch.float32, device=device)
        self.register_buffer("inv_freq", self.base ** (-even / dim), persistent=False)
        self.register_buffer(
            "scale",
            None if scale_base is None else (even + 0.4 * dim) / (1.4 * dim),
            persistent=False,
        )

    def _table(self, seqlen: int, device: Any, dtype: Any) -> tuple[torch.Tensor, ...]:
        """cos and sin of queries and keys, [seqlen, dim / 2] or more rows."""
        found = self._tables.get((device, dtype))
        # xPos counts from the middle, so its table depends on the length.
        if found is None or found[0].shape[0] < seqlen:
            even = torch.arange(0, self.dim, 2, dtype=torch.float32, device=device)
            row = torch.arange(seqlen, dtype=torch.float32, device=device)[:, None]
            angle = row * self.base ** (-even / self.dim)
            scale = torch.ones_like(angle)
            if self.scale_base is not None:
                scale = ((even + 0.4 * self.dim) / (1.4 * self.dim)) ** (
                    (row - seqlen // 2) / self.scale_base
                )
            table = (
                angle.cos() * scale,
                angle.sin() * scale,
                angle.cos() / scale,
                angle.sin() / scale,
            )
            found = self._tables[device, dtype] = tuple(t.to(dtype) for t in table)
        return found

    def forward(
        self,
        qkv: torch.Tensor,
        kv: torch.Tensor | None = None,
        seqlen_offset: int | torch.Tensor = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Any:
        """Rotates in place: qkv as apply_rotary_emb_qkv_ takes it, or with kv q
        [batch, seqlen, heads, head_dim].

        Returns qkv, or (q, kv). A tensor seqlen_offset [batch] needs max_seqlen: no position is at
        that or behind.
        """
        if max_seqlen is None and not isinstance(seqlen_offset, int):
            raise ArgumentError(
                "max_seqlen is None and seqlen_offset a tensor: an upper bound of the positions is "
                "needed"
            )
        rows = qkv.shape[1] + seqlen_offset if max_seqlen is None else max_seqlen
        cos, sin, cos_k, sin_k = self._table(rows, qkv.device, qkv.dtype)
        if kv is None:
            return apply_rotary_emb_qkv_(
                qkv, cos, sin, cos_k, sin_k, self.interleaved, seqlen_offset, num_heads_q
            )
        q = apply_rotary_emb(qkv, cos, sin, self.interleaved, True, seqlen_offset)
        return q, apply_rotary_emb_kv_(kv, cos_k, sin_k, self.interleaved, seqlen_offset)
