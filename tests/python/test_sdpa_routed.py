"""Calls that torch's scaled_dot_product_attention takes also work under enable_sdpa() and sdpa(),
by Fulmen or torch.
"""

import contextlib
import io
import random

import fulmen.torch
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from problems import SEED, assert_close
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

TORCH_SDPA = F.scaled_dot_product_attention


@contextlib.contextmanager
def process_wide():
    fulmen.torch.enable_sdpa()
    try:
        yield
    finally:
        fulmen.torch.disable_sdpa()


@pytest.fixture(params=[process_wide, fulmen.torch.sdpa], ids=["enable_sdpa", "with sdpa"])
def routed(request):
    torch.manual_seed(SEED)
    return request.param


def qkv(seqlen_q=6, seqlen_k=9, dtype=torch.float32):
    return tuple(
        torch.randn(2, 4, n, 16).to(dtype).requires_grad_() for n in (seqlen_q, seqlen_k, seqlen_k)
    )


def gradients(out, leaves):
    return torch.autograd.grad(out.square().sum(), leaves)


MASKS = {"upper left": (causal_upper_left, 0), "lower right": (causal_lower_right, 3)}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_causal_bias(name, dtype, routed, plans):
    mask, diagonal = MASKS[name]
    leaves = qkv(dtype=dtype)
    expected = TORCH_SDPA(*leaves, torch.ones(6, 9, dtype=torch.bool).tril(diagonal))
    with routed():
        out = F.scaled_dot_product_attention(*leaves, attn_mask=mask(6, 9))
        served = plans()
        # torch computes float64; otherwise the kernel gets the band, and reads no mask.
        assert len(served) == (dtype == torch.float32)
        assert all(
            f"diagonal={diagonal}" in line and "mask" not in line.split(":")[1] for line in served
        )
        ours = gradients(out, leaves)
    assert_close(out.detach(), expected.detach(), "fp32")
    for one, theirs in zip(ours, gradients(expected, leaves), strict=True):
        assert_close(one, theirs, "fp32", "gradient", 1e-5)


def test_causal_bias_of_other_sizes(routed):
    """torch takes the lower right one as the matrix that it stands for."""
    q, k, v = qkv()
    with routed():
        with pytest.raises(RuntimeError, match="CausalBias should not be used with causal=True"):
            F.scaled_dot_product_attention(q, k, v, causal_upper_left(6, 9), is_causal=True)
        with pytest.raises(RuntimeError, match=r"attn_mask has shape \[5, 9\]"):
            F.scaled_dot_product_attention(q, k, v, causal_lower_right(5, 9))
        square = F.scaled_dot_product_attention(q, k, v, causal_lower_right(4, 4))
    assert_close(square.detach(), TORCH_SDPA(q, k, v, is_causal=True).detach(), "fp32")


def test_compiled_causal_bias():
    torch.manual_seed(SEED)
    q, k, v = qkv()
    with process_wide():
        compiled = torch.compile(
            lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask), backend="aot_eager"
        )
        out = compiled(q, k, v, causal_lower_right(6, 9))
    expected = TORCH_SDPA(q, k, v, torch.ones(6, 9, dtype=torch.bool).tril(3))
    assert_close(out.detach(), expected.detach(), "fp32")


class Asked:
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return function is TORCH_SDPA and types == (cls,) and len(args)


@pytest.mark.parametrize("at", range(4))
def test_arguments_with_torch_function_are_asked(at, routed):
    arguments = [*qkv(), None]
    arguments[at] = Asked()
    with routed():
        assert F.scaled_dot_product_attention(*arguments) >= 4


class Named(torch.Tensor):
    pass


def test_subclasses_stay_themselves(routed, plans):
    q, k, v = (t.detach() for t in qkv())
    with routed():
        out = F.scaled_dot_product_attention(q.as_subclass(Named), k, v)
    assert type(out) is Named and len(plans()) == 1
    assert_close(out.as_subclass(torch.Tensor), TORCH_SDPA(q, k, v), "fp32")


def test_under_other_modes(routed, plans):
    with routed(), torch.device("cpu"):
        F.scaled_dot_product_attention(*qkv())
    assert len(plans()) == 1


def test_sdpa_kernel_is_honoured(routed, plans, capfd):
    q, k, v = qkv()
    with routed(), sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(q, k, v)
        err = capfd.readouterr().err
        assert (
            "torch computes" in err and "sdpa_kernel chooses" in err and " on cpu for " not in err
        )
    with routed():
        F.scaled_dot_product_attention(q, k, v)
    assert len(plans()) == 1


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)


def test_scripts_can_be_made_and_saved(routed):
    q, k, v = (t.detach() for t in qkv())
    with routed():
        script = torch.jit.script(causal)
        torch.jit.script(torch.nn.MultiheadAttention(32, 4))
        traced = torch.jit.trace(causal, (q, k, v))
    saved = io.BytesIO()
    torch.jit.save(script, saved)
    saved.seek(0)
    for function in (torch.jit.load(saved), traced):
        assert_close(function(q, k, v), TORCH_SDPA(q, k, v, is_causal=True, scale=0.25), "fp32")


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_dtensor_is_torchs(routed, mesh, capfd, plans):
    rows, bias = torch.randn(2, 4, 6, 16), torch.randn(6, 6)
    # With a mask that requires grad torch takes operators for which its DTensor has rules on the
    # CPU, too.
    x = distribute_tensor(rows, mesh, [Shard(1)]).requires_grad_()
    mask = distribute_tensor(bias, mesh, [Replicate()]).requires_grad_()
    with routed():
        out = F.scaled_dot_product_attention(x, x, x, mask)
        assert (
            "torch computes this scaled_dot_product_attention: query is a DTensor"
            in capfd.readouterr().err
        )
        out.sum().backward()
    assert_close(out.full_tensor().detach(), TORCH_SDPA(rows, rows, rows, bias), "fp32")
    assert x.grad.shape == rows.shape


def test_onnx_has_torchs_operator(routed, capfd, monkeypatch):
    class Model(torch.nn.Module):
        def forward(self, query, key, value):
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    onnx = pytest.importorskip("onnx")
    monkeypatch.setenv("FLASH_ATTENTION_DEBUG", "1")
    file = io.BytesIO()
    with routed():
        torch.onnx.export(Model(), tuple(t.detach() for t in qkv()), file, dynamo=False)
    assert "ONNX has no operator of Fulmen's" in capfd.readouterr().err
    assert {node.domain for node in onnx.load_from_string(file.getvalue()).graph.node} == {""}


def test_what_torch_says_of_other_types_it_says(routed):
    q, k, v = (t.detach() for t in qkv())
    for arguments in ((q, k.numpy(), v), (q, None, v), (q, k, v, 1.0)):
        with pytest.raises(TypeError) as theirs:
            TORCH_SDPA(*arguments)
        with routed(), pytest.raises(TypeError) as ours:
            F.scaled_dot_product_attention(*arguments)
        assert ours.value.args == theirs.value.args


def test_transforms_and_shadows(routed):
    q, k, v = (t.detach() for t in qkv())
    expected = TORCH_SDPA(q, k, v)
    nested = torch.nested.nested_tensor(
        [torch.randn(n, 4, 16) for n in (3, 5)], layout=torch.jagged
    ).transpose(1, 2)
    with routed():
        assert_close(torch.vmap(F.scaled_dot_product_attention)(q, k, v), expected, "fp32")
        assert (
            F.scaled_dot_product_attention(*(t.to("meta") for t in (q, k, v))).device.type == "meta"
        )
        assert F.scaled_dot_product_attention(nested, nested, nested).is_nested
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert F.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
        with torch._subclasses.FakeTensorMode() as fake:
            assert (
                F.scaled_dot_product_attention(*map(fake.from_tensor, (q, k, v))).shape == q.shape
            )


def test_random_calls_agree():
    """Any sizes, 0 included, and masks that broadcast: the same shape, dtype and values."""
    draw = random.Random(SEED)
    torch.manual_seed(SEED)
    for _ in range(30):
        leading, seqlen_q, seqlen_k = (
            draw.choice([(), (3,), (2, 4), (2, 3, 4)]),
            draw.choice([0, 1, 5, 17]),
            draw.choice([0, 1, 7, 33]),
        )
        head_dim, head_dim_v = draw.choice([1, 8, 59, 64]), draw.choice([8, 64])
        sizes = (seqlen_q, head_dim), (seqlen_k, head_dim), (seqlen_k, head_dim_v)
        tensors = [torch.randn(*leading, *size) for size in sizes]
        masks = {
            "none": {},
            "causal": {"is_causal": True},
            "bool": {"attn_mask": torch.rand(seqlen_q, seqlen_k) < 0.7},
            "float": {"attn_mask": torch.randn(*leading[-1:], seqlen_q, seqlen_k)},
            "one row": {"attn_mask": torch.rand(1, seqlen_k) < 0.8},
            "one number": {"attn_mask": torch.randn(1, 1)},
            "no key": {"attn_mask": torch.full((seqlen_q, seqlen_k), -torch.inf)},
            "one column": {"attn_mask": torch.rand(*leading, seqlen_q, 1) < 0.5},
        }
        name = draw.choice(list(masks))
        options = {**masks[name], "scale": draw.choice([None, 0.1, 0.5])}
        with process_wide():
            out = F.scaled_dot_product_attention(*tensors, **options)
        if "attn_mask" in options and options["attn_mask"].is_floating_point():
            options["attn_mask"] = options["attn_mask"].double()
        expected = TORCH_SDPA(*(t.double() for t in tensors), **options)
        assert out.dtype == torch.float32
        assert_close(
            out,
            expected,
            "fp32",
            f"out of {leading} {sizes}, mask {name}, scale {options['scale']}",
        )
