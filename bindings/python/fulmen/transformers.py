"""Attention for Hugging Face transformers (5 and later):

    fulmen.transformers.register()
    model = AutoModel.from_pretrained(..., attn_implementation="fulmen")

The mask function is registered, too, under the same name. Masks are transformers' own boolean ones,
so any model's pattern is right. Where a mask turns out to be a band (causal, sliding window) and
padding, it carries that along: the kernels then skip what the band leaves out, and of a static
cache read the used rows only.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    AttentionMaskInterface,
    eager_mask,
    prepare_padding_mask,
    sdpa_mask,
)
from transformers.utils import logging

from fulmen import _continuous_batching
from fulmen._core import ArgumentError
from fulmen._functions import attention
from fulmen.torch._ops import last_dim_contiguous
from fulmen.torch._sdpa import why_not_served

_log = logging.get_logger(__name__)
_BAND = "_fulmen_band"
# Attributes of model classes that call AttentionInterface.
_SUPPORTING = ("_supports_attention_backend", "_supports_sdpa")


class Band(NamedTuple):
    """Key j of the first num_keys is attended by query i, which is on the diagonal at
    j = i + num_keys - seqlen_q, when window_left and window_right keys beside the diagonal include
    it, and padding keeps it."""

    num_keys: int
    window_left: int
    window_right: int
    padding: torch.Tensor | None  # [batch, 1, 1, num_keys], True is kept


def register(name: str = "fulmen") -> None:
    """Makes attn_implementation=name known to transformers, its continuous batching included. Once
    is enough; again does nothing."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    _continuous_batching.allow(name)


@functools.cache
def _masks_of(config: type) -> Callable[..., torch.Tensor | None] | None:
    """The mask function for a configuration's models; None if they never call
    AttentionInterface."""
    own = config.__module__.startswith("transformers.models.")
    models = (
        sys.modules.get(config.__module__.replace(".configuration_", ".modeling_")) if own else None
    )
    if models is None or any(
        getattr(one, flag, False) is True for one in vars(models).values() for flag in _SUPPORTING
    ):
        return sdpa_mask
    # To leave a mask out because a module is causal, or to have a boolean one, may be new to these,
    # and parts of them may add the mask to scores themselves.
    return eager_mask if hasattr(models, "ALL_ATTENTION_FUNCTIONS") else None


def attention_mask(**arguments: Any) -> torch.Tensor | None:
    """transformers' own boolean mask, [batch, 1, seqlen_q, seqlen_k], and what it is made of where
    that can be said.

    None is what it is for torch's SDPA: everything, or causal for a causal module's call of more
    than one query. Models that are not made for SDPA have the mask of eager attention, which is
    added to scores. Those with nothing but attention of their own are refused.
    """
    # Compilers can't inspect modules: compiled code is assumed to be made for SDPA.
    masks = sdpa_mask if torch.compiler.is_compiling() else _masks_of(type(arguments.get("config")))
    if masks is None:
        name = type(arguments["config"]).__name__.removesuffix("Config")
        raise NotImplementedError(
            f'{name} has attention of its own only: attn_implementation="eager" is accepted'
        )
    if masks is eager_mask:
        return eager_mask(**arguments)
    # A graph has no place for a tensor's attributes: it reads the mask itself.
    if torch.compiler.is_compiling():
        return sdpa_mask(**arguments)
    with _counting_changes():
        mask = sdpa_mask(**arguments)
        if mask is not None and not mask.is_inference() and "q_length" in arguments:
            band = _band_of(**arguments)
            if band is not None:
                # A mask that is changed afterwards is no longer a band.
                setattr(mask, _BAND, (band, mask._version))
    return mask


@contextlib.contextmanager
def _counting_changes() -> Iterator[None]:
    """Tensors that are made inside have a version even under torch.inference_mode(), whose own have
    none."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


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
    if use_vmap:  # a user's own pattern, which is expensive to evaluate twice
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
    distance = torch.arange(kv_length, device=device) - (
        torch.arange(q_length, device=device)[:, None] + offset
    )
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
    # The diagonal of attention() ends at the last key. A causal pattern attends none of those
    # behind.
    num_keys = offset + q_length
    if num_keys > kv_length or num_keys < 0 or (num_keys < kv_length and right != 0):
        if (left, right) != (-1, -1):
            return None
        num_keys = kv_length
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + num_keys]
        # A copy: what the caller writes into attention_mask later is not in the mask either.
        padding = None if padding.all() else padding[:, None, None, :].clone()
    return Band(num_keys, left, right, padding)


def _candidates(local_size: int | None) -> Iterator[tuple[int, int]]:
    yield -1, 0  # causal
    yield -1, -1
    if local_size is not None:
        yield local_size - 1, 0
        yield local_size, local_size


class Documents(NamedTuple):
    """Sequences that lie one after another in a row, each of which attends itself alone, as
    fulmen.attention takes them."""

    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int

    def mask(self, batch: int, seqlen_q: int, seqlen_k: int) -> torch.Tensor:
        """[batch, 1, seqlen_q, seqlen_k]: True where query and key are of one document."""
        numbers = []
        for cu, length in ((self.cu_seqlens_q, seqlen_q), (self.cu_seqlens_k, seqlen_k)):
            rows = torch.arange(batch * length, dtype=cu.dtype, device=cu.device)
            numbers.append(torch.searchsorted(cu[1:], rows, right=True).view(batch, length))
        return numbers[0][:, None, :, None] == numbers[1][:, None, None, :]


def _documents_of(
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | torch.Tensor | None = None,
    max_length_k: int | torch.Tensor | None = None,
    **others: Any,
) -> Documents | None:
    """The bounds from a collator that flattens batches, as for "flash_attention_2": they count the
    rows of all, [batch * seqlen].
    """
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        return None
    lengths = (cu_seq_lens_q, max_length_q), (cu_seq_lens_k, max_length_k)
    longest = (int(cu.diff().max() if most is None else most) for cu, most in lengths)
    return Documents(cu_seq_lens_q, cu_seq_lens_k, *longest)


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
    """The function that AttentionInterface calls.

    Args: query, key, value: [batch, heads or kv_heads, seqlen, head_dim]. A sliding window is in
    the mask. attention_mask: bool, True attends, or added to the scores; broadcasts to [batch,
    heads, seqlen_q, seqlen_k]. softcap: None or 0 is off. s_aux: [heads], sinks. position_bias:
    added to the scores, beside either mask. kwargs: of cu_seq_lens_q, cu_seq_lens_k, max_length_q
    and max_length_k, bounds of documents that attend themselves alone; beside write_index, of the
    requests of a step of continuous batching. The rest is ignored.

    Returns:
      ([batch, seqlen_q, heads, head_dim_v], None): there are no attention weights to return. What
      fulmen.attention does not compute, as head dims over 576 and float64, is computed by "sdpa",
      which is said once.
    """
    for name in ("cache", "indices", "block_indices", "sinks"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(
                f'{name} is given: attn_implementation="fulmen" has no such attention, "sdpa" or '
                '"eager" may'
            )
    if kwargs.get("output_attentions"):
        raise ArgumentError(
            'output_attentions is True: attn_implementation="fulmen" has no attention weights, '
            '"eager" has'
        )
    reason = None if query.is_meta else why_not_served(query=query, key=key, value=value)
    if reason is not None and s_aux is None and not softcap:
        if not torch.compiler.is_compiling():
            _log.warning_once(
                f"fulmen: {reason}: torch's scaled_dot_product_attention computes such attention"
            )
        if _continuous_batching.is_step(kwargs):
            served = _continuous_batching.step_by_sdpa(module, query, key, value, kwargs, scaling)
            return served, None
        given = dict(
            dropout=dropout, scaling=scaling, is_causal=is_causal, position_bias=position_bias
        )
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)

    if _continuous_batching.is_step(kwargs):
        _refuse_beside_steps(attention_mask=attention_mask, position_bias=position_bias)
        sinks = None if s_aux is None else s_aux.reshape(-1)
        how = dict(softmax_scale=scaling, softcap=softcap or 0.0)
        return _continuous_batching.step(module, query, key, value, kwargs, sinks, **how), None

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
        if (
            band is not None
            and version == attention_mask._version
            and attention_mask.shape[2:] == (seqlen_q, seqlen_k)
        ):
            options.update(
                window_left=band.window_left, window_right=band.window_right, keep_mask=band.padding
            )
            key, value = key[:, :, : band.num_keys], value[:, :, : band.num_keys]
            bias = bias if bias is None else bias[..., : band.num_keys]
        elif attention_mask.dtype == torch.bool:
            options["keep_mask"] = _over_keys(attention_mask, seqlen_k)
        else:
            scores = attention_mask[..., :seqlen_k]
            bias = scores if bias is None else bias + scores
    tensors = [last_dim_contiguous(t).transpose(1, 2) for t in (query, key, value)]
    documents = _documents_of(**kwargs)
    if documents is not None:
        if bias is None and options.get("keep_mask") is None and key.shape[2] == seqlen_k:
            tensors = [t.reshape(-1, *t.shape[2:]) for t in tensors]
            options.update(documents._asdict())
        else:
            same, keep = (
                documents.mask(query.shape[0], seqlen_q, seqlen_k)[..., : key.shape[2]],
                options.get("keep_mask"),
            )
            options["keep_mask"] = same if keep is None else keep & same
    out = attention(
        *tensors,
        bias=None if bias is None else _over_keys(bias, key.shape[2]),
        sinks=None if s_aux is None else s_aux.reshape(-1),
        softmax_scale=scaling,
        softcap=softcap or 0.0,
        dropout=dropout,
        deterministic=bool(deterministic),
        **options,
    )
    return out.reshape(query.shape[0], seqlen_q, *out.shape[-2:]), None


def _refuse_beside_steps(**given: torch.Tensor | None) -> None:
    for name, value in given.items():
        if value is not None:
            raise NotImplementedError(
                f"{name} is given in a step of continuous batching: None is accepted"
            )


def _over_keys(scores: torch.Tensor, seqlen_k: int) -> torch.Tensor:
    """A mask or bias with its last dim in full: one that is the same for all keys has one element
    there."""
    scores = scores[..., :seqlen_k]
    return last_dim_contiguous(
        scores if scores.shape[-1] != 1 else scores.expand(*scores.shape[:-1], seqlen_k)
    )
