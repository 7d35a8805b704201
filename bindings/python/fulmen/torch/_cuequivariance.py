"""Fulmen's triangle attention under the name cuequivariance_torch.triangle_attention, for programs
that import it from there.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from fulmen.torch._frontend import _flag
from fulmen.torch._triangle import triangle_attention
from fulmen.torch._triangle_update import (
    TriMulPrecision,
    mask_to_kv_lengths,
    triangle_multiplicative_update,
)

_PACKAGE = "cuequivariance_torch"
_VERSION = "0.13.0"  # the release whose names and arguments the stand-in has
_KERNELS = "cuequivariance_ops_torch"  # what cuequivariance_torch calls
_MODULES = (_PACKAGE, f"{_PACKAGE}.primitives", f"{_PACKAGE}.primitives.triangle")
_STAND_IN = "<stand-in of fulmen.torch.install_cuequivariance>"
_ATTENTION = {"triangle_attention": triangle_attention}
_UPDATE = {"triangle_multiplicative_update": triangle_multiplicative_update}
_OF_STAND_IN = {
    **_ATTENTION,
    **_UPDATE,
    "mask_to_kv_lengths": mask_to_kv_lengths,
    "TriMulPrecision": TriMulPrecision,
}

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
        triangle_attention, mask_to_kv_lengths, TriMulPrecision and, by plain torch,
        triangle_multiplicative_update. Where it is installed without its kernels
        (cuequivariance_ops_torch), the last one is replaced, too.

    Raises:
      TypeError: stand_in is not a bool.
      RuntimeError: cuequivariance_torch is not installed, and stand_in is False; or it has no
        primitives.triangle.

    The stand-in has no other name: not attention_pair_bias, no equivariant layers. As long as it is
    installed importlib.util.find_spec("cuequivariance_torch") is true. Programs that then import
    other names get an ImportError with the stand-in's name.

    A second call does nothing, but for stand_in=True after False. uninstall_cuequivariance() takes
    all of it back.
    """
    stand_in = _flag("stand_in", stand_in)
    if _made:
        return
    if not _is_present(_PACKAGE):
        if not stand_in:
            raise RuntimeError(
                f"{_PACKAGE} is not installed: install_cuequivariance(stand_in=True) is accepted, "
                "which puts a module of that name in its place"
            )
        _make_modules()
        return
    try:
        importlib.import_module(_MODULES[-1])
    except ModuleNotFoundError as error:
        if error.name not in _MODULES:  # it lacks something else
            raise
        raise RuntimeError(
            f"{_PACKAGE} has no module {_MODULES[-1]}: a release that has it is needed, as "
            f"{_VERSION}"
        ) from error
    _replace(_ATTENTION)
    if stand_in and not _is_present(_KERNELS):
        _replace(_UPDATE)


def uninstall_cuequivariance() -> None:
    """Takes back what install_cuequivariance() did; does nothing where it was not called."""
    while _replaced:
        module, name, original = _replaced.pop()
        setattr(module, name, original)
    while _made:
        sys.modules.pop(_made.pop(), None)


def _is_present(package: str) -> bool:
    # find_spec() raises a ValueError for a module without a spec.
    return sys.modules.get(package) is not None or importlib.util.find_spec(package) is not None


def _replace(functions: dict[str, Any]) -> None:
    """Wherever the package has them; those that are Fulmen's already stay."""
    for module_name, module in list(sys.modules.items()):
        if module_name == _PACKAGE or module_name.startswith(f"{_PACKAGE}."):
            for name in functions.keys() & vars(module).keys():
                if vars(module)[name] is not functions[name]:
                    _replaced.append((module, name, getattr(module, name)))
                    setattr(module, name, functions[name])


def _make_modules() -> None:
    """Packages without files; the first and the last have the functions, as cuEquivariance's do."""
    for name in _MODULES:
        module = ModuleType(name, f"Stand-in of fulmen.torch.install_cuequivariance, {_VERSION}.")
        module.__spec__ = ModuleSpec(name, None, origin=_STAND_IN, is_package=True)
        module.__path__ = []
        # What the ImportError of "from cuequivariance_torch import name" shows.
        module.__file__ = _STAND_IN
        if name != _MODULES[1]:
            vars(module).update(_OF_STAND_IN)
        if name == _PACKAGE:
            module.__version__ = _VERSION  # type: ignore[attr-defined]
        module.__getattr__ = _getattr_of(name)  # type: ignore[method-assign]
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
        sys.modules[name] = module
        _made.append(name)


def _getattr_of(module: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise AttributeError(
            f"module {module!r} has no attribute {name!r}: it is the stand-in of "
            f"fulmen.torch.install_cuequivariance, which has {', '.join(_OF_STAND_IN)}"
        )

    return refuse
