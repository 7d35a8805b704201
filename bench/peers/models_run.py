"""Runs the suite `models`: forward and backward of each call, Fulmen beside every way to say it in
PyTorch, in turns."""

import argparse
import statistics
from collections.abc import Callable

import torch
from fulmen_library import Library
from implementations import Unsupported
from models import MAKERS, Call, Maker, Tensors
from turns import BOUND, CLOCKS, DTYPES, one_turn

ROWS = ("q", "k", "v", "out", "dout")  # which PyTorch has with heads before rows


def of_pytorch(tensors: Tensors) -> Tensors:
    return {name: x.transpose(1, 2) if name in ROWS else x for name, x in tensors.items()}


def stored(x: torch.Tensor) -> torch.Tensor:
    """A dim that is broadcast has size 1."""
    return x[tuple(slice(1 if stride == 0 else None) for stride in x.stride())]


def ours_forward(library: Library, call: Call, threads: int, *, with_lse: bool) -> Callable:
    q, v = call.tensors["q"], call.tensors["v"]
    shape = (q.shape[0], q.shape[2], q.shape[1], v.shape[3])
    tensors = {
        **call.tensors,
        "out": torch.full(shape, float("nan"), dtype=q.dtype).transpose(1, 2),
    }
    if "bias" in tensors:
        scores = (q.shape[0], q.shape[2], q.shape[1], call.tensors["k"].shape[1])
        tensors["bias"] = tensors["bias"].expand(scores)
    if with_lse:
        tensors["lse"] = torch.full((*shape[:3], 1), float("nan"))
    return library.call(tensors, call.options, threads, backward=False)


def ours_backward(
    library: Library, call: Call, forward: Callable, dout: torch.Tensor, threads: int
) -> Callable:
    gradients = {
        "d" + name: torch.full_like(stored(call.tensors[name]), float("nan"))
        for name in call.gradients
    }
    tensors = {**forward.tensors, "dout": dout, **gradients}
    return library.call(tensors, call.options, threads, backward=True)


def peer_forward(call: Call, function: Callable) -> tuple[Callable, list]:
    t, result = of_pytorch(call.tensors), [None]

    @torch.inference_mode()
    def run() -> None:
        result[0] = function(t)

    return run, result


def leaves_of(call: Call) -> tuple[Tensors, Tensors]:
    """PyTorch's tensors, and those of them that have gradients, as leaves."""
    t = dict(call.tensors)
    leaves = {}
    for name in call.gradients:
        leaves[name] = stored(t[name]).detach().requires_grad_()
        t[name] = leaves[name].expand(t[name].shape)
    return of_pytorch(t), leaves


def peer_backward(call: Call, function: Callable, dout: torch.Tensor) -> tuple[Callable, list]:
    t, leaves = leaves_of(call)
    out, result = function(t), [None]

    def run() -> None:
        result[0] = torch.autograd.grad(
            out, list(leaves.values()), dout.transpose(1, 2), retain_graph=True
        )

    return run, result


def exact(call: Call, dout: torch.Tensor) -> list[torch.Tensor]:
    """The output and the gradients in double precision."""
    double = Call(
        call.name,
        {
            name: stored(x).double().expand(x.shape) if x.is_floating_point() else x
            for name, x in call.tensors.items()
        },
        call.peers,
        gradients=call.gradients,
    )
    function = next(iter(call.peers.values()))
    if not call.gradients:
        return [function(of_pytorch(double.tensors)).transpose(1, 2)]
    t, leaves = leaves_of(double)
    out = function(t)
    gradients = torch.autograd.grad(out, list(leaves.values()), dout.transpose(1, 2).double())
    return [out.detach().transpose(1, 2), *gradients]


def check(name: str, call: Call, got: list, want: list, dtype: str) -> float:
    if call.random:
        return 0.0
    worst = 0.0
    for ours, reference in zip(got, want, strict=True):
        scale = max(1.0, reference.abs().max().item())
        worst = max(worst, (ours.double() - reference).abs().max().item() / scale)
    if not worst <= BOUND[dtype]:
        raise SystemExit(f"{name} is wrong on {call.name}: the largest error is {worst}")
    return worst


def time_all(running: dict[str, Callable], arguments: argparse.Namespace) -> dict:
    times: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(arguments.rounds):
        for name, run in running.items():
            seconds = arguments.seconds / arguments.rounds
            times[name] += one_turn(run, seconds, CLOCKS[arguments.clock])
    return {
        name: {"best_s": min(x), "median_s": statistics.median(x), "calls": len(x)}
        for name, x in times.items()
    }


def add_ratios(row: dict) -> dict:
    results = row["results"]
    ours = results["Fulmen"]
    peers = {name: x for name, x in results.items() if name != "Fulmen" and "best_s" in x}
    for key, ratio in (("best_s", "ratio_best"), ("median_s", "ratio_median")):
        best = min(peers, key=lambda name: peers[name][key])
        row[ratio] = peers[best][key] / ours[key]
        row["peer"] = best
    return row


def measure(
    library: Library, make: Callable, dtype: str, arguments: argparse.Namespace
) -> list[dict]:
    """A row for the forward and, where there is one, for the backward pass."""
    call = make(Maker(DTYPES[dtype], arguments.seed))
    if arguments.only not in call.name:
        return []
    torch.set_num_threads(arguments.threads)
    forward = ours_forward(library, call, arguments.threads, with_lse=False)
    dout = Maker(DTYPES[dtype], arguments.seed + 1).rows(
        *(forward.tensors["out"].shape[i] for i in range(4))
    )
    want = exact(call, dout) if not call.random else []
    forward()
    check("Fulmen", call, [forward.tensors["out"]], want[:1], dtype)
    rows = []
    for backward in (False, True)[: 2 if call.gradients else 1]:
        running = {"Fulmen": forward}
        if backward:
            with_lse = ours_forward(library, call, arguments.threads, with_lse=True)
            with_lse()
            run = ours_backward(library, call, with_lse, dout, arguments.threads)
            run()
            got = [run.tensors["d" + name] for name in call.gradients]
            check("Fulmen's backward", call, got, want[1:], dtype)
            running = {"Fulmen": run}
        row = {
            "case": call.name,
            "dtype": dtype,
            "pass": "backward" if backward else "forward",
            "results": {"Fulmen": {"kernel": running["Fulmen"].kernel}},
        }
        for name, function in call.peers.items():
            try:
                if backward:
                    run, result = peer_backward(call, function, dout)
                    run()
                    got = list(result[0])
                else:
                    run, result = peer_forward(call, function)
                    run()
                    got = [result[0].transpose(1, 2)]
            except (RuntimeError, NotImplementedError, Unsupported) as reason:
                row["results"][name] = {"unsupported": str(reason).splitlines()[0]}
                continue
            check(name, call, got, want[1:] if backward else want[:1], dtype)
            running[name] = run
        for name, times in time_all(running, arguments).items():
            row["results"].setdefault(name, {}).update(times)
        rows.append(add_ratios(row))
    return rows


def line(row: dict) -> str:
    ours = row["results"]["Fulmen"]
    return (
        f"| {row['case']} | {row['dtype']} {row['pass']} | {ours['median_s'] * 1e3:.2f} |"
        f" {row['ratio_best']:.2f} | {row['ratio_median']:.2f} | {row['peer']} |"
    )


def run(library: Library, dtypes: list[str], arguments: argparse.Namespace) -> list[dict]:
    print("\n| call | | ms | to PyTorch, best | median | by |")
    print("|---|---|---:|---:|---:|---|", flush=True)
    rows = []
    for make in MAKERS:
        for dtype in dtypes:
            found = measure(library, make, dtype, arguments)
            rows += found
            for row in found:
                print(line(row), flush=True)
    return rows
