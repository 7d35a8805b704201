"""A backend of one's own, by the C ABI of the library that fulmen has loaded."""

import ctypes
from pathlib import Path
from typing import Any

import fulmen


class Tensors(ctypes.Structure):  # the beginning of fulmen_tensors
    class View(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p),
            ("dtype", ctypes.c_int32),
            ("shape", ctypes.c_int64 * 4),
            ("strides", ctypes.c_int64 * 4),
            ("reserved", ctypes.c_uint64 * 2),
        )

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("q", View),
        ("k", View),
        ("v", View),
        ("out", View),
    )


class _Backend(ctypes.Structure):  # fulmen_backend
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("kernel_name", ctypes.c_char_p),
        ("rank", ctypes.c_double),
        ("context", ctypes.c_void_p),
        ("supports", ctypes.c_void_p),
        ("run", ctypes.c_void_p),
    )


def register(name: str, run: Any, context: int | None = None, supports: Any = None) -> None:
    """run, a C function, is called for attention(device=name) with context, the stream, the tensors
    and the options; supports when a call is planned."""
    library = ctypes.CDLL(str(next(Path(fulmen.__file__).parent.glob("libfulmen.so*"))))
    names = name.encode(), f"{name}.kernel.c".encode()
    asked, called = (
        None if function is None else ctypes.cast(function, ctypes.c_void_p)
        for function in (supports, run)
    )
    backend = _Backend(ctypes.sizeof(_Backend), *names, 1.0, context, asked, called)
    assert library.fulmen_register_backend(ctypes.byref(backend)) == 0
