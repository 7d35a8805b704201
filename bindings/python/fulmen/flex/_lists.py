"""Lists of blocks, as BlockMask has them, of and as dense arrays; by torch or NumPy."""

from __future__ import annotations

import sys
from typing import Any

from fulmen._numbers import is_of_torch


class Kind:
    """The functions of the library that an array is of."""

    def __init__(self, array: Any) -> None:
        self.is_torch = is_of_torch(array)
        if self.is_torch:
            self.arrays = sys.modules["torch"]
        else:
            import numpy

            self.arrays = numpy

    def int32(self, array: Any) -> Any:
        return array.to(self.arrays.int32) if self.is_torch else array.astype("int32")

    def dense(self, counts: Any, indices: Any, columns: int) -> Any:
        """int32 [..., rows, columns]: 1 where a row's list has the column."""
        arrays = self.arrays
        where = {"device": indices.device} if self.is_torch else {}
        place = arrays.arange(indices.shape[-1], **where)
        listed = place < counts[..., None]
        # Those that are not listed, and those out of range, are put into a column that is left out.
        inside = listed & (indices >= 0) & (indices < columns)
        shape = (*indices.shape[:-1], columns + 1)
        if self.is_torch:
            at = arrays.where(inside, indices.long(), columns)
            dense = arrays.zeros(shape, dtype=arrays.int32, **where)
            dense.scatter_(-1, at, 1)
        else:
            at = arrays.where(inside, indices, columns)
            dense = arrays.zeros(shape, dtype=arrays.int32)
            arrays.put_along_axis(dense, at, 1, -1)
        return dense[..., :columns]


def with_plain_rows(one: Any) -> Any:
    """A list whose last dim is contiguous, as kernels read it: torch's argsort keeps the strides of
    what it orders."""
    return one.contiguous() if is_of_torch(one) and one.stride(-1) != 1 else one


def ordered(dense: Any) -> tuple[Any, Any]:
    """The number of columns of each row, and their places, in order, before the others'."""
    kind = Kind(dense)
    dense = kind.int32(dense)
    if kind.is_torch:
        indices = kind.arrays.argsort(dense.contiguous(), dim=-1, descending=True, stable=True)
        return kind.int32(dense.sum(-1)), kind.int32(indices)
    indices = kind.arrays.argsort(-dense, axis=-1, kind="stable")
    return kind.int32(dense.sum(-1)), kind.int32(indices)


def transposed(counts: Any, indices: Any, columns: int) -> tuple[Any, Any]:
    dense = Kind(indices).dense(counts, indices, columns)
    return ordered(dense.swapaxes(-2, -1))
