"""AITER's kernels and the problems that they run."""

import aiter_forward
import triton_backward
import triton_decode
import triton_forward
from attention import decode, prefill
from checks import run_backward, run_forward


def runs(arch, checkout):
    """(name of the kernel, problem, runner, adds its launches)."""

    def add_by(module):
        return lambda run, p: module.add(run, checkout, p)

    problems = [prefill(d, causal=c) for d in (64, 128, 256) for c in (False, True)]
    if arch in ("gfx942", "gfx950"):  # there are public figures
        problems.append(prefill(128, 8192, True))
    for p in problems:
        yield "Triton, AITER", p, run_forward, add_by(triton_forward)
        if aiter_forward.serves(arch, p):
            yield "assembly, AITER", p, run_forward, add_by(aiter_forward)
    for rows in (1, 4):
        yield "Triton, AITER", decode(rows, has_lse=False), run_forward, add_by(triton_decode)
    for d in (64, 128):
        yield "Triton, AITER", prefill(d, backward=True), run_backward, add_by(triton_backward)
