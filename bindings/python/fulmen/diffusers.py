"""Attention backend "fulmen" for Hugging Face diffusers (0.36 and later):

    import fulmen.diffusers
    fulmen.diffusers.enable(pipe)

Models such as Flux, Wan and Qwen-Image call diffusers' dispatcher, and have a backend by name:
register() alone and model.set_attention_backend("fulmen") serve them. UNets, VAEs and SD3 call
PyTorch's scaled_dot_product_attention, whatever backend is set: fulmen.torch.enable_sdpa() serves
them, and says once which calls it leaves to PyTorch. enable() does what each model needs.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import DiffusionPipeline
from diffusers.models import ModelMixin, attention_dispatch

from fulmen._core import ArgumentError
from fulmen._functions import attention
from fulmen.torch import disable_sdpa, enable_sdpa, scaled_dot_product_attention

_NAME = "fulmen"


def enable(*parts: DiffusionPipeline | torch.nn.Module) -> dict[str, str]:
    """Serves pipelines' and models' attention by Fulmen, until disable().

    Args:
      parts: pipelines, all of whose models are meant, and models.

    Returns:
      How each class of model is served: by "set_attention_backend" or "enable_sdpa", or both. The
      latter holds for the whole process. fulmen.ArgumentError: something else was given.
    """
    register()
    served: dict[str, str] = {}
    for model in _models_of(parts):
        ways = _ways_of(model)
        if "set_attention_backend" in ways:
            model.set_attention_backend(_NAME)
        if "enable_sdpa" in ways:
            enable_sdpa()
        served[type(model).__name__] = " and ".join(ways)
    return served


def disable(*parts: DiffusionPipeline | torch.nn.Module) -> None:
    """Undoes enable(): the models take diffusers' native backend, the process PyTorch's
    scaled_dot_product_attention."""
    for model in _models_of(parts):
        if "set_attention_backend" in _ways_of(model):
            model.set_attention_backend("native")
    disable_sdpa()


def _models_of(parts: tuple[Any, ...]) -> list[Any]:
    models: list[Any] = []
    for part in parts:
        if isinstance(part, DiffusionPipeline):
            models += [m for m in part.components.values() if isinstance(m, torch.nn.Module)]
        elif isinstance(part, torch.nn.Module):
            models.append(part)
        else:
            raise ArgumentError(
                f"parts: {type(part).__name__} is given: pipelines of diffusers and models are "
                "accepted"
            )
    return models


def _ways_of(model: torch.nn.Module) -> list[str]:
    """What a model's attention listens to. Processors that call the dispatcher have a backend of
    their own."""
    if not isinstance(model, ModelMixin):
        return ["enable_sdpa"]  # a text encoder
    processors = [m.processor for m in model.modules() if getattr(m, "processor", None) is not None]
    dispatched = [hasattr(processor, "_attention_backend") for processor in processors]
    return ["set_attention_backend"] * any(dispatched) + ["enable_sdpa"] * (not all(dispatched))


def register() -> None:
    """Makes the backend "fulmen" known to diffusers: for set_attention_backend("fulmen") of a model
    and for the context manager diffusers.attention_backend("fulmen").

    Again does nothing. diffusers reads DIFFUSERS_ATTN_BACKEND when it is imported, before this:
    "fulmen" there is unknown.
    """
    names = attention_dispatch.AttentionBackendName
    if _NAME in attention_dispatch._AttentionBackendRegistry.list_backends():
        return
    attention_dispatch._AttentionBackendRegistry.register(
        _new_member(names, "FULMEN", _NAME), constraints=[_refuse_context_parallel]
    )(attention_backend)


def _new_member(names: Any, name: str, value: str) -> Any:
    """A member that an enumeration of strings lacks; or the one that a newer diffusers has."""
    if value in names._value2member_map_:
        return names(value)
    member = str.__new__(names, value)
    member._name_, member._value_ = name, value
    names._member_names_.append(name)
    names._member_map_[name] = names._value2member_map_[value] = member
    return member


def _refuse_context_parallel(**arguments: Any) -> None:
    if arguments.get("_parallel_config") is not None:
        raise ArgumentError(
            'attention backend "fulmen" does not run with context parallelism: no parallel_config '
            "is accepted"
        )


def attention_backend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    _parallel_config: Any = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention as diffusers' dispatcher calls it.

    Args:
      query: [batch, seqlen_q, heads, head_dim], float32, float16 or bfloat16; key, value:
        [batch, seqlen_k, heads, head_dim]; with enable_gqa they may have fewer heads.
      attn_mask: [batch, seqlen_k], or what broadcasts to [batch, heads, seqlen_q, seqlen_k]; bool,
        True attends, or float, added to the scores (differentiable).
      is_causal: aligned top left; not together with attn_mask. scale: None is 1 / sqrt(head_dim).

    Returns:
      [batch, seqlen_q, heads, head_dim of value]; with return_lse also the log-sum-exp,
      [batch, seqlen_q, heads], float32: without attn_mask and dropout_p alone. Errors are those of
      fulmen.attention.
    """
    _refuse_context_parallel(_parallel_config=_parallel_config)
    if return_lse:
        if attn_mask is not None or dropout_p:
            raise ArgumentError("return_lse is True: neither attn_mask nor dropout_p is accepted")
        out, lse = attention(
            query,
            key,
            value,
            softmax_scale=scale,
            causal="top_left" if is_causal else False,
            return_lse=True,
        )
        return out, lse.transpose(1, 2)
    if attn_mask is not None and attn_mask.dim() == 2 and _is_of_keys(attn_mask, key):
        attn_mask = attn_mask[:, None, None]
    return scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        enable_gqa,
    ).transpose(1, 2)


def _is_of_keys(mask: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether a mask has one flag for each key of each sequence, as diffusers' own backend tells
    it."""
    return tuple(mask.shape) == (key.shape[0], key.shape[1])
