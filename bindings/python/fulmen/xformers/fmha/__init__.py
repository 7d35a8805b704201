"""xformers.ops.fmha: the attention, and the biases of attn_bias."""

from fulmen.xformers._attention import (
    memory_efficient_attention,
    memory_efficient_attention_forward,
    memory_efficient_attention_forward_requires_grad,
)
from fulmen.xformers.fmha import attn_bias
from fulmen.xformers.fmha.attn_bias import *  # noqa: F403

__all__ = [
    "attn_bias",
    "memory_efficient_attention",
    "memory_efficient_attention_forward",
    "memory_efficient_attention_forward_requires_grad",
    *attn_bias.__all__,
]
