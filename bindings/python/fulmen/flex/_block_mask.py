"""BlockMask and what makes one, with the names, arguments and fields of
torch.nn.attention.flex_attention."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from fulmen._core import ArgumentError
from fulmen.flex._lists import Kind, ordered, transposed

Mod = Callable[..., Any]


def noop_mask(batch: Any, head: Any, token_q: Any, token_kv: Any) -> Any:
    """The mask_mod that attends every pair."""
    return True


def _sliced(*_: Any) -> Any:
    raise RuntimeError(
        "Cannot use mask_mod from a sliced BlockMask: set mask_mod of the slice to a function of "
        "its own positions"
    )


_TENSORS = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "q_num_blocks",
    "q_indices",
    "full_q_num_blocks",
    "full_q_indices",
)


class BlockMask:
    """Which blocks of queries and keys hold attended pairs, and the function for those that are
    attended in part.

    Fields (arrays of torch, or of NumPy where torch is not imported), all int32:
      kv_num_blocks [B, H, rows], kv_indices [B, H, rows, columns]: the blocks of keys that a block
        of queries attends in part, the first kv_num_blocks of each row.
      full_kv_num_blocks, full_kv_indices: those that it attends whole, or None.
      q_num_blocks, q_indices, full_q_num_blocks, full_q_indices: the same, transposed.
      BLOCK_SIZE: (queries, keys) of a block. mask_mod. seq_lengths: (queries, keys).
    B and H are 1 where batches or heads share the lists.
    """

    def __init__(
        self,
        seq_lengths: tuple[int, int],
        kv_num_blocks: Any,
        kv_indices: Any,
        full_kv_num_blocks: Any = None,
        full_kv_indices: Any = None,
        q_num_blocks: Any = None,
        q_indices: Any = None,
        full_q_num_blocks: Any = None,
        full_q_indices: Any = None,
        BLOCK_SIZE: tuple[int, int] = (128, 128),
        mask_mod: Mod = noop_mask,
    ) -> None:
        if len(kv_indices.shape) < 2:
            raise ArgumentError(
                f"kv_indices has {len(kv_indices.shape)} dims: BlockMask must have at least 2 "
                "dimensions"
            )
        for one, other in (
            ("full_kv_num_blocks", "full_kv_indices"),
            ("full_q_num_blocks", "full_q_indices"),
        ):
            if (locals()[one] is None) != (locals()[other] is None):
                raise ArgumentError(f"{one} and {other} are given together, or neither")
        self.seq_lengths = (int(seq_lengths[0]), int(seq_lengths[1]))
        self.kv_num_blocks, self.kv_indices = kv_num_blocks, kv_indices
        self.full_kv_num_blocks, self.full_kv_indices = full_kv_num_blocks, full_kv_indices
        self.q_num_blocks, self.q_indices = q_num_blocks, q_indices
        self.full_q_num_blocks, self.full_q_indices = full_q_num_blocks, full_q_indices
        self.BLOCK_SIZE, self.mask_mod = BLOCK_SIZE, mask_mod

    @classmethod
    def from_kv_blocks(
        cls,
        kv_num_blocks: Any,
        kv_indices: Any,
        full_kv_num_blocks: Any = None,
        full_kv_indices: Any = None,
        BLOCK_SIZE: int | tuple[int, int] = 128,
        mask_mod: Mod | None = None,
        seq_lengths: tuple[int, int] | None = None,
        compute_q_blocks: bool = True,
    ) -> BlockMask:
        """A mask of lists that the caller has: of the blocks kv_indices (mask_mod decides about
        each pair), and of the blocks full_kv_indices (all pairs are attended)."""
        size = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
        if seq_lengths is None:
            seq_lengths = (kv_indices.shape[-2] * size[0], kv_indices.shape[-1] * size[1])
        columns = -(-seq_lengths[1] // size[1])
        q_lists: list[Any] = [None] * 4
        if compute_q_blocks:
            q_lists[:2] = transposed(kv_num_blocks, kv_indices, columns)
            if full_kv_num_blocks is not None:
                q_lists[2:] = transposed(full_kv_num_blocks, full_kv_indices, columns)
        return cls(
            seq_lengths,
            kv_num_blocks,
            kv_indices,
            full_kv_num_blocks,
            full_kv_indices,
            *q_lists,
            BLOCK_SIZE=size,
            mask_mod=noop_mask if mask_mod is None else mask_mod,
        )

    def as_tuple(self, flatten: bool = True) -> tuple[Any, ...]:
        """The fields as torch's BlockMask gives them; flatten: lengths and sizes as two numbers
        each."""
        lengths = self.seq_lengths if flatten else (self.seq_lengths,)
        size = self.BLOCK_SIZE if flatten else (self.BLOCK_SIZE,)
        lists = tuple(getattr(self, name) for name in _TENSORS)
        return (*lengths, *lists, *size, self.mask_mod)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.kv_indices.shape[:-2], *self.seq_lengths)

    def numel(self) -> int:
        """The pairs of query and key."""
        return math.prod(self.shape)

    def sparsity(self) -> float:
        """The percentage of blocks that are not computed."""
        rows, columns = (-(-n // s) for n, s in zip(self.seq_lengths, self.BLOCK_SIZE, strict=True))
        total = math.prod(self.kv_num_blocks.shape[:-1]) * rows * columns
        computed = int(self.kv_num_blocks.sum())
        if self.full_kv_num_blocks is not None:
            computed += int(self.full_kv_num_blocks.sum())
        return 100 * (1 - computed / max(total, 1))

    def to_dense(self) -> Any:
        """int32 [B, H, rows, columns]: 1 where a block is computed."""
        kind = Kind(self.kv_indices)
        columns = self.kv_indices.shape[-1]
        dense = kind.dense(self.kv_num_blocks, self.kv_indices, columns)
        if self.full_kv_num_blocks is None:
            return dense
        return dense | kind.dense(self.full_kv_num_blocks, self.full_kv_indices, columns)

    def to_string(self, grid_size: int | tuple[int, int] = 20, limit: int = 4) -> str:
        """A picture of each batch and head: full, computed in part, empty squares of blocks."""
        dense = self.to_dense()
        rows, columns = dense.shape[-2:]
        most = (grid_size, grid_size) if isinstance(grid_size, int) else grid_size
        tall, wide = (
            1 if m == -1 else max(1, -(-n // m)) for m, n in zip(most, (rows, columns), strict=True)
        )
        pictures = []
        flat = dense.reshape((-1, rows, columns))
        for at in range(flat.shape[0]):
            if at == limit:
                pictures.append(f"... and {flat.shape[0] - limit} more: limit=")
                break
            lines = [
                "".join(
                    _shade(flat[at, r : r + tall, c : c + wide]) for c in range(0, columns, wide)
                )
                for r in range(0, rows, tall)
            ]
            pictures.append("\n".join(lines))
        return "\n\n".join(pictures)

    def __str__(self) -> str:
        return (
            f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%,\n{self.to_string()}\n)"
        )

    def __repr__(self) -> str:
        name = getattr(self.mask_mod, "__name__", repr(self.mask_mod))
        return (
            f"BlockMask(shape={self.shape}, BLOCK_SIZE={self.BLOCK_SIZE}, "
            f"sparsity={self.sparsity():.2f}%, mask_mod={name})"
        )

    def __getitem__(self, index: Any) -> BlockMask:
        """The mask of a batch, head and rows of blocks; its mask_mod is to be set by the caller."""
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > 3:
            raise IndexError("BlockMask indexing supports batch, head, and Q-block dimensions")
        sizes = self.kv_num_blocks.shape
        padded = (*index, *(slice(None),) * 3)[:3]
        index = tuple(
            slice(one % size, one % size + 1) if isinstance(one, int) else one
            for one, size in zip(padded, sizes, strict=True)
        )
        lists = [
            None if getattr(self, name) is None else getattr(self, name)[index]
            for name in _TENSORS[:4]
        ]
        rows, block = lists[0].shape[-1], self.BLOCK_SIZE[0]
        length = rows * block
        if isinstance(index[2], slice):
            picked = range(sizes[-1])[index[2]]
            if sizes[-1] - 1 in picked and self.seq_lengths[0] % block:
                length -= block - self.seq_lengths[0] % block
        return self.from_kv_blocks(
            *lists,
            BLOCK_SIZE=self.BLOCK_SIZE,
            mask_mod=_sliced,
            seq_lengths=(length, self.seq_lengths[1]),
            compute_q_blocks=self.q_indices is not None,
        )

    def _adjust(self, new_q_len: int, new_kv_len: int) -> BlockMask:
        """The upper left corner."""
        rows, columns = -(-new_q_len // self.BLOCK_SIZE[0]), -(-new_kv_len // self.BLOCK_SIZE[1])
        kind = Kind(self.kv_indices)
        lists: list[Any] = []
        for counts, indices in (
            (self.kv_num_blocks, self.kv_indices),
            (self.full_kv_num_blocks, self.full_kv_indices),
        ):
            if counts is None:
                lists += [None, None]
                continue
            dense = kind.dense(counts, indices, indices.shape[-1])
            lists += ordered(dense[..., :rows, :columns])
        return self.from_kv_blocks(
            *lists,
            BLOCK_SIZE=self.BLOCK_SIZE,
            mask_mod=self.mask_mod,
            seq_lengths=(new_q_len, new_kv_len),
            compute_q_blocks=self.q_indices is not None,
        )

    def to(self, device: Any) -> BlockMask:
        """The mask with its lists on that device of torch."""
        import torch

        lists = {
            name: None if one is None else torch.as_tensor(one).to(device)
            for name in _TENSORS
            for one in [getattr(self, name)]
        }
        return BlockMask(
            self.seq_lengths, **lists, BLOCK_SIZE=self.BLOCK_SIZE, mask_mod=self.mask_mod
        )


def _shade(section: Any) -> str:
    share = float(section.sum()) / math.prod(section.shape)
    return "██" if share == 1 else "  " if share == 0 else "░░"


def is_block_mask(value: Any) -> bool:
    """Ours or torch's."""
    if isinstance(value, BlockMask):
        return True
    module = sys.modules.get("torch.nn.attention.flex_attention")
    return module is not None and isinstance(value, module.BlockMask)
