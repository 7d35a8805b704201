"""Neighbourhood attention of the package comfy-kitchen, whose kernels ComfyUI calls, by Fulmen: a
backend "fulmen" in its registry.

na3d and na2d go through the registry, and are exact attention behind a mask. Its other operations
on q, k and v are sparse (sol_attn), or do not ask the registry (int8_attention,
flash_attention_decode and what begins with that name).
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fulmen import flex_attention

_Tensor = torch.Tensor
_Three = tuple[int, int, int]
_NAME = "fulmen"
# Rows and keys of a block: one is left out where no row attends any of its keys.
_BLOCK = 64


def na3d(
    q: _Tensor,
    k: _Tensor,
    v: _Tensor,
    kernel_size: Sequence[int],
    is_causal: Sequence[bool] | None = None,
    scale: float | None = None,
) -> _Tensor:
    """comfy_kitchen.na3d.

    Args:
      q, k, v: [batch, T, H, W, heads, head_dim], float32, float16 or bfloat16; head_dim 1 to 512.
      kernel_size: for T, H and W: a query attends so many positions around its own, moved inward
        at borders.
      is_causal: for T, H and W: the positions end with the query's own instead, and are fewer at
        the beginning. None is False for all.
      scale: None is 1 / sqrt(head_dim).

    Returns:
      q's shape. Errors are those of fulmen.flex_attention.
    """
    batch, *dims, heads, dim = q.shape
    mask = _mask(
        tuple(dims), tuple(kernel_size), tuple(is_causal or (False, False, False)), str(q.device)
    )
    rows = [x.reshape(batch, -1, heads, dim).transpose(1, 2) for x in (q, k, v)]
    out = flex_attention(*rows, None, mask, scale)
    return out.transpose(1, 2).reshape(q.shape)


def _window(length: int, size: int, causal: bool) -> tuple[_Tensor, _Tensor]:
    """Where the positions begin and end that each of an axis attends."""
    own = torch.arange(length, dtype=torch.int32)
    if causal:
        return (own - (size - 1)).clamp(min=0), own + 1
    size = min(size, length)
    first = (own - size // 2).clamp(0, length - size)
    return first, first + size


@functools.lru_cache(maxsize=16)
def _mask(dims: _Three, sizes: _Three, causal: tuple[bool, bool, bool], device: str) -> Any:
    """The mask of each pair of positions, with lists of the blocks that have any."""
    from torch.nn.attention.flex_attention import BlockMask

    grid = torch.meshgrid(*(torch.arange(n, dtype=torch.int32) for n in dims), indexing="ij")
    own = torch.stack([axis.flatten() for axis in grid])  # [3, positions]
    windows = [_window(*axis) for axis in zip(dims, sizes, causal, strict=True)]
    first, end = (
        torch.stack([bounds[side][axis.long()] for bounds, axis in zip(windows, own, strict=True)])
        for side in (0, 1)
    )

    # An axis at a time: a block that is kept may still have no pair, which the function masks.
    padded = math.ceil(own.shape[1] / _BLOCK) * _BLOCK - own.shape[1]
    last = own.shape[1] - 1
    index = torch.cat([torch.arange(last + 1), torch.full((padded,), last)])
    blocks = [x[:, index].unflatten(1, (-1, _BLOCK)) for x in (own, first, end)]
    (lowest, highest), begin, stop = blocks[0].aminmax(dim=2), blocks[1].amin(2), blocks[2].amax(2)
    keep = (begin[:, :, None] <= highest[:, None]) & (stop[:, :, None] > lowest[:, None])
    keep = keep.all(0)
    counts = keep.sum(1, dtype=torch.int32)
    lists = torch.argsort(keep.byte(), dim=1, descending=True, stable=True).to(torch.int32)

    t, h, w = own.to(device)
    (t0, h0, w0), (t1, h1, w1) = first.to(device), end.to(device)

    def attends(_b: Any, _h: Any, q: Any, k: Any) -> Any:
        return (
            (t[k] >= t0[q])
            & (t[k] < t1[q])
            & (h[k] >= h0[q])
            & (h[k] < h1[q])
            & (w[k] >= w0[q])
            & (w[k] < w1[q])
        )

    return BlockMask.from_kv_blocks(
        counts[None, None].to(device),
        lists[None, None].to(device),
        BLOCK_SIZE=_BLOCK,
        mask_mod=attends,
        seq_lengths=(last + 1, last + 1),
    )


def _rule(common: Callable[..., Any], result: Any) -> Callable[..., Any]:
    def rule(arguments: dict[str, Any]) -> Any:
        q = arguments["q"]
        if not 1 <= q.shape[-1] <= 512:
            return result.fail("q", f"has a head_dim of {q.shape[-1]}: 1 to 512 are Fulmen's")
        return common(arguments)

    return rule


def register(devices: Sequence[str] = ("cpu",)) -> None:
    """Adds the backend "fulmen" to comfy-kitchen's registry, before all others: na3d and na2d on
    `devices`, torch's names of their types, are Fulmen's then, and all else stays.
    `comfy_kitchen.registry.disable("fulmen")` turns it off.

    Errors: ImportError, comfy-kitchen is not installed.
    """
    from comfy_kitchen.constraints import (
        ExactDims,
        FunctionConstraints,
        ParamConstraint,
        ValidationResult,
        na3d_common_call_rule,
    )
    from comfy_kitchen.registry import registry

    tensor = ParamConstraint(
        dtypes=frozenset({torch.float32, torch.float16, torch.bfloat16}),
        shape_rules=(ExactDims(6),),
    )
    served = FunctionConstraints(
        params=dict.fromkeys("qkv", tensor),
        default_devices=frozenset(devices),
        call_rules=(_rule(na3d_common_call_rule, ValidationResult),),
    )
    registry.register(_NAME, sys.modules[__name__], {"na3d": served})
    others = [name for name in registry._priority if name != _NAME]
    registry.set_priority([_NAME, *others])
