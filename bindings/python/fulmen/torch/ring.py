"""Attention over a sequence that is spread over the processes of torch.distributed (context parallelism).

Keys and values go round the ring of processes while queries stay; what each part gives is merged by its log-sum-exp. The sequence
is cut into two pieces for each process, and process r has the r-th from the front and the r-th from the back, one after the other:
under a causal mask all processes then have the same work. ring_shard cuts so, ring_gather puts together.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from fulmen._core import ArgumentError
from fulmen._functions import attention, attention_backward

__all__ = ["ring_attention", "ring_gather", "ring_shard"]


def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    group: dist.ProcessGroup | None = None,
) -> Any:
    """fulmen.attention of the whole sequence, of which each process of the group has a part; differentiable by q, k and v.

    Every process of the group calls it, with tensors of the same shapes.

    Args:
      q: [batch, seqlen / processes, heads, head_dim], as ring_shard cuts it; float32, float16 or bfloat16.
      k, v: [batch, seqlen / processes, kv_heads, head_dim], cut in the same way.
      causal: query i of the whole sequence attends keys up to i.
      softmax_scale, softcap, return_lse: see fulmen.attention.
      group: None is all processes. Its backend must know the tensors' device: gloo on the CPU, NCCL or RCCL on a GPU.

    Returns:
      out, of q's shape, or (out, lse), for the queries of this process.
    """
    if not dist.is_initialized():
        raise RuntimeError("torch.distributed is not initialized: ring_attention is called by every process of a group")
    _size_of(group)
    if q.dim() != 4 or k.dim() != 4 or q.shape[1] != k.shape[1]:
        raise ArgumentError(
            f"q has shape {list(q.shape)} and k {list(k.shape)}: [batch, seqlen, heads, head_dim] with the same seqlen is accepted"
        )
    if causal and q.shape[1] % 2 != 0:
        raise ArgumentError(f"q has {q.shape[1]} rows in each process: an even number is accepted with causal, see ring_shard")
    out, lse = _Ring.apply(q, k, v, causal, {"softmax_scale": softmax_scale, "softcap": softcap}, group)
    return (out, lse) if return_lse else out


def ring_shard(tensor: torch.Tensor, dim: int = 1, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """This process's part of a tensor that all have: of 2 * processes pieces along dim one from the front and one from the back."""
    size, rank = _size_of(group), dist.get_rank(group)
    if tensor.shape[dim] % (2 * size) != 0:
        raise ArgumentError(f"dim {dim} has size {tensor.shape[dim]}: a multiple of {2 * size}, twice the processes, is accepted")
    pieces = tensor.chunk(2 * size, dim)
    return torch.cat([pieces[rank], pieces[2 * size - 1 - rank]], dim)


def ring_gather(tensor: torch.Tensor, dim: int = 1, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The whole of what ring_shard cut, in every process. Not differentiable."""
    size = _size_of(group)
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(size)]
    dist.all_gather(parts, tensor.detach().contiguous(), group=group)
    halves = [part.chunk(2, dim) for part in parts]
    return torch.cat([front for front, _ in halves] + [back for _, back in reversed(halves)], dim)


def _size_of(group: dist.ProcessGroup | None) -> int:
    if dist.get_rank(group) < 0:
        raise ArgumentError("group does not include this process: the group's processes call this, and no others")
    return dist.get_world_size(group)


class _Circle:
    """Tensors that go from each process to the next."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group, self.size, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        self.next, self.previous = ranks[(self.rank + 1) % self.size], ranks[self.rank - 1]

    def start(self, tensors: tuple[torch.Tensor, ...]) -> tuple[tuple[torch.Tensor, ...], list[Any]]:
        """What comes from the previous process, and whom to wait for. The tensors sent must live till then."""
        received = tuple(torch.empty_like(t) for t in tensors)
        sends = [dist.P2POp(dist.isend, t, self.next, self.group) for t in tensors]
        receives = [dist.P2POp(dist.irecv, t, self.previous, self.group) for t in received]
        # Pairs of processes meet in the same order whichever starts.
        return received, dist.batch_isend_irecv(sends + receives if self.rank % 2 == 0 else receives + sends)


def _wait(works: list[Any]) -> None:
    for work in works:
        work.wait()


def _parts(step: int, rank: int, causal: bool, half: int) -> tuple[slice, slice, bool]:
    """Which queries of this process attend which keys of the process that is step places before it, and whether by a mask."""
    everything = slice(None)
    if not causal:
        return everything, everything, False
    if step == 0:
        return everything, everything, True
    # Of a process before this one the front piece is before both of ours, its back piece behind; of one after it both pieces are
    # between ours.
    return (everything, slice(0, half), False) if step <= rank else (slice(half, None), everything, False)


def _merge(out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor) -> None:
    """In place: out [batch, seqlen, heads, head_dim], lse [batch, heads, seqlen], both float32."""
    merged = torch.logaddexp(lse, part_lse)
    # Rows without a key in either have no weight.
    ours, theirs = (torch.exp(one - merged).nan_to_num_(0.0).transpose(1, 2).unsqueeze(-1) for one in (lse, part_lse))
    out.mul_(ours).add_(part.float().mul_(theirs))
    lse.copy_(merged)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q, k, v, causal, options, group):
        ctx.set_materialize_grads(False)
        circle, half = _Circle(group), q.shape[1] // 2
        keys = (k.contiguous(), v.contiguous())
        out = lse = None
        for step in range(circle.size):
            last = step == circle.size - 1
            received, works = ((), []) if last else circle.start(keys)
            rows, columns, masked = _parts(step, circle.rank, causal, half)
            try:
                part, part_lse = attention(
                    q[:, rows], keys[0][:, columns], keys[1][:, columns], causal=masked, return_lse=True, **options
                )
                if out is None:
                    out, lse = part.float(), part_lse
                else:
                    _merge(out[:, rows], lse[:, :, rows], part, part_lse)
            finally:
                # After an error, too, which all processes have alike: memory that is being received into has to live, and the
                # next call's messages come behind these.
                _wait(works)
            keys = received
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.rest = causal, options, group
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> tuple[Any, ...]:
        if dout is None and dlse is None:
            return (None,) * 6
        q, k, v, out, lse = ctx.saved_tensors
        causal, options, group = ctx.rest
        circle, half = _Circle(group), q.shape[1] // 2
        dout = torch.zeros_like(out) if dout is None else dout.contiguous()
        keys = (k.contiguous(), v.contiguous())
        dq = torch.zeros_like(q, dtype=torch.float32)
        # The gradients of the keys that are here, from the processes where they have been; they travel along, one step behind.
        sums = tuple(torch.zeros_like(t, dtype=torch.float32) for t in keys)
        arriving, works_of_sums = sums, []
        for step in range(circle.size):
            received, works = ((), []) if step == circle.size - 1 else circle.start(keys)
            rows, columns, masked = _parts(step, circle.rank, causal, half)
            # With the lse and the output of all keys a part's gradients are those of the whole.
            part_q, part_k, part_v, _, _ = attention_backward(
                dout[:, rows],
                q[:, rows],
                keys[0][:, columns],
                keys[1][:, columns],
                out[:, rows],
                lse[:, :, rows],
                dlse=None if dlse is None else dlse[:, :, rows].contiguous(),
                causal=masked,
                **options,
            )
            dq[:, rows] += part_q
            _wait(works_of_sums)
            sums = arriving
            sums[0][:, columns] += part_k
            sums[1][:, columns] += part_v
            _wait(works)
            keys = received
            arriving, works_of_sums = circle.start(sums)  # the last of these brings every process its own
        _wait(works_of_sums)
        dk, dv = arriving
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None
