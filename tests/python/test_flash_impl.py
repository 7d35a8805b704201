"""Fulmen as an implementation of torch's flash attention. The operators run on the CPU here, where
torch has none; tests/python_gpu/torch_check.py is the test on a GPU."""

import itertools

import fulmen
import fulmen.torch
import numpy as np
import pytest
import torch
from problems import assert_close, attention_float64, normal

attention = torch.nn.attention
if not hasattr(attention, "register_flash_attention_impl"):
    pytest.skip("this torch has no registry of flash implementations", allow_module_level=True)
varlen = pytest.importorskip("torch.nn.attention.varlen")
aten = torch.ops.aten
OPERATORS = (
    "_flash_attention_forward",
    "_flash_attention_backward",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
)


@pytest.fixture
def active():
    attention.activate_flash_attention_impl("fulmen")
    yield
    if attention.current_flash_attention_impl() is not None:
        attention.restore_flash_attention_impl()


def kernels(name):
    table = torch._C._dispatch_dump_table(f"aten::{name}").splitlines()
    return [line for line in table if line.startswith(("CPU:", "CUDA:", "AutogradCUDA:"))]


def test_torchs_own_kernels_come_back():
    before = {name: kernels(name) for name in OPERATORS}
    assert "fulmen" in attention.list_flash_attention_impls()
    for _ in range(2):
        attention.activate_flash_attention_impl("fulmen")
        assert attention.current_flash_attention_impl() == "fulmen"
        for name in OPERATORS:
            of_cpu, of_cuda = (
                next(line for line in kernels(name) if line.startswith(key))
                for key in ("CPU:", "CUDA:")
            )
            assert "_flash_impl.py" in of_cpu and "_flash_impl.py" in of_cuda
        attention.restore_flash_attention_impl()
        assert attention.current_flash_attention_impl() is None
        assert {name: kernels(name) for name in OPERATORS} == before


def heads_first(rng, *shape, dtype="fp32"):
    return torch.from_numpy(normal(rng, shape)).transpose(1, 2).requires_grad_()


@pytest.mark.parametrize("causal", [False, True])
def test_scaled_dot_product(active, causal, rng):
    q, k, v = (heads_first(rng, 2, 20, 4, 32) for _ in "qkv")
    out, lse, *rest = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=0.3)
    assert rest[2:4] == [20, 20]
    plain = [t.detach().transpose(1, 2).numpy() for t in (q, k, v)]
    options = {"causal": causal, "softmax_scale": 0.3}
    expected, expected_lse = attention_float64(*plain, **options)
    assert_close(out.detach().transpose(1, 2), expected, "fp32")
    assert_close(lse.detach(), expected_lse, "fp32", "lse")
    dout = normal(rng, (2, 20, 4, 32))
    out.backward(torch.from_numpy(dout).transpose(1, 2))
    exact = fulmen.attention_backward_reference(dout, *plain, **options)
    for tensor, gradient in zip((q, k, v), exact, strict=False):
        assert_close(tensor.grad.transpose(1, 2), gradient, "fp32")
    # The kernel for CUDA is the same function.
    cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    given = [t.detach() for t in (q, k, v)]
    again = aten._scaled_dot_product_flash_attention.default.redispatch(
        cuda, *given, 0.0, causal, scale=0.3
    )
    assert torch.equal(again[0], out) and torch.equal(again[1], lse)


LAYOUTS = {
    "heads first": lambda rng: torch.from_numpy(normal(rng, (2, 4, 20, 32))),
    "positions first": lambda rng: torch.from_numpy(normal(rng, (2, 20, 4, 32))).transpose(1, 2),
    "a part of qkv": lambda rng: torch.from_numpy(normal(rng, (2, 20, 3, 4, 32)))[:, :, 1]
    .transpose(1, 2),
    "one row": lambda rng: torch.from_numpy(normal(rng, (2, 1, 4, 32))).transpose(1, 2),
}  # fmt: skip


def strides(t):
    """Of the dims where they matter."""
    return [stride for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1]


def on_meta(t):
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("v_dim", [32, 16])
def test_results_lie_as_torch_says(active, layout, v_dim, rng):
    """Compiled code relies on what torch's meta functions say."""
    q = LAYOUTS[layout](rng)
    k, v = q.clone(), q[..., :v_dim].clone()
    ours = aten._scaled_dot_product_flash_attention(q, k, v)
    meta = [on_meta(t) for t in (q, k, v)]
    said = aten._scaled_dot_product_flash_attention(*meta)
    for at, (one, other) in enumerate(zip(ours, said, strict=True)):
        if not isinstance(one, torch.Tensor):
            assert one == other
            continue
        assert one.shape == other.shape and one.dtype == other.dtype, at
        assert at > 1 or strides(one) == strides(other), at
    given = (ours[0], q, k, v, ours[0], ours[1], None, None, 20, 20, 0.0, False, *ours[6:8])
    meta = [on_meta(t) if isinstance(t, torch.Tensor) else t for t in given]
    backward = aten._scaled_dot_product_flash_attention_backward
    for one, other in zip(backward(*given), backward(*meta), strict=True):
        assert one.shape == other.shape and strides(one) == strides(other)


def test_dropout_is_the_same_backward(active, rng):
    q, k = (heads_first(rng, 2, 20, 4, 32) for _ in "qk")
    v = torch.eye(20)[None, None].expand(2, 4, 20, 20).clone().requires_grad_()
    torch.manual_seed(3)
    out = aten._scaled_dot_product_flash_attention(q, k, v, 0.4)[0]
    assert 0.2 < (out == 0).float().mean() < 0.6  # the weights themselves
    (dv,) = torch.autograd.grad(out, v, torch.eye(20).expand(2, 4, 20, 20))
    torch.testing.assert_close(dv, out.mT)
    torch.manual_seed(3)
    assert torch.equal(out, aten._scaled_dot_product_flash_attention(q, k, v, 0.4)[0])


LENGTHS_Q, LENGTHS_K = [9, 1, 30], [17, 5, 30]


def packed(rng):
    """q, k, v and the bounds of sequences."""
    shapes = (sum(LENGTHS_Q), 4, 32), (sum(LENGTHS_K), 2, 32), (sum(LENGTHS_K), 2, 32)
    bounds = [torch.tensor(np.cumsum([0, *n]), dtype=torch.int32) for n in (LENGTHS_Q, LENGTHS_K)]
    return [torch.from_numpy(normal(rng, shape)) for shape in shapes], bounds


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (6, 0), (4, 3)])
def test_varlen(active, window, rng):
    tensors, bounds = packed(rng)
    leaves = [t.clone().requires_grad_() for t in tensors]
    out, lse = varlen.varlen_attn(
        *leaves, *bounds, 30, 30, window_size=window, enable_gqa=True,
        return_aux=varlen.AuxRequest(lse=True),
    )  # fmt: skip
    dout = torch.from_numpy(normal(rng, out.shape))
    out.backward(dout)
    of_q, of_k = (list(itertools.pairwise(b)) for b in bounds)
    for (first, last), (first_k, last_k) in zip(of_q, of_k, strict=True):
        q, k, v = (
            t[None, a:b].numpy()
            for t, (a, b) in zip(
                tensors, ((first, last), (first_k, last_k), (first_k, last_k)), strict=True
            )
        )
        options = {"window_left": window[0], "window_right": window[1]}
        expected, expected_lse = attention_float64(q, k, v, **options)
        assert_close(out[first:last].detach(), expected[0], "fp32")
        assert_close(lse[:, first:last].detach(), expected_lse[0], "fp32", "lse")
        exact = fulmen.attention_backward_reference(
            dout[None, first:last].numpy(), q, k, v, **options
        )
        assert_close(leaves[0].grad[first:last], exact.dq[0], "fp32", "dq")
        assert_close(leaves[1].grad[first_k:last_k], exact.dk[0], "fp32", "dk")
        assert_close(leaves[2].grad[first_k:last_k], exact.dv[0], "fp32", "dv")


@pytest.mark.parametrize("paged", [False, True])
def test_varlen_over_a_cache(active, paged, rng):
    """Of each sequence's keys the first ones count."""
    (q, k, v), bounds = packed(rng)
    used = torch.tensor([11, 5, 8], dtype=torch.int32)
    keys, settings = (k, v), {"seqused_k": used, "enable_gqa": True, "window_size": (-1, 0)}
    if paged:
        keys = [torch.from_numpy(normal(rng, (7, 8, 2, 32))) for _ in "kv"]
        settings["block_table"] = torch.tensor([[3, 0], [5, 6], [1, 2]], dtype=torch.int32)
    out = varlen.varlen_attn(q, *keys, *bounds, 30, 30, **settings)
    into = torch.empty_like(q)
    varlen.varlen_attn_out(into, q, *keys, *bounds, 30, 30, **settings)
    assert torch.equal(into, out)
    for n in range(3):
        rows = slice(bounds[0][n], bounds[0][n + 1])
        if paged:
            mine = [t[settings["block_table"][n]].flatten(0, 1) for t in keys]
        else:
            mine = [t[bounds[1][n] :] for t in keys]
        mine = [t[None, : used[n]].numpy() for t in mine]
        expected, _ = attention_float64(q[None, rows].numpy(), *mine, causal=True)
        assert_close(out[rows], expected[0], "fp32")


def test_no_debug_mask(active, rng):
    q = heads_first(rng, 2, 20, 4, 32)
    with pytest.raises(NotImplementedError, match="return_debug_mask is True"):
        aten._scaled_dot_product_flash_attention(q, q, q, 0.0, False, True)
