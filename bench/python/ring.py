"""fulmen.torch.ring_attention over several GPUs: is it right, and how long does it take beside one GPU. JSON lines on stdout.

  torchrun --nproc-per-node 2 bench/python/ring.py [--device cpu] [--seqlen 16384]

Each process has a GPU (NCCL, RCCL), or with --device cpu the machine's cores (gloo). Results and gradients of every process's part
are judged as gpu_checks.py does, by attention of the whole sequence in float64. Times are of one pass forward and backward, bf16.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import fulmen
import torch
import torch.distributed as dist
from fulmen.torch import ring_attention, ring_gather, ring_shard
from gpu_checks import Tensor, run, standard, worst

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SHAPES = {  # batch, length, heads, kv_heads, head_dim, head_dim of v
    "d 64": (2, 512, 4, 4, 64, 64),
    "d 128, grouped heads": (1, 768, 8, 2, 128, 128),
    "d 40, v 24": (3, 136, 3, 1, 40, 24),
}


def report(**row: Any) -> None:
    if dist.get_rank() == 0:
        print(json.dumps({name: round(v, 7) if isinstance(v, float) else v for name, v in row.items()}), flush=True)


def tensors(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """q, k, v and the gradients by out and lse of the whole sequence, the same in every process."""
    batch, length, heads, kv_heads, dim, dim_v = shape
    shapes = (batch, length, heads, dim), (batch, length, kv_heads, dim), (batch, length, kv_heads, dim_v)
    shapes = (*shapes, (batch, length, heads, dim_v), (batch, heads, length))
    drawn = [torch.randn(one, device=device) for one in shapes]
    for one in drawn:
        dist.broadcast(one, 0)
    return [t.to(dtype) for t in drawn[:4]] + drawn[4:]


def check(case: str, shape: tuple[int, ...], name: str, causal: bool, device: torch.device) -> bool:
    *inputs, dout, dlse = tensors(shape, DTYPES[name], device)
    whole = [t.double() for t in (*inputs, dout, dlse)]
    exact = run(lambda *t: standard(*t, causal=causal), whole[:3], whole[3:])
    same = run(lambda *t: standard(*t, causal=causal), inputs, [dout, dlse.double()])
    parts = [ring_shard(t) for t in (*inputs, dout)] + [ring_shard(dlse, 2)]
    ours = run(lambda *t: ring_attention(*t, causal=causal, return_lse=True), parts[:3], parts[3:])
    judged, right = {}, True
    for what, one, reference, baseline in zip(("out", "lse", "dq", "dk", "dv"), ours, exact, same, strict=True):
        error, bound = worst(ring_gather(one, 2 if what == "lse" else 1), reference, baseline, what[0] == "d", 0.0)
        judged[what], right = [error, bound], right and error <= bound
    verdict = torch.tensor([float(right)], device=device)
    dist.all_reduce(verdict, dist.ReduceOp.MIN)
    report(suite="ring", case=case, dtype=name, causal=causal, ok=bool(verdict.item()), **judged)
    return bool(verdict.item())


def milliseconds(step: Callable[[], object], device: torch.device, rounds: int = 7) -> float:
    found = []
    for _ in range(rounds + 2):  # two warm up
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found.append((time.perf_counter() - start) * 1e3)
    return statistics.median(found[2:])


def measure(length: int, causal: bool, device: torch.device) -> None:
    *whole, dout, _ = tensors((1, length, 16, 16, 128, 128), torch.bfloat16, device)
    leaves = [t.requires_grad_() for t in whole]
    parts = [ring_shard(t.detach()).requires_grad_() for t in whole]
    part_dout = ring_shard(dout)
    alone = milliseconds(lambda: torch.autograd.grad(fulmen.attention(*leaves, causal=causal), leaves, dout), device)
    ring = milliseconds(lambda: torch.autograd.grad(ring_attention(*parts, causal=causal), parts, part_dout), device)
    report(suite="ring", seqlen=length, causal=causal, processes=dist.get_world_size(), alone_ms=alone, ring_ms=ring)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES), help="of the checks")
    parser.add_argument("--seqlen", type=int, nargs="*", default=[16384], help="of the whole sequence that is timed")
    arguments = parser.parse_args()
    device = torch.device(arguments.device, int(os.environ["LOCAL_RANK"]) if arguments.device == "cuda" else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(**({"backend": "nccl", "device_id": device} if device.type == "cuda" else {"backend": "gloo"}))
    torch.manual_seed(torch.seed() % 2**31)
    for length in arguments.seqlen:
        for causal in (False, True):
            measure(length, causal, device)
    failed = 0
    for name in arguments.dtypes:
        for case, shape in SHAPES.items():
            for causal in (False, True):
                failed += not check(case, shape, name, causal, device)
    dist.destroy_process_group()
    sys.exit(f"{failed} checks failed" if failed else 0)


if __name__ == "__main__":
    main()
