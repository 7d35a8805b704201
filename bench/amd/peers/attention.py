"""Problems, their inputs and results in double precision."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Problem:
    head_dim: int
    seqlen_q: int = 2048
    seqlen_k: int = 2048
    causal: bool = False
    heads: int = 16
    kv_heads: int = 16
    batch: int = 8
    dtype: str = "bf16"
    backward: bool = False
    rows_dtype: str = ""  # of queries and results, where it is another one
    has_lse: bool = True  # an output of the kernel

    @property
    def name(self):
        if self.seqlen_q != self.seqlen_k:
            return f"decode d{self.head_dim} q{self.seqlen_q} {self.seqlen_k} keys"
        name = f"{'backward' if self.backward else 'prefill'} d{self.head_dim} S{self.seqlen_q}"
        return name + " causal" * self.causal

    @property
    def flops(self):
        """Of the whole pass, as `fulmen bench` counts them: masked scores are none."""
        rows = np.arange(self.seqlen_q) + 1 + self.seqlen_k - self.seqlen_q
        pairs = rows.clip(0).sum() if self.causal else self.seqlen_q * self.seqlen_k
        products = 10.0 if self.backward else 4.0
        return products * int(pairs) * self.head_dim * self.heads * self.batch

    @property
    def bytes(self):
        """Inputs and outputs, once."""
        rows = 2 * self.seqlen_q * self.heads + 2 * self.seqlen_k * self.kv_heads
        return float(2 * rows * self.head_dim * self.batch * (2 if self.backward else 1))


def prefill(head_dim, seqlen=2048, causal=False, group=1, **more):
    """16,384 rows of 2,048 numbers, as in the suites of `fulmen bench`."""
    heads = 2048 // head_dim
    batch = 16384 // seqlen
    return Problem(head_dim, seqlen, seqlen, causal, heads, heads // group, batch, **more)


def decode(rows, **more):
    return Problem(128, rows, 8192, rows > 1, 32, 8, 16, **more)


def to_bits(numbers, dtype):
    """fp16 as it is; bf16 rounded to nearest even, as uint16."""
    if dtype == "fp16":
        return numbers.astype(np.float16)
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def to_double(bits):
    """Numbers of fp32, fp16, or of bf16 as uint16."""
    if bits.dtype == np.uint16:
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.astype(np.float64)


def random_tensor(generator, shape, dtype):
    return to_bits(generator.standard_normal(shape, np.float32), dtype)


def masked_scores(q, k, scale, causal):
    scores = q @ k.T * scale
    if causal:
        rows, keys = scores.shape
        scores[np.arange(keys)[None, :] > np.arange(rows)[:, None] + keys - rows] = -np.inf
    return scores


def forward(q, k, v, scale, causal):
    """out and lse of one head: q [rows, d], k and v [keys, d], doubles."""
    scores = masked_scores(q, k, scale, causal)
    most = scores.max(axis=1, keepdims=True)
    p = np.exp(scores - most)
    total = p.sum(axis=1, keepdims=True)
    return p @ v / total, (np.log(total) + most)[:, 0]


def backward(q, k, v, dout, scale, causal):
    """dq, dk and dv of one head."""
    out, lse = forward(q, k, v, scale, causal)
    p = np.exp(masked_scores(q, k, scale, causal) - lse[:, None])
    ds = p * (dout @ v.T - (dout * out).sum(axis=1, keepdims=True)) * scale
    return ds @ k, ds.T @ q, p.T @ dout


def relative_error(got, expected):
    """Root mean square of the error over that of the result."""
    difference = to_double(got) - expected
    return float(np.sqrt((difference**2).mean() / (expected**2).mean()))
