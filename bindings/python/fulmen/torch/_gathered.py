"""Context parallelism with all keys, or all positions of some heads, in each process."""

from __future__ import annotations

from typing import Any

import torch

from fulmen.torch._exchange import Processes
from fulmen.torch._sharding import (
    Sharding,
    backward_of,
    forward_of,
    gathered_parts,
    place,
    take,
    whole_part,
)

_Tensor = torch.Tensor


def _sum(parts: list[_Tensor]) -> _Tensor:
    """The sum in float32, in the order of the processes: the same bits in every run."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part
    return total


class AllGather(torch.autograd.Function):
    """Each process has its queries and, for the time of a pass, the keys and values of all."""

    @staticmethod
    def forward(ctx: Any, q, k, v, sharding, options, processes):
        ctx.set_materialize_grads(False)
        keys, values = _gathered(k, v, sharding, processes)
        out = q.new_empty((*q.shape[:3], v.shape[3]))
        lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
        for part in gathered_parts(sharding, processes.rank):
            out[:, part.rows], lse[:, :, part.rows] = forward_of(part, q, keys, values, options)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.rest = sharding, options, processes
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: _Tensor | None, dlse: _Tensor | None) -> tuple[Any, ...]:
        if dout is None and dlse is None:
            return (None,) * 6
        q, k, v, out, lse = ctx.saved_tensors
        sharding, options, processes = ctx.rest
        dout = torch.zeros_like(out) if dout is None else dout.contiguous()
        keys, values = _gathered(k, v, sharding, processes)
        dq = torch.empty_like(q, memory_format=torch.contiguous_format)
        sums = [torch.zeros_like(t, dtype=torch.float32) for t in (keys, values)]
        for part in gathered_parts(sharding, processes.rank):
            dq[:, part.rows], *of_keys = backward_of(
                part, dout, q, keys, values, out, lse, dlse, options
            )
            for to, one in zip(sums, of_keys, strict=True):
                to[:, part.columns] += one
        sent = [[take(t, pieces) for t in sums] for pieces in sharding.pieces]
        received = processes.all_to_all(sent, [[k.shape, v.shape]] * processes.size)
        dk, dv = (_sum([tensors[at] for tensors in received]) for at in range(2))
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None, None


def _gathered(k: _Tensor, v: _Tensor, sharding: Sharding, processes: Processes) -> list[_Tensor]:
    """k and v of all processes in the order of the sequence."""
    row = k[:, 0].numel() + v[:, 0].numel()
    gathered = processes.all_gather(
        torch.cat([k.reshape(-1), v.reshape(-1)]), sharding.longest() * row
    )
    wholes = [t.new_empty((t.shape[0], sharding.total, *t.shape[2:])) for t in (k, v)]
    for rank, flat in enumerate(gathered):
        rows = sharding.rows(rank)
        for whole, part in zip(
            wholes, flat[: rows * row].split([rows * t[:, 0].numel() for t in (k, v)]), strict=True
        ):
            place(whole, part.view(whole.shape[0], rows, *whole.shape[2:]), sharding.pieces[rank])
    return wholes


def heads_of(size: int, heads: int, kv_heads: int) -> tuple[list[slice], list[slice]]:
    """The query heads of each process under Ulysses, and the KV heads that these read: processes
    may share one."""
    each, ratio = heads // size, heads // kv_heads
    queries = [slice(first, first + each) for first in range(0, heads, each)]
    return queries, [slice(of.start // ratio, (of.stop - 1) // ratio + 1) for of in queries]


def _to_heads(
    tensors: list[_Tensor], heads: list[list[slice]], sharding: Sharding, processes: Processes
) -> list[_Tensor]:
    """From all heads of this process's positions to all positions of its heads; both
    [batch, positions, heads, ...]."""
    sent = [
        [t[:, :, of[rank]] for t, of in zip(tensors, heads, strict=True)]
        for rank in range(processes.size)
    ]
    ours = [
        (t, of[processes.rank].stop - of[processes.rank].start)
        for t, of in zip(tensors, heads, strict=True)
    ]
    shapes = [
        [(t.shape[0], sharding.rows(rank), n, *t.shape[3:]) for t, n in ours]
        for rank in range(processes.size)
    ]
    wholes = [t.new_empty((t.shape[0], sharding.total, n, *t.shape[3:])) for t, n in ours]
    for rank, received in enumerate(processes.all_to_all(sent, shapes)):
        for whole, part in zip(wholes, received, strict=True):
            place(whole, part, sharding.pieces[rank])
    return wholes


def _to_positions(
    tensors: list[_Tensor], heads: list[list[slice]], sharding: Sharding, processes: Processes
) -> list[list[_Tensor]]:
    """The inverse: for each tensor, the parts that the processes have for this one's positions."""
    sent = [[take(t, pieces) for t in tensors] for pieces in sharding.pieces]
    rows = sharding.rows(processes.rank)
    shapes = [
        [
            (t.shape[0], rows, of[rank].stop - of[rank].start, *t.shape[3:])
            for t, of in zip(tensors, heads, strict=True)
        ]
        for rank in range(processes.size)
    ]
    return [list(parts) for parts in zip(*processes.all_to_all(sent, shapes), strict=True)]


def _added(parts: list[_Tensor], heads: list[slice], shape: torch.Size) -> _Tensor:
    """Gradients of KV heads, to which several processes may have added, in the order of the
    processes."""
    total = parts[0].new_zeros(shape, dtype=torch.float32)
    for part, of in zip(parts, heads, strict=True):
        total[:, :, of] += part
    return total.to(parts[0].dtype)


class Ulysses(torch.autograd.Function):
    """Each process has all positions of some heads: an all-to-all before the kernel, and one after
    it."""

    @staticmethod
    def forward(ctx: Any, q, k, v, sharding, options, processes):
        ctx.set_materialize_grads(False)
        queries, keys = heads_of(processes.size, q.shape[2], k.shape[2])
        wholes = _to_heads([q, k, v], [queries, keys, keys], sharding, processes)
        out, lse = forward_of(whole_part(sharding), *wholes, options)
        ctx.save_for_backward(*wholes, out, lse)
        ctx.rest, ctx.shapes = (sharding, options, processes, queries, keys), (k.shape, v.shape)
        (outs,) = _to_positions([out], [queries], sharding, processes)
        (lses,) = _to_positions([lse.transpose(1, 2)], [queries], sharding, processes)
        return torch.cat(outs, 2), torch.cat(lses, 2).transpose(1, 2).contiguous()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: _Tensor | None, dlse: _Tensor | None) -> tuple[Any, ...]:
        if dout is None and dlse is None:
            return (None,) * 6
        q, k, v, out, lse = ctx.saved_tensors
        sharding, options, processes, queries, keys = ctx.rest
        dout = (
            torch.zeros_like(out)
            if dout is None
            else _to_heads([dout], [queries], sharding, processes)[0]
        )
        if dlse is not None:
            dlse = _to_heads([dlse.transpose(1, 2)], [queries], sharding, processes)[0].transpose(
                1, 2
            )
        gradients = backward_of(whole_part(sharding), dout, q, k, v, out, lse, dlse, options)
        dqs, dks, dvs = _to_positions(list(gradients), [queries, keys, keys], sharding, processes)
        dk, dv = (
            _added(parts, keys, shape) for parts, shape in zip((dks, dvs), ctx.shapes, strict=True)
        )
        return torch.cat(dqs, 2), dk, dv, None, None, None
