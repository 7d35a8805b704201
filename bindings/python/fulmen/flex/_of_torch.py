"""torch's functions in a traced function."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fulmen._numbers import is_of_numpy
from fulmen.flex._index import has_symbol, index_captured
from fulmen.flex._refusal import Refusal
from fulmen.flex._symbol import Symbol

# What makes a tensor of numbers alone: such a small one is a constant of the text.
_FACTORIES = {
    "tensor",
    "scalar_tensor",
    "as_tensor",
    "zeros",
    "ones",
    "full",
    "arange",
    "empty",
}
# What a tensor's description says, which every trace of the same function has in common.
_OF_METADATA = {"size", "dim", "numel", "stride", "is_floating_point", "__len__", "ndimension"}


def _symbols(value: Any) -> list[Symbol]:
    if isinstance(value, Symbol):
        return [value]
    if isinstance(value, tuple | list):
        return [one for part in value for one in _symbols(part)]
    if isinstance(value, dict):
        return _symbols(list(value.values()))
    return []


def _name(func: Any) -> str:
    name = getattr(func, "__name__", str(func))
    return name.split(".")[0] if isinstance(func, torch._ops.OpOverload) else name


def called(func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """A function of torch's that is called with traced values."""
    trace = _symbols((args, named))[0].trace
    name = _name(func)
    if name == "__getitem__":
        tensor, key = args
        if isinstance(tensor, Symbol):
            return tensor[key]
        return index_captured(trace, tensor, key)
    if name in ("mod_index", "index"):  # what torch.compile makes of an index
        tensor, key = args
        key = tuple(slice(None) if one is None else one for one in key)
        return tensor[key] if isinstance(tensor, Symbol) else index_captured(trace, tensor, key)
    if name in ("__rsub__", "__rtruediv__", "__rfloordiv__", "__rmod__", "__rpow__"):
        args, name = (args[1], args[0]), f"__{name[3:]}"
    if name == "tanh" or not _is_of_another_library(func):
        # attention-gym's approx::tanh is tanh; it says so of its own.
        return trace.call(name, args, named, "torch.")
    raise Refusal(f"the operator {func} of a traced value")


def _is_of_another_library(func: Any) -> bool:
    if isinstance(func, torch._ops.OpOverloadPacket | torch._ops.OpOverload):
        return not str(func).startswith(("aten", "prims"))
    return False


class Watch(TorchFunctionMode):
    """Sees every function of torch that a traced function calls: an index of a tensor by a traced
    value, which torch alone would refuse, and computations with captured tensors, which happen
    while it is traced."""

    def __init__(self, trace: Any) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if has_symbol(args) or _symbols((args, named)):
            return called(func, args, named)
        result = func(*args, **named)
        name = _name(func)
        if name in _FACTORIES and isinstance(result, torch.Tensor) and result.dim() <= 1:
            if name == "empty":
                raise Refusal("torch.empty, which has no values", "torch.zeros")
            if any(map(is_of_numpy, (*args, *named.values()))):
                self.trace.is_pure = False
            elif not any(isinstance(one, torch.Tensor) for one in (*args, *named.values())):
                return self._constants(result)
        elif name not in ("__get__", *_OF_METADATA):
            self.trace.is_pure = False
        return result

    def _constants(self, tensor: torch.Tensor) -> Any:
        values = tensor.tolist()
        symbol = self.trace.symbol
        if tensor.dim() == 0:
            return symbol(values)
        if tensor.numel() == 0 or tensor.numel() > 64:
            return tensor
        return Symbol(self.trace, tuple(tensor.shape), [symbol(one).node for one in values])
