"""Triangle attention of pair representations by cuEquivariance's name and shapes.

Jumper et al. 2021, supplementary algorithms 13 and 14.
"""

from __future__ import annotations

from typing import Any

import torch

from fulmen._arguments import rename
from fulmen._core import ArgumentError, max_head_dim, max_head_dim_v
from fulmen.torch._frontend import _flag
from fulmen.torch._pair_attention import (
    as_under_autocast,
    attend,
    check_bias,
    check_device,
    check_head_dim,
    check_shape,
    check_tensor,
    name_of_dtype,
)

_Tensor = torch.Tensor


def triangle_attention(
    q: _Tensor,
    k: _Tensor,
    v: _Tensor,
    bias: _Tensor,
    mask: _Tensor | None = None,
    scale: float | None = None,
    return_aux: bool = False,
    *,
    kv_lengths: _Tensor | None = None,
) -> Any:
    """cuequivariance_torch.triangle_attention, with its arguments: softmax(scale * q k^T + bias) v.

    The bias is that of a batch, shared by its N rows; a masked key has no weight. Differentiable by
    q, k, v and bias, whose gradient is the sum over the rows, and by lse.

    Args:
      q: [B, N, H, Q, D], float32, float16 or bfloat16; D 1 to 576. For B = 1 each tensor may also
        be without its first dim. Any strides; nothing is copied where B and N are one dim of the
        memory, as in [B, N, Q, H, D], and the last dim is contiguous.
      k: [B, N, H, K, D], q's dtype.
      v: [B, N, H, K, D of v], q's dtype.
      bias: [B, 1, H, Q, K], any float dtype, read as it is (float64 as float32). Its gradient has
        its dtype.
      mask: [B, N, 1, 1, K], any dtype: not 0 is kept.
      scale: None is 1 / sqrt(D).
      return_aux: also return lse and max.
      kv_lengths: [B, N, 1, 1, 1], integers on q's device: the first kv_lengths keys of a row are
        kept, all keys where it is more than K. In GPU memory negative numbers are not refused: they
        are 0. Not beside a mask.

    Returns:
      out: [B, N, H, Q, D of v], q's dtype. A row that keeps no key is 0, as cuEquivariance's rows
      of length 0; its formula for a mask, -1e9 in place of each score, is the mean of v.
      With return_aux (out, lse, max): lse [B, N, H, Q], float32, the natural log of the sum of
      exp(score) over the kept keys; max, of the same shape, their largest score. A row without
      keys has -inf in both, where cuEquivariance has 0 in both for a row of length 0. No kernel
      gives max: torch computes it from another product q k^T, in float64 so that neither autocast
      nor TF32 rounds it, without a gradient.

    Raises:
      TypeError, ArgumentError: an argument is wrong.

    With B > 1 and N > 1 there is one call of fulmen.attention for each element of the batch, as no
    view of such a bias is a broadcast [B * N, H, Q, K]; else there is one call.
    """
    return_aux = _flag("return_aux", return_aux)
    given = {"q": q, "k": k, "v": v, "bias": bias, "mask": mask, "kv_lengths": kv_lengths}
    q, k, v, bias, mask, kv_lengths = (
        _in_five_dims(name, tensor) for name, tensor in given.items()
    )
    if mask is not None and kv_lengths is not None:
        raise ArgumentError("mask and kv_lengths are given: one of the two is accepted")
    (b, n, h, rows, d), keys = q.shape, k.shape[3]
    check_shape("k", k, (b, n, h, keys, d))
    check_shape("v", v, (b, n, h, keys, v.shape[4]))
    check_bias("bias", bias, "q", q, (b, 1, h, rows, keys))
    check_head_dim("q", q, max_head_dim)
    check_head_dim("v", v, max_head_dim_v)
    if mask is not None:
        check_shape("mask", mask, (b, n, 1, 1, keys))
        mask = mask if mask.dtype == torch.bool else mask != 0
    if kv_lengths is not None:
        check_shape("kv_lengths", kv_lengths, (b, n, 1, 1, 1))
        mask = _mask_of_lengths(kv_lengths, q, keys)
    if h == 0:  # nothing to compute, which no kernel takes
        scores = q @ k.transpose(-1, -2) + bias.to(q.dtype)
        empty = scores.sum(-1).float()
        return (scores @ v, empty, empty.detach()) if return_aux else scores @ v
    mask_name = "mask" if kv_lengths is None else "kv_lengths"
    try:
        out, lse = attend(q, k, v, bias, mask, scale, "bhsd", return_aux)
    except (TypeError, ValueError, NotImplementedError) as error:
        rename(error, {"keep_mask": mask_name, "softmax_scale": "scale"})
        raise
    return (out, lse, _largest_scores(q, k, bias, mask, scale)) if return_aux else out


def _mask_of_lengths(kv_lengths: _Tensor, q: _Tensor, keys: int) -> _Tensor:
    dtype = kv_lengths.dtype
    if dtype == torch.bool or dtype.is_floating_point or dtype.is_complex:
        raise TypeError(f"kv_lengths has dtype {name_of_dtype(dtype)}: integers are accepted")
    check_device("kv_lengths", kv_lengths, "q", q)
    if _is_readable(kv_lengths) and (kv_lengths < 0).any():
        raise ArgumentError(f"kv_lengths has {int(kv_lengths.min())}: 0 and more is accepted")
    return torch.arange(keys, device=kv_lengths.device) < kv_lengths


def _is_readable(tensor: _Tensor) -> bool:
    """Whether a value can be read without waiting for a GPU, and is not traced."""
    return (
        not torch.compiler.is_compiling()
        and type(tensor) is _Tensor
        and tensor.device.type == "cpu"
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._get_tracing_state() is None
    )


_MOST_SCORES = 8 << 20  # that are in memory at the same time, 64 MiB of float64


@torch.no_grad()
def _largest_scores(
    q: _Tensor, k: _Tensor, bias: _Tensor, mask: _Tensor | None, scale: float | None
) -> _Tensor:
    """The largest of each row's kept scores, [B, N, H, Q], by parts of the N rows."""
    b, n, h, rows, d = q.shape
    keys = k.shape[3]
    if keys == 0:
        return q.new_full((b, n, h, rows), -torch.inf, dtype=torch.float32)
    scale = d**-0.5 if scale is None else scale
    q, k = as_under_autocast(q, k)
    step = max(1, _MOST_SCORES // max(1, b * h * rows * keys))
    masks = [None] * n if mask is None else mask.split(step, 1)
    largest = []
    for q_part, k_part, mask_part in zip(q.split(step, 1), k.split(step, 1), masks, strict=False):
        scores = q_part.double() @ k_part.double().transpose(-1, -2) * scale + bias.double()
        if mask_part is not None:
            scores = scores.masked_fill(~mask_part, -torch.inf)
        largest.append(scores.amax(-1).float())
    return torch.cat(largest, 1) if largest else q.new_empty((b, n, h, rows), dtype=torch.float32)


def _in_five_dims(name: str, tensor: Any) -> Any:
    """The tensor with B in front; None as it is where it may be left out."""
    if tensor is None and name in ("mask", "kv_lengths"):
        return None
    check_tensor(name, tensor)
    if tensor.dim() not in (4, 5):
        raise ArgumentError(f"{name} has {tensor.dim()} dims: 5 are accepted, and 4 where B is 1")
    return tensor.unsqueeze(0) if tensor.dim() == 4 else tensor
