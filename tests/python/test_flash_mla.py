"""FlashMLA's functions: both of its signatures, its sink, what is refused, and its name."""

import importlib

import fulmen.flash_mla
import pytest
import torch
from fulmen.flash_mla import flash_mla_with_kvcache, get_mla_metadata
from problems import SEED
from torch_problems import attention_float64, close

HEADS, QUERIES = 16, 2


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(SEED)


def call():
    """q, pages of latent keys, their table and the rows that are used."""
    q, cache = torch.randn(2, QUERIES, HEADS, 576), torch.randn(7, 64, 1, 576)
    table = torch.tensor([[5, 2, 0], [6, 1, 3]], dtype=torch.int32)
    return q, cache, table, torch.tensor([130, 17], dtype=torch.int32)


def right(q, cache, table, lengths, **options):
    """(out, lse) in float64."""
    found = []
    for n, length in enumerate(lengths.tolist()):
        kv = cache[table[n].long()].flatten(0, 1)[None, :length]
        found.append(attention_float64(q[n : n + 1], kv, kv[..., :512], **options))
    return tuple(torch.cat(one) for one in zip(*found, strict=True))


def test_both_signatures():
    q, cache, table, lengths = call()
    want = right(q, cache, table, lengths, causal=True)
    old = get_mla_metadata(lengths, QUERIES * HEADS, 1)
    assert [one.dtype for one in old] == [torch.int32] * 2
    meta, num_splits = get_mla_metadata()
    assert num_splits is None
    for found in (
        flash_mla_with_kvcache(q, cache, table, lengths, 512, *old, causal=True),
        flash_mla_with_kvcache(q, cache, table, lengths, 512, meta, causal=True),
        flash_mla_with_kvcache(q, cache, table, lengths, 512, meta, None, None, True),
    ):
        for one, of in zip(found, want, strict=True):
            close(one, of)


def test_a_sink_is_in_the_denominator_and_not_in_lse():
    q, cache, table, lengths = call()
    lengths[1] = 0  # attends no key
    sink = torch.randn(HEADS)
    sink[:3] = torch.tensor([torch.inf, -torch.inf, 20.0])
    out, lse = flash_mla_with_kvcache(q, cache, table, lengths, 512, None, attn_sink=sink)
    want, want_lse = right(q[:1], cache, table, lengths[:1])
    share = 1 / (1 + torch.exp(sink.double() - want_lse.transpose(1, 2)))
    close(out[:1], want * share[..., None])
    close(lse[:1], want_lse)
    assert (out[1] == 0).all() and (lse[1] == -torch.inf).all()


def test_install_gives_the_name():
    fulmen.flash_mla.install()
    try:
        import flash_mla

        assert flash_mla.flash_mla_with_kvcache is flash_mla_with_kvcache
        assert flash_mla.get_mla_metadata is get_mla_metadata
    finally:
        fulmen.flash_mla.uninstall()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("flash_mla")


@pytest.mark.parametrize(
    "name", ["indices", "extra_k_cache", "extra_indices_in_kvcache", "topk_length"]
)
def test_sparse_attention_is_refused_by_name(name):
    q, cache, table, lengths = call()
    with pytest.raises(NotImplementedError, match=f"^{name} is given"):
        flash_mla_with_kvcache(q, cache, table, lengths, 512, None, **{name: lengths})


def test_what_is_wrong_is_named():
    q, cache, table, lengths = call()

    def refused(words, error=ValueError, **other):
        given = {"k_cache": cache, "block_table": table, "head_dim_v": 512} | other
        with pytest.raises(error, match=words):
            flash_mla_with_kvcache(q, cache_seqlens=lengths, tile_scheduler_metadata=None, **given)

    for dtype in (torch.float8_e4m3fn, torch.int8, torch.uint8):
        name = str(dtype).removeprefix("torch.")
        refused(
            f"^k_cache has dtype {name}: caches of q's dtype",
            NotImplementedError,
            k_cache=cache.to(dtype),
        )
    refused("^is_fp8_kvcache is True", NotImplementedError, is_fp8_kvcache=True)
    refused(r"^head_dim_v is 512\.0: an integer is accepted", TypeError, head_dim_v=512.0)
    refused("^head_dim_v is 600: 1 to 576", head_dim_v=600)
    refused("^block_table is None: a tensor of int32", TypeError, block_table=None)
    refused("0 to 6 are accepted, k_cache has 7 pages", block_table=table + 6)
    refused("^attn_sink has shape", attn_sink=torch.zeros(3))
