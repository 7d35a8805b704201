"""What torch's own tools see of Fulmen: the profiler, the counter of operations, tensors that are
more than their memory."""

import fulmen
import fulmen.torch
import numpy as np
import pytest
import torch
from problems import SEED
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from torch_problems import attention_float64, close

HEADS, DIM, DIM_V = 4, 16, 8


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)


def qkv(requires_grad=False, kv_heads=HEADS):
    shapes = (2, 6, HEADS, DIM), (2, 9, kv_heads, DIM), (2, 9, kv_heads, DIM_V)
    return tuple(torch.randn(shape).requires_grad_(requires_grad) for shape in shapes)


def bounds(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


PACKED = {
    "cu_seqlens_q": bounds(0, 5, 6),
    "cu_seqlens_k": bounds(0, 2, 9),
    "max_seqlen_q": 5,
    "max_seqlen_k": 7,
}


def appended():
    cache, new = (torch.zeros(2, n, HEADS, DIM) for n in (9, 3))
    return fulmen.append_kv(cache, cache.clone(), [1, 6], new, new)


def backward_alone():
    q, k, v = qkv()
    out, lse = fulmen.attention(q, k, v, return_lse=True)
    return fulmen.attention_backward(out, q, k, v, out, lse)


CALLS = {
    "attention": (lambda: fulmen.attention(*qkv()), ["attention"]),
    "with autograd": (
        lambda: fulmen.attention(*qkv(True)).sum().backward(),
        ["attention", "attention_backward"],
    ),
    "attention_backward": (backward_alone, ["attention", "attention_backward"]),
    "varlen": (
        lambda: fulmen.attention(*(t[0] for t in qkv(True)), **PACKED).sum().backward(),
        ["attention_varlen", "attention_varlen_backward"],
    ),
    "sdpa": (
        lambda: fulmen.torch.scaled_dot_product_attention(*(t.transpose(1, 2) for t in qkv())),
        ["attention"],
    ),
    "append_kv": (appended, ["append_kv"]),
    "flex": (
        lambda: fulmen.flex_attention(*(t.transpose(1, 2) for t in qkv())),
        ["flex_attention"],
    ),
    "flex with autograd": (
        lambda: fulmen.flex_attention(*(t.transpose(1, 2) for t in qkv(True))).sum().backward(),
        ["flex_attention", "flex_attention_backward"],
    ),
    "dispatched": (
        lambda: torch.func.vmap(fulmen.attention)(*(t[None] for t in qkv())),
        ["attention"],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_profiler(name):
    call, expected = CALLS[name]
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        call()
    events = [event for event in found.events() if event.name.startswith("fulmen::")]
    assert [event.name for event in events] == [f"fulmen::{op}" for op in expected]
    assert all(event.input_shapes and event.input_shapes[0] for event in events)


def products(pairs, dims):
    """Operations of matrix products over so many queries and keys, of each head."""
    return sum(2 * HEADS * a * b * dims for a, b in pairs)


def test_flop_counter():
    forward, backward = DIM + DIM_V, 3 * DIM + 2 * DIM_V
    for options, pairs in (
        ({}, [(6, 9)] * 2),
        (PACKED, [(5, 2), (1, 7)]),
        ({"seqlens_k": bounds(4, 9)}, [(6, 4), (6, 9)]),
    ):
        packed = options is PACKED
        q, k, v = (
            t[0].detach().requires_grad_() if packed else t
            for t in qkv(packed or not options, kv_heads=2)
        )
        name = "attention_varlen" if options else "attention"
        expected = {getattr(torch.ops.fulmen, name): products(pairs, forward)}
        with FlopCounterMode(display=False) as counted:
            out = fulmen.attention(q, k, v, causal=True, **options)
            if out.requires_grad:
                out.sum().backward()
                expected[getattr(torch.ops.fulmen, f"{name}_backward")] = products(pairs, backward)
        assert counted.get_flop_counts()["Global"] == expected
    # Packed tensors on meta count the most possible.
    with FlopCounterMode(display=False) as counted:
        lengths = {
            name: value.to("meta") if isinstance(value, torch.Tensor) else value
            for name, value in PACKED.items()
        }
        fulmen.attention(*(t[0].to("meta") for t in qkv()), **lengths)
    assert counted.get_total_flops() == products([(5, 7)] * 2, forward)
    # The operators themselves, as compiled code calls them.
    compiled = torch.compile(fulmen.attention, backend="aot_eager")
    with torch.no_grad():
        compiled(*qkv())
        with FlopCounterMode(display=False) as counted:
            compiled(*qkv())
    assert counted.get_total_flops() == products([(6, 9)] * 2, forward)


def negated(tensor):
    """The same numbers, over memory with the other sign."""
    found = torch._neg_view(-tensor)
    assert found.is_neg() and torch.equal(found, tensor)
    return found


OPTIONAL = {
    "bias": lambda: torch.randn(2, 1, 6, 9),
    "alibi_slopes": lambda: torch.rand(HEADS),
    "sinks": lambda: torch.randn(HEADS),
}


@pytest.mark.parametrize("name", ["q", "k", "v", "dout", "dlse", *OPTIONAL])
@pytest.mark.parametrize("way", ["autograd", "functions", "sdpa"])
def test_negative_bit_of_inputs(name, way):
    """A tensor that conj().imag may give: its elements are those of its memory with the other
    sign."""
    tensors = dict(zip("qkv", qkv(), strict=True))
    options = {name: OPTIONAL[name]()} if name in OPTIONAL else {}
    dout, dlse = torch.randn(2, 6, HEADS, DIM_V), torch.randn(2, HEADS, 6)

    def turn(what, tensor):
        return negated(tensor) if what == name else tensor

    leaves = {what: tensor.double().requires_grad_() for what, tensor in tensors.items()}
    expected, lse = attention_float64(**leaves, **options)
    wanted = torch.autograd.grad(
        (expected * dout).sum() + (lse * dlse).sum(), list(leaves.values())
    )
    if way == "functions":
        given = [turn(what, tensor) for what, tensor in tensors.items()]
        options = {what: turn(what, tensor) for what, tensor in options.items()}
        out, lse_ = fulmen.attention(*given, return_lse=True, **options)
        gradients = fulmen.attention_backward(
            turn("dout", dout), *given, out, lse_, dlse=turn("dlse", dlse), **options
        )[:3]
        close(fulmen.attention_reference(*given, **options), expected.detach())
        assert fulmen.verify(*given, out, **options).ok
        if name in ("q", "k", "v"):
            assert f"{name} is copied before: it has torch's negative bit" in fulmen.explain(
                *given, **options
            )
    elif way == "autograd":
        given = [turn(what, tensor).requires_grad_() for what, tensor in tensors.items()]
        out, lse_ = fulmen.attention(
            *given,
            return_lse=True,
            **{what: turn(what, tensor) for what, tensor in options.items()},
        )
        gradients = torch.autograd.grad(
            (out, lse_), given, (turn("dout", dout), turn("dlse", dlse))
        )
    else:
        if name not in ("q", "k", "v", "bias", "dout"):
            return
        given = [turn(what, tensor).requires_grad_() for what, tensor in tensors.items()]
        heads_first = (t.transpose(1, 2) for t in given)
        mask = turn("bias", options["bias"]) if options else None
        out = fulmen.torch.scaled_dot_product_attention(*heads_first, mask).transpose(1, 2)
        gradients = torch.autograd.grad(out, given, turn("dout", dout))
        wanted = torch.autograd.grad(
            attention_float64(**leaves, **options)[0], list(leaves.values()), dout.double()
        )
    close(out.detach(), expected.detach())
    for gradient, right in zip(gradients, wanted, strict=True):
        close(gradient, right)


def test_imaginary_part_of_a_conjugate():
    q, k, v = qkv()
    imaginary = (
        torch.complex(torch.randn_like(q), -q)
        .permute(0, 1, 3, 2)
        .conj()
        .imag.permute(0, 1, 3, 2)[..., :1]
    )
    assert imaginary.is_neg() and torch.equal(imaginary, q[..., :1])
    close(
        fulmen.attention(imaginary, k[..., :1], v), attention_float64(q[..., :1], k[..., :1], v)[0]
    )


def test_negative_bit_of_a_cache():
    cache, new = torch.zeros(2, 9, HEADS, DIM), torch.randn(2, 3, HEADS, DIM)
    cos, sin = torch.rand(9, 4), torch.rand(9, 4)
    expected = fulmen.append_kv(
        cache, cache.clone(), [1, 2], new, new, rotary_cos=cos, rotary_sin=sin, q=new
    )[0]
    rows = cache.clone()
    cache.zero_()
    turned = [negated(t) for t in (new, new, cos, sin, new)]
    found = fulmen.append_kv(
        cache,
        cache.clone(),
        [1, 2],
        *turned[:2],
        rotary_cos=turned[2],
        rotary_sin=turned[3],
        q=turned[4],
    )[0]
    assert torch.equal(found, expected) and torch.equal(cache, rows) and cache.abs().sum() > 0


def test_negative_bit_of_what_is_written():
    q, k, v = qkv()
    message = (
        "has torch's negative bit, its memory the other sign: it is written, a tensor without is "
        "accepted"
    )
    with pytest.raises(fulmen.ArgumentError, match=f"^out {message}"):
        fulmen.attention(q, k, v, out=torch._neg_view(torch.empty(2, 6, HEADS, DIM_V)))
    for at, name in enumerate(("k_cache", "v_cache")):
        caches = [torch.zeros(2, 9, HEADS, DIM) for _ in range(2)]
        caches[at] = torch._neg_view(caches[at])
        with pytest.raises(fulmen.ArgumentError, match=f"^{name} {message}"):
            fulmen.append_kv(*caches, [1, 2], k[:, :3], k[:, :3])
    array = np.zeros((2, 6, HEADS, DIM), np.float32)
    close(
        torch.from_numpy(fulmen.attention(array, negated(k), negated(v))),
        v.double().mean(1, keepdim=True).expand(2, 6, -1, -1),
    )


def test_inference_mode():
    """No call in it is differentiated; torch refuses a gradient of its results, instead of a wrong
    one.
    """
    leaves = qkv(True)
    with torch.inference_mode():
        made = qkv()
        with torch.enable_grad():
            assert not fulmen.attention(*leaves).requires_grad
        out = torch.empty(2, 6, HEADS, DIM_V)
        assert fulmen.attention(*made, out=out) is out
    close(fulmen.attention(*made), attention_float64(*made)[0])
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        fulmen.attention(leaves[0], *made[1:])
    # A saved tensor that is written inside is seen to be.
    q = leaves[0] * 1
    loss = fulmen.attention(q, *leaves[1:]).sum()
    with torch.inference_mode():
        fulmen.attention(q.detach(), leaves[1], leaves[1], out=q.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
