"""fp32 on an NVIDIA GPU, forward and backward: beside PyTorch's memory-efficient kernels and the
portable ones.

Times are microseconds, medians of alternating spans in one process; ratios above 1 say that Fulmen
is the faster one. Errors are of the largest number, beside double. --json keeps the rows as JSON
lines."""

import argparse
import json
import math

import torch
import torch.nn.functional as F
from fulmen import Attention
from timing import seconds_in_turn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench import heads_first, normal

# Batch, length, heads, head_dim, causal.
CASES = {
    "2 x 2k, 8 x 64": (2, 2048, 8, 64, False),
    "2 x 2k, 8 x 128": (2, 2048, 8, 128, False),
    "2 x 2k, 16 x 128 causal": (2, 2048, 16, 128, True),
    "8 x 2k, 16 x 64 causal": (8, 2048, 16, 64, True),
    "1 x 8k, 16 x 64": (1, 8192, 16, 64, False),
    "1 x 4k, 8 x 256": (1, 4096, 8, 256, False),
    "16 x 512, 12 x 64": (16, 512, 12, 64, False),
    "384 x 384, 4 x 32": (384, 384, 4, 32, False),
}


def efficient(q, k, v, causal):
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return F.scaled_dot_product_attention(
            heads_first(q), heads_first(k), heads_first(v), is_causal=causal
        ).transpose(1, 2)


def exact(q, k, v, dout, causal):
    """Out and gradients of the last batch and head, in double."""
    q, k, v = (x[-1, :, -1].double().requires_grad_() for x in (q, k, v))
    scores = q @ k.T / math.sqrt(q.shape[1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
    out = torch.softmax(scores, -1) @ v
    return [out, *torch.autograd.grad(out, (q, k, v), dout[-1, :, -1].double())]


def error(got, expected):
    got = [x[-1, :, -1].double() for x in got]
    return max(
        ((x - y).abs().max() / y.abs().max()).item() for x, y in zip(got, expected, strict=True)
    )


def ours(q, k, v, dout, causal, backward, kernel):
    out = torch.full_like(q, math.nan)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1], 1), math.nan, device="cuda")
    forward = Attention(q, k, v, out, lse=lse, causal=causal, kernel=None if backward else kernel)
    forward()
    if not backward:
        return forward, [out]
    grads = {f"d{x}": torch.full_like(y, math.nan) for x, y in zip("qkv", (q, k, v), strict=True)}
    call = Attention(q, k, v, out, lse=lse, dout=dout, causal=causal, kernel=kernel, **grads)
    call()
    return call, list(grads.values())


def contestants(shape, backward):
    batch, length, heads, dim, causal = shape
    q, k, v, dout = (normal(batch, length, heads, dim, dtype=torch.float32) for _ in range(4))
    expected = exact(q, k, v, dout, causal)
    expected = expected[1:] if backward else expected[:1]
    portable = "cuda.backward.portable" if backward else "cuda.prefill.portable"
    calls, errors = {}, {}
    for name, kernel in (("fulmen", None), ("portable", portable)):
        calls[name], results = ours(q, k, v, dout, causal, backward, kernel)
        errors[name] = error(results, expected)
        if not errors[name] < 1e-4:  # NaN, too
            raise SystemExit(f"WRONG: {name}: error {errors[name]} of the largest")
    chosen = calls["fulmen"].kernel()
    inputs = tuple(x.detach().requires_grad_(backward) for x in (q, k, v))
    if backward:
        result = efficient(*inputs, causal)
        calls["efficient"] = lambda: torch.autograd.grad(result, inputs, dout, retain_graph=True)
        errors["efficient"] = error(calls["efficient"](), expected)
    else:
        calls["efficient"] = lambda: efficient(*inputs, causal)
        errors["efficient"] = error([calls["efficient"]()], expected)
    return calls, errors, chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--pass", dest="passes", default="forward,backward")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    torch.manual_seed(20261128)
    for case, shape in CASES.items():
        for which in arguments.passes.split(","):
            if arguments.only not in case:
                continue
            calls, errors, kernel = contestants(shape, which == "backward")
            times = seconds_in_turn(calls)
            batch, length, heads, dim, causal = shape
            products = (5 if which == "backward" else 2) / (2 if causal else 1)
            flops = 2 * products * batch * heads * length**2 * dim
            row = {name: round(time * 1e6, 1) for name, time in times.items()} | {
                "efficient/fulmen": round(times["efficient"] / times["fulmen"], 3),
                "portable/fulmen": round(times["portable"] / times["fulmen"], 3),
                "TFLOP/s": round(flops / times["fulmen"] / 1e12, 1),
                "errors": {name: f"{x:.1e}" for name, x in errors.items()},
            }
            print(f"{which} {case}: {row} {kernel}", flush=True)
            if arguments.json:
                with open(arguments.json, "a") as file:
                    file.write(json.dumps({"pass": which, "case": case, "kernel": kernel, **row}))
                    file.write("\n")


if __name__ == "__main__":
    main()
