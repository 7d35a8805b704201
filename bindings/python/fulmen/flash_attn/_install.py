"""Puts modules of fulmen under the name of another package, so that programs that import that one
run unchanged."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple


class Package(NamedTuple):
    name: str  # as it is imported
    distribution: str  # as pip knows it
    version: str
    modules: tuple[str, ...]  # what follows the name, "" for the package itself
    source: str  # the module of fulmen; its submodules have the same names


class _Distribution(importlib.metadata.Distribution):
    """The metadata of a package that has no files of its own."""

    def __init__(self, package: Package) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {package.distribution}\nVersion: "
            f"{package.version}\n",
            "top_level.txt": f"{package.name}\n",
        }

    def read_text(self, filename: str) -> str | None:
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        return os.path.join(os.path.dirname(__file__), path)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Finder(importlib.metadata.DistributionFinder):
    """Answers importlib.metadata. Modules themselves are in sys.modules."""

    def __init__(self, package: Package) -> None:
        self._package = package

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        return None

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        wanted = getattr(context, "name", None)
        if wanted is None or _normalized(wanted) in (
            _normalized(self._package.distribution),
            _normalized(self._package.name),
        ):
            yield _Distribution(self._package)


class _Installed(NamedTuple):
    finder: _Finder
    hidden: dict[str, ModuleType]
    dismiss: Callable[[], None]


_installed: dict[str, _Installed] = {}


def install(package: Package, force: bool) -> None:
    if package.name in _installed:
        return
    if not force and importlib.util.find_spec(package.name) is not None:
        raise RuntimeError(
            f"{package.name} is installed, and Fulmen's functions would hide it: "
            "install(force=True) is accepted, or uninstall it"
        )
    modules = {
        package.name + rest: importlib.import_module(package.source + rest)
        for rest in package.modules
    }
    hidden = {
        name: module
        for name, module in sys.modules.items()
        if f"{name}.".startswith(f"{package.name}.")
    }
    for name in hidden:
        del sys.modules[name]
    sys.modules.update(modules)
    finder = _Finder(package)
    sys.meta_path.insert(0, finder)
    _installed[package.name] = _Installed(finder, hidden, lambda: None)
    try:
        dismiss = _admit_in_transformers(package)
    except BaseException:
        uninstall(package)
        raise
    _installed[package.name] = _Installed(finder, hidden, dismiss)


def uninstall(package: Package) -> None:
    installed = _installed.pop(package.name, None)
    if installed is None:
        return
    sys.meta_path.remove(installed.finder)
    for name in [name for name in sys.modules if f"{name}.".startswith(f"{package.name}.")]:
        del sys.modules[name]
    sys.modules.update(installed.hidden)
    installed.dismiss()


def _admit_in_transformers(package: Package) -> Callable[[], None]:
    """Makes transformers believe that this version of FlashAttention is available, also without a
    GPU; the result undoes that.

    transformers asks for a GPU before it imports the package, and remembers the answers of
    importlib.metadata.
    """
    if importlib.util.find_spec("transformers") is None:
        return lambda: None
    from transformers import modeling_flash_attention_utils as flash
    from transformers.utils import import_utils

    major = int(package.version.split(".")[0])
    name = f"is_flash_attn_{major}_available"
    matrix = getattr(flash, "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {})
    original, requirements = getattr(import_utils, name, None), matrix.get(major)

    def available(kernels_fallback_ok: bool = False) -> bool:
        return True

    def forget() -> None:
        flash._loaded_implementation = None
        for function in ("_package_distribution_mapping", "is_flash_attn_greater_or_equal"):
            getattr(getattr(import_utils, function, None), "cache_clear", lambda: None)()
        getattr(original, "cache_clear", lambda: None)()

    def replace(old: Any, new: Any) -> None:
        for module_name, module in list(sys.modules.items()):
            if (
                module_name.split(".")[0] == "transformers"
                and getattr(module, "__dict__", {}).get(name) is old
            ):
                setattr(module, name, new)

    def dismiss() -> None:
        replace(available, original)
        if requirements is not None:
            matrix[major] = requirements
        forget()

    forget()
    if original is not None:
        replace(original, available)
    if requirements is not None:
        anywhere = (available, "any device")
        matrix[major] = {
            **requirements,
            "general_availability_check": available,
            "supported_devices": (*requirements["supported_devices"], anywhere),
            "custom_supported_devices": (
                (available, f"FlashAttention {package.version} by Fulmen, on any device."),
            ),
        }
    return dismiss
