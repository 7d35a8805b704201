"""The functions that a traced function may call, by the names that torch and NumPy give them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from fulmen.flex._graph import Node
from fulmen.flex._refusal import Refusal
from fulmen.flex._symbol import Symbol, broadcast_shape, positions, strides_of

Function = Callable[..., Symbol]
FUNCTIONS: dict[str, Function] = {}


def _named(*names: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        for name in names:
            FUNCTIONS[name] = function
        return function

    return register


def elementwise(trace: Any, compute: Callable[..., Node], *operands: Any) -> Symbol:
    symbols = [trace.symbol(one) for one in operands]
    shape = broadcast_shape([one.shape for one in symbols])
    columns = [one.expanded(shape) for one in symbols]
    return Symbol(trace, shape, [compute(*nodes) for nodes in zip(*columns, strict=True)])


def _of_one(compute: Callable[[Any, Node], Node]) -> Function:
    return lambda trace, x: elementwise(trace, lambda a: compute(trace.scalars, a), x)


def _of_two(compute: Callable[[Any, Node, Node], Node]) -> Function:
    return lambda trace, x, y: elementwise(trace, lambda a, b: compute(trace.scalars, a, b), x, y)


def _put(names: str, function: Function) -> None:
    for name in names.split():
        FUNCTIONS[name] = function


for _name, _aliases in {
    "exp": "",
    "exp2": "special_exp2",
    "log": "",
    "log2": "",
    "tanh": "",
    "sqrt": "",
    "rsqrt": "",
    "sigmoid": "special_expit",
    "sin": "",
    "cos": "",
    "erf": "special_erf",
}.items():
    _put(f"{_name} {_aliases}", _of_one(lambda s, a, n=_name: s.function(n, a)))
for _name, _aliases in {
    "floor": "",
    "ceil": "",
    "round": "rint",
    "trunc": "fix",
}.items():
    _put(f"{_name} {_aliases}", _of_one(lambda s, a, n=_name: s.rounded(n, a)))
for _name, _op in {
    "lt less": "<",
    "le less_equal": "<=",
    "gt greater": ">",
    "ge greater_equal": ">=",
    "eq equal": "==",
    "ne not_equal": "!=",
}.items():
    _put(_name, _of_two(lambda s, a, b, op=_op: s.compare(op, a, b)))
for _name, _op in {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}.items():
    _put(_name, _of_two(lambda s, a, b, op=_op: s.logic(op, a, b)))
    _put(
        _name.replace("bitwise", "logical"),
        _of_two(lambda s, a, b, op=_op: s.logic(op, s.truth(a), s.truth(b))),
    )
_put("bitwise_not invert", _of_one(lambda s, a: s.invert(a)))
_put("logical_not", _of_one(lambda s, a: s.invert(s.truth(a))))
_put("bitwise_left_shift left_shift", _of_two(lambda s, a, b: s.shift("<<", a, b)))
_put("bitwise_right_shift right_shift", _of_two(lambda s, a, b: s.shift(">>", a, b)))
_put("mul multiply", _of_two(lambda s, a, b: s.binary("*", a, b)))
_put("floor_divide", _of_two(lambda s, a, b: s.floor_divide(a, b)))
_put("remainder mod", _of_two(lambda s, a, b: s.remainder(a, b)))
_put("fmod", _of_two(lambda s, a, b: s.truncated_remainder(a, b)))
_put("minimum", _of_two(lambda s, a, b: s.extreme("min", a, b)))
_put("maximum", _of_two(lambda s, a, b: s.extreme("max", a, b)))
_put("float_power", _of_two(lambda s, a, b: s.power(s.to(a, "float"), s.to(b, "float"))))
_put("pow power", _of_two(lambda s, a, b: s.power(a, b)))
_put("neg negative", _of_one(lambda s, a: s.negative(a)))
_put("abs absolute fabs", _of_one(lambda s, a: s.absolute(a)))
_put("square", _of_one(lambda s, a: s.binary("*", a, a)))
_put("reciprocal", _of_one(lambda s, a: s.divide(s.constant(1.0), a)))
_put("isnan", _of_one(lambda s, a: s.is_nan(a)))
_put("isinf", _of_one(lambda s, a: s.compare("==", s.absolute(a), s.constant(math.inf))))
_put("isneginf", _of_one(lambda s, a: s.compare("==", a, s.constant(-math.inf))))
_put("isfinite", _of_one(lambda s, a: s.compare("<", s.absolute(a), s.constant(math.inf))))
_put("expm1", _of_one(lambda s, a: s.binary("-", s.function("exp", a), s.constant(1.0))))
_put("log1p", _of_one(lambda s, a: s.function("log", s.binary("+", a, s.constant(1.0)))))
_put("relu", _of_one(lambda s, a: s.extreme("max", a, s.to(s.constant(0), a.type))))
_put("silu swish", _of_one(lambda s, a: s.binary("*", a, s.function("sigmoid", a))))
_put("positive clone contiguous detach alias copy lift_fresh", _of_one(lambda s, a: a))
_put("int long", _of_one(lambda s, a: s.to(a, "int")))
_put("float", _of_one(lambda s, a: s.to(a, "float")))
_put("bool", _of_one(lambda s, a: s.truth(a)))


def _sign(s: Any, a: Node) -> Node:
    zero = s.to(s.constant(0), a.type)
    above, below = s.compare(">", a, zero), s.compare("<", a, zero)
    one = s.to(s.constant(1), a.type)
    return s.select(above, one, s.select(below, s.negative(one), a))


_put("sign sgn", _of_one(lambda s, a: _sign(s, s.number(a))))


def _sum(op: str, swap: bool = False) -> Function:
    def function(trace: Any, x: Any, y: Any, alpha: Any = 1) -> Symbol:
        x, y = (y, x) if swap else (x, y)
        if alpha != 1:
            y = trace.call("mul", (y, alpha), {})
        return elementwise(trace, lambda a, b: trace.scalars.binary(op, a, b), x, y)

    return function


_put("add", _sum("+"))
_put("sub subtract", _sum("-"))
_put("rsub", _sum("-", True))


@_named("div", "divide", "true_divide")
def _div(trace: Any, x: Any, y: Any, rounding_mode: str | None = None) -> Symbol:
    scalars = trace.scalars
    modes = {
        None: scalars.divide,
        "floor": scalars.floor_divide,
        "trunc": scalars.truncated_divide,
    }
    if rounding_mode not in modes:
        raise Refusal(f"rounding_mode={rounding_mode!r}", "None, 'floor' and 'trunc'")
    return elementwise(trace, modes[rounding_mode], x, y)


@_named("gelu")
def _gelu(trace: Any, x: Any, approximate: str = "none") -> Symbol:
    call = trace.call
    if approximate == "tanh":
        cube = call("mul", (call("mul", (x, x), {}), x), {})
        inner = call(
            "mul",
            (call("add", (x, call("mul", (cube, 0.044715), {})), {}), math.sqrt(2 / math.pi)),
            {},
        )
        curve = call("tanh", (inner,), {})
    elif approximate == "none":
        curve = call("erf", (call("mul", (x, math.sqrt(0.5)), {}),), {})
    else:
        raise Refusal(f"approximate={approximate!r}", "'none' and 'tanh'")
    return call("mul", (call("mul", (x, 0.5), {}), call("add", (curve, 1.0), {})), {})


@_named("leaky_relu")
def _leaky_relu(trace: Any, x: Any, negative_slope: float = 0.01) -> Symbol:
    below = trace.call("mul", (x, negative_slope), {})
    return trace.call("where", (trace.call("gt", (x, 0.0), {}), x, below), {})


@_named("elu")
def _elu(trace: Any, x: Any, alpha: float = 1.0) -> Symbol:
    # Without an infinity where x is large, whose gradient times 0 is NaN.
    small = trace.call("minimum", (x, 0.0), {})
    below = trace.call("mul", (trace.call("expm1", (small,), {}), alpha), {})
    return trace.call("where", (trace.call("gt", (x, 0.0), {}), x, below), {})


@_named("softplus")
def _softplus(trace: Any, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Symbol:
    scaled = trace.call("mul", (x, beta), {})
    power = trace.call("exp", (trace.call("minimum", (scaled, threshold), {}),), {})
    curve = trace.call("div", (trace.call("log1p", (power,), {}), beta), {})
    return trace.call("where", (trace.call("gt", (scaled, threshold), {}), x, curve), {})


@_named("where")
def _where(trace: Any, condition: Any, x: Any = None, y: Any = None) -> Symbol:
    if x is None or y is None:
        raise Refusal("where of a condition alone", "where(condition, a, b)")
    return elementwise(trace, trace.scalars.select, condition, x, y)


@_named("masked_fill")
def _masked_fill(trace: Any, x: Any, mask: Any, value: Any) -> Symbol:
    kind = trace.symbol(x).type
    return _where(trace, mask, trace.symbol(trace.converted(value, kind)), x)


@_named("clamp", "clip")
def _clamp(
    trace: Any, x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None
) -> Symbol:
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    result = trace.symbol(x)
    for name, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            result = trace.call(name, (result, bound), {})
    return result


_put("clamp_min", lambda trace, x, min: _clamp(trace, x, min=min))
_put("clamp_max", lambda trace, x, max: _clamp(trace, x, max=max))


@_named("lerp")
def _lerp(trace: Any, x: Any, end: Any, weight: Any) -> Symbol:
    part = trace.call("mul", (trace.call("sub", (end, x), {}), weight), {})
    return trace.call("add", (x, part), {})


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


_put("any", _truths("|"))
_put("all", _truths("&"))


@_named("sum")
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
    _put(_op, _extremes(_op))
    _put(
        f"a{_op}",
        lambda trace, x, dim=None, keepdim=False, *, axis=None, _op=_op: _extremes(_op)(
            trace, x, None, keepdim, axis=_dims(dim, axis)
        ),
    )


@_named("dot", "vdot", "inner")
def _dot(trace: Any, x: Any, y: Any) -> Symbol:
    return _total(trace, trace.call("mul", (x, y), {}), -1)


@_named("matmul")
def _matmul(trace: Any, x: Any, y: Any) -> Symbol:
    x, y = trace.symbol(x), trace.symbol(y)
    if x.ndim == y.ndim == 1:
        return _dot(trace, x, y)
    if x.ndim == 2 and y.ndim == 1:
        return _dot(trace, x, y)
    if x.ndim == 1 and y.ndim == 2:
        return _total(trace, trace.call("mul", (x.reshaped((*x.shape, 1)), y), {}), 0)
    raise Refusal(f"a product of shapes {list(x.shape)} and {list(y.shape)}", "vectors")


@_named("unsqueeze")
def _unsqueeze(trace: Any, x: Any, dim: int) -> Symbol:
    x = trace.symbol(x)
    at = dim % (x.ndim + 1)
    return x.reshaped((*x.shape[:at], 1, *x.shape[at:]))


@_named("expand_dims")
def _expand_dims(trace: Any, a: Any, axis: int) -> Symbol:
    return _unsqueeze(trace, a, axis)


@_named("squeeze")
def _squeeze(trace: Any, x: Any, dim: Any = None, *, axis: Any = None) -> Symbol:
    x, dim = trace.symbol(x), _dims(dim, axis)
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {one % x.ndim for one in dims if x.shape[one] == 1}
    return x.reshaped(tuple(n for at, n in enumerate(x.shape) if at not in gone))


@_named("reshape", "view")
def _reshape(trace: Any, x: Any, *shape: Any) -> Symbol:
    x = trace.symbol(x)
    sizes: Sequence[int] = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    known = math.prod(n for n in sizes if n != -1)
    total = math.prod(x.shape)
    sizes = tuple(total // max(known, 1) if n == -1 else n for n in sizes)
    if math.prod(sizes) != total:
        raise Refusal(f"a value of shape {list(x.shape)} as shape {list(sizes)}")
    return x.reshaped(sizes)


@_named("expand", "broadcast_to")
def _expand(trace: Any, x: Any, *shape: Any) -> Symbol:
    x = trace.symbol(x)
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    own = (1,) * (len(sizes) - x.ndim) + x.shape
    full = tuple(own[at] if n == -1 else n for at, n in enumerate(sizes))
    return Symbol(trace, full, x.expanded(full))


@_named("transpose", "swapaxes")
def _transpose(trace: Any, x: Any, a: int, b: int) -> Symbol:
    x = trace.symbol(x)
    dims = list(range(x.ndim))
    dims[a], dims[b] = dims[b], dims[a]
    shape = tuple(x.shape[d] for d in dims)
    steps = [strides_of(x.shape)[d] for d in dims]
    nodes = x.nodes
    moved = [nodes[sum(i * n for i, n in zip(at, steps, strict=True))] for at in positions(shape)]
    return Symbol(trace, shape, moved)


@_named("stack")
def _stack(trace: Any, tensors: Any, dim: int = 0, *, axis: int = 0) -> Symbol:
    if dim or axis:
        raise Refusal("stack along another dim than the first", "dim 0")
    symbols = [trace.symbol(one) for one in tensors]
    shape = broadcast_shape([one.shape for one in symbols])
    return Symbol(
        trace, (len(symbols), *shape), [node for one in symbols for node in one.expanded(shape)]
    )


@_named("to", "type", "astype", "type_as", "_to_copy")
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


@_named("convert_element_type")
def _convert(trace: Any, x: Any, dtype: Any) -> Symbol:
    return trace.as_dtype(trace.symbol(x), dtype)


for _type in ("half", "bfloat16", "double", "short", "char", "byte"):
    _put(_type, lambda trace, x, _type=_type: trace.as_dtype(trace.symbol(x), _type))


def _filled(value: bool | int | float, has_value: bool = False) -> Function:
    def function(trace: Any, like: Any, *args: Any, dtype: Any = None, **named: Any) -> Symbol:
        args = list(args)
        size = args.pop(0) if args else named.pop("size", ())
        fill = (args.pop(0) if args else named.pop("fill_value")) if has_value else value
        shape = (size,) if isinstance(size, int) else tuple(size)
        result = trace.symbol(fill)
        filled = Symbol(trace, shape, result.expanded(shape))
        return trace.as_dtype(filled, trace.symbol(like).dtype if dtype is None else dtype)

    return function


_put("new_zeros", _filled(0))
_put("new_ones", _filled(1))
_put("new_full", _filled(0, True))


def _like(value: Any) -> Function:
    def function(trace: Any, like: Any, *fill: Any, dtype: Any = None, **named: Any) -> Symbol:
        like = trace.symbol(like)
        chosen = fill[0] if fill else named.get("fill_value", value)
        filled = Symbol(trace, like.shape, trace.symbol(chosen).expanded(like.shape))
        return trace.as_dtype(filled, like.dtype if dtype is None else dtype)

    return function


_put("zeros_like", _like(0))
_put("ones_like", _like(1))
_put("full_like", _like(None))


@_named("new_tensor")
def _new_tensor(trace: Any, like: Any, data: Any, dtype: Any = None, **_: Any) -> Symbol:
    result = trace.symbol(data)
    return result if dtype is None else trace.as_dtype(result, dtype)


_put("size", lambda trace, x, dim=None: x.shape if dim is None else x.shape[dim])
_put("dim ndimension", lambda trace, x: x.ndim)
_put("numel", lambda trace, x: math.prod(x.shape))
_put("is_floating_point", lambda trace, x: trace.symbol(x).type == "float")
