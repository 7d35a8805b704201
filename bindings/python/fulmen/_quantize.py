"""Between numbers and the formats of keys and values in 8 bits and less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fulmen import _core
from fulmen._core import ArgumentError
from fulmen._numbers import is_of_numpy, is_of_torch, name_of_dtype

if TYPE_CHECKING:
    from fulmen._arguments import Array

Per: TypeAlias = Literal["tensor", "head", "batch_and_head", "token", "channel"]
Format: TypeAlias = Literal["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"]
_FORMATS = ("int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
# The bytes of a block of 32 numbers.
BLOCK_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24}
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
) -> tuple[Array, Array | None]:
    """Keys or values in 8 bits and their scales, which attention() takes as k_scale and v_scale, or
    in blocks of 32 numbers.

    Args:
      numbers: [batch, seqlen, kv_heads, head_dim], float32, float16 or bfloat16: a NumPy array, or
        a torch tensor on the CPU.
      dtype: "int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz" or "float8_e5m2fnuz"; NumPy
        needs ml_dtypes for float8. Or a format of llama.cpp's blocks, "q8_0", "q4_0", "q4_1",
        "q5_0" or "q5_1": head_dim is then a multiple of 32, and there are no scales.
      per: what shares a scale: "tensor", "head", "batch_and_head", "token" (and head) or "channel"
        (of a head of a sequence; for k alone). The largest |number| of it becomes the format's
        largest. Not read for blocks.
      scale: the scales, float32 or float16, of numbers' dims, each of which may be 1; per is then
        not read.

    Returns:
      The numbers divided by their scales, rounded to the nearest, and the scales, float32 [1 or
      batch, 1 or seqlen, 1 or kv_heads, 1 or head_dim]. A NaN or an infinity makes what shares its
      scale NaN. For blocks their bytes, uint8 [batch, seqlen, kv_heads, head_dim / 32 * the bytes
      of a block], which attention() takes with k_format and v_format, and None.
    """
    if dtype not in _FORMATS and dtype not in BLOCK_BYTES:
        raise ArgumentError(
            f"dtype is {dtype!r}: {', '.join((*_FORMATS, *BLOCK_BYTES))} are accepted"
        )
    if per not in _OWN:
        raise ArgumentError(f"per is {per!r}: {', '.join(_OWN)} are accepted")
    shape = tuple(numbers.shape)
    if len(shape) != 4:
        raise ArgumentError(
            f"numbers has shape {list(shape)}: [batch, seqlen, kv_heads, head_dim] is accepted"
        )
    if dtype in BLOCK_BYTES:
        if scale is not None:
            raise ArgumentError(
                f"scale is given: blocks of {dtype} have their own, None is accepted"
            )
        if shape[3] % 32 != 0:
            raise ArgumentError(
                f"numbers has head_dim {shape[3]}: a multiple of 32 is accepted for {dtype}"
            )
        blocks = _empty(numbers, (*shape[:3], shape[3] // 32 * BLOCK_BYTES[dtype]), "uint8")
        _core.quantize_kv(numbers, in_format("quantized", blocks, dtype), None, False)
        return blocks, None
    given = scale is not None
    if not given:
        of_scale = tuple(n if d in _OWN[per] else 1 for d, n in enumerate(shape))
        scale = _empty(numbers, of_scale, "float32")
    quantized = _empty(numbers, shape, dtype)
    _core.quantize_kv(numbers, quantized, scale, given)
    return quantized, scale


def dequantize_kv(
    quantized: Array,
    scale: Array | None = None,
    dtype: str = "float32",
    format: Format | None = None,
) -> Array:
    """quantize_kv's way back: the numbers times their scales, rounded to dtype ("float32",
    "float16" or "bfloat16").

    format: of quantized, where it holds the bytes of blocks.
    """
    if dtype not in _FLOATS:
        raise ArgumentError(f"dtype is {dtype!r}: {', '.join(_FLOATS)} are accepted")
    shape = tuple(quantized.shape)
    stored = quantized
    if format is not None:
        stored = in_format("quantized", quantized, format)
        shape = (*shape[:-1], shape[-1] // BLOCK_BYTES[format] * 32)
    numbers = _empty(quantized, shape, dtype)
    _core.dequantize_kv(stored, scale, numbers)
    return numbers


def in_format(name: str, blocks: Any, format: str | None) -> Any:
    """The bytes of blocks as fulmen._core takes them; what has no format as it is."""
    if format is None:
        return blocks
    if format not in BLOCK_BYTES:
        raise ArgumentError(
            f"the format of {name} is {format!r}: {', '.join(BLOCK_BYTES)} are accepted, and None "
            "for what its dtype tells"
        )
    dtype = name_of_dtype(blocks)
    if dtype not in ("uint8", "int8"):
        raise TypeError(f"{name} has dtype {dtype}: with format {format} uint8 is accepted")
    if is_of_torch(blocks):
        import torch

        return blocks.view(torch.int8), format
    if not is_of_numpy(blocks):
        raise TypeError(
            f"{name} is of type {type(blocks).__name__}: with format {format} a NumPy array or a "
            "torch tensor is accepted"
        )
    return blocks.view("int8"), format


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
