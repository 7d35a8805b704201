"""The Python examples of README.md and docs/python.md run as they stand."""

import re
from pathlib import Path

import fulmen.torch
import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [
    pytest.param(block, id=f"{name}-{at}")
    for name in ("README.md", "docs/python.md")
    for at, block in enumerate(re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE))
    if "(..." not in block  # a line of somebody else's program
]


@pytest.mark.parametrize("block", BLOCKS)
def test_examples(block):
    for name in set(re.findall(r"^\s*(?:import|from) (\w+)", block, re.MULTILINE)):
        pytest.importorskip(name)
    try:
        exec(compile(block, "example", "exec"), {"__name__": "example"})
    finally:
        fulmen.torch.disable_sdpa()
