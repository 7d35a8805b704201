"""Masks that are a band: pairs whose distance k - q lies between two numbers.

What is recognised here is what kernels take as the built-in causal mask or window, whole
(docs/guide/score_functions.md, "Bands"): a conjunction of bounds by constants, no sum of which
wraps in 32 bits for some pair.
"""

from __future__ import annotations

from typing import NamedTuple

from fulmen.flex._graph import Node

_MOST_FACTOR, _MOST = 1 << 28, 2**31 - 1
_FAR = 1 << 40  # beyond all pairs
_DEEPEST = 16  # operations of a bound


class Band(NamedTuple):
    """Distances k - q, both ends included."""

    least: int
    most: int


class _Linear(NamedTuple):
    """by_q q + by_k k + offset."""

    by_q: int
    by_k: int
    offset: int


def _both(a: Band, b: Band) -> Band:
    return Band(max(a.least, b.least), min(a.most, b.most))


def _at_most(x: _Linear | None, y: _Linear | None, most: int) -> Band | None:
    """Where x - y <= most; None where that is no bound of k - q."""
    if x is None or y is None:
        return None
    bound = most - (x.offset - y.offset)
    factors = (x.by_q - y.by_q, x.by_k - y.by_k)
    if factors == (-1, 1):
        return Band(-_FAR, bound)
    return Band(-bound, _FAR) if factors == (1, -1) else None


class _Reader:
    def __init__(self, queries: int, keys: int) -> None:
        self.last_q, self.last_k = queries - 1, keys - 1

    def checked(self, by_q: int, by_k: int, offset: int) -> _Linear | None:
        """None where some pair's value has more than 32 bits."""
        if max(abs(by_q), abs(by_k)) > _MOST_FACTOR:
            return None
        q, k = by_q * self.last_q, by_k * self.last_k
        fits = min(q, 0) + min(k, 0) + offset >= -_MOST and max(q, 0) + max(k, 0) + offset <= _MOST
        return _Linear(by_q, by_k, offset) if fits else None

    def linear(self, node: Node, depth: int = 0) -> _Linear | None:
        if node.type != "int" or depth > _DEEPEST:
            return None
        if node.op == "const":
            return self.checked(0, 0, node.args[0])
        if node.op == "given":
            places = {"q": (1, 0, 0), "k": (0, 1, 0)}
            return _Linear(*places[node.args[0]]) if node.args[0] in places else None
        if node.op not in ("+", "-", "*"):
            return None
        parts = [self.linear(one, depth + 1) for one in node.inputs()]
        if None in parts:
            return None
        if len(parts) == 1:
            parts.insert(0, _Linear(0, 0, 0))
        x, y = parts
        if node.op == "*":
            if (y.by_q, y.by_k) != (0, 0):
                x, y = y, x
            if (y.by_q, y.by_k) != (0, 0):
                return None
            return self.checked(*(one * y.offset for one in x))
        sign = 1 if node.op == "+" else -1
        return self.checked(*(a + sign * b for a, b in zip(x, y, strict=True)))

    def within(self, node: Node, bound: Node, below: int) -> Band | None:
        """Where |x| <= bound - below, of a node that is |x|."""
        limit = self.linear(bound)
        if node.op != "abs" or limit is None or limit[:2] != (0, 0):
            return None
        x, zero = self.linear(node.args[0]), _Linear(0, 0, 0)
        high = _at_most(x, zero, limit.offset - below)
        low = _at_most(zero, x, limit.offset - below)
        return None if high is None or low is None else _both(high, low)

    def bound(self, node: Node, negated: bool) -> Band | None:
        """The band that one condition is."""
        if node.op not in ("<", "<=", ">", ">=", "==", "!="):
            return None
        x, y = node.args
        if node.op in ("==", "!="):
            if negated == (node.op == "=="):
                return None
            a, b = self.linear(x), self.linear(y)
            below, above = _at_most(a, b, 0), _at_most(b, a, 0)
            return None if below is None or above is None else _both(below, above)
        op = node.op
        if op in (">", ">="):
            x, y, op = y, x, {">": "<", ">=": "<="}[op]
        below = 1 if op == "<" else 0
        if negated:  # not x < y: y <= x
            return _at_most(self.linear(y), self.linear(x), below - 1)
        if x.op == "abs":
            return self.within(x, y, below)
        return _at_most(self.linear(x), self.linear(y), -below)


def band_of(mask: Node, queries: int, keys: int) -> Band | None:
    """The band that a mask_mod is, of the pairs that there are; None where it is anything else,
    attends nothing, is a constant, or has no diagonal that the built-in options begin from."""
    if queries < 1 or keys < 1:
        return None
    reader, found = _Reader(queries, keys), Band(1 - queries, keys - 1)
    stack = [(mask, False)]
    seen: set[tuple[int, bool]] = set()
    while stack:
        node, negated = stack.pop()
        if (id(node), negated) in seen:
            continue
        seen.add((id(node), negated))
        if node.op == "!":
            stack.append((node.args[0], not negated))
        elif node.type == "bool" and node.op == ("|" if negated else "&"):
            stack.extend((one, negated) for one in node.args)
        else:
            one = reader.bound(node, negated)
            if one is None:
                return None
            found = _both(found, one)
    starts = found.least <= 0 <= found.most or found.least <= keys - queries <= found.most
    return found if starts else None
