#!/usr/bin/env python3
"""Repacks scikit-build's wheel for any Linux of a platform's tag. It carries nanobind's code for
each version of Python, so that nothing has to be installed beside it. The same files give the same
bytes: entries are in order, times from SOURCE_DATE_EPOCH, modes by kind."""

import argparse
import base64
import contextlib
import hashlib
import os
import pathlib
import re
import sys
import tempfile
import time
import zipfile

import components

MOST_BYTES = 8 << 20


def backend_files(folder: pathlib.Path) -> dict[str, bytes]:
    """The libraries of the packages nanobind-backend below the folder, by their place in ours."""
    files = {
        f"fulmen/_nanobind/{path.name}": path.read_bytes()
        for path in folder.glob("**/_nb_backend_v1.*")
        if path.suffix in (".so", ".pyd")
    }
    if not files:
        sys.exit(
            f"{folder} has no library of nanobind-backend: pip install --target puts one there"
        )
    return files


def parts_of(platform: str) -> list[str]:
    """In components.py's words: what a wheel of the platform has in it."""
    common = ["library", "program", "python"]
    if platform.startswith("win"):
        return [*common, "windows"]
    return [*common, "linux", *(["emulator"] if platform.endswith("x86_64") else [])]


def packed(raw: pathlib.Path, platform: str, backends: pathlib.Path) -> dict[str, bytes]:
    with zipfile.ZipFile(raw) as archive:
        files = {n: archive.read(n) for n in archive.namelist() if not n.endswith(("/", "/RECORD"))}
    return of_package(files, platform, backends)


def of_package(files: dict[str, bytes], platform: str, backends: pathlib.Path) -> dict[str, bytes]:
    """The files of a wheel from those of the package and its metadata."""
    (info,) = {n.partition("/")[0] for n in files if n.partition("/")[0].endswith(".dist-info")}
    metadata = files[f"{info}/METADATA"].decode()
    files[f"{info}/METADATA"] = re.sub(
        r"^Requires-Dist: nanobind-backend.*\n", "", metadata, flags=re.MULTILINE
    ).encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: fulmen packaging\nRoot-Is-Purelib: false\n"
        + f"Tag: cp310-abi3-{platform}\n".encode()
    )
    files |= backend_files(backends)
    notices = components.notices(parts_of(platform))
    files |= {f"{info}/licenses/{name}.txt": text for name, text in notices.items()}
    files[f"{info}/RECORD"] = record(files, info)
    return files


def windows_package(sources: pathlib.Path, built: pathlib.Path, backend) -> dict[str, bytes]:
    """The files that scikit-build would put into a wheel: the package's sources and metadata, and
    what was built in a folder. On Windows a library is looked for beside the program."""
    files = below(sources / "bindings/python/fulmen", "fulmen")
    for path in ("libfulmen.dll", "fulmen.exe", "bindings/python/_core.pyd"):
        files[f"fulmen/{pathlib.Path(path).name}"] = (built / path).read_bytes()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(sources):
        with contextlib.redirect_stdout(sys.stderr):  # it tells what it does
            info = backend.prepare_metadata_for_build_wheel(folder)
        files |= below(pathlib.Path(folder, info), info)
    return {name: data for name, data in files.items() if not name.endswith((".pyc", "/RECORD"))}


def below(folder: pathlib.Path, name: str) -> dict[str, bytes]:
    """The files below a folder, by their names in a wheel where the folder is called so."""
    return {
        f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def record(files: dict[str, bytes], info: str) -> bytes:
    """The list of a wheel's files, which is one of them: in the folder info."""
    lines = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=")
        lines.append(f"{name},sha256={digest.decode()},{len(files[name])}\n")
    return "".join([*lines, f"{info}/RECORD,,\n"]).encode()


def write(path: pathlib.Path, files: dict[str, bytes], most_bytes: int = MOST_BYTES) -> None:
    # A zip's times begin in 1980.
    seconds = max(int(os.environ.get("SOURCE_DATE_EPOCH") or 0), 315532800)
    stamp = time.gmtime(seconds)[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        # The metadata at the end, as installers like it, and RECORD last.
        for name in sorted(files, key=lambda n: (".dist-info/" in n, n.endswith("/RECORD"), n)):
            entry = zipfile.ZipInfo(name, stamp)
            entry.create_system = 3  # Unix
            mode = 0o755 if files[name].startswith(b"\x7fELF") else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name], compresslevel=9)
    if path.stat().st_size > most_bytes:
        sys.exit(f"{path} has {path.stat().st_size} bytes, more than {most_bytes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "raw",
        type=pathlib.Path,
        help="the wheel that scikit-build built; for Windows the folder of the sources",
    )
    parser.add_argument("--built", type=pathlib.Path, help="for Windows: the build's folder")
    parser.add_argument("--platform", required=True, help="such as manylinux_2_28_x86_64")
    parser.add_argument(
        "--backends",
        type=pathlib.Path,
        required=True,
        help="a folder with nanobind-backend's packages",
    )
    parser.add_argument("--output", type=pathlib.Path, required=True, help="a folder")
    arguments = parser.parse_args()
    if arguments.built is None:
        files = packed(arguments.raw, arguments.platform, arguments.backends)
    else:
        from scikit_build_core import build

        files = windows_package(arguments.raw, arguments.built, build)
        files = of_package(files, arguments.platform, arguments.backends)
    (info,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
    name, version = info.removesuffix(".dist-info").split("-")
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / f"{name}-{version}-cp310-abi3-{arguments.platform}.whl"
    write(path, files)
    print(path)


if __name__ == "__main__":
    main()
