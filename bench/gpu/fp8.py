"""Attention with products in fp8 beside bf16 on an NVIDIA GPU, and the ceiling of both products.
The launches that write codes are part of the time. JSON lines to --json.

  python bench/gpu/fp8.py [--only TEXT] [--least COSINE] [--tunings] [--json FILE]

Each result's cosine with attention in double precision, over the first and the last head, is
checked before it is timed: fp8's roundings leave .9986 of normal numbers. --tunings times tile
shapes of a few problems."""

import math

import torch
from eight_bits import checked, cosine, main, report, tensors
from fulmen import Attention
from timing import seconds, seconds_in_turn

# block_m, block_n, persistent
TUNINGS = {
    128: [(192, 96, 2), (192, 96, 0), (128, 192, 2), (128, 128, 2), (192, 64, 2)],
    64: [(192, 128, 2), (192, 128, 0), (192, 96, 2), (128, 192, 2)],
    256: [(128, 96, 2), (128, 96, 0), (128, 64, 2)],
}


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
                bf16()
                all_rows, worst = checked(name, fp8, (q, k, v, causal), out, least)
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


if __name__ == "__main__":
    main(__doc__, 0.998, ceilings, forward, tile_shapes)
