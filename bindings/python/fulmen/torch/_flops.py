"""Formulas of torch.utils.flop_counter for torch.ops.fulmen, put there once it is imported, which
takes a third of a second."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import torch

from fulmen._arguments import LENGTHS, LONGEST

_SHARED = 20  # arguments of all ops, before those of lengths: _ops.py
_COUNTER = "torch.utils.flop_counter"


def _numbers(tensor: torch.Tensor | None) -> list[int] | None:
    """The values; None if there are none to read, as of a fake tensor or one on meta."""
    if tensor is None or tensor.is_meta or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    return tensor.tolist()


def _rows(tensor: torch.Tensor, cu: torch.Tensor | None, longest: int | None) -> list[int]:
    """The length of each sequence; the most possible for packed ones whose bounds can't be read."""
    if cu is None:
        return [tensor.shape[1]] * tensor.shape[0]
    bounds = _numbers(cu)
    if bounds is None:
        return [longest] * (cu.shape[0] - 1)
    return [stop - start for start, stop in itertools.pairwise(bounds)]


def _pairs(args: tuple[Any, ...], given: tuple[Any, ...]) -> Iterator[tuple[int, int]]:
    """Queries and keys of each sequence. given: the arguments of lengths, or none."""
    q, k = args[:2]
    lengths = dict(zip((*LENGTHS, *LONGEST), given or (None,) * 9, strict=False))
    queries = _rows(q, lengths["cu_seqlens_q"], lengths["max_seqlen_q"])
    if lengths["cu_seqlens_k"] is not None:
        keys = _rows(k, lengths["cu_seqlens_k"], lengths["max_seqlen_k"])
    else:
        table = lengths["block_table"]
        stored = k.shape[1] if table is None else table.shape[1] * k.shape[1]
        ends = _numbers(lengths["seqlens_k"]) or [stored] * len(queries)
        begins = _numbers(lengths["leftpad_k"]) or [0] * len(queries)
        keys = [end - begin for begin, end in zip(begins, ends, strict=True)]
    yield from zip(queries, keys, strict=True)


def _forward(*args: Any, **_: Any) -> int:
    """The products q k^T and p v of all heads; like torch's formulas as if nothing were masked."""
    q, v = args[0], args[2]
    given = args[_SHARED:-1]  # behind them need_lse
    return sum(
        2 * q.shape[-2] * a * b * (q.shape[-1] + v.shape[-1]) for a, b in _pairs(args, given)
    )


def _backward(*args: Any, **_: Any) -> int:
    """The products q k^T and dout v^T, and those of dq, dk and dv that are wanted."""
    q, v, wanted = args[0], args[2], args[-1]
    given = args[_SHARED:-5]  # behind them out, lse, dout, dlse and wanted
    dims = q.shape[-1] + v.shape[-1]
    dims += sum(
        dim for bit, dim in enumerate((q.shape[-1], q.shape[-1], v.shape[-1])) if wanted >> bit & 1
    )
    return sum(2 * q.shape[-2] * a * b * dims for a, b in _pairs(args, given))


def register() -> None:
    """Makes the formulas known to torch.utils.flop_counter, and to its modes that are active, where
    it is imported."""
    counter = sys.modules.get(_COUNTER)
    if counter is None or not hasattr(counter, "FlopCounterMode"):
        return
    ops = torch.ops.fulmen
    formulas = {ops.attention: _forward, ops.attention_varlen: _forward}
    formulas |= {ops.attention_backward: _backward, ops.attention_varlen_backward: _backward}
    if ops.attention not in counter.flop_registry:
        counter.flop_registry.update(formulas)
    for mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack():
        # A mode keeps the formulas that were known when it was made.
        registry = getattr(getattr(mode, "counter", mode), "flop_registry", None)
        if registry is not None:
            for op, formula in formulas.items():
                registry.setdefault(op, formula)
