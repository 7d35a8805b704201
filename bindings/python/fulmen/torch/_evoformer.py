"""Evoformer attention by DeepSpeed's name and shapes.

Jumper et al. 2021, supplementary algorithms 7, 8, 13 and 14.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fulmen._arguments import rename
from fulmen._core import ArgumentError
from fulmen.torch._ops import cast_for_autocast
from fulmen.torch._pair_attention import attend, check_shape, check_tensor

_Tensor = torch.Tensor


def DS4Sci_EvoformerAttention(
    Q: _Tensor, K: _Tensor, V: _Tensor, biases: Sequence[_Tensor | None] = ()
) -> _Tensor:
    """deepspeed.ops.deepspeed4science.DS4Sci_EvoformerAttention: softmax(Q K^T / sqrt(D) + biases)
    V.

    Differentiable by Q, K, V and both biases.

    Args:
      Q, K, V: [B, N, S, H, D], float32, float16 or bfloat16, any strides whose last dim is
        contiguous; S may be 1 and more, D up to 248.
      biases: at most two, each may be None. The first, the mask bias, is [B, N, 1, 1, S]: bool,
        True is kept, or any float dtype, added to the scores. The second, the pair bias, is
        [B, 1, H, S, S], any float dtype (float64 is read as float32).

    Returns:
      [B, N, S, H, D], Q's dtype.

    Raises:
      TypeError, ArgumentError: an argument is wrong. NotImplementedError: D is too large.

    A kernel has one bias. A mask bias of floats becomes up to 10 more columns of Q, which are 1 or
    0, and of K, whose sum is the bias: copies of Q and K, and a longer product. Its numbers beyond
    +-60000 / sqrt(D) become that: such a key has no weight beside others, and a row whose keys all
    have -1e9 is the softmax of its other scores. A bool mask is read where it is, which is faster;
    a row that keeps no key is 0.
    """
    for name, tensor in (("Q", Q), ("K", K), ("V", V)):
        check_tensor(name, tensor)
        if tensor.dim() != 5:
            raise ArgumentError(f"{name} has {tensor.dim()} dims: [B, N, S, H, D] is accepted")
    if isinstance(biases, _Tensor) or len(biases) > 2:
        raise ArgumentError("biases is not a list of at most 2: [mask_bias, pair_bias] is accepted")
    mask_bias, pair_bias = (*biases, None, None)[:2]
    b, n, s, h, d = Q.shape
    check_shape("K", K, (b, n, s, h, d))
    check_shape("V", V, (b, n, s, h, d))
    if pair_bias is not None:
        check_tensor("biases[1]", pair_bias)
        check_shape("biases[1]", pair_bias, (b, 1, h, s, s))
    scale, keep_mask = d**-0.5 if d > 0 else 1.0, None
    if mask_bias is not None:
        check_tensor("biases[0]", mask_bias)
        check_shape("biases[0]", mask_bias, (b, n, 1, 1, s))
        if mask_bias.dtype == torch.bool:
            keep_mask = mask_bias
        elif mask_bias.is_floating_point():
            if torch.is_autocast_enabled(Q.device.type):
                Q, K, V = cast_for_autocast(Q.device.type, Q, K, V)
            Q, K = _with_bias_of_keys(Q, K, mask_bias.reshape(b, n, s, 1), scale)
        else:
            dtype = str(mask_bias.dtype).removeprefix("torch.")
            raise TypeError(f"biases[0] has dtype {dtype}: bool and floats are accepted")
    try:
        return attend(Q, K, V, pair_bias, keep_mask, scale, "bshd", False)[0]
    except (TypeError, ValueError, NotImplementedError) as error:
        rename(error, {"q": "Q", "k": "K", "v": "V", "bias": "biases[1]", "keep_mask": "biases[0]"})
        raise


# The most that such columns hold, near to what float16 does. Times a scale of 1 / sqrt(248) it is
# -3800 as a score, and exp(-3800) is 0 in float32.
_MOST_OF_COLUMNS = 60000.0
# By dtype: how many numbers of it have the sum of 22 bits or more.
_PIECES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


def _with_bias_of_keys(
    q: _Tensor, k: _Tensor, bias: _Tensor, scale: float
) -> tuple[_Tensor, _Tensor]:
    """q and k with columns whose product, times scale, is the bias of a key.

    q, k: [B, N, S, H, D]. bias: [B, N, S, 1]. The head dim becomes the next multiple of 8 that has
    the room, as kernels fill it up in any case.
    """
    pieces = _PIECES.get(q.dtype, 1)
    width = -(q.shape[-1] + pieces) % 8 + pieces
    rest = (bias.float() / scale).clamp(-_MOST_OF_COLUMNS, _MOST_OF_COLUMNS)
    columns = []
    for _ in range(pieces):
        columns.append(rest.to(k.dtype))
        rest = rest - columns[-1].float()
    columns += [torch.zeros_like(columns[0])] * (width - pieces)
    of_k = torch.stack(columns, -1).expand(*k.shape[:-1], width)
    of_q = (torch.arange(width, device=q.device) < pieces).to(q.dtype).expand(*q.shape[:-1], width)
    return torch.cat((q, of_q), -1), torch.cat((k, of_k), -1)
