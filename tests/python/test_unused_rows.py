"""Rows of packed results that belong to no sequence: zeros in everything that Python gets,
gradients included."""

import itertools

import fulmen
import numpy as np
import pytest
import torch
from fulmen.flash_attn import flash_attn_varlen_func
from problems import SEED
from torch_problems import attention_float64, close

HEADS, KV_HEADS, DIM, DIM_V = 4, 2, 16, 8
TOTAL_Q, TOTAL_K = 11, 14
# Rows 0, 1 and from 7 on of q, 0 to 2 and 12 and 13 of k belong to no sequence; one sequence has no
# query, one no key.
CU_Q, CU_K = [2, 5, 5, 7, 7], [3, 7, 9, 12, 12]
NOBODYS_Q, NOBODYS_K = [0, 1, 7, 8, 9, 10], [0, 1, 2, 12, 13]
LENGTHS = {"max_seqlen_q": 3, "max_seqlen_k": 4}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)


def packed():
    return (
        torch.randn(TOTAL_Q, HEADS, DIM),
        torch.randn(TOTAL_K, KV_HEADS, DIM),
        torch.randn(TOTAL_K, KV_HEADS, DIM_V),
        torch.randn(TOTAL_Q, HEADS, DIM_V),
        torch.randn(HEADS, TOTAL_Q),
    )


def expected(q, k, v, dout, dlse):
    """(out, lse, dq, dk, dv), each sequence by itself."""
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    out, lse = torch.zeros(TOTAL_Q, HEADS, DIM_V).double(), torch.zeros(HEADS, TOTAL_Q).double()
    loss = sum(leaf.sum() for leaf in leaves) * 0
    for (a, b), (c, d) in zip(itertools.pairwise(CU_Q), itertools.pairwise(CU_K), strict=True):
        if a == b:
            continue
        if c == d:
            lse[:, a:b] = -torch.inf
            continue
        one = [leaf[None, i:j] for leaf, i, j in zip(leaves, (a, c, c), (b, d, d), strict=True)]
        part, rows = attention_float64(*one)
        out[a:b], lse[:, a:b] = part[0].detach(), rows[0].detach()
        loss = loss + (part[0] * dout[a:b]).sum() + (rows[0] * dlse[:, a:b]).sum()
    return (out, lse, *torch.autograd.grad(loss, leaves))


def dirty():
    """Allocates and frees memory filled with NaN: the next new array holds it."""
    for _ in range(3):
        for shape in (
            (TOTAL_Q, HEADS, DIM),
            (TOTAL_K, KV_HEADS, DIM),
            (TOTAL_K, KV_HEADS, DIM_V),
            (TOTAL_Q, HEADS, DIM_V),
        ):
            kept = [np.full(shape, np.nan, np.float32) for _ in range(4)] + [
                torch.full(shape, torch.nan) for _ in range(4)
            ]
            kept += [np.full(shape, np.nan) for _ in range(4)] + [
                torch.full((HEADS, TOTAL_Q), torch.nan) for _ in range(4)
            ]
            del kept


def functions(arrays, bounds):
    q, k, v, dout, dlse = arrays
    options = {"cu_seqlens_q": bounds[0], "cu_seqlens_k": bounds[1], **LENGTHS}
    out, lse = fulmen.attention(q, k, v, return_lse=True, **options)
    gradients = fulmen.attention_backward(dout, q, k, v, out, lse, dlse=dlse, **options)[:3]
    return (out, lse, *gradients)


def references(arrays, bounds):
    q, k, v, dout, dlse = arrays
    options = {"cu_seqlens_q": bounds[0], "cu_seqlens_k": bounds[1], **LENGTHS}
    out, lse = fulmen.attention_reference(q, k, v, return_lse=True, **options)
    return (out, lse, *fulmen.attention_backward_reference(dout, q, k, v, dlse=dlse, **options)[:3])


def by_numpy(arrays):
    return functions([a.numpy() for a in arrays], [np.array(cu, np.int32) for cu in (CU_Q, CU_K)])


def by_references(arrays):
    return references([a.numpy() for a in arrays], [np.array(cu, np.int32) for cu in (CU_Q, CU_K)])


def tensors_of(cu=(CU_Q, CU_K)):
    return [torch.tensor(one, dtype=torch.int32) for one in cu]


def by_torch(arrays):
    return functions(arrays, tensors_of())


def by_autograd(arrays, attention=fulmen.attention):
    *leaves, dout, dlse = [a.clone().requires_grad_(at < 3) for at, a in enumerate(arrays)]
    bounds = tensors_of()
    out, lse = attention(
        *leaves, return_lse=True, cu_seqlens_q=bounds[0], cu_seqlens_k=bounds[1], **LENGTHS
    )
    return (out.detach(), lse.detach(), *torch.autograd.grad((out, lse), leaves, (dout, dlse)))


def by_dispatcher(arrays):
    return by_autograd(arrays, torch.compile(fulmen.attention, backend="aot_eager"))


def by_jax(arrays):
    jax = pytest.importorskip("jax")
    q, k, v, dout, dlse = (jax.numpy.asarray(a.numpy()) for a in arrays)
    bounds = [jax.numpy.asarray(cu, dtype=jax.numpy.int32) for cu in (CU_Q, CU_K)]

    def results(q, k, v):
        return fulmen.attention(
            q, k, v, return_lse=True, cu_seqlens_q=bounds[0], cu_seqlens_k=bounds[1], **LENGTHS
        )

    found, backward = jax.vjp(results, q, k, v)
    return (*found, *backward((dout, dlse)))


WAYS = [by_numpy, by_references, by_torch, by_autograd, by_dispatcher, by_jax]


@pytest.mark.parametrize("way", WAYS)
def test_zeros(way):
    arrays = packed()
    right = expected(*arrays)
    for _ in range(4):
        dirty()
        found = [torch.from_numpy(np.asarray(t).copy()) for t in way(arrays)]
        for name, tensor, double in zip(
            ("out", "lse", "dq", "dk", "dv"), found, right, strict=True
        ):
            nobodys = NOBODYS_K if name in ("dk", "dv") else NOBODYS_Q
            rows = tensor[:, nobodys] if name == "lse" else tensor[nobodys]
            assert (rows == 0).all(), f"{name} has {rows.flatten()[:4]} where no sequence is"
            close(tensor, double) if name != "lse" else close(tensor.exp(), double.exp())


def test_no_sequence():
    """Then no row belongs to a sequence."""
    arrays = packed()
    none = [np.zeros(1, np.int32)] * 2
    dirty()
    assert all((np.asarray(t) == 0).all() for t in functions([a.numpy() for a in arrays], none))


@pytest.mark.parametrize("over_q", [False, True])
def test_out_that_is_given(over_q):
    q, k, v, *_ = arrays = packed()
    out = q.clone() if over_q else torch.full((TOTAL_Q, 2 * HEADS, DIM_V), torch.nan)[:, ::2]
    v = torch.cat([v, v], -1) if over_q else v
    bounds = tensors_of()
    given = out if over_q else q
    assert (
        fulmen.attention(
            given, k, v, out=out, cu_seqlens_q=bounds[0], cu_seqlens_k=bounds[1], **LENGTHS
        )
        is out
    )
    close(out[..., :DIM_V], expected(*arrays)[0])
    if not over_q:
        assert out._base[:, 1::2].isnan().all()


def test_weight_gradients():
    """A packed batch with padding around it, whose NaN once broke training."""
    projection = torch.nn.Linear(DIM, 3 * HEADS * DIM)
    rows = torch.randn(TOTAL_Q, DIM)

    def heads(weight, bias, x):
        return (x @ weight.T + bias).view(TOTAL_Q, 3, HEADS, DIM).unbind(1)

    doubles = [p.detach().double().requires_grad_() for p in (projection.weight, projection.bias)]
    q, k, v = heads(*doubles, rows.double())
    parts = [
        attention_float64(q[None, a:b], k[None, a:b], v[None, a:b], causal=True)[0]
        for a, b in itertools.pairwise(CU_Q)
    ]
    wanted = torch.autograd.grad(sum(part.square().sum() for part in parts), doubles)
    for _ in range(8):
        dirty()
        q, k, v = heads(projection.weight, projection.bias, rows)
        out = flash_attn_varlen_func(q, k, v, *tensors_of((CU_Q, CU_Q)), 3, 3, causal=True)
        for found, right in zip(
            torch.autograd.grad(out.square().sum(), list(projection.parameters())),
            wanted,
            strict=True,
        ):
            close(found, right)
