"""Copies of functions in which NumPy's arrays can be indexed by traced values."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

from fulmen._numbers import is_of_numpy
from fulmen.flex._leaves import contents, globals_of
from fulmen.flex._symbol import Symbol

# What an array's description says, which every trace of the same function has in common.
_OF_METADATA = frozenset(
    ("shape", "ndim", "dtype", "size", "itemsize", "nbytes", "strides", "flags", "device")
)


@functools.cache
def _array_class() -> type:
    import numpy as np

    from fulmen.flex._index import has_symbol, index_captured

    def plain(one: Any) -> Any:
        return one.view(np.ndarray) if isinstance(one, TracedArray) else one

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
            if "out" in named:
                named["out"] = tuple(map(plain, named["out"]))
            return self._traced(getattr(ufunc, method)(*map(plain, inputs), **named))

        def _traced(self, found: Any) -> Any:
            if type(found) in (tuple, list):
                return type(found)(map(self._traced, found))
            if not isinstance(found, np.ndarray) or isinstance(found, TracedArray):
                return found
            found = found.view(TracedArray)
            found._trace = self._trace
            return found

        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("_") and name not in _OF_METADATA:
                self._read()
            return super().__getattribute__(name)

        def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            self._read()
            return self._traced(super().__array_function__(func, types, args, kwargs))

    def reading(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any) -> Any:
            self._read()
            return getattr(np.ndarray, name)(self, *args)

        return method

    for name in ("__bool__", "__int__", "__float__", "__index__", "__iter__", "__contains__"):
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
        found = contents(function)
        cells = [self.copy(one) for one in found]
        defaults = self.copy(function.__defaults__)
        named = self.copy(function.__kwdefaults__)
        changed = {
            name: copied
            for name, one in globals_of(function)
            if (copied := self.copy(one)) is not one
        }
        same = all(a is b for a, b in zip(cells, found, strict=True))
        if same and defaults is function.__defaults__ and not changed:
            return function
        there = {**function.__globals__, **changed} if changed else function.__globals__
        closure = tuple(
            cell if copied is one else types.CellType(copied)
            for cell, one, copied in zip(function.__closure__ or (), found, cells, strict=True)
        )
        copied = types.FunctionType(
            function.__code__, there, function.__name__, defaults, closure or None
        )
        copied.__kwdefaults__ = named
        self._done[id(function)] = copied
        return copied


def _has_arrays(value: Any) -> bool:
    return any(is_of_numpy(one) for one in getattr(value, "__dict__", {}).values())
