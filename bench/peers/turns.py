"""A turn of one implementation, and what all suites share."""

import time
from collections.abc import Callable

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Only to see that everyone computed the same problem; Fulmen's own tests are far stricter.
BOUND = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2}


# What a call is timed by. The processor's time is that of all threads of the process: of one
# thread it is the time of the call, less what other programs on the processor took.
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def one_turn(run: Callable[[], None], seconds: float, clock: Callable[[], float]) -> list[float]:
    time.sleep(0.01)
    run()
    times: list[float] = []
    while not times or sum(times) < seconds:
        start = clock()
        run()
        times.append(clock() - start)
    return times
