"""Which blocks of queries and keys a mask_mod attends: none of a block's pairs, all, or some."""

from __future__ import annotations

from typing import Any

from fulmen.flex._evaluate import Evaluator
from fulmen.flex._graph import Node

# Pairs whose mask is in memory at one time.
MOST_PAIRS = 1 << 22

Sizes = tuple[int, int, int, int]


def _by_intervals(mask: Node, tensors: list[Any], sizes: Sizes, blocks: tuple[int, int]) -> Any:
    """int8 [batch, heads, rows, columns] of blocks: 0 empty, 2 full, 1 not known; None where NumPy
    is not installed."""
    try:
        import numpy as np
    except ModuleNotFoundError:
        return None
    from fulmen.flex._intervals import Interval, Intervals

    batch, heads, queries, keys = sizes
    rows, columns = -(-queries // blocks[0]), -(-keys // blocks[1])

    def line(count: int, at: int, step: int = 1, end: int = 0) -> Interval:
        low = np.arange(count, dtype=np.int64) * step
        shape = [-1 if dim == at else 1 for dim in range(4)]
        high = np.minimum(low + step, end) - 1 if end else low
        return Interval(low.reshape(shape), high.reshape(shape))

    given = {
        "b": line(batch, 0),
        "h": line(heads, 1),
        "q": line(rows, 2, blocks[0], queries),
        "k": line(columns, 3, blocks[1], keys),
    }
    found = Intervals(tensors)(mask, given)
    return np.broadcast_to(found.low + found.high, (batch, heads, rows, columns)).astype(np.int8)


def counted(
    mask: Node,
    tensors: list[Any],
    sizes: Sizes,
    blocks: tuple[int, int],
    arrays: Any,
    device: Any = None,
) -> Any:
    """The attended pairs of each block, int32 [batch, heads, blocks of queries, blocks of keys].

    sizes: batch, heads, queries, keys. Intervals tell most blocks; of the others no more than
    MOST_PAIRS pairs, or those of one block, are computed at once.
    """
    batch, heads, queries, keys = sizes
    block_q, block_k = blocks
    shape = (batch, heads, -(-queries // block_q), -(-keys // block_k))
    evaluate = Evaluator(arrays, tensors, device)
    where = {"device": device} if evaluate.is_torch else {}

    def line(count: int) -> Any:
        return arrays.arange(count, dtype=arrays.int32, **where)

    def pairs_of_block(length: int, block: int) -> Any:
        return arrays.clip(length - line(-(-length // block)) * block, 0, block)

    whole = pairs_of_block(queries, block_q)[:, None] * pairs_of_block(keys, block_k)[None, :]
    known = _by_intervals(mask, tensors, sizes, blocks) if 0 not in shape else None
    if known is None:
        counts = arrays.zeros(shape, dtype=arrays.int32, **where)
        unknown = arrays.ones(shape, dtype=evaluate.dtype("bool"), **where)
    else:
        known = arrays.from_numpy(known).to(device) if evaluate.is_torch else known
        counts = evaluate.to(arrays.where(known == 2, whole, arrays.zeros_like(whole)), "int")
        unknown = known == 1
    places = arrays.nonzero(unknown, **({"as_tuple": True} if evaluate.is_torch else {}))
    step = max(1, MOST_PAIRS // (block_q * block_k))
    for start in range(0, len(places[0]), step):
        part = tuple(one[start : start + step] for one in places)
        b, h, row, column = (evaluate.to(one, "int").reshape((-1, 1, 1)) for one in part)
        q = row * block_q + line(block_q)[None, :, None]
        k = column * block_k + line(block_k)[None, None, :]
        kept = evaluate(mask, {"b": b, "h": h, "q": q, "k": k}) & (q < queries) & (k < keys)
        full = arrays.broadcast_to(kept, (len(part[0]), block_q, block_k))
        counts[part] = evaluate.to(full.reshape((len(part[0]), -1)).sum(1), "int")
    return counts
