"""Attention and its gradients in double precision by NumPy, for the checks of this folder, and how
they count."""

import sys
import traceback

import numpy as np


def attention(q, k, v, dout, bias=None, keep=None, scale=None):
    """(out, lse, dq, dk, dv, dbias) of arrays [batch, seqlen, heads, head_dim]; bias and keep
    broadcast to [batch, heads, seqlen_q, seqlen_k], dbias has bias's shape."""
    q, k, v, dout = (np.asarray(t, np.float64).swapaxes(1, 2) for t in (q, k, v, dout))
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.swapaxes(2, 3) * scale
    if bias is not None:
        scores = scores + np.asarray(bias, np.float64)
    if keep is not None:
        scores = np.where(keep, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    exponentials = np.exp(scores - top)
    z = exponentials.sum(-1, keepdims=True)
    p = exponentials / np.where(z > 0, z, 1)
    out = p @ v
    with np.errstate(divide="ignore"):
        lse = (top + np.log(z))[..., 0]
    dp = dout @ v.swapaxes(2, 3)
    ds = p * (dp - (dout * out).sum(-1, keepdims=True))
    dq, dk, dv = ds @ k * scale, ds.swapaxes(2, 3) @ q * scale, p.swapaxes(2, 3) @ dout
    dk, dv = (t.reshape(t.shape[0], kv_heads, group, *t.shape[2:]).sum(2) for t in (dk, dv))
    dbias = None
    if bias is not None:
        shared = tuple(d for d, size in enumerate(np.shape(bias)) if size == 1 < ds.shape[d])
        dbias = ds.sum(shared, keepdims=True)
    return (*(t.swapaxes(1, 2) if n != 1 else t for n, t in enumerate((out, lse, dq, dk, dv))),
            dbias)  # fmt: skip


def causal(seqlen_q, seqlen_k, top_left=False):
    position = np.arange(seqlen_q)[:, None] + (0 if top_left else seqlen_k - seqlen_q)
    return np.arange(seqlen_k)[None] <= position


class Checks:
    """Runs functions, each a check, and counts. One fails by any exception."""

    def __init__(self):
        self.passed = self.failed = 0

    def run(self, name, function, *arguments):
        try:
            said = function(*arguments)
            self.passed += 1
            print(f"passed  {name}{f': {said}' if said else ''}", flush=True)
        except Exception:
            self.failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed")
        sys.exit(self.failed != 0)


def compare(what, ours, exact, same_precision):
    """Ours may be twice as far from double precision as the framework's own computation in the same
    dtype, and 1e-5 of the largest number, as docs/contract.md has it for fp32. Returns the worst
    ratio to what is allowed."""
    ours, exact, theirs = (np.asarray(t, np.float64) for t in (ours, exact, same_precision))
    assert ours.shape == exact.shape, f"{what} has shape {ours.shape}, not {exact.shape}"
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(ours[~finite], exact[~finite], err_msg=what)
    error = np.abs(ours - exact)[finite].max(initial=0.0)
    allowed = 2 * np.abs(theirs - exact)[finite & np.isfinite(theirs)].max(initial=0.0)
    allowed += 1e-5 * np.abs(exact[finite]).max(initial=0.0) + 1e-7
    assert error <= allowed, f"{what} is off by {error:.3g}, {allowed:.3g} is allowed"
    return error / allowed
