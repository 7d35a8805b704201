"""The functions of the package, for every kind of array. What PyTorch adds (autograd, compilation,
…) is in fulmen.torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fulmen import _core
from fulmen._arguments import (
    LENGTHS,
    OTHERS,
    TENSOR_NAMES,
    Arguments,
    Array,
    Causal,
    Layout,
    Precision,
    _frameworks,
    framework_of,
    in_our_words,
    is_bhsd,
    read,
    wanted_gradients,
    with_lengths,
)
from fulmen._core import ArgumentError
from fulmen._numbers import (
    OTHER_SINKS,
    between_roundings,
    host_numbers,
    is_of_numpy,
    is_of_torch,
    name_of_dtype,
)
from fulmen._quantize import Format, in_format

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from fulmen._arguments import Options


class VerificationError(RuntimeError):
    """verify=True, and a result differs from the double-precision reference by more than the
    tolerance rule allows."""


class Gradients(NamedTuple):
    """Gradients of the loss by the inputs; None for those that were not asked for."""

    dq: Array | None
    dk: Array | None
    dv: Array | None
    dbias: Array | None
    dsinks: Array | None


class VerifyReport(NamedTuple):
    """ok, or not, and by how much: errors are largest absolute differences over a tensor."""

    ok: bool
    worst_error: float
    baseline_error: float  # that of standard attention in the same precision
    bound: float  # what worst_error may be
    lse_error: float
    tensor: str  # "out", or the gradient that is nearest to its bound, or over it
    message: str  # names the worst element, where not ok
    elements: int  # compared elements: those of out, or of every gradient; not of lse
    mean_error: float  # of these


class Plan(NamedTuple):
    """What would run."""

    kernel: str  # e.g. "cpu.short.avx512"; what attention(kernel=...) takes
    workspace_bytes: int
    explanation: str  # which kernel runs, and why each other does not


class Device(NamedTuple):
    """A place to compute; one that can't be used is listed with the reason."""

    name: str  # what calls take as device
    chip: str
    features: str
    usable: bool
    reason: str
    host_memory: bool  # kernels take ordinary memory


def being_compiled() -> bool:
    """Whether torch.compile reads this. fulmen.torch puts torch's own function here, which takes
    less."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_dynamo_compiling()


def by_framework(
    tensors: tuple[Any, ...],
    scalars: tuple[Any, ...],
    device: str | None,
    bhsd: bool,
    want_lse: bool,
) -> Any:
    """attention() of the tuples that fulmen._core takes."""
    framework = framework_of(tensors[0])
    return (_core.forward if framework is None else framework.forward)(
        tensors, scalars, device, bhsd, want_lse
    )


def as_numbers(name: str, value: Any, q: Array) -> Any:
    """An argument of lengths, slopes, sinks or scales as fulmen._core takes it beside q."""
    framework = framework_of(q)
    return (host_numbers if framework is None else framework.numbers)(name, value, q)


_F = TypeVar("_F", bound=Callable[..., Any])
# Arguments of attention() that fulmen._core.attention does not know.
_RARE = frozenset(("k_format", "v_format", "precision"))


def _straight(described: _F) -> _F:
    """attention() as its signature says, by fulmen._core.attention, which takes a fraction of the
    time to find out what was given.

    Compilers can't look into that: they read the body of what is described.
    """
    straight = _core.attention

    @functools.wraps(described)
    def attention(q: Array, k: Array, v: Array, **options: Any) -> Any:
        if being_compiled() or _RARE & options.keys():
            return described(q, k, v, **options)
        return straight(q, k, v, options)

    return attention  # type: ignore[return-value]


@_straight
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    bias: Array | None = None,
    keep_mask: Array | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    seqlens_k: Array | None = None,
    leftpad_k: Array | None = None,
    block_table: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    q_scale: Array | None = None,
    k_format: Format | None = None,
    v_format: Format | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    out: Array | None = None,
    return_lse: bool = False,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    causal: Causal = False,
    window_left: int = -1,
    window_right: int = -1,
    dropout: float = 0.0,
    dropout_seed: int | None = None,
    dropout_offset: int = 0,
    deterministic: bool | None = None,
    kernel: str | None = None,
    tuning: str | None = None,
    num_threads: int = 0,
    verify: bool = False,
    validate: bool = False,
    precision: Precision = "exact",
    device: str | None = None,
    layout: Layout = "bshd",
) -> Any:
    """softmax(softmax_scale * q k^T + bias, masked) v, in one fused operation.

    Shapes are those of layout "bshd"; with "bhsd" dims 1 and 2 of q, k, v and out are exchanged.
    Any strides are accepted whose last dim is contiguous: a transposed view costs nothing. Inputs
    that are NumPy arrays with negative strides (a[::-1]) are copied first. Torch tensors are
    differentiable by q, k, v, bias and sinks.

    Args:
      q: [batch, seqlen_q, heads, head_dim], float32, float16 or bfloat16; head_dim 1 to 576.
      k: [batch, seqlen_k, kv_heads, head_dim]; heads is a multiple of kv_heads. q's dtype, or
        quantized: int8, float8_e4m3fn, float8_e5m2 or their fnuz twins, of torch or ml_dtypes.
      v: [batch, seqlen_k, kv_heads, head_dim_v], the same; its dtype need not be that of k.
      bias: broadcasts to [batch, heads, seqlen_q, seqlen_k], the last dim in full; added to the
          scaled scores. Any of the dtypes.
      keep_mask: the same in bool; True attends.
      alibi_slopes: [heads] or [batch, heads], float32: adds -slope * |query's position - key's|.
      sinks: [heads], float32, float16, bfloat16 or float64, read as float32: one more score of each
        head in the softmax's denominator. Its gradient has its dtype. Beside NumPy arrays and torch
        tensors it may be another library's.
      cu_seqlens_q: [batch + 1], int32: q and out are packed, [total_q, heads, head_dim], lse is
        [heads, total_q]; sequence n is rows cu_seqlens_q[n] to cu_seqlens_q[n + 1] - 1. Needs
        max_seqlen_q. Each sequence is computed as if it were alone.
      cu_seqlens_k: the same of k and v, [total_k, kv_heads, head_dim], and max_seqlen_k.
      seqlens_k: [batch], int32: the used rows of sequence n of padded or paged k and v end before
          row seqlens_k[n].
      leftpad_k: [batch], int32: and begin at row leftpad_k[n].
      block_table: [batch, max_pages], int32: k and v are paged,
        [num_pages, page_size, kv_heads, head_dim]; row r of sequence n is row r % page_size of page
        block_table[n, r // page_size]. Lengths and page tables may be lists, or of other integers,
        too: they are converted, on a GPU without waiting for it. alibi_slopes and sinks may be
        lists.
      k_scale, v_scale: float32 or float16, factors of k's and v's numbers: a number, [kv_heads] or
        [batch, kv_heads]; for each token the shape of k and v with 1 for head_dim; k_scale also
        [1 or batch, 1, kv_heads, head_dim]. Without gradients.
      q_scale: a number, [kv_heads] or [batch, kv_heads]: of the queries that share a KV head.
      k_format, v_format: k or v holds blocks of 32 numbers in this format, "q8_0", "q4_0", "q4_1",
        "q5_0" or "q5_1", as quantize_kv gives them: uint8, whose last dim is bytes. NumPy arrays
        and torch tensors, on the CPU, without gradients.
      max_seqlen_q, max_seqlen_k: the most queries and keys of a sequence; None where the shapes say
          it.
      out: written and returned, where given; it may be q itself, and must not overlap another
          input. Not with autograd.
      return_lse: also return the natural log of the softmax's denominator,
          [batch, heads, seqlen_q], float32.
      softmax_scale: None is 1 / sqrt(head_dim).
      softcap: 0 is off; else a score is softcap * tanh(score / softcap).
      causal: True or "bottom_right": the last query is on the diagonal with the last key;
          "top_left": the first with the first.
      window_left, window_right: how many keys before and after its own position a query attends; -1
          is unlimited.
      dropout: probability, below 1, that an element of the softmax is dropped.
      dropout_seed, dropout_offset: which ones. For torch tensors None draws from torch's generator;
          else a seed is needed.
      deterministic: False also takes kernels that add gradients by atomics: faster on some GPUs,
        other bits in every run. None is what torch.use_deterministic_algorithms says for torch
        tensors, where True is always obeyed, and True for others.
      kernel: force one by name ("cpu.prefill.avx2"); plan() names the one that runs.
      tuning: the forward kernel's parameters, such as "block_m=64,waves=4"; explain() lists them
        with their values. None: tuned results, or the kernel's own choice. Gradients by autograd
        and jax.grad do not read it; attention_backward() does.
      num_threads: of the CPU; 0 is OMP_NUM_THREADS, else all processors.
      verify: compare the result with the double-precision reference, and raise VerificationError
          where it is wrong.
      validate: check lengths and page tables in a GPU's own memory first, which waits for copies of
        them. In host memory they always are checked.
      precision: "int8" has q k^T in int8, "fp8" both products in float8_e4m3: about 1 and 5 % off.
        fp8 has a kernel on Hopper, sm_89, sm_120, gfx12, gfx942 and gfx950, int8 on AMD with matrix
        instructions, on NVIDIA from sm_80 and on CPUs, which compute fp8 by plain loops. A call
        that no kernel of the device takes so is refused.
        NumPy arrays and plain torch tensors, without gradients and outside of torch.compile.
        "exact", the default, has the products in q's dtype.
      device: None is where q is.
      layout: "bshd" or "bhsd".

    Returns:
      out, of q's kind and dtype, [batch, seqlen_q, heads, head_dim_v]; or (out, lse). Rows with no
      key attended are 0, their lse is -inf. On a GPU the work is in torch's current stream.

    Raises:
      TypeError, ArgumentError (a ValueError and a RuntimeError): an argument is wrong; the message
          names it, its value and what is
        accepted.
      NotImplementedError: the forced kernel, or every kernel, refuses the problem; with the reason.
      RuntimeError: the device can't be used. MemoryError. VerificationError. Nothing is written on
          an error but the last.
    """
    scalars = (
        softmax_scale,
        softcap,
        causal,
        window_left,
        window_right,
        dropout,
        dropout_seed,
        dropout_offset,
        deterministic,
        kernel,
        tuning,
        num_threads,
        verify,
    )
    tensors = (q, k, v, out, bias, keep_mask, alibi_slopes, sinks)
    kind = type(q)
    # framework_of alone does not suffice: torch 2.4 compiles no code that finds the dict in two
    # ways.
    framework = _frameworks[kind] if kind in _frameworks else framework_of(q)
    lengths = (cu_seqlens_q, cu_seqlens_k, seqlens_k, leftpad_k, block_table)
    lengths += (k_scale, v_scale, q_scale)
    longest = (max_seqlen_q, max_seqlen_k)
    numbers = host_numbers if framework is None else framework.numbers
    if isinstance(alibi_slopes, list | tuple) or sinks is not None:
        few = (numbers("alibi_slopes", alibi_slopes, q), numbers("sinks", sinks, q))
        tensors = (q, k, v, out, bias, keep_mask, *few)
    for one in lengths + longest:
        if one is not None:
            named = zip(LENGTHS, lengths, strict=True)
            lengths = tuple(
                [None if length is None else numbers(name, length, q) for name, length in named]
            )
            tensors, scalars = with_lengths(tensors, lengths), (*scalars, *longest, validate)
            break
    forward = _core.forward if framework is None else framework.forward
    if k_format is not None or v_format is not None:
        _check_plain_call("k_format and v_format", tensors)
        blocks = (in_format("k", k, k_format), in_format("v", v, v_format))
        tensors, forward = (q, *blocks, *tensors[3:]), _core.forward
    if precision is not None and precision != "exact":
        if precision not in ("int8", "fp8"):
            raise ArgumentError(f'precision is {precision!r}: "exact", "int8" or "fp8" is accepted')
        beside = f"precision={precision!r}"
        _check_plain_call(beside, tensors)
        if dropout != 0 and dropout_seed is None and is_of_torch(q):
            raise ArgumentError(
                f"dropout_seed is None: with {beside} a seed, an integer, is needed"
            )
        return _core.forward(
            tensors, scalars, device, is_bhsd(layout), return_lse, precision=precision
        )
    return forward(tensors, scalars, device, is_bhsd(layout), return_lse)


def _check_plain_call(beside: str, given: Sequence[Any]) -> None:
    """Whether a call goes straight to the kernel: arrays of NumPy, or tensors of which torch wants
    to know nothing. beside: the argument that has no gradient."""
    if is_of_numpy(given[0]):
        return
    if not is_of_torch(given[0]):
        raise TypeError(
            f"q is of type {type(given[0]).__name__}: with {beside} a NumPy array or a torch "
            "tensor is accepted"
        )
    if being_compiled() or _core.torch_observers(tuple(given)) == OTHERS:
        raise NotImplementedError(
            f"{beside}: plain tensors are accepted, outside of torch.compile, torch.export, "
            "torch.func, autocast and modes"
        )
    if not sys.modules["torch"].is_grad_enabled():
        return
    for name, tensor in zip(TENSOR_NAMES, given, strict=False):
        if getattr(tensor, "requires_grad", False):
            raise NotImplementedError(
                f"{name} requires a gradient: with {beside} there is none, torch.no_grad() is "
                "accepted"
            )


def _like(gradient: Array, given: Any) -> Array:
    """A gradient of sinks in their dtype; lists have none."""
    dtype = getattr(given, "dtype", None)
    if dtype is None or dtype == gradient.dtype:
        return gradient
    return gradient.to(dtype) if hasattr(gradient, "to") else gradient.astype(dtype)


def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    gradients: Sequence[str] = ("q", "k", "v"),
    dlse: Array | None = None,
    **options: Unpack[Options],
) -> Gradients:
    """The gradients of attention(), from its out and lse (return_lse=True) and the loss's gradient
    by out.

    Torch tensors need this only outside of autograd.

    Args:
      dout: like out: the loss's gradient by out. dlse: like lse: its gradient by lse, None where
          lse is not used.
      q, k, v: the arrays of the forward call; out, lse: what it gave.
      gradients: which ones are computed, of "q", "k", "v", "bias" and "sinks". Each has the shape
        and dtype of its input; a bias's is the sum over dims of size 1.
      options: those of attention(), with the values of the forward call.

    Returns:
      Gradients: None for those that were not asked for. Errors are those of attention().
    """
    a = read("attention_backward", options)
    tensors = a.completed((q, k, v, out, *a.optional, lse, dout, dlse))
    framework = framework_of(q)
    backward = _core.backward if framework is None else framework.backward
    found = Gradients(*backward(tensors, a.scalars, a.device, a.bhsd, wanted_gradients(gradients)))
    if found.dsinks is None:
        return found
    return found._replace(dsinks=_like(found.dsinks, options["sinks"]))


def _host_call(tensors: tuple[Array, ...]) -> tuple[tuple[Array, ...], Any]:
    """Tensors in host memory, and a function that turns a result of the host into an array of q's
    kind.
    """
    framework = framework_of(tensors[0])
    if framework is None:
        return tensors, lambda result: result
    on_host = tuple(None if t is None else framework.to_host(t) for t in tensors)
    return (
        on_host,
        lambda result: None if result is None else framework.from_host(result, tensors[0]),
    )


def _stored(
    tensors: tuple[Any, ...], k_format: Format | None, v_format: Format | None
) -> tuple[Any, ...]:
    """q, k, v and others with k and v as fulmen._core takes what these formats say."""
    q, k, v, *rest = tensors
    return (q, in_format("k", k, k_format), in_format("v", v, v_format), *rest)


def attention_reference(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: bool = False,
    k_format: Format | None = None,
    v_format: Format | None = None,
    **options: Unpack[Options],
) -> Any:
    """attention() by plain loops in double precision: out, or (out, lse), in float64 (JAX: by
    jax_enable_x64). For tests; slow."""
    a = read("attention_reference", options)
    tensors, to_kind = _host_call(a.completed((q, k, v, None, *a.optional)))
    tensors = _stored(tensors, k_format, v_format)
    out, lse = _core.reference(tensors, a.scalars, a.bhsd)
    out = to_kind(out.swapaxes(1, 2) if a.bhsd else out)
    return (out, to_kind(lse)) if return_lse else out


def attention_backward_reference(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    *,
    gradients: Sequence[str] = ("q", "k", "v"),
    dlse: Array | None = None,
    **options: Unpack[Options],
) -> Gradients:
    """attention_backward() in double precision. It computes out and lse itself. For tests; slow."""
    a = read("attention_backward_reference", options)
    tensors, to_kind = _host_call(a.completed((q, k, v, None, *a.optional, None, dout, dlse)))
    results = list(
        _core.reference_backward(tensors, a.scalars, a.bhsd, wanted_gradients(gradients))
    )
    shaped = (q, k, v, tensors[4], tensors[7])
    for at, (result, like) in enumerate(zip(results, shaped, strict=True)):
        if result is not None:
            bshd = result.swapaxes(1, 2) if a.bhsd and at < 3 else result
            results[at] = to_kind(bshd.reshape(tuple(like.shape)))
    return Gradients(*results)


def verify(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    *,
    lse: Array | None = None,
    dout: Array | None = None,
    dlse: Array | None = None,
    dq: Array | None = None,
    dk: Array | None = None,
    dv: Array | None = None,
    dbias: Array | None = None,
    dsinks: Array | None = None,
    k_format: Format | None = None,
    v_format: Format | None = None,
    **options: Unpack[Options],
) -> VerifyReport:
    """Compares a result with the double-precision reference by the tolerance rule of
    docs/contract.md.

    Without dout: out, and lse if given. With it: the gradients that are given, for which out and
    lse are needed. dsinks may be of sinks' dtype; half a unit of its last place is then no error.
    """
    a = read("verify", options)
    tensors, _ = _host_call(
        a.completed((q, k, v, out, *a.optional, lse, dout, dlse, dq, dk, dv, dbias, dsinks))
    )
    if dsinks is not None and name_of_dtype(dsinks) in OTHER_SINKS:
        tensors = _with_dsinks_in_float32(tensors, a.scalars, a.bhsd, name_of_dtype(dsinks))
    return VerifyReport(*_core.verify(_stored(tensors, k_format, v_format), a.scalars, a.bhsd))


def _with_dsinks_in_float32(
    tensors: tuple[Any, ...], scalars: tuple[Any, ...], bhsd: bool, dtype: str
) -> tuple[Any, ...]:
    """verify()'s tensors, in host memory, with dsinks of that dtype as _core.verify takes them."""
    import numpy as np

    given = dict(zip(TENSOR_NAMES, tensors, strict=False))
    dsinks = given["dsinks"]
    rounded = np.asarray(dsinks.double() if is_of_torch(dsinks) else dsinks, np.float64)
    exact = rounded
    if given["dout"] is not None and given["sinks"] is not None:
        results = {"out", "lse", "dq", "dk", "dv", "dbias", "dsinks"}
        inputs = tuple(None if name in results else given[name] for name in given)
        exact = _core.reference_backward(inputs, scalars, bhsd, wanted_gradients(["sinks"]))[4]
        exact = np.asarray(exact, np.float64).reshape(-1)
    if exact.shape != rounded.shape:  # _core.verify names the shape
        exact = rounded
    given["dsinks"] = between_roundings(exact, rounded, dtype)
    return tuple(given.values())


def plan(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: bool = False,
    backward: bool = False,
    gradients: Sequence[str] = ("q", "k", "v"),
    precision: Precision = "exact",
    k_format: Format | None = None,
    v_format: Format | None = None,
    **options: Unpack[Options],
) -> Plan:
    """What attention() (or, with backward, attention_backward()) would run for such arguments.
    Their data are not read."""
    arguments = read("plan", options)
    formats = (k_format, v_format)
    return _planned((q, k, v), arguments, return_lse, backward, gradients, precision, formats)


def _planned(
    inputs: tuple[Array, Array, Array],
    a: Arguments,
    return_lse: bool,
    backward: bool,
    gradients: Sequence[str],
    precision: Precision,
    formats: tuple[Format | None, Format | None],
) -> Plan:
    q = inputs[0]
    wanted = wanted_gradients(gradients)
    framework = framework_of(q)
    scalars = framework.settled(a.scalars) if backward and framework is not None else a.scalars
    text, kernel, workspace = _core.explain(
        _stored(a.completed((*inputs, None, *a.optional)), *formats),
        scalars,
        a.device,
        a.bhsd,
        bool(return_lse),
        wanted if backward else 0,
        precision=precision,
    )
    return Plan(kernel, workspace, text)


def explain(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: bool = False,
    backward: bool = False,
    gradients: Sequence[str] = ("q", "k", "v"),
    precision: Precision = "exact",
    k_format: Format | None = None,
    v_format: Format | None = None,
    **options: Unpack[Options],
) -> str:
    """Which kernel runs, and why each other does not, in words: the explanation of plan()."""
    arguments = read("explain", options)
    formats = (k_format, v_format)
    planned = _planned((q, k, v), arguments, return_lse, backward, gradients, precision, formats)
    return planned.explanation


@in_our_words
def dropout_mask(
    q: Array,
    k: Array,
    *,
    dropout: float,
    dropout_seed: int,
    dropout_offset: int = 0,
    layout: Layout = "bshd",
) -> Array:
    """Which elements of the softmax dropout keeps: bool [batch, heads, seqlen_q, seqlen_k].

    Only the shapes of q and k are read.
    """
    a = read(
        "dropout_mask",
        dict(
            dropout=dropout, dropout_seed=dropout_seed, dropout_offset=dropout_offset, layout=layout
        ),
    )
    framework = framework_of(q)
    keep = _core.dropout_mask((q, k, k), a.scalars, a.bhsd)
    return keep if framework is None else framework.from_host(keep, q)


@in_our_words
def append_kv(
    k_cache: Array,
    v_cache: Array,
    seqlens_k: Array,
    k: Array | None = None,
    v: Array | None = None,
    *,
    block_table: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    q: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    k_format: Format | None = None,
    v_format: Format | None = None,
    rotary_interleaved: bool = True,
    queries_advance: bool = True,
    num_threads: int = 0,
    validate: bool = False,
    device: str | None = None,
) -> tuple[Array | None, ...]:
    """Writes new keys and values behind those of a KV cache, and rotates them, and queries, on the
    way.

    Args:
      k_cache, v_cache: [batch, rows, kv_heads, head_dim], or with a block_table
        [num_pages, page_size, kv_heads, head_dim]; written in place, without a gradient. v_cache
        may be the first dims of k_cache, a view (latent attention): v is then those of k, v_scale
        is k_scale, and k is not rotated here. JAX arrays are not written: new caches are returned,
        in the same memory where the caller's jax.jit donates the old ones.
      seqlens_k: [batch], int32, or as in attention(): the rows that are used. Row i of k becomes
          row seqlens_k + i.
      k, v: [batch, seqlen_new, kv_heads, head_dim], the cache's dtype, or of a quantized cache
        float32, float16 or bfloat16: rows are rounded after they were rotated; both or neither.
      block_table: [batch, max_pages], the same. The pages that are written must be no other
          sequence's.
      rotary_cos, rotary_sin: [positions, rotary_dim / 2], float32 or the cache's dtype; both or
          neither.
      q: [batch, seqlen_q, heads, head_dim], beside rotary_cos; not written.
      k_scale, v_scale: of a cache in int8 or float8, float32 or float16, as attention() takes them,
        but without one of channels: one for each token, [batch, rows, kv_heads, 1] or of a paged
        cache's dims, is computed and written, another is read. JAX arrays have none.
      k_format, v_format: the cache holds blocks, as in attention().
      rotary_interleaved: pairs are elements 2 i and 2 i + 1; else i and i + rotary_dim / 2.
      queries_advance: query i is at position seqlens_k + i; else all are at seqlens_k.
      num_threads, validate, device: see attention().

    Returns:
      (q rotated, or None; the lengths afterwards, as attention() takes them as seqlens_k); for JAX
      arrays behind these the new k_cache and v_cache. Errors are those of attention().
    """
    kind = type(k_cache)
    # As in attention(): torch 2.4 compiles no code that finds the dict by two ways.
    framework = _frameworks[kind] if kind in _frameworks else framework_of(k_cache)
    numbers = host_numbers if framework is None else framework.numbers
    if seqlens_k is not None:
        seqlens_k = numbers("seqlens_k", seqlens_k, k_cache)
    if block_table is not None:
        block_table = numbers("block_table", block_table, k_cache)
    tensors = (k_cache, v_cache, seqlens_k, block_table, k, v, rotary_cos, rotary_sin, q)
    if k_scale is not None or v_scale is not None:
        tensors += (
            _of_cache(numbers("k_scale", k_scale, k_cache)),
            _of_cache(numbers("v_scale", v_scale, k_cache)),
        )
    append = (
        _core.append_kv if framework is None or framework.append_kv is None else framework.append_kv
    )
    if k_format is not None or v_format is not None:
        caches = (in_format("k_cache", k_cache, k_format), in_format("v_cache", v_cache, v_format))
        tensors, append = (*caches, *tensors[2:]), _core.append_kv
    return append(tensors, device, rotary_interleaved, queries_advance, num_threads, validate)


def _of_cache(scale: Any) -> Any:
    """[kv_heads] or [batch, kv_heads] in the dims that fulmen._core.append_kv takes."""
    ndim = getattr(scale, "ndim", 0)
    if ndim not in (1, 2):
        return scale
    return scale.reshape((1 if ndim == 1 else scale.shape[0]), 1, scale.shape[-1], 1)


def devices() -> list[Device]:
    """Every device of every backend, those that can't be used with the reason."""
    return [Device(*one) for one in _core.devices()]
