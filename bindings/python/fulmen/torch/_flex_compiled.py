"""flex_attention while torch.compile reads it.

Functions are then read by torch: its compiler makes a graph of each, with the tensors that they
capture as inputs, for the operator of its own flex_attention. This one has the same form, takes
the graphs, and is torch.ops.fulmen.flex_attention in what is compiled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import HigherOrderOperator

from fulmen.flex._attention import checked, read_options, returned, wanted_aux
from fulmen.flex._block_mask import noop_mask
from fulmen.flex._problem import lists_of, with_lists
from fulmen.flex._trace import read
from fulmen.torch._flex import on_device, run


class _Lists:
    """A BlockMask's fields, as as_tuple() has them."""

    def __init__(self, fields: tuple[Any, ...]) -> None:
        self.seq_lengths = fields[:2]
        self.kv_num_blocks, self.kv_indices = fields[2:4]
        self.full_kv_num_blocks, self.full_kv_indices = fields[4:6]
        self.BLOCK_SIZE = fields[-3:-1]


class _FlexAttention(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("fulmen_flex_attention")
        # torch's compiler knows how to read the functions of an operator by its name.
        self.__name__ = "flex_attention"
        self.__module__ = __name__

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        score_mod: Any,
        block_mask: tuple[Any, ...],
        scale: Any,
        kernel_options: dict[str, Any],
        score_mod_tensors: tuple[Any, ...] = (),
        mask_mod_tensors: tuple[Any, ...] = (),
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        options = dict(kernel_options)
        want_lse, want_max = options.pop("WANT_LSE"), options.pop("WANT_MAX")
        both = read(
            _with(score_mod, score_mod_tensors), _with(block_mask[-1], mask_mod_tensors), query
        )
        mask = _Lists(block_mask)
        sizes = (*query.shape[:3], key.shape[2])
        lists = () if options.pop("NO_MASK") else lists_of(mask, sizes)
        made, both = with_lists(both, lists, mask.BLOCK_SIZE, sizes)
        made = on_device(made, query)
        out, lse, top = run(
            query, key, value, made, both, scale, read_options(options), (want_lse, want_max)
        )
        nothing = query.new_empty(0, dtype=torch.float32)
        return out, nothing if lse is None else lse, nothing if top is None else top


def _with(function: Any, tensors: tuple[Any, ...]) -> Any:
    def call(*given: Any) -> Any:
        found = function(*given, *tensors)
        return found[0] if isinstance(found, tuple | list) else found

    return call


_operator = _FlexAttention()


def _same(score: Any, *_: Any) -> Any:
    return score


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Any,
    block_mask: Any,
    scale: Any,
    enable_gqa: bool,
    return_lse: bool,
    kernel_options: Any,
    return_aux: Any,
) -> Any:
    want_lse, want_max = wanted_aux(return_lse, return_aux)
    checked(query, key, value, block_mask, enable_gqa)
    options = dict(kernel_options or {})
    options["WANT_LSE"], options["WANT_MAX"] = want_lse, want_max
    options["NO_MASK"] = block_mask is None
    if block_mask is None:
        fields = (0, 0, *(None,) * 8, 0, 0, noop_mask)
    else:
        fields = block_mask.as_tuple()
    out, lse, top = _operator(
        query, key, value, _same if score_mod is None else score_mod, fields, scale, options
    )
    return returned(
        out, lse if want_lse else None, top if want_max else None, return_lse, return_aux
    )
