"""The custom calls of XLA on a GPU, without a GPU: a frame as XLA passes it, and a backend that
records calls. tests/python_gpu/jax_check.py is the test on a GPU."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import user_backend
from fulmen import _core

jax = pytest.importorskip("jax", minversion="0.5")

STREAM, ORDINAL, SCALAR, STRING, BUFFER, EXECUTE = 0x5EED0, 3, 3, 4, 1, 3
FP32, INT64 = 11, 5  # XLA's numbers

SOURCES = Path(__file__).parents[2]


def test_structs_are_those_of_xla(tmp_path):
    """xla_ffi.h beside jaxlib's own header, by a compiler."""
    header = Path(__import__("jaxlib").__file__).parent / "include/xla/ffi/api/c_api.h"
    if not header.exists():
        pytest.skip(f"{header} does not exist")
    fields = {
        "Api": (
            "XLA_FFI_Api",
            {
                "version": "api_version",
                "create_error": "XLA_FFI_Error_Create",
                "stream": "XLA_FFI_Stream_Get",
                "destroy_error": "XLA_FFI_Error_Destroy",
                "allocate": "XLA_FFI_DeviceMemory_Allocate",
                "free": "XLA_FFI_DeviceMemory_Free",
                "device": "XLA_FFI_DeviceOrdinal_Get",
            },
        ),
        "StreamArguments": ("XLA_FFI_Stream_Get_Args", {"context": "ctx", "stream": "stream"}),
        "AllocateArguments": (
            "XLA_FFI_DeviceMemory_Allocate_Args",
            {
                "context": "ctx",
                "bytes": "size",
                "alignment": "alignment",
                "data": "data",
            },
        ),
        "DestroyErrorArguments": ("XLA_FFI_Error_Destroy_Args", {"error": "error"}),
        "FreeArguments": (
            "XLA_FFI_DeviceMemory_Free_Args",
            {"context": "ctx", "bytes": "size", "data": "data"},
        ),
        "DeviceArguments": (
            "XLA_FFI_DeviceOrdinal_Get_Args",
            {
                "context": "ctx",
                "device": "device_ordinal",
            },
        ),
        "CallFrame": (
            "XLA_FFI_CallFrame",
            {
                "api": "api",
                "context": "ctx",
                "stage": "stage",
                "arguments": "args",
                "results": "rets",
                "attributes": "attrs",
            },
        ),
        "Buffer": (
            "XLA_FFI_Buffer",
            {
                "dtype": "dtype",
                "data": "data",
                "rank": "rank",
                "dims": "dims",
            },
        ),
    }
    asserts = [
        f"static_assert(offsetof(fulmen::python::xla::{ours}, {a}) == offsetof({theirs}, {b}));"
        for ours, (theirs, pairs) in fields.items()
        for a, b in pairs.items()
    ]
    includes = ['#include "xla/xla_ffi.h"', f'#include "{header}"']
    source = tmp_path / "layout.cpp"
    source.write_text("\n".join([*includes, *asserts]) + "\n")
    command = ["c++", "-std=c++20", "-fsyntax-only", "-w", f"-I{SOURCES}/bindings/python/src"]
    subprocess.run([*command, str(source)], check=True, timeout=60)


def structure(**fields):
    return type("Structure", (ctypes.Structure,), {"_fields_": tuple(fields.items())})


POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t
HEAD = {"size": SIZE, "extensions": POINTER}
Text = structure(data=ctypes.c_char_p, size=SIZE)
Scalar = structure(dtype=ctypes.c_int32, value=POINTER)
Buffer = structure(**HEAD, dtype=ctypes.c_int32, data=POINTER, rank=ctypes.c_int64, dims=POINTER)
Buffers = structure(**HEAD, count=ctypes.c_int64, types=POINTER, buffers=POINTER)
Attributes = structure(**HEAD, count=ctypes.c_int64, types=POINTER, names=POINTER, values=POINTER)
Ask = structure(**HEAD, context=POINTER, answer=POINTER)
AskDevice = structure(**HEAD, context=POINTER, answer=ctypes.c_int32)
Complaint = structure(**HEAD, message=ctypes.c_char_p, code=ctypes.c_int32)
API_FUNCTIONS = 18
Api = structure(**HEAD, version=SIZE * 3, internal=POINTER, functions=POINTER * API_FUNCTIONS)
Frame = structure(
    **HEAD, api=POINTER, context=POINTER, stage=ctypes.c_int32, arguments=Buffers,
    results=Buffers, attributes=Attributes,
)  # fmt: skip


class Call:
    """A call's frame, and what XLA answers."""

    def __init__(self, inputs, outputs, api_functions=API_FUNCTIONS, **attributes):
        self.alive, self.errors = [], []
        keep = self.keep
        functions = [0] * API_FUNCTIONS
        for place, answer, of in (
            (0, self.complain, Complaint),
            (4, self.tell_stream, Ask),
            (17, self.tell_device, AskDevice),
        ):
            kind = ctypes.CFUNCTYPE(POINTER, ctypes.POINTER(of))
            functions[place] = ctypes.cast(keep(kind(answer)), POINTER).value
        api = keep(Api(functions=(POINTER * API_FUNCTIONS)(*functions)))
        api.size = ctypes.sizeof(Api) - 8 * (API_FUNCTIONS - api_functions)
        self.frame = Frame(
            size=ctypes.sizeof(Frame),
            api=ctypes.addressof(api),
            context=0xC0,
            stage=EXECUTE,
            arguments=self.buffers(inputs),
            results=self.buffers(outputs),
            attributes=self.attributes(attributes),
        )

    def keep(self, one):
        self.alive.append(one)
        return one

    def array_of(self, kind, values):
        return ctypes.addressof(self.keep((kind * max(1, len(values)))(*values)))

    def addresses(self, structures):
        return self.array_of(POINTER, [ctypes.addressof(self.keep(one)) for one in structures])

    def buffers(self, given):
        made = [
            Buffer(dtype=FP32, data=data, rank=len(dims), dims=self.array_of(ctypes.c_int64, dims))
            for data, dims in given
        ]
        types = self.array_of(ctypes.c_int32, [BUFFER] * len(made))
        return Buffers(count=len(made), types=types, buffers=self.addresses(made))

    def attributes(self, given):
        values = [
            Text(value.encode(), len(value))
            if isinstance(value, str)
            else Scalar(INT64, self.array_of(ctypes.c_int64, [value]))
            for value in given.values()
        ]
        types = [STRING if isinstance(value, str) else SCALAR for value in given.values()]
        names = [Text(name.encode(), len(name)) for name in given]
        return Attributes(
            count=len(values),
            types=self.array_of(ctypes.c_int32, types),
            names=self.addresses(names),
            values=self.addresses(values),
        )

    def complain(self, given):
        self.errors.append((given[0].message.decode(), given[0].code))
        return 0xE0

    def tell_stream(self, given):
        assert given[0].context == 0xC0
        given[0].answer = STREAM
        return None

    def tell_device(self, given):
        given[0].answer = ORDINAL
        return None

    def run(self, platform, name="fulmen_attention"):
        capsule = _core.xla_handlers()[platform][name]
        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = POINTER, (ctypes.py_object, ctypes.c_char_p)
        handler = ctypes.CFUNCTYPE(POINTER, ctypes.POINTER(Frame))(
            address(capsule, b"xla._CUSTOM_CALL_TARGET")
        )
        return handler(ctypes.byref(self.frame))


SHAPE = (2, 5, 3, 8)
BYTES = 4 * int(np.prod(SHAPE))
PLACES = {"arguments": 0b111, "results": 0b1000}  # q, k, v; out


@pytest.fixture(scope="module")
def seen():
    calls = []

    @ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, ctypes.POINTER(user_backend.Tensors), POINTER)
    def run(_context, stream, tensors, _options):
        t = tensors[0]
        calls.append((stream, [v.data for v in (t.q, t.k, t.v, t.out)], list(t.q.shape)))
        return 0

    user_backend.register("watching", run)
    yield calls
    del run


@pytest.mark.parametrize("platform", ["CUDA", "ROCM"])
def test_stream_and_addresses_arrive(seen, platform):
    seen.clear()
    call = Call([(0x10000 * n, SHAPE) for n in (1, 2, 3)], [(0x40000, SHAPE)], device="watching",
                **PLACES)  # fmt: skip
    assert call.run(platform) is None and not call.errors
    assert seen == [(STREAM, [0x10000, 0x20000, 0x30000, 0x40000], list(SHAPE))]


def test_mapped_calls_follow_each_other_in_the_stream(seen):
    seen.clear()
    mapped, shared = (3, *SHAPE), (1, *SHAPE)
    arguments = [(0x10000, mapped), (0x20000, shared), (0x30000, shared)]
    call = Call(arguments, [(0x40000, mapped)], device="watching", **PLACES)
    assert call.run("CUDA") is None and not call.errors
    assert seen == [
        (STREAM, [0x10000 + n * BYTES, 0x20000, 0x30000, 0x40000 + n * BYTES], list(SHAPE))
        for n in range(3)
    ]


@pytest.mark.parametrize("platform", ["CUDA", "ROCM"])
def test_functions_arrive(seen, platform):
    """Their words come from the planner, which has seen them: a user's backend takes none."""
    seen.clear()
    arrays = [*((0x10000 * n, SHAPE) for n in (1, 2, 3)), (0x50000, (3,))], [(0x40000, SHAPE)]
    functions = {"score_mod": "score + slopes[h]", "mask_mod": "", "function_tensors": "slopes"}
    call = Call(*arrays, device="watching", **functions, **PLACES)
    assert call.run(platform) is not None and not seen
    ((message, _code),) = call.errors
    assert "score_mod" in message and "watching" in message
    call = Call(*arrays, device="watching", **functions | {"score_mod": "score + h[0]"}, **PLACES)
    assert call.run(platform) is not None
    assert "score_mod, line 1, column 10" in call.errors[0][0]
    missing = functions | {"function_tensors": "slopes table"}
    call = Call(*arrays, device="watching", **missing, **PLACES)
    assert call.run(platform) is not None
    assert "fewer arrays than it names" in call.errors[0][0]


@pytest.mark.parametrize("platform, device", [("CUDA", "cuda:3"), ("ROCM", "hip:3")])
def test_the_device_is_the_one_of_the_context(platform, device):
    call = Call([(0x10000 * n, SHAPE) for n in (1, 2, 3)], [(0x40000, SHAPE)], **PLACES)
    assert call.run(platform) is not None
    ((message, _code),) = call.errors
    assert device in message  # which is not here


@pytest.mark.parametrize("device", ["cpu", "emulated:gfx1201"])
def test_a_device_that_reads_the_hosts_memory_is_refused(device):
    arrays = [(0x10000 * n, SHAPE) for n in (1, 2, 3)], [(0x40000, SHAPE)]
    call = Call(*arrays, device=device, **PLACES)
    assert call.run("CUDA") is not None
    assert call.errors == [
        (f'device is "{device}": the arrays are on cuda:3, which is accepted, as is None', 3)
    ]


def test_an_xla_that_does_not_tell_the_device_is_refused():
    call = Call([(0x10000, SHAPE)] * 3, [(0x40000, SHAPE)], api_functions=17, **PLACES)
    assert call.run("CUDA") is not None
    assert call.errors == [("fulmen: this XLA does not tell a call its device; update jaxlib", 12)]
