"""A block mask's lists as a call finds them: which tensors they are, and their contents as far as
torch knows."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


def own_lists(block_mask: Any) -> tuple[Any, ...]:
    """Those of LISTS; none without a mask."""
    return () if block_mask is None else tuple([getattr(block_mask, name) for name in LISTS])


def are_plain(lists: tuple[Any, ...], torch: Any) -> bool:
    """Whether they are tensors with elements and a version: none of a tracer or a subclass."""
    return all(
        [
            type(one) is torch.Tensor
            and one.device.type in ("cpu", "cuda")
            and one.layout is torch.strided
            and not one.is_inference()
            for one in lists
            if one is not None
        ]
    )


def _contents(one: Any) -> Any:
    """What changes with a tensor's elements."""
    return (one._version, one.data_ptr(), tuple(one.shape), one.stride(), one.dtype)


class ListState:
    """Lists as they are now. It does not keep them alive."""

    def __init__(self, lists: tuple[Any, ...], forget: Callable[[Any], None] | None = None) -> None:
        """forget: called when one of them is gone."""
        self._refs = [None if one is None else weakref.ref(one, forget) for one in lists]
        self._contents = [None if one is None else _contents(one) for one in lists]

    def is_of(self, lists: tuple[Any, ...]) -> bool:
        for ref, one in zip(self._refs, lists, strict=True):
            if (None if ref is None else ref()) is not one:
                return False
        return self._contents == [None if one is None else _contents(one) for one in lists]
