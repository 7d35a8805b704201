"""The biases of xformers.ops.fmha.attn_bias: which keys each query attends, without a matrix that
says it.

A block bias cuts queries and keys, [1, total, heads, dim], into as many blocks; a query attends
keys of its own block only. Keys lie one block after another, padded to one length, anywhere
("gappy"), or in pages. Causal masks of blocks with an offset, and those "from the bottom right",
are aligned with the last key of a block, others with the first.
"""

from __future__ import annotations

from typing import Any

from fulmen.xformers.fmha._bands import (
    AttentionBias,
    Band,
    LocalAttentionFromBottomRightMask,
    LowerTriangularFromBottomRightLocalAttentionMask,
    LowerTriangularFromBottomRightMask,
    LowerTriangularMask,
    LowerTriangularMaskWithTensorBias,
)
from fulmen.xformers.fmha._blocks import (
    BlockDiagonalCausalFromBottomRightMask,
    BlockDiagonalCausalLocalAttentionFromBottomRightMask,
    BlockDiagonalCausalLocalAttentionMask,
    BlockDiagonalCausalMask,
    BlockDiagonalMask,
)
from fulmen.xformers.fmha._cached_blocks import (
    BlockDiagonalCausalLocalAttentionPaddedKeysMask,
    BlockDiagonalCausalWithOffsetGappyKeysMask,
    BlockDiagonalCausalWithOffsetPaddedKeysMask,
    BlockDiagonalGappyKeysMask,
    BlockDiagonalLocalAttentionPaddedKeysMask,
    BlockDiagonalPaddedKeysMask,
    PagedBlockDiagonalCausalWithOffsetGappyKeysMask,
    PagedBlockDiagonalCausalWithOffsetPaddedKeysMask,
    PagedBlockDiagonalGappyKeysMask,
    PagedBlockDiagonalPaddedKeysMask,
)

# Engines name these, too.
from fulmen.xformers.fmha._sequences import _GappySeqInfo, _PaddedSeqLenInfo, _SeqLenInfo  # noqa: F401

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


def band_of(bias: Any) -> Band | None:
    """The class of this module for a bias of it, or of xformers' of the same name; None for others,
    which are materialized.
    """
    ours = globals().get(type(bias).__name__)
    known = isinstance(ours, type) and issubclass(ours, AttentionBias) and ours is not AttentionBias
    theirs = type(bias).__module__.split(".")[0] in ("xformers", "mslk")
    return ours._band(bias) if known and (theirs or type(bias) is ours) else None
