"""FLASH_ATTENTION_VERIFY=1: every function that computes attention says PASSED, with what was
compared."""

import re

import fulmen
import numpy as np
import pytest
from problems import qkv

LINE = re.compile(
    r"fulmen: PASSED (?P<tensors>[\w, ]+) of (?P<kernel>cpu\.[\w.]+) on cpu, .*: (?P<elements>\d+) "
    r"elements, worst error [\d.e-]+ \(\w+, [\d.e-]+ is allowed there\), mean error [\d.e-]+"
)


@pytest.fixture
def passed(monkeypatch, capfd):
    """(tensors, elements) of each line since the last call."""
    monkeypatch.setenv("FLASH_ATTENTION_VERIFY", "1")

    def lines():
        found = [
            LINE.fullmatch(line)
            for line in capfd.readouterr().err.splitlines()
            if line.startswith("fulmen: ")
        ]
        assert all(found), found
        return [(one["tensors"], int(one["elements"])) for one in found]

    return lines


def test_numpy(rng, passed, monkeypatch):
    q, k, v = qkv(rng)
    out, lse = fulmen.attention(q, k, v, causal=True, return_lse=True)
    assert passed() == [("out", out.size)]
    fulmen.attention_backward(out, q, k, v, out, lse, causal=True)
    assert passed() == [("dq, dk, dv", q.size + k.size + v.size)]
    monkeypatch.setenv("FLASH_ATTENTION_VERIFY", "0")
    fulmen.attention(q, k, v, causal=True)
    assert passed() == []


def test_reports_say_how_much(rng):
    q, k, v = qkv(rng)
    out = fulmen.attention(q, k, v)
    exact = fulmen.attention_reference(q, k, v)
    report = fulmen.verify(q, k, v, out)
    assert report.elements == out.size
    np.testing.assert_allclose(
        report.mean_error, np.abs(out.astype(np.float64) - exact).mean(), rtol=1e-6
    )


def test_jax(rng, passed):
    jax = pytest.importorskip("jax")
    q, k, v = map(jax.numpy.asarray, qkv(rng))
    jax.block_until_ready(jax.jit(fulmen.attention)(q, k, v))
    assert passed() == [("out", q.size)]
    jax.block_until_ready(jax.grad(lambda q: fulmen.attention(q, k, v).sum())(q))
    assert [tensors for tensors, _ in passed()] == ["out", "dq"]


def torch_calls():
    """Name, what is called with q, k, v of [batch, seqlen, heads, dim], which all have as many
    heads."""

    def heads_first(call):
        return lambda q, k, v: call(*(t.transpose(1, 2) for t in (q, k, v)))

    def routed(q, k, v):
        import fulmen.torch
        import torch

        with fulmen.torch.sdpa():
            return torch.nn.functional.scaled_dot_product_attention(
                *(t.transpose(1, 2) for t in (q, k, v))
            )

    def module(q, k, v):
        import fulmen.torch

        return fulmen.torch.FlashAttention()(q, k, v, causal=True)

    def sdpa(q, k, v):
        import fulmen.torch

        return fulmen.torch.scaled_dot_product_attention(q, k, v)

    def varlen(q, k, v):
        import fulmen.flash_attn
        import torch

        lengths = torch.tensor([0, q.shape[1]], dtype=torch.int32)
        return fulmen.flash_attn.flash_attn_varlen_func(
            q[0], k[0], v[0], lengths, lengths, q.shape[1], q.shape[1]
        )

    def cached(q, k, v):
        import fulmen.flash_attn

        return fulmen.flash_attn.flash_attn_with_kvcache(q[:, :1], k, v)

    def third(q, k, v):
        import fulmen.flash_attn_interface

        return fulmen.flash_attn_interface.flash_attn_func(q, k, v)

    def second(q, k, v):
        import fulmen.flash_attn

        return fulmen.flash_attn.flash_attn_func(q, k, v)

    def xformers(q, k, v):
        import fulmen.xformers

        return fulmen.xformers.memory_efficient_attention(q, k, v)

    def transformers(q, k, v):
        pytest.importorskip("transformers")
        import fulmen.transformers
        import torch

        return fulmen.transformers.attention_forward(torch.nn.Identity(), q, k, v, None)

    return {
        "attention": fulmen.attention,
        "module": module,
        "sdpa": heads_first(sdpa),
        "routed": routed,
        "flash_attn": second,
        "varlen": varlen,
        "kvcache": cached,
        "flash_attn_interface": third,
        "xformers": xformers,
        "transformers": heads_first(transformers),
    }


@pytest.mark.parametrize("name", list(torch_calls()))
def test_torch(rng, passed, name):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(t) for t in qkv(rng, {"b": 1, "sq": 9, "sk": 9, "hq": 2, "hkv": 2}))
    call = torch_calls()[name]
    out = call(q, k, v)
    out = out[0] if isinstance(out, tuple) else out
    assert passed() == [("out", out.numel())]
    if name == "kvcache":  # without gradients, as in flash_attn
        return
    q.requires_grad_()
    out = call(q, k, v)
    (out[0] if isinstance(out, tuple) else out).sum().backward()
    assert [tensors.split(", ")[0] for tensors, _ in passed()] == ["out", "dq"]
