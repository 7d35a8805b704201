"""What a mask_mod may give over a whole block of queries and keys, by interval arithmetic: most
blocks are then known to be empty or full without a look at their pairs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fulmen._numbers import is_of_torch
from fulmen.flex._graph import Node, order

_LEAST, _MOST = -(2**31), 2**31 - 1
# A tensor of more elements is not searched for its extremes of parts.
_MOST_ELEMENTS = 1 << 24


class Interval(NamedTuple):
    """Integers (of bools 0 and 1) of int64 that broadcast to [batch, heads, rows, columns] of
    blocks; both ends are included."""

    low: Any
    high: Any

    @property
    def is_exact(self) -> bool:
        return bool(np.all(self.low == self.high))


def _wrapped(low: Any, high: Any) -> Interval:
    """Of 32 bits: anything, where an end does not fit."""
    fits = (low >= _LEAST) & (high <= _MOST)
    return Interval(np.where(fits, low, _LEAST), np.where(fits, high, _MOST))


def _anything(type: str) -> Interval:
    low, high = (0, 1) if type == "bool" else (_LEAST, _MOST)
    return Interval(np.int64(low), np.int64(high))


class Intervals:
    """The graph's values over blocks; tensors by number."""

    def __init__(self, tensors: list[Any]) -> None:
        self._tensors = tensors
        self._tables: dict[tuple[int, int], tuple[list[Any], list[Any]]] = {}

    def __call__(self, root: Node, given: dict[str, Interval]) -> Interval:
        values: dict[int, Interval] = {}
        for node in order(root):
            inputs = [values[id(one)] for one in node.inputs()]
            values[id(node)] = self._value(node, inputs, given)
        return values[id(root)]

    def _value(self, node: Node, inputs: list[Interval], given: dict[str, Interval]) -> Interval:
        # Rounding of floats is nobody's business here.
        if node.type == "float" or any(one.type == "float" for one in node.inputs()):
            return _anything(node.type)
        if node.op == "given":
            return given[node.args[0]]
        if node.op == "const":
            value = np.int64(node.args[0])
            return Interval(value, value)
        if node.op == "load":
            return self._loaded(node, inputs)
        if node.op == "bool":
            return _compared("!=", inputs[0], Interval(np.int64(0), np.int64(0)))
        if node.op == "int":
            return inputs[0]
        if node.op in ("<", "<=", ">", ">=", "==", "!="):
            return _compared(node.op, *inputs)
        if node.op == "select":
            condition, a, b = inputs
            low = np.where(condition.low == 1, a.low, np.minimum(a.low, b.low))
            high = np.where(condition.low == 1, a.high, np.maximum(a.high, b.high))
            never = condition.high == 0
            return Interval(np.where(never, b.low, low), np.where(never, b.high, high))
        function = _FUNCTIONS.get((node.op, len(inputs)))
        if function is not None:
            return function(*inputs)
        if node.type == "bool":
            return _LOGIC[node.op](*inputs)
        return _BITS[node.op](*inputs) if node.op in _BITS else _anything(node.type)

    def _array(self, number: int) -> Any:
        array = self._tensors[number]
        array = array.detach().cpu().numpy() if is_of_torch(array) else np.asarray(array)
        return np.clip(array.astype(np.int64), _LEAST, _MOST)

    def _loaded(self, node: Node, indices: list[Interval]) -> Interval:
        number = node.args[0]
        shape = tuple(self._tensors[number].shape)
        size = int(np.prod(shape, dtype=np.int64))
        if size == 0:
            return Interval(np.int64(0), np.int64(0))
        if size > _MOST_ELEMENTS:
            return _anything(node.type)
        outside = np.False_
        for one, n in zip(indices, shape, strict=True):
            outside = outside | (one.low < 0) | (one.high >= n)
        inside = [
            Interval(np.clip(one.low, 0, n - 1), np.clip(one.high, 0, n - 1))
            for one, n in zip(indices, shape, strict=True)
        ]
        ranged = [dim for dim, one in enumerate(inside) if not one.is_exact]
        if len(ranged) > 1:
            array = self._array(number)
            low, high = array.min(), array.max()
        else:
            low, high = self._extremes(number, ranged[0] if ranged else -1, inside)
        # Outside is 0.
        return Interval(
            np.where(outside, np.minimum(low, 0), low), np.where(outside, np.maximum(high, 0), high)
        )

    def _extremes(self, number: int, dim: int, indices: list[Interval]) -> tuple[Any, Any]:
        """Of elements that differ in one dim by a range, by tables of ranges of 1, 2, 4, ..."""
        places = [one.low for one in indices]
        if dim < 0:
            found = self._array(number)[tuple(places)]
            return found, found
        key = (number, dim)
        if key not in self._tables:
            self._tables[key] = _tables(self._array(number), dim)
        lows, highs = self._tables[key]
        first, last = np.broadcast_arrays(indices[dim].low, indices[dim].high)
        level = np.frexp((last - first + 1).astype(np.float64))[1] - 1
        low = np.full(np.broadcast_shapes(first.shape, *(np.shape(one) for one in places)), _MOST)
        high = np.full_like(low, _LEAST)
        for at in np.unique(level):
            here = np.broadcast_to(level == at, low.shape)
            for start in (first, last - (1 << int(at)) + 1):
                one = list(places)
                one[dim] = np.clip(start, 0, lows[at].shape[dim] - 1)
                index = tuple(one)
                low = np.where(here, np.minimum(low, lows[at][index]), low)
                high = np.where(here, np.maximum(high, highs[at][index]), high)
        return low, high


def _tables(array: Any, dim: int) -> tuple[list[Any], list[Any]]:
    """The least and largest of 1, 2, 4, ... elements that follow each other, by the first."""
    lows, highs, step = [array], [array], 1
    while 2 * step <= array.shape[dim]:
        pairs = []
        for found, pick in ((lows, np.minimum), (highs, np.maximum)):
            last = found[-1]
            count = last.shape[dim] - step
            a = np.take(last, range(count), dim)
            pairs.append(pick(a, np.take(last, range(step, step + count), dim)))
        lows.append(pairs[0])
        highs.append(pairs[1])
        step *= 2
    return lows, highs


def _compared(op: str, a: Interval, b: Interval) -> Interval:
    if op in (">", ">="):
        return _compared("<" if op == ">" else "<=", b, a)
    if op == "<":
        always, never = a.high < b.low, a.low >= b.high
    elif op == "<=":
        always, never = a.high <= b.low, a.low > b.high
    else:
        always = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
        never = (a.high < b.low) | (b.high < a.low)
        if op == "!=":
            always, never = never, always
    return Interval(always.astype(np.int64), 1 - never.astype(np.int64))


def _product(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x in a for y in b]
    return _wrapped(_least(ends), _largest(ends))


def _least(values: list[Any]) -> Any:
    found = values[0]
    for one in values[1:]:
        found = np.minimum(found, one)
    return found


def _largest(values: list[Any]) -> Any:
    return -_least([-one for one in values])


def _absolute(a: Interval) -> Interval:
    inside = (a.low <= 0) & (a.high >= 0)
    ends = [np.abs(a.low), np.abs(a.high)]
    return _wrapped(np.where(inside, 0, _least(ends)), _largest(ends))


def _floor_divided(a: Interval, b: Interval) -> Interval:
    divisor = np.maximum(b.low, 1)
    known = (b.low == b.high) & (b.low > 0)
    return Interval(
        np.where(known, a.low // divisor, _LEAST), np.where(known, a.high // divisor, _MOST)
    )


def _remainder(a: Interval, b: Interval) -> Interval:
    divisor = np.maximum(b.low, 1)
    known = (b.low == b.high) & (b.low > 0)
    one_period = a.low // divisor == a.high // divisor
    low = np.where(one_period, a.low % divisor, 0)
    high = np.where(one_period, a.high % divisor, divisor - 1)
    return Interval(np.where(known, low, _LEAST), np.where(known, high, _MOST))


def _both(a: Interval, b: Interval) -> Interval:
    """Bits of both: where neither is negative no more than the smaller."""
    known = (a.low >= 0) & (b.low >= 0)
    return Interval(np.where(known, 0, _LEAST), np.where(known, np.minimum(a.high, b.high), _MOST))


def _either(a: Interval, b: Interval) -> Interval:
    known = (a.low >= 0) & (b.low >= 0)
    bits = np.frexp(np.maximum(a.high, b.high).astype(np.float64))[1]
    return Interval(
        np.where(known, 0, _LEAST), np.where(known, (np.int64(1) << np.maximum(bits, 0)) - 1, _MOST)
    )


def _shifted(a: Interval, b: Interval, left: bool) -> Interval:
    known = (b.low == b.high) & (b.low >= 0) & (b.low < 31)
    count = np.where(known, b.low, 0)
    if left:
        found = _wrapped(a.low << count, a.high << count)
    else:
        found = Interval(a.low >> count, a.high >> count)
    return Interval(np.where(known, found.low, _LEAST), np.where(known, found.high, _MOST))


_FUNCTIONS = {
    ("+", 2): lambda a, b: _wrapped(a.low + b.low, a.high + b.high),
    ("-", 2): lambda a, b: _wrapped(a.low - b.high, a.high - b.low),
    ("*", 2): _product,
    ("-", 1): lambda a: _wrapped(-a.high, -a.low),
    ("~", 1): lambda a: Interval(~a.high, ~a.low),
    ("!", 1): lambda a: Interval(1 - a.high, 1 - a.low),
    ("abs", 1): _absolute,
    ("min", 2): lambda a, b: Interval(np.minimum(a.low, b.low), np.minimum(a.high, b.high)),
    ("max", 2): lambda a, b: Interval(np.maximum(a.low, b.low), np.maximum(a.high, b.high)),
    ("//", 2): _floor_divided,
    ("%", 2): _remainder,
    ("<<", 2): lambda a, b: _shifted(a, b, True),
    (">>", 2): lambda a, b: _shifted(a, b, False),
}
_LOGIC = {
    "&": lambda a, b: Interval(a.low & b.low, a.high & b.high),
    "|": lambda a, b: Interval(a.low | b.low, a.high | b.high),
    "^": lambda a, b: _compared("!=", a, b),
}
_BITS = {"&": _both, "|": _either, "^": _either}
