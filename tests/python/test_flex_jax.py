"""flex_attention of JAX arrays: functions that JAX traces, as text that is evaluated without
Fulmen, and calls with gradients against JAX's own operations."""

import fulmen
import numpy as np
import pytest
import score_language
from problems import SEED

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from fulmen import flex  # noqa: E402
from fulmen.jax import _flex_trace  # noqa: E402

ROWS = 48
KEYS = jax.random.split(jax.random.key(SEED % 2**31), 8)
Q = jax.random.normal(KEYS[0], (2, 4, ROWS, 16))
K, V = (jax.random.normal(key, (2, 2, ROWS, 16)) for key in KEYS[1:3])
TABLE = jax.random.normal(KEYS[3], (4, 100))
DOCUMENTS = jnp.repeat(jnp.arange(4), 12)
SMALL = jnp.arange(20, dtype=jnp.int8)
DEEP = jax.random.normal(KEYS[4], (2, 4, 5, 3))

FUNCTIONS = {
    "alibi": lambda s, b, h, q, k: s + (k - q) * jnp.exp2(-(h + 1) * 8.0 / 4),
    "a table": lambda s, b, h, q, k: s + TABLE[h, q - k + ROWS],
    "from the end": lambda s, b, h, q, k: s + TABLE[-1, q - k],
    "a row": lambda s, b, h, q, k: s + DEEP[b, h, q % 5].sum() + TABLE[h, 3],
    "a product": lambda s, b, h, q, k: s + jnp.dot(DEEP[b, h, 0], DEEP[b, h, q % 5]),
    "an index of an index": lambda s, b, h, q, k: s + TABLE[h, DOCUMENTS[q]],
    "beyond the end": lambda s, b, h, q, k: s + TABLE.at[h, q * 3].get(mode="clip"),
    "zeros beyond the end": lambda s, b, h, q, k: (
        s + TABLE.at[h, q * 3].get(mode="fill", fill_value=0.0)
    ),
    "numbers beyond the end": lambda s, b, h, q, k: (
        s + SMALL.at[q].get(mode="fill", fill_value=7) - SMALL.at[k].get(mode="fill")
    ),
    "integers": lambda s, b, h, q, k: s + (q - k) // 3 + (k - q) % 5 + ((q << 2) & 12 ^ k),
    "activations": lambda s, b, h, q, k: jax.nn.gelu(s) + jax.nn.relu(s) * jax.nn.sigmoid(s),
    "where": lambda s, b, h, q, k: jnp.where(jnp.logical_or(q > k, h == 1), s, jnp.minimum(s, 0)),
    "bounds": lambda s, b, h, q, k: jnp.clip(s, -0.5, 0.5) + jnp.clip(q, 3, 9) + jnp.abs(q - k),
    "rounding": lambda s, b, h, q, k: jnp.round(s * 3) + jnp.floor(s) + jnp.sign(s) + jnp.trunc(s),
    "powers": lambda s, b, h, q, k: s**2 + jnp.power(jnp.abs(s) + 1, 1.5) + 1 / (1 + s**2),
    "conversions": lambda s, b, h, q, k: (s * 5).astype(jnp.int32) + jnp.float32(q) / 7 + (q > k),
    "a mask": lambda b, h, q, k: (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k),
    "a dilated mask": lambda b, h, q, k: (jnp.abs(q - k) <= 9) & (jnp.abs(q - k) % 3 == 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    function = FUNCTIONS[name]
    is_mask = function.__code__.co_argcount == 4
    found = _flex_trace.traced(*((None, function) if is_mask else (function, None)), Q)
    places = np.ogrid[:2, :4, :ROWS, :ROWS]
    given = dict(zip("bhqk", places, strict=True))
    flat = [np.broadcast_to(one, (2, 4, ROWS, ROWS)).ravel().astype(np.int32) for one in places]
    scores = np.random.default_rng(SEED).normal(size=flat[0].shape).astype(np.float32)
    right = jax.vmap(function)(*(() if is_mask else (scores,)), *flat)
    given["score"] = scores.reshape(2, 4, ROWS, ROWS)
    tensors = {key: np.asarray(one) for key, one in found.tensors.items()}
    value = score_language.evaluate(
        found.score_mod or found.mask_mod, given, tensors, float_type=np.float32
    )
    value = np.broadcast_to(value, (2, 4, ROWS, ROWS)).ravel()
    if is_mask:
        assert np.array_equal(value, right)
    else:
        np.testing.assert_allclose(value, right, rtol=1e-4, atol=1e-4, err_msg=f"{SEED=}")


def _branch(s, b, h, q, k):
    if q > k:  # here
        return s
    return -s


def _loop(s, b, h, q, k):
    return jax.lax.fori_loop(0, q, lambda _, x: x + 1.0, s)  # here


def _host(s, b, h, q, k):
    return s + np.sin(s)  # here


@pytest.mark.parametrize("function", [_branch, _loop, _host], ids=lambda one: one.__name__)
def test_refusals_name_the_line(function):
    first = function.__code__.co_firstlineno
    with pytest.raises(flex.TraceError, match=f"score_mod can't be traced at .*:{first + 1}, in"):
        fulmen.flex_attention(Q, K, V, function, enable_gqa=True)


MASK = flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, ROWS, ROWS, None, 16)


def ours(q, k, v, table):
    def mod(score, b, h, i, j):
        return jnp.tanh(score) + table[h, i - j + ROWS]

    return fulmen.flex_attention(q, k, v, mod, MASK, enable_gqa=True, return_lse=True)


def theirs(q, k, v, table):
    k, v = jnp.repeat(k, 2, 1), jnp.repeat(v, 2, 1)
    i, j = jnp.arange(ROWS)[:, None], jnp.arange(ROWS)[None]
    scores = jnp.tanh(q @ k.swapaxes(2, 3) / 4) + table[:, i - j + ROWS]
    scores = jnp.where(i >= j, scores, -jnp.inf)
    return jax.nn.softmax(scores) @ v, jax.nn.logsumexp(scores, -1)


WEIGHTS = jax.random.normal(KEYS[5], Q.shape), jax.random.normal(KEYS[6], Q.shape[:3])


def loss(function):
    def value(*inputs):
        out, lse = function(*inputs)
        return (out * WEIGHTS[0]).sum() + (lse * WEIGHTS[1]).sum()

    return value


@pytest.mark.parametrize("wrapped", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_gradients(wrapped):
    inputs = (Q, K, V, TABLE)
    for found, right in zip(wrapped(ours)(*inputs), theirs(*inputs), strict=True):
        np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-5)
    arguments = (0, 1, 2, 3)
    found = wrapped(jax.grad(loss(ours), arguments))(*inputs)
    right = jax.grad(loss(theirs), arguments)(*inputs)
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=f"{SEED=}")


def test_vmap_and_other_derivatives():
    stacked = jnp.stack([TABLE, -TABLE])
    found = jax.vmap(lambda table: ours(Q, K, V, table)[0])(stacked)
    right = jax.vmap(lambda table: theirs(Q, K, V, table)[0])(stacked)
    np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-5)
    with pytest.raises(NotImplementedError, match="no derivative by forward mode"):
        jax.jvp(lambda q: ours(q, K, V, TABLE)[0], (Q,), (Q,))


@pytest.mark.parametrize("device", [None, "emulated:gfx1100", "emulated:sm_80"])
def test_every_dtype_of_tensors_and_lists(device):
    """The custom call's arrays: tensors of all dtypes, lists of blocks of both kinds, and gradients
    of some, beside JAX's own operations, under jax.jit and jax.vmap."""
    small = jnp.asarray(SMALL - 10)
    bytes_ = jnp.arange(ROWS, dtype=jnp.uint8)
    kept = jax.random.bernoulli(KEYS[7], 0.7, (ROWS,))
    half = TABLE.astype(jnp.bfloat16)
    words = jnp.arange(ROWS, dtype=jnp.int32)

    def attended(b, h, i, j):
        return (i % 16 < 14) & (j < 40) & ((i + j) % 5 != 0)

    mask = flex.create_block_mask(attended, None, None, ROWS, ROWS, None, 16)
    options = {"device": device}

    def ours(q, half, table):
        def read(score, b, h, i, j):
            shift = jnp.int32(small[j % 20]) + jnp.int32(bytes_[i]) + words[j]
            more = 0.01 * shift + jnp.where(kept[j], 0.5, 0.0)
            return score + half[h, i] * table[h, j] + more

        out = fulmen.flex_attention(q, K, V, read, mask, enable_gqa=True, kernel_options=options)
        return (out * WEIGHTS[0]).sum(), out

    def theirs(q, half, table):
        k, v = jnp.repeat(K, 2, 1), jnp.repeat(V, 2, 1)
        i, j = jnp.arange(ROWS)[:, None], jnp.arange(ROWS)[None]
        scores = q @ k.swapaxes(2, 3) / 4
        bias = half[:, :ROWS, None].astype(jnp.float32) * table[:, None, :ROWS]
        bias += 0.01 * (small[j % 20] + bytes_[i] + words[j]) + jnp.where(kept[j], 0.5, 0.0)
        scores = jnp.where(attended(0, 0, i, j), scores + bias, -jnp.inf)
        top = jnp.maximum(scores.max(-1, keepdims=True), -1e30)
        p = jnp.exp(scores - top)
        out = p / jnp.maximum(p.sum(-1, keepdims=True), 1e-30) @ v
        return (out * WEIGHTS[0]).sum(), out

    def both(function):
        return jax.grad(function, (0, 1, 2), has_aux=True)

    given = Q, half, TABLE
    found, right = jax.jit(both(ours))(*given), both(theirs)(*given)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        tolerance = 2**-7 if a.dtype == jnp.bfloat16 else 1e-4
        a, b = (np.asarray(one, np.float32) for one in (a, b))
        largest = max(1, np.abs(b).max())
        np.testing.assert_allclose(a / largest, b / largest, atol=tolerance, err_msg=f"{SEED=}")
    if device is not None:
        return
    tables = jnp.stack([TABLE, 2 * TABLE])
    mapped = jax.vmap(both(ours), (None, None, 0))(Q, half, tables)[0][2]
    alone = [both(ours)(Q, half, table)[0][2] for table in tables]
    np.testing.assert_array_equal(mapped, jnp.stack(alone))


def test_a_kernel_that_does_not_exist_is_named():
    options = {"kernel": "no such kernel"}
    with pytest.raises(fulmen.ArgumentError, match="no such kernel"):
        fulmen.flex_attention(Q, K, V, None, MASK, enable_gqa=True, kernel_options=options)


def test_largest_scores_and_errors():
    request = flex.AuxRequest(lse=True, max_scores=True)
    _, aux = fulmen.flex_attention(Q, K, V, None, MASK, enable_gqa=True, return_aux=request)
    i, j = jnp.arange(ROWS)[:, None], jnp.arange(ROWS)[None]
    scores = Q @ jnp.repeat(K, 2, 1).swapaxes(2, 3) / 4
    right = jnp.where(i >= j, scores, -jnp.inf).max(-1)
    np.testing.assert_allclose(aux.max_scores, right, rtol=1e-5, atol=1e-5)
    with pytest.raises(TypeError, match="key has dtype float16"):
        fulmen.flex_attention(Q, K.astype("float16"), V, enable_gqa=True)
    with pytest.raises(fulmen.ArgumentError, match="smaller length"):
        fulmen.flex_attention(jnp.concatenate([Q, Q], 2), K, V, None, MASK, enable_gqa=True)
