"""cuequivariance_torch by Fulmen: the switch, and the package boltz on it beside its own layers."""

import importlib.util
import sys
import types

import fulmen.torch
import pytest
import torch
from fulmen.torch import install_cuequivariance, uninstall_cuequivariance
from problems import SEED

WITHOUT = importlib.util.find_spec("cuequivariance_torch") is None
TRIANGLE = "cuequivariance_torch.primitives.triangle"


@pytest.fixture(autouse=True)
def _afterwards():
    torch.manual_seed(SEED)
    yield
    uninstall_cuequivariance()


@pytest.mark.skipif(not WITHOUT, reason="cuequivariance_torch is installed")
def test_stand_in():
    with pytest.raises(
        RuntimeError, match=r"not installed: install_cuequivariance\(stand_in=True\)"
    ):
        install_cuequivariance()
    for _ in range(2):
        install_cuequivariance(stand_in=True)
    import cuequivariance_torch
    from cuequivariance_torch.primitives.triangle import triangle_attention

    assert triangle_attention is cuequivariance_torch.triangle_attention
    assert triangle_attention is fulmen.torch.triangle_attention
    assert importlib.util.find_spec(TRIANGLE) is not None
    uninstall_cuequivariance()
    assert importlib.util.find_spec("cuequivariance_torch") is None
    with pytest.raises(ImportError):
        importlib.import_module("cuequivariance_torch")


@pytest.mark.skipif(not WITHOUT, reason="cuequivariance_torch is installed")
def test_names_of_the_stand_in():
    install_cuequivariance(stand_in=True)
    import cuequivariance_torch
    from cuequivariance_torch import TriMulPrecision, mask_to_kv_lengths

    assert cuequivariance_torch.__version__ == "0.13.0"
    assert TriMulPrecision.IEEE == 3 and TriMulPrecision.NONE == -1
    assert not hasattr(cuequivariance_torch, "attention_pair_bias")
    for module in (cuequivariance_torch, cuequivariance_torch.primitives):
        with pytest.raises(AttributeError, match=r"stand-in of fulmen\.torch\..*TriMulPrecision"):
            module.SegmentedPolynomial  # noqa: B018
    with pytest.raises(ImportError, match=r"stand-in of fulmen\.torch\.install_cuequivariance"):
        from cuequivariance_torch import SegmentedPolynomial  # noqa: F401

    mask = torch.arange(5) < torch.tensor([2, 0, 5]).reshape(1, 3, 1, 1, 1)
    for given in (mask, mask[0], mask.float()):
        lengths = mask_to_kv_lengths(given)
        assert lengths.dtype == torch.int32 and lengths.shape == (1, 3, 1, 1, 1)
        assert lengths.flatten().tolist() == [2, 0, 5]
    with pytest.raises(ValueError, match=r"^mask keeps a key behind one"):
        mask_to_kv_lengths(~mask)
    with pytest.raises(ValueError, match=r"^mask has shape \[3, 5\]: \[B, N, 1, 1, K\]"):
        mask_to_kv_lengths(mask[0, :, 0, 0])
    with pytest.raises(ValueError, match=r"^mask has 6 dims: 5 are"):
        mask_to_kv_lengths(mask[None])


PACKAGE = ("cuequivariance_torch", "cuequivariance_torch.primitives", TRIANGLE)


def _an_installed_package(monkeypatch, names=PACKAGE, spec=True):
    for name in names:
        module = types.ModuleType(name)
        module.__spec__ = (
            importlib.machinery.ModuleSpec(name, None, is_package=True) if spec else None
        )
        module.triangle_attention, module.triangle_multiplicative_update = "theirs", "its own"
        monkeypatch.setitem(sys.modules, name, module)
    return [sys.modules[name] for name in names]


@pytest.mark.parametrize("spec", [True, False])
def test_an_installed_package(monkeypatch, spec):
    """Its functions are replaced wherever they are, and put back."""
    modules = _an_installed_package(monkeypatch, spec=spec)
    install_cuequivariance()
    for module in modules:
        assert module.triangle_attention is fulmen.torch.triangle_attention
        assert module.triangle_multiplicative_update == "its own"
    uninstall_cuequivariance()
    uninstall_cuequivariance()
    assert all(module.triangle_attention == "theirs" for module in modules)


@pytest.mark.skipif(
    importlib.util.find_spec("cuequivariance_ops_torch") is not None,
    reason="cuequivariance_ops_torch is installed",
)
@pytest.mark.parametrize("before", [[], [False], [True], [False, True]])
def test_an_installed_package_without_kernels(monkeypatch, before):
    """stand_in=True counts after a call without it, too."""
    modules = _an_installed_package(monkeypatch)
    for stand_in in before:
        install_cuequivariance(stand_in)
    install_cuequivariance(stand_in=True)
    for module in modules:
        assert module.triangle_attention is fulmen.torch.triangle_attention
        assert callable(module.triangle_multiplicative_update)
    uninstall_cuequivariance()
    for module in modules:
        assert module.triangle_attention == "theirs"
        assert module.triangle_multiplicative_update == "its own"


def test_errors_of_install(monkeypatch):
    with pytest.raises(TypeError, match=r"^stand_in is 'no', of type str: True or False"):
        install_cuequivariance(stand_in="no")
    for name in PACKAGE:
        monkeypatch.delitem(sys.modules, name, raising=False)
    _an_installed_package(monkeypatch, PACKAGE[:1], spec=False)
    with pytest.raises(RuntimeError, match=f"has no module {TRIANGLE}: a release that has it"):
        install_cuequivariance()


def _update():
    install_cuequivariance(stand_in=True)
    from cuequivariance_torch.primitives.triangle import triangle_multiplicative_update

    return triangle_multiplicative_update


def _arguments_of_update(n=4, c=3, d=5, biases=True):
    shapes = {"p_in": (2 * d, c), "g_in": (2 * d, c), "p_out": (c, d), "g_out": (c, c)}
    given = {f"{name}_weight": torch.randn(shape) for name, shape in shapes.items()}
    given |= {"norm_in_weight": torch.randn(c), "norm_out_bias": torch.randn(d)}
    if biases:
        given |= {"norm_in_bias": torch.randn(c), "norm_out_weight": torch.randn(d)}
        given |= {f"{name}_bias": torch.randn(shape[0]) for name, shape in shapes.items()}
    return given


def _update_in_float64(x, direction, mask, given, eps):
    """By loops over i, j and k, of [B, N, N, C]."""
    w = {name: one.double() for name, one in given.items()}

    def norm(row, name):
        row = row - row.mean(-1, keepdim=True)
        row = row / (row.square().mean(-1, keepdim=True) + eps).sqrt()
        return row * w.get(f"{name}_weight", 1) + w.get(f"{name}_bias", 0)

    def linear(row, name):
        return row @ w[f"{name}_weight"].T + w.get(f"{name}_bias", 0)

    y = norm(x.double(), "norm_in")
    ab = mask.double()[..., None] * linear(y, "p_in") * linear(y, "g_in").sigmoid()
    a, b = ab.chunk(2, -1)
    t = torch.zeros_like(a)
    n = x.shape[-2]
    for i in range(n):
        for j in range(n):
            for k in range(n):
                pair = (
                    (a[:, i, k], b[:, j, k])
                    if direction == "outgoing"
                    else (a[:, k, i], b[:, k, j])
                )
                t[:, i, j] += pair[0] * pair[1]
    return linear(norm(t, "norm_out"), "p_out") * linear(y, "g_out").sigmoid()


@pytest.mark.skipif(not WITHOUT, reason="cuequivariance_torch is installed")
@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
@pytest.mark.parametrize("biases", [False, True])
def test_multiplicative_update(direction, biases):
    update = _update()
    x, mask = torch.randn(2, 4, 4, 3), (torch.rand(2, 4, 4) < 0.7).float()
    given = _arguments_of_update(biases=biases)
    pairs = [(x[at], direction, mask[at]) for at in range(2)]
    for eps in (1e-5, 0.3):
        expected = _update_in_float64(x, direction, mask, given, eps)
        found = [update(x, direction, mask, **given, eps=eps)]
        found += [update(x[None], direction, mask[None], **given, eps=eps)[0]]
        found += [torch.stack([update(*one, **given, eps=eps) for one in pairs])]
        for out in found:
            error = (out.double() - expected).abs().max()
            assert error <= 1e-4 * expected.abs().max(), f"{SEED=}"


@pytest.mark.skipif(not WITHOUT, reason="cuequivariance_torch is installed")
def test_dtypes_of_multiplicative_update():
    """bfloat16 by its own numbers, by precision and by autocast, beside float64."""
    update = _update()
    x, mask = torch.randn(2, 8, 8, 16), torch.rand(2, 8, 8) < 0.7
    given = _arguments_of_update(8, 16, 32)
    low = torch.bfloat16
    rounded = {name: one.to(low) for name, one in given.items()}
    exact = _update_in_float64(x.to(low), "outgoing", mask, rounded, 1e-5)
    # Eight roundings to bfloat16, as assert_close allows.
    bound = 8 * 2.0**-8 * exact.abs().max()
    mixed = update(x.to(low), "outgoing", mask, **given)
    assert mixed.dtype == low and (mixed.double() - exact).abs().max() <= bound
    by_precision = update(x, "outgoing", mask, **given, precision="bfloat16")
    assert by_precision.dtype == torch.float32 and torch.equal(by_precision, mixed.float())
    with torch.autocast("cpu", dtype=low):
        out = update(x, "outgoing", mask, **given)
    assert out.dtype == torch.float32 and (out.double() - exact).abs().max() <= bound
    plain = update(x, "outgoing", mask, **given)
    from cuequivariance_torch import TriMulPrecision

    for precision in (None, *TriMulPrecision):
        assert torch.equal(update(x, "outgoing", mask, **given, precision=precision), plain)


@pytest.mark.skipif(not WITHOUT, reason="cuequivariance_torch is installed")
def test_errors_of_multiplicative_update():
    update, given = _update(), _arguments_of_update()
    x = torch.randn(4, 4, 3)

    def refuse(error, message, **other):
        with pytest.raises(error, match=message):
            update(**{"x": x, **given, **other})

    refuse(ValueError, r"^direction is 'up': ", direction="up")
    refuse(TypeError, r"^p_in_weight is None: a tensor is needed", p_in_weight=None)
    refuse(TypeError, r"^g_out_weight is None: a tensor is needed", g_out_weight=None)
    refuse(ValueError, r"^x has shape \[4, 3, 3\]: \[..., N, N, C\]", x=x[:, :3])
    refuse(ValueError, r"^x has shape \[4, 3\]: ", x=x[0])
    refuse(TypeError, r"^x has dtype int64: floats", x=x.long())
    refuse(ValueError, r"^mask has shape \[4\]: \[4, 4\] is", mask=torch.ones(4))
    refuse(ValueError, r"^mask is on meta, x on cpu", mask=torch.ones(4, 4, device="meta"))
    odd = torch.randn(9, 3)
    refuse(ValueError, r"^p_in_weight has shape \[9, 3\]: \[2 D, 3\]", p_in_weight=odd)
    refuse(ValueError, r"^g_in_weight has shape \[9, 3\]: \[10, 3\]", g_in_weight=odd)
    refuse(ValueError, r"^norm_out_bias has shape \[3\]: \[5\]", norm_out_bias=x[0, 0])
    refuse(ValueError, r"^precision is 'float8': None, ", precision="float8")


def _random_weights(module):
    """Weights of boltz's layers begin as zeros in places, which would hide all that is before."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return module


@pytest.mark.skipif(not WITHOUT, reason="cuequivariance_torch is installed")
@pytest.mark.parametrize("batch", [1, 2])
def test_pairformer_of_boltz(batch):
    """Two of its layers with random weights beside their own path without kernels."""
    reason = "boltz is not installed: pip install --no-deps boltz, and einops"
    pairformer = pytest.importorskip("boltz.model.layers.pairformer", reason=reason)
    n, token_s, token_z = 24, 32, 16
    make = lambda: pairformer.PairformerLayer(  # noqa: E731
        token_s, token_z, num_heads=4, pairwise_head_width=8, pairwise_num_heads=2, v2=True
    )
    layers = [_random_weights(make()).eval() for _ in range(2)]
    s, z = torch.randn(batch, n, token_s), torch.randn(batch, n, n, token_z)
    mask = torch.ones(batch, n)
    mask[-1, n - 5 :] = 0
    pair_mask = mask[:, :, None] * mask[:, None, :]

    def run(use_kernels):
        start = z.clone().requires_grad_()
        one_s, one_z = s, start
        for layer in layers:
            one_s, one_z = layer(one_s, one_z, mask, pair_mask, use_kernels=use_kernels)
        kept = one_z * pair_mask[..., None]  # padded rows have no result
        (gradient,) = torch.autograd.grad(kept.square().sum(), start)
        return one_s * mask[..., None], kept, gradient * pair_mask[..., None]

    expected = run(False)
    with pytest.raises(ImportError):
        run(True)
    install_cuequivariance(stand_in=True)
    for found, right in zip(run(True), expected, strict=True):
        assert (found - right).abs().max() <= 1e-4 * right.abs().max(), f"{SEED=}"


@pytest.mark.skipif(not WITHOUT, reason="cuequivariance_torch is installed")
def test_training_step_of_boltz():
    """The gradients of all inputs and parameters, with dropout, beside its own path."""
    reason = "boltz is not installed: pip install --no-deps boltz, and einops"
    pairformer = pytest.importorskip("boltz.model.layers.pairformer", reason=reason)
    n, token_s, token_z = 20, 32, 16
    layer = _random_weights(
        pairformer.PairformerLayer(
            token_s, token_z, num_heads=4, pairwise_head_width=8, pairwise_num_heads=2, v2=True
        )
    ).train()
    given = {"s": torch.randn(1, n, token_s), "z": torch.randn(1, n, n, token_z)}
    mask = torch.ones(1, n)
    mask[:, n - 3 :] = 0
    pair_mask = mask[:, :, None] * mask[:, None, :]
    # This bias is the same for all keys: its gradient is 0, but for rounding.
    weights = dict(layer.named_parameters())
    del weights["attention.proj_z.0.bias"]
    wanted = {**{name: x.requires_grad_() for name, x in given.items()}, **weights}

    def gradients(use_kernels):
        torch.manual_seed(SEED)
        s, z = layer(*given.values(), mask, pair_mask, use_kernels=use_kernels)
        loss = (s * mask[..., None]).square().sum() + (z * pair_mask[..., None]).square().sum()
        return torch.autograd.grad(loss, wanted.values())

    expected = gradients(False)
    install_cuequivariance(stand_in=True)
    for name, found, right in zip(wanted, gradients(True), expected, strict=True):
        assert right.abs().max() > 0
        assert (found - right).abs().max() <= 1e-4 * right.abs().max(), f"{name}, {SEED=}"
