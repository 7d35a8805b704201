#!/usr/bin/env python3
"""The chips of src/gpu/targets.

test_chips.py [PREFIX]         those that tests run on (kTestChips): the first one of each target
                               that begins with PREFIX, in order, ',' between them
test_chips.py --all [PREFIX]   every chip that has a row (kChips), ' ' between them"""

import pathlib
import re
import sys

TARGETS = pathlib.Path(__file__).resolve().parents[1] / "src/gpu/targets"


def test_chips():
    """{"gfx11": ["gfx1100", "gfx1151"], ...}"""
    chips = {}
    for header in sorted(TARGETS.glob("*.h")):
        if found := re.search(r"kTestChips\[\]\{(.*?)\}", header.read_text(), re.S):
            chips[header.stem] = re.findall(r'"(\w+)"', found.group(1))
    return chips


def all_chips():
    names = []
    for header in sorted(TARGETS.glob("*.h")):
        if found := re.search(r"kChips\[\]\{(.*?)\n\};", header.read_text(), re.S):
            names += re.findall(r'\.arch = "(\w+)"', found.group(1))
    return names


def main():
    if "--all" in sys.argv:
        prefix = "".join(sys.argv[2:])
        print(" ".join(name for name in all_chips() if name.startswith(prefix)))
        return
    prefix = sys.argv[1] if len(sys.argv) > 1 else ""
    print(
        ",".join(sorted(chips[0] for chips in test_chips().values() if chips[0].startswith(prefix)))
    )


if __name__ == "__main__":
    main()
