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


def test_an_installed_package(monkeypatch):
    """Its functions are replaced where they are, and put back."""
    for name in ("cuequivariance_torch", "cuequivariance_torch.primitives", TRIANGLE):
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.triangle_attention, module.triangle_multiplicative_update = "theirs", "its own"
        monkeypatch.setitem(sys.modules, name, module)
    module = sys.modules[TRIANGLE]
    install_cuequivariance()
    assert module.triangle_attention is fulmen.torch.triangle_attention
    assert module.triangle_multiplicative_update == "its own"
    uninstall_cuequivariance()
    uninstall_cuequivariance()
    assert module.triangle_attention == "theirs"
    if importlib.util.find_spec("cuequivariance_ops_torch") is None:
        install_cuequivariance(stand_in=True)
        assert callable(module.triangle_multiplicative_update)
        uninstall_cuequivariance()
        assert module.triangle_multiplicative_update == "its own"


@pytest.mark.skipif(not WITHOUT, reason="cuequivariance_torch is installed")
@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
def test_multiplicative_update(direction):
    """Beside loops over i, j and k in float64."""
    install_cuequivariance(stand_in=True)
    from cuequivariance_torch.primitives.triangle import triangle_multiplicative_update

    n, c, d = 4, 3, 5
    x, mask = torch.randn(n, n, c), (torch.rand(n, n) < 0.7).float()
    shapes = {"p_in": (2 * d, c), "g_in": (2 * d, c), "p_out": (c, d), "g_out": (c, c)}
    w = {name: torch.randn(shape) for name, shape in shapes.items()}
    norms = {"norm_in_weight": torch.randn(c), "norm_out_bias": torch.randn(d)}
    given = {**{f"{name}_weight": one for name, one in w.items()}, **norms}
    out = triangle_multiplicative_update(x, direction, mask, **given)

    def norm(row, weight, bias):
        row = row - row.mean(-1, keepdim=True)
        row = row / (row.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return row * weight + bias

    w = {name: one.double().T for name, one in w.items()}
    y = norm(x.double(), norms["norm_in_weight"].double(), 0)
    ab = mask.double()[..., None] * (y @ w["p_in"]) * (y @ w["g_in"]).sigmoid()
    a, b = ab[..., :d], ab[..., d:]
    t = torch.zeros(n, n, d, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            for k in range(n):
                t[i, j] += a[i, k] * b[j, k] if direction == "outgoing" else a[k, i] * b[k, j]
    gate = (y @ w["g_out"]).sigmoid()
    expected = (norm(t, 1, norms["norm_out_bias"].double()) @ w["p_out"]) * gate
    assert (out.double() - expected).abs().max() <= 1e-4 * expected.abs().max()
    with pytest.raises(ValueError, match=r"^direction is 'up': "):
        triangle_multiplicative_update(x, "up", mask, **given)
    with pytest.raises(TypeError, match=r"^p_in_weight is None: a tensor is needed"):
        triangle_multiplicative_update(x)


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
