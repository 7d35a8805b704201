"""Products in 8 bits: how far they are from float64, who may ask for them, and what else they leave
alone."""

import re

import fulmen
import numpy as np
import pytest
from problems import SEED

torch = pytest.importorskip("torch")
SHAPE = (2, 70, 3, 64)


def inputs():
    random = np.random.default_rng(SEED)
    return [random.standard_normal(SHAPE, dtype=np.float32) for _ in "qkv"]


def error_of(out, exact):
    return np.linalg.norm(np.asarray(out, np.float64) - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize(("precision", "most"), [("int8", 0.02), ("fp8", 0.32)])
@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_errors_are_those_of_8_bits(precision, most, of):
    q, k, v = inputs()
    k += 3  # the mean of the keys changes no probability
    exact = fulmen.attention_reference(q, k, v, causal=True)
    arrays = [of(x) for x in (q, k, v)]
    out = fulmen.attention(*arrays, causal=True, precision=precision, verify=True)
    assert type(out) is type(arrays[0])
    assert 1e-3 < error_of(out, exact) < most
    # A plan that was kept for exact products is another one.
    assert error_of(fulmen.attention(*arrays, causal=True), exact) < 1e-5


def test_explain_names_the_kernel():
    q, k, v = inputs()
    text = fulmen.explain(q, k, v, precision="int8")
    assert text.startswith("cpu.prefill_int8.") and "it has no products in int8" in text
    text = fulmen.explain(q, k, v, precision="fp8")
    assert text.startswith("cpu.standard.plain") and "it has no products in fp8" in text


def test_what_is_refused():
    q, k, v = (torch.from_numpy(x) for x in inputs())
    words = '"exact", "int8" or "fp8" is accepted'
    with pytest.raises(ValueError, match=f"precision is .*int4.*: {words}"):
        fulmen.attention(q, k, v, precision="int4")
    v.requires_grad_()
    words = "v requires a gradient: with precision='fp8' there is none, torch.no_grad() is accepted"
    with pytest.raises(NotImplementedError, match=re.escape(words)):
        fulmen.attention(q, k, v, precision="fp8")
    with torch.no_grad():
        assert fulmen.attention(q, k, v, precision="fp8").shape == SHAPE


def test_calls_that_torch_looks_on_are_refused():
    q, k, v = (torch.from_numpy(x) for x in inputs())
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(NotImplementedError, match="autocast"),
    ):
        fulmen.attention(q, k, v, precision="int8")
    slopes = torch.ones(3, requires_grad=True)
    with pytest.raises(NotImplementedError, match="alibi_slopes requires a gradient"):
        fulmen.attention(q, k, v, alibi_slopes=slopes, precision="int8")
    with pytest.raises(ValueError, match="dropout_seed is None"):
        fulmen.attention(q, k, v, dropout=0.1, precision="int8")


def test_jax_arrays_are_refused():
    jax = pytest.importorskip("jax")
    with pytest.raises(TypeError, match="a NumPy array or a torch tensor is accepted"):
        fulmen.attention(*(jax.numpy.asarray(x) for x in inputs()), precision="int8")
