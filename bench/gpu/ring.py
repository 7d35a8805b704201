"""Attention spread over GPUs (fulmen.torch.ring_attention and the others of
context_parallel_attention): for ring.sh, by torchrun.

  PYTHONSAFEPATH=1 PYTHONPATH=bench/python torchrun --nproc-per-node 2 bench/gpu/ring.py check
      [--device cpu] [--backend gloo]

One part each call; each row is appended to --json as soon as it is there. Each process has a GPU
(NCCL, RCCL), or with --backend gloo all have the first one, or with --device cpu the machine's
cores. GQA 64 / 8 heads of 128, bf16, unless said. (The path is for gpu_checks.py, and no script's
folder in it, where the module of the C ABI has the package's name.)
"""

import argparse
import datetime
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fulmen
import torch
import torch.distributed as dist
from fulmen.torch import (
    context_parallel_attention,
    context_parallel_explain,
    ring_gather,
    ring_seqlens,
    ring_shard,
)

sys.path.append(str(Path(__file__).parent))
from ring_reference import judge

Tensor = torch.Tensor
METHODS = ("ring", "all_gather", "ulysses")
HEADS, KV_HEADS, DIM = 64, 8, 128


class Run:
    """What all parts need: the device, where rows go."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        shared = arguments.backend == "gloo" or arguments.device == "cpu"
        index = 0 if shared else int(os.environ["LOCAL_RANK"])
        self.device = (
            torch.device(arguments.device, index)
            if arguments.device == "cuda"
            else torch.device("cpu")
        )
        if self.on_gpu:
            torch.cuda.set_device(self.device)
        backend = {"backend": "gloo"} if shared else {"backend": "nccl", "device_id": self.device}
        dist.init_process_group(**backend, timeout=datetime.timedelta(seconds=arguments.timeout))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.heads, self.kv_heads, self.dim = (HEADS, KV_HEADS, DIM) if self.on_gpu else (8, 2, 32)
        self.failed = 0

    @property
    def on_gpu(self) -> bool:
        return self.arguments.device == "cuda"

    def report(self, **row: Any) -> None:
        if self.rank != 0:
            return
        text = json.dumps(
            {name: round(v, 5) if isinstance(v, float) else v for name, v in row.items()}
        )
        print(text, flush=True)
        if self.arguments.json:
            with self.arguments.json.open("a") as file:
                file.write(text + "\n")

    def largest(self, *values: float) -> list[float]:
        """The sum over the processes."""
        together = torch.tensor(
            values,
            dtype=torch.float64,
            device="cpu" if dist.get_backend() == "gloo" else self.device,
        )
        dist.all_reduce(together, dist.ReduceOp.MAX)
        return together.tolist()

    def tensors(
        self, length: int, heads: int = 0, kv_heads: int = 0, dtype: torch.dtype = torch.bfloat16
    ) -> list[Tensor]:
        """q, k, v and dout of the whole sequence, the same in every process."""
        generator = torch.Generator(self.device).manual_seed(length)
        counts = (heads or self.heads, kv_heads or self.kv_heads)
        shapes = [(1, length, counts[at], self.dim) for at in (0, 1, 1, 0)]
        return [
            torch.randn(shape, generator=generator, device=self.device, dtype=dtype)
            for shape in shapes
        ]

    def local(self, length: int) -> list[Tensor]:
        """q, k, v and dout of this process's part alone, where the whole would not fit."""
        torch.manual_seed(self.rank)
        shapes = [
            (1, length // self.size, n, self.dim)
            for n in (self.heads, self.kv_heads, self.kv_heads, self.heads)
        ]
        return [torch.randn(shape, device=self.device, dtype=torch.bfloat16) for shape in shapes]

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def milliseconds(self, call: Callable[[], object], rounds: int, warm_up: int = 1) -> float:
        """Median of the rounds, of the slowest process."""
        found = []
        for _ in range(rounds + warm_up):
            self.wait()
            dist.barrier()
            start = time.perf_counter()
            call()
            self.wait()
            found.append((time.perf_counter() - start) * 1e3)
        return self.largest(statistics.median(found[warm_up:]))[0]


def passes(
    function: Callable[..., Tensor], tensors: Sequence[Tensor]
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The forward pass alone, and both."""
    *inputs, dout = tensors
    leaves = [t.detach().requires_grad_() for t in inputs]

    def forward() -> Any:
        with torch.no_grad():
            return function(*leaves)

    return forward, lambda: torch.autograd.grad(function(*leaves), leaves, dout)


def operations(length: int, causal: bool, run: Run) -> float:
    """Operations of the forward pass; the backward pass has 2.5 times as many."""
    return 4.0 * length**2 * run.heads * run.dim * (0.5 if causal else 1.0)


def check(run: Run) -> None:
    """Results and gradients beside float64 and one GPU's; the same bits in two runs."""
    small = 512 if not run.on_gpu else 4096
    even = small * 2 * run.size // (2 * run.size)
    cases: list[tuple[str, int, dict[str, Any]]] = [
        (method, length, {"method": method, "causal": causal, **more})
        for method in METHODS
        for length, more in ((even, {}), (even - 37, {"documents": True}))
        for causal in (False, True)
    ]
    if run.on_gpu and run.arguments.backend != "gloo":
        cases += [("ring", 32768, {"method": "ring", "causal": causal}) for causal in (False, True)]
    for case, length, options in cases:
        documents = (
            [0, 5, length // 3, length // 3 + 1, length - 300, length]
            if options.pop("documents", False)
            else None
        )
        whole = run.tensors(length)
        parts = [ring_shard(t) for t in whole]
        options |= {"cu_seqlens": documents, "seqlens": ring_seqlens(length), "deterministic": True}

        def once(parts: list[Tensor] = parts, options: dict[str, Any] = options) -> list[Tensor]:
            leaves = [t.detach().requires_grad_() for t in parts[:3]]
            out, lse = context_parallel_attention(*leaves, return_lse=True, **options)
            return [out.detach(), lse.detach(), *torch.autograd.grad(out, leaves, parts[3])]

        ours = once()
        same_bits = all(torch.equal(a, b) for a, b in zip(ours, once(), strict=True))
        gathered = [ring_gather(t, 2 if at == 1 else 1) for at, t in enumerate(ours)]
        judged, right = judge(gathered, whole, options["causal"], documents)
        wrong, other_bits = run.largest(float(not right), float(not same_bits))
        run.failed += bool(wrong or other_bits)
        run.report(
            part="check",
            case=case,
            seqlen=length,
            causal=options["causal"],
            documents=documents is not None,
            ok=not wrong,
            same_bits=not other_bits,
            **judged,
        )


def timing(run: Run) -> None:
    """Scaling: the ring beside one GPU that has the whole sequence; all GPUs do that at once: their
    clocks are the same."""
    for length in run.arguments.seqlen:
        for causal in (True, False):
            row: dict[str, Any] = {
                "part": "time",
                "processes": run.size,
                "seqlen": length,
                "causal": causal,
            }
            row["tokens_each"] = length // run.size
            times: dict[str, float] = {}
            if length <= run.arguments.alone_up_to:
                alone = passes(
                    lambda q, k, v, c=causal: fulmen.attention(q, k, v, causal=c),
                    run.tensors(length),
                )
                times["alone_forward"], times["alone"] = (
                    run.milliseconds(one, run.arguments.rounds) for one in alone
                )
                del alone
            parts = run.local(length)
            before = base(run)
            ring = passes(
                lambda q, k, v, c=causal: context_parallel_attention(
                    q, k, v, causal=c, method="ring"
                ),
                parts,
            )
            times["ring_forward"], times["ring"] = (
                run.milliseconds(one, run.arguments.rounds) for one in ring
            )
            row |= {f"{name}_ms": ms for name, ms in times.items()}
            for name in ("ring_forward", "ring"):
                amount = (
                    operations(length, causal, run)
                    * (1 if name == "ring_forward" else 3.5)
                    / run.size
                )
                row[f"{name}_tflops_each"] = amount / times[name] / 1e9
                if times.get(name.replace("ring", "alone")):
                    row[f"{name}_efficiency"] = (
                        times[name.replace("ring", "alone")] / run.size / times[name]
                    )
            row |= memory(run, before, parts)
            run.report(**row)
            del ring, parts


def long(run: Run) -> None:
    """One pass forward and backward of sequences that one GPU has no time for, causal, after a
    short one that compiles."""
    passes(
        lambda q, k, v: context_parallel_attention(q, k, v, causal=True, method="ring"),
        run.local(16384),
    )[1]()
    for length in run.arguments.seqlen:
        parts = run.local(length)
        before = base(run)
        both = passes(
            lambda q, k, v: context_parallel_attention(q, k, v, causal=True, method="ring"), parts
        )[1]
        took = run.milliseconds(both, 1, 0)
        tflops = operations(length, True, run) * 3.5 / run.size / took / 1e9
        row = {"seqlen": length, "causal": True, "ring_ms": took, "ring_tflops_each": tflops}
        run.report(part="long", processes=run.size, **row, **memory(run, before, parts))
        del parts, both


def base(run: Run) -> int:
    if not run.on_gpu:
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def memory(run: Run, before: int, inputs: list[Tensor]) -> dict[str, float]:
    """A GPU's memory: that of q, k, v and dout, torch's peak beside them, and the driver's total
    (with NCCL's).
    """
    if not run.on_gpu:
        return {}
    free, total = torch.cuda.mem_get_info()
    peak, used = run.largest(
        (torch.cuda.max_memory_allocated() - before) / 2**30, (total - free) / 2**30
    )
    return {"inputs_GiB": sum(t.nbytes for t in inputs) / 2**30, "peak_GiB": peak, "used_GiB": used}


def methods(run: Run) -> None:
    """The three beside each other, and which one is chosen."""
    for length in run.arguments.seqlen:
        for causal in (True, False):
            parts, row = run.local(length), {}
            for method in METHODS:
                before = base(run)
                _, both = passes(
                    lambda q, k, v, m=method, c=causal: context_parallel_attention(
                        q, k, v, causal=c, method=m
                    ),
                    parts,
                )
                row[f"{method}_ms"] = run.milliseconds(both, run.arguments.rounds, 2)
                row |= {
                    f"{method}_{name}": v
                    for name, v in memory(run, before, parts).items()
                    if name == "peak_GiB"
                }
            said = context_parallel_explain(*parts[:3], causal=causal).splitlines()[0]
            run.report(
                part="methods",
                processes=run.size,
                seqlen=length,
                causal=causal,
                explain=said,
                **row,
            )


def fail(run: Run) -> None:
    """The last process is killed between two calls: the others must end within the timeout, and say
    so."""
    call = passes(
        lambda q, k, v: context_parallel_attention(q, k, v, causal=True, method="ring"),
        run.local(8192),
    )[1]
    call()
    run.wait()
    dist.barrier()
    if run.rank == run.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    print(f"process {run.rank}: one is dead, the timeout is {run.arguments.timeout} s", flush=True)
    try:
        call()
        run.wait()
    except RuntimeError as error:
        print(f"process {run.rank}: after {time.monotonic() - start:.1f} s: {error}", flush=True)
        os._exit(3)
    os._exit(0)  # it did not notice


def main() -> None:
    from ring_peer import peer, profile

    functions = {
        "check": check,
        "time": timing,
        "profile": profile,
        "peer": peer,
        "methods": methods,
        "fail": fail,
        "long": long,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=list(functions))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--backend",
        choices=("nccl", "gloo"),
        default="nccl",
        help="gloo: all processes have the first GPU",
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--seqlen",
        type=int,
        nargs="+",
        default=[32768, 131072],
        help="of the whole sequences that are timed",
    )
    parser.add_argument(
        "--alone-up-to",
        type=int,
        default=131072,
        help="the longest sequence that one GPU does alone, too",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=60, help="seconds of the group")
    run = Run(parser.parse_args())
    functions[run.arguments.part](run)
    dist.destroy_process_group()
    sys.exit(f"{run.failed} checks failed" if run.failed else 0)


if __name__ == "__main__":
    main()
