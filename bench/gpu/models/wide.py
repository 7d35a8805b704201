"""Heads wider than 256 on an NVIDIA GPU, by Fulmen's Python package beside PyTorch's backends:
forward passes of 512 dims (a VAE's block has one such head), their gradients, and decode of latent
attention (one KV head of 576 dims, V its first 512).

  python bench/gpu/models/wide.py [--json FILE]

Medians of seven, peers in turn; calls of less than a millisecond in CUDA graphs. Each result is
compared with PyTorch's math in fp32 on a sample of rows, gradients on all rows of the first head.
Gradients are timed beside Fulmen's kernels without matrix instructions, too. Latent decode is set
beside the copy rate and the rate of a matrix product of the same run."""

import argparse
import json
import statistics

import fulmen
import torch
import torch.nn.functional as functional
from timing import of_forward, span
from torch.nn.attention import SDPBackend, sdpa_kernel

WIDE = [(1, 4096, 1), (1, 8192, 1), (1, 4096, 8), (1, 8192, 8)]
# Batch, keys, heads, queries, rows of a page (0: no pages).
LATENT = [
    (64, 4096, 128, 1, 0),
    (128, 4096, 128, 1, 0),
    (64, 8192, 128, 1, 0),
    (16, 32768, 128, 1, 0),
    (128, 4096, 128, 1, 64),
    (128, 8192, 128, 2, 64),
    (64, 4096, 16, 1, 64),
    (128, 8192, 16, 1, 64),
]
PEERS = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}


def milliseconds(call, repeats: int = 7) -> float:
    timed, _ = of_forward(call, "cuda")
    timed.run()
    return statistics.median(span(timed.run, 1) for _ in range(repeats)) / timed.calls


def ceilings() -> tuple[float, float]:
    """A product of 8192^3 in TFLOP/s, a copy in TB/s."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    product = 2 * 8192**3 / milliseconds(lambda: a @ a) / 1e9
    source = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    # A copy in a graph may be a copy engine's, which is slower than a kernel.
    copies = [span(lambda: target.copy_(source), 3) for _ in range(7)]
    return product, 2 * source.numel() / statistics.median(copies) / 1e9


def error_of(result, q, k, v, scale) -> float:
    """Against fp32 on 16 rows of the first sequence and head; [batch, seqlen, heads, dim]."""
    rows = slice(0, q.shape[1], max(1, q.shape[1] // 16))
    score = q[0, rows, 0].float() @ k[0, :, 0].float().T * scale
    right = score.softmax(-1) @ v[0, :, 0].float()
    return float((result[0, rows, 0].float() - right).abs().max() / right.abs().max())


def wide(batch: int, length: int, heads: int) -> dict:
    q, k, v = (
        torch.randn(batch, length, heads, 512, device="cuda", dtype=torch.bfloat16)
        for _ in range(3)
    )
    row = {"case": f"{batch} x {length}, {heads} x 512", "kernel": fulmen.explain(q, k, v)[:90]}
    row["error"] = error_of(fulmen.attention(q, k, v), q, k, v, 512**-0.5)
    row["ms"] = milliseconds(lambda: fulmen.attention(q, k, v))
    row["tflops"] = 4 * batch * heads * length**2 * 512 / row["ms"] / 1e9
    bhsd = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    for name, backend in PEERS.items():
        try:
            with sdpa_kernel([backend]):
                row[name] = milliseconds(
                    lambda: functional.scaled_dot_product_attention(*bhsd), repeats=3
                )
        except RuntimeError as error:
            row[name] = str(error).splitlines()[0]
    times = [row[name] for name in PEERS if isinstance(row[name], float)]
    row["ratio"] = min(times) / row["ms"] if times else None
    return row


def gradients_of(q, k, v, dout, scale) -> list[torch.Tensor]:
    """By the formulas, in fp32, of one head: [seqlen, dim]."""
    q, k, v, dout = (x.float() for x in (q, k, v, dout))
    p = (q @ k.T * scale).softmax(-1)
    dp = dout @ v.T
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
    return [ds @ k, ds.T @ q, p.T @ dout]


def wide_gradients(batch: int, length: int, heads: int) -> dict:
    q, k, v, dout = (
        torch.randn(batch, length, heads, 512, device="cuda", dtype=torch.bfloat16)
        for _ in range(4)
    )
    out, lse = fulmen.attention(q, k, v, return_lse=True)

    def call(**options):
        return fulmen.attention_backward(dout, q, k, v, out, lse, **options)

    row = {
        "case": f"gradients {batch} x {length}, {heads} x 512",
        "kernel": fulmen.explain(q, k, v, backward=True)[:90],
    }
    right = gradients_of(*(x[0, :, 0] for x in (q, k, v, dout)), 512**-0.5)
    row["error"] = max(
        float((mine[0, :, 0].float() - theirs).abs().max() / theirs.abs().max())
        for mine, theirs in zip(call()[:3], right, strict=True)
    )
    row["ms"] = milliseconds(call)
    row["tflops"] = 10 * batch * heads * length**2 * 512 / row["ms"] / 1e9
    row["portable"] = milliseconds(lambda: call(kernel="cuda.backward.portable"), repeats=3)
    leaves = [x.transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v)]
    for name, backend in PEERS.items():
        try:
            with sdpa_kernel([backend]):
                theirs = functional.scaled_dot_product_attention(*leaves)
            loss = dout.transpose(1, 2).contiguous()

            def peer(theirs=theirs, loss=loss):
                return torch.autograd.grad(theirs, leaves, loss, retain_graph=True)

            row[name] = milliseconds(peer, repeats=3)
        except RuntimeError as error:
            row[name] = str(error).splitlines()[0]
    times = [row[name] for name in PEERS if isinstance(row[name], float)]
    row["ratio"] = min(times) / row["ms"] if times else None
    return row


def latent(batch: int, length: int, heads: int, queries: int, page_size: int) -> dict:
    q = torch.randn(batch, queries, heads, 576, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(batch, length, 1, 576, device="cuda", dtype=torch.bfloat16)
    options = {"softmax_scale": 192**-0.5}
    keys = k
    if page_size > 0:
        # Pages in any order.
        pages = length // page_size
        order = torch.randperm(batch * pages, device="cuda")
        table = torch.empty_like(order)
        table[order] = torch.arange(batch * pages, device="cuda")
        keys = k.view(-1, page_size, 1, 576)[order]
        options["block_table"] = table.view(batch, pages).to(torch.int32)
        options["seqlens_k"] = torch.full((batch,), length, device="cuda", dtype=torch.int32)

    def call():
        return fulmen.attention(q, keys, keys[..., :512], **options)

    name = f"latent {batch} x {queries} over {length}, {heads} heads"
    row = {"case": f"{name}, pages of {page_size}" if page_size else name}
    row["kernel"] = fulmen.explain(q, keys, keys[..., :512], **options)[:60]
    row["error"] = error_of(call(), q, k, k[..., :512], 192**-0.5)
    row["ms"] = milliseconds(call)
    row["tflops"] = 2 * batch * heads * queries * length * (576 + 512) / row["ms"] / 1e9
    row["terabytes"] = batch * length * 576 * 2 / row["ms"] / 1e9
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    product, copy = ceilings()
    print(f"{torch.cuda.get_device_name()}: product {product:.0f} TFLOP/s, copy {copy:.2f} TB/s")
    rows = []
    for function, shapes in ((wide, WIDE), (wide_gradients, WIDE), (latent, LATENT)):
        for shape in shapes:
            rows.append(function(*shape))
            print(rows[-1], flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"product": product, "copy": copy, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
