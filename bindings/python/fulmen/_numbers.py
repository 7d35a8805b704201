"""Tensors of a few numbers as people have them: lists, and integers that are not int32, become what
fulmen._core takes.

The functions that compute with NumPy import it. `import fulmen` does not: NumPy would be most of
its time, and torch's users may have none.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

INTEGERS = (
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqlens_k",
    "leftpad_k",
    "block_table",
    "cache_batch_idx",
)
SCALES = ("k_scale", "v_scale", "q_scale")
FLOATS = ("alibi_slopes", "sinks", *SCALES)
# What sinks may be besides float32, to which they are converted.
OTHER_SINKS = ("float16", "bfloat16", "float64")
_LEAST, _MOST = -(2**31), 2**31 - 1


def is_of_numpy(value: Any, kind: str = "ndarray") -> bool:
    """Whether it is an array of NumPy, or of the other class that is named."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, getattr(numpy, kind, ()))


def of_one_dim(name: str, value: Any) -> Any:
    """A scale that is a number, or an array without dims, as one of the whole tensor; anything else
    as it is."""
    if name not in SCALES or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return [value]
    return value.reshape(1) if getattr(value, "ndim", None) == 0 else value


def host_numbers(name: str, value: Any, like: Any = None) -> Any:
    """A list, or a NumPy array of integers, as a NumPy array of int32, lists for FLOATS as float32,
    scales without dims as [1]; anything else as it is.

    Integers beyond int32 become its limits, which the checks of lengths refuse. Sinks of
    OTHER_SINKS become float32, those of other libraries, too.
    """
    value = of_one_dim(name, value)
    is_list = isinstance(value, list | tuple)
    if name == "sinks" and value is not None and not is_list:
        return _sinks_in_float32(value)
    if not is_list and (not is_of_numpy(value) or value.dtype == "int32" or name not in INTEGERS):
        if name in INTEGERS and (isinstance(value, int | float) or is_of_numpy(value, "generic")):
            raise TypeError(
                f"{name} is {value!r}, of type {type(value).__name__}: an array or a list of "
                "integers is accepted"
            )
        return value
    try:
        import numpy as np
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{name} is a list, which needs NumPy: pip install numpy", name="numpy"
        ) from None

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


def name_of_dtype(array: Any) -> str:
    """Such as "float16", of any library's array; empty where it has no dtype."""
    dtype = getattr(array, "dtype", "")
    return getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]


def is_of_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def wrong_sinks(dtype: str) -> TypeError:
    return TypeError(
        f"sinks has dtype {dtype}: float32, float16, bfloat16 and float64 are accepted"
    )


def _sinks_in_float32(value: Any) -> Any:
    """As they are where they have no dtype and NumPy can't read them."""
    if not hasattr(value, "dtype") and hasattr(value, "__dlpack__"):
        import numpy as np

        try:
            value = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError):  # not in host memory, or bfloat16
            return value
    dtype = name_of_dtype(value)
    if dtype in ("", "float32"):
        return value
    if dtype not in OTHER_SINKS:
        raise wrong_sinks(dtype)
    if is_of_torch(value):
        return value.detach().float()
    if hasattr(value, "astype"):
        return value.astype("float32")
    namespace = value.__array_namespace__()
    return namespace.astype(value, namespace.float32)


def between_roundings(exact: np.ndarray, rounded: np.ndarray, dtype: str) -> np.ndarray:
    """Of the numbers that dtype (one of OTHER_SINKS) rounds to rounded, those nearest to exact, in
    float32: their error is what rounding does not explain.
    """
    import numpy as np

    if dtype == "float64":
        return rounded.astype(np.float32)
    digits, least, too_large = (11, -14, 65520.0) if dtype == "float16" else (8, -126, 2.0**128)
    half_ulp = np.ldexp(1.0, np.maximum(np.frexp(rounded)[1] - 1, least) - digits)
    nearest = np.clip(exact, rounded - half_ulp, rounded + half_ulp)
    overflows = np.isinf(rounded) & (np.abs(exact) >= too_large)
    overflows &= np.sign(exact) == np.sign(rounded)
    return np.where(overflows, exact, nearest).astype(np.float32)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
