#!/usr/bin/env python3
"""Times lc0's CUDA backend: unfused, with its fusedMHA, and with Fulmen, in turn.

Prints the median positions a second of `lc0 backendbench` for each batch size. For the attention
part alone link attention_cuda.cc with lc0's objects and run it:

  g++ -O2 -std=c++20 -DUSE_FULMEN -ILC0/src -ICUDA/include attention_cuda.cc \\
    $(ls LC0/build/fulmen/lc0.p/*.o | grep -v src_main.cc.o) LC0/build/fulmen/*.o \\
    -o attention_cuda -lfulmen -lcublas -lcudart -lopenblas -lz
"""

import argparse
import statistics
import subprocess
import sys

WAYS = {
    "unfused": "fulmen=false,fused_mha=false",
    "fusedMHA": "fulmen=false,fused_mha=true",
    "Fulmen": "fulmen=true,fused_mha=false",
}
# Start, step, end and batches of a run: loading the network takes longer than most sizes' batches.
RUNS = [(1, 1, 1, 400), (8, 8, 64, 150), (256, 1, 256, 60), (1024, 1, 1024, 25)]
SIZES = (1, 8, 16, 32, 64, 256, 1024)


def run(args, way: str, start: int, step: int, end: int, batches: int) -> dict[int, float]:
    """Positions a second of each size, medians over a run's batches."""
    command = [
        args.lc0,
        "backendbench",
        f"--weights={args.net}",
        f"--backend={args.backend}",
        f"--backend-opts={WAYS[way]}",
        f"--batches={batches}",
        f"--start-batch-size={start}",
        f"--batch-step={step}",
        f"--max-batch-size={end}",
    ]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    fields = [line.split(",") for line in done.stdout.splitlines()]
    rows = {
        int(row[0]): float(row[6]) for row in fields if len(row) == 10 and row[0].strip().isdigit()
    }
    said = "Successfully using fused attention" in done.stderr
    if done.returncode != 0 or not rows or said != (way == "Fulmen"):
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lc0", help="the program, built with CUDA and fulmen")
    parser.add_argument("net", help="a network: make_net.py --layers 15 writes one")
    parser.add_argument("--backend", default="cuda-fp16")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    nps: dict[tuple[str, int], list[float]] = {}
    for _ in range(args.rounds):
        for parameters in RUNS:
            for way in WAYS:
                for size, rate in run(args, way, *parameters).items():
                    nps.setdefault((way, size), []).append(rate)
    print(
        "batch | "
        + " | ".join(f"{way} nps" for way in WAYS)
        + " | Fulmen / unfused | Fulmen / fusedMHA"
    )
    for size in SIZES:
        rates = {way: statistics.median(nps[way, size]) for way in WAYS}
        print(
            f"{size} | "
            + " | ".join(f"{rate:.0f}" for rate in rates.values())
            + f" | {rates['Fulmen'] / rates['unfused']:.3f}"
            f" | {rates['Fulmen'] / rates['fusedMHA']:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
