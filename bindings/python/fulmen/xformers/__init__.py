"""xformers.ops' attention, by the same names: `import fulmen.xformers as xops`,
`xops.memory_efficient_attention(q, k, v)`."""

from fulmen.xformers import fmha
from fulmen.xformers._attention import (
    memory_efficient_attention,
    memory_efficient_attention_forward,
    memory_efficient_attention_forward_requires_grad,
)
from fulmen.xformers.fmha.attn_bias import AttentionBias, LowerTriangularMask

__all__ = [
    "AttentionBias",
    "LowerTriangularMask",
    "fmha",
    "memory_efficient_attention",
    "memory_efficient_attention_forward",
    "memory_efficient_attention_forward_requires_grad",
]
