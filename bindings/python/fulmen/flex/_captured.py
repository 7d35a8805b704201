"""Captured arrays as arrays of the queries' library."""

from __future__ import annotations

import sys
from typing import Any

from fulmen._core import ArgumentError
from fulmen._numbers import is_of_numpy, is_of_torch, name_of_dtype

# dtypes that kernels do not read, and those that hold their values; float64 is rounded.
_CONVERTED = {
    "float64": "float32",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "int64",
}


def kind_for(device: Any) -> tuple[Any, Any]:
    """The library that makes arrays for a device, and the device: torch where it is imported."""
    torch = sys.modules.get("torch")
    if torch is None and device is not None:
        import torch  # a device is torch's
    if torch is None:
        import numpy

        return numpy, None
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch, torch.empty(0, device=device).device  # with its number


def as_kind(array: Any, arrays: Any, device: Any, name: str) -> Any:
    """The array as one of torch (on that device) or of NumPy, in a dtype that kernels read."""
    dtype = _CONVERTED.get(name_of_dtype(array), name_of_dtype(array))
    if arrays.__name__ == "torch":
        if not is_of_torch(array):
            array = arrays.as_tensor(_writable(array))
        if array.device != device:
            if array.dim() and array.device.type != "cpu":
                raise ArgumentError(f"{name} is on {array.device}, the queries are on {device}")
            array = array.to(device)
        return array.to(getattr(arrays, dtype))
    if is_of_torch(array):
        array = array.detach().cpu()
        array = (array.float() if dtype == "bfloat16" else array).numpy()
        dtype = "float32" if dtype == "bfloat16" else dtype
    array = arrays.asarray(array)
    return array if name_of_dtype(array) == dtype else array.astype(dtype)


def _writable(array: Any) -> Any:
    """torch warns of arrays that it may not write."""
    import numpy

    array = numpy.asarray(array)
    return array if array.flags.writeable and is_of_numpy(array) else array.copy()
