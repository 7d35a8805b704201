"""Arrays of other libraries, and special tensors that torch itself makes."""

import fulmen
import numpy as np
import pytest
from problems import assert_close, attention_float64, normal, qkv

torch = pytest.importorskip("torch")

import fulmen.flash_attn as flash_attn  # noqa: E402
import fulmen.xformers as xops  # noqa: E402
from fulmen.torch import scaled_dot_product_attention  # noqa: E402


@pytest.fixture
def tensors(rng):
    """[batch, seqlen, heads, dim], float32."""
    return tuple(torch.from_numpy(t) for t in qkv(rng, {"hkv": 4}))


def test_masks_of_bytes(rng, tensors):
    mask = rng.integers(0, 3, (37, 53), np.uint8)
    expected = attention_float64(*tensors, keep_mask=mask != 0)[0]
    for q, k, v, keep in (
        (*tensors, torch.from_numpy(mask)),
        (*(t.numpy() for t in tensors), mask),
    ):
        assert_close(fulmen.attention(q, k, v, keep_mask=keep), expected, "fp32")
    with torch.overrides.BaseTorchFunctionMode():  # through the dispatcher
        assert_close(fulmen.attention(*tensors, keep_mask=torch.from_numpy(mask)), expected, "fp32")
    jnp = pytest.importorskip("jax.numpy")
    assert_close(
        fulmen.attention(*(jnp.asarray(t.numpy()) for t in tensors), keep_mask=jnp.asarray(mask)),
        expected,
        "fp32",
    )


def test_slopes_and_windows_of_flash_attn(tensors):
    slopes = torch.tensor([0.5, 0.25, 0.125, 1.0])
    expected = flash_attn.flash_attn_func(*tensors, alibi_slopes=slopes, window_size=(5, -1))
    for window in ((5, -2), (np.int64(5), -100), (torch.tensor(5), torch.tensor(-7))):
        out = flash_attn.flash_attn_func(
            *tensors, alibi_slopes=slopes.bfloat16(), window_size=window
        )
        assert torch.equal(out, expected)
    cache = flash_attn.flash_attn_with_kvcache(
        *tensors, alibi_slopes=slopes.half(), window_size=(-3, -2)
    )
    assert_close(cache, attention_float64(*tensors, alibi_slopes=slopes)[0], "fp32")


@pytest.mark.parametrize("dims", [3, 4, 5])
def test_bool_biases_of_xformers(dims, rng):
    heads = {3: (), 4: (4,), 5: (2, 2)}[dims]
    q, k, v = (torch.from_numpy(normal(rng, (2, rows, *heads, 16))) for rows in (7, 9, 9))
    mask = torch.from_numpy(rng.random((2, *heads, 7, 9)) < 0.6)
    out = xops.memory_efficient_attention(q, k, v, mask)
    four = [t.reshape(2, t.shape[1], -1, 16) for t in (q, k, v)]
    expected = attention_float64(*four, keep_mask=mask.reshape(2, -1, 7, 9).numpy())[0]
    assert_close(out.reshape(expected.shape), expected, "fp32")


def test_zeros_without_memory(tensors):
    """Zero tensors without memory, which torch's derivatives make."""
    q, k, v = tensors
    zeros = [torch._efficientzerotensor(tuple(t.shape)) for t in tensors]
    for at in range(3):
        given, plain = [list(tensors) for _ in "ab"]
        given[at], plain[at] = zeros[at], torch.zeros_like(tensors[at])
        assert torch.equal(fulmen.attention(*given), fulmen.attention(*plain))
    leaf = q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        fulmen.attention(leaf, k, v), leaf, torch._efficientzerotensor(tuple(q.shape))
    )
    assert not gradient.any()
    with pytest.raises(fulmen.ArgumentError, match=r"^out is read-only: it is written"):
        fulmen.attention(q, k, v, out=zeros[0])
    cache, rows = torch.ones(2, 4, 1, 8), torch._efficientzerotensor((2, 1, 1, 8))
    fulmen.append_kv(cache, cache.clone(), torch.zeros(2, dtype=torch.int32), rows, rows)
    assert not cache[:, 0].any() and cache[:, 1:].all()
    with pytest.raises(fulmen.ArgumentError, match=r"^k_cache is read-only: it is written"):
        fulmen.append_kv(
            torch._efficientzerotensor((2, 4, 1, 8)), cache, torch.zeros(2, dtype=torch.int32)
        )


def test_meta_beside_the_cpu(tensors):
    q, k, v = tensors
    for given, message in (
        ((q.to("meta"), k, v), r"^k is on cpu, q on meta: one device is needed"),
        ((q.to("meta"), k.to("meta"), v), r"^v is on cpu, q on meta: one device is needed"),
        ((q, k.to("meta"), v), r"^k is on device meta"),
    ):
        with pytest.raises(fulmen.ArgumentError, match=message):
            fulmen.attention(*given)
    with pytest.raises(RuntimeError, match=r"^bias is on cpu, q on meta"):
        fulmen.attention(*(t.to("meta") for t in tensors), bias=torch.zeros(53))
    with pytest.raises(RuntimeError, match=r"^key is on cpu, query on meta"):
        scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q.to("meta"), k, v)))
