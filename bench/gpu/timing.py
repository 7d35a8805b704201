"""Times of GPU work by events: warmed up, over rotating inputs larger than the L2 cache, the median
of several spans."""

import statistics

import torch


def _span(call, count):
    """Milliseconds of one call, from so many in a row."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / count


def _calls_of(call, span_ms):
    """How many calls make a span of `span_ms`. The first two calls compile and warm up."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    return max(1, min(2000, int(span_ms / max(_span(call, 3), 1e-4))))


def seconds(call, *, spans=9, span_ms=8.0):
    """Median seconds of one call. The span holds as many calls as make it `span_ms` long."""
    count = _calls_of(call, span_ms)
    return statistics.median(_span(call, count) for _ in range(spans)) / 1e3


def captured(call, times):
    """A CUDA graph of so many calls, one after the other."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph


def seconds_in_turn(calls, *, graphs=False, rounds=7, span_ms=8.0):
    """Median seconds of one call of each, by name. The spans of all alternate: clocks and heat are
    the same for each.

    With graphs a call of less than a millisecond is captured in a graph, ten times: else its host
    code would be timed."""
    timed, spans = {}, {name: [] for name in calls}
    for name, call in calls.items():
        count, inside = _calls_of(call, span_ms), 1
        if graphs and count > span_ms:
            call, inside = captured(call, 10).replay, 10
            count = _calls_of(call, span_ms)
        timed[name] = call, count, inside
    for _ in range(rounds):
        for name, (call, count, inside) in timed.items():
            spans[name].append(_span(call, count) / inside)
    return {name: statistics.median(times) / 1e3 for name, times in spans.items()}


def graph_seconds(calls, *, repeats=1):
    """Median seconds of one call of those captured, one after the other, in a CUDA graph."""
    graph = captured(lambda: [call() for call in calls], repeats)
    return seconds(graph.replay) / (len(calls) * repeats)
