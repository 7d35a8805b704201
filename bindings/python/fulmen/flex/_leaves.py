"""What a function refers to: the key by which a trace of it is found again, and the tensors that it
captures."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from fulmen._numbers import is_of_numpy

# Modules whose functions and attributes stay what they are.
_UNCHANGING = (
    "builtins",
    "fulmen",
    "functools",
    "itertools",
    "jax",
    "math",
    "numpy",
    "operator",
    "torch",
)
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range)


def _names(code: types.CodeType) -> Iterator[str]:
    """Global names that a code may read, those of its inner functions, too."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _names(one)


def names_of(function: types.FunctionType) -> tuple[str, ...]:
    """The global names that a function may read."""
    return tuple(sorted(set(_names(function.__code__))))


def globals_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    there = function.__globals__
    for name in names_of(function):
        if name in there:
            yield name, there[name]


def contents(function: types.FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # empty
            found.append(None)
    return found


# Names by which a function reaches what globals_of() does not see, or makes numbers of its own.
_HIDDEN = frozenset(("globals", "eval", "exec", "__import__", "random"))


@functools.lru_cache(maxsize=1024)
def reaches_more(code: types.CodeType) -> bool:
    """Whether a code reads what is in none of its cells, defaults and globals: modules that it
    imports itself."""
    imported = (
        one.argval for one in dis.get_instructions(code) if one.opname.startswith("IMPORT_NAME")
    )
    return (
        not _HIDDEN.isdisjoint(code.co_names)
        or any(name.split(".")[0] not in _UNCHANGING for name in imported)
        or any(reaches_more(one) for one in code.co_consts if isinstance(one, types.CodeType))
    )


class _NoKey(Exception):
    """Something by whose value a function can't be told apart."""


class _Reader:
    def __init__(self) -> None:
        self.tensors: list[Any] = []
        # What keys have the addresses of.
        self.addressed: list[Any] = []
        self._seen: dict[int, int] = {}

    def key(self, value: Any) -> Any:
        if isinstance(value, PLAIN):
            return value.__class__, repr(value) if isinstance(value, float) else value
        if isinstance(value, types.FunctionType | functools.partial | tuple | list | dict):
            if id(value) in self._seen:  # recursion, or the same again
                return "again", self._seen[id(value)]
            self._seen[id(value)] = len(self._seen)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, functools.partial):
            return "partial", self.key(value.func), self.key(value.args), self.key(value.keywords)
        if isinstance(value, tuple | list):
            return value.__class__, tuple(map(self.key, value))
        if isinstance(value, dict):
            return dict, tuple((self.key(name), self.key(one)) for name, one in value.items())
        if isinstance(value, types.ModuleType | types.BuiltinFunctionType | type):
            if is_unchanging(value):
                return self._address(value)
            raise _NoKey
        if is_of_numpy(value, "generic"):
            return value.__class__, repr(value)  # a constant of the text
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            if id(value) not in self._seen:
                self._seen[id(value)] = len(self._seen)
                self.tensors.append(value)
            device = getattr(value, "device", None)
            return (
                "tensor",
                self._seen[id(value)],
                value.__class__,
                tuple(value.shape),
                str(value.dtype),
                str(device) if isinstance(device, str) or hasattr(device, "type") else None,
            )
        if is_unchanging(value):
            return value.__class__, value
        raise _NoKey

    def _address(self, value: Any) -> int:
        self.addressed.append(value)
        return id(value)

    def _function(self, function: types.FunctionType) -> Any:
        if is_unchanging(function):
            return self._address(function.__code__)
        if reaches_more(function.__code__):
            raise _NoKey
        return (
            self._address(function.__code__),
            tuple(map(self.key, contents(function))),
            self.key(function.__defaults__),
            self.key(function.__kwdefaults__),
            self.key(vars(function)),
            tuple((name, self.key(one)) for name, one in globals_of(function)),
        )


def is_unchanging(value: Any) -> bool:
    """Whether what an object says stays the same: modules, types and functions of libraries that
    do not change, and objects such as dtypes. A user's module may have other attributes tomorrow.
    """
    if isinstance(value, types.FunctionType):
        return _library_of(value.__module__) in ("torch", "numpy", "jax") and not value.__closure__
    if isinstance(value, types.ModuleType | types.BuiltinFunctionType | type):
        home = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
        # A method is bound to what may change: dict.get, list.__getitem__.
        return _library_of(home or "builtins") in _UNCHANGING and not _is_of_object(value)
    home = getattr(value.__class__, "__module__", "")
    return _library_of(home) in ("torch", "numpy", "jax", "enum") and _is_immutable(value)


def _library_of(module: str | None) -> str:
    return (module or "").split(".")[0]


def _is_of_object(value: Any) -> bool:
    """Whether a built-in function is a method of some object, which it reads."""
    owner = getattr(value, "__self__", None)
    return not (owner is None or isinstance(owner, types.ModuleType | type))


def _is_immutable(value: Any) -> bool:
    name = value.__class__.__name__
    return name in ("dtype", "device", "layout", "memory_format", "ufunc", "finfo", "iinfo")


def key_and_tensors(*functions: Any) -> tuple[Any, list[Any], list[Any]] | None:
    """What tells functions apart, the tensors that they refer to, in an order that functions with
    the same key share, and what must live as long as the key. None where something is captured
    that may change."""
    reader = _Reader()
    try:
        return tuple(map(reader.key, functions)), reader.tensors, reader.addressed
    except _NoKey:
        return None


def speaks_jax(function: Any) -> bool:
    """Whether a function refers to JAX's functions or arrays: JAX has to trace it."""
    if "jax" not in sys.modules:
        return False
    seen: set[int] = set()

    def any_of(value: Any) -> bool:
        if id(value) in seen:
            return False
        seen.add(id(value))
        if isinstance(value, types.FunctionType):
            if (value.__module__ or "").split(".")[0] == "jax":
                return True
            named = (one for _, one in globals_of(value))
            return any(map(any_of, (*contents(value), value.__defaults__, *named)))
        if isinstance(value, functools.partial):
            return any(map(any_of, (value.func, value.args, value.keywords)))
        if isinstance(value, tuple | list):
            return any(map(any_of, value))
        if isinstance(value, dict):
            return any(map(any_of, value.values()))
        name = value.__name__ if isinstance(value, types.ModuleType) else type(value).__module__
        return name.split(".")[0] in ("jax", "jaxlib")

    return any_of(function)
