"""A call's functions, the tensors that they read and lists of blocks, as kernels take them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from fulmen._core import ArgumentError
from fulmen.flex._band_lists import are_implied
from fulmen.flex._block_mask import is_block_mask
from fulmen.flex._leaves import key_and_tensors
from fulmen.flex._list_state import LISTS
from fulmen.flex._lists import Kind, with_plain_rows
from fulmen.flex._trace import Traced, read

# Sizes of blocks whose lists kernels read; others become a table that mask_mod reads.
_SIZES = range(16, 257, 16)
_TABLE = "blocks"


class Problem(NamedTuple):
    score_mod: str
    mask_mod: str
    names: tuple[str, ...]  # of the tensors, in the texts
    tensors: tuple[Any, ...]
    lists: tuple[Any, ...]  # those of LISTS, or none
    block: tuple[int, int]  # queries and keys of a block; (0, 0) without lists
    # Whether kernels read the lists; else the last tensor is their table, which mask_mod reads.
    read_by_kernel: bool
    # Whether there are lists that say nothing more than mask_mod, and are left out.
    left_out: bool = False


# Traces by what tells functions apart. The tensors in it are those of the first call, and are not
# kept: a number of the function's tensors stands for each. Last is what keys have the address of.
_kept: dict[Any, tuple[Traced, tuple[int, ...], list[Any]]] = {}
_MOST_KEPT = 512
_keeping = threading.Lock()


def traced(
    score_mod: Callable[..., Any] | None, mask_mod: Callable[..., Any] | None, like: Any
) -> Traced:
    """Both functions, traced now or before."""
    found = key_and_tensors(score_mod, mask_mod)
    key = None if found is None else (found[0], type(like), str(getattr(like, "device", "")))
    known = None if key is None else _kept.get(key)
    if known is not None:
        kept, numbers, _ = known
        tensors = dict(zip(kept.tensors, (found[1][n] for n in numbers), strict=True))
        return kept._replace(tensors=tensors)
    result = read(score_mod, mask_mod, like)
    if key is not None and result.is_pure:
        places = {id(one): n for n, one in enumerate(found[1])}
        numbers = tuple(places.get(id(one), -1) for one in result.tensors.values())
        if -1 not in numbers:
            without = result._replace(tensors=dict.fromkeys(result.tensors))
            with _keeping:
                if len(_kept) >= _MOST_KEPT:
                    _kept.pop(next(iter(_kept)))
                _kept[key] = (without, numbers, found[2])
    return result


def _in_four_dims(array: Any, rank: int) -> Any:
    """A list with a batch and heads."""
    if len(array.shape) == rank:
        return array
    return array.reshape((*(1,) * (rank - len(array.shape)), *array.shape))


def lists_of(block_mask: Any, sizes: tuple[int, int, int, int]) -> tuple[Any, ...]:
    """A mask's lists, checked. sizes: batch, heads, queries, keys."""
    batch, heads, queries, keys = sizes
    block_q, block_k = block_mask.BLOCK_SIZE
    lengths = tuple(block_mask.seq_lengths)
    whole = block_q >= queries and block_k >= keys and min(block_q, block_k) >= 1 << 30
    if not whole and lengths != (queries, keys):
        larger = "smaller" if lengths[0] < queries or lengths[1] < keys else "larger"
        raise ArgumentError(
            f"block_mask was created for a {larger} length than you're using it for: it is for "
            f"{lengths[0]} queries and {lengths[1]} keys, there are {queries} and {keys}"
        )
    found = []
    for name in LISTS:
        one = getattr(block_mask, name)
        if one is not None:
            rank = 4 if name.endswith("indices") else 3
            one = with_plain_rows(_in_four_dims(one, rank))
            shape = one.shape
            if shape[0] not in (1, batch) or shape[1] not in (1, heads):
                raise ArgumentError(
                    f"block_mask.{name} has shape {list(one.shape)}: 1 or {batch} batches and 1 "
                    f"or {heads} heads are accepted"
                )
            rows = -(-queries // block_q)
            if shape[2] != rows:
                raise ArgumentError(
                    f"block_mask.{name} has {one.shape[2]} rows: {rows} are needed for {queries} "
                    f"queries in blocks of {block_q}"
                )
        found.append(one)
    return tuple(found)


def _table(lists: tuple[Any, ...], columns: int) -> Any:
    """uint8 [batch, heads, rows, columns]: 1 for blocks that are attended in part, 2 for whole."""
    kind = Kind(lists[1])
    table = kind.dense(lists[0], lists[1], columns)
    if lists[2] is not None:
        whole = kind.dense(lists[2], lists[3], columns)
        table, whole = _broadcast(kind, table, whole)
        table = kind.arrays.where(whole > 0, kind.arrays.zeros_like(whole) + 2, table)
    return table.to(kind.arrays.uint8) if kind.is_torch else table.astype("uint8")


def _broadcast(kind: Kind, a: Any, b: Any) -> tuple[Any, Any]:
    made = kind.arrays.broadcast_tensors if kind.is_torch else kind.arrays.broadcast_arrays
    return tuple(made(a, b))


def _with_table(mask_mod: str, shape: tuple[int, ...], block: tuple[int, int]) -> str:
    """mask_mod, of the pairs in blocks that a table lists."""
    *statements, last = (mask_mod or "true").split("\n")
    place = ", ".join(
        [
            "b" if shape[0] > 1 else "0",
            "h" if shape[1] > 1 else "0",
            f"q // {block[0]}",
            f"k // {block[1]}",
        ]
    )
    listed = f"listed = {_TABLE}[{place}];"
    return "\n".join([*statements, listed, f"((listed == 2) | ((listed == 1) & {last}))"])


def problem(
    score_mod: Callable[..., Any] | None,
    block_mask: Any,
    like: Any,
    sizes: tuple[int, int, int, int],
) -> tuple[Problem, Traced]:
    """What kernels compute, and the functions' graphs. like: the queries."""
    if block_mask is not None and not is_block_mask(block_mask):
        raise TypeError(
            f"block_mask is of type {type(block_mask).__name__}: a BlockMask of fulmen.flex or of "
            "torch is accepted"
        )
    mask_mod = None if block_mask is None else block_mask.mask_mod
    both = traced(score_mod, mask_mod, like)
    if block_mask is None:
        return with_lists(both, (), (), sizes)
    lists = lists_of(block_mask, sizes)
    if are_implied(block_mask, lists, both, sizes):
        made, both = with_lists(both, (), (), sizes)
        return made._replace(left_out=True), both
    return with_lists(both, lists, block_mask.BLOCK_SIZE, sizes)


def with_lists(
    both: Traced, lists: tuple[Any, ...], block: Any, sizes: tuple[int, int, int, int]
) -> tuple[Problem, Traced]:
    mask_mod = "" if both.mask_mod == "true" else both.mask_mod
    score_mod = "" if both.score_mod == "score" else both.score_mod
    names, tensors = tuple(both.tensors), tuple(both.tensors.values())
    if not lists:
        return Problem(score_mod, mask_mod, names, tensors, (), (0, 0), True), both
    block_q, block_k = (int(one) for one in block)
    columns = -(-sizes[3] // block_k)
    if block_q in _SIZES and block_k in _SIZES and lists[1].shape[3] == columns:
        return Problem(score_mod, mask_mod, names, tensors, lists, (block_q, block_k), True), both
    table = _table(lists, columns)
    mask_mod = _with_table(mask_mod, tuple(table.shape), (block_q, block_k))
    names, tensors = (*names, _TABLE), (*tensors, table)
    return Problem(score_mod, mask_mod, names, tensors, lists, (block_q, block_k), False), both
