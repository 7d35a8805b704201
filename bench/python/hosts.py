"""Programs that people run, with their own attention and with Fulmen's, in one process.

  python bench/python/hosts.py [host ...] [--rounds N] [--threads N]   markdown on stdout

Hosts are the names below; without one, all that can be imported. Models have random weights: the
time does not depend on them. The two take turns in every round; a figure is the median over the
rounds, and the ratio the median of the rounds' ratios. `difference` is the largest difference of
the results, divided by the largest result.
"""

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[[], torch.Tensor]


class Host:
    """A host's run, and what serves it by Fulmen while it is entered."""

    def __init__(
        self, version: str, run: Run, served: Callable[[], contextlib.AbstractContextManager]
    ):
        self.version, self.run, self.served = version, run, served


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
        lambda: model(image, torch.tensor(9), text).sample,
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
        f"diffusers {diffusers.__version__}", lambda: model(image), lambda: diffusers_served(model)
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
        lambda: model(**given).sample,
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
        lambda: model(image, step, text, transformer_options=dict(options)),
        served,
    )


def continuous_batching() -> Host:
    """Continuous batching: 8 requests of up to 1,000 tokens, 32 new ones each, a Llama of 4 layers,
    8 heads of 64 and 2 KV heads."""
    import fulmen.transformers
    import transformers

    fulmen.transformers.register()
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    config._attn_implementation = "sdpa"
    model = transformers.LlamaForCausalLM(config).eval()
    prompts = [torch.randint(2, 1000, (1000 - 120 * n,)).tolist() for n in range(8)]
    new = transformers.GenerationConfig(max_new_tokens=32, do_sample=False, eos_token_id=-1)
    batching = transformers.ContinuousBatchingConfig(
        num_blocks=64, max_batch_tokens=512, max_requests_per_batch=8
    )

    def run() -> torch.Tensor:
        found = model.generate_batch(
            inputs=prompts,
            generation_config=new,
            continuous_batching_config=batching,
            progress_bar=False,
        )
        return torch.tensor([one.generated_tokens for one in found.values()]).double()

    @contextlib.contextmanager
    def served() -> Iterator[None]:
        model.set_attn_implementation("fulmen")
        try:
            yield
        finally:
            model.set_attn_implementation("sdpa")

    return Host(f"transformers {transformers.__version__}", run, served)


HOSTS = {
    "sd15": stable_diffusion,
    "vae": vae,
    "flux": flux,
    "comfyui": comfyui,
    "transformers": continuous_batching,
}


def timed(run: Run) -> tuple[float, torch.Tensor]:
    start = time.perf_counter()
    out = run()
    return time.perf_counter() - start, out


def row_of(name: str, host: Host, rounds: int) -> str:
    right = host.run()
    with host.served():
        found = host.run()
    difference = ((found - right).abs().max() / right.abs().max()).item()
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        default = timed(host.run)[0]
        with host.served():
            times.append((default, timed(host.run)[0]))
    default, ours = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(theirs / mine for theirs, mine in times)
    about = (HOSTS[name].__doc__ or "").rstrip(".")
    return (
        f"| {host.version} | {about} | {default:.3f} | {ours:.3f} | {ratio:.2f} "
        f"| {difference:.1e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("hosts", nargs="*", metavar="host", help=", ".join(HOSTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    unknown = set(arguments.hosts) - set(HOSTS)
    if unknown:
        parser.error(f"host is {min(unknown)}: {', '.join(HOSTS)} are accepted")
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    print(f"PyTorch {torch.__version__}, {arguments.threads} threads, fp32\n")
    print("| host | model | its own, s | Fulmen, s | ratio | difference |")
    print("|---|---|---|---|---|---|")
    with torch.no_grad():
        for name in arguments.hosts or HOSTS:
            try:
                host = HOSTS[name]()
            except ImportError as error:
                if arguments.hosts:
                    raise
                print(f"{name}: {error}", file=sys.stderr)
                continue
            print(row_of(name, host, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
