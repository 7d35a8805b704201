"""torch.compile, torch.func, autocast, opcheck and fake tensors, which see torch.ops.fulmen."""

import subprocess
from pathlib import Path

import fulmen
import fulmen.torch
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from problems import SEED, assert_close
from torch.autograd import forward_ad
from torch.func import grad, jacrev, vjp, vmap
from torch.utils import cpp_extension

ROOT = Path(__file__).parents[2]

randn = torch.randn
OPTIONS = (None, None, 0.0, "bottom_right", -1, -1, 0.0, False, None, None, 0, False, None)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)
    torch._dynamo.reset()


def qkv(*leading, sq=7, sk=9, requires_grad=False):
    return tuple(randn(*leading, 2, s, 2, 8).requires_grad_(requires_grad) for s in (sq, sk, sk))


def by_torch(q, k, v, bias=None):
    """Bottom-right causal, differentiable in every way."""
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
    scores = q.transpose(1, 2) @ k.transpose(1, 2).mT / q.shape[3] ** 0.5
    scores = (scores if bias is None else scores + bias).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2)


def by_fulmen(q, k, v, bias=None):
    return fulmen.attention(q, k, v, bias=bias, causal=True)


def close(ours, theirs):
    ours, theirs = (t if isinstance(t, tuple) else (t,) for t in (ours, theirs))
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.detach(), b.detach(), "fp32")


def test_numpy_booleans_go_through_the_dispatcher():
    q = randn(1, 5, 2, 8)

    def gradient(**options):
        return grad(lambda x: fulmen.attention(x, x, x, **options).square().sum())(q)

    expected = gradient(causal=True, deterministic=True)
    torch.testing.assert_close(
        gradient(causal=np.bool_(True), deterministic=np.bool_(True)), expected, rtol=0, atol=0
    )
    assert not torch.equal(gradient(causal=np.bool_(False)), expected)


def test_opcheck():
    q, k, v = qkv(requires_grad=True)
    bias, sinks = randn(1, 2, 1, 9, requires_grad=True), randn(2, requires_grad=True)
    arguments = (q, k, v, bias, torch.rand(7, 9) < 0.9, torch.rand(2), sinks, *OPTIONS)
    torch.library.opcheck(torch.ops.fulmen.attention.default, (*arguments, True))
    torch.library.opcheck(
        torch.ops.fulmen.attention.default,
        (*(t.detach() if isinstance(t, torch.Tensor) else t for t in arguments), False),
    )
    out, lse = torch.ops.fulmen.attention(*arguments, True)
    dropped = (*arguments[:7], torch.tensor([1, 2]), *OPTIONS[1:6], 0.5, *OPTIONS[7:])
    torch.library.opcheck(torch.ops.fulmen.attention.default, (*dropped, True))
    detached = [
        t.detach() if isinstance(t, torch.Tensor) else t
        for t in (*arguments, out, lse, randn(out.shape), None, 0b11111)
    ]
    torch.library.opcheck(torch.ops.fulmen.attention_backward.default, tuple(detached))
    torch.library.opcheck(
        torch.ops.fulmen.attention_backward.default, (*detached[:-2], randn(lse.shape), 0b00101)
    )


def graphs():
    """A backend of torch.compile that keeps what it is given, and runs it as it is."""
    seen = []

    def backend(module, _inputs):
        seen.append(module)
        return module

    return seen, backend


def has_op(module, name="fulmen.attention"):
    return any(name in str(node.target) for node in module.graph.nodes)


def test_compile_with_dynamic_shapes():
    seen, backend = graphs()
    compiled = torch.compile(by_fulmen, fullgraph=True, dynamic=True, backend=backend)
    for sq, sk in ((5, 9), (6, 11), (17, 23)):  # equal sizes would become one symbol
        q, k, v = qkv(sq=sq, sk=sk)
        close(compiled(q, k, v), by_torch(q, k, v))
    assert len(seen) == 1 and has_op(seen[0])


def test_compile_trains_by_inductor():
    def step(function, q, k, v, bias):
        return torch.autograd.grad((function(q, k, v, bias) * 2).sin().sum(), (q, k, v, bias))

    compiled = torch.compile(
        lambda q, k, v, b: fulmen.attention(q * 1.5, k, v.relu(), bias=b, causal=True) + 1,
        fullgraph=True,
        dynamic=True,
    )
    for size in (9, 12):
        q, k, v = qkv(sq=size, sk=size + 1, requires_grad=True)
        bias = randn(2, 1, size, size + 1, requires_grad=True)
        expected = step(lambda q, k, v, b: by_torch(q * 1.5, k, v.relu(), b) + 1, q, k, v, bias)
        close(step(compiled, q, k, v, bias), expected)


@pytest.mark.parametrize("way", ["dispatched", "compiled", "grad"])
def test_gradients_are_computed_where_they_are_needed(way, monkeypatch):
    """The kernels are asked for no gradient but of what requires it: autograd would drop the
    others."""
    needed = []
    backward = fulmen.torch._ops.core_backward
    monkeypatch.setattr(
        fulmen.torch._ops, "core_backward", lambda *args: needed.append(args[-1]) or backward(*args)
    )

    def loss(q, k, v, bias, sinks):
        return fulmen.attention(q, k, v, bias=bias, sinks=sinks, causal=True).sum()

    tensors = (*qkv(), randn(2, 1, 7, 9), randn(2))
    for wanted in ({0}, {1}, {2}, {3}, {4}, {0, 3}, {1, 2, 4}, set(range(5))):
        if way == "grad":
            grad(loss, tuple(wanted))(*tensors)
        else:
            torch._dynamo.reset()
            function = (
                torch.compile(loss, fullgraph=True, backend="aot_eager")
                if way == "compiled"
                else loss
            )
            leaves = [t.clone().requires_grad_(at in wanted) for at, t in enumerate(tensors)]
            with torch.autocast("cpu", enabled=way == "dispatched", dtype=torch.bfloat16):
                out = function(*leaves)
            out.backward()
        assert needed == [sum(1 << at for at in wanted)], (wanted, needed)
        needed.clear()


def test_compile_keeps_strides():
    def function(x, w):
        q, k, v = (x @ w).unflatten(-1, (3, 2, 8)).unbind(-3)
        return fulmen.attention(q, k, v, layout="bshd", causal=True).flatten(-2)

    x, w = randn(2, 7, 16), randn(16, 48)
    close(torch.compile(function, fullgraph=True)(x, w), function(x, w))


def test_compile_with_dropout():
    attn = fulmen.torch.FlashAttention(attention_dropout=0.5)
    seen, backend = graphs()
    compiled = torch.compile(lambda q, k, v: attn(q, k, v), fullgraph=True, backend=backend)
    q, k, v = qkv()
    torch.manual_seed(1)
    first, second = compiled(q, k, v), compiled(q, k, v)
    torch.manual_seed(1)
    assert torch.equal(compiled(q, k, v), first) and not torch.equal(first, second)
    assert len(seen) == 1


def test_compiled_sdpa_is_routed():
    q, k, v = (randn(2, 2, 7, 8) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def in_block(q, k, v):
        with fulmen.torch.sdpa():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    for function in (
        in_block,
        lambda q, k, v: fulmen.torch.scaled_dot_product_attention(q, k, v, is_causal=True),
    ):
        seen, backend = graphs()
        close(torch.compile(function, fullgraph=True, backend=backend)(q, k, v), expected)
        assert has_op(seen[0])
    fulmen.torch.enable_sdpa()
    try:
        seen, backend = graphs()
        compiled = torch.compile(
            lambda *t: F.scaled_dot_product_attention(*t, is_causal=True),
            fullgraph=True,
            backend=backend,
        )
        close(compiled(q, k, v), expected)
        assert has_op(seen[0])
    finally:
        fulmen.torch.disable_sdpa()


def test_export():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return by_fulmen(q, k, v)

    q, k, v = qkv()
    program = torch.export.export(Model(), (q, k, v))
    assert has_op(program.graph_module)
    close(program.module()(q, k, v), by_torch(q, k, v))


class TorchsOwn(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q * 1.5, k, v, is_causal=True) + 1


@pytest.fixture
def exported():
    """A program of any length, of a module that calls torch's function."""
    length = torch.export.Dim("length", min=2, max=512)
    fulmen.torch.enable_sdpa()
    try:
        tensors = torch.randn(3, 2, 4, 20, 32).unbind(0)
        return torch.export.export(TorchsOwn(), tensors, dynamic_shapes=({2: length},) * 3)
    finally:
        fulmen.torch.disable_sdpa()


def test_export_of_torchs_own_function(exported, tmp_path):
    assert has_op(exported.graph_module)
    torch.export.save(exported, tmp_path / "program.pt2")
    program = torch.export.load(tmp_path / "program.pt2").module()
    tensors = torch.randn(3, 2, 4, 33, 32).unbind(0)
    close(program(*tensors), TorchsOwn()(*tensors))


@pytest.mark.long
def test_aot_inductor(exported, tmp_path):
    """In this process, and in one without Python, whose operators are those of
    integrations/aot_inductor."""
    package = torch._inductor.aoti_compile_and_package(
        exported, package_path=str(tmp_path / "program.pt2")
    )
    tensors = torch.randn(3, 2, 4, 33, 32).unbind(0)
    expected = TorchsOwn()(*tensors)
    close(torch._inductor.aoti_load_package(package)(*tensors), expected)

    (fulmens,) = Path(fulmen.__file__).parent.glob("libfulmen.so*")
    includes = [*cpp_extension.include_paths(), f"{ROOT}/include"]
    (libraries,) = cpp_extension.library_paths()
    command = ["c++", "-std=c++20", "-O1", *(f"-isystem{path}" for path in includes), "-Wall"]
    link = [f"-L{libraries}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}"]
    operators, program = tmp_path / "operators.so", tmp_path / "program"
    of_fulmen = [fulmens, f"-Wl,-rpath,{fulmens.parent}"]
    source = ROOT / "integrations/aot_inductor/fulmen_ops.cpp"
    shared = [*command, "-Werror", "-fPIC", "-shared", source, *link, *of_fulmen, "-o", operators]
    subprocess.run(shared, check=True)
    subprocess.run(
        [*command, source.with_name("run_package.cpp"), *link, "-o", program], check=True
    )
    torch.save(list(tensors), tmp_path / "inputs")
    # The package's own library needs libtorch by its name.
    environment = {"LD_LIBRARY_PATH": libraries, "TMPDIR": str(tmp_path)}
    arguments = [operators, package, tmp_path / "inputs", tmp_path / "output"]
    subprocess.run([program, *arguments], check=True, env=environment)
    out = np.fromfile(tmp_path / "output", np.float32)
    close(torch.from_numpy(out).view(expected.shape), expected)


def test_vmap():
    q, k, v = qkv(3)
    close(vmap(by_fulmen)(q, k, v), vmap(by_torch)(q, k, v))
    mixed = (q.movedim(0, 2), k[0], v)
    close(
        vmap(by_fulmen, in_dims=(2, None, 0), out_dims=1)(*mixed),
        vmap(by_torch, in_dims=(2, None, 0), out_dims=1)(*mixed),
    )
    for bias, dim in (
        (randn(3, 2, 1, 9), 0),
        (randn(2, 2, 7, 9), None),
        (randn(2, 1, 9), None),
        (randn(7, 9, 3), 2),
    ):
        close(
            vmap(by_fulmen, in_dims=(0, 0, 0, dim))(q, k, v, bias),
            vmap(by_torch, in_dims=(0, 0, 0, dim))(q, k, v, bias),
        )
    slopes, sinks = torch.rand(3, 2), randn(3, 2)
    mapped = vmap(
        lambda q, k, v, a, s: fulmen.attention(q, k, v, alibi_slopes=a, sinks=s, return_lse=True)
    )(q, k, v, slopes, sinks)
    for n in range(3):
        alone = fulmen.attention(
            q[n], k[n], v[n], alibi_slopes=slopes[n], sinks=sinks[n], return_lse=True
        )
        close((mapped[0][n], mapped[1][n]), alone)
    slopes = torch.rand(2, 2)
    mapped = vmap(
        lambda q, k, v, a: fulmen.attention(q, k, v, alibi_slopes=a), in_dims=(0, 0, 0, None)
    )(q, k, v, slopes)
    close(mapped[1], fulmen.attention(q[1], k[1], v[1], alibi_slopes=slopes))
    nested = vmap(vmap(by_fulmen))(*(t.unflatten(0, (3, 1)) for t in (q, k, v)))
    close(nested[:, 0], vmap(by_torch)(q, k, v))


def test_vmap_of_dropout_is_a_loop():
    q, k, v = qkv(3)

    def dropped(q, k, v):
        return fulmen.attention(q, k, v, dropout=0.5, dropout_seed=7)

    def loss(q, k, v):
        return dropped(q, k, v).square().sum()

    each = list(zip(q, k, v, strict=True))
    close(vmap(dropped)(q, k, v), torch.stack([dropped(*one) for one in each]))
    close(vmap(grad(loss))(q, k, v), torch.stack([grad(loss)(*one) for one in each]))
    same = (t[:1].expand_as(t) for t in (q, k, v))
    out = vmap(lambda q, k, v: fulmen.attention(q, k, v, dropout=0.5), randomness="same")(*same)
    assert torch.equal(out[0], out[1]) and torch.equal(out[0], out[2])


def test_forward_mode_is_refused():
    q, k, v = qkv()
    with forward_ad.dual_level():
        assert fulmen.attention(q, k, v).shape == q.shape
        for at, name in enumerate("qkv"):
            tensors = [
                forward_ad.make_dual(t, t) if n == at else t for n, t in enumerate((q, k, v))
            ]
            with pytest.raises(
                NotImplementedError,
                match=f"{name} has a tangent: fulmen.attention has no derivative by forward mode",
            ):
                fulmen.attention(*tensors)


def test_errors_name_the_argument():
    q, k, v = qkv()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(TypeError, match="k is of type ndarray: a torch tensor is needed"):
            fulmen.attention(q, k.numpy(), v)
        with pytest.raises(TypeError, match="bias is of type float: a torch tensor is needed"):
            fulmen.attention(q, k, v, bias=1.0)
        with pytest.raises(
            ValueError, match=r"out has shape \[4, 7, 2, 8\]: \[1, 7, 2, 8\] is needed"
        ):
            fulmen.attention(q[:1], k[:1], v[:1], out=torch.empty(4, 7, 2, 8))


@pytest.mark.filterwarnings("ignore:.*jit.trace.*")
def test_trace():
    """torch.jit.trace compares its recording with a second trace, without gradients."""
    q, k, v = qkv()
    traced = torch.jit.trace(lambda q, k, v: fulmen.attention(q, k, v, causal=True), (q, k, v))
    close(traced(2 * q, k, v), fulmen.attention(2 * q, k, v, causal=True))


def test_func_gradients():
    def loss(function, by):
        return grad(lambda *t: function(*t).square().sum(), argnums=by)

    q, k, v = (t[0] for t in qkv(1))
    bias = randn(2, 1, 7, 9)
    close(loss(by_fulmen, (0, 1, 2, 3))(q, k, v, bias), loss(by_torch, (0, 1, 2, 3))(q, k, v, bias))
    batched = qkv(3)
    close(vmap(loss(by_fulmen, (0, 1, 2)))(*batched), vmap(loss(by_torch, (0, 1, 2)))(*batched))
    dims = (0, 0, 0, None)
    close(
        vmap(loss(by_fulmen, (0, 3)), dims)(*batched, bias),
        vmap(loss(by_torch, (0, 3)), dims)(*batched, bias),
    )
    close(vjp(by_fulmen, q, k, v)[1](q), vjp(by_torch, q, k, v)[1](q))
    small = [t[:1, :3, :1, :4] for t in (q, k, v)]
    close(jacrev(by_fulmen, (0, 1, 2))(*small), jacrev(by_torch, (0, 1, 2))(*small))
    with pytest.raises(RuntimeError, match="no second derivative"):
        grad(lambda q: grad(lambda q: by_fulmen(q, k, v).square().sum())(q).sum())(q)
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(lambda q: by_fulmen(q, k, v), (q,), (q,))


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast(compiled):
    function = (
        torch.compile(by_fulmen, fullgraph=True, backend="aot_eager") if compiled else by_fulmen
    )
    q, k, v = qkv(requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = function(q, k.detach().bfloat16(), v)
    assert out.dtype == torch.bfloat16
    assert_close(
        out.detach().double(),
        by_torch(*(t.detach().bfloat16().double() for t in (q, k, v))),
        "bf16",
    )
    out.float().square().sum().backward()
    assert q.grad.dtype == torch.float32 and v.grad.abs().max() > 0
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert function(q, k, v).dtype == torch.float32


def test_meta_and_fake():
    q, k, v = (t.to("meta") for t in qkv())
    out, lse = fulmen.attention(q, k, v[..., :3], return_lse=True)
    assert out.device.type == "meta" and out.shape == (2, 7, 2, 3) and lse.shape == (2, 2, 7)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = [mode.from_tensor(t) for t in qkv()]
        assert fulmen.attention(*fake, layout="bhsd").shape == fake[0].shape


def left_behind(*tensors, depth=1):
    """Tensors of a transform's function, after the transform has ended."""
    left = list(tensors)

    def take(x, *seen):
        left[:] = seen
        return x.sum()

    for _ in range(depth):
        torch.func.grad(take)(randn(2), *left)
    return left


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("gradients", [True, False])
def test_tensors_that_a_transform_has_left_behind(gradients, depth):
    q, k, v = qkv()
    keep_mask = torch.rand(2, 1, 7, 9) < 0.8
    left = left_behind(q, k, v, keep_mask, depth=depth)
    torch.func.grad(lambda x: left.append(x) or x.sum())(q)  # one that required grad
    expected = fulmen.attention(q, k, v, keep_mask=keep_mask)
    with torch.set_grad_enabled(gradients):
        for first in (left[0], left[-1]):
            close(fulmen.attention(first, *left[1:3], keep_mask=left[3]), expected)
        out = torch.empty_like(q)
        fulmen.attention(q, *left[1:3], keep_mask=keep_mask, out=left_behind(out, depth=depth)[0])
        close(out, expected)
        assert out._version == 1


def routed(*tensors):
    with fulmen.torch.sdpa():
        return F.scaled_dot_product_attention(*tensors)


@pytest.mark.parametrize("function", [fulmen.torch.scaled_dot_product_attention, routed])
def test_transforms_of_a_mask(function):
    q, k, v = (randn(2, 3, 5, 8) for _ in range(3))
    by_torch = F.scaled_dot_product_attention
    for masks in (randn(4, 5, 5), torch.rand(4, 5, 5) < 0.7):
        expected = torch.stack([by_torch(q, k, v, mask) for mask in masks])
        close(vmap(lambda mask: function(q, k, v, mask))(masks), expected)
        left = left_behind(masks[0])[0]
        close(function(q, k, v, left), expected[0])
        leaf = q.clone().requires_grad_()
        assert torch.autograd.grad(function(leaf, k, v, left).sum(), leaf)[0].abs().max() > 0
        with torch.no_grad():
            close(function(leaf, k, v, left), expected[0])
    mask = randn(5, 5)
    close(
        *(
            grad(lambda mask, by=by: by(q, k, v, mask).square().sum())(mask)
            for by in (function, by_torch)
        )
    )


def test_compiled_autograd():
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    q, k, v = qkv(requires_grad=True)
    expected = torch.autograd.grad(by_fulmen(q, k, v).square().sum(), (q, k, v))
    with compiled_autograd._enable(torch.compile(backend="eager")):
        by_fulmen(q, k, v).square().sum().backward()
    for leaf, gradient in zip((q, k, v), expected, strict=True):
        assert torch.equal(leaf.grad, gradient)
