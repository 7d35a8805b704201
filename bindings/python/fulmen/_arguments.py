"""The keyword arguments that every function shares, and the kinds of arrays."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar

from fulmen._core import ArgumentError, tensor_names
from fulmen._numbers import FLOATS, INTEGERS, host_numbers, is_of_numpy

# A NumPy array, a torch tensor, or another array with __dlpack__; results are of q's kind.
Array: TypeAlias = Any
Precision: TypeAlias = "Literal['exact', 'int8', 'fp8']"
Causal: TypeAlias = "bool | Literal['none', 'bottom_right', 'top_left']"
Layout: TypeAlias = Literal["bshd", "bhsd"]


class Options(TypedDict, total=False):
    """What attention() describes, for the functions that take the same."""

    bias: Array | None
    keep_mask: Array | None
    alibi_slopes: Array | None
    sinks: Array | None
    cu_seqlens_q: Array | None
    cu_seqlens_k: Array | None
    seqlens_k: Array | None
    leftpad_k: Array | None
    block_table: Array | None
    k_scale: Array | None
    v_scale: Array | None
    q_scale: Array | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    softmax_scale: float | None
    softcap: float
    causal: Causal
    window_left: int
    window_right: int
    dropout: float
    dropout_seed: int | None
    dropout_offset: int
    deterministic: bool | None
    kernel: str | None
    tuning: str | None
    num_threads: int
    verify: bool
    validate: bool
    device: str | None
    layout: Layout


# In the order of the tuple that fulmen._core takes.
SCALARS: dict[str, Any] = {
    "softmax_scale": None,
    "softcap": 0.0,
    "causal": False,
    "window_left": -1,
    "window_right": -1,
    "dropout": 0.0,
    "dropout_seed": None,
    "dropout_offset": 0,
    "deterministic": None,
    "kernel": None,
    "tuning": None,
    "num_threads": 0,
    "verify": False,
}
# By place in the tuple of tensors: q, k, v, out, the optional ones, lse, dout, dlse, gradients, and
# what says how rows are kept.
TENSOR_NAMES = tensor_names
OPTIONAL_TENSORS = TENSOR_NAMES[TENSOR_NAMES.index("out") + 1 : TENSOR_NAMES.index("lse")]
# At the end of both tuples, where sequences differ in length, or k and v have scales.
PLACE_OF_LENGTHS = TENSOR_NAMES.index("cu_seqlens_q")
LENGTHS = TENSOR_NAMES[PLACE_OF_LENGTHS:]
LONGEST = ("max_seqlen_q", "max_seqlen_k")
OF_LENGTHS = (*LONGEST, "validate")
_NUMBERS = frozenset((*INTEGERS, *FLOATS))
GRADIENTS = ("q", "k", "v", "bias", "sinks")
# What fulmen._core.torch_observers answers where nobody looks on, and where more than autograd
# does.
NOBODY, OTHERS = 0, 2


class Arguments(NamedTuple):
    optional: tuple[Any, ...]  # bias, keep_mask, alibi_slopes, sinks
    scalars: tuple[Any, ...]
    device: str | None
    bhsd: bool
    lengths: tuple[Any, ...] = ()  # cu_seqlens_q …, max_seqlen_k aside; empty where none is given

    def completed(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """With the lengths in their places, and lists as tensors."""
        full = with_lengths(tensors, self.lengths)
        framework = framework_of(tensors[0])
        numbers = host_numbers if framework is None else framework.numbers
        return tuple(
            numbers(name, tensor, tensors[0]) if tensor is not None and name in _NUMBERS else tensor
            for name, tensor in zip(TENSOR_NAMES, full, strict=False)
        )


def with_lengths(tensors: tuple[Any, ...], lengths: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tuple that fulmen._core takes, with those of LENGTHS in their places; lengths may be
    empty."""
    return (
        (*tensors, *(None,) * (PLACE_OF_LENGTHS - len(tensors)), *lengths) if lengths else tensors
    )


_MASK = "bias (added to the scores) or keep_mask (True attends)"
_SCALE, _CAUSAL, _DROPOUT, _WINDOW = (
    "softmax_scale",
    "causal",
    "dropout",
    "window_left and window_right",
)
# Names of the arguments in other libraries.
_OTHER_NAMES = {
    **dict.fromkeys(("attn_mask", "attention_mask", "mask", "key_padding_mask"), _MASK),
    **dict.fromkeys(("attn_bias", "attention_bias", "additive_mask", "position_bias"), "bias"),
    **dict.fromkeys(("scale", "sm_scale", "scaling", "scale_factor", "softmax_temp"), _SCALE),
    **dict.fromkeys(("is_causal", "use_causal_mask", "is_decoder"), _CAUSAL),
    **dict.fromkeys(
        ("dropout_p", "p", "attention_dropout", "attn_dropout", "dropout_rate"), _DROPOUT
    ),
    **dict.fromkeys(("seed", "dropout_rng", "rng"), "dropout_seed"),
    **dict.fromkeys(("window_size", "local_window_size", "window", "sliding_window"), _WINDOW),
    **dict.fromkeys(
        ("logits_soft_cap", "soft_cap", "logit_cap", "attn_logits_soft_cap"), "softcap"
    ),
    **dict.fromkeys(("slopes", "alibi"), "alibi_slopes"),
    **dict.fromkeys(("s_aux", "sink", "attention_sinks", "learnable_sink"), "sinks"),
    **dict.fromkeys(
        ("cu_seqlens", "cu_seq_lens_q", "query_seq_lengths"), "cu_seqlens_q and cu_seqlens_k"
    ),
    "cu_seq_lens_k": "cu_seqlens_k",
    **dict.fromkeys(
        ("cache_seqlens", "seq_lens", "kv_lens", "key_value_seq_lengths", "seqused_k"), "seqlens_k"
    ),
    **dict.fromkeys(("page_table", "block_tables"), "block_table"),
    **dict.fromkeys(("cache_leftpad", "leftpad"), "leftpad_k"),
    **dict.fromkeys(("max_seqlen", "max_length_q"), "max_seqlen_q and max_seqlen_k"),
    "max_length_k": "max_seqlen_k",
    **dict.fromkeys(("return_softmax_lse", "return_attn_probs", "return_residual"), "return_lse"),
    **dict.fromkeys(("qkv_format", "tensor_layout"), "layout"),
    **dict.fromkeys(("implementation", "backend", "op"), "kernel"),
    "query": "q",
    "key": "k",
    "value": "v",
}


def unexpected(function: str, name: str, accepted: Sequence[str] = ()) -> str:
    """The error for an argument of that name.

    accepted: the function's arguments, where they are not those of attention().
    """
    said = f"{function}() got an unexpected keyword argument {name!r}"
    if name == "enable_gqa":
        return f"{said}: k and v may always have fewer heads than q"
    ours = _OTHER_NAMES.get(name, name if accepted else None)
    if not accepted:
        return (
            f"{said}: here it is called {ours}"
            if ours
            else f"{said}: {', '.join(Options.__annotations__)} are accepted"
        )
    for one in accepted:
        if one == ours or ours in _OTHER_NAMES.get(one, "").split(" and "):
            return f"{said}: here it is called {one}"
    if ours in Options.__annotations__ or name in _OTHER_NAMES:
        return f"{said}: of this library's functions fulmen.attention takes such, as {ours}"
    return f"{said}: {', '.join(accepted)} are accepted"


_F = TypeVar("_F", bound=Callable[..., Any])


def in_our_words(function: _F) -> _F:
    """Raises an error that says what an argument of another library is called here."""
    accepted = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        for name in named:
            if name not in accepted:
                raise TypeError(unexpected(function.__name__, name, accepted))
        return function(*args, **named)

    return call  # type: ignore[return-value]


def read(function: str, given: Mapping[str, Any]) -> Arguments:
    for name in given:
        if name not in Options.__annotations__:
            raise TypeError(unexpected(function, name))
    optional = tuple(given.get(name) for name in OPTIONAL_TENSORS)
    scalars = tuple(given.get(name, default) for name, default in SCALARS.items())
    lengths = tuple(given.get(name) for name in LENGTHS)
    longest = tuple(given.get(name) for name in LONGEST)
    if all(value is None for value in lengths + longest):
        lengths, of_lengths = (), ()
    else:
        of_lengths = (*longest, given.get("validate", False))
    return Arguments(
        optional,
        scalars + of_lengths,
        given.get("device"),
        is_bhsd(given.get("layout", "bshd")),
        lengths,
    )


def rename(error: Exception, names: Mapping[str, str]) -> None:
    """In an error's message, replaces the names of arguments by those that the caller knows."""
    words = re.compile(rf"\b({'|'.join(names)})\b")
    error.args = tuple(
        words.sub(lambda word: names[word[0]], a) if isinstance(a, str) else a for a in error.args
    )


def is_bhsd(layout: str) -> bool:
    if layout not in ("bshd", "bhsd"):
        raise ArgumentError(
            f'layout is {layout!r}: "bshd" ([batch, seqlen, heads, head_dim]) or "bhsd" (dims 1 '
            "and 2 exchanged) is accepted"
        )
    return layout == "bhsd"


def wanted_gradients(gradients: Sequence[str]) -> int:
    """The bits that fulmen._core takes."""
    if (
        isinstance(gradients, str)
        or not gradients
        or any(name not in GRADIENTS for name in gradients)
    ):
        raise ArgumentError(
            f"gradients is {gradients!r}: a sequence of one or more of "
            f"{', '.join(map(repr, GRADIENTS))} is accepted"
        )
    return sum(1 << GRADIENTS.index(name) for name in set(gradients))


class Framework(NamedTuple):
    """A kind of array for which reading and writing memory is not enough."""

    # fulmen._core.forward for its arrays.
    forward: Callable[[tuple[Any, ...], tuple[Any, ...], str | None, bool, bool], Any]
    backward: Callable[[tuple[Any, ...], tuple[Any, ...], str | None, bool, int], tuple[Any, ...]]
    to_host: Callable[[Array], Array]  # what the reference can read
    from_host: Callable[[Array, Array], Array]  # a NumPy array as one like the second
    append_kv: Callable[..., tuple[Array | None, ...]] | None = None  # None is fulmen._core's
    # Converts an argument of the class INTEGERS or FLOATS (_numbers.py), by its name, for calls of
    # the third.
    numbers: Callable[[str, Any, Array], Any] = host_numbers
    # A backward pass's scalars, where the caller said nothing as the framework is set.
    settled: Callable[[tuple[Any, ...]], tuple[Any, ...]] = lambda scalars: scalars


# The framework by the type of q; None if reading and writing memory is all it needs.
_frameworks: dict[type, Framework | None] = {}


def framework_of(q: Array) -> Framework | None:
    kind = type(q)
    if kind in _frameworks:
        return _frameworks[kind]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(q, torch.Tensor):
        from fulmen.torch._frontend import FRAMEWORK as found
    elif (jax := sys.modules.get("jax")) is not None and isinstance(q, jax.Array):
        from fulmen.jax import FRAMEWORK as found
    elif hasattr(q, "__array_namespace__") and hasattr(q, "__dlpack__") and not is_of_numpy(q):
        from fulmen._array_api import FRAMEWORK as found
    else:
        found = None
    _frameworks[kind] = found
    return found
