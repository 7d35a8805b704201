#!/usr/bin/env python3
"""What a release is made of: one version everywhere, and the table of its files.

packaging/release.py check            the sources agree on the version
packaging/release.py files FOLDER     the packages in a folder are of that version; their table,
                                      SHA256SUMS and the lists of what they contain
packaging/release.py set 0.3.0        writes another version into the sources
"""

import argparse
import email
import hashlib
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
NUMBER = r"\d+\.\d+\.\d+"
# Where the sources have the version, as "x.y.z", or as "x.y" where fixes do not count.
PLACES = (
    ("CMakeLists.txt", rf"project\(fulmen VERSION ({NUMBER})"),
    ("meson.build", rf"project\('fulmen', 'cpp', version: '({NUMBER})'"),
    ("bindings/rust/Cargo.toml", rf'\[workspace\.package\]\nversion = "({NUMBER})"'),
    ("bindings/rust/fulmen/Cargo.toml", r'fulmen-sys = \{ version = "(\d+\.\d+)"'),
    ("bindings/rust/candle-fulmen/Cargo.toml", r'fulmen-sys = \{ version = "(\d+\.\d+)"'),
    ("bindings/rust/candle-fulmen/README.md", r'"candle-fulmen", version = "(\d+\.\d+)"'),
    ("bindings/rust/candle-fulmen/src/lib.rs", r'"candle-fulmen", version = "(\d+\.\d+)"'),
    ("bindings/rust/Cargo.lock", rf'name = "candle-fulmen"\nversion = "({NUMBER})"'),
    ("bindings/rust/Cargo.lock", rf'name = "fulmen"\nversion = "({NUMBER})"'),
    ("bindings/rust/Cargo.lock", rf'name = "fulmen-sys"\nversion = "({NUMBER})"'),
    ("packaging/conan/conanfile.py", rf'version = "({NUMBER})"'),
    ("packaging/vcpkg/vcpkg.json", rf'"version": "({NUMBER})"'),
    ("packaging/conda/recipe.yaml", rf'version: "({NUMBER})"'),
)


def stated(root: pathlib.Path) -> list[tuple[str, str]]:
    """Each place's file and version; an empty version where it has none."""
    found = []
    for name, pattern in PLACES:
        match = re.search(pattern, (root / name).read_text())
        found.append((name, match[1] if match else ""))
    return found


def disagreements(root: pathlib.Path, final: bool = False) -> tuple[str, list[str]]:
    """The version that CMake has, and what does not agree with it. final: the changelog has to have
    a heading for it."""
    found = stated(root)
    version = found[0][1]
    told = [
        f"{name} says {said or 'no version'}, CMakeLists.txt {version}"
        for name, said in found
        if said not in (version, version.rpartition(".")[0] if said.count(".") == 1 else version)
    ]
    headings = re.findall(r"^## (.*)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if headings[0] == "Unreleased" and not final:
        # What comes next is newer than what was released.
        if version in headings[1:]:
            told.append(
                f"CHANGELOG.md has changes after {version}, which CMakeLists.txt still says"
            )
    elif headings[0].split()[0] != version:
        told.append(f"CHANGELOG.md begins with {headings[0]}, CMakeLists.txt says {version}")
    return version, told


def set_version(root: pathlib.Path, version: str) -> None:
    for name, pattern in PLACES:
        path = root / name
        text = path.read_text()
        match = re.search(pattern, text)
        if match is None:
            sys.exit(f"{name} has no version where {pattern} looks for it")
        said = version if match[1].count(".") == 2 else version.rpartition(".")[0]
        path.write_text(text[: match.start(1)] + said + text[match.end(1) :])


def version_within(path: pathlib.Path) -> str:
    """The version that a package says of itself, inside."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
            return email.message_from_bytes(archive.read(name))["Version"]
    if path.suffix == ".deb":
        field = ["dpkg-deb", "--field", path, "Version"]
        return subprocess.run(field, capture_output=True, text=True, check=True).stdout.strip()
    inside = {".crate": "/Cargo.toml", ".gz": ("/PKG-INFO", "/lib/pkgconfig/fulmen.pc")}[
        path.suffix
    ]
    with tarfile.open(path) as archive:
        name = min((n for n in archive.getnames() if n.endswith(inside)), key=len)
        text = archive.extractfile(name).read().decode()
    match = re.search(r'^(?:version = "|Version: )([^"\s]+)', text, re.MULTILINE)
    return match[1] if match else ""


def packages(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(
        path for path in folder.iterdir() if path.name.endswith((".whl", ".deb", ".gz", ".crate"))
    )


def wrong_files(folder: pathlib.Path, version: str) -> list[str]:
    told = []
    for path in packages(folder):
        inside = version_within(path)
        if inside != version:
            told.append(f"{path.name} says version {inside or 'none'} inside, not {version}")
        elif f"-{version}" not in path.name and f"_{version}" not in path.name:
            told.append(f"{path.name} has not {version} in its name")
    return told


def table(folder: pathlib.Path) -> str:
    lines = []
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name not in ("SHA256SUMS", "table.txt"):
            data = path.read_bytes()
            lines.append((path.name, len(data), hashlib.sha256(data).hexdigest()))
    (folder / "SHA256SUMS").write_text("".join(f"{hash}  {name}\n" for name, _, hash in lines))
    width = max(len(name) for name, _, _ in lines)
    text = "".join(f"{name:{width}} {size:>9} {hash}\n" for name, size, hash in lines)
    (folder / "table.txt").write_text(text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["check", "files", "set"])
    parser.add_argument("given", nargs="?")
    parser.add_argument("--final", action="store_true", help="the changelog names the version")
    given = parser.parse_args()
    if given.what == "set":
        if not re.fullmatch(NUMBER, given.given or ""):
            sys.exit(f"set {given.given}: a version such as 0.2.0 is accepted")
        return set_version(ROOT, given.given)
    version, told = disagreements(ROOT, given.final)
    if given.what == "files":
        folder = pathlib.Path(given.given)
        told += wrong_files(folder, version)
        if not told:
            import sbom

            sbom.write_all(folder, version)
            for path in folder.glob("*.cdx.json"):
                sbom.check(path.read_text())
            print(table(folder), end="")
    if told:
        sys.exit("\n".join(told))
    if given.what == "check":
        print(version)
    return None


if __name__ == "__main__":
    main()
