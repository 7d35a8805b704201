"""Whether a mask's lists of blocks say nothing that its mask_mod, a band, does not say.

Then they are left out, and the band becomes the built-in causal mask or window. Lists of a GPU are
read for that, which waits for it: once for the same tensors with the same contents.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from fulmen.flex._band import Band, band_of
from fulmen.flex._list_state import ListState, are_plain, own_lists
from fulmen.flex._lists import Kind
from fulmen.flex._trace import Traced

# Blocks that are compared at one time.
_MOST_BLOCKS = 1 << 24
_MOST_KEPT = 512


class _Kept(NamedTuple):
    lists: ListState
    agree: bool


# Answers by the addresses of lists, what the mask_mod is, and sizes.
_kept: dict[Any, _Kept] = {}


def may_read(torch: Any) -> bool:
    """Whether elements can be looked at now, and count later: a graph of CUDA is replayed with what
    the lists hold then."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    if _get_current_dispatch_mode() is not None or torch._C._get_tracing_state() is not None:
        return False
    return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def are_implied(
    block_mask: Any, lists: tuple[Any, ...], both: Traced, sizes: tuple[int, int, int, int]
) -> bool:
    """Whether mask_mod alone attends the same pairs. lists: as lists_of() gives them."""
    if "[" in both.mask_mod:  # what reads tensors is no band, whatever they hold
        return False
    own, torch = own_lists(block_mask), sys.modules.get("torch")
    if torch is None or both.mask_mod == "true" or not are_plain(own, torch):
        return False
    if (own[2] is None) != (own[3] is None) or not may_read(torch):
        return False
    queries, keys = sizes[2:]
    block = tuple(int(one) for one in block_mask.BLOCK_SIZE)
    key = (*map(id, own), both.mask_mod, queries, keys, block)
    kept = _kept.get(key)
    if kept is not None and kept.lists.is_of(own):
        return kept.agree
    band = band_of(both.graphs["mask_mod"], queries, keys)
    agree = (
        band is not None
        and _has_room(band, lists, (queries, keys), block)
        and _agree(band, lists, (queries, keys), block)
    )
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()

    def forget(_: Any) -> None:
        _kept.pop(key, None)

    _kept[key] = _Kept(ListState(own, forget), agree)
    return agree


def _has_room(
    band: Band, lists: tuple[Any, ...], lengths: tuple[int, int], block: tuple[int, int]
) -> bool:
    """Whether the lists are long enough for the band's blocks, as far as three rows tell. Lists of
    a few blocks of each row, made for every call, are told by that, without reading them."""
    (queries, keys), (block_q, block_k) = lengths, block
    room = sum(one.shape[3] for one in lists[1::2] if one is not None)
    last = -(-queries // block_q) - 1
    for row in {0, last // 2, last}:
        first_q, last_q = row * block_q, min(queries, (row + 1) * block_q) - 1
        first_k, last_k = max(0, first_q + band.least), min(keys - 1, last_q + band.most)
        if first_k <= last_k and last_k // block_k - first_k // block_k + 1 > room:
            return False
    return True


def _agree(
    band: Band, lists: tuple[Any, ...], lengths: tuple[int, int], block: tuple[int, int]
) -> bool:
    """Whether every block that holds a pair of the band is listed, and none is listed as full that
    holds another. Reads the lists."""
    counts, indices, full_counts, full = lists
    if counts.shape != indices.shape[:3] or counts.device != indices.device:
        return False
    if full is not None and (
        full_counts.shape != full.shape[:3] or {full.device, full_counts.device} != {counts.device}
    ):
        return False
    torch = sys.modules["torch"]
    kind, where = Kind(indices), {"device": indices.device, "dtype": torch.int64}
    (queries, keys), (block_q, block_k) = lengths, block
    rows, columns = -(-queries // block_q), -(-keys // block_k)
    first_k = torch.arange(columns, **where) * block_k
    last_k = (first_k + block_k).clamp(max=keys) - 1
    heads = max(one.shape[0] * one.shape[1] for one in lists if one is not None)
    step = max(1, _MOST_BLOCKS // (heads * columns))
    right = torch.ones((), dtype=torch.bool, device=indices.device)
    for start in range(0, rows, step):
        part = slice(start, min(rows, start + step))
        first_q = torch.arange(part.start, part.stop, **where)[:, None] * block_q
        last_q = (first_q + block_q).clamp(max=queries) - 1
        # A block's distances are all from `low` to `high`.
        low, high = first_k - last_q, last_k - first_q
        listed = kind.dense(counts[:, :, part], indices[:, :, part], columns) > 0
        if full is not None:
            whole = kind.dense(full_counts[:, :, part], full[:, :, part], columns) > 0
            right &= ~(whole & ((low < band.least) | (high > band.most))).any()
            listed = listed | whole
        right &= ~(~listed & (high >= band.least) & (low <= band.most)).any()
    return bool(right)
