"""Sequences of different lengths, and appending to caches, under torch.compile, torch.func,
autocast and fake tensors.
"""

import fulmen
import fulmen.torch
import pytest
import torch
from fulmen import flash_attn
from problems import SEED, assert_close
from torch.func import grad, jacrev, vjp, vmap

randn = torch.randn
OPTIONS = (None, None, 0.0, "bottom_right", -1, -1, 0.0, False, None, None, 0, False, None)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)
    torch._dynamo.reset()


def cumulative(lengths):
    return torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)


def packed(of_q, of_k, requires_grad=False):
    return tuple(randn(sum(n), 2, 8).requires_grad_(requires_grad) for n in (of_q, of_k, of_k))


def ours(q, k, v, cu_q, cu_k, longest_q, longest_k):
    return flash_attn.flash_attn_varlen_func(q, k, v, cu_q, cu_k, longest_q, longest_k, causal=True)


def one_by_one(q, k, v, of_q, of_k):
    """The reference by torch, differentiable in every way."""
    outs = []
    for a, b, c in zip(q.split(of_q), k.split(of_k), v.split(of_k), strict=True):
        mask = torch.ones(len(a), len(b), dtype=torch.bool).tril(len(b) - len(a))
        scores = torch.einsum("qhd,khd->hqk", a, b) / 8**0.5
        outs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~mask, -1e30).softmax(-1), c))
    return torch.cat(outs)


def lengths_of(of_q, of_k):
    return cumulative(of_q), cumulative(of_k), max(of_q), max(of_k)


def close(ours, theirs):
    ours, theirs = (t if isinstance(t, tuple) else (t,) for t in (ours, theirs))
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a.detach(), b.detach(), "fp32")


def test_opcheck():
    op, of = torch.ops.fulmen, ([3, 0, 5], [4, 2, 6])
    q, k, v = packed(*of, requires_grad=True)
    sinks = randn(2, requires_grad=True)
    lengths = (*map(cumulative, of), *(None,) * 6, 5, 6, False)
    arguments = (q, k, v, None, None, torch.rand(2), sinks, *OPTIONS, *lengths)
    torch.library.opcheck(op.attention_varlen.default, (*arguments, True))
    out, lse = (t.detach() for t in op.attention_varlen(*arguments, True))
    plain = [t.detach() if isinstance(t, torch.Tensor) else t for t in arguments]
    torch.library.opcheck(op.attention_varlen.default, (*plain, False))
    torch.library.opcheck(
        op.attention_varlen_backward.default,
        (*plain, out, lse, randn(out.shape), randn(lse.shape), 0b10111),
    )
    pages, table = randn(6, 4, 2, 8), torch.tensor([[0, 2], [3, 5]], dtype=torch.int32)
    lengths = (
        None,
        None,
        torch.tensor([7, 5], dtype=torch.int32),
        torch.tensor([1, 0], dtype=torch.int32),
        table,
        *(None,) * 5,
        True,
    )
    torch.library.opcheck(
        op.attention_varlen.default,
        (randn(2, 3, 2, 8), pages, pages + 1, *(None,) * 4, *OPTIONS, *lengths, True),
    )
    used, new, angles = torch.tensor([3, 6], dtype=torch.int32), randn(2, 2, 2, 8), randn(8, 4)
    torch.library.opcheck(
        op.append_kv.default,
        (
            pages,
            pages + 1,
            used,
            table,
            new,
            new + 1,
            angles,
            angles.sin(),
            randn(2, 2, 4, 8),
            None,
            None,
            True,
            True,
            0,
            True,
            None,
        ),
    )


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_packed_training_is_compiled_once(backend):
    graphs = []

    def counted(module, inputs):
        graphs.append(module)
        return torch._dynamo.lookup_backend(backend)(module, inputs)

    compiled = torch.compile(
        lambda q, *rest: ours(q * 1.5, *rest) + 1, fullgraph=True, dynamic=True, backend=counted
    )
    sizes = [([7, 0, 12, 1], [9, 4, 13, 21]), ([3, 5], [6, 8])] + [([10, 27, 30], [11, 28, 31])] * (
        backend == "aot_eager"
    )
    for of in sizes:
        q, k, v = packed(*of, requires_grad=True)
        dout = randn(q.shape)
        expected = one_by_one(q * 1.5, k, v, *of) + 1
        # Keys of a sequence without queries have gradients of zero in both; a query without keys
        # does not occur.
        out = compiled(q, k, v, *lengths_of(*of))
        close(out, expected)
        close(
            torch.autograd.grad(out, (q, k, v), dout),
            torch.autograd.grad(expected, (q, k, v), dout),
        )
    assert sum("attention_varlen" in graph.code for graph in graphs) == 1


def test_generation_is_compiled():
    """A step with a paged cache: new keys are appended, rotated, and attended."""
    table = torch.tensor([[4, 0, 2], [5, 1, 3]], dtype=torch.int32)
    angles = torch.rand(12, 4) * 6
    start = torch.tensor([5, 2], dtype=torch.int32)
    caches = [[randn(6, 4, 2, 8) for _ in "kv"]]
    caches.append([t.clone() for t in caches[0]])

    def step(q, k, v, used, k_cache, v_cache):
        rotary = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin()}
        out = flash_attn.flash_attn_with_kvcache(
            q * 2,
            k_cache,
            v_cache,
            k,
            v,
            cache_seqlens=used,
            block_table=table,
            causal=True,
            **rotary,
        )
        return out + 1, used + k.shape[1]

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    lengths = [start, start.clone()]
    for _ in range(3):
        new = [randn(2, 1, h, 8) for h in (4, 2, 2)]
        outs = []
        for at, function in enumerate((step, compiled)):
            out, lengths[at] = function(*new, lengths[at], *caches[at])
            outs.append(out)
        assert torch.equal(*outs) and torch.equal(*lengths)
    assert torch.equal(lengths[0], start + 3)
    for eager, by_graph in zip(*caches, strict=True):
        assert torch.equal(eager, by_graph)


def test_padded_keys_are_compiled():
    q, k, v = (randn(3, s, 2, 8).requires_grad_() for s in (4, 9, 9))
    used = torch.tensor([9, 1, 5], dtype=torch.int32)

    def function(q, k, v):
        heads_first = (t.transpose(1, 2) for t in (q, k, v))
        return fulmen.attention(*heads_first, seqlens_k=used, layout="bhsd").transpose(1, 2)

    out = torch.compile(function, fullgraph=True, backend="aot_eager")(
        *(t.detach() for t in (q, k, v))
    )
    for n in range(3):
        close(
            out[n],
            fulmen.attention(q[n : n + 1], k[n : n + 1, : used[n]], v[n : n + 1, : used[n]])[0],
        )
    with pytest.raises(
        ValueError, match='layout is "bhsd": "bshd" is accepted with cu_seqlens_q or cu_seqlens_k'
    ):
        torch.compile(
            lambda q: fulmen.attention(q, q, q, cu_seqlens_q=used, layout="bhsd", max_seqlen_q=4),
            backend="eager",
        )(q[0])
    with pytest.raises(
        ValueError, match="seqlens_k is given: the backward pass takes packed sequences"
    ):
        function(q, k, v).sum().backward()


def test_func():
    of = ([3, 4], [5, 4])
    q, k, v = packed(*of)
    lengths = lengths_of(*of)

    def loss(function, *extra):
        return grad(lambda *t: function(*t, *extra).square().sum(), argnums=(0, 1, 2))

    close(loss(ours, *lengths)(q, k, v), loss(one_by_one, *of)(q, k, v))
    close(
        vjp(lambda *t: ours(*t, *lengths), q, k, v)[1](randn(q.shape) * 0 + 1),
        vjp(lambda *t: one_by_one(*t, *of), q, k, v)[1](torch.ones_like(q)),
    )
    queries = randn(3, *q.shape)
    close(
        vmap(lambda q: ours(q, k, v, *lengths))(queries),
        torch.stack([one_by_one(one, k, v, *of) for one in queries]),
    )
    mapped = vmap(loss(ours, *lengths), (0, None, None))(queries, k, v)
    close(mapped[1][2], loss(one_by_one, *of)(queries[2], k, v)[1])
    jacobian = jacrev(lambda q: ours(q, k, v, *lengths)[:2, 0, :3])(q)
    close(jacobian, jacrev(lambda q: one_by_one(q, k, v, *of)[:2, 0, :3])(q))
    with pytest.raises(RuntimeError, match="no second derivative"):
        grad(lambda q: grad(lambda q: ours(q, k, v, *lengths).square().sum())(q).sum())(q)
    leaf = q.clone().requires_grad_()
    (first,) = torch.autograd.grad(
        ours(leaf, k, v, *lengths).square().sum(), leaf, create_graph=True
    )
    with pytest.raises(RuntimeError, match="no second derivative"):
        first.sum().backward()


def test_meta_and_fake():
    with torch._subclasses.FakeTensorMode():
        q, cu = torch.empty(9, 4, 8), torch.empty(4, dtype=torch.int32)
        k = v = torch.empty(11, 2, 8)
        settings = {"cu_seqlens_q": cu, "cu_seqlens_k": cu, "max_seqlen_q": 5, "max_seqlen_k": 6}
        out, lse = fulmen.attention(q, k, v[..., :3], return_lse=True, **settings)
        assert out.shape == (9, 4, 3) and lse.shape == (4, 9)
        pages = torch.empty(6, 4, 2, 8)
        out, lse = fulmen.attention(
            q,
            pages,
            pages,
            return_lse=True,
            block_table=torch.empty(3, 2, dtype=torch.int32),
            **settings,
        )
        assert out.shape == (9, 4, 8) and lse.shape == (4, 9)
        with pytest.raises(
            ValueError, match=r"k has 4 dims: \[total, heads, head_dim\] is accepted"
        ):
            fulmen.attention(q, k[None], v, **settings)
        assert (
            fulmen.append_kv(
                pages, pages, cu[:3], block_table=torch.empty(3, 2, dtype=torch.int32)
            )[0]
            is None
        )
