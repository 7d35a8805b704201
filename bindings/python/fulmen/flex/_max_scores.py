"""The largest score of each row, by plain operations in parts of bounded memory."""

from __future__ import annotations

import math
from typing import Any

from fulmen.flex._evaluate import Evaluator
from fulmen.flex._lists import Kind
from fulmen.flex._problem import Problem
from fulmen.flex._trace import Traced

# Scores that are in memory at one time.
_MOST_SCORES = 1 << 23


def _kept(problem: Problem, rows: Any, columns: Any) -> tuple[Any, Any] | None:
    """Which of these pairs blocks list in part, and as a whole."""
    if not problem.lists:
        return None
    counts, indices, full_counts, full = problem.lists
    kind, block = Kind(indices), problem.block
    some = kind.dense(counts, indices, -(-len(columns) // block[1]))
    whole = None if full is None else kind.dense(full_counts, full, some.shape[-1])
    at = (Ellipsis, (rows // block[0])[:, None], (columns // block[1])[None, :])
    return some[at] > 0, None if whole is None else whole[at] > 0


def max_scores(
    query: Any, key: Any, both: Traced, problem: Problem, scale: Any, arrays: Any
) -> Any:
    """float32 [batch, heads, queries]: -inf where a row attends nothing."""
    if arrays.__name__ != "torch":
        return _computed(query, key, both, problem, scale, arrays)
    # Products of float32 stay that, where torch.autocast would round them.
    with arrays.autocast(query.device.type, enabled=False):
        return _computed(query, key, both, problem, scale, arrays)


def _computed(query: Any, key: Any, both: Traced, problem: Problem, scale: Any, arrays: Any) -> Any:
    is_torch = arrays.__name__ == "torch"
    batch, heads, queries, dim = query.shape
    keys, group = key.shape[2], heads // max(key.shape[1], 1)
    where = {"device": query.device} if is_torch else {}
    evaluate = Evaluator(arrays, list(problem.tensors), query.device if is_torch else None)

    def line(start: int, stop: int, at: int) -> Any:
        found = arrays.arange(start, stop, dtype=arrays.int32, **where)
        return found.reshape([-1 if n == at else 1 for n in range(4)])

    def single(one: Any) -> Any:
        return one.float() if is_torch else one.astype("float32")

    repeat = arrays.repeat_interleave if is_torch else arrays.repeat
    keys_t = single(repeat(key, group, 1) if group != 1 else key).swapaxes(2, 3)
    columns = line(0, keys, 3)
    step = max(1, _MOST_SCORES // max(1, batch * heads * keys))
    lowest = evaluate.array(-math.inf, "float")
    parts = []
    for start in range(0, queries, step):
        stop = min(queries, start + step)
        scores = (single(query[:, :, start:stop]) @ keys_t) * (
            dim**-0.5 if scale is None else scale
        )
        rows = line(start, stop, 2)
        given = {
            "score": scores,
            "b": line(0, batch, 0),
            "h": line(0, heads, 1),
            "q": rows,
            "k": columns,
        }
        if "score_mod" in both.graphs:
            scores = evaluate(both.graphs["score_mod"], given)
        kept = None
        if "mask_mod" in both.graphs:
            kept = evaluate(both.graphs["mask_mod"], given)
        blocks = _kept(problem, rows.reshape(-1), columns.reshape(-1))
        if blocks is not None:
            some, whole = blocks
            kept = some if kept is None else kept & some
            kept = kept if whole is None else kept | whole
        if kept is not None:
            scores = arrays.where(kept, scores, lowest)
        full = arrays.broadcast_to(scores, (batch, heads, stop - start, keys))
        if keys == 0:
            parts.append(full.sum(-1) + lowest)
        else:
            parts.append(full.amax(-1) if is_torch else full.max(-1))
    if not parts:
        return arrays.zeros((batch, heads, 0), dtype=arrays.float32, **where)
    return arrays.cat(parts, 2) if is_torch else arrays.concatenate(parts, 2)
