"""Evoformer attention by DeepSpeed's name and shapes.

Jumper et al. 2021, supplementary algorithms 7, 8, 13 and 14.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fulmen._arguments import rename
from fulmen._core import ArgumentError, max_head_dim_v
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


def DS4Sci_EvoformerAttention(
    Q: _Tensor, K: _Tensor, V: _Tensor, biases: Sequence[_Tensor | None] = ()
) -> _Tensor:
    """deepspeed.ops.deepspeed4science.DS4Sci_EvoformerAttention: softmax(Q K^T / sqrt(D) + biases)
    V.

    Differentiable by Q, K, V and both biases.

    Args:
      Q, K, V: [B, N, S, H, D], float32, float16 or bfloat16, any strides whose last dim is
        contiguous; S may be 1 and more, D up to 512.
      biases: at most two, each may be None. The first, the mask bias, is [B, N, 1, 1, S]: bool,
        True is kept, or any float dtype, added to the scores. The second, the pair bias, is
        [B, 1, H, S, S], any float dtype (float64 is read as float32).

    Returns:
      [B, N, S, H, D], Q's dtype.

    Raises:
      TypeError, ArgumentError: an argument is wrong.

    A kernel has one bias. A mask bias of floats becomes up to 10 more columns of Q, which are 1 or
    0, and of K, whose sum is the bias less the row's largest: copies of Q and K, and a longer
    product. Differences beyond 60000 / sqrt(D) become that; such keys have no weight. A row whose
    keys all have -1e9, or -inf, is the softmax of its other scores. A bool mask is read where it
    is, which is faster; a row that keeps no key is 0.
    """
    for name, tensor in (("Q", Q), ("K", K), ("V", V)):
        check_tensor(name, tensor)
        if tensor.dim() != 5:
            raise ArgumentError(f"{name} has {tensor.dim()} dims: [B, N, S, H, D] is accepted")
    if not isinstance(biases, list | tuple):
        raise TypeError(
            f"biases is of type {type(biases).__name__}: a list, [mask_bias, pair_bias], is "
            "accepted"
        )
    if len(biases) > 2:
        raise ArgumentError("biases is not a list of at most 2: [mask_bias, pair_bias] is accepted")
    mask_bias, pair_bias = (*biases, None, None)[:2]
    b, n, s, h, d = Q.shape
    check_shape("K", K, (b, n, s, h, d))
    check_shape("V", V, (b, n, s, h, d))
    check_head_dim("Q", Q, max_head_dim_v)
    if pair_bias is not None:
        check_bias("biases[1]", pair_bias, "Q", Q, (b, 1, h, s, s))
    scale, keep_mask = d**-0.5, None
    if mask_bias is not None:
        check_tensor("biases[0]", mask_bias)
        check_shape("biases[0]", mask_bias, (b, n, 1, 1, s))
        check_device("biases[0]", mask_bias, "Q", Q)
        if mask_bias.dtype == torch.bool:
            keep_mask = mask_bias
        elif mask_bias.is_floating_point():
            Q, K, V = as_under_autocast(Q, K, V)
            Q, K = _with_bias_of_keys(Q, K, mask_bias.reshape(b, n, s, 1), scale)
        else:
            raise TypeError(
                f"biases[0] has dtype {name_of_dtype(mask_bias.dtype)}: bool and floats are "
                "accepted"
            )
    try:
        return attend(Q, K, V, pair_bias, keep_mask, scale, "bshd", False)[0]
    except (TypeError, ValueError, NotImplementedError) as error:
        rename(error, {"q": "Q", "k": "K", "v": "V", "bias": "biases[1]", "keep_mask": "biases[0]"})
        raise


# The most that such columns hold, near to what float16 does. Times a scale of 1 / sqrt(255) it is
# -3750 as a score, and exp(-3750) is 0 in float32.
_MOST_OF_COLUMNS = 60000.0
# By dtype: how many numbers of it represent a float32 as their sum, to 22 bits or more.
_PIECES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


def _with_bias_of_keys(
    q: _Tensor, k: _Tensor, bias: _Tensor, scale: float
) -> tuple[_Tensor, _Tensor]:
    """q and k with columns whose product, times scale, is the bias of a key less the largest of
    the row, which leaves the softmax as it is.

    q, k: [B, N, S, H, D]. bias: [B, N, S, 1]. With the columns the head dim is a
    multiple of 8: kernels pad it to one in any case. q and k may be wider than v by as many.
    """
    pieces = _PIECES.get(q.dtype, 1)
    width = -(q.shape[-1] + pieces) % 8 + pieces
    bias = bias if bias.dtype == torch.float64 else bias.float()
    if bias.shape[2] > 0:
        largest = bias.detach().amax(2, keepdim=True)
        bias = bias - largest.where(largest.isfinite(), 0.0)
    rest = (bias.float() / scale).clamp(-_MOST_OF_COLUMNS, _MOST_OF_COLUMNS)
    columns = []
    for _ in range(pieces):
        columns.append(rest.to(k.dtype))
        rest = rest - columns[-1].float()
    columns += [torch.zeros_like(columns[0])] * (width - pieces)
    of_k = torch.stack(columns, -1).expand(*k.shape[:-1], width)
    of_q = (torch.arange(width, device=q.device) < pieces).to(q.dtype).expand(*q.shape[:-1], width)
    return torch.cat((q, of_q), -1), torch.cat((k, of_k), -1)
