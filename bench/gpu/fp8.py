"""Attention with products in fp8 beside bf16 on an NVIDIA GPU, and the ceiling of both products.
The launches that write codes are part of the time. JSON lines to --json.

  python bench/gpu/fp8.py [--only TEXT] [--least COSINE] [--tunings] [--json FILE]

Each result's cosine with attention in double precision, over the first and the last head, is
checked before it is timed: fp8's roundings leave .9986 of normal numbers. --tunings times tile
shapes of a few problems."""

import argparse
import json
import math

import torch
from fulmen import Attention
from timing import seconds, seconds_in_turn

ROWS = []
# block_m, block_n, persistent
TUNINGS = {
    128: [(192, 96, 2), (192, 96, 0), (128, 192, 2), (128, 128, 2), (192, 64, 2)],
    64: [(192, 128, 2), (192, 128, 0), (192, 96, 2), (128, 192, 2)],
    256: [(128, 96, 2), (128, 96, 0), (128, 64, 2)],
}


def report(**row):
    ROWS.append(row)
    print(
        "  ".join(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()),
        flush=True,
    )


def cosine(out, q, k, v, causal):
    """Of the last 512 rows of the first and the last head, and the worst row's."""
    worst, dots, ours, exact = 1.0, 0.0, 0.0, 0.0
    for h in (0, q.shape[2] - 1):
        group = q.shape[2] // k.shape[2]
        rows = min(512, q.shape[1])
        qh = q[-1, -rows:, h].double()
        kh, vh = k[-1, :, h // group].double(), v[-1, :, h // group].double()
        scores = qh @ kh.T / math.sqrt(qh.shape[1])
        if causal:
            i = torch.arange(kh.shape[0] - rows, kh.shape[0], device="cuda")[:, None]
            scores = scores.masked_fill(
                torch.arange(kh.shape[0], device="cuda")[None] > i, -math.inf
            )
        want = torch.softmax(scores, -1) @ vh
        got = out[-1, -rows:, h].double()
        worst = min(worst, torch.nn.functional.cosine_similarity(got, want, dim=-1).min().item())
        dots += (got * want).sum().item()
        ours += (got * got).sum().item()
        exact += (want * want).sum().item()
    return dots / math.sqrt(ours * exact), worst


def ceilings():
    """TFLOP/s of cuBLAS's products of 8192 x 8192."""
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    flops = 2 * 8192**3
    bf16 = flops / seconds(lambda: x @ y) / 1e12
    x8, y8 = x.to(torch.float8_e4m3fn), y.to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    fp8 = (
        flops
        / seconds(
            lambda: torch._scaled_mm(
                x8, y8, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        )
        / 1e12
    )
    report(suite="ceilings", bf16_tflops=bf16, fp8_tflops=fp8)


def tensors(dim, length, kv_heads=None):
    heads, batch = 2048 // dim, 16384 // length
    q = torch.randn(batch, length, heads, dim, device="cuda", dtype=torch.bfloat16)
    k, v = (
        torch.randn(batch, length, kv_heads or heads, dim, device="cuda", dtype=torch.bfloat16)
        for _ in range(2)
    )
    return q, k, v


def forward(only, least):
    for dim in (128, 64, 256):
        for length in (16384, 8192, 4096):
            for causal in (False, True):
                name = f"D{dim} S{length} {'causal' if causal else 'full'}"
                if only and only not in name:
                    continue
                q, k, v = tensors(dim, length)
                out, exact = torch.full_like(q, math.nan), torch.full_like(q, math.nan)
                fp8 = Attention(q, k, v, out, causal=causal, precision="fp8")
                bf16 = Attention(q, k, v, exact, causal=causal)
                fp8()
                bf16()
                torch.cuda.synchronize()
                all_rows, worst = cosine(out, q, k, v, causal)
                if not all_rows >= least:
                    raise SystemExit(f"WRONG {name}: cosine {all_rows}, worst row {worst}")
                times = seconds_in_turn({"fp8": fp8, "bf16": bf16}, rounds=5)
                flops = 4 * 16384 * length * 2048 * (0.5 if causal else 1)
                report(
                    suite="forward",
                    case=name,
                    kernel=fp8.kernel(),
                    fp8_tflops=flops / times["fp8"] / 1e12,
                    bf16_tflops=flops / times["bf16"] / 1e12,
                    ratio=times["bf16"] / times["fp8"],
                    cosine=all_rows,
                    worst_row=worst,
                )


def tile_shapes(only, least):
    for dim, shapes in TUNINGS.items():
        for causal in (False, True):
            name = f"D{dim} S16384 {'causal' if causal else 'full'}"
            if only and only not in name:
                continue
            q, k, v = tensors(dim, 16384)
            out = torch.full_like(q, math.nan)
            calls = {}
            for block_m, block_n, persistent in shapes:
                tuning = f"block_m={block_m},block_n={block_n},persistent={persistent}"
                try:
                    call = Attention(q, k, v, out, causal=causal, precision="fp8", tuning=tuning)
                except RuntimeError as error:
                    print(f"{name} {tuning}: {str(error)[:150]}", flush=True)
                    continue
                out.fill_(math.nan)
                call()
                torch.cuda.synchronize()
                found = cosine(out, q, k, v, causal)[0]
                if not found >= least:
                    print(f"WRONG {name} {tuning}: cosine {found}", flush=True)
                    continue
                calls[tuning] = call
            flops = 4 * 16384 * 16384 * 2048 * (0.5 if causal else 1)
            for tuning, time in sorted(
                seconds_in_turn(calls, rounds=3).items(), key=lambda item: item[1]
            ):
                report(suite="tunings", case=name, tuning=tuning, fp8_tflops=flops / time / 1e12)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="cases whose name has this text")
    parser.add_argument("--tunings", action="store_true")
    parser.add_argument("--least", type=float, default=0.998, help="cosine")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    ceilings()
    forward(arguments.only, arguments.least)
    if arguments.tunings:
        tile_shapes(arguments.only, arguments.least)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in ROWS)


if __name__ == "__main__":
    main()
