"""Functions that a traced function may call, and that are not of each element alone: sums and
extremes of rows, shapes, dtypes, and what makes values like others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from fulmen.flex._functions import Function, elementwise, named, put
from fulmen.flex._graph import Node
from fulmen.flex._refusal import Refusal
from fulmen.flex._symbol import Symbol, broadcast_shape, positions, strides_of


def _dims(dim: Any, axis: Any) -> Any:
    return axis if dim is None else dim


def _joined(trace: Any, function: Callable[[Node, Node], Node], empty: Node) -> Any:
    def join(nodes: list[Node]) -> Node:
        if not nodes:
            return empty
        while len(nodes) > 1:  # pairs of pairs: the depth is a logarithm
            pairs = [function(a, b) for a, b in zip(nodes[::2], nodes[1::2], strict=False)]
            nodes = pairs + ([nodes[-1]] if len(nodes) % 2 else [])
        return nodes[0]

    return join


def _truths(op: str) -> Function:
    def function(
        trace: Any, x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None
    ) -> Symbol:
        s = trace.scalars
        truth = elementwise(trace, s.truth, x)
        join = _joined(trace, lambda a, b: s.logic(op, a, b), s.constant(op == "&"))
        return truth.reduced(_dims(dim, axis), keepdim, join)

    return function


put("any", _truths("|"))
put("all", _truths("&"))


@named("sum")
def _total(
    trace: Any,
    x: Any,
    dim: Any = None,
    keepdim: bool = False,
    *,
    axis: Any = None,
    dtype: Any = None,
) -> Symbol:
    s = trace.scalars
    numbers = elementwise(trace, s.number, x)
    join = _joined(trace, lambda a, b: s.binary("+", a, b), s.constant(0))
    return trace.as_dtype(numbers.reduced(_dims(dim, axis), keepdim, join), dtype)


def _extremes(op: str) -> Function:
    def function(
        trace: Any, x: Any, dim: Any = None, keepdim: bool = False, *, axis: Any = None
    ) -> Symbol:
        if isinstance(dim, Symbol):
            return trace.call(f"{op}imum", (x, dim), {})
        if dim is not None:
            raise Refusal(f"{op} along a dim, which torch gives with the place", f"a{op}(x, dim)")
        join = _joined(trace, lambda a, b: trace.scalars.extreme(op, a, b), None)
        return trace.symbol(x).reduced(axis, keepdim, join)

    return function


for _op in ("min", "max"):
    put(_op, _extremes(_op))
    put(
        f"a{_op}",
        lambda trace, x, dim=None, keepdim=False, *, axis=None, _op=_op: _extremes(_op)(
            trace, x, None, keepdim, axis=_dims(dim, axis)
        ),
    )


@named("dot", "vdot", "inner")
def _dot(trace: Any, x: Any, y: Any) -> Symbol:
    return _total(trace, trace.call("mul", (x, y), {}), -1)


@named("matmul")
def _matmul(trace: Any, x: Any, y: Any) -> Symbol:
    x, y = trace.symbol(x), trace.symbol(y)
    if x.ndim == y.ndim == 1:
        return _dot(trace, x, y)
    if x.ndim == 2 and y.ndim == 1:
        return _dot(trace, x, y)
    if x.ndim == 1 and y.ndim == 2:
        return _total(trace, trace.call("mul", (x.reshaped((*x.shape, 1)), y), {}), 0)
    raise Refusal(f"a product of shapes {list(x.shape)} and {list(y.shape)}", "vectors")


@named("unsqueeze")
def _unsqueeze(trace: Any, x: Any, dim: int) -> Symbol:
    x = trace.symbol(x)
    at = dim % (x.ndim + 1)
    return x.reshaped((*x.shape[:at], 1, *x.shape[at:]))


@named("expand_dims")
def _expand_dims(trace: Any, a: Any, axis: int) -> Symbol:
    return _unsqueeze(trace, a, axis)


@named("squeeze")
def _squeeze(trace: Any, x: Any, dim: Any = None, *, axis: Any = None) -> Symbol:
    x, dim = trace.symbol(x), _dims(dim, axis)
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {one % x.ndim for one in dims if x.shape[one] == 1}
    return x.reshaped(tuple(n for at, n in enumerate(x.shape) if at not in gone))


@named("reshape", "view")
def _reshape(trace: Any, x: Any, *shape: Any) -> Symbol:
    x = trace.symbol(x)
    sizes: Sequence[int] = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    known = math.prod(n for n in sizes if n != -1)
    total = math.prod(x.shape)
    sizes = tuple(total // max(known, 1) if n == -1 else n for n in sizes)
    if math.prod(sizes) != total:
        raise Refusal(f"a value of shape {list(x.shape)} as shape {list(sizes)}")
    return x.reshaped(sizes)


@named("expand", "broadcast_to")
def _expand(trace: Any, x: Any, *shape: Any) -> Symbol:
    x = trace.symbol(x)
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    own = (1,) * (len(sizes) - x.ndim) + x.shape
    full = tuple(own[at] if n == -1 else n for at, n in enumerate(sizes))
    return Symbol(trace, full, x.expanded(full))


@named("transpose", "swapaxes")
def _transpose(trace: Any, x: Any, a: int, b: int) -> Symbol:
    x = trace.symbol(x)
    dims = list(range(x.ndim))
    dims[a], dims[b] = dims[b], dims[a]
    shape = tuple(x.shape[d] for d in dims)
    steps = [strides_of(x.shape)[d] for d in dims]
    nodes = x.nodes
    moved = [nodes[sum(i * n for i, n in zip(at, steps, strict=True))] for at in positions(shape)]
    return Symbol(trace, shape, moved)


@named("stack")
def _stack(trace: Any, tensors: Any, dim: int = 0, *, axis: int = 0) -> Symbol:
    if dim or axis:
        raise Refusal("stack along another dim than the first", "dim 0")
    symbols = [trace.symbol(one) for one in tensors]
    shape = broadcast_shape([one.shape for one in symbols])
    return Symbol(
        trace, (len(symbols), *shape), [node for one in symbols for node in one.expanded(shape)]
    )


@named("to", "type", "astype", "type_as", "_to_copy")
def _to(trace: Any, x: Any, *args: Any, **named: Any) -> Symbol:
    dtype = named.get("dtype")
    for one in args:
        if isinstance(one, Symbol):
            dtype = one.dtype
        elif trace.is_dtype(one):
            dtype = one
        elif hasattr(one, "dtype"):
            dtype = one.dtype
    return trace.as_dtype(trace.symbol(x), dtype)


@named("convert_element_type")
def _convert(trace: Any, x: Any, dtype: Any) -> Symbol:
    return trace.as_dtype(trace.symbol(x), dtype)


for _type in ("half", "bfloat16", "double", "short", "char", "byte"):
    put(_type, lambda trace, x, _type=_type: trace.as_dtype(trace.symbol(x), _type))


def _filled(value: bool | int | float, has_value: bool = False) -> Function:
    def function(trace: Any, like: Any, *args: Any, dtype: Any = None, **named: Any) -> Symbol:
        args = list(args)
        size = args.pop(0) if args else named.pop("size", ())
        if args and not has_value:  # new_zeros(2, 3)
            size = (size, *args)
        fill = (args.pop(0) if args else named.pop("fill_value")) if has_value else value
        shape = (size,) if isinstance(size, int) else tuple(size)
        result = trace.symbol(fill)
        filled = Symbol(trace, shape, result.expanded(shape))
        return trace.as_dtype(filled, trace.symbol(like).dtype if dtype is None else dtype)

    return function


put("new_zeros", _filled(0))
put("new_ones", _filled(1))
put("new_full", _filled(0, True))


def _like(value: Any) -> Function:
    def function(trace: Any, like: Any, *fill: Any, dtype: Any = None, **named: Any) -> Symbol:
        like = trace.symbol(like)
        chosen = fill[0] if fill else named.get("fill_value", value)
        filled = Symbol(trace, like.shape, trace.symbol(chosen).expanded(like.shape))
        return trace.as_dtype(filled, like.dtype if dtype is None else dtype)

    return function


put("zeros_like", _like(0))
put("ones_like", _like(1))
put("full_like", _like(None))


@named("new_tensor")
def _new_tensor(trace: Any, like: Any, data: Any, dtype: Any = None, **_: Any) -> Symbol:
    result = trace.symbol(data)
    return result if dtype is None else trace.as_dtype(result, dtype)


put("size", lambda trace, x, dim=None: x.shape if dim is None else x.shape[dim])
put("dim ndimension", lambda trace, x: x.ndim)
put("numel", lambda trace, x: math.prod(x.shape))
put("is_floating_point", lambda trace, x: trace.symbol(x).type == "float")
