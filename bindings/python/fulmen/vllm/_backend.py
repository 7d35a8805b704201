"""The classes that vLLM asks an attention backend for (vLLM 0.32)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from vllm.platforms import current_platform
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.kv_cache_interface import AttentionSpec, KVQuantMode

from fulmen import _core
from fulmen.vllm._attention import Settings, Step, over_packed, over_pages
from fulmen.vllm._cache import Cache, CacheFormat, cache_formats, content_bytes, write_cache

_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


class FulmenAttentionBackend(AttentionBackend):
    """What Fulmen serves: every head dim to 512, windows, sinks, softcap, ALiBi, encoders and cross
    attention; caches of q's dtype, in fp8, and in int8 or fp8 with a scale for each token and
    head."""

    forward_includes_kv_cache_update: bool = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(cache_formats())

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[FulmenAttention]:
        return FulmenAttention

    @staticmethod
    def get_builder_cls() -> type[FulmenMetadataBuilder]:
        return FulmenMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        """Room for the scales of each token."""
        if spec.state_content_bytes is not None or spec.kv_quant_mode not in (
            KVQuantMode.INT8_PER_TOKEN_HEAD,
            KVQuantMode.FP8_PER_TOKEN_HEAD,
        ):
            return spec
        content = content_bytes(
            CacheFormat(per_token=True), spec.head_size, spec.head_size_v, spec.dtype.itemsize
        )
        return replace(spec, state_content_bytes=content)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return 1 <= head_size <= _core.max_head_dim_v

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return False

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (*_ENCODERS, AttentionType.DECODER, AttentionType.ENCODER_DECODER)


class Metadata(Step):
    """A step, and where its new rows go."""

    num_actual_tokens: int
    slot_mapping: torch.Tensor


class FulmenMetadataBuilder(AttentionMetadataBuilder[Metadata]):
    """Takes what Fulmen needs from vLLM's own metadata; nothing is computed."""

    def __init__(self, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> Metadata:
        common = common_attn_metadata
        if not isinstance(common.causal, bool):
            raise NotImplementedError(
                "causal is a tensor (some requests are causal and some are not): one value for the "
                "step is accepted"
            )
        made = Metadata(
            common.query_start_loc,
            common.seq_lens,
            common.block_table_tensor,
            common.max_query_len,
            common.max_seq_len,
            common.causal,
        )
        made.num_actual_tokens = common.num_actual_tokens
        made.slot_mapping = common.slot_mapping
        return made


class FulmenAttention(AttentionImpl[Metadata]):
    """A layer's attention."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        if kv_cache_dtype not in FulmenAttentionBackend.supported_kv_cache_dtypes:
            accepted = ", ".join(FulmenAttentionBackend.supported_kv_cache_dtypes)
            raise NotImplementedError(
                f"kv_cache_dtype is {kv_cache_dtype}: {accepted} are accepted"
            )
        self.cache_format = cache_formats(current_platform.fp8_dtype())[kv_cache_dtype]
        if self.cache_format.per_token and head_size % 4 != 0:
            raise NotImplementedError(
                f"head_size is {head_size}: with kv_cache_dtype {kv_cache_dtype}, whose scales lie "
                "behind each row, multiples of 4 are accepted"
            )
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.settings = Settings(
            float(scale), float(logits_soft_cap or 0), sliding_window, slopes, sinks
        )

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: Metadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Writes [tokens, heads, head_size] to output and returns it; without metadata, in vLLM's
        warm-up, nothing."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError(
                "output_scale is given: outputs in the dtype of the query are accepted"
            )
        if attn_metadata is None:
            return output
        rows = attn_metadata.num_actual_tokens
        settings = self._settings_on(query.device)
        out = output[:rows].view(rows, self.num_heads, -1)
        query = query[:rows].view(rows, self.num_heads, -1)
        if self.attn_type in _ENCODERS:
            key, value = (x[:rows].view(rows, self.num_kv_heads, -1) for x in (key, value))
            over_packed(query, key, value, attn_metadata, settings, out)
        else:
            cross = self.attn_type == AttentionType.ENCODER_DECODER
            step = attn_metadata._replace(causal=False) if cross else attn_metadata
            over_pages(query, self._cache(layer, kv_cache), step, settings, out)
        return output

    def _cache(self, layer: Any, rows: torch.Tensor) -> Cache:
        if self.cache_format.dtype is None or self.cache_format.per_token:
            return Cache(rows, self.head_size, self.cache_format)
        return Cache(rows, self.head_size, self.cache_format, layer._k_scale, layer._v_scale)

    def _settings_on(self, device: torch.device) -> Settings:
        slopes = self.settings.alibi_slopes
        if slopes is not None and slopes.device != device:
            self.settings = self.settings._replace(alibi_slopes=slopes.to(device))
        return self.settings

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Writes a step's rows, [tokens, kv_heads, head_size], into the cache."""
        if self.attn_type not in _ENCODERS:
            write_cache(self._cache(layer, kv_cache), key, value, slot_mapping)
