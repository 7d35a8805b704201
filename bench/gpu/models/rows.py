"""The rows of the suite: what a model calls -> how its tensors are made.

The first groups are the table of the issue that asked for this suite; the last are other calls of
vLLM, Axolotl, Boltz, diffusers, Swin, whisper and gpt-oss."""

from calls import (
    FP32,
    Make,
    biased,
    blocks,
    cached,
    dense,
    documents,
    masked,
    ones,
    padding,
    pair,
    shifted_windows,
    split_qkv,
    triangle,
)
from more_rows import MORE

LLAMA_BATCH = (4, 2048, 32, 8, 128)
MIXED = [512] * 4 + [1] * 60  # four chunks of a prompt, 60 sequences that generate
NO_GRADIENT = {"gradients": ()}

MASKS: dict[str, Make] = {
    "mask, triangle and left padding, 4 x 2k, 32/8x128": masked(LLAMA_BATCH, triangle),
    "mask, ones, 4 x 2k, 32/8x128": masked(LLAMA_BATCH, ones),
    "mask, random blocks, 4 x 2k, 32/8x128": masked(LLAMA_BATCH, blocks),
    "additive bf16 mask, 4 x 2k, 32x128": masked((4, 2048, 32, 32, 128), triangle, as_bias=True),
    "padding of BERT, 32 x 512, 12x64": masked((32, 512, 12, 12, 64), padding),
    "padding of cross attention, 4 x 4k over 300, 16x72": masked(
        (4, 4096, 16, 16, 72), padding, keys=300
    ),
}
PACKED: dict[str, Make] = {
    "packed, 16 documents in 16k, 16x128 causal": documents(16384, 16, 16, 16, 128),
    "packed, 8 documents in 32k, 32/8x128 causal": documents(32768, 8, 32, 8, 128),
    "packed, 128 sequences in 16k, 12x64": documents(16384, 128, 12, 12, 64, causal=False),
    "packed, 64 documents in 16k, 16x64 causal": documents(16384, 64, 16, 16, 64),
}
CACHES: dict[str, Make] = {
    f"chunk of 512, 8 x 8k, 32/8x128, {name}": cached(8, 512, 8192, 32, 8, 128, page=page)
    for name, page in (
        ("contiguous", 0),
        ("pages of 16", 16),
        ("pages of 64", 64),
        ("pages of 128", 128),
        ("pages of 256", 256),
    )
} | {
    "decode 64 x 4k, 32/8x128, pages of 16": cached(64, 1, 4096, 32, 8, 128, page=16),
    "cross decode 8 x 1 over 1,500, 20x64": dense(
        8, 1, 20, 20, 64, keys=1500, interface="sdpa", **NO_GRADIENT
    ),
}
SCORES: dict[str, Make] = {
    "window 128 in 8k, 64/8x64": dense(
        1, 8192, 64, 8, 64, causal=True, window=127, interface="attention"
    ),
    "window 128 in 8k, 64/8x64, sinks": dense(
        1, 8192, 64, 8, 64, causal=True, window=127, interface="attention", learned_sinks=True
    ),
    "softcap 30, 4k, 16x128 causal": dense(
        1, 4096, 16, 16, 128, causal=True, softcap=30.0, interface="attention"
    ),
    "MLA prefill 192/128, 4k, 16 heads causal": dense(1, 4096, 16, 16, 192, dim_v=128, causal=True),
    "dropout .1, 16 x 2k, 12x64 causal": dense(16, 2048, 12, 12, 64, causal=True, dropout=0.1),
}
PLAIN: dict[str, Make] = {
    "nanoGPT's split qkv, 32 x 1k, 12x64 causal": split_qkv(32, 1024, 12, 64),
    "d 40, 2 x 2k, 8x40": dense(2, 2048, 8, 8, 40),
    "narrow heads, 16 x 2k, 8x32": dense(16, 2048, 8, 8, 32),
    "narrow heads, 4 x 4k, 16x32 causal": dense(4, 4096, 16, 16, 32, causal=True),
    "CLIP 64 x 77, 12x64 causal": dense(64, 77, 12, 12, 64, causal=True),
    "fp32, 2 x 2k, 8x64": dense(2, 2048, 8, 8, 64, dtype=FP32),
    "fp32, 2 x 2k, 8x128": dense(2, 2048, 8, 8, 128, dtype=FP32),
}
PAIRS: dict[str, Make] = {
    **{f"triangle attention N {n}, 4x32": pair(n) for n in (256, 384, 512, 768)},
    **{f"triangle attention N {n}, 4x32, key mask": pair(n, mask=True) for n in (256, 512, 768)},
    **{
        f"triangle attention N {n}, 4x32, fp32, key mask": pair(n, FP32, mask=True)
        for n in (256, 512)
    },
    "triangle attention N 256, 4x32, fp32": pair(256, FP32),
    "Swin, 4,096 windows of 49, 4x32, bias": biased((4096, 49, 4, 4, 32)),
}
# Calls that the issue does not list.
OTHERS: dict[str, Make] = {
    "vLLM's mixed step, 4 chunks of 512 and 60 decodes over 4k, 32/8x128, pages of 16": cached(
        64, 0, 4096, 32, 8, 128, page=16, packed=MIXED
    ),
    "verifying 4 tokens, 64 x 4k, 32/8x128, pages of 16": cached(64, 4, 4096, 32, 8, 128, page=16),
    "gpt-oss decode, 64 x 4k, 64/8x64, sinks, pages of 16": cached(
        64, 1, 4096, 64, 8, 64, page=16, learned_sinks=True
    ),
    "gpt-oss full layer, 4k, 64/8x64, sinks": dense(
        1, 4096, 64, 8, 64, causal=True, interface="attention", learned_sinks=True
    ),
    "Axolotl's packing, 24 documents in 32k, 28/4x128 causal": documents(32768, 24, 28, 4, 128),
    "packed, 12 documents in 16k, 32/8x128 causal, window 1,024": documents(
        16384, 12, 32, 8, 128, window=1023
    ),
    "Gemma 2, 4k, 8/4x256 causal, softcap 50": dense(
        1, 4096, 8, 4, 256, causal=True, softcap=50.0, interface="attention"
    ),
    "Boltz's AttentionPairBias, 1 x 768, 16x24, key mask": biased(
        (1, 768, 16, 16, 24), mask_of=padding
    ),
    "Boltz's diffusion, 16 x 512, 16x48, shared bias": biased((16, 512, 16, 16, 48)),
    "T5, 16 x 512, 12x64, a bias for all sequences": biased((16, 512, 12, 12, 64)),
    "Swin's shifted windows, 64 x 64 of 49, 4x32": shifted_windows(64, 64, 49, 4, 32),
    "SDXL's cross attention, 2 x 4k over 77, 10x64": dense(2, 4096, 10, 10, 64, keys=77),
    "whisper's encoder, 8 x 1,500, 20x64": dense(8, 1500, 20, 20, 64),
}
GROUPS = {
    "masks": MASKS,
    "packed": PACKED,
    "caches": CACHES,
    "scores": SCORES,
    "plain": PLAIN,
    "pairs": PAIRS,
    "others": OTHERS,
    "more": MORE,
}
ROWS = {name: make for group in GROUPS.values() for name, make in group.items()}
