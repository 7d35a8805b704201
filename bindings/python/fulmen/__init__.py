"""Exact attention as one fused operation: softmax(softmax_scale * q k^T + bias, masked) v, and its
gradients.

`attention` takes NumPy arrays (float32, float16, `ml_dtypes.bfloat16`), torch tensors on any
device, and anything else with DLPack. `fulmen.torch` has what only PyTorch needs. docs/contract.md
of the sources has the exact semantics.
"""

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
    "plan",
    "quantize_kv",
    "verify",
]
