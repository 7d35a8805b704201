"""What a function refers to: the key by which a trace of it is found again, the tensors that it
captures, and copies of it in which NumPy's arrays can be indexed by traced values."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from fulmen._numbers import is_of_numpy
from fulmen.flex._symbol import Symbol

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range)


def _names(code: types.CodeType) -> Iterator[str]:
    """Global names that a code may read, those of its inner functions, too."""
    yield from code.co_names
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _names(one)


def _globals_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    there = function.__globals__
    for name in sorted(set(_names(function.__code__))):
        if name in there:
            yield name, there[name]


def _contents(function: types.FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # empty
            found.append(None)
    return found


class _NoKey(Exception):
    """Something by whose value a function can't be told apart."""


class _Reader:
    def __init__(self) -> None:
        self.tensors: list[Any] = []
        # What keys have the addresses of.
        self.addressed: list[Any] = []
        self._seen: dict[int, int] = {}

    def key(self, value: Any) -> Any:
        if isinstance(value, _PLAIN):
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
            return self._address(value)
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
        module = getattr(value.__class__, "__module__", "")
        if module.split(".")[0] in ("torch", "numpy", "jax", "enum") and _is_immutable(value):
            return value.__class__, value
        raise _NoKey

    def _address(self, value: Any) -> int:
        self.addressed.append(value)
        return id(value)

    def _function(self, function: types.FunctionType) -> Any:
        module = function.__module__ or ""
        if module.split(".")[0] in ("torch", "numpy", "jax") and not function.__closure__:
            return self._address(function.__code__)
        return (
            self._address(function.__code__),
            tuple(map(self.key, _contents(function))),
            self.key(function.__defaults__),
            self.key(function.__kwdefaults__),
            tuple((name, self.key(one)) for name, one in _globals_of(function)),
        )


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
            named = (one for _, one in _globals_of(value))
            return any(map(any_of, (*_contents(value), value.__defaults__, *named)))
        if isinstance(value, functools.partial):
            return any(map(any_of, (value.func, value.args, value.keywords)))
        if isinstance(value, tuple | list):
            return any(map(any_of, value))
        if isinstance(value, dict):
            return any(map(any_of, value.values()))
        name = value.__name__ if isinstance(value, types.ModuleType) else type(value).__module__
        return name.split(".")[0] in ("jax", "jaxlib")

    return any_of(function)


# Copies with NumPy's arrays that can be indexed.


@functools.cache
def _array_class() -> type:
    import numpy as np

    from fulmen.flex._index import has_symbol, index_captured

    class TracedArray(np.ndarray):
        """An array of the user's while a function is traced."""

        _captured_from: Any = None
        _trace: Any = None

        def __array_finalize__(self, other: Any) -> None:
            self._trace = getattr(other, "_trace", None)

        def __getitem__(self, key: Any) -> Any:
            if has_symbol(key):
                return index_captured(self._trace, self, key)
            self._read()
            return super().__getitem__(key)

        def _read(self) -> None:
            if self._trace is not None:
                self._trace.is_pure = False

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
            for one in inputs:
                if isinstance(one, Symbol):
                    return one.__array_ufunc__(ufunc, method, *inputs, **named)
            self._read()
            return super().__array_ufunc__(ufunc, method, *inputs, **named)

        def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            self._read()
            return super().__array_function__(func, types, args, kwargs)

    def reading(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any) -> Any:
            self._read()
            return getattr(np.ndarray, name)(self, *args)

        return method

    for name in ("__bool__", "__int__", "__float__", "__index__", "__iter__", "item", "tolist"):
        setattr(TracedArray, name, reading(name))
    return TracedArray


def with_traced_arrays(function: Any, trace: Any) -> Any:
    """The function, or a copy in which NumPy's arrays, which know no traced values, do."""
    if "numpy" not in sys.modules:
        return function
    return _Copier(trace).copy(function)


class _Copier:
    def __init__(self, trace: Any) -> None:
        self.trace = trace
        self._done: dict[int, Any] = {}

    def copy(self, value: Any) -> Any:
        """The same object where there is no array in it."""
        if is_of_numpy(value):
            return self._array(value)
        if isinstance(value, tuple | list) and type(value) in (tuple, list):
            parts = [self.copy(one) for one in value]
            same = all(a is b for a, b in zip(parts, value, strict=True))
            return value if same else type(value)(parts)
        if type(value) is dict:
            parts = {name: self.copy(one) for name, one in value.items()}
            return value if all(parts[name] is value[name] for name in parts) else parts
        if isinstance(value, functools.partial):
            func, args, keywords = map(self.copy, (value.func, value.args, value.keywords))
            same = func is value.func and args is value.args and keywords is value.keywords
            return value if same else functools.partial(func, *args, **keywords)
        if isinstance(value, types.MethodType):
            func = self.copy(value.__func__)
            owner = self._owner(value.__self__)
            same = func is value.__func__ and owner is value.__self__
            return value if same else types.MethodType(func, owner)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if callable(value) and not isinstance(value, type) and _has_arrays(value):
            return self._owner(value)
        return value

    def _array(self, array: Any) -> Any:
        if isinstance(array, _array_class()):
            return array
        if id(array) not in self._done:
            traced = array.view(_array_class())
            traced._captured_from, traced._trace = array, self.trace
            self._done[id(array)] = traced
        return self._done[id(array)]

    def _owner(self, value: Any) -> Any:
        """An object with arrays among its attributes, copied."""
        if not _has_arrays(value):
            return value
        import copy

        other = copy.copy(value)
        for name, one in vars(value).items():
            object.__setattr__(other, name, self.copy(one))
        return other

    def _function(self, function: types.FunctionType) -> Any:
        module = (function.__module__ or "").split(".")[0]
        if module in ("torch", "numpy", "jax", "fulmen") and not function.__closure__:
            return function
        if id(function) in self._done:
            return self._done[id(function)]
        self._done[id(function)] = function  # where it refers to itself
        contents = _contents(function)
        cells = [self.copy(one) for one in contents]
        defaults = self.copy(function.__defaults__)
        named = self.copy(function.__kwdefaults__)
        changed = {
            name: copied
            for name, one in _globals_of(function)
            if (copied := self.copy(one)) is not one
        }
        same = all(a is b for a, b in zip(cells, contents, strict=True))
        if same and defaults is function.__defaults__ and not changed:
            return function
        there = {**function.__globals__, **changed} if changed else function.__globals__
        closure = tuple(
            cell if copied is one else types.CellType(copied)
            for cell, one, copied in zip(function.__closure__ or (), contents, cells, strict=True)
        )
        copied = types.FunctionType(
            function.__code__, there, function.__name__, defaults, closure or None
        )
        copied.__kwdefaults__ = named
        self._done[id(function)] = copied
        return copied


def _has_arrays(value: Any) -> bool:
    return any(is_of_numpy(one) for one in getattr(value, "__dict__", {}).values())
