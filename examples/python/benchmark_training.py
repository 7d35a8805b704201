"""Time and memory of a training step, forward and backward, of an encoder with BERT-base's geometry: Fulmen, eager attention, SDPA.

    pip install '.[torch]' transformers matplotlib
    python examples/python/benchmark_training.py --csv training.csv --plot training.png
    python examples/python/benchmark_training.py --device cuda --dtype bfloat16 --layers 12 --batch 16

Each measurement runs in a process of its own, so that the peak of its memory is its own. The loss of each implementation is
compared with eager attention's.
"""

import argparse
import csv
import multiprocessing
import pathlib
import resource
import statistics
import time

import torch
import transformers
from fulmen.transformers import register

IMPLEMENTATIONS = ("fulmen", "eager", "sdpa")


def resident() -> float:
    """MiB that this process has in memory now."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def measure(implementation: str, length: int, arguments: argparse.Namespace, results: multiprocessing.SimpleQueue) -> None:
    """Puts (seconds of each step, MiB that a step needs at most, loss)."""
    register()
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=arguments.layers, max_position_embeddings=length, hidden_dropout_prob=0.0)
    config.attention_probs_dropout_prob = arguments.dropout
    config._attn_implementation = implementation
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    model = transformers.BertModel(config, add_pooling_layer=False).to(device, dtype).train()
    tokens = torch.randint(0, config.vocab_size, (arguments.batch, length), device=device)
    on_gpu = device.type == "cuda"
    before = resident()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 2**20
    times = []
    for _ in range(arguments.steps + 1):  # the first one warms up
        start = time.perf_counter()
        loss = model(tokens).last_hidden_state.float().square().mean()
        loss.backward()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        model.zero_grad(set_to_none=True)
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    results.put((times[1:], peak - before, loss.item()))


def plot(rows: list[dict], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    for axis, column, label in zip(axes, ("ms", "MiB"), ("ms a step", "peak MiB of a step"), strict=True):
        for name in IMPLEMENTATIONS:
            ours = [row for row in rows if row["implementation"] == name]
            axis.plot([row["length"] for row in ours], [row[column] for row in ours], marker="o", label=name)
        axis.set_xlabel("sequence length")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--layers", type=int, default=2, help="BERT-base has 12")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0, help="of the attention; BERT trains with 0.1")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--csv", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    arguments = parser.parse_args()

    context = multiprocessing.get_context("forkserver" if arguments.device == "cpu" else "spawn")
    context.set_forkserver_preload(["torch", "transformers.models.bert.modeling_bert"])
    print(f"{arguments.device}, {arguments.dtype}, batch {arguments.batch}, {arguments.layers} layers, median of {arguments.steps}")
    print(f"{'length':>6} {'':>7} {'ms':>9} {'vs eager':>8} {'peak MiB':>9} {'vs eager':>8}  loss")
    rows = []
    for length in arguments.lengths:
        found = {}
        for name in IMPLEMENTATIONS:
            results = context.SimpleQueue()
            process = context.Process(target=measure, args=(name, length, arguments, results))
            process.start()
            process.join()
            if process.exitcode != 0:
                raise SystemExit(f"{name} at length {length}: the process ended with {process.exitcode}")
            times, peak, loss = results.get()
            found[name] = {
                "length": length,
                "implementation": name,
                "ms": 1e3 * statistics.median(times),
                "MiB": peak,
                "loss": loss,
            }
        eager = found["eager"]
        for name, row in found.items():
            faster, smaller = eager["ms"] / row["ms"], 100 * (1 - row["MiB"] / eager["MiB"])
            print(f"{length:6} {name:>7} {row['ms']:9.1f} {faster:7.2f}x {row['MiB']:9.1f} {-smaller:+7.0f}%  {row['loss']:.6f}")
            if abs(row["loss"] - eager["loss"]) > 1e-2 * abs(eager["loss"]) and arguments.dropout == 0:
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
