"""Compiles the kernels of all rows before they are timed: processes side by side run each row once,
and leave what they compile in Fulmen's and FlashAttention 4's caches on disk."""

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch
from calls import Maker
from peers import contestants, leading
from rows import ROWS


def _compile(name: str, device: str, tiny: bool, peers: list[str], passes: str) -> str:
    """Runs the row's contestants once, backward passes included; refusals are the timed run's to
    name."""
    torch.manual_seed(20261128)
    call = ROWS[name](Maker(device, tiny))
    for backward in (False, True):
        which = "backward" if backward else "forward"
        if which not in passes or (backward and not call.gradients):
            continue
        for function in contestants(call, peers, backward)[0].values():
            try:
                inputs = leading(call)
                with torch.set_grad_enabled(backward):
                    out = function(inputs)
                    if backward:
                        leaves = [inputs[n] for n in call.gradients]
                        torch.autograd.grad(out, leaves, torch.ones_like(out))
            except Exception:
                continue
    if device != "cpu":
        torch.cuda.empty_cache()
    return name


LIMIT_S = 150  # then rows compile as they are timed


def compile_all(arguments, names: list[str], report) -> None:
    # PyTorch's own backends are ready, or compile for the process alone.
    peers = [name for name in arguments.peers if name.startswith("flash4")]
    begin, done = time.monotonic(), 0
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(arguments.prepare, mp_context=context)
    options = arguments.device, arguments.tiny, peers, arguments.passes
    running = [pool.submit(_compile, name, *options) for name in names]
    try:
        for one in as_completed(running, timeout=LIMIT_S):
            done += one.exception() is None
    except TimeoutError:
        for process in list(pool._processes.values()):
            process.kill()
    pool.shutdown(cancel_futures=True)
    took = round(time.monotonic() - begin, 1)
    report({"case": f"{done} of {len(names)} rows compiled", "took_s": took})
