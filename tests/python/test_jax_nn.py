"""fulmen.jax.dot_product_attention beside jax.nn's own, and what flax calls."""

import functools

import fulmen.jax
import numpy as np
import pytest
from problems import assert_close, attention_float64, normal

jax = pytest.importorskip("jax", minversion="0.5")
jnp = jax.numpy
dot_product_attention = fulmen.jax.dot_product_attention

# Between two ways to compute in fp32: scores reach 10, where a last bit is 1e-6, each side rounds
# twice, and values, by which their error is multiplied, reach 4.
CLOSE = 1e-5
LENGTHS = [(13, 29), (29, 13)]
OPTIONS = {
    "plain": lambda rng, t, s: {},
    "scale": lambda rng, t, s: {"scale": 0.3},
    "causal": lambda rng, t, s: {"is_causal": True},
    "window": lambda rng, t, s: {"local_window_size": 5},
    "sides": lambda rng, t, s: {"local_window_size": (3, 2)},
    "causal window": lambda rng, t, s: {"is_causal": True, "local_window_size": (4, 0)},
    "bias": lambda rng, t, s: {"bias": normal(rng, (1, 4, t, s))},
    "one bias": lambda rng, t, s: {"bias": normal(rng, (2, 1, t, 1))},
    "half bias": lambda rng, t, s: {"bias": normal(rng, (4, t, s)).astype(np.float16)},
    "mask": lambda rng, t, s: {"mask": rng.random((2, 1, t, s)) < 0.7},
    "lengths": lambda rng, t, s: {
        "query_seq_lengths": np.array([t, 3], np.int32),
        "key_value_seq_lengths": np.array([5, s], np.int32),
        "mask": rng.random((1, 1, 1, s)) < 0.9,
    },
}


def tensors(rng, t, s):
    shapes = (2, t, 4, 16), (2, s, 2, 16), (2, s, 2, 16)
    return tuple(jnp.asarray(normal(rng, shape)) for shape in shapes)


# What is masked by positions depends on which side is longer.
CASES = [
    (name, lengths)
    for name in OPTIONS
    for lengths in (LENGTHS if "window" in name or name == "sides" else LENGTHS[:1])
]


@pytest.mark.parametrize("name, lengths", CASES, ids=str)
def test_equals_jax_nn(name, lengths, rng):
    given = tensors(rng, *lengths)
    options = {n: jnp.asarray(o) if isinstance(o, np.ndarray) else o
               for n, o in OPTIONS[name](rng, *lengths).items()}  # fmt: skip
    arrays = {n: o for n, o in options.items() if isinstance(o, jax.Array)}
    plain = {n: o for n, o in options.items() if n not in arrays}
    (out, lse), (expected, residual) = (
        jax.jit(functools.partial(function, return_residual=True, **plain))(*given, **arrays)
        for function in (dot_product_attention, jax.nn.dot_product_attention)
    )
    assert out.shape == expected.shape and lse.shape == residual.shape
    assert out.dtype == expected.dtype and lse.dtype == residual.dtype
    # Rows without a key are 0 here, the mean of all values there.
    some = np.isfinite(lse)
    assert (np.asarray(out)[~some] == 0).all()
    np.testing.assert_allclose(np.asarray(out)[some], np.asarray(expected)[some], atol=CLOSE)
    np.testing.assert_allclose(np.asarray(lse)[some], np.asarray(residual)[some], atol=CLOSE)


@pytest.mark.parametrize("name", ["one bias", "lengths"])
def test_gradients_equal_jax_nn(name, rng):
    t, s = 13, 29
    given, options = tensors(rng, t, s), OPTIONS[name](rng, t, s)
    bias = options.pop("bias", None)
    weights = jnp.asarray(normal(rng, (2, t, 4, 16)))

    def gradients(function):
        def loss(q, k, v, bias):
            return (function(q, k, v, bias, **options) * weights).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2) if bias is None else (0, 1, 2, 3)))(*given, bias)

    both = gradients(dot_product_attention), gradients(jax.nn.dot_product_attention)
    for ours, theirs in zip(*both, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_without_a_batch(rng):
    q, k, v = (one[0] for one in tensors(rng, 13, 29))
    out, lse = dot_product_attention(q, k, v, return_residual=True)
    expected, expected_lse = attention_float64(q[None], k[None], v[None])
    assert_close(out, expected[0], "fp32")
    assert_close(lse, expected_lse[0].T, "fp32", "lse")


def test_jax_computes_by_its_own_names(rng):
    given = tensors(rng, 13, 29)
    out = dot_product_attention(*given, is_causal=True, implementation="xla")
    expected = jax.nn.dot_product_attention(*given, is_causal=True, implementation="xla")
    np.testing.assert_array_equal(out, expected)


ERRORS = {
    "dims": (lambda q, k, v: dot_product_attention(q[0, 0], k, v), ValueError, r"query has shape"),
    "mask": (
        lambda q, k, v: dot_product_attention(q, k, v, mask=jnp.zeros((1, 1, 1, 29))),
        TypeError,
        "mask has dtype float32: bool is accepted",
    ),
    "heads": (
        lambda q, k, v: dot_product_attention(q[:, :, :3], k, v),
        ValueError,
        "num_kv_heads is 2",
    ),
    "names": (
        lambda q, k, v: dot_product_attention(q, k.astype(jnp.float16), v),
        ValueError,
        "key.dtype is fp16",
    ),
    "lengths": (
        lambda q, k, v: dot_product_attention(q, k, v, query_seq_lengths=jnp.ones(3, int)),
        ValueError,
        r"query_seq_lengths has shape \[3\]",
    ),
    "window": (
        lambda q, k, v: dot_product_attention(q, k, v, local_window_size=(-1, 2)),
        ValueError,
        r"local_window_size is \(-1, 2\)",
    ),
    "scale": (
        lambda q, k, v: jax.jit(lambda s: dot_product_attention(q, k, v, scale=s))(0.1),
        TypeError,
        "scale is traced: a number is accepted",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name, rng):
    call, error, message = ERRORS[name]
    with pytest.raises(error, match=message):
        call(*tensors(rng, 13, 29))


def test_what_flax_calls(rng):
    """flax's modules give these arguments; any leading dims."""
    q, k, v = (normal(rng, (2, 3, 11, 4, 16)) for _ in "qkv")
    mask = (rng.random((2, 3, 1, 11, 11)) < 0.8).astype(np.float32)
    bias = normal(rng, (1, 1, 4, 11, 1))
    flat = [one.reshape(6, 11, 4, 16) for one in (q, k, v)]
    expected, _ = attention_float64(*flat, keep_mask=mask.reshape(6, 1, 11, 11) != 0, bias=bias[0])
    given = {"mask": jnp.asarray(mask), "bias": jnp.asarray(bias), "precision": None}
    settings = {"broadcast_dropout": True, "dtype": None, "dropout_rate": 0.5}
    arrays = tuple(map(jnp.asarray, (q, k, v)))
    call = fulmen.jax.flax_attention
    out = call(*arrays, **given, **settings, deterministic=True, dropout_rng=None)
    assert_close(out.reshape(expected.shape), expected, "fp32")
    dropped = call(*arrays, **given, **settings, dropout_rng=jax.random.key(1))
    assert (dropped != out).any() and np.isfinite(dropped).all()
    assert call(*arrays, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    with pytest.raises(NotImplementedError, match="module is given, to keep attention weights"):
        call(*arrays, module=object())


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_modules_of_flax(kind, rng):
    flax = pytest.importorskip("flax")
    x = jnp.asarray(normal(rng, (2, 11, 32)))
    mask = jnp.tril(jnp.ones((11, 11)))[None, None]
    results = []
    for function in ({}, {"attention_fn": fulmen.jax.flax_attention}):
        if kind == "nnx":
            from flax import nnx

            module = nnx.MultiHeadAttention(4, 32, decode=False, rngs=nnx.Rngs(0), **function)
            results.append(module(x, mask=mask))
        else:
            module = flax.linen.MultiHeadDotProductAttention(4, **function)
            weights = module.init(jax.random.key(0), x)
            results.append(module.apply(weights, x, mask=mask))
    np.testing.assert_allclose(*results, atol=CLOSE)
