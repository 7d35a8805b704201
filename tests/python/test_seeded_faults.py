"""The tests find faults of the bindings: each is seeded into a copy of the package, whose tests
must then fail.
"""

import importlib.util
import os
import pathlib
import random
import shutil
import subprocess
import sys
from typing import NamedTuple

import problems
import pytest


class Fault(NamedTuple):
    file: str  # of the package
    right: str
    wrong: str
    tests: str  # of this folder, and a pattern of their names


FAULTS = {
    "top left for bottom right": Fault(
        "flash_attn/flash_attn_interface.py",
        '"causal": bool(causal),',
        '"causal": causal and "top_left",',
        "flash_attn dense",
    ),
    "a window's sides change places": Fault(
        "flash_attn/flash_attn_interface.py",
        'window_left": left,\n        "window_right": right',
        'window_left": right,\n        "window_right": left',
        "flash_attn dense",
    ),
    "is_causal from the last key": Fault(
        "torch/_sdpa.py",
        'causal = "top_left" if is_causal',
        "causal = True if is_causal",
        "sdpa semantics",
    ),
    "scale left out": Fault(
        "torch/_sdpa.py", "options = (scale, 0.0, causal", "options = (None, 0.0, causal", "sdpa"
    ),
    "a gradient under another's name": Fault(
        "torch/_ops.py",
        "results[at] = computed[bit]",
        "results[at] = computed[bit ^ 1 if bit < 2 else bit]",
        "torch gradients",
    ),
    "the gradient of lse dropped": Fault(
        "torch/_ops.py",
        "last_dim_contiguous(dout),\n        dlse,",
        "last_dim_contiguous(dout),\n        None,",
        "torch gradients",
    ),
    "scale left out of xformers": Fault(
        "xformers/_attention.py",
        '"softmax_scale": scale',
        '"softmax_scale": None',
        "xformers simple",
    ),
    "groups of xformers mixed": Fault(
        "xformers/_attention.py",
        "return out.reshape(shape)",
        "return out.flip(2).reshape(shape)",
        "xformers simple",
    ),
    "lengths in each other's places": Fault(
        "_arguments.py",
        "len(tensors)), *lengths)",
        "len(tensors)), *lengths[1::-1], *lengths[2:])",
        "lengths",
    ),
    "slopes of another head": Fault(
        "_numbers.py",
        "return array.astype(np.float32)\n    if array.dtype",
        "return array[::-1].astype(np.float32)\n    if array.dtype",
        "arguments",
    ),
    "jax is causal for all": Fault(
        "jax/_calls.py",
        '"causal": np.int64(_CAUSAL[given["causal"]])',
        '"causal": np.int64(1)',
        "jax options",
    ),
}


def _drawn() -> list[str]:
    return (
        list(FAULTS)
        if problems.LONG_RUN
        else random.Random(problems.SEED).sample(sorted(FAULTS), 2)
    )


@pytest.mark.parametrize("name", _drawn())
def test_is_found(name, tmp_path):
    fault = FAULTS[name]
    package = pathlib.Path(importlib.util.find_spec("fulmen").origin).parent
    copy = tmp_path / "fulmen"
    shutil.copytree(
        package,
        copy,
        symlinks=True,
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    seeded = copy / fault.file
    text = seeded.read_text()
    assert text.count(fault.right) >= 1, f"{fault.file} has no {fault.right!r} any more"
    seeded.unlink()  # a link to the package's own
    seeded.write_text(text.replace(fault.right, fault.wrong))
    file, *pattern = fault.tests.split()
    tests = pathlib.Path(__file__).parent / f"test_{file}.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        str(tests),
    ]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    # Without the draws of a run of stages: a case that is left out could be the one that finds it.
    environment = {
        key: value
        for key, value in environment.items()
        if not key.startswith("PYTEST") and key != "FULMEN_TEST_SAMPLED"
    }
    run = subprocess.run(
        [*command, *(["-k", pattern[0]] if pattern else [])],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1, f"no test found it:\n{run.stdout[-2000:]}{run.stderr[-1000:]}"
    assert " failed" in run.stdout
