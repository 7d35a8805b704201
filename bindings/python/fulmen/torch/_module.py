"""Attention as a torch.nn.Module."""

from __future__ import annotations

import torch

from fulmen._arguments import Causal
from fulmen._core import ArgumentError
from fulmen._functions import attention


class FlashAttention(torch.nn.Module):
    """softmax(softmax_scale * q k^T, masked) v as a module: attn(q, k, v, causal=True).

    Args:
      softmax_scale: None is 1 / sqrt(head_dim).
      attention_dropout: the probability that an element of the softmax is dropped in training mode;
          torch's generator chooses.
    """

    def __init__(self, softmax_scale: float | None = None, attention_dropout: float = 0.0) -> None:
        super().__init__()
        if not 0 <= attention_dropout < 1:
            raise ArgumentError(
                f"attention_dropout is {attention_dropout}: 0 or more, and less than 1, is accepted"
            )
        self.softmax_scale = softmax_scale
        self.attention_dropout = attention_dropout

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: Causal = False
    ) -> torch.Tensor:
        """q: [batch, seqlen_q, heads, head_dim]; k, v: [batch, seqlen_k, kv_heads, head_dim]; see
        fulmen.attention."""
        dropout = self.attention_dropout if self.training else 0.0
        return attention(q, k, v, softmax_scale=self.softmax_scale, causal=causal, dropout=dropout)

    def extra_repr(self) -> str:
        return f"softmax_scale={self.softmax_scale}, attention_dropout={self.attention_dropout}"
