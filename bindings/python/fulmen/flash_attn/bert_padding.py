"""Between padded and packed sequences: the functions of flash_attn.bert_padding. All are
differentiable."""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = [
    "index_first_axis",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]


def index_first_axis(input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows of input [rows, ...], in the order of indices [n]: [n, ...]."""
    return input.index_select(0, indices)


def index_put_first_axis(
    values: torch.Tensor, indices: torch.Tensor, first_axis_dim: int
) -> torch.Tensor:
    """[first_axis_dim, ...]: values [n, ...] at the rows indices [n], zeros elsewhere."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices.long(), values)


def unpad_input(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    unused_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Packs the rows that a mask keeps.

    Args:
      hidden_states: [batch, seqlen, ...]. attention_mask: [batch, seqlen], bool or integer, not 0
          is kept.
      unused_mask: the same of rows that have a place in the result and are not used; None is none.

    Returns:
      (packed rows [total, ...], their indices in the flattened input [total], cu_seqlens
      [batch + 1] int32, the longest sequence, used rows of each sequence [batch] int32).
    """
    used = attention_mask != 0
    placed = used if unused_mask is None else used | (unused_mask != 0)
    lengths = placed.sum(-1, dtype=torch.int32)
    indices = placed.flatten().nonzero().flatten()
    return (
        index_first_axis(hidden_states.flatten(0, 1), indices),
        indices,
        _cumulative(lengths),
        _longest(lengths),
        used.sum(-1, dtype=torch.int32),
    )


def unpad_input_for_concatenated_sequences(
    hidden_states: torch.Tensor, attention_mask_in_length: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """unpad_input of rows that hold several sequences, one after another.

    Args:
      hidden_states: [batch, seqlen, ...].
      attention_mask_in_length: [batch, seqlen], integers: the lengths of each row's sequences, and
          zeros.

    Returns:
      (packed rows [total, ...], their indices [total], cu_seqlens [sequences + 1] int32, the
          longest sequence).
    """
    filled = attention_mask_in_length.sum(-1, keepdim=True)
    kept = torch.arange(attention_mask_in_length.shape[-1], device=filled.device) < filled
    lengths = attention_mask_in_length[attention_mask_in_length != 0]
    indices = kept.flatten().nonzero().flatten()
    return (
        index_first_axis(hidden_states.flatten(0, 1), indices),
        indices,
        _cumulative(lengths),
        _longest(lengths),
    )


def pad_input(
    hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int
) -> torch.Tensor:
    """[batch, seqlen, ...]: packed rows [total, ...] back at their indices [total], zeros
    elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(
        0, (batch, seqlen)
    )


def _cumulative(lengths: torch.Tensor) -> torch.Tensor:
    return F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def _longest(lengths: torch.Tensor) -> int:
    return int(lengths.max()) if lengths.numel() else 0
