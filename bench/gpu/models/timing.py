"""Times of calls by several contestants in turn, on a GPU or, for a dry run, a CPU.

On a GPU a call of less than a millisecond is captured in a CUDA graph, ten times: else its host
code would be timed. A backward pass is captured with its forward pass, as whole steps are; the
forward pass alone is captured and subtracted."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

Run = Callable[[], object]
SHORT_MS, INSIDE = 1.0, 10


@dataclass
class Timed:
    run: Run
    before: Run | None = None  # what run does besides the calls that are timed
    calls: int = 1  # in a run


def span(run: Run, count: int) -> float:
    """Milliseconds of one run, from so many in a row."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def _captured(run: Run) -> torch.cuda.CUDAGraph:
    """A CUDA graph of what run does, warmed up on the stream that captures.

    torch.cuda.graph would collect garbage and empty the allocator's cache each time."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        torch.cuda.synchronize()
        graph.capture_begin()
        try:
            run()
        finally:
            graph.capture_end()
    torch.cuda.synchronize()
    return graph


def of_forward(call: Run, device: str) -> tuple[Timed, str]:
    """What to time of a call, and why it is not a graph where it should be."""
    if device == "cpu":
        return Timed(call), ""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    if span(call, 2) > SHORT_MS:
        return Timed(call), ""
    try:
        graph = _captured(lambda: [call() for _ in range(INSIDE)])
    except Exception as error:
        torch.cuda.synchronize()
        return Timed(call), first_line(error)
    return Timed(graph.replay, calls=INSIDE), ""


def of_backward(forward: Callable[[], torch.Tensor], inputs, dout, device: str):
    """The same of the backward pass of forward(), by inputs."""

    def gradients(out):
        return torch.autograd.grad(out, inputs, dout, retain_graph=True)

    held = [forward()]
    eager = Timed(lambda: gradients(held[0]))
    if device == "cpu":
        return eager, ""
    for _ in range(2):
        gradients(held[0])
    torch.cuda.synchronize()
    if span(eager.run, 2) > SHORT_MS:
        return eager, ""

    def both():
        out = forward()
        return [gradients(out) for _ in range(INSIDE)]

    # Nodes of autograd that were made on the default stream would draw it into the capture.
    held.clear()
    try:
        graph, alone = _captured(both), _captured(forward)
    except Exception as error:
        torch.cuda.synchronize()
        held.append(forward())
        return eager, first_line(error)
    return Timed(graph.replay, alone.replay, INSIDE), ""


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160]


def _milliseconds(run: Run, count: int, device: str) -> float:
    if device != "cpu":
        return span(run, count)
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count * 1e3


def seconds_in_turn(timed: dict[str, Timed], device: str, repeats: int, span_ms: float):
    """Median seconds of one call of each, spans of all in turn, and the spread: the second largest
    less the second smallest, as a share."""
    counts, spans = {}, {name: [] for name in timed}
    for name, one in timed.items():
        for run in filter(None, (one.run, one.before)):
            run()  # a graph's first replay is longer
            first = _milliseconds(run, 1, device)
            counts[name, run] = max(1, min(1000, round(span_ms / max(first, 1e-3))))
    for _ in range(repeats):
        for name, one in timed.items():
            took = _milliseconds(one.run, counts[name, one.run], device)
            if one.before:
                took -= _milliseconds(one.before, counts[name, one.before], device)
            spans[name].append(took / one.calls / 1e3)
    medians = {name: statistics.median(times) for name, times in spans.items()}
    inner = {name: sorted(times)[1:-1] or times for name, times in spans.items()}
    spread = {n: (max(times) - min(times)) / medians[n] for n, times in inner.items()}
    return medians, spread
