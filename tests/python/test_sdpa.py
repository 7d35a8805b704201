"""scaled_dot_product_attention: torch's signature and semantics, and torch's own function routed to
Fulmen."""

import inspect
import threading

import fulmen.torch
import pytest
import torch
import torch.nn.functional as F
from problems import SEED, assert_close

sdpa = fulmen.torch.scaled_dot_product_attention
TORCH_SDPA = F.scaled_dot_product_attention
randn = torch.randn


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)


def qkv():
    return randn(2, 4, 9, 16), randn(2, 4, 11, 16), randn(2, 4, 11, 16)


CASES = {
    "plain": lambda q, k, v: ((q, k, v), {}),
    "causal": lambda q, k, v: ((q, k, v), {"is_causal": True}),
    "scale": lambda q, k, v: ((q, k, v), {"scale": 0.3}),
    "positional": lambda q, k, v: ((q, k, v, None, 0.0, True), {}),
    "bool mask": lambda q, k, v: ((q, k, v, torch.rand(2, 1, 9, 11) < 0.6), {}),
    "rows without keys": lambda q, k, v: (
        (q, k, v, torch.arange(9)[:, None] > torch.arange(11)),
        {},
    ),
    "float mask": lambda q, k, v: ((q, k, v), {"attn_mask": randn(2, 4, 9, 11)}),
    "2d mask": lambda q, k, v: ((q, k, v), {"attn_mask": randn(9, 11)}),
    "mask without keys": lambda q, k, v: ((q, k, v), {"attn_mask": randn(2, 1, 9, 1)}),
    "gqa": lambda q, k, v: ((q, k[:, :2], v[:, :2]), {"enable_gqa": True}),
    "gqa, more heads of values": lambda q, k, v: ((q, k[:, :2], v), {"enable_gqa": True}),
    "gqa, more heads of keys": lambda q, k, v: ((q, k, v[:, :2]), {"enable_gqa": True}),
    "gqa, other heads": lambda q, k, v: (
        (torch.cat([q, q, q], 1), torch.cat([k, k], 1)[:, :6], v),
        {"enable_gqa": True},
    ),
    "one head of queries": lambda q, k, v: ((q[:, :1], k, v), {}),
    "one head of queries, 2 dims": lambda q, k, v: ((q[0, 0], k, v), {}),
    "one head": lambda q, k, v: ((q, k[:, :1], v[:, :1]), {}),
    "head_dim of v": lambda q, k, v: ((q, k, v[..., :5]), {}),
    "3 dims": lambda q, k, v: ((q[0], k[0], v[0]), {"is_causal": True}),
    "3 dims, mask": lambda q, k, v: ((q[0], k[0], v[0], randn(4, 9, 11)), {}),
    "2 dims": lambda q, k, v: ((q[0, 0], k[0, 0], v[0, 0]), {}),
    "5 dims": lambda q, k, v: (tuple(t.expand(3, -1, -1, -1, -1) for t in (q, k, v)), {}),
    "5 dims, mask": lambda q, k, v: (
        tuple(t.expand(3, -1, -1, -1, -1) for t in (q, k, v)),
        {"attn_mask": randn(2, 1, 9, 11)},
    ),
    "5 dims, own mask": lambda q, k, v: (
        tuple(t.expand(3, -1, -1, -1, -1) for t in (q, k, v)),
        {"attn_mask": randn(3, 1, 1, 9, 11)},
    ),
    "broadcast": lambda q, k, v: ((q, k[:1], v[:1]), {}),
    "broadcast query": lambda q, k, v: ((q[0], k, v), {}),
    "strided": lambda q, k, v: ((q.mT.contiguous().mT, k, v[..., ::2]), {}),
    "empty": lambda q, k, v: ((q[:0], k[:0], v[:0]), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_semantics(name, plans):
    arguments, options = CASES[name](*qkv())
    leaves = [
        t.detach().requires_grad_(t.is_floating_point()) if isinstance(t, torch.Tensor) else t
        for t in arguments
    ]
    options = {
        n: o.requires_grad_() if isinstance(o, torch.Tensor) and o.is_floating_point() else o
        for n, o in options.items()
    }
    wanted = [
        t for t in [*leaves, *options.values()] if isinstance(t, torch.Tensor) and t.requires_grad
    ]

    def run(function, cast):
        out = function(*map(cast, leaves), **{n: cast(o) for n, o in options.items()})
        return out, torch.autograd.grad(out.double().square().sum(), wanted)

    out, gradients = run(sdpa, lambda t: t)
    assert len(plans()) == 2  # both passes
    expected, expected_gradients = run(
        TORCH_SDPA,
        lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t,
    )
    assert_close(out.detach(), expected.detach(), "fp32")
    _, baseline = run(TORCH_SDPA, lambda t: t)
    for at, (ours, theirs, standard) in enumerate(
        zip(gradients, expected_gradients, baseline, strict=True)
    ):
        error = (standard.double() - theirs).abs().max().item() if standard.numel() > 0 else 0.0
        assert_close(ours, theirs, "fp32", f"gradient {at}", error)
    with torch.no_grad():
        assert torch.equal(sdpa(*leaves, **options), out)


def masks_copied(monkeypatch):
    """Bytes of memory behind each mask that a kernel gets from now on."""
    found = []

    def attention(query, key, value, mask, options):
        found.append(0 if mask is None else mask.untyped_storage().nbytes())
        return straight(query, key, value, mask, options)

    straight = fulmen.torch._sdpa._attention
    monkeypatch.setattr(fulmen.torch._sdpa, "_attention", attention)
    return found


@pytest.mark.parametrize("kind", ["added", "learned", "bool"])
@pytest.mark.parametrize("heads", [1, 4])
def test_what_is_expanded_is_copied_once(kind, heads, monkeypatch):
    """A transposed mask, which kernels can't read in place, that the caller has expanded."""
    q, k, v = qkv()
    leaf = randn(1, heads, 11, 9).requires_grad_(kind == "learned")
    leaf = leaf > 0 if kind == "bool" else leaf
    right = leaf.detach().double().requires_grad_() if kind == "learned" else leaf
    copied = masks_copied(monkeypatch)
    out = sdpa(q, k, v, leaf.mT.expand(2, 4, 9, 11))
    assert copied == [leaf.numel() * leaf.element_size()]
    expected = TORCH_SDPA(
        q.double(),
        k.double(),
        v.double(),
        right.mT.expand(2, 4, 9, 11) if kind == "bool" else right.double().mT,
    )
    assert_close(out.detach(), expected.detach(), "fp32")
    if kind == "learned":
        out.sum().backward()
        expected.sum().backward()
        assert_close(leaf.grad, right.grad, "fp32", "dbias", 1e-5)


@pytest.mark.parametrize(
    ("leading", "of_mask"),
    [
        ((3, 2), (2,)),
        ((3, 2), (3, 1)),
        ((2, 3, 2), (3, 1)),
        ((1, 3, 2), (2,)),
        ((2, 3, 2), (2, 1, 2)),
    ],
)
def test_windows(leading, of_mask, monkeypatch):
    """Swin's masks: the batch is two dims, and the mask the same along one. It is copied if small;
    else there are more calls.
    """
    q, k, v = (randn(*leading, 4, n, 16).requires_grad_() for n in (5, 7, 7))
    mask = randn(*of_mask, 4, 5, 7).requires_grad_()
    leaves = (q, k, v, mask)
    doubles = [t.detach().double().requires_grad_() for t in leaves]
    weight = randn(*leading, 4, 5, 16)
    expected = TORCH_SDPA(*doubles)
    wanted = torch.autograd.grad(expected, doubles, weight.double())
    copied = masks_copied(monkeypatch)
    calls = []
    for most in (1 << 20, mask[0].numel() * 4 * 2, 1):
        monkeypatch.setattr(fulmen.torch._sdpa, "_MOST_COPIED", most)
        copied.clear()
        out = sdpa(*leaves)
        assert_close(out.detach(), expected.detach(), "fp32")
        for name, ours, theirs in zip(
            ("dq", "dk", "dv", "dmask"),
            torch.autograd.grad(out, leaves, weight),
            wanted,
            strict=True,
        ):
            assert_close(ours, theirs, "fp32", name, 1e-5)
        calls.append(len(copied))
        assert calls[-1] == 1 or max(copied) <= max(most, mask.numel() * 4)
    assert calls[0] == 1 and calls[-1] > 1


def test_signature():
    names = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]
    assert list(inspect.signature(sdpa).parameters) == names
    q, k, v = qkv()
    mask = torch.rand(9, 11) < 0.5
    out = sdpa(
        query=q,
        key=k,
        value=v,
        attn_mask=mask,
        dropout_p=0.0,
        is_causal=False,
        scale=None,
        enable_gqa=False,
    )
    assert_close(out, TORCH_SDPA(q, k, v, mask), "fp32")


def test_dropout():
    q, k, v = (randn(2, 4, 64, 16) for _ in range(3))
    torch.manual_seed(3)
    out = sdpa(q, k, v, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(sdpa(q, k, v, dropout_p=0.5), out) and not torch.equal(sdpa(q, k, v), out)
    assert (sdpa(q, k, v, dropout_p=1.0) == 0).all()


def test_errors():
    q, k, v = qkv()
    for call, message in {
        lambda: sdpa(
            q, k, v, torch.ones(9, 11), is_causal=True
        ): "is_causal is True and attn_mask is given",
        lambda: sdpa(
            q, k[:, :2], v[:, :2]
        ): "key has 2 heads, value 2, query 4: the same is accepted",
        lambda: sdpa(q, k, v, dropout_p=1.5): "dropout_p is 1.5: 0 to 1 is accepted",
        lambda: sdpa(q, k, v, dropout_p=-0.5): "dropout_p is -0.5: 0 to 1 is accepted",
        lambda: sdpa(
            q, k[..., :8], v
        ): "^key has a head_dim of 8, query of 16: the same is accepted",
        lambda: sdpa(q, k, v[:, :, :3]): "^value has 3 rows, key 11: the same is accepted",
        lambda: sdpa(
            q, k[:, :3], v[:, :3], enable_gqa=True
        ): "^key has 3 heads, value 3: divisors of query's 4 are accepted",
        lambda: sdpa(
            q, k, v, torch.ones(9, 10)
        ): r"^attn_mask has shape \[9, 10\]: what broadcasts to \[2, 4, 9, 11\] is accepted",
        lambda: sdpa(
            q, k, v, torch.ones(3, 9, 11)
        ): r"^attn_mask has shape \[3, 9, 11\]: what broadcasts",
        lambda: sdpa(q, k, v, torch.ones(9, 11, dtype=torch.int32)): "^attn_mask.dtype is int32",
        lambda: sdpa(
            q, k.half(), v
        ): "^key.dtype is fp16, query.dtype is fp32: query's dtype, int8",
        lambda: sdpa(q[0, 0, 0], k, v): "query has 1 dims: 2 or more",
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
    for call, message in {
        lambda: sdpa(q.double(), k.double(), v.double()): "^query has dtype float64",
        lambda: sdpa(
            q, k, v, torch.zeros(9, 11, dtype=torch.float64)
        ): "^attn_mask has dtype float64",
        lambda: sdpa(q, k.numpy(), v): "^key is of type ndarray: a torch tensor is needed",
        lambda: sdpa(q, k, v, scale="x"): "^scale is 'x', of type str: a number is accepted",
    }.items():
        with pytest.raises(TypeError, match=message):
            call()


def test_with_block(plans, capfd):
    q, k, v = qkv()
    expected = TORCH_SDPA(q, k, v, is_causal=True)
    assert not plans()
    with fulmen.torch.sdpa():
        assert_close(F.scaled_dot_product_attention(q, k, v, is_causal=True), expected, "fp32")
        assert len(plans()) == 1
        assert_close(TORCH_SDPA(query=q, key=k, value=v, is_causal=True), expected, "fp32")
        assert len(plans()) == 1
        assert (
            F.scaled_dot_product_attention(q.double(), k.double(), v.double()).dtype
            == torch.float64
        )
        assert (
            "torch computes this scaled_dot_product_attention: query has dtype torch.float64"
            in capfd.readouterr().err
        )
        wide = randn(1, 1, 4, 600)
        assert_close(
            F.scaled_dot_product_attention(wide, wide, wide), TORCH_SDPA(wide, wide, wide), "fp32"
        )
    F.scaled_dot_product_attention(q, k, v)
    assert not plans()


def in_a_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def test_with_block_is_of_its_thread_and_the_switch_of_the_process(plans):
    q, k, v = qkv()
    with fulmen.torch.sdpa():
        in_a_thread(lambda: F.scaled_dot_product_attention(q, k, v))
        assert not plans()
        with pytest.raises(ZeroDivisionError), fulmen.torch.sdpa():
            F.scaled_dot_product_attention(q, k, v)
            raise ZeroDivisionError
        F.scaled_dot_product_attention(q, k, v)
        assert len(plans()) == 2
    fulmen.torch.enable_sdpa()
    try:
        in_a_thread(lambda: F.scaled_dot_product_attention(q, k, v))
        assert len(plans()) == 1
    finally:
        fulmen.torch.disable_sdpa()
    F.scaled_dot_product_attention(q, k, v)
    assert not plans()


def test_with_block_reaches_multi_head_attention(plans):
    """A function that torch shows to a mode, and then calls without it."""
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    x = randn(3, 10, 32)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(10)
    for options in ({}, {"attn_mask": mask}, {"attn_mask": mask, "is_causal": True}):
        expected = layer(x, x, x, need_weights=False, **options)[0]
        assert not plans()
        with fulmen.torch.sdpa():
            out = layer(x, x, x, need_weights=False, **options)[0]
        assert len(plans()) == 1
        assert_close(out.detach(), expected.detach(), "fp32")


def test_without_heads():
    empty = randn(2, 0, 5, 8)
    with fulmen.torch.sdpa():
        assert F.scaled_dot_product_attention(empty, empty, empty).shape == (2, 0, 5, 8)


def test_process_wide(plans):
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    x = randn(3, 10, 32)
    expected = layer(x, x, x, need_weights=False)[0]
    fulmen.torch.enable_sdpa()
    try:
        out = layer(x, x, x, need_weights=False)[0]
        assert len(plans()) == 1
    finally:
        fulmen.torch.disable_sdpa()
    assert F.scaled_dot_product_attention is TORCH_SDPA
    assert_close(out.detach(), expected.detach(), "fp32")


def test_modes_see_torchs_function_after_the_switch():
    """torch.compile asks modes about the functions of a list that torch makes once in a process."""
    clear = torch.overrides._get_overridable_functions.cache_clear
    clear()
    fulmen.torch.enable_sdpa()
    try:
        seen = torch.overrides.get_overridable_functions()[torch.nn.functional]
    finally:
        fulmen.torch.disable_sdpa()
        clear()
    assert TORCH_SDPA in seen
