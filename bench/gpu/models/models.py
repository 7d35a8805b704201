"""What models call, by Fulmen's Python package beside PyTorch's backends, FlashAttention 4 and
cuEquivariance: one process, peers in turn, medians. Each result is compared with PyTorch's math
before it is timed.

  python bench/gpu/models/models.py [--rows REGEX] [--peers cudnn,flash4] [--json FILE] [--list]

Needs fulmen and torch installed; every peer is optional. --prepare N compiles the kernels of all
rows in N processes first. A row is printed, and appended to --json, as it is measured: its ratio is
the best peer's time by ours. On a CPU (--device cpu --tiny) it is a dry run. Where a contestant
breaks the GPU's context the program starts itself again behind that row."""

import argparse
import math
import os
import re
import sys
import time
from pathlib import Path

import torch
from calls import Maker
from compiling import compile_all
from host_time import ceilings, host_time
from measure import SEED, is_broken, measured
from peers import PEERS
from report import Report, markdown
from rows import GROUPS, ROWS
from timing import first_line


def run_rows(arguments, names: list[str], report: Report) -> None:
    groups = {name: group for group, rows in GROUPS.items() for name in rows}
    for at, name in enumerate(names):
        begin, left = time.monotonic(), arguments.end - time.monotonic()
        if left < 0:
            report({"case": f"{len(names) - at} rows left out: the budget is spent"})
            break
        torch.manual_seed(SEED)
        try:
            call = ROWS[name](Maker(arguments.device, arguments.tiny))
            for backward in (False, True):
                which = "backward" if backward else "forward"
                if which not in arguments.passes or (backward and not call.gradients):
                    continue
                row = {"group": groups[name], "case": name, "pass": which}
                row |= measured(call, arguments, backward)
                report(row | {"took_s": round(time.monotonic() - begin, 1)})
                begin = time.monotonic()
        except Exception as error:  # a row of its own: the next ones count
            report({"case": name, "refused": {"the row": first_line(error)}})
            if is_broken(arguments.device, error):
                again = [*sys.orig_argv[: sys.orig_argv.index(sys.argv[0]) + 1], *sys.argv[1:]]
                more = ["--prepare", "0", "--behind", name, "--budget", str(left)]
                os.execv(sys.executable, [*again, *more])
        call = None
        if arguments.device != "cpu":
            torch.cuda.empty_cache()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="", help="a regular expression that the rows' names hold")
    parser.add_argument("--pass", dest="passes", default="forward,backward")
    parser.add_argument("--peers", default=",".join(n for n in PEERS if n != "math"))
    parser.add_argument(
        "--kernels",
        default="",
        help="forward kernels of ours that are forced, beside the one that is taken",
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--span-ms", type=float, default=4.0, help="what a repeat takes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="cut all sizes: a dry run")
    parser.add_argument("--prepare", type=int, default=0, help="processes that compile first")
    parser.add_argument(
        "--budget", type=float, default=math.inf, help="seconds; no row begins later"
    )
    parser.add_argument("--behind", default="", help="begin behind this row")
    parser.add_argument("--markdown", type=Path, help="print this file of --json as tables and end")
    parser.add_argument("--list", action="store_true", help="print the rows' names and end")
    arguments = parser.parse_args()
    arguments.end = time.monotonic() + arguments.budget
    arguments.kernels = tuple(name for name in arguments.kernels.split(",") if name)
    arguments.peers = [name for name in arguments.peers.split(",") if name]
    if unknown := [name for name in arguments.peers if name not in PEERS]:
        parser.error(f"--peers has {', '.join(unknown)}: {', '.join(PEERS)} are accepted")
    return arguments


def main() -> None:
    arguments = parsed()
    names = [name for name in ROWS if re.search(arguments.rows, name)]
    if arguments.markdown:
        return print(markdown(arguments.markdown))
    if arguments.list:
        return print("\n".join(names))
    report = Report(arguments.json, not arguments.behind)
    if arguments.prepare:
        compile_all(arguments, names, report)
    if not arguments.behind:
        ceilings(report, arguments.device)
        host_time(report, arguments.device, arguments.tiny)
    else:
        names = names[names.index(arguments.behind) + 1 :]
    run_rows(arguments, names, report)


if __name__ == "__main__":
    main()
