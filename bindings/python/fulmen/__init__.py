"""Exact attention as one fused operation: softmax(softmax_scale * q k^T + bias, masked) v, and its
gradients.

`attention` takes NumPy arrays (float32, float16, `ml_dtypes.bfloat16`), torch tensors on any
device, and anything else with DLPack. `fulmen.torch` has what only PyTorch needs. docs/contract.md
of the sources has the exact semantics.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fulmen._core import ArgumentError, __version__
from fulmen._functions import (
    Device,
    Gradients,
    Plan,
    VerificationError,
    VerifyReport,
    append_kv,
    attention,
    attention_backward,
    attention_backward_reference,
    attention_reference,
    devices,
    dropout_mask,
    explain,
    plan,
    verify,
)
from fulmen._prebuilt import add_prebuilt_kernels
from fulmen._quantize import dequantize_kv, quantize_kv

if TYPE_CHECKING:
    from fulmen.flex import flex_attention


def __getattr__(name: str) -> Any:
    """fulmen.flex, and its function, which the first use imports."""
    if name not in ("flex", "flex_attention"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    flex = importlib.import_module("fulmen.flex")
    globals()["flex_attention"] = flex.flex_attention
    return flex if name == "flex" else flex.flex_attention


__all__ = [
    "ArgumentError",
    "Device",
    "Gradients",
    "Plan",
    "VerificationError",
    "VerifyReport",
    "__version__",
    "add_prebuilt_kernels",
    "append_kv",
    "attention",
    "attention_backward",
    "attention_backward_reference",
    "attention_reference",
    "dequantize_kv",
    "devices",
    "dropout_mask",
    "explain",
    "flex_attention",
    "plan",
    "quantize_kv",
    "verify",
]
