"""What a call takes without CUDA graphs, and what the machine's memory and matrix units give."""

import statistics
import time

import torch
from calls import Call
from peers import contestants, leading, torch_default
from report import Report
from timing import Timed, seconds_in_turn


def ceilings(report: Report, device: str) -> None:
    if device == "cpu":
        return
    a = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    b = torch.empty_like(a)
    x, y = (torch.randn(8192, 8192, device=device).to(torch.bfloat16) for _ in range(2))
    calls = {"copy of 1 GiB": lambda: b.copy_(a), "product of 8192^3, bf16": lambda: x @ y}
    timed = {name: Timed(call) for name, call in calls.items()}
    took, _ = seconds_in_turn(timed, device, 7, 8.0)
    versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    gpu = torch.cuda.get_device_name()
    report({"case": "ceilings", "gpu": gpu, "seconds": took, "versions": versions})


def host_time(report: Report, device: str, tiny: bool) -> None:
    """A call without graphs, the small cross decode and one key: what the host takes, and all.
    `fulmen` is its scaled_dot_product_attention."""
    import fulmen
    import fulmen.torch

    sync = torch.cuda.synchronize if device != "cpu" else lambda: None
    for case, keys, heads in (("cross decode", 1500, 20), ("one key", 1, 1)):
        q, k, v = (
            torch.randn(8, n, heads, 64, device=device).to(torch.bfloat16) for n in (1, keys, keys)
        )
        call = Call(q, k, v, "sdpa")
        ours, theirs = contestants(call, [], False)[0]["fulmen"], torch_default(call)
        inputs = leading(call)
        calls = {
            "fulmen": lambda f=ours, x=inputs: f(x),
            "fulmen.attention": lambda q=q, k=k, v=v: fulmen.attention(q, k, v),
            "torch": lambda f=theirs, x=inputs: f(x),
        }
        times = {name: [] for name in calls}
        rounds, count = (1, 2) if tiny else (25, 200)
        for _ in range(rounds):
            for name, one in calls.items():
                one()
                sync()
                start = time.perf_counter()
                for _ in range(count):
                    one()
                queued = time.perf_counter()
                sync()
                times[name].append((queued - start, time.perf_counter() - start))
        for at, what in enumerate(("host time", "time until done")):
            took = {
                n: statistics.median(x[at] for x in all_of) / count for n, all_of in times.items()
            }
            ratio = took["torch"] / took["fulmen"]
            report({"case": f"{what}, {case}", "seconds": took, "ratio": ratio})
