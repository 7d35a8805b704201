"""What fp8.py and int8.py share: inputs, results beside double precision, reports, options."""

import argparse
import json
import math

import torch

ROWS = []


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


def tensors(dim, length, kv_heads=None):
    heads, batch = 2048 // dim, 16384 // length
    q = torch.randn(batch, length, heads, dim, device="cuda", dtype=torch.bfloat16)
    k, v = (
        torch.randn(batch, length, kv_heads or heads, dim, device="cuda", dtype=torch.bfloat16)
        for _ in range(2)
    )
    return q, k, v


def checked(name, call, problem, out, least):
    """The cosine of what it computes."""
    out.fill_(math.nan)
    call()
    torch.cuda.synchronize()
    all_rows, worst = cosine(out, *problem)
    if not all_rows >= least:
        raise SystemExit(f"WRONG {name}: cosine {all_rows}, worst row {worst}")
    return all_rows, worst


def main(description, least, ceilings, forward, tile_shapes):
    """Runs the suites. least: the cosine that is asked for where --least says nothing."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", help="cases whose name has this text")
    parser.add_argument("--tunings", action="store_true")
    parser.add_argument("--least", type=float, default=least, help="cosine")
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
