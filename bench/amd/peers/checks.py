"""Runs kernels on random inputs and compares what they wrote with double precision."""

import numpy as np
from attention import backward, forward, random_tensor, relative_error, to_bits, to_double


def one_batch(p):
    """Inputs of the first sequence; the launches are of the whole problem."""
    generator = np.random.default_rng(1)
    q = random_tensor(generator, (1, p.seqlen_q, p.heads, p.head_dim), p.dtype)
    k, v = (
        random_tensor(generator, (1, p.seqlen_k, p.kv_heads, p.head_dim), p.dtype) for _ in range(2)
    )
    return q, k, v


def worst(errors):
    """The largest, or NaN where one is: Python's max() passes over NaN that comes second."""
    return float(np.max(list(errors)))


def run_forward(run, p, add):
    q, k, v = one_batch(p)
    rows_dtype = p.rows_dtype or p.dtype
    run.input("q", q if rows_dtype == p.dtype else to_double(q).astype(np.float32))
    run.input("k", k)
    run.input("v", v)
    run.output("out", q.shape, rows_dtype)
    if p.has_lse:
        run.output("lse", (1, p.heads, p.seqlen_q), "fp32")
    tiles = add(run, p)
    counts, outputs = run.run()
    errors = []
    for h in range(p.heads // p.kv_heads):
        expected, lse = forward(
            *(to_double(t) for t in (q[0, :, h], k[0, :, 0], v[0, :, 0])),
            p.head_dim**-0.5,
            p.causal,
        )
        # Rows that the launch does not compute stay NaN.
        errors.append(relative_error(outputs["out"][0, :, h], expected))
        if p.has_lse:
            errors.append(relative_error(outputs["lse"][0, h], lse))
    return tiles, counts, worst(errors)


def run_backward(run, p, add):
    q, k, v = one_batch(p)
    generator = np.random.default_rng(2)
    dout = random_tensor(generator, q.shape, p.dtype)
    one = [to_double(t[0, :, 0]) for t in (q, k, v)]
    expected, lse = forward(*one, p.head_dim**-0.5, p.causal)
    out = np.zeros(q.shape, q.dtype)
    out[0, :, 0] = to_bits(expected, p.dtype)
    stats = np.zeros((1, p.heads, p.seqlen_q), np.float32)
    stats[0, 0] = lse
    for name, array in (("q", q), ("k", k), ("v", v), ("dout", dout), ("o", out), ("stats", stats)):
        run.input(name, array)
    for name in ("dq", "dk", "dv"):
        run.output(name, q.shape, p.dtype)
    run.output("delta", (1, p.heads, p.seqlen_q), "fp32")
    tiles = add(run, p)
    counts, outputs = run.run()
    gradients = backward(*one, to_double(dout[0, :, 0]), p.head_dim**-0.5, p.causal)
    error = worst(
        relative_error(outputs[n][0, :, 0], g)
        for n, g in zip(("dq", "dk", "dv"), gradients, strict=True)
    )
    return tiles, counts, error
