"""Attention with q k^T in int8 beside bf16 on an NVIDIA GPU: beside the same tiles of sm_80's
instructions, and beside the kernel that bf16 gets by itself. The launches that write codes are part
of the time; `one_row_ms` is a call of one row of queries, most of which are the keys' codes. JSON
lines to --json.

  python bench/gpu/int8.py [--only TEXT] [--least COSINE] [--tunings] [--json FILE]

Each result's cosine with attention in double precision, over the first and the last head, is
checked before it is timed: int8's roundings leave .9999 of normal numbers. --tunings times tile
shapes of a few problems, in both precisions."""

import math

import torch
from eight_bits import checked, main, report, tensors
from fulmen import Attention
from timing import seconds, seconds_in_turn

SM80 = "cuda.prefill.sm80"
# block_m, block_n, waves, buffers, queries_in_lds, min_workgroups
TUNINGS = {
    128: [
        (128, 64, 4, 2, 1, 2),
        (128, 32, 4, 2, 1, 2),
        (128, 64, 8, 2, 1, 1),
        (128, 64, 8, 2, 0, 1),
        (64, 64, 4, 2, 0, 2),
        (64, 64, 4, 2, 0, 3),
    ],
    64: [
        (128, 64, 4, 2, 0, 2),
        (128, 64, 4, 2, 1, 2),
        (128, 32, 4, 2, 0, 2),
        (128, 128, 8, 2, 0, 2),
        (64, 64, 4, 2, 0, 4),
    ],
    256: [(128, 64, 8, 2, 1, 1), (128, 32, 8, 2, 1, 1), (64, 32, 4, 2, 1, 2)],
}


def ceilings():
    """TFLOP/s of cuBLAS's products of 8192 x 8192."""
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x8, y8 = (torch.randint(-127, 128, (8192, 8192), device="cuda").to(torch.int8) for _ in "xy")
    flops = 2 * 8192**3 / 1e12
    report(
        suite="ceilings",
        bf16_tflops=flops / seconds(lambda: x @ y),
        int8_tops=flops / seconds(lambda: torch._int_mm(x8, y8.t())),
    )


def forward(only, least):
    for dim in (128, 64, 256):
        for length in (16384, 4096, 1024):
            for causal in (False, True):
                name = f"D{dim} S{length} {'causal' if causal else 'full'}"
                if only and only not in name:
                    continue
                q, k, v = tensors(dim, length)
                out, exact, tiles = (torch.full_like(q, math.nan) for _ in range(3))
                calls = {
                    "int8": Attention(q, k, v, out, causal=causal, precision="int8"),
                    "sm80": Attention(q, k, v, tiles, causal=causal, kernel=SM80),
                    "bf16": Attention(q, k, v, exact, causal=causal),
                }
                problem = (q, k, v, causal)
                checked(f"{name} in bf16", calls["bf16"], problem, exact, 0.9999)
                checked(f"{name} by {SM80}", calls["sm80"], problem, tiles, 0.9999)
                all_rows, worst = checked(name, calls["int8"], problem, out, least)
                times = seconds_in_turn(calls, rounds=5)
                # One row of queries: what is left is the codes of the keys and a launch.
                codes = seconds(Attention(q[:, :1], k, v, out[:, :1], precision="int8"))
                flops = 4 * 16384 * length * 2048 * (0.5 if causal else 1) / 1e12
                report(
                    suite="forward",
                    case=name,
                    kernel=calls["int8"].kernel(),
                    int8_tflops=flops / times["int8"],
                    sm80_bf16_tflops=flops / times["sm80"],
                    bf16_kernel=calls["bf16"].kernel(),
                    bf16_tflops=flops / times["bf16"],
                    ratio_sm80=times["sm80"] / times["int8"],
                    ratio=times["bf16"] / times["int8"],
                    one_row_ms=codes * 1e3,
                    cosine=all_rows,
                    worst_row=worst,
                )


def tile_shapes(only, least):
    names = ("block_m", "block_n", "waves", "buffers", "queries_in_lds", "min_workgroups")
    for dim, shapes in TUNINGS.items():
        for causal in (False, True):
            name = f"D{dim} S4096 {'causal' if causal else 'full'}"
            if only and only not in name:
                continue
            q, k, v = tensors(dim, 4096)
            out = torch.full_like(q, math.nan)
            calls = {}
            for shape in shapes:
                tuning = ",".join(f"{n}={x}" for n, x in zip(names, shape, strict=True))
                for kind, how in {"int8": {"precision": "int8"}, "bf16": {"kernel": SM80}}.items():
                    try:
                        call = Attention(q, k, v, out, causal=causal, tuning=tuning, **how)
                        checked(f"{name} {kind} {tuning}", call, (q, k, v, causal), out, least)
                    except (RuntimeError, ValueError, NotImplementedError) as error:
                        print(f"{name} {kind} {tuning}: {str(error)[:150]}", flush=True)
                        continue
                    calls[f"{kind} {tuning}"] = call
            flops = 4 * 16384 * 4096 * 2048 * (0.5 if causal else 1) / 1e12
            for tuning, time in sorted(
                seconds_in_turn(calls, rounds=3).items(), key=lambda item: item[1]
            ):
                report(suite="tunings", case=name, tuning=tuning, tflops=flops / time)


if __name__ == "__main__":
    main(__doc__, 0.9995, ceilings, forward, tile_shapes)
