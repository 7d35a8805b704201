"""Fulmen on an NVIDIA GPU beside PyTorch's own attention, in one process: forward, boards, decode.
JSON lines to --json.

Every result is compared with PyTorch's math in fp32 on a sample before it is timed."""

import argparse
import json
import math

import torch
import torch.nn.functional as F
from fulmen import Attention
from timing import graph_seconds, seconds
from torch.nn.attention import SDPBackend, sdpa_kernel

ROWS = []


def report(**row):
    ROWS.append(row)
    print(
        "  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()),
        flush=True,
    )


def normal(*shape, dtype):
    return torch.randn(*shape, dtype=torch.float32, device="cuda").to(dtype)


def heads_first(x):
    return x.transpose(1, 2)


def check(out, q, k, v, *, causal=False, bias=None, label=""):
    """Worst error of the first and last batch and head, as a share of the largest number of
    each."""
    worst = 0.0
    group = q.shape[2] // k.shape[2]
    for b in {0, q.shape[0] - 1}:
        for h in {0, q.shape[2] - 1}:
            qh, kh, vh = (
                q[b, :, h].float(),
                k[b, :, h // group].float(),
                v[b, :, h // group].float(),
            )
            rows = qh if qh.shape[0] <= 512 else qh[-512:]
            scores = rows @ kh.T / math.sqrt(qh.shape[1])
            if bias is not None:
                scores = scores + bias[b if bias.shape[0] > 1 else 0, h].float()
            if causal:
                i = torch.arange(qh.shape[0] - rows.shape[0], qh.shape[0], device="cuda")[:, None]
                scores = scores.masked_fill(
                    torch.arange(kh.shape[0], device="cuda")[None] > i + kh.shape[0] - qh.shape[0],
                    -math.inf,
                )
            expected = torch.softmax(scores, -1) @ vh
            got = out[b, :, h].float()[-rows.shape[0] :]
            share = ((got - expected).abs().max() / expected.abs().max()).item()
            if not share < 0.03:  # NaN, too
                raise SystemExit(f"WRONG {label}: error {share} of the largest")
            worst = max(worst, share)
    return worst


def worst_share(gots, wants, label):
    """Worst error of gradients, as a share of the largest number of each."""
    worst = 0.0
    for got, want in zip(gots, wants, strict=True):
        share = ((got.float() - want).abs().max() / want.abs().max()).item()
        if not share < 0.03:
            raise SystemExit(f"WRONG {label}: error {share}")
        worst = max(worst, share)
    return worst


def beside_flash(suite, name, ours, flash, flops, error):
    mine, theirs = seconds(ours), seconds(flash)
    mine = min(mine, seconds(ours))
    report(
        suite=suite,
        case=name,
        kernel=ours.kernel(),
        tflops=flops / mine / 1e12,
        flash2_tflops=flops / theirs / 1e12,
        ratio=theirs / mine,
        error=error,
    )


def ceilings():
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    copy = 2 * a.numel() / seconds(lambda: b.copy_(a)) / 1e12
    x, y = normal(8192, 8192, dtype=torch.bfloat16), normal(8192, 8192, dtype=torch.bfloat16)
    product = 2 * 8192**3 / seconds(lambda: x @ y) / 1e12
    report(suite="ceilings", copy_tb_s=copy, bf16_product_tflops=product)


def forward(dtype, only):
    for dim in (64, 128, 256):
        for length in (512, 2048, 16384):
            for causal in (False, True):
                name = f"D{dim} S{length} {'causal' if causal else 'full'}"
                if only and only not in name:
                    continue
                shape = (16384 // length, length, 2048 // dim, dim)
                q, k, v = (normal(*shape, dtype=dtype) for _ in range(3))
                out = torch.full_like(q, math.nan)
                ours = Attention(q, k, v, out, causal=causal)
                ours()
                torch.cuda.synchronize()
                error = check(out, q, k, v, causal=causal, label=name)
                flops = 4 * 16384 * length * 2048 * (0.5 if causal else 1)

                def flash(q=q, k=k, v=v, causal=causal):
                    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                        return F.scaled_dot_product_attention(
                            heads_first(q), heads_first(k), heads_first(v), is_causal=causal
                        )

                beside_flash("forward", name, ours, flash, flops, error)


def boards(dtype, only):
    for heads, dim in ((24, 32), (12, 64), (8, 96), (6, 128)):
        for kind in ("", " bias", " bias a board"):
            for batch in (1, 16, 64, 256, 1024):
                name = f"{heads}x{dim} batch {batch}{kind}"
                if only and only not in name:
                    continue
                # Alternating sets of inputs, more than the cache holds.
                sets = max(1, min(16, (256 << 20) // (batch * 64 * 768 * 2 * 4)))
                biases = {"": 0, " bias": 1, " bias a board": batch}[kind]
                bias = normal(biases, heads, 64, 64, dtype=dtype) if biases else None
                calls = []
                for _ in range(sets):
                    q, k, v = (normal(batch, 64, heads, dim, dtype=dtype) for _ in range(3))
                    out = torch.full_like(q, math.nan)
                    calls.append(
                        Attention(
                            q, k, v, out, bias=bias.expand(batch, -1, -1, -1) if biases else None
                        )
                    )
                    calls[-1]()
                torch.cuda.synchronize()
                error = check(out, q, k, v, bias=bias, label=name)
                mine = graph_seconds(calls, repeats=max(1, 32 // sets))
                moved = (4 * batch * 64 * 768 + biases * heads * 64 * 64) * 2
                report(
                    suite="boards",
                    case=name,
                    kernel=calls[-1].kernel(),
                    us=mine * 1e6,
                    limit_us=moved / 4.27e12 * 1e6,
                    error=error,
                )


def gradients(q, k, v, dout, *, causal=False, bias=None):
    """PyTorch's own gradients of one head, in fp32."""
    q, k, v = (x.float().detach().requires_grad_() for x in (q, k, v))
    bias = None if bias is None else bias.float().detach().requires_grad_()
    scores = q @ k.T / math.sqrt(q.shape[1])
    if bias is not None:
        scores = scores + bias
    if causal:
        i = torch.arange(q.shape[0], device="cuda")
        scores = scores.masked_fill(i[None] > i[:, None] + k.shape[0] - q.shape[0], -math.inf)
    (torch.softmax(scores, -1) @ v).backward(dout.float())
    return q.grad, k.grad, v.grad


def backward(dtype, only):
    aten = torch.ops.aten
    for dim in (64, 128, 256):
        for length in (512, 2048, 16384):
            for causal in (False, True):
                name = f"D{dim} S{length} {'causal' if causal else 'full'}"
                if only and only not in name:
                    continue
                batch, heads = 16384 // length, 2048 // dim
                q, k, v, dout = (normal(batch, length, heads, dim, dtype=dtype) for _ in range(4))
                out, dq, dk, dv = (torch.full_like(q, math.nan) for _ in range(4))
                lse = torch.full((batch, heads, length, 1), math.nan, device="cuda")
                Attention(q, k, v, out, lse=lse, causal=causal)()
                flops = 10 * 16384 * length * 2048 * (0.5 if causal else 1)

                qh, kh, vh, doh = (heads_first(x) for x in (q, k, v, dout))
                o, logs, cq, ck, mq, mk, seed, offset, _ = aten._scaled_dot_product_flash_attention(
                    qh, kh, vh, 0.0, causal
                )

                def flash(
                    q=qh,
                    k=kh,
                    v=vh,
                    dout=doh,
                    causal=causal,
                    rest=(o, logs, cq, ck, mq, mk),
                    random=(seed, offset),
                ):
                    return aten._scaled_dot_product_flash_attention_backward(
                        dout, q, k, v, *rest, 0.0, causal, *random
                    )

                for suite, deterministic in (("backward", True), ("backward with atomics", False)):
                    grads = dict(dq=dq, dk=dk, dv=dv)
                    ours = Attention(
                        q,
                        k,
                        v,
                        out,
                        lse=lse,
                        causal=causal,
                        dout=dout,
                        deterministic=deterministic,
                        **grads,
                    )
                    for gradient in grads.values():
                        gradient.fill_(math.nan)
                    ours()
                    torch.cuda.synchronize()
                    error = 0.0
                    if length <= 2048:
                        at = (batch - 1, slice(None), heads - 1)
                        wanted = gradients(q[at], k[at], v[at], dout[at], causal=causal)
                        error = worst_share((dq[at], dk[at], dv[at]), wanted, name)
                    beside_flash(suite, name, ours, flash, flops, error)


def training(dtype, only):
    """Boards, forward and backward with the bias's gradient, beside PyTorch's memory-efficient
    kernels."""
    aten = torch.ops.aten
    for heads, dim in ((24, 32), (12, 64), (8, 96), (6, 128)):
        for batch in (1, 64, 256, 1024):
            name = f"{heads}x{dim} batch {batch} training"
            if only and only not in name:
                continue
            q, k, v, dout = (normal(batch, 64, heads, dim, dtype=dtype) for _ in range(4))
            bias = normal(1, heads, 64, 64, dtype=dtype)
            out, dq, dk, dv = (torch.full_like(q, math.nan) for _ in range(4))
            dbias = torch.full_like(bias, math.nan)
            lse = torch.full((batch, heads, 64, 1), math.nan, device="cuda")
            spread = bias.expand(batch, -1, -1, -1)
            forth = Attention(q, k, v, out, lse=lse, bias=spread)
            back = Attention(
                q, k, v, out, lse=lse, bias=spread, dout=dout, dq=dq, dk=dk, dv=dv, dbias=dbias
            )

            def ours(forth=forth, back=back):
                forth()
                back()

            ours()
            torch.cuda.synchronize()
            at = (batch - 1, slice(None), heads - 1)
            wanted = gradients(q[at], k[at], v[at], dout[at], bias=bias[0, heads - 1])
            qh, kh, vh, doh = (heads_first(x) for x in (q, k, v, dout))

            def peer(q=qh, k=kh, v=vh, dout=doh, bias=spread):
                o, logs, seed, offset = aten._scaled_dot_product_efficient_attention(
                    q, k, v, bias, True
                )
                g = aten._scaled_dot_product_efficient_attention_backward(
                    dout, q, k, v, bias, o, logs, seed, offset, 0.0, [True, True, True, True], False
                )
                return g[3].sum(0, dtype=torch.float32)

            error = worst_share(
                (dq[at], dk[at], dv[at], dbias[0, heads - 1]), (*wanted, peer()[heads - 1]), name
            )
            mine, theirs = graph_seconds([ours], repeats=8), graph_seconds([peer], repeats=8)
            report(
                suite="training",
                case=name,
                kernel=back.kernel(),
                us=mine * 1e6,
                efficient_us=theirs * 1e6,
                ratio=theirs / mine,
                error=error,
            )


def decode(dtype, only):
    for batch, length in ((16, 8192), (64, 4096), (1, 65536)):
        name = f"batch {batch} kv {length}"
        if only and only not in name:
            continue
        q = normal(batch, 1, 32, 128, dtype=dtype)
        k, v = (normal(batch, length, 8, 128, dtype=dtype) for _ in range(2))
        out = torch.full_like(q, math.nan)
        ours = Attention(q, k, v, out)
        ours()
        torch.cuda.synchronize()
        error = check(out, q, k, v, label=name)
        mine = graph_seconds([ours], repeats=8)
        report(
            suite="decode",
            case=name,
            kernel=ours.kernel(),
            us=mine * 1e6,
            tb_s=2 * k.numel() * 2 / mine / 1e12,
            error=error,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="ceilings,forward,boards,decode,backward,training")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--dtype", default="")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    torch.manual_seed(20240229)
    for suite in arguments.suite.split(","):
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[
            arguments.dtype or ("fp16" if suite in ("boards", "training") else "bf16")
        ]
        if suite == "ceilings":
            ceilings()
        else:
            suites = {
                "forward": forward,
                "boards": boards,
                "decode": decode,
                "backward": backward,
                "training": training,
            }
            suites[suite](dtype, arguments.only)
    if arguments.json:
        with open(arguments.json, "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in ROWS)


if __name__ == "__main__":
    main()
