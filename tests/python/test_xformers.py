"""fulmen.xformers: memory_efficient_attention with every bias, against float64 and masks that are
written out here."""

import inspect
import itertools

import problems
import pytest
from problems import assert_close

torch = pytest.importorskip("torch")

import fulmen.xformers as xops  # noqa: E402
from fulmen.xformers.fmha import attn_bias as biases  # noqa: E402


def normal(rng, *shape, grad=True):
    return torch.from_numpy(rng.standard_normal(shape)).float().requires_grad_(grad)


def expected_of(q, k, v, attended, added=0.0, scale=None):
    """float64, [batch, seqlen, heads, dim]: (out, lse)."""
    scores = (
        torch.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
        + added
    )
    scores = torch.where(attended, scores, -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).nan_to_num(), v), scores.logsumexp(-1)


def check(rng, q, k, v, bias, attended, added=None, **options):
    for grad in (False, True):
        inputs = [t.detach().requires_grad_(grad) for t in (q, k, v)]
        out, lse = xops.memory_efficient_attention_forward_requires_grad(*inputs, bias, **options)
        leaves = [t.detach().double().requires_grad_(grad) for t in inputs]
        expected, expected_lse = expected_of(
            *leaves, attended, 0.0 if added is None else added.double(), options.get("scale")
        )
        assert_close(out.detach(), expected.detach(), "fp32")
        used = expected_lse.isfinite()
        assert_close(lse.detach()[used], expected_lse.detach()[used], "fp32", "lse")
        if grad:
            weight = normal(rng, *out.shape, grad=False)
            ours = torch.autograd.grad((out * weight).sum(), inputs)
            for one, other in zip(
                ours, torch.autograd.grad((expected * weight).sum(), leaves), strict=True
            ):
                assert_close(one, other.nan_to_num(), "fp32", "gradient")
    assert torch.equal(
        xops.memory_efficient_attention(q, k, v, bias, **options).detach(), out.detach()
    )


def mask(sq, sk, rule):
    return torch.tensor([[bool(rule(i, j)) for j in range(sk)] for i in range(sq)]).view(sq, sk)


SIMPLE = {  # bias, (query, key, keys - queries) -> attended
    "none": (None, lambda i, j, o: True),
    "lower": (xops.LowerTriangularMask(), lambda i, j, o: j <= i),
    "bottom_right": (biases.LowerTriangularFromBottomRightMask(), lambda i, j, o: j <= i + o),
    "bottom_right_local": (
        biases.LowerTriangularFromBottomRightMask().make_local_attention(4),
        lambda i, j, o: i + o - 4 < j <= i + o,
    ),
    "local": (
        biases.LocalAttentionFromBottomRightMask(3, 2),
        lambda i, j, o: i + o - 3 <= j <= i + o + 2,
    ),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_simple(name, rng):
    bias, rule = SIMPLE[name]
    q, k, v = (normal(rng, 2, n, 3, d) for n, d in ((9, 16), (13, 16), (13, 24)))
    attended = mask(9, 13, lambda i, j: rule(i, j, 4))
    check(rng, q, k, v, bias, attended, scale=0.3)
    if bias is not None:
        assert torch.equal(bias.materialize((2, 9, 13)) == 0, attended.expand(2, 9, 13))


def test_tensor_biases_and_layouts(rng):
    q, k, v = (normal(rng, 2, n, 6, 16) for n in (9, 13, 13))
    everything, lower = torch.ones(9, 13, dtype=torch.bool), mask(9, 13, lambda i, j: j <= i)
    bias = normal(rng, 2, 6, 9, 16, grad=False)[..., :13]  # padded memory, as xformers wants it
    check(rng, q, k, v, bias, everything, bias)
    check(rng, q, k, v, xops.LowerTriangularMask().add_bias(bias), lower, bias)
    plain = xops.memory_efficient_attention(q, k, v, bias)
    five = [t.unflatten(2, (2, 3)) for t in (q, k, v)]
    out, lse = xops.memory_efficient_attention_forward_requires_grad(
        *five, bias.unflatten(1, (2, 3))
    )
    assert lse.shape == (2, 2, 3, 9) and torch.equal(out.flatten(2, 3), plain)
    three = xops.memory_efficient_attention(q[:, :, 0], k[:, :, 0], v[:, :, 0], bias[:, 0])
    assert_close(three.detach(), plain[:, :, 0].detach(), "fp32")
    # Groups of query heads that read one head of k and v.
    one = [t[:, :, :2, None].expand(-1, -1, -1, 3, -1) for t in (k, v)]
    out = xops.memory_efficient_attention(five[0], *one)
    weight = normal(rng, *out.shape, grad=False)
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    full = [t[:, :, :2].repeat_interleave(3, 2) for t in leaves[1:]]
    expected = expected_of(leaves[0], *full, everything)[0].unflatten(2, (2, 3))
    assert_close(out.detach(), expected.detach(), "fp32")
    ours = torch.autograd.grad((out * weight).sum(), (q, k, v))
    for a, b in zip(ours, torch.autograd.grad((expected * weight).sum(), leaves), strict=True):
        assert_close(a, b, "fp32", "gradient")
    learned = normal(rng, 2, 6, 9, 13)
    (gradient,) = torch.autograd.grad(
        xops.memory_efficient_attention(q, k, v, learned).square().sum(), learned
    )
    double = learned.detach().double().requires_grad_()
    expected = expected_of(*(t.detach().double() for t in (q, k, v)), everything, double)[0]
    assert_close(
        gradient, torch.autograd.grad(expected.square().sum(), double)[0], "fp32", "bias gradient"
    )
    assert (
        xops.memory_efficient_attention(q, k, v, output_dtype=torch.bfloat16).dtype
        == torch.bfloat16
    )


Q, K = [3, 1, 5], [4, 6, 7]
STARTS = [0, 7, 14, 24]
TABLE = torch.tensor([[3, 0], [5, 1], [2, 4]], dtype=torch.int32)
PACKED = biases.BlockDiagonalMask.from_seqlens(Q, K, device="cpu")
PADDED = biases.BlockDiagonalPaddedKeysMask.from_seqlens(Q, 8, K, device="cpu")
GAPPY = biases.BlockDiagonalGappyKeysMask.from_seqlens(Q, STARTS, K, device="cpu")


def everywhere(i, j, o):
    return True


def from_bottom_right(i, j, o):
    return j <= i + o


def paged_rows(starts):
    return [
        [int(TABLE[n, r // 4]) * 4 + r % 4 for r in range(s, s + m)]
        for n, (s, m) in enumerate(zip(starts, K, strict=True))
    ]


PACKED_ROWS = [list(range(s, s + m)) for s, m in zip((0, 4, 10), K, strict=True)]
PADDED_ROWS = [list(range(8 * n, 8 * n + m)) for n, m in enumerate(K)]
GAPPY_ROWS = [list(range(s, s + m)) for s, m in zip(STARTS, K, strict=False)]
LAST = [0, 2, 1]  # where a block's keys begin in its pages
BLOCKS = {  # bias, rows of keys, rule
    "packed": (PACKED, PACKED_ROWS, everywhere),
    "packed_causal": (PACKED.make_causal(), PACKED_ROWS, lambda i, j, o: j <= i),
    "packed_bottom_right": (PACKED.make_causal_from_bottomright(), PACKED_ROWS, from_bottom_right),
    "packed_local": (PACKED.make_local_attention(2), PACKED_ROWS, lambda i, j, o: i - 2 < j <= i),
    "packed_local_bottom_right": (
        PACKED.make_local_attention_from_bottomright(3),
        PACKED_ROWS,
        lambda i, j, o: i + o - 3 < j <= i + o,
    ),
    "padded": (PADDED, PADDED_ROWS, everywhere),
    "padded_causal": (
        biases.BlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(Q, 8, K, device="cpu"),
        PADDED_ROWS,
        from_bottom_right,
    ),
    "padded_local": (
        PADDED.make_local_attention(2, 1),
        PADDED_ROWS,
        lambda i, j, o: i + o - 2 <= j <= i + o + 1,
    ),
    "padded_causal_local": (
        biases.BlockDiagonalCausalLocalAttentionPaddedKeysMask(
            PADDED.q_seqinfo, PADDED.k_seqinfo, 2
        ),
        PADDED_ROWS,
        lambda i, j, o: i + o - 2 < j <= i + o,
    ),
    "gappy": (GAPPY, GAPPY_ROWS, everywhere),
    "gappy_causal": (
        biases.BlockDiagonalCausalWithOffsetGappyKeysMask.from_seqlens(Q, STARTS, K, device="cpu"),
        GAPPY_ROWS,
        from_bottom_right,
    ),
    "paged": (
        biases.PagedBlockDiagonalPaddedKeysMask.from_seqlens(Q, K, TABLE, 4, device="cpu"),
        paged_rows([0, 0, 0]),
        everywhere,
    ),
    "paged_causal": (
        PADDED.make_paged(TABLE, 4, biases.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask),
        paged_rows([0, 0, 0]),
        from_bottom_right,
    ),
    "paged_gappy": (
        biases.PagedBlockDiagonalGappyKeysMask.from_seqlens(Q, LAST, K, TABLE, 4),
        paged_rows(LAST),
        everywhere,
    ),
    "paged_gappy_causal": (
        biases.PagedBlockDiagonalCausalWithOffsetGappyKeysMask.from_seqlens(Q, LAST, K, TABLE, 4),
        paged_rows(LAST),
        from_bottom_right,
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name, rng):
    bias, rows, rule = BLOCKS[name]
    total = 17 if name.startswith("packed") else 24
    attended = torch.zeros(sum(Q), total, dtype=torch.bool)
    for n, keys in enumerate(rows):
        for i, (j, row) in itertools.product(range(Q[n]), enumerate(keys)):
            attended[sum(Q[:n]) + i, row] = rule(i, j, len(keys) - Q[n])
    q, k, v = (normal(rng, 1, n, 3, 16) for n in (sum(Q), total, total))
    check(rng, q, k, v, bias, attended)
    assert torch.equal(bias.materialize((1, sum(Q), total)) == 0, attended[None])
    assert type(bias.to("cpu")) is type(bias)


def test_lists_of_tensors(rng):
    parts = [normal(rng, b, n, 2, 8, grad=False) for b, n in ((2, 3), (1, 5), (3, 1))]
    bias, x = biases.BlockDiagonalMask.from_tensor_list(parts)
    assert x.shape == (1, 14, 2, 8)
    for part, one in zip(
        bias.split(xops.memory_efficient_attention(x, x, x, bias.make_causal())), parts, strict=True
    ):
        expected = expected_of(
            *(one.double(),) * 3, mask(one.shape[1], one.shape[1], lambda i, j: j <= i)
        )[0]
        assert_close(part, expected, "fp32")
    keys = [normal(rng, b, 4, 2, 8, grad=False) for b in (2, 1, 3)]
    bias, q, k, v = biases.BlockDiagonalMask.from_tensor_lists_qkv(parts, keys, keys)
    assert [t.shape for t in bias.split_queries(q)] == [t.shape for t in parts] and len(
        bias.split_kv(k)
    ) == 3
    assert torch.equal(k, v)
    with pytest.raises(ValueError, match="split_queries and split_kv are accepted"):
        bias.split(q)


def test_classes_by_name_and_others(rng):
    """xformers' own biases are read by their names, a user's are materialized."""
    q = normal(rng, 1, 9, 2, 16, grad=False)

    class Everything(biases.LowerTriangularMask):
        def materialize(self, shape, dtype=torch.float32, device="cpu"):
            return torch.zeros(shape, dtype=dtype, device=device)

    out = xops.memory_efficient_attention(q, q, q, Everything())
    assert_close(
        out, expected_of(*(q.double(),) * 3, torch.ones(9, 9, dtype=torch.bool))[0], "fp32"
    )
    theirs = type("LowerTriangularMask", (), {"__module__": "xformers.ops.fmha.attn_bias"})()
    assert torch.equal(
        xops.memory_efficient_attention(q, q, q, theirs),
        xops.memory_efficient_attention(q, q, q, xops.LowerTriangularMask()),
    )


def test_signature_dropout_and_refusals(rng):
    parameters = inspect.signature(xops.memory_efficient_attention).parameters.values()
    expected = "query, key, value, attn_bias=None, p=0.0, scale=None, op=None, output_dtype=None"
    assert (
        ", ".join(
            str(p.replace(annotation=p.empty, kind=p.POSITIONAL_OR_KEYWORD)) for p in parameters
        )
        == expected
    )
    q = normal(rng, 1, 40, 2, 16, grad=False)
    outs = []
    for seed in (problems.SEED, problems.SEED, problems.SEED + 1):
        torch.manual_seed(seed)
        outs.append(xops.memory_efficient_attention(q, q, q, p=0.3))
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])
    with pytest.raises(NotImplementedError, match=r"p is 0.3: 0 is accepted"):
        xops.memory_efficient_attention_forward_requires_grad(q, q, q, p=0.3)
    with pytest.raises(ValueError, match=r"shapes are query \[1, 40, 2, 16\], key \[40, 2, 16\]"):
        xops.memory_efficient_attention(q, q[0], q)
    with pytest.raises(
        ValueError, match="query has batch 2 and key 2: 1 is accepted with BlockDiagonalMask"
    ):
        xops.memory_efficient_attention(
            *(q.expand(2, -1, -1, -1),) * 3,
            biases.BlockDiagonalMask.from_seqlens([40], device="cpu"),
        )
    with pytest.raises(ValueError, match="window_size is 0: 1 or more is accepted"):
        PACKED.make_local_attention(0)
    with pytest.raises(ValueError, match="block 0 has 5 queries and 4 keys"):
        biases.BlockDiagonalMask.from_seqlens([5], [4], device="cpu").make_causal_from_bottomright()
