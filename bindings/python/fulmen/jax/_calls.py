"""JAX arrays for fulmen.attention: inside and outside of jax.jit, differentiable (jax.grad,
jax.vjp), under jax.vmap, on the CPU and on GPUs.

The computation is a custom call of XLA (jax.ffi), so that nothing is copied. dropout_seed may be an
integer, an integer scalar array or a key of jax.random: the latter two may be traced, so that one
compiled step draws anew each time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from fulmen import _core
from fulmen._arguments import (
    OF_LENGTHS,
    PLACE_OF_LENGTHS,
    SCALARS,
    TENSOR_NAMES,
    with_lengths,
)
from fulmen._core import ArgumentError
from fulmen._numbers import INTEGERS, OTHER_SINKS, host_numbers
from fulmen.jax._custom_call import Call, custom_call, no_derivative
from fulmen.jax._sharding import Layout, differing, manual_axes

for _platform, _handlers in _core.xla_handlers().items():
    for _name, _handler in _handlers.items():
        jax.ffi.register_ffi_target(_name, _handler, platform=_platform)
# As JAX calls the platforms of devices.
_PLATFORMS = ("cpu", "gpu", "cuda", "rocm")

# The places of tensors in the tuples of fulmen._core (bindings/python/src/arguments/call.h).
# Gradients are those of q, k, v, bias and sinks.
_OUT, _BIAS, _KEEP_MASK, _ALIBI_SLOPES, _SINKS, _LSE, _DOUT, _DLSE, _DQ = (
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
)
_INPUTS = 8
_DIFFERENTIABLE = (0, 1, 2, _BIAS, _SINKS)
_WITHOUT_GRADIENT = ("alibi_slopes", "k_scale", "v_scale", "q_scale")
_DTYPES = ("float32", "float16", "bfloat16", "bool")
_KV_FORMATS = ("int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_CAUSAL = {False: 0, "none": 0, True: 1, "bottom_right": 1, "top_left": 2}
_AT = {name: at for at, name in enumerate(SCALARS)}


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Options:
    # In the order of SCALARS, and OF_LENGTHS; the seed and the offset are an array's business.
    scalars: tuple[Any, ...]
    device: str | None
    bhsd: bool
    want_lse: bool


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Wanted:
    gradients: int  # the bits of fulmen._core.backward


def _numbers(name: str, value: Any, like: Any) -> Any:
    if (
        isinstance(value, jax.Array)
        and name in INTEGERS
        and jnp.issubdtype(value.dtype, jnp.integer)
    ):
        return (
            jnp.clip(value, -(2**31), 2**31 - 1).astype(jnp.int32)
            if value.dtype.itemsize > 4
            else value.astype(jnp.int32)
        )
    if name == "sinks" and isinstance(value, jax.Array) and value.dtype.name in OTHER_SINKS:
        return value.astype(jnp.float32)
    return host_numbers(name, value)


def _as_mask(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """A keep_mask of uint8 as bool, which is all that XLA's custom call reads."""
    mask = tensors[_KEEP_MASK]
    if getattr(mask, "dtype", None) != np.uint8:
        return tensors
    return (*tensors[:_KEEP_MASK], mask != 0, *tensors[_KEEP_MASK + 1 :])


def _described(array: Any) -> Any:
    """A NumPy array of that shape, over almost no memory, for checks that read none."""
    shape, dtype = array.shape, array.dtype
    strides = [dtype.itemsize * math.prod(shape[d + 1 :]) for d in range(len(shape))]
    # As integers: NumPy strides no array of ml_dtypes' float8.
    number = np.empty(1, f"u{dtype.itemsize}")
    return np.lib.stride_tricks.as_strided(number, shape, strides).view(dtype)


def _shapes(tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(None if t is None else jax.ShapeDtypeStruct(t.shape, t.dtype) for t in tensors)


def _kept(check: Callable[..., None]) -> Callable[..., None]:
    """A check that is made once for equal arguments.

    It refuses arguments without a hash, and names them.
    """
    once = functools.lru_cache(maxsize=256, typed=True)(check)

    def checked(*arguments: Any) -> None:
        try:
            hash(arguments)
        except TypeError:
            check(*arguments)
        once(*arguments)

    return checked


@_kept
def _check(shapes: tuple[Any, ...], options: _Options, wanted: int) -> None:
    """Raises what fulmen.attention raises, when a call is traced: XLA's own errors come late, and
    have one type."""
    tensors = tuple(None if shape is None else _described(shape) for shape in shapes)
    _core.explain(tensors, options.scalars, options.device, options.bhsd, options.want_lse, wanted)


def _check_arrays(names: tuple[str, ...], tensors: tuple[Any, ...]) -> None:
    for name, tensor in zip(names, tensors, strict=False):
        if tensor is None:
            continue
        if not isinstance(tensor, jax.Array | np.ndarray):
            raise TypeError(
                f"{name} is of type {type(tensor).__name__}: a JAX array is accepted, as "
                f"{names[0]} is one"
            )
        accepted = ("int32",) if name in INTEGERS else _DTYPES
        if tensor.dtype.name not in (accepted + _KV_FORMATS if name in ("k", "v") else accepted):
            raise TypeError(
                f"{name} has dtype {tensor.dtype.name}: "
                f"{', '.join(_DTYPES[:3])}, bool for keep_mask, int32 for lengths, "
                f"{', '.join(_KV_FORMATS)} for k and v are accepted"
            )
        if isinstance(tensor, jax.Array) and not isinstance(tensor, jax.core.Tracer):
            others = {device.platform for device in tensor.devices()} - set(_PLATFORMS)
            if others:
                raise ArgumentError(
                    f"{name} is on {', '.join(sorted(others))}: JAX arrays on the CPU or a GPU are "
                    "accepted"
                )


def _checked(tensors: tuple[Any, ...], options: _Options, wanted: int = 0) -> None:
    _check_arrays(TENSOR_NAMES, tensors)
    inputs = with_lengths(tensors[:_INPUTS], tensors[PLACE_OF_LENGTHS:])
    _check(_shapes(inputs), options if _is_for_cpu(tensors) else _of_any_kernel(options), wanted)


def _is_for_cpu(tensors: tuple[Any, ...]) -> bool:
    """Whether the call runs on the CPU. Of traced arrays it is assumed that they are where JAX puts
    new ones."""
    for one in tensors:
        if isinstance(one, jax.Array) and not isinstance(one, jax.core.Tracer):
            return all(device.platform == "cpu" for device in one.devices())
    default = jax.config.jax_default_device
    platform = getattr(default, "platform", default) or jax.default_backend()
    return platform == "cpu"


def _of_any_kernel(options: _Options) -> _Options:
    """For checks on this machine's CPU of a call that a GPU computes: its kernels are known when it
    runs."""
    scalars = list(options.scalars)
    scalars[_AT["kernel"]] = scalars[_AT["tuning"]] = None
    return dataclasses.replace(options, scalars=tuple(scalars), device=None)


def _plain(scalars: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arrays of one number, as 1 / jnp.sqrt(d) is one, as numbers: options are a part of what is
    compiled."""
    plain = list(scalars)
    for at, (name, value) in enumerate(zip((*SCALARS, *OF_LENGTHS), scalars, strict=False)):
        if name in ("dropout_seed", "dropout_offset"):
            continue
        if not isinstance(value, jax.Array):
            if getattr(value, "shape", None) == () and hasattr(value, "item"):  # of NumPy or torch
                plain[at] = value.item()
            continue
        if isinstance(value, jax.core.Tracer):
            raise TypeError(
                f"{name} is traced: a number is accepted, one of static_argnums or static_argnames "
                "under jax.jit"
            )
        if value.shape == ():
            plain[at] = value.item()
    return tuple(plain)


def _words_of(value: jax.Array) -> jax.Array:
    """The 64 bits of an integer, low half first, as of Python's."""
    low = value.astype(jnp.uint32)
    if value.dtype.itemsize == 8:
        return jnp.stack([low, (value >> 32).astype(jnp.uint32)])
    return jnp.stack([low, jnp.where(value < 0, np.uint32(0xFFFFFFFF), np.uint32(0))])


def _random(scalars: tuple[Any, ...]) -> tuple[jax.Array | None, tuple[Any, ...]]:
    """Seed and offset as uint32 [4], low halves first, and the scalars without them."""
    seed, offset = scalars[_AT["dropout_seed"]], scalars[_AT["dropout_offset"]]
    without = list(scalars)
    without[_AT["dropout_offset"]] = 0
    if scalars[_AT["dropout"]] == 0 or seed is None:  # None with dropout is refused by the checks
        without[_AT["dropout_seed"]] = None
        return None, tuple(without)
    without[_AT["dropout_seed"]] = 0
    parts = []
    for name, value in (("dropout_seed", seed), ("dropout_offset", offset)):
        if isinstance(value, int | np.integer):
            words = np.array([int(value) & 0xFFFFFFFF, int(value) >> 32 & 0xFFFFFFFF], np.uint32)
        elif (
            isinstance(value, jax.Array)
            and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
            and value.shape == ()
        ):
            words = jax.random.key_data(value).reshape(-1)[-2:]
        elif (
            isinstance(value, jax.Array)
            and jnp.issubdtype(value.dtype, jnp.integer)
            and value.shape in ((), (2,))
        ):
            # (2,): what jax.random.PRNGKey makes.
            words = value.astype(jnp.uint32) if value.shape else _words_of(value)
        else:
            raise TypeError(
                f"{name} is {value!r}: an integer, an integer scalar array, or one key of "
                "jax.random is accepted"
            )
        parts.append(words)
    return jnp.concatenate([jnp.asarray(words) for words in parts]), tuple(without)


@contextlib.contextmanager
def _without_other_derivatives(function: str) -> Iterator[None]:
    """JAX's errors for derivatives that do not exist, in our words."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not any(words in str(error) for words in ("forward-mode", "cannot be differentiated")):
            raise
        raise NotImplementedError(no_derivative(function, True)) from error


def _attributes(options: _Options, arguments: int, results: int) -> dict[str, Any]:
    given = dict(zip((*SCALARS, *OF_LENGTHS), options.scalars, strict=False))
    attributes = {
        "arguments": np.int64(arguments),
        "results": np.int64(results),
        "bhsd": np.int64(options.bhsd),
        "softcap": np.float32(given["softcap"]),
        "dropout": np.float32(given["dropout"]),
        "causal": np.int64(_CAUSAL[given["causal"]]),
        **{
            name: np.int64(given[name])
            for name in ("window_left", "window_right", "num_threads", "verify")
        },
    }
    if given["softmax_scale"] is not None:
        attributes["softmax_scale"] = np.float32(given["softmax_scale"])
    attributes.update(
        {
            name: np.int64(given[name])
            for name in (*OF_LENGTHS, "deterministic")
            if given.get(name) is not None
        }
    )
    for name, value in (
        ("kernel", given["kernel"]),
        ("tuning", given["tuning"]),
        ("device", options.device),
    ):
        if value:
            attributes[name] = value
    return attributes


def _call(
    target: str, options: _Options, tensors: tuple[Any, ...], random: Any, results: dict[int, Any]
) -> tuple[Any, ...]:
    """Results by place, each with its shape; in the order of places."""
    places = [at for at, tensor in enumerate(tensors) if tensor is not None]
    attributes = _attributes(options, sum(1 << at for at in places), sum(1 << at for at in results))
    names = tuple(TENSOR_NAMES[at] for at in places)
    pages = "block_table" in names
    layout = Layout(
        bhsd=options.bhsd,
        packed_q="cu_seqlens_q" in names,
        packed_k="cu_seqlens_k" in names and not pages,
        pages=pages,
        whole=random is not None,
    )
    given = ("random",) if random is not None else ()
    call = Call(
        target,
        tuple(attributes.items()),
        names + given,
        tuple(TENSOR_NAMES[at] for at in sorted(results)),
        layout,
    )
    shapes = tuple((results[at].shape, results[at].dtype.name) for at in sorted(results))
    operands = [tensors[at] for at in places] + ([] if random is None else [random])
    return custom_call(call, shapes, *operands)


def _computed(
    options: _Options, tensors: tuple[Any, ...], random: Any, want_lse: bool
) -> tuple[Any, Any]:
    q, v = tensors[0], tensors[2]
    *leading, rows, heads, _ = q.shape  # packed ones have no batch
    of_lse = q.shape[:3] if options.bhsd else (*leading, heads, rows)
    results = {_OUT: jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype)}
    if want_lse:
        results[_LSE] = jax.ShapeDtypeStruct(of_lse, jnp.float32)
    out, *lse = _call("fulmen_attention", options, tensors, random, results)
    return out, lse[0] if want_lse else None


def _gradients(
    options: _Options, tensors: tuple[Any, ...], random: Any, wanted: int
) -> tuple[Any, ...]:
    """dq, dk, dv, dbias and dsinks; None for those that are not wanted. tensors: out, lse and dout
    are among them."""
    like = {_DQ + bit: tensors[at] for bit, at in enumerate(_DIFFERENTIABLE) if wanted >> bit & 1}
    q = tensors[0]
    if q.size == 0:  # a bias that no query uses has a gradient, the empty sum
        return tuple(
            jnp.zeros_like(like[_DQ + bit]) if wanted >> bit & 1 else None
            for bit in range(len(_DIFFERENTIABLE))
        )
    results = {at: jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for at, tensor in like.items()}
    computed = dict(
        zip(
            sorted(results),
            _call("fulmen_attention_backward", options, tensors, random, results),
            strict=True,
        )
    )
    return tuple(computed.get(_DQ + bit) for bit in range(len(_DIFFERENTIABLE)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: _Options, tensors: tuple[Any, ...], random: Any) -> tuple[Any, Any]:
    return _computed(options, tensors, random, options.want_lse)


def _attention_forward(options: _Options, tensors: Any, random: Any) -> tuple[Any, Any]:
    wanted = sum(
        1 << bit
        for bit, at in enumerate(_DIFFERENTIABLE)
        if tensors[at] is not None and tensors[at].perturbed
    )
    for name, one in zip(TENSOR_NAMES, tensors, strict=False):
        if name in _WITHOUT_GRADIENT and one is not None and one.perturbed:
            raise ArgumentError(
                f"{name} is differentiated: it has no gradient here, pass "
                f"jax.lax.stop_gradient({name})"
            )
    tensors = tuple(None if t is None else t.value for t in tensors)
    random = None if random is None else random.value
    out, lse = _computed(options, tensors, random, True)
    return (out, lse if options.want_lse else None), (tensors, random, out, lse, _Wanted(wanted))


def _attention_backward(options: _Options, saved: Any, cotangents: Any) -> tuple[Any, Any]:
    tensors, random, out, lse, wanted = saved
    dout, dlse = (None if isinstance(one, SymbolicZero) else one for one in cotangents)
    dout = jnp.zeros_like(out) if dout is None else dout
    filled = with_lengths(
        (*tensors[:_OUT], out, *tensors[_BIAS:_INPUTS], lse, dout, dlse), tensors[PLACE_OF_LENGTHS:]
    )
    by_place = [None] * len(tensors)
    scalars = tuple(
        None if at == _AT["tuning"] else one for at, one in enumerate(options.scalars)
    )  # the forward kernel's
    options = dataclasses.replace(options, scalars=scalars)
    if wanted.gradients:
        _checked(tensors, options, wanted.gradients)
        for at, gradient in zip(
            _DIFFERENTIABLE, _gradients(options, filled, random, wanted.gradients), strict=True
        ):
            by_place[at] = gradient
    return tuple(by_place), None


_attention.defvjp(_attention_forward, _attention_backward, symbolic_zeros=True)
# Outside of any trace compiled calls are looked up by their shapes, which takes a fraction of the
# time of tracing each one.
_compiled = jax.jit(_attention, static_argnums=0)


def _forward(
    tensors: tuple[Any, ...],
    scalars: tuple[Any, ...],
    device: str | None,
    bhsd: bool,
    want_lse: bool,
) -> Any:
    if tensors[_OUT] is not None:
        raise ArgumentError("out is given: JAX arrays are never written, pass out=None")
    random, scalars = _random(_plain(scalars))
    tensors = _as_mask(tensors)
    options = _Options(scalars, device, bhsd, want_lse)
    _checked(tensors, options)
    axes = manual_axes(tensors)
    tensors = tuple(differing(one, axes) for one in tensors)
    traced = any(isinstance(one, jax.core.Tracer) for one in (*tensors, random))
    with _without_other_derivatives("fulmen.attention"):
        out, lse = (_attention if traced else _compiled)(options, tensors, random)
    return (out, lse) if want_lse else out


def _backward(
    tensors: tuple[Any, ...], scalars: tuple[Any, ...], device: str | None, bhsd: bool, wanted: int
) -> tuple[Any, ...]:
    random, scalars = _random(_plain(scalars))
    tensors = _as_mask(tensors)
    options = _Options(scalars, device, bhsd, True)
    _checked(tensors, options, wanted)
    return _gradients(options, tensors, random, wanted)
