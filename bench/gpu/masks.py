"""Bool masks on an NVIDIA GPU, forward and backward: beside the bias that says the same, no mask,
and cuDNN with either.

Times are microseconds, medians of alternating spans in one process. A ratio above 1 says that
Fulmen's mask is the faster one. --json keeps the
rows as JSON lines."""

import argparse
import json
import math
import sys

import torch
import torch.nn.functional as F
from fulmen import Attention
from timing import seconds, seconds_in_turn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench import heads_first, normal


def triangle(batch, queries, keys):
    """Causal, and left padding of another length in each batch: [batch, 1, queries, keys]."""
    mask = (
        torch.ones(queries, keys, dtype=torch.bool, device="cuda")
        .tril(keys - queries)
        .expand(batch, 1, -1, -1)
        .clone()
    )
    for b in range(1, batch):
        mask[b, :, :, : 37 * b] = False
    return mask


def documents(batch, queries, keys):
    """Documents of 300 tokens, each attending itself."""
    at = torch.arange(keys, device="cuda") // 300
    return (at[-queries:, None] == at[None]).expand(batch, 1, -1, -1).contiguous()


def padding(batch, queries, keys):
    """One row for all queries: [batch, 1, 1, keys]."""
    lengths = keys - keys // 16 * torch.arange(batch, device="cuda")
    return (torch.arange(keys, device="cuda")[None] < lengths[:, None])[:, None, None]


def scattered(batch, queries, keys):
    """Half of all pairs, at random: no tile is empty or whole."""
    return torch.rand(batch, 1, queries, keys, device="cuda") < 0.5


# Batch, queries, keys, query heads, KV heads, head_dim, mask.
CASES = {
    "triangle 4 x 2k, 32/8 x 128": (4, 2048, 2048, 32, 8, 128, triangle),
    "triangle 4 x 2k, 12 x 64": (4, 2048, 2048, 12, 12, 64, triangle),
    "triangle 2 x 2k, 8 x 256": (2, 2048, 2048, 8, 8, 256, triangle),
    "documents 2 x 4k, 16 x 128": (2, 4096, 4096, 16, 16, 128, documents),
    "padding 8 x 512, 12 x 64": (8, 512, 512, 12, 12, 64, padding),
    "padding 4 x 2k, 16 x 128": (4, 2048, 2048, 16, 16, 128, padding),
    "scattered 2 x 2k, 16 x 128": (2, 2048, 2048, 16, 16, 128, scattered),
}


def reference(q, k, v, mask, rows):
    """The last rows of the last batch and head, in fp32."""
    q, k, v = q[-1, -rows:, -1].float(), k[-1, :, -1].float(), v[-1, :, -1].float()
    scores = (q @ k.T / math.sqrt(q.shape[1])).masked_fill(~mask[-1, -1, -rows:], -math.inf)
    return torch.nan_to_num(torch.softmax(scores, -1)) @ v


def worst(got, expected):
    if bad := (~torch.isfinite(got)).sum().item():
        raise SystemExit(f"WRONG: {bad} of {got.numel()} numbers are not finite")
    share = ((got.float() - expected).abs().max() / expected.abs().max()).item()
    if not share < 0.03:  # NaN, too
        raise SystemExit(f"WRONG: error {share} of the largest")
    return share


def cudnn(q, k, v, mask):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(
            heads_first(q),
            heads_first(k),
            heads_first(v),
            attn_mask=mask,
            enable_gqa=q.shape[2] != k.shape[2],
        ).transpose(1, 2)


def working(name, make):
    """make() where its call runs; else None, with the reason on stderr."""
    try:
        call = make()
        call()
        torch.cuda.synchronize()
        return call
    except Exception as error:
        print(f"{name} takes no part: {str(error).splitlines()[0][:160]}", file=sys.stderr)
        return None


def contestants(shape, dtype, backward, kernel):
    batch, queries, keys, heads, kv_heads, dim, mask_of = shape
    q, dout = (normal(batch, queries, heads, dim, dtype=dtype) for _ in range(2))
    k, v = (normal(batch, keys, kv_heads, dim, dtype=dtype) for _ in range(2))
    mask = mask_of(batch, queries, keys).expand(batch, heads, queries, keys)
    # -inf says the same; of the mask's own strides, so that nothing is repeated for each head.
    own = mask_of(batch, queries, keys) if mask_of is not scattered else mask[:, :1]
    bias = (
        torch.zeros(own.shape, dtype=dtype, device="cuda")
        .masked_fill(~own, -math.inf)
        .expand(batch, heads, queries, keys)
    )
    named = {"mask": {"keep_mask": mask}, "bias": {"bias": bias}, "none": {}}
    calls, results, kernels = {}, {}, {}
    for name, extra in named.items():
        out, lse = (
            torch.full_like(q, math.nan),
            torch.full((batch, heads, queries, 1), math.nan, device="cuda"),
        )
        forward = Attention(
            q, k, v, out, lse=lse, kernel=None if backward or name == "none" else kernel, **extra
        )
        forward()
        calls[name], results[name] = forward, [out]
        if backward:
            grads = {
                f"d{x}": torch.full_like(y, math.nan) for x, y in zip("qkv", (q, k, v), strict=True)
            }
            calls[name] = Attention(
                q, k, v, out, lse=lse, dout=dout, kernel=kernel, **extra, **grads
            )
            calls[name]()
            results[name] = list(grads.values())
        kernels[name] = calls[name].kernel()
    torch.cuda.synchronize()
    error = (
        worst(results["mask"][0][-1, -128:, -1], reference(q, k, v, mask, 128))
        if not backward
        else 0.0
    )
    for got, expected in zip(results["mask"], results["bias"], strict=True):
        if bad := (~torch.isfinite(expected)).sum().item():
            raise SystemExit(
                f"WRONG: of the bias's {bad} numbers are not finite, {kernels['bias']}"
            )
        error = max(error, worst(got, expected.float()))
    for name, of in (("cudnn mask", mask), ("cudnn bias", bias)):
        if backward:
            inputs = tuple(x.detach().requires_grad_() for x in (q, k, v))

            def make(of=of, inputs=inputs):
                result = cudnn(*inputs, of)
                return lambda: torch.autograd.grad(result, inputs, dout, retain_graph=True)

            call = working(name, make)
        else:
            call = working(name, lambda of=of: lambda: cudnn(q, k, v, of))
        if call is not None:
            calls[name] = call
    return calls, kernels, error


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--kernel", default=None, help="force this kernel of ours")
    parser.add_argument("--pass", dest="passes", default="forward,backward")
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp16"])
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    torch.manual_seed(20261127)
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[arguments.dtype]
    x, y = (normal(8192, 8192, dtype=dtype) for _ in range(2))
    print(
        f"product of 8192^3: {2 * 8192**3 / seconds(lambda: x @ y) / 1e12:.0f} TFLOP/s", flush=True
    )
    for case, shape in CASES.items():
        for which in arguments.passes.split(","):
            if arguments.only not in case:
                continue
            calls, kernels, error = contestants(shape, dtype, which == "backward", arguments.kernel)
            times = seconds_in_turn(calls, graphs=which == "forward")
            row = {name: round(time * 1e6, 1) for name, time in times.items()}
            best = min((t for n, t in times.items() if n.startswith("cudnn")), default=math.nan)
            row |= {
                "bias/mask": round(times["bias"] / times["mask"], 3),
                "peer/mask": round(best / times["mask"], 3),
            }
            print(f"{which} {case}: {row} {kernels['mask']} error {error:.2g}", flush=True)
            if arguments.json:
                with open(arguments.json, "a") as file:
                    file.write(
                        json.dumps(
                            {"pass": which, "case": case, "kernels": kernels, "error": error, **row}
                        )
                        + "\n"
                    )


if __name__ == "__main__":
    main()
