"""What makes block masks: create_block_mask, and functions of other functions."""

from __future__ import annotations

import functools
from typing import Any

from fulmen._core import ArgumentError
from fulmen.flex._block_mask import BlockMask, Mod
from fulmen.flex._blocks import counted
from fulmen.flex._captured import as_kind, kind_for
from fulmen.flex._leaves import speaks_jax
from fulmen.flex._lists import ordered
from fulmen.flex._trace import read


def _checked_mods(mods: tuple[Mod, ...]) -> None:
    for one in mods:
        if not callable(one):
            raise TypeError(f"a mask_mod is {one!r}: a function of (b, h, q_idx, kv_idx) is needed")


def or_masks(*mask_mods: Mod) -> Mod:
    """The mask_mod that attends what one of them attends; of none: nothing."""
    _checked_mods(mask_mods)

    def or_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        masks = [mask(b, h, q_idx, kv_idx) for mask in mask_mods]
        return functools.reduce(lambda a, b: a | b, masks) if masks else False

    return or_mask


def and_masks(*mask_mods: Mod) -> Mod:
    """The mask_mod that attends what all of them attend; of none: everything."""
    _checked_mods(mask_mods)

    def and_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        masks = [mask(b, h, q_idx, kv_idx) for mask in mask_mods]
        return functools.reduce(lambda a, b: a & b, masks) if masks else True

    return and_mask


def create_block_mask(
    mask_mod: Mod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    _compile: bool = False,
    separate_full_blocks: bool = True,
) -> BlockMask:
    """The BlockMask of a mask_mod.

    Args:
      mask_mod: a function of (b, h, q_idx, kv_idx) that gives True where a pair is attended.
      B, H: batches and heads that differ; None is 1, one list for all.
      Q_LEN, KV_LEN: queries and keys.
      device: of torch, where the lists are: None is its GPU, or the CPU without one. Without torch
        they are NumPy's arrays. flex_attention takes both for all kinds of arrays.
      BLOCK_SIZE: pairs of a block, queries and keys, or one number for both. Kernels skip blocks of
        multiples of 16 from 16 to 256; of other sizes the result is the same.
      separate_full_blocks: False lists blocks that are attended whole among the others.
      _compile: without meaning here; torch has it.

    Memory is a few bytes a block, and 64 MiB. Raises TraceError where mask_mod can't be read.
    """
    block = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
    for name, value in (("Q_LEN", Q_LEN), ("KV_LEN", KV_LEN), ("B", B), ("H", H)):
        if value is not None and value < (1 if name in "BH" else 0):
            raise ArgumentError(f"{name} is {value}: a positive number is accepted")
    if len(block) != 2 or any(one < 1 for one in block):
        raise ArgumentError(f"BLOCK_SIZE is {BLOCK_SIZE!r}: one or two positive numbers")
    arrays, device = kind_for(device)
    like = arrays.zeros((), device=device) if arrays.__name__ == "torch" else None
    if speaks_jax(mask_mod):
        from fulmen.jax._flex_trace import traced as read_by_jax

        traced = read_by_jax(None, mask_mod, like)
    else:
        traced = read(None, mask_mod, like)
    tensors = [as_kind(one, arrays, device, name) for name, one in traced.tensors.items()]
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    mask = traced.graphs["mask_mod"]
    counts = counted(mask, tensors, sizes, block, arrays, device)
    full = counts == block[0] * block[1]
    lists: list[Any] = []
    if separate_full_blocks:
        lists += [*ordered((counts > 0) & ~full), *ordered(full)]
    else:
        lists += [*ordered(counts > 0), None, None]
    made = BlockMask.from_kv_blocks(
        *lists, BLOCK_SIZE=block, mask_mod=mask_mod, seq_lengths=(Q_LEN, KV_LEN)
    )
    return made
