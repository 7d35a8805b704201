"""Counts what kernels of others execute on the emulator of machine code, checks their results, and
writes a JSON line a run. bench/amd/README.md says what it needs."""

import argparse
import json
import sys

from hip_compile import Hip

from emulator import Run

CHIPS = ["gfx1100", "gfx1201", "gfx90a", "gfx942", "gfx950"]
# bf16 results of a kernel that rounds probabilities to bf16 are within a third of this.
MOST_ERROR = 0.01


def runs(arch, arguments):
    """(name of the kernel, problem, runner, adds its launches) of the peers that are here."""
    if arguments.aiter:
        import aiter_runs

        yield from aiter_runs.runs(arch, arguments.aiter)
    if arguments.ggml:
        import ggml_forward

        yield from ggml_forward.runs(arch, arguments.ggml, Hip(arguments.hip, arguments.work))
    if arguments.flydsl:
        import flydsl_forward

        yield from flydsl_forward.runs(arch, arguments.flydsl)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-kernel", required=True, help="the program of bench/amd/run_kernel")
    parser.add_argument("--aiter", help="a checkout of AITER")
    parser.add_argument("--ggml", help="a checkout of ggml")
    parser.add_argument("--flydsl", help="a checkout of FlyDSL")
    parser.add_argument("--hip", help="a folder with HIP, clr and rocm-device-libs")
    parser.add_argument("--work", default="build/peers", help="a folder for compiled kernels")
    parser.add_argument("--out", required=True, help="the file that lines are added to")
    parser.add_argument("--arch", nargs="*", default=CHIPS)
    parser.add_argument("--only", default="", help="a part of what a line begins with")
    arguments = parser.parse_args()
    wrong = 0
    for arch in arguments.arch:
        for kernel, p, runner, add in runs(arch, arguments):
            name = p.name
            if arguments.only not in f"{name}, {kernel}":
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
