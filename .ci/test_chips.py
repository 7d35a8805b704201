#!/usr/bin/env python3
"""The chips that tests run on, as the targets of src/gpu/targets say (kTestChips).

test_chips.py [PREFIX]   the first chip of each target that begins with PREFIX, in order, ','
                         between them"""

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


def main():
    prefix = sys.argv[1] if len(sys.argv) > 1 else ""
    print(
        ",".join(sorted(chips[0] for chips in test_chips().values() if chips[0].startswith(prefix)))
    )


if __name__ == "__main__":
    main()
