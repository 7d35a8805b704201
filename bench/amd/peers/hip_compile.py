"""Compiles HIP kernels of others by Debian's clang, without ROCm: HIP's headers come from checkouts
of github.com/ROCm/HIP and ROCm/clr, OCKL and OCML from Debian's package rocm-device-libs."""

import re
import shutil
import subprocess
from pathlib import Path

from emulator import Kernel

# The compilers that Fulmen's own kernels are counted with.
LLVM = {"gfx950": "22"}
VERSION = """
#define HIP_VERSION_MAJOR 6
#define HIP_VERSION_MINOR 3
#define HIP_VERSION_PATCH 0
#define HIP_VERSION 60300000
#define HIP_VERSION_GITHASH ""
"""


class Hip:
    """checkouts: a folder with the checkouts HIP and clr, and rocm-device-libs, into which the
    package was unpacked; work: a folder for what is generated and compiled."""

    def __init__(self, checkouts, work):
        checkouts = Path(checkouts)
        self.work = Path(work)
        self.headers = self.work / "include"
        self.bitcode = next(checkouts.glob("rocm-device-libs/**/bitcode"))
        if not (self.headers / "hip/hip_version.h").exists():
            shutil.copytree(checkouts / "HIP/include/hip", self.headers / "hip", dirs_exist_ok=True)
            shutil.copytree(
                checkouts / "clr/hipamd/include/hip", self.headers / "hip", dirs_exist_ok=True
            )
            (self.headers / "hip/hip_version.h").write_text(VERSION)

    def _library(self, arch):
        """OCKL, OCML and their settings, as a HIP compiler chooses them. The version of the chip
        decides nothing in what kernels of attention call, and the package has no newer one."""
        wave = "on" if arch.startswith("gfx9") else "off"
        isa = "90a" if arch.startswith("gfx9") else "1030"
        names = ["ocml", "ockl", "oclc_abi_version_500", f"oclc_wavefrontsize64_{wave}"]
        names += ["oclc_finite_only_off", "oclc_unsafe_math_off", "oclc_daz_opt_off"]
        names += ["oclc_correctly_rounded_sqrt_on", f"oclc_isa_version_{isa}"]
        return [
            option
            for name in names
            for option in ("-Xclang", "-mlink-builtin-bitcode", "-Xclang", self._file(name))
        ]

    def _file(self, name):
        return str(self.bitcode / f"{name}.bc")

    def compile(self, arch, source, options):
        """The code object of a source; it is kept, and taken again while the source is the same."""
        version = LLVM.get(arch, "19")
        path = self.work / f"{source.stem}.{arch}.co"
        if path.exists() and path.stat().st_mtime > source.stat().st_mtime:
            return Code(path, version)
        clang = f"clang++-{version}"
        resources = subprocess.run(
            [clang, "-print-resource-dir"], capture_output=True, text=True, check=True
        ).stdout.strip()
        command = [clang, "-x", "hip", f"--offload-arch={arch}", "--cuda-device-only"]
        command += ["--no-gpu-bundle-output", "-nogpulib", "-nogpuinc", "-O3", "-w"]
        if version != "19":  # later ones no longer say what these headers ask for
            command.append(f"-D__AMDGCN_WAVEFRONT_SIZE={64 if arch.startswith('gfx9') else 32}")
        # As hipcc does.
        command += ["-mllvm", "-amdgpu-early-inline-all=true"]
        command += ["-mllvm", "-amdgpu-function-calls=false"]
        command += ["-isystem", f"{resources}/include/cuda_wrappers", "-isystem", self.headers]
        command += ["-include", "__clang_hip_runtime_wrapper.h", "-D__HIP_PLATFORM_AMD__"]
        command += [*self._library(arch), *options, source, "-o", path]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line]
            raise RuntimeError("\n".join(lines[:5]) or done.stderr[-300:])
        return Code(path, version)


class Code:
    """A code object and what its notes say of each kernel."""

    def __init__(self, path, version):
        self.bytes = path.read_bytes()
        notes = subprocess.run(
            [f"llvm-readelf-{version}", "--notes", path], capture_output=True, text=True, check=True
        ).stdout
        # A kernel's entries are of one depth and end with the next kernel's first one.
        self.kernels = {}
        for entry in re.split(r"^  - \.", notes, flags=re.MULTILINE)[1:]:
            values = dict(re.findall(r"^    ?\.?(\w+):\s+(\S+)$", entry, flags=re.MULTILINE))
            self.kernels[values["name"]] = {n: int(v) for n, v in values.items() if v.isdigit()}

    def find(self, part):
        """The mangled name that has this part."""
        names = [n for n in self.kernels if part in n]
        if len(names) != 1:
            raise RuntimeError(f"{part}: {len(names)} kernels have it in their names")
        return names[0]

    def kernel(self, part, lds_bytes, lanes, arguments):
        return Kernel(self.bytes, self.find(part), lds_bytes, lanes, arguments)
