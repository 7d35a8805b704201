"""Arrays of the host on an emulated device: copied into its memory and back."""

import os
import subprocess
import sys

import fulmen
import numpy as np
import pytest
from problems import assert_close, attention_float64, normal, qkv

DEVICE = "emulated:gfx1201"
SHAPE = {"sq": 5, "sk": 19, "d": 32}
ROUNDING = 1e-5  # of two kernels' gradients


def test_numpy(rng):
    q, k, v = qkv(rng, SHAPE, "bf16")
    wide = normal(rng, (2, 5, 4, 40), "bf16")
    before = wide.copy()
    out, lse = fulmen.attention(
        q, k, v, causal=True, out=wide[..., 4:36], return_lse=True, device=DEVICE
    )
    expected, expected_lse = attention_float64(q, k, v, causal=True)
    assert_close(out, expected, "bf16")
    assert_close(lse, expected_lse, "fp32", "lse")
    assert np.array_equal(wide[..., :4], before[..., :4]) and np.array_equal(
        wide[..., 36:], before[..., 36:]
    )
    again = q.copy()
    fulmen.attention(again, k, v, causal=True, out=again, device=DEVICE)
    assert np.array_equal(again, out), "in place"
    assert not fulmen.attention(q, k[:, :0], v[:, :0], device=DEVICE).any(), "without keys"


def test_torch_gradients(rng):
    torch = pytest.importorskip("torch")
    leaves = [torch.from_numpy(t).requires_grad_() for t in qkv(rng, SHAPE)]
    weight = torch.from_numpy(normal(rng, (2, 5, 4, 32)))
    grads = [
        torch.autograd.grad(
            (fulmen.attention(*leaves, causal=True, device=device) * weight).sum(), leaves
        )
        for device in (DEVICE, None)
    ]
    for name, ours, expected in zip("qkv", *grads, strict=True):
        assert_close(ours, expected, "fp32", f"d{name}", ROUNDING)


def test_gradients_beside_each_other(rng):
    """Three gradients in one array: none overwrites what lies between its rows."""
    torch = pytest.importorskip("torch")
    packed = torch.from_numpy(normal(rng, (1, 9, 3, 2, 32))).requires_grad_()
    weight = torch.from_numpy(normal(rng, (1, 9, 2, 32)))
    grads = [
        torch.autograd.grad(
            (fulmen.attention(*packed.unbind(2), device=device) * weight).sum(), packed
        )[0]
        for device in (DEVICE, None)
    ]
    assert_close(*grads, "fp32", "gradient", ROUNDING)


def test_pages(rng):
    """append_kv writes pages, and tables are checked, as in host memory they always are."""
    pages = [normal(rng, (5, 4, 2, 32)) for _ in "kv"]
    on_cpu = [t.copy() for t in pages]
    q, new = normal(rng, (2, 1, 4, 32)), [normal(rng, (2, 1, 2, 32)) for _ in "kv"]
    used, table = np.array([5, 2], np.int32), np.array([[4, 1], [0, 2]], np.int32)
    outs = []
    for device, cache in ((DEVICE, pages), (None, on_cpu)):
        _, longer = fulmen.append_kv(*cache, used, *new, block_table=table, device=device)
        outs.append(fulmen.attention(q, *cache, seqlens_k=longer, block_table=table, device=device))
    assert_close(*outs, "fp32")
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(pages, on_cpu, strict=True))
    with pytest.raises(ValueError, match=r"block_table\[1, 0\] is 7: 0 to 4 are accepted"):
        fulmen.attention(
            q,
            *pages,
            seqlens_k=used,
            block_table=np.array([[4, 1], [7, 2]], np.int32),
            device=DEVICE,
        )
    with pytest.raises(
        ValueError, match=r"seqlens_k\[0\] is 8: with 1 new rows 0 to 7 are accepted"
    ):
        fulmen.append_kv(*pages, np.array([8, 2], np.int32), *new, block_table=table, device=DEVICE)


def test_default_device(rng):
    """A device that is set for the process is one, too."""
    program = (
        "import fulmen, numpy as np; q = np.ones((1, 2, 1, 32), np.float32); "
        "print(fulmen.attention(q, q, q).sum())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FULMEN_DEVICE": DEVICE},
        capture_output=True,
        text=True,
    )
    assert ran.stdout == "64.0\n", ran.stderr


def test_jax(rng):
    jnp = pytest.importorskip("jax.numpy")
    import jax

    q, k, v = (jnp.asarray(t) for t in qkv(rng, SHAPE))
    loss = lambda x, device: (fulmen.attention(x, k, v, device=device) ** 2).sum()  # noqa: E731
    ours, theirs = (jax.value_and_grad(loss)(q, device) for device in (DEVICE, None))
    assert_close(ours[0], theirs[0], "fp32")
    assert_close(ours[1], theirs[1], "fp32", "gradient", ROUNDING)


def test_gradients_of_captured_tensors(rng):
    """Of tensors that a score_mod reads: by head, by distance, and a number."""
    torch = pytest.importorskip("torch")
    q, k, v = (
        torch.from_numpy(normal(rng, (2, 4, length, 32))).requires_grad_()
        for length in (21, 40, 40)
    )
    slopes = torch.from_numpy(normal(rng, (4,))).requires_grad_()
    table = torch.from_numpy(normal(rng, (4, 61))).bfloat16().requires_grad_()
    heat = torch.tensor(1.25, requires_grad=True)
    weight = torch.from_numpy(normal(rng, (2, 4, 21, 32)))

    def score_mod(score, b, h, q_idx, kv_idx):
        distance = kv_idx - q_idx
        return score * heat + slopes[h] * 0.02 * distance + table[h, distance + 20]

    grads = [
        torch.autograd.grad(
            (fulmen.flex_attention(q, k, v, score_mod, kernel_options=options) * weight).sum(),
            (q, k, v, slopes, table, heat),
        )
        for options in ({"device": DEVICE}, None)
    ]
    for name, ours, expected in zip(
        ("q", "k", "v", "slopes", "table", "heat"), *grads, strict=True
    ):
        assert ours.dtype == expected.dtype
        # Both are rounded to the tensor's dtype, so they may differ by one of its roundings.
        rounded_to = "bf16" if ours.dtype == torch.bfloat16 else "fp32"
        assert_close(ours.float(), expected.float(), rounded_to, f"d{name}", 10 * ROUNDING)
