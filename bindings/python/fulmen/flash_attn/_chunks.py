"""FlashAttention 3's attention_chunk, by options that every kernel has.

Query i of a sequence is at position i + seqlen_k - seqlen_q. It attends the keys of its own chunk
alone: `chunk` keys from the multiple of `chunk` at or before its position. Before key 0 there is
nothing to attend.
"""

from __future__ import annotations

import torch

from fulmen._core import ArgumentError
from fulmen.flash_attn.flash_attn_interface import say


def check_chunk(chunk: int) -> None:
    if chunk < 0:
        raise ArgumentError(
            f"attention_chunk is {chunk}: 0, which is off, or a number of keys is accepted"
        )


def packed_chunks(
    cu_q: torch.Tensor, cu_k: torch.Tensor, chunk: int, most_q: int, most_k: int, most_behind: int
) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """cu_seqlens_q, cu_seqlens_k [parts + 1], max_seqlen_q and max_seqlen_k with each chunk as a
    sequence of its own.

    Causal masks and windows stay what they are: in a part that has queries and keys, the last query
    is as far behind the last key as in the whole sequence, or both are the sequence's last. How
    many parts there are, the host knows without lengths.

    Args:
      cu_q, cu_k: [batch + 1]. most_q, most_k: no sequence is longer.
      most_behind: no sequence has so many more queries than keys: their first ones attend nothing.
    """
    chunk = min(chunk, max(most_k, 1))
    before, after = -(-most_behind // chunk), max(-(-most_k // chunk), 1)
    say(
        f"attention_chunk is served as packed sequences, {before + after} of up to {chunk} keys "
        f"for each of {len(cu_q) - 1}"
    )
    ends = chunk * torch.arange(1 - before, after + 1, device=cu_q.device)
    lengths_q, lengths_k = cu_q.diff()[:, None], cu_k.diff()[:, None]
    ends_q = cu_q[:-1, None] + torch.minimum((ends - lengths_k + lengths_q).clamp(min=0), lengths_q)
    ends_k = cu_k[:-1, None] + torch.minimum(ends.clamp(min=0), lengths_k)
    # If a sequence is longer than it may be, its last part is, too, and is refused.
    ends_q[:, -1], ends_k[:, -1] = cu_q[1:], cu_k[1:]
    cu_q, cu_k = (
        torch.cat((cu[:1], ends.flatten())).to(torch.int32)
        for cu, ends in ((cu_q, ends_q), (cu_k, ends_k))
    )
    return cu_q, cu_k, min(chunk, most_q), min(chunk, most_k)


def first_used_rows(used: torch.Tensor, leftpad: torch.Tensor | None, chunk: int) -> torch.Tensor:
    """leftpad_k [batch] at the last used row's chunk: all that one query of each sequence
    attends."""
    say("attention_chunk is served by leftpad_k: keys before a sequence's last chunk are not read")
    skipped = torch.zeros_like(used) if leftpad is None else leftpad
    return (skipped + (used - skipped - 1).clamp(min=0) // chunk * chunk).to(torch.int32)


def chunk_mask(
    used: torch.Tensor,
    leftpad: torch.Tensor | None,
    lengths_q: torch.Tensor | int,
    chunk: int,
    most_q: int,
    most_k: int,
) -> torch.Tensor:
    """keep_mask [batch, 1, most_q, most_k] of the queries' own chunks, keys counted from
    leftpad."""
    say(
        f"attention_chunk is served by a keep_mask of {most_q} queries and {most_k} keys for each "
        f"of {len(used)} sequences"
    )
    behind = used - lengths_q if leftpad is None else used - leftpad - lengths_q
    position = behind[:, None, None, None] + torch.arange(most_q, device=used.device)[:, None]
    first = position.div(chunk, rounding_mode="floor") * chunk
    key = torch.arange(most_k, device=used.device)
    return (key >= first) & (key < first + chunk)
