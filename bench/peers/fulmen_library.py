"""Fulmen through ctypes: planned once, then run on its own workspace, as an engine would."""

import ctypes
import os
import subprocess
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from cases import Case, Inputs
from implementations import Prepared, Unsupported

ROOT = Path(__file__).resolve().parents[2]
DTYPES = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.bool: 3,
    torch.int32: 4,
}
CAUSAL = {"none": 0, "bottom_right": 1, "top_left": 2}


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


class CallTensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int64),
        ("shape", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
    )


class CallOptions(ctypes.Structure):
    _fields_ = (
        ("softcap", ctypes.c_double),
        ("dropout", ctypes.c_double),
        ("causal", ctypes.c_int64),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("max_seqlen_q", ctypes.c_int64),
        ("max_seqlen_k", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("backward", ctypes.c_int64),
    )


def view(name: str, tensor: torch.Tensor) -> CallTensor:
    missing = 4 - tensor.dim()
    shape = [1] * missing + list(tensor.shape)
    strides = [0] * missing + list(tensor.stride())
    return CallTensor(
        name.encode(),
        tensor.data_ptr(),
        DTYPES[tensor.dtype],
        (ctypes.c_int64 * 4)(*shape),
        (ctypes.c_int64 * 4)(*strides),
    )


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
            ctypes.POINTER(CallTensor),
            ctypes.c_int64,
            ctypes.POINTER(CallOptions),
        )
        self.version = self._c.call_version().decode()

    def call(
        self, tensors: Mapping[str, torch.Tensor], options: Mapping, threads: int, *, backward: bool
    ) -> Callable[[], None]:
        """A call of these tensors, in Fulmen's names and order of dims. What is returned runs it
        and keeps the tensors."""
        asked = CallOptions(
            options.get("softcap", 0.0),
            options.get("dropout", 0.0),
            CAUSAL[options.get("causal", "none")],
            options.get("window_left", -1),
            options.get("window_right", -1),
            options.get("max_seqlen_q", -1),
            options.get("max_seqlen_k", -1),
            threads,
            backward,
        )
        views = (CallTensor * len(tensors))(*(view(name, x) for name, x in tensors.items()))
        call = self._c.call_create(views, len(tensors), asked)
        if not call:
            raise Unsupported(self._c.call_error().decode())
        run_call: Callable[[int], int] = self._c.call_run

        def run() -> None:
            if run_call(call) != 0:
                raise RuntimeError(self._c.call_error().decode())

        run.kernel = self._c.call_kernel(call).decode()
        run.tensors = tensors  # whose memory it reads and writes
        weakref.finalize(run, self._c.call_destroy, call)
        return run

    def prepare(self, case: Case, inputs: Inputs, threads: int) -> Prepared:
        out = torch.full_like(inputs.q, float("nan"))
        rows = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "out": out}
        tensors = {name: x.transpose(1, 2) for name, x in rows.items()}
        scores = (case.batch, case.heads, case.seqlen, case.seqlen)
        if inputs.bias is not None:
            tensors["bias"] = inputs.bias.expand(scores)
        if inputs.keep is not None:
            tensors["keep_mask"] = inputs.keep.expand(scores)
        options = {"causal": "bottom_right" if case.causal else "none"}
        return self.call(tensors, options, threads, backward=False), lambda: out
