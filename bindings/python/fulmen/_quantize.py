"""Between numbers and the 8-bit formats of keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fulmen import _core
from fulmen._core import ArgumentError
from fulmen._numbers import is_of_torch

if TYPE_CHECKING:
    from fulmen._arguments import Array

Per: TypeAlias = Literal["tensor", "head", "batch_and_head", "token", "channel"]
_FORMATS = ("int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_FLOATS = ("float32", "float16", "bfloat16")
# Of [batch, seqlen, kv_heads, head_dim], which dims have scales of their own.
_OWN = {
    "tensor": (),
    "head": (2,),
    "batch_and_head": (0, 2),
    "token": (0, 1, 2),
    "channel": (0, 2, 3),
}


def quantize_kv(
    numbers: Array,
    dtype: str = "int8",
    per: Per = "token",
    scale: Array | None = None,
) -> tuple[Array, Array]:
    """Keys or values in 8 bits, and their scales, which attention() takes as k_scale and v_scale.

    Args:
      numbers: [batch, seqlen, kv_heads, head_dim], float32, float16 or bfloat16: a NumPy array, or
        a torch tensor on the CPU.
      dtype: "int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz" or "float8_e5m2fnuz"; NumPy
        needs ml_dtypes for float8.
      per: what shares a scale: "tensor", "head", "batch_and_head", "token" (and head) or "channel"
        (of a head of a sequence; for k alone). The largest |number| of it becomes the format's
        largest.
      scale: the scales, float32 or float16, of numbers' dims, each of which may be 1; per is then
        not read.

    Returns:
      The numbers divided by their scales, rounded to the nearest, and the scales, float32 [1 or
      batch, 1 or seqlen, 1 or kv_heads, 1 or head_dim]. A NaN or an infinity makes what shares its
      scale NaN.
    """
    if dtype not in _FORMATS:
        raise ArgumentError(f"dtype is {dtype!r}: {', '.join(_FORMATS)} are accepted")
    if per not in _OWN:
        raise ArgumentError(f"per is {per!r}: {', '.join(_OWN)} are accepted")
    shape = tuple(numbers.shape)
    if len(shape) != 4:
        raise ArgumentError(
            f"numbers has shape {list(shape)}: [batch, seqlen, kv_heads, head_dim] is accepted"
        )
    given = scale is not None
    if not given:
        of_scale = tuple(n if d in _OWN[per] else 1 for d, n in enumerate(shape))
        scale = _empty(numbers, of_scale, "float32")
    quantized = _empty(numbers, shape, dtype)
    _core.quantize_kv(numbers, quantized, scale, given)
    return quantized, scale


def dequantize_kv(quantized: Array, scale: Array | None = None, dtype: str = "float32") -> Array:
    """quantize_kv's way back: the numbers times their scales, rounded to dtype ("float32",
    "float16" or "bfloat16").
    """
    if dtype not in _FLOATS:
        raise ArgumentError(f"dtype is {dtype!r}: {', '.join(_FLOATS)} are accepted")
    numbers = _empty(quantized, tuple(quantized.shape), dtype)
    _core.dequantize_kv(quantized, scale, numbers)
    return numbers


def _empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    if is_of_torch(like):
        import torch

        # Not on torch's default device.
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    import numpy as np

    if dtype.startswith(("float8", "bfloat16")):
        import ml_dtypes

        return np.empty(shape, getattr(ml_dtypes, dtype))
    return np.empty(shape, dtype)
