"""Why a function can't be traced, and where in its source."""

from __future__ import annotations

import linecache
import os
import sys
from types import FrameType, TracebackType
from typing import Any

from fulmen._core import ArgumentError

# Files of these packages are not where a user's function has its lines.
_NOT_USERS = ("fulmen", "torch", "numpy", "jax", "jaxlib")


class TraceError(ArgumentError):
    """A function that flex_attention can't read; the message names the line that it can't, and
    what is accepted."""


class Refusal(Exception):
    """Inside of a trace: what can't be traced, in words, and what is accepted instead."""

    def __init__(self, reason: str, accepted: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.accepted = reason, accepted
        self.where = _users(sys._getframe(1))


ACCEPTED = (
    "operators, where, minimum, maximum, clamp, abs, exp, exp2, log, log2, tanh, sqrt, rsqrt, "
    "sigmoid, sin, cos, erf, floor, ceil, round, trunc, pow, and tensors that are indexed"
)


def _is_users(file: str) -> bool:
    parts = file.replace("\\", "/").split("/")
    if file.startswith("<"):
        return not file.startswith("<frozen") and not file.startswith("<__array_function__")
    for name in _NOT_USERS:
        module = sys.modules.get(name)
        folder = os.path.dirname(getattr(module, "__file__", None) or "")
        if folder and file.startswith(folder + os.sep):
            return False
    return "site-packages" not in parts or parts[parts.index("site-packages") + 1] not in _NOT_USERS


def _users(frame: FrameType | None) -> tuple[str, int, str] | None:
    """File, line and function of the innermost frame of the user's."""
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return None


def _of_traceback(traceback: TracebackType | None) -> tuple[str, int, str] | None:
    """The same of an error's traceback."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if _is_users(code.co_filename):
            found = code.co_filename, traceback.tb_lineno, code.co_name
        traceback = traceback.tb_next
    return found


def _where(function: Any, place: tuple[str, int, str] | None) -> str:
    code = getattr(function, "__code__", None)
    if place is None:
        if code is None:
            return ""
        place = code.co_filename, code.co_firstlineno, code.co_name
    file, line, name = place
    source = linecache.getline(file, line).strip()
    return f" at {file}:{line}, in {name}{': ' + source if source else ''}"


def refused(kind: str, function: Any, error: Exception) -> TraceError:
    """The error that the caller sees. kind: "score_mod" or "mask_mod"."""
    if isinstance(error, Refusal):
        place, reason, accepted = error.where, error.reason, error.accepted or ACCEPTED
        said = f"{reason}; accepted: {accepted}"
    else:
        place = _of_traceback(error.__traceback__)
        said = f"{type(error).__name__}: {error}"
    return TraceError(f"{kind} can't be traced{_where(function, place)}: {said}")
