#!/usr/bin/env python3
"""A wheel of prebuilt kernels, fulmen-kernels-amd or fulmen-kernels-nvidia, which the package
fulmen of the same version reads (fulmen/_prebuilt.py). Nothing in it runs. The same kernels give
the same bytes."""

import argparse
import lzma
import pathlib
import struct
import subprocess
import tempfile

from pack_wheel import record, write

MOST_BYTES = 40 << 20
# Where a kernel's file has its name's length and its name: src/gpu/compile/cache/cache_file.cpp.
LENGTH_AT, NAME_AT = 48, 64
ROOT = pathlib.Path(__file__).resolve().parents[1]
INIT = '''"""Compiled kernels for {vendor} GPUs: {chips}. Fulmen {version} finds them by itself."""
'''


def knows(program: pathlib.Path, arch: str) -> bool:
    """Whether there is a compiler for the chip; it says itself why not."""
    command = [program, "compile", "--arch", arch, "--only", "append_kv"]
    return subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0


def pack_of(name: str) -> str:
    """The file of a kernel: as in fulmen/_prebuilt.py, which tests compare."""
    return "_".join(name.split()[:4]).replace("/", "-") + ".pack.xz"


def packs(program: pathlib.Path, arch: str) -> dict[str, bytes]:
    """What `fulmen compile --common` makes for a chip: files by name."""
    with tempfile.TemporaryDirectory() as folder:
        # Machine code that breaks a rule makes it fail.
        command = [program, "compile", "--arch", arch, "--common", "--out", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        kernels = [path.read_bytes() for path in sorted(pathlib.Path(folder).glob("*.kernel"))]
    joined: dict[str, bytes] = {}
    for kernel in kernels:
        (length,) = struct.unpack_from("<I", kernel, LENGTH_AT)
        file = pack_of(kernel[NAME_AT : NAME_AT + length].decode())
        joined[file] = joined.get(file, b"") + kernel
    files = {file: lzma.compress(joined[file], preset=9) for file in sorted(joined)}
    print(f"{arch}: {len(kernels)} kernels, {sum(map(len, files.values()))} bytes", flush=True)
    return files


def wheel_files(vendor: str, version: str, chips: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    module, info = f"fulmen_kernels_{vendor}", f"fulmen_kernels_{vendor}-{version}.dist-info"
    listed = ", ".join(chips)
    files = {
        f"{module}/__init__.py": INIT.format(
            vendor={"amd": "AMD", "nvidia": "NVIDIA"}[vendor], chips=listed, version=version
        ).encode(),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: fulmen-kernels-{vendor}\nVersion: {version}\n"
            f"Summary: Compiled kernels of Fulmen for {listed}\nLicense: MIT\n"
            f"Requires-Python: >=3.10\nRequires-Dist: fulmen=={version}\n"
        ).encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: fulmen packaging\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[fulmen.kernels]\n{vendor} = {module}\n".encode(),
        f"{info}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    for arch, of_chip in chips.items():
        files |= {f"{module}/{arch}/{file}": pack for file, pack in of_chip.items()}
    files[f"{info}/RECORD"] = record(files, info)
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vendor", choices=("amd", "nvidia"))
    parser.add_argument("chips", nargs="+", help="gfx1100, sm_90a, ...")
    parser.add_argument(
        "--known", action="store_true", help="leave out chips that no installed compiler knows"
    )
    parser.add_argument("--program", type=pathlib.Path, required=True, help="fulmen's command line")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="a folder")
    arguments = parser.parse_args()
    said = subprocess.run([arguments.program, "--version"], check=True, capture_output=True)
    version = said.stdout.decode().split()[-1]
    known = [a for a in arguments.chips if not arguments.known or knows(arguments.program, a)]
    if left_out := set(arguments.chips) - set(known):
        print("left out, as no compiler here knows them:", *sorted(left_out), flush=True)
    chips = {arch: packs(arguments.program, arch) for arch in known}
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / f"fulmen_kernels_{arguments.vendor}-{version}-py3-none-any.whl"
    write(path, wheel_files(arguments.vendor, version, chips), MOST_BYTES)
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
