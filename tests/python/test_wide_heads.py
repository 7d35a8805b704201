"""Heads wider than 256: a VAE's block, latent attention, and FlashMLA's functions."""

import fulmen
import fulmen.torch
import numpy as np
import pytest
import torch
from fulmen.flash_mla import flash_mla_with_kvcache, get_mla_metadata
from problems import SEED
from torch_problems import attention_float64, close


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)


class ImageAttention(torch.nn.Module):
    """The attention of a diffusion model's VAE: one head of all channels, over the pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = torch.nn.GroupNorm(32, channels)
        self.to_q, self.to_k, self.to_v, self.to_out = (
            torch.nn.Linear(channels, channels) for _ in range(4)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        pixels = self.norm(image).flatten(2).transpose(1, 2)
        q, k, v = (to(pixels).unsqueeze(1) for to in (self.to_q, self.to_k, self.to_v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v).squeeze(1)
        return image + self.to_out(out).transpose(1, 2).reshape(image.shape)


def test_a_vaes_block_of_one_head_of_512(plans):
    block, image = ImageAttention(512), torch.randn(2, 512, 12, 11, requires_grad=True)
    right = block.double()(image.double())
    gradient = torch.randn_like(right)
    (right_gradient,) = torch.autograd.grad(right, image, gradient)
    fulmen.torch.enable_sdpa()
    try:
        found = block.float()(image)
        (found_gradient,) = torch.autograd.grad(found, image, gradient.float())
    finally:
        fulmen.torch.disable_sdpa()
    assert any("d=512" in line for line in plans())
    close(found, right)
    close(found_gradient, right_gradient)


def latent(dtype=torch.float32, batch=2, queries=2, heads=16, rows=70):
    """Queries, and latent keys of one head: 512 dims that are the values, and 64 of a rotation."""
    q, kv = torch.randn(batch, queries, heads, 576), torch.randn(batch, rows, 1, 576)
    return q.to(dtype), kv.to(dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 4, 70])
def test_values_are_a_view_into_the_keys(queries, causal):
    q, kv = latent(queries=queries)
    out, lse = fulmen.attention(q, kv, kv[..., :512], causal=causal, return_lse=True)
    right, right_lse = attention_float64(q, kv, kv[..., :512], causal=causal)
    close(out, right)
    close(lse, right_lse)


def test_a_view_as_values_is_recognised_by_its_memory():
    device = "emulated:sm_90a"
    q, kv = (x.numpy().astype(np.float16) for x in latent(batch=1, queries=1, rows=90))
    view, own = kv[..., :512], kv[..., :512].copy()
    out, lse = fulmen.attention(q, kv, view, device=device, return_lse=True)
    right, right_lse = attention_float64(*(torch.from_numpy(x) for x in (q, kv, own)))
    close(torch.from_numpy(out), right, 2e-3)
    close(torch.from_numpy(lse), right_lse, 1e-3)
    said = fulmen.explain(q, kv, view, device=device)
    assert "emulated.decode_latent.sm90" in said.splitlines()[0] and "values_in_keys" in said
    assert "emulated.decode.sm80" in fulmen.explain(q, kv, own, device=device).splitlines()[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flash_mla_over_pages(dtype):
    pages, page_size, heads, queries = 7, 64, 16, 2
    cache = torch.randn(pages, page_size, 1, 576).to(dtype)
    table = torch.tensor([[5, 2, 0], [6, 1, 3]], dtype=torch.int32)
    lengths = torch.tensor([130, 17], dtype=torch.int32)
    q, _ = latent(dtype, queries=queries, heads=heads)
    out, lse = flash_mla_with_kvcache(
        q, cache, table, lengths, 512, *get_mla_metadata(lengths, queries * heads, 1), causal=True
    )
    assert out.dtype == dtype
    for n, length in enumerate(lengths.tolist()):
        kv = cache[table[n].long()].flatten(0, 1)[None, :length]
        right, right_lse = attention_float64(q[n : n + 1], kv, kv[..., :512], causal=True)
        close(out[n : n + 1], right, 2e-5 if dtype == torch.float32 else 1e-2)
        close(lse[n : n + 1], right_lse, 2e-5 if dtype == torch.float32 else 1e-3)


def test_flash_mla_says_what_it_refuses():
    q, kv = latent()
    lengths = torch.tensor([1, 1], dtype=torch.int32)
    table = torch.tensor([[0], [1]], dtype=torch.int32)
    metadata = get_mla_metadata(lengths, 16, 1)
    with pytest.raises(ValueError, match=r"^head_dim_v is 600: 1 to 576"):
        flash_mla_with_kvcache(q, kv, table, lengths, 600, *metadata)
    with pytest.raises(NotImplementedError, match=r"^indices is given"):
        flash_mla_with_kvcache(q, kv, table, lengths, 512, *metadata, indices=table)
    with pytest.raises(NotImplementedError, match=r"^is_fp8_kvcache is True"):
        get_mla_metadata(lengths, 16, 1, is_fp8_kvcache=True)
    with pytest.raises(ValueError, match=r"^num_heads_k is 0"):
        get_mla_metadata(lengths, 16, 0)


@pytest.mark.parametrize(
    ("dims", "said"), [((577, 512), "head_dim is 577, 1 to 576"), ((576, 513), "513, 1 to 512")]
)
def test_wider_heads_are_refused(dims, said):
    q, v = torch.zeros(1, 2, 1, dims[0]), torch.zeros(1, 2, 1, dims[1])
    with pytest.raises(ValueError, match=said):
        fulmen.attention(q, q, v)
