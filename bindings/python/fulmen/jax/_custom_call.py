"""A custom call of XLA (jax.ffi) with rules: jax.vmap adds a dim in front, and where arrays are
sharded over sequences or heads, each device computes what it has."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning

from fulmen.jax import _sharding

Shape = tuple[tuple[int, ...], str]  # and the name of the dtype


class Call(NamedTuple):
    """What is compiled: all but the shapes."""

    target: str
    attributes: tuple[tuple[str, Any], ...]
    arguments: tuple[str, ...]  # names; "random" for seed and offset
    results: tuple[str, ...]
    layout: _sharding.Layout
    aliases: tuple[int, ...] = ()  # the arguments that are the first results
    function: str = "fulmen.attention"  # in messages
    has_gradient: bool = True


def custom_call(call: Call, results: tuple[Shape, ...], *operands: Any) -> tuple[Any, ...]:
    axes = _sharding.manual_axes(operands)
    computed = _with_rules(call, results, 0)(*operands)
    return tuple(_sharding.differing(one, axes) for one in computed)


@functools.lru_cache(maxsize=1024)
def _with_rules(call: Call, results: tuple[Shape, ...], leading: int) -> Any:
    """leading: the number of mapped dims in front, which results have, too."""
    compute = _partitioned(call, results, leading)

    @custom_vmap
    def mapped(*operands: Any) -> Any:
        return compute(*operands)

    @mapped.def_vmap
    def _(axis_size: int, is_mapped: list[bool], *operands: Any) -> Any:
        # An array that is not mapped is not repeated, but those that the call writes.
        grown = []
        for at, (one, in_front) in enumerate(zip(operands, is_mapped, strict=True)):
            if not in_front:
                one = one[None]
                if at in call.aliases:
                    one = jnp.broadcast_to(one, (axis_size, *one.shape[1:]))
            grown.append(one)
        longer = tuple(((axis_size, *shape), dtype) for shape, dtype in results)
        return _with_rules(call, longer, leading + 1)(*grown), (True,) * len(results)

    @jax.custom_jvp
    def called(*operands: Any) -> Any:
        return mapped(*operands)

    @called.defjvp
    def _(*_: Any) -> Any:
        raise NotImplementedError(no_derivative(call.function, call.has_gradient))

    return called


def no_derivative(function: str, has_gradient: bool) -> str:
    accepted = (
        "jax.grad, jax.vjp and jax.jacrev are accepted" if has_gradient else "it has none at all"
    )
    return (
        f"{function} has no derivative by forward mode (jax.jvp, jax.jacfwd), and no second one "
        f"(jax.hessian): {accepted}"
    )


def _plain(call: Call, results: tuple[Shape, ...]) -> Any:
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    made = jax.ffi.ffi_call(
        call.target, shapes, input_output_aliases={at: at for at in call.aliases}
    )
    attributes = dict(call.attributes)
    return lambda *operands: tuple(made(*operands, **attributes))


def _partitioned(call: Call, results: tuple[Shape, ...], leading: int) -> Any:
    # The number of operands is the call's: JAX reads the signature.
    rules = _sharding.Rules(call.arguments, call.results, call.layout, leading)
    split = custom_partitioning(_plain(call, results))

    def partition(mesh: Any, given: Any, wanted: Any) -> Any:
        plan = rules.plan(mesh, given, wanted)

        def compute(*operands: Any) -> tuple[Any, ...]:
            local = tuple(
                (sharding.shard_shape(one.shape), one.dtype.name)
                for sharding, one in zip(plan.results, wanted, strict=True)
            )
            computed = _plain(call, local)(*operands)
            return tuple(
                _sharding.summed(one, axes) for one, axes in zip(computed, plan.summed, strict=True)
            )

        return mesh, compute, plan.results, plan.arguments

    def infer(mesh: Any, given: Any, wanted: Any) -> Any:
        return rules.plan(mesh, given, wanted).results

    split.def_partition(
        partition=partition, infer_sharding_from_operands=infer, sharding_rule=rules.of_shardy
    )
    return split
