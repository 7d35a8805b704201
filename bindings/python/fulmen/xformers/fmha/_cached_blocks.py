"""Block-diagonal biases over caches: blocks of keys that are padded to one length, begin anywhere
("gappy"), or lie in pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fulmen._core import ArgumentError
from fulmen.xformers.fmha._bands import Band
from fulmen.xformers.fmha._blocks import Blocks
from fulmen.xformers.fmha._sequences import _GappySeqInfo, _PaddedSeqLenInfo, _SeqLenInfo, device_of


@dataclass
class BlockDiagonalPaddedKeysMask(Blocks):
    """Blocks of keys padded to one length."""

    @classmethod
    def from_seqlens(
        cls,
        q_seqlen: Sequence[int],
        kv_padding: int,
        kv_seqlen: Sequence[int],
        causal_diagonal: Any = None,
        *,
        device: Any = None,
    ) -> Any:
        """kv_padding: rows of each block of keys, of which kv_seqlen are used. causal_diagonal is
        not used, as in xformers."""
        q = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        return cls(q, _PaddedSeqLenInfo.from_seqlens_padded(kv_seqlen, kv_padding, device=device))

    def make_paged(self, block_tables: torch.Tensor, page_size: int, paged_type: type) -> Any:
        keys = dataclasses.replace(self.k_seqinfo, padding=block_tables.shape[1] * page_size)
        return paged_type(self.q_seqinfo, keys, block_tables, page_size)

    def make_local_attention(
        self, window_left: int, window_right: int
    ) -> BlockDiagonalLocalAttentionPaddedKeysMask:
        return BlockDiagonalLocalAttentionPaddedKeysMask(
            self.q_seqinfo, self.k_seqinfo, window_left, window_right
        )


@dataclass
class BlockDiagonalCausalWithOffsetPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    causal_diagonal: Any = None

    def _band(self) -> Band:
        return Band("bottom_right")


@dataclass
class BlockDiagonalLocalAttentionPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    window_left: int
    window_right: int

    @classmethod
    def from_seqlens_local(
        cls,
        q_seqlen: Sequence[int],
        kv_padding: int,
        kv_seqlen: Sequence[int],
        window_left: int,
        window_right: int,
    ) -> Any:
        return BlockDiagonalPaddedKeysMask.from_seqlens(
            q_seqlen, kv_padding, kv_seqlen
        ).make_local_attention(window_left, window_right)

    def _band(self) -> Band:
        return Band("none", self.window_left, self.window_right)


@dataclass
class BlockDiagonalCausalLocalAttentionPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    _window_size: int

    @classmethod
    def from_seqlens_local(
        cls, q_seqlen: Sequence[int], kv_padding: int, kv_seqlen: Sequence[int], window_size: int
    ) -> Any:
        plain = BlockDiagonalPaddedKeysMask.from_seqlens(q_seqlen, kv_padding, kv_seqlen)
        return cls(plain.q_seqinfo, plain.k_seqinfo, window_size)

    def _band(self) -> Band:
        return Band("bottom_right", self._window_size - 1)


@dataclass
class PagedBlockDiagonalPaddedKeysMask(Blocks):
    """Keys in pages: k and v are [1, num_pages * page_size, heads, dim], block_tables
    [blocks, max_pages], int32."""

    block_tables: torch.Tensor
    page_size: int

    @classmethod
    def from_seqlens(
        cls,
        q_seqlen: Sequence[int],
        kv_seqlen: Sequence[int],
        block_tables: torch.Tensor,
        page_size: int,
        *,
        device: Any = None,
    ) -> Any:
        q = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        padding = block_tables.shape[1] * page_size
        return cls(
            q,
            _PaddedSeqLenInfo.from_seqlens_padded(kv_seqlen, padding, device=device),
            block_tables,
            page_size,
        )


@dataclass
class PagedBlockDiagonalCausalWithOffsetPaddedKeysMask(PagedBlockDiagonalPaddedKeysMask):
    def _band(self) -> Band:
        return Band("bottom_right")


@dataclass
class BlockDiagonalGappyKeysMask(Blocks):
    """Blocks of keys that begin anywhere."""

    @classmethod
    def from_seqlens(
        cls,
        q_seqlen: Sequence[int],
        kv_seqstarts: Sequence[int],
        kv_seqlen: Sequence[int],
        *,
        device: Any = None,
    ) -> Any:
        """kv_seqstarts: where each block of keys begins, and how many rows k has in all."""
        device = device_of(device)
        q = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        return cls(
            q, _GappySeqInfo.from_seqlens_gappy(kv_seqstarts, kv_seqlen, False, device=device)
        )

    def make_paged(
        self, block_tables: torch.Tensor, page_size: int, notional_padding: int, paged_type: type
    ) -> Any:
        """Block n's keys are in the rows from n * notional_padding on, which are pages of its own
        then."""
        if notional_padding % page_size:
            raise ArgumentError(
                f"notional_padding is {notional_padding}: multiples of page_size, {page_size}, are "
                "accepted"
            )
        starts = [
            start - n * notional_padding for n, start in enumerate(self.k_seqinfo.seqstart_py[:-1])
        ]
        device = block_tables.device
        keys = _GappySeqInfo.from_seqlens_gappy(
            starts, self.k_seqinfo.seqlen_py, True, device=device
        )
        return paged_type(self.q_seqinfo, keys, block_tables, page_size)


@dataclass
class BlockDiagonalCausalWithOffsetGappyKeysMask(BlockDiagonalGappyKeysMask):
    def _band(self) -> Band:
        return Band("bottom_right")


@dataclass
class PagedBlockDiagonalGappyKeysMask(Blocks):
    """Keys in pages, of which each block's begin at kv_seqstarts."""

    block_tables: torch.Tensor
    page_size: int

    @classmethod
    def from_seqlens(
        cls,
        q_seqlen: Sequence[int],
        kv_seqstarts: Sequence[int],
        kv_seqlen: Sequence[int],
        block_tables: torch.Tensor,
        page_size: int,
        *,
        device: Any = None,
    ) -> Any:
        device = block_tables.device if device is None else device
        keys = _GappySeqInfo.from_seqlens_gappy(kv_seqstarts, kv_seqlen, True, device=device)
        return cls(_SeqLenInfo.from_seqlens(q_seqlen, device=device), keys, block_tables, page_size)


@dataclass
class PagedBlockDiagonalCausalWithOffsetGappyKeysMask(PagedBlockDiagonalGappyKeysMask):
    def _band(self) -> Band:
        return Band("bottom_right")
