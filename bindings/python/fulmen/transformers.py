"""Attention for Hugging Face transformers (5 and later):

    fulmen.transformers.register()
    model = AutoModel.from_pretrained(..., attn_implementation="fulmen")

The mask function is registered, too, under the same name. Masks are transformers' own boolean ones, so any model's pattern is
right. Where a mask turns out to be a band (causal, sliding window) and padding, it carries that along: the kernels then skip what
the band leaves out, and of a static cache read the used rows only.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask, prepare_padding_mask, sdpa_mask

from fulmen._core import ArgumentError
from fulmen._functions import attention
from fulmen.torch._ops import last_dim_contiguous

_BAND = "_fulmen_band"
# What classes of models say of themselves where attention is not theirs alone.
_SUPPORTING = ("_supports_attention_backend", "_supports_sdpa")


class Band(NamedTuple):
    """Key j of the first num_keys is attended by query i, which is on the diagonal at j = i + num_keys - seqlen_q, when
    window_left and window_right keys beside the diagonal include it, and padding keeps it."""

    num_keys: int
    window_left: int
    window_right: int
    padding: torch.Tensor | None  # [batch, 1, 1, num_keys], True is kept


def register(name: str = "fulmen") -> None:
    """Makes attn_implementation=name known to transformers. Once is enough; again does nothing."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)


@functools.cache
def _masks_of(config: type) -> Callable[..., torch.Tensor | None] | None:
    """What the models of a configuration are prepared for; None where they never ask AttentionInterface for anything."""
    own = config.__module__.startswith("transformers.models.")
    models = sys.modules.get(config.__module__.replace(".configuration_", ".modeling_")) if own else None
    if models is None or any(getattr(one, flag, False) is True for one in vars(models).values() for flag in _SUPPORTING):
        return sdpa_mask
    # To leave a mask out because a module is causal, or to have a boolean one, may be new to these, and parts of them may add the
    # mask to scores themselves.
    return eager_mask if hasattr(models, "ALL_ATTENTION_FUNCTIONS") else None


def attention_mask(**arguments: Any) -> torch.Tensor | None:
    """transformers' own boolean mask, [batch, 1, seqlen_q, seqlen_k], and what it is made of where that can be said.

    None is what it is for torch's SDPA: everything, or causal for a causal module's call of more than one query. Models that are
    not made for SDPA have the mask of eager attention, which is added to scores. Those with nothing but attention of their own are
    refused.
    """
    # Compilers can't look at modules: what is compiled is taken to be made for SDPA.
    masks = sdpa_mask if torch.compiler.is_compiling() else _masks_of(type(arguments.get("config")))
    if masks is None:
        name = type(arguments["config"]).__name__.removesuffix("Config")
        raise NotImplementedError(f'{name} has attention of its own only: attn_implementation="eager" is accepted')
    if masks is eager_mask:
        return eager_mask(**arguments)
    mask = sdpa_mask(**arguments)
    # A graph has no place for a tensor's attributes: it reads the mask itself.
    if mask is not None and not torch.compiler.is_compiling() and "q_length" in arguments:
        band = _band_of(**arguments)
        if band is not None:
            setattr(mask, _BAND, (band, _version(mask)))
    return mask


def _version(mask: torch.Tensor) -> int | None:
    """How often it was written, as far as torch counts: what a model has changed is a band no more."""
    return None if mask.is_inference() else mask._version


def _band_of(
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **arguments: Any,
) -> Band | None:
    if use_vmap:  # a user's own pattern, which is expensive to ask twice
        return None
    pattern = sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        local_size=local_size,
        device=device,
        **{**arguments, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
    )
    if pattern.shape[0] > 1 and pattern.stride(0) != 0:  # it differs by sequence
        return None
    pattern = pattern[0, 0]
    offset = int(q_offset) - kv_offset
    distance = torch.arange(kv_length, device=device) - (torch.arange(q_length, device=device)[:, None] + offset)
    for left, right in _candidates(local_size):
        expected = torch.ones_like(pattern)
        if left >= 0:
            expected &= distance >= -left
        if right >= 0:
            expected &= distance <= right
        if torch.equal(pattern, expected):
            break
    else:
        return None
    # The diagonal of attention() ends at the last key. A causal pattern attends none of those behind.
    num_keys = offset + q_length
    if num_keys > kv_length or num_keys < 0 or (num_keys < kv_length and right != 0):
        if (left, right) != (-1, -1):
            return None
        num_keys = kv_length
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + num_keys]
        padding = None if padding.all() else padding[:, None, None, :]
    return Band(num_keys, left, right, padding)


def _candidates(local_size: int | None) -> Iterator[tuple[int, int]]:
    yield -1, 0  # causal
    yield -1, -1
    if local_size is not None:
        yield local_size - 1, 0
        yield local_size, local_size


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    deterministic: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What AttentionInterface calls.

    Args:
      query, key, value: [batch, heads or kv_heads, seqlen, head_dim]. A sliding window is in the mask.
      attention_mask: bool, True attends, or added to the scores; broadcasts to [batch, heads, seqlen_q, seqlen_k].
      softcap: None or 0 is off. s_aux: [heads], sinks. position_bias: added to the scores, beside either mask.

    Returns:
      ([batch, seqlen_q, heads, head_dim_v], None): there are no attention weights to return.
    """
    for name in ("cache", "indices", "block_indices", "sinks"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f'{name} is given: attn_implementation="fulmen" has no such attention, "sdpa" or "eager" may')
    if kwargs.get("output_attentions"):
        raise ArgumentError('output_attentions is True: attn_implementation="fulmen" has no attention weights, "eager" has')

    seqlen_q, seqlen_k = query.shape[2], key.shape[2]
    options: dict[str, Any] = {}
    bias = position_bias
    if attention_mask is None:
        causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        if causal and seqlen_q > 1:
            # As for SDPA, which starts its diagonal at the first key.
            options["causal"] = "top_left"
    else:
        band, version = getattr(attention_mask, _BAND, (None, None))
        if band is not None and version == _version(attention_mask) and attention_mask.shape[2:] == (seqlen_q, seqlen_k):
            options.update(window_left=band.window_left, window_right=band.window_right, keep_mask=band.padding)
            key, value = key[:, :, : band.num_keys], value[:, :, : band.num_keys]
            bias = bias if bias is None else bias[..., : band.num_keys]
        elif attention_mask.dtype == torch.bool:
            options["keep_mask"] = last_dim_contiguous(attention_mask[..., :seqlen_k])
        else:
            scores = attention_mask[..., :seqlen_k]
            bias = scores if bias is None else bias + scores
    out = attention(
        last_dim_contiguous(query).transpose(1, 2),
        last_dim_contiguous(key).transpose(1, 2),
        last_dim_contiguous(value).transpose(1, 2),
        bias=None if bias is None else last_dim_contiguous(bias),
        sinks=None if s_aux is None else s_aux.reshape(-1).float(),
        softmax_scale=scaling,
        softcap=softcap or 0.0,
        dropout=dropout,
        deterministic=bool(deterministic),
        **options,
    )
    return out, None
