"""Where blocks of queries and keys begin and end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fulmen._core import ArgumentError


def device_of(device: Any) -> torch.device:
    """The default device, as in xformers: a GPU if there is one."""
    return torch.device(
        ("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
    )


def int32(numbers: Sequence[int], device: Any) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


@dataclass
class _SeqLenInfo:
    """Blocks one after another: block n is rows seqstart[n] to seqstart[n + 1] - 1."""

    seqstart: torch.Tensor  # [blocks + 1], int32
    max_seqlen: int
    min_seqlen: int
    seqstart_py: list[int]

    @classmethod
    def from_seqlens(cls, seqlens: Iterable[int], *, device: Any = None) -> _SeqLenInfo:
        lengths, starts = list(seqlens), [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        return _SeqLenInfo(
            int32(starts, device_of(device)),
            max(lengths, default=0),
            min(lengths, default=0),
            starts,
        )

    def intervals(self) -> list[tuple[int, int]]:
        return list(zip(self.seqstart_py, self.seqstart_py[1:], strict=False))

    def to(self, device: Any) -> Any:
        tensors = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return dataclasses.replace(
            self, **{n: t.to(device) for n, t in tensors.items() if isinstance(t, torch.Tensor)}
        )

    def split(
        self, x: torch.Tensor, batch_sizes: Sequence[int] | None = None
    ) -> list[torch.Tensor]:
        """x [1, total, ...] by blocks; with batch_sizes so many blocks of one length are one tensor
        each."""
        if x.shape[0] != 1 or x.shape[1] != self.seqstart_py[-1]:
            raise ArgumentError(
                f"tensor has shape {list(x.shape)}: [1, {self.seqstart_py[-1]}, ...] is accepted"
            )
        parts, block = [], 0
        for size in [1] * (len(self.seqstart_py) - 1) if batch_sizes is None else batch_sizes:
            rows = x[0, self.seqstart_py[block] : self.seqstart_py[block + size]]
            parts.append(rows.unflatten(0, (size, rows.shape[0] // size)) if size else rows[None])
            block += size
        return parts


@dataclass
class _PaddedSeqLenInfo(_SeqLenInfo):
    """Blocks of `padding` rows each, of which the first seqlen[n] are used."""

    seqlen: torch.Tensor
    seqlen_py: Sequence[int]
    padding: int

    @classmethod
    def from_seqlens_padded(
        cls, seqlens: Sequence[int], padding: int, *, device: Any = None
    ) -> _PaddedSeqLenInfo:
        lengths, device = list(seqlens), device_of(device)
        if any(not 0 <= length <= padding for length in lengths):
            raise ArgumentError(
                f"kv_seqlen is {lengths}: 0 to the padding, {padding}, are accepted"
            )
        starts = [n * padding for n in range(len(lengths) + 1)]
        longest, shortest = max(lengths, default=0), min(lengths, default=0)
        return cls(
            int32(starts, device),
            longest,
            shortest,
            starts,
            int32(lengths, device),
            lengths,
            padding,
        )

    def intervals(self) -> list[tuple[int, int]]:
        return [
            (start, start + length)
            for start, length in zip(self.seqstart_py, self.seqlen_py, strict=False)
        ]


@dataclass
class _GappySeqInfo(_SeqLenInfo):
    """Block n begins at seqstart[n] and has seqlen[n] rows. With pages seqlen[n] is where it ends,
    in pages of its own."""

    seqlen: torch.Tensor
    seqlen_py: Sequence[int]

    @classmethod
    def from_seqlens_gappy(
        cls, seqstarts: Sequence[int], seqlens: Sequence[int], paged: bool, *, device: Any
    ) -> _GappySeqInfo:
        starts, lengths = list(seqstarts), list(seqlens)
        if len(starts) + paged != len(lengths) + 1:
            raise ArgumentError(
                f"kv_seqstarts has {len(starts)} numbers: {len(lengths) + 1 - paged} are accepted"
            )
        longest, shortest = max(lengths, default=0), min(lengths, default=0)
        if paged:
            lengths = [start + length for start, length in zip(starts, lengths, strict=True)]
            starts.append(-1)
        return cls(
            int32(starts, device), longest, shortest, starts, int32(lengths, device), lengths
        )

    def intervals(self) -> list[tuple[int, int]]:
        return [
            (start, start + length)
            for start, length in zip(self.seqstart_py, self.seqlen_py, strict=False)
        ]
