"""fulmen.flex_attention beside torch's compiled flex_attention: masks and score functions of
attention-gym's kinds, forward and backward, one process, in turn, medians.

  python bench/gpu/models/flex.py [--rows REGEX] [--seqlen 8192] [--heads 16] [--dim 128]
      [--dtype bfloat16] [--device cuda] [--json FILE]

Results are compared with torch's first. A window and a causal mask stand beside Fulmen's options of
that name, too: what saying it as a function costs. Ratio: torch's time by ours. Calls are eager, so
that the host's time counts where it is longer than the GPU's: beside each stand the time that its
kernels take by torch's profiler, and the time that a call takes to return.

On a CPU (--device cpu; torch's own must have a C++ compiler) one thread, the process's own time.
torch has no gradients there: a backward pass stands beside Fulmen's causal one.
"""

import argparse
import json
import os
import re
import statistics
import time
from functools import partial
from pathlib import Path

import fulmen
import fulmen.flex
import fulmen.torch
import torch
from timing import Timed, seconds_in_turn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.profiler import ProfilerActivity, profile

COMPILED = torch.compile(flex_attention, dynamic=False)
torch._dynamo.config.recompile_limit = 256  # else torch's later rows are not compiled


def causal(b, h, q, k):
    return q >= k


def window(left, b, h, q, k):
    return (q >= k) & (q - k <= left)


def prefix(length, b, h, q, k):
    return (q >= k) | (k < length)


def documents(of_token, b, h, q, k):
    return (q >= k) & (of_token[q] == of_token[k])


def dilated(width, step, b, h, q, k):
    return (q >= k) & (q - k <= width * step) & ((q - k) % step == 0)


def alibi(slopes, score, b, h, q, k):
    return score + slopes[h] * (k - q)


def softcap(cap, score, b, h, q, k):
    return cap * torch.tanh(score / cap)


def relative(score, b, h, q, k):
    return score + (q - k)


def table_bias(table, score, b, h, q, k):
    return score + table[h, torch.clamp(q - k + 64, 0, 128)]


def rows(seqlen: int, heads: int, device: str = "cuda") -> dict[str, tuple]:
    """Name: (score_mod, mask_mod, options of fulmen.attention that say the same)."""
    of_token = torch.arange(seqlen, device=device) * 12 // seqlen
    slopes = torch.exp2(-8 * torch.arange(1, heads + 1, device=device) / heads).float()
    table = torch.randn(heads, 129, device=device)
    return {
        "nothing": (None, None, {}),
        "causal": (None, causal, {"causal": True}),
        "window 1,024": (None, partial(window, 1023), {"causal": True, "window_left": 1023}),
        "documents": (None, partial(documents, of_token), None),
        "prefix 1,024": (None, partial(prefix, 1024), None),
        "dilated window": (None, partial(dilated, 512, 2), None),
        "alibi": (partial(alibi, slopes), causal, {"causal": True, "alibi_slopes": slopes}),
        "softcap 30": (partial(softcap, 30.0), causal, {"causal": True, "softcap": 30.0}),
        "relative position": (relative, causal, None),
        "table of biases": (partial(table_bias, table), causal, None),
    }


def error_of(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    ours, theirs = ours.double(), theirs.double()
    return float((ours - theirs).norm() / theirs.norm().clamp_min(1e-30))


def kernels_us(call, repeats: int = 5) -> float:
    """What the GPU's kernels of a call take, one after the other."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    return sum(event.device_time for event in found.events()) / repeats


def returned_us(call, repeats: int = 20) -> float:
    """After what time a call returns, of several that the GPU need not have done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    spent = time.perf_counter() - start
    torch.cuda.synchronize()
    return spent / repeats * 1e6


def processor_seconds(calls: dict, repeats: int = 7) -> dict[str, float]:
    """Medians, in turn."""
    times = {who: [] for who in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for who, call in calls.items():
            start = time.process_time()
            call()
            times[who].append(time.process_time() - start)
    return {who: statistics.median(found) for who, found in times.items()}


def measured(name, row, arguments) -> dict:
    score_mod, mask_mod, options = row
    shape = (1, arguments.heads, arguments.seqlen, arguments.dim)
    made = {"device": arguments.device, "dtype": getattr(torch, arguments.dtype)}
    q, k, v = (torch.randn(shape, **made, requires_grad=True) for _ in range(3))
    dout = torch.randn(shape, **made)
    length = arguments.seqlen
    on_cpu = arguments.device == "cpu"
    block_mask = mask_mod and create_block_mask(
        mask_mod, None, None, length, length, device=arguments.device
    )

    with_torch = [one.detach() for one in (q, k, v)] if on_cpu else (q, k, v)
    calls = {
        "torch": lambda: COMPILED(*with_torch, score_mod=score_mod, block_mask=block_mask),
        "fulmen": lambda: fulmen.flex_attention(q, k, v, score_mod, block_mask),
    }
    if options is not None:
        calls["built in"] = lambda: fulmen.attention(q, k, v, layout="bhsd", **options)
    elif on_cpu:
        calls["causal"] = lambda: fulmen.attention(q, k, v, layout="bhsd", causal=True)
    found = {"case": name}
    outs, gradients = {}, {}
    for who, call in list(calls.items()):
        try:
            outs[who] = call()
            if not outs[who].requires_grad:
                continue
            gradients[who] = torch.autograd.grad(outs[who], (q, k, v), dout, retain_graph=True)
        except Exception as error:
            found[f"{who} refused"] = f"{type(error).__name__}: {error}"[:300]
            if not on_cpu:
                torch.cuda.synchronize()
    if "torch" in outs and "fulmen" in outs:
        found["out differs by"] = error_of(outs["fulmen"], outs["torch"])
    if "torch" in gradients and "fulmen" in gradients:
        pairs = zip(gradients["fulmen"], gradients["torch"], strict=True)
        found["gradients differ by"] = max(error_of(a, b) for a, b in pairs)

    def forward(call):
        with torch.no_grad():
            call()

    for which, make in (
        ("forward", {who: partial(forward, calls[who]) for who in outs}),
        (
            "backward",
            {
                who: partial(torch.autograd.grad, outs[who], (q, k, v), dout, retain_graph=True)
                for who in gradients
            },
        ),
    ):
        if on_cpu:
            times = processor_seconds(make)
        else:
            times, _ = seconds_in_turn(
                {who: Timed(call) for who, call in make.items()}, "cuda", 5, 4.0
            )
        for who, seconds in times.items():
            found[f"{which} {who} us"] = round(seconds * 1e6, 1)
            if on_cpu:
                continue
            found[f"{which} {who} kernels us"] = round(kernels_us(make[who]), 1)
            found[f"{which} {who} returns after us"] = round(returned_us(make[who]), 1)
        if "torch" in times and "fulmen" in times:
            found[f"{which} ratio"] = round(times["torch"] / times["fulmen"], 2)
        if "built in" in times and "fulmen" in times:
            found[f"{which} by option"] = round(times["fulmen"] / times["built in"], 2)
        if "causal" in times and "fulmen" in times:
            found[f"{which} beside causal"] = round(times["causal"] / times["fulmen"], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", default="")
    parser.add_argument("--seqlen", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(3)
    on_cpu = arguments.device == "cpu"
    if on_cpu:
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"  # Fulmen's
    print("cpu" if on_cpu else torch.cuda.get_device_name(), torch.__version__, flush=True)
    for name, row in rows(arguments.seqlen, arguments.heads, arguments.device).items():
        if not re.search(arguments.rows, name):
            continue
        found = measured(name, row, arguments)
        print(json.dumps(found), flush=True)
        if arguments.json:
            with arguments.json.open("a") as file:
                print(json.dumps(found), file=file)


if __name__ == "__main__":
    main()
