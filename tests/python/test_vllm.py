"""What the vLLM plugin computes, without vLLM: steps of several requests over a cache in blocks,
its rows, packed encoders. integrations/vllm/check.py runs vLLM itself."""

import importlib.metadata

import problems
import pytest

torch = pytest.importorskip("torch")

from fulmen.vllm._attention import (  # noqa: E402
    Settings,
    Step,
    over_packed,
    over_pages,
)
from fulmen.vllm._cache import (  # noqa: E402
    Cache,
    cache_formats,
    content_bytes,
    write_cache,
)
from torch_problems import attention_float64, close  # noqa: E402

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 40, 16
# A GPU where there is one.
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(autouse=True, params=DEVICES)
def _seed(request):
    torch.manual_seed(problems.SEED)
    with torch.device(request.param):
        yield


FORMATS = ["auto", "fp8", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head"]


def empty_cache(name, blocks, dtype=torch.float32):
    """A layer's cache of that kv_cache_dtype, in vLLM's own dtype, full of NaN."""
    of = cache_formats()[name]
    if of.dtype is None:
        return Cache(torch.full((blocks, KV_HEADS, BLOCK, 2 * DIM), torch.nan, dtype=dtype), DIM)
    # Bytes of ones are a NaN in e4m3, e5m2 and float32.
    rows = torch.full(
        (blocks, KV_HEADS, BLOCK, content_bytes(of, DIM, DIM, 1)), 255, dtype=torch.uint8
    )
    if of.dtype == torch.int8:
        rows = rows.view(torch.int8)
    return Cache(rows, DIM, of, torch.tensor(0.02), torch.tensor([0.05, 0.25]))


def decoded(cache, slots):
    """Rows of a cache as they lie there: [rows, kv_heads, head_dim of k and of v], float32."""
    rows = torch.stack([cache.rows[slot // BLOCK, :, slot % BLOCK] for slot in slots])
    dtype, per_token = cache.format
    if dtype is None:
        return rows
    sides = rows.view(torch.uint8).split(rows.shape[-1] // 2, -1)
    numbers = [side[..., :DIM].contiguous().view(dtype).float() for side in sides]
    if per_token:
        scales = [side[..., DIM:].contiguous().view(torch.float32) for side in sides]
    else:
        scales = [cache.k_scale, cache.v_scale[:, None]]
    return torch.cat([n * scale for n, scale in zip(numbers, scales, strict=True)], -1)


def requests(new, used, dtype=torch.float32, name="auto"):
    """Queries of requests with new rows each, the last of used keys, a cache that has them in
    blocks in no order, and its rows. Rows that no request has are NaN."""
    blocks = [-(-n // BLOCK) for n in used]
    order = torch.randperm(sum(blocks) + 3)
    table = torch.zeros(len(used), max(blocks) + 1, dtype=torch.int32)
    cache = empty_cache(name, len(order), dtype)
    rows = []
    for n, (count, keys) in enumerate(zip(blocks, used, strict=True)):
        mine = order[sum(blocks[:n]) : sum(blocks[:n]) + count]
        table[n, :count] = mine
        kv = torch.randn(keys, KV_HEADS, 2 * DIM).to(dtype)
        slots = torch.tensor([mine[i // BLOCK] * BLOCK + i % BLOCK for i in range(keys)])
        write_cache(cache, kv[..., :DIM], kv[..., DIM:], slots)
        rows.append(decoded(cache, slots.tolist()))
    starts = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    step = Step(starts, torch.tensor(used, dtype=torch.int32), table, max(new), max(used) + 5)
    return torch.randn(sum(new), HEADS, DIM).to(dtype), cache, step, rows


SETTINGS = {
    "plain": {},
    "window": {"sliding_window": 9},
    "softcap and sinks": {"softcap": 5.0, "sinks": True},
    "alibi": {"alibi_slopes": True},
}


@pytest.mark.parametrize("new", [[1, 1, 1], [1, 30, 7], [33, 20, 50]])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("of", FORMATS)
def test_a_step_over_the_cache(name, new, of):
    query, cache, step, rows = requests(new, [40, 33, 50], name=of)
    given = dict(SETTINGS[name])
    if given.get("sinks"):
        given["sinks"] = torch.randn(HEADS)
    if given.get("alibi_slopes"):
        given["alibi_slopes"] = torch.rand(HEADS)
    out = torch.full((len(query), HEADS, DIM), torch.nan)
    found = over_pages(query, cache, step, Settings(0.3, **given), out)
    assert found is out
    for n, kv in enumerate(rows):
        begin, end = step.query_start_loc[n : n + 2].tolist()
        options = {"causal": True}
        if "sliding_window" in given:
            options["window_left"] = given["sliding_window"] - 1
        if "softcap" in given:
            options |= {"softcap": given["softcap"], "sinks": given["sinks"]}
        if "alibi_slopes" in given:
            options["alibi_slopes"] = given["alibi_slopes"]
        # attention_float64's scale is 1 / sqrt(DIM).
        q = query[None, begin:end].double() * 0.3 * DIM**0.5
        k, v = kv[None, ..., :DIM], kv[None, ..., DIM:]
        close(out[begin:end], attention_float64(q, k, v, **options)[0][0])


@pytest.mark.parametrize("name", FORMATS[1:])
def test_rows_of_eight_bits(name):
    cache = empty_cache(name, 2)
    written = torch.randn(2 * BLOCK, KV_HEADS, 2, DIM)
    written[3] = 0
    written[4, :, :, 1] = 1e9  # above what a fixed scale can say
    written[5, 0, 0, 0] = torch.nan
    slots = torch.randperm(2 * BLOCK)
    write_cache(cache, written[:, :, 0], written[:, :, 1], slots)
    found = decoded(cache, slots.tolist()).view_as(written)
    largest = written.abs().amax(-1, keepdim=True)
    if name == "int8_per_token_head":
        bound = largest / 127 * 0.5001  # half a step
    elif name == "fp8_per_token_head":
        bound = written.abs() / 16 + largest / 448 / 512  # 3 bits, and half the least subnormal
    else:
        bits, largest, least = (3, 448.0, 2.0**-9) if name == "fp8" else (2, 57344.0, 2.0**-16)
        scale = torch.stack((cache.k_scale.expand(KV_HEADS), cache.v_scale), -1)[..., None]
        written = written.clamp(-largest * scale, largest * scale)
        bound = written.abs() / 2 ** (bits + 1) + scale * least / 2
    # A NaN makes what shares its scale NaN.
    invalid = torch.zeros_like(written, dtype=torch.bool)
    invalid[5, 0, 0, : DIM if cache.format.per_token else 1] = True
    assert torch.equal(found.isnan(), invalid)
    off = (found - written).abs()
    assert bool((off <= bound * 1.0001)[~invalid].all())


def test_rows_of_a_cache():
    cache = torch.zeros(5, KV_HEADS, BLOCK, 2 * DIM)
    key, value = torch.randn(2, 7, KV_HEADS, DIM)
    slots = torch.tensor([3 * BLOCK + 15, 4 * BLOCK, -1, 2, BLOCK + 1])
    write_cache(Cache(cache, DIM), key, value, slots)
    right = torch.zeros_like(cache)
    for n, slot in enumerate(slots.tolist()):
        if slot >= 0:
            right[slot // BLOCK, :, slot % BLOCK] = torch.cat((key[n], value[n]), -1)
    assert torch.equal(cache, right)


@pytest.mark.parametrize("window", [None, 6])
def test_an_encoder(window):
    lengths = [17, 1, 40]
    starts = torch.tensor([0, 17, 18, 58], dtype=torch.int32)
    step = Step(starts, torch.tensor(lengths, dtype=torch.int32), starts[:, None], 40, 40)
    q = torch.randn(58, HEADS, DIM)
    k, v = torch.randn(2, 58, KV_HEADS, DIM)
    settings = Settings(DIM**-0.5, sliding_window=window)
    out = over_packed(q, k, v, step, settings, torch.full_like(q, torch.nan))
    for begin, end in zip(starts.tolist(), starts[1:].tolist(), strict=False):
        near = torch.arange(end - begin)
        near = (near - near[:, None]).abs() < (window or 99)
        one = [x[None, begin:end] for x in (q, k, v)]
        close(out[begin:end], attention_float64(*one, keep_mask=near)[0][0])


def test_vllm_finds_the_plugin():
    found = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert [entry.value for entry in found if entry.name == "fulmen"] == ["fulmen.vllm:register"]
