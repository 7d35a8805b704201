"""Attention over a sequence that is spread over the processes of torch.distributed (context
parallelism).

Keys and values go round the ring of processes while queries stay; what each part gives is merged by
its log-sum-exp. The sequence is cut into two pieces for each process, and process r has the r-th
from the front and the r-th from the back, one after the other: under a causal mask all processes
then have the same work. ring_shard cuts so, ring_gather puts together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fulmen._core import ArgumentError
from fulmen.torch._exchange import Processes, Transfer, rank_and_size
from fulmen.torch._sharding import (
    Sharding,
    backward_of,
    checked_sharding,
    cut,
    forward_of,
    lengths_of,
    place,
    ring_parts,
    take,
)

__all__ = ["ring_attention", "ring_gather", "ring_seqlens", "ring_shard"]


def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    cu_seqlens: Any = None,
    seqlens: Sequence[int] | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool | None = None,
    return_lse: bool = False,
    timeout: float | None = None,
    group: dist.ProcessGroup | None = None,
) -> Any:
    """fulmen.attention of the whole sequence, of which each process of the group has a part;
    differentiable by q, k and v.

    Every process of the group calls it. The transfer of the next keys runs beside the kernel that
    works on these.

    Args:
      q: [batch, seqlen of this process, heads, head_dim], as ring_shard cuts it; float32, float16
          or bfloat16.
      k, v: [batch, seqlen of this process, kv_heads, head_dim], cut in the same way.
      causal: query i of the whole sequence attends keys up to i.
      cu_seqlens: the whole sequence is packed of documents, batch is 1: document n is positions
        cu_seqlens[n] to cu_seqlens[n + 1] - 1 of all processes, and attends itself only. A list, or
        integers in a tensor; a GPU's are waited for.
      seqlens: the rows of every process, where they differ: ring_seqlens gives what ring_shard
          cuts. None: all have as many.
      softmax_scale, softcap, deterministic, return_lse: see fulmen.attention. Parts are always
          merged in the same order.
      timeout: seconds to wait for another process; None is the group's timeout, which is also what
          counts with NCCL.
      group: None is all processes. Its backend: gloo on the CPU, NCCL or RCCL on a GPU; gloo with a
          GPU goes through the host.

    Returns:
      out, of q's shape, or (out, lse), for the queries of this process.

    Raises:
      RuntimeError: another process has failed, or did not come within the timeout. With NCCL
        torch's watchdog ends this process then, and says so. ArgumentError and others: see
        fulmen.attention.
    """
    rank, size = rank_and_size(group)
    sharding = checked_sharding(q, k, v, causal, cu_seqlens, seqlens, rank, size)
    options = {"softmax_scale": softmax_scale, "softcap": softcap, "deterministic": deterministic}
    out, lse = Ring.apply(q, k, v, sharding, options, Processes(group, q.device, timeout))
    return (out, lse) if return_lse else out


def ring_seqlens(seqlen: int, group: dist.ProcessGroup | None = None) -> list[int]:
    """How many of seqlen rows ring_shard gives to each process."""
    _, size = rank_and_size(group)
    if seqlen < size:
        raise ArgumentError(
            f"seqlen is {seqlen}: {size} or more, a row for each process, is accepted"
        )
    return lengths_of(seqlen, size)


def ring_shard(
    tensor: torch.Tensor, dim: int = 1, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """This process's part of a tensor that all have: of 2 * processes pieces along dim one from the
    front and one from the back.

    Pieces have the same size where 2 * processes divides that of dim; else those in front have a
    row more.
    """
    rank, _ = rank_and_size(group)
    return take(tensor, cut(ring_seqlens(tensor.shape[dim], group))[rank], dim)


def ring_gather(
    tensor: torch.Tensor, dim: int = 1, group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """The whole of what ring_shard cut, in every process. Not differentiable. The host waits for
    the sizes of all parts."""
    processes = Processes(group, tensor.device, None)
    ours = tensor.detach().transpose(0, dim).contiguous()
    length = torch.tensor([ours.shape[0]], device=tensor.device)
    lengths = processes.all_gather(length, 1).flatten().tolist()
    row = ours.shape[1:].numel()
    gathered = processes.all_gather(ours.flatten(), max(lengths) * row)
    whole = ours.new_empty((sum(lengths), *ours.shape[1:]))
    for n, flat, pieces in zip(lengths, gathered, cut(lengths), strict=True):
        place(whole, flat[: n * row].view(n, *ours.shape[1:]), pieces, 0)
    return whole.transpose(0, dim).contiguous()


class _Buffers:
    """Keys and values, or their gradients, of one process after the other, in memory that is taken
    once.

    One buffer is worked on while the other one fills.
    """

    def __init__(
        self, k: torch.Tensor, v: torch.Tensor, sharding: Sharding, dtype: torch.dtype
    ) -> None:
        self.shapes, self.sharding = (k.shape, v.shape), sharding
        self.row = k.shape[0] * (k.shape[2] * k.shape[3] + v.shape[2] * v.shape[3])
        self.flat = [k.new_empty(sharding.longest() * self.row, dtype=dtype) for _ in range(2)]

    def of(self, flat: torch.Tensor, owner: int) -> torch.Tensor:
        return flat[: self.sharding.rows(owner) * self.row]

    def views(self, flat: torch.Tensor, owner: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.sharding.rows(owner)
        shapes = [(shape[0], rows, *shape[2:]) for shape in self.shapes]
        first = rows * self.shapes[0][0] * self.shapes[0][2] * self.shapes[0][3]
        return flat[:first].view(shapes[0]), flat[first : rows * self.row].view(shapes[1])


def _merge(
    out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor
) -> None:
    """Merges in place: out [batch, seqlen, heads, head_dim], lse [batch, heads, seqlen], both
    float32.
    """
    merged = torch.logaddexp(lse, part_lse)
    # Rows without a key in either have no weight.
    ours, theirs = (
        torch.exp(one - merged).nan_to_num_(0.0).transpose(1, 2).unsqueeze(-1)
        for one in (lse, part_lse)
    )
    out.mul_(ours).addcmul_(part, theirs)
    lse.copy_(merged)


class Ring(torch.autograd.Function):
    """ring_attention of checked arguments."""

    @staticmethod
    def forward(ctx: Any, q, k, v, sharding, options, processes):
        ctx.set_materialize_grads(False)
        out, lse = _forward(q, k, v, sharding, options, processes)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.rest = sharding, options, processes
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
        if dout is None and dlse is None:
            return (None,) * 6
        q, k, v, out, lse = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout.contiguous()
        return *_backward(dout, q, k, v, out, lse, dlse, *ctx.rest), None, None, None


def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sharding: Sharding,
    options: dict[str, Any],
    processes: Processes,
) -> tuple[torch.Tensor, torch.Tensor]:
    rank, size = processes.rank, processes.size
    buffers = _Buffers(k, v, sharding, k.dtype)
    here = torch.cat([k.reshape(-1), v.reshape(-1)])
    out = lse = None
    processes.mark()
    for step in range(size):
        owner, coming = (rank - step) % size, (rank - step - 1) % size
        received, transfer = buffers.flat[step % 2], None
        if step < size - 1:
            transfer = processes.pass_on(buffers.of(here, owner), buffers.of(received, coming))
        try:
            keys, values = buffers.views(here, owner)
            for part in ring_parts(sharding, rank, owner):
                part_out, part_lse = forward_of(part, q, keys, values, options)
                processes.mark()
                if out is None:
                    out, lse = part_out.float(), part_lse
                else:
                    _merge(out[:, part.rows], lse[:, :, part.rows], part_out, part_lse)
        finally:
            # Also after an error, which all processes have alike: memory that is being received
            # into must live, and the next call's messages follow these.
            processes.finish(transfer)
        here = received
    return out.to(q.dtype), lse


def _backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dlse: torch.Tensor | None,
    sharding: Sharding,
    options: dict[str, Any],
    processes: Processes,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rank, size = processes.rank, processes.size
    buffers, sums = _Buffers(k, v, sharding, k.dtype), _Buffers(k, v, sharding, torch.float32)
    here = torch.cat([k.reshape(-1), v.reshape(-1)])
    dq = None
    # Gradients of the current keys, summed by the processes that had these keys before; they follow
    # the keys, one step behind.
    sums.flat[0].zero_()
    arriving: Transfer | None = None
    processes.mark()
    for step in range(size):
        owner, coming = (rank - step) % size, (rank - step - 1) % size
        received, transfer = buffers.flat[step % 2], None
        if step < size - 1:
            transfer = processes.pass_on(buffers.of(here, owner), buffers.of(received, coming))
        keys, values = buffers.views(here, owner)
        found = []
        for part in ring_parts(sharding, rank, owner):
            part_q, *of_keys = backward_of(part, dout, q, keys, values, out, lse, dlse, options)
            if dq is None:
                dq = part_q.float()
            else:
                dq[:, part.rows] += part_q
            found.append((part.columns, of_keys))
        processes.finish(arriving)
        for columns, of_keys in found:
            for to, one in zip(sums.views(sums.flat[step % 2], owner), of_keys, strict=True):
                to[:, columns] += one
        processes.mark()
        if size > 1:  # the last of these brings every process its own
            arriving = processes.pass_on(
                sums.of(sums.flat[step % 2], owner), sums.of(sums.flat[1 - step % 2], coming)
            )
        processes.finish(transfer)
        here = received
    processes.finish(arriving)
    dk, dv = sums.views(sums.flat[size % 2 if size > 1 else 0], rank)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
