"""ComfyUI's attention by Fulmen: the functions and nodes by themselves, and, where
integrations/comfyui/fetch has brought ComfyUI, its own call sites and tiny random models."""

import functools
import logging
import os
import pathlib
import sys
import types

import problems
import pytest

torch = pytest.importorskip("torch")

import fulmen.comfyui as ours  # noqa: E402
import fulmen.torch  # noqa: E402
from torch_problems import attention_float64, close  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = pathlib.Path(os.environ.get("COMFYUI", ROOT / "build/comfyui"))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(problems.SEED)
    ours._said.clear()


def inputs(heads=3, kv_heads=3, dim=40, dtype=torch.float32):
    return [
        torch.randn(2, rows, n * dim).to(dtype)
        for rows, n in ((19, heads), (23, kv_heads), (23, kv_heads))
    ]


def right_of(q, k, v, dim=40, scale=None, mask=None):
    """In double precision, [batch, rows, heads, head_dim]."""
    q, k, v = (x.double().unflatten(-1, (-1, dim)).transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (dim**-0.5 if scale is None else scale)
    if mask is not None:
        mask = mask[:, None] if mask.dim() == 3 else mask
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        )
    return (scores.softmax(-1) @ v).transpose(1, 2)


MASKS = {
    "none": None,
    "q, k": (19, 23),
    "batch, q, k": (2, 19, 23),
    "batch, 1, k": (2, 1, 23),
    "batch, heads, q, k": (2, 3, 19, 23),
}


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_layouts_and_masks(mask, added):
    q, k, v = inputs()
    if MASKS[mask] is not None:
        mask = torch.randn(MASKS[mask]) if added else torch.rand(MASKS[mask]) < 0.8
    else:
        mask = None
    right = right_of(q, k, v, mask=mask)
    close(ours.attention(q, k, v, 3, mask=mask), right.flatten(2))
    close(ours.attention(q, k, v, 3, mask, None, False, True), right.transpose(1, 2))
    split = [x.unflatten(-1, (3, 40)).transpose(1, 2) for x in (q, k, v)]
    close(ours.attention(*split, 3, mask=mask, skip_reshape=True), right.flatten(2))


def test_scale_groups_and_precision():
    q, k, v = inputs(heads=6, kv_heads=2)
    out = ours.attention(q, k, v, 6, scale=0.3, enable_gqa=True, attn_precision=torch.float32)
    close(out, right_of(q, k, v, scale=0.3).flatten(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vae_of_512_channels(dtype):
    q, k, v = (torch.randn(2, 512, 9, 7).to(dtype) for _ in range(3))
    rows = (x.flatten(2).mT[:, :, None] for x in (q, k, v))
    right = attention_float64(*rows)[0][:, :, 0].mT.reshape(q.shape)
    close(ours.vae_attention(q, k, v), right, 2e-5 if dtype == torch.float32 else 1e-2)


def standard(q, k, v, heads, **_options):
    return right_of(q, k, v, q.shape[-1] // heads).flatten(2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float64}, "q has dtype torch.float64"),
        ({"dim": 600}, "q has a head_dim of 600"),
        ({"option": {"top_k": 3}}, "top_k is an argument that Fulmen does not know"),
    ],
)
def test_what_is_not_served_is_said_once(change, reason, caplog):
    dim = change.get("dim", 40)
    q, k, v = inputs(dim=dim, dtype=change.get("dtype", torch.float32))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            out = ours.attention_override(standard, q, k, v, heads=3, **change.get("option", {}))
    close(out, right_of(q, k, v, dim).flatten(2))
    assert [record.getMessage() for record in caplog.records] == [
        f"Fulmen: a call goes to ComfyUI's standard: {reason}"
    ]


def test_calls_that_are_refused_go_to_comfyui(caplog):
    q, k, v = inputs()
    mask = torch.randn(19, 23).double()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            out = ours.attention_override(
                lambda q, k, v, heads, mask: right_of(q, k, v, mask=mask).flatten(2),
                q,
                k,
                v,
                3,
                mask,
            )
    close(out, right_of(q, k, v, mask=mask).flatten(2))
    (record,) = caplog.records
    assert "attn_mask has dtype float64" in record.getMessage()


def test_a_vaes_own_wrapped_function_comes_back():
    def inner(q, k, v):
        raise AssertionError("what a decorator is around")

    @functools.wraps(inner)
    def own(q, k, v):
        return ours.vae_attention(q, k, v)

    vae = types.SimpleNamespace(first_stage_model=torch.nn.Module())
    vae.first_stage_model.optimized_attention = own
    node = ours.FulmenVAEAttention()
    node.patch(vae, False)
    assert vae.first_stage_model.optimized_attention is own
    for _ in range(2):
        node.patch(vae, True)
    assert vae.first_stage_model.optimized_attention is not own
    node.patch(vae, False)
    assert vae.first_stage_model.optimized_attention is own


class Patcher:
    """What the nodes use of comfy.model_patcher.ModelPatcher."""

    def __init__(self, options):
        self.model_options = options

    def clone(self):
        inner = dict(self.model_options.get("transformer_options", {}))
        return Patcher({**self.model_options, "transformer_options": inner})


def test_nodes_take_effect_and_are_undone():
    model = Patcher({"transformer_options": {"other": 1}})
    (served,) = ours.NODE_CLASS_MAPPINGS["FulmenAttention"]().patch(model)
    options = served.model_options["transformer_options"]
    assert options == {"other": 1, "optimized_attention_override": ours.attention_override}
    assert model.model_options == {"transformer_options": {"other": 1}}
    (undone,) = ours.FulmenAttention().patch(served, enabled=False)
    assert undone.model_options["transformer_options"] == {"other": 1}

    block = torch.nn.Identity()
    block.optimized_attention = standard
    vae = types.SimpleNamespace(first_stage_model=torch.nn.Sequential(block))
    for _ in range(2):
        assert ours.FulmenVAEAttention().patch(vae) == (vae,)
        x = torch.randn(1, 32, 5, 5)
        close(block.optimized_attention(x, x, x), ours.vae_attention(x, x, x))
    ours.FulmenVAEAttention().patch(vae, enabled=False)
    assert block.optimized_attention is standard


def test_a_wrong_choice_is_refused(monkeypatch):
    module = types.ModuleType("comfy.ldm.modules.attention")
    module.register_attention_function = lambda name, function: None
    modules = types.ModuleType("comfy.ldm.modules")
    modules.attention = module
    for name, value in {
        "comfy": types.ModuleType("comfy"),
        "comfy.ldm": types.ModuleType("comfy.ldm"),
        "comfy.ldm.modules": modules,
        "comfy.ldm.modules.attention": module,
    }.items():
        monkeypatch.setitem(sys.modules, name, value)
    monkeypatch.setenv("FULMEN_COMFYUI", "yes")
    with pytest.raises(ValueError, match='FULMEN_COMFYUI is "yes": "all" is accepted'):
        ours.install()


# ComfyUI itself.


@pytest.fixture
def comfy(monkeypatch):
    if not (SOURCE / "comfy/ldm/modules/attention.py").exists():
        pytest.skip(f"no source of ComfyUI in {SOURCE}: integrations/comfyui/fetch brings it there")
    pytest.importorskip("psutil")
    monkeypatch.syspath_prepend(str(SOURCE))
    import comfy.cli_args

    comfy.cli_args.args.cpu = True
    import comfy.ldm.modules.attention
    import comfy.ops

    return comfy


def randomise(model):
    with torch.no_grad():
        for parameter in model.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 9
            parameter.copy_(torch.randn_like(parameter) / fan_in**0.5)
    return model.eval()


def unet(comfy, **options):
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    common = {
        "image_size": 32,
        "in_channels": 4,
        "out_channels": 4,
        "num_res_blocks": [1, 1],
        "channel_mult": [1, 2],
        "use_spatial_transformer": True,
        "legacy": False,
        "dtype": torch.float32,
        "operations": comfy.ops.disable_weight_init,
    }
    return UNetModel(**{**common, **options})


def stable_diffusion(comfy):
    model = unet(
        comfy,
        model_channels=96,
        context_dim=32,
        num_heads=2,
        transformer_depth=[1, 1],
        transformer_depth_output=[1, 1, 1, 1],
        transformer_depth_middle=1,
    )
    return model, {"context": torch.randn(2, 77, 32)}


def stable_diffusion_xl(comfy):
    model = unet(
        comfy,
        model_channels=64,
        context_dim=48,
        num_head_channels=64,
        transformer_depth=[0, 2],
        transformer_depth_output=[0, 0, 2, 2],
        transformer_depth_middle=2,
        use_linear_in_transformer=True,
        num_classes="sequential",
        adm_in_channels=40,
    )
    return model, {"context": torch.randn(2, 77, 48), "y": torch.randn(2, 40)}


def flux(comfy):
    from comfy.ldm.flux.model import Flux

    model = Flux(
        in_channels=4,
        out_channels=4,
        vec_in_dim=24,
        context_in_dim=32,
        hidden_size=128,
        mlp_ratio=2.0,
        num_heads=2,
        depth=1,
        depth_single_blocks=1,
        axes_dim=[16, 24, 24],
        theta=10000,
        patch_size=1,
        qkv_bias=True,
        guidance_embed=False,
        dtype=torch.float32,
        operations=comfy.ops.disable_weight_init,
    )
    return model, {"context": torch.randn(2, 9, 32), "y": torch.randn(2, 24)}


@pytest.mark.parametrize("make", [stable_diffusion, stable_diffusion_xl, flux])
def test_comfyuis_models(make, comfy, plans, caplog):
    model, given = make(comfy)
    randomise(model)
    image, steps = torch.randn(2, 4, 16, 12), torch.tensor([3.0, 500.0])
    with torch.no_grad():
        right = model(image, steps, **given, transformer_options={})
        assert not plans()
        served = {"optimized_attention_override": ours.attention_override}
        found = model(image, steps, **given, transformer_options=served)
    assert len(plans()) >= 2
    assert not caplog.records
    close(found, right, 5e-5)


def test_comfyuis_vae(comfy, plans):
    from comfy.ldm.models.autoencoder import AutoencoderKL

    settings = {
        "double_z": True,
        "z_channels": 4,
        "resolution": 16,
        "in_channels": 3,
        "out_ch": 3,
        "ch": 128,
        "ch_mult": [4],
        "num_res_blocks": 1,
        "attn_resolutions": [],
        "dropout": 0.0,
    }
    vae = types.SimpleNamespace(
        first_stage_model=randomise(AutoencoderKL(ddconfig=settings, embed_dim=4))
    )
    with torch.no_grad():
        latent = torch.randn(1, 4, 12, 10)
        right = vae.first_stage_model.decode(latent)
        assert not plans()
        ours.FulmenVAEAttention().patch(vae)
        found = vae.first_stage_model.decode(latent)
    assert any(" h=1/1 d=512 " in line for line in plans())
    close(found, right, 5e-5)


def test_the_package_of_nodes(comfy, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "integrations"))
    import comfyui as package

    assert set(package.NODE_CLASS_MAPPINGS) == {"FulmenAttention", "FulmenVAEAttention"}
    assert comfy.ldm.modules.attention.get_attention_function("fulmen") is ours.attention
    monkeypatch.setenv("FULMEN_COMFYUI", "all")
    try:
        ours.install()
        assert torch.nn.functional.scaled_dot_product_attention.__module__.startswith("fulmen")
    finally:
        fulmen.torch.disable_sdpa()
