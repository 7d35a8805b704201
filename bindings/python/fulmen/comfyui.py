"""Attention of ComfyUI's models and VAEs by Fulmen: what the nodes of integrations/comfyui are made
of.

ComfyUI calls attention through functions of comfy.ldm.modules.attention; a model's
`transformer_options["optimized_attention_override"]` takes their place. The classes below are nodes
of ComfyUI; install() is what its package of nodes does when ComfyUI loads it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from typing import Any

import torch

from fulmen.torch import enable_sdpa, scaled_dot_product_attention
from fulmen.torch._sdpa import why_not_served

_log = logging.getLogger("fulmen.comfyui")
_said: set[str] = set()
_Tensor = torch.Tensor
# What other kernels need to be told: ours adds in fp32 whatever the inputs are, and is exact.
_WITHOUT_EFFECT = {
    "attn_precision",
    "low_precision_attention",
    "transformer_options",
    "_inside_attn_wrapper",
}


def attention(
    q: _Tensor,
    k: _Tensor,
    v: _Tensor,
    heads: int,
    mask: _Tensor | None = None,
    attn_precision: torch.dtype | None = None,
    skip_reshape: bool = False,
    skip_output_reshape: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **_options: Any,
) -> _Tensor:
    """ComfyUI's attention function, as register_attention_function takes it.

    Args:
      q, k, v: [batch, rows, heads * head_dim], or with skip_reshape [batch, heads, rows, head_dim];
        float32, float16 or bfloat16. With enable_gqa k and v may have fewer heads.
      heads: of q.
      mask: [seqlen_q, seqlen_k], [batch, seqlen_q, seqlen_k] or with heads before the two; bool,
        True attends, or float, added to the scores. Dims of 1 broadcast.
      scale: None is 1 / sqrt(head_dim). attn_precision and other options change nothing.

    Returns:
      [batch, seqlen_q, heads * head_dim], or with skip_output_reshape
      [batch, heads, seqlen_q, head_dim]. Errors are those of fulmen.attention.
    """
    if not skip_reshape:
        dim = q.shape[-1] // heads
        q, k, v = (x.unflatten(-1, (-1, dim)).transpose(1, 2) for x in (q, k, v))
    if mask is not None and mask.dim() == 3:
        mask = mask[:, None]
    out = scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=enable_gqa)
    return out if skip_output_reshape else out.transpose(1, 2).flatten(2)


def attention_override(function: Callable[..., _Tensor], *args: Any, **options: Any) -> _Tensor:
    """What `optimized_attention_override` is set to. A call that Fulmen does not serve goes to
    ComfyUI's own function, and the log says why, once for each reason."""
    reason = _why_not(*args, **options)
    if reason is None:
        try:
            return attention(*args, **options)
        except (TypeError, ValueError, NotImplementedError) as error:  # before anything is computed
            reason = str(error)
    _say_once(f"a call goes to ComfyUI's {getattr(function, '__name__', function)}: {reason}")
    return function(*args, **options)


def _why_not(
    q: _Tensor,
    k: _Tensor,
    v: _Tensor,
    heads: int,
    mask: _Tensor | None = None,
    attn_precision: torch.dtype | None = None,
    skip_reshape: bool = False,
    skip_output_reshape: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **options: Any,
) -> str | None:
    unknown = sorted(set(options) - _WITHOUT_EFFECT)
    if unknown:
        return f"{unknown[0]} is an argument that Fulmen does not know"
    if not skip_reshape:  # of which head_dim is the last dim
        dim = q.shape[-1] // heads
        q, k, v = (x.unflatten(-1, (-1, dim)) if isinstance(x, _Tensor) else x for x in (q, k, v))
    return why_not_served(q=q, k=k, value=v)


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        _log.warning("Fulmen: %s", text)


def vae_attention(q: _Tensor, k: _Tensor, v: _Tensor) -> _Tensor:
    """Attention of a VAE's block, of one head over the pixels.

    Args:
      q, k, v: [batch, channels, ...], the rest is pixels; float32, float16 or bfloat16, 1 to 512
        channels.

    Returns:
      The same shape. Errors are those of fulmen.attention.
    """
    rows = (x.flatten(2).transpose(1, 2)[:, None] for x in (q, k, v))
    return scaled_dot_product_attention(*rows)[:, 0].transpose(1, 2).reshape(q.shape)


def _vae_override(function: Callable[..., _Tensor]) -> Callable[..., _Tensor]:
    def override(q: _Tensor, k: _Tensor, v: _Tensor) -> _Tensor:
        last = (x.flatten(2).transpose(1, 2) for x in (q, k, v))
        reason = why_not_served(**dict(zip(("q", "k", "value"), last, strict=True)))
        if reason is None:
            return vae_attention(q, k, v)
        _say_once(f"a VAE's call goes to ComfyUI's {function.__name__}: {reason}")
        return function(q, k, v)

    override._fulmen_instead_of = function  # type: ignore[attr-defined]
    return override


class FulmenAttention:
    """Node: a model whose attention Fulmen computes."""

    CATEGORY = "Fulmen"
    FUNCTION = "patch"
    RETURN_TYPES = ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"model": ("MODEL",), "enabled": ("BOOLEAN", {"default": True})}}

    def patch(self, model: Any, enabled: bool = True) -> tuple[Any]:
        """Returns a clone of a ModelPatcher; the given one stays as it is."""
        model = model.clone()
        options = model.model_options.setdefault("transformer_options", {})
        if enabled:
            options["optimized_attention_override"] = attention_override
        elif options.get("optimized_attention_override") is attention_override:
            del options["optimized_attention_override"]
        return (model,)


class FulmenVAEAttention:
    """Node: a VAE whose attention Fulmen computes: of one head of 512, without a matrix of all
    pixels."""

    CATEGORY = "Fulmen"
    FUNCTION = "patch"
    RETURN_TYPES = ("VAE",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"vae": ("VAE",), "enabled": ("BOOLEAN", {"default": True})}}

    def patch(self, vae: Any, enabled: bool = True) -> tuple[Any]:
        """Returns the same VAE: ComfyUI's have no clones."""
        for module in vae.first_stage_model.modules():
            function = getattr(module, "optimized_attention", None)
            if not callable(function):
                continue
            original = getattr(function, "_fulmen_instead_of", function)
            module.optimized_attention = _vae_override(original) if enabled else original
        return (vae,)


NODE_CLASS_MAPPINGS = {
    "FulmenAttention": FulmenAttention,
    "FulmenVAEAttention": FulmenVAEAttention,
}
NODE_DISPLAY_NAME_MAPPINGS = {
    "FulmenAttention": "Fulmen Attention",
    "FulmenVAEAttention": "Fulmen VAE Attention",
}


def install() -> None:
    """Makes "fulmen" one of ComfyUI's attention functions, for nodes that choose by name; with
    FULMEN_COMFYUI=all in the environment all calls of PyTorch's scaled_dot_product_attention, text
    encoders' and VAEs' too, are Fulmen's, without a node, and comfy-kitchen's na3d on CPUs.

    Errors: ValueError, FULMEN_COMFYUI has another value.
    """
    from comfy.ldm.modules import attention as comfy_attention

    comfy_attention.register_attention_function("fulmen", attention)
    choice = os.environ.get("FULMEN_COMFYUI", "")
    if choice not in ("", "all"):
        raise ValueError(f'FULMEN_COMFYUI is "{choice}": "all" is accepted, or unset')
    if choice == "all":
        enable_sdpa()
        _serve_kitchen()
        used = getattr(comfy_attention.optimized_attention, "__name__", "?")
        if used != "attention_pytorch":
            _say_once(
                f"ComfyUI's attention is {used}, which does not call PyTorch's function: "
                "FULMEN_COMFYUI=all serves models when ComfyUI is started with "
                "--use-pytorch-cross-attention"
            )


def _serve_kitchen() -> None:
    if importlib.util.find_spec("comfy_kitchen") is None:
        return
    from fulmen import comfy_kitchen

    try:
        comfy_kitchen.register()
    except ImportError as error:  # a release without na3d
        _say_once(f"comfy-kitchen's attention stays its own: {error}")
