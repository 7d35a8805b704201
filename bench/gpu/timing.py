"""Times of GPU work by events: warmed up, over rotating inputs larger than the L2 cache, the median of several spans."""

import statistics

import torch


def seconds(call, *, spans=9, span_ms=8.0):
    """Median seconds of one call. The span holds as many calls as make it `span_ms` long."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()

    def span(count):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / count

    count = max(1, min(2000, int(span_ms / max(span(3), 1e-4))))
    return statistics.median(span(count) for _ in range(spans)) / 1e3


def graph_seconds(calls, *, repeats=1):
    """Median seconds of one call of those captured, one after the other, in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for call in calls:
                call()
    return seconds(graph.replay) / (len(calls) * repeats)
