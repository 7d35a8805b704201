"""A traced function as a graph of scalar operations, and its text in the language of score
functions (docs/guide/score_functions.md)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

# Limits of the language.
MOST_NODES, MOST_TENSORS, MOST_DIMS, MOST_CHARACTERS = 4096, 32, 4, 64 << 10
# Expressions that are deeper get a name, so that the text nests far less than the language allows.
_DEEPEST = 16
_LARGEST_FLOAT = 3.4028235677973366e38  # what rounds to infinity in fp32


class Node:
    """One operation. Nodes of a graph are shared: equal operations are the same object."""

    __slots__ = ("args", "op", "type")

    def __init__(self, op: str, args: tuple[Any, ...], type: str) -> None:
        # op: "given" (args: its name), "const" (its value), "load" (number of the tensor, then an
        # index a dim), an operator, or the name of a function.
        # type: "bool", "int" or "float".
        self.op, self.args, self.type = op, args, type

    def inputs(self) -> tuple[Node, ...]:
        return tuple(one for one in self.args if isinstance(one, Node))


class Captured(NamedTuple):
    """A tensor that a function reads, as it is seen in the text."""

    name: str
    array: Any
    type: str


_UNARY = frozenset(("-", "!", "~"))
_ARITHMETIC = frozenset(("*", "/", "//", "%", "+", "-", "<<", ">>", "&", "^", "|"))
_COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!="))


def order(root: Node) -> list[Node]:
    """Every node below root once, inputs first."""
    done: dict[int, None] = {}
    found: list[Node] = []
    stack = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if id(node) in done:
            continue
        if ready:
            done[id(node)] = None
            found.append(node)
            continue
        stack.append((node, True))
        stack.extend((one, False) for one in node.inputs() if id(one) not in done)
    return found


def _number(value: bool | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if value == -(2**31):
            return "(-2147483647 - 1)"
        return str(value) if value >= 0 else f"(-{-value})"
    if math.isnan(value):
        return "nan"
    if abs(value) >= _LARGEST_FLOAT:
        return "inf" if value > 0 else "(-inf)"
    text = repr(abs(value)).replace("e+", "e")
    return text if math.copysign(1.0, value) > 0 else f"(-{text})"


def _expression(node: Node, captured: list[Captured], inputs: list[str]) -> str:
    if node.op == "given":
        return node.args[0]
    if node.op == "const":
        return _number(node.args[0])
    if node.op == "load":
        name = captured[node.args[0]].name
        return f"{name}[{', '.join(inputs)}]" if inputs else name
    if node.op in _UNARY and len(inputs) == 1:
        return f"({node.op}{inputs[0]})"
    if node.op in _ARITHMETIC or node.op in _COMPARISONS:
        return f"({inputs[0]} {node.op} {inputs[1]})"
    return f"{node.op}({', '.join(inputs)})"


def text(root: Node, captured: list[Captured]) -> str:
    """The function that computes root: a statement for each value that is used twice, and the
    result."""
    nodes = order(root)
    uses: dict[int, int] = {}
    for node in nodes:
        for one in node.inputs():
            uses[id(one)] = uses.get(id(one), 0) + 1
    said: dict[int, tuple[str, int]] = {}  # the expression, and its depth
    lines: list[str] = []
    for node in nodes:
        inputs = [said[id(one)] for one in node.inputs()]
        depth = 1 + max((deep for _, deep in inputs), default=0)
        expression = _expression(node, captured, [one for one, _ in inputs])
        plain = node.op in ("given", "const")
        if not plain and node is not root and (uses[id(node)] > 1 or depth > _DEEPEST):
            name = f"v{len(lines)}"
            lines.append(f"{name} = {expression};")
            said[id(node)] = (name, 0)
        else:
            said[id(node)] = (expression, 0 if plain else depth)
    return "\n".join([*lines, said[id(root)][0]])
