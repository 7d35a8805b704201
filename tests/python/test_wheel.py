"""The wheel that the tests run on: what it needs of a system, and how it is packed."""

import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import fulmen
import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = pathlib.Path(fulmen.__file__).parent
# The newest versions that a Linux of the tag manylinux_2_28 has.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}


@pytest.mark.parametrize("name", ["libfulmen.so", "_core.abi3.so", "bin/fulmen"])
def test_needs_nothing_newer_than_its_tag(name):
    symbols = subprocess.run(
        ["objdump", "-T", PACKAGE / name], capture_output=True, text=True, check=True
    ).stdout
    needed = re.findall(r"\*UND\*.*\((GLIBC|GLIBCXX|CXXABI|GCC)_([0-9.]+)\)\s+(\S+)", symbols)
    assert len(needed) > 50, symbols
    newer = [
        f"{symbol} of {library}_{version}"
        for library, version, symbol in needed
        if tuple(map(int, version.split("."))) > NEWEST[library]
    ]
    assert not newer, f"cmake/manylinux has an older way for these to be given: {newer}"


def test_has_the_terms_of_what_is_compiled_in():
    (info,) = PACKAGE.parent.glob("fulmen-*.dist-info")
    words = {
        "fmt": "Victor Zverovich",
        "boost-context": "Boost Software License",
        "CLI11": "University of Cincinnati",
        "nlohmann-json": "Niels Lohmann",
        "nanobind": "Wenzel Jakob",
        "robin-map": "Permission is hereby granted",
        "libstdc++": "GCC RUNTIME LIBRARY EXCEPTION",
    }
    found = {path.stem: path.read_text() for path in info.glob("licenses/*.txt")}
    assert set(found) == set(words)
    for name, said in words.items():
        assert said.lower() in found[name].lower(), name


def test_serves_torch_where_numpy_is_not_installed():
    program = """
import sys
sys.modules["numpy"] = None  # any import of it fails
import torch, fulmen
q, k, v = torch.randn(3, 1, 17, 2, 16, dtype=torch.float64).float().unbind(0)
leaf = q.clone().requires_grad_()
out = fulmen.attention(leaf, k, v, causal=True)
out.sum().backward()
twin = q.clone().requires_grad_()
expected = torch.nn.functional.scaled_dot_product_attention(
    *(t.transpose(1, 2) for t in (twin, k, v)), is_causal=True).transpose(1, 2)
expected.sum().backward()
assert torch.allclose(out, expected, atol=1e-5), (out - expected).abs().max()
assert torch.allclose(leaf.grad, twin.grad, atol=1e-4), (leaf.grad - twin.grad).abs().max()
"""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True)
    assert run.returncode == 0, run.stderr.decode()


def test_the_sdist_has_all_that_is_compiled(tmp_path):
    # From a copy: scikit-build-core looks at each file of a tree, and build/ has 50,000 and more.
    source, made = tmp_path / "source", tmp_path / "made"
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in listed:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    (source / "build").mkdir()
    (source / "build/some.o").write_bytes(b"compiled")
    build = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, made], cwd=source, check=True)
    (path,) = made.iterdir()
    with tarfile.open(path) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    parts = ("CMakeLists.txt", "bindings/python/", "cmake/", "data/", "include/", "src/", "tools/")
    wanted = {name for name in listed if name.startswith(parts)}
    assert len(wanted) > 500 and wanted <= packed, sorted(wanted - packed)
    assert not any(name.startswith(("tests/", "build/", ".ci/")) for name in packed)


def packer():
    sys.path.insert(0, str(ROOT / "packaging"))
    spec = importlib.util.spec_from_file_location("pack_wheel", ROOT / "packaging/pack_wheel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def raw_wheel(path, names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, f"of {name}\n")
        archive.writestr(
            "fulmen-1.dist-info/METADATA",
            "Name: fulmen\nRequires-Dist: nanobind-backend>=1,<2\n"
            "Requires-Dist: torch; extra == 'a'\n",
        )
        archive.writestr("fulmen-1.dist-info/RECORD", "old")
    return path


def test_the_same_files_give_the_same_bytes(tmp_path, monkeypatch):
    module = packer()
    monkeypatch.setattr(module.components, "notices", lambda parts: {"other": b"free"})
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    backend = tmp_path / "backends/3.11/_nb_backend_v1.cpython-311-x86_64-linux-gnu.so"
    backend.parent.mkdir(parents=True)
    backend.write_bytes(b"\x7fELF")
    names = ["fulmen/a.py", "fulmen/b.py", "fulmen-1.dist-info/WHEEL"]
    made = []
    for at, order in enumerate([names, names[::-1]]):
        raw = raw_wheel(tmp_path / f"raw{at}.whl", order)
        files = module.packed(raw, "manylinux_2_28_x86_64", tmp_path / "backends")
        module.write(tmp_path / f"made{at}.whl", files)
        made.append((tmp_path / f"made{at}.whl").read_bytes())
    assert made[0] == made[1]
    with zipfile.ZipFile(tmp_path / "made0.whl") as wheel:
        entries = {entry.filename: entry for entry in wheel.infolist()}
        metadata = wheel.read("fulmen-1.dist-info/METADATA").decode()
        assert (
            "Tag: cp310-abi3-manylinux_2_28_x86_64\n"
            in wheel.read("fulmen-1.dist-info/WHEEL").decode()
        )
        record = wheel.read("fulmen-1.dist-info/RECORD").decode()
    assert "nanobind" not in metadata and "torch" in metadata
    library = entries["fulmen/_nanobind/" + backend.name]
    assert (library.external_attr >> 16 & 0o777, library.date_time[0]) == (0o755, 2023)
    assert {line.split(",")[0] for line in record.splitlines()} == set(entries)


def test_a_wheel_without_nanobind_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="has no library of nanobind-backend"):
        packer().backend_files(tmp_path)


def test_nanobind_of_the_package_nanobind_backend(tmp_path):
    """A build from source carries no library of nanobind's: the package is asked, then named."""
    source = ROOT / "bindings/python/fulmen/_nanobind/__init__.py"
    package = tmp_path / "fulmen" / "_nanobind"
    package.mkdir(parents=True)
    (tmp_path / "fulmen" / "__init__.py").write_text("")
    (package / "__init__.py").write_text(source.read_text())
    call = "import fulmen._nanobind as n; print(n.fill(1, 'tag', None))"
    run = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {call}"]
    (tmp_path / "nanobind_backend.py").write_text("def fill(*all): return all")
    found = subprocess.run(run, capture_output=True, text=True, check=True)
    assert found.stdout == "(1, 'tag', None)\n"
    (tmp_path / "nanobind_backend.py").write_text("raise ModuleNotFoundError('nanobind_backend')")
    missing = subprocess.run(run, capture_output=True, text=True, check=False)
    assert "pip install nanobind-backend" in missing.stderr
