#!/usr/bin/env python3
"""Checks what a wheel for Windows imports: Python's stable ABI, as the tag's oldest version has it,
the library beside it, and what Windows itself has."""

import pathlib
import re
import subprocess
import sys
import zipfile

SYSTEM = re.compile(
    r"(kernel32|advapi32|psapi|ntdll|msvcrt|user32|shell32|ws2_32|bcrypt|"
    r"api-ms-win-[a-z0-9-]+)\.dll",
    re.IGNORECASE,
)


def imports(path: pathlib.Path) -> dict[str, set[str]]:
    """The names that a file imports, by library."""
    text = subprocess.run(
        ["llvm-readobj-19", "--coff-imports", path], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, set[str]] = {}
    library = ""
    for line in text.splitlines():
        word, _, value = line.strip().partition(": ")
        if word == "Name":
            library = value
            found[library] = set()
        elif word == "Symbol":
            found[library].add(value.partition(" (")[0])
    return found


def stable_names(library: pathlib.Path) -> set[str]:
    """What an import library of python3.dll has."""
    text = subprocess.run(
        ["llvm-nm-19", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    return set(re.findall(r"__imp_(\w+)$", text, re.MULTILINE))


def strange(name: str, found: dict[str, set[str]], stable: set[str]) -> list[str]:
    """What the file needs beside what it may."""
    backend = re.search(r"\.cp(3\d+)-win_amd64\.pyd$", name)
    python = f"python{backend[1]}.dll" if backend else "python3.dll"
    told = [
        f"{name} needs {library}"
        for library in found
        if not SYSTEM.fullmatch(library)
        and library.lower() not in ((python,) if name.endswith(".pyd") else ())
        and not (library == "libfulmen.dll" and name.endswith(("_core.pyd", "fulmen.exe")))
    ]
    newer = found.get("python3.dll", set()) - stable
    told += [f"{name} needs {one}, which the oldest python3.dll lacks" for one in sorted(newer)]
    return told


def main() -> None:
    wheel, pythons = map(pathlib.Path, sys.argv[1:])
    stable = stable_names(pythons / "3.10/libs/python3.lib")
    folder = pathlib.Path("build/wheels/windows_files")
    told = []
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith((".pyd", ".dll", ".exe"))]
        for name in names:
            told += strange(name, imports(pathlib.Path(archive.extract(name, folder))), stable)
    if len(names) < 4 or told:
        sys.exit("\n".join([f"{wheel.name} has {names}", *told]))
    print(
        f"{wheel}: {wheel.stat().st_size} bytes, {len(names)} files need Windows and Python alone"
    )


if __name__ == "__main__":
    main()
