"""What only PyTorch needs (2.4 and later).

fulmen.attention() takes torch tensors by itself: on any device, with autograd, under torch.compile, torch.func and autocast. Here
are its forms that PyTorch users know: a module, torch's own function, which can also be replaced by Fulmen's, and attention of a
sequence that is spread over processes.
"""

from fulmen.torch import _ops as _ops  # registers torch.ops.fulmen
from fulmen.torch import _transforms as _transforms
from fulmen.torch._module import FlashAttention
from fulmen.torch._sdpa import disable_sdpa, enable_sdpa, scaled_dot_product_attention, sdpa
from fulmen.torch.context_parallel import context_parallel_attention, context_parallel_explain
from fulmen.torch.ring import ring_attention, ring_gather, ring_seqlens, ring_shard

__all__ = [
    "FlashAttention",
    "context_parallel_attention",
    "context_parallel_explain",
    "disable_sdpa",
    "enable_sdpa",
    "ring_attention",
    "ring_gather",
    "ring_seqlens",
    "ring_shard",
    "scaled_dot_product_attention",
    "sdpa",
]
