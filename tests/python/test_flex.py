"""flex_attention on the CPU: attention-gym's functions with gradients against torch's own eager
operations in float64; torch.compile, enable_flex, lists of blocks, NumPy."""

import warnings

import fulmen
import fulmen.torch
import numpy as np
import pytest
import torch
from flex_problems import BATCH, DIM, GYM, HEADS, Case, close, expected, problem, torch_mask, vsa
from fulmen import flex
from problems import SEED
from torch.nn.attention import flex_attention as torch_flex

AUX = flex.AuxRequest(lse=True, max_scores=True)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)


def assert_same(function, case, mask, inputs, right_mask=None, bound=5e-5):
    """Outputs, and the gradients of a random loss of out and lse by inputs and learned tensors."""
    q, k, v = inputs
    out, aux = function(q, k, v, case.score_mod, mask, enable_gqa=True, return_aux=AUX)
    right, right_lse, right_top = expected(
        q, k, v, case.formula or case.score_mod, mask if right_mask is None else right_mask
    )
    close(out, right, "out", bound)
    close(aux.lse, right_lse, "lse", bound)
    close(aux.max_scores, right_top, "max_scores", bound)
    by_out, by_lse = torch.randn(right.shape).double(), torch.randn(right_lse.shape).double()

    def gradients(out, lse):
        lse = lse.double().masked_fill(torch.isneginf(right_lse), 0.0)
        loss = (out.double() * by_out).sum() + (lse * by_lse).sum()
        return torch.autograd.grad(loss, (*inputs, *case.learned))

    names = ("dq", "dk", "dv", *(f"learned {at}" for at in range(len(case.learned))))
    for name, found, exact in zip(
        names, gradients(out, aux.lse), gradients(right, right_lse), strict=True
    ):
        close(found, exact, name, 4 * bound)


@pytest.mark.parametrize("name", GYM)
def test_functions_of_attention_gym(name):
    case = GYM[name]()
    assert_same(fulmen.flex_attention, case, torch_mask(case), problem(case))


@pytest.mark.parametrize("name", ["packed documents", "graphormer edges"])
def test_one_operator_under_compile(name):
    case = GYM[name]()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    from torch._dynamo.backends.common import aot_autograd

    compiled = torch.compile(
        fulmen.flex_attention,
        backend=aot_autograd(fw_compiler=backend, bw_compiler=backend),
        fullgraph=True,
    )
    assert_same(compiled, case, torch_mask(case), problem(case))
    called = [
        str(node.target)
        for graph in graphs
        for node in graph.graph.nodes
        if node.op == "call_function" and "fulmen" in str(node.target)
    ]
    assert called == ["fulmen.flex_attention.default", "fulmen.flex_attention_backward.default"]


def test_functions_that_are_made_while_compiled():
    table, factor = (
        torch.randn(HEADS, 130, requires_grad=True),
        torch.tensor(0.7, requires_grad=True),
    )
    inputs = problem(Case())

    def step(q, k, v, table, factor):
        def mod(score, b, h, q_idx, kv_idx):
            return torch.tanh(score * factor) + table[h, q_idx - kv_idx + 64]

        return fulmen.flex_attention(q, k, v, mod, enable_gqa=True)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    weights = torch.randn(BATCH, HEADS, 64, DIM)
    found = [
        torch.autograd.grad((one(*inputs, table, factor) * weights).sum(), (*inputs, table, factor))
        for one in (step, compiled)
    ]
    for a, b in zip(*found, strict=True):
        close(a, b, "compiled")


def test_lists_of_blocks_as_they_are():
    """mask_mod alone does not say which pairs are attended."""
    case = GYM["VSA"]()
    topk = torch.stack([torch.randperm(4)[:2] for _ in range(BATCH * HEADS * 4)])
    topk = topk.reshape(BATCH, HEADS, 4, 2)
    for sizes in (None, torch.tensor([16, 16, 9, 16])):
        lists = vsa.create_vsa_block_mask(topk, 16, 4, sizes)
        dense = vsa.generate_vsa_mask_mod(topk, 16, sizes)
        right = torch_flex.create_block_mask(dense, BATCH, HEADS, 64, 64, "cpu", 16)
        assert_same(fulmen.flex_attention, Case(), lists, problem(case), right)


@pytest.mark.parametrize("size", [16, 24, (8, 64), 128])
def test_sizes_of_blocks(size):
    case = GYM["sliding window"]()
    mask = flex.create_block_mask(case.mask_mod, None, None, 64, 64, "cpu", size)
    assert_same(fulmen.flex_attention, case, mask, problem(case), torch_mask(case))


def test_batches_that_share_keys():
    case = GYM["causal"]()
    q, k, v = problem(case)
    mask = torch_flex.create_block_mask(case.mask_mod, BATCH, None, 64, 64, "cpu", 16)
    shared = [one[:1].detach().requires_grad_() for one in (k, v)]
    out = fulmen.flex_attention(q, *shared, None, mask, enable_gqa=True)
    right, _, _ = expected(q, *shared, None, mask)
    close(out, right, "out")
    found, exact = (torch.autograd.grad(one.sum(), (q, *shared)) for one in (out, right))
    for a, b in zip(found, exact, strict=True):
        close(a, b, "gradients", 2e-4)
    with pytest.raises(fulmen.ArgumentError, match="key has batch size 1, query 2"):
        fulmen.flex_attention(q, *shared, enable_gqa=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lower_precision(dtype):
    case = GYM["alibi"]()
    q, k, v = problem(case, dtype)
    out = fulmen.flex_attention(q, k, v, case.score_mod, torch_mask(case), enable_gqa=True)
    right, _, _ = expected(q, k, v, case.score_mod, torch_mask(case))
    assert out.dtype == dtype
    close(out, right, "out", 2e-2 if dtype == torch.bfloat16 else 3e-3)
    with torch.autocast("cpu", dtype):
        cast = fulmen.flex_attention(q.float(), k.float(), v.float(), enable_gqa=True)
    assert cast.dtype == dtype


def test_learned_tensors_of_other_dtypes_and_strides():
    whole = torch.randn(130, HEADS, dtype=torch.bfloat16, requires_grad=True)
    double = torch.randn(HEADS, 1, dtype=torch.float64, requires_grad=True)
    table = whole.T

    def mod(score, b, h, q, k):
        return score * double[h, 0] + table[h, q - k + 64]

    inputs = problem(Case())
    weights = torch.randn(BATCH, HEADS, 64, DIM)
    out = fulmen.flex_attention(*inputs, mod, enable_gqa=True)
    exactly = whole.double().T  # whose gradient is rounded once

    def formula(score, b, h, q, k):
        return score * double[h, 0] + exactly[h, q - k + 64]

    right, _, _ = expected(*inputs, formula, None)
    found, exact = (
        torch.autograd.grad((one.double() * weights).sum(), (whole, double)) for one in (out, right)
    )
    assert found[0].dtype == torch.bfloat16 and found[1].dtype == torch.float64
    close(found[0], exact[0], "bf16 table", 1e-2)
    close(found[1], exact[1], "factors", 2e-4)


def test_every_form_of_results():
    q, k, v = (one.detach() for one in problem(Case(), kv_heads=HEADS))
    out = fulmen.flex_attention(q, k, v)
    both, lse = fulmen.flex_attention(q, k, v, return_lse=True)
    assert torch.equal(out, both) and lse.shape == q.shape[:3]
    for request, kind in (
        (AUX, flex.AuxOutput),
        (torch_flex.AuxRequest(True), torch_flex.AuxOutput),
    ):
        out, aux = fulmen.flex_attention(q, k, v, return_aux=request)
        assert type(aux) is kind and torch.equal(aux.lse, lse)
        assert (aux.max_scores is None) == (not request.max_scores)
    close(out, expected(q, k, v, None, None, 0.25)[0], "out")
    scaled = fulmen.flex_attention(q, k, v, scale=0.5)
    close(scaled, expected(q, k, v, None, None, 0.5)[0], "scale")


def test_calls_that_autograd_alone_sees_leave_out_the_dispatcher(monkeypatch):
    """They give what the operator gives, with gradients; what else looks on gets the operator."""
    q, k, v = (one.detach() for one in problem(Case(), kv_heads=HEADS))
    bias = torch.randn(64)

    def mod(score, b, h, q, k):
        return score + bias[abs(q - k)]

    alone = fulmen.flex_attention(q, k, v, mod)
    assert alone.grad_fn is None
    calls = []
    right = torch.ops.fulmen.flex_attention

    def seen(*args):
        calls.append(args)
        return right(*args)

    monkeypatch.setattr(torch.ops.fulmen, "flex_attention", seen)
    by_out = torch.randn_like(alone)
    for who in (q, v, bias):
        who.requires_grad_()
        out = fulmen.flex_attention(q, k, v, mod)
        gradient = torch.autograd.grad(out, who, by_out)[0]
        assert not calls and torch.equal(out, alone)
        with torch.profiler.profile():
            out = fulmen.flex_attention(q, k, v, mod)
        assert calls and torch.equal(out, alone)
        assert torch.equal(torch.autograd.grad(out, who, by_out)[0], gradient)
        calls.clear()
        with torch.no_grad():
            assert not fulmen.flex_attention(q, k, v, mod).requires_grad and not calls
        who.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        assert fulmen.flex_attention(q, k, v, mod).dtype == torch.bfloat16 and calls
    assert type(fulmen.flex_attention(torch.nn.Parameter(q, False), k, v, mod)) is torch.Tensor


def test_compiled_autograd():
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    q, k, v = problem(Case(), kv_heads=HEADS)
    table = torch.randn(128, requires_grad=True)

    def loss():
        return (
            fulmen.flex_attention(q, k, v, lambda score, b, h, q, k: score + table[q - k + 64])
            .square()
            .sum()
        )

    expected = torch.autograd.grad(loss(), (q, k, v, table))
    with compiled_autograd._enable(torch.compile(backend="eager")):
        loss().backward()
    for leaf, gradient in zip((q, k, v, table), expected, strict=True):
        assert torch.equal(leaf.grad, gradient)


def test_an_infinite_score_masks():
    def mod(score, b, h, q, k):
        return torch.where((q >= k) & (q > 3), score, -float("inf"))

    case = Case(mod)
    assert_same(fulmen.flex_attention, case, None, problem(case))


def test_options_of_kernels():
    q, k, v = (one.detach() for one in problem(Case(), kv_heads=HEADS))
    right = fulmen.flex_attention(q, k, v)
    options = {"num_threads": 1, "fwd_BLOCK_M": 64, "BACKEND": "AUTO", "deterministic": True}
    assert torch.equal(fulmen.flex_attention(q, k, v, kernel_options=options), right)
    for options, message in (
        ({"BACKEND": "FLASH"}, "'FLASH': \"AUTO\" is accepted"),
        ({"BLOCK_K": 3}, "kernel_options has 'BLOCK_K': kernel, tuning"),
    ):
        with pytest.raises(fulmen.ArgumentError, match=message):
            fulmen.flex_attention(q, k, v, kernel_options=options)


def test_autocast():
    case = GYM["alibi"]()
    q, k, v = (one.detach() for one in problem(case))
    with torch.autocast("cpu", torch.bfloat16):
        out, aux = fulmen.flex_attention(
            q, k, v, case.score_mod, torch_mask(case), enable_gqa=True, return_aux=AUX
        )
    assert out.dtype == torch.bfloat16
    rounded = [one.bfloat16() for one in (q, k, v)]
    right, lse, top = expected(*rounded, case.score_mod, torch_mask(case))
    close(out, right, "out", 1e-2)
    close(aux.lse, lse, "lse")
    close(aux.max_scores, top, "max_scores")


def test_explain_takes_what_calls_take():
    case = Case(mask_mod=GYM["causal"]().mask_mod)
    q, k, v = (one.detach() for one in problem(case))
    shared = [one[:1].mT.contiguous().mT for one in (k, v)]
    arguments = (q.mT.contiguous().mT, *shared, None, torch_mask(case), torch.tensor(0.3), True)
    out = fulmen.flex_attention(*arguments)
    close(out, expected(q, *(one[:1] for one in (k, v)), None, torch_mask(case), 0.3)[0], "out")
    for backward in (False, True):
        assert flex.explain(*arguments, backward=backward).startswith("cpu.")
    arrays = [one.contiguous().numpy() for one in arguments[:3]]
    assert flex.explain(*arrays, *arguments[3:5], enable_gqa=True).startswith("cpu.")
    with pytest.raises(ValueError, match=r"^value\.shape"):
        flex.explain(q, k, v[:, :1], enable_gqa=True)


def test_explain():
    case = GYM["softcap"]()
    q, k, v = problem(case)
    for arrays in ((q, k, v), tuple(one.detach().numpy() for one in (q, k, v))):
        texts = [
            flex.explain(*arrays, case.score_mod, torch_mask(case), None, True, backward=backward)
            for backward in (False, True)
        ]
        assert all("tanh" in one and "(q >= k)" in one for one in texts)
        assert " on cpu for fp32" in texts[0] and " on cpu for backward fp32" in texts[1]
    with pytest.raises(fulmen.ArgumentError, match="key has 2 heads"):
        flex.explain(q, k, v)


def test_explain_says_what_gradients_of_tensors_take():
    q, k, _ = problem(GYM["softcap"]())
    slopes = torch.rand(q.shape[1])

    def score_mod(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    def said(backward):
        options = {"device": "emulated:gfx1100"}
        return flex.explain(q, k, k, score_mod, None, None, True, options, backward=backward)

    assert "functions' tensors" not in said(True)
    slopes.requires_grad_()
    assert f"functions' tensors: {len(slopes)} elements" in said(True)
    assert "functions' tensors" not in said(False)


ERRORS = {
    "dims": (lambda q, k, v, m: fulmen.flex_attention(q[0], k, v), "query is .*: .batch, heads"),
    "heads": (lambda q, k, v, m: fulmen.flex_attention(q, k, v), "key has 2 heads, query 4"),
    "a mask for fewer": (
        lambda q, k, v, m: fulmen.flex_attention(q, k[:, :, :9], v[:, :, :9], None, m, None, True),
        "larger length .* 64 queries and 64 keys, there are 64 and 9",
    ),
    "a mask of other heads": (
        lambda q, k, v, m: fulmen.flex_attention(q[:, :2], k, v, None, m),
        "block_mask.kv_num_blocks has shape .2, 4, 4.: 1 or 2 batches and 1 or 2 heads",
    ),
    "no mask": (
        lambda q, k, v, m: fulmen.flex_attention(q, k, v, None, m.mask_mod, enable_gqa=True),
        "block_mask is of type function",
    ),
    "both forms": (
        lambda q, k, v, m: fulmen.flex_attention(
            q, k, v, enable_gqa=True, return_lse=True, return_aux=AUX
        ),
        "return_lse and return_aux",
    ),
    "float64": (
        lambda q, k, v, m: fulmen.flex_attention(
            q.double(), k.double(), v.double(), None, None, None, True
        ),
        "query has dtype float64",
    ),
    "learned scale": (
        lambda q, k, v, m: fulmen.flex_attention(
            q, k, v, scale=torch.tensor(1.0, requires_grad=True), enable_gqa=True
        ),
        "scale requires grad",
    ),
    "a sliced mask": (
        lambda q, k, v, m: fulmen.flex_attention(q[:1], k[:1], v[:1], None, m[0], None, True),
        "Cannot use mask_mod from a sliced BlockMask",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, message = ERRORS[name]
    case = GYM["VSA"]()
    mask = flex.create_block_mask(case.mask_mod, BATCH, HEADS, 64, 64, "cpu", 16)
    with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
        call(*problem(case), mask)


def test_no_second_derivative():
    inputs = problem(Case())
    out = fulmen.flex_attention(*inputs, enable_gqa=True)
    (gradient,) = torch.autograd.grad(out.square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="flex_attention has no second derivative"):
        gradient.sum().backward()


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_transforms_are_refused(transform):
    q = torch.randn(1, 1, 2, 8, 4)

    def loss(x):
        return fulmen.flex_attention(x, x, x).sum()

    with pytest.raises(NotImplementedError, match=r"no rule for torch\.func"):
        transform(loss)(q if transform is torch.func.vmap else q[0])


# torch's own function.


@pytest.fixture
def enabled(monkeypatch):
    from fulmen.torch import _flex_routed

    monkeypatch.setattr(_flex_routed, "_said", set())
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    fulmen.torch.enable_flex()
    yield
    fulmen.torch.disable_flex()
    assert torch_flex.flex_attention is _flex_routed._torch_flex


def test_torchs_function_is_ours(enabled, plans):
    case = GYM["alibi"]()
    plans()
    assert_same(torch_flex.flex_attention, case, torch_mask(case), problem(case))
    assert len(plans()) == 2  # a forward and a backward pass
    torch._dynamo.reset()
    compiled = torch.compile(torch_flex.flex_attention, backend="aot_eager", fullgraph=True)
    assert_same(compiled, case, torch_mask(case), problem(case))
    assert len(plans()) == 2


def test_what_is_not_served_is_said_once(enabled, plans):
    q, k, v = (one.detach() for one in problem(Case(), kv_heads=HEADS))
    plans()

    def branch(score, b, h, q, k):
        return score if q is k else torch.special.i0(score)

    calls = {
        "query has dtype torch.float64": lambda: torch_flex.flex_attention(
            q.double(), k.double(), v.double()
        ),
        "can't be traced at .*test_flex.py": lambda: torch_flex.flex_attention(q, k, v, branch),
        "BACKEND\"\\] is 'TRITON": lambda: torch_flex.flex_attention(
            q, k, v, kernel_options={"BACKEND": "TRITON"}
        ),
    }
    for reason, call in calls.items():
        with pytest.warns(UserWarning, match=f"torch computes this flex_attention.*{reason}"):
            call()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call()
    assert plans() == []


# NumPy.


def test_numpy_arrays():
    case = GYM["packed documents"]()
    inputs = [one.detach() for one in problem(case)]
    offsets, table = np.array([0, 20, 23, 64]), np.random.default_rng(SEED).normal(size=(HEADS, 64))
    documents = np.repeat(np.arange(3), np.diff(offsets))

    def mask(b, h, q, k):
        return (documents[q] == documents[k]) & (q >= k)

    def mod(score, b, h, q, k):
        return np.tanh(score) * 2 + table[h, np.abs(q - k)]

    of_torch = torch.from_numpy(table)
    block_mask = flex.create_block_mask(mask, None, None, 64, 64, "cpu", 16)
    out, aux = fulmen.flex_attention(
        *(one.numpy() for one in inputs), mod, block_mask, enable_gqa=True, return_aux=AUX
    )
    right = expected(
        *inputs,
        lambda s, b, h, q, k: torch.tanh(s) * 2 + of_torch[h, (q - k).abs()],
        torch_mask(case),
    )
    assert all(type(one) is np.ndarray for one in (out, *aux))
    for name, one, exact in zip(("out", "lse", "max"), (out, *aux), right, strict=True):
        close(torch.from_numpy(np.ascontiguousarray(one)), exact, name)


def test_first_use_is_lazy():
    import subprocess
    import sys

    program = (
        "import sys, fulmen\n"
        "print('fulmen.flex' in sys.modules, callable(fulmen.flex_attention), fulmen.flex.__name__)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == ["False", "True", "fulmen.flex"]
