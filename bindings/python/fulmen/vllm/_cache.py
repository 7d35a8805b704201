"""vLLM's caches in blocks, without vLLM: what a row holds by its kv_cache_dtype, read and written
as it lies."""

from __future__ import annotations

from typing import NamedTuple

import torch

_SCALE_BYTES = 4  # float32


class CacheFormat(NamedTuple):
    """How a layer's cache holds numbers.

    Attributes:
      dtype: of 8 bits; None where the cache has the dtype of the model's numbers.
      per_token: behind each head's numbers of a token, for k and for v, lies their scale, float32.
    """

    dtype: torch.dtype | None = None
    per_token: bool = False


def cache_formats(fp8: torch.dtype = torch.float8_e4m3fn) -> dict[str, CacheFormat]:
    """What Fulmen serves of vLLM's kv_cache_dtype; fp8 is e4m3 as this GPU has it."""
    plain, float8 = CacheFormat(), CacheFormat(fp8)
    return {
        "auto": plain,
        "float16": plain,
        "bfloat16": plain,
        "fp8": float8,
        "fp8_e4m3": float8,
        "fp8_e5m2": CacheFormat(torch.float8_e5m2),
        "int8_per_token_head": CacheFormat(torch.int8, True),
        "fp8_per_token_head": CacheFormat(fp8, True),
    }


class Cache(NamedTuple):
    """A layer's cache.

    Attributes:
      rows: [blocks, kv_heads, block_size, head_dim of k and of v], with their scales where each
        token has one.
      head_dim: of k.
      format: as above.
      k_scale, v_scale: factors of what is stored where a token has none: a number or a tensor with
        one, or [kv_heads].
    """

    rows: torch.Tensor
    head_dim: int
    format: CacheFormat = CacheFormat()
    k_scale: torch.Tensor | float = 1.0
    v_scale: torch.Tensor | float = 1.0


class Pages(NamedTuple):
    """k and v as attention() takes them: views, [blocks, block_size, kv_heads, head_dim]."""

    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | float | None
    v_scale: torch.Tensor | float | None


def content_bytes(format: CacheFormat, head_dim: int, head_dim_v: int, number_bytes: int) -> int:
    """Bytes of a head's row, k and v."""
    scales = 2 * _SCALE_BYTES if format.per_token else 0
    return (head_dim + head_dim_v) * number_bytes + scales


def pages_of(cache: Cache) -> Pages:
    rows = cache.rows.transpose(1, 2)
    dtype, dim = cache.format.dtype, cache.head_dim
    if dtype is None:
        return Pages(rows[..., :dim], rows[..., dim:], None, None)
    rows = rows.view(dtype)
    if not cache.format.per_token:
        return Pages(rows[..., :dim], rows[..., dim:], cache.k_scale, cache.v_scale)
    begin = dim + _SCALE_BYTES
    return Pages(
        rows[..., :dim],
        rows[..., begin:-_SCALE_BYTES],
        rows[..., dim:begin].view(torch.float32),
        rows[..., -_SCALE_BYTES:].view(torch.float32),
    )


def _codes(numbers: torch.Tensor, format: CacheFormat, scale: torch.Tensor | float) -> torch.Tensor:
    """numbers / scale in the cache's dtype, as bytes. What is out of range becomes the format's
    largest, and NaN stays NaN where the format has one."""
    if format.dtype == torch.int8:
        return (numbers / scale).round_().clamp_(-127, 127).to(torch.int8).view(torch.uint8)
    largest = torch.finfo(format.dtype).max
    return (numbers / scale).clamp_(-largest, largest).to(format.dtype).view(torch.uint8)


def _with_scales(numbers: torch.Tensor, format: CacheFormat) -> torch.Tensor:
    """The same with a scale for each of [..., head_dim] behind it. A NaN or an infinity makes what
    shares its scale NaN."""
    largest = 127.0 if format.dtype == torch.int8 else torch.finfo(format.dtype).max
    scale = numbers.abs().amax(-1, keepdim=True) / largest
    codes = _codes(numbers, format, torch.where(scale > 0, scale, 1.0))
    return torch.cat((codes, scale.view(torch.uint8)), -1)


def _of_heads(scale: torch.Tensor | float) -> torch.Tensor | float:
    """[kv_heads] as [kv_heads, 1]."""
    return scale[:, None] if isinstance(scale, torch.Tensor) and scale.dim() == 1 else scale


def _new_rows(cache: Cache, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """[rows, kv_heads, ...] as they lie in the cache."""
    of = cache.format
    if of.dtype is None:
        return torch.cat((key, value), -1).to(cache.rows.dtype)
    if of.per_token and key.shape == value.shape:
        return _with_scales(torch.stack((key, value), 2).float(), of).flatten(2)
    key, value = key.float(), value.float()
    if of.per_token:
        return torch.cat((_with_scales(key, of), _with_scales(value, of)), -1)
    of_k = _codes(key, of, _of_heads(cache.k_scale))
    return torch.cat((of_k, _codes(value, of, _of_heads(cache.v_scale))), -1)


def write_cache(cache: Cache, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """Writes new rows into a layer's cache, rounded to its format.

    Args:
      key, value: [rows, kv_heads, head_dim]; rows beyond those of slots are not read.
      slots: [rows], integers: block * block_size + row of it; negative ones are not written.
    """
    rows, block_size = slots.shape[0], cache.rows.shape[2]
    block, row = slots // block_size, slots % block_size
    new = _new_rows(cache, key[:rows], value[:rows])
    stored = cache.rows if cache.format.dtype is None else cache.rows.view(torch.uint8)
    if slots.device.type == "cpu":
        kept = slots >= 0
        if not bool(kept.all()):
            block, row, new = block[kept], row[kept], new[kept]
    else:
        # Without waiting for the GPU: what is not written rewrites what is there. Negative slots
        # are padding behind the requests; their block is one that vLLM gives to no request.
        kept = (slots >= 0)[:, None, None]
        block = torch.where(slots >= 0, block, 0)
        new = torch.where(kept, new, stored[block, :, row])
    stored[block, :, row] = new
