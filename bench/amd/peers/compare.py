"""Counts what kernels of others execute on the emulator of machine code, checks their results, and
writes a JSON line a run. bench/amd/README.md says what it needs."""

import argparse
import json
import sys

import aiter_forward
import numpy as np
import triton_backward
import triton_decode
import triton_forward
from attention import Problem, backward, forward, random_tensor, relative_error, to_bits, to_double

from emulator import Run

CHIPS = ["gfx1100", "gfx1201", "gfx90a", "gfx942", "gfx950"]
# bf16 results of a kernel that rounds probabilities to bf16 are within a third of this.
MOST_ERROR = 0.01


def prefill(head_dim, seqlen=2048, causal=False, is_backward=False):
    """16,384 rows of 2,048 numbers, as in the suites of `fulmen bench`."""
    heads = 2048 // head_dim
    return Problem(
        head_dim, seqlen, seqlen, causal, heads, heads, 16384 // seqlen, backward=is_backward
    )


def one_batch(p):
    """Inputs of the first sequence; the launches are of the whole problem."""
    generator = np.random.default_rng(1)
    q = random_tensor(generator, (1, p.seqlen_q, p.heads, p.head_dim), p.dtype)
    k, v = (
        random_tensor(generator, (1, p.seqlen_k, p.kv_heads, p.head_dim), p.dtype) for _ in range(2)
    )
    return q, k, v


def worst(errors):
    """The largest, or NaN where one is: Python's max() passes over NaN that comes second."""
    return float(np.max(list(errors)))


def run_forward(run, p, add):
    q, k, v = one_batch(p)
    for name, array in (("q", q), ("k", k), ("v", v)):
        run.input(name, array)
    run.output("out", q.shape, p.dtype)
    run.output("lse", (1, p.heads, p.seqlen_q), "fp32")
    tiles = add(run, p)
    counts, outputs = run.run()
    expected, lse = forward(*(to_double(t[0, :, 0]) for t in (q, k, v)), p.head_dim**-0.5, p.causal)
    # Rows that the launch does not compute stay NaN.
    error = worst(
        [
            relative_error(outputs["out"][0, :, 0], expected),
            relative_error(outputs["lse"][0, 0], lse),
        ]
    )
    return tiles, counts, error


def run_decode(run, p, add):
    q, k, v = one_batch(p)
    for name, array in (("q", q), ("k", k), ("v", v)):
        run.input(name, array)
    run.output("out", q.shape, p.dtype)
    tiles = add(run, p)
    counts, outputs = run.run()
    group = p.heads // p.kv_heads
    error = worst(
        relative_error(
            outputs["out"][0, :, h],
            forward(
                to_double(q[0, :, h]),
                to_double(k[0, :, 0]),
                to_double(v[0, :, 0]),
                p.head_dim**-0.5,
                p.causal,
            )[0],
        )
        for h in range(group)
    )
    return tiles, counts, error


def run_backward(run, p, add):
    q, k, v = one_batch(p)
    generator = np.random.default_rng(2)
    dout = random_tensor(generator, q.shape, p.dtype)
    one = [to_double(t[0, :, 0]) for t in (q, k, v)]
    expected, lse = forward(*one, p.head_dim**-0.5, p.causal)
    out = np.zeros(q.shape, q.dtype)
    out[0, :, 0] = to_bits(expected, p.dtype)
    stats = np.zeros((1, p.heads, p.seqlen_q), np.float32)
    stats[0, 0] = lse
    for name, array in (("q", q), ("k", k), ("v", v), ("dout", dout), ("o", out), ("stats", stats)):
        run.input(name, array)
    for name in ("dq", "dk", "dv"):
        run.output(name, q.shape, p.dtype)
    run.output("delta", (1, p.heads, p.seqlen_q), "fp32")
    tiles = add(run, p)
    counts, outputs = run.run()
    gradients = backward(*one, to_double(dout[0, :, 0]), p.head_dim**-0.5, p.causal)
    error = worst(
        relative_error(outputs[n][0, :, 0], g)
        for n, g in zip(("dq", "dk", "dv"), gradients, strict=True)
    )
    return tiles, counts, error


def runs(arch, checkout):
    """(name of the problem, of the kernel, problem, runner, adds its launches)."""
    problems = [prefill(d, causal=c) for d in (64, 128, 256) for c in (False, True)]
    if arch in ("gfx942", "gfx950"):  # there are public figures
        problems.append(prefill(128, 8192, True))
    for p in problems:
        mask = " causal" if p.causal else ""
        name = f"prefill d{p.head_dim} S{p.seqlen_q}{mask}"
        yield (
            name,
            "Triton, AITER",
            p,
            run_forward,
            lambda run, p: triton_forward.add(run, checkout, p),
        )
        if aiter_forward.serves(arch, p):
            yield (
                name,
                "assembly, AITER",
                p,
                run_forward,
                lambda run, p: aiter_forward.add(run, checkout, p),
            )
    for rows in (1, 4):
        p = Problem(128, rows, 8192, rows > 1, 32, 8, 16)
        yield (
            f"decode d128 q{rows} 8192 keys",
            "Triton, AITER",
            p,
            run_decode,
            lambda run, p: triton_decode.add(run, checkout, p),
        )
    for d in (64, 128):
        p = prefill(d, is_backward=True)
        yield (
            f"backward d{d} S2048",
            "Triton, AITER",
            p,
            run_backward,
            lambda run, p: triton_backward.add(run, checkout, p),
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-kernel", required=True, help="the program of bench/amd/run_kernel")
    parser.add_argument("--aiter", required=True, help="a checkout of AITER")
    parser.add_argument("--out", required=True, help="the file that lines are added to")
    parser.add_argument("--arch", nargs="*", default=CHIPS)
    parser.add_argument("--only", default="", help="a part of the problem's name")
    arguments = parser.parse_args()
    wrong = 0
    for arch in arguments.arch:
        for name, kernel, p, runner, add in runs(arch, arguments.aiter):
            if arguments.only not in name:
                continue
            run = Run(arguments.run_kernel, arch)
            run.problem(p)
            row = {"arch": arch, "problem": name, "kernel": kernel}
            try:
                row["tiles"], row["counts"], row["error"] = runner(run, p, add)
                verdict = f"error {row['error']:.1e}"
                if not row["error"] < MOST_ERROR:
                    wrong += 1
                    verdict += " WRONG"
                modelled = row["counts"].get("modelled")
                if modelled:
                    verdict += f", {modelled['tflops']:.0f} TFLOP/s modelled"
            except Exception as error:  # noqa: BLE001: one run's failure is one row's
                row["failure"] = verdict = str(error)[-300:]
                wrong += 1
            print(f"{arch} {name}, {kernel}: {verdict}", flush=True)
            with open(arguments.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
