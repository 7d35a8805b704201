"""Fulmen through ctypes: planned once, then run on its own workspace, as an engine would."""

import ctypes
import os
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from cases import Case, Inputs
from implementations import Prepared, Unsupported

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {"fp32": 0, "fp16": 1, "bf16": 2}


def compile_call(library: Path) -> ctypes.CDLL:
    folder = library.resolve().parent
    output = folder / "libfulmen_peers_call.so"
    command = [
        os.environ.get("CXX", "g++"),
        "-std=c++20",
        "-O2",
        "-fPIC",
        "-shared",
        f"-I{ROOT / 'include'}",
    ]
    command += [
        str(Path(__file__).with_name("fulmen_call.cpp")),
        f"-L{folder}",
        "-lfulmen",
        f"-Wl,-rpath,{folder}",
    ]
    subprocess.run([*command, "-o", str(output)], check=True)
    return ctypes.CDLL(str(output))


class Library:
    def __init__(self, path: Path) -> None:
        self._c = compile_call(path)
        for name in ("call_error", "call_version", "call_kernel"):
            getattr(self._c, name).restype = ctypes.c_char_p
        self._c.call_kernel.argtypes = self._c.call_run.argtypes = self._c.call_destroy.argtypes = [
            ctypes.c_void_p
        ]
        self._c.call_create.restype = ctypes.c_void_p
        self._c.call_create.argtypes = (
            [ctypes.c_void_p] * 6 + [ctypes.c_int] + [ctypes.c_int64] * 5 + [ctypes.c_int] * 2
        )
        self.version = self._c.call_version().decode()

    def prepare(self, case: Case, inputs: Inputs, threads: int) -> Prepared:
        out = torch.full_like(inputs.q, float("nan"))
        bias, keep = (
            None if tensor is None else tensor.data_ptr() for tensor in (inputs.bias, inputs.keep)
        )
        pointers = (
            inputs.q.data_ptr(),
            inputs.k.data_ptr(),
            inputs.v.data_ptr(),
            bias,
            keep,
            out.data_ptr(),
        )
        shape = (case.batch, case.heads, case.seqlen, case.head_dim)
        keep_rows = 0 if inputs.keep is None else inputs.keep.shape[2]
        call = self._c.call_create(
            *pointers, DTYPES[case.dtype], *shape, keep_rows, case.causal, threads
        )
        if not call:
            raise Unsupported(self._c.call_error().decode())
        run_call: Callable[[int], int] = self._c.call_run

        def run() -> None:
            if run_call(call) != 0:
                raise RuntimeError(self._c.call_error().decode())

        run.kernel = self._c.call_kernel(call).decode()
        weakref.finalize(run, self._c.call_destroy, call)
        return run, lambda: out
