"""The backward pass beside a bias that all batches share (triangle attention) on an NVIDIA GPU:
each family with dbias, without it, and dbias alone. Milliseconds, medians of alternating spans in
one process; --json keeps the rows as JSON lines.

dbias is compared with fp32 before it is timed. `fulmen` and `libfulmen.so.0.2` as for run.sh."""

import argparse
import json
import math
import sys

import torch
from fulmen import Attention
from timing import seconds_in_turn

from bench import normal

LENGTHS = (256, 384, 512, 768)
HEADS = 4
FAMILIES = ("backward.sm80", "backward_atomic.sm80", "backward_wgmma.sm90", "backward_tma.sm90")
FAMILIES += ("backward_wgmma_atomic.sm90",)
ROWS = 64  # of a head's dbias that are compared


def expected_rows(q, k, v, dout, bias, keep):
    """dbias of the first rows of the last head, in fp32, batch after batch."""
    total = torch.zeros(ROWS, k.shape[1], device="cuda")
    for b in range(q.shape[0]):
        qh, kh, vh, dh = (x[b, :, -1].float() for x in (q, k, v, dout))
        scores = qh[:ROWS] @ kh.T / math.sqrt(q.shape[-1]) + bias[0, -1, :ROWS].float()
        if keep is not None:
            scores = scores.masked_fill(~keep[b, 0], -math.inf)
        p = torch.softmax(scores, -1)
        d = dh[:ROWS] @ vh.T
        total += p * (d - (p * d).sum(-1, keepdim=True))
    return total


def measure(length, dim, bias_dtype, masked):
    shape = (length, length, HEADS, dim)
    q, k, v, dout = (normal(*shape, dtype=torch.bfloat16) for _ in range(4))
    bias = normal(1, HEADS, length, length, dtype=bias_dtype)
    inputs, keep = {"bias": bias.expand(length, -1, -1, -1)}, None
    if masked:
        kept = length - length // 4 * torch.arange(length, device="cuda") // length
        keep = (torch.arange(length, device="cuda")[None] < kept[:, None])[:, None, None]
        inputs["keep_mask"] = keep.expand(length, HEADS, length, length)
    out = torch.empty_like(q)
    lse = torch.empty(length, HEADS, length, 1, device="cuda")
    Attention(q, k, v, out, lse=lse, **inputs)()
    grads = {f"d{n}": torch.full_like(x, math.nan) for n, x in zip("qkv", (q, k, v), strict=True)}
    dbias = torch.full_like(bias, math.nan)
    wanted = {"with": {**grads, "dbias": dbias}, "without": grads, "alone": {"dbias": dbias}}
    expected = expected_rows(q, k, v, dout, bias, keep)
    calls = {}
    for family in FAMILIES:
        for name, gradients in wanted.items():
            if name == "alone" and family != "backward.sm80":
                continue
            try:
                call = Attention(
                    q,
                    k,
                    v,
                    out,
                    lse=lse,
                    dout=dout,
                    kernel=f"cuda.{family}",
                    deterministic="atomic" not in family,
                    **inputs,
                    **gradients,
                )
            except RuntimeError as error:
                print(f"{family} takes no part: {str(error)[:160]}", file=sys.stderr)
                break
            dbias.fill_(math.nan)
            call()
            if "dbias" in gradients:
                share = ((dbias[0, -1, :ROWS] - expected).abs().max() / expected.abs().max()).item()
                if not share < 0.02:  # NaN, too
                    raise SystemExit(f"WRONG: dbias by {family}: error {share} of the largest")
            calls[f"{family} {name}"] = call
    return {name: 1e3 * s for name, s in seconds_in_turn(calls).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--bias", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    rows = []
    for length in arguments.lengths:
        for masked in (False, True):
            times = measure(length, arguments.dim, getattr(torch, arguments.bias), masked)
            rows.append({"length": length, "masked": masked, **times})
            print(f"N {length}{', padding' if masked else ''}")
            for name, ms in times.items():
                print(f"  {name:34} {ms:8.3f}", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
