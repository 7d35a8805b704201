"""The Python package on an NVIDIA GPU: is it right, what does a call cost, a training step. JSON
lines on stdout and to --json.

  python bench/python/gpu.py [checks] [overhead] [training] [--json FILE]     all three by default

Needs fulmen and torch installed, a C compiler, for training transformers. Exits with 1 where a
check failed. checks: gpu_checks.py.
overhead: microseconds of the host for a call of next to nothing, beside C's fulmen_plan_run with a
kept plan. training: the step of examples/python/benchmark_training.py, and what attention alone
needs of memory.
"""

import argparse
import ctypes
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fulmen
import fulmen.torch
import torch
import torch.nn.functional as F

from bench import ROOT, rounds_of, timed, wrapped_ops
from bench import raw_call as raw_library

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SDPA = F.scaled_dot_product_attention


class Report:
    def __init__(self, path: Path | None) -> None:
        self.file = path.open("w") if path else None

    def __call__(self, **row: Any) -> None:
        line = json.dumps(
            {name: round(v, 7) if isinstance(v, float) else v for name, v in row.items()}
        )
        print(line, flush=True)
        if self.file:
            print(line, file=self.file, flush=True)


def overhead(report: Report) -> None:
    shape, dtype = (1, 1, 1, 8), torch.float16
    q, k, v = (torch.randn(shape, device="cuda").to(dtype) for _ in range(3))
    out, one = torch.empty_like(q), torch.ones_like(q)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    plan = fulmen.plan(q, k, v)
    workspace = torch.empty(max(1, plan.workspace_bytes), dtype=torch.uint8, device="cuda")
    c, (custom, defined) = raw_library(), wrapped_ops("CUDA")
    c.raw_run.restype = ctypes.c_double
    c.raw_run.argtypes = [ctypes.c_void_p] * 5 + [
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
    ]
    pointers = [t.data_ptr() for t in (q, k, v, out)]
    sizes, stream = (ctypes.c_int64 * 4)(*shape), torch.cuda.current_stream().cuda_stream
    n = 400  # fewer calls than a GPU's queue holds: more would wait for the GPU

    def raw() -> float:
        return c.raw_run(*pointers, sizes, 1, b"cuda:0", stream, workspace.data_ptr(), n)

    def after_work(measure: Callable[[], float]) -> Callable[[], float]:
        def measured() -> float:
            torch.cuda.synchronize()
            return measure()

        return measured

    def calls(call: Callable[[], object], count: int = n) -> Callable[[], float]:
        return after_work(timed(call, count))

    candidates = {
        "C: fulmen_plan_run": after_work(raw),
        "fulmen.attention": calls(lambda: fulmen.attention(q, k, v)),
        "fulmen.attention, out=": calls(lambda: fulmen.attention(q, k, v, out=out)),
        "fulmen.torch.scaled_dot_product_attention": calls(
            lambda: fulmen.torch.scaled_dot_product_attention(q, k, v)
        ),
        "the same call as a torch.library.custom_op": calls(lambda: custom(q, k, v)),
        "the same call by torch.library.define, impl": calls(lambda: defined(q, k, v)),
        "torch's scaled_dot_product_attention": calls(lambda: SDPA(q, k, v)),
        "torch.empty_like": calls(lambda: torch.empty_like(q)),
        "torch's addition, out=": calls(lambda: torch.add(q, k, out=out)),
        "training, forward: fulmen.attention": calls(lambda: fulmen.attention(*leaves)),
        "training, forward: torch's": calls(lambda: SDPA(*leaves)),
        "training, both passes: fulmen.attention": calls(
            lambda: torch.autograd.grad(fulmen.attention(*leaves), leaves, one), n // 4
        ),
        "training, both passes: torch's": calls(
            lambda: torch.autograd.grad(SDPA(*leaves), leaves, one), n // 4
        ),
    }
    results = rounds_of(candidates, 25)
    base = results["C: fulmen_plan_run"]
    if base <= 0:
        raise SystemExit("fulmen_plan_run failed")
    for name, value in results.items():
        report(
            suite="overhead",
            case=name,
            us=value,
            beyond_c_us=value - base,
            kernel=plan.kernel,
            workspace=plan.workspace_bytes,
        )


def training(report: Report, dtype: str, layers: int, tokens: int) -> None:
    sys.path.insert(0, str(ROOT / "examples/python"))
    import benchmark_training as example

    for dropout in (0.0, 0.1):
        for length in (128, 256, 512, 1024):
            batch = tokens // length
            given = {
                "device": "cuda",
                "dtype": dtype,
                "layers": layers,
                "batch": batch,
                "dropout": dropout,
            }
            options = example.options(
                [part for name, value in given.items() for part in (f"--{name}", str(value))]
            )
            found = example.measure(length, options)
            eager = found["eager"]
            for row in found.values():
                faster, saved = eager["ms"] / row["ms"], 1 - row["MiB"] / eager["MiB"]
                report(
                    suite="training",
                    dropout=dropout,
                    batch=batch,
                    layers=layers,
                    **row,
                    faster=faster,
                    memory_saved=saved,
                )


def attention_memory(report: Report) -> None:
    """The operation alone, BERT-base's: forward and backward, peak beside the inputs and what comes
    out."""
    for length in (128, 256, 512, 1024):
        q, k, v, dout = (
            torch.randn(16, 12, length, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4)
        )
        leaves = [t.requires_grad_() for t in (q, k, v)]

        def standard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return ((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1) @ v

        row: dict[str, Any] = {"suite": "memory", "length": length}
        for name, function in (
            ("fulmen", fulmen.torch.scaled_dot_product_attention),
            ("standard", standard),
            ("sdpa", SDPA),
        ):
            times = []
            for _ in range(4):
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                torch.autograd.grad(function(*leaves), leaves, dout)
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end))
                row[f"{name}_MiB"] = (torch.cuda.max_memory_allocated() - before) / 2**20
            row[f"{name}_ms"] = statistics.median(times[1:])
        report(**row, memory_saved=1 - row["fulmen_MiB"] / row["standard_MiB"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ("checks", "overhead", "training")
    parser.add_argument("parts", nargs="*", choices=[[], *parts], help="all where none is named")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES), help="of the checks"
    )
    parser.add_argument("--only", default="", help="checks whose case holds this")
    parser.add_argument("--layers", type=int, default=12, help="of the model in training")
    parser.add_argument("--tokens", type=int, default=32768, help="of a step in training")
    arguments = parser.parse_args()
    report = Report(arguments.json)
    device = next(d for d in fulmen.devices() if d.name == "cuda:0")
    torch.manual_seed(torch.seed() % 2**31)
    report(
        suite="machine",
        gpu=torch.cuda.get_device_name(),
        chip=device.chip,
        torch=torch.__version__,
        seed=torch.initial_seed(),
    )
    failed = 0
    for part in arguments.parts or parts:
        if part == "checks":
            from gpu_checks import Checks

            failed = sum(
                Checks(DTYPES[name], report, arguments.only).all() for name in arguments.dtypes
            )
        elif part == "overhead":
            overhead(report)
        else:
            attention_memory(report)
            training(report, "bfloat16", arguments.layers, arguments.tokens)
    if failed:
        raise SystemExit(f"{failed} checks failed")


if __name__ == "__main__":
    main()
