"""fulmen.append_kv of JAX arrays: against NumPy's, in loops of generation, mapped, donated, and
what errors say."""

import fulmen
import numpy as np
import pytest
from problems import DTYPES, normal

jax = pytest.importorskip("jax", minversion="0.5")
jnp = jax.numpy


def problem(rng):
    """Arguments of a random case, as NumPy arrays, and its other options."""
    batch, new, heads, kv_heads, half = (int(rng.integers(1, most)) for most in (5, 4, 4, 4, 5))
    dim, dim_v, page = (
        int(rng.integers(2 * half, 24)),
        int(rng.integers(1, 24)),
        int(rng.integers(1, 9)),
    )
    pages = int(rng.integers(1 + new // page, 5))
    dtype = str(rng.choice(list(DTYPES)))
    paged, rotary, queries = rng.random(3) < (0.5, 0.7, 0.6)
    leading = (batch * pages + 2, page) if paged else (batch, pages * page)
    given = {
        "k_cache": normal(rng, (*leading, kv_heads, dim), dtype),
        "v_cache": normal(rng, (*leading, kv_heads, dim_v), dtype),
        "seqlens_k": rng.integers(0, pages * page - new + 1, batch).astype(np.int32),
        "k": normal(rng, (batch, new, kv_heads, dim), dtype),
        "v": normal(rng, (batch, new, kv_heads, dim_v), dtype),
    }
    if paged:
        given["block_table"] = (
            rng.permutation(batch * pages + 2)[: batch * pages]
            .astype(np.int32)
            .reshape(batch, pages)
        )
    options = {}
    if rotary:
        kind = dtype if rng.random() < 0.5 else "fp32"
        given["rotary_cos"], given["rotary_sin"] = (
            normal(rng, (pages * page + 3, half), kind) for _ in "cs"
        )
        options["rotary_interleaved"] = bool(rng.random() < 0.5)
        if queries:
            given["q"] = normal(rng, (batch, int(rng.integers(1, 4)), heads, dim), dtype)
            options["queries_advance"] = bool(rng.random() < 0.5)
    return given, options


def by_numpy(given, options):
    """What append_kv returns for JAX arrays; the given ones stay as they are."""
    copies = {name: array.copy() for name, array in given.items()}
    turned, lengths = fulmen.append_kv(**copies, **options)
    return turned, lengths, copies["k_cache"], copies["v_cache"]


def same(ours, expected):
    for one, other in zip(ours, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert isinstance(one, jax.Array) and one.dtype == other.dtype
            np.testing.assert_array_equal(np.asarray(one), other)


@pytest.mark.parametrize("case", range(12))
def test_random_cases(case, rng):
    given, options = problem(rng)
    expected = by_numpy(given, options)
    traced = {name: jnp.asarray(array) for name, array in given.items()}
    same(fulmen.append_kv(**traced, **options), expected)
    same(jax.jit(lambda arrays: fulmen.append_kv(**arrays, **options))(traced), expected)
    for name, array in given.items():
        np.testing.assert_array_equal(np.asarray(traced[name]), array)


def test_steps_of_generation_in_one_program(rng):
    steps = [normal(rng, (6, 2, 1, heads, 16)) for heads in (4, 2, 2)]
    empty = np.zeros((2, 24, 2, 16), np.float32)
    used = np.array([0, 17], np.int32)

    def step(cache, new):
        q, k, v = new
        _, lengths, *cache = fulmen.append_kv(*cache[:2], cache[2], k, v)
        return (*cache, lengths), fulmen.attention(q, *cache, seqlens_k=lengths, causal=True)

    def generate(k_cache, v_cache):
        return jax.lax.scan(step, (k_cache, v_cache, jnp.asarray(used)), steps)

    caches = [jnp.asarray(empty + part) for part in (0, 1)]
    places = [cache.unsafe_buffer_pointer() for cache in caches]
    expected = [cache.copy() for cache in map(np.asarray, caches)]
    (k_cache, v_cache, lengths), outs = jax.jit(generate, donate_argnums=(0, 1))(*caches)
    assert [k_cache.unsafe_buffer_pointer(), v_cache.unsafe_buffer_pointer()] == places
    for at, (q, k, v) in enumerate(zip(*steps, strict=True)):
        fulmen.append_kv(*expected, used + at, k, v)
        np.testing.assert_array_equal(
            outs[at], fulmen.attention(q, *expected, seqlens_k=used + at + 1, causal=True)
        )
    np.testing.assert_array_equal(lengths, used + 6)
    np.testing.assert_array_equal(k_cache, expected[0])
    np.testing.assert_array_equal(v_cache, expected[1])


def test_mapped(rng):
    given, options = problem(rng)
    others = [given["k"], given["k"] * 2, -given["k"]]
    same_for_all = {name: jnp.asarray(array) for name, array in given.items() if name != "k"}
    mapped = jax.jit(jax.vmap(lambda k: fulmen.append_kv(**same_for_all, k=k, **options)))(
        jnp.stack(others)
    )
    for n, k in enumerate(others):
        same(
            [None if one is None else one[n] for one in mapped],
            by_numpy({**given, "k": k}, options),
        )


ROWS = np.zeros((2, 3, 2, 8), np.float32)
CACHE = np.zeros((2, 16, 2, 8), np.float32)
ANGLES = np.zeros((20, 4), np.float32)
ERRORS = {
    "dims": (
        {"k": ROWS[0]},
        ValueError,
        r"k has shape \[3, 2, 8\]: \[batch, seqlen_new, kv_heads, head_dim\]",
    ),
    "one of two": ({"v": None}, ValueError, "v is missing: k is given, both or neither"),
    "heads": ({"k": ROWS[:, :, :1]}, ValueError, r"^k\.shape is \["),
    "dtype": ({"k": ROWS.astype(np.float16)}, ValueError, "^k.dtype is fp16: fp32 is needed"),
    "integers": ({"v_cache": CACHE.astype(np.int16)}, TypeError, "v_cache has dtype int16"),
    "lengths": (
        {"seqlens_k": np.zeros(2, np.float32)},
        TypeError,
        "seqlens_k has dtype float32: .*, int32 for lengths",
    ),
    "batch": ({"seqlens_k": np.zeros(3, np.int32)}, ValueError, "k_cache.shape"),
    "pages": ({"block_table": np.zeros((1, 4), np.int32)}, ValueError, "block_table.shape"),
    "half a rotation": ({"rotary_cos": ANGLES}, ValueError, "rotary_sin is missing"),
    "wide": (
        {"rotary_cos": np.zeros((20, 5), np.float32)}
        | {"rotary_sin": np.zeros((20, 5), np.float32)},
        ValueError,
        "rotary_dim",
    ),
    "queries alone": ({"q": ROWS}, ValueError, "rotary_cos is missing: without a rotary embedding"),
    "threads": ({"num_threads": -1}, ValueError, "num_threads is -1"),
    "half a thread": (
        {"num_threads": 1.5},
        TypeError,
        "num_threads is 1.5, of type float: an integer is accepted",
    ),
    "flag": (
        {"queries_advance": 2},
        TypeError,
        "queries_advance is 2, of type int: True or False is accepted",
    ),
    "number as device": (
        {"device": 3},
        TypeError,
        "device is 3, of type int: a str, or None, is accepted",
    ),
    "list as device": (
        {"device": ["x"]},
        TypeError,
        r"device is \['x'\], of type list: a str, or None, is accepted",
    ),
    "list": (
        {"k": [1.0]},
        TypeError,
        "k is of type list: a JAX array is accepted, as k_cache is one",
    ),
    "device": ({"device": "abacus"}, Exception, "abacus"),
    "full": (
        {"seqlens_k": np.array([2, 14], np.int32)},
        Exception,
        r"seqlens_k\[1\] is 14: with 3 new rows 0 to 13 are accepted",
    ),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", ERRORS)
def test_errors(name, traced):
    changes, error, message = ERRORS[name]
    given = {
        "k_cache": CACHE,
        "v_cache": CACHE,
        "seqlens_k": np.array([2, 0], np.int32),
        "k": ROWS,
        "v": ROWS,
        **changes,
    }
    arrays = {n: jnp.asarray(a) for n, a in given.items() if isinstance(a, np.ndarray)}
    rest = {n: a for n, a in given.items() if n not in arrays}
    call = lambda arrays: fulmen.append_kv(**arrays, **rest)  # noqa: E731
    with pytest.raises(error, match=message):
        jax.block_until_ready((jax.jit(call) if traced else call)(arrays))


def test_there_is_no_derivative():
    arrays = [jnp.asarray(a) for a in (CACHE, CACHE, np.array([2, 0], np.int32), ROWS, ROWS)]
    with pytest.raises(NotImplementedError, match=r"fulmen\.append_kv has no derivative"):
        jax.grad(lambda k: fulmen.append_kv(*arrays[:3], k, arrays[4])[2].sum())(arrays[3])
