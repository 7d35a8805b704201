"""A program that people run, as hosts.py times it."""

import contextlib
import dataclasses
from collections.abc import Callable

import torch


@dataclasses.dataclass
class Host:
    """A host's run, and what serves it by Fulmen while it is entered."""

    version: str
    run: Callable[[], tuple[torch.Tensor, ...]]  # its results
    served: Callable[[], contextlib.AbstractContextManager]
