"""The tables of docs/performance/amd.md, from what `fulmen counts` and `fulmen compile` say as
JSON."""

import json
import re
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "performance" / "amd.md"
COUNTS = ("matrix", "vector", "transcendental", "scalar", "lds", "global", "waits")
HEAD = (
    "| chip | kernel | registers | LDS bytes | waves | matrix | VALU | transc. | SALU | LDS | "
    "global | waits | VALU / matrix | SALU / matrix |"
)


def row(launch, compiled):
    known = compiled.get((launch["arch"], launch["kernel"]), {})
    cells = [launch["arch"], launch["kernel"].replace(" dq dk dv dbias", "")]
    cells += [known.get(name, "-") for name in ("registers", "lds_bytes", "occupancy")]
    cells += [launch[name] for name in COUNTS]
    cells += [f"{launch[name] / launch['matrix']:.2f}" for name in ("vector", "scalar")]
    return "| " + " | ".join(map(str, cells)) + " |"


def table(launches, compiled):
    return "\n".join(
        [HEAD, "|---" * (HEAD.count("|") - 1) + "|", *(row(each, compiled) for each in launches)]
    )


def main(counts, compiled):
    # Kernels without products (sums of rows, merged splits) are left out.
    launches = [each for each in json.loads(Path(counts).read_text()) if each["matrix"] > 0]
    reports = {
        (each["arch"], each["kernel"]): each for each in json.loads(Path(compiled).read_text())
    }
    parts = {
        name: [each for each in launches if ("backward" in each["kernel"]) == (name == "backward")]
        for name in ("forward", "backward")
    }
    text = PAGE.read_text()
    for name, chosen in parts.items():
        text, found = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda m, rows=chosen: f"{m[1]}{table(rows, reports)}\n{m[2]}",
            text,
            flags=re.S,
        )
        if found != 1:
            sys.exit(f"{PAGE}: <!-- {name} --> and <!-- end --> are expected once")
    PAGE.write_text(text)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: amd_table.py counts.json compiled.json")
    main(*sys.argv[1:])
