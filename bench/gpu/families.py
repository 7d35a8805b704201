"""Which kernel family of an NVIDIA GPU wins where: each that serves a problem, forced, in
alternating spans.

A row shows the time of each relative to the one that is taken without `kernel=`; below 1 it is
faster than that one. --json keeps the microseconds as JSON lines; --markdown prints such a file as
tables. Outputs are compared with fp32 before they are timed, gradients are not: tests do that."""

import argparse
import json
import math
import sys

import torch
from fulmen import Attention
from timing import seconds_in_turn

from bench import check, normal

FORWARD = (
    "boards.sm80",
    "short.sm80",
    "prefill.sm80",
    "prefill_wgmma.sm90",
    "prefill_tma.sm90",
    "decode.sm80",
    "decode_tma.sm90",
)
BACKWARD = (
    "short_backward.sm80",
    "backward.sm80",
    "backward_atomic.sm80",
    "backward_wgmma.sm90",
    "backward_wgmma_atomic.sm90",
    "backward_tma.sm90",
)
# Batch, queries, keys, query heads, KV heads, head_dim, causal.
BOARDS = [
    (batch, 64, 64, heads, heads, 768 // heads, False)
    for heads in (24, 12, 8, 6)
    for batch in (1, 16, 256)
]
SHORT = [
    (256, 20, 20, 12, 12, 64, False),
    (64, 77, 77, 12, 12, 64, False),
    (64, 128, 128, 12, 12, 64, False),
    (1, 128, 128, 12, 12, 64, False),
    (8, 96, 96, 12, 12, 64, False),
    (8, 128, 128, 8, 8, 128, False),
    (64, 128, 128, 8, 8, 128, True),
    (64, 197, 197, 12, 12, 64, False),
    (32, 256, 256, 12, 12, 64, True),
]
LONG = [
    (1, 1024, 1024, 8, 8, 64, False),
    (8, 2048, 2048, 16, 16, 128, False),
    (8, 2048, 2048, 16, 16, 128, True),
    (4, 2048, 2048, 8, 8, 256, True),
]
FEW = [
    (1, 1, 128, 32, 8, 128, False),
    (1, 1, 8192, 32, 8, 128, False),
    (16, 1, 512, 32, 8, 128, False),
    (16, 1, 8192, 32, 8, 128, False),
    (1, 16, 8192, 32, 8, 128, True),
    (8, 16, 128, 8, 8, 64, False),
    (8, 32, 128, 8, 8, 64, False),
    (64, 32, 128, 12, 12, 64, False),
    (64, 64, 128, 12, 12, 64, False),
    (8, 64, 128, 8, 8, 128, False),
    (1, 64, 512, 12, 12, 64, False),
    (16, 32, 512, 12, 12, 64, False),
    (16, 64, 512, 12, 12, 64, False),
    (8, 48, 1024, 8, 8, 128, False),
    (8, 64, 2048, 32, 8, 128, True),
    (1, 64, 4096, 32, 8, 128, True),
    (1, 64, 4096, 8, 8, 256, False),
]
SUITES = {
    "boards": (BOARDS, torch.float16, FORWARD, False),
    "short": (SHORT, torch.bfloat16, FORWARD, False),
    "long": (LONG, torch.bfloat16, FORWARD, False),
    "few queries": (FEW, torch.bfloat16, FORWARD, False),
    "boards, gradients": (BOARDS, torch.float16, BACKWARD, True),
    "short, gradients": (SHORT, torch.bfloat16, BACKWARD, True),
    "long, gradients": (LONG, torch.bfloat16, BACKWARD, True),
}


def text_of(shape):
    batch, queries, keys, heads, kv_heads, dim, causal = shape
    head = f"{heads}" if heads == kv_heads else f"{heads}/{kv_heads}"
    return f"{batch} x {queries} of {keys}, {head}x{dim}{' causal' if causal else ''}"


def measured(shape, dtype, families, backward):
    """Microseconds by family, and the family that is taken."""
    batch, queries, keys, heads, kv_heads, dim, causal = shape
    q, dout = (normal(batch, queries, heads, dim, dtype=dtype) for _ in range(2))
    k, v = (normal(batch, keys, kv_heads, dim, dtype=dtype) for _ in range(2))
    out = torch.full_like(q, math.nan)
    rest = {}
    if backward:
        lse = torch.full((batch, heads, queries, 1), math.nan, device="cuda")
        Attention(q, k, v, out, lse=lse, causal=causal)()
        rest = dict(
            lse=lse,
            dout=dout,
            **{f"d{name}": torch.empty_like(x) for name, x in zip("qkv", (q, k, v), strict=True)},
        )

    def call_of(kernel, deterministic=True):
        return Attention(
            q, k, v, out, causal=causal, kernel=kernel, deterministic=deterministic, **rest
        )

    taken = call_of(None).kernel()
    calls = {}
    for family in families:
        try:
            call = call_of(f"cuda.{family}", "atomic" not in family)
        except RuntimeError as error:  # it does not serve this problem
            print(f"{text_of(shape)}: {str(error).splitlines()[0][:160]}", file=sys.stderr)
            continue
        if not backward:
            out.fill_(math.nan)
        call()
        torch.cuda.synchronize()
        if not backward:
            check(out, q, k, v, causal=causal, label=f"{text_of(shape)} by {family}")
        calls[family] = call
    times = seconds_in_turn(calls, graphs=True, rounds=5, span_ms=4.0)
    return {family: 1e6 * time for family, time in times.items()}, taken.removeprefix("cuda.")


def markdown(path):
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    for suite in dict.fromkeys(row["suite"] for row in rows):
        mine = [row for row in rows if row["suite"] == suite]
        columns = [f for f in FORWARD + BACKWARD if any(f in row["microseconds"] for row in mine)]
        print(
            f"\n{suite}\n\n| case | {' | '.join(columns)} | taken, us |\n"
            f"|{'---|' * (len(columns) + 2)}"
        )
        for row in mine:
            times, taken = row["microseconds"], row["taken"]
            cells = [
                f"{times[c] / times[taken]:.2f}" if c in times and taken in times else ""
                for c in columns
            ]
            print(
                f"| {row['case']} | {' | '.join(cells)} | {taken.split('.')[0]} "
                f"{times.get(taken, math.nan):.1f} |"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="suites whose name holds this")
    parser.add_argument("--json", default="")
    parser.add_argument(
        "--markdown",
        default="",
        help="print the tables of this file of JSON lines and measure nothing",
    )
    arguments = parser.parse_args()
    if arguments.markdown:
        return markdown(arguments.markdown)
    torch.manual_seed(20240229)
    for suite, (shapes, dtype, families, backward) in SUITES.items():
        if arguments.only not in suite:
            continue
        for shape in shapes:
            times, taken = measured(shape, dtype, families, backward)
            row = dict(suite=suite, case=text_of(shape), taken=taken, microseconds=times)
            print(
                f"{suite}: {row['case']}: {taken}; "
                + "  ".join(f"{f} {t:.1f}" for f, t in times.items()),
                flush=True,
            )
            if arguments.json:
                with open(arguments.json, "a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
