"""Fulmen's C ABI over torch tensors, as thin as ctypes allows: a plan, and its run on the current
stream."""

import ctypes
import math
import os

import torch

_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.bool: 3}
_PRECISIONS = ("exact", "int8", "fp8")
_NAMES = ("q", "k", "v", "out", "bias", "keep_mask", "alibi_slopes", "sinks", "lse")
_GRADIENTS = ("dout", "dlse", "dq", "dk", "dv", "dbias", "dsinks")


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
        ("reserved", ctypes.c_uint64 * 2),
    ]


class Tensors(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *((name, Tensor) for name in _NAMES + _GRADIENTS),
        ("dropout_seed", ctypes.c_uint64),
        ("dropout_offset", ctypes.c_uint64),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("softmax_scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("causal", ctypes.c_int32),
        ("window_left", ctypes.c_int64),
        ("window_right", ctypes.c_int64),
        ("kernel", ctypes.c_char_p),
        ("num_threads", ctypes.c_int32),
        ("verify", ctypes.c_bool),
        ("parallel_for", ctypes.c_void_p),
        ("parallel_for_context", ctypes.c_void_p),
        ("dropout", ctypes.c_float),
        ("deterministic", ctypes.c_bool),
        ("max_seqlen_q", ctypes.c_int64),
        ("max_seqlen_k", ctypes.c_int64),
        ("validate", ctypes.c_bool),
        ("vary_batch", ctypes.c_bool),
        ("vary_seqlen_k", ctypes.c_bool),
        ("trust_pointers", ctypes.c_bool),
        ("tuning", ctypes.c_char_p),
        ("check_first_use", ctypes.c_bool),
        ("score_mod", ctypes.c_char_p),
        ("mask_mod", ctypes.c_char_p),
        ("mask_block_q", ctypes.c_int64),
        ("mask_block_k", ctypes.c_int64),
        ("precision", ctypes.c_int32),
    ]


_lib = ctypes.CDLL(os.environ.get("FULMEN_LIBRARY", "libfulmen.so.0.2"))
_lib.fulmen_last_error.restype = ctypes.c_char_p
_lib.fulmen_plan_explain.restype = ctypes.c_char_p
_lib.fulmen_plan_explain.argtypes = [ctypes.c_void_p]
_lib.fulmen_options_init_sized.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_lib.fulmen_plan_workspace_bytes.restype = ctypes.c_size_t
_lib.fulmen_plan_workspace_bytes.argtypes = [ctypes.c_void_p]
_lib.fulmen_plan_run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_size_t]


def _check(status):
    if status != 0:
        raise RuntimeError(_lib.fulmen_last_error().decode())


def _view(tensor):
    """A tensor of four logical dims; [batch, seqlen, head, dim] for q, k, v and out."""
    assert tensor.dim() == 4
    return Tensor(
        tensor.data_ptr(),
        _DTYPES[tensor.dtype],
        (ctypes.c_int64 * 4)(*tensor.shape),
        (ctypes.c_int64 * 4)(*tensor.stride()),
    )


class Attention:
    """A plan for these tensors, by the names of the C ABI; with dout one of the backward pass. q,
    k, v, out, dout, dq, dk, dv: [batch, seqlen, head, dim], any strides; lse:
    [batch, head, seqlen, 1]."""

    def __init__(
        self,
        q,
        k,
        v,
        out,
        *,
        causal=False,
        scale=math.nan,
        kernel=None,
        deterministic=True,
        tuning=None,
        precision="exact",
        **others,
    ):
        named = {"q": q, "k": k, "v": v, "out": out, **others}
        self._keep = named
        self.tensors = Tensors(ctypes.sizeof(Tensors))
        for name, tensor in named.items():
            if tensor is not None:
                setattr(self.tensors, name, _view(tensor))
        options = Options(ctypes.sizeof(Options))
        _lib.fulmen_options_init_sized(ctypes.byref(options), ctypes.sizeof(Options))
        options.softmax_scale = scale
        options.causal = int(causal)
        options.kernel = kernel.encode() if kernel else None
        options.deterministic = deterministic
        options.tuning = tuning.encode() if tuning else None
        options.precision = _PRECISIONS.index(precision)
        device = f"cuda:{q.device.index or 0}".encode()
        self.plan = ctypes.c_void_p()
        create = (
            _lib.fulmen_plan_create_backward
            if named.get("dout") is not None
            else _lib.fulmen_plan_create
        )
        _check(
            create(
                ctypes.byref(self.tensors), ctypes.byref(options), device, ctypes.byref(self.plan)
            )
        )
        self.bytes = _lib.fulmen_plan_workspace_bytes(self.plan)
        self.workspace = torch.empty(max(self.bytes, 1), dtype=torch.uint8, device=q.device)

    def __call__(self):
        stream = torch.cuda.current_stream().cuda_stream
        _check(
            _lib.fulmen_plan_run(
                self.plan,
                stream,
                ctypes.byref(self.tensors),
                self.workspace.data_ptr() if self.bytes else None,
                self.bytes,
            )
        )

    def kernel(self):
        return _lib.fulmen_plan_explain(self.plan).decode().split(" on ")[0]
