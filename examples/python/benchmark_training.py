"""Time and memory of a training step, forward and backward, of an encoder with BERT-base's
geometry: Fulmen, eager attention, SDPA.

    pip install '.[torch]' transformers matplotlib
    python examples/python/benchmark_training.py --csv training.csv --plot training.png
    python examples/python/benchmark_training.py --device cuda --dtype bfloat16 --layers 12 --batch 16

Times are of alternating steps in one process; memory is measured in a process for each. The loss of
each implementation is compared with eager attention's.
"""  # noqa: E501

import argparse
import csv
import importlib.util
import multiprocessing
import pathlib
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from fulmen.transformers import register

IMPLEMENTATIONS = ("fulmen", "eager", "sdpa")


def resident() -> float:
    """MiB that this process has in memory now."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


class Step:
    """Forward and backward of one implementation; the same weights and tokens for each."""

    def __init__(self, implementation: str, length: int, arguments: argparse.Namespace) -> None:
        register()
        torch.manual_seed(0)
        config = transformers.BertConfig(
            vocab_size=arguments.vocabulary,
            hidden_size=arguments.width,
            intermediate_size=4 * arguments.width,
            num_attention_heads=arguments.width // 64,
            num_hidden_layers=arguments.layers,
            max_position_embeddings=length,
        )
        config.hidden_dropout_prob, config.attention_probs_dropout_prob = 0.0, arguments.dropout
        config._attn_implementation = implementation
        self.device = torch.device(arguments.device)
        place = {"device": self.device, "dtype": getattr(torch, arguments.dtype)}
        with self.device:  # random numbers are drawn there
            self.model = transformers.BertModel(config, add_pooling_layer=False).to(**place).train()
        self.tokens = torch.randint(
            0, config.vocab_size, (arguments.batch, length), device=self.device
        )
        self.direction = torch.randn(config.hidden_size, **place)

    def run(self) -> tuple[float, float]:
        """(seconds, loss)"""
        start = time.perf_counter()
        loss = (self.model(self.tokens).last_hidden_state @ self.direction).float().square().mean()
        loss.backward()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        self.model.zero_grad(set_to_none=True)
        return seconds, loss.item()


def measure_time(
    length: int, arguments: argparse.Namespace
) -> dict[str, tuple[list[float], float]]:
    """{implementation: (seconds of each step, loss)}. They take turns, so that what else the
    machine does hits all alike."""
    steps = {name: Step(name, length, arguments) for name in IMPLEMENTATIONS}
    found = {name: ([], step.run()[1]) for name, step in steps.items()}  # that warms up, too
    for _ in range(arguments.steps):
        for name, step in steps.items():
            found[name][0].append(step.run()[0])
    return found


def measure_memory(implementation: str, length: int, arguments: argparse.Namespace) -> float:
    """The MiB that a step needs at most, beside the model."""
    step = Step(implementation, length, arguments)
    if step.device.type == "cuda":
        step.run()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step.run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    before = resident()
    step.run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10 - before


def put_result(
    target: Callable[..., Any], arguments: tuple[Any, ...], results: multiprocessing.SimpleQueue
) -> None:
    results.put(target(*arguments))


def in_a_process(target: Callable[..., Any], *arguments: Any) -> Any:
    """target(*arguments), in a process of its own: what it has in memory is then the step's
    alone."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers.models.bert.modeling_bert"])
    results = context.SimpleQueue()
    process = context.Process(target=put_result, args=(target, arguments, results))
    process.start()
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"{target.__name__}{arguments}: the process ended with {process.exitcode}")
    return results.get()


def measure(length: int, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """A row for each implementation."""
    found = {}
    # A GPU's memory is counted by torch.
    measured = in_a_process if arguments.device == "cpu" else lambda target, *given: target(*given)
    for name, (seconds, loss) in measured(measure_time, length, arguments).items():
        times = [1e3 * one for one in seconds]
        found[name] = {
            "length": length,
            "implementation": name,
            "ms": statistics.median(times),
            "fastest ms": min(times),
            "MiB": measured(measure_memory, name, length, arguments),
            "loss": loss,
        }
    return found


def plot(rows: list[dict], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    for axis, column, label in zip(
        axes, ("ms", "MiB"), ("ms a step", "peak MiB of a step"), strict=True
    ):
        for name in IMPLEMENTATIONS:
            ours = [row for row in rows if row["implementation"] == name]
            axis.plot(
                [row["length"] for row in ours],
                [row[column] for row in ours],
                marker="o",
                label=name,
            )
        axis.set_xlabel("sequence length")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def options(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--layers", type=int, default=2, help="BERT-base has 12")
    parser.add_argument("--width", type=int, default=768, help="64 for each head")
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument(
        "--dropout", type=float, default=0.0, help="of the attention; BERT trains with 0.1"
    )
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--csv", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    arguments = parser.parse_args(given)
    # Printed before minutes of work.
    for path in (arguments.plot, arguments.csv):
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f"{path}: there is no folder {path.parent}")
    if arguments.plot is not None and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    return arguments


def main() -> None:
    arguments = options()
    what = f"batch {arguments.batch}, {arguments.layers} layers, {arguments.steps} steps in turn"
    print(f"{arguments.device}, {arguments.dtype}, {what}")
    print(
        f"{'length':>6} {'':>7} {'median ms':>9} {'fastest':>9} {'vs eager':>8} {'peak MiB':>9} "
        f"{'vs eager':>8}  loss"
    )
    rows = []
    for length in arguments.lengths:
        found = measure(length, arguments)
        eager = found["eager"]
        for name, row in found.items():
            faster, smaller = eager["ms"] / row["ms"], 100 * (row["MiB"] / eager["MiB"] - 1)
            print(
                f"{length:6} {name:>7} {row['ms']:9.1f} {row['fastest ms']:9.1f} {faster:7.2f}x "
                f"{row['MiB']:9.1f} {smaller:+7.0f}%"
                f"  {row['loss']:.5f}",
                flush=True,
            )
            if (
                abs(row["loss"] - eager["loss"]) > 1e-2 * abs(eager["loss"])
                and arguments.dropout == 0
            ):
                raise SystemExit(f"{name} at length {length} has another loss than eager attention")
        rows += found.values()
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
