#!/usr/bin/env python3
"""What packages contain beside Fulmen's own code, and under which terms: the one table, of which
notices and the list of parts (SBOM) are made.

    packaging/components.py debian --parts library program > copyright
"""

import argparse
import importlib.metadata
import pathlib
import subprocess
import typing

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOC = pathlib.Path("/usr/share/doc")


def debian_version(package: str) -> str:
    """The installed version of a Debian package, as its project numbers it."""
    query = ["dpkg-query", "-W", "-f", "${Version}", package]
    run = subprocess.run(query, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise SystemExit(f"{package} is missing, whose terms go with it: apt-get install {package}")
    return run.stdout.rpartition("-")[0].partition("+")[0]


class Component(typing.NamedTuple):
    name: str
    license: str  # SPDX
    owner: str
    project: str
    # Where it is: the library, the program, the Python module, or every file that is linked with
    # the C++ library of a system.
    parts: frozenset[str]
    package: str  # Debian's, or "nanobind": its version and terms are read from there
    document: str = ""  # of /usr/share/doc, where it has another name
    only: str = ""  # of a document with the terms of many files: the text of this licence

    def version(self) -> str:
        if self.package == "nanobind":
            return importlib.metadata.version("nanobind")
        return debian_version(self.package)

    def terms(self) -> str:
        if self.package != "nanobind":
            path = DOC / (self.document or self.package) / "copyright"
            if not path.exists():
                raise SystemExit(f"{path} is missing: apt-get install {self.package}")
            text = path.read_text(errors="replace")
            if self.only:
                text = text.rpartition(f"\nLicense: {self.only}\n")[2].partition("\n\n")[0]
            return text
        import nanobind

        site = pathlib.Path(nanobind.__file__).parent.parent
        if self.name == "nanobind":
            (path,) = site.glob("nanobind-*.dist-info/licenses/LICENSE")
            return path.read_text()
        # The hash map has its terms at the head of its header.
        header = (site / "nanobind/ext/robin_map/include/tsl/robin_map.h").read_text()
        return header.partition("*/")[0]


GCC = "GPL-3.0-or-later WITH GCC-exception-3.1"
COMPONENTS = (
    Component("fmt", "MIT", "Victor Zverovich", "github.com/fmtlib/fmt",
              frozenset({"library", "program"}), "libfmt-dev"),
    Component("boost-context", "BSL-1.0", "Oliver Kowalke", "boost.org",
              frozenset({"emulator"}), "libboost-context1.74-dev", only="BSL-1.0"),
    Component("CLI11", "BSD-3-Clause", "University of Cincinnati", "github.com/CLIUtils/CLI11",
              frozenset({"program"}), "libcli11-dev"),
    Component("nlohmann-json", "MIT", "Niels Lohmann", "github.com/nlohmann/json",
              frozenset({"program"}), "nlohmann-json3-dev"),
    Component("nanobind", "BSD-3-Clause", "Wenzel Jakob", "github.com/wjakob/nanobind",
              frozenset({"python"}), "nanobind"),
    Component("robin-map", "MIT", "Thibaut Goetghebuer-Planchon", "github.com/Tessil/robin-map",
              frozenset({"python"}), "nanobind"),
    Component("libstdc++", GCC, "Free Software Foundation", "gcc.gnu.org",
              frozenset({"linux"}), "libstdc++-12-dev", "gcc-12-base"),
    Component("libstdc++", GCC, "Free Software Foundation", "gcc.gnu.org",
              frozenset({"windows"}), "gcc-mingw-w64-x86-64-posix-runtime", "gcc-mingw-w64-base"),
    Component("mingw-w64", "ZPL-2.1", "the mingw-w64 project", "mingw-w64.org",
              frozenset({"windows"}), "mingw-w64-x86-64-dev"),
)  # fmt: skip
PARTS = sorted(frozenset().union(*(one.parts for one in COMPONENTS)))


def of(parts: typing.Iterable[str]) -> list[Component]:
    """The components of what has these parts."""
    wanted = set(parts)
    if unknown := wanted - set(PARTS):
        raise ValueError(f"parts {sorted(unknown)}: {', '.join(PARTS)} are accepted")
    return [one for one in COMPONENTS if one.parts & wanted]


def notices(parts: typing.Iterable[str]) -> dict[str, bytes]:
    """The terms of each component, by its name."""
    return {one.name: one.terms().encode() for one in of(parts)}


def paragraph(text: str) -> str:
    return "\n".join(f" {line.rstrip()}" if line.strip() else " ." for line in text.splitlines())


def debian_copyright(parts: typing.Iterable[str]) -> str:
    """/usr/share/doc/fulmen/copyright: Fulmen's licence, and the terms of what is compiled in."""
    own = (ROOT / "LICENSE").read_text()
    title, _, rest = own.partition("\n")
    assert title == "MIT License", title
    holder = rest.strip().splitlines()[0].removeprefix("Copyright (c) ")
    texts = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
        "Upstream-Name: fulmen\n"
        f"\nFiles: *\nCopyright: {holder}\nLicense: Expat\n{paragraph(rest.strip())}\n"
    ]
    for one in of(parts):
        texts.append(
            f"Files: {one.name.lower()}\n"
            f"Copyright: {one.owner}\n"
            f"License: {one.license.replace(' WITH ', '-with-')}\n"
            f"{paragraph(one.terms().strip())}\n"
            f"Comment: {one.name} {one.version()} ({one.project}), compiled into files of this\n"
            " package. The text is that of the package which it was compiled from.\n"
        )
    return "\n".join(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("form", choices=["debian"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, required=True)
    given = parser.parse_args()
    print(debian_copyright(given.parts), end="")


if __name__ == "__main__":
    main()
