"""Biases that are a band about the diagonal of the whole call, and the matrices that biases stand
for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fulmen._core import ArgumentError


class Band(NamedTuple):
    """fulmen.attention's options."""

    causal: str = "none"
    window_left: int = -1
    window_right: int = -1


def attended_keys(seqlen_q: int, seqlen_k: int, band: Band, device: Any) -> torch.Tensor:
    offset = 0 if band.causal == "top_left" else seqlen_k - seqlen_q
    distance = (
        torch.arange(seqlen_k, device=device)
        - torch.arange(seqlen_q, device=device)[:, None]
        - offset
    )
    attended = torch.ones_like(distance, dtype=torch.bool)
    if band.window_left >= 0:
        attended &= distance >= -band.window_left
    right = band.window_right if band.causal == "none" else 0
    return attended & (distance <= right) if right >= 0 else attended


def added_matrix(attended: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return (
        torch.zeros_like(attended, dtype=dtype)
        .masked_fill(~attended, -torch.inf)
        .expand(tuple(shape))
    )


class AttentionBias:
    """A bias that memory_efficient_attention takes as attn_bias.

    A user's class implements materialize().
    """

    def materialize(
        self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: Any = "cpu"
    ) -> torch.Tensor:
        """The matrix that is added to the scores, [..., seqlen_q, seqlen_k]: 0, or -inf where a key
        is not attended."""
        return added_matrix(attended_keys(shape[-2], shape[-1], self._band(), device), shape, dtype)

    def to(self, device: Any) -> Any:
        return self

    def _band(self) -> Band:
        raise NotImplementedError(f"{type(self).__name__} has no materialize()")


class LowerTriangularMask(AttentionBias):
    """Causal: the first query is on the diagonal with the first key."""

    def __init__(self, *tensor_args: Any, **tensor_kwargs: Any) -> None:
        pass

    def add_bias(self, bias: torch.Tensor) -> LowerTriangularMaskWithTensorBias:
        return LowerTriangularMaskWithTensorBias(bias)

    def _band(self) -> Band:
        return Band("top_left")


class LowerTriangularMaskWithTensorBias(LowerTriangularMask):
    """The same, and a tensor [batch, heads, seqlen_q, seqlen_k] that is added to the scores."""

    def __init__(self, bias: torch.Tensor) -> None:
        self._bias = bias

    def to(self, device: Any) -> LowerTriangularMaskWithTensorBias:
        return LowerTriangularMaskWithTensorBias(self._bias.to(device))

    def materialize(
        self, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: Any = "cpu"
    ) -> torch.Tensor:
        return super().materialize(shape, dtype, device) + self._bias.to(device, dtype)


class LowerTriangularFromBottomRightMask(AttentionBias):
    """Causal: the last query is on the diagonal with the last key."""

    def make_local_attention(
        self, window_size: int
    ) -> LowerTriangularFromBottomRightLocalAttentionMask:
        return LowerTriangularFromBottomRightLocalAttentionMask(window_size)

    def _band(self) -> Band:
        return Band("bottom_right")


@dataclass
class LowerTriangularFromBottomRightLocalAttentionMask(LowerTriangularFromBottomRightMask):
    """The same, and of the keys up to the diagonal only the last _window_size."""

    _window_size: int

    def __post_init__(self) -> None:
        check_window(self._window_size)

    def _band(self) -> Band:
        return Band("bottom_right", self._window_size - 1)


@dataclass
class LocalAttentionFromBottomRightMask(AttentionBias):
    """window_left keys before and window_right behind the diagonal, which ends at the last key."""

    window_left: int
    window_right: int

    def __post_init__(self) -> None:
        for name in ("window_left", "window_right"):
            if getattr(self, name) < 0:
                raise ArgumentError(f"{name} is {getattr(self, name)}: 0 or more is accepted")

    def _band(self) -> Band:
        return Band("none", self.window_left, self.window_right)


def check_window(size: int) -> None:
    if size <= 0:
        raise ArgumentError(f"window_size is {size}: 1 or more is accepted")
