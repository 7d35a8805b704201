"""Problems of torch's calls with the same functions and the same block mask, found by identity.

Reading functions and checking lists anew takes longer than the rest of a call on a GPU. A call
whose functions refer to the same objects, and whose lists have the same contents as far as torch
knows, has the same problem, with the tensors that its functions refer to."""

from __future__ import annotations

import sys
import weakref
from typing import Any, NamedTuple

from fulmen.flex._band_lists import may_read
from fulmen.flex._list_state import ListState, are_plain, own_lists
from fulmen.flex._problem import Problem
from fulmen.flex._trace import Traced
from fulmen.flex._watch import Watch, watched

_MOST_KEPT = 512


class _Recent(NamedTuple):
    watch: Watch
    lists: ListState  # the block mask's own
    shape: tuple[Any, ...]  # of the block mask
    problem: Problem  # its lists are the block mask's own memory; without tensors
    both: Traced  # without tensors
    numbers: tuple[int, ...]  # the watch's tensors by the problem's names
    block_mask: weakref.ref[Any] | None


_kept: dict[Any, _Recent] = {}


def _key(score_mod: Any, block_mask: Any, like: Any, sizes: tuple[int, int, int, int]) -> Any:
    mask_mod = getattr(block_mask, "mask_mod", None)
    return id(score_mod), id(mask_mod), id(block_mask), sizes, like.device


def _shape(block_mask: Any) -> tuple[Any, ...]:
    if block_mask is None:
        return ()
    return tuple(block_mask.BLOCK_SIZE), tuple(block_mask.seq_lengths)


def find(
    score_mod: Any, block_mask: Any, like: Any, sizes: tuple[int, int, int, int]
) -> tuple[Problem, Traced] | None:
    """What remember() was given for the same call; None where there is none. like: the queries, a
    tensor of torch."""
    torch = sys.modules["torch"]
    if not _kept or type(like) is not torch.Tensor:
        return None
    recent = _kept.get(_key(score_mod, block_mask, like, sizes))
    tensors = None if recent is None else recent.watch.tensors()
    if tensors is None:
        return None
    if recent.shape != _shape(block_mask) or not recent.lists.is_of(own_lists(block_mask)):
        return None
    # A captured graph is replayed with what the lists hold then, which may be more.
    if recent.problem.left_out and not may_read(torch):
        return None
    if not recent.numbers:
        return recent.problem, recent.both
    own_tensors = tuple([tensors[number] for number in recent.numbers])
    named = dict(zip(recent.problem.names, own_tensors, strict=True))
    return recent.problem._replace(tensors=own_tensors), recent.both._replace(tensors=named)


def watch_of(score_mod: Any, block_mask: Any, like: Any) -> Watch | None:
    """To be made before the functions are read: what changes while they are is seen then."""
    if type(like) is not sys.modules["torch"].Tensor:
        return None
    return watched(score_mod, getattr(block_mask, "mask_mod", None))


def _are_own(lists: tuple[Any, ...], own: tuple[Any, ...]) -> bool:
    """Whether the kernels read the block mask's own memory, not a copy in another dtype."""
    pairs = zip(lists, own, strict=True)
    return all(one is None or one.data_ptr() == there.data_ptr() for one, there in pairs)


def remember(
    score_mod: Any,
    block_mask: Any,
    like: Any,
    sizes: tuple[int, int, int, int],
    found: tuple[Problem, Traced],
    watch: Watch | None,
) -> None:
    """Keeps a call's problem, where a change of what it was made of would be seen."""
    problem, both = found
    torch, own = sys.modules["torch"], own_lists(block_mask)
    tensors = None if watch is None else watch.tensors()
    if tensors is None or not both.is_pure or not problem.read_by_kernel:
        return
    if not are_plain(own, torch):
        return
    if block_mask is not None and not may_read(torch):
        return
    if problem.lists and not _are_own(problem.lists, own):
        return
    places = {id(one): number for number, one in enumerate(tensors)}
    if not all(id(one) in places for one in problem.tensors):
        return
    key = _key(score_mod, block_mask, like, sizes)

    def forget(*_: Any) -> None:
        _kept.pop(key, None)

    watch.forget = forget
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    _kept[key] = _Recent(
        watch,
        ListState(own),
        _shape(block_mask),
        problem._replace(tensors=()),
        both._replace(tensors={}),
        tuple(places[id(one)] for one in problem.tensors),
        None if block_mask is None else weakref.ref(block_mask, forget),
    )
