"""Memory of attention by batch, Fulmen beside standard attention (three steps of PyTorch). Markdown
on stdout.

  python bench/python/memory.py [--device cpu|cuda] [--dtype bf16] [--seqlen 512] [--heads 12]
      [--head-dim 64] [--causal]
                                [--batches 1 2 4 ...] [--json FILE]

Each figure is of a process of its own: the peak during a call less what was there before, q, k and
v (training: and the gradient by out) among that. So out counts, training's out, lse and gradients
do, and all that lies between. On the CPU it is memory that was touched (VmHWM of Linux), on a GPU
what torch's allocator gave out. Needs fulmen and torch. A row that finds no memory is "-".
"""

import argparse
import ctypes
import json
import math
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path

import fulmen
import torch

IMPLEMENTATIONS = ("fulmen", "standard")
PASSES = ("forward", "training")


def standard(q, k, v, causal: bool):
    """[batch, seqlen, heads, head_dim], scores and probabilities in q's dtype, as eager attention
    of models has them."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = (q @ k.transpose(2, 3)) * (1 / math.sqrt(q.shape[3]))
    if causal:
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


def peak_of(call: Callable[[], object], device: str) -> int:
    """Bytes at the peak of the call beyond what there is now."""
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def status(name: str) -> int:
        line = next(
            line
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith(name)
        )
        return int(line.split()[1]) << 10

    ctypes.CDLL(None).malloc_trim(0)  # what is free would be taken again, and not be seen
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = status("VmRSS:")
    call()
    return status("VmHWM:") - before


def measure(case: argparse.Namespace, implementation: str, training: bool, batch: int) -> int:
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[case.dtype]

    def inputs(batch: int, seqlen: int):
        shape = (batch, seqlen, case.heads, case.head_dim)
        return [
            torch.randn(shape).to(case.device, dtype).requires_grad_(training) for _ in range(3)
        ]

    def call(q, k, v, dout):
        ours = implementation == "fulmen"
        out = (
            fulmen.attention(q, k, v, causal=case.causal)
            if ours
            else standard(q, k, v, case.causal)
        )
        if training:
            out.backward(dout)
        return out

    small = inputs(1, 16)
    call(*small, torch.ones_like(small[0]))  # threads, libraries, kernels
    q, k, v = inputs(batch, case.seqlen)
    dout = torch.ones_like(q)
    return peak_of(lambda: call(q, k, v, dout), case.device)


def in_a_process(
    case: argparse.Namespace, implementation: str, training: bool, batch: int
) -> int | None:
    """Forked before anything is computed: no thread, no memory and no GPU is in use yet."""
    context = multiprocessing.get_context("fork")
    theirs, ours = context.Pipe()

    def child() -> None:
        try:
            theirs.send(measure(case, implementation, training, batch))
        except (MemoryError, RuntimeError) as error:  # torch's of no memory is a RuntimeError
            theirs.send(None if "memory" in str(error).lower() else str(error))

    process = context.Process(target=child)
    process.start()
    theirs.close()
    try:
        peak = ours.recv()
    except EOFError:  # ended by the system
        peak = None
    process.join()
    if isinstance(peak, str):
        sys.exit(peak)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), default="bf16")
    parser.add_argument("--seqlen", type=int, default=512)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--json", type=Path)
    case = parser.parse_args()
    mask = ", causal" if case.causal else ""
    print(
        f"{case.heads} heads of {case.head_dim}, {case.seqlen} tokens, {case.dtype}{mask}, "
        f"{case.device}: MiB at the peak\n"
    )
    print(
        "| batch | q, k, v | forward: Fulmen | standard | ratio | training: Fulmen | standard | "
        "ratio |"
    )
    print("|---" * 8 + "|", flush=True)
    rows = []
    for batch in case.batches:
        bytes_of_inputs = (
            3
            * batch
            * case.seqlen
            * case.heads
            * case.head_dim
            * (4 if case.dtype == "fp32" else 2)
        )
        row = {"batch": batch, "inputs": bytes_of_inputs}
        cells = [str(batch), f"{bytes_of_inputs / 2**20:.1f}"]
        for run in PASSES:
            ours, theirs = (
                in_a_process(case, implementation, run == "training", batch)
                for implementation in IMPLEMENTATIONS
            )
            row |= {f"fulmen_{run}": ours, f"standard_{run}": theirs}
            cells += [f"{one / 2**20:.1f}" if one is not None else "-" for one in (ours, theirs)]
            cells.append(f"{theirs / ours:.1f}" if ours and theirs else "-")
        rows.append(row)
        print("| " + " | ".join(cells) + " |", flush=True)
    if case.json:
        case.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
