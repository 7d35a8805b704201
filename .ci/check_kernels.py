#!/usr/bin/env python3
"""Every file of src/kernels by itself, as an editor sees it: clang with the flags of
compile_flags.txt and .clangd there.

So each file includes what it uses, and a kernel's configuration in .clangd is one that its static
assertions accept.
Arguments: another src/kernels, and names of files there instead of all."""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

ROOT = (
    pathlib.Path(sys.argv[1])
    if len(sys.argv) > 1
    else pathlib.Path(__file__).resolve().parents[1] / "src/kernels"
)
COMPILER = os.environ.get("CLANG", "clang++-19")
# For chips that clang 19 does not know.
NEWER = os.environ.get("CLANG", "clang++-22")
NEWER_CHIPS = {"--offload-arch=gfx950"}


def fragments():
    """(pattern of paths, flags) of each fragment of .clangd."""
    for text in (ROOT / ".clangd").read_text().split("---\n")[1:]:
        yield (
            re.compile(re.search(r"PathMatch: (.*)", text).group(1)),
            re.findall(r"^    - (.*)$", text, re.M),
        )


def check(path, flags):
    name = path.relative_to(ROOT).as_posix()
    added = [flag for pattern, more in FRAGMENTS if pattern.fullmatch(name) for flag in more]
    if not any(flag.startswith("-DFULMEN_CONFIGURATION=") for flag in added):
        return (
            f"src/kernels/{name}: no configuration in .clangd, which a usual problem's kernel has\n"
        )
    compiler = COMPILER if NEWER_CHIPS.isdisjoint(added) else NEWER
    command = [compiler, "-fsyntax-only", *flags, *added, "-Wno-macro-redefined", "-Werror", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return f"src/kernels/{name}:\n{done.stderr}" if done.returncode else ""


FRAGMENTS = list(fragments())


def main():
    flags = (ROOT / "compile_flags.txt").read_text().split()
    files = [ROOT / name for name in sys.argv[2:]] or sorted(ROOT.rglob("*.h"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [text for text in pool.map(lambda path: check(path, flags), files) if text]
    print(*found, sep="\n", end="")
    sys.exit(1 if found or not files else 0)


if __name__ == "__main__":
    main()
