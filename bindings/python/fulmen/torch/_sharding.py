"""Which positions of a sequence each process of a group has, and which parts of attention follow
from that."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fulmen._core import ArgumentError
from fulmen._functions import attention, attention_backward


class Piece(NamedTuple):
    """Consecutive positions of the whole sequence that one process has."""

    start: int
    stop: int
    row: int  # where they begin among the process's rows

    @property
    def rows(self) -> slice:
        return slice(self.row, self.row + self.stop - self.start)


class Part(NamedTuple):
    """Queries and keys that attend each other in one call of a kernel."""

    rows: slice  # of the queries
    columns: slice  # of the keys
    causal: bool = False
    cu_seqlens_q: list[int] | None = None  # of documents, counted from the first of rows
    cu_seqlens_k: list[int] | None = None

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        if self.cu_seqlens_q is None:
            return {"causal": self.causal, **options}
        longest = (
            max(b - a for a, b in itertools.pairwise(cu))
            for cu in (self.cu_seqlens_q, self.cu_seqlens_k)
        )
        lengths = dict(zip(("max_seqlen_q", "max_seqlen_k"), longest, strict=True))
        return {
            "causal": self.causal,
            "cu_seqlens_q": self.cu_seqlens_q,
            "cu_seqlens_k": self.cu_seqlens_k,
            **lengths,
            **options,
        }


class Sharding(NamedTuple):
    """How the sequence of a call lies over the processes."""

    pieces: list[list[Piece]]  # of each process
    causal: bool
    documents: list[int] | None  # cu_seqlens of the whole sequence

    def rows(self, rank: int) -> int:
        return sum(piece.stop - piece.start for piece in self.pieces[rank])

    @property
    def total(self) -> int:
        return sum(self.rows(rank) for rank in range(len(self.pieces)))

    def longest(self) -> int:
        return max(self.rows(rank) for rank in range(len(self.pieces)))


def lengths_of(total: int, size: int) -> list[int]:
    """The rows of each of size processes: the r-th piece from the front and the r-th from the back,
    of 2 * size."""
    least, more = divmod(total, 2 * size)
    return [2 * least + (rank < more) + (2 * size - 1 - rank < more) for rank in range(size)]


def cut(lengths: Sequence[int]) -> list[list[Piece]]:
    """The pieces of processes with so many rows: the first half is from the front of the sequence,
    the rest from its back."""
    pieces, front, back = [], 0, sum(lengths)
    for length in lengths:
        first = (length + 1) // 2
        both = Piece(front, front + first, 0), Piece(back - (length - first), back, first)
        pieces.append([piece for piece in both if piece.start < piece.stop])
        front, back = front + first, back - (length - first)
    return pieces


def checked_sharding(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    cu_seqlens: Any,
    seqlens: Sequence[int] | None,
    rank: int,
    size: int,
) -> Sharding:
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4 or not q.shape[1] == k.shape[1] == v.shape[1]:
        raise ArgumentError(
            f"q has shape {list(q.shape)}, k {list(k.shape)} and v {list(v.shape)}: "
            "[batch, seqlen, heads, head_dim] with the same seqlen is accepted"
        )
    if q.dtype != k.dtype or q.dtype != v.dtype:
        raise ArgumentError(
            f"q, k and v are {q.dtype}, {k.dtype} and {v.dtype}: the same dtype is accepted"
        )
    lengths = [q.shape[1]] * size if seqlens is None else [int(n) for n in seqlens]
    if len(lengths) != size or min(lengths) < 1:
        raise ArgumentError(
            f"seqlens is {lengths}: one number from 1 on for each of {size} processes is accepted"
        )
    if lengths[rank] != q.shape[1]:
        raise ArgumentError(
            f"seqlens[{rank}] is {lengths[rank]}, and q has {q.shape[1]} rows in that process: the "
            "same is accepted"
        )
    documents = None
    if cu_seqlens is not None:
        documents = [
            int(n)
            for n in (cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else cu_seqlens)
        ]
        if q.shape[0] != 1:
            raise ArgumentError(f"q has batch size {q.shape[0]}: 1 is accepted with cu_seqlens")
        if (
            len(documents) < 2
            or documents[0] != 0
            or documents[-1] != sum(lengths)
            or documents != sorted(documents)
        ):
            raise ArgumentError(
                f"cu_seqlens is {documents}: ascending positions from 0 to {sum(lengths)}, the "
                "rows of all processes, are accepted"
            )
        documents = sorted(set(documents))
    return Sharding(cut(lengths), bool(causal), documents)


def _common(a: Piece, b: Piece, documents: list[int] | None) -> tuple[Piece, Piece] | None:
    """The parts of two pieces that are in one document; they share at most one document."""
    if documents is None:
        return a, b
    first, second = (a, b) if a.start < b.start else (b, a)
    at = bisect.bisect_right(documents, first.stop - 1)
    start, stop = documents[at - 1], documents[at]
    if stop <= second.start:
        return None
    clipped = [(max(p.start, start), min(p.stop, stop), p) for p in (a, b)]
    one, other = (Piece(begin, end, p.row + begin - p.start) for begin, end, p in clipped)
    return one, other


def _joined(parts: list[Part], same: str, beside: str) -> list[Part]:
    """Joins parts that lie beside each other."""
    result: list[Part] = []
    for part in sorted(parts, key=lambda p: (getattr(p, same).start, getattr(p, beside).start)):
        last = result[-1] if result else part
        before, after = getattr(last, beside), getattr(part, beside)
        if result and getattr(last, same) == getattr(part, same) and before.stop == after.start:
            result[-1] = part._replace(**{beside: slice(before.start, after.stop)})
        else:
            result.append(part)
    return result


def _within(piece: Piece, documents: list[int]) -> list[int]:
    """The bounds of the documents in a piece, counted from its first row."""
    inner = documents[
        bisect.bisect_right(documents, piece.start) : bisect.bisect_left(documents, piece.stop)
    ]
    return [n - piece.start for n in (piece.start, *inner, piece.stop)]


def ring_parts(sharding: Sharding, rank: int, owner: int) -> list[Part]:
    """The parts for the queries of one process and the keys of another.

    For its own keys the first part has all rows.
    """
    mine, theirs = sharding.pieces[rank], sharding.pieces[owner]
    everything = slice(0, sharding.rows(rank))
    own: list[Part] = []
    if rank == owner and sharding.documents is not None:
        cu = [0]
        for piece in mine:
            cu += [piece.row + n for n in _within(piece, sharding.documents)[1:]]
        own = [Part(everything, everything, sharding.causal, cu, cu)]
    elif rank == owner and sharding.causal:
        # The front piece before the back piece: one mask over both.
        return [Part(everything, everything, True)]
    parts = []
    for a in mine:
        for b in theirs:
            if (own and a is b) or (sharding.causal and b.start > a.start):
                continue
            if (both := _common(a, b, sharding.documents)) is not None:
                parts.append(Part(both[0].rows, both[1].rows))
    return own + _joined(_joined(parts, "rows", "columns"), "columns", "rows")


def gathered_parts(sharding: Sharding, rank: int) -> list[Part]:
    """The parts for the queries of one process and all keys in the order of the sequence.

    Each row is in one part.
    """
    if sharding.documents is None:
        if not sharding.causal:
            return [Part(slice(0, sharding.rows(rank)), slice(0, sharding.total))]
        return [Part(piece.rows, slice(0, piece.stop), True) for piece in sharding.pieces[rank]]
    parts = []
    for piece in sharding.pieces[rank]:
        first = bisect.bisect_right(sharding.documents, piece.start) - 1
        last = bisect.bisect_left(sharding.documents, piece.stop)
        keys = sharding.documents[first : last + 1]
        if sharding.causal:
            keys = [*keys[:-1], piece.stop]  # the diagonal ends at the last query
        columns = slice(keys[0], keys[-1])
        parts.append(
            Part(
                piece.rows,
                columns,
                sharding.causal,
                _within(piece, sharding.documents),
                [n - keys[0] for n in keys],
            )
        )
    return parts


def whole_part(sharding: Sharding) -> Part:
    """All queries and keys, in the order of the sequence."""
    everything = slice(0, sharding.total)
    return Part(everything, everything, sharding.causal, sharding.documents, sharding.documents)


def forward_of(
    part: Part, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [batch, rows, heads, head_dim] and lse [batch, heads, rows] of a part, k and v being
    those of one process or of all."""
    tensors = (q[:, part.rows], k[:, part.columns], v[:, part.columns])
    if part.cu_seqlens_q is None:
        return attention(*tensors, return_lse=True, **part.options(options))
    out, lse = attention(*(t[0] for t in tensors), return_lse=True, **part.options(options))
    return out[None], lse[None]


def backward_of(
    part: Part,
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dlse: torch.Tensor | None,
    options: dict[str, Any],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq of the part's rows, dk and dv of its columns. With out and lse of all keys a part's
    gradients are those of the whole."""
    tensors = [t[:, part.rows] for t in (dout, q)] + [t[:, part.columns] for t in (k, v)]
    tensors += [out[:, part.rows], lse[:, :, part.rows]]
    dlse = None if dlse is None else dlse[:, :, part.rows].contiguous()
    if part.cu_seqlens_q is None:
        return attention_backward(*tensors, dlse=dlse, **part.options(options))[:3]
    tensors = [t[0] for t in tensors]
    gradients = attention_backward(
        *tensors, dlse=None if dlse is None else dlse[0], **part.options(options)
    )
    dq, dk, dv = (t[None] for t in gradients[:3])
    return dq, dk, dv


def place(whole: torch.Tensor, part: torch.Tensor, pieces: list[Piece], dim: int = 1) -> None:
    """Writes one process's rows, which are along dim, into the whole sequence."""
    for piece in pieces:
        length = piece.stop - piece.start
        whole.narrow(dim, piece.start, length).copy_(part.narrow(dim, piece.row, length))


def take(whole: torch.Tensor, pieces: list[Piece], dim: int = 1) -> torch.Tensor:
    """One process's rows of the whole sequence."""
    return torch.cat(
        [whole.narrow(dim, piece.start, piece.stop - piece.start) for piece in pieces], dim
    )
