"""Score functions as compiled code on CPUs beside bytecode: processor time of one thread.

  python3 bench/python/compiled_functions.py [--rounds 5]

FULMEN_COMPILE_FUNCTIONS=0 and =1 in turn, each in a process; ratios are medians over the rounds.
Queries, keys and values are [1, 2, 2048, 64], fp32; places are a grid of 32 x 64.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SHAPE = (1, 2, 2048, 64)


def natten(b, h, q, k):
    """13 x 13 places around the query's, inside of the grid."""
    rows = ((q // 64).clamp(6, 25) - k // 64).abs() <= 6
    return rows & (((q % 64).clamp(6, 57) - k % 64).abs() <= 6)


def tiles(b, h, q, k):
    """3 x 3 tiles of 8 x 8 places around the query's."""
    rows = ((q // 512).clamp(1, 2) - k // 512).abs() <= 1
    return rows & (((q % 64 // 8).clamp(1, 6) - k % 64 // 8).abs() <= 1)


def gated_decay(score, b, h, q, k):
    import torch

    return score + torch.exp(-0.01 * (q - k).abs()) * torch.sigmoid(score)


FUNCTIONS = {
    "NATTEN, 13 x 13 of 32 x 64 places": (None, natten),
    "3 x 3 tiles of 8 x 8 places": (None, tiles),
    "score + exp(-.01 abs(q - k)) sigmoid(score)": (gated_decay, None),
}


def seconds(repeats: int = 6) -> dict[str, tuple[float, float]]:
    """Medians of a function's forward and backward passes."""
    import fulmen
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    torch.set_num_threads(1)
    found = {}
    for name, (score_mod, mask_mod) in FUNCTIONS.items():
        q, k, v = (torch.randn(SHAPE, requires_grad=True) for _ in range(3))
        length = SHAPE[2]
        block_mask = mask_mod and create_block_mask(
            mask_mod, None, None, length, length, device="cpu"
        )
        passes = []
        for _ in range(repeats + 2):
            begin = time.process_time()
            out = fulmen.flex_attention(q, k, v, score_mod, block_mask)
            middle = time.process_time()
            out.sum().backward()
            passes.append((middle - begin, time.process_time() - middle))
        found[name] = [statistics.median(times) for times in zip(*passes[2:], strict=True)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(seconds()))
        return
    ratios: dict[str, list] = {}
    for _ in range(arguments.rounds):
        times = []
        for compiled in "01":
            more = {"FULMEN_COMPILE_FUNCTIONS": compiled, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, __file__, "--one"]
            ran = subprocess.run(
                command, env={**os.environ, **more}, stdout=subprocess.PIPE, check=True
            )
            times.append(json.loads(ran.stdout.splitlines()[-1]))
        for name in FUNCTIONS:
            pair = zip(times[0][name], times[1][name], strict=True)
            ratios.setdefault(name, []).append([a / b for a, b in pair])
    print("| function | forward | backward |\n|---|---|---|")
    for name, found in ratios.items():
        forward, backward = (statistics.median(one) for one in zip(*found, strict=True))
        print(f"| {name} | {forward:.2f} | {backward:.2f} |")


if __name__ == "__main__":
    main()
