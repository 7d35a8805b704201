"""JAX arrays that several devices share: four on the CPU, in a process of their own."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import problems
import pytest

jax = pytest.importorskip("jax", minversion="0.5")

# The others are parts of these, and run with --long.
QUICK = ("both", "one KV head", "functions", "vmap", "packed", "generation")
COLLECTIVES = r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"


def cases():
    """By name: a function, its arrays, their specs on the axes x and y of 2 and 2 devices, or of 4
    and 1, and the collectives that must do."""
    import fulmen
    from jax import numpy as jnp
    from jax.sharding import PartitionSpec as P

    rng = np.random.default_rng(3)

    def normal(*shape):
        return jnp.asarray(rng.standard_normal(shape, dtype=np.float32))

    def gradients(*tensors, **options):
        def loss(q, k, v, bias=None, sinks=None):
            out, lse = fulmen.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True, **options)
            return (out**2).sum() + lse.sum(), (out, lse)

        return jax.grad(loss, tuple(range(len(tensors))), has_aux=True)(*tensors)

    def forward(*tensors, **options):
        return fulmen.attention(*tensors, return_lse=True, **options)

    def qkv(b=4, heads=4, kv_heads=4, rows=36):
        return (
            normal(b, rows, heads, 16),
            normal(b, rows, kv_heads, 16),
            normal(b, rows, kv_heads, 16),
        )

    batch, heads, both = P("x"), P(None, None, "x"), P("x", None, "y")
    grouped = *qkv(kv_heads=2), normal(1, 4, 36, 36), normal(4)
    yield "batch", gradients, grouped, (batch,) * 3 + (P(), P()), (4, 1), ["all-reduce"]
    yield "heads", gradients, grouped, (heads,) * 3 + (P(), P()), (2, 2), []
    yield "both", gradients, grouped, (both,) * 3 + (P(), P()), (2, 2), ["all-reduce"]
    # A bias of each sequence, on the devices that have it.
    own = *qkv(), normal(4, 4, 36, 36)
    yield "own bias", gradients, own, (both,) * 3 + (P("x", "y"),), (2, 2), []
    # One KV head is everybody's; two of them can't be divided by four.
    yield "one KV head", gradients, qkv(kv_heads=1), (heads, P(), P()), (4, 1), ["all-reduce"]
    yield "two KV heads", forward, qkv(kv_heads=2), (heads, P(), P()), (4, 1), ["all-gather"]
    yield "rows", forward, qkv(), (P(None, "x"),) * 3, (4, 1), ["all-gather"]

    def dropped(*tensors):
        return forward(*tensors, dropout=0.3, dropout_seed=1)

    yield "dropout", dropped, qkv(), (batch,) * 3, (4, 1), ["all-gather"]

    def with_functions(q, k, v, table):
        def mod(score, b, h, i, j):
            return score + table[b, h, i - j + 36]

        q, k, v = (one.swapaxes(1, 2) for one in (q, k, v))
        return fulmen.flex_attention(q, k, v, mod)

    # Functions read the numbers of sequences and heads.
    given = *qkv(), normal(4, 4, 72)
    yield "functions", with_functions, given, (batch,) * 3 + (P(),), (4, 1), ["all-gather"]

    def mapped(q, k, v):
        return jax.vmap(gradients, (0, None, None))(q, k, v)

    _, k, v = qkv(b=2)
    on_heads = (P(None, None, None, "x"), heads, heads)
    yield "vmap", mapped, (normal(4, 2, 36, 4, 16), k, v), (P("x"), P(), P()), (4, 1), []
    yield "vmap, heads", mapped, (normal(3, 2, 36, 4, 16), k, v), on_heads, (4, 1), []

    def packed(q, k, v, bounds):
        return forward(
            q, k, v, cu_seqlens_q=bounds, cu_seqlens_k=bounds, max_seqlen_q=20, max_seqlen_k=20
        )

    bounds = jnp.array([0, 10, 30, 36], jnp.int32)
    of_rows = normal(36, 4, 16), normal(36, 4, 16), normal(36, 4, 16), bounds
    yield "packed", packed, of_rows, (P(None, "x"),) * 3 + (P(),), (4, 1), []

    def generation(k_cache, v_cache, used, k, v, q):
        q, used, k_cache, v_cache = fulmen.append_kv(
            k_cache, v_cache, used, k, v, q=q, rotary_cos=turn, rotary_sin=turn
        )
        return fulmen.attention(q, k_cache, v_cache, seqlens_k=used), k_cache, used

    turn = normal(40, 8)
    used = jnp.array([3, 30, 4, 9], jnp.int32)
    new = normal(4, 2, 4, 16), normal(4, 2, 4, 16), normal(4, 2, 8, 16)
    given = *qkv()[1:], used, *new
    on_heads = (heads, heads, P(), heads, heads, heads)
    yield "generation", generation, given, on_heads, (4, 1), []
    yield "generation, batch", generation, given, (batch,) * 6, (4, 1), []


def shard_map_cases(mesh):
    from jax.sharding import PartitionSpec as P

    by_name = {case[0]: case for case in cases()}
    _, function, tensors, _, _, _ = by_name["own bias"]
    spec = P("x")

    def mapped(q, k, v, bias):
        return jax.shard_map(
            lambda *given: function(*given)[0],
            mesh=mesh,
            in_specs=(spec, P(), P(), spec),
            out_specs=(spec, P(), P(), spec),
        )(q, k, v, bias)

    def whole(q, k, v, bias):
        q_shape = (q.shape[0], *k.shape[1:])
        full = lambda one: jax.numpy.broadcast_to(one, q_shape)  # noqa: E731
        gradients = function(q, full(k), full(v), bias)[0]
        return (gradients[0], *(g.sum(0, keepdims=True) for g in gradients[1:3]), gradients[3])

    q, k, v, bias = tensors
    return mapped, whole, (q, k[:1], v[:1], bias), (spec, P(), P(), spec)


def shard_map_functions(mesh):
    """flex_attention, each device's sequences where they are; a table that all have."""
    import fulmen
    from jax import numpy as jnp
    from jax.sharding import PartitionSpec as P

    def attention(q, k, v, table):
        def mod(score, b, h, i, j):
            return score + table[h, i - j + 36]

        return fulmen.flex_attention(q, k, v, mod)

    specs = (P("x"),) * 3 + (P(),)
    mapped = jax.shard_map(attention, mesh=mesh, in_specs=specs, out_specs=P("x"))
    rng = np.random.default_rng(4)
    tensors = [
        jnp.asarray(rng.standard_normal(shape, dtype=np.float32))
        for shape in ((4, 4, 36, 16),) * 3 + ((4, 72),)
    ]

    def gradients(function):
        return lambda *given: jax.grad(lambda *of: (function(*of) ** 2).sum(), range(4))(*given)

    return gradients(mapped), gradients(attention), tensors, specs


def compute():
    from jax.sharding import NamedSharding

    kinds = [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit]
    results = {}

    def run(name, sharded, alone, tensors, specs, mesh, wanted):
        expected = jax.tree.leaves(jax.jit(alone)(*tensors))
        placed = [
            jax.device_put(one, NamedSharding(mesh, spec))
            for one, spec in zip(tensors, specs, strict=True)
        ]
        compiled = jax.jit(sharded).lower(*placed).compile()
        got = jax.tree.leaves(compiled(*placed))
        results[name] = {
            "errors": [
                float(abs(a - np.asarray(b)).max()) for a, b in zip(got, expected, strict=True)
            ],
            "largest": [float(abs(b).max()) for b in expected],
            "used": sorted(set(re.findall(COLLECTIVES, compiled.as_text()))),
            "wanted": wanted,
        }  # fmt: skip

    for kind in kinds:
        for name, function, tensors, specs, sizes, wanted in cases():
            if not (problems.LONG_RUN or name in QUICK) or (kind is kinds[1] and name != "packed"):
                continue
            mesh = jax.make_mesh(sizes, ("x", "y"), axis_types=(kind,) * 2)
            run(f"{name}, {kind}", function, function, tensors, specs, mesh, wanted)
    mesh = jax.make_mesh((4,), ("x",), axis_types=(kinds[0],))
    mapped, whole, tensors, specs = shard_map_cases(mesh)
    run("shard_map", mapped, whole, tensors, specs, mesh, ["all-reduce"])
    run("functions, shard_map", *shard_map_functions(mesh), mesh, ["all-reduce"])
    print(json.dumps(results))


def test_each_device_computes_what_it_has():
    if not hasattr(jax, "shard_map") or not hasattr(jax.sharding, "AxisType"):
        pytest.skip("this JAX is older than jax.shard_map")
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, __file__], env=environment, check=True, timeout=300, capture_output=True
    )
    results = json.loads(done.stdout)
    assert len(results) == (17 if problems.LONG_RUN else 9)
    for name, result in results.items():
        assert result["used"] == result["wanted"], name
        for error, largest in zip(result["errors"], result["largest"], strict=True):
            assert error <= 1e-5 * max(1, largest), f"{name}: {result}"


if __name__ == "__main__":
    compute()
