#!/usr/bin/env python3
"""Checks an installed wheel with nothing beside it but, perhaps, NumPy: it imports fast, computes
a forward and a backward pass that agree with double precision, and runs its command line."""

import math
import subprocess
import sys


def check_import() -> None:
    before = set(sys.modules)
    import fulmen

    # Modules, not milliseconds, which depend on the machine: NumPy alone is some 150.
    loaded = sorted(set(sys.modules) - before)
    assert len(loaded) <= 60, f"import fulmen loads {len(loaded)} modules: {loaded}"
    heavy = {"numpy", "torch", "jax", "asyncio", "email", "importlib.metadata"} & set(loaded)
    assert not heavy, f"import fulmen loads {sorted(heavy)}"
    assert fulmen.devices()[0].usable, fulmen.devices()
    print(f"fulmen {fulmen.__version__} loads {len(loaded)} modules")


def softmax_attention(q, k, v):
    """out[i] = sum_j softmax_j(q_i k_j / sqrt(d)) v_j of one head, in double precision."""
    import numpy as np

    scores = q @ k.T / math.sqrt(q.shape[1])
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True) @ v


def check_numpy() -> None:
    import fulmen
    import numpy as np

    rng = np.random.default_rng(0)
    q, k, v, dout = rng.standard_normal((4, 1, 33, 2, 64)).astype(np.float32)
    out, lse = fulmen.attention(q, k, v, return_lse=True)
    dq, dk, dv = fulmen.attention_backward(dout, q, k, v, out, lse)[:3]
    for head in range(2):
        one = [tensor[0, :, head].astype(np.float64) for tensor in (q, k, v, dout)]
        assert np.allclose(softmax_attention(*one[:3]), out[0, :, head], atol=1e-5)
        # A gradient is the slope of sum(dout * out) along a direction.
        step = 1e-5
        for at, gradient in enumerate((dq, dk, dv)):
            direction = rng.standard_normal(one[0].shape)
            ends = []
            for sign in (1, -1):
                moved = [t + sign * step * direction if i == at else t for i, t in enumerate(one)]
                ends.append((one[3] * softmax_attention(*moved[:3])).sum())
            slope = (ends[0] - ends[1]) / (2 * step)
            found = (gradient[0, :, head] * direction).sum()
            assert math.isclose(slope, found, rel_tol=1e-3, abs_tol=1e-3), (at, slope, found)
    ran = fulmen.plan(q, k, v).kernel
    half = fulmen.attention(*(t.astype(np.float16) for t in (q, k, v)))
    assert np.allclose(half.astype(np.float32), out, atol=5e-3)
    print(f"forward and backward are right, by {ran}")


def check_without_numpy() -> None:
    import array

    import fulmen

    try:
        fulmen.attention(array.array("f", [0.0]), None, None)
    except TypeError as error:
        assert "NumPy array" in str(error), error
    else:
        raise AssertionError("an array.array is no tensor")
    print("without NumPy: other arrays are refused in words")


def check_program() -> None:
    # A pass or a finding of a GPU that is not whole; anything else is no verdict.
    run = subprocess.run(
        [sys.executable, "-m", "fulmen", "doctor"], capture_output=True, text=True, check=False
    )
    assert "cpu.instruction_sets" in run.stdout, (run.returncode, run.stdout, run.stderr)
    print("\n".join(line for line in run.stdout.splitlines() if "cpu" in line))


def has_numpy() -> bool:
    import importlib.util

    return importlib.util.find_spec("numpy") is not None


if __name__ == "__main__":
    check_import()
    if has_numpy():
        check_numpy()
    else:
        check_without_numpy()
    if "--no-program" not in sys.argv:  # an emulated processor starts no programs by itself
        check_program()
