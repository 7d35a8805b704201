"""More rows of the suite: what vision models, protein models, video models and generation with
masks call. rows.py has the others."""

import torch
from calls import FP32, Make, biased, cached, dense, documents, masked, padding, triangle

NO_GRADIENT = {"gradients": ()}


def static_cache(maker, batch, heads, queries, keys):
    """Three quarters of the keys are there, and the queries are the last of these; left padding of
    another length in each batch."""
    used, at = keys * 3 // 4, torch.arange(keys, device=maker.device)
    causal = at <= torch.arange(used - queries, used, device=maker.device)[:, None]
    left = torch.arange(batch, device=maker.device) * (keys // 64)
    return (causal & (at >= left[:, None, None]))[:, None].contiguous()


def prefix(maker, batch, heads, queries, keys):
    """Causal, but for a prefix of another length in each batch, which all attend."""
    at = torch.arange(keys, device=maker.device)
    causal = at <= torch.arange(queries, device=maker.device)[:, None]
    lengths = keys // 4 + keys // 32 * torch.arange(batch, device=maker.device)
    return (causal | (at < lengths[:, None, None]))[:, None].contiguous()


def tree(maker, batch, heads, queries, keys):
    """Speculated tokens: each attends the cache, and some of the others."""
    mask = torch.ones(batch, 1, queries, keys, dtype=torch.bool, device=maker.device)
    drawn = torch.rand(batch, 1, queries, queries, device=maker.device)
    mask[..., keys - queries :] = drawn < 0.3
    return mask


LLAMA = (32, 8, 128)  # heads, KV heads, head_dim
WINDOWED = dict(causal=True, interface="attention")
MORE: dict[str, Make] = {
    "generation with a padding mask, 16 x 1 over 4k, 32/8x128": masked(
        (16, 1, *LLAMA), padding, keys=4096, **NO_GRADIENT
    ),
    "prefill of a static cache, 4 x 512 over 4k, 32/8x128": masked(
        (4, 512, *LLAMA), static_cache, keys=4096, **NO_GRADIENT
    ),
    "a tree of 32 tokens, 8 x 32 over 4k, 32/8x128": masked(
        (8, 32, *LLAMA), tree, keys=4096, **NO_GRADIENT
    ),
    "PaliGemma's prefix, 4 x 1k, 8/1x256": masked((4, 1024, 8, 1, 256), prefix),
    "triangle as a mask, 2 x 2k, 8x256": masked((2, 2048, 8, 8, 256), triangle),
    "ESM2's padding, 8 x 1k, 20x64": masked((8, 1024, 20, 20, 64), padding),
    "MSA columns' padding, 256 x 512, 8x32": masked((256, 512, 8, 8, 32), padding),
    "MSA rows, 128 x 256, 8x32, shared bias": biased((128, 256, 8, 8, 32)),
    "AlphaFold 3's atoms, 256 windows of 32 over 128, 4x32, a bias each": biased(
        (256, 32, 4, 4, 32), bias_batch="batch", keys=128
    ),
    "the same in fp32": biased((256, 32, 4, 4, 32), bias_batch="batch", keys=128, dtype=FP32),
    "SAM's relative positions, 1 x 4k, 16x80": biased((1, 4096, 16, 16, 80)),
    "SAM's windows, 25 x 196, 16x80, a bias each": biased(
        (25, 196, 16, 16, 80), bias_batch="batch"
    ),
    "relative positions of 2 x 1k, 16x128, a bias each": biased(
        (2, 1024, 16, 16, 128), bias_batch="batch"
    ),
    "DINOv2, 64 x 257, 16x64": dense(64, 257, 16, 16, 64),
    "SigLIP, 16 x 729, 16x72": dense(16, 729, 16, 16, 72),
    "Flux, 1 x 4,608, 24x128": dense(1, 4608, 24, 24, 128),
    "Wan's cross attention, 1 x 16k over 512, 12x128": dense(1, 16384, 12, 12, 128, keys=512),
    "Qwen-VL's windows, 256 of 64, 16x80, packed": documents(
        16384, 256, 16, 16, 80, causal=False, equal=True
    ),
    "Pixtral, 6 images in 6k, 16x64, packed": documents(6144, 6, 16, 16, 64, causal=False),
    "GPT-2, 32 documents in 8k, 12x64, packed": documents(8192, 32, 12, 12, 64),
    "Phi-3, 2 x 4k, 32x96 causal": dense(2, 4096, 32, 32, 96, causal=True),
    "Gemma 3, 8k, 8/4x256, window 1,024": dense(1, 8192, 8, 4, 256, window=1023, **WINDOWED),
    "Mistral, 16k, 32/8x128, window 4,096": dense(1, 16384, *LLAMA, window=4095, **WINDOWED),
    "Stable Diffusion 1.5, 2 x 256, 8x160": dense(2, 256, 8, 8, 160),
    "Stable Diffusion 1.5, 2 x 1k, 8x80": dense(2, 1024, 8, 8, 80),
    "time series, 512 x 64, 8x16": dense(512, 64, 8, 8, 16),
    "Perceiver, 512 over 16k, 8x64": dense(1, 512, 8, 8, 64, keys=16384),
    "GPT-2 in fp32, 4 x 1k, 12x64 causal": dense(4, 1024, 12, 12, 64, causal=True, dtype=FP32),
    "BERT's padding in fp32, 8 x 512, 12x64": masked((8, 512, 12, 12, 64), padding, dtype=FP32),
    "T5's decode, 16 x 1 over 512, 12x64, bias": biased(
        (16, 1, 12, 12, 64), keys=512, learned=False, **NO_GRADIENT
    ),
    "decode, 1 over 32k, 32/8x128": cached(1, 1, 32768, *LLAMA),
}
