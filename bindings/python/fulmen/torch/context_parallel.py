"""One function for a sequence that is spread over processes; it chooses the method of exchange."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fulmen._core import ArgumentError
from fulmen.torch._exchange import Processes, rank_and_size
from fulmen.torch._gathered import AllGather, Ulysses
from fulmen.torch._sharding import Part, Sharding, checked_sharding, ring_parts
from fulmen.torch.ring import Ring

__all__ = ["context_parallel_attention", "context_parallel_explain"]

# Operations for each byte of keys and values, from which on the ring is as fast as one all-gather.
# Two H100 over NVLink: at 8,000 to 33,000 the all-gather takes 6 to 23 % less time, at 65,000
# 3 % less, from 131,000 on between 4 % more and 1 % less (docs/performance/nvidia_ring.md). The
# ring then needs memory for two shards of keys only.
_HIDING = 50_000
# If the ring takes longer than an equal share of the work by this factor, Ulysses is taken, whose
# shares are equal.
_UNEVEN = 1.25


def context_parallel_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    cu_seqlens: Any = None,
    seqlens: Sequence[int] | None = None,
    method: str | None = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    deterministic: bool | None = None,
    return_lse: bool = False,
    timeout: float | None = None,
    group: dist.ProcessGroup | None = None,
) -> Any:
    """fulmen.attention of the whole sequence, of which each process of the group has a part;
    differentiable by q, k and v.

    The arguments, what is returned and raised, and how the sequence is cut (ring_shard) are those
    of ring_attention, and besides:

    Args:
      method: "ring", keys go round beside the kernels; "all_gather", each process gets all keys
        first; "ulysses", each process gets all positions of some heads first. None: what
        context_parallel_explain says.
    """
    rank, size = rank_and_size(group)
    sharding = checked_sharding(q, k, v, causal, cu_seqlens, seqlens, rank, size)
    chosen, _ = _choice(q, k, v, sharding, method)
    options = {"softmax_scale": softmax_scale, "softcap": softcap, "deterministic": deterministic}
    out, lse = _FUNCTIONS[chosen].apply(
        q, k, v, sharding, options, Processes(group, q.device, timeout)
    )
    return (out, lse) if return_lse else out


def context_parallel_explain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    cu_seqlens: Any = None,
    seqlens: Sequence[int] | None = None,
    method: str | None = None,
    group: dist.ProcessGroup | None = None,
) -> str:
    """Which method context_parallel_attention takes for such arguments, and why not the others, in
    words. Nothing is exchanged."""
    rank, size = rank_and_size(group)
    return _choice(
        q, k, v, checked_sharding(q, k, v, causal, cu_seqlens, seqlens, rank, size), method
    )[1]


_FUNCTIONS: dict[str, Any] = {"ring": Ring, "all_gather": AllGather, "ulysses": Ulysses}


class _Problem(NamedTuple):
    size: int
    heads: int
    kv_heads: int
    keys: float  # bytes of k and v of a process
    queries: float  # bytes of q and out of a process
    intensity: float  # operations of a step of the ring for each byte of keys that moves beside it
    share: float  # the ring's time, beside that of equal shares of the work


def _work(part: Part) -> float:
    """Scores of a part."""
    if part.cu_seqlens_q is None:
        return (
            (part.rows.stop - part.rows.start)
            * (part.columns.stop - part.columns.start)
            * (0.5 if part.causal else 1.0)
        )
    lengths = (b - a for a, b in itertools.pairwise(part.cu_seqlens_q))
    return sum(n * n for n in lengths) * (0.5 if part.causal else 1.0)


def _problem(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sharding: Sharding) -> _Problem:
    size = len(sharding.pieces)
    work = [
        [sum(map(_work, ring_parts(sharding, rank, (rank - step) % size))) for rank in range(size)]
        for step in range(size)
    ]
    dims = q.shape[3] + v.shape[3]
    total, steps = sum(map(sum, work)), sum(map(max, work))
    row = q.shape[0] * q.element_size() * dims
    return _Problem(
        size=size,
        heads=q.shape[2],
        kv_heads=k.shape[2],
        keys=sharding.longest() * row * k.shape[2],
        queries=sharding.longest() * row * q.shape[2],
        intensity=2
        * dims
        * q.shape[0]
        * q.shape[2]
        * total
        / size**2
        / (sharding.longest() * row * k.shape[2]),
        share=steps * size / total,
    )


def _ulysses_refuses(p: _Problem) -> str | None:
    if p.heads % p.size != 0:
        return f"impossible: {p.heads} heads are not a multiple of {p.size} processes"
    each, ratio = p.heads // p.size, p.heads // p.kv_heads
    if each % ratio != 0 and ratio % each != 0:
        return (
            f"impossible: the {each} heads of a process and the {ratio} that share a KV head do "
            "not divide each other"
        )
    return None


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.4g} MB"


def _preferred(p: _Problem, moved: dict[str, float], refused: str | None) -> tuple[str, str]:
    """The method, and why."""
    hides = f"{p.intensity:.0f} operations for each byte that moves"
    if p.size == 1:
        return "ring", "one process has everything, nothing moves"
    if refused is None and p.share > _UNEVEN:
        return (
            "ulysses",
            f"all processes have the same work; the ring would take {p.share:.2f} times as long as "
            "equal shares",
        )
    if p.intensity >= _HIDING:
        return "ring", f"kernels hide the transfers, with {hides}; {_HIDING} are enough"
    why = f"with {hides} a kernel of the ring does not hide its transfer, {_HIDING} are needed"
    if refused is None and moved["ulysses"] <= moved["all_gather"]:
        return "ulysses", f"{why}; it moves no more than all_gather"
    return "all_gather", f"{why}; it moves the least in one go"


def _choice(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sharding: Sharding, method: str | None
) -> tuple[str, str]:
    if method is not None and method not in _FUNCTIONS:
        raise ArgumentError(
            f"method is {method!r}: None, {', '.join(map(repr, _FUNCTIONS))} are accepted"
        )
    if k.shape[2] == 0 or q.shape[2] % k.shape[2] != 0:
        raise ArgumentError(f"k has {k.shape[2]} heads: a divisor of q's {q.shape[2]} is accepted")
    p = _problem(q, k, v, sharding)
    refused = _ulysses_refuses(p)
    if method == "ulysses" and refused is not None:
        raise ArgumentError(f'method is "ulysses": {refused}')
    around, ratio = (p.size - 1) * p.keys, max(1.0, p.size / p.kv_heads)
    moved = {
        "ring": around,
        "all_gather": around,
        "ulysses": (p.queries + p.keys * ratio) * (p.size - 1) / p.size,
    }
    chosen, why = (method, "asked for") if method is not None else _preferred(p, moved, refused)
    says = {
        "ring": f"moves {_megabytes(around)} beside kernels, holds the keys of 2 processes more",
        "all_gather": f"moves {_megabytes(around)} before the kernel, holds the keys of all, "
        f"{_megabytes(p.keys * p.size)}",
        "ulysses": refused
        or f"moves {_megabytes(moved['ulysses'])} before and after the kernel, holds as much again",
    }
    lines = [f"{chosen} of {p.size} processes: {why}"]
    lines += [
        f"  {name}: {'chosen; ' if name == chosen else ''}{text}" for name, text in says.items()
    ]
    return chosen, "\n".join(lines)
