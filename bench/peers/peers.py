"""Fulmen, PyTorch's scaled_dot_product_attention and ONNX Runtime's Attention side by side, in one
process on the same inputs.

The implementations take turns in every round, so that the machine's swings hit all of them. A turn
starts with a pause and a call that is not timed, in which the other libraries' threads go to sleep.
Prints a markdown table; --json writes all figures.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import fulmen_library
import models_run
import onnxruntime
import torch
from cases import Case, cases, exact, make_inputs
from implementations import Unsupported, onnx_runtime, pytorch
from turns import BOUND, CLOCKS, one_turn

HEADER = ("case", "Fulmen", "PyTorch", "ONNX Runtime", "Fulmen, median", "to the better peer")


def chip() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown chip"


def measure(case: Case, implementations: dict, arguments: argparse.Namespace) -> dict:
    inputs = make_inputs(case, arguments.seed)
    reference = exact(case, inputs)
    row = {"case": case.name, **case.__dict__, "flops": case.flops, "results": {}}
    running = {}
    for name, prepare in implementations.items():
        try:
            run, output = prepare(case, inputs, arguments.threads)
            run()
        except Unsupported as reason:
            row["results"][name] = {"unsupported": str(reason)}
            continue
        got = output()[:, :, -reference.shape[2] :].double()
        error = (got - reference).abs().max().item()
        if not error <= BOUND[case.dtype]:
            raise SystemExit(
                f"{name} is wrong on {case.name}: the largest error of the last rows is {error}"
            )
        row["results"][name] = {"max_error": error, "kernel": getattr(run, "kernel", "")}
        running[name] = (run, output, [])  # output keeps the memory that run writes
    for _ in range(arguments.rounds):
        for run, _, times in running.values():
            times += one_turn(run, arguments.seconds / arguments.rounds, CLOCKS[arguments.clock])
    for name, (_, _, times) in running.items():
        row["results"][name] |= {
            "best_s": min(times),
            "median_s": statistics.median(times),
            "calls": len(times),
        }
    peers = [
        result for name, result in row["results"].items() if name != "Fulmen" and "best_s" in result
    ]
    ours = row["results"]["Fulmen"]
    if peers and "best_s" in ours:
        row["ratio_best"] = min(peer["best_s"] for peer in peers) / ours["best_s"]
        row["ratio_median"] = min(peer["median_s"] for peer in peers) / ours["median_s"]
    return row


def table_line(row: dict) -> str:
    def rate(name: str, key: str = "best_s") -> str:
        result = row["results"][name]
        return f"{row['flops'] / result[key] / 1e9:.0f}" if key in result else "-"

    ratio = (
        f"{row['ratio_best']:.2f}x best, {row['ratio_median']:.2f}x median"
        if "ratio_best" in row
        else "-"
    )
    cells = (
        row["case"],
        rate("Fulmen"),
        rate("PyTorch"),
        rate("ONNX Runtime"),
        rate("Fulmen", "median_s"),
        ratio,
    )
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", type=Path, required=True, help="libfulmen.so")
    parser.add_argument(
        "--suite",
        nargs="+",
        choices=("prefill", "boards", "models"),
        default=["prefill", "boards", "models"],
    )
    parser.add_argument(
        "--dtype", nargs="+", choices=("fp32", "fp16", "bf16"), default=["fp32", "bf16", "fp16"]
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="time for each implementation and case"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="processor: on a machine with other users, beside --threads 1",
    )
    parser.add_argument(
        "--only", default="", help="of the suite models: calls whose names have these words"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    library = fulmen_library.Library(arguments.library)
    implementations = {"Fulmen": library.prepare, "PyTorch": pytorch, "ONNX Runtime": onnx_runtime}
    versions = {
        "Fulmen": library.version,
        "PyTorch": torch.__version__,
        "ONNX Runtime": onnxruntime.__version__,
    }
    print(f"GFLOP/s of the best call, {arguments.threads} threads, {chip()};", end=" ")
    print(", ".join(f"{name} {version}" for name, version in versions.items()), end="\n\n")
    if any(suite != "models" for suite in arguments.suite):
        print("| " + " | ".join(HEADER) + " |")
        print("|---" + "|---:" * (len(HEADER) - 1) + "|", flush=True)
    rows, missing = [], {}
    for case in cases(arguments.suite, arguments.dtype):
        row = measure(case, implementations, arguments)
        rows.append(row)
        for name, result in row["results"].items():
            if "unsupported" in result:
                missing.setdefault((name, result["unsupported"]), case.name)
        print(table_line(row), flush=True)
    if "models" in arguments.suite:
        rows += models_run.run(library, arguments.dtype, arguments)
    for (name, reason), where in missing.items():
        print(f"\n{name} has no figure from `{where}` on: {reason}")
    if arguments.json:
        figures = {"chip": chip(), "versions": versions, "threads": arguments.threads, "rows": rows}
        figures["clock"] = arguments.clock
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
