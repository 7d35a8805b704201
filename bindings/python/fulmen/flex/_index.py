"""Indexing: of tensors that a traced function captures, and of traced values."""

from __future__ import annotations

import itertools
import operator
from typing import Any

from fulmen.flex._graph import MOST_DIMS, Node
from fulmen.flex._refusal import Refusal
from fulmen.flex._symbol import Symbol, positions, strides_of


class View:
    """Elements of a captured tensor: of each of its dims one, or the range that a dim of the view
    walks through."""

    __slots__ = ("number", "places", "trace", "type")

    def __init__(self, trace: Any, number: int, type: str, places: tuple[Any, ...]) -> None:
        # places: an index (a Node), or ("range", dim of the view, start, step), or ("list", dim,
        # nodes).
        self.trace, self.number, self.type, self.places = trace, number, type, places

    def load(self, at: tuple[int, ...]) -> Node:
        indices = []
        for place in self.places:
            if isinstance(place, Node):
                indices.append(place)
            elif place[0] == "range":
                _, dim, start, step = place
                indices.append(self.trace.scalars.constant(start + at[dim] * step))
            else:
                indices.append(place[2][at[place[1]]])
        return self.trace.scalars.load(self.number, self.type, tuple(indices))


def _keys(key: Any, rank: int) -> list[Any]:
    """A key for each dim, None for new ones."""
    keys = list(key) if isinstance(key, tuple) else [key]
    used = sum(one is not None and one is not Ellipsis for one in keys)
    if used > rank:
        raise Refusal(f"{used} indices of a tensor with {rank} dims")
    if not any(one is Ellipsis for one in keys):
        keys.append(Ellipsis)
    at = next(n for n, one in enumerate(keys) if one is Ellipsis)
    return [*keys[:at], *[slice(None)] * (rank - used), *keys[at + 1 :]]


def has_symbol(key: Any) -> bool:
    if isinstance(key, Symbol):
        return True
    if isinstance(key, tuple | list):
        return any(map(has_symbol, key))
    return isinstance(key, slice) and has_symbol((key.start, key.stop, key.step))


def _as_int(key: Any) -> int | None:
    if isinstance(key, bool | Symbol):
        return None
    try:
        return operator.index(key)
    except TypeError:
        return None


def index_captured(trace: Any, array: Any, key: Any) -> Symbol:
    """array[key], where a part of the key is traced."""
    captured = trace.capture(array)
    shape = tuple(array.shape)
    if len(shape) > MOST_DIMS:
        raise Refusal(f"a tensor has {len(shape)} dims: {MOST_DIMS} are accepted")
    places: list[Any] = []
    sizes: list[int] = []
    lists: list[int] = []  # dims of the tensor whose key is an array
    keys = _keys(key, len(shape))
    dims = iter(range(len(shape)))
    for one in keys:
        if one is None:
            sizes.append(1)
            continue
        dim = next(dims)
        if isinstance(one, slice):
            if has_symbol(one):
                raise Refusal("a slice whose bounds are traced")
            picked = range(shape[dim])[one]
            places.append(("range", len(sizes), picked.start, picked.step))
            sizes.append(len(picked))
            continue
        number = _as_int(one)
        symbol = trace.symbol(one if number is None else number)
        if symbol.type == "bool":
            raise Refusal("an index of type bool", "integers, as of .int()")
        if symbol.ndim == 0:
            places.append(trace.scalars.index(symbol.node, shape[dim]))
        elif symbol.ndim == 1:
            nodes = [trace.scalars.index(node, shape[dim]) for node in symbol.nodes]
            if lists and len(nodes) != sizes[places[lists[0]][1]]:
                raise Refusal("indices of different lengths")
            at = places[lists[0]][1] if lists else len(sizes)
            if not lists:
                sizes.append(len(nodes))
            places.append(("list", at, nodes))
            lists.append(dim)
        else:
            raise Refusal(f"an index of shape {list(symbol.shape)}", "scalars and vectors")
    advanced = [n for n, one in enumerate(keys) if not (one is None or isinstance(one, slice))]
    if lists and advanced != list(range(advanced[0], advanced[-1] + 1)):
        raise Refusal("vectors as indices beside slices between them")
    return Symbol(
        trace, tuple(sizes), None, View(trace, captured, trace.type_of(captured), (*places,))
    )


def _index_view(symbol: Symbol, key: Any) -> Symbol | None:
    """An index of elements that are not read yet, which reads none; None where it is none."""
    view, trace = symbol._view, symbol.trace
    keys = _keys(key, symbol.ndim)
    if any(one is None for one in keys):
        return None
    by_dim: dict[int, Any] = {}
    sizes: list[int] = []
    for dim, one in enumerate(keys):
        if isinstance(one, slice):
            if has_symbol(one):
                raise Refusal("a slice whose bounds are traced")
            picked = range(symbol.shape[dim])[one]
            by_dim[dim] = (len(sizes), picked.start, picked.step)
            sizes.append(len(picked))
            continue
        number = _as_int(one)
        index = trace.symbol(one if number is None else number)
        if index.ndim:
            return None
        by_dim[dim] = trace.scalars.index(index.node, symbol.shape[dim])
    places: list[Any] = []
    for place in view.places:
        if isinstance(place, Node):
            places.append(place)
            continue
        now = by_dim[place[1]]
        if place[0] == "range":
            _, _, start, step = place
            if isinstance(now, Node):
                scalars = trace.scalars
                if step != 1:
                    now = scalars.binary("*", now, scalars.constant(step))
                places.append(scalars.binary("+", now, scalars.constant(start)) if start else now)
            else:
                places.append(("range", now[0], start + now[1] * step, step * now[2]))
        elif isinstance(now, Node):
            if now.op != "const":
                return None
            places.append(place[2][now.args[0]])
        else:
            dim, start, step = now
            count = sizes[dim]
            places.append(("list", dim, [place[2][start + n * step] for n in range(count)]))
    return Symbol(trace, tuple(sizes), None, View(trace, view.number, view.type, tuple(places)))


def index_symbol(symbol: Symbol, key: Any) -> Symbol:
    if symbol._nodes is None:
        found = _index_view(symbol, key)
        if found is not None:
            return found
    trace = symbol.trace
    keys = _keys(key, symbol.ndim)
    picks: list[Any] = []  # of each dim of the value: a range, or one Node
    sizes: list[int] = []
    dims = iter(range(symbol.ndim))
    for one in keys:
        if one is None:
            sizes.append(1)
            continue
        size = symbol.shape[next(dims)]
        if isinstance(one, slice):
            if has_symbol(one):
                raise Refusal("a slice whose bounds are traced")
            picks.append(range(size)[one])
            sizes.append(len(picks[-1]))
            continue
        number = _as_int(one)
        index = trace.symbol(one if number is None else number)
        if index.ndim:
            raise Refusal("a vector as the index of a traced value", "scalars and slices")
        picks.append(trace.scalars.index(index.node, size))
    return Symbol(trace, tuple(sizes), _picked(symbol, picks))


def _picked(symbol: Symbol, picks: list[Any]) -> list[Node]:
    """Elements by ranges, and by one traced index, which selects among all."""
    scalars, steps, nodes = symbol.trace.scalars, strides_of(symbol.shape), symbol.nodes
    ranges = [one if isinstance(one, range) else range(1) for one in picks]
    result = []
    for at in itertools.product(*ranges) if picks else positions(()):
        candidates = [(None, 0)]
        for dim, (place, pick) in enumerate(zip(at, picks, strict=True)):
            if isinstance(pick, range):
                candidates = [(c, base + place * steps[dim]) for c, base in candidates]
            elif pick.op == "const":
                candidates = [(c, base + pick.args[0] * steps[dim]) for c, base in candidates]
            else:
                if len(candidates) > 1:
                    raise Refusal("two traced indices of a traced value")
                base = candidates[0][1]
                candidates = [
                    (scalars.compare("==", pick, scalars.constant(n)), base + n * steps[dim])
                    for n in range(symbol.shape[dim])
                ]
        node = nodes[candidates[-1][1]]
        for condition, base in reversed(candidates[:-1]):
            node = scalars.select(condition, nodes[base], node)
        result.append(node)
    return result
