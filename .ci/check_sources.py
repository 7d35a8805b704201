#!/usr/bin/env python3
"""Rules of the source tree that no compiler checks, one finding a line.

Conditionals on a target or platform stand in kernels/targets, kernels/platforms, core/target.h and,
around includes alone, in the selectors of kernels/tile. No layer includes one above it or a
backend; UPWARDS has the exceptions. A vendor's file of kernels/tile includes nothing shared that
its selector does not: kernel sources are flattened with each file once, and a shared file must not
end up inside the vendor's conditional.
What one system alone has, its headers and conditionals on it, stands in the platform layer.
Locks, and variables of functions that are made at their first use, are those of
runtime/fork_safe.h: a forked child would wait for others without end. fmt::join needs
<fmt/ranges.h>: the system's {fmt} 9 here has it in format.h, the one that `pip install .` brings
does not. Functions of kernels are marked for the device: NVRTC refuses others, clang takes those
that are constexpr."""

import pathlib
import re
import subprocess
import sys
from fnmatch import fnmatch

CONDITIONAL = re.compile(r"\s*#\s*(if|elif|ifdef|ifndef)\b.*\bFULMEN_(TARGET|PLATFORM)_")
INCLUDE = re.compile(r'\s*#\s*include "([^"]+)"')
# A folder below src, and what its files may not include; the one file that knows the backends is
# excepted.
FORBIDDEN = {
    "algorithm": (
        "api/",
        "plan/",
        "runtime/",
        "reference/",
        "cpu/",
        "gpu/",
        "emulator/",
        "kernels/",
    ),
    "runtime": ("api/", "plan/", "reference/", "cpu/", "gpu/", "emulator/", "kernels/"),
    "score": ("api/", "plan/", "reference/", "cpu/", "gpu/", "emulator/", "kernels/"),
    "reference": ("api/", "cpu/", "gpu/", "emulator/", "kernels/"),
    "plan": ("api/", "cpu/", "gpu/", "emulator/", "kernels/"),
    "api": ("cpu/", "gpu/", "emulator/", "kernels/"),
    "cpu": ("gpu/", "emulator/", "kernels/"),
    "emulator": ("api/", "plan/", "reference/", "cpu/", "gpu/drivers/", "gpu/launch/"),
    "gpu": ("cpu/",),
    "kernels": ("api/", "plan/", "runtime/", "tuning/", "reference/", "cpu/", "gpu/", "emulator/"),
}
# Folders below src from the bottom up. Those of one line do not include each other.
LAYERS = (
    ("algorithm",),
    ("kernels/core", "runtime"),
    ("score",),
    ("kernels/platforms", "kernels/targets"),
    ("kernels/tile",),
    ("kernels",),
    ("kernels/backward", "kernels/forward"),
    ("tuning",),
    ("reference",),
    ("cpu/tile",),
    ("cpu/isa",),
    ("cpu/amx", "cpu/kv_cache"),
    ("cpu",),
    ("cpu/backward", "cpu/decode", "cpu/prefill", "cpu/short"),
    ("cpu/prefill_int8",),
    ("cpu/isa/tables", "gpu/libraries", "gpu/targets"),
    ("gpu/compile",),
    ("gpu/launch",),
    ("gpu",),
    ("emulator",),
    ("gpu/drivers",),
    ("plan",),
    ("api/cpp",),
    ("api/c",),
)
HEIGHTS = {folder: height for height, folders in enumerate(LAYERS) for folder in folders}
# Includes that point up, by patterns of files. docs/architecture.md, "Folders", has the reason of
# each.
UPWARDS = (
    ("gpu/probes.cpp", "plan/registry.h"),
    ("gpu/targets/target.h", "gpu/launch/*_tiles.h"),
    ("kernels/tile/stage_layout.h", "kernels/forward/prefill_layout.h"),
)
LOCK = re.compile(
    r"\bstd::(?:(?:recursive_|shared_|timed_|recursive_timed_|shared_timed_)?mutex|call_once|"
    r"once_flag|condition_variable\w*|latch|barrier|\w+_semaphore|promise|future|async)\b|"
    r"\bpthread_(?:mutex|once|cond|rwlock|spin|barrier)_|\bdl(?:open|close|_iterate_phdr)\(|"
    r"\bplatform::(?:load_library|unload_library|visit_loaded)\("
)
GUARDED = re.compile(
    r"\s+static (?!constexpr\b|constinit\b|thread_local\b|"
    r"inline\b)[^(){};=]*\b\w+\s*(?:\[[^]]*\]\s*)?[={;]"
)
DEFINES_LOCKS = ("runtime/fork_safe.h", "runtime/fork_safe.cpp", "runtime/platform/")
UNMARKED = re.compile(
    r"\s*(?:static |inline )*constexpr (?!.*FULMEN_)[\w:<> ]+[ &*]\w+\([^()]*\)(?: const)? \{"
)
SYSTEM = re.compile(
    r"\s*#\s*(?:if|elif|ifdef|ifndef)\b.*\b(?:_WIN32|_WIN64|WIN32|__APPLE__|__linux__|__MINGW32__)"
    r"\b|\s*#\s*include <(?:windows|io|process|psapi|unistd|dlfcn|link|elf|fcntl|glob|fnmatch|poll|"
    r"pthread|pwd|sched|spawn|dirent|sys/\w+|linux/\w+|mach-o/\w+)\.h>"
)
HOST_TOO = ("kernels/platforms/",)
PLATFORM_LAYER = ("src/runtime/platform/", "tools/platform/", "src/kernels/")
KNOWS_BACKENDS = ("plan/builtin_backends.cpp", "plan/cpu_alone.cpp")
ALLOWED_WHOLE = ("kernels/targets/", "kernels/platforms/", "kernels/core/target.h")
SELECTORS = "kernels/tile/"


def conditionals(name, lines):
    """Numbers of lines with a conditional on a target or platform that may not stand there."""
    if name.startswith(ALLOWED_WHOLE):
        return
    depth = start = 0
    for number, line in enumerate(lines, 1):
        if depth == 0:
            if CONDITIONAL.match(line):
                depth, start = 1, number
            continue
        if re.match(r"\s*#\s*if", line):
            depth += 1
        elif re.match(r"\s*#\s*endif", line):
            depth -= 1
        elif re.match(r"\s*#\s*(else|elif)", line) or INCLUDE.match(line) or not line.strip():
            continue
        elif start:
            yield start
            start = 0
    if any(map(CONDITIONAL.match, lines)) and not name.startswith(SELECTORS):
        yield next(number for number, line in enumerate(lines, 1) if CONDITIONAL.match(line))


def locks(name, lines):
    """Numbers of lines with a lock, or a guarded variable, that a forked child may wait for without
    end."""
    if name.startswith((*DEFINES_LOCKS, "kernels/")):
        return
    for number, line in enumerate(lines, 1):
        code = line.split("//")[0]
        if LOCK.search(code) or GUARDED.match(code):
            yield number


def includes(lines):
    return [
        (number, found.group(1))
        for number, line in enumerate(lines, 1)
        if (found := INCLUDE.match(line))
    ]


def below_src(name, included):
    """The path of what a file includes: kernels name each other from src/kernels."""
    outside = included.split("/")[0] in {folder.split("/")[0] for folder in HEIGHTS}
    return included if outside or not name.startswith("kernels/") else f"kernels/{included}"


def layer(name):
    """The innermost folder of the file that LAYERS has, or None."""
    folders = (str(folder) for folder in pathlib.PurePosixPath(name).parents)
    return next((folder for folder in folders if folder in HEIGHTS), None)


def points_up(name, included):
    own, other = layer(name), layer(included)
    if None in (own, other) or own == other:
        return False
    if any(fnmatch(name, file) and fnmatch(included, up) for file, up in UPWARDS):
        return False
    return HEIGHTS[other] >= HEIGHTS[own]


def findings(root):
    for path in sorted([*root.rglob("*.h"), *root.rglob("*.cpp")]):
        name, lines = path.relative_to(root).as_posix(), path.read_text().split("\n")
        for number in sorted(set(conditionals(name, lines))):
            yield (
                f"src/{name}:{number}: a conditional on the target or platform: the selectors of "
                "kernels/tile are for it"
            )
        for number in locks(name, lines):
            yield (
                f"src/{name}:{number}: a lock, a variable made at first use, or dlopen, that is "
                "not of runtime/fork_safe.h"
            )
        if name.startswith(("kernels/", "algorithm/")) and not name.startswith(HOST_TOO):
            for number, line in enumerate(lines, 1):
                if UNMARKED.match(line):
                    yield f"src/{name}:{number}: a function of a kernel without FULMEN_DEVICE"
        forbidden = FORBIDDEN.get(name.split("/")[0], ())
        for number, included in includes(lines):
            if name not in KNOWS_BACKENDS and included.startswith(forbidden):
                yield f"src/{name}:{number}: {name.split('/')[0]} includes {included}"
            elif points_up(name, below_src(name, included)):
                yield (
                    f"src/{name}:{number}: {layer(name)} includes {included}, which is not below "
                    "it in LAYERS"
                )
        joins = next((number for number, line in enumerate(lines, 1) if "fmt::join(" in line), None)
        if joins and "#include <fmt/ranges.h>" not in lines:
            yield f"src/{name}:{joins}: fmt::join without <fmt/ranges.h>"
        vendor = re.fullmatch(r"kernels/tile/(\w+)/(\w+\.h)", name)
        if vendor and (selector := root / "kernels/tile" / vendor.group(2)).exists():
            selected = {included for _, included in includes(selector.read_text().split("\n"))}
            for number, included in includes(lines):
                if included not in selected and not included.startswith(f"tile/{vendor.group(1)}/"):
                    yield (
                        f"src/{name}:{number}: {included} is included by neither "
                        f"tile/{vendor.group(2)} nor the vendor's files"
                    )


def systems(root):
    """What only one system has outside of the platform layer, in src and tools."""
    folders = [root, root.parent / "tools"] if root.name == "src" else [root]
    for path in sorted(p for folder in folders for p in folder.rglob("*") if p.is_file()):
        if path.suffix not in (".h", ".cpp"):
            continue
        name = path.relative_to(root.parent if root.name == "src" else root).as_posix()
        if (name if root.name == "src" else f"src/{name}").startswith(PLATFORM_LAYER):
            continue
        for number, line in enumerate(path.read_text().split("\n"), 1):
            if SYSTEM.match(line):
                yield f"{name}:{number}: of one system: it belongs into the platform layer"


# clang-format wraps C++ and ruff checks Python; neither looks at comments of C++ or at CMake.
COLUMNS = 100
COMMENT = re.compile(r'\s*(?://|/\*|\*\s)\s*(.*)|[^"]*\s(?://|/\*)\s*(.*)')
# A word or a string of CMake.
WHOLE = re.compile(r'"(?:[^"\\]|\\.)*"?\)*|\S+')


def wide(name, lines):
    """Numbers of lines that are too long, but for words and strings of any length, and NOLINT."""
    for number, line in enumerate(lines, 1):
        if len(line) <= COLUMNS:
            continue
        if name.endswith((".cmake", ".txt")):
            if not WHOLE.fullmatch(line.strip()):
                yield number
        elif found := COMMENT.match(line):
            text = (found.group(1) or found.group(2) or "").removesuffix("*/").strip()
            if " " in text and "NOLINT" not in text:
                yield number


def wide_files(root):
    """Long lines of the repository that has the folder of sources `root`; of `root` in tests."""
    patterns = ["*.h", "*.cpp", "*.c", "*.cmake", "*CMakeLists.txt"]
    if root.name == "src":
        root = root.parent
        command = ["git", "-C", root, "ls-files", *patterns]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        paths = [root / name for name in listed.splitlines()]
    else:
        paths = [path for pattern in patterns for path in root.rglob(pattern)]
    for path in paths:
        if path.is_file() and not path.is_symlink():
            name = path.relative_to(root).as_posix()
            for number in wide(name, path.read_text().split("\n")):
                yield f"{name}:{number}: more than {COLUMNS} columns"


def main():
    root = pathlib.Path(
        sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1] / "src"
    )
    found = [*findings(root), *systems(root), *wide_files(root)]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
