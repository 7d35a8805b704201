"""The messages between the processes of a group, on a GPU in a stream of their own, and their
timeouts.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fulmen._core import ArgumentError


def rank_and_size(group: dist.ProcessGroup | None) -> tuple[int, int]:
    if not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed is not initialized: every process of a group calls this, after "
            "init_process_group"
        )
    rank = dist.get_rank(group)
    if rank < 0:
        raise ArgumentError(
            "group does not include this process: the group's processes call this, and no others"
        )
    return rank, dist.get_world_size(group)


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Transfer:
    """Transfers in flight to the next process, and from the previous one. Its tensors must live
    until it is finished."""

    def __init__(
        self, works: list[Any], received: torch.Tensor, staging: torch.Tensor | None
    ) -> None:
        self.works, self.received, self.staging = works, received, staging


class Processes:
    """The processes of a group, seen from this one.

    A GPU's transfers are in a stream of their own. A transfer starts when the kernel that has read
    its target is done, overlaps the work of the current stream, and the current stream waits only
    for its end. gloo can't send a GPU's memory: the data go through the host's.
    """

    def __init__(
        self, group: dist.ProcessGroup | None, device: torch.device, timeout: float | None
    ) -> None:
        self.group, self.timeout = group, timeout
        self.rank, self.size = rank_and_size(group)
        ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        self.next, self.previous = ranks[(self.rank + 1) % self.size], ranks[self.rank - 1]
        self.staged = device.type == "cuda" and dist.get_backend(group) == "gloo"
        self.stream = _stream(device) if device.type == "cuda" and not self.staged else None
        self.device, self.free = device, None

    def _aside(self) -> Any:
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def mark(self) -> None:
        """Transfers that start from now on wait for the kernels given to the current stream so far,
        not for later ones."""
        if self.stream is not None:
            self.free = torch.cuda.current_stream(self.device).record_event()

    def pass_on(self, sent: torch.Tensor, received: torch.Tensor) -> Transfer:
        """Sends to the next process and receives from the previous one."""
        target = torch.empty_like(received, device="cpu") if self.staged else received
        source = sent.cpu() if self.staged else sent
        send = dist.P2POp(dist.isend, source, self.next, self.group)
        receive = dist.P2POp(dist.irecv, target, self.previous, self.group)
        # Pairs of processes meet in the same order whichever starts.
        batch = [send, receive] if self.rank % 2 == 0 else [receive, send]
        if self.stream is not None:
            self.stream.wait_event(self.free)
        with self._aside():
            works = self._tried(lambda: dist.batch_isend_irecv(batch))
        return Transfer(works, received, target if self.staged else None)

    def finish(self, transfer: Transfer | None) -> None:
        if transfer is None:
            return
        with self._aside():
            self._wait(transfer.works)
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_event(self.stream.record_event())
        if transfer.staging is not None:
            transfer.received.copy_(transfer.staging)
        transfer.works = []

    def all_to_all(
        self, sent: Sequence[Sequence[torch.Tensor]], shapes: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[torch.Tensor]]:
        """sent: the tensors for each process. Returns those from each, whose shapes are given; all
        of one dtype."""
        flat = torch.cat([t.reshape(-1) for tensors in sent for t in tensors])
        sizes = [[math.prod(shape) for shape in of_one] for of_one in shapes]
        received = flat.new_empty(sum(map(sum, sizes)))
        splits = [sum(t.numel() for t in tensors) for tensors in sent]
        self._collective(
            dist.all_to_all_single, received, flat, [sum(of_one) for of_one in sizes], splits
        )
        pieces = iter(received.split([n for of_one in sizes for n in of_one]))
        return [[next(pieces).view(tuple(shape)) for shape in of_one] for of_one in shapes]

    def all_gather(self, flat: torch.Tensor, longest: int) -> torch.Tensor:
        """[processes, longest] of one-dimensional tensors with that many elements or fewer."""
        padded = (
            flat
            if flat.numel() == longest
            else torch.nn.functional.pad(flat, (0, longest - flat.numel()))
        )
        received = flat.new_empty(self.size * longest)
        self._collective(dist.all_gather_into_tensor, received, padded)
        return received.view(self.size, longest)

    def _collective(
        self, function: Any, received: torch.Tensor, sent: torch.Tensor, *splits: list[int]
    ) -> None:
        target = torch.empty_like(received, device="cpu") if self.staged else received
        source = sent.cpu() if self.staged else sent
        self._wait(
            [
                self._tried(
                    lambda: function(target, source, *splits, group=self.group, async_op=True)
                )
            ]
        )
        if self.staged:
            received.copy_(target)

    def _wait(self, works: list[Any]) -> None:
        limit = () if self.timeout is None else (datetime.timedelta(seconds=self.timeout),)
        for work in works:
            self._tried(lambda one=work: one.wait(*limit))

    def _tried(self, call: Any) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise RuntimeError(
                f"process {self.rank} of {self.size} could not exchange keys with the others. "
                f"One has failed, or is late by more than {self._limit()}. {error}"
            ) from error

    def _limit(self) -> str:
        if self.timeout is not None:
            return f"timeout, {self.timeout:g} s"
        group = self.group if self.group is not None else dist.group.WORLD
        options = getattr(group._get_backend(self.device), "options", None)
        limit = getattr(options, "_timeout", None)
        return (
            "the group's timeout"
            if limit is None
            else f"the group's timeout, {limit.total_seconds():g} s"
        )
