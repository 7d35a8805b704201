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
    write_cache,
)
from torch_problems import attention_float64, close  # noqa: E402

HEADS, KV_HEADS, DIM, BLOCK = 6, 2, 40, 16


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(problems.SEED)


def requests(new, used, dtype=torch.float32):
    """Queries of requests with new rows each, the last of used keys, and a cache that has them in
    blocks in no order. Rows that no request has are NaN."""
    blocks = [-(-n // BLOCK) for n in used]
    order = torch.randperm(sum(blocks) + 3)
    table = torch.zeros(len(used), max(blocks) + 1, dtype=torch.int32)
    cache = torch.full((len(order), KV_HEADS, BLOCK, 2 * DIM), torch.nan).to(dtype)
    rows = []
    for n, (count, keys) in enumerate(zip(blocks, used, strict=True)):
        mine = order[sum(blocks[:n]) : sum(blocks[:n]) + count]
        table[n, :count] = mine
        kv = torch.randn(keys, KV_HEADS, 2 * DIM).to(dtype)
        slots = torch.tensor([mine[i // BLOCK] * BLOCK + i % BLOCK for i in range(keys)])
        write_cache(cache, kv[..., :DIM], kv[..., DIM:], slots)
        rows.append(kv)
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
def test_a_step_over_the_cache(name, new):
    query, cache, step, rows = requests(new, [40, 33, 50])
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


def test_rows_of_a_cache():
    cache = torch.zeros(5, KV_HEADS, BLOCK, 2 * DIM)
    key, value = torch.randn(2, 7, KV_HEADS, DIM)
    slots = torch.tensor([3 * BLOCK + 15, 4 * BLOCK, -1, 2, BLOCK + 1])
    write_cache(cache, key, value, slots)
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
