"""Exact attention on CPUs, AMD and NVIDIA GPUs, for the package `kernels`: flash_attn's functions,
and fulmen's own.

A fulmen that is installed is taken; else the copy beside this file, under the same name.
"""

import importlib.util
import platform
import sys
from pathlib import Path


def _provide() -> None:
    found = importlib.util.find_spec("fulmen")
    # A folder of this name without code, such as the sources' own, is found as a namespace.
    if found is not None and found.origin is not None:
        return
    machine = f"{platform.machine()}-{platform.system().lower()}"
    folder = Path(__file__).parent / "lib" / machine / "fulmen"
    if not folder.is_dir():
        others = sorted(one.name for one in (Path(__file__).parent / "lib").iterdir())
        raise ImportError(
            f"this repository has fulmen for {', '.join(others)}, not for {machine}: "
            "pip install fulmen"
        )
    spec = importlib.util.spec_from_file_location(
        "fulmen", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["fulmen"] = package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules["fulmen"]
        raise


_provide()

from fulmen import attention, attention_backward, explain  # noqa: E402
from fulmen.flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = [
    "attention",
    "attention_backward",
    "explain",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
