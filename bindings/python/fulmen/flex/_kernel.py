"""Kernels with functions: the calls of fulmen._core."""

from __future__ import annotations

from typing import Any, NamedTuple

from fulmen import _core
from fulmen.flex._list_state import LISTS
from fulmen.flex._problem import Problem


class Options(NamedTuple):
    """kernel_options, those that are Fulmen's."""

    kernel: str | None = None
    tuning: str | None = None
    num_threads: int = 0
    deterministic: bool | None = None
    verify: bool = False
    device: str | None = None


def _scalars(scale: float | None, options: Options) -> tuple[Any, ...]:
    first = (scale, 0.0, False, -1, -1, 0.0, None, 0, options.deterministic)
    return (*first, options.kernel, options.tuning, options.num_threads, options.verify)


def _keywords(problem: Problem) -> dict[str, Any]:
    given: dict[str, Any] = {
        "score_mod": problem.score_mod,
        "mask_mod": problem.mask_mod,
        "function_tensors": dict(zip(problem.names, problem.tensors, strict=True)),
    }
    if problem.lists and problem.read_by_kernel:
        given |= zip(LISTS, problem.lists, strict=True)
        given["mask_block_q"], given["mask_block_k"] = problem.block
    return given


def forward(
    q: Any, k: Any, v: Any, problem: Problem, scale: float | None, options: Options, want_lse: bool
) -> Any:
    """out, or (out, lse); arrays of torch or NumPy, [batch, heads, seqlen, head_dim]."""
    scalars = _scalars(scale, options)
    return _core.forward((q, k, v), scalars, options.device, True, want_lse, **_keywords(problem))


def explain(
    q: Any,
    k: Any,
    v: Any,
    problem: Problem,
    scale: float | None,
    options: Options,
    want_lse: bool,
    wanted: int,
    gradients: dict[str, Any],
) -> str:
    """Which kernel runs, and why each other does not. wanted: the bits of dq, dk and dv, 0 for the
    forward pass; gradients: as backward takes them, not written. Raises what the call itself
    would."""
    given = _keywords(problem) | ({"function_gradients": gradients} if gradients else {})
    scalars = _scalars(scale, options)
    return _core.explain((q, k, v), scalars, options.device, True, want_lse, wanted, **given)[0]


def backward(
    tensors: tuple[Any, ...],
    problem: Problem,
    scale: float | None,
    options: Options,
    wanted: int,
    gradients: dict[str, Any],
) -> tuple[Any, ...]:
    """dq, dk and dv, those of the bits of wanted. tensors: q, k, v, out, lse, dout, dlse;
    gradients: arrays by the functions' names, which are written."""
    q, k, v, out, lse, dout, dlse = tensors
    placed = (q, k, v, out, None, None, None, None, lse, dout, dlse)
    scalars = _scalars(scale, options._replace(tuning=None))  # the forward kernel's
    return _core.backward(
        placed,
        scalars,
        options.device,
        True,
        wanted,
        **_keywords(problem),
        function_gradients=gradients,
    )[:3]
