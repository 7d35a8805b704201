"""Torch tensors for the functions of the package."""

from __future__ import annotations

from typing import Any

import torch

from fulmen import _core
from fulmen._arguments import Framework


def _forward(tensors: tuple[Any, ...], options: tuple[Any, ...], device: str | None, bhsd: bool, want_lse: bool) -> Any:
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise NotImplementedError(
            "an input requires grad: call attention() under torch.no_grad(), attention_backward() for gradients"
        )
    return _core.forward(tensors, options, device, bhsd, want_lse)


FRAMEWORK = Framework(
    forward=_forward,
    backward=_core.backward,
    to_host=lambda tensor: tensor.detach().cpu(),
    from_host=lambda array, like: torch.from_numpy(array).to(like.device),
)
