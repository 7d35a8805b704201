"""Shapes, numbers and exact attention of the tests of keys and values in 8 bits."""

import numpy as np

BLOCKS = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
B, S, H, KV, D = 2, 37, 4, 2, 64


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def exact(q, k, v, scale=None):
    """softmax(scale q k^T) v in float64; q [b, s, h, d], k and v with fewer heads."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = np.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bjhd->bihd", p / p.sum(-1, keepdims=True), v)
