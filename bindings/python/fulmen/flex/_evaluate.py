"""A traced function's values for whole arrays of pairs, by NumPy, torch or jax.numpy: what block
masks are made of, and the largest scores. Kernels do not use it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fulmen.flex._graph import Node, order

_COMPARISONS = {
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "==": "equal",
    "!=": "not_equal",
}
_TORCH_NAMES = {
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "equal": "eq",
    "not_equal": "ne",
}


class Evaluator:
    """values: of each node; given: arrays by name, int32 and float32, that broadcast."""

    def __init__(self, arrays: Any, tensors: list[Any], device: Any = None) -> None:
        """arrays: the module; tensors: those that the graph loads from, by number."""
        self.xp, self.tensors, self.device = arrays, tensors, device
        self.is_torch = arrays.__name__ == "torch"

    def __call__(self, root: Node, given: Mapping[str, Any]) -> Any:
        values: dict[int, Any] = {}
        for node in order(root):
            inputs = [values[id(one)] for one in node.inputs()]
            values[id(node)] = self._value(node, inputs, given)
        return values[id(root)]

    def dtype(self, type: str) -> Any:
        return {
            "bool": self.xp.bool if self.is_torch else self.xp.bool_,
            "int": self.xp.int32,
            "float": self.xp.float32,
        }[type]

    def array(self, value: Any, type: str) -> Any:
        if self.is_torch:
            return self.xp.tensor(value, dtype=self.dtype(type), device=self.device)
        return self.xp.asarray(value, dtype=self.dtype(type))

    def to(self, value: Any, type: str) -> Any:
        return value.to(self.dtype(type)) if self.is_torch else value.astype(self.dtype(type))

    def _value(self, node: Node, inputs: list[Any], given: Mapping[str, Any]) -> Any:
        xp, op = self.xp, node.op
        if op == "given":
            return given[node.args[0]]
        if op == "const":
            return self.array(node.args[0], node.type)
        if op == "load":
            return self._load(node, inputs)
        if op in _COMPARISONS:
            name = _COMPARISONS[op]
            return getattr(xp, _TORCH_NAMES[name] if self.is_torch else name)(*inputs)
        if op in ("int", "float", "bool"):
            return self._converted(node, inputs[0])
        if len(inputs) == 1 and op in ("-", "!", "~"):
            return -inputs[0] if op == "-" else ~inputs[0]
        if op in ("//", "%"):
            a, b = inputs
            safe = xp.where(b == 0, self.array(1, "int"), b)
            value = a // safe if op == "//" else xp.remainder(a, safe)
            return xp.where(b == 0, self.array(0, "int"), value)
        if op in ("<<", ">>"):
            count = inputs[1] & 31
            return inputs[0] << count if op == "<<" else inputs[0] >> count
        if len(inputs) == 2 and op in ("+", "-", "*", "/", "&", "|", "^"):
            a, b = inputs
            return {
                "+": lambda: a + b,
                "-": lambda: a - b,
                "*": lambda: a * b,
                "/": lambda: a / b,
                "&": lambda: a & b,
                "|": lambda: a | b,
                "^": lambda: a ^ b,
            }[op]()
        return self._function(op, inputs)

    def _function(self, op: str, inputs: list[Any]) -> Any:
        xp = self.xp
        if op == "select":
            return xp.where(*inputs)
        if op in ("min", "max"):
            return (xp.minimum if op == "min" else xp.maximum)(*inputs)
        if op == "rsqrt":
            return 1 / xp.sqrt(inputs[0])
        if op == "sigmoid":
            return 1 / (1 + xp.exp(-inputs[0]))
        if op == "erf":
            return self._erf(inputs[0])
        return getattr(xp, "power" if op == "pow" and not self.is_torch else op)(*inputs)

    def _erf(self, x: Any) -> Any:
        if self.is_torch:
            return self.xp.erf(x)
        if self.xp.__name__ == "numpy":
            return self.xp.vectorize(math.erf, otypes=[self.xp.float32])(x)
        import jax

        return jax.scipy.special.erf(x)

    def _converted(self, node: Node, value: Any) -> Any:
        if node.type == "bool":
            return value != 0
        if node.type == "int" and node.args[0].type == "float":
            xp = self.xp
            value = xp.where(xp.isnan(value), self.array(0.0, "float"), xp.trunc(value))
            # 2147483520 is the largest float below 2^31.
            low, high = self.array(-(2.0**31), "float"), self.array(2147483520.0, "float")
            inside = xp.minimum(xp.maximum(value, low), high)
            return xp.where(value > high, self.array(2**31 - 1, "int"), self.to(inside, "int"))
        return self.to(value, node.type)

    def _load(self, node: Node, indices: list[Any]) -> Any:
        tensor = self.tensors[node.args[0]]
        if not indices:
            return self._typed(tensor, node.type)
        xp, inside = self.xp, None
        safe = []
        for index, size in zip(indices, tensor.shape, strict=True):
            within = (index >= 0) & (index < size)
            inside = within if inside is None else inside & within
            safe.append(xp.where(within, index, self.array(0, "int")))
        if 0 in tensor.shape:
            return xp.zeros_like(self.to(inside, node.type))
        if self.is_torch:
            safe = [one.long() for one in safe]
        value = self._typed(tensor[tuple(safe)], node.type)
        return xp.where(inside, value, self.array(0, node.type))

    def _typed(self, value: Any, type: str) -> Any:
        if type == "int" and str(value.dtype).rpartition(".")[2] in ("int64", "uint32", "uint64"):
            value = value.clip(-(2**31), 2**31 - 1)
        return self.to(value, type)
