"""Which kernel a call of flex_attention runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fulmen._numbers import is_of_torch
from fulmen.flex import _kernel
from fulmen.flex._attention import checked, host_problem, in_batch, read_options, with_names

_LEFT_OUT = "  block_mask: its lists of blocks say nothing more than the band of mask_mod: left out"


def explain(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Callable[..., Any] | None = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    kernel_options: Mapping[str, Any] | None = None,
    *,
    backward: bool = False,
) -> str:
    """Which kernel flex_attention runs for such arguments of torch or NumPy, and why each other
    does not, in words; with backward: its gradients, also those of torch's tensors that the
    functions read and that require them. Of their data a call reads no more than the lists of a
    block_mask whose mask_mod is a band.

    The arguments are those of flex_attention, and so are the errors.
    """
    options = read_options(kernel_options)
    sizes = checked(query, key, value, block_mask, enable_gqa)
    try:
        if is_of_torch(query):
            from fulmen.torch._flex import as_kernels_read, torch_problem

            made, _ = torch_problem(query, score_mod, block_mask, sizes)
            query, key, value, scale = as_kernels_read(query, key, value, scale)
        else:
            made, _ = host_problem(query, score_mod, block_mask, sizes)
            key, value = in_batch(key, value, sizes[0])
        gradients = {
            # A gradient has the shape and dtype of its tensor.
            name: tensor.detach()
            for name, tensor in zip(made.names, made.tensors, strict=True)
            if backward and getattr(tensor, "requires_grad", False)
        }
        said = _kernel.explain(
            query, key, value, made, scale, options, backward, 7 if backward else 0, gradients
        )
        first, line, rest = said.partition("\n")
        return f"{first}\n{_LEFT_OUT}{line}{rest}" if made.left_out else said
    except (TypeError, ValueError, NotImplementedError) as error:
        with_names(error)
        raise
