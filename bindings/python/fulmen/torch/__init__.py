"""The parts that only PyTorch needs (2.4 and later).

fulmen.attention() takes torch tensors by itself: on any device, with autograd, under torch.compile,
torch.func and autocast. Here are its forms that PyTorch users know: a module, torch's own function,
which can also be replaced by Fulmen's, attention of pair representations, and attention of a
sequence that is spread over processes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from fulmen.torch import _frontend as _frontend
from fulmen.torch import _ops as _ops  # registers torch.ops.fulmen
from fulmen.torch import _transforms as _transforms

if TYPE_CHECKING:
    from fulmen.torch._cuequivariance import install_cuequivariance, uninstall_cuequivariance
    from fulmen.torch._evoformer import DS4Sci_EvoformerAttention
    from fulmen.torch._flex_routed import disable_flex, enable_flex
    from fulmen.torch._module import FlashAttention
    from fulmen.torch._sdpa import disable_sdpa, enable_sdpa, scaled_dot_product_attention, sdpa
    from fulmen.torch._triangle import triangle_attention
    from fulmen.torch.context_parallel import context_parallel_attention, context_parallel_explain
    from fulmen.torch.ring import ring_attention, ring_gather, ring_seqlens, ring_shard

# Imported at their first use: the first call of attention() waits for the import of this module.
_MODULES = {
    **dict.fromkeys(("FlashAttention",), "_module"),
    **dict.fromkeys(
        ("disable_sdpa", "enable_sdpa", "scaled_dot_product_attention", "sdpa"), "_sdpa"
    ),
    "DS4Sci_EvoformerAttention": "_evoformer",
    **dict.fromkeys(("disable_flex", "enable_flex"), "_flex_routed"),
    "triangle_attention": "_triangle",
    **dict.fromkeys(("install_cuequivariance", "uninstall_cuequivariance"), "_cuequivariance"),
    **dict.fromkeys(("context_parallel_attention", "context_parallel_explain"), "context_parallel"),
    **dict.fromkeys(("ring_attention", "ring_gather", "ring_seqlens", "ring_shard"), "ring"),
}


def _activate() -> Any:
    from fulmen.torch._flash_impl import Active

    return Active()


# torch 2.11 and later: activate_flash_attention_impl("fulmen") then finds it.
if hasattr(torch.nn.attention, "register_flash_attention_impl"):
    torch.nn.attention.register_flash_attention_impl("fulmen", register_fn=_activate)


def __getattr__(name: str) -> Any:
    if name in _MODULES.values():
        return importlib.import_module(f"fulmen.torch.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(
        importlib.import_module(f"fulmen.torch.{_MODULES[name]}"), name
    )
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


__all__ = [
    "DS4Sci_EvoformerAttention",
    "FlashAttention",
    "context_parallel_attention",
    "context_parallel_explain",
    "disable_flex",
    "disable_sdpa",
    "enable_flex",
    "enable_sdpa",
    "install_cuequivariance",
    "ring_attention",
    "ring_gather",
    "ring_seqlens",
    "ring_shard",
    "scaled_dot_product_attention",
    "sdpa",
    "triangle_attention",
    "uninstall_cuequivariance",
]
