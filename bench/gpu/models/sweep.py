"""Times the forward pass of rows by configurations of a kernel, to choose tile shapes from:

  python bench/gpu/models/sweep.py --rows REGEX --kernel cuda.prefill_tma.sm90 \\
      --set block_m=128,block_n=128 --set block_m=192,block_n=80 [--prepare PROCESSES]

Rows whose interface is fulmen.attention. A row's configurations come with their times in
milliseconds, the usual one first."""

import argparse
import multiprocessing
import re

import fulmen
import torch
from calls import Call, Maker
from peers import fulmen_options, kv_of, leading
from rows import ROWS
from timing import first_line, of_forward, seconds_in_turn

USUAL = "usual"


def timed(call: Call, device: str, kernel: str, setting: str):
    options = fulmen_options(call)
    if setting != USUAL:
        options |= dict(kernel=kernel, tuning=setting)
    inputs = leading(call)
    more = {"sinks": inputs["sinks"]} if "sinks" in inputs else {}

    def run():
        with torch.no_grad():
            return fulmen.attention(inputs["q"], *kv_of(call, inputs), **options, **more)

    return of_forward(run, device)[0]


def compile_one(job) -> None:
    name, arguments, setting = job
    try:
        call = ROWS[name](Maker(arguments.device, arguments.tiny))
        timed(call, arguments.device, arguments.kernel, setting)
    except Exception:
        return  # the timed run says why


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", required=True, help="a regular expression of rows' names")
    parser.add_argument("--kernel", required=True)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--prepare", type=int, default=0, help="processes that compile first")
    arguments = parser.parse_args()
    names = [name for name in ROWS if re.search(arguments.rows, name)]
    settings = [USUAL, *arguments.settings]
    if arguments.prepare:
        jobs = [(name, arguments, setting) for name in names for setting in settings]
        with multiprocessing.get_context("spawn").Pool(arguments.prepare) as pool:
            pool.map(compile_one, jobs, chunksize=1)
    for name in names:
        torch.manual_seed(20261128)
        call = ROWS[name](Maker(arguments.device, arguments.tiny))
        ready, refused = {}, {}
        for setting in settings:
            try:
                ready[setting] = timed(call, arguments.device, arguments.kernel, setting)
            except Exception as error:
                refused[setting] = first_line(error)
        print(name, flush=True)
        for setting, seconds in seconds_in_turn(ready, arguments.device, 5, 4.0)[0].items():
            print(f"  {1e3 * seconds:9.4f} ms  {setting}", flush=True)
        for setting, why in refused.items():
            print(f"  refused       {setting}: {why}", flush=True)


if __name__ == "__main__":
    main()
