"""Functions of flex_attention as text: what it means, by an interpreter that knows the language
alone, against torch's own evaluation of the functions; refusals with their line; traces that are
found again."""

import functools
import pathlib
import random
import types

import fulmen
import numpy as np
import pytest
import score_language
import torch
from flex_problems import BATCH, GYM, HEADS, Case
from fulmen import flex
from fulmen.flex import _problem, _trace
from problems import SEED
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention.flex_attention import _vmap_for_bhqkv


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)


def by_torch(case: Case, scores: torch.Tensor) -> torch.Tensor:
    """The function's values, [batch, heads, queries, keys], by torch's vmap of it."""
    places = [torch.arange(n) for n in (BATCH, HEADS, case.queries, case.keys)]
    with TransformGetItemToIndex():
        if case.score_mod is not None:
            return _vmap_for_bhqkv(case.score_mod, prefix=(0,))(scores, *places)
        return _vmap_for_bhqkv(case.mask_mod, prefix=())(*places)


def by_text(case: Case, scores: np.ndarray) -> np.ndarray:
    found = _trace.read(case.score_mod, None if case.score_mod else case.mask_mod, torch.zeros(()))
    sizes = (BATCH, HEADS, case.queries, case.keys)
    given = {
        name: np.arange(n, dtype=np.int32).reshape([-1 if at == dim else 1 for at in range(4)])
        for dim, (name, n) in enumerate(zip("bhqk", sizes, strict=True))
    }
    if case.score_mod is not None:
        given["score"] = scores
    tensors = {name: one.detach().numpy() for name, one in found.tensors.items()}
    value = score_language.evaluate(found.score_mod or found.mask_mod, given, tensors)
    return np.broadcast_to(value, sizes)


def assert_same(case: Case) -> None:
    scores = torch.randn(BATCH, HEADS, case.queries, case.keys, dtype=torch.float64)
    right, found = by_torch(case, scores).detach(), by_text(case, scores.numpy())
    if right.dtype == torch.bool:
        assert found.dtype == np.bool_ and np.array_equal(found, right.expand(found.shape).numpy())
    else:
        np.testing.assert_allclose(
            found, right.double().numpy(), rtol=2e-5, atol=2e-5, err_msg=f"{SEED=}"
        )


@pytest.mark.parametrize("name", GYM)
def test_functions_of_attention_gym(name):
    case = GYM[name]()
    if case.score_mod is not None and case.mask_mod is not None:
        assert_same(case._replace(score_mod=None))
    assert_same(case)


TABLE = torch.arange(1.0, 6 * 70 + 1).reshape(6, 70)
BUCKETS = torch.arange(70) % 7
SMALL = torch.tensor([3, 1, 2], dtype=torch.uint8)
DEEP = torch.randn(2, 4, 3, 5)
FLAGS = torch.tensor([True, False, True, True])
ONE = torch.tensor(1.5)
COLUMNS = torch.tensor([1, 3, 5])

INDEXING = {
    "from the end": lambda s, b, h, q, k: s + TABLE[-1, q - k],
    "a slice, then an index": lambda s, b, h, q, k: s + TABLE[1:5][h][q],
    "a step": lambda s, b, h, q, k: s + TABLE[::2, 3:][b][k - q // 2],
    "a new dim": lambda s, b, h, q, k: s + TABLE[h, None, q][0],
    "a row and its sum": lambda s, b, h, q, k: s + DEEP[b, h, :, q % 5].sum(),
    "a vector of indices": lambda s, b, h, q, k: s + TABLE[h, COLUMNS].sum() * 0.01,
    "an index of an index": lambda s, b, h, q, k: s + TABLE[h, BUCKETS[q]],
    "an index into a value": lambda s, b, h, q, k: s + (DEEP[b, h, :, 0] * 2)[k % 3],
    "everything but a dim": lambda s, b, h, q, k: s + DEEP[b, ..., 1][h, q % 3],
    "uint8": lambda s, b, h, q, k: s + TABLE[h, SMALL[q % 3].int()],
    "bool": lambda s, b, h, q, k: torch.where(FLAGS[h], s, s - SMALL[b]),
    "a scalar": lambda s, b, h, q, k: s * ONE + ONE * q,
    "a constant index": lambda s, b, h, q, k: s * TABLE[2, 3],
    "a product of vectors": lambda s, b, h, q, k: s + DEEP[b, h, 0] @ DEEP[b, h, q % 3],
    "a tensor of numbers": lambda s, b, h, q, k: s + torch.tensor([0.5, 1.0, 2.0, 4.0])[h],
    "extremes of a row": lambda s, b, h, q, k: s + DEEP[b, h, :, 1].amax() - torch.amin(DEEP[b, h]),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing(name):
    assert_same(Case(INDEXING[name], None, 33, 37))


def _int32(mod):
    """A function whose integers are 32 bits wide, as ours and compiled ones are."""
    return lambda s, b, h, q, k: mod(s, *(one.to(torch.int32) for one in (b, h, q, k)))


OPERATIONS = {
    "remainders": lambda s, b, h, q, k: s + (q - k) % 5 + (k - q) // 3 + (q - 20) % -7,
    "of floats": lambda s, b, h, q, k: (s * 3) % 2.0 + (s * 3) // 2.0,
    "toward zero": lambda s, b, h, q, k: (
        torch.fmod(q - k, 5) + torch.div(q - k, 3, rounding_mode="trunc") + s
    ),
    "bits": lambda s, b, h, q, k: s + ((q << 3 | k >> 1) & 0x5F ^ ~h),
    "powers": lambda s, b, h, q, k: s**2 + (q - k) ** 3 + 2.0 ** (-h) + (s.abs() + 1) ** 1.5,
    "logic": lambda s, b, h, q, k: torch.where(
        torch.logical_or(q > k, torch.logical_not(h)), s, s * 0.5
    ),
    "comparisons of bools": lambda s, b, h, q, k: torch.where((q > k) == (h > 1), s, -s),
    "bounds": lambda s, b, h, q, k: s.clamp(-0.5, 0.7) + torch.clamp(q, min=3) + k.clamp(max=9),
    "rounding": lambda s, b, h, q, k: (s * 4).round() + (s * 4).floor() - torch.ceil(s) + s.trunc(),
    "activations": lambda s, b, h, q, k: (
        torch.nn.functional.silu(s) + torch.relu(s) * (torch.nn.functional.leaky_relu(s))
    ),
    "more activations": lambda s, b, h, q, k: (
        torch.nn.functional.softplus(s)
        + (torch.nn.functional.elu(s))
        + torch.nn.functional.gelu(s, approximate="tanh")
    ),
    "masked": lambda s, b, h, q, k: s.masked_fill(q < k, float("-inf")),
    "conversions": lambda s, b, h, q, k: (s * 9).to(torch.int32) + q.float() / 7 + (q > k).int(),
    "made like": lambda s, b, h, q, k: torch.where(q > k, torch.zeros_like(s), s.new_full((), 2.0)),
    "signs": lambda s, b, h, q, k: torch.sign(s) * torch.sign(q - k) + torch.square(q) - s.abs(),
    "transcendental": lambda s, b, h, q, k: (
        torch.sin(s) * torch.cos(s)
        + torch.erf(s)
        + torch.exp2(-s.abs())
        + torch.log2(s.abs() + 1)
        + torch.rsqrt(s * s + 1)
        + torch.sigmoid(s)
    ),
    "a loop": lambda s, b, h, q, k: sum((s * n for n in range(3)), s) + max(2, 3),
    "stacked": lambda s, b, h, q, k: (
        torch.stack([s, s * 2, -s]).sum() + torch.stack([s, -s]).amax()
    ),
    "extremes": lambda s, b, h, q, k: (
        torch.minimum(s, s * 2) + torch.maximum(q, k) + torch.min(q, k)
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name):
    assert_same(Case(_int32(OPERATIONS[name]), None, 33, 37))


class _Random:
    """Random expressions as Python's source, of a type that the tables below need."""

    FLOAT = (
        "({0} + {1})",
        "({0} * {1})",
        "({0} - {1})",
        "torch.tanh({0})",
        "torch.sigmoid({0})",
        "torch.where({2}, {0}, {1})",
        "torch.maximum({0}, {1})",
        "torch.sin({0})",
        "({0} / (1 + {1}.abs()))",
        "({0} * {3})",
        "(-{0})",
        "TABLE[h, {3} % 70] * 0.01",
        "torch.exp(-{0}.abs())",
        "torch.clamp({0}, -1, 1)",
        "({3} * s.new_full((), 0.125))",
    )
    INT = (
        "({3} + {4})",
        "({3} - {4})",
        "({3} // 3)",
        "({3} % 5)",
        "({3} & 12)",
        "abs({3})",
        "torch.where({2}, {3}, {4})",
        "torch.minimum({3}, {4})",
        "({3} ^ {4})",
        "({3} * 3)",
        "BUCKETS[{3} % 70]",
        "({3} >> 1)",
        "(-{3})",
        "({2}).int()",
    )
    BOOL = (
        "({3} >= {4})",
        "({0} < {1})",
        "({2} & {5})",
        "({2} | {5})",
        "(~{2})",
        "({3} == {4})",
        "FLAGS[{3} % 4]",
        "({2} ^ {5})",
    )

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def expression(self, kind: str, depth: int) -> str:
        if depth == 0:
            leaves = {
                "FLOAT": ["s", "s.new_full((), 0.5)", "s"],
                "INT": ["q", "k", "h", "b", "q.new_full((), 2)"],
                "BOOL": ["(q > k)", "(h == 1)"],
            }
            return self.random.choice(leaves[kind])
        kinds = ["FLOAT", "FLOAT", "BOOL", "INT", "INT", "BOOL"]
        parts = [self.expression(one, depth - 1) for one in kinds]
        parts = [f"({one})" for one in parts]
        return self.random.choice(getattr(self, kind)).format(*parts)


@pytest.mark.parametrize("at", range(30))
def test_random_functions(at):
    source = _Random(SEED + at).expression("FLOAT", 3)
    # In double on both sides: a comparison of nearly equal numbers is the same then.
    names = {"torch": torch, "TABLE": TABLE.double(), "BUCKETS": BUCKETS, "FLAGS": FLAGS}
    mod = eval(f"lambda s, b, h, q, k: s * 0 + ({source})", names)
    try:
        assert_same(Case(_int32(mod), None, 9, 11))
    except Exception as error:
        raise AssertionError(f"{source} ({SEED=})") from error


def test_masks_are_combined():
    def near(b, h, q, k):
        return (q - k).abs() < 5

    def head(b, h, q, k):
        return h == 1

    for both in (flex.and_masks(near, head), flex.or_masks(near, head), flex.noop_mask):
        assert_same(Case(None, lambda b, h, q, k, f=both: f(b, h, q, k) | (q < 0)))
    with pytest.raises(TypeError, match="a mask_mod is 3"):
        flex.and_masks(near, 3)


# Refusals: the function's line, and what is said.


def _branch(s, b, h, q, k):
    s = s * 2
    if q >= k:  # here
        return s
    return s - 1


def _and(b, h, q, k):
    return q >= k and h == 0  # here


def _loop(s, b, h, q, k):
    for _ in range(q):  # here
        s = s + 1
    return s


def _unknown(s, b, h, q, k):
    return torch.special.i0(s)  # here


def _library(s, b, h, q, k):
    import math

    return math.sin(s)  # here


def _half(s, b, h, q, k):
    return s.half() + 1  # here


def _raises(s, b, h, q, k):
    return s + {}["missing"]  # here


def _write(s, b, h, q, k):
    TABLE[h, q] = 0  # here
    return s


def _double(s, b, h, q, k):
    return _helper(s, q)


def _helper(s, q):
    return s[q]  # here


def _wide(s, b, h, q, k):
    return s + (torch.zeros(4, 5000)[h] * 2).sum()  # here


def _float_index(s, b, h, q, k):
    return s + TABLE[h, s]  # here


REFUSED = {
    _branch: ("a decision", "accepted: where"),
    _and: ("a decision", "accepted: where"),
    _loop: ("an integer is needed", "accepted: operators"),
    _unknown: ("special_i0", "accepted"),
    _library: ("a Python number is needed", "accepted"),
    _half: ("a conversion to half", "float32"),
    _raises: ("KeyError", "missing"),
    _write: ("__setitem__", "accepted"),
    _double: ("indices of a tensor with 0 dims", "accepted"),
    _wide: ("1024 elements are accepted", "accepted"),
    _float_index: ("an index of type float", "integers"),
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda one: one.__name__)
def test_refusals_name_the_line(function):
    lines = pathlib.Path(__file__).read_text().splitlines()
    where = _helper if function is _double else function
    first = where.__code__.co_firstlineno
    line = next(n for n in range(first, first + 8) if lines[n - 1].endswith("# here"))
    kind = "mask_mod" if function.__code__.co_argcount == 4 else "score_mod"
    with pytest.raises(flex.TraceError) as caught:
        flex.text(**{kind: function}, like=torch.zeros(()))
    message = str(caught.value)
    assert message.startswith(f"{kind} can't be traced at {__file__}:{line}, in {where.__name__}")
    assert lines[line - 1].strip() in message
    assert all(part in message for part in REFUSED[function]), message
    assert isinstance(caught.value, fulmen.ArgumentError)


RESULTS = {
    "an integer mask": (lambda: flex.text(mask_mod=lambda b, h, q, k: q - k), "type int"),
    "nothing": (lambda: flex.text(lambda s, b, h, q, k: None), "NoneType"),
    "a vector": (lambda: flex.text(lambda s, b, h, q, k: TABLE[h, :3], like=TABLE), "shape"),
    "no function": (lambda: flex.text(score_mod=3), "score_mod is 3"),
    "five dims": (
        lambda: flex.text(lambda s, b, h, q, k: s + torch.zeros(1, 1, 1, 1, 1)[b, h, q, k, 0]),
        "5 dims",
    ),
    "large": (lambda: flex.text(lambda s, b, h, q, k: s + 2**40), "32 bits"),
    "complex": (lambda: flex.text(lambda s, b, h, q, k: s + TABLE.cfloat()[h, q]), "complex64"),
    "many tensors": (
        lambda: flex.text(
            lambda s, b, h, q, k: functools.reduce(lambda x, n: x + (TABLE * n)[h, q], range(33), s)
        ),
        "more than 32 captured tensors",
    ),
    "many operations": (
        lambda: flex.text(
            lambda s, b, h, q, k: functools.reduce(lambda x, n: x * s + n, range(5000), s)
        ),
        "more than 4096 operations",
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_other_refusals(name):
    call, message = RESULTS[name]
    with pytest.raises((TypeError, flex.TraceError), match=message):
        call()


# Traces that are found again.


def _count_reads(monkeypatch):
    reads = []
    original = _problem.read
    monkeypatch.setattr(_problem, "read", lambda *given: reads.append(1) or original(*given))
    return reads


def _biased(table, factor=1.0):
    def mod(s, b, h, q, k):
        return s + table[h, q] * factor

    return mod


def test_traces_are_found_again_with_other_tensors(monkeypatch):
    reads = _count_reads(monkeypatch)
    monkeypatch.setattr(_problem, "_kept", {})
    first, second = torch.randn(4, 9), torch.randn(4, 9)
    for table in (first, second):
        found = _problem.traced(_biased(table), None, table)
        assert list(found.tensors.values()) == [table] or found.tensors["x0"] is table
    assert len(reads) == 1
    assert "0.5" in _problem.traced(_biased(first, 0.5), None, first).score_mod
    _problem.traced(_biased(torch.randn(4, 10)), None, first)
    _problem.traced(_biased(first.double()), None, first)
    assert len(reads) == 4


def test_what_a_trace_computed_of_a_tensor_is_not_kept(monkeypatch):
    monkeypatch.setattr(_problem, "_kept", {})

    def scaled(table):
        return lambda s, b, h, q, k: s + (table * 2)[h, q]

    def chosen(table):
        return lambda s, b, h, q, k: s if table[0, 0] > 0 else -s

    ones, minus = torch.ones(4, 9), -torch.ones(4, 9)
    for table in (ones, minus):
        (tensor,) = _problem.traced(scaled(table), None, ones).tensors.values()
        assert torch.equal(tensor, table * 2)
    texts = [_problem.traced(chosen(table), None, ones).score_mod for table in (ones, minus)]
    assert texts == ["score", "(-score)"]
    texts = [
        _problem.traced(chosen(table.numpy()), None, table.numpy()).score_mod
        for table in (ones, minus)
    ]
    assert texts == ["score", "(-score)"]


FACTOR = 2.0


def test_globals_are_read_anew(monkeypatch):
    def mod(s, b, h, q, k):
        return s * FACTOR

    assert "2.0" in flex.text(mod)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert "3.0" in flex.text(mod)


class Settings:
    factor = 2.0


def test_attributes_are_read_anew(monkeypatch):
    settings = types.ModuleType("settings")
    settings.factor = 2.0
    functions = [
        lambda s, b, h, q, k: s * Settings.factor,
        (lambda module: lambda s, b, h, q, k: s * module.factor)(settings),
        (lambda one: lambda s, b, h, q, k: s * one.factor)(Settings()),
    ]
    assert all("2.0" in flex.text(one) for one in functions)
    monkeypatch.setattr(Settings, "factor", 3.0)
    settings.factor = 3.0
    assert all("3.0" in flex.text(one) for one in functions)


def test_no_tensor_is_kept_alive():
    import gc
    import weakref

    table = torch.randn(4, 9)
    alive = weakref.ref(table)
    _problem.traced(_biased(table), None, table)
    del table
    gc.collect()
    assert alive() is None


# NumPy's functions and arrays.


def test_numpy_functions():
    table, flags = np.linspace(0, 1, 40).reshape(4, 10), np.array([True, False])

    def mod(s, b, h, q, k):
        near = np.where(np.abs(q - k) < 3, np.tanh(s), np.maximum(s, 0.25))
        return near * np.exp(-s * s) + table[h, q] - np.float32(0.5) * flags[b]

    found = _trace.read(mod, None, np.zeros(1, np.float32))
    s, (b, h, q, k) = 0.3, np.ogrid[:2, :4, :10, :7]
    given = dict(score=np.float64(s), b=b, h=h, q=q, k=k)
    right = np.where(np.abs(q - k) < 3, np.tanh(s), 0.3) * np.exp(-s * s) + table[h, q]
    right = right - 0.5 * flags[b]
    value = score_language.evaluate(found.score_mod, given, found.tensors)
    np.testing.assert_allclose(value, np.broadcast_to(right, value.shape), rtol=1e-6)
    assert all(any(one is own for own in (table, flags)) for one in found.tensors.values())


class _Owner:
    def __init__(self):
        self.table = np.arange(10)

    def mask(self, b, h, q, k):
        return self.table[q] >= k

    def __call__(self, s, b, h, q, k):
        return s + self.table[q]


@pytest.mark.parametrize("kind", ["a method", "an object", "a partial", "a list", "a default"])
def test_numpy_arrays_wherever_they_are(kind):
    owner, table = _Owner(), np.arange(10)
    function = {
        "a method": owner.mask,
        "an object": owner,
        "a partial": functools.partial(lambda t, b, h, q, k: t[q] > k, table),
        "a list": (lambda tables: lambda b, h, q, k: tables[0][q] > k)([table]),
        "a default": lambda b, h, q, k, t=table: t[q] > k,
    }[kind]
    text = flex.text(function) if kind == "an object" else flex.text(mask_mod=function)
    assert "x0[q]" in text


def test_first_use_of_numpy_needs_no_torch():
    import subprocess
    import sys

    program = (
        "import sys, fulmen.flex as f\n"
        "print(f.text(mask_mod=lambda b, h, q, k: (q >= k) & (h < 2)))\n"
        "m = f.create_block_mask(lambda b, h, q, k: q >= k, None, None, 64, 64, BLOCK_SIZE=32)\n"
        "print(m.kv_num_blocks.tolist(), m.full_kv_num_blocks.tolist(), 'torch' in sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.split("\n")[:2] == ["((q >= k) & (h < 2))", "[[[1, 1]]] [[[0, 1]]] False"]
