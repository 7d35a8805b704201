"""Attention in double precision, and what the operators do before it: right values for check.py."""

import numpy as np


def attention(q, k, v, keep, scale=None, softcap=0.0, bias=None, sinks=None):
    """q [batch, queries, heads, size], k and v [batch, keys, kv_heads, size]; keep and bias
    broadcast to [batch, heads, queries, keys]. A row without a key is 0."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    ratio = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, ratio, axis=2) for x in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * (scale or q.shape[3] ** -0.5)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.astype(np.float64)
    scores = np.where(np.broadcast_to(keep, scores.shape), scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    if sinks is not None:
        sinks = sinks.astype(np.float64).reshape(1, -1, 1, 1)
        top = np.maximum(top, sinks)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks - top)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.einsum("bhqk,bkhd->bqhd", weights, v)


def heads_of(rows, heads):
    """[batch, sequence, heads * size] as [batch, sequence, heads, size]."""
    return rows.reshape(*rows.shape[:2], heads, -1)


def from_bnsh(rows):
    return rows.transpose(0, 2, 1, 3)


def normalized(rows, weight, epsilon):
    """The RMS norm of each head."""
    rows = rows.astype(np.float64)
    mean = np.mean(rows**2, axis=-1, keepdims=True)
    return rows / np.sqrt(mean + epsilon) * weight.astype(np.float64)


def rotated(rows, cosines, sines, positions, interleaved):
    """rows [batch, sequence, heads, size], positions [batch, sequence]."""
    rows = rows.astype(np.float64).copy()
    c, s = (t.astype(np.float64)[positions][:, :, None] for t in (cosines, sines))
    half = cosines.shape[1]
    a, b = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (
        slice(0, half), slice(half, 2 * half))  # fmt: skip
    x, y = rows[..., a].copy(), rows[..., b].copy()
    rows[..., a], rows[..., b] = x * c - y * s, y * c + x * s
    return rows


def padded_keys(mask, batch, queries, keys):
    """Which keys key_padding_mask leaves, [batch, 1, queries or 1, keys]."""
    if mask.ndim == 1:
        return (np.arange(keys) < mask[:batch, None])[:, None, None]
    return mask[:, None, None] > 0 if mask.ndim == 2 else mask[:, None] > 0


def multi_head_keep(queries, keys, before, causal, padding):
    """What MultiHeadAttention's masks leave: a query whose keys are all padding attends them."""
    seen = np.ones((queries, keys), bool)
    if causal:
        seen = np.arange(keys) <= before + np.arange(queries)[:, None]
        seen[-1] = True
    if padding is None:
        return seen
    kept = seen & padding
    return np.where(kept.any(-1, keepdims=True), kept, seen)


def kept_rows(length, rows, window):
    """Rows that a sliding window's cache of `rows` holds of a sequence of `length`."""
    while length > rows:
        length -= rows - window + 1
    return length
