"""Arrays in a GPU's memory, without a GPU: a framework whose C functions claim GPU memory, and a
backend that records calls.
"""

import ctypes
from pathlib import Path

import fulmen
import numpy as np
import pytest
import torch
import user_backend
from fulmen import _core
from fulmen.torch._frontend import _TORCH

PyCapsule_New = ctypes.pythonapi.PyCapsule_New
PyCapsule_New.restype = ctypes.py_object
PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
CUDA, STREAM = 2, 0x5EED0
CAPSULE_NAME = b"dlpack_exchange_api"  # the capsule keeps the address


class DlTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlTensor))
def view(array, out):
    ctypes.memmove(out, ctypes.byref(array.tensor), ctypes.sizeof(DlTensor))
    return 0


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def current_stream(device_type, device_id, stream):
    assert device_type == CUDA
    stream[0] = STREAM + device_id
    return 0


class ExchangeApi(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("view", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    )


FUNCTIONS = ExchangeApi(
    1,
    3,
    view=ctypes.cast(view, ctypes.c_void_p),
    current_stream=ctypes.cast(current_stream, ctypes.c_void_p),
)


class GpuArray:
    """A tensor of one shape, with null strides; its address is never read."""

    __dlpack_c_exchange_api__ = PyCapsule_New(ctypes.addressof(FUNCTIONS), CAPSULE_NAME, None)

    def __init__(self, address, device=0, shape=(2, 5, 3, 8)):
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.tensor = DlTensor(address, CUDA, device, len(shape), 2, 16, 1, self.shape, None, 64)


@pytest.fixture(scope="module")
def seen():
    """What a backend called "looking" was run with: (stream, addresses, shape and strides of q)."""
    calls = []

    @ctypes.CFUNCTYPE(
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.POINTER(user_backend.Tensors),
        ctypes.c_void_p,
    )
    def run(_context, stream, tensors, _options):
        t = tensors[0]
        calls.append(
            (
                stream,
                [v.data for v in (t.q, t.k, t.v, t.out)],
                list(t.q.shape),
                list(t.q.strides),
                t.q.dtype,
            )
        )
        return 0

    planned = []

    @ctypes.CFUNCTYPE(
        ctypes.c_bool,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
    )
    def supports(*_):
        planned.append(len(calls))
        return True

    user_backend.register("looking", run, supports=supports)
    yield calls, planned
    del run, supports  # they live as long as the tests


def test_the_frameworks_stream_and_addresses_arrive(seen):
    calls, _ = seen
    q, k, v, out = (GpuArray(0x10000 * n, device=1) for n in (1, 2, 3, 4))
    assert fulmen.attention(q, k, v, out=out, device="looking") is out
    stream, addresses, shape, strides, dtype = calls[-1]
    assert stream == STREAM + 1
    assert addresses == [0x10000 * n + 64 for n in (1, 2, 3, 4)]
    assert shape == [2, 5, 3, 8] and strides == [120, 24, 8, 1] and dtype == 1
    heads_first = [GpuArray(0x10000 * n, device=1, shape=(2, 3, 5, 8)) for n in (1, 2, 3, 4)]
    fulmen.attention(*heads_first[:3], out=heads_first[3], device="looking", layout="bhsd")
    assert calls[-1][2] == [2, 5, 3, 8] and calls[-1][3] == [120, 8, 40, 1]


def test_devices_do_not_mix(seen):
    q, k, v, out = (GpuArray(0x10000 * n) for n in (1, 2, 3, 4))
    with pytest.raises(ValueError, match="v is on cuda:1, q on cuda:0: one device is needed"):
        fulmen.attention(q, k, GpuArray(0x30000, device=1), out=out, device="looking")
    with pytest.raises(RuntimeError, match="cuda:0"):  # where q is, which is not here
        fulmen.attention(q, k, v, out=out)
    with pytest.raises(ValueError, match="q is on cuda:0: arrays in host memory are needed here"):
        fulmen.attention_reference(q, k, v)
    with pytest.raises(
        TypeError, match="q is of type GpuArray: results of this kind can't be made here, pass out"
    ):
        fulmen.attention(q, k, v, device="looking")


class GpuTensor(GpuArray):
    """A stand-in for a torch tensor that records how it was made."""

    __module__ = "torch.fake"

    def __init__(self, made_by, device, shape=(2, 5, 3, 8)):
        super().__init__(0x90000 if made_by == "hand" else 0x10000, device, shape)
        self.made_by = made_by

    def _is_zerotensor(self):
        return False

    def new_empty_strided(self, shape, _strides, dtype):
        assert dtype == torch.float16
        return GpuTensor("torch's own function", self.tensor.device_id, tuple(shape))


@pytest.fixture
def quick_allocator():
    """Makes torch's function for the current device, 1, ours: the exceptions that it raises instead
    of a tensor, and its calls."""
    raised, calls = [], []

    def empty(shape, _strides, _dtype):
        calls.append(shape)
        if raised:
            raise raised[0]
        return GpuTensor("the quick one", 1, shape)

    _core.set_torch(_TORCH | {"empty_gpu": empty, "current_gpu": lambda: 1})
    yield raised, calls
    _core.set_torch(_TORCH)


def test_memory_of_the_current_device_is_asked_for_where_the_tensors_are(seen, quick_allocator):
    raised, calls = quick_allocator

    def made_by(device):
        return fulmen.attention(
            *(GpuTensor("hand", device) for _ in "qkv"), device="looking"
        ).made_by

    assert made_by(1) == "the quick one" and calls == [(2, 5, 3, 8)]
    assert made_by(3) == made_by(0) == "torch's own function" and len(calls) == 1
    raised.append(RuntimeError("full"))
    assert made_by(1) == "torch's own function" and len(calls) == 2


def test_the_workspace_of_a_gpus_call_is_bytes_where_the_tensor_is():
    for tensor in (torch.ones(2, dtype=torch.bfloat16), torch.ones(3)):
        memory = _core.torch_workspace(tensor, 100)
        assert (memory.dtype, memory.shape, memory.device) == (torch.uint8, (100,), tensor.device)


def test_torchs_own_addresses_are_believed_where_no_output_is_given(seen):
    """No driver is asked about them: what overlaps is found only where somebody gave it."""
    calls, _ = seen

    def beside_q(*_):
        tensor = GpuTensor("hand", 1)
        tensor.tensor.data += 32
        return tensor

    def inputs():
        return [GpuTensor("hand", 1) for _ in "qkv"]

    _core.set_torch(
        _TORCH | {"empty_gpu": beside_q, "current_gpu": lambda: 1, "written": lambda _: None}
    )
    try:
        fulmen.attention(*inputs(), device="looking")
        _, (q, _, _, out), *_ = calls[-1]
        assert out == q + 32
        before = len(calls)
        with pytest.raises(ValueError, match=r"^out at 0x.* overlaps q at 0x"):
            fulmen.attention(*inputs(), out=beside_q(), device="looking")
        # Another framework's array beside torch's, and addresses that cannot be right.
        with pytest.raises(ValueError, match=r"^out at 0x.* overlaps q at 0x"):
            fulmen.attention(*inputs()[:2], GpuArray(0x30000, device=1), device="looking")
        for address, said in ((None, "^v.data is null"), (0x30001, "^v.data is 0x30041")):
            wrong = inputs()
            wrong[2].tensor.data, wrong[2].tensor.byte_offset = address, 64 if address else 0
            with pytest.raises(ValueError, match=said):
                fulmen.attention(*wrong, device="looking")
        assert len(calls) == before
    finally:
        _core.set_torch(_TORCH)


def test_a_plan_is_made_once_for_equal_calls(seen):
    calls, planned = seen

    def attention(address=0x10000, shape=(2, 5, 3, 8), **options):
        q, k, v, out = (GpuArray(address * n, shape=shape) for n in (1, 2, 3, 4))
        before = len(planned)
        fulmen.attention(q, k, v, out=out, device="looking", **options)
        assert calls[-1][1][0] == address + 64
        return len(planned) > before

    assert attention(softcap=1.25)
    assert not attention(softcap=1.25) and not attention(0x90000, softcap=1.25)
    for other in (
        {"softcap": 1.5},
        {"softcap": 1.25, "causal": True},
        {"softcap": 1.25, "window_left": 3},
        {"softmax_scale": 0.5},
    ):
        assert attention(**other) and not attention(**other)
    assert attention(shape=(2, 6, 3, 8), softcap=1.25) and attention(
        shape=(2, 5, 3, 16), softcap=1.25
    )
    for n in range(300):  # more than are kept
        attention(softmax_scale=0.001 * (n + 1))
    assert attention(softcap=1.25)


EMULATED = b"emulated:gfx1100"


class EmulatedArray(GpuArray):
    """An array in the emulated device's memory, which the host can still read: `numpy` is the same
    memory.
    """

    def __init__(self, given):
        library = ctypes.CDLL(str(next(Path(fulmen.__file__).parent.glob("libfulmen.so*"))))
        memory = ctypes.c_void_p()
        assert (
            library.fulmen_device_allocate(
                EMULATED, ctypes.c_size_t(given.nbytes), ctypes.byref(memory)
            )
            == 0
        )
        super().__init__(memory.value, shape=given.shape)
        self.tensor.code, self.tensor.bits, self.tensor.byte_offset = (
            {"f": 2, "i": 0}[given.dtype.kind],
            32,
            0,
        )
        self.numpy = np.frombuffer(
            (ctypes.c_char * given.nbytes).from_address(memory.value), given.dtype
        ).reshape(given.shape)
        self.numpy[...] = given


@pytest.mark.skipif(
    not any(d.name == EMULATED.decode() and d.usable for d in fulmen.devices()),
    reason="the emulated GPU is not built in",
)
def test_tables_in_the_memory_of_a_device():
    """With validate tables are checked first; without it rows that need missing keys are NaN."""
    pages = [EmulatedArray(np.ones((4, 8, 2, 4), np.float32)) for _ in range(2)]
    q, out = (
        EmulatedArray(np.ones((3, 5, 2, 4), np.float32)),
        EmulatedArray(np.zeros((3, 5, 2, 4), np.float32)),
    )
    lengths, table = (
        EmulatedArray(np.array([8, 9, 17], np.int32)),
        EmulatedArray(np.array([[3, 1], [0, 4], [1, 2]], np.int32)),
    )
    options = {"seqlens_k": lengths, "block_table": table, "device": EMULATED.decode(), "out": out}
    with pytest.raises(
        ValueError,
        match=r"^seqlens_k\[2\] is 17: 0 to 16 is accepted, a row of block_table has 2 pages of 8",
    ):
        fulmen.attention(q, *pages, validate=True, **options)
    assert not out.numpy.any()
    fulmen.attention(q, *pages, **options)
    assert np.allclose(out.numpy[0], 1) and np.isnan(out.numpy[1:]).all()
    lengths.numpy[2] = 16
    with pytest.raises(ValueError, match=r"^block_table\[1, 1\] is 4: 0 to 3 are accepted"):
        fulmen.attention(q, *pages, validate=True, **options)
    table.numpy[1, 1] = 0
    fulmen.attention(q, *pages, validate=True, **options)
    assert np.allclose(out.numpy, 1)
