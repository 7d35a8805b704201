"""The functions that a traced function may call, by the names that torch and NumPy give them: those
of each element. _shapes.py has the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fulmen.flex._graph import Node
from fulmen.flex._refusal import Refusal
from fulmen.flex._symbol import Symbol, broadcast_shape

Function = Callable[..., Symbol]
FUNCTIONS: dict[str, Function] = {}


def named(*names: str) -> Callable[[Function], Function]:
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


def put(names: str, function: Function) -> None:
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
    put(f"{_name} {_aliases}", _of_one(lambda s, a, n=_name: s.function(n, a)))
for _name, _aliases in {
    "floor": "",
    "ceil": "",
    "round": "rint",
    "trunc": "fix",
}.items():
    put(f"{_name} {_aliases}", _of_one(lambda s, a, n=_name: s.rounded(n, a)))
for _name, _op in {
    "lt less": "<",
    "le less_equal": "<=",
    "gt greater": ">",
    "ge greater_equal": ">=",
    "eq equal": "==",
    "ne not_equal": "!=",
}.items():
    put(_name, _of_two(lambda s, a, b, op=_op: s.compare(op, a, b)))
for _name, _op in {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}.items():
    put(_name, _of_two(lambda s, a, b, op=_op: s.logic(op, a, b)))
    put(
        _name.replace("bitwise", "logical"),
        _of_two(lambda s, a, b, op=_op: s.logic(op, s.truth(a), s.truth(b))),
    )
put("bitwise_not invert", _of_one(lambda s, a: s.invert(a)))
put("logical_not", _of_one(lambda s, a: s.invert(s.truth(a))))
put("bitwise_left_shift left_shift", _of_two(lambda s, a, b: s.shift("<<", a, b)))
put("bitwise_right_shift right_shift", _of_two(lambda s, a, b: s.shift(">>", a, b)))
put("mul multiply", _of_two(lambda s, a, b: s.binary("*", a, b)))
put("floor_divide", _of_two(lambda s, a, b: s.floor_divide(a, b)))
put("remainder mod", _of_two(lambda s, a, b: s.remainder(a, b)))
put("fmod", _of_two(lambda s, a, b: s.truncated_remainder(a, b)))
put("minimum", _of_two(lambda s, a, b: s.extreme("min", a, b)))
put("maximum", _of_two(lambda s, a, b: s.extreme("max", a, b)))
put("float_power", _of_two(lambda s, a, b: s.power(s.to(a, "float"), s.to(b, "float"))))
put("pow power", _of_two(lambda s, a, b: s.power(a, b)))
put("neg negative", _of_one(lambda s, a: s.negative(a)))
put("abs absolute fabs", _of_one(lambda s, a: s.absolute(a)))
put("square", _of_one(lambda s, a: s.binary("*", a, a)))
put("reciprocal", _of_one(lambda s, a: s.divide(s.constant(1.0), a)))
put("isnan", _of_one(lambda s, a: s.is_nan(a)))
put("isinf", _of_one(lambda s, a: s.compare("==", s.absolute(a), s.constant(math.inf))))
put("isneginf", _of_one(lambda s, a: s.compare("==", a, s.constant(-math.inf))))
put("isfinite", _of_one(lambda s, a: s.compare("<", s.absolute(a), s.constant(math.inf))))
put("expm1", _of_one(lambda s, a: s.binary("-", s.function("exp", a), s.constant(1.0))))
put("log1p", _of_one(lambda s, a: s.function("log", s.binary("+", a, s.constant(1.0)))))
put("relu", _of_one(lambda s, a: s.extreme("max", a, s.to(s.constant(0), a.type))))
put("silu swish", _of_one(lambda s, a: s.binary("*", a, s.function("sigmoid", a))))
put("positive clone contiguous detach alias copy lift_fresh", _of_one(lambda s, a: a))
put("int long", _of_one(lambda s, a: s.to(a, "int")))
put("float", _of_one(lambda s, a: s.to(a, "float")))
put("bool", _of_one(lambda s, a: s.truth(a)))


def _sign(s: Any, a: Node) -> Node:
    zero = s.to(s.constant(0), a.type)
    above, below = s.compare(">", a, zero), s.compare("<", a, zero)
    one = s.to(s.constant(1), a.type)
    return s.select(above, one, s.select(below, s.negative(one), a))


put("sign sgn", _of_one(lambda s, a: _sign(s, s.number(a))))


def _sum(op: str, swap: bool = False) -> Function:
    def function(trace: Any, x: Any, y: Any, alpha: Any = 1) -> Symbol:
        x, y = (y, x) if swap else (x, y)
        if alpha != 1:
            y = trace.call("mul", (y, alpha), {})
        return elementwise(trace, lambda a, b: trace.scalars.binary(op, a, b), x, y)

    return function


put("add", _sum("+"))
put("sub subtract", _sum("-"))
put("rsub", _sum("-", True))


@named("div", "divide", "true_divide")
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


@named("gelu")
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


@named("leaky_relu")
def _leaky_relu(trace: Any, x: Any, negative_slope: float = 0.01) -> Symbol:
    below = trace.call("mul", (x, negative_slope), {})
    return trace.call("where", (trace.call("gt", (x, 0.0), {}), x, below), {})


@named("elu")
def _elu(trace: Any, x: Any, alpha: float = 1.0) -> Symbol:
    # Without an infinity where x is large, whose gradient times 0 is NaN.
    small = trace.call("minimum", (x, 0.0), {})
    below = trace.call("mul", (trace.call("expm1", (small,), {}), alpha), {})
    return trace.call("where", (trace.call("gt", (x, 0.0), {}), x, below), {})


@named("softplus")
def _softplus(trace: Any, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Symbol:
    scaled = trace.call("mul", (x, beta), {})
    power = trace.call("exp", (trace.call("minimum", (scaled, threshold), {}),), {})
    curve = trace.call("div", (trace.call("log1p", (power,), {}), beta), {})
    return trace.call("where", (trace.call("gt", (scaled, threshold), {}), x, curve), {})


@named("where")
def _where(trace: Any, condition: Any, x: Any = None, y: Any = None) -> Symbol:
    if x is None or y is None:
        raise Refusal("where of a condition alone", "where(condition, a, b)")
    return elementwise(trace, trace.scalars.select, condition, x, y)


@named("masked_fill")
def _masked_fill(trace: Any, x: Any, mask: Any, value: Any) -> Symbol:
    kind = trace.symbol(x).type
    return _where(trace, mask, trace.symbol(trace.converted(value, kind)), x)


@named("clamp", "clip")
def _clamp(
    trace: Any, x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None
) -> Symbol:
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    result = trace.symbol(x)
    for name, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            result = trace.call(name, (result, bound), {})
    return result


put("clamp_min", lambda trace, x, min: _clamp(trace, x, min=min))
put("clamp_max", lambda trace, x, max: _clamp(trace, x, max=max))


@named("lerp")
def _lerp(trace: Any, x: Any, end: Any, weight: Any) -> Symbol:
    part = trace.call("mul", (trace.call("sub", (end, x), {}), weight), {})
    return trace.call("add", (x, part), {})
