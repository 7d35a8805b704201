"""Models of diffusers with Fulmen beside diffusers' own attention: through its dispatcher, and
through PyTorch's scaled_dot_product_attention."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import problems
import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers", minversion="0.36")

import fulmen.diffusers as ours  # noqa: E402
from diffusers.models.attention_dispatch import dispatch_attention_fn  # noqa: E402
from torch_problems import close  # noqa: E402

ours.register()
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(problems.SEED)


def flux():
    return diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    ), {
        "hidden_states": torch.randn(2, 30, 4),
        "encoder_hidden_states": torch.randn(2, 9, 32),
        "pooled_projections": torch.randn(2, 32),
        "timestep": torch.rand(2),
        "img_ids": torch.randint(0, 9, (30, 3)).float(),
        "txt_ids": torch.zeros(9, 3),
    }


def stable_diffusion_3():
    return diffusers.SD3Transformer2DModel(
        sample_size=12,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=40,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=80,
        pooled_projection_dim=24,
        out_channels=4,
        pos_embed_max_size=12,
    ), {
        "hidden_states": torch.randn(2, 4, 12, 10),
        "encoder_hidden_states": torch.randn(2, 7, 32),
        "pooled_projections": torch.randn(2, 24),
        "timestep": torch.tensor([3, 700]),
    }


def wan():
    return diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    ), {
        "hidden_states": torch.randn(1, 4, 3, 8, 6),
        "timestep": torch.tensor([12]),
        "encoder_hidden_states": torch.randn(1, 11, 16),
    }


def randomise(model):
    with torch.no_grad():
        for parameter in model.parameters():
            inputs = parameter[0].numel() if parameter.dim() > 1 else 9
            parameter.copy_(torch.randn_like(parameter) / inputs**0.5)
    return model


@pytest.mark.parametrize(
    ("make", "way"),
    [
        (flux, "set_attention_backend"),
        (stable_diffusion_3, "enable_sdpa"),
        (wan, "set_attention_backend"),
    ],
)
def test_transformers(make, way, plans):
    model, inputs = make()
    randomise(model)
    weight = None

    def run():
        nonlocal weight
        model.zero_grad()
        out = model(**inputs, return_dict=False)[0]
        weight = torch.randn_like(out) if weight is None else weight
        (out * weight).sum().backward()
        return out, [p.grad.clone() for p in model.parameters() if p.grad is not None]

    right = run()
    assert not plans()
    assert ours.enable(model) == {type(model).__name__: way}
    try:
        out, gradients = run()
    finally:
        ours.disable(model)
    assert len(plans()) >= 4
    close(out, right[0], 2e-5)
    for found, expected in zip(gradients, right[1], strict=True):
        close(found, expected, 1e-4)
    run()
    assert not plans()


def test_pipeline_gives_the_same_image(plans):
    transformer, _ = flux()
    vae = diffusers.AutoencoderKL(
        sample_size=32,
        in_channels=3,
        out_channels=3,
        block_out_channels=(8,),
        layers_per_block=1,
        latent_channels=1,
        norm_num_groups=1,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.06,
        scaling_factor=1.5,
    )
    pipe = diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        transformer=randomise(transformer),
    )
    pipe.set_progress_bar_config(disable=True)
    call = {
        "prompt_embeds": torch.randn(1, 9, 32),
        "pooled_prompt_embeds": torch.randn(1, 32),
        "num_inference_steps": 3,
        "height": 8,
        "width": 8,
        "output_type": "pt",
    }
    right = pipe(**call, generator=torch.Generator().manual_seed(3)).images
    assert right.std() > 0.01
    assert not plans()
    assert ours.enable(pipe) == {
        "FluxTransformer2DModel": "set_attention_backend",
        "AutoencoderKL": "enable_sdpa",
    }
    try:
        found = pipe(**call, generator=torch.Generator().manual_seed(3)).images
    finally:
        ours.disable(pipe)
    planned = plans()
    assert any(" d=16 " in line for line in planned)
    assert any(" h=1/1 d=8 " in line for line in planned), planned  # the VAE's
    close(found, right, 2e-5)


@pytest.mark.parametrize("head_dim", [40, 80])
def test_unet_through_sdpa(head_dim, plans):
    model = randomise(
        diffusers.UNet2DConditionModel(
            sample_size=16,
            block_out_channels=(2 * head_dim, 2 * head_dim),
            layers_per_block=1,
            norm_num_groups=2,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            cross_attention_dim=24,
            attention_head_dim=2,  # the number of heads: diffusers' known confusion
        )
    )
    inputs = (torch.randn(2, 4, 16, 12), torch.tensor(9), torch.randn(2, 77, 24))
    with torch.no_grad():
        right = model(*inputs).sample
        assert not plans()
        assert ours.enable(model) == {"UNet2DConditionModel": "enable_sdpa"}
        try:
            found = model(*inputs).sample
        finally:
            ours.disable(model)
    assert any(f" d={head_dim} " in line for line in plans())
    close(found, right, 5e-5)


def qkv(heads=4, kv_heads=4):
    q = torch.randn(2, 17, heads, 24)
    return q, *(torch.randn(2, 21, kv_heads, 24) for _ in range(2))


MASKS = {
    "keys": lambda: torch.rand(2, 21) < 0.7,
    "keys, added": lambda: torch.randn(2, 21),
    "whole": lambda: torch.rand(2, 4, 17, 21) < 0.7,
    "broadcast": lambda: torch.randn(2, 1, 1, 21),
    "three dims": lambda: torch.randn(4, 17, 21),
}


@pytest.mark.parametrize("mask", MASKS)
def test_masks_as_the_native_backend(mask):
    q, k, v = qkv()
    given = MASKS[mask]()
    found, right = (
        dispatch_attention_fn(q, k, v, given, backend=name, scale=0.3)
        for name in ("fulmen", "native")
    )
    close(found, right)


def test_grouped_causal_and_lse():
    q, k, v = qkv(kv_heads=2)
    found, right = (
        dispatch_attention_fn(q, k, v, is_causal=True, enable_gqa=True, backend=name)
        for name in ("fulmen", "native")
    )
    close(found, right)
    q, k, v = qkv()
    out, lse = dispatch_attention_fn(
        q, k, v, backend="fulmen", attention_kwargs={"return_lse": True}
    )
    scores = torch.einsum("bqhd,bkhd->bqhk", q.double(), k.double()) / 24**0.5
    close(lse, scores.logsumexp(-1))
    close(out, torch.einsum("bqhk,bkhd->bqhd", scores.softmax(-1), v.double()))


def test_refusals():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="attn_mask"):
        ours.attention_backend(q, k, v, torch.ones(2, 21, dtype=torch.bool), return_lse=True)
    with pytest.raises(ValueError, match="context parallelism"):
        dispatch_attention_fn(q, k, v, backend="fulmen", parallel_config=object())
    with pytest.raises((TypeError, ValueError), match="query"):
        dispatch_attention_fn(q.double(), k, v, backend="fulmen")
    with pytest.raises(ValueError, match="int is given: pipelines"):
        ours.enable(3)
    ours.register()  # again does nothing
    names = [name.value for name in ours.attention_dispatch.AttentionBackendName]
    assert names.count("fulmen") == 1


def test_compiled_without_breaks():
    model, inputs = flux()
    randomise(model).set_attention_backend("fulmen")
    with torch.no_grad():
        right = model(**inputs, return_dict=False)[0]
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        close(compiled(**inputs, return_dict=False)[0], right)


def test_patched_package(tmp_path):
    """integrations/diffusers' change of diffusers itself: the name is there without fulmen's
    import."""
    patch = ROOT / "integrations/diffusers/0001-fulmen-backend.patch"
    package = pathlib.Path(diffusers.__file__).parent
    version = re.search(r"diffusers ([\d.]+\d)", (patch.parent / "README.md").read_text())[1]
    if diffusers.__version__ != version:
        pytest.skip(f"the patch is for diffusers {version}, {diffusers.__version__} is installed")
    # The files around it are the installed ones.
    copy = tmp_path / "src" / "diffusers"
    copy.mkdir(parents=True)
    for file in package.iterdir():
        if file.name != "models":
            (copy / file.name).symlink_to(file)
    (copy / "models").mkdir()
    for file in (package / "models").iterdir():
        if file.name != "attention_dispatch.py":
            (copy / "models" / file.name).symlink_to(file)
    shutil.copy(package / "models/attention_dispatch.py", copy / "models")
    subprocess.run(["git", "apply", patch], cwd=tmp_path, check=True)
    program = """
import sys, torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
assert "fulmen" not in sys.modules
q = torch.randn(1, 5, 2, 8)
ours, native = (dispatch_attention_fn(q, q, q, **kind) for kind in ({}, {"backend": "native"}))
print((ours - native).abs().max().item())
import fulmen.diffusers
fulmen.diffusers.register()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTHONPATH": str(tmp_path / "src"),
            "DIFFUSERS_ATTN_BACKEND": "fulmen",
            "FLASH_ATTENTION_DEBUG": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 1e-5
    assert " on cpu for fp32 b=1 sq=5 sk=5 h=2/2 d=8 " in ran.stderr
