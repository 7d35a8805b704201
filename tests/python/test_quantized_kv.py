"""Keys and values in 8 bits: formats beside torch's and ml_dtypes' own conversions, attention over
them beside float64 over what they hold, and FlashAttention 3's descale factors."""

from __future__ import annotations

import re

import fulmen
import ml_dtypes
import numpy as np
import pytest
from quantized_problems import BLOCKS, KV, B, D, H, S, exact, normal

FORMATS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")


@pytest.mark.parametrize("name", FORMATS)
def test_every_pattern_and_rounding_is_that_of_ml_dtypes(name):
    dtype = getattr(ml_dtypes, name)
    patterns = np.arange(256, dtype=np.uint8).view(dtype).reshape(1, 1, 4, 64)
    values = fulmen.dequantize_kv(patterns)
    np.testing.assert_array_equal(values, patterns.astype(np.float32))
    ones = np.ones((1, 1, 1, 1), np.float32)
    x = normal(1, 40, 5, 64, seed=1) * np.float32(10) ** np.arange(-20, 20).reshape(1, 40, 1, 1) / 4
    largest = float(ml_dtypes.finfo(dtype).max)
    x = np.clip(x, -largest, largest).astype(np.float32)
    ours, _ = fulmen.quantize_kv(x, name, scale=ones)
    np.testing.assert_array_equal(ours.view(np.uint8), x.astype(dtype).view(np.uint8))


@pytest.mark.parametrize("per", ["tensor", "head", "batch_and_head", "token", "channel"])
@pytest.mark.parametrize("name", ["int8", *FORMATS])
def test_attention_over_numpy(name, per):
    q, k, v = normal(B, 3, H, D), normal(B, S, KV, D, seed=1), normal(B, S, KV, D, seed=2)
    k8, k_scale = fulmen.quantize_kv(k, name, per)
    v8, v_scale = fulmen.quantize_kv(v, name, "token" if per == "channel" else per)
    assert k8.dtype == name
    out = fulmen.attention(q, k8, v8, k_scale=k_scale, v_scale=v_scale)
    stored = [fulmen.dequantize_kv(x, s) for x, s in ((k8, k_scale), (v8, v_scale))]
    for x, s, back in ((k8, k_scale, stored[0]), (v8, v_scale, stored[1])):
        np.testing.assert_array_equal(back, x.astype(np.float32) * s)
    np.testing.assert_allclose(out, exact(q, *stored), atol=2e-6)


def test_layout_bhsd_and_lists():
    q, k, v = normal(B, 3, H, D), normal(B, S, KV, D, seed=1), normal(B, S, KV, D, seed=2)
    k8, k_scale = fulmen.quantize_kv(k)
    v8, _ = fulmen.quantize_kv(v, scale=np.full((1, 1, 1, 1), 0.03, np.float32))
    want = fulmen.attention(q, k8, v8, k_scale=k_scale, v_scale=[0.03])
    swapped = [x.swapaxes(1, 2) for x in (q, k8, v8, k_scale)]
    got = fulmen.attention(*swapped[:3], k_scale=swapped[3], v_scale=[0.03, 0.03], layout="bhsd")
    np.testing.assert_array_equal(got.swapaxes(1, 2), want)
    halved = fulmen.attention(q / 2, k8, v8, k_scale=k_scale, v_scale=[0.03], q_scale=[2.0])
    np.testing.assert_allclose(halved, want, atol=1e-6)


def test_refusals():
    q, k = normal(B, 3, H, D), normal(B, S, KV, D)
    k8, scale = fulmen.quantize_kv(k)
    with pytest.raises(TypeError, match=r"^q has dtype int8: float32, float16 and bfloat16 are"):
        fulmen.attention(q.astype(np.int8), k8, k8)
    with pytest.raises(TypeError, match=r"^k has dtype uint8: .*int8 and float8_e4m3fn"):
        fulmen.attention(q, k8.view(np.uint8), k8)
    with pytest.raises(ValueError, match=r"^k_scale has shape \[2, 37, 2\]"):
        fulmen.attention(q, k8, k8, k_scale=scale[..., 0])
    with pytest.raises(ValueError, match=r"^per is 'page'"):
        fulmen.quantize_kv(k, per="page")
    with pytest.raises(ValueError, match=r"^dtype is 'uint8'"):
        fulmen.quantize_kv(k, "uint8")


def test_torch():
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(normal(B, 3, H, D)).bfloat16()
    k, v = (torch.from_numpy(normal(B, S, KV, D, seed=n)) for n in (1, 2))
    for name in ("int8", *FORMATS):
        k8, k_scale = fulmen.quantize_kv(k, name)
        v8, v_scale = fulmen.quantize_kv(v, name, "head")
        assert k8.dtype == getattr(torch, name)
        out = fulmen.attention(q, k8, v8, k_scale=k_scale, v_scale=v_scale)
        assert out.dtype == torch.bfloat16
        stored = [x.float() * s for x, s in ((k8, k_scale), (v8, v_scale))]
        torch.testing.assert_close(
            out.float(), torch.from_numpy(exact(q.float(), *stored)).float(), atol=8e-3, rtol=8e-3
        )


def test_scales_have_no_gradients():
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    q, k, v = (torch.from_numpy(normal(B, S, n, D, seed=n)) for n in (H, KV, KV))
    scale = torch.rand(KV) + 0.5
    for name in ("k_scale", "v_scale", "q_scale"):
        # By the tensors: the forward pass is right, the backward pass does not ignore the scale.
        x = q.clone().requires_grad_()
        out = fulmen.attention(x, k, v, **{name: scale})
        factor = scale[:, None].numpy()
        stored = (k, v.numpy() * factor) if name == "v_scale" else (k.numpy() * factor, v)
        np.testing.assert_allclose(out.detach().numpy(), exact(q, *stored), atol=1e-5)
        with pytest.raises(NotImplementedError, match=f"^{name} is given: gradients are of k and"):
            out.sum().backward()
        # By the scale.
        learned = scale.clone().requires_grad_()
        with pytest.raises(ValueError, match=f"^{name} requires grad: it has no gradient here"):
            fulmen.attention(q, k, v, **{name: learned})
        compiled = torch.compile(
            lambda one, name=name: fulmen.attention(q, k, v, **{name: one}), backend="aot_eager"
        )
        with pytest.raises(Exception, match=f"{name} requires grad: it has no gradient here"):
            compiled(learned)
        with torch.no_grad():
            torch.testing.assert_close(fulmen.attention(q, k, v, **{name: learned}), out)
        arrays = [jax.numpy.asarray(one.numpy()) for one in (q, k, v, scale)]
        with pytest.raises(ValueError, match=f"^{name} is differentiated: it has no gradient"):
            jax.grad(
                lambda one, a=arrays, name=name: fulmen.attention(*a[:3], **{name: one}).sum()
            )(arrays[3])


def test_results_are_where_the_numbers_are():
    torch = pytest.importorskip("torch")
    k = torch.from_numpy(normal(B, S, KV, D))
    with torch.device("meta"):  # where torch puts new tensors
        k8, scale = fulmen.quantize_kv(k)
        back = fulmen.dequantize_kv(k8, scale)
    assert {x.device.type for x in (k8, scale, back)} == {"cpu"}
    assert ((back - k).abs() <= scale * 0.5001).all()


def test_flash_attention_3_descale():
    torch = pytest.importorskip("torch")
    from fulmen.flash_attn_interface import flash_attn_func

    q, k, v = (
        torch.from_numpy(normal(B, S, heads, D, seed=n)).to(torch.float8_e4m3fn)
        for n, heads in ((0, H), (1, KV), (2, KV))
    )
    descale = [torch.rand(B, KV) + 0.5 for _ in range(3)]
    out = flash_attn_func(q, k, v, q_descale=descale[0], k_descale=descale[1], v_descale=descale[2])
    assert out.dtype == torch.bfloat16
    of_q = descale[0].repeat_interleave(H // KV, 1)
    stored = [
        x.float() * s[:, None, :, None] for x, s in ((q, of_q), (k, descale[1]), (v, descale[2]))
    ]
    want = torch.from_numpy(exact(*stored)).float()
    torch.testing.assert_close(out.float(), want, atol=1e-2, rtol=1e-2)


def cache_of(kind, rows, k, dtype="int8"):
    """A cache of zeros, its scales, and what quantizing k alone gives."""
    if kind in BLOCKS:
        want, _ = fulmen.quantize_kv(k, kind)
        return np.zeros((B, rows, *want.shape[2:]), np.uint8), None, want, None
    want, scales = fulmen.quantize_kv(k, dtype, kind)
    cache = np.zeros((B, rows, *k.shape[2:]), want.dtype)
    if kind == "token":
        return cache, np.zeros((B, rows, KV, 1), np.float32), want, scales
    return cache, scales, want, scales


@pytest.mark.parametrize("kind", ["token", "head", "q8_0", "q4_1"])
def test_append_kv(kind):
    k, v = normal(B, 4, KV, D, seed=1), normal(B, 4, KV, D, seed=2)
    caches = [cache_of(kind, 9, x) for x in (k, v)]
    (k_cache, k_scale, k_want, k_scales), (v_cache, v_scale, v_want, _) = caches
    formats = {"k_format": kind, "v_format": kind} if kind in BLOCKS else {}
    _, lengths = fulmen.append_kv(
        k_cache, v_cache, [1, 5], k, v, k_scale=k_scale, v_scale=v_scale, **formats
    )
    assert lengths.tolist() == [5, 9]
    for n, first in enumerate((1, 5)):
        np.testing.assert_array_equal(k_cache[n, first : first + 4], k_want[n])
        np.testing.assert_array_equal(v_cache[n, first : first + 4], v_want[n])
        assert not k_cache[n, :first].view(np.uint8).any()
        if kind == "token":
            np.testing.assert_array_equal(k_scale[n, first : first + 4], k_scales[n])
            assert not k_scale[n, :first].any()


def test_append_kv_of_torch_also_compiled():
    torch = pytest.importorskip("torch")
    k = torch.from_numpy(normal(B, 2, KV, D, seed=1))
    want, scales = fulmen.quantize_kv(k, "int8")

    def call(k_cache, v_cache, lengths, k, k_scale, v_scale):
        return fulmen.append_kv(k_cache, v_cache, lengths, k, k, k_scale=k_scale, v_scale=v_scale)

    for run in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
        caches = [torch.zeros(B, 6, KV, D, dtype=torch.int8) for _ in range(2)]
        k_scale, v_scale = (torch.zeros(B, 6, KV, 1) for _ in range(2))
        run(*caches, torch.tensor([0, 3], dtype=torch.int32), k, k_scale, v_scale)
        for n, first in enumerate((0, 3)):
            assert torch.equal(caches[1][n, first : first + 2], want[n])
            assert torch.equal(v_scale[n, first : first + 2], scales[n])


def of_8_bits(torch, seed=0):
    q = torch.from_numpy(normal(B, 3, H, D, seed=seed)).bfloat16()
    k, v = (
        torch.from_numpy(normal(B, S, KV, D, seed=seed + n)).to(torch.float8_e4m3fn) for n in (1, 2)
    )
    descale = [torch.rand(B, KV) + 0.5 for _ in range(3)]
    of_q = descale[0].repeat_interleave(H // KV, 1)
    stored = [
        x.float() * s[:, None, :, None] for x, s in ((q, of_q), (k, descale[1]), (v, descale[2]))
    ]
    names = ("q_descale", "k_descale", "v_descale")
    return q, k, v, dict(zip(names, descale, strict=True)), stored


def test_flash_attention_3_varlen():
    torch = pytest.importorskip("torch")
    from fulmen.flash_attn_interface import flash_attn_varlen_func

    q, k, v, descale, stored = of_8_bits(torch)
    want = torch.from_numpy(exact(*stored)).float()
    cu_q, cu_k = (torch.arange(B + 1, dtype=torch.int32) * n for n in (3, S))
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    out, lse = flash_attn_varlen_func(*packed, cu_q, cu_k, 3, S, **descale, return_attn_probs=True)
    assert lse.shape == (H, B * 3)
    torch.testing.assert_close(out.float(), want.flatten(0, 1), atol=1e-2, rtol=1e-2)
    used = torch.tensor([S, 11], dtype=torch.int32)
    out = flash_attn_varlen_func(*packed, cu_q, cu_k, seqused_k=used, **descale)
    short = torch.from_numpy(exact(*(x[1:, : 11 if x.shape[1] == S else None] for x in stored)))
    torch.testing.assert_close(out[:3].float(), want[0], atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(out[3:].float(), short[0].float(), atol=1e-2, rtol=1e-2)
    with pytest.raises(NotImplementedError, match=r"^attention_chunk is 8 beside descale factors"):
        flash_attn_varlen_func(*packed, cu_q, cu_k, **descale, attention_chunk=8)


@pytest.mark.parametrize("new", ["none", "stored", "numbers"])
@pytest.mark.parametrize("paged", [False, True])
def test_flash_attention_3_cache(new, paged):
    torch = pytest.importorskip("torch")
    from fulmen.flash_attn_interface import flash_attn_with_kvcache

    q, k, v, descale, stored = of_8_bits(torch, seed=4)
    used = S - 2
    k_cache, v_cache = k.clone(), v.clone()
    rows = {}
    if new != "none":  # the last two rows are appended
        for cache in (k_cache, v_cache):
            cache[:, used:] = 0
        rows = {"k": k[:, used:], "v": v[:, used:], "cache_seqlens": used}
    if new == "numbers":
        rows |= {"k": stored[1][:, used:].bfloat16(), "v": stored[2][:, used:].bfloat16()}
    if paged:  # a page is a sequence, in the other order
        k_cache, v_cache = k_cache.flip(0), v_cache.flip(0)
        rows["page_table"] = torch.tensor([[1], [0]], dtype=torch.int32)
    out = flash_attn_with_kvcache(q, k_cache, v_cache, **rows, **descale)
    want = torch.from_numpy(exact(*stored)).float()
    torch.testing.assert_close(out.float(), want, atol=3e-2, rtol=3e-2)
    if new == "stored":
        assert torch.equal(
            (k_cache.flip(0) if paged else k_cache).view(torch.int8), k.view(torch.int8)
        )


def test_flash_attention_3_cache_refuses_new_rows():
    torch = pytest.importorskip("torch")
    from fulmen.flash_attn_interface import flash_attn_with_kvcache

    q, k, v, descale, _ = of_8_bits(torch)
    one, cos = k[:, :1], torch.ones(S, D // 2)
    for rows, words in (
        ({"k": one}, "k is given and v is not so"),
        ({"v": one}, "k is absent and v is not so"),
        ({"rotary_cos": cos, "rotary_sin": cos}, "rotary_cos is given and k is None"),
        ({"k": one, "v": one[:, :, :1]}, "v.shape is [2, 1, 1, 64]"),
        ({"k": k[:1, :1], "v": one}, "k.shape is [1, 1, 2, 64]"),
        ({"k": one, "v": v[:, :2]}, "v.shape is [2, 2, 2, 64]"),
    ):
        caches = k.clone(), v.clone()
        with pytest.raises(ValueError, match=re.escape(words)):
            flash_attn_with_kvcache(q, *caches, cache_seqlens=3, **rows, **descale)
        assert torch.equal(caches[0].view(torch.int8), k.view(torch.int8))


def test_jax():
    jax = pytest.importorskip("jax")
    q, k, v = normal(B, 3, H, D), normal(B, S, KV, D, seed=1), normal(B, S, KV, D, seed=2)
    for name in ("int8", "float8_e4m3fn", "float8_e5m2"):
        k8, k_scale = fulmen.quantize_kv(k, name)
        v8, v_scale = fulmen.quantize_kv(v, name, "head")
        want = fulmen.attention(q, k8, v8, k_scale=k_scale, v_scale=v_scale)
        arrays = [jax.numpy.asarray(x) for x in (q, k8, v8, k_scale, v_scale)]

        def call(q, k, v, k_scale, v_scale):
            return fulmen.attention(q, k, v, k_scale=k_scale, v_scale=v_scale)

        np.testing.assert_array_equal(np.asarray(jax.jit(call)(*arrays)), want)


def latent(torch, dtype, rows=9):
    """A cache of zeros whose values are the first 64 dims of its keys, and new rows."""
    new = torch.from_numpy(normal(B, 4, 1, 80, seed=1))
    if dtype == torch.float32:
        return torch.zeros(B, rows, 1, 80), None, new, new, None
    want, scales = fulmen.quantize_kv(new, str(dtype).removeprefix("torch."))
    return torch.zeros(B, rows, 1, 80, dtype=dtype), torch.zeros(B, rows, 1, 1), new, want, scales


@pytest.mark.parametrize("device", [None, "emulated:gfx1100"])
@pytest.mark.parametrize("name", ["float32", "int8", "float8_e4m3fn"])
def test_append_kv_to_a_latent_cache(name, device):
    torch = pytest.importorskip("torch")
    cache, scale, new, want, scales = latent(torch, getattr(torch, name))
    options = {} if scale is None else {"k_scale": scale, "v_scale": scale}
    fulmen.append_kv(cache, cache[..., :64], [1, 5], new, new[..., :64], device=device, **options)
    for n, first in enumerate((1, 5)):
        assert torch.equal(cache[n, first : first + 4].float(), want[n].float())
        assert not cache[n, :first].float().any()
        if scale is not None:
            assert torch.equal(scale[n, first : first + 4], scales[n])
    other = new.clone()
    with pytest.raises(ValueError, match="v_cache is the first dims of k_cache"):
        fulmen.append_kv(cache, cache[..., :64], [1, 5], new, other[..., :64], **options)


def test_append_kv_to_a_latent_cache_compiled():
    torch = pytest.importorskip("torch")
    cache, scale, new, want, scales = latent(torch, torch.int8)

    def call(cache, lengths, new, scale):
        return fulmen.append_kv(
            cache, cache[..., :64], lengths, new, new[..., :64], k_scale=scale, v_scale=scale
        )

    run = torch.compile(call, backend="aot_eager", fullgraph=True)
    run(cache, torch.tensor([0, 3], dtype=torch.int32), new, scale)
    for n, first in enumerate((0, 3)):
        assert torch.equal(cache[n, first : first + 4], want[n])
        assert torch.equal(scale[n, first : first + 4], scales[n])


def test_append_kv_refuses_caches_that_share_bytes():
    c, k, ones = np.zeros((1, 8, 1, 96), np.float32), normal(1, 2, 1, 64), np.ones(1, np.int32)
    for v_cache in (c[..., 32:], c[..., 1:65]):
        with pytest.raises(ValueError, match=r"^v_cache at|^k_cache at .* overlaps v_cache"):
            fulmen.append_kv(c[..., :64], v_cache, ones, k, 2 * k[..., : v_cache.shape[-1]])
    assert not c.any()
    both = np.zeros((1, 8, 1, 2, 64), np.float32)  # in each other's gaps
    fulmen.append_kv(both[..., 0, :], both[..., 1, :], ones, k, 2 * k)
    np.testing.assert_array_equal(both[0, 1:3, :, 0], k[0])
    np.testing.assert_array_equal(both[0, 1:3, :, 1], 2 * k[0])


def of_scale(kind, torch=None):
    value = {"number": 0.25, "no dims": np.float32(0.25), "array": np.full((), 0.25, np.float32)}
    return torch.tensor(0.25) if torch is not None and kind == "no dims" else value[kind]


@pytest.mark.parametrize("kind", ["number", "no dims", "array"])
def test_scales_without_dims(kind):
    q, k = normal(B, 3, H, D), normal(B, S, KV, D, seed=1)
    k8, _ = fulmen.quantize_kv(k, scale=np.full((1, 1, 1, 1), 0.25, np.float32))
    want = exact(q, k8 * np.float32(0.25), k8 * np.float32(0.25))
    scale = of_scale(kind)
    for options in ({}, {"precision": "exact", "k_format": None}):
        out = fulmen.attention(q, k8, k8, k_scale=scale, v_scale=scale, **options)
        np.testing.assert_allclose(out, want, atol=2e-6)
    cache = np.zeros((B, S + 1, KV, D), np.int8)
    fulmen.append_kv(cache, cache.copy(), [1] * B, k, k, k_scale=scale, v_scale=scale)
    np.testing.assert_array_equal(cache[:, 1:], k8)
    torch = pytest.importorskip("torch")
    scale = of_scale(kind, torch)
    q, k8 = torch.from_numpy(q), torch.from_numpy(k8)
    if kind != "array":
        out = fulmen.attention(q, k8, k8, k_scale=scale, v_scale=scale)
        np.testing.assert_allclose(out, want, atol=2e-6)


@pytest.mark.parametrize("shape", [(KV,), (1,), (B, KV)])
def test_append_kv_takes_the_scales_of_attention(shape):
    k, scale = normal(B, 4, KV, D, seed=1), np.linspace(0.02, 0.05, 6, dtype=np.float32)
    scale = scale[: int(np.prod(shape))].reshape(shape)
    cache = np.zeros((B, 4, KV, D), np.int8)
    fulmen.append_kv(cache, cache.copy(), [0] * B, k, k, k_scale=scale, v_scale=scale)
    of_head = np.broadcast_to(scale, (B, KV))[:, None, :, None]
    np.testing.assert_array_equal(cache, np.clip(np.rint(k / of_head), -127, 127))
    stored = cache.astype(np.float32) * of_head
    q = normal(B, 3, H, D)
    out = fulmen.attention(q, cache, cache, k_scale=scale, v_scale=scale)
    np.testing.assert_allclose(out, exact(q, stored, stored), atol=2e-6)


def test_formats_of_every_function():
    q, k, v = normal(B, 3, H, D), normal(B, S, KV, D, seed=1), normal(B, S, KV, D, seed=2)
    (k4, _), (v5, _) = fulmen.quantize_kv(k, "q4_0"), fulmen.quantize_kv(v, "q5_1")
    formats = {"k_format": "q4_0", "v_format": "q5_1"}
    stored = (fulmen.dequantize_kv(k4, format="q4_0"), fulmen.dequantize_kv(v5, format="q5_1"))
    want = exact(q, *stored)
    np.testing.assert_allclose(fulmen.attention_reference(q, k4, v5, **formats), want, atol=1e-12)
    out = fulmen.attention(q, k4, v5, **formats)
    report = fulmen.verify(q, k4, v5, out, **formats)
    assert report.ok and report.elements == out.size
    assert not fulmen.verify(q, k4, v5, out + 1e-3, **formats).ok
    said = fulmen.explain(q, k4, v5, **formats)
    assert fulmen.plan(q, k4, v5, **formats).explanation == said
    assert "q4_0" in said and "q5_1" in said
    for function in (fulmen.plan, fulmen.explain):
        with pytest.raises(TypeError, match=rf"^{function.__name__}\(\)"):
            function(q, k, v, no_such_argument=1)


def test_flash_attention_3_has_no_gradients_of_8_bits():
    torch = pytest.importorskip("torch")
    from fulmen.flash_attn_interface import flash_attn_func, flash_attn_varlen_func

    q, k, v, _, _ = of_8_bits(torch)
    cu_q, cu_k = (torch.arange(B + 1, dtype=torch.int32) * n for n in (3, S))
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    q.requires_grad_()
    packed[0].requires_grad_()
    for run in (
        lambda: fulmen.attention(q, k, v),
        lambda: flash_attn_func(q, k, v),
        lambda: flash_attn_varlen_func(*packed, cu_q, cu_k, 3, S),
    ):
        with pytest.raises(NotImplementedError, match=r"^k\.dtype is fp8_e4m3"):
            run().float().sum().backward()
    with torch.no_grad():
        assert flash_attn_func(q, k, v).dtype == torch.bfloat16
    half = torch.zeros(1, 2, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"^k_descale"):
        flash_attn_func(half, half.to(torch.int8), half, k_descale=torch.ones(7, 5, 3))
    out = flash_attn_func(q.detach(), k, v, k_descale=0.5, v_descale=0.5)
    want = exact(*(x.detach().float() for x in (q, k.float() * 0.5, v.float() * 0.5)))
    torch.testing.assert_close(out.float(), torch.from_numpy(want).float(), atol=1e-2, rtol=1e-2)
