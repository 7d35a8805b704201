#!/usr/bin/env python3
"""Makes a repository that the package `kernels` loads, from wheels of fulmen, one a machine:

    packaging/hub_kernel/make.py build/wheels/dist/fulmen-*.whl --output build/hub_kernel

The wheels are of one version, and the folder of results is new, empty or one that this made.
`kernels.get_local_kernel("build/hub_kernel")` loads it from there. The variants are noarch in
kernels' words: the extension knows no version of torch or CUDA, and a variant has the libraries of
each machine. Equal wheels give equal bytes."""

import argparse
import hashlib
import json
import pathlib
import re
import shutil
import sys
import zipfile

HERE = pathlib.Path(__file__).parent
BACKENDS = ("cpu", "cuda", "rocm")
# kernels' number of what the functions accept and give, counted from 1: version=1 in get_kernel().
VERSION = 1


# The folder of results has it: what has not is not replaced.
MADE = ".made_by_fulmen"


def remove_older(folder: pathlib.Path) -> None:
    """Removes what an earlier run made there, and nothing else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        sys.exit(f"--output {folder}: is a file; a folder is accepted")
    if (folder / MADE).is_file():
        shutil.rmtree(folder)
    elif any(folder.iterdir()):
        sys.exit(
            f"--output {folder}: has files that this did not make; a new folder, an empty one or "
            "an older result is accepted"
        )


def one_version(wheels: list[pathlib.Path]) -> None:
    versions = {wheel.name.split("-")[1] for wheel in wheels}
    if len(versions) > 1:
        sys.exit(f"wheels of versions {', '.join(sorted(versions))}: one version is accepted")


def package_files(wheel: pathlib.Path) -> tuple[str, dict[str, bytes]]:
    """The machine's folder, "x86_64-linux", and the wheel's files of the package."""
    tag = re.search(r"-(?:many)?linux_(?:\d+_\d+_)?(\w+)\.whl$", wheel.name)
    if tag is None:
        sys.exit(f"{wheel.name}: a wheel for Linux is accepted")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("fulmen/")]
        # The program on the command line is no kernel.
        files = {name: archive.read(name) for name in names if not name.startswith("fulmen/bin/")}
    return f"{tag[1]}-linux", files


def variant(backend: str, libraries: dict[str, bytes]) -> dict[str, bytes]:
    files = {"__init__.py": (HERE / "kernel.py").read_bytes(), **libraries}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name] + b"\0")
    metadata = {
        "name": "fulmen",
        "id": f"_fulmen_{backend}_{digest.hexdigest()[:10]}",
        "version": VERSION,
        "license": "MIT",
        "python-depends": [],
        "backend": {"type": backend},
    }
    return files | {"metadata.json": (json.dumps(metadata, indent=2) + "\n").encode()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", nargs="+", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--repository", default="fulmen/fulmen", help="its name on the hub")
    given = parser.parse_args()
    one_version(given.wheels)
    libraries = {}
    for wheel in given.wheels:
        machine, files = package_files(wheel)
        if any(name.startswith(f"lib/{machine}/") for name in libraries):
            sys.exit(f"{wheel.name}: a second wheel for {machine}; one a machine is accepted")
        libraries |= {f"lib/{machine}/{name}": data for name, data in files.items()}
    remove_older(given.output)
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / MADE).touch()
    for backend in BACKENDS:
        for name, data in variant(backend, libraries).items():
            path = given.output / "build" / f"torch-{backend}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    card = (HERE / "card.md.in").read_text().replace("REPOSITORY", given.repository)
    (given.output / "README.md").write_text(card)
    print(f"{given.output}: {', '.join(f'torch-{one}' for one in BACKENDS)}")


if __name__ == "__main__":
    main()
