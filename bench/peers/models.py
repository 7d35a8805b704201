"""The suite `models`: calls that models make, and the ways to say them in PyTorch.

A call's tensors have Fulmen's names and order of dims, [batch, seqlen, head, head_dim] and
[batch, head, seqlen_q, seqlen_k]. PyTorch's functions get views of the same memory, dict `t`, with
heads before rows, and return the output so."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

Tensors = dict[str, torch.Tensor]


@dataclass
class Call:
    name: str
    tensors: Tensors
    peers: dict[str, Callable[[Tensors], torch.Tensor]]
    options: dict = field(default_factory=dict)
    gradients: tuple[str, ...] = ("q", "k", "v")  # (): the call has no backward pass
    random: bool = False  # dropout: results differ


class Maker:
    """Tensors of one dtype."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator).to(dtype or self.dtype)

    def rows(self, batch: int, seqlen: int, heads: int, dim: int) -> torch.Tensor:
        """[batch, seqlen, heads, dim], heads before rows in memory."""
        return self.normal(batch, heads, seqlen, dim).transpose(1, 2)

    def qkv(self, batch: int, q: int, k: int, heads: int, dim: int, **other: int) -> Tensors:
        kv_heads, dim_v = other.get("kv_heads", heads), other.get("dim_v", dim)
        return {
            "q": self.rows(batch, q, heads, dim),
            "k": self.rows(batch, k, kv_heads, dim),
            "v": self.rows(batch, k, kv_heads, dim_v),
        }


def scores_of(t: Tensors) -> tuple[int, int, int, int]:
    batch, q, heads, _ = t["q"].shape
    return batch, heads, q, t["k"].shape[1]


def attend(t: Tensors, mask: torch.Tensor | None = None, **options: object) -> torch.Tensor:
    grouped = t["q"].shape[1] != t["k"].shape[1]
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(t["q"].dtype)
    return sdpa(t["q"], t["k"], t["v"], attn_mask=mask, enable_gqa=grouped, **options)


def masked(maker: Maker, name: str, t: Tensors, keep: torch.Tensor, **other: object) -> Call:
    """keep: bool, as PyTorch takes it."""
    return Call(
        name,
        {**t, "keep_mask": keep.expand(scores_of(t))},
        {"bool mask": lambda x: attend(x, keep)},
        **other,
    )


def biased(name: str, t: Tensors, bias: torch.Tensor, keep: torch.Tensor | None = None) -> Call:
    """bias has a gradient, the sum over what it is broadcast over."""

    def added(x: Tensors) -> torch.Tensor:
        mask = x["bias"]
        return attend(x, mask if keep is None else mask.masked_fill(~keep, -math.inf))

    tensors = {**t, "bias": bias}
    if keep is not None:
        tensors["keep_mask"] = keep.expand(scores_of(t))
    return Call(name, tensors, {"added mask": added}, gradients=("q", "k", "v", "bias"))


def band(q: int, k: int, left: int, right: int = 0) -> torch.Tensor:
    """bool [q, k], aligned at the last row and key."""
    distance = torch.arange(k)[None, :] - torch.arange(q)[:, None] - (k - q)
    return (distance >= -left) & (distance <= right)


def padding(lengths: torch.Tensor, k: int) -> torch.Tensor:
    return (torch.arange(k)[None, :] < lengths[:, None])[:, None, None, :]


def flex(block_mask: Callable | None, score: Callable | None = None, **sizes: int) -> Callable:
    """flex_attention, compiled at its first call; mask_mod and score_mod as it takes them."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    made = None
    if block_mask is not None:
        made = create_block_mask(block_mask, None, None, sizes["q"], sizes["k"], device="cpu")

    def run(t: Tensors) -> torch.Tensor:
        grouped = t["q"].shape[1] != t["k"].shape[1]
        return compiled(
            t["q"], t["k"], t["v"], score_mod=score, block_mask=made, enable_gqa=grouped
        )

    return run


def packed(maker: Maker) -> Call:
    lengths = [1024, 768, 640, 512, 448, 320, 256, 128]
    total = sum(lengths)
    t = maker.qkv(1, total, total, 8, 64)
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    block = (document[:, None] == document[None, :]) & band(total, total, total)

    def each(x: Tensors) -> torch.Tensor:
        parts = (x[name].split(lengths, dim=2) for name in "qkv")
        return torch.cat(
            [sdpa(q, k, v, is_causal=True) for q, k, v in zip(*parts, strict=True)], dim=2
        )

    def same_document(_b: int, _h: int, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (document[q] == document[k]) & (k <= q)

    return Call(
        "packed, 8 documents of 4k tokens, 8x64 causal",
        {**t, "cu_seqlens_q": bounds, "cu_seqlens_k": bounds},
        {
            "a call a document": each,
            "block mask": lambda x: attend(x, block),
            "flex_attention": flex(same_document, q=total, k=total),
        },
        {"causal": "bottom_right", "max_seqlen_q": max(lengths), "max_seqlen_k": max(lengths)},
    )


def padded_encoder(maker: Maker) -> Call:
    lengths = torch.tensor([384, 320, 256, 192, 160, 128, 96, 64])
    t = maker.qkv(8, 384, 384, 12, 64)
    return masked(maker, "BERT: 8 x 384, 12x64, key padding", t, padding(lengths, 384))


def padded_cross(maker: Maker) -> Call:
    lengths = torch.tensor([512, 384, 256, 128, 512, 96, 320, 200])
    t = maker.qkv(8, 128, 512, 12, 64)
    return masked(maker, "cross attention 8 x 128 over 512, padding", t, padding(lengths, 512))


def left_padded(maker: Maker, *, additive: bool = False) -> Call:
    seqlen = 1024
    first = torch.tensor([0, 128, 500, 900])
    keep = band(seqlen, seqlen, seqlen)[None] & (torch.arange(seqlen) >= first[:, None])[:, None]
    keep |= torch.eye(seqlen, dtype=torch.bool)  # no row without a key, as transformers does
    t = maker.qkv(4, seqlen, seqlen, 16, 64, kv_heads=4)
    keep = keep[:, None]
    if not additive:
        return masked(maker, "transformers: 4 x 1k, 16/4x64, causal and left padding", t, keep)
    mask = torch.zeros(keep.shape).masked_fill(~keep, torch.finfo(maker.dtype).min)
    mask = mask.to(maker.dtype)
    return Call(
        "the same as an additive mask",
        {**t, "bias": mask.expand(scores_of(t))},
        {"added mask": lambda x: attend(x, mask)},
    )


def triangle_mask(maker: Maker) -> Call:
    t = maker.qkv(1, 2048, 2048, 8, 64)
    return masked(maker, "triangle as a bool mask, 2k, 8x64", t, band(2048, 2048, 2048)[None, None])


def random_mask(maker: Maker) -> Call:
    t = maker.qkv(1, 1024, 1024, 8, 64)
    keep = torch.rand(1, 1, 1024, 1024, generator=maker.generator) < 0.5
    return masked(maker, "random bool mask, 1k, 8x64", t, keep)


def pair_bias(maker: Maker, n: int, rows: int, *, mask: bool) -> Call:
    t = maker.qkv(rows, n, n, 4, 32)
    bias = maker.normal(1, 4, n, n).expand(rows, 4, n, n)
    keep = padding(torch.randint(n // 2, n + 1, (rows,), generator=maker.generator), n)
    name = f"triangle attention N {n}, {rows} rows, 4x32, pair bias"
    return biased(name + ", key mask" * mask, t, bias, keep if mask else None)


def swin(maker: Maker) -> Call:
    t = maker.qkv(256, 49, 49, 4, 32)
    return biased("Swin: 256 windows of 49, 4x32, bias", t, maker.normal(1, 4, 49, 49))


def t5(maker: Maker) -> Call:
    t = maker.qkv(4, 512, 512, 12, 64)
    lengths = torch.tensor([512, 400, 300, 200])
    return biased(
        "T5: 4 x 512, 12x64, position bias, padding",
        t,
        maker.normal(1, 12, 512, 512),
        padding(lengths, 512),
    )


def window(maker: Maker, left: int) -> Call:
    seqlen = 4096
    t = maker.qkv(1, seqlen, seqlen, 8, 64, kv_heads=2)
    keep = band(seqlen, seqlen, left - 1)

    def mask_mod(_b: int, _h: int, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (k <= q) & (q - k < left)

    return Call(
        f"window of {left} in 4k, 8/2x64",
        t,
        {
            "bool mask": lambda x: attend(x, keep),
            "flex_attention": flex(mask_mod, q=seqlen, k=seqlen),
        },
        {"causal": "bottom_right", "window_left": left - 1},
    )


def softcap(maker: Maker) -> Call:
    seqlen, cap = 1024, 30.0
    t = maker.qkv(1, seqlen, seqlen, 8, 128, kv_heads=4)
    keep = band(seqlen, seqlen, seqlen)

    def plain(x: Tensors) -> torch.Tensor:
        k, v = (x[name].repeat_interleave(2, dim=1) for name in "kv")
        scores = x["q"] @ k.transpose(-1, -2) / math.sqrt(128)
        scores = cap * torch.tanh(scores / cap)
        return scores.masked_fill(~keep, -math.inf).softmax(-1) @ v

    def cap_mod(score: torch.Tensor, *_: object) -> torch.Tensor:
        return cap * torch.tanh(score / cap)

    def causal_mod(_b: int, _h: int, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return k <= q

    return Call(
        "softcap 30, 1k, 8/4x128 causal",
        t,
        {"in steps": plain, "flex_attention": flex(causal_mod, cap_mod, q=seqlen, k=seqlen)},
        {"causal": "bottom_right", "softcap": cap},
    )


def paged_decode(maker: Maker, page: int) -> Call:
    batch, seqlen, heads, kv_heads, dim = 8, 2048, 32, 8, 128
    pages = seqlen // page
    table = torch.randperm(batch * pages, generator=maker.generator).reshape(batch, pages)
    k, v = (maker.normal(batch * pages, page, kv_heads, dim) for _ in "kv")
    lengths = torch.full((batch,), seqlen, dtype=torch.int32)

    def gathered(x: Tensors) -> torch.Tensor:
        rows = (
            x[name].transpose(1, 2)[table].reshape(batch, seqlen, kv_heads, dim).transpose(1, 2)
            for name in "kv"
        )
        return sdpa(x["q"], *rows, enable_gqa=True)

    return Call(
        f"decode 8 x 2k over pages of {page}, 32/8x128",
        {
            "q": maker.rows(batch, 1, heads, dim),
            "k": k,
            "v": v,
            "seqlens_k": lengths,
            "block_table": table.to(torch.int32),
        },
        {"pages gathered": gathered},
        gradients=(),
    )


def static_cache(maker: Maker) -> Call:
    t = maker.qkv(8, 1, 2048, 32, 128, kv_heads=8)
    keep = padding(torch.tensor([512] * 8), 2048)
    name = "decode 8 x 1 over a static cache of 2k, 512 kept, 32/8x128"
    return masked(maker, name, t, keep, gradients=())


def whisper(maker: Maker) -> Call:
    t = maker.qkv(8, 1, 1500, 20, 64)
    name = "whisper: cross decode 8 x 1 over 1,500, 20x64"
    return Call(name, t, {"plain": attend}, gradients=())


def dropout(maker: Maker) -> Call:
    t = maker.qkv(2, 1024, 1024, 12, 64)
    return Call(
        "dropout .1, 2 x 1k, 12x64 causal",
        t,
        {"dropout_p": lambda x: attend(x, dropout_p=0.1, is_causal=True)},
        {"causal": "bottom_right", "dropout": 0.1},
        random=True,
    )


def causal(name: str, t: Tensors) -> Call:
    peers = {"is_causal": lambda x: attend(x, is_causal=True)}
    return Call(name, t, peers, {"causal": "bottom_right"})


def latent(maker: Maker) -> Call:
    return causal("MLA 192/128, 8 heads, 1k causal", maker.qkv(1, 1024, 1024, 8, 192, dim_v=128))


def odd_head(maker: Maker) -> Call:
    return Call("d40, 2 x 1k, 8x40", maker.qkv(2, 1024, 1024, 8, 40), {"plain": attend})


def clip(maker: Maker) -> Call:
    return causal("CLIP 16 x 77, 12x64 causal", maker.qkv(16, 77, 77, 12, 64))


def split_qkv(maker: Maker) -> Call:
    qkv = maker.normal(4, 1024, 3, 12, 64)
    t = {name: qkv[:, :, i] for i, name in enumerate("qkv")}
    return causal("nanoGPT: split qkv, 4 x 1k, 12x64 causal", t)


MAKERS: list[Callable[[Maker], Call]] = [
    packed,
    padded_encoder,
    padded_cross,
    left_padded,
    lambda maker: left_padded(maker, additive=True),
    triangle_mask,
    random_mask,
    lambda maker: pair_bias(maker, 128, 64, mask=False),
    lambda maker: pair_bias(maker, 128, 64, mask=True),
    lambda maker: pair_bias(maker, 256, 32, mask=False),
    swin,
    t5,
    lambda maker: window(maker, 128),
    lambda maker: window(maker, 1024),
    softcap,
    lambda maker: paged_decode(maker, 16),
    lambda maker: paged_decode(maker, 256),
    static_cache,
    whisper,
    dropout,
    latent,
    odd_head,
    clip,
    split_qkv,
]
