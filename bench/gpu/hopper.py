"""Fulmen beside FlashAttention 4 and cuDNN, in one process, in alternating spans.

cuDNN is PyTorch's. FlashAttention 4 (package flash-attn-4) takes part where it can be imported. A
peer that refuses a case is left out of its row, with the reason on stderr. --json keeps the rows as
JSON lines; --markdown prints such a file as tables."""

import argparse
import json
import math
import sys

import torch
import torch.nn.functional as F
from fulmen import Attention
from timing import seconds, seconds_in_turn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench import check, gradients, heads_first, normal, worst_share

try:
    from flash_attn.cute import flash_attn_func as flash4
except ImportError as error:
    flash4 = None
    print(f"FlashAttention 4 takes no part: {error}", file=sys.stderr)

# Batch, queries, keys, query heads, KV heads, head_dim, causal: what models call.
SHAPES = {
    "Llama prefill 4k": (1, 4096, 4096, 32, 8, 128, True),
    "Llama chunk of 512 on 8k keys": (1, 512, 8192, 32, 8, 128, True),
    "GPT-2 1k": (16, 1024, 1024, 12, 12, 64, True),
    "BERT 512": (32, 512, 512, 12, 12, 64, False),
    "ViT 197": (64, 197, 197, 12, 12, 64, False),
    "16 x 80 at 4k": (2, 4096, 4096, 16, 16, 80, False),
    "SDXL 4k": (2, 4096, 4096, 10, 10, 64, False),
    "Flux 4.6k": (1, 4608, 4608, 24, 24, 128, False),
    "Cross attention 32k on 512": (1, 32760, 512, 12, 12, 128, False),
    "Gemma 4k": (1, 4096, 4096, 8, 4, 256, True),
    "8 x 64 at 1k": (1, 1024, 1024, 8, 8, 64, False),
}
DECODE = {
    "1 x 32/8 x 128 over 8k": (1, 8192, 32, 8, 128),
    "16 x 32/8 x 128 over 8k": (16, 8192, 32, 8, 128),
    "64 x 32/8 x 128 over 4k": (64, 4096, 32, 8, 128),
    "16 x 64/8 x 128 over 8k": (16, 8192, 64, 8, 128),
    "8 x 32/32 x 64 over 4k": (8, 4096, 32, 32, 64),
    "32 x 16/2 x 256 over 4k": (32, 4096, 16, 2, 256),
}
# Batches that do not fill 132 multiprocessors evenly, which only a suite that is asked for runs.
BATCHES = {
    **{
        f"{batch} x 32/8 x 128 over 8k": (batch, 8192, 32, 8, 128)
        for batch in (4, 10, 12, 20, 24, 28, 36, 48)
    },
    **{f"{batch} x 32/32 x 64 over 4k": (batch, 4096, 32, 32, 64) for batch in (1, 5, 10, 20)},
    **{f"{batch} x 16/2 x 256 over 4k": (batch, 4096, 16, 2, 256) for batch in (20, 36, 40)},
}


def sdpa(backend, q, k, v, causal):
    """[batch, seqlen, head, dim] in and out; causal is aligned to the last key."""
    with sdpa_kernel(backend):
        if not causal or q.shape[1] == k.shape[1]:
            mask = {"is_causal": causal}
        else:  # cuDNN's own alignment has no way through PyTorch
            mask = {
                "attn_mask": torch.ones(
                    q.shape[1], k.shape[1], dtype=torch.bool, device="cuda"
                ).tril(k.shape[1] - q.shape[1])
            }
        out = F.scaled_dot_product_attention(
            heads_first(q),
            heads_first(k),
            heads_first(v),
            enable_gqa=q.shape[2] != k.shape[2],
            **mask,
        )
    return heads_first(out)


def peers_of(causal):
    """Name -> a function of q, k and v that gives out."""
    peers = {"cudnn": lambda q, k, v: sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, causal)}
    if flash4 is not None:
        peers["flash4"] = lambda q, k, v: flash4(q, k, v, causal=causal)[0]
    return peers


def that_work(peers, call_of, case):
    """Name -> call_of(peer), of those whose call runs; the others' reasons to stderr."""
    good = {}
    for name, peer in peers.items():
        try:
            call = call_of(peer)
            call()
            torch.cuda.synchronize()
            good[name] = call
        except Exception as error:
            print(
                f"{case}: {name} takes no part: {str(error).splitlines()[0][:200]}", file=sys.stderr
            )
    return good


def ratios(rates):
    """Our speed divided by the best peer's; with atomics by that of those with atomics."""
    found = {}
    for name, ours in rates.items():
        if name.startswith("fulmen"):
            kind = name.removeprefix("fulmen")
            peers = [
                r
                for n, r in rates.items()
                if not n.startswith("fulmen") and n.endswith(" with atomics") == bool(kind)
            ]
            if peers:
                found["ratio" + kind] = ours / max(peers)
    return found


class Rows:
    """Rows of the run, each printed as it is measured and kept in a file."""

    def __init__(self, path):
        self.path = path
        if path:
            open(path, "w").close()

    def add(self, suite, case, kernel, times, flops=0.0, moved=0.0, error=0.0):
        rate = {
            name: (flops / 1e12 if flops else moved / 1e12) / time for name, time in times.items()
        }
        row = dict(
            suite=suite,
            case=case,
            kernel=kernel,
            unit="TFLOP/s" if flops else "TB/s",
            error=error,
            rates=rate,
        )
        shown = {
            **{n: f"{r:.4g}" for n, r in rate.items()},
            **{n: f"{r:.3f}" for n, r in ratios(rate).items()},
        }
        print(
            f"{suite} {case}: " + "  ".join(f"{n} {text}" for n, text in shown.items()), flush=True
        )
        if self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps(row) + "\n")


def pairs(q_tokens, k_tokens, causal):
    """Query and key pairs that a head looks at."""
    return q_tokens * k_tokens - (q_tokens * (q_tokens - 1) // 2 if causal else 0)


def forward_case(rows, suite, case, shape, dtype):
    batch, queries, keys, heads, kv_heads, dim, causal = shape
    q = normal(batch, queries, heads, dim, dtype=dtype)
    k, v = (normal(batch, keys, kv_heads, dim, dtype=dtype) for _ in range(2))
    out = torch.full_like(q, math.nan)
    ours = Attention(q, k, v, out, causal=causal)
    ours()
    torch.cuda.synchronize()
    error = check(out, q, k, v, causal=causal, label=case)
    times = seconds_in_turn(
        {"fulmen": ours, **that_work(peers_of(causal), lambda f: lambda: f(q, k, v), case)},
        graphs=True,
    )
    rows.add(
        suite,
        case,
        ours.kernel(),
        times,
        flops=4.0 * batch * heads * dim * pairs(queries, keys, causal),
        error=error,
    )


def backward_case(rows, suite, case, shape, dtype):
    batch, queries, keys, heads, kv_heads, dim, causal = shape
    q, dout = (normal(batch, queries, heads, dim, dtype=dtype) for _ in range(2))
    k, v = (normal(batch, keys, kv_heads, dim, dtype=dtype) for _ in range(2))
    out = torch.full_like(q, math.nan)
    lse = torch.full((batch, heads, queries, 1), math.nan, device="cuda")
    Attention(q, k, v, out, lse=lse, causal=causal)()
    calls, kernel, error = {}, "", 0.0
    for name, deterministic in (("fulmen", True), ("fulmen with atomics", False)):
        grads = {
            f"d{x}": torch.full_like(y, math.nan) for x, y in zip("qkv", (q, k, v), strict=True)
        }
        ours = Attention(
            q, k, v, out, lse=lse, causal=causal, dout=dout, deterministic=deterministic, **grads
        )
        ours()
        torch.cuda.synchronize()
        kernel = kernel or ours.kernel()
        if queries <= 4096 and heads == kv_heads:
            at = (batch - 1, slice(None), heads - 1)
            wanted = gradients(q[at], k[at], v[at], dout[at], causal=causal)
            error = max(
                error, worst_share([grads[x][at] for x in ("dq", "dk", "dv")], wanted, case)
            )
        calls[name] = ours

    inputs = tuple(x.detach().requires_grad_() for x in (q, k, v))

    def backward_of(forward):
        result = forward(*inputs)
        return lambda: torch.autograd.grad(result, inputs, dout, retain_graph=True)

    peers = peers_of(causal)
    if flash4 is not None:
        peers["flash4 with atomics"] = peers["flash4"]
        peers["flash4"] = lambda q, k, v: flash4(q, k, v, causal=causal, deterministic=True)[0]
    # Without graphs: autograd cannot be captured here, so a peer of a call under 100 us is timed
    # with its host code.
    times = seconds_in_turn({**calls, **that_work(peers, backward_of, case)})
    rows.add(
        suite,
        case,
        kernel,
        times,
        flops=10.0 * batch * heads * dim * pairs(queries, keys, causal),
        error=error,
    )


def grid():
    for dim in (64, 128, 256):
        for length in (512, 2048, 8192, 16384):
            for causal in (False, True):
                heads = 2048 // dim
                yield (
                    f"D{dim} S{length} {'causal' if causal else 'full'}",
                    (16384 // length, length, length, heads, heads, dim, causal),
                )


def decode_case(rows, suite, case, shape, dtype):
    batch, keys, heads, kv_heads, dim = shape
    q = normal(batch, 1, heads, dim, dtype=dtype)
    k, v = (normal(batch, keys, kv_heads, dim, dtype=dtype) for _ in range(2))
    out = torch.full_like(q, math.nan)
    ours = Attention(q, k, v, out)
    ours()
    torch.cuda.synchronize()
    error = check(out, q, k, v, label=case)
    peers = peers_of(False)
    peers["flash2"] = lambda q, k, v: sdpa(SDPBackend.FLASH_ATTENTION, q, k, v, False)
    times = seconds_in_turn(
        {"fulmen": ours, **that_work(peers, lambda f: lambda: f(q, k, v), case)}, graphs=True
    )
    rows.add(suite, case, ours.kernel(), times, moved=2.0 * k.numel() * 2, error=error)


def markdown(path):
    """The file's rows as tables: a suite a table, a contestant a column, the ratios last."""
    with open(path) as file:
        rows = [json.loads(line) for line in file]
    for suite in dict.fromkeys(row["suite"] for row in rows if row["suite"] != "ceilings"):
        mine = [row for row in rows if row["suite"] == suite]
        columns = list(
            dict.fromkeys(name for row in mine for name in (*row["rates"], *ratios(row["rates"])))
        )
        columns.sort(key=lambda name: name.startswith("ratio"))
        print(
            f"\n{suite}, {mine[0]['unit']}\n\n| case | {' | '.join(columns)} |\n"
            f"|{'---|' * (len(columns) + 1)}"
        )
        for row in mine:
            texts = {n: f"{r:.3g}" for n, r in row["rates"].items()} | {
                n: f"{r:.2f}" for n, r in ratios(row["rates"]).items()
            }
            print(f"| {row['case']} | {' | '.join(texts.get(name, '') for name in columns)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--suite",
        default="forward,shapes,decode,backward",
        help="of these and batches, ',' between them",
    )
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp16"])
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
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[arguments.dtype]
    rows = Rows(arguments.json)
    a, b = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    rows.add("ceilings", "copy", "", {"torch": seconds(lambda: b.copy_(a))}, moved=2.0 * a.numel())
    x, y = (normal(8192, 8192, dtype=dtype) for _ in range(2))
    rows.add(
        "ceilings", "product of 8192^3", "", {"torch": seconds(lambda: x @ y)}, flops=2.0 * 8192**3
    )
    for suite in arguments.suite.split(","):
        cases = {
            "decode": DECODE.items(),
            "batches": BATCHES.items(),
            "shapes": SHAPES.items(),
        }.get(suite) or grid()
        for case, shape in cases:
            if arguments.only not in case:
                continue
            if suite in ("decode", "batches"):
                decode_case(rows, suite, case, shape, dtype)
            elif suite == "backward":
                backward_case(rows, suite, case, shape, dtype)
            else:
                forward_case(rows, suite, case, shape, dtype)
                if suite == "shapes" and shape[1] == shape[2]:
                    backward_case(rows, "shapes backward", case, shape, dtype)


if __name__ == "__main__":
    main()
