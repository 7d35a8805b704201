"""What a call from Python costs beyond the C ABI, and torch's scaled_dot_product_attention beside
Fulmen's on the CPU.

  python bench/python/bench.py [overhead] [sdpa] [--rounds N]     both by default; markdown on
                                                                  stdout

Needs fulmen and torch installed, a C compiler, and the sources for fulmen_c.h. Candidates take
turns in every round, so that all see the same machine; a figure is the median over the rounds.
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fulmen
import fulmen.torch
import numpy as np
import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[2]
SDPA = F.scaled_dot_product_attention
# The options of fulmen._core.
PLAIN = (None, 0.0, False, -1, -1, 0.0, None, 0, False, None, None, 0, False)


def rounds_of(candidates: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median over the rounds of what each candidate measures, in microseconds."""
    measured: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, measure in candidates.items():
            measured[name].append(measure())
    return {name: statistics.median(values) for name, values in measured.items()}


def timed(call: Callable[[], object], calls: int) -> Callable[[], float]:
    for _ in range(max(2, min(200, calls // 10))):
        call()

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) / calls * 1e6

    return measure


def raw_call() -> ctypes.CDLL:
    library = next(Path(fulmen.__file__).parent.glob("libfulmen.so*"))
    output = Path(tempfile.mkdtemp()) / "raw_call.so"
    command = [
        os.environ.get("CC", "cc"),
        "-O2",
        "-fPIC",
        "-shared",
        f"-I{ROOT / 'include'}",
        str(Path(__file__).with_name("raw_call.c")),
    ]
    subprocess.run(
        [*command, "-o", str(output), str(library), f"-Wl,-rpath,{library.parent}"], check=True
    )
    loaded = ctypes.CDLL(str(output))
    loaded.raw_call.restype = ctypes.c_double
    loaded.raw_call.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64]
    return loaded


def wrapped_ops(
    key: str = "CPU",
) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """The same call as a custom_op, and by define and impl: the usual ways to bring a kernel to
    torch."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return fulmen._core.forward((q, k, v, None), PLAIN, None, False, False)

    custom = torch.library.custom_op("fulmen_bench::custom", call, mutates_args=())
    library = torch.library.Library("fulmen_bench", "FRAGMENT")
    library.define("defined(Tensor q, Tensor k, Tensor v) -> Tensor")
    library.impl("defined", call, key)
    wrapped_ops.library = library  # lives as long as its op
    return custom, torch.ops.fulmen_bench.defined.default


def overhead(rounds: int) -> None:
    shape = (1, 1, 1, 8)  # next to nothing to compute
    q, k, v = (torch.randn(shape) for _ in range(3))
    out, one = torch.empty(shape), torch.ones(shape)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    arrays = [t.numpy() for t in (q, k, v)]
    into = np.empty(shape, np.float32)
    c, (custom, defined) = raw_call(), wrapped_ops()
    pointers = [t.data_ptr() for t in (q, k, v, out)]
    sizes = (ctypes.c_int64 * 4)(*shape)
    n = 5000
    candidates = {
        "C: `fulmen_attention`": lambda: c.raw_call(*pointers, sizes, n),
        "`fulmen.attention`, torch": timed(lambda: fulmen.attention(q, k, v), n),
        "`fulmen.attention`, torch, `out=`": timed(lambda: fulmen.attention(q, k, v, out=out), n),
        "`fulmen.attention`, NumPy": timed(lambda: fulmen.attention(*arrays), n),
        "`fulmen.attention`, NumPy, `out=`": timed(lambda: fulmen.attention(*arrays, out=into), n),
        "`fulmen.torch.scaled_dot_product_attention`": timed(
            lambda: fulmen.torch.scaled_dot_product_attention(q, k, v), n
        ),
        "the same call as a `torch.library.custom_op`": timed(lambda: custom(q, k, v), n),
        "the same call by `torch.library.define`, `impl`": timed(lambda: defined(q, k, v), n),
        "torch's `scaled_dot_product_attention`": timed(lambda: SDPA(q, k, v), n),
        "training, forward: `fulmen.attention`": timed(lambda: fulmen.attention(*leaves), n),
        "training, forward: torch's": timed(lambda: SDPA(*leaves), n),
        "training, forward and backward: `fulmen.attention`": timed(
            lambda: torch.autograd.grad(fulmen.attention(*leaves), leaves, one), n // 5
        ),
        "training, forward and backward: torch's": timed(
            lambda: torch.autograd.grad(SDPA(*leaves), leaves, one), n // 5
        ),
    }
    torch.set_num_threads(1)
    results = rounds_of(candidates, rounds)
    torch.set_num_threads(os.cpu_count())
    base = results["C: `fulmen_attention`"]
    print("| call | us | beyond C, us |\n|---|---|---|")
    for name, value in results.items():
        print(f"| {name} | {value:.2f} | {value - base:.2f} |")


CASES = {  # batch, heads, seqlen, head_dim, causal
    "prefill, 1024, d 64": (1, 16, 1024, 64, False),
    "prefill, causal, 2048, d 128": (1, 8, 2048, 128, True),
    "BERT-base, 8 x 512": (8, 12, 512, 64, False),
    "BERT-base, 8 x 128": (8, 12, 128, 64, False),
    "chess boards, 64, d 32": (64, 24, 64, 32, False),
}


def sdpa(rounds: int) -> None:
    print("| problem | dtype | pass | torch, ms | Fulmen, ms | ratio |\n|---|---|---|---|---|---|")
    for name, (batch, heads, seqlen, dim, causal) in CASES.items():
        for dtype in (torch.float32, torch.bfloat16):
            # As a model makes them: projections give [batch, seqlen, heads, dim], torch's function
            # takes a transposed view.
            q, k, v, dout = (
                torch.randn(batch, seqlen, heads, dim).to(dtype).transpose(1, 2) for _ in range(4)
            )
            leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            ours, theirs = (
                f(q, k, v, is_causal=causal).float()
                for f in (fulmen.torch.scaled_dot_product_attention, SDPA)
            )
            assert (ours - theirs).abs().max() < (1e-4 if dtype == torch.float32 else 0.05), (
                "results differ"
            )
            for training in (False, True):

                def call(
                    function,
                    training=training,
                    leaves=leaves,
                    q=q,
                    k=k,
                    v=v,
                    dout=dout,
                    causal=causal,
                ):
                    if training:
                        return lambda: torch.autograd.grad(
                            function(*leaves, is_causal=causal), leaves, dout
                        )
                    return lambda: function(q, k, v, is_causal=causal)

                candidates = {
                    "torch": timed(call(SDPA), 3),
                    "fulmen": timed(call(fulmen.torch.scaled_dot_product_attention), 3),
                }
                times = rounds_of(candidates, rounds)
                label = "fp32" if dtype == torch.float32 else "bf16"
                passes = "forward and backward" if training else "forward"
                print(
                    f"| {name} | {label} | {passes} | {times['torch'] / 1e3:.2f} | "
                    f"{times['fulmen'] / 1e3:.2f} "
                    f"| {times['torch'] / times['fulmen']:.2f} |",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", choices=[[], "overhead", "sdpa"], help="both when none is named"
    )
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    cpu = next(d for d in fulmen.devices() if d.name == "cpu")
    print(
        f"fulmen {fulmen.__version__}, torch {torch.__version__}, {cpu.chip}: {cpu.features}, "
        f"{os.cpu_count()} threads\n"
    )
    for part in arguments.parts or ("overhead", "sdpa"):
        {"overhead": overhead, "sdpa": sdpa}[part](arguments.rounds)
        print()


if __name__ == "__main__":
    main()
