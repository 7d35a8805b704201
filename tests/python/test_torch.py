"""torch tensors: every option and its gradients against torch's own arithmetic in float64, views,
autograd, the module."""

import fulmen
import fulmen.torch
import numpy as np
import pytest
import torch
from problems import SEED, assert_close
from torch.utils.checkpoint import checkpoint
from torch_problems import attention_float64

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)


def problem(dtype="fp32", requires_grad=True, b=2, sq=29, sk=41, hq=4, hkv=2, d=16):
    shapes = [(b, sq, hq, d), (b, sk, hkv, d), (b, sk, hkv, d)]
    return tuple(torch.randn(s, dtype=DTYPES[dtype]).requires_grad_(requires_grad) for s in shapes)


def cases():
    return {
        "plain": {},
        "softcap": {"softcap": 3.0},
        "causal": {"causal": True},
        "top_left": {"causal": "top_left", "window_left": 7},
        "bias": {"bias": torch.randn(2, 4, 29, 41, requires_grad=True)},
        "bias_of_heads": {
            "bias": torch.randn(1, 4, 1, 41, dtype=torch.bfloat16, requires_grad=True)
        },
        "mask": {"keep_mask": torch.rand(2, 1, 29, 41) < 0.8},
        "alibi": {"alibi_slopes": torch.rand(4), "causal": True},
        "sinks": {"sinks": torch.randn(4, requires_grad=True)},
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("path", ["eager", "op"])
def test_options_and_gradients(name, dtype, path):
    options = cases()[name]
    inputs = [
        *problem(dtype),
        *(t for t in options.values() if isinstance(t, torch.Tensor) and t.requires_grad),
    ]

    def run(function, **more):
        out, lse = function(*inputs[:3], **options, **more)
        return (
            out,
            lse,
            torch.autograd.grad(
                (out.double() * weights).sum() + (lse.double() * lse_weights).sum(), inputs
            ),
        )

    q = inputs[0]
    weights, lse_weights = torch.randn(q.shape).to(q.dtype).double(), torch.randn(2, 4, 29).double()
    if path == "op":  # a mode that sees everything makes calls go through torch.ops.fulmen
        with torch.overrides.BaseTorchFunctionMode():
            out, lse, gradients = run(fulmen.attention, return_lse=True)
    else:
        out, lse, gradients = run(fulmen.attention, return_lse=True)
    expected, expected_lse, expected_gradients = run(attention_float64)
    assert out.dtype == q.dtype and lse.dtype == torch.float32
    assert_close(out.detach().double(), expected.detach(), dtype)
    assert_close(lse.detach(), expected_lse.detach(), "fp32", "lse")
    for at, (ours, theirs, like) in enumerate(
        zip(gradients, expected_gradients, inputs, strict=True)
    ):
        assert ours.dtype == like.dtype and ours.shape == like.shape
        exact = (
            "fp32"
            if like.dtype == torch.float32 == q.dtype
            else "bf16"
            if like.dtype == torch.bfloat16
            else dtype
        )
        assert_close(ours.double(), theirs.double(), exact, f"gradient {at}")


def test_only_gradients_that_are_needed():
    q, k, v = problem()
    k.requires_grad_(False)
    out = fulmen.attention(q, k, v)
    out.sum().backward()  # a gradient whose strides are all 0
    assert q.grad is not None and k.grad is None and v.grad is not None
    (lse_alone,) = torch.autograd.grad(fulmen.attention(q, k, v, return_lse=True)[1].sum(), q)
    (expected,) = torch.autograd.grad(attention_float64(q, k, v)[1].sum(), q)
    assert_close(lse_alone, expected, "fp32")


def _backward_by_hand(q, **options):
    out, lse = fulmen.attention(q, q, q, return_lse=True, **options)
    fulmen.attention_backward(torch.ones_like(out), q, q, q, out, lse, **options)


def _backward_by_operator(q, **options):
    with torch.overrides.BaseTorchFunctionMode():
        fulmen.attention(q, q, q, **options).sum().backward()


BACKWARD = {
    "eager": lambda q, **options: fulmen.attention(q, q, q, **options).sum().backward(),
    "operator": _backward_by_operator,
    "function": lambda q, **options: torch.func.grad(
        lambda x: fulmen.attention(x, x, x, **options).sum()
    )(q.detach()),
    "by hand": lambda q, **options: _backward_by_hand(q.detach(), **options),
}


@pytest.mark.parametrize("path", BACKWARD)
@pytest.mark.parametrize("asked", [None, True, False])
@pytest.mark.parametrize("setting", [False, True])
def test_gradients_are_deterministic_where_torch_or_the_caller_asks(plans, path, asked, setting):
    q = torch.randn(1, 4, 2, 8, requires_grad=True)
    torch.use_deterministic_algorithms(setting)
    try:
        BACKWARD[path](q, deterministic=asked)
    finally:
        torch.use_deterministic_algorithms(False)
    forward, backward = plans()
    assert " nondeterministic " not in forward and (" nondeterministic " in backward) == (
        not setting and not asked
    )


@pytest.mark.parametrize("asked", [None, True, False])
@pytest.mark.parametrize("setting", [False, True])
def test_plans_are_deterministic_as_calls_are(asked, setting):
    q = torch.randn(1, 4, 2, 8)
    options = {} if asked is None else {"deterministic": asked}
    torch.use_deterministic_algorithms(setting)
    try:
        text = fulmen.explain(q, q, q, backward=True, **options)
    finally:
        torch.use_deterministic_algorithms(False)
    assert (" nondeterministic " in text) == (not setting and not asked)
    n = q.numpy()
    assert (" nondeterministic " in fulmen.explain(n, n, n, backward=True, **options)) == (
        asked is False
    )


def test_gradcheck():
    q, k, v = problem(b=1, sq=5, sk=6, hq=2, hkv=1, d=4)
    bias, sinks = torch.randn(2, 5, 6, requires_grad=True), torch.randn(2, requires_grad=True)

    def function(q, k, v, bias, sinks):
        return fulmen.attention(
            q, k, v, bias=bias, sinks=sinks, softcap=5.0, causal=True, return_lse=True
        )

    assert torch.autograd.gradcheck(
        function, (q, k, v, bias, sinks), eps=1e-2, atol=2e-3, rtol=2e-2, fast_mode=True
    )


def test_double_backward_is_refused():
    q, k, v = problem()
    for call in (lambda: fulmen.attention(q, k, v), lambda: op_call(q, k, v)):
        (gradient,) = torch.autograd.grad(call().square().sum(), q, create_graph=True)
        with pytest.raises(RuntimeError, match=r"fulmen.attention has no second derivative"):
            gradient.sum().backward()


def op_call(q, k, v, need_lse=True):
    options = (None, None, 0.0, "none", -1, -1, 0.0, False, None, None, 0, False, None)
    return torch.ops.fulmen.attention(q, k, v, None, None, None, None, *options, need_lse)[0]


def test_views_are_read_in_place():
    q, k, v = problem(requires_grad=False, sq=41, hkv=4)
    expected = fulmen.attention(q, k, v, causal=True)
    packed = torch.stack([q, k, v], 2)
    assert torch.equal(fulmen.attention(*packed.unbind(2), causal=True), expected)
    bhsd = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    assert torch.equal(fulmen.attention(*(t.transpose(1, 2) for t in bhsd), causal=True), expected)
    out = fulmen.attention(*bhsd, causal=True, layout="bhsd")
    assert torch.equal(out, expected.transpose(1, 2)) and out.transpose(1, 2).is_contiguous()
    into = torch.full((2, 4, 41, 16), torch.nan)
    assert fulmen.attention(*bhsd, causal=True, layout="bhsd", out=into) is into and torch.equal(
        into, out
    )
    leaves = [t.clone().requires_grad_() for t in bhsd]
    fulmen.attention(*leaves, causal=True, layout="bhsd").square().sum().backward()
    straight = [t.clone().requires_grad_() for t in (q, k, v)]
    fulmen.attention(*straight, causal=True).square().sum().backward()
    for a, b in zip(leaves, straight, strict=True):
        assert torch.equal(a.grad.transpose(1, 2), b.grad)


def test_dropout_draws_from_torch():
    q, k, v = problem(requires_grad=False, sq=64, sk=64)
    torch.manual_seed(5)
    first, second = (fulmen.attention(q, k, v, dropout=0.4) for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(fulmen.attention(q, k, v, dropout=0.4), first) and not torch.equal(
        first, second
    )
    fixed = {"dropout": 0.25, "dropout_seed": 2**64 - 5, "dropout_offset": 1}
    out = fulmen.attention(q, k, v, **fixed)
    with torch.overrides.BaseTorchFunctionMode():
        assert torch.equal(fulmen.attention(q, k, v, **fixed), out)
    kept = fulmen.dropout_mask(q, k, **fixed)
    assert isinstance(kept, torch.Tensor) and kept.dtype == torch.bool
    assert_close(out, attention_float64(q, k, v, kept=kept, p=0.25)[0], "fp32")


@pytest.mark.parametrize("reentrant", [True, False])
def test_module_and_checkpointing(reentrant):
    attn = fulmen.torch.FlashAttention(softmax_scale=0.2, attention_dropout=0.3)
    q, k, v = problem()

    def gradient(wrap):
        torch.manual_seed(11)
        out = wrap(lambda *t: attn(*t, causal=True) * 1.0, q, k, v)
        return torch.autograd.grad(out.square().sum(), (q, k, v))

    plain = gradient(lambda f, *t: f(*t))
    if reentrant:  # works by backward() alone
        torch.manual_seed(11)
        checkpoint(
            lambda *t: attn(*t, causal=True) * 1.0, q, k, v, use_reentrant=True
        ).square().sum().backward()
        again = tuple(t.grad for t in (q, k, v))
    else:
        again = gradient(lambda f, *t: checkpoint(f, *t, use_reentrant=False))
    for a, b in zip(plain, again, strict=True):
        assert torch.equal(a, b)
    attn.eval()
    assert torch.equal(
        attn(q, k, v, causal=True), fulmen.attention(q, k, v, causal=True, softmax_scale=0.2)
    )
    with pytest.raises(
        ValueError, match=r"attention_dropout is 1.5: 0 or more, and less than 1, is accepted"
    ):
        fulmen.torch.FlashAttention(attention_dropout=1.5)


def test_reference_and_verify():
    q, k, v = problem("bf16", requires_grad=False)
    out, lse = fulmen.attention(q, k, v, causal=True, return_lse=True)
    reference = fulmen.attention_reference(q, k, v, causal=True)
    assert reference.dtype == torch.float64 and reference.device == q.device
    assert_close(reference, attention_float64(q, k, v, causal=True)[0], "fp32")
    assert fulmen.verify(q, k, v, out, lse=lse, causal=True).ok
    gradients = fulmen.attention_backward(out, q, k, v, out, lse, causal=True)
    assert gradients.dk.dtype == torch.bfloat16 and gradients.dbias is None
    assert fulmen.verify(
        q, k, v, out, lse=lse, dout=out, dq=gradients.dq, dk=gradients.dk, causal=True
    ).ok
    assert fulmen.plan(q, k, v, causal=True).kernel in fulmen.explain(q, k, v, causal=True)


def test_parameters_and_inference_mode():
    q, k, v = problem(requires_grad=False)
    expected = fulmen.attention(q, k, v)
    parameter = torch.nn.Parameter(q)
    out = fulmen.attention(parameter, k, v)
    assert out.requires_grad and torch.equal(out, expected)
    with torch.inference_mode():
        assert torch.equal(fulmen.attention(parameter, k, v), expected)
    with torch.device("cpu"):
        assert torch.equal(fulmen.attention(q, k, v), expected)


def test_tensors_of_a_derived_class():
    """A __torch_function__ as some libraries give all of their tensors."""

    class Derived(torch.Tensor):
        pass

    tensors = problem(requires_grad=False)
    expected = fulmen.attention(*tensors)
    for derived in ([0], [1, 2], [0, 1, 2]):
        given = [t.as_subclass(Derived) if at in derived else t for at, t in enumerate(tensors)]
        out = fulmen.attention(*given)
        assert isinstance(out, Derived) and torch.equal(out.as_subclass(torch.Tensor), expected)
        leaf = given[0].detach().requires_grad_()
        (dq,) = torch.autograd.grad(fulmen.attention(leaf, *given[1:]).sum(), leaf)
        plain = tensors[0].clone().requires_grad_()
        (expected_dq,) = torch.autograd.grad(fulmen.attention(plain, *tensors[1:]).sum(), plain)
        assert torch.equal(dq.as_subclass(torch.Tensor), expected_dq)


def test_arrays_that_are_no_tensors_beside_a_gradient():
    """Without gradients they are read in place; with gradients they are refused."""
    q, k, v = problem(requires_grad=False)
    lengths = np.array([5, 9], np.int32)
    for tensors, arrays in (
        ((q, k, v), {"keep_mask": np.ones((q.shape[1], k.shape[1]), bool)}),
        ((q, k, v), {"bias": np.ones((q.shape[1], k.shape[1]), np.float32)}),
        ((q, k, v), {"seqlens_k": lengths}),
        ((q, k.numpy(), v), {}),
        ((q, k, v.numpy()), {}),
    ):
        name = next(iter(arrays), "k" if tensors[1] is not k else "v")
        expected = fulmen.attention(*tensors, **arrays)
        leaf = q.clone().requires_grad_()
        with pytest.raises(
            TypeError,
            match=f"{name} is of type ndarray: a torch tensor is needed where an input requires "
            "grad",
        ):
            fulmen.attention(leaf, *tensors[1:], **arrays)
        with torch.no_grad():
            assert torch.equal(fulmen.attention(leaf, *tensors[1:], **arrays), expected)


def test_autograd_sees_that_out_is_written():
    q, k, v = problem(requires_grad=True)
    k = k.detach()
    loss = fulmen.attention(q, k, v).square().sum()
    ones = torch.ones_like(k)
    assert fulmen.attention(ones, ones, ones, out=k) is k
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    version = k._version
    fulmen.attention(*[ones.numpy()] * 3, out=k)
    assert k._version == version + 1
    with torch.inference_mode():
        out = torch.empty_like(k)
        assert torch.equal(fulmen.attention(k, k, k, out=out), fulmen.attention(k, k, k))


def test_gradients_of_nothing():
    """The gradient of a bias that no query uses: an empty sum."""
    for batch, rows in ((0, 5), (2, 0)):
        q = torch.randn(batch, rows, 4, 8, requires_grad=True)
        k, v = torch.randn(2, batch, 7, 4, 8)
        bias = torch.randn(1, 4, 1, 7, requires_grad=True)
        for _ in range(3):
            # What the next tensor of that size is likely to be made of.
            torch.full_like(bias, torch.nan)
            (gradient,) = torch.autograd.grad(fulmen.attention(q, k, v, bias=bias).sum(), bias)
            assert not gradient.any()


LEARNED = torch.nn.Parameter(torch.tensor(0.3))
ERRORS = {
    "learned scale": (
        lambda q, k, v: fulmen.attention(q, k, v, softmax_scale=LEARNED),
        ValueError,
        r"softmax_scale requires grad: it has no gradient here, pass softmax_scale.item\(\), or "
        r"scale q by what is learned",
    ),
    "learned scale, autocast": (
        lambda q, k, v: torch.autocast("cpu")(fulmen.attention)(q, k, v, softmax_scale=LEARNED),
        ValueError,
        "softmax_scale requires grad",
    ),
    "learned softcap": (
        lambda q, k, v: fulmen.attention(q, k, v, softcap=LEARNED),
        ValueError,
        "softcap requires grad",
    ),
    "nested": (
        lambda q, k, v: fulmen.attention(torch.nested.as_nested_tensor([q[0], q[1, :3]]), k, v),
        ValueError,
        "q is a nested tensor: sequences of different lengths are accepted packed, with cu_seqlens",
    ),
    "float8": (
        lambda q, k, v: fulmen.attention(q.to(torch.float8_e4m3fn), k, v),
        TypeError,
        "q has dtype float8_e4m3fn: ",
    ),
    "float64": (
        lambda q, k, v: fulmen.attention(q.double(), k, v),
        TypeError,
        "q has dtype float64: float32, float16",
    ),
    "mixed": (lambda q, k, v: fulmen.attention(q, k.half(), v), ValueError, "k.dtype is fp16"),
    "numpy": (lambda q, k, v: fulmen.attention(q, k.tolist(), v), TypeError, "k is of type list"),
    "no queries": (
        lambda q, k, v: fulmen.attention(None, k, v),
        TypeError,
        "q is None: a NumPy array, a torch tensor or another",
    ),
    "stride": (
        lambda q, k, v: fulmen.attention(q.mT.contiguous().mT, k, v),
        ValueError,
        "q.strides is .* last dim must be contig",
    ),
    "meta": (
        lambda q, k, v: fulmen.attention(q, k.to("meta"), v),
        ValueError,
        "k is on device meta: cpu and cuda are accepted",
    ),
    "sparse": (
        lambda q, k, v: fulmen.attention(q.to_sparse(), k, v),
        ValueError,
        "q has layout torch.sparse_coo: strided is",
    ),
    "conj": (
        lambda q, k, v: fulmen.attention(torch.view_as_complex(q.reshape(2, 29, 4, 8, 2)), k, v),
        TypeError,
        "complex",
    ),
    "out": (
        lambda q, k, v: fulmen.attention(q.requires_grad_(), k, v, out=torch.empty_like(q)),
        ValueError,
        "out is given and an",
    ),
    "slopes": (
        lambda q, k, v: fulmen.attention(q, k, v, alibi_slopes=torch.rand(4, requires_grad=True)),
        ValueError,
        r"alibi_slopes requires grad: it has no gradient here, pass alibi_slopes.detach\(\)",
    ),
    "slopes of the op": (
        lambda q, k, v: torch.compile(fulmen.attention, backend="aot_eager")(
            q, k, v, alibi_slopes=torch.rand(4, requires_grad=True)
        ),
        Exception,
        "alibi_slopes requires grad",
    ),
    "lse": (
        lambda q, k, v: op_call(q.requires_grad_(), k, v, need_lse=False).sum().backward(),
        RuntimeError,
        "need_lse is False: the gradients of fulmen.attention need the lse",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, error, message = ERRORS[name]
    with pytest.raises(error, match=message):
        call(*problem(requires_grad=False))
