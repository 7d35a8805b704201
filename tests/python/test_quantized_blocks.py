"""Keys and values in llama.cpp's blocks: beside float64 over what they hold, and on devices."""

from __future__ import annotations

import fulmen
import numpy as np
import pytest
from quantized_problems import BLOCKS, KV, B, D, H, S, exact, normal


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name):
    q, k, v = normal(B, 3, H, D), normal(B, S, KV, D, seed=1), normal(B, S, KV, D, seed=2)
    blocks, scale = fulmen.quantize_kv(k, name)
    of_v, _ = fulmen.quantize_kv(v, "q8_0")
    assert scale is None and blocks.dtype == np.uint8 and blocks.shape[:3] == (B, S, KV)
    back = fulmen.dequantize_kv(blocks, format=name)
    levels = {"q8_0": 100, "q4_0": 6, "q4_1": 6, "q5_0": 12, "q5_1": 12}[name]
    assert np.abs(back - k).max() < np.abs(k).max() / levels
    if name == "q4_0":  # its definition: fp16 d, 16 bytes, low nibbles first
        first = blocks[0, 0, 0, :18]
        d = first[:2].copy().view(np.float16).astype(np.float32)
        nibbles = np.concatenate([first[2:] & 15, first[2:] >> 4]).astype(np.float32)
        np.testing.assert_array_equal(back[0, 0, 0, :32], (nibbles - 8) * d)
    stored = (back, fulmen.dequantize_kv(of_v, format="q8_0"))
    out = fulmen.attention(q, blocks, of_v, k_format=name, v_format="q8_0")
    np.testing.assert_allclose(out, exact(q, *stored), atol=3e-6)
    mixed = fulmen.attention(q, blocks, v, k_format=name)
    np.testing.assert_allclose(mixed, exact(q, back, v), atol=3e-6)
    swapped = [x.swapaxes(1, 2) for x in (q, blocks, of_v)]
    other = fulmen.attention(*swapped, k_format=name, v_format="q8_0", layout="bhsd")
    np.testing.assert_array_equal(other.swapaxes(1, 2), out)


def test_blocks_of_torch():
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(normal(B, 3, H, D)).bfloat16()
    k = torch.from_numpy(normal(B, S, KV, D, seed=1))
    blocks, _ = fulmen.quantize_kv(k, "q5_1")
    assert blocks.dtype == torch.uint8
    out = fulmen.attention(q, blocks, blocks, k_format="q5_1", v_format="q5_1")
    assert out.dtype == torch.bfloat16
    back = fulmen.dequantize_kv(blocks, format="q5_1")
    want = torch.from_numpy(exact(q.float(), back, back)).float()
    torch.testing.assert_close(out.float(), want, atol=8e-3, rtol=8e-3)
    with pytest.raises(NotImplementedError, match=r"^q requires a gradient"):
        fulmen.attention(q.requires_grad_(), blocks, blocks, k_format="q5_1", v_format="q5_1")


def test_refusals_of_blocks():
    q, k = normal(B, 3, H, D), normal(B, S, KV, D)
    blocks, _ = fulmen.quantize_kv(k, "q4_0")
    with pytest.raises(ValueError, match=r"^the format of k is 'q4': q8_0, q4_0"):
        fulmen.attention(q, blocks, blocks, k_format="q4", v_format="q4_0")
    with pytest.raises(TypeError, match=r"^v has dtype float32: with format q4_0 uint8 is"):
        fulmen.attention(q, blocks, k, k_format="q4_0", v_format="q4_0")
    with pytest.raises(ValueError, match=r"^k has rows of 36 bytes: whole blocks of q8_0, of 34"):
        fulmen.attention(q, blocks, blocks, k_format="q8_0", v_format="q4_0")
    with pytest.raises(ValueError, match=r"^numbers has head_dim 40: a multiple of 32"):
        fulmen.quantize_kv(normal(1, 1, 1, 40), "q4_0")
    with pytest.raises(ValueError, match=r"^scale is given: blocks of q4_0 have their own"):
        fulmen.quantize_kv(k, "q4_0", scale=np.ones((1, 1, 1, 1), np.float32))


@pytest.mark.parametrize("device", ["emulated:gfx1201", "emulated:sm_80"])
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_on_a_device(name, device):
    q, k, v = normal(B, 3, H, D), normal(B, S, KV, D, seed=1), normal(B, S, KV, D, seed=2)
    of_k, of_v = (fulmen.quantize_kv(x, name)[0] for x in (k, v))
    formats = {"k_format": name, "v_format": name, "device": device}
    k_cache, v_cache = np.full_like(of_k, 7), np.full_like(of_v, 7)
    _, used = fulmen.append_kv(k_cache, v_cache, np.zeros(B, np.int32), k, v, **formats)
    assert (k_cache == of_k).all()
    assert (v_cache == of_v).all()
    out = fulmen.attention(q, k_cache, v_cache, seqlens_k=used, **formats)
    held = [fulmen.dequantize_kv(x, format=name) for x in (of_k, of_v)]
    assert np.abs(out - exact(q, *held)).max() < 1e-5
