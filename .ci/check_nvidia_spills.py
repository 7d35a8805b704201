"""Holds the main kernels for NVIDIA's Hopper to the bytes of registers that they spill, and to
matrix products that overlap.

check_nvidia_spills.py REPORT ALLOWED [WORD]
    REPORT: of `fulmen compile --arch sm_90a --json`; ALLOWED: tests/compile/nvidia_spills.json;
    WORD: REPORT has the kernels in whose names it is (`--only`), not all.

Spills cost `backward_tma` a sixth of its speed once, products that wait for each other a quarter,
and no test of results sees either. Fewer bytes than allowed are reported, too: ALLOWED then says
more than is true."""

import json
import sys


def main(report_path, allowed_path, word=None):
    with open(report_path) as file:
        rows = json.load(file)
    spills = {}
    for row in rows:
        name = f"{row['arch']} {row['kernel']}"
        spills[name] = max(spills.get(name, 0), row["spills"])
    with open(allowed_path) as file:
        allowed = {
            kernel: count
            for kernel, count in json.load(file).items()
            if word is None or word in kernel.split()
        }
    wrong = [
        f"{kernel}: {count} bytes spilled, {allowed.get(kernel, 0)} allowed"
        for kernel, count in spills.items()
        if count != allowed.get(kernel, 0)
    ]
    wrong += [
        f"{row['kernel']}: products wait for each other: {row['serialised']}"
        for row in rows
        if row["serialised"]
    ]
    wrong += [f"{kernel}: no such kernel is compiled" for kernel in allowed.keys() - spills.keys()]
    if len(spills) < (50 if word is None else 2):
        wrong.append(f"only {len(spills)} kernels in {report_path}")
    if wrong:
        print(
            "\n".join(wrong), f"Where that is as it should be, say so in {allowed_path}.", sep="\n"
        )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
