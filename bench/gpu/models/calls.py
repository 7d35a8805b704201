"""The calls that models make: name -> a function that gives the call's tensors on a device.

Tensors are [batch, seqlen, heads, head_dim] as projections make them; packed ones are
[tokens, heads, head_dim]. With `tiny` lengths, batches and heads are cut, so that a CPU runs all
rows in a test."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

Tensor = torch.Tensor


class Pages(NamedTuple):
    k: Tensor  # [num_pages, page_size, kv_heads, head_dim], in random order
    v: Tensor
    table: Tensor  # [batch, pages of a sequence], int32


@dataclass
class Call:
    """One attention call. Where `pages` is set, k and v hold the same rows one after another."""

    q: Tensor
    k: Tensor
    v: Tensor
    interface: str = "attention"  # or "sdpa", "triangle": the function of ours that is called
    causal: bool = False  # the last query is on the diagonal with the last key
    window: int | None = None  # keys before its own that a query attends
    softcap: float = 0.0
    scale: float | None = None
    sinks: Tensor | None = None  # [heads]
    keep_mask: Tensor | None = None  # broadcasts to [batch, heads, queries, keys]
    bias: Tensor | None = None  # the same
    dropout: float = 0.0
    cu_seqlens: Tensor | None = None  # queries are packed; keys, too, where there are no pages
    seqlens_k: Tensor | None = None
    pages: Pages | None = None
    gradients: tuple[str, ...] = ()  # by which tensors; none: forward alone
    # Which elements of the first batch's softmax ours keeps, [1, heads, queries, keys].
    kept: Tensor | None = None
    longest: tuple[int, int] = field(init=False)  # queries, keys

    def __post_init__(self):
        lengths = self.q.shape[1], self.k.shape[1]
        if self.cu_seqlens is not None:
            queries = int(self.cu_seqlens.diff().max())
            lengths = queries, (queries if self.k.dim() == 3 else self.k.shape[1])
        self.longest = lengths

    @property
    def dtype(self) -> torch.dtype:
        return self.q.dtype

    @functools.cached_property
    def hidden_keys(self) -> Tensor:
        """keep_mask as a bias of q's dtype: half of the most negative number, so that a bias can
        be added."""
        zeros = torch.zeros(self.keep_mask.shape, dtype=self.dtype, device=self.q.device)
        return zeros.masked_fill(~self.keep_mask, torch.finfo(self.dtype).min / 2)

    @functools.cached_property
    def mask_of_torch(self) -> Tensor | None:
        """The one mask that PyTorch's function takes: the bias in q's dtype, keep_mask added to
        it."""
        if self.bias is None:
            return self.keep_mask
        bias = self.bias.to(self.dtype)
        return bias if self.keep_mask is None else bias + self.hidden_keys


class Maker:
    """Random tensors on a device."""

    def __init__(self, device: str, tiny: bool) -> None:
        self.device, self.tiny = device, tiny

    def cut(self, count: int, divisor: int, least: int) -> int:
        return max(least, count // divisor) if self.tiny else count

    def batch(self, count: int) -> int:
        return min(count, 2) if self.tiny else count

    def length(self, count: int) -> int:
        return min(count, self.cut(count, 64, 24))

    def heads(self, heads: int, kv_heads: int) -> tuple[int, int]:
        return (2 * heads // kv_heads, 2) if self.tiny and kv_heads > 2 else (heads, kv_heads)

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, dtype=torch.float32, device=self.device).to(dtype)

    def integers(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)

    def qkv(self, batch, queries, keys, heads, kv_heads, dim, dim_v=None, dtype=torch.bfloat16):
        batch, queries, keys = self.batch(batch), self.length(queries), self.length(keys)
        heads, kv_heads = self.heads(heads, kv_heads)
        shapes = (queries, heads, dim), (keys, kv_heads, dim), (keys, kv_heads, dim_v or dim)
        return tuple(self.normal(batch, *shape, dtype=dtype) for shape in shapes)


QKV = ("q", "k", "v")


def dense(*shape, dtype=torch.bfloat16, interface="sdpa", **options):
    """Keys as long as queries, or options["keys"]."""
    batch, queries, heads, kv_heads, dim = shape
    keys, dim_v = options.pop("keys", queries), options.pop("dim_v", None)
    options.setdefault("gradients", QKV)

    def make(maker: Maker) -> Call:
        q, k, v = maker.qkv(batch, queries, keys, heads, kv_heads, dim, dim_v, dtype)
        given = dict(options)
        if given.pop("learned_sinks", False):
            given["sinks"] = maker.normal(q.shape[2])
            given["gradients"] = (*given["gradients"], "sinks") if given["gradients"] else ()
        return Call(q, k, v, interface, **given)

    return make


def split_qkv(batch, length, heads, dim):
    """q, k and v are parts of one projection, as nanoGPT splits it."""

    def make(maker: Maker) -> Call:
        rows = maker.batch(batch), maker.length(length)
        parts = maker.normal(*rows, 3 * heads * dim).split(heads * dim, dim=2)
        q, k, v = (part.view(*rows, heads, dim) for part in parts)
        return Call(q, k, v, "sdpa", causal=True, gradients=QKV)

    return make


# Masks: [batch, 1 or heads, queries or 1, keys], bool.
def triangle(maker, batch, heads, queries, keys):
    """Causal, and left padding of another length in each batch."""
    at = torch.arange(keys, device=maker.device)
    left = keys // 50 * torch.arange(batch, device=maker.device)
    causal = at <= torch.arange(keys - queries, keys, device=maker.device)[:, None]
    return (causal & (at >= left[:, None, None]))[:, None].contiguous()


def ones(maker, batch, heads, queries, keys):
    return torch.ones(batch, 1, queries, keys, dtype=torch.bool, device=maker.device)


def blocks(maker, batch, heads, queries, keys):
    """Half of the blocks of 128 queries and keys, and the diagonal's."""
    shape = batch, 1, -(-queries // 128), -(-keys // 128)
    kept = torch.rand(shape, device=maker.device) < 0.5
    kept |= torch.eye(shape[2], shape[3], dtype=torch.bool, device=maker.device)
    kept = kept.repeat_interleave(128, 2).repeat_interleave(128, 3)
    return kept[:, :, :queries, :keys].contiguous()


def padding(maker, batch, heads, queries, keys):
    """One row for all queries; sequences of a quarter to all of the keys."""
    lengths = keys - (keys * 3 // 4) * torch.arange(batch, device=maker.device) // batch
    kept = torch.arange(keys, device=maker.device) < lengths[:, None]
    return kept[:, None, None].contiguous()


def masked(shape, mask_of, as_bias=False, **options):
    """A bool mask; as_bias: 0 or the dtype's most negative number, as transformers has it."""

    def make(maker: Maker) -> Call:
        call = dense(*shape, **options)(maker)
        sizes = call.q.shape[0], call.q.shape[2], call.q.shape[1], call.k.shape[1]
        mask = mask_of(maker, *sizes)
        if as_bias:
            low = torch.finfo(call.dtype).min
            zeros = torch.zeros(mask.shape, dtype=call.dtype, device=maker.device)
            call.bias = zeros.masked_fill(~mask, low)
        else:
            call.keep_mask = mask
        return call

    return make


def biased(shape, bias_batch=1, learned=True, mask_of=None, bias_dtype=None, **options):
    """A bias of [bias_batch, heads, queries, keys] ("batch": one of each), with its gradient."""

    def make(maker: Maker) -> Call:
        call = dense(*shape, **options)(maker)
        batch, queries, heads, _ = call.q.shape
        rows = batch if bias_batch == "batch" else bias_batch
        of = (rows, heads, queries, call.k.shape[1])
        call.bias = maker.normal(*of, dtype=bias_dtype or call.dtype)
        if mask_of:
            call.keep_mask = mask_of(maker, batch, heads, queries, call.k.shape[1])
        if learned and call.gradients:
            call.gradients = (*QKV, "bias")
        return call

    return make


def pair(length, dtype=torch.bfloat16, mask=False, heads=4, dim=32):
    """Triangle attention of a pair representation [length, length]; the fp32 bias is shared."""
    return biased(
        (length, length, heads, heads, dim),
        bias_dtype=torch.float32,
        mask_of=padding if mask else None,
        dtype=dtype,
        interface="triangle",
    )


def shifted_windows(images, windows, length, heads, dim):
    """Swin's shifted windows: -100 between regions of a window, another mask in each of an image's
    windows, added to the learned bias as its code adds it."""

    def make(maker: Maker) -> Call:
        count = windows if not maker.tiny else 4
        batch = maker.batch(images) * count
        q, k, v = (maker.normal(batch, length, heads, dim) for _ in range(3))
        region = torch.randint(0, 4, (count, length), device=maker.device)
        apart = (region[:, None] != region[..., None]) * -100.0
        bias = maker.normal(1, heads, length, length) + apart[:, None].to(q.dtype)
        bias = bias.repeat(batch // count, 1, 1, 1)
        return Call(q, k, v, "sdpa", bias=bias, gradients=QKV)

    return make


def documents(total, count, heads, kv_heads, dim, causal=True, equal=False, **options):
    """Documents of different lengths, packed: the longest about ten times the shortest."""

    def make(maker: Maker) -> Call:
        tokens, parts = maker.cut(total, 64, 256), maker.cut(count, 8, 3)
        lengths = [tokens // parts] * parts
        if not equal:
            weights = [math.exp(2.3 * ((7 * n) % parts) / parts) for n in range(parts)]
            lengths = [max(1, int(tokens * w / sum(weights))) for w in weights]
        lengths[-1] += tokens - sum(lengths)
        ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
        q_heads, k_heads = maker.heads(heads, kv_heads)
        q = maker.normal(tokens, q_heads, dim)
        k, v = (maker.normal(tokens, k_heads, dim) for _ in range(2))
        seqlens = maker.integers(ends)
        return Call(q, k, v, causal=causal, cu_seqlens=seqlens, gradients=QKV, **options)

    return make


def cached(batch, queries, keys, heads, kv_heads, dim, page=0, packed=None, **options):
    """Queries at the end of a KV cache; `packed`: their lengths, one after another."""

    def make(maker: Maker) -> Call:
        rows = maker.batch(batch)
        length = min(keys, max(page or 64, keys // 64)) if maker.tiny else keys
        q_heads, k_heads = maker.heads(heads, kv_heads)
        k, v = (maker.normal(rows, length, k_heads, dim) for _ in range(2))
        given = dict(options)
        if given.pop("learned_sinks", False):
            given["sinks"] = maker.normal(q_heads)
        if packed:
            lengths = [maker.cut(n, 16, 1) for n in packed[:rows]] if maker.tiny else packed
            given["cu_seqlens"] = maker.integers(torch.tensor([0, *lengths]).cumsum(0).tolist())
            q = maker.normal(sum(lengths), q_heads, dim)
        else:
            q = maker.normal(rows, min(maker.length(queries), queries), q_heads, dim)
        if page:
            of_each = length // page
            order = torch.randperm(rows * of_each, device=maker.device)
            table = order.view(rows, of_each).to(torch.int32)
            paged = []
            for x in (k, v):
                pages = x.new_empty(rows * of_each, page, k_heads, dim)
                pages[order] = x.view(rows * of_each, page, k_heads, dim)
                paged.append(pages)
            given["pages"] = Pages(*paged, table)
        seqlens = maker.integers([length] * rows)
        return Call(q, k, v, causal=True, seqlens_k=seqlens, **given)

    return make


Make = Callable[[Maker], Call]
FP32 = torch.float32
