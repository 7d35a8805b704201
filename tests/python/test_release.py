"""./dev release: its check that all agree on one version finds what does not, and its lists of
parts say what is compiled in."""

import importlib
import io
import json
import pathlib
import re
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
release = pytest.importorskip("release")
import components  # noqa: E402
import sbom  # noqa: E402

VERSION = release.stated(ROOT)[0][1]


@pytest.fixture
def sources(tmp_path):
    """The files that have the version, and the changelog."""
    for name in {"CHANGELOG.md", *(name for name, _ in release.PLACES)}:
        path = tmp_path / "sources" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((ROOT / name).read_text())
    return tmp_path / "sources"


def test_the_sources_agree():
    assert release.disagreements(ROOT) == (VERSION, [])


@pytest.mark.parametrize("at", range(1, len(release.PLACES)))
def test_another_version_in_one_place_is_found(sources, at):
    name, pattern = release.PLACES[at]
    path = sources / name
    text = path.read_text()
    found = release.re.search(pattern, text)
    other = "7.8.9" if found[1].count(".") == 2 else "7.8"
    path.write_text(text[: found.start(1)] + other + text[found.end(1) :])
    assert release.disagreements(sources)[1] == [f"{name} says {other}, CMakeLists.txt {VERSION}"]
    path.write_text(text[: found.start()] + text[found.end() :])
    assert release.disagreements(sources)[1] == [
        f"{name} says no version, CMakeLists.txt {VERSION}"
    ]


def test_the_changelog_has_to_name_it(sources):
    path = sources / "CHANGELOG.md"
    path.write_text(f"# Changes\n\n## {VERSION} (2026-11-28)\n")
    assert release.disagreements(sources, final=True)[1] == []
    path.write_text("# Changes\n\n## Unreleased\n\n## 0.0.1\n")
    assert release.disagreements(sources)[1] == []
    assert "begins with Unreleased" in release.disagreements(sources, final=True)[1][0]
    path.write_text(f"# Changes\n\n## Unreleased\n\n## {VERSION}\n")
    assert f"changes after {VERSION}" in release.disagreements(sources)[1][0]
    path.write_text("# Changes\n\n## 0.0.9\n")
    assert "begins with 0.0.9" in release.disagreements(sources)[1][0]


def test_another_version_is_set_everywhere(sources):
    release.set_version(sources, "12.3.4")
    assert {said for _, said in release.stated(sources)} == {"12.3.4", "12.3"}


def wheel(path, version):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fulmen.dist-info/METADATA", f"Name: fulmen\nVersion: {version}\n")


def tar(path, name, text):
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo(f"{path.name}/{name}")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text.encode()))


def test_a_package_of_another_version_is_found(tmp_path):
    wheel(tmp_path / "fulmen-1.2.3-cp310-abi3-win_amd64.whl", "1.2.3")
    tar(tmp_path / "fulmen-1.2.3.crate", "Cargo.toml", '[package]\nversion = "1.2.3"\n')
    pc = "Name: fulmen\nVersion: 1.2.3\n"
    tar(tmp_path / "fulmen-1.2.3-Linux-x86_64.tar.gz", "lib/pkgconfig/fulmen.pc", pc)
    tar(tmp_path / "fulmen-1.2.3.tar.gz", "PKG-INFO", pc)
    assert release.wrong_files(tmp_path, "1.2.3") == []
    wheel(tmp_path / "fulmen-1.2.3-cp310-abi3-win_amd64.whl", "1.2.2")
    tar(tmp_path / "fulmen-1.2.3.crate", "Cargo.toml", '[package]\nversion = "1.2.4"\n')
    tar(tmp_path / "fulmen-1.2.3.tar.gz", "PKG-INFO", "Name: fulmen\n")
    assert release.wrong_files(tmp_path, "1.2.3") == [
        "fulmen-1.2.3-cp310-abi3-win_amd64.whl says version 1.2.2 inside, not 1.2.3",
        "fulmen-1.2.3.crate says version 1.2.4 inside, not 1.2.3",
        "fulmen-1.2.3.tar.gz says version none inside, not 1.2.3",
    ]


def test_lists_of_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(components.Component, "version", lambda one: "1.0")
    names = {
        "fulmen-1.2.3-cp310-abi3-win_amd64.whl": {"mingw-w64", "nanobind", "CLI11", "libstdc++"},
        "fulmen-1.2.3-cp310-abi3-manylinux_2_28_x86_64.whl": {"boost-context", "nanobind"},
        "fulmen_1.2.3_amd64.deb": {"boost-context", "CLI11", "fmt", "nlohmann-json"},
    }
    for name in [*names, "fulmen-1.2.3.tar.gz", "fulmen-1.2.3.crate"]:
        (tmp_path / name).touch()
    sbom.write_all(tmp_path, "1.2.3")
    assert len(list(tmp_path.glob("*.cdx.json"))) == len(names)
    for name, wanted in names.items():
        text = (tmp_path / f"{name}.cdx.json").read_text()
        found = {one["name"] for one in json.loads(text)["components"]}
        assert wanted <= found, name
        assert ("mingw-w64" in found) == ("win" in name) and (
            ("nanobind" in found) == name.endswith(".whl")
        )
        pytest.importorskip("cyclonedx", reason="cyclonedx-python-lib is not installed")
        sbom.check(text)
        with pytest.raises(SystemExit, match="CycloneDX refuses"):
            sbom.check(text.replace('"library"', '"nothing"'))


def test_debian_changelog_and_manual(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "packaging/debian")
    debian = importlib.import_module("make")
    changes = (
        "# Changes\n\n## Unreleased\n\n- `a`, as\n  [b](README.md) ([page](README.md)).\n\n"
        "## 0.1\n\n- Old\n"
    )
    assert debian.changelog(changes, "1.2.3", 0) == (
        "fulmen (1.2.3) stable; urgency=medium\n\n  * a, as b.\n\n"
        f" -- {debian.CONTACT}  Thu, 01 Jan 1970 00:00:00 +0000\n"
    )
    with pytest.raises(SystemExit, match="no list of changes"):
        debian.changelog("# Changes\n\n## Unreleased\n\nNone.\n", "1.2.3", 0)
    page = debian.manual((ROOT / "docs/guide/cli.md").read_text(), "1.2.3", 0)
    assert '.TH FULMEN 1 "1970-01-01" "fulmen 1.2.3"' in page
    # What the program itself calls its commands.
    for source in (ROOT / "tools").rglob("*.cpp"):
        for name in re.findall(r'\bapp\.add_subcommand\(\s*"(\w+)"', source.read_text()):
            assert f"fulmen {name}" in page, f"docs/guide/cli.md does not list {name}"
    assert debian.CONTACT in (ROOT / "cmake/Packages.cmake").read_text()
