"""Block-diagonal biases whose blocks of keys lie one after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fulmen._core import ArgumentError
from fulmen.xformers.fmha._bands import (
    AttentionBias,
    Band,
    added_matrix,
    attended_keys,
    check_window,
)
from fulmen.xformers.fmha._sequences import _SeqLenInfo


def key_rows(bias: Any) -> list[torch.Tensor]:
    """The rows of k and v that each block of keys has, in order."""
    table, device = getattr(bias, "block_tables", None), bias.k_seqinfo.seqstart.device
    if table is None:
        return [
            torch.arange(start, end, device=device) for start, end in bias.k_seqinfo.intervals()
        ]
    padded = hasattr(bias.k_seqinfo, "padding")
    starts = [0] * len(table) if padded else bias.k_seqinfo.seqstart_py[: len(table)]
    size, rows = bias.page_size, []
    for pages, start, end in zip(table.long(), starts, bias.k_seqinfo.seqlen_py, strict=True):
        row = torch.arange(start, end, device=pages.device)
        rows.append(pages[row // size] * size + row % size)
    return rows


@dataclass
class Blocks(AttentionBias):
    q_seqinfo: _SeqLenInfo
    k_seqinfo: Any

    def to(self, device: Any) -> Any:
        moved = {
            name: getattr(self, name).to(device)
            for name in ("q_seqinfo", "k_seqinfo", "block_tables")
            if hasattr(self, name)
        }
        return dataclasses.replace(self, **moved)

    def materialize(
        self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: Any = "cpu"
    ) -> torch.Tensor:
        attended = torch.zeros(*shape[-2:], dtype=torch.bool, device=device)
        for (start, end), keys in zip(self.q_seqinfo.intervals(), key_rows(self), strict=True):
            attended[start:end, keys.to(device)] = attended_keys(
                end - start, len(keys), self._band(), device
            )
        return added_matrix(attended, shape, dtype)

    def _band(self) -> Band:
        return Band()


@dataclass
class BlockDiagonalMask(Blocks):
    """Blocks of keys one after another."""

    _batch_sizes: Sequence[int] | None = None

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, *, device: Any = None
    ) -> Any:
        """kv_seqlen: None is q_seqlen."""
        q = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        if kv_seqlen is None or list(kv_seqlen) == list(q_seqlen):
            return cls(q, q)
        if len(kv_seqlen) != len(q_seqlen):
            raise ArgumentError(
                f"kv_seqlen has {len(kv_seqlen)} numbers: {len(q_seqlen)}, as q_seqlen has, are "
                "accepted"
            )
        return cls(q, _SeqLenInfo.from_seqlens(kv_seqlen, device=device))

    @classmethod
    def from_tensor_list(cls, tensors: Sequence[torch.Tensor]) -> tuple[Any, torch.Tensor]:
        """Tensors [batch_n, seqlen_n, ...]: the bias, and all as one, [1, total, ...]."""
        return cls.from_tensor_lists_qkv(tensors, tensors)[:2]

    @classmethod
    def from_tensor_lists_qkv(
        cls,
        tensors_q: Sequence[torch.Tensor],
        tensors_k: Sequence[torch.Tensor],
        tensors_v: Sequence[torch.Tensor] | None = None,
    ) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The same of queries, keys and values: (bias, q, k, v)."""
        lengths = [
            [x.shape[1] for x in tensors for _ in range(x.shape[0])]
            for tensors in (tensors_q, tensors_k)
        ]
        bias = cls.from_seqlens(*lengths, device=tensors_q[0].device)
        bias._batch_sizes = [x.shape[0] for x in tensors_q]

        def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
            return torch.cat([x.flatten(0, 1) for x in tensors])[None]

        return (
            bias,
            joined(tensors_q),
            joined(tensors_k),
            None if tensors_v is None else joined(tensors_v),
        )

    def split_queries(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self.q_seqinfo.split(tensor, self._batch_sizes)

    def split_kv(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self.k_seqinfo.split(tensor, self._batch_sizes)

    def split(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of from_tensor_list, or results in their shapes."""
        if self.q_seqinfo is not self.k_seqinfo:
            raise ArgumentError(
                "queries and keys have different lengths: split_queries and split_kv are accepted"
            )
        return self.split_queries(tensor)

    def make_causal(self) -> BlockDiagonalCausalMask:
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_causal_from_bottomright(self) -> BlockDiagonalCausalFromBottomRightMask:
        return BlockDiagonalCausalFromBottomRightMask(
            self.q_seqinfo, self.k_seqinfo, self._batch_sizes
        )

    def make_local_attention(self, window_size: int) -> BlockDiagonalCausalLocalAttentionMask:
        return BlockDiagonalCausalLocalAttentionMask(
            self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size
        )

    def make_local_attention_from_bottomright(
        self, window_size: int
    ) -> BlockDiagonalCausalLocalAttentionFromBottomRightMask:
        parts = (self.q_seqinfo, self.k_seqinfo, self._batch_sizes)
        return BlockDiagonalCausalLocalAttentionFromBottomRightMask(*parts, window_size)


@dataclass
class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Each block is causal, its first query on the diagonal with its first key."""

    def _band(self) -> Band:
        return Band("top_left")


@dataclass
class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    """Each block is causal, its last query on the diagonal with its last key. No block has fewer
    keys than queries."""

    def __post_init__(self) -> None:
        pairs = zip(self.q_seqinfo.intervals(), self.k_seqinfo.intervals(), strict=True)
        for n, ((q_start, q_end), (k_start, k_end)) in enumerate(pairs):
            if k_end - k_start < q_end - q_start:
                raise ArgumentError(
                    f"block {n} has {q_end - q_start} queries and {k_end - k_start} keys: as many "
                    "or more are accepted"
                )

    def _band(self) -> Band:
        return Band("bottom_right")


@dataclass
class BlockDiagonalCausalLocalAttentionMask(BlockDiagonalCausalMask):
    _window_size: int = 0

    def __post_init__(self) -> None:
        check_window(self._window_size)

    def _band(self) -> Band:
        return Band("top_left", self._window_size - 1)


@dataclass
class BlockDiagonalCausalLocalAttentionFromBottomRightMask(BlockDiagonalCausalFromBottomRightMask):
    _window_size: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self._window_size)

    def _band(self) -> Band:
        return Band("bottom_right", self._window_size - 1)
