"""Programs that make images, for hosts.py."""

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import torch
from host import Host

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def diffusers_served(*models: torch.nn.Module) -> Iterator[None]:
    import fulmen.diffusers

    fulmen.diffusers.enable(*models)
    try:
        yield
    finally:
        fulmen.diffusers.disable(*models)


def stable_diffusion() -> Host:
    """One step of SD 1.5's UNet, 512 x 512 pixels, batch 1: heads of 40, 80 and 160."""
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=64, cross_attention_dim=768, attention_head_dim=8
    ).eval()
    image, text = torch.randn(1, 4, 64, 64), torch.randn(1, 77, 768)
    return Host(
        f"diffusers {diffusers.__version__}",
        lambda: (model(image, torch.tensor(9), text).sample,),
        lambda: diffusers_served(model),
    )


def vae() -> Host:
    """The middle of SD's VAE at 512 x 512 pixels: one head of 512 over 4,096 pixels."""
    import diffusers
    from diffusers.models.unets.unet_2d_blocks import UNetMidBlock2D

    model = UNetMidBlock2D(
        in_channels=512, temb_channels=None, attention_head_dim=512, resnet_groups=32
    ).eval()
    image = torch.randn(1, 512, 64, 64)
    return Host(
        f"diffusers {diffusers.__version__}",
        lambda: (model(image),),
        lambda: diffusers_served(model),
    )


def flux() -> Host:
    """Two blocks of Flux's transformer, 512 x 512 pixels: 24 heads of 128 over 1,536 rows."""
    import diffusers

    model = diffusers.FluxTransformer2DModel(num_layers=1, num_single_layers=1).eval()
    given = {
        "hidden_states": torch.randn(1, 1024, 64),
        "encoder_hidden_states": torch.randn(1, 512, 4096),
        "pooled_projections": torch.randn(1, 768),
        "timestep": torch.rand(1),
        "img_ids": torch.randint(0, 32, (1024, 3)).float(),
        "txt_ids": torch.zeros(512, 3),
    }
    return Host(
        f"diffusers {diffusers.__version__}",
        lambda: (model(**given).sample,),
        lambda: diffusers_served(model),
    )


def comfyui() -> Host:
    """The same step by ComfyUI's UNet and its own choice of attention on a CPU."""
    sys.path.insert(0, os.environ.get("COMFYUI", str(ROOT / "build/comfyui")))
    import comfy.cli_args

    comfy.cli_args.args.cpu = True
    import comfy.ops
    import comfyui_version
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel
    from fulmen.comfyui import attention_override

    model = UNetModel(
        image_size=32,
        in_channels=4,
        out_channels=4,
        model_channels=320,
        num_res_blocks=[2, 2, 2, 2],
        channel_mult=[1, 2, 4, 4],
        num_heads=8,
        transformer_depth=[1, 1, 1, 1, 1, 1, 0, 0],
        transformer_depth_output=[1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
        transformer_depth_middle=1,
        use_spatial_transformer=True,
        context_dim=768,
        legacy=False,
        dtype=torch.float32,
        operations=comfy.ops.disable_weight_init,
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 9
            parameter.copy_(torch.randn_like(parameter) / fan_in**0.5)
    image, text = torch.randn(1, 4, 64, 64), torch.randn(1, 77, 768)
    options: dict[str, object] = {}

    @contextlib.contextmanager
    def served() -> Iterator[None]:
        options["optimized_attention_override"] = attention_override
        try:
            yield
        finally:
            options.clear()

    step = torch.tensor([9.0])
    return Host(
        f"ComfyUI {comfyui_version.__version__}",
        lambda: (model(image, step, text, transformer_options=dict(options)),),
        served,
    )


def neighbourhood() -> Host:
    """comfy-kitchen's na3d, a grid of 8 x 24 x 24, 3 x 7 x 7 around each, 8 heads of 64."""
    import comfy_kitchen
    import fulmen.comfy_kitchen
    from comfy_kitchen.registry import registry

    fulmen.comfy_kitchen.register()
    registry.disable("fulmen")
    q, k, v = torch.randn(3, 1, 8, 24, 24, 8, 64).unbind()

    @contextlib.contextmanager
    def served() -> Iterator[None]:
        registry.enable("fulmen")
        try:
            yield
        finally:
            registry.disable("fulmen")

    return Host(
        f"comfy-kitchen {version('comfy-kitchen')}",
        lambda: (comfy_kitchen.na3d(q, k, v, [3, 7, 7]),),
        served,
    )
