"""Random problems, attention by plain NumPy in float64, and the tolerance rule, for every kind of
array."""

import os
import random
from typing import Any

import ml_dtypes
import numpy as np

SEED = int(os.environ.get("FULMEN_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
LONG_RUN = os.environ.get("FULMEN_TEST_LONG") == "1"  # tests that are marked long run, too
# A run of whole stages: of tests with many cases it takes some.
SAMPLED_RUN = os.environ.get("FULMEN_TEST_SAMPLED") == "1" and not LONG_RUN
DTYPES = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}
_EPSILON = {"fp32": 6e-8, "fp16": 4.9e-4, "bf16": 3.9e-3}  # half a unit in the last place of 1


def generator() -> np.random.Generator:
    return np.random.default_rng(SEED)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "fp32") -> np.ndarray:
    return rng.standard_normal(shape).astype(DTYPES[dtype])


def qkv(
    rng: np.random.Generator, shape: dict[str, int] | None = None, dtype: str = "fp32"
) -> tuple[np.ndarray, ...]:
    """[batch, seqlen, heads, dim]; shape overrides b, sq, sk, hq, hkv, d and dv."""
    n = {"b": 2, "sq": 37, "sk": 53, "hq": 4, "hkv": 2, "d": 24, **(shape or {})}
    dv = n.get("dv", n["d"])
    return (
        normal(rng, (n["b"], n["sq"], n["hq"], n["d"]), dtype),
        normal(rng, (n["b"], n["sk"], n["hkv"], n["d"]), dtype),
        normal(rng, (n["b"], n["sk"], n["hkv"], dv), dtype),
    )


def attention_float64(
    q: Any,
    k: Any,
    v: Any,
    *,
    bias: Any = None,
    keep_mask: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    causal: Any = False,
    window_left: int = -1,
    window_right: int = -1,
    kept: Any = None,
    dropout: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """The formula of docs/contract.md, written once more: (out, lse)."""
    q, k, v = (np.asarray(t, np.float64).swapaxes(1, 2) for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    sq, sk = q.shape[2], k.shape[2]
    scores = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + np.asarray(bias, np.float64)
    position = np.arange(sq)[:, None] + (0 if causal == "top_left" else sk - sq)
    key = np.arange(sk)[None, :]
    if alibi_slopes is not None:
        slopes = np.atleast_2d(np.asarray(alibi_slopes, np.float64))
        scores = scores - slopes[:, :, None, None] * np.abs(position - key)
    attended = np.ones((sq, sk), bool)
    if window_left >= 0:
        attended &= key >= position - window_left
    if causal not in (False, "none"):
        window_right = 0
    if window_right >= 0:
        attended &= key <= position + window_right
    if keep_mask is not None:
        attended = attended & np.asarray(keep_mask)
    scores = np.where(attended, scores, -np.inf)
    sink = (
        np.full((1, q.shape[1], 1), -np.inf)
        if sinks is None
        else np.asarray(sinks, np.float64)[None, :, None]
    )
    top = np.maximum(scores.max(-1, initial=-np.inf), sink)
    top = np.where(np.isfinite(top), top, 0)
    exponentials = np.exp(scores - top[..., None])
    z = exponentials.sum(-1) + np.exp(sink - top)
    weights = exponentials / np.where(z > 0, z, 1)[..., None]
    if kept is not None:
        weights = weights * kept / (1 - dropout)
    with np.errstate(divide="ignore"):
        lse = top + np.log(z)
    return (weights @ v).swapaxes(1, 2), lse


def assert_close(
    out: Any, expected: Any, dtype: str, what: str = "out", baseline_error: float = 0.0
) -> None:
    """For rows of unit variance: standard attention of that precision errs by a few roundings of
    the largest value.

    baseline_error: how much it does err, for sums whose terms cancel; by three times that for
        gradients (docs/contract.md).
    """
    out, expected = np.asarray(out, np.float64), np.asarray(expected, np.float64)
    assert out.shape == expected.shape, f"{what} has shape {out.shape}, expected {expected.shape}"
    bound = (
        8 * _EPSILON[dtype] * max(1.0, np.abs(expected).max(initial=0)) + 1e-5 + 3 * baseline_error
    )
    error = np.abs(out - expected)
    at = np.unravel_index(np.argmax(error), error.shape) if error.size else ()
    worst = error[at] if error.size else 0.0
    assert worst <= bound, (
        f"{what}{list(map(int, at))} is {out[at]}, expected {expected[at]}; error {worst:.3g} > "
        f"{bound:.3g} ({SEED=})"
    )
    assert np.isfinite(out).all(), f"{what} is not finite ({SEED=})"
