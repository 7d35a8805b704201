"""Kernels that were compiled ahead: fulmen.add_prebuilt_kernels and installed packages of them."""

import os
import subprocess
import sys
from pathlib import Path

import fulmen
import pytest
from fulmen import _prebuilt

ROOT = Path(__file__).resolve().parents[2]
KERNEL = "append_kv portable bf16"
PROGRAM = Path(fulmen.__file__).parent / "bin" / "fulmen"


@pytest.fixture(scope="module")
def pack(tmp_path_factory) -> Path:
    """A pack of the kernels that rotate and append keys, for gfx1100."""
    folder = tmp_path_factory.mktemp("kernels")
    if not PROGRAM.exists():
        pytest.skip("this build of the package has no command line")
    command = [PROGRAM, "compile", "--arch", "gfx1100", "--common", "--only", "append_kv"]
    done = subprocess.run(
        [*command, "--out", folder / "out", "--pack", folder / "append_kv.pack"],
        capture_output=True,
        text=True,
    )
    if "clang" in done.stderr and "not found" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return folder / "append_kv.pack"


def test_paths_and_bytes(pack, tmp_path):
    fulmen.add_prebuilt_kernels(pack)
    fulmen.add_prebuilt_kernels(str(pack.parent / "out"))
    fulmen.add_prebuilt_kernels(pack.read_bytes())
    with pytest.raises(fulmen.ArgumentError, match="there is none"):
        fulmen.add_prebuilt_kernels(tmp_path / "absent")
    with pytest.raises(fulmen.ArgumentError, match="fulmen compile --pack"):
        fulmen.add_prebuilt_kernels(pack.read_bytes()[:-1])
    with pytest.raises(fulmen.ArgumentError, match="bytes is 0"):
        fulmen.add_prebuilt_kernels(b"")


# What a process says of a package that is installed in a folder of its path.
SAYS = """
import warnings
import fulmen
from fulmen import _prebuilt
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    print([folder.name for folder in _prebuilt.packages()])
    print(_prebuilt.load("gfx1100", None), _prebuilt.load("gfx942", None))
    print(_prebuilt.load("gfx1100", "append_kv portable bf16"))
    print(_prebuilt.load("gfx1100", "append_kv portable bf16"))
    print(_prebuilt.load("gfx1100", "prefill gfx11 bf16 d128 128x32"))
for one in seen:
    print("warned:", one.message)
"""


def says(site: Path) -> list[str]:
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SAYS],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.fixture
def site(pack, tmp_path) -> Path:
    """Where a wheel of that pack is unpacked, as ./dev kernels makes it."""
    sys.path.insert(0, str(ROOT / "packaging"))
    try:
        from lzma import compress

        from pack_kernels import pack_of, wheel_files
    finally:
        sys.path.pop(0)
    # The names of both packages agree.
    for kernel in (KERNEL, "prefill gfx11 bf16 d96/32 128x32 keep_mask", "unused_rows portable"):
        assert pack_of(kernel) == _prebuilt.pack_of(kernel)
    chips = {"gfx1100": {pack_of(KERNEL): compress(pack.read_bytes())}}
    for name, content in wheel_files("amd", fulmen.__version__, chips).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_installed_package(site):
    # A second kernel of a pack finds it there; no pack has the third one.
    assert says(site) == ["['fulmen_kernels_amd']", "True False", "True", "True", "False"]


def test_damaged_package(site):
    file = site / "fulmen_kernels_amd" / "gfx1100" / _prebuilt.pack_of(KERNEL)
    file.write_bytes(file.read_bytes()[:-20])
    lines = says(site)
    assert lines[2] == "False"
    assert lines[-1].startswith(f"warned: {file}: ") and "its kernels are compiled" in lines[-1]


def test_no_package(tmp_path):
    assert says(tmp_path) == ["[]", "False False", "False", "False", "False"]


def test_import_stays_cheap():
    code = "import sys, fulmen; print(*{'lzma', 'importlib.metadata'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
