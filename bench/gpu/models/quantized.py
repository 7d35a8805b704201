"""Attention over quantized keys and values beside bf16's on an NVIDIA GPU. JSON lines to --json.

  python bench/gpu/models/quantized.py [--only TEXT] [--tunings] [--json FILE]

Beside each time stand the bytes of k, v and their scales that it reads a second, and the rate of a
copy (its reads and writes) of the same run. Each result's largest error beside attention of the
dequantized numbers in double precision, of the first and the last KV head, is checked before it is
timed. --tunings times shapes of decode's rings."""

import argparse
import functools
import itertools
import json
import math

import fulmen
import torch
from timing import Timed, of_forward, seconds_in_turn

HEADS, KV_HEADS, DIM = 32, 8, 128
# name: batch, queries, keys, page size
CASES = {
    "decode 64 x 4k": (64, 1, 4096, 0),
    "decode 16 x 16k": (16, 1, 16384, 0),
    "decode 1 x 64k": (1, 1, 65536, 0),
    "decode 64 x 4k, pages of 16": (64, 1, 4096, 16),
    "decode 16 x 4 over 8k": (16, 4, 8192, 0),
    "chunk of 512, 8 x 8k": (8, 512, 8192, 0),
    "chunk of 128, 8 x 8k": (8, 128, 8192, 0),
    "chunk of 512, 8 x 8k, pages of 16": (8, 512, 8192, 16),
    "prompt of 4k, 4": (4, 4096, 4096, 0),
}
FORMATS = {
    "int8": (torch.int8, 127.0),
    "e4m3": (torch.float8_e4m3fn, 448.0),
    "e5m2": (torch.float8_e5m2, 57344.0),
}
BOUND = 0.02  # of the largest output: bf16's roundings
TUNINGS = [
    f"waves=4,block_n={keys},buffers={buffers}"
    for keys, buffers in ((16, 1), (16, 2), (16, 3), (16, 4), (32, 2), (32, 3))
]
SPANS = 5, 8.0  # so many of each, and the milliseconds of one
ROWS = []


def report(**row):
    ROWS.append(row)
    texts = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
    print("  ".join(texts), flush=True)


def quantized(x, name, per):
    """x's codes and scales: one for each token and head, or for each head."""
    dtype, largest = FORMATS[name]
    most = x.abs().amax(dim=(3,) if per == "token" else (0, 1, 3), keepdim=True).float()
    scale = most / largest
    codes = x.float() / scale
    if dtype == torch.int8:
        codes = codes.round()
    return codes.to(dtype), scale


def in_pages(x, size, order):
    """x's tokens in pages, as the block table `order` says."""
    if size == 0:
        return x
    batch, tokens = x.shape[:2]
    pages = x.reshape(batch * tokens // size, size, *x.shape[2:])
    scattered = torch.empty_like(pages)
    scattered[order.flatten().long()] = pages
    return scattered


def error(out, q, k, v, causal):
    """The largest error of the last sequence's first and last KV head, of the largest output."""
    worst, group = 0.0, HEADS // KV_HEADS
    for head in (0, KV_HEADS - 1):
        kh, vh = k[-1, :, head].double(), v[-1, :, head].double()
        qh = q[-1, :, head * group : (head + 1) * group].double()
        scores = torch.einsum("qhd,kd->hqk", qh, kh) / math.sqrt(DIM)
        if causal:
            queries, keys = scores.shape[1:]
            seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
            scores = scores.masked_fill(~seen, -math.inf)
        want = torch.einsum("hqk,kd->qhd", torch.softmax(scores, -1), vh)
        got = out[-1, :, head * group : (head + 1) * group].double()
        worst = max(worst, ((got - want).abs().max() / want.abs().max()).item())
    return worst


def calls_of(name, batch, queries, keys, page, tunings):
    """Calls by name, with the bytes of k and v that each reads."""
    shape = (batch, keys, KV_HEADS, DIM)
    q = torch.randn(batch, queries, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    options = {"causal": queries > 1}
    order = None
    if page:
        order = torch.randperm(batch * keys // page, device="cuda", dtype=torch.int32)
        order = order.reshape(batch, keys // page)
        options["block_table"] = order
        options["seqlens_k"] = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
    calls = {
        "bf16": (
            functools.partial(
                fulmen.attention, q, in_pages(k, page, order), in_pages(v, page, order), **options
            ),
            2 * k.nbytes,
        )
    }
    for form, per in itertools.product(FORMATS, ("head", "token")):
        if form == "e5m2" and per == "token":
            continue
        (k8, k_scale), (v8, v_scale) = (quantized(x, form, per) for x in (k, v))
        numbers = [
            (codes.float() * scale).to(torch.float64)
            for codes, scale in ((k8[-1:], k_scale[-1:]), (v8[-1:], v_scale[-1:]))
        ]
        scales = {"k_scale": k_scale, "v_scale": v_scale}
        if per == "token":
            scales = {key: in_pages(x, page, order) for key, x in scales.items()}
        for tuning in tunings:
            call = functools.partial(
                fulmen.attention,
                q,
                in_pages(k8, page, order),
                in_pages(v8, page, order),
                tuning=tuning,
                **scales,
                **options,
            )
            try:
                found = error(call(), q, *numbers, options["causal"])
            except (RuntimeError, ValueError) as refused:
                print(f"{name} {form} {tuning}: {str(refused)[:200]}", flush=True)
                continue
            if not found <= BOUND:
                raise SystemExit(f"WRONG {name} {form} {per} {tuning}: error {found}")
            read = 2 * k8.nbytes + (k_scale.nbytes + v_scale.nbytes if per == "token" else 0)
            calls[f"{form} {per}" + (f" {tuning}" if tuning else "")] = call, read
    return calls


def measure(name, size, tunings):
    calls = calls_of(name, *size, tunings)
    timed = {kind: of_forward(call, "cuda")[0] for kind, (call, _) in calls.items()}
    times, _ = seconds_in_turn(timed, "cuda", *SPANS)
    for one, (_, read) in sorted(calls.items(), key=lambda item: times[item[0]]):
        report(
            case=name,
            kind=one,
            of_bf16=times["bf16"] / times[one],
            tb_per_second=read / times[one] / 1e12,
            us=times[one] * 1e6,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--tunings", action="store_true")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    x = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    y = torch.empty_like(x)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    work = {"copy": Timed(lambda: y.copy_(x)), "product": Timed(lambda: a @ b)}
    times, _ = seconds_in_turn(work, "cuda", *SPANS)
    report(
        case="ceilings",
        copy_tb_per_second=2 * x.nbytes / times["copy"] / 1e12,
        product_tflops=2 * 8192**3 / times["product"] / 1e12,
    )
    for name, size in CASES.items():
        if arguments.only in name:
            measure(name, size, TUNINGS if arguments.tunings else [None])
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in ROWS)


if __name__ == "__main__":
    main()
