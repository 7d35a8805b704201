"""Tables in an NVIDIA GPU's memory that lead outside: results are NaN there, flash_attn's functions
raise.

  python bench/python/gpu_tables.py

Needs fulmen and torch installed. Prints a line a check, then what the checks of flash_attn's
functions cost a call. Exits with 1 where a check failed.
"""

import sys
import time

import fulmen
import torch
from fulmen import flash_attn, flash_attn_interface

FAMILIES = (
    "decode.sm80",
    "decode_tma.sm90",
    "decode.portable",
    "prefill.sm80",
    "prefill_wgmma.sm90",
    "prefill.portable",
    "short.sm80",
)
PAGES, HEADS, KV_HEADS, DIM = 64, 8, 2, 128
failed = 0


def check(what: str, right: bool) -> None:
    global failed
    failed += not right
    print("ok    " if right else "FAILED", what)


def raises(call) -> bool:
    try:
        call()
    except RuntimeError as error:
        return "block_table" in str(error) or "page_table" in str(error)
    return False


def cache(page_size: int) -> list[torch.Tensor]:
    return [
        torch.randn(PAGES, page_size, KV_HEADS, DIM, device="cuda", dtype=torch.bfloat16)
        for _ in "kv"
    ]


def kernels(kernel: str, seqlen_q: int, seqlen_k: int, page_size: int) -> None:
    """Sequence 1 names a page that does not exist, sequence 2 is longer than its pages."""
    columns = -(-seqlen_k // page_size)
    q, pages = (
        torch.randn(3, seqlen_q, HEADS, DIM, device="cuda", dtype=torch.bfloat16),
        cache(page_size),
    )
    table = torch.randperm(PAGES, device="cuda")[: 3 * columns].view(3, columns).to(torch.int32)
    lengths = torch.full((3,), seqlen_k, dtype=torch.int32, device="cuda")
    options = {
        "seqlens_k": lengths,
        "block_table": table,
        "causal": True,
        "return_lse": True,
        "kernel": kernel,
    }
    try:
        before = fulmen.attention(q, *pages, **options)
    except NotImplementedError:
        return
    what = f"{kernel}, {seqlen_q} queries, {seqlen_k} keys in pages of {page_size}"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = fulmen.attention(q, *pages, **options)
    page = int(table[1, columns - 1])
    for number in (-1, PAGES, 2**31 - 1):
        table[1, columns - 1], lengths[2] = number, columns * page_size + 1
        graph.replay()
        for way, results in (
            ("eager", fulmen.attention(q, *pages, **options)),
            ("graph", captured),
        ):
            same = all(
                torch.equal(now[0], then[0]) for now, then in zip(results, before, strict=True)
            )
            # The last query attends the last key.
            nan = results[0][1, -1].isnan().all() and results[1][1, :, -1].isnan().all()
            check(
                f"{what}, page {number}, {way}",
                same and bool(nan) and all(bool(t[2].isnan().all()) for t in results),
            )
    table[1, columns - 1], lengths[2] = page, seqlen_k
    graph.replay()
    check(
        f"{what}, mended",
        all(torch.equal(now, then) for now, then in zip(captured, before, strict=True)),
    )


def functions(module, name: str) -> None:
    """flash_attn's own tests of bounds."""
    page_size = 256
    pages, q = cache(page_size), torch.randn(1, 1, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
    table, new = (
        torch.zeros(1, 1, dtype=torch.int32, device="cuda"),
        torch.randn_like(q[:, :, :KV_HEADS]),
    )

    def call(length: int, *rows: torch.Tensor, **changes: torch.Tensor) -> torch.Tensor:
        used = torch.full((1,), length, dtype=torch.int32, device="cuda")
        return module.flash_attn_with_kvcache(
            q, *pages, *rows, cache_seqlens=used, **{name: table, **changes}
        )

    check(f"{module.__name__}: longer than its pages", raises(lambda: call(page_size + 1)))
    check(f"{module.__name__}: no room for new keys", raises(lambda: call(page_size, new, new)))
    check(
        f"{module.__name__}: a page that there is not",
        raises(lambda: call(9, **{name: table + PAGES})),
    )
    check(f"{module.__name__}: full pages", not bool(call(page_size).isnan().any()))


def cost() -> None:
    """Microseconds a call of 32 that share tables, as a model's layers do."""
    pages, q = cache(16), torch.randn(4, 1, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
    table, used = (
        torch.arange(32, device="cuda", dtype=torch.int32).view(4, 8),
        torch.full((4,), 100, device="cuda", dtype=torch.int32),
    )
    for what, written in (
        ("tables as they were", False),
        ("lengths written before the first layer", True),
    ):
        for _ in range(2):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                if written:
                    used.add_(0)
                for _ in range(32):
                    flash_attn.flash_attn_with_kvcache(
                        q, *pages, cache_seqlens=used, block_table=table
                    )
            torch.cuda.synchronize()
        print(
            f"flash_attn_with_kvcache, {what}: {(time.perf_counter() - begin) / 3200 * 1e6:.1f} us "
            "a call"
        )


for family in FAMILIES:
    for shape in (
        (1, 300, 16),
        (1, 300, 64),
        (1, 1000, 64),
        (70, 200, 16),
        (70, 200, 64),
        (20, 100, 128),
    ):
        kernels(f"cuda.{family}", *shape)
functions(flash_attn, "block_table")
functions(flash_attn_interface, "page_table")
cost()
sys.exit(failed > 0)
