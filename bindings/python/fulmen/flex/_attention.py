"""flex_attention, as torch.nn.attention.flex_attention has it, for every kind of array."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fulmen._arguments import rename
from fulmen._core import ArgumentError
from fulmen._functions import being_compiled
from fulmen._numbers import is_of_torch
from fulmen.flex import _kernel
from fulmen.flex._captured import as_kind
from fulmen.flex._problem import Problem, problem
from fulmen.flex._refusal import TraceError
from fulmen.flex._trace import Traced


class AuxRequest(NamedTuple):
    """What flex_attention returns beside the output."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """What was asked for; None for the rest. Both are float32 [batch, heads, queries]."""

    lse: Any = None  # the natural logarithm of the softmax's denominator
    max_scores: Any = None  # the largest score, as score_mod and the mask leave it


# torch's options that say how its own kernels work, or promise what ours do not need.
_OF_TORCH = (
    "num_warps",
    "num_stages",
    "BLOCK_M",
    "BLOCK_N",
    "BLOCK_M1",
    "BLOCK_N1",
    "BLOCK_M2",
    "BLOCK_N2",
    "PRESCALE_QK",
    "ROWS_GUARANTEED_SAFE",
    "BLOCKS_ARE_CONTIGUOUS",
    "WRITE_DQ",
    "USE_TMA",
    "kpack",
    "matrix_instr_nonkdim",
    "waves_per_eu",
    "FORCE_USE_FLEX_ATTENTION",
)


def read_options(given: Mapping[str, Any] | None) -> _kernel.Options:
    """kernel_options; torch's tuning parameters are accepted and mean nothing here."""
    ours = {}
    for name, value in (given or {}).items():
        plain = name.removeprefix("fwd_").removeprefix("bwd_")
        if name in _kernel.Options._fields:
            ours[name] = value
        elif name == "BACKEND":
            if value != "AUTO":
                raise ArgumentError(
                    f'kernel_options["BACKEND"] is {value!r}: "AUTO" is accepted, as the others '
                    "are kernels of torch"
                )
        elif plain not in _OF_TORCH:
            raise ArgumentError(
                f"kernel_options has {name!r}: {', '.join(_kernel.Options._fields)} are accepted, "
                f"and without a meaning torch's {', '.join(_OF_TORCH)}"
            )
    return _kernel.Options(**ours)


def checked(
    query: Any, key: Any, value: Any, block_mask: Any, enable_gqa: bool
) -> tuple[int, int, int, int]:
    """Batch, heads, queries and keys; raises what torch's function does not take."""
    for name, one in (("query", query), ("key", key), ("value", value)):
        if len(getattr(one, "shape", ())) != 4:
            shape = list(one.shape) if hasattr(one, "shape") else type(one).__name__
            raise ArgumentError(f"{name} is {shape}: [batch, heads, seqlen, head_dim] is accepted")
    (batch, heads, queries, _), (kv_batch, kv_heads, keys, _) = query.shape, key.shape
    if heads != kv_heads and (not enable_gqa or kv_heads == 0 or heads % kv_heads):
        raise ArgumentError(
            f"key has {kv_heads} heads, query {heads}: the same is accepted, or a divisor with "
            "enable_gqa=True"
        )
    if batch != kv_batch and (block_mask is None or kv_batch != 1):
        raise ArgumentError(
            f"key has batch size {kv_batch}, query {batch}: the same is accepted, or 1 beside a "
            "block_mask"
        )
    return batch, heads, queries, keys


def wanted_aux(return_lse: bool, return_aux: Any) -> tuple[bool, bool]:
    """Whether the lse and the largest scores are asked for."""
    if return_aux is None:
        return bool(return_lse), False
    if return_lse:
        raise ArgumentError("return_lse and return_aux are given: one of the two is accepted")
    return bool(return_aux.lse), bool(return_aux.max_scores)


def returned(out: Any, lse: Any, max_scores: Any, return_lse: bool, return_aux: Any) -> Any:
    """In torch's form."""
    if return_aux is not None:
        kind = AuxOutput
        if type(return_aux).__module__.startswith("torch."):
            from torch.nn.attention.flex_attention import AuxOutput as kind
        return out, kind(lse=lse, max_scores=max_scores)
    return (out, lse) if return_lse else out


# Names that differ from fulmen.attention's.
_NAMES = {"q": "query", "k": "key", "v": "value", "softmax_scale": "scale"}


def with_names(error: Exception) -> None:
    """Gives an error of the core the names of flex_attention's arguments."""
    if not isinstance(error, TraceError):
        rename(error, _NAMES)


def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """softmax(score_mod(scale * query key^T), masked) value, as
    torch.nn.attention.flex_attention.flex_attention; for torch tensors (differentiable, and one
    operator under torch.compile), NumPy and JAX arrays.

    Args:
      query: [batch, heads, seqlen_q, head_dim], float32, float16 or bfloat16; key: [batch,
        kv_heads, seqlen_k, head_dim]; value: [batch, kv_heads, seqlen_k, head_dim_v]. A batch of 1
        beside a block_mask is shared.
      score_mod: a function of (score, b, h, q_idx, kv_idx) that gives the score, or None. It is
        called once, with traced values, and becomes a part of the kernel. Tensors that it indexes
        have gradients.
      block_mask: a BlockMask, of fulmen.flex or of torch, or None.
      scale: None is 1 / sqrt(head_dim).
      enable_gqa: kv_heads may be a divisor of heads.
      return_lse: returns (out, lse), too; torch's older form of return_aux.
      kernel_options: kernel, tuning, num_threads, deterministic, verify and device, as in
        fulmen.attention. torch's tuning parameters are accepted and have no meaning.
      return_aux: AuxRequest(lse, max_scores), ours or torch's: returns (out, AuxOutput).

    Returns:
      [batch, heads, seqlen_q, head_dim_v], of query's kind and dtype. Rows that attend nothing are
      0, and their lse is -inf. The largest scores take a pass of their own, in plain operations.

    Raises:
      fulmen.flex.TraceError: a function can't be read; the message names the line. Other errors are
      those of fulmen.attention.
    """
    if being_compiled():
        from fulmen.torch import _flex_compiled

        return _flex_compiled.flex_attention(
            query,
            key,
            value,
            score_mod,
            block_mask,
            scale,
            enable_gqa,
            return_lse,
            kernel_options,
            return_aux,
        )
    try:
        return _called(
            query,
            key,
            value,
            score_mod,
            block_mask,
            scale,
            enable_gqa,
            return_lse,
            kernel_options,
            return_aux,
        )
    except (TypeError, ValueError, NotImplementedError) as error:
        with_names(error)
        raise


def _called(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any,
    block_mask: Any,
    scale: Any,
    enable_gqa: bool,
    return_lse: bool,
    kernel_options: Any,
    return_aux: Any,
) -> Any:
    wanted = wanted_aux(return_lse, return_aux)
    options = read_options(kernel_options)
    sizes = checked(query, key, value, block_mask, enable_gqa)
    if is_of_torch(query):
        from fulmen.torch._flex import computed
    elif type(query).__module__.split(".")[0] in ("jax", "jaxlib"):
        from fulmen.jax._flex import computed
    else:
        computed = _of_numpy
    outputs = computed(query, key, value, score_mod, block_mask, scale, sizes, options, wanted)
    return returned(*outputs, return_lse, return_aux)


def host_problem(
    query: Any, score_mod: Any, block_mask: Any, sizes: tuple[int, int, int, int]
) -> tuple[Problem, Traced]:
    """What kernels compute, of NumPy's arrays, and the functions' graphs."""
    import numpy as np

    made, both = problem(score_mod, block_mask, query, sizes)
    named = zip(made.names, made.tensors, strict=True)
    tensors = tuple(as_kind(one, np, None, name) for name, one in named)
    lists = tuple(
        None if one is None else as_kind(one, np, None, "block_mask").astype(np.int32, copy=False)
        for one in made.lists
    )
    return made._replace(tensors=tensors, lists=lists), both


def in_batch(key: Any, value: Any, batch: int) -> tuple[Any, Any]:
    """NumPy's key and value, which may have a batch of 1, of query's."""
    import numpy as np

    if len(key) == batch:
        return key, value
    return tuple(np.broadcast_to(one, (batch, *one.shape[1:])) for one in (key, value))


def _of_numpy(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any,
    block_mask: Any,
    scale: Any,
    sizes: tuple[int, int, int, int],
    options: _kernel.Options,
    wanted: tuple[bool, bool],
) -> tuple[Any, Any, Any]:
    import numpy as np

    made, both = host_problem(query, score_mod, block_mask, sizes)
    key, value = in_batch(key, value, sizes[0])
    result = _kernel.forward(query, key, value, made, scale, options, wanted[0])
    out, lse = result if wanted[0] else (result, None)
    if not wanted[1]:
        return out, lse, None
    from fulmen.flex._max_scores import max_scores

    return out, lse, max_scores(query, key, both, made, scale, np)
