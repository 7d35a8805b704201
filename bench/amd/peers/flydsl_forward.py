"""FlyDSL's forward kernels (AMD's), compiled without a GPU and without torch: as its
flydsl_flash_attn_func chooses, for gfx942 the generic one, for gfx950 the one of two groups of
waves that take turns."""

import importlib
import os
import re
import sys
import types

from attention import prefill
from checks import run_forward

from emulator import Kernel


def runs(arch, checkout):
    """(name of the kernel, problem, runner, adds its launches)."""
    if arch not in ("gfx942", "gfx950"):
        return
    # With 256 dims it asks for more LDS than gfx942 has.
    problems = [prefill(d, causal=c) for d in (64, 128) for c in (False, True)]
    for p in [*problems, prefill(128, 8192, True)]:
        yield "FlyDSL", p, run_forward, lambda run, p: add(run, checkout, p)


class _Tensor:
    """What FlyDSL's compiler asks of a tensor of torch."""

    def __init__(self, shape, dtype, size):
        self.shape, self.dtype, self._size = shape, dtype, size

    def stride(self):
        strides, step = [], 1
        for n in reversed(self.shape):
            strides.append(step)
            step *= n
        return tuple(reversed(strides))

    def element_size(self):
        return self._size


INTEGERS = ["bool", "uint8", "int8", "int16", "int32", "int64"]
DTYPES = ["float16", "bfloat16", "float32", "float64", *INTEGERS]


def _import(checkout):
    """The module of the compiler, with a torch of names alone."""
    if "torch" not in sys.modules:
        torch = types.ModuleType("torch")
        for name in DTYPES:
            setattr(torch, name, f"torch.{name}")
        torch.Tensor = _Tensor
        torch.cuda = types.SimpleNamespace(Stream=type("Stream", (), {}))
        sys.modules["torch"] = torch
    if checkout not in sys.path:
        sys.path.insert(0, checkout)
    os.environ["COMPILE_ONLY"] = "1"
    os.environ["FLYDSL_RUNTIME_ENABLE_CACHE"] = "0"
    return importlib.import_module("flydsl.compiler.jit_function")


def code_object(text):
    """The bytes of the first binary in a module's text; a second one is the same kernel's."""
    escaped = re.search(r'bin = "((?:[^"\\]|\\.)*)"', text).group(1)
    quoted = rb"\\([0-9A-Fa-f]{2}|.)"

    def byte(found):
        one = found.group(1)
        return bytes([int(one, 16)]) if len(one) == 2 else one

    return re.sub(quoted, byte, escaped.encode("latin-1"), flags=re.DOTALL)


def compile_kernel(checkout, arch, p):
    """The code object of a problem's kernel, and the rows of a workgroup's tile."""
    jit = _import(checkout)
    os.environ["FLYDSL_GPU_ARCH"] = os.environ["ARCH"] = arch
    modules = []
    compiler = jit.MlirCompiler.compile

    def kept(*arguments, **named):
        modules.append(compiler(*arguments, **named))
        return modules[-1]

    jit.MlirCompiler.compile = kept
    try:
        bf16, fp32 = sys.modules["torch"].bfloat16, sys.modules["torch"].float32
        q, k, v, out = (
            _Tensor((p.batch, n, h, p.head_dim), bf16, 2)
            for n, h in (
                (p.seqlen_q, p.heads),
                (p.seqlen_k, p.kv_heads),
                (p.seqlen_k, p.kv_heads),
                (p.seqlen_q, p.heads),
            )
        )
        lse = _Tensor((p.batch, p.heads, p.seqlen_q), fp32, 4)
        build, options = _build(arch, p)
        launch = build(p.heads, p.head_dim, causal=p.causal, return_lse=True, **options)
        launch(q, k, v, out, p.batch, p.seqlen_q, lse=lse)
    finally:
        jit.MlirCompiler.compile = compiler
    return code_object(str(modules[-1]))


def _rows(p):
    """Of a workgroup's tile on gfx942. FlyDSL chooses 256 for 32 heads, which it then fails to
    trace with 64 dims."""
    large = p.heads >= 32 and p.batch * p.seqlen_q >= 4096
    return 256 if large and p.head_dim > 64 else 128


def _build(arch, p):
    common = {"dtype_str": "bf16", "num_kv_heads": p.kv_heads, "waves_per_eu": 2, "daz": True}
    if arch == "gfx950":
        module = importlib.import_module("kernels.attention.flash_attn_gfx950")
        return module.build_flash_attn_dualwave_swp_module, common
    module = importlib.import_module("kernels.attention.flash_attn_generic")
    rows = _rows(p)
    tile = {"block_m": rows, "flat_work_group_size": 2 * rows, "path_tag": "auto"}
    return module.build_flash_attn_func_module, common | tile


def _tensor(name, shape):
    """A pointer, the shape and, in 64 bits, the strides but for the last one."""
    return [{"buffer": name}, *({"i32": n} for n in shape)] + [
        {"i64": n} for n in _Tensor(shape, None, 0).stride()[:-1]
    ]


def _structure(arguments):
    """Each with its offset: tensors begin at multiples of 8, and all of one follows unaligned."""
    at, placed = 0, []
    for group in arguments:
        at = -(-at // 8) * 8 if len(group) > 1 else at
        for one in group:
            placed.append(one | {"offset": at})
            at += 4 if "i32" in one else 8
    return placed


def add(run, checkout, p):
    """Adds the launch for head 0 of batch 0."""
    code = compile_kernel(checkout, run.arch, p)
    of_q, of_k = (
        (p.batch, n, h, p.head_dim) for n, h in ((p.seqlen_q, p.heads), (p.seqlen_k, p.kv_heads))
    )
    tensors = [_tensor("q", of_q), _tensor("k", of_k), _tensor("v", of_k), _tensor("out", of_q)]
    tensors.append(_tensor("lse", (p.batch, p.heads, p.seqlen_q)))
    absent, lengths = [_tensor("out", of_q)], [[{"i32": p.seqlen_q}], [{"i32": p.seqlen_k}]]
    if run.arch == "gfx950":
        rows, name = 256, "flash_attn_dualwave_swp_gfx950_kernel_0"
        rest = (p.heads * p.head_dim, p.kv_heads * p.head_dim, p.head_dim, 0, 0, 0)
        arguments = tensors + 7 * absent + lengths + [[{"i32": n}] for n in rest]
        tiles = -(-p.seqlen_q // rows)
        grid = [p.heads, tiles, p.batch]
    else:
        rows, name = _rows(p), "flash_attn_generic_kernel_0"
        arguments = tensors + lengths + 3 * absent + [[{"i32": 0}]]
        tiles = -(-p.seqlen_q // rows)
        grid = [p.batch * tiles * p.heads]
    kernel = Kernel(code, name, 0, 2 * rows, _structure(arguments))
    run.launch(kernel, grid, [p.heads * n for n in range(tiles)], p.heads * p.batch)
    return f"{rows} rows, {rows // 32} waves"
