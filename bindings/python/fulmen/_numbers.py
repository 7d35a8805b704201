"""Tensors of a few numbers as people have them: lists, and integers that are not int32, become what
fulmen._core takes."""

from __future__ import annotations

from typing import Any

import numpy as np

INTEGERS = (
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqlens_k",
    "leftpad_k",
    "block_table",
    "cache_batch_idx",
)
FLOATS = ("alibi_slopes", "sinks", "k_scale", "v_scale")
# What sinks may be besides float32, to which they are converted.
OTHER_SINKS = ("float16", "bfloat16", "float64")
_LEAST, _MOST = np.iinfo(np.int32).min, np.iinfo(np.int32).max


def host_numbers(name: str, value: Any, like: Any = None) -> Any:
    """A list, or a NumPy array of integers, as a NumPy array of int32, lists for FLOATS as float32;
    anything else as it is.

    Integers beyond int32 become its limits, which the checks of lengths refuse. Sinks of
    OTHER_SINKS become float32.
    """
    if name == "sinks" and isinstance(value, np.ndarray):
        return value.astype(np.float32) if value.dtype.name in OTHER_SINKS else value
    is_list = isinstance(value, list | tuple)
    if not is_list and (
        not isinstance(value, np.ndarray) or value.dtype == np.int32 or name not in INTEGERS
    ):
        if name in INTEGERS and isinstance(value, int | float | np.generic):
            raise TypeError(
                f"{name} is {value!r}, of type {type(value).__name__}: an array or a list of "
                "integers is accepted"
            )
        return value
    wanted = "integers" if name in INTEGERS else "numbers"
    try:
        array = np.array(value) if is_list else value
    except ValueError:
        array = np.empty(0, object)  # of lists of different lengths
    if is_list and array.size == 0 and array.dtype != object:
        return array.astype(np.int32 if name in INTEGERS else np.float32)
    if array.dtype.kind not in ("iu" if name in INTEGERS else "iuf"):
        if is_list:
            raise TypeError(
                f"{name} is {_shown(value)}: a list of {wanted}, or of rows of equal length, is "
                "accepted"
            )
        raise TypeError(
            f"{name} has dtype {array.dtype}: int32 is accepted, and other integers, which are "
            "converted"
        )
    if name in FLOATS:
        return array.astype(np.float32)
    if array.dtype == np.uint64:
        array = np.minimum(array, _MOST)
    return np.clip(array.astype(np.int64), _LEAST, _MOST).astype(np.int32)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
