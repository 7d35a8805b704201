"""Attention of B * N sequences whose bias the N share, and checks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fulmen._core import ArgumentError
from fulmen._functions import attention
from fulmen.torch._ops import cast_for_autocast, last_dim_contiguous

_Tensor = torch.Tensor


def attend(
    q: _Tensor,
    k: _Tensor,
    v: _Tensor,
    bias: _Tensor | None,
    keep_mask: _Tensor | None,
    scale: float | None,
    layout: str,
    want_lse: bool,
) -> tuple[_Tensor, _Tensor | None]:
    """Out and lse of q, k and v in that layout behind [B, N]; lse is None unless wanted.

    bias: [B, 1, H, Q, K]. keep_mask: [B, N, 1, 1, K].
    """
    b, n = q.shape[:2]
    if bias is not None and bias.dtype == torch.float64:
        bias = bias.float()
    tensors = [None if t is None else last_dim_contiguous(t) for t in (q, k, v, bias, keep_mask)]
    # The bias of a larger batch repeats along N alone: no view of it has b * n sequences.
    is_one_call = bias is None or b <= 1 or n == 1
    split = _as_sequences if is_one_call else _by_batch
    results = [
        attention(
            *one[:3],
            bias=one[3],
            keep_mask=one[4],
            softmax_scale=scale,
            layout=layout,
            return_lse=want_lse,
        )
        for one in zip(*(split(t, b) for t in tensors), strict=True)
    ]
    outs, lses = zip(*results, strict=True) if want_lse else (results, None)
    if is_one_call:
        return outs[0].unflatten(0, (b, n)), lses[0].unflatten(0, (b, n)) if want_lse else None
    return torch.stack(outs), torch.stack(lses) if want_lse else None


def _as_sequences(tensor: _Tensor | None, b: int) -> list[_Tensor | None]:
    """The tensor with B and N as one dim."""
    return [None if tensor is None else tensor.flatten(0, 1)]


def _by_batch(tensor: _Tensor | None, b: int) -> Sequence[_Tensor | None]:
    return [None] * b if tensor is None else tensor.unbind(0)


def check_tensor(name: str, tensor: Any) -> None:
    if not isinstance(tensor, _Tensor):
        raise TypeError(f"{name} is of type {type(tensor).__name__}: a torch tensor is needed")


def name_of_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_bias(name: str, bias: _Tensor, q_name: str, q: _Tensor, shape: tuple[int, ...]) -> None:
    check_tensor(name, bias)
    check_shape(name, bias, shape)
    if bias.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        raise TypeError(
            f"{name} has dtype {name_of_dtype(bias.dtype)}: float32, float16, bfloat16 and "
            "float64 are accepted"
        )
    check_device(name, bias, q_name, q)


def check_device(name: str, tensor: _Tensor, q_name: str, q: _Tensor) -> None:
    if tensor.device != q.device:
        raise ArgumentError(
            f"{name} is on {tensor.device}, {q_name} on {q.device}: one device is needed"
        )


def check_head_dim(name: str, tensor: _Tensor, most: int) -> None:
    if not 1 <= tensor.shape[-1] <= most:
        raise ArgumentError(f"{name} has head_dim {tensor.shape[-1]}: 1 to {most} is accepted")


def as_under_autocast(*tensors: _Tensor) -> tuple[_Tensor, ...]:
    """The tensors in the dtype that attention reads them in."""
    device = tensors[0].device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        return cast_for_autocast(device, *tensors)
    return tensors


def check_shape(name: str, tensor: _Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise ArgumentError(f"{name} has shape {list(tensor.shape)}: {list(shape)} is accepted")
