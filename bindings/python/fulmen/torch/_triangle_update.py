"""What the stand-in for cuequivariance_torch has beside triangle attention, by plain torch."""

from __future__ import annotations

import enum
from typing import Any

import torch

from fulmen._core import ArgumentError
from fulmen.torch._pair_attention import check_device, check_shape, check_tensor, name_of_dtype

_Tensor = torch.Tensor


class TriMulPrecision(enum.IntEnum):
    """cuequivariance_torch.TriMulPrecision: names of precisions, which change nothing here."""

    NONE = -1
    DEFAULT = 0
    TF32 = 1
    TF32x3 = 2
    IEEE = 3


def mask_to_kv_lengths(mask: _Tensor) -> _Tensor:
    """How many keys each row of a mask keeps, for triangle_attention's kv_lengths.

    Args:
      mask: [B, N, 1, 1, K], or without its first dims where they are 1; any dtype, not 0 is kept.
        The kept keys of a row are its first ones.

    Returns:
      [B, N, 1, 1, 1], int32.

    Raises:
      TypeError, ArgumentError: mask is wrong, or a key that is kept is behind one that is not. On a
        GPU this waits for the mask.
    """
    check_tensor("mask", mask)
    if not 1 <= mask.dim() <= 5:
        raise ArgumentError(f"mask has {mask.dim()} dims: 5 are accepted, [B, N, 1, 1, K]")
    kept = (mask != 0)[(None,) * (5 - mask.dim())]
    if kept.shape[2:4] != (1, 1):
        raise ArgumentError(f"mask has shape {list(mask.shape)}: [B, N, 1, 1, K] is accepted")
    lengths = kept.sum(-1, keepdim=True, dtype=torch.int32)
    if not torch.equal(kept, torch.arange(kept.shape[-1], device=kept.device) < lengths):
        raise ArgumentError("mask keeps a key behind one that it does not keep: no length says so")
    return lengths


def triangle_multiplicative_update(
    x: _Tensor,
    direction: str = "outgoing",
    mask: _Tensor | None = None,
    norm_in_weight: _Tensor | None = None,
    norm_in_bias: _Tensor | None = None,
    p_in_weight: _Tensor | None = None,
    p_in_bias: _Tensor | None = None,
    g_in_weight: _Tensor | None = None,
    g_in_bias: _Tensor | None = None,
    norm_out_weight: _Tensor | None = None,
    norm_out_bias: _Tensor | None = None,
    p_out_weight: _Tensor | None = None,
    p_out_bias: _Tensor | None = None,
    g_out_weight: _Tensor | None = None,
    g_out_bias: _Tensor | None = None,
    eps: float = 1e-5,
    precision: Any = None,
) -> _Tensor:
    """The triangle multiplicative update by torch's operations, for the stand-in.

    Jumper et al. 2021, supplementary algorithms 11 (outgoing) and 12 (incoming):

        y = norm_in(x),  (a, b) = mask * p_in(y) * sigmoid(g_in(y))
        t_ij = sum_k a_ik b_jk  (outgoing),  sum_k a_ki b_kj  (incoming)
        result = p_out(norm_out(t)) * sigmoid(g_out(y))

    Args:
      x: [..., N, N, C], of floats. mask: [..., N, N], any dtype, a factor.
      p_in_weight, g_in_weight: [2 D, C]. p_out_weight: [C, D]. g_out_weight: [C, C]. All are
          needed: here None is not an identity.
      norm_in_weight, norm_in_bias: [C]; norm_out_weight, norm_out_bias: [D]; p_in_bias, g_in_bias:
        [2 D]; p_out_bias, g_out_bias: [C]. None is no such factor or summand.
      precision: "bfloat16" rounds x, mask, weights and biases to bfloat16 first. None and the
        members of TriMulPrecision change nothing: torch's own setting of TF32 counts.

    Weights of another dtype are cast to x's. The norms are computed in float32 (float64 where x has
    it), products in x's dtype or autocast's.

    Returns:
      [..., N, N, C], x's dtype.

    Raises:
      TypeError, ArgumentError: an argument is wrong.
    """
    vectors = {
        "norm_in_weight": norm_in_weight,
        "norm_in_bias": norm_in_bias,
        "p_in_bias": p_in_bias,
        "g_in_bias": g_in_bias,
        "norm_out_weight": norm_out_weight,
        "norm_out_bias": norm_out_bias,
        "p_out_bias": p_out_bias,
        "g_out_bias": g_out_bias,
    }
    matrices = {
        "p_in_weight": p_in_weight,
        "g_in_weight": g_in_weight,
        "p_out_weight": p_out_weight,
        "g_out_weight": g_out_weight,
    }
    _check(x, direction, mask, vectors, matrices, precision)
    dtype = torch.bfloat16 if _is_bfloat16(precision) else x.dtype
    y = x.to(dtype)
    w = {
        name: None if one is None else one.to(dtype)
        for name, one in {**vectors, **matrices}.items()
    }

    def linear(rows: _Tensor, name: str) -> _Tensor:
        return torch.nn.functional.linear(rows, w[f"{name}_weight"], w[f"{name}_bias"])

    def norm(rows: _Tensor, name: str) -> _Tensor:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        factors = [
            None if one is None else one.to(wide)
            for one in (w[f"{name}_weight"], w[f"{name}_bias"])
        ]
        normalised = torch.nn.functional.layer_norm(rows.to(wide), rows.shape[-1:], *factors, eps)
        return normalised.to(dtype)

    y = norm(y, "norm_in")
    ab = linear(y, "p_in") * linear(y, "g_in").sigmoid()
    if mask is not None:
        ab = ab * mask.unsqueeze(-1).to(ab.dtype)
    a, b = ab.chunk(2, -1)
    sums = "...ikd,...jkd->...ijd" if direction == "outgoing" else "...kid,...kjd->...ijd"
    t = norm(torch.einsum(sums, a, b), "norm_out")
    return (linear(t, "p_out") * linear(y, "g_out").sigmoid()).to(x.dtype)


def _is_bfloat16(precision: Any) -> bool:
    return isinstance(precision, str) and precision == "bfloat16"


def _check(
    x: _Tensor,
    direction: str,
    mask: _Tensor | None,
    vectors: dict[str, _Tensor | None],
    matrices: dict[str, _Tensor | None],
    precision: Any,
) -> None:
    """Refuses what is wrong, by its name."""
    if direction not in ("outgoing", "incoming"):
        raise ArgumentError(f'direction is {direction!r}: "outgoing" or "incoming" is accepted')
    # cuEquivariance's own enumeration, too.
    if not (precision is None or isinstance(precision, enum.IntEnum) or _is_bfloat16(precision)):
        raise ArgumentError(
            f'precision is {precision!r}: None, "bfloat16" and a TriMulPrecision are accepted'
        )
    check_tensor("x", x)
    if x.dim() < 3 or x.shape[-2] != x.shape[-3]:
        raise ArgumentError(f"x has shape {list(x.shape)}: [..., N, N, C] is accepted")
    if not x.is_floating_point():
        raise TypeError(f"x has dtype {name_of_dtype(x.dtype)}: floats are accepted")
    if mask is not None:
        check_tensor("mask", mask)
        check_shape("mask", mask, tuple(x.shape[:-1]))
        check_device("mask", mask, "x", x)
    for name, weight in matrices.items():
        if weight is None:
            raise TypeError(f"{name} is None: a tensor is needed")
        check_tensor(name, weight)
    c, p_in = x.shape[-1], list(matrices["p_in_weight"].shape)  # type: ignore[union-attr]
    if len(p_in) != 2 or p_in[0] % 2 != 0:
        raise ArgumentError(f"p_in_weight has shape {p_in}: [2 D, {c}] is accepted")
    width = p_in[0]
    shapes = {
        "p_in_weight": (width, c),
        "g_in_weight": (width, c),
        "p_out_weight": (c, width // 2),
        "g_out_weight": (c, c),
        **dict.fromkeys(("p_in_bias", "g_in_bias"), (width,)),
        **dict.fromkeys(("norm_out_weight", "norm_out_bias"), (width // 2,)),
        **dict.fromkeys(("norm_in_weight", "norm_in_bias", "p_out_bias", "g_out_bias"), (c,)),
    }
    for name, tensor in {**matrices, **vectors}.items():
        if tensor is not None:
            check_tensor(name, tensor)
            check_shape(name, tensor, shapes[name])
            check_device(name, tensor, "x", x)
