#!/usr/bin/env python3
"""Times lc0's evaluations with fused attention against those without, in turn.

An evaluation's time is the difference of two runs of `lc0 backendbench` of many and of few batches:
loading and warming up cancel. Prints medians over the rounds, a batch size a line.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time


def run(args, fused: bool, size: int, batches: int) -> tuple[float, float]:
    """CPU and wall seconds of a whole run."""
    command = [
        args.lc0,
        "backendbench",
        f"--weights={args.net}",
        "--backend=blas",
        f"--backend-opts=fulmen={'true' if fused else 'false'}",
        f"--threads={args.threads}",
        f"--batches={batches}",
        f"--start-batch-size={size}",
        f"--max-batch-size={size}",
    ]
    start = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    said = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - start
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {process.returncode}\n{said}")
    if fused != ("Successfully using fused attention" in said):
        sys.exit(f"{' '.join(command)}: fused attention is not {fused}\n{said}")
    return usage.ru_utime + usage.ru_stime, wall


def evaluation(args, fused: bool, size: int) -> tuple[float, float]:
    """CPU and wall milliseconds of one batch."""
    more = max(4, args.boards // size)
    short, long = run(args, fused, size, 1), run(args, fused, size, 1 + more)
    return tuple(1e3 * (b - a) / more for a, b in zip(short, long, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lc0", help="the program, built with fulmen")
    parser.add_argument("net", help="a network: make_net.py writes one")
    parser.add_argument("--sizes", default="1,8,32,128,256")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--boards", type=int, default=512, help="boards that a run times")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    print("batch | unfused CPU ms | fused CPU ms | CPU ratio | range of ratios | wall ratio")
    for size in map(int, args.sizes.split(",")):
        rows = [
            (evaluation(args, False, size), evaluation(args, True, size))
            for _ in range(args.rounds)
        ]
        ratios = [plain[0] / fused[0] for plain, fused in rows]
        walls = [plain[1] / fused[1] for plain, fused in rows]
        plain = statistics.median(row[0][0] for row in rows)
        fused = statistics.median(row[1][0] for row in rows)
        print(
            f"{size} | {plain:.2f} | {fused:.2f} | {statistics.median(ratios):.3f}"
            f" | {min(ratios):.3f} to {max(ratios):.3f} | {statistics.median(walls):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
