"""For ring.py: what runs beside what in the ring, by torch.profiler, and PyTorch's own context
parallelism in its place."""

import json
import os
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fulmen.torch import context_parallel_attention
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from ring import Run

Span = tuple[float, float]


def _union(spans: list[Span]) -> list[Span]:
    result: list[Span] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((begin, end))
    return result


def _length(spans: list[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def overlap(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Milliseconds of a trace's kernels: of communication, of the rest, and how much of the first
    is beside the rest."""
    kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    spans: dict[bool, list[Span]] = {True: [], False: []}
    longest: dict[str, float] = defaultdict(float)
    streams = set()
    for event in kernels:
        communicates = "nccl" in event["name"].lower()
        spans[communicates].append((event["ts"], event["ts"] + event["dur"]))
        longest[event["name"][:60]] += event["dur"] / 1e3
        streams.add((event.get("args", {}).get("stream"), communicates))
    moving, working = _union(spans[True]), _union(spans[False])
    both = _length(moving) + _length(working) - _length(_union(moving + working))
    span = max((e["ts"] + e["dur"] for e in kernels), default=0) - min(
        (e["ts"] for e in kernels), default=0
    )
    return {
        "communication_ms": _length(moving) / 1e3,
        "communication_under_kernels_ms": both / 1e3,
        "share_under_kernels": both / _length(moving) if moving else None,
        "kernels_ms": _length(working) / 1e3,
        "from_first_to_last_ms": span / 1e3,
        "neither_ms": (span - _length(_union(moving + working))) / 1e3,
        "streams": len(streams),
        "longest": {
            name: round(ms, 3)
            for name, ms in sorted(longest.items(), key=lambda item: -item[1])[:8]
        },
    }


def _traced(call: Callable[[], Any]) -> list[dict[str, Any]]:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        call()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        with open(file.name) as text:
            return json.load(text)["traceEvents"]


def profile(run: "Run") -> None:
    from ring import passes

    for length in run.arguments.seqlen:
        for causal in (True, False):
            parts = run.local(length)
            calls = passes(
                lambda q, k, v, c=causal: context_parallel_attention(
                    q, k, v, causal=c, method="ring"
                ),
                parts,
            )
            for name, call in zip(("forward", "both"), calls, strict=True):
                call()
                run.wait()
                dist.barrier()
                found = overlap(_traced(call))
                everyone: list[Any] = [None] * run.size
                dist.all_gather_object(everyone, found)
                for rank, row in enumerate(everyone):
                    run.report(
                        part="profile", seqlen=length, causal=causal, passes=name, rank=rank, **row
                    )


def peer(run: "Run") -> None:
    """PyTorch's context parallelism with each of its kernels and ways to move keys, beside the ring
    of the same job."""
    from ring import passes

    for length in run.arguments.seqlen:
        for causal in (True, False):
            parts = run.local(length)
            both = passes(
                lambda q, k, v, c=causal: context_parallel_attention(
                    q, k, v, causal=c, method="ring"
                ),
                parts,
            )[1]
            ours = run.milliseconds(both, run.arguments.rounds)
            for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
                for rotation in ("allgather", "alltoall"):
                    row = {
                        "part": "peer",
                        "seqlen": length,
                        "causal": causal,
                        "backend": backend.name,
                        "rotation": rotation,
                    }
                    # Not each version of torch takes fewer KV heads here.
                    for repeated in (False, True):
                        try:
                            theirs, peak = _torch_ms(
                                run, length, causal, backend, rotation, repeated
                            )
                            run.report(
                                **row,
                                kv_heads_repeated=repeated,
                                ring_ms=ours,
                                torch_ms=theirs,
                                faster=theirs / ours,
                                torch_peak_GiB=peak,
                            )
                            break
                        except Exception as error:  # what it can't do is a result, too
                            run.report(
                                **row,
                                kv_heads_repeated=repeated,
                                error=f"{type(error).__name__}: {error}"[:300],
                            )
                            if os.environ.get("RING_TRACEBACKS"):
                                traceback.print_exc()
                            torch.cuda.empty_cache()


def _torch_ms(
    run: "Run", length: int, causal: bool, backend: SDPBackend, rotation: str, repeated: bool
) -> tuple[float, float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import _attention, context_parallel

    _attention.set_rotate_method(rotation)
    options = getattr(_attention, "_cp_options", None)
    if options is not None:
        options.enable_load_balance = causal  # it refuses head and tail without a mask
    mesh = init_device_mesh(run.device.type, (run.size,), mesh_dim_names=("cp",))
    q, k, v, dout = (t.transpose(1, 2).contiguous() for t in run.tensors(length))
    if repeated:
        k, v = (t.repeat_interleave(run.heads // run.kv_heads, 1) for t in (k, v))
    buffers = [q, k, v, dout]
    torch.cuda.empty_cache()
    with (
        context_parallel(
            mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers)
        ),
        sdpa_kernel(backend),
    ):
        # Resized in place, the memory is still the whole's.
        q, k, v, dout = (t.clone() for t in buffers)
        torch.cuda.reset_peak_memory_stats()
        leaves = [t.requires_grad_() for t in (q, k, v)]

        def both() -> Any:
            out = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=not repeated)
            return torch.autograd.grad(out, leaves, dout)

        before = torch.cuda.memory_allocated()
        took = run.milliseconds(both, run.arguments.rounds)
        (peak,) = run.largest((torch.cuda.max_memory_allocated() - before) / 2**30)
    return took, peak
