"""Functions of attention-gym, and attention with functions by torch's own eager operations, which
have gradients on the CPU."""

import importlib
import math
from typing import Any, NamedTuple

import pytest
import torch
from problems import SEED
from torch._higher_order_ops.flex_attention import math_attention
from torch.nn.attention import flex_attention as torch_flex

masks = pytest.importorskip("attn_gym.masks")
mods = pytest.importorskip("attn_gym.mods")
vsa = pytest.importorskip("attn_gym.masks.vsa")

BATCH, HEADS, KV_HEADS, DIM = 2, 4, 2, 16


class Case(NamedTuple):
    score_mod: Any = None
    mask_mod: Any = None
    queries: int = 64
    keys: int = 64
    learned: tuple[torch.Tensor, ...] = ()  # tensors that have gradients
    # score_mod in other words, where torch has no gradient of its own.
    formula: Any = None


def _learned(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


def _offsets(*lengths: int) -> torch.Tensor:
    return masks.document_mask.length_to_offsets(list(lengths), "cpu")


def _graph() -> torch.Tensor:
    edges = torch.rand(BATCH, 24, 24) < 0.1
    return edges | edges.mT


def _graphormer_spatial() -> Case:
    table = _learned(HEADS, 6)
    distances = mods.shortest_path_distances(_graph(), 4)
    mod = mods.generate_graphormer_spatial_bias(table, distances)
    return Case(mod, None, 24, 24, (table,))


def _graphormer_edges() -> Case:
    table = _learned(HEADS, 3, 5)
    edges = _graph()
    types = torch.randint(0, 5, edges.shape)
    paths, lengths = mods.shortest_path_edge_types(edges, types, 3)
    return Case(mods.generate_graphormer_edge_bias(table, paths, lengths), None, 24, 24, (table,))


def _latent() -> Case:
    of_q, of_k = _learned(BATCH, HEADS, 64, 6), _learned(BATCH, 1, 64, 6)
    mod = mods.generate_mla_rope_score_mod(of_q, of_k, HEADS, 0.3)

    def formula(score, b, h, q, k):
        return score + (0.3 * of_q @ of_k.mT)[b, h, q, k]

    return Case(mod, None, learned=(of_q, of_k), formula=formula)


def _shared_prefix() -> Case:
    prefixes = torch.tensor([0, 0, 2, 2])
    return Case(None, masks.generate_shared_prefix_mask_mod(_offsets(20, 14, 10, 20), prefixes))


def _vsa() -> Case:
    topk = torch.stack([torch.randperm(8)[:3] for _ in range(BATCH * HEADS * 8)])
    topk = topk.reshape(BATCH, HEADS, 8, 3)
    sizes = torch.tensor([8, 8, 5, 8, 8, 8, 3, 8])
    return Case(None, masks.generate_vsa_mask_mod(topk, 8, sizes))


def _jetspec() -> Case:
    ancestors = masks.build_tree_ancestor_matrix([-1, 0, 0, 1, 1, 2, 5, 5], "cpu")
    return Case(None, masks.generate_jetspec_tree_causal_mask_mod(40, ancestors), 8, 48)


def _flamingo() -> Case:
    intervals = torch.tensor([[0, 30], [30, 41], [41, 64]])
    return Case(None, masks.generate_vision_cross_attention_mask_mod(intervals, 16), 64, 48)


def _approximate_softcap() -> Case:
    # Only torch's own compiler needs what it registers, whose import takes seconds.
    softcapping = importlib.import_module("attn_gym.mods.softcapping")
    softcapping._register_tanh_approx_lowering = lambda: None
    return Case(mods.generate_tanh_softcap(3, approx=True))


def _global_window() -> Case:
    return Case(None, masks.generate_global_sliding_window(5, torch.rand(64) < 0.1))


DOCUMENTS = (20, 3, 41)
# Each is made anew where it is used.
GYM = {
    "causal": lambda: Case(None, masks.causal_mask),
    "sliding window": lambda: Case(None, masks.generate_sliding_window(11)),
    "prefix LM": lambda: Case(None, masks.generate_prefix_lm_mask(20)),
    "dilated window": lambda: Case(None, masks.generate_dilated_sliding_window(17, 4)),
    "global and window": _global_window,
    "documents": lambda: Case(
        None, masks.generate_doc_mask_mod(masks.causal_mask, _offsets(*DOCUMENTS))
    ),
    "packed documents": lambda: Case(
        None, masks.generate_packed_causal_doc_mask_mod(_offsets(*DOCUMENTS))
    ),
    "shared prefix": _shared_prefix,
    "batchify": lambda: Case(None, masks.batchify_mask_mod(masks.causal_mask, 24)),
    "block diffusion": lambda: Case(None, masks.generate_block_diffusion_mask(32, 8)),
    "flamingo": _flamingo,
    "natten": lambda: Case(None, masks.generate_natten(8, 8, 3, 5)),
    "tiled natten": lambda: Case(None, masks.generate_tiled_natten(8, 8, 3, 3, 4, 4)),
    "morton natten": lambda: Case(None, masks.generate_morton_natten(8, 8, 3, 3)),
    "STA 2d": lambda: Case(None, masks.generate_sta_mask_mod_2d((8, 8), (4, 4), (2, 2), 4), 68, 68),
    "STA 3d": lambda: Case(
        None, masks.generate_sta_mask_mod_3d((4, 4, 4), (2, 2, 2), (2, 2, 2)), 64, 64
    ),
    "SVG spatial": lambda: Case(
        None, masks.generate_spatial_head_mask_mod(6, 4, 14, 1, True, 4), 62, 62
    ),
    "SVG temporal": lambda: Case(None, masks.generate_temporal_head_mask_mod(6, 4, 14, 1), 62, 62),
    "VSA": _vsa,
    "jetspec tree": _jetspec,
    "jetspec training": lambda: Case(None, masks.generate_jetspec_training_mask_mod(20, 8), 24, 44),
    "alibi": lambda: Case(mods.generate_alibi_bias(HEADS), masks.causal_mask),
    "softcap": lambda: Case(mods.generate_tanh_softcap(2), masks.causal_mask),
    "softcap, approximate": _approximate_softcap,
    "activation": lambda: Case(mods.generate_activation_score_mod()),
    "sandwich": lambda: Case(mods.generate_sandwich_bias(HEADS, 64, 16)),
    "latent attention": _latent,
    "graphormer spatial": _graphormer_spatial,
    "graphormer edges": _graphormer_edges,
}


def torch_mask(case: Case) -> Any:
    """torch's BlockMask of it, or None."""
    if case.mask_mod is None:
        return None
    sizes = (BATCH, HEADS, case.queries, case.keys)
    return torch_flex.create_block_mask(case.mask_mod, *sizes, device="cpu", BLOCK_SIZE=16)


def problem(case: Case, dtype: torch.dtype = torch.float32, kv_heads: int = KV_HEADS) -> Any:
    """query, key and value, differentiable."""
    shapes = [(HEADS, case.queries), (kv_heads, case.keys), (kv_heads, case.keys)]
    return [
        torch.randn(BATCH, heads, rows, DIM).to(dtype).requires_grad_() for heads, rows in shapes
    ]


def expected(
    q: Any, k: Any, v: Any, score_mod: Any, block_mask: Any, scale: Any = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(out, lse, max_scores) in float64 by torch's own eager flex_attention, differentiable."""
    mask = torch_flex._create_empty_block_mask(q, k) if block_mask is None else block_mask
    out, lse, top = math_attention(
        q.double(),
        k.double(),
        v.double(),
        torch_flex._identity if score_mod is None else score_mod,
        mask.as_tuple(),
        q.shape[-1] ** -0.5 if scale is None else scale,
        {},
    )
    return out, lse * math.log(2), top * math.log(2)


def close(found: Any, right: Any, what: str, bound: float = 5e-5) -> None:
    assert found.shape == right.shape, what
    found, right = found.detach().double(), right.detach().double()
    assert torch.equal(torch.isneginf(found), torch.isneginf(right)), f"{what} ({SEED=})"
    there = ~torch.isneginf(right)
    error = (found[there] - right[there]).abs().max().item() if there.any() else 0.0
    bound *= max(1.0, right[there].abs().max().item() if there.any() else 0.0)
    assert error <= bound, f"{what}: error {error:.3g} > {bound:.3g} ({SEED=})"
