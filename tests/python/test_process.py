"""The package in a process: memory that is given back, the GIL, threads, fork, other libraries'
arrays."""

import ctypes
import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import fulmen
import numpy as np
import pytest
import torch
import user_backend
from problems import assert_close, attention_float64, qkv


@pytest.fixture(autouse=True)
def _no_endless_wait():
    """Turns a hang into a failure."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


class OtherArray:
    """An array of a library that offers nothing but DLPack and the array API."""

    def __init__(self, data):
        self.data = data

    def __dlpack__(self, **_):
        return self.data.__dlpack__()

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.data, dtype)

    def __array_namespace__(self):
        return type("namespace", (), {"asarray": OtherArray})


class DlpackAlone:
    def __init__(self, data):
        self.data = data

    def __dlpack__(self, **_):
        return self.data.__dlpack__()

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()


def test_arrays_of_other_libraries(rng):
    q, k, v = qkv(rng)
    expected = fulmen.attention(q, k, v, causal=True)
    out, lse = fulmen.attention(*map(OtherArray, (q, k, v)), causal=True, return_lse=True)
    assert isinstance(out, OtherArray) and isinstance(lse, OtherArray)
    np.testing.assert_array_equal(out.data, expected)
    gradients = fulmen.attention_backward(*map(OtherArray, (q, q, k, v)), out, lse, causal=True)
    assert isinstance(gradients.dq, OtherArray) and gradients.dbias is None
    reference = fulmen.attention_reference(*map(OtherArray, (q, k, v)), causal=True)
    assert_close(reference.data, expected, "fp32")
    into = np.full_like(q, np.nan)
    fulmen.attention(q, DlpackAlone(k), DlpackAlone(v), causal=True, out=into)
    np.testing.assert_array_equal(into, expected)
    with pytest.raises(
        TypeError,
        match="q is of type DlpackAlone: results of this kind can't be made here, pass out",
    ):
        fulmen.attention(DlpackAlone(q), k, v)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def calls(rng):
    q, k, v = qkv(rng, {"b": 4, "sq": 64, "sk": 64, "hq": 8, "hkv": 8, "d": 32})
    t = [torch.from_numpy(x) for x in (q, k, v)]
    leaves = [x.clone().requires_grad_() for x in t]
    other = [DlpackAlone(x) for x in (q, k, v)]
    out = np.empty_like(q)

    def refused():
        with pytest.raises(ValueError):
            fulmen.attention(q, k, v, causal="no")
        with pytest.raises(ValueError):
            fulmen.attention(*t[:2], t[2][:, :, :3])

    return {
        "numpy": lambda: fulmen.attention(q, k, v, return_lse=True),
        "torch": lambda: fulmen.attention(*t, return_lse=True),
        "autograd": lambda: fulmen.attention(*leaves).sum().backward(),
        "dlpack": lambda: fulmen.attention(*other, out=out),
        "errors": refused,
    }


@pytest.mark.parametrize("name", ["numpy", "torch", "autograd", "dlpack", "errors"])
def test_memory_stays_flat(rng, name):
    call = calls(rng)[name]
    for _ in range(20):
        call()
    gc.collect()
    before = resident_bytes()
    for _ in range(100):
        call()
    gc.collect()
    # Each of the 100 calls computes a quarter of a MiB or more.
    assert resident_bytes() - before < 8 << 20


def test_inputs_and_results_are_let_go(rng):
    q, k, v = qkv(rng)
    before = [sys.getrefcount(t) for t in (q, k, v)]
    out = fulmen.attention(q, k, v)
    assert [sys.getrefcount(t) for t in (q, k, v)] == before
    tensors = [torch.from_numpy(t.copy()) for t in (q, k, v)]
    result = fulmen.attention(*tensors)
    alive = [weakref.ref(t) for t in tensors]
    kept = result[0, 0]
    del tensors, result
    gc.collect()
    assert all(reference() is None for reference in alive)
    assert_close(kept, out[0, 0], "fp32")


def test_gil_is_released(rng):
    """A kernel of a user's backend waits, without the GIL, for another Python thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    semaphore = ctypes.create_string_buffer(64)
    assert libc.sem_init(semaphore, 0, 0) == 0

    # Takes the context as its argument, and returns 0.
    user_backend.register("waiting", libc.sem_wait, ctypes.addressof(semaphore))
    q, k, v = qkv(rng)
    thread = threading.Thread(target=fulmen.attention, args=(q, k, v), kwargs={"device": "waiting"})
    thread.start()
    libc.sem_post(semaphore)
    thread.join()
    second = threading.Thread(target=fulmen.attention, args=(q, k, v), kwargs={"device": "waiting"})
    second.start()
    while second.is_alive():  # runs only while the call does not hold the GIL
        libc.sem_post(semaphore)
        second.join(0.01)


def test_threads(rng):
    problems = [
        qkv(rng, {"sq": int(rng.integers(1, 200)), "sk": int(rng.integers(1, 200))})
        for _ in range(6)
    ]
    expected = [fulmen.attention(*p, causal=True) for p in problems]
    failures = []

    def work(start):
        for n in range(20):
            at = (start + n) % len(problems)
            if not np.array_equal(fulmen.attention(*problems[at], causal=True), expected[at]):
                failures.append(at)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_fork(rng, framework):
    """Threads do not survive a fork, and the child can still compute."""
    q, k, v = qkv(rng, {"b": 4, "sq": 200, "sk": 200})
    if framework == "torch":
        q, k, v = map(torch.from_numpy, (q, k, v))
    out = fulmen.attention(q, k, v, num_threads=4)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that would wait for ever
        same = np.array_equal(np.asarray(fulmen.attention(q, k, v, num_threads=4)), np.asarray(out))
        os._exit(0 if same else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(np.asarray(fulmen.attention(q, k, v, num_threads=4)), np.asarray(out))
    assert_close(out, attention_float64(q, k, v)[0], "fp32")


MISUSED = """
from types import SimpleNamespace
from fulmen import _core
unknown = SimpleNamespace(saved_tensors=(), needs_input_grad=(), options=())
lists = SimpleNamespace(saved_tensors=[], needs_input_grad=[True] * 6, options=[(), None, False])
short = SimpleNamespace(saved_tensors=(), needs_input_grad=(True,) * 6, options=((), None))
calls = [lambda: _core.torch_observers((1,)), lambda: _core.torch_forward((1, 2, 3), (), None, False, False)]
calls += [lambda: _core.autograd_backward(unknown, 1, None)]
calls += [lambda: _core.torch_sdpa(), lambda: _core.torch_sdpa(*range(8)), lambda: _core.attention()]
calls += [lambda given=given: _core.autograd_forward(*given) for given in ((), range(1, 8), (None,) * 6 + ((1, 2, 3, 4, 5),))]
calls += [lambda: _core.append_kv((), None, True, True, 0, False), lambda: _core.autograd_backward()]
later = [lambda ctx=ctx: _core.autograd_backward(ctx, 1, None) for ctx in (unknown, lists, short)]
refused = 0
for call in calls + [None] + later:
    if call is None:
        import fulmen.torch
        continue
    try:
        refused += call() is None and "torch_sdpa" in repr(call.__code__.co_names)
    except (TypeError, RuntimeError):
        refused += 1
print(refused == len(calls) + len(later))
"""  # noqa: E501


def test_the_modules_own_functions_refuse_what_they_do_not_take():
    program = subprocess.run(
        [sys.executable, "-c", MISUSED], capture_output=True, text=True, timeout=100
    )
    assert program.stdout == "True\n", (program.returncode, program.stderr)


FREED = """
import ctypes, fulmen, numpy as np
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
address = libc.malloc(ctypes.c_size_t(1024))
q = np.frombuffer((ctypes.c_float * 256).from_address(address), np.float32).reshape(1, 4, 4, 16)
libc.free(ctypes.c_void_p(address))
fulmen.attention(q, q, q)
"""


@pytest.mark.skipif(
    "asan" not in os.environ.get("LD_PRELOAD", ""),
    reason="./dev test python_asan has a module that sees it",
)
def test_a_freed_array_is_seen():
    """Seeds errors to prove that the stage can find them."""
    program = subprocess.run(
        [sys.executable, "-c", FREED], capture_output=True, text=True, timeout=100
    )
    assert program.returncode != 0 and "heap-use-after-free" in program.stderr
