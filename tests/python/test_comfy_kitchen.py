"""Neighbourhood attention of comfy-kitchen by Fulmen: against plain loops, and by the package's own
registry where it is installed."""

import problems
import pytest

torch = pytest.importorskip("torch")

from fulmen import comfy_kitchen as ours  # noqa: E402
from torch_problems import close  # noqa: E402


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(problems.SEED)


def window(i, length, size, causal):
    if causal:
        return range(max(0, i - size + 1), i + 1)
    size = min(size, length)
    first = min(max(i - size // 2, 0), length - size)
    return range(first, first + size)


def right_of(q, k, v, sizes, causal, scale=None):
    """In double precision, a query at a time."""
    q, k, v = (x.double() for x in (q, k, v))
    dims, scale = q.shape[1:4], q.shape[-1] ** -0.5 if scale is None else scale
    out = torch.empty_like(v)
    for at in torch.cartesian_prod(*(torch.arange(n) for n in dims)).tolist():
        axes = zip(at, dims, sizes, causal, strict=True)
        seen = [slice(w.start, w.stop) for w in (window(*axis) for axis in axes)]
        keys, values = (x[:, seen[0], seen[1], seen[2]].flatten(1, 3) for x in (k, v))
        scores = torch.einsum("bhd,bnhd->bhn", q[:, at[0], at[1], at[2]], keys) * scale
        out[:, at[0], at[1], at[2]] = torch.einsum("bhn,bnhd->bhd", scores.softmax(-1), values)
    return out


CASES = {
    "small": ((2, 3, 4), (1, 3, 3), (False, False, False)),
    "even sizes": ((4, 5, 6), (2, 4, 2), (False, False, False)),
    "causal in time": ((6, 5, 5), (3, 3, 3), (True, False, False)),
    "causal all over": ((4, 6, 5), (9, 2, 4), (True, True, True)),
    "larger than the grid": ((3, 4, 5), (7, 9, 8), (False, False, False)),
    "many blocks": ((5, 9, 13), (3, 5, 3), (False, False, False)),
    "one axis": ((1, 1, 200), (1, 1, 7), (False, False, False)),
}


def inputs(dims, dtype=torch.float32, batch=2):
    return [torch.randn(batch, *dims, 3, 16).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("case", CASES)
def test_against_loops(case):
    dims, sizes, causal = CASES[case]
    q, k, v = inputs(dims)
    close(ours.na3d(q, k, v, sizes, causal), right_of(q, k, v, sizes, causal))


def test_scale_views_and_16_bits():
    q, k, v = (x.transpose(1, 2) for x in inputs((3, 4, 5), torch.bfloat16))
    right = right_of(q, k, v, (3, 3, 3), (False,) * 3, 0.7)
    close(ours.na3d(q, k, v, [3, 3, 3], None, 0.7), right, 1e-2)


def test_blocks_without_pairs_are_left_out():
    mask = ours._mask((16, 8, 8), (3, 3, 3), (False,) * 3, "cpu")
    # A block of 64 is a plane of the grid: three planes are in reach.
    assert mask.kv_num_blocks.flatten().tolist() == [3] * 16
    assert mask.kv_indices[0, 0, 7, :3].tolist() == [6, 7, 8]


@pytest.fixture
def kitchen():
    reason = "comfy-kitchen is not installed: pip install --no-deps comfy-kitchen"
    kitchen = pytest.importorskip("comfy_kitchen", reason=reason)
    from comfy_kitchen.registry import registry

    before = list(registry._priority)
    ours.register()
    yield kitchen
    registry.disable("fulmen")
    registry.set_priority(before)
    registry.enable("fulmen")


@pytest.mark.parametrize("case", ["even sizes", "causal in time", "many blocks"])
def test_the_packages_own_call(kitchen, case, monkeypatch):
    calls = []
    own = ours.na3d
    monkeypatch.setattr(ours, "na3d", lambda **given: calls.append(1) or own(**given))
    dims, sizes, causal = CASES[case]
    q, k, v = inputs(dims)
    found = kitchen.na3d(q, k, v, list(sizes), list(causal))
    assert calls == [1]
    with kitchen.registry.use_backend("eager"):
        theirs = kitchen.na3d(q, k, v, list(sizes), list(causal))
    assert calls == [1]
    right = right_of(q, k, v, sizes, causal)
    close(found, right)
    close(theirs, right)
    plane = [x[:, 0] for x in (q, k, v)]
    flat = right_of(*(x[:, :1] for x in (q, k, v)), (1, *sizes[1:]), (False, *causal[1:]))
    close(kitchen.na2d(*plane, list(sizes[1:]), list(causal[1:])), flat[:, 0])
    assert calls == [1, 1]


def test_what_is_not_served_stays_theirs(kitchen, monkeypatch):
    monkeypatch.setattr(ours, "na3d", None)
    q, k, v = (torch.randn(1, 2, 3, 3, 1, 600) for _ in range(3))
    right = right_of(q, k, v, (1, 3, 3), (False,) * 3)
    close(kitchen.na3d(q, k, v, [1, 3, 3]), right)


def test_comfyuis_switch_serves_it(kitchen, monkeypatch):
    import sys
    import types

    import fulmen.comfyui
    import fulmen.torch

    kitchen.registry.set_priority(["eager"])
    attention = types.SimpleNamespace(
        register_attention_function=lambda name, function: None,
        optimized_attention=types.SimpleNamespace(__name__="attention_pytorch"),
    )
    for name in ("comfy", "comfy.ldm", "comfy.ldm.modules"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["comfy.ldm.modules"], "attention", attention, raising=False)
    monkeypatch.setenv("FULMEN_COMFYUI", "all")
    try:
        fulmen.comfyui.install()
    finally:
        fulmen.torch.disable_sdpa()
    assert kitchen.registry.get_capable_backend("na3d") == "fulmen"
