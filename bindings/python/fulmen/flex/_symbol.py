"""Values of a function that is traced: scalars, and small arrays of them, whose operators and
functions build a graph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fulmen.flex._graph import Node
from fulmen.flex._refusal import Refusal

Shape = tuple[int, ...]
# An array of more elements than this is read element by element nowhere.
MOST_ELEMENTS = 1024


def strides_of(shape: Shape) -> list[int]:
    return [math.prod(shape[at + 1 :]) for at in range(len(shape))]


def broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes), default=0)
    full = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for sizes in zip(*full, strict=True):
        size = max(sizes) if 0 not in sizes else 0
        if any(one not in (1, size) for one in sizes):
            raise Refusal(f"shapes {', '.join(str(list(s)) for s in shapes)} do not broadcast")
        result.append(size)
    return tuple(result)


def positions(shape: Shape) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, shape))


class Symbol:
    """A traced value: a scalar (shape ()), or a small array of scalars."""

    __slots__ = ("_nodes", "_view", "shape", "trace")
    __array_priority__ = 1000
    __hash__ = object.__hash__

    def __init__(
        self, trace: Any, shape: Shape, nodes: list[Node] | None, view: Any = None
    ) -> None:
        self.trace, self.shape = trace, tuple(shape)
        # One of the two: the elements, or a View whose elements are read when they are needed.
        self._nodes, self._view = nodes, view

    @property
    def nodes(self) -> list[Node]:
        if self._nodes is None:
            if math.prod(self.shape) > MOST_ELEMENTS:
                raise Refusal(
                    f"a value of shape {list(self.shape)} is computed for one pair of query and "
                    f"key: {MOST_ELEMENTS} elements are accepted, index the tensor first"
                )
            self._nodes = [self._view.load(at) for at in positions(self.shape)]
        return self._nodes

    @property
    def type(self) -> str:
        return self.nodes[0].type if self._view is None else self._view.type

    @property
    def node(self) -> Node:
        if math.prod(self.shape) != 1:
            raise Refusal(f"a value has shape {list(self.shape)}: one number is needed")
        return self.nodes[0]

    def expanded(self, shape: Shape) -> list[Node]:
        """The elements as those of a larger shape, to which they broadcast."""
        nodes = self.nodes
        if self.shape == shape:
            return nodes
        own = (1,) * (len(shape) - len(self.shape)) + self.shape
        steps = [step if size != 1 else 0 for size, step in zip(own, strides_of(own), strict=True)]
        return [
            nodes[sum(i * step for i, step in zip(at, steps, strict=True))]
            for at in positions(shape)
        ]

    def become(self, other: Symbol) -> None:
        """Takes the other's elements, of the same shape."""
        self._nodes, self._view = other._nodes, other._view

    def reshaped(self, shape: Shape) -> Symbol:
        return Symbol(self.trace, shape, list(self.nodes))

    def reduced(
        self, dim: int | Sequence[int] | None, keepdim: bool, join: Callable[[list[Node]], Node]
    ) -> Symbol:
        """The elements along dims (None: all) as one."""
        rank = len(self.shape)
        dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
        if any(not -max(rank, 1) <= one < max(rank, 1) for one in dims):
            raise Refusal(f"dims {list(dims)} of a value of {rank} dims")
        gone = {one % rank if rank else 0 for one in dims}
        kept = tuple(1 if at in gone else n for at, n in enumerate(self.shape))
        parts: dict[tuple[int, ...], list[Node]] = {at: [] for at in positions(kept)}
        for at, node in zip(positions(self.shape), self.nodes, strict=True):
            parts[tuple(0 if d in gone else i for d, i in enumerate(at))].append(node)
        shape = kept if keepdim else tuple(n for at, n in enumerate(self.shape) if at not in gone)
        return Symbol(self.trace, shape, [join(one) for one in parts.values()])

    def __getitem__(self, key: Any) -> Symbol:
        from fulmen.flex._index import index_symbol

        return index_symbol(self, key)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def T(self) -> Symbol:
        if self.ndim > 2:
            raise Refusal(f".T of a value of {self.ndim} dims", "2 dims")
        return self.trace.call("transpose", (self, 0, 1), {}) if self.ndim == 2 else self

    @property
    def dtype(self) -> Any:
        return self.trace.dtype(self.type)

    @property
    def device(self) -> Any:
        return self.trace.device

    @property
    def requires_grad(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<traced {self.type}{list(self.shape) if self.shape else ''}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not self.trace.knows(name):
            if name.startswith("_"):
                raise AttributeError(name)
            raise Refusal(f"a traced value has no {name!r}")
        return lambda *args, **named: self.trace.call(name, (self, *args), named)

    # What needs the number itself.

    def __bool__(self) -> bool:
        raise Refusal(
            "a decision (if, and, or, not, while, min, max) needs the value, which differs from "
            "pair to pair",
            "where(condition, a, b), &, |, ~, minimum and maximum",
        )

    def __index__(self) -> int:
        raise Refusal("an integer is needed, and the value differs from pair to pair")

    def _number(self, *_: Any) -> Any:
        raise Refusal("a Python number is needed, and the value differs from pair to pair")

    __int__ = __float__ = __complex__ = __round__ = __trunc__ = __ceil__ = __floor__ = _number
    __array__ = item = tolist = numpy = _number

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a traced scalar")
        return self.shape[0]

    def __iter__(self) -> Iterator[Symbol]:
        if not self.shape:
            raise Refusal("a loop over one number")
        return (self[at] for at in range(self.shape[0]))

    def __contains__(self, _: Any) -> bool:
        raise Refusal("'in' needs the value, which differs from pair to pair", "(x == y).any()")

    def __setitem__(self, *_: Any) -> None:
        raise Refusal("a traced value is not written")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        from fulmen.flex._of_torch import called

        return called(func, args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        if method != "__call__" or named.get("out") is not None:
            raise Refusal(f"numpy.{ufunc.__name__}.{method} of a traced value")
        return self.trace.call(ufunc.__name__, inputs, named, "numpy.")

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return self.trace.call(func.__name__, args, kwargs, "numpy.")


def _operator(name: str, function: str, prefix: str = "") -> Callable[..., Any]:
    def method(self: Symbol, other: Any) -> Any:
        pair = (other, self) if prefix == "r" else (self, other)
        found = self.trace.call(function, pair, {})
        return self.trace.changed(self, found) if prefix == "i" else found

    method.__name__ = name
    return method


_OPERATORS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
    "matmul": "matmul",
}
for _name, _function in _OPERATORS.items():
    for _prefix in ("", "r", "i"):
        _full = f"__{_prefix}{_name}__"
        setattr(Symbol, _full, _operator(_full, _function, _prefix))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Symbol, f"__{_name}__", _operator(f"__{_name}__", _name))
for _name, _function in {
    "neg": "neg",
    "pos": "positive",
    "abs": "abs",
    "invert": "bitwise_not",
}.items():
    setattr(
        Symbol,
        f"__{_name}__",
        lambda self, _function=_function: self.trace.call(_function, (self,), {}),
    )
