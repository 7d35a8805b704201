"""The recipes of other packagers' tools, as far as the tools here can check them."""

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"


def test_vcpkg():
    check = ["cmake", "-P", PACKAGING / "vcpkg/check.cmake"]
    run = subprocess.run(check, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "configured by -DFULMEN_TOOLS=ON;-DBUILD_SHARED_LIBS=1" in run.stderr
    port = json.loads((PACKAGING / "vcpkg/vcpkg.json").read_text())
    assert set(port) <= {
        "name", "version", "description", "license", "supports", "dependencies", "features",
    }  # fmt: skip
    depends = {one if isinstance(one, str) else one["name"] for one in port["dependencies"]}
    assert {"fmt", "vcpkg-cmake", "vcpkg-cmake-config"} <= depends


def test_conda():
    pytest.importorskip("rattler_build", reason="py-rattler-build is not installed")
    check = [sys.executable, PACKAGING / "conda/check.py"]
    run = subprocess.run(check, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("linux-64: fulmen ")


def test_conan():
    pytest.importorskip("conans", reason="conan is not installed")
    inspect = [sys.executable, "-m", "conans.conan", "inspect", PACKAGING / "conan", "-f", "json"]
    run = subprocess.run(inspect, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["name"], found["license"]) == ("fulmen", "MIT")
