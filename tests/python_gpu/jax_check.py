"""fulmen.jax on a GPU, against double precision on the host: a minute or less.

    python tests/python_gpu/jax_check.py [--cpu]

Needs fulmen, and JAX with a GPU (`pip install 'jax[cuda13]'`); --cpu runs the same on the CPU.
Prints a line for each check, then how many passed and failed; the exit status is 0 where all
passed."""

import os
import sys

if "--cpu" in sys.argv:
    os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import fulmen
import jax
import jax.numpy as jnp
import numpy as np
import oracle
from fulmen.jax import dot_product_attention, flax_attention
from jax.sharding import NamedSharding, PartitionSpec

jax.config.update(
    "jax_default_matmul_precision", "highest"
)  # of JAX's own, beside which we compare
rng = np.random.default_rng(7)
DTYPES = {"fp32": jnp.float32, "fp16": jnp.float16, "bf16": jnp.bfloat16}


def normal(*shape, dtype="bf16"):
    return jnp.asarray(rng.standard_normal(shape), DTYPES[dtype])


def qkv(b=2, sq=150, sk=200, h=4, hk=2, d=64, dtype="bf16"):
    return (
        normal(b, sq, h, d, dtype=dtype),
        normal(b, sk, hk, d, dtype=dtype),
        normal(b, sk, hk, d, dtype=dtype),
    )


def plain(q, k, v, bias=None, keep=None):
    """By XLA in the dtype of q, with a softmax in float32."""
    k, v = (jnp.repeat(t, q.shape[2] // t.shape[2], 2) for t in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    scores = scores * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    if keep is not None:
        scores = jnp.where(keep, scores, -1e30)
    lse = jax.nn.logsumexp(scores, -1)
    p = jnp.exp(scores - lse[..., None]).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", p, v), lse


def both_passes(ours, tensors, bias=None, keep=None, jit=True):
    """ours(q, k, v, bias), its result and gradients, beside double and XLA. Returns the worst ratio
    to what is allowed."""
    dout = normal(*tensors[0].shape[:3], tensors[2].shape[3], dtype="fp32").astype(tensors[0].dtype)
    given = (*tensors, bias) if bias is not None else tensors

    def gradients(function):
        def loss(*args):
            out = function(*args)
            return (out.astype(jnp.float32) * dout.astype(jnp.float32)).sum(), out

        step = jax.grad(loss, tuple(range(len(given))), has_aux=True)
        computed, out = (jax.jit(step) if jit else step)(*given)
        return (out, *computed)

    got = gradients(ours)
    same = gradients(lambda q, k, v, bias=None: plain(q, k, v, bias, keep)[0])
    out, _, *exact = oracle.attention(*tensors, dout, bias, keep)
    names = ("out", "dq", "dk", "dv", "dbias")
    ratios = map(oracle.compare, names, got, (out, *exact), same)
    return f"{max(ratios):.2f} of what is allowed"


def forward_and_lse(dtype, d):
    q, k, v = qkv(d=d, dtype=dtype)
    out, lse = jax.jit(lambda *t: fulmen.attention(*t, causal=True, return_lse=True))(q, k, v)
    keep = oracle.causal(150, 200)
    exact = oracle.attention(q, k, v, np.zeros(q.shape), keep=keep)
    same = plain(q, k, v, keep=keep)
    assert out.dtype == DTYPES[dtype] and lse.dtype == jnp.float32
    assert out.devices() == q.devices()
    worst = max(map(oracle.compare, ("out", "lse"), (out, lse), exact, same))
    return f"{worst:.2f} of what is allowed"


def gradients(dtype, d, jit):
    return both_passes(
        lambda *t: fulmen.attention(*t, causal=True),
        qkv(d=d, dtype=dtype),
        keep=oracle.causal(150, 200),
        jit=jit,
    )


def bias_gradient(shape):
    return both_passes(
        lambda q, k, v, bias: fulmen.attention(q, k, v, bias=bias),
        qkv(),
        bias=normal(*shape, dtype="fp32"),
    )


def mask():
    keep = rng.random((2, 1, 150, 200)) < 0.7
    return both_passes(
        lambda *t: fulmen.attention(*t, keep_mask=jnp.asarray(keep)), qkv(), keep=keep
    )


def vmap_over_queries():
    """Keys and values are shared by the calls; gradients, too."""
    q, (_, k, v) = normal(3, 2, 40, 4, 64), qkv(sk=72)

    def loss(q, k, v):
        return (fulmen.attention(q, k, v, causal=True).astype(jnp.float32) ** 2).sum()

    mapped = jax.jit(jax.vmap(jax.grad(loss, (0, 1, 2)), (0, None, None)))(q, k, v)
    for n in range(3):
        for ours, alone in zip(mapped, jax.grad(loss, (0, 1, 2))(q[n], k, v), strict=True):
            assert jnp.allclose(ours[n], alone, rtol=2**-7, atol=2**-7), "differs from one alone"


def jax_nn():
    q, k, v = qkv(sq=130, sk=130)
    lengths = jnp.array([130, 70], jnp.int32), jnp.array([90, 130], jnp.int32)
    used_q, used_k = (np.arange(130) < np.asarray(n)[:, None] for n in lengths)
    position = np.arange(130)
    window = (position[None] >= position[:, None] - 40) & (position[None] <= position[:, None])
    keep = window & used_k[:, None, None] & np.ones((2, 1, 130, 1), bool)
    dout = normal(*q.shape)
    exact, *_ = oracle.attention(q, k, v, dout, keep=keep)
    given = dict(
        is_causal=True,
        local_window_size=(40, 0),
        query_seq_lengths=lengths[0],
        key_value_seq_lengths=lengths[1],
    )
    ours = jax.jit(lambda *t: dot_product_attention(*t, **given))(q, k, v)
    rows = used_q[:, :, None, None]
    same = jax.nn.dot_product_attention(q, k, v, **given)
    some = (keep.any(-1).swapaxes(1, 2)[..., None]) & rows  # rows with a key
    exact = np.where(some, exact, 0)
    return f"{oracle.compare('out', ours, exact, np.where(some, same, 0)):.2f} of what is allowed"


def flax():
    q, k, v = (normal(2, 3, 33, 4, 64) for _ in range(3))
    mask = jnp.asarray(rng.random((2, 3, 1, 33, 33)) < 0.8)
    out = jax.jit(flax_attention)(q, k, v, mask=mask)
    flat = [t.reshape(6, 33, 4, 64) for t in (q, k, v)]
    keep = np.asarray(mask).reshape(6, 1, 33, 33)
    exact, *_ = oracle.attention(*flat, np.zeros(flat[0].shape), keep=keep)
    same, _ = plain(*flat, keep=keep)
    return f"{oracle.compare('out', out.reshape(6, 33, 4, 64), exact, same):.2f} of what is allowed"


def packed_sequences():
    q, k, v = (normal(96, 4, 64) for _ in range(3))
    bounds = jnp.array([0, 30, 31, 90], jnp.int32)  # rows 90 to 95 belong to no sequence

    def loss(q, k, v, bounds):
        out = fulmen.attention(
            q, k, v, cu_seqlens_q=bounds, cu_seqlens_k=bounds, max_seqlen_q=64, max_seqlen_k=64,
            causal=True,
        )  # fmt: skip
        return (out.astype(jnp.float32) ** 2).sum() / 2, out

    (dq, _, _), out = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(q, k, v, bounds)
    assert not out[90:].any() and not dq[90:].any()
    for first, last in ((0, 30), (30, 31), (31, 90)):
        part = [t[None, first:last] for t in (q, k, v)]
        keep = oracle.causal(last - first, last - first)
        exact, _, exact_dq, *_ = oracle.attention(*part, out[None, first:last], keep=keep)
        same, _ = plain(*part, keep=keep)
        oracle.compare("out", out[None, first:last], exact, same)
        assert np.abs(np.asarray(dq[None, first:last], np.float64) - exact_dq).max() < 0.05


def cache():
    """A step of generation: append_kv into a donated cache, then attention by its lengths."""
    k_cache, v_cache = normal(2, 64, 2, 64), normal(2, 64, 2, 64)
    before = np.asarray(k_cache.astype(jnp.float32)), np.asarray(v_cache.astype(jnp.float32))
    used, q = jnp.array([10, 33], jnp.int32), normal(2, 1, 4, 64)
    k, v = normal(2, 1, 2, 64), normal(2, 1, 2, 64)

    @jax.jit
    def step(k_cache, v_cache, used, q, k, v):
        _, lengths, k_cache, v_cache = fulmen.append_kv(k_cache, v_cache, used, k, v)
        return fulmen.attention(q, k_cache, v_cache, seqlens_k=lengths), lengths, k_cache

    out, lengths, after = step(k_cache, v_cache, used, q, k, v)
    assert lengths.tolist() == [11, 34]
    for n, length in enumerate((11, 34)):
        keys, values = (
            np.concatenate([c[n : n + 1, : length - 1], np.asarray(new[n : n + 1], c.dtype)], 1)
            for c, new in zip(before, (k, v), strict=True)
        )
        np.testing.assert_array_equal(np.asarray(after[n, :length], np.float32), keys[0])
        exact, *_ = oracle.attention(q[n : n + 1], keys, values, np.zeros((1, 1, 4, 64)))
        same, _ = plain(q[n : n + 1], jnp.asarray(keys, q.dtype), jnp.asarray(values, q.dtype))
        oracle.compare("out", out[n : n + 1], exact, same)


def dropout():
    """The same elements forward and backward, and those that dropout_mask names."""
    q, k, v = (normal(1, 64, 2, 64, dtype="fp16") for _ in range(3))
    kept = fulmen.dropout_mask(np.asarray(q), np.asarray(k), dropout=0.25, dropout_seed=5)
    call = jax.jit(lambda q, k, v, seed: fulmen.attention(q, k, v, dropout=0.25, dropout_seed=seed))
    out = call(q, k, v, 5)
    scores = np.einsum("bqhd,bkhd->bhqk", *(np.asarray(t, np.float64) for t in (q, k))) / 8
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True) * kept / 0.75
    exact = np.einsum("bhqk,bkhd->bqhd", p, np.asarray(v, np.float64))
    assert np.abs(np.asarray(out, np.float64) - exact).max() < 5e-3
    dv = jax.grad(lambda v: call(q, k, v, 5).astype(jnp.float32).sum())(v)
    exact_dv = np.einsum("bhqk,bqhd->bkhd", p, np.ones(q.shape))
    assert np.abs(np.asarray(dv, np.float64) - exact_dv).max() < 2e-2


def in_the_order_of_the_stream():
    """Results are inputs of XLA's own kernels, and theirs of ours, many times over."""
    q, k, v = qkv(sq=256, sk=256, h=4, hk=4, dtype="fp32")

    def chain(attention):
        def step(x, _):
            return attention(x * 1.25, k, v + x * 0.1) + x * 0.5, None

        return jax.jit(lambda q: jax.lax.scan(step, q, None, length=30)[0])(q)

    ours, theirs = chain(fulmen.attention), chain(lambda q, k, v: plain(q, k, v)[0])
    error = float(jnp.abs(ours - theirs).max() / jnp.abs(theirs).max())
    assert error < 1e-3, f"differs by {error:.3g}"
    return f"{error:.1e}"


def functions():
    """flex_attention, a mask of blocks and gradients of a table."""
    q, k, v = (normal(2, 4, 150, 64) for _ in range(3))
    table, dout = normal(4, 300, dtype="fp32"), normal(2, 4, 150, 64)
    mask = fulmen.flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 150, 150, None, 32)

    def ours(q, k, v, table):
        def mod(score, b, h, i, j):
            return score + table[h, i - j + 150]

        return fulmen.flex_attention(q, k, v, mod, mask)

    place = jnp.arange(150)

    def theirs(q, k, v, table):
        bias = table[:, place[:, None] - place + 150][None]
        keep = (place[:, None] >= place)[None, None]
        return plain(*(t.swapaxes(1, 2) for t in (q, k, v)), bias, keep)[0].swapaxes(1, 2)

    def gradients(function):
        def loss(*given):
            out = function(*given)
            return (out.astype(jnp.float32) * dout.astype(jnp.float32)).sum(), out

        (*found, of_table), out = jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))(
            q, k, v, table
        )
        return [out, *found, of_table]

    got, same = gradients(ours), gradients(theirs)
    rows = [np.asarray(t).swapaxes(1, 2) for t in (q, k, v, dout)]
    bias = np.asarray(table)[:, np.subtract.outer(np.arange(150), np.arange(150)) + 150][None]
    out, _, *exact = oracle.attention(*rows, bias, oracle.causal(150, 150))
    exact = [out, *exact[:3]]
    names = ("out", "dq", "dk", "dv")
    ratios = [
        oracle.compare(name, one.swapaxes(1, 2), right, other.swapaxes(1, 2))
        for name, one, right, other in zip(names, got, exact, same, strict=False)
    ]
    scale = float(jnp.abs(same[4]).max())
    assert float(jnp.abs(got[4] - same[4]).max()) < 2e-2 * scale, "the table's gradient"
    return f"{max(ratios):.2f} of what is allowed"


def sharded():
    """On all GPUs, one or more: over sequences and over heads, nothing is gathered."""
    devices = jax.devices()
    kind = (
        {"axis_types": (jax.sharding.AxisType.Auto,)} if hasattr(jax.sharding, "AxisType") else {}
    )
    mesh = jax.make_mesh((len(devices),), ("x",), **kind)
    n = len(devices)
    tensors = qkv(b=2 * n, h=4 * n, hk=2 * n, sq=64, sk=64)
    bias = normal(1, 4 * n, 64, 64, dtype="fp32")

    def loss(*given):
        out = fulmen.attention(*given[:3], bias=given[3])
        return (out.astype(jnp.float32) ** 2).sum()

    step = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
    alone = step(*tensors, bias)
    for spec, of_bias in (
        (PartitionSpec("x"), PartitionSpec()),
        (PartitionSpec(None, None, "x"), PartitionSpec(None, "x")),
    ):
        placed = [jax.device_put(t, NamedSharding(mesh, spec)) for t in tensors]
        placed.append(jax.device_put(bias, NamedSharding(mesh, of_bias)))
        compiled = step.lower(*placed).compile()
        assert "all-gather" not in compiled.as_text()
        for ours, one in zip(compiled(*placed), alone, strict=True):
            scale = float(jnp.abs(one.astype(jnp.float32)).max())
            np.testing.assert_allclose(
                np.asarray(ours, np.float32), np.asarray(one, np.float32), atol=2e-2 * scale
            )
    return f"{n} device{'s' * (n > 1)}"


def errors():
    q, k, v = qkv()
    try:
        fulmen.attention(q, k[:, :, :, :32], v)
    except ValueError as error:
        assert "head_dim" in str(error), error
    else:
        raise AssertionError("a wrong head_dim is accepted")
    try:
        jax.block_until_ready(fulmen.attention(q, k, v, kernel="no such kernel"))
    except Exception as error:
        assert "no such kernel" in str(error), error
    else:
        raise AssertionError("a kernel that does not exist is accepted")


checks = oracle.Checks()
device = jax.devices()[0]
print(f"JAX {jax.__version__}, {device.device_kind}, fulmen {fulmen.__version__}")
if "--cpu" not in sys.argv and device.platform == "cpu":
    sys.exit("JAX has found no GPU: --cpu checks the CPU")
for dtype in DTYPES:
    for d in (64, 128):
        checks.run(f"forward, {dtype}, {d}", forward_and_lse, dtype, d)
for dtype, d in (("bf16", 64), ("bf16", 128), ("fp16", 80), ("fp32", 64)):
    checks.run(f"gradients, {dtype}, {d}", gradients, dtype, d, True)
checks.run("gradients without jit", gradients, "bf16", 64, False)
for shape in ((2, 4, 150, 200), (1, 4, 150, 200), (1, 1, 150, 200)):
    checks.run(f"gradient of a bias {list(shape)}", bias_gradient, shape)
for function in (
    mask,
    vmap_over_queries,
    jax_nn,
    flax,
    packed_sequences,
    cache,
    dropout,
    in_the_order_of_the_stream,
    functions,
    sharded,
    errors,
):
    checks.run(function.__name__.replace("_", " "), function)
checks.finish()
