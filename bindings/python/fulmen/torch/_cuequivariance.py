"""Fulmen's triangle attention under the name cuequivariance_torch.triangle_attention, for programs
that import it from there.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from fulmen._core import ArgumentError
from fulmen.torch._triangle import triangle_attention

_PACKAGE = "cuequivariance_torch"
_KERNELS = "cuequivariance_ops_torch"  # what cuequivariance_torch calls
_MODULES = (_PACKAGE, f"{_PACKAGE}.primitives", f"{_PACKAGE}.primitives.triangle")

# What uninstall_cuequivariance() puts back: (module, name, object); and names in sys.modules.
_replaced: list[tuple[ModuleType, str, Any]] = []
_made: list[str] = []


def install_cuequivariance(stand_in: bool = False) -> None:
    """Makes cuequivariance_torch.triangle_attention fulmen.torch.triangle_attention, in this
    process.

    For programs that import it by name, as the package boltz does where its layers are called with
    use_kernels=True. On a device without NVIDIA's kernels they run unchanged. Modules that have
    imported the function already keep the one they have.

    Args:
      stand_in: where cuequivariance_torch is not installed, a module takes its place, with
        triangle_attention and, by plain torch, triangle_multiplicative_update. Where it is
        installed without its kernels (cuequivariance_ops_torch), the latter is replaced, too.

    Raises:
      RuntimeError: cuequivariance_torch is not installed, and stand_in is False.

    A second call does nothing. uninstall_cuequivariance() takes it back.
    """
    if _replaced or _made:
        return
    ours: dict[str, Any] = {"triangle_attention": triangle_attention}
    if importlib.util.find_spec(_PACKAGE) is None:
        if not stand_in:
            raise RuntimeError(
                f"{_PACKAGE} is not installed: install_cuequivariance(stand_in=True) is accepted, "
                "which puts a module of that name in its place"
            )
        ours["triangle_multiplicative_update"] = triangle_multiplicative_update
        _make_modules(ours)
        return
    if stand_in and importlib.util.find_spec(_KERNELS) is None:
        ours["triangle_multiplicative_update"] = triangle_multiplicative_update
    importlib.import_module(_MODULES[-1])
    for module_name, module in list(sys.modules.items()):
        if module_name == _PACKAGE or module_name.startswith(f"{_PACKAGE}."):
            for name in ours.keys() & vars(module).keys():
                _replaced.append((module, name, getattr(module, name)))
                setattr(module, name, ours[name])


def uninstall_cuequivariance() -> None:
    """Takes back what install_cuequivariance() did; does nothing where it was not called."""
    while _replaced:
        module, name, original = _replaced.pop()
        setattr(module, name, original)
    while _made:
        sys.modules.pop(_made.pop(), None)


def _make_modules(functions: dict[str, Any]) -> None:
    """Packages without files, the functions in the first and the last, where cuEquivariance has
    them."""
    for name in _MODULES:
        module = ModuleType(name, "Of fulmen.torch.install_cuequivariance.")
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        if name != _MODULES[1]:
            vars(module).update(functions)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
        sys.modules[name] = module
        _made.append(name)


def triangle_multiplicative_update(
    x: torch.Tensor,
    direction: str = "outgoing",
    mask: torch.Tensor | None = None,
    norm_in_weight: torch.Tensor | None = None,
    norm_in_bias: torch.Tensor | None = None,
    p_in_weight: torch.Tensor | None = None,
    p_in_bias: torch.Tensor | None = None,
    g_in_weight: torch.Tensor | None = None,
    g_in_bias: torch.Tensor | None = None,
    norm_out_weight: torch.Tensor | None = None,
    norm_out_bias: torch.Tensor | None = None,
    p_out_weight: torch.Tensor | None = None,
    p_out_bias: torch.Tensor | None = None,
    g_out_weight: torch.Tensor | None = None,
    g_out_bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    precision: Any = None,
) -> torch.Tensor:
    """The triangle multiplicative update by torch's operations, for the stand-in.

    Jumper et al. 2021, supplementary algorithms 11 (outgoing) and 12 (incoming):

        y = norm_in(x),  (a, b) = mask * p_in(y) * sigmoid(g_in(y))
        t_ij = sum_k a_ik b_jk  (outgoing),  sum_k a_ki b_kj  (incoming)
        result = p_out(norm_out(t)) * sigmoid(g_out(y))

    Args:
      x: [..., N, N, C]. mask: [..., N, N].
      p_in_weight, g_in_weight: [2 D, C]. p_out_weight: [C, D]. g_out_weight: [C, C]. All are
          needed.
      norm_in_weight, norm_in_bias: [C]; norm_out_weight, norm_out_bias: [D]; None is no such factor
        or summand, as is None for the biases of projections.
      precision: changes nothing.

    Returns:
      [..., N, N, C], x's dtype.
    """
    if direction not in ("outgoing", "incoming"):
        raise ArgumentError(f'direction is {direction!r}: "outgoing" or "incoming" is accepted')
    weights = {
        "p_in_weight": p_in_weight,
        "g_in_weight": g_in_weight,
        "p_out_weight": p_out_weight,
        "g_out_weight": g_out_weight,
    }
    for name, weight in weights.items():
        if weight is None:
            raise TypeError(f"{name} is None: a tensor is needed")
    linear, layer_norm = torch.nn.functional.linear, torch.nn.functional.layer_norm
    y = layer_norm(x, x.shape[-1:], norm_in_weight, norm_in_bias, eps)
    ab = linear(y, p_in_weight, p_in_bias) * linear(y, g_in_weight, g_in_bias).sigmoid()
    if mask is not None:
        ab = ab * mask.unsqueeze(-1).to(ab.dtype)
    a, b = ab.chunk(2, -1)
    sums = "...ikd,...jkd->...ijd" if direction == "outgoing" else "...kid,...kjd->...ijd"
    t = torch.einsum(sums, a, b)
    t = layer_norm(t, t.shape[-1:], norm_out_weight, norm_out_bias, eps)
    update = linear(t, p_out_weight, p_out_bias) * linear(y, g_out_weight, g_out_bias).sigmoid()
    return update.to(x.dtype)
