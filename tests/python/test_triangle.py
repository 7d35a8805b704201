"""Triangle and Evoformer attention beside the formula in float64, with gradients."""

import pytest
import torch
from fulmen.torch import DS4Sci_EvoformerAttention, triangle_attention
from problems import SEED, assert_close

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Batch and rows: one call, one with a bias of its own for each, and a call for each element.
BATCHES = {"one": (1, 5), "no_rows": (3, 1), "both": (2, 3)}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)


def in_float64(q, k, v, biases, mask=None, scale=None):
    """softmax(scale q k^T + the biases) v, [B, N, H, Q, D]; lse and the largest score."""
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    for bias in biases:
        scores = scores + bias.double()
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -torch.inf)
    kept = torch.isfinite(scores).any(-1, keepdim=True)
    weights = torch.where(kept, scores.softmax(-1), 0.0)
    return weights @ v, scores.logsumexp(-1), scores.amax(-1)


def problem(b, n, dtype="fp32", h=2, rows=13, keys=17, d=16):
    shapes = [(b, n, h, rows, d), (b, n, h, keys, d), (b, n, h, keys, d), (b, 1, h, rows, keys)]
    return [torch.randn(shape, dtype=DTYPES[dtype], requires_grad=True) for shape in shapes]


def compare(found, inputs, expected, dtype):
    """out and the gradients of sum(out * weights) by the inputs."""
    weights = torch.randn(found.shape).to(found.dtype).double()
    ours = torch.autograd.grad((found.double() * weights).sum(), inputs)
    theirs = torch.autograd.grad((expected * weights).sum(), inputs)
    assert found.dtype == inputs[0].dtype
    assert_close(found.detach().double(), expected.detach(), dtype)
    for at, (one, other, like) in enumerate(zip(ours, theirs, inputs, strict=True)):
        assert one.dtype == like.dtype and one.shape == like.shape
        assert_close(one.double(), other.double(), dtype, f"gradient {at}")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
def test_triangle(batch, dtype, masked):
    b, n = BATCHES[batch]
    inputs = problem(b, n, dtype)
    mask = torch.rand(b, n, 1, 1, 17) < 0.7 if masked else None
    if masked:
        mask[0, 0] = False  # a row that keeps no key
    expected = in_float64(*inputs[:3], inputs[3:], mask, 0.3)[0]
    compare(triangle_attention(*inputs, mask=mask, scale=0.3), inputs, expected, dtype)


def test_bias_of_another_dtype():
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        q, k, v, bias = problem(1, 4, "bf16")
        bias = bias.detach().to(dtype).requires_grad_()
        expected = in_float64(q, k, v, [bias])[0]
        compare(triangle_attention(q, k, v, bias), [q, k, v, bias], expected, "bf16")


def test_strides_of_a_layer():
    """q, k and v as [B, N, Q, H, D] in memory, a bias with its heads last: what boltz hands
    over."""
    b, n, h, d = 2, 4, 3, 8
    qkv = [torch.randn(b, n, n, h, d, requires_grad=True) for _ in range(3)]
    pair = torch.randn(b, n, n, h, requires_grad=True)
    q, k, v = (t.transpose(-2, -3) for t in qkv)
    bias = pair.permute(0, 3, 1, 2).unsqueeze(1)
    mask = (torch.rand(b, n, 1, 1, n) < 0.8).float()
    out = triangle_attention(q, k, v, bias, mask)
    compare(out, [*qkv, pair], in_float64(q, k, v, [bias], mask)[0], "fp32")


@pytest.mark.parametrize("batch", BATCHES)
def test_aux(batch, monkeypatch):
    b, n = BATCHES[batch]
    q, k, v, bias = problem(b, n)
    mask = torch.rand(b, n, 1, 1, 17) < 0.5
    mask[0, 0] = False
    expected = in_float64(q, k, v, [bias], mask)
    some = mask.any(-1)[..., 0, 0]
    for most in (1 << 24, 1):  # all rows at a time, or one
        monkeypatch.setattr("fulmen.torch._triangle._MOST_SCORES", most)
        out, lse, largest = triangle_attention(q, k, v, bias, mask, return_aux=True)
        assert_close(out.detach(), expected[0].detach(), "fp32")
        for found, right in ((lse, expected[1]), (largest, expected[2])):
            assert found.dtype == torch.float32 and found.shape == (b, n, 2, 13)
            assert torch.equal(found.isinf(), right.isinf()) and (found[0, 0] == -torch.inf).all()
            assert_close(found[some].detach(), right[some].detach(), "fp32")


def test_gradients_by_lse():
    inputs = problem(2, 3)
    q, k, v, bias = inputs
    _, lse, largest = triangle_attention(*inputs, return_aux=True)
    assert not largest.requires_grad
    weights = torch.randn(lse.shape)
    ours = torch.autograd.grad((lse * weights).sum(), [q, k, bias])
    right = torch.autograd.grad(
        (in_float64(q, k, v, [bias])[1] * weights.double()).sum(), [q, k, bias]
    )
    for one, other in zip(ours, right, strict=True):
        assert_close(one, other, "fp32", "gradient")


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_aux_under_autocast(dtype):
    """max is of q and k as the kernel reads them, and not rounded itself."""
    q, k, v, bias = (t.detach() for t in problem(2, 3, d=32))
    q = q * 4
    with torch.autocast("cpu", dtype=DTYPES[dtype]):
        out, lse, largest = triangle_attention(q, k, v, bias, return_aux=True)
    assert out.dtype == DTYPES[dtype]
    rounded = (t.to(DTYPES[dtype]) for t in (q, k, v))
    expected = in_float64(*rounded, [bias])
    assert_close(out.double(), expected[0], dtype)
    assert_close(lse, expected[1], "fp32")
    assert_close(largest, expected[2], "fp32")
    assert (largest <= lse + 1e-5 * lse.abs()).all()


def test_inputs_without_gradients():
    """A gradient by q alone, and by the bias alone."""
    inputs = [t.detach() for t in problem(2, 3)]
    for at in (0, 3):
        given = [t.clone().requires_grad_(place == at) for place, t in enumerate(inputs)]
        (ours,) = torch.autograd.grad(triangle_attention(*given).square().sum(), given[at])
        expected = in_float64(*given[:3], given[3:])[0]
        (right,) = torch.autograd.grad(expected.square().sum(), given[at])
        assert_close(ours, right, "fp32", "gradient")


def test_lengths_and_four_dims():
    q, k, v, bias = (t.detach() for t in problem(1, 4))
    mask = torch.zeros(1, 4, 1, 1, 17, dtype=torch.bool)
    for row, kept in enumerate((3, 17, 0, 17)):
        mask[0, row, ..., :kept] = True
    expected = in_float64(q, k, v, [bias], mask)[0]
    for dtype in (torch.int32, torch.int64, torch.uint8):
        lengths = torch.tensor([3, 17, 0, 40], dtype=dtype).reshape(1, 4, 1, 1, 1)
        found = triangle_attention(q, k, v, bias, kv_lengths=lengths)
        assert_close(found, expected, "fp32")
        assert (found[0, 2] == 0).all()
    assert_close(triangle_attention(q[0], k[0], v[0], bias[0], mask[0]), expected, "fp32")


def test_compiled():
    q, k, v, bias = problem(2, 3)
    mask = torch.rand(2, 3, 1, 1, 17) < 0.7
    compiled = torch.compile(triangle_attention, fullgraph=True, backend="aot_eager")
    expected = in_float64(q, k, v, [bias], mask)[0]
    compare(compiled(q, k, v, bias, mask), [q, k, v, bias], expected, "fp32")
    lengths = torch.full((2, 3, 1, 1, 1), 9)
    expected = in_float64(q, k, v, [bias], torch.arange(17) < 9)
    found = compiled(q, k, v, bias, return_aux=True, kv_lengths=lengths)
    for one, other in zip(found, expected, strict=True):
        assert_close(one.detach(), other.detach(), "fp32")


def test_evoformer_compiled():
    Q, K, V = (torch.randn(2, 3, 11, 2, 8, requires_grad=True) for _ in range(3))
    biases = [torch.randn(2, 3, 1, 1, 11), torch.randn(2, 1, 2, 11, 11)]
    inputs = [Q, K, V, *(one.requires_grad_() for one in biases)]
    compiled = torch.compile(DS4Sci_EvoformerAttention, fullgraph=True, backend="aot_eager")
    expected = in_float64(*(t.transpose(2, 3) for t in (Q, K, V)), biases)[0].transpose(2, 3)
    compare(compiled(Q, K, V, biases), inputs, expected, "fp32")


def test_empty():
    for no in ({"keys": 0}, {"h": 0}):
        inputs = problem(2, 3, "bf16", **no)
        out, lse, largest = triangle_attention(*inputs, return_aux=True)
        assert out.shape == inputs[0].shape and (out == 0).all()
        assert lse.shape == largest.shape == out.shape[:-1]
        assert lse.dtype == largest.dtype == torch.float32
        assert (lse == -torch.inf).all() and (largest == -torch.inf).all()
        for gradient in torch.autograd.grad(out.sum(), inputs):
            assert (gradient == 0).all()
    for b, n, rows in ((0, 3, 5), (2, 0, 5), (2, 3, 0)):
        q, k, v, bias = problem(b, n, rows=rows)
        out, lse, largest = triangle_attention(q, k, v, bias, return_aux=True)
        assert out.shape == q.shape and lse.shape == largest.shape == q.shape[:-1]


def test_errors_of_triangle():
    q, k, v, bias = problem(2, 3)

    def refuse(error, message, **other):
        with pytest.raises(error, match=message):
            triangle_attention(**{"q": q, "k": k, "v": v, "bias": bias, **other})

    refuse(TypeError, "^bias is of type NoneType: a torch tensor is needed", bias=None)
    refuse(ValueError, "^q has 3 dims: 5 are accepted, and 4 where B is 1", q=q[0, 0])
    refuse(ValueError, r"^bias has shape \[1, 1, 2, 13, 17\]: \[2, 1, 2, 13, 17\]", bias=bias[:1])
    refuse(ValueError, r"^k has shape .*: \[2, 3, 2, 17, 16\] is accepted", k=k[..., :8])
    refuse(
        ValueError, r"^mask has shape .*: \[2, 3, 1, 1, 17\] is", mask=torch.ones(2, 3, 1, 13, 17)
    )
    lengths = torch.ones(2, 3, 1, 1, 1, dtype=torch.int32)
    refuse(ValueError, "one of the two", mask=torch.ones(2, 3, 1, 1, 17), kv_lengths=lengths)
    refuse(TypeError, "^scale is 'x'", scale="x")
    for wrong in (bias.long(), bias > 0):
        refuse(TypeError, r"^bias has dtype (int64|bool): float32, .* and float64 are", bias=wrong)
    refuse(ValueError, "^bias is on meta, q on cpu", bias=bias.to("meta"))
    refuse(TypeError, "^return_aux is 'no', of type str: True or False", return_aux="no")
    wide = torch.randn(2, 3, 2, 17, 577)
    refuse(ValueError, "^q has head_dim 577: 1 to 576", q=wide[..., :13, :], k=wide)
    refuse(ValueError, "^v has head_dim 513: 1 to 512", v=wide[..., :513])
    for dtype in (torch.float32, torch.bool, torch.complex64):
        name = str(dtype)[len("torch.") :]
        wrong = lengths.to(dtype)
        refuse(TypeError, f"^kv_lengths has dtype {name}: integers are", kv_lengths=wrong)
    refuse(ValueError, "^kv_lengths has -1: 0 and more", kv_lengths=lengths - 2)
    refuse(ValueError, "^kv_lengths is on meta, q on cpu", kv_lengths=lengths.to("meta"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("d", [16, 21])
def test_evoformer(batch, dtype, d):
    (b, n), s, h = BATCHES[batch], 19, 2
    Q, K, V = (
        torch.randn(b, n, s, h, d, dtype=DTYPES[dtype], requires_grad=True) for _ in range(3)
    )
    mask_bias = torch.randn(b, n, 1, 1, s, dtype=DTYPES[dtype])
    mask_bias[:, :, :, :, 3:7] = -6e4 if dtype == "fp16" else -1e9
    mask_bias[0, 0, :, :, 8] = -torch.inf
    if d == 21:  # a dtype of its own
        mask_bias = mask_bias.to(torch.float64 if dtype == "fp32" else torch.float32)
    mask_bias.requires_grad_()
    pair_bias = torch.randn(b, 1, h, s, s, dtype=DTYPES[dtype], requires_grad=True)
    for biases in ([], [mask_bias], [None, pair_bias], [mask_bias, pair_bias]):
        given = [one for one in biases if one is not None]
        expected = in_float64(*(t.transpose(2, 3) for t in (Q, K, V)), given)[0].transpose(2, 3)
        inputs = [Q, K, V, *given]
        compare(DS4Sci_EvoformerAttention(Q, K, V, biases), inputs, expected, dtype)


def test_evoformer_masks():
    b, n, s, h, d = 2, 3, 11, 2, 8
    Q, K, V = (torch.randn(b, n, s, h, d) for _ in range(3))
    pair_bias = torch.randn(b, 1, h, s, s)
    keep = torch.rand(b, n, 1, 1, s) < 0.6
    keep[..., 0] = True
    keep[1, 2] = False
    floats = torch.zeros(keep.shape).masked_fill(~keep, -1e9)
    by_mask = DS4Sci_EvoformerAttention(Q, K, V, [keep, pair_bias])
    by_bias = DS4Sci_EvoformerAttention(Q, K, V, [floats, pair_bias])
    some = keep.any(-1)[..., 0, 0]
    assert_close(by_bias[some], by_mask[some], "fp32")
    assert (by_mask[1, 2] == 0).all()

    def float64(*biases):
        return in_float64(*(t.transpose(2, 3) for t in (Q, K, V)), biases)[0].transpose(2, 3)

    # The same number for each key of a row changes nothing.
    assert_close(by_bias[1, 2], float64(pair_bias)[1, 2], "fp32")
    assert_close(by_bias[some], float64(floats, pair_bias)[some], "fp32")
    far = torch.zeros(b, n, 1, 1, s)
    far[..., 3], far[..., 4] = 20000.0, 15000.0
    assert_close(
        DS4Sci_EvoformerAttention(Q, K, V, [far, pair_bias]), float64(far, pair_bias), "fp32"
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = DS4Sci_EvoformerAttention(Q, K, V, [floats + 0.37, pair_bias])
    assert out.dtype == torch.bfloat16
    assert_close(out[some].double(), by_bias[some].double(), "bf16")


def test_errors_of_evoformer():
    Q, K, V = (torch.randn(1, 2, 5, 3, 8) for _ in range(3))

    def refuse(error, message, *given):
        with pytest.raises(error, match=message):
            DS4Sci_EvoformerAttention(*given)

    refuse(ValueError, "^Q has 4 dims: ", Q[0], K, V)
    refuse(ValueError, "^biases is not a list of at most 2", Q, K, V, [None] * 3)
    refuse(TypeError, "^biases is of type NoneType: a list, ", Q, K, V, None)
    refuse(TypeError, "^biases is of type generator: a list, ", Q, K, V, (b for b in ()))
    refuse(TypeError, "^biases is of type Tensor: a list, ", Q, K, V, Q)
    on_meta = torch.zeros(1, 2, 1, 1, 5, device="meta")
    refuse(ValueError, r"^biases\[0\] is on meta, Q on cpu", Q, K, V, [on_meta])
    refuse(ValueError, r"^biases\[0\] is on meta, Q on cpu", Q, K, V, [on_meta > 0])
    refuse(ValueError, "^Q has head_dim 513: 1 to 512", *[torch.randn(1, 2, 5, 3, 513)] * 3)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        wide = torch.randn(1, 2, 5, 3, 512, dtype=dtype)
        biases = [torch.zeros(1, 2, 1, 1, 5)]
        assert DS4Sci_EvoformerAttention(*[wide] * 3, biases).shape[-1] == 512
    refuse(ValueError, r"^biases\[0\] has shape .*: \[1, 2, 1, 1, 5\]", Q, K, V, [Q[..., 0]])
    refuse(ValueError, r"^biases\[1\] has shape .*: \[1, 1, 3, 5, 5\]", Q, K, V, [None, Q])
    wrong = torch.zeros(1, 2, 1, 1, 5, dtype=torch.int32)
    refuse(TypeError, r"^biases\[0\] has dtype int32: bool and floats", Q, K, V, [wrong])
    wrong = torch.zeros(1, 1, 3, 5, 5, dtype=torch.int64)
    refuse(TypeError, r"^biases\[1\] has dtype int64: float32, ", Q, K, V, [None, wrong])
    refuse(TypeError, "^Q has dtype float64", Q.double(), K, V)
