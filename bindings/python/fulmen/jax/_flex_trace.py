"""Functions of flex_attention over JAX arrays: JAX traces them, and what it gives becomes the same
graph as of other functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fulmen.flex._graph import text
from fulmen.flex._refusal import Refusal, refused
from fulmen.flex._symbol import Symbol
from fulmen.flex._trace import GIVEN, Trace, Traced

# JAX's names of operations, where they differ from the others'.
_SAME = {
    "logistic": "sigmoid",
    "max": "maximum",
    "min": "minimum",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "not": "bitwise_not",
    "shift_left": "left_shift",
    "shift_right_arithmetic": "right_shift",
    "rem": "fmod",
    "is_finite": "isfinite",
    "stop_gradient": "positive",
    "copy_p": "positive",
    "add_any": "add",
}
_DIRECT = frozenset(
    (
        "add",
        "sub",
        "mul",
        "neg",
        "abs",
        "sign",
        "exp",
        "exp2",
        "log",
        "log1p",
        "expm1",
        "tanh",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "erf",
        "floor",
        "ceil",
        "pow",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "square",
        "copy",
    )
)
_REDUCED = {
    "reduce_sum": "sum",
    "reduce_and": "all",
    "reduce_or": "any",
    "reduce_max": "amax",
    "reduce_min": "amin",
}


class _Reader:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def call(self, name: str, *args: Any, **named: Any) -> Symbol:
        return self.trace.call(name, args, named)

    def run(self, jaxpr: Any, consts: Any, args: list[Any]) -> list[Any]:
        values = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            value = atom.val if hasattr(atom, "val") else values[atom]
            if isinstance(value, Symbol):
                return value
            return self.trace.symbol(
                value.item() if hasattr(atom, "val") and hasattr(value, "item") else value
            )

        for equation in jaxpr.eqns:
            inputs = [read(atom) for atom in equation.invars]
            try:
                results = self.equation(equation, inputs)
            except Refusal as error:
                error.where = _place(equation) or error.where
                raise
            values.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Symbol]) -> list[Any]:
        name, params = equation.primitive.name, equation.params
        inner = params.get("jaxpr", params.get("call_jaxpr", params.get("fun_jaxpr")))
        if name in ("pjit", "jit") and params.get("name") in ("floor_divide", "remainder"):
            return [self.call(params["name"], *inputs)]
        if name in (
            "pjit",
            "jit",
            "closed_call",
            "custom_jvp_call",
            "custom_vjp_call",
            "custom_vjp_call_jaxpr",
            "core_call",
            "remat",
            "checkpoint",
        ):
            closed = hasattr(inner, "consts")
            return self.run(
                inner.jaxpr if closed else inner, inner.consts if closed else (), inputs
            )
        if name in _DIRECT:
            return [self.call(name, *inputs)]
        if name in _SAME:
            return [self.call(_SAME[name], *inputs)]
        if name in _REDUCED:
            return [self.call(_REDUCED[name], inputs[0], axis=tuple(params["axes"]))]
        if name == "gather":
            params = {**params, "nothing": _fill(params, equation.outvars[0].aval.dtype)}
        handler = getattr(self, f"_{name}", None)
        if handler is None:
            raise Refusal(f"JAX's operation {name} of a traced value")
        return [handler(params, *inputs)]

    def _round(self, params: Any, x: Symbol) -> Symbol:
        if "EVEN" in str(params["rounding_method"]):
            return self.call("round", x)
        away = self.call("floor", self.call("add", self.call("abs", x), 0.5))
        return self.call("mul", self.call("sign", x), away)

    def _div(self, params: Any, x: Symbol, y: Symbol) -> Symbol:
        integers = x.type != "float"
        return self.call("div", x, y, rounding_mode="trunc" if integers else None)

    def _integer_pow(self, params: Any, x: Symbol) -> Symbol:
        exponent = params["y"]
        if exponent < 0:
            return self.call("reciprocal", self.call("pow", x, -exponent))
        return self.call("pow", x, exponent) if exponent else self.call("ones_like", x)

    def _select_n(self, params: Any, which: Symbol, *cases: Symbol) -> Symbol:
        if which.type == "bool":
            return self.call("where", which, cases[1], cases[0])
        result = cases[-1]
        for at in range(len(cases) - 2, -1, -1):
            result = self.call("where", self.call("eq", which, at), cases[at], result)
        return result

    def _clamp(self, params: Any, low: Symbol, x: Symbol, high: Symbol) -> Symbol:
        return self.call("clamp", x, low, high)

    def _convert_element_type(self, params: Any, x: Symbol) -> Symbol:
        name = jnp.dtype(params["new_dtype"]).name
        if name in ("uint32", "uint64"):
            raise Refusal(f"a conversion to {name}", "int32 and float32")
        return self.trace.as_dtype(x, name)

    def _broadcast_in_dim(self, params: Any, x: Symbol, *_: Any) -> Symbol:
        shape, dims = params["shape"], params["broadcast_dimensions"]
        own = [1] * len(shape)
        for size, dim in zip(x.shape, dims, strict=True):
            own[dim] = size
        return self.call("expand", x.reshaped(tuple(own)), *shape) if shape else x

    def _reshape(self, params: Any, x: Symbol, *_: Any) -> Symbol:
        return x.reshaped(tuple(params["new_sizes"]))

    def _squeeze(self, params: Any, x: Symbol) -> Symbol:
        gone = {dim % x.ndim for dim in params["dimensions"]}
        return x[tuple(0 if at in gone else slice(None) for at in range(x.ndim))]

    def _expand_dims(self, params: Any, x: Symbol) -> Symbol:
        for dim in sorted(params["dimensions"]):
            x = self.call("unsqueeze", x, dim)
        return x

    def _transpose(self, params: Any, x: Symbol) -> Symbol:
        if tuple(params["permutation"]) == tuple(range(x.ndim)):
            return x
        if x.ndim != 2:
            raise Refusal(f"a transposed value of {x.ndim} dims", "2 dims")
        return self.call("transpose", x, 0, 1)

    def _slice(self, params: Any, x: Symbol) -> Symbol:
        steps = params["strides"] or (1,) * x.ndim
        limits = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
        return x[tuple(slice(*one) for one in limits)]

    def _concatenate(self, params: Any, *parts: Symbol) -> Symbol:
        if params["dimension"] != 0:
            raise Refusal("a concatenation along another dim than the first", "dim 0")
        nodes = [node for one in parts for node in one.nodes]
        shape = (sum(one.shape[0] for one in parts), *parts[0].shape[1:])
        return Symbol(self.trace, shape, nodes)

    def _iota(self, params: Any) -> Symbol:
        shape, dim = params["shape"], params["dimension"]
        line = self.trace.symbol(list(range(shape[dim])))
        own = tuple(n if at == dim else 1 for at, n in enumerate(shape))
        return self.call("expand", line.reshaped(own), *shape)

    def _dot_general(self, params: Any, x: Symbol, y: Symbol) -> Symbol:
        contracted, batched = params["dimension_numbers"]
        if x.ndim == y.ndim == 1 and contracted == ((0,), (0,)) and batched == ((), ()):
            return self.call("dot", x, y)
        raise Refusal(f"a product of shapes {list(x.shape)} and {list(y.shape)}", "vectors")

    def _inside(self, index: Symbol, size: int) -> Symbol:
        return self.call("clamp", index, 0, size - 1)

    def _dynamic_slice(self, params: Any, x: Symbol, *starts: Symbol) -> Symbol:
        """JAX moves starts so that the slice is inside."""
        keys: list[Any] = []
        new: list[int] = []
        for dim, (start, size) in enumerate(zip(starts, params["slice_sizes"], strict=True)):
            if size == x.shape[dim]:
                keys.append(slice(None))
            elif size == 1:
                keys.append(self._inside(start, x.shape[dim]))
                new.append(dim)
            else:
                raise Refusal(f"a slice of {size} elements at a traced place", "single elements")
        found = x[tuple(keys)]
        for dim in new:
            found = _with_dim(found, dim)
        return found

    def _gather(self, params: Any, x: Symbol, starts: Symbol) -> Symbol:
        numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
        batches = starts.shape[:-1]
        if len(batches) > 1 or getattr(numbers, "operand_batching_dims", ()):
            raise Refusal(f"indices of shape {list(starts.shape)}", "scalars and vectors")
        rows = [starts] if not batches else [starts[at] for at in range(batches[0])]
        nothing = params["nothing"]
        found = [self._gathered(numbers, sizes, nothing, x, row) for row in rows]
        if not batches:
            return found[0]
        if numbers.offset_dims not in ((), tuple(range(1, 1 + found[0].ndim))):
            raise Refusal("vectors as indices beside slices before them")
        return self.call("stack", found)

    def _gathered(self, numbers: Any, sizes: Any, nothing: Any, x: Symbol, row: Symbol) -> Symbol:
        """nothing: what an index out of range gives; None where indices are moved inside."""
        keys: list[Any] = [slice(None)] * x.ndim
        inside: Symbol | None = None
        for at, dim in enumerate(numbers.start_index_map):
            if sizes[dim] == x.shape[dim] and dim not in numbers.collapsed_slice_dims:
                continue
            if sizes[dim] != 1:
                raise Refusal(f"a slice of {sizes[dim]} elements", "single elements")
            index, size = row[at], x.shape[dim]
            keys[dim] = self._inside(index, size)
            if nothing is not None:
                within = self.call(
                    "bitwise_and", self.call("ge", index, 0), self.call("lt", index, size)
                )
                inside = within if inside is None else self.call("bitwise_and", inside, within)
        found = x[tuple(keys)]
        if inside is not None:
            found = self.call("where", inside, found, nothing)
        for dim, key in enumerate(keys):
            if not isinstance(key, slice) and dim not in numbers.collapsed_slice_dims:
                found = _with_dim(found, dim)
        return found


def _fill(params: Any, dtype: Any) -> bool | int | float | None:
    """What indices out of range give: the fill_value, or JAX's of a dtype."""
    if "FILL" not in str(params["mode"]):
        return None
    given = params.get("fill_value")
    if jnp.issubdtype(dtype, jnp.bool_):
        return True if given is None else bool(given)
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        least = limits.max if jnp.issubdtype(dtype, jnp.unsignedinteger) else limits.min
        return int(least if given is None else given)
    return float("nan") if given is None else float(given)


def _with_dim(x: Symbol, dim: int) -> Symbol:
    return x[(*(slice(None),) * dim, None)]


def _place(equation: Any) -> tuple[str, int, str] | None:
    """The line of the user's from which an operation of JAX's comes."""
    try:
        from jax._src import source_info_util

        frame = source_info_util.user_frame(equation.source_info.traceback)
        return frame.file_name, frame.start_line, frame.function_name
    except Exception:  # JAX's own business, which differs between versions
        return None


def traced(
    score_mod: Callable[..., Any] | None, mask_mod: Callable[..., Any] | None, like: Any
) -> Traced:
    """Both functions, traced. Raises TraceError."""
    trace = Trace()
    texts, graphs = {"score_mod": "", "mask_mod": ""}, {}
    for kind, function in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        if function is not None:
            graphs[kind] = _traced(trace, kind, function)
            texts[kind] = text(graphs[kind], trace.captured)
    tensors = {one.name: one.array for one in trace.captured}
    return Traced(texts["score_mod"], texts["mask_mod"], tensors, graphs, False)


def _traced(trace: Trace, kind: str, function: Callable[..., Any]) -> Any:
    if not callable(function):
        raise TypeError(f"{kind} is {function!r}: a function is accepted")
    shapes = [
        jax.ShapeDtypeStruct((), jnp.float32 if name == "score" else jnp.int32)
        for name in GIVEN[kind]
    ]
    try:
        closed = jax.make_jaxpr(function)(*shapes)
        given = [trace.given(name) for name in GIVEN[kind]]
        (found,) = _Reader(trace).run(closed.jaxpr, closed.consts, given)
        node = found.node
    except Exception as error:
        raise refused(kind, function, error) from error
    wanted = "float" if kind == "score_mod" else "bool"
    if kind == "mask_mod" and node.type != "bool":
        error = Refusal(f"it returns a value of type {node.type}", "bool")
        error.where = None
        raise refused(kind, function, error)
    return trace.scalars.to(node, wanted)
