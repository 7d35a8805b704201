"""Which blocks of queries and keys a mask_mod attends: none of a block's pairs, all, or some."""

from __future__ import annotations

from typing import Any

from fulmen.flex._evaluate import Evaluator
from fulmen.flex._graph import Node

# Pairs whose mask is in memory at one time.
MOST_PAIRS = 1 << 23


def _steps(total: int, most: int) -> list[tuple[int, int]]:
    most = max(1, most)
    return [(start, min(total, start + most)) for start in range(0, total, most)]


def counted(
    mask: Node,
    tensors: list[Any],
    sizes: tuple[int, int, int, int],
    blocks: tuple[int, int],
    arrays: Any,
    device: Any = None,
) -> Any:
    """The attended pairs of each block, int32 [batch, heads, blocks of queries, blocks of keys].

    sizes: batch, heads, queries, keys. Never more than MOST_PAIRS pairs are computed at once.
    """
    batch, heads, queries, keys = sizes
    block_q, block_k = blocks
    evaluate = Evaluator(arrays, tensors, device)
    rows, columns = -(-queries // block_q), -(-keys // block_k)
    where = {"device": device} if evaluate.is_torch else {}
    counts = arrays.zeros((batch, heads, rows, columns), dtype=arrays.int32, **where)
    wide = max(1, min(columns, MOST_PAIRS // (block_q * block_k)))
    tall = max(1, min(rows, MOST_PAIRS // (block_q * block_k * wide)))
    per_head = tall * block_q * wide * block_k
    at_once = max(1, MOST_PAIRS // per_head)

    def numbers(start: int, stop: int, dim: int) -> Any:
        line = arrays.arange(start, stop, dtype=arrays.int32, **where)
        return line.reshape([-1 if at == dim else 1 for at in range(4)])

    for b0, b1 in _steps(batch, max(1, at_once // max(heads, 1))):
        for h0, h1 in _steps(heads, at_once):
            for r0, r1 in _steps(rows, tall):
                for c0, c1 in _steps(columns, wide):
                    q = numbers(r0 * block_q, r1 * block_q, 2)
                    k = numbers(c0 * block_k, c1 * block_k, 3)
                    given = {"b": numbers(b0, b1, 0), "h": numbers(h0, h1, 1), "q": q, "k": k}
                    kept = evaluate(mask, given) & (q < queries) & (k < keys)
                    shape = (b1 - b0, h1 - h0, r1 - r0, block_q, c1 - c0, block_k)
                    full = (*shape[:2], shape[2] * block_q, shape[4] * block_k)
                    split = arrays.broadcast_to(kept, full).reshape(shape)
                    counts[b0:b1, h0:h1, r0:r1, c0:c1] = split.sum((3, 5))
    return counts
