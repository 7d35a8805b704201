"""Operations on scalars of a traced function: their types, and what the language says otherwise
than Python and torch."""

from __future__ import annotations

import math
from typing import Any

from fulmen.flex._graph import MOST_NODES, Node
from fulmen.flex._refusal import Refusal

_RANK = {"bool": 0, "int": 1, "float": 2}
_LEAST, _MOST = -(2**31), 2**31 - 1
# Batches, heads and sequences are shorter: an index times a smaller number than 2048 does not wrap.
_LONGEST = 1 << 20


class Scalars:
    """Makes the nodes of one trace; equal ones are made once."""

    def __init__(self) -> None:
        self._made: dict[Any, Node] = {}
        self._least: dict[int, int | None] = {}
        self._most: dict[int, int] = {}

    def node(self, op: str, args: tuple[Any, ...], type: str) -> Node:
        # 1, 1.0 and True, 0.0 and -0.0, are equal in Python.
        key = (op, type, *(id(a) if isinstance(a, Node) else (a.__class__, repr(a)) for a in args))
        found = self._made.get(key)
        if found is None:
            if len(self._made) >= MOST_NODES:
                raise Refusal(f"the function has more than {MOST_NODES} operations")
            found = self._made[key] = Node(op, args, type)
        return found

    def constant(self, value: bool | int | float) -> Node:
        if isinstance(value, bool):
            return self.node("const", (value,), "bool")
        if isinstance(value, int):
            value = int.__add__(value, 0)  # JAX has integers of its own, which print otherwise
            if not _LEAST <= value <= _MOST:
                raise Refusal(f"the integer {value} has more than 32 bits")
            return self.node("const", (value,), "int")
        return self.node("const", (float.__mul__(float(value), 1.0),), "float")

    def to(self, node: Node, type: str) -> Node:
        """The value as that type. Floats become integers toward zero, as in C, Python and torch."""
        if node.type == type:
            return node
        if node.op == "const" and type == "float":
            return self.constant(float(node.args[0]))
        if node.op == "const" and type == "int" and node.type == "bool":
            return self.constant(int(node.args[0]))
        return self.node(type, (node,), type)

    def number(self, node: Node) -> Node:
        return self.to(node, "int") if node.type == "bool" else node

    def joined(self, *nodes: Node) -> tuple[Node, ...]:
        """The values in the one type that holds them all."""
        type = max((one.type for one in nodes), key=_RANK.__getitem__)
        return tuple(self.to(one, type) for one in nodes)

    def binary(self, op: str, a: Node, b: Node) -> Node:
        a, b = self.joined(self.number(a), self.number(b))
        # Sums that begin with 0, and factors of 1.
        nothing = {"+": 0, "*": 1}.get(op)
        if nothing is not None:
            for one, other in ((a, b), (b, a)):
                if one.op == "const" and one.args[0] == nothing:
                    return other
        return self.node(op, (a, b), a.type)

    def divide(self, a: Node, b: Node) -> Node:
        return self.node("/", (self.to(a, "float"), self.to(b, "float")), "float")

    def floor_divide(self, a: Node, b: Node) -> Node:
        a, b = self.joined(self.number(a), self.number(b))
        if a.type == "int":
            return self.node("//", (a, b), "int")
        return self.function("floor", self.divide(a, b))

    def remainder(self, a: Node, b: Node) -> Node:
        """With the divisor's sign."""
        a, b = self.joined(self.number(a), self.number(b))
        if a.type == "int":
            return self.node("%", (a, b), "int")
        quotient = self.function("floor", self.divide(a, b))
        return self.binary("-", a, self.binary("*", quotient, b))

    def truncated_divide(self, a: Node, b: Node) -> Node:
        a, b = self.joined(self.number(a), self.number(b))
        if a.type == "float":
            return self.function("trunc", self.divide(a, b))
        negative = self.compare("<", self.logic("^", a, b), self.constant(0))
        quotient = self.node("//", (self.absolute(a), self.absolute(b)), "int")
        return self.select(negative, self.negative(quotient), quotient)

    def truncated_remainder(self, a: Node, b: Node) -> Node:
        """With the dividend's sign."""
        a, b = self.joined(self.number(a), self.number(b))
        return self.binary("-", a, self.binary("*", self.truncated_divide(a, b), b))

    def compare(self, op: str, a: Node, b: Node) -> Node:
        if a.type == b.type == "bool" and op in ("==", "!="):
            differs = self.logic("^", a, b)
            return self.invert(differs) if op == "==" else differs
        a, b = self.joined(self.number(a), self.number(b))
        if op in ("<", ">=") and a.type == "int" and b.op == "const":
            least = None if self._may_wrap(a) else self.least(a)
            if least is not None and least >= b.args[0]:
                return self.constant(op == ">=")
        return self.node(op, (a, b), "bool")

    def logic(self, op: str, a: Node, b: Node) -> Node:
        if "float" in (a.type, b.type):
            raise Refusal(f"{op} of numbers that are not integers")
        for one, other in ((a, b), (b, a)):
            if one.type == other.type == "bool" and one.op == "const" and op != "^":
                keeps = one.args[0] == (op == "&")
                return other if keeps else one
        a, b = self.joined(a, b)
        return self.node(op, (a, b), a.type)

    def shift(self, op: str, a: Node, b: Node) -> Node:
        if "float" in (a.type, b.type):
            raise Refusal("a shift of numbers that are not integers")
        return self.node(op, (self.number(a), self.number(b)), "int")

    def invert(self, a: Node) -> Node:
        if a.type == "float":
            raise Refusal("~ of a number that is not an integer")
        if a.op == "const" and a.type == "bool":
            return self.constant(not a.args[0])
        return self.node("!" if a.type == "bool" else "~", (a,), a.type)

    def truth(self, a: Node) -> Node:
        if a.type == "bool":
            return a
        if a.op == "const":
            return self.constant(bool(a.args[0]))
        return self.compare("!=", a, self.to(self.constant(0), a.type))

    def negative(self, a: Node) -> Node:
        if a.op == "const" and a.type != "bool" and a.args[0] != _LEAST:
            return self.constant(-a.args[0])
        a = self.number(a)
        return self.node("-", (a,), a.type)

    def absolute(self, a: Node) -> Node:
        a = self.number(a)
        return self.node("abs", (a,), a.type)

    def select(self, condition: Node, a: Node, b: Node) -> Node:
        condition = self.truth(condition)
        a, b = self.joined(a, b)
        if condition.op == "const":
            return a if condition.args[0] else b
        if a is b:
            return a
        if a.type == "bool":
            there = self.logic("&", condition, a)
            return self.logic("|", there, self.logic("&", self.invert(condition), b))
        return self.node("select", (condition, a, b), a.type)

    def extreme(self, op: str, a: Node, b: Node) -> Node:
        """min or max; NaN where one is NaN."""
        if a.type == b.type == "bool":
            return self.logic("&" if op == "min" else "|", a, b)
        a, b = self.joined(self.number(a), self.number(b))
        if op == "max" and a.type == "int" and b.op == "const":
            least = None if self._may_wrap(a) else self.least(a)
            if least is not None and least >= b.args[0]:
                return a
        return self.node(op, (a, b), a.type)

    def function(self, name: str, *args: Node) -> Node:
        """A function of floats that gives a float."""
        return self.node(name, tuple(self.to(one, "float") for one in args), "float")

    def rounded(self, name: str, a: Node) -> Node:
        return self.number(a) if a.type != "float" else self.function(name, a)

    def is_nan(self, a: Node) -> Node:
        return self.node("isnan", (a,), "bool") if a.type == "float" else self.constant(False)

    def power(self, a: Node, b: Node) -> Node:
        exponent = b.args[0] if b.op == "const" and b.type != "bool" else None
        if exponent is not None and exponent == int(exponent if math.isfinite(exponent) else 0.5):
            count = int(exponent)
            if 1 <= count <= 8:
                base = self.to(a, "float") if b.type == "float" else self.number(a)
                result = base
                for _ in range(count - 1):
                    result = self.binary("*", result, base)
                return result
        if a.type != "float" and b.type != "float":
            raise Refusal("an integer to the power of an integer", "exponents 1 to 8, and 2.0 ** x")
        if exponent == 0.5:
            return self.function("sqrt", a)
        return self.function("pow", a, b)

    def load(self, number: int, type: str, indices: tuple[Node, ...]) -> Node:
        return self.node("load", (number, *indices), type)

    def index(self, node: Node, size: int) -> Node:
        """An index that counts from the end where it is negative, as one from the begin."""
        if node.type != "int":
            raise Refusal(f"an index of type {node.type}", "integers")
        if node.op == "const":
            value = node.args[0]
            if not -size <= value < size:
                raise Refusal(f"index {value} of a dim of {size}")
            return self.constant(value % size)
        least = self.least(node)
        if least is not None and least >= 0:
            return node
        from_end = self.binary("+", node, self.constant(size))
        return self.select(self.compare("<", node, self.constant(0)), from_end, node)

    def least(self, node: Node) -> int | None:
        """What an integer is never less than; None where nothing is known."""
        key = id(node)
        if key not in self._least:
            self._least[key] = self._lower_bound(node)
        return self._least[key]

    def _may_wrap(self, node: Node) -> bool:
        """Whether an integer whose least() is known may have left 32 bits, as hashes of indices
        do."""
        return self._upper_bound(node) > _MOST

    def _upper_bound(self, node: Node) -> int:
        key = id(node)
        if key not in self._most:
            self._most[key] = self._upper_bound_of(node)
        return self._most[key]

    def _upper_bound_of(self, node: Node) -> int:
        """Of an integer that is not negative, as if nothing wrapped on the way: then what it is
        made of is above 32 bits, too."""
        if node.op == "given":
            return _LONGEST
        if node.op == "const":
            return abs(int(node.args[0]))
        if node.op in ("load", "int"):
            return 1 if node.op == "int" and node.args[0].type == "bool" else _MOST
        bounds = [self._upper_bound(one) for one in node.inputs() if one.type == "int"]
        if any(one > _MOST for one in bounds):
            return _MOST + 1
        if node.op == "+":
            return sum(bounds)
        if node.op == "*":
            return math.prod(bounds)
        return max(bounds)

    def _lower_bound(self, node: Node) -> int | None:
        if node.op == "given":
            return 0
        if node.op == "const":
            return int(node.args[0])
        if node.op == "int":
            return 0 if node.args[0].type == "bool" else None
        if node.op == "abs":
            return 0
        if node.op in ("+", "*", "//", "%", "min", "max", "&", ">>") and node.type == "int":
            a, b = (self.least(one) for one in node.args)
            known = [one for one in (a, b) if one is not None]
            if node.op == "max":
                return max(known, default=None)
            if node.op == "&":
                return 0 if any(one >= 0 for one in known) else None
            if node.op == "%":  # by 0 gives 0
                return 0 if b is not None and b >= 0 else None
            if node.op == ">>":
                return 0 if a is not None and a >= 0 else None
            if len(known) < 2:
                return None
            if node.op == "min":
                return min(a, b)
            # Sums and products of what is small do not wrap; indices are.
            if node.op == "+":
                return a + b
            return 0 if a >= 0 and b >= 0 else None
        if node.op == "select":
            bounds = [self.least(one) for one in node.args[1:]]
            return None if None in bounds else min(bounds)
        return None
