"""Models that fold proteins, for hosts.py."""

import contextlib
from collections.abc import Callable, Iterator
from importlib.metadata import version

import fulmen.torch
import torch
from host import Host


def pairformer(tokens: int) -> Host:
    """boltz's layer of its default sizes, its own weights but for those that begin as zeros. The
    results are all gradients, of parameters and inputs."""
    from boltz.model.layers.pairformer import PairformerLayer

    layer = PairformerLayer(384, 128, v2=True).train()
    with torch.no_grad():
        for parameter in layer.parameters():
            if not parameter.any():
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    s = torch.randn(1, tokens, 384, requires_grad=True)
    z = torch.randn(1, tokens, tokens, 128, requires_grad=True)
    mask = torch.ones(1, tokens)
    mask[:, tokens - tokens // 8 :] = 0
    pair_mask = mask[:, :, None] * mask[:, None, :]
    # The bias of proj_z is the same for all keys: its gradient is 0, but for rounding.
    parameters = {
        name: one for name, one in layer.named_parameters() if not name.endswith("proj_z.0.bias")
    }
    wanted = [s, z, *parameters.values()]
    use_kernels = False

    @torch.enable_grad()
    def step() -> tuple[torch.Tensor, ...]:
        torch.manual_seed(1)  # of the dropout
        out_s, out_z = layer(s, z, mask, pair_mask, use_kernels=use_kernels)
        # Rows of padding have no result.
        kept = (out_s * mask[..., None]).square().mean()
        kept = kept + (out_z * pair_mask[..., None]).square().mean()
        return torch.autograd.grad(kept, wanted)

    @contextlib.contextmanager
    def served() -> Iterator[None]:
        nonlocal use_kernels
        fulmen.torch.install_cuequivariance(stand_in=True)
        use_kernels = True
        try:
            yield
        finally:
            use_kernels = False
            fulmen.torch.uninstall_cuequivariance()

    return Host(f"boltz {version('boltz')}", step, served)


def pairformer_of(tokens: int) -> Callable[[], Host]:
    def made() -> Host:
        return pairformer(tokens)

    made.__doc__ = f"Training step of a pairformer layer, {tokens} tokens: forward and backward."
    return made
