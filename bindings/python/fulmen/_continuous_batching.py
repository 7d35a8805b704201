"""Continuous batching of Hugging Face transformers (`model.generate_batch`), behind
fulmen.transformers.

A step has the new tokens of many requests in one row, [1, heads, tokens, head_dim], and no mask.
Where every request has one new token, and the layers' cache is read by a block table, the step is
over pages; otherwise transformers gathers each request's keys from the cache, one request behind
the other.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from fulmen._functions import append_kv, attention
from fulmen.torch._ops import last_dim_contiguous
from fulmen.torch._sdpa import why_not_served

_names: set[str] = set()


def is_step(arguments: dict[str, Any]) -> bool:
    """Whether these are the keyword arguments of a call by continuous batching."""
    return arguments.get("write_index") is not None


def allow(name: str) -> None:
    """Lets continuous batching keep attn_implementation=name: it knows "sdpa", "paged|eager" and
    names with "flash" in them, refuses others, and hands masks to the first two alone."""
    try:
        from transformers.generation.continuous_batching import continuous_api, initialization

        manager = continuous_api.ContinuousBatchingManager
        switch = manager.switch_to_cb_friendly_attn
        fast_path = initialization.ensure_decode_fast_path_is_available
    except (ImportError, AttributeError):
        return  # Another version: its generate_batch says that it does not know the name.
    is_allowed = bool(_names)  # by an earlier name
    _names.add(name)
    if is_allowed:
        return

    @functools.wraps(switch)
    def keep_ours(self: Any, model: Any, *rest: Any, **more: Any) -> None:
        if model.config._attn_implementation not in _names:
            switch(self, model, *rest, **more)

    @functools.wraps(fast_path)
    def over_pages_where_served(config: Any, cb_config: Any, *rest: Any, **more: Any) -> None:
        if config._attn_implementation not in _names or not _serves_pages(config):
            fast_path(config, cb_config, *rest, **more)

    manager.switch_to_cb_friendly_attn = keep_ours
    initialization.ensure_decode_fast_path_is_available = over_pages_where_served


def _serves_pages(config: Any) -> bool:
    """Whether every layer's cache can be read by a block table, by Fulmen. Sliding windows have
    ring buffers, which cannot."""
    from transformers.generation.continuous_batching import cache, utils

    head = torch.empty(1, 1, 1, utils.find_head_dim(config), dtype=config.dtype)
    return why_not_served(query=head, key=head, value=head) is None and all(
        cache.ATTN_TYPE_TO_ALLOCATOR[kind].supports_block_table
        for kind in cache.group_layers_by_attn_type(config)
    )


def window_of(module: torch.nn.Module, arguments: dict[str, Any]) -> int | None:
    """The layer's sliding window. Layers of some models (Qwen2-MoE, SmolLM3) leave it to the mask,
    of which a step has none."""
    window, config = arguments.get("sliding_window"), getattr(module, "config", None)
    layer_types = getattr(config, "layer_types", None)
    if window is None and layer_types and layer_types[module.layer_idx] == "sliding_attention":
        window = config.sliding_window
    return window


def step(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    arguments: dict[str, Any],
    sinks: torch.Tensor | None,
    **options: Any,
) -> torch.Tensor:
    """Attention of a step: each request's queries are the last of its keys.

    Args:
      module: the layer.
      query, key, value: [1, heads or kv_heads, tokens, head_dim].
      arguments: what continuous batching gives: cumulative lengths, the sliding window, and over
        pages the cache and its block table.

    Returns: [1, tokens, heads, head_dim].
    """
    window = window_of(module, arguments)
    options = {
        **options,
        "sinks": sinks,
        "causal": True,
        "window_left": -1 if window is None else window - 1,
    }
    q, k, v = (last_dim_contiguous(x)[0].transpose(0, 1) for x in (query, key, value))
    if arguments.get("block_table") is not None:
        out = _over_pages(q, k, v, arguments, options)
    else:
        out = attention(
            q,
            k,
            v,
            cu_seqlens_q=arguments["cu_seq_lens_q"],
            cu_seqlens_k=arguments["cu_seq_lens_k"],
            max_seqlen_q=arguments["max_length_q"],
            max_seqlen_k=arguments["max_length_k"],
            **options,
        )
    return out[None]


def _over_pages(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    arguments: dict[str, Any],
    options: dict[str, Any],
) -> torch.Tensor:
    """One new token of each request, [requests, heads, head_dim], which the cache does not hold
    yet."""
    k_cache, v_cache = arguments["k_cache"], arguments["v_cache"]
    # Requests that pad a step have no keys and no pages. Page 0 belongs to nobody: their token may
    # be written there.
    table = arguments["block_table"].clamp_min(0)
    lengths = arguments["cu_seq_lens_k"].diff()
    append_kv(
        k_cache, v_cache, (lengths - 1).clamp_min(0), k[:, None], v[:, None], block_table=table
    )
    return attention(q[:, None], k_cache, v_cache, seqlens_k=lengths, block_table=table, **options)[
        :, 0
    ]


def step_by_sdpa(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    arguments: dict[str, Any],
    scaling: float | None,
) -> torch.Tensor:
    """The same by torch's SDPA, which needs a mask of all tokens and keys."""
    if arguments.get("block_table") is not None:
        return _over_gathered_pages(module, query, key, value, arguments, scaling)
    requests, behind = [], []  # of queries and keys: the request, and the keys after it
    for cu, rows in (
        (arguments["cu_seq_lens_q"], query.shape[2]),
        (arguments["cu_seq_lens_k"], key.shape[2]),
    ):
        row = torch.arange(rows, dtype=cu.dtype, device=cu.device)
        request = torch.searchsorted(cu[1:], row, right=True)
        requests.append(request)
        behind.append(cu[(request + 1).clamp_max(len(cu) - 1)] - row)
    distance = behind[1] - behind[0][:, None]  # how many keys the query is behind the key
    mask = (requests[0][:, None] == requests[1]) & (distance >= 0)
    window = window_of(module, arguments)
    if window is not None:
        mask &= distance < window
    return sdpa_attention_forward(module, query, key, value, mask[None, None], scaling=scaling)[0]


def _over_gathered_pages(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    arguments: dict[str, Any],
    scaling: float | None,
) -> torch.Tensor:
    """step_by_sdpa() over pages: a request's queries are a batch element of one token."""
    table = arguments["block_table"].clamp_min(0).long()
    # Requests that pad a step have no keys: theirs is the first row of page 0, which is nobody's.
    last = (arguments["cu_seq_lens_k"].diff() - 1).clamp_min(0).long()
    gathered = []
    for cache, new in ((arguments["k_cache"], key), (arguments["v_cache"], value)):
        page = table.gather(1, (last // cache.shape[1])[:, None])[:, 0]
        cache[page, last % cache.shape[1]] = new[0].transpose(0, 1).to(cache.dtype)
        gathered.append(cache[table].flatten(1, 2).transpose(1, 2))
    mask = torch.arange(gathered[0].shape[2], device=last.device) <= last[:, None]
    out = sdpa_attention_forward(
        module, query.transpose(0, 2), *gathered, mask[:, None, None], scaling=scaling
    )[0]
    return out.transpose(0, 1)
