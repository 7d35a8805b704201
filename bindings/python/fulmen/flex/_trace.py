"""Reads a score_mod or mask_mod: calls it once with traced values."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

from fulmen._numbers import is_of_numpy, is_of_torch, name_of_dtype
from fulmen.flex import _shapes as _shapes  # adds to FUNCTIONS
from fulmen.flex._functions import FUNCTIONS
from fulmen.flex._graph import (
    MOST_CHARACTERS,
    MOST_DIMS,
    MOST_TENSORS,
    Captured,
    Node,
    order,
    text,
)
from fulmen.flex._refusal import Refusal, refused
from fulmen.flex._scalars import Scalars
from fulmen.flex._symbol import Symbol

# What the functions are given, in their order.
GIVEN = {
    "score_mod": ("score", "b", "h", "q", "k"),
    "mask_mod": ("b", "h", "q", "k"),
}
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_INTEGERS = ("int32", "int64", "int16", "int8", "uint8", "uint16", "uint32", "uint64")


class Traced(NamedTuple):
    """The two functions as text, and the tensors that they read."""

    score_mod: str  # empty where there is none
    mask_mod: str
    tensors: dict[str, Any]
    graphs: dict[str, Node]  # by "score_mod" and "mask_mod"
    is_pure: bool  # whether it is the same for other values of the same captured tensors


def type_of_array(array: Any) -> str:
    dtype = name_of_dtype(array)
    if dtype == "bool":
        return "bool"
    if dtype in _FLOATS:
        return "float"
    if dtype in _INTEGERS:
        return "int"
    raise Refusal(f"a tensor of dtype {dtype}", ", ".join((*_FLOATS, *_INTEGERS, "bool")))


def is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, Symbol)


class Trace:
    """One call's functions, which share the tensors that they capture."""

    def __init__(self, like: Any = None) -> None:
        """like: an array of the kind and on the device of the queries."""
        self.scalars = Scalars()
        self.captured: list[Captured] = []
        self._numbers: dict[int, int] = {}
        self.like = like
        self.is_pure = True

    def capture(self, array: Any) -> int:
        """The number of a captured tensor."""
        original = getattr(array, "_captured_from", None)
        array = array if original is None else original
        number = self._numbers.get(id(array))
        if number is None:
            number = len(self.captured)
            if number == MOST_TENSORS:
                raise Refusal(f"more than {MOST_TENSORS} captured tensors")
            name = f"x{number}"
            self.captured.append(Captured(name, array, type_of_array(array)))
            self._numbers[id(array)] = number
        return number

    def type_of(self, number: int) -> str:
        return self.captured[number].type

    def given(self, name: str) -> Symbol:
        kind = "float" if name == "score" else "int"
        return Symbol(self, (), [self.scalars.node("given", (name,), kind)])

    def symbol(self, value: Any) -> Symbol:
        """Anything that a function computes with."""
        if isinstance(value, Symbol):
            return value
        if isinstance(value, bool | int | float):
            return Symbol(self, (), [self.scalars.constant(value)])
        if type(value).__name__ in ("SymInt", "SymFloat", "SymBool"):
            # torch.compile then compiles again for another value, as for other constants.
            kind = {"I": int, "F": float, "B": bool}[type(value).__name__[3]]
            return self.symbol(kind(value))
        if is_of_numpy(value, "generic"):
            return self.symbol(value.item())
        if is_array(value):
            if len(value.shape) > MOST_DIMS:
                raise Refusal(f"a tensor has {len(value.shape)} dims: {MOST_DIMS} are accepted")
            from fulmen.flex._index import View

            number = self.capture(value)
            ranges = tuple(("range", dim, 0, 1) for dim in range(len(value.shape)))
            view = View(self, number, self.type_of(number), ranges)
            return Symbol(self, tuple(value.shape), None, view)
        if isinstance(value, list | tuple) and value:
            return self.call("stack", (value,), {})
        if isinstance(value, numbers.Number):
            return self.symbol(float(value))  # a complex number raises TypeError
        raise Refusal(f"a value of type {type(value).__name__} beside traced ones")

    def converted(self, value: Any, kind: str) -> Any:
        """A number of Python's as that type."""
        if isinstance(value, bool | int | float):
            return {"bool": bool, "int": int, "float": float}[kind](value)
        return value

    def knows(self, name: str) -> bool:
        return _plain_name(name) in FUNCTIONS

    def call(
        self, name: str, args: tuple[Any, ...], named: dict[str, Any], module: str = ""
    ) -> Any:
        function = FUNCTIONS.get(_plain_name(name))
        if function is None:
            raise Refusal(f"{module}{name} of a traced value")
        if name.endswith("_") and not name.endswith("__"):
            # Another name of the same value would have to see the change.
            raise Refusal(f"{module}{name}, which changes a value in place", name.rstrip("_"))
        if name in _IN_PLACE:
            return self.changed(args[0], self.call(_plain_name(name), args, named, module))
        for ignored in ("out", "inplace"):
            if named.get(ignored) not in (None, False):
                raise Refusal(f"{module}{name} with {ignored}={named[ignored]!r}")
            named = {one: value for one, value in named.items() if one != ignored}
        known = {one: value for one, value in named.items() if one not in _WITHOUT_MEANING}
        try:
            return function(self, *args, **known)
        except TypeError as error:
            if "argument" in str(error):  # its signature has fewer
                raise Refusal(f"{module}{name} of such arguments: {error}") from None
            raise

    def changed(self, value: Any, result: Any) -> Any:
        """What value += ... gives: of torch's tensors it is the same tensor, whose other names see
        the change. value then has no other type or shape: torch itself refuses that."""
        same = isinstance(value, Symbol) and is_of_torch(self.like)
        if not same or (value.shape, value.type) != (result.shape, result.type):
            return result
        value.become(result)
        return value

    # dtypes, as the functions' framework has them

    def dtype(self, kind: str) -> Any:
        name = {"bool": "bool", "int": "int32", "float": "float32"}[kind]
        if is_of_torch(self.like):
            import torch

            return getattr(torch, name)
        import numpy as np

        return np.dtype(name)

    @property
    def device(self) -> Any:
        return getattr(self.like, "device", None)

    def is_dtype(self, value: Any) -> bool:
        return _name_of(value) in (*_FLOATS, *_INTEGERS, "bool")

    def as_dtype(self, value: Symbol, dtype: Any) -> Symbol:
        if dtype is None:
            return value
        name = _name_of(dtype)
        if name in ("float32", "float", "float64", "double"):
            return self.call("float", (value,), {})
        if name in ("int32", "int64", "int", "long"):
            return self.call("int", (value,), {})
        if name == "bool":
            return self.call("bool", (value,), {})
        raise Refusal(
            f"a conversion to {name}, which rounds or wraps", "float32, int32, int64 and bool"
        )


_WITHOUT_MEANING = ("device", "layout", "pin_memory", "memory_format", "copy", "non_blocking")


_IN_PLACE = frozenset(("__iadd__", "__isub__", "__imul__"))


def _plain_name(name: str) -> str:
    """The name of an operator's method or of an in-place function as that of the function."""
    if name.startswith("__") and name.endswith("__"):
        return _OF_METHODS.get(name[2:-2], name)
    return name.rstrip("_") if name.endswith("_") else name


_OF_METHODS = {
    "add": "add",
    "radd": "add",
    "iadd": "add",
    "sub": "sub",
    "isub": "sub",
    "rsub": "rsub",
    "mul": "mul",
    "rmul": "mul",
    "imul": "mul",
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "and": "bitwise_and",
    "rand": "bitwise_and",
    "or": "bitwise_or",
    "ror": "bitwise_or",
    "xor": "bitwise_xor",
    "rxor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "matmul": "matmul",
    "lt": "lt",
    "le": "le",
    "gt": "gt",
    "ge": "ge",
    "eq": "eq",
    "ne": "ne",
    "neg": "neg",
    "pos": "positive",
    "abs": "abs",
    "invert": "bitwise_not",
}


def _name_of(dtype: Any) -> str:
    """A dtype's name, of torch's, NumPy's, JAX's or Python's types."""
    if isinstance(dtype, str):
        return dtype
    if isinstance(dtype, type):
        return getattr(dtype, "__name__", "")
    return getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]


def read(
    score_mod: Callable[..., Any] | None, mask_mod: Callable[..., Any] | None, like: Any = None
) -> Traced:
    """Both functions, traced. Raises TraceError."""
    trace = Trace(like)
    texts, graphs = {}, {}
    for kind, function in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        texts[kind] = ""
        if function is not None:
            graphs[kind] = _read_one(trace, kind, function)
            texts[kind] = text(graphs[kind], trace.captured)
            if len(texts[kind]) > MOST_CHARACTERS:
                reason = f"its text has {len(texts[kind])} characters"
                raise refused(kind, function, _at_result(reason, f"{MOST_CHARACTERS}"))
    tensors = {one.name: one.array for one in trace.captured}
    return Traced(texts["score_mod"], texts["mask_mod"], tensors, graphs, trace.is_pure)


def _at_result(reason: str, accepted: str) -> Refusal:
    """A refusal of what the function returned, which is at none of its lines."""
    error = Refusal(reason, accepted)
    error.where = None
    return error


def _read_one(trace: Trace, kind: str, function: Callable[..., Any]) -> Node:
    given = tuple(map(trace.given, GIVEN[kind]))
    if not callable(function):
        raise TypeError(f"{kind} is {function!r}: a function is accepted")
    from fulmen.flex._arrays import with_traced_arrays

    traceable = with_traced_arrays(function, trace)
    try:
        with _watching(trace):
            found = traceable(*given)
    except Exception as error:
        raise refused(kind, function, error) from error
    try:
        symbol = trace.symbol(found)
        node = symbol.node
    except Refusal as error:
        error.where = None
        raise refused(kind, function, error) from error
    wanted = "float" if kind == "score_mod" else "bool"
    if kind == "mask_mod" and node.type != "bool":
        raise refused(kind, function, _at_result(f"it returns a value of type {node.type}", "bool"))
    return trace.scalars.to(node, wanted)


def _watching(trace: Trace) -> Any:
    """While a function is called: what it does with captured tensors of torch."""
    import sys

    if "torch" not in sys.modules:
        return contextlib.nullcontext()
    from fulmen.flex._of_torch import Watch

    return Watch(trace)


def nodes_of(traced: Traced) -> int:
    return sum(len(order(root)) for root in traced.graphs.values())
