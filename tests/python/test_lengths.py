"""Sequences of different lengths, packed, padded and in pages: each as if it were alone."""

import fulmen
import numpy as np
import pytest
from problems import DTYPES, assert_close, attention_float64, normal

LENGTHS_Q, LENGTHS_K = [9, 0, 1, 30, 4], [17, 5, 40, 30, 0]
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_left": 3, "window_right": 6, "softcap": 2.0},
    "top_left": {"causal": "top_left", "softmax_scale": 0.4},
}


def cumulative(lengths):
    return np.cumsum([0, *lengths], dtype=np.int32)


def sequences(rng, lengths, heads, dim, dtype):
    return [normal(rng, (n, heads, dim), dtype) for n in lengths]


def padded(rows, size, before=None):
    """[batch, size, …] with NaN where no row is."""
    result = np.full((len(rows), size, *rows[0].shape[1:]), np.nan, rows[0].dtype)
    for n, one in enumerate(rows):
        start = 0 if before is None else before[n]
        result[n, start : start + len(one)] = one
    return result


def paged(rng, rows, page_size):
    """Pages in random order, and the table."""
    counts = [-(-len(one) // page_size) for one in rows]
    order = iter(rng.permutation(sum(counts) + 2))
    pages = np.full((sum(counts) + 2, page_size, *rows[0].shape[1:]), np.nan, rows[0].dtype)
    table = np.full((len(rows), max(counts)), -7, np.int32)
    for n, one in enumerate(rows):
        for at in range(counts[n]):
            table[n, at] = page = next(order)
            part = one[at * page_size : (at + 1) * page_size]
            pages[page, : len(part)] = part
    return pages, table


def check(out, lse, q, k, v, dtype, options):
    for n, (one_q, one_k, one_v) in enumerate(zip(q, k, v, strict=True)):
        expected, expected_lse = attention_float64(one_q[None], one_k[None], one_v[None], **options)
        assert_close(out[n], expected[0], dtype, f"out of sequence {n}")
        finite = np.isfinite(expected_lse[0])
        assert_close(
            np.where(finite, lse[n], 0),
            np.where(finite, expected_lse[0], 0),
            "fp32",
            f"lse of sequence {n}",
        )
        assert (np.asarray(lse[n])[~finite] == -np.inf).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("keys", ["packed", "padded", "leftpad", "paged"])
def test_attention(name, keys, dtype, rng):
    q = sequences(rng, LENGTHS_Q, 4, 24, dtype)
    k, v = sequences(rng, LENGTHS_K, 2, 24, dtype), sequences(rng, LENGTHS_K, 2, 16, dtype)
    cu_q, lengths_k = cumulative(LENGTHS_Q), np.array(LENGTHS_K, np.int32)
    options = {"cu_seqlens_q": cu_q, "max_seqlen_q": 30, "return_lse": True, **OPTIONS[name]}
    if keys == "packed":
        tensors = np.concatenate(k), np.concatenate(v)
        options.update(cu_seqlens_k=cumulative(LENGTHS_K), max_seqlen_k=40)
    elif keys == "padded":
        tensors = padded(k, 43), padded(v, 43)
        options.update(seqlens_k=lengths_k)
    elif keys == "leftpad":
        before = np.array([3, 0, 1, 9, 2], np.int32)
        tensors = padded(k, 43, before), padded(v, 43, before)
        options.update(seqlens_k=before + lengths_k, leftpad_k=before)
    else:
        pages, options["block_table"] = paged(
            rng, [np.concatenate([a, b], -1) for a, b in zip(k, v, strict=True)], 8
        )
        tensors = pages[..., :24], pages[..., 24:]
        options.update(seqlens_k=lengths_k)
    out, lse = fulmen.attention(np.concatenate(q), *tensors, **options)
    assert out.shape == (44, 4, 16) and lse.shape == (4, 44)
    check(np.split(out, cu_q[1:-1]), np.split(lse, cu_q[1:-1], 1), q, k, v, dtype, OPTIONS[name])


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients(name, rng):
    q, dout = (np.concatenate(sequences(rng, LENGTHS_Q, 4, 24, "fp32")) for _ in range(2))
    k, v = (np.concatenate(sequences(rng, LENGTHS_K, 2, 24, "fp32")) for _ in range(2))
    cu_q, cu_k = cumulative(LENGTHS_Q), cumulative(LENGTHS_K)
    options = {
        "cu_seqlens_q": cu_q,
        "cu_seqlens_k": cu_k,
        "max_seqlen_q": 30,
        "max_seqlen_k": 40,
        **OPTIONS[name],
    }
    out, lse = fulmen.attention(q, k, v, return_lse=True, **options)
    gradients = fulmen.attention_backward(dout, q, k, v, out, lse, **options)
    reference = fulmen.attention_backward_reference(dout, q, k, v, **options)
    for n in range(len(LENGTHS_Q)):
        at_q, at_k = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
        alone = fulmen.attention_backward_reference(
            dout[None, at_q], q[None, at_q], k[None, at_k], v[None, at_k], **OPTIONS[name]
        )
        for what, at in (("dq", at_q), ("dk", at_k), ("dv", at_k)):
            expected = getattr(alone, what)[0]
            np.testing.assert_allclose(getattr(reference, what)[at], expected, atol=1e-9)
            assert_close(getattr(gradients, what)[at], expected, "fp32", what)
    assert fulmen.verify(
        q,
        k,
        v,
        out,
        lse=lse,
        dout=dout,
        dq=gradients.dq,
        dk=gradients.dk,
        dv=gradients.dv,
        **options,
    ).ok
    assert "backward" in fulmen.plan(q, k, v, backward=True, **options).kernel


ERRORS = {
    "dims": (
        {"q": lambda q: q[None]},
        ValueError,
        r"q has shape \[1, 44, 4, 24\]: beside cu_seqlens_q \[total_q, heads, head_dim\]",
    ),
    "dims of k": (
        {"k": lambda k: k[None]},
        ValueError,
        r"k has shape .*: beside cu_seqlens_k \[total_k, kv_heads, head_dim\]",
    ),
    "dtype": (
        {"cu_seqlens_q": lambda c: c.astype(float)},
        TypeError,
        "cu_seqlens_q has dtype float64: int32 is accepted, and other",
    ),
    "packed by halves": (
        {"cu_seqlens_k": lambda _: None},
        ValueError,
        r"k has shape .*: without cu_seqlens_k \[batch, seqlen_k, ",
    ),
    "longest": (
        {"max_seqlen_q": lambda _: None},
        ValueError,
        "max_seqlen_q is None: beside cu_seqlens_q the length of the longest",
    ),
    "longest of k": (
        {"max_seqlen_k": lambda _: None},
        ValueError,
        "max_seqlen_k is None: beside cu_seqlens_k",
    ),
    "list of floats": (
        {"cu_seqlens_q": lambda c: [0.5, *c[1:]]},
        TypeError,
        r"cu_seqlens_q is \[0.5, .*: a list of integers",
    ),
    "a number": (
        {"cu_seqlens_q": lambda _: 44},
        TypeError,
        "cu_seqlens_q is 44, of type int: an array or a list of integers",
    ),
    "beyond int32": (
        {"cu_seqlens_q": lambda c: [*c[:-1].tolist(), 2**40]},
        ValueError,
        r"cu_seqlens_q\[5\] is 2147483647: ",
    ),
    "rows": (
        {"cu_seqlens_k": lambda c: c + 1},
        ValueError,
        r"cu_seqlens_k\[5\] is 93: k has 92 rows",
    ),
    "too long": ({"max_seqlen_k": lambda _: 39}, ValueError, "max_seqlen_k"),
    "shape": (
        {"cu_seqlens_q": lambda c: c[None]},
        ValueError,
        r"cu_seqlens_q has shape \[1, 6\]: \[batch \+ 1\] is accepted",
    ),
    "layout": (
        {"layout": lambda _: "bhsd"},
        ValueError,
        'layout is "bhsd": "bshd" is accepted with cu_seqlens_q',
    ),
    "not in both": ({"seqlens_k": lambda _: np.zeros(5, np.int32)}, ValueError, "seqlens_k"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name, rng):
    changes, error, message = ERRORS[name]
    k, v = (np.concatenate(sequences(rng, LENGTHS_K, 2, 24, "fp32")) for _ in range(2))
    arguments = {
        "q": np.concatenate(sequences(rng, LENGTHS_Q, 4, 24, "fp32")),
        "k": k,
        "v": v,
        "cu_seqlens_q": cumulative(LENGTHS_Q),
        "cu_seqlens_k": cumulative(LENGTHS_K),
        "max_seqlen_q": 30,
        "max_seqlen_k": 40,
        "layout": "bshd",
        "seqlens_k": None,
    }
    for argument, change in changes.items():
        arguments[argument] = change(arguments[argument])
    with pytest.raises(error, match=message):
        fulmen.attention(**arguments)
