"""Imports AITER's Triton kernels from a checkout, without torch, a GPU and AITER's own set-up."""

import importlib
import json
import sys
import types
from pathlib import Path


class _AnyMember(type):
    """A class whose every public name is another one: enough for annotations and defaults."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyMember(name, (), {})

    def __call__(cls, *arguments, **named):
        return cls


def _absent(name):
    """A module of such classes."""

    def member(attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _AnyMember(attribute, (), {})

    module = types.ModuleType(name)
    module.__getattr__ = member
    return module


def _package(name, folder):
    """A package of a folder whose __init__.py is not run."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


# Chips without a configuration file of their own take the one of the chip that is nearest.
CONFIGURED = {"gfx90a": "gfx942", "gfx1100": "gfx1151", "gfx1201": "gfx1151"}


def configuration(checkout, arch):
    """Tiles by kernel."""
    name = f"{CONFIGURED.get(arch, arch)}-MHA-DEFAULT.json"
    return json.loads((Path(checkout) / "aiter/ops/triton/configs" / name).read_text())


def import_kernels(checkout, module, arch):
    """The module of `aiter.ops.triton`, as the chip `arch` would import it."""
    root = Path(checkout) / "aiter"
    for name in [n for n in sys.modules if n.split(".")[0] == "aiter"]:
        del sys.modules[name]
    for name in (
        "aiter",
        "aiter.ops",
        "aiter.ops.triton",
        "aiter.ops.triton.utils",
        "aiter.ops.triton.utils._triton",
        "aiter.ops.triton._triton_kernels",
        "aiter.ops.triton._triton_kernels.attention",
        "aiter.ops.triton._triton_kernels.flash_attn_triton_amd",
    ):
        _package(name, root.joinpath(*name.split(".")[1:]))
    info = types.ModuleType("aiter.ops.triton.utils._triton.arch_info")
    info.get_arch = lambda: arch
    info.is_gluon_avail = info.is_fp4_avail = info.is_fp8_avail = lambda: False
    sys.modules[info.__name__] = info
    sys.modules["aiter.ops.triton.utils._triton"].arch_info = info
    if "torch" not in sys.modules:
        sys.modules["torch"] = _absent("torch")
    return importlib.import_module(f"aiter.ops.triton.{module}")
