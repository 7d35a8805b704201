"""The biases of xformers.ops.fmha.attn_bias: which keys each query attends, without a matrix that says it.

A block bias cuts queries and keys, [1, total, heads, dim], into as many blocks; a query attends keys of its own block only. Keys
lie one block after another, padded to one length, anywhere ("gappy"), or in pages. Causal masks of blocks with an offset, and those
"from the bottom right", are aligned with the last key of a block, others with the first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fulmen._core import ArgumentError

__all__ = [
    "AttentionBias",
    "BlockDiagonalCausalFromBottomRightMask",
    "BlockDiagonalCausalLocalAttentionFromBottomRightMask",
    "BlockDiagonalCausalLocalAttentionMask",
    "BlockDiagonalCausalLocalAttentionPaddedKeysMask",
    "BlockDiagonalCausalMask",
    "BlockDiagonalCausalWithOffsetGappyKeysMask",
    "BlockDiagonalCausalWithOffsetPaddedKeysMask",
    "BlockDiagonalGappyKeysMask",
    "BlockDiagonalLocalAttentionPaddedKeysMask",
    "BlockDiagonalMask",
    "BlockDiagonalPaddedKeysMask",
    "LocalAttentionFromBottomRightMask",
    "LowerTriangularFromBottomRightLocalAttentionMask",
    "LowerTriangularFromBottomRightMask",
    "LowerTriangularMask",
    "LowerTriangularMaskWithTensorBias",
    "PagedBlockDiagonalCausalWithOffsetGappyKeysMask",
    "PagedBlockDiagonalCausalWithOffsetPaddedKeysMask",
    "PagedBlockDiagonalGappyKeysMask",
    "PagedBlockDiagonalPaddedKeysMask",
]


class Band(NamedTuple):
    """fulmen.attention's options."""

    causal: str = "none"
    window_left: int = -1
    window_right: int = -1


def _attended(seqlen_q: int, seqlen_k: int, band: Band, device: Any) -> torch.Tensor:
    offset = 0 if band.causal == "top_left" else seqlen_k - seqlen_q
    distance = torch.arange(seqlen_k, device=device) - torch.arange(seqlen_q, device=device)[:, None] - offset
    attended = torch.ones_like(distance, dtype=torch.bool)
    if band.window_left >= 0:
        attended &= distance >= -band.window_left
    right = band.window_right if band.causal == "none" else 0
    return attended & (distance <= right) if right >= 0 else attended


def _added(attended: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros_like(attended, dtype=dtype).masked_fill(~attended, -torch.inf).expand(tuple(shape))


class AttentionBias:
    """What memory_efficient_attention takes as attn_bias. A class of one's own says materialize()."""

    def materialize(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: Any = "cpu") -> torch.Tensor:
        """The matrix that is added to the scores, [..., seqlen_q, seqlen_k]: 0, or -inf where a key is not attended."""
        return _added(_attended(shape[-2], shape[-1], self._band(), device), shape, dtype)

    def to(self, device: Any) -> Any:
        return self

    def _band(self) -> Band:
        raise NotImplementedError(f"{type(self).__name__} has no materialize()")


class LowerTriangularMask(AttentionBias):
    """Causal: the first query is on the diagonal with the first key."""

    def __init__(self, *tensor_args: Any, **tensor_kwargs: Any) -> None:
        pass

    def add_bias(self, bias: torch.Tensor) -> LowerTriangularMaskWithTensorBias:
        return LowerTriangularMaskWithTensorBias(bias)

    def _band(self) -> Band:
        return Band("top_left")


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    """The same, and a tensor [batch, heads, seqlen_q, seqlen_k] that is added to the scores."""

    def __init__(self, bias: torch.Tensor) -> None:
        self._bias = bias

    def to(self, device: Any) -> LowerTriangularMaskWithTensorBias:
        return LowerTriangularMaskWithTensorBias(self._bias.to(device))

    def materialize(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: Any = "cpu") -> torch.Tensor:
        return super().materialize(shape, dtype, device) + self._bias.to(device, dtype)


class LowerTriangularFromBottomRightMask(AttentionBias):
    """Causal: the last query is on the diagonal with the last key."""

    def make_local_attention(self, window_size: int) -> LowerTriangularFromBottomRightLocalAttentionMask:
        return LowerTriangularFromBottomRightLocalAttentionMask(window_size)

    def _band(self) -> Band:
        return Band("bottom_right")


@dataclass
class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularFromBottomRightMask):
    """The same, and of the keys up to the diagonal only the last _window_size."""

    _window_size: int

    def __post_init__(self) -> None:
        _check_window(self._window_size)

    def _band(self) -> Band:
        return Band("bottom_right", self._window_size - 1)


@dataclass
class LocalAttentionFromBottomRightMask(AttentionBias):
    """window_left keys before and window_right behind the diagonal, which ends at the last key."""

    window_left: int
    window_right: int

    def __post_init__(self) -> None:
        for name in ("window_left", "window_right"):
            if getattr(self, name) < 0:
                raise ArgumentError(f"{name} is {getattr(self, name)}: 0 or more is accepted")

    def _band(self) -> Band:
        return Band("none", self.window_left, self.window_right)


def _check_window(size: int) -> None:
    if size <= 0:
        raise ArgumentError(f"window_size is {size}: 1 or more is accepted")


def _device(device: Any) -> torch.device:
    """As in xformers, a GPU where there is one."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)


def _int32(numbers: Sequence[int], device: Any) -> torch.Tensor:
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
        return _SeqLenInfo(_int32(starts, _device(device)), max(lengths, default=0), min(lengths, default=0), starts)

    def intervals(self) -> list[tuple[int, int]]:
        return list(zip(self.seqstart_py, self.seqstart_py[1:], strict=False))

    def to(self, device: Any) -> Any:
        tensors = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return dataclasses.replace(self, **{n: t.to(device) for n, t in tensors.items() if isinstance(t, torch.Tensor)})

    def split(self, x: torch.Tensor, batch_sizes: Sequence[int] | None = None) -> list[torch.Tensor]:
        """x [1, total, ...] by blocks; with batch_sizes so many blocks of one length are one tensor each."""
        if x.shape[0] != 1 or x.shape[1] != self.seqstart_py[-1]:
            raise ArgumentError(f"tensor has shape {list(x.shape)}: [1, {self.seqstart_py[-1]}, ...] is accepted")
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
    def from_seqlens_padded(cls, seqlens: Sequence[int], padding: int, *, device: Any = None) -> _PaddedSeqLenInfo:
        lengths, device = list(seqlens), _device(device)
        if any(not 0 <= length <= padding for length in lengths):
            raise ArgumentError(f"kv_seqlen is {lengths}: 0 to the padding, {padding}, are accepted")
        starts = [n * padding for n in range(len(lengths) + 1)]
        longest, shortest = max(lengths, default=0), min(lengths, default=0)
        return cls(_int32(starts, device), longest, shortest, starts, _int32(lengths, device), lengths, padding)

    def intervals(self) -> list[tuple[int, int]]:
        return [(start, start + length) for start, length in zip(self.seqstart_py, self.seqlen_py, strict=False)]


@dataclass
class _GappySeqInfo(_SeqLenInfo):
    """Block n begins at seqstart[n] and has seqlen[n] rows. With pages seqlen[n] is where it ends, in pages of its own."""

    seqlen: torch.Tensor
    seqlen_py: Sequence[int]

    @classmethod
    def from_seqlens_gappy(cls, seqstarts: Sequence[int], seqlens: Sequence[int], paged: bool, *, device: Any) -> _GappySeqInfo:
        starts, lengths = list(seqstarts), list(seqlens)
        if len(starts) + paged != len(lengths) + 1:
            raise ArgumentError(f"kv_seqstarts has {len(starts)} numbers: {len(lengths) + 1 - paged} are accepted")
        longest, shortest = max(lengths, default=0), min(lengths, default=0)
        if paged:
            lengths = [start + length for start, length in zip(starts, lengths, strict=True)]
            starts.append(-1)
        return cls(_int32(starts, device), longest, shortest, starts, _int32(lengths, device), lengths)

    def intervals(self) -> list[tuple[int, int]]:
        return [(start, start + length) for start, length in zip(self.seqstart_py, self.seqlen_py, strict=False)]


def key_rows(bias: Any) -> list[torch.Tensor]:
    """The rows of k and v that each block of keys has, in order."""
    table, device = getattr(bias, "block_tables", None), bias.k_seqinfo.seqstart.device
    if table is None:
        return [torch.arange(start, end, device=device) for start, end in bias.k_seqinfo.intervals()]
    padded = hasattr(bias.k_seqinfo, "padding")
    starts = [0] * len(table) if padded else bias.k_seqinfo.seqstart_py[: len(table)]
    size, rows = bias.page_size, []
    for pages, start, end in zip(table.long(), starts, bias.k_seqinfo.seqlen_py, strict=True):
        row = torch.arange(start, end, device=pages.device)
        rows.append(pages[row // size] * size + row % size)
    return rows


@dataclass
class _Blocks(AttentionBias):
    q_seqinfo: _SeqLenInfo
    k_seqinfo: Any

    def to(self, device: Any) -> Any:
        moved = {name: getattr(self, name).to(device) for name in ("q_seqinfo", "k_seqinfo", "block_tables") if hasattr(self, name)}
        return dataclasses.replace(self, **moved)

    def materialize(self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: Any = "cpu") -> torch.Tensor:
        attended = torch.zeros(*shape[-2:], dtype=torch.bool, device=device)
        for (start, end), keys in zip(self.q_seqinfo.intervals(), key_rows(self), strict=True):
            attended[start:end, keys.to(device)] = _attended(end - start, len(keys), self._band(), device)
        return _added(attended, shape, dtype)

    def _band(self) -> Band:
        return Band()


@dataclass
class BlockDiagonalMask(_Blocks):
    """Blocks of keys one after another."""

    _batch_sizes: Sequence[int] | None = None

    @classmethod
    def from_seqlens(cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, *, device: Any = None) -> Any:
        """kv_seqlen: None is q_seqlen."""
        q = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        if kv_seqlen is None or list(kv_seqlen) == list(q_seqlen):
            return cls(q, q)
        if len(kv_seqlen) != len(q_seqlen):
            raise ArgumentError(f"kv_seqlen has {len(kv_seqlen)} numbers: {len(q_seqlen)}, as q_seqlen has, are accepted")
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
        lengths = [[x.shape[1] for x in tensors for _ in range(x.shape[0])] for tensors in (tensors_q, tensors_k)]
        bias = cls.from_seqlens(*lengths, device=tensors_q[0].device)
        bias._batch_sizes = [x.shape[0] for x in tensors_q]

        def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
            return torch.cat([x.flatten(0, 1) for x in tensors])[None]

        return bias, joined(tensors_q), joined(tensors_k), None if tensors_v is None else joined(tensors_v)

    def split_queries(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self.q_seqinfo.split(tensor, self._batch_sizes)

    def split_kv(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self.k_seqinfo.split(tensor, self._batch_sizes)

    def split(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of from_tensor_list, or results in their shapes."""
        if self.q_seqinfo is not self.k_seqinfo:
            raise ArgumentError("queries and keys have different lengths: split_queries and split_kv are accepted")
        return self.split_queries(tensor)

    def make_causal(self) -> BlockDiagonalCausalMask:
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_causal_from_bottomright(self) -> BlockDiagonalCausalFromBottomRightMask:
        return BlockDiagonalCausalFromBottomRightMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)

    def make_local_attention(self, window_size: int) -> BlockDiagonalCausalLocalAttentionMask:
        return BlockDiagonalCausalLocalAttentionMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes, window_size)

    def make_local_attention_from_bottomright(self, window_size: int) -> BlockDiagonalCausalLocalAttentionFromBottomRightMask:
        parts = (self.q_seqinfo, self.k_seqinfo, self._batch_sizes)
        return BlockDiagonalCausalLocalAttentionFromBottomRightMask(*parts, window_size)


@dataclass
class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Each block is causal, its first query on the diagonal with its first key."""

    def _band(self) -> Band:
        return Band("top_left")


@dataclass
class BlockDiagonalCausalFromBottomRightMask(BlockDiagonalMask):
    """Each block is causal, its last query on the diagonal with its last key. No block has fewer keys than queries."""

    def __post_init__(self) -> None:
        pairs = zip(self.q_seqinfo.intervals(), self.k_seqinfo.intervals(), strict=True)
        for n, ((q_start, q_end), (k_start, k_end)) in enumerate(pairs):
            if k_end - k_start < q_end - q_start:
                raise ArgumentError(
                    f"block {n} has {q_end - q_start} queries and {k_end - k_start} keys: as many or more are accepted"
                )

    def _band(self) -> Band:
        return Band("bottom_right")


@dataclass
class BlockDiagonalCausalLocalAttentionMask(BlockDiagonalCausalMask):
    _window_size: int = 0

    def __post_init__(self) -> None:
        _check_window(self._window_size)

    def _band(self) -> Band:
        return Band("top_left", self._window_size - 1)


@dataclass
class BlockDiagonalCausalLocalAttentionFromBottomRightMask(BlockDiagonalCausalFromBottomRightMask):
    _window_size: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_window(self._window_size)

    def _band(self) -> Band:
        return Band("bottom_right", self._window_size - 1)


@dataclass
class BlockDiagonalPaddedKeysMask(_Blocks):
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
        """kv_padding: rows of each block of keys, of which kv_seqlen are used. causal_diagonal is not used, as in xformers."""
        q = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        return cls(q, _PaddedSeqLenInfo.from_seqlens_padded(kv_seqlen, kv_padding, device=device))

    def make_paged(self, block_tables: torch.Tensor, page_size: int, paged_type: type) -> Any:
        keys = dataclasses.replace(self.k_seqinfo, padding=block_tables.shape[1] * page_size)
        return paged_type(self.q_seqinfo, keys, block_tables, page_size)

    def make_local_attention(self, window_left: int, window_right: int) -> BlockDiagonalLocalAttentionPaddedKeysMask:
        return BlockDiagonalLocalAttentionPaddedKeysMask(self.q_seqinfo, self.k_seqinfo, window_left, window_right)


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
        cls, q_seqlen: Sequence[int], kv_padding: int, kv_seqlen: Sequence[int], window_left: int, window_right: int
    ) -> Any:
        return BlockDiagonalPaddedKeysMask.from_seqlens(q_seqlen, kv_padding, kv_seqlen).make_local_attention(
            window_left, window_right
        )

    def _band(self) -> Band:
        return Band("none", self.window_left, self.window_right)


@dataclass
class BlockDiagonalCausalLocalAttentionPaddedKeysMask(BlockDiagonalPaddedKeysMask):
    _window_size: int

    @classmethod
    def from_seqlens_local(cls, q_seqlen: Sequence[int], kv_padding: int, kv_seqlen: Sequence[int], window_size: int) -> Any:
        plain = BlockDiagonalPaddedKeysMask.from_seqlens(q_seqlen, kv_padding, kv_seqlen)
        return cls(plain.q_seqinfo, plain.k_seqinfo, window_size)

    def _band(self) -> Band:
        return Band("bottom_right", self._window_size - 1)


@dataclass
class PagedBlockDiagonalPaddedKeysMask(_Blocks):
    """Keys in pages: k and v are [1, num_pages * page_size, heads, dim], block_tables [blocks, max_pages], int32."""

    block_tables: torch.Tensor
    page_size: int

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int], block_tables: torch.Tensor, page_size: int, *, device: Any = None
    ) -> Any:
        q = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        padding = block_tables.shape[1] * page_size
        return cls(q, _PaddedSeqLenInfo.from_seqlens_padded(kv_seqlen, padding, device=device), block_tables, page_size)


@dataclass
class PagedBlockDiagonalCausalWithOffsetPaddedKeysMask(PagedBlockDiagonalPaddedKeysMask):
    def _band(self) -> Band:
        return Band("bottom_right")


@dataclass
class BlockDiagonalGappyKeysMask(_Blocks):
    """Blocks of keys that begin anywhere."""

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqstarts: Sequence[int], kv_seqlen: Sequence[int], *, device: Any = None
    ) -> Any:
        """kv_seqstarts: where each block of keys begins, and how many rows k has in all."""
        device = _device(device)
        q = _SeqLenInfo.from_seqlens(q_seqlen, device=device)
        return cls(q, _GappySeqInfo.from_seqlens_gappy(kv_seqstarts, kv_seqlen, False, device=device))

    def make_paged(self, block_tables: torch.Tensor, page_size: int, notional_padding: int, paged_type: type) -> Any:
        """Block n's keys are in the rows from n * notional_padding on, which are pages of its own then."""
        if notional_padding % page_size:
            raise ArgumentError(f"notional_padding is {notional_padding}: multiples of page_size, {page_size}, are accepted")
        starts = [start - n * notional_padding for n, start in enumerate(self.k_seqinfo.seqstart_py[:-1])]
        device = block_tables.device
        keys = _GappySeqInfo.from_seqlens_gappy(starts, self.k_seqinfo.seqlen_py, True, device=device)
        return paged_type(self.q_seqinfo, keys, block_tables, page_size)


@dataclass
class BlockDiagonalCausalWithOffsetGappyKeysMask(BlockDiagonalGappyKeysMask):
    def _band(self) -> Band:
        return Band("bottom_right")


@dataclass
class PagedBlockDiagonalGappyKeysMask(_Blocks):
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


def band_of(bias: Any) -> Band | None:
    """Of a bias of this module, or of xformers' of the same name; None of others, which are materialized."""
    ours = globals().get(type(bias).__name__)
    known = isinstance(ours, type) and issubclass(ours, AttentionBias) and ours is not AttentionBias
    theirs = type(bias).__module__.split(".")[0] in ("xformers", "mslk")
    return ours._band(bias) if known and (theirs or type(bias) is ours) else None
