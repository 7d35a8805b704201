"""vLLM's attention by Fulmen: a plugin, which vLLM finds by itself where both are installed.

    vllm serve MODEL --attention-backend CUSTOM

On GPUs and on CPUs, whose platform otherwise knows one backend alone. `LLM(...,
attention_backend="CUSTOM")` is the same in Python.
"""

from __future__ import annotations

import functools
from typing import Any

_BACKEND = "fulmen.vllm._backend.FulmenAttentionBackend"


def register() -> None:
    """What vLLM calls in each of its processes (entry point vllm.general_plugins): the backend
    CUSTOM is Fulmen's. Again does nothing."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, _BACKEND)
    _let_cpus_choose(AttentionBackendEnum.CUSTOM)


def _let_cpus_choose(custom: Any) -> None:
    """vLLM's CPU platform takes its own backend whatever was selected."""
    from vllm.platforms.cpu import CpuPlatform

    own = CpuPlatform.get_attn_backend_cls.__func__
    if hasattr(own, "__wrapped__"):
        return

    @functools.wraps(own)
    def chosen(
        cls: type, selected_backend: Any, attn_selector_config: Any, *rest: Any, **more: Any
    ):
        latent = attn_selector_config.use_mla or attn_selector_config.use_sparse
        if selected_backend == custom and not latent:
            return custom.get_path()
        return own(cls, selected_backend, attn_selector_config, *rest, **more)

    CpuPlatform.get_attn_backend_cls = classmethod(chosen)
