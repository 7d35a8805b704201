"""fulmen.append_kv, and flash_attn_with_kvcache, which appends and attends."""

import inspect

import fulmen
import numpy as np
import pytest
from problems import assert_close, attention_float64, normal

BATCH, ROWS, NEW, DIM, ROTARY = 3, 24, 2, 16, 8
USED = np.array([5, 0, 21], np.int32)


def rotated(x, cos, sin, positions, interleaved):
    """[seqlen, heads, dim] by the positions of its rows, in float64."""
    x = x.astype(np.float64)
    half = ROTARY // 2
    a, b = (
        (slice(0, ROTARY, 2), slice(1, ROTARY, 2))
        if interleaved
        else (slice(0, half), slice(half, ROTARY))
    )
    c, s = (t[positions][:, None, :].astype(np.float64) for t in (cos, sin))
    y = x.copy()
    y[..., a], y[..., b] = x[..., a] * c - x[..., b] * s, x[..., a] * s + x[..., b] * c
    return y


def problem(rng, kind, seqlen_q=NEW, batch=BATCH):
    """Rows of each sequence, and the cache that has them; all other rows are NaN."""
    rows = [normal(rng, (USED[n], 2, 2 * DIM)) for n in range(batch)]
    options = {}
    if kind == "paged":
        cache, table = (
            np.full((14, 8, 2, 2 * DIM), np.nan, np.float32),
            rng.permutation(14)[:12].astype(np.int32).reshape(4, 3)[:batch],
        )
        for n in range(batch):
            for at in range(USED[n]):
                cache[table[n, at // 8], at % 8] = rows[n][at]
        options["block_table"] = table
    else:
        order = rng.permutation(5)[:batch] if kind == "indexed" else np.arange(batch)
        cache = np.full((5 if kind == "indexed" else batch, ROWS, 2, 2 * DIM), np.nan, np.float32)
        for n in range(batch):
            cache[order[n], : USED[n]] = rows[n]
        if kind == "indexed":
            options["cache_batch_idx"] = order.astype(np.int32)
    q, k, v = (normal(rng, (batch, s, h, DIM)) for s, h in ((seqlen_q, 4), (NEW, 2), (NEW, 2)))
    return rows, cache[..., :DIM], cache[..., DIM:], q, k, v, options


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("kind", ["padded", "paged"])
def test_append(kind, interleaved, rng):
    rows, k_cache, v_cache, q, k, v, options = problem(rng, kind)
    angles = rng.uniform(0, 6, (ROWS, ROTARY // 2)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    copies = [t.copy() for t in (q, k, v)]
    turned, lengths = fulmen.append_kv(
        k_cache,
        v_cache,
        USED,
        k,
        v,
        q=q,
        rotary_cos=cos,
        rotary_sin=sin,
        rotary_interleaved=interleaved,
        **options,
    )
    for before, after in zip(copies, (q, k, v), strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(lengths, USED + NEW)
    for n in range(BATCH):
        positions = np.arange(USED[n], USED[n] + NEW)
        if kind == "paged":
            found_k, found_v = (
                c[options["block_table"][n]].reshape(ROWS, 2, DIM) for c in (k_cache, v_cache)
            )
        else:
            found_k, found_v = k_cache[n], v_cache[n]
        np.testing.assert_array_equal(np.concatenate([found_k, found_v], -1)[: USED[n]], rows[n])
        assert_close(
            found_k[positions], rotated(k[n], cos, sin, positions, interleaved), "fp32", "k_cache"
        )
        np.testing.assert_array_equal(found_v[positions], v[n])
        assert np.isnan(found_k[USED[n] + NEW :]).all()
        assert_close(turned[n], rotated(q[n], cos, sin, positions, interleaved), "fp32", "q")


ERRORS = {
    "full": ({"seqlens_k": USED + 4}, r"seqlens_k\[2\]"),
    "one of two": ({"v": None}, "^v is missing: k is given, both or neither are accepted"),
    "heads": (
        {"k": np.zeros((BATCH, NEW, 1, DIM), np.float32)},
        r"^k\.shape is \[3, \d, 1, 16\]: ",
    ),
    "dims": (
        {"k": np.zeros((2, 2, DIM), np.float32)},
        r"k has shape \[2, 2, 16\]: \[batch, seqlen_new, kv_heads, head_dim\]",
    ),
    "read-only": (
        {"k_cache": np.broadcast_to(np.float32(0), (BATCH, ROWS, 2, DIM))},
        "k_cache is read-only: it is written",
    ),
    "no rotation": (
        {"q": np.zeros((BATCH, 1, 4, DIM), np.float32)},
        "^rotary_cos is missing: without a rotary embedding",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name, rng):
    changes, message = ERRORS[name]
    _, k_cache, v_cache, _, k, v, _ = problem(rng, "padded")
    before = k_cache.copy()
    arguments = {
        "k_cache": k_cache,
        "v_cache": v_cache,
        "seqlens_k": USED,
        "k": k,
        "v": v,
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        fulmen.append_kv(**arguments)
    np.testing.assert_array_equal(k_cache, before)


def test_signature_of_flash_attn():
    pytest.importorskip("torch")
    from fulmen.flash_attn import flash_attn_with_kvcache

    parameters = inspect.signature(flash_attn_with_kvcache).parameters.values()
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == (
        "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
        "cache_seqlens=None, cache_batch_idx=None, "
        "cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, window_size=(-1, "
        "-1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
        "return_softmax_lse=False"
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"window_size": (7, 0), "causal": True}, {"softcap": 2.0}],
    ids=str,
)
@pytest.mark.parametrize("kind", ["padded", "indexed", "paged"])
@pytest.mark.parametrize("append", ["nothing", "keys", "rotary"])
def test_flash_attn_with_kvcache(append, kind, options, rng):
    torch = pytest.importorskip("torch")
    from fulmen.flash_attn import flash_attn_with_kvcache

    rows, k_cache, v_cache, q, k, v, where = problem(rng, kind, seqlen_q=3)
    angles = rng.uniform(0, 6, (ROWS, ROTARY // 2)).astype(np.float32)
    cos, sin = np.cos(angles), np.sin(angles)
    given = {} if append == "nothing" else {"k": k, "v": v}
    if append == "rotary":
        given.update(rotary_cos=cos, rotary_sin=sin, rotary_interleaved=False)
    given = {
        name: torch.from_numpy(t) if isinstance(t, np.ndarray) else t
        for name, t in {**given, **where}.items()
    }
    out, lse = flash_attn_with_kvcache(
        *map(torch.from_numpy, (q, k_cache, v_cache)),
        cache_seqlens=torch.from_numpy(USED),
        return_softmax_lse=True,
        **given,
        **options,
    )
    for n in range(BATCH):
        keys, values, queries = rows[n][..., :DIM], rows[n][..., DIM:], q[n]
        if append != "nothing":
            new = k[n]
            if append == "rotary":
                new = rotated(new, cos, sin, np.arange(USED[n], USED[n] + NEW), False)
                steps = np.arange(3) if options.get("causal") else np.zeros(3, int)
                queries = rotated(queries, cos, sin, USED[n] + steps, False)
            keys, values = np.concatenate([keys, new]), np.concatenate([values, v[n]])
        settings = {"causal": options.get("causal", False), "softcap": options.get("softcap", 0.0)}
        settings["window_left"] = options.get("window_size", (-1, 0))[0]
        expected, expected_lse = attention_float64(
            queries[None], keys[None], values[None], **settings
        )
        assert_close(out[n], expected[0], "fp32", f"out of sequence {n}")
        np.testing.assert_allclose(lse[n], expected_lse[0], atol=1e-5)


def test_leftpad_and_refusals(rng):
    torch = pytest.importorskip("torch")
    from fulmen.flash_attn import flash_attn_with_kvcache

    q, k, v = (
        torch.from_numpy(normal(rng, (2, s, h, DIM))) for s, h in ((1, 4), (ROWS, 2), (ROWS, 2))
    )
    before = torch.tensor([3, 11], dtype=torch.int32)
    out = flash_attn_with_kvcache(q, k, v, cache_seqlens=20, cache_leftpad=before, causal=True)
    for n in range(2):
        alone = fulmen.attention(
            q[n : n + 1], k[n : n + 1, before[n] : 20], v[n : n + 1, before[n] : 20]
        )
        assert_close(out[n], alone[0], "fp32")
    assert_close(flash_attn_with_kvcache(q, k, v), fulmen.attention(q, k, v), "fp32")
    for arguments, message in (
        ({"k": k}, "k is given and v is not so"),
        ({"k": k, "v": v}, "cache_seqlens is None and k is given"),
        ({"rotary_cos": q}, "rotary_cos is given and k is None"),
        ({"window_size": 3}, r"window_size is 3: \(left, right\) is accepted"),
        (
            {"cache_batch_idx": before.long()},
            r"cache_batch_idx\[0, 0\] is 3: 0 to 1 are accepted, k_cache and v_cache have 2 "
            r"sequences",
        ),
        (
            {"cache_batch_idx": before, "block_table": before},
            "cache_batch_idx is given beside a block_table",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            flash_attn_with_kvcache(q, k, v, **arguments)


def test_append_kv_names_what_is_wrong():
    cache, lengths, new = (
        np.zeros((2, 8, 1, 4), np.float32),
        np.zeros(2, np.int32),
        np.zeros((2, 1, 1, 4), np.float32),
    )
    for changes, message in (
        ({"num_threads": 1.5}, "num_threads is 1.5, of type float: an integer is accepted"),
        ({"device": 3}, "device is 3, of type int: a str, or None, is accepted"),
        ({"device": ["x"]}, r"device is \['x'\], of type list: a str, or None, is accepted"),
        (
            {"rotary_interleaved": 2},
            "rotary_interleaved is 2, of type int: True or False is accepted",
        ),
        (
            {"k_cache": None},
            "k_cache is None: a NumPy array, a torch tensor or another array with __dlpack__ is "
            "needed",
        ),
    ):
        with pytest.raises(TypeError, match=message):
            fulmen.append_kv(
                **{
                    "k_cache": cache,
                    "v_cache": cache,
                    "seqlens_k": lengths,
                    "k": new,
                    "v": new,
                    **changes,
                }
            )


def test_autograd_sees_that_the_cache_is_written():
    torch = pytest.importorskip("torch")
    k_cache, v_cache, new = torch.randn(2, 8, 1, 4), torch.randn(2, 8, 1, 4), torch.ones(2, 1, 1, 4)
    q, lengths = torch.randn(2, 3, 1, 4, requires_grad=True), torch.zeros(2, dtype=torch.int32)
    for append in (fulmen.append_kv, torch.compile(fulmen.append_kv, backend="aot_eager")):
        loss = fulmen.attention(q, k_cache, v_cache).sum()
        with torch.no_grad():
            append(k_cache, v_cache, lengths, new, new)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_append_kv_of_several_kinds_of_arrays():
    jax = pytest.importorskip("jax")
    cache, lengths, new = (
        np.zeros((2, 8, 1, 4), np.float32),
        np.zeros(2, np.int32),
        np.ones((2, 1, 1, 4), np.float32),
    )
    fulmen.append_kv(cache, cache.copy(), lengths, jax.numpy.asarray(new), new)
    assert cache[:, 0].all() and not cache[:, 1:].any()
    with pytest.raises(
        TypeError,
        match="seqlens_k is of type ArrayImpl: a NumPy array or a torch tensor is needed, as a "
        "result",
    ):
        fulmen.append_kv(cache, cache, jax.numpy.asarray(lengths), new, new)
    with pytest.raises(
        TypeError, match=r"k is of type .*Tracer, whose __dlpack__ gives none: a NumPy array"
    ):
        jax.jit(lambda k: fulmen.append_kv(cache, cache, lengths, k, new)[1])(new)


def test_strided_inputs_and_caches(rng, capfd, monkeypatch):
    torch = pytest.importorskip("torch")
    from fulmen.flash_attn import flash_attn_with_kvcache

    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    q, k, v = (torch.from_numpy(normal(rng, (2, 2, h, 2 * DIM)))[..., ::2] for h in (4, 2, 2))
    cache = [torch.from_numpy(normal(rng, (2, ROWS, 2, DIM))) for _ in range(2)]
    copies = [c.clone() for c in cache]
    expected = flash_attn_with_kvcache(
        q.contiguous(), *copies, k.contiguous(), v.contiguous(), cache_seqlens=3, causal=True
    )
    assert "copied before" not in capfd.readouterr().err
    for lengths in (3, np.int64(3), torch.tensor(3), [3, 3], torch.tensor([3, 3])):
        mine = [c.clone() for c in cache]
        out = flash_attn_with_kvcache(q, *mine, k, v, cache_seqlens=lengths, causal=1)
        assert torch.equal(out, expected) and all(map(torch.equal, mine, copies))
    said = capfd.readouterr().err
    for name in "qkv":
        assert f"fulmen: {name} is copied before: its last dim has a stride of 2\n" in said
    wide = torch.zeros(2, ROWS, 2, 2 * DIM)[..., ::2]
    for name, caches in (("k_cache", (wide, cache[1])), ("v_cache", (cache[0], wide))):
        for new in ({}, {"k": k, "v": v, "cache_seqlens": 3}):
            with pytest.raises(
                ValueError,
                match=rf"^{name} has strides .*: the last dim of a cache must be contiguous",
            ):
                flash_attn_with_kvcache(q, *caches, **new)


def test_window_and_flags_of_numpy_and_torch(rng):
    torch = pytest.importorskip("torch")
    from fulmen.flash_attn import flash_attn_with_kvcache

    q, k, v = (torch.from_numpy(normal(rng, (2, 2, h, DIM))) for h in (4, 2, 2))
    angles = torch.from_numpy(rng.uniform(0, 6, (ROWS, ROTARY // 2)).astype(np.float32))
    cache = [torch.from_numpy(normal(rng, (2, ROWS, 2, DIM))) for _ in range(2)]

    def call(window, no, yes):
        mine = [c.clone() for c in cache]
        rotary = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "rotary_interleaved": yes}
        return flash_attn_with_kvcache(
            q, *mine, k, v, cache_seqlens=[3, 4], causal=no, window_size=window, **rotary
        )

    expected = call((3, 0), False, True)
    for window, no, yes in (
        ((torch.tensor(3), torch.tensor(0)), torch.tensor(False), torch.tensor(True)),
        ((np.int64(3), np.int32(0)), np.False_, np.True_),
        ([3, 0], 0, 1),
    ):
        assert torch.equal(call(window, no, yes), expected)
        with torch.overrides.BaseTorchFunctionMode():  # through the dispatcher
            assert torch.equal(call(window, no, yes), expected)


CACHE_MESSAGES = {
    "dtype": ({"k_cache": "half"}, r"^k_cache.dtype is fp16, q.dtype is fp32"),
    "dims": ({"v_cache": "first"}, r"^v_cache has shape \[24, 2, 16\]"),
    "rows": ({"v_cache": "shorter"}, r"^v_cache.shape is \[2, 23, 2, 16\]: "),
    "used": (
        {"cache_seqlens": [1, 99]},
        r"^cache_seqlens\[1\] is 99: 0 to 24 .*k_cache",
    ),
    "count": (
        {"cache_seqlens": [1, 2, 3]},
        r"^cache_seqlens.shape is \[3\]: \[batch\] = \[2\] is needed",
    ),
    "leftpad": ({"cache_leftpad": [1, 99]}, r"^cache_leftpad\[1\] is 99: 0 to 24"),
    "page": (
        {"block_table": [[0], [7]]},
        r"^block_table\[1, 0\] is 7: 0 to 1 are accepted, k_cache and v_cache have 2 pages",
    ),
    "index": (
        {"cache_batch_idx": [0, 7]},
        r"^cache_batch_idx\[1, 0\] is 7: 0 to 1 are accepted, k_cache and v_cache have 2",
    ),
}


@pytest.mark.parametrize("name", CACHE_MESSAGES)
def test_messages_name_the_arguments_of_flash_attn(name):
    torch = pytest.importorskip("torch")
    from fulmen.flash_attn import flash_attn_with_kvcache

    changes, message = CACHE_MESSAGES[name]
    q, k = torch.zeros(2, 1, 4, DIM), torch.zeros(2, ROWS, 2, DIM)
    other = {"half": k.half(), "first": k[0], "shorter": k[:, 1:]}
    changes = {
        name: other[value] if isinstance(value, str) else value for name, value in changes.items()
    }
    with pytest.raises(ValueError, match=message):
        flash_attn_with_kvcache(**{"q": q, "k_cache": k, "v_cache": k, **changes})
