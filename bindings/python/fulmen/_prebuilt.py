"""Kernels that were compiled ahead: those that a program adds, and those of installed packages.

A package of them (`fulmen-kernels-amd`, `fulmen-kernels-nvidia`) has an entry point in the group
`fulmen.kernels` whose value is the name of its module. The module's folder has a folder for each
chip, and there a file for the first words of kernels' names, such as
`gfx1100/prefill_gfx11_bf16_d128.pack.xz`: what `fulmen compile --pack` wrote, compressed. A file is
read when the first of its kernels is wanted on that chip and is not in the cache on disk. They
serve the version of Fulmen that compiled them: a kernel whose source differs is not found, and is
compiled as if the package were not there."""

from __future__ import annotations

import functools
import os
import threading
import warnings
from pathlib import Path

from fulmen import _core

GROUP = "fulmen.kernels"
WORDS = 4  # what it computes, target, dtype, dims
_added: set[Path] = set()
_damaged: set[Path] = set()
_reading = threading.Lock()


def add_prebuilt_kernels(kernels: str | os.PathLike | bytes) -> None:
    """Adds kernels that `fulmen compile --out` or `--pack` wrote, for machines without a compiler,
    for the rest of the process: a folder, a pack's file, or a pack's bytes.

    Raises `ArgumentError` for a path that does not exist and for bytes that are no kernels.
    """
    if isinstance(kernels, bytes):
        _core.add_prebuilt_pack(kernels)
    else:
        _core.add_prebuilt_path(os.fspath(kernels))


@functools.cache
def packages() -> tuple[Path, ...]:
    """The folders of installed packages of kernels."""
    import importlib.metadata
    import importlib.util

    folders = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            # Its folder, without running anything of the package.
            found = importlib.util.find_spec(entry.value)
        except (ImportError, ValueError):
            found = None
        if found is None or not found.submodule_search_locations:
            warnings.warn(
                f"the entry point {entry.name} in {GROUP} names {entry.value}, which is no package",
                stacklevel=2,
            )
            continue
        folders += map(Path, found.submodule_search_locations)
    return tuple(folders)


def pack_of(kernel: str) -> str:
    """The file of a kernel."""
    return "_".join(kernel.split()[:WORDS]).replace("/", "-") + ".pack.xz"


def load(arch: str, kernel: str | None) -> bool:
    """Adds what installed packages have of such kernels for that chip, and says whether it did.

    Without a kernel: whether they have any for the chip."""
    folders = [folder / arch for folder in packages() if (folder / arch).is_dir()]
    if kernel is None:
        return bool(folders)
    added = False
    for folder in folders:
        file = folder / pack_of(kernel)
        with _reading:
            if file in _added:
                added = True  # by another thread perhaps, since the library has looked
            elif file not in _damaged and file.exists():
                added |= _add(file)
    return added


def _add(file: Path) -> bool:
    import lzma

    try:
        _core.add_prebuilt_pack(lzma.decompress(file.read_bytes()))
    except (OSError, lzma.LZMAError, _core.ArgumentError) as error:
        _damaged.add(file)
        warnings.warn(f"{file}: {error}; its kernels are compiled", stacklevel=2)
        return False
    _added.add(file)
    return True


_core.set_prebuilt_source(load)
