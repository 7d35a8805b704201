"""Compiles Triton kernels for AMD chips without a GPU, as a launch on one would."""

import os
from dataclasses import dataclass

# Before triton is imported: it would keep compiled kernels among the user's.
os.environ.setdefault("TRITON_CACHE_DIR", os.path.abspath("build/triton-cache"))
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as it is where nobody asks

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from emulator import Kernel


@dataclass
class Pointer:
    """A buffer of the run, `plus` bytes further. type: triton's, "bf16"."""

    buffer: str
    type: str = "bf16"
    plus: int = 0


@dataclass
class Float:
    value: float


def _specialised(value):
    """The type and the attributes that Triton's launcher gives an argument; None: a constant."""
    if isinstance(value, Pointer):
        # Allocations are aligned and below 2 GiB, which lets the compiler use buffer instructions.
        return f"*{value.type}", [["tt.divisibility", 16], ["tt.pointer_range", 32]]
    if isinstance(value, Float):
        return "fp32", []
    if isinstance(value, int) and not isinstance(value, bool) and value != 1:
        return "i32", [["tt.divisibility", 16]] if value % 16 == 0 else []
    return None, []


def _argument(value):
    if isinstance(value, Pointer):
        return {"buffer": value.buffer, "plus": value.plus}
    if isinstance(value, Float):
        return {"f32": value.value}
    return {"i32": value}


def strides(prefix, letters, values):
    return {f"stride_{prefix}{letter}": n for letter, n in zip(letters, values, strict=True)}


def strides_of_rows(prefix, letters, p, heads, seqlen):
    """Of [batch, seqlen, heads, head_dim]; letters: of batch, head, row and element."""
    row = heads * p.head_dim
    return strides(prefix, letters, (seqlen * row, p.head_dim, row, 1))


def compile_kernel(function, arch, values, constants, options):
    """values: of the function's arguments by name, None and 1 becoming constants; constants: of its
    constexpr arguments; options: num_warps and others of a launch."""
    wave = 64 if arch.startswith("gfx9") else 32
    signature, attributes, all_constants, arguments = {}, {}, {}, []
    for n, name in enumerate(function.arg_names):
        value = constants[name] if name in constants else values.get(name)
        type_, attribute = (None, []) if name in constants else _specialised(value)
        if type_ is None:
            signature[name] = "constexpr"
            all_constants[(n,)] = value
            continue
        signature[name] = type_
        if attribute:
            attributes[(n,)] = attribute
        arguments.append(_argument(value))
    source = ASTSource(function, signature, all_constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("hip", arch, wave), options=options)
    metadata = compiled.metadata
    arguments += [{"i64": 0}, {"i64": 0}]  # memory of Triton's own, which these do not use
    return Kernel(
        compiled.asm["hsaco"], metadata.name, metadata.shared, metadata.num_warps * wave, arguments
    )
