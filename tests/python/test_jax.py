"""JAX arrays: values, gradients, jit, vmap, errors."""

import re

import fulmen
import numpy as np
import problems
import pytest
from problems import assert_close, attention_float64, normal, qkv

jax = pytest.importorskip("jax", minversion="0.5")
jnp = jax.numpy

OPTIONS = {
    "plain": lambda rng: {},
    "causal": lambda rng: {"causal": True, "softmax_scale": 0.3},
    "top_left": lambda rng: {"causal": "top_left", "window_left": 9},
    "window": lambda rng: {"window_left": 5, "window_right": 20, "softcap": 2.0},
    "bias": lambda rng: {
        "bias": normal(rng, (4, 37, 53)),
        "keep_mask": rng.random((2, 1, 37, 53)) < 0.7,
    },
    "alibi": lambda rng: {"alibi_slopes": normal(rng, (4,)) ** 2, "sinks": normal(rng, (4,))},
}


def as_jax(options):
    return {
        name: jnp.asarray(value) if isinstance(value, np.ndarray) else value
        for name, value in options.items()
    }


def arrays(rng, shape=None, dtype="fp32"):
    return tuple(map(jnp.asarray, qkv(rng, shape, dtype)))


@pytest.mark.parametrize("dtype", problems.DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, dtype, rng):
    tensors, options = qkv(rng, dtype=dtype), OPTIONS[name](rng)
    expected, expected_lse = attention_float64(*tensors, **options)

    def function(q, k, v):
        return fulmen.attention(q, k, v, return_lse=True, **as_jax(options))

    for call in (function, jax.jit(function)):
        out, lse = call(*map(jnp.asarray, tensors))
        assert (
            isinstance(out, jax.Array)
            and out.dtype == problems.DTYPES[dtype]
            and lse.dtype == jnp.float32
        )
        assert_close(out, expected, dtype)
        assert_close(lse, expected_lse, "fp32", "lse")


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients(name, rng):
    options = as_jax(OPTIONS[name](rng))
    names = ["q", "k", "v", *(n for n in ("bias", "sinks") if n in options)]
    values = dict(zip("qkv", arrays(rng, {"dv": 16}), strict=True)) | options
    dout, dlse = normal(rng, (2, 37, 4, 16)), normal(rng, (2, 4, 37))

    def loss(differentiated, weight):
        out, lse = fulmen.attention(**{**values, **differentiated}, return_lse=True)
        return (out * dout).sum() + (weight * lse).sum()

    step = jax.jit(jax.grad(loss))
    for weight in (dlse, 0 * dlse):
        expected = fulmen.attention_backward_reference(
            dout,
            *(np.asarray(values[n]) for n in "qkv"),
            gradients=names,
            dlse=weight,
            **{n: _plain(v) for n, v in options.items()},
        )
        gradients = step({n: values[n] for n in names}, weight)
        for n in names:
            assert_close(gradients[n], getattr(expected, "d" + n), "fp32", "d" + n)
    # One gradient alone, through out alone.
    dv = jax.grad(lambda v: (fulmen.attention(**{**values, "v": v}) * dout).sum())(values["v"])
    assert_close(dv, expected.dv, "fp32", "dv")


@pytest.mark.parametrize("asked", [None, True, False])
def test_gradients_are_deterministic_unless_the_caller_says_otherwise(plans, asked, rng):
    q = arrays(rng)[0]
    step = jax.grad(lambda x: fulmen.attention(x, x, x, deterministic=asked).sum())
    for function in (step, jax.jit(step)):
        jax.block_until_ready(function(q))
        backward = [line for line in plans() if " for backward " in line]
        assert backward
        assert all((" nondeterministic " in line) == (asked is False) for line in backward)


def _plain(value):
    return np.asarray(value) if isinstance(value, jax.Array) else value


def test_backward_by_hand(rng):
    tensors = arrays(rng)
    out, lse = fulmen.attention(*tensors, causal=True, return_lse=True)
    dout = jnp.asarray(normal(rng, out.shape))
    gradients = fulmen.attention_backward(
        dout, *tensors, out, lse, causal=True, gradients=("v", "q")
    )
    expected = fulmen.attention_backward_reference(*map(np.asarray, (dout, *tensors)), causal=True)
    assert gradients.dk is None
    assert_close(gradients.dq, expected.dq, "fp32", "dq")
    assert_close(gradients.dv, expected.dv, "fp32", "dv")


def test_layout(rng):
    q, k, v = arrays(rng)
    swapped = [jnp.swapaxes(t, 1, 2) for t in (q, k, v)]
    out = fulmen.attention(*swapped, layout="bhsd", causal=True)
    assert_close(jnp.swapaxes(out, 1, 2), attention_float64(q, k, v, causal=True)[0], "fp32")

    def loss(q, k, v, layout):
        return (fulmen.attention(q, k, v, layout=layout) ** 2).sum()

    ours = jax.grad(loss, (0, 1, 2))(*swapped, "bhsd")
    for gradient, expected in zip(ours, jax.grad(loss, (0, 1, 2))(q, k, v, "bshd"), strict=True):
        np.testing.assert_allclose(jnp.swapaxes(gradient, 1, 2), expected, atol=1e-5)


def test_vmap(rng):
    q = jnp.asarray(normal(rng, (3, 2, 2, 11, 4, 8)))
    k, v = (jnp.asarray(normal(rng, (2, 2, 13, 2, 8))) for _ in "kv")
    bias = jnp.asarray(normal(rng, (3, 4, 11, 13)))

    def loss(q, k, v, bias):
        out, lse = fulmen.attention(q, k, v, bias=bias, causal=True, return_lse=True)
        return (out**2).sum() + lse.sum(), out

    # The first dim of q and bias, then the second of q beside the first of k and v.
    inner = jax.vmap(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True), (0, 0, 0, None))
    mapped = jax.jit(jax.vmap(inner, (0, None, None, 0)))
    (_, out), gradients = mapped(q, k, v, bias)
    assert out.shape == (3, 2, 2, 11, 4, 8)
    for i in range(3):
        for j in range(2):
            expected, _ = attention_float64(q[i, j], k[j], v[j], bias=bias[i], causal=True)
            assert_close(out[i, j], expected, "fp32")
            alone = jax.grad(lambda *a: loss(*a)[0], (0, 1, 2, 3))(q[i, j], k[j], v[j], bias[i])
            for gradient, one in zip(gradients, alone, strict=True):
                np.testing.assert_allclose(gradient[i, j], one, atol=1e-5)


@pytest.mark.parametrize("same", ["k", "bias"])
def test_vmap_is_one_call_of_more_sequences(rng, same, monkeypatch, capfd):
    """Where each tensor has all of them; what was called is in the log."""
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    q, k, v = (jnp.asarray(normal(rng, (5, 3, 11, 2, 8))) for _ in "qkv")
    bias = jnp.asarray(normal(rng, (2, 11, 11)))
    lengths = jnp.asarray(rng.integers(1, 12, (5, 3)), jnp.int32)
    one_key = same == "k"
    if one_key:
        k = k[0]

    def attend(q, k, v, lengths):
        return fulmen.attention(q, k, v, bias=bias, seqlens_k=lengths, return_lse=True)

    call = jax.vmap(attend, (0, None if one_key else 0, 0, 0))
    out, lse = jax.block_until_ready(jax.jit(call)(q, k, v, lengths))
    batches = set(re.findall(r" b=(\d+) ", capfd.readouterr().err))
    assert batches == ({"3"} if one_key else {"15"})
    for i in range(5):
        for j in range(3):
            n = int(lengths[i, j])
            of_k = (k if one_key else k[i])[j : j + 1, :n]
            expected, expected_lse = attention_float64(
                q[i, j : j + 1], of_k, v[i, j : j + 1, :n], bias=bias[..., :n]
            )
            assert_close(out[i, j : j + 1], expected, "fp32")
            assert_close(lse[i, j : j + 1], expected_lse, "fp32")


def test_dropout(rng):
    tensors = qkv(rng)
    q, k, v = map(jnp.asarray, tensors)
    for seed in (7, 2**63 + 5, -1):
        settings = {"dropout": 0.25, "dropout_seed": seed, "dropout_offset": 1}
        expected = fulmen.attention(*tensors, **settings)
        np.testing.assert_array_equal(fulmen.attention(q, k, v, **settings), expected)

    @jax.jit
    def step(q, seed):
        return fulmen.attention(q, k, v, dropout=0.25, dropout_seed=seed)

    np.testing.assert_array_equal(
        step(q, 9), fulmen.attention(*tensors, dropout=0.25, dropout_seed=9)
    )
    assert step._cache_size() == 1 and (step(q, 10) != step(q, 9)).any() and step._cache_size() == 1
    keys = jax.random.split(jax.random.key(3), 2)
    each = jax.vmap(step, (None, 0))(q, keys)
    assert (each[0] != each[1]).any()
    np.testing.assert_array_equal(each[1], step(q, keys[1]))
    np.testing.assert_array_equal(each[1], step(q, jax.random.key_data(keys[1])))

    # An array is the integer that it holds.
    for seed in (-1, 7):
        given = fulmen.attention(q, k, v, dropout=0.25, dropout_seed=jnp.int32(seed))
        np.testing.assert_array_equal(
            given, fulmen.attention(*tensors, dropout=0.25, dropout_seed=seed)
        )
    jax.config.update("jax_enable_x64", True)
    try:
        for seed in (2**40 + 5, -(2**40)):
            given = fulmen.attention(q, k, v, dropout=0.25, dropout_seed=jnp.int64(seed))
            np.testing.assert_array_equal(
                given, fulmen.attention(*tensors, dropout=0.25, dropout_seed=seed)
            )
    finally:
        jax.config.update("jax_enable_x64", False)

    # The gradient is that of the same elements.
    kept = fulmen.dropout_mask(*tensors[:2], dropout=0.25, dropout_seed=9)
    expected = fulmen.attention_backward_reference(
        np.ones_like(tensors[0]), *tensors, dropout=0.25, dropout_seed=9
    )
    dq = jax.grad(lambda q: step(q, 9).sum())(q)
    assert kept.mean() < 0.8
    assert_close(dq, expected.dq, "fp32", "dq")


def test_denormal_numbers(rng):
    """XLA's threads flush denormal numbers to 0; attention does not."""
    q, k, v = qkv(rng)
    v *= np.float32(1e-39)
    expected = fulmen.attention(q, k, v)
    assert (expected != 0).any()
    for call in (fulmen.attention, jax.jit(fulmen.attention)):
        np.testing.assert_array_equal(np.asarray(call(*map(jnp.asarray, (q, k, v)))), expected)
    np.testing.assert_array_equal(fulmen.attention(q, k, v), expected)


def test_empty(rng):
    q, k, v = arrays(rng)
    assert fulmen.attention(q[:0], k[:0], v[:0]).shape == (0, 37, 4, 24)
    assert (fulmen.attention(q, k[:, :0], v[:, :0]) == 0).all()
    assert jax.vmap(fulmen.attention)(*(t[None][:0] for t in (q, k, v))).shape == (0, 2, 37, 4, 24)


def test_gradients_of_nothing(rng):
    """The gradient of a bias that no query uses: an empty sum."""
    for shape in ({"b": 0}, {"sq": 0}):
        q, k, v = map(jnp.asarray, qkv(rng, shape))
        bias = jnp.asarray(normal(rng, (1, 4, 1, k.shape[1])))
        for _ in range(3):
            # What the next array of that size is likely to be made of.
            jnp.full(bias.shape, jnp.nan).block_until_ready()
            gradient = jax.grad(lambda b, q, k, v: fulmen.attention(q, k, v, bias=b).sum())(
                bias, q, k, v
            )
            assert not gradient.any()


def test_arrays_of_one_number(rng):
    q, k, v = arrays(rng)
    options = {
        "softmax_scale": 1 / jnp.sqrt(24),
        "window_left": jnp.int32(5),
        "softcap": jnp.float32(2),
    }
    expected = fulmen.attention(
        q, k, v, softmax_scale=float(options["softmax_scale"]), window_left=5, softcap=2.0
    )
    np.testing.assert_array_equal(fulmen.attention(q, k, v, **options), expected)


def test_reference_and_plan(rng):
    q, k, v = arrays(rng)
    assert isinstance(fulmen.attention_reference(q, k, v), jax.Array)
    assert_close(fulmen.attention_reference(q, k, v), attention_float64(q, k, v)[0], "fp32")
    kernel = fulmen.plan(q, k, v).kernel
    assert (
        fulmen.verify(q, k, v, fulmen.attention(q, k, v)).ok and not fulmen.verify(q, k, v, q).ok
    )  # that they can't be written is right
    assert_close(
        fulmen.attention(q, k, v, kernel=kernel, verify=True, num_threads=1),
        attention_float64(q, k, v)[0],
        "fp32",
    )


LENGTHS_Q, LENGTHS_K = [9, 0, 1, 30], [17, 5, 40, 30]


def packed(rng):
    """q, k, v, the lengths as numbers that may be traced, and those that may not."""
    q, k, v = (
        normal(rng, (sum(n), h, 24)) for n, h in ((LENGTHS_Q, 4), (LENGTHS_K, 2), (LENGTHS_K, 2))
    )
    cu = [np.cumsum([0, *n], dtype=np.int32) for n in (LENGTHS_Q, LENGTHS_K)]
    return (q, k, v), cu, {"max_seqlen_q": 30, "max_seqlen_k": 40, "causal": True}


def test_packed_sequences(rng):
    tensors, cu, options = packed(rng)
    dout, dlse = normal(rng, tensors[0].shape), normal(rng, (4, sum(LENGTHS_Q)))

    def loss(q, k, v, cu_q, cu_k):
        out, lse = fulmen.attention(
            q, k, v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True, **options
        )
        return (out * dout).sum() + (jnp.where(jnp.isfinite(lse), lse, 0) * dlse).sum(), (out, lse)

    by_numpy = {"cu_seqlens_q": cu[0], "cu_seqlens_k": cu[1], **options}
    out, lse = fulmen.attention(*tensors, return_lse=True, **by_numpy)
    expected = fulmen.attention_backward(dout, *tensors, out, lse, dlse=dlse, **by_numpy)
    step = jax.grad(loss, (0, 1, 2), has_aux=True)
    for call in (step, jax.jit(step)):
        gradients, results = call(*map(jnp.asarray, (*tensors, *cu)))
        np.testing.assert_array_equal(results[0], out)
        np.testing.assert_array_equal(results[1], lse)
        for ours, theirs in zip(gradients, expected[:3], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    by_hand = fulmen.attention_backward(
        *map(jnp.asarray, (dout, *tensors, out, lse)), dlse=jnp.asarray(dlse), **by_numpy
    )
    np.testing.assert_array_equal(by_hand.dk, expected.dk)
    # Mapped over queries, and over queries and lengths.
    queries, others = (
        np.stack([tensors[0], tensors[0] * 0.5]),
        np.stack([cu[0], np.array([0, 3, 9, 10, 40], np.int32)]),
    )
    mapped = jax.vmap(
        lambda q, c: loss(q, *map(jnp.asarray, tensors[1:]), c, jnp.asarray(cu[1]))[1][0]
    )(queries, others)
    for n in range(2):
        alone = fulmen.attention(
            queries[n], *tensors[1:], **{**by_numpy, "cu_seqlens_q": others[n]}
        )
        np.testing.assert_array_equal(mapped[n], alone)
    with pytest.raises(Exception, match=r"cu_seqlens_k\[4\] is 93: k has 92 rows"):
        jax.jit(loss)(*map(jnp.asarray, (*tensors, cu[0], cu[1] + 1)))[0].block_until_ready()


@pytest.mark.parametrize("paged", [False, True])
def test_cached_keys(paged, rng):
    q, cache = normal(rng, (2, 3, 4, 24)), [normal(rng, (6, 8, 2, 24)) for _ in "kv"]
    table, used = rng.permutation(6).astype(np.int32).reshape(2, 3), np.array([19, 7], np.int32)
    before = np.array([2, 0], np.int32)
    settings = {"seqlens_k": used, "leftpad_k": before, "causal": True}
    if paged:
        settings["block_table"] = table
    else:
        cache = [t.reshape(2, 24, 2, 24) for t in cache]
    traced = {n: jnp.asarray(t) for n, t in settings.items() if isinstance(t, np.ndarray)}
    call = jax.jit(
        lambda q, k, v, lengths: fulmen.attention(q, k, v, return_lse=True, causal=True, **lengths)
    )
    expected = fulmen.attention(q, *cache, return_lse=True, **settings)
    for ours, theirs in zip(call(*map(jnp.asarray, (q, *cache)), traced), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="is given: the backward pass takes packed sequences"):
        jax.grad(lambda q: call(q, *map(jnp.asarray, cache), traced)[0].sum())(jnp.asarray(q))


ERRORS = {
    "lengths": (
        lambda q, k, v: fulmen.attention(q, k, v, seqlens_k=jnp.ones(2)),
        TypeError,
        "seqlens_k has dtype float32: .*, int32 for lengths, int8, .* for k and v are accepted",
    ),
    "packed": (
        lambda q, k, v: fulmen.attention(
            q, k, v, cu_seqlens_q=jnp.zeros(3, jnp.int32), max_seqlen_q=1
        ),
        ValueError,
        r"q has shape .*: beside cu_seqlens_q \[total_q, heads, head_dim\] is accepted",
    ),
    "shape": (
        lambda q, k, v: fulmen.attention(q[0], k, v),
        ValueError,
        r"q has shape \[37, 4, 24\]",
    ),
    "dtype": (
        lambda q, k, v: fulmen.attention(q.astype(jnp.int32), k, v),
        TypeError,
        "q has dtype int32: float32, float16",
    ),
    "mixed": (
        lambda q, k, v: fulmen.attention(q, k.astype(jnp.float16), v),
        ValueError,
        "k.dtype is fp16",
    ),
    "heads": (
        lambda q, k, v: fulmen.attention(q[:, :, :3], k, v),
        ValueError,
        "num_kv_heads is 2, it must divide num_heads = 3",
    ),
    "list": (
        lambda q, k, v: fulmen.attention(q, [1], v),
        TypeError,
        "k is of type list: a JAX array is accepted",
    ),
    "out": (
        lambda q, k, v: fulmen.attention(q, k, v, out=q),
        ValueError,
        "out is given: JAX arrays are never written",
    ),
    "causal": (
        lambda q, k, v: fulmen.attention(q, k, v, causal="left"),
        ValueError,
        'causal is "left"',
    ),
    "seed": (
        lambda q, k, v: fulmen.attention(q, k, v, dropout=0.5),
        ValueError,
        "dropout_seed is None and dropout is not 0",
    ),
    "seed type": (
        lambda q, k, v: fulmen.attention(q, k, v, dropout=0.5, dropout_seed=1.5),
        TypeError,
        "dropout_seed is 1.5: an integer, an integer scalar array, or one key of jax.random",
    ),
    "learned scale": (
        lambda q, k, v: jax.grad(
            lambda scale: fulmen.attention(q, k, v, softmax_scale=scale).sum()
        )(0.3),
        TypeError,
        "softmax_scale is traced: a number is accepted",
    ),
    "traced dropout": (
        lambda q, k, v: jax.jit(lambda p: fulmen.attention(q, k, v, dropout=p, dropout_seed=1))(
            0.5
        ),
        TypeError,
        "dropout is traced: a number is accepted",
    ),
    "slopes": (
        lambda q, k, v: jax.grad(
            lambda slopes: fulmen.attention(q, k, v, alibi_slopes=slopes).sum()
        )(jnp.ones(4)),
        ValueError,
        "alibi_slopes is differentiated: it has no gradient here",
    ),
    "kernel": (
        lambda q, k, v: fulmen.attention(q, k, v, kernel="fast"),
        ValueError,
        'kernel is "fast"',
    ),
    "refused": (
        lambda q, k, v: fulmen.attention(q, k, v, kernel="cpu.decode.scalar"),
        NotImplementedError,
        "query rows",
    ),
    "twice": (
        lambda q, k, v: jax.grad(
            lambda q: jax.grad(lambda q: fulmen.attention(q, k, v).sum())(q).sum()
        )(q),
        NotImplementedError,
        "fulmen.attention has no derivative by forward mode .* no second one",
    ),
    "forward mode": (
        lambda q, k, v: jax.jacfwd(lambda q: fulmen.attention(q, k, v).sum())(q),
        NotImplementedError,
        "fulmen.attention has no derivative by forward mode",
    ),
    "hessian": (
        lambda q, k, v: jax.hessian(lambda q: fulmen.attention(q, k, v).sum())(q),
        NotImplementedError,
        "fulmen.attention has no derivative by forward mode .* no second one",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("traced", [False, True])
def test_errors(name, traced, rng):
    call, error, message = ERRORS[name]
    with pytest.raises(error, match=message):
        (jax.jit(call) if traced else call)(*arrays(rng))
