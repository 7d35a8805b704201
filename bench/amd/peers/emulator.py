"""Runs kernels by bench/amd/run_kernel."""

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DTYPES = {"bf16": ("<u2", 2), "fp16": ("<f2", 2), "fp32": ("<f4", 4), "int32": ("<i4", 4)}


@dataclass
class Kernel:
    code: bytes
    name: str
    lds_bytes: int  # dynamic
    lanes: int | tuple  # of a workgroup, by dimension
    arguments: list  # as run_kernel takes them


class Run:
    """Buffers and launches of one description."""

    def __init__(self, program, arch):
        self.program, self.arch = program, arch
        self.inputs, self.outputs, self.launches, self.codes = {}, {}, [], []

    def input(self, name, array):
        self.inputs[name] = array

    def output(self, name, shape, dtype):
        self.outputs[name] = (shape, dtype)

    def problem(self, p):
        self.whole = {"dtype": p.dtype, "memory_bytes": p.bytes, "flops": p.flops}

    def launch(self, kernel, grid, workgroups=None, times=1):
        lanes = kernel.lanes
        one = {
            "code": f"{len(self.codes)}.co",
            "kernel": kernel.name,
            "grid": list(grid),
            "workgroup_size": [lanes] if isinstance(lanes, int) else list(lanes),
            "dynamic_lds": kernel.lds_bytes,
            "times": times,
            "arguments": kernel.arguments,
        }
        if workgroups is not None:
            one["workgroups"] = [int(n) for n in workgroups]
        self.codes.append(kernel.code)
        self.launches.append(one)

    def run(self):
        """The counts of each launch, and the outputs by name."""
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            buffers = {}
            for name, array in self.inputs.items():
                np.save(folder / f"{name}.npy", array)
                buffers[name] = {"npy": f"{name}.npy"}
            for name, (shape, dtype) in self.outputs.items():
                buffers[name] = {
                    "bytes": int(np.prod(shape)) * DTYPES[dtype][1],
                    "save": f"{name}.out.npy",
                    "dtype": dtype,
                    "shape": list(shape),
                }
            for n, code in enumerate(self.codes):
                (folder / f"{n}.co").write_bytes(code)
            path = folder / "run.json"
            path.write_text(
                json.dumps(
                    {
                        "arch": self.arch,
                        "problem": self.whole,
                        "buffers": buffers,
                        "launches": self.launches,
                    }
                )
            )
            done = subprocess.run([self.program, path], capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(done.stderr.strip() or f"ended with {done.returncode}")
            outputs = {n: np.load(folder / f"{n}.out.npy") for n in self.outputs}
            return json.loads(done.stdout), outputs
