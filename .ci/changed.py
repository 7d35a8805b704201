#!/usr/bin/env python3
"""What ./dev test --changed runs: the checks and tests that a change of these files can touch,
within minutes.

changed.py [COMMIT]   files that differ from COMMIT (where the branch left main), those not
                      committed and new ones included
changed.py -          names of files from standard input, a line each

Prints assignments for a shell: `changed` (the files), `targets` (CMake's), `tests` (a pattern of
ctest's names), `pytest` (files) and `rust` (1 or nothing). A file that no line of the tables names
touches every test of the release build."""

import pathlib
import re
import shlex
import subprocess
import sys

from test_chips import test_chips

ROOT = pathlib.Path(__file__).resolve().parents[1]
GPU_SAMPLE = r"^gpu\.On/Gpu(Kernels|Bounds|Plan)\..*(gfx1100|sm_80|sm_90)"
CPU = r"^(attention|amx|avx512_bf16|api)\."
# Patterns of files, and of the names of ctest's tests (folder of tests, suite, test). The first
# that matches counts.
TESTS = [
    (r"integrations/llama\.cpp/.*\.(cpp|h)$", r"^integrations\."),
    (
        r"tests/(python|python_gpu|install)/|bindings/|packaging/|integrations/|bench/|\.github/|examples/python/",
        "",
    ),
    (r"tests/support/(emulated_tiles|wide_vectors)", r"^(amx|quantized)\."),
    (r"tests/support/", r"^(api|attention|gpu|isa)\.|^cli\..*Faults"),
    (r"tests/dev/|\.ci/|dev$|docs/|.*\.(md|toml|yml)$", r"^dev\.|^examples\.readme"),
    (r"tests/(\w+)/", r"^\1\."),
    (r"fuzz/", r"^fuzz\."),
    (r"examples/", r"^examples\.|^attention\.RealData"),
    (r"tools/tune|tools/tuning|src/tuning/|data/tuned/", r"^tuning\."),
    (r"tools/", r"^cli\."),
    (
        r"src/cpu/decode/",
        CPU + r".*([Dd]ecode|Properties|Edges|VariableLengths|Threads|InPlace|Grid|KvCache)",
    ),
    (r"src/cpu/backward/", CPU + r".*([Bb]ackward|Gradient)"),
    (r"src/cpu/(kv_cache/)", r"^api\..*(AppendKv|KvCache)|^attention\."),
    (r"src/cpu/(prefill_int8/|coded_keys)", r"^(quantized|amx|avx512_bf16)\."),
    (r"src/cpu/(isa|prefill|amx|tile)", CPU + r"|^quantized\."),
    (r"src/(cpu|algorithm)/", CPU),
    (r"src/score/", r"^score\.|^attention\..*(Function|BlockMask)|^api\..*Function"),
    (r"src/reference/", r"^attention\.|^cli\..*(Faults|Verify)"),
    (
        r"src/kernels/(forward|backward)/parts/|src/kernels/(?:forward|backward)/([a-z]+)|"
        r"src/gpu/launch/([a-z]+)",
        "family",
    ),
    (r"src/kernels/targets/(emulated_)?mfma", r"^(gpu|emulator|isa)\..*gfx9"),
    (r"src/(?:kernels|gpu)/targets/(\w+)", "target"),
    (r"src/(emulator/machine_code|gpu/drivers/isa)/", r"^isa\."),
    (
        r"src/kernels/platforms/emul|src/emulator/source/|src/gpu/drivers/emulated",
        r"^emulator\.|" + GPU_SAMPLE,
    ),
    (r"src/emulator/", r"^(emulator|isa)\.|" + GPU_SAMPLE),
    (r"src/gpu/drivers/", r"^gpu_drivers\.|^cli\..*Hip"),
    (
        r"src/gpu/(?:compile|libraries)/|src/gpu/shipped",
        r"^compile\.[^A]|^compile\.Amd/M|^gpu_drivers\.",
    ),
    (r"src/kernels/", r"^emulator\.|^isa\.Chips/IsaProblems\..*gfx1100|" + GPU_SAMPLE),
    (r"src/gpu/", r"^gpu_drivers\.|^gpu\..*(FirstUse|Probes|AppendKv)|" + GPU_SAMPLE),
    (r"src/(api|plan|runtime)/|include/", r"^(api|attention)\.|^cli\.(RunTest|BadInputTest)"),
]
# Tests' names of a target's chips: all but the last character, for chips of the same kind. sm90 has
# suites of its own.
CHIPS = {target: "|".join(chip[:-1] for chip in chips) for target, chips in test_chips().items()}
CHIPS["sm90"] += "|Wgmma|Tma"
# Of the Python package; the others' tests look at what every module shares.
PYTEST = [
    (r"tests/python/(test_\w+\.py)", r"\1"),
    (r"bindings/python/fulmen/transformers", "test_transformers.py"),
    (r"bindings/python/fulmen/(flash_attn|xformers)", r"test_\1*.py"),
    (r"bindings/python/fulmen/jax|bindings/python/src/xla", "test_{jax*,sinks}.py"),
    (r"bindings/python/fulmen/(flex|torch/_flex)|bindings/python/src/functions/", "test_flex*.py"),
    (r"bindings/python/fulmen/(diffusers|comfyui|comfy_kitchen|vllm)", r"test_\1.py"),
    (r"bindings/python/fulmen/_quantize", "test_quantized_*.py"),
    (r"bindings/python/fulmen/torch/_sdpa", "test_sdpa*.py"),
    (r"bindings/python/fulmen/torch/_flash_impl", "test_flash_impl.py"),
    (
        r"bindings/python/fulmen/torch/_(triangle|evoformer|pair)",
        "test_{triangle,cuequivariance}.py",
    ),
    (r"bindings/python/fulmen/torch/_cuequivariance", "test_cuequivariance.py"),
    (r"bindings/python/fulmen/torch/(_exchange|context_parallel|ring|_sharding)", "test_ring.py"),
    (r"bindings/python/(fulmen/torch|src/torch)", "test_{torch*,sinks}.py"),
    (r"bindings/python/src/kv_cache", "test_kv_cache.py"),
    (
        r"bindings/python/|tests/python/",
        "test_{numpy,arguments,errors,lengths,sinks,torch,documentation}.py",
    ),
    (
        r"packaging/|cmake/[Mm]anylinux",
        "test_{first_use,wheel,hub_kernels}.py",
    ),  # on the wheel, which is checked first
    (r"examples/python/", "test_examples.py"),
    (r"docs/guide/(python|pytorch|jax)|README\.md", "test_documentation.py"),
    (r"src/(api|plan)/|include/", "test_{numpy,errors,kv_cache}.py"),
]
RUST = r"bindings/rust/|include/fulmen/fulmen_c\.h|src/api/c/"
EVERY_TEST = "."
NOT_OF_TESTS = {"dev", "fuzz", "install", "examples"}


def changed_files(commit):
    def git(*arguments):
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.splitlines()

    base = (
        commit
        or git("merge-base", "HEAD", "main" if git("branch", "--list", "main") else "origin/main")[
            0
        ]
    )
    return sorted(
        {*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")}
    )


def tests_of(path):
    for pattern, tests in TESTS:
        found = re.match(pattern, path)
        if not found:
            continue
        name = next(filter(None, found.groups()), "")
        if tests == "family":  # ctest knows no case-insensitive patterns
            return rf"^(gpu|isa)\..*[{name[0].upper()}{name[0]}]{name[1:]}|{GPU_SAMPLE}"
        if tests == "target":
            if name not in CHIPS:  # a file of several targets
                continue
            return rf"^(gpu|emulator|isa)\..*({CHIPS[name]})"
        return found.expand(tests)
    return EVERY_TEST


def pytest_of(path):
    for pattern, files in PYTEST:
        if found := re.match(pattern, path):
            return found.expand(files)
    return ""


def expanded(pattern):
    """Files of tests/python: one brace as a shell has it, and stars."""
    parts = re.fullmatch(r"(.*)\{(.*)\}(.*)", pattern)
    names = [parts[1] + name + parts[3] for name in parts[2].split(",")] if parts else [pattern]
    return [
        path.relative_to(ROOT).as_posix()
        for name in names
        for path in (ROOT / "tests/python").glob(name)
    ]


def plan(files):
    patterns = sorted({tests_of(path) for path in files} - {""})
    programs = sorted(
        p.name
        for p in (ROOT / "tests").iterdir()
        if p.is_dir() and p.name not in ("support", "python", "python_gpu", "install", "dev")
    )
    if EVERY_TEST in patterns:
        patterns, used = [EVERY_TEST], programs
    else:
        heads = [
            re.match(r"\^\(?([\w|]+)", alternative).group(1).split("|")
            for p in patterns
            for alternative in re.split(r"\|(?=\^)", p)
        ]
        used = sorted({name for head in heads for name in head} - NOT_OF_TESTS)
    targets = [f"test_{name}" for name in used]
    targets += [
        f"example_{path.stem}"
        for path in sorted((ROOT / "examples").glob("*.c*"))
        if path.suffix in (".c", ".cpp")
    ] * any(file.startswith("examples/") for file in files)
    return {
        "changed": files,
        "targets": targets,
        "tests": "|".join(patterns),
        "pytest": sorted(
            {file for path in files if (p := pytest_of(path)) for file in expanded(p)}
        ),
        "rust": "1" if any(re.match(RUST, path) for path in files) else "",
    }


def main():
    given = sys.argv[1] if len(sys.argv) > 1 else ""
    files = sys.stdin.read().split("\n")[:-1] if given == "-" else changed_files(given)
    for name, value in plan(files).items():
        print(
            f"{name}={shlex.quote(value)}"
            if isinstance(value, str)
            else f"{name}=({' '.join(map(shlex.quote, value))})"
        )


if __name__ == "__main__":
    main()
