"""FlexAttention: attention with a function that changes scores, and one that masks them; the names
and arguments are those of torch.nn.attention.flex_attention.

The functions are Python. They are read once, with traced values, and become a part of the kernel
(docs/guide/flex.md). text() shows what was read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fulmen.flex._attention import AuxOutput, AuxRequest, flex_attention
from fulmen.flex._block_mask import BlockMask, noop_mask
from fulmen.flex._create import and_masks, create_block_mask, or_masks
from fulmen.flex._explain import explain
from fulmen.flex._refusal import TraceError


def text(
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    like: Any = None,
) -> str:
    """What Fulmen reads a score_mod, or a mask_mod, as: a function in the language of
    docs/guide/score_functions.md. x0, x1, ... are the tensors that it captures.

    like: an array of the queries' kind; None: what dtype and device of traced values say is
    NumPy's. Of JAX arrays functions are traced by JAX.
    """
    from fulmen.flex._problem import traced

    if (score_mod is None) == (mask_mod is None):
        raise TypeError("text() takes a score_mod or a mask_mod")
    if type(like).__module__.split(".")[0] in ("jax", "jaxlib"):
        from fulmen.jax._flex_trace import traced
    found = traced(score_mod, mask_mod, like)
    return found.score_mod or found.mask_mod


__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "TraceError",
    "and_masks",
    "create_block_mask",
    "explain",
    "flex_attention",
    "noop_mask",
    "or_masks",
    "text",
]
