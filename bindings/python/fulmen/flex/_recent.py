"""Problems of torch's calls with the same functions and the same block mask, found by identity.

Reading functions and checking lists anew takes longer than the rest of a call on a GPU. A call
whose functions refer to the same objects, and whose lists have the same contents as far as torch
knows, has the same problem, with the tensors that its functions refer to."""

from __future__ import annotations

import sys
import weakref
from typing import Any, NamedTuple

from fulmen.flex._band_lists import LISTS, contents_of, is_plain, may_read
from fulmen.flex._problem import Problem
from fulmen.flex._trace import Traced
from fulmen.flex._watch import Watch, watched

_MOST_KEPT = 512


class _Recent(NamedTuple):
    watch: Watch
    lists: tuple[weakref.ref[Any] | None, ...]  # the block mask's own
    state: tuple[Any, ...]
    problem: Problem  # its lists live as long as the block mask; without tensors
    both: Traced  # without tensors
    tensors: tuple[weakref.ref[Any], ...]  # by the problem's names
    block_mask: weakref.ref[Any] | None


_kept: dict[Any, _Recent] = {}


def _key(score_mod: Any, block_mask: Any, like: Any, sizes: tuple[int, int, int, int]) -> Any:
    mask_mod = getattr(block_mask, "mask_mod", None)
    return id(score_mod), id(mask_mod), id(block_mask), sizes, like.device


def _own_lists(block_mask: Any) -> tuple[Any, ...]:
    return () if block_mask is None else tuple([getattr(block_mask, name) for name in LISTS])


def _state(block_mask: Any, own: tuple[Any, ...]) -> tuple[Any, ...]:
    if block_mask is None:
        return ()
    contents = [contents_of(one) for one in own if one is not None]
    return tuple(block_mask.BLOCK_SIZE), tuple(block_mask.seq_lengths), *contents


def find(
    score_mod: Any, block_mask: Any, like: Any, sizes: tuple[int, int, int, int]
) -> tuple[Problem, Traced] | None:
    """What remember() was given for the same call; None where there is none. like: the queries, a
    tensor of torch."""
    torch = sys.modules["torch"]
    if not _kept or type(like) is not torch.Tensor:
        return None
    recent = _kept.get(_key(score_mod, block_mask, like, sizes))
    if recent is None or not recent.watch.holds():
        return None
    own = _own_lists(block_mask)
    for ref, one in zip(recent.lists, own, strict=True):
        if (None if ref is None else ref()) is not one:
            return None
    if recent.state != _state(block_mask, own):
        return None
    # What lists hold when a graph of CUDA is replayed, nobody knows.
    if recent.problem.left_out and not may_read(torch):
        return None
    if not recent.tensors:
        return recent.problem, recent.both
    tensors = tuple([ref() for ref in recent.tensors])  # alive, as the watch holds
    named = dict(zip(recent.problem.names, tensors, strict=True))
    return recent.problem._replace(tensors=tensors), recent.both._replace(tensors=named)


def remember(
    score_mod: Any,
    block_mask: Any,
    like: Any,
    sizes: tuple[int, int, int, int],
    found: tuple[Problem, Traced],
) -> None:
    """Keeps a call's problem, where a change of what it was made of would be seen."""
    problem, both = found
    torch, own = sys.modules["torch"], _own_lists(block_mask)
    if type(like) is not torch.Tensor or not both.is_pure:
        return
    if not problem.read_by_kernel or not all(
        is_plain(one, torch) for one in own if one is not None
    ):
        return
    if block_mask is not None and not may_read(torch):
        return
    watch = watched(score_mod, getattr(block_mask, "mask_mod", None))
    if watch is None or not all(map(watch.has, problem.tensors)):
        return
    key = _key(score_mod, block_mask, like, sizes)

    def forget(_: Any) -> None:
        _kept.pop(key, None)

    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    _kept[key] = _Recent(
        watch,
        tuple(None if one is None else weakref.ref(one) for one in own),
        _state(block_mask, own),
        problem._replace(tensors=()),
        both._replace(tensors={}),
        tuple(map(weakref.ref, problem.tensors)),
        None if block_mask is None else weakref.ref(block_mask, forget),
    )
