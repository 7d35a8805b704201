"""Sinks of every float dtype: results and gradients beside float64, gradients in the sinks'
dtype."""

import fulmen
import fulmen.torch
import ml_dtypes
import numpy as np
import pytest
import torch
from problems import SEED, assert_close, attention_float64, normal, qkv
from torch_problems import attention_float64 as torch_float64

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
PRECISION = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp32"}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)


@pytest.mark.parametrize("path", ["eager", "dispatched", "compiled"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch(dtype, path):
    """Precision of q, k and v is float32, so that the sinks' rounding alone is seen."""
    q, k, v = (torch.randn(2, rows, 4, 16, requires_grad=True) for rows in (13, 19, 19))
    sinks = torch.randn(4).to(DTYPES[dtype]).requires_grad_()
    inputs, weights = [q, k, v, sinks], torch.randn(2, 13, 4, 16)
    call = fulmen.attention
    if path == "compiled":
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    if path == "dispatched":
        with torch.overrides.BaseTorchFunctionMode():
            out = call(q, k, v, sinks=sinks)
    else:
        out = call(q, k, v, sinks=sinks)
    expected, _ = torch_float64(q, k, v, sinks=sinks)
    assert_close(out.detach(), expected.detach(), "fp32")
    ours = torch.autograd.grad((out * weights).sum(), inputs)
    theirs = torch.autograd.grad((expected * weights).sum(), inputs)
    for one, other, like, precision in zip(
        ours, theirs, inputs, ["fp32"] * 3 + [PRECISION[dtype]], strict=True
    ):
        assert one.dtype == like.dtype
        assert_close(one.double(), other.double(), precision, "gradient", 1e-6)


def test_torch_of_one_dtype():
    """gpt-oss: all of it in bfloat16, under vmap and torch.func.grad, too."""
    q, k, v = (torch.randn(2, 9, 4, 16, dtype=torch.bfloat16) for _ in range(3))
    sinks = torch.randn(3, 4, dtype=torch.bfloat16)
    expected = torch.stack([torch_float64(q, k, v, sinks=one)[0] for one in sinks])
    found = torch.stack([fulmen.attention(q, k, v, sinks=one) for one in sinks])
    assert_close(found.double(), expected, "bf16")
    mapped = torch.vmap(lambda one: fulmen.attention(q, k, v, sinks=one))(sinks)
    assert torch.equal(mapped, found)

    def loss(one, attention):
        return attention(one).double().sum()

    ours = torch.func.grad(lambda one: loss(one, lambda s: fulmen.attention(q, k, v, sinks=s)))
    theirs = torch.func.grad(lambda one: loss(one, lambda s: torch_float64(q, k, v, sinks=s)[0]))
    gradient, right = ours(sinks[0]), theirs(sinks[0])
    assert gradient.dtype == torch.bfloat16
    out, lse = fulmen.attention(q, k, v, sinks=sinks[0], return_lse=True)
    # The tolerance rule of docs/contract.md for these very numbers.
    report = fulmen.verify(
        q, k, v, out, lse=lse, sinks=sinks[0], dout=torch.ones_like(out), dsinks=gradient
    )
    assert report.ok, report
    half_ulp = 2.0**-8 * right.abs().max()
    assert_close(gradient.double(), right.double(), "fp32", "gradient", report.bound + half_ulp)


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_explicit_gradients(rng, dtype, kind):
    """attention_backward, plan and the references take the same sinks."""
    q, k, v = qkv(rng)
    named = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    sinks = normal(rng, (4,)).astype(named)
    dout = normal(rng, q.shape)
    expected, _ = attention_float64(q, k, v, sinks=sinks)
    given = [torch.from_numpy(t.astype(np.float32)) for t in (q, k, v)]
    as_torch = torch.from_numpy(sinks.astype(np.float64)).requires_grad_()
    out64, _ = torch_float64(*given, sinks=as_torch)
    (right,) = torch.autograd.grad((out64 * torch.from_numpy(dout)).sum(), as_torch)
    arrays = [q, k, v, dout, sinks]
    if kind == "torch":
        arrays = [torch.from_numpy(t.astype(np.float32)) for t in arrays]
        arrays[-1] = arrays[-1].to(DTYPES[dtype])
    if kind == "jax":
        jnp = pytest.importorskip("jax.numpy")
        if dtype == "float64":
            pytest.skip("JAX has no float64 here")
        arrays = [jnp.asarray(t) for t in arrays]
    q, k, v, dout, sinks = arrays
    out, lse = fulmen.attention(q, k, v, sinks=sinks, return_lse=True)
    assert_close(out, expected, "fp32")
    wanted = {"sinks": sinks, "gradients": ("sinks",)}
    found = fulmen.attention_backward(dout, q, k, v, out, lse, **wanted).dsinks
    assert found.dtype == sinks.dtype and found.shape == sinks.shape
    check = {"lse": lse, "sinks": sinks, "dout": dout}
    assert fulmen.verify(q, k, v, out, **check, dsinks=found).ok
    report = fulmen.verify(q, k, v, out, **check, dsinks=found * 1.05)
    assert not report.ok and report.tensor == "dsinks" and report.message
    found = found.double() if kind == "torch" else np.asarray(found, np.float64)
    assert_close(found, right, PRECISION[dtype], "dsinks", 1e-6)
    exact = fulmen.attention_backward_reference(dout, q, k, v, **wanted).dsinks
    assert_close(exact, right, "fp32", "dsinks of the reference", 1e-6)
    assert fulmen.plan(q, k, v, sinks=sinks).kernel
    assert fulmen.verify(q, k, v, out, lse=lse, sinks=sinks).ok


class _DlpackOnly:
    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_sinks_of_another_library(rng):
    jnp = pytest.importorskip("jax.numpy")
    q, k, v = qkv(rng)
    sinks = torch.randn(4)
    given = [sinks.half(), sinks.bfloat16(), sinks.double(), _DlpackOnly(sinks.half())]
    given += [jnp.asarray(sinks.numpy(), dtype) for dtype in (jnp.bfloat16, jnp.float16)]
    for one in given:
        numbers = one.tensor if isinstance(one, _DlpackOnly) else one
        numbers = numbers.double() if isinstance(numbers, torch.Tensor) else numbers
        expected, _ = attention_float64(q, k, v, sinks=np.asarray(numbers, np.float64))
        assert_close(fulmen.attention(q, k, v, sinks=one), expected, "fp32")
        as_torch = [torch.from_numpy(t) for t in (q, k, v)]
        assert_close(fulmen.attention(*as_torch, sinks=one), expected, "fp32")


def test_dtypes_that_are_refused(rng):
    jnp = pytest.importorskip("jax.numpy")
    numpy = qkv(rng)
    as_torch, as_jax = ([to(t) for t in numpy] for to in (torch.from_numpy, jnp.asarray))
    small = torch.ones(4).to(torch.float8_e4m3fn)
    cases = [(numpy, np.ones(4, np.int32)), (numpy, small), (as_torch, small)]
    cases += [(as_torch, torch.ones(4, dtype=torch.bool)), (as_torch, np.ones(4, np.int64))]
    cases += [(as_jax, jnp.ones(4, jnp.float8_e4m3fn)), (as_jax, jnp.ones(4, jnp.int32))]
    for given, sinks in cases:
        with pytest.raises(TypeError, match=r"^sinks has dtype \w+: float32, .* and float64 are"):
            fulmen.attention(*given, sinks=sinks)
    with (
        torch.overrides.BaseTorchFunctionMode(),
        pytest.raises(TypeError, match=r"^sinks has dtype"),
    ):
        fulmen.attention(*as_torch, sinks=small)


def test_jax_gradients(rng):
    jax = pytest.importorskip("jax")
    q, k, v = (jax.numpy.asarray(t) for t in qkv(rng))
    sinks = jax.numpy.asarray(normal(rng, (4,), "bf16"))

    def loss(one):
        return fulmen.attention(q, k, v, sinks=one).sum()

    eager, compiled = jax.grad(loss)(sinks), jax.jit(jax.grad(loss))(sinks)
    assert eager.dtype == compiled.dtype == sinks.dtype
    given = [torch.from_numpy(np.array(t)) for t in (q, k, v)]
    as_torch = torch.from_numpy(np.asarray(sinks, np.float64)).requires_grad_()
    (right,) = torch.autograd.grad(torch_float64(*given, sinks=as_torch)[0].sum(), as_torch)
    for found in (eager, compiled):
        assert_close(np.asarray(found, np.float64), right, "bf16", "dsinks", 1e-6)
