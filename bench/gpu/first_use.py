"""What a kernel's first use costs on an NVIDIA GPU: planning in a process that compiles it, in a
later one that finds it on disk, and once more in the same process. Plans are made while a stream is
captured, too, aligned and not: replays must give the same."""

import json
import os
import subprocess
import sys
import tempfile
import time

CASES = {
    "prefill": ((2, 2048, 16, 64), (2, 2048, 16, 64), {}),
    "prefill causal D128": ((2, 2048, 16, 128), (2, 2048, 16, 128), {"causal": True}),
    "prefill D256": ((2, 1024, 8, 256), (2, 1024, 8, 256), {}),
    "boards bias": ((64, 64, 24, 32), (64, 64, 24, 32), {"bias": True}),
    "decode": ((4, 1, 32, 128), (4, 4096, 8, 128), {}),
}


def measure(name):
    import torch
    from fulmen import Attention

    q_shape, kv_shape, options = CASES[name]
    options = dict(options)
    q = torch.randn(*q_shape, device="cuda").half()
    k, v = (torch.randn(*kv_shape, device="cuda").half() for _ in range(2))
    if options.pop("bias", False):
        options["bias"] = (
            torch.randn(1, q_shape[2], 64, 64, device="cuda").half().expand(q_shape[0], -1, -1, -1)
        )
    # One element off a multiple of 16 bytes.
    shifted = torch.empty(q.numel() + 1, device="cuda", dtype=q.dtype)[1:].view(q.shape).copy_(q)
    out, captured, other = (torch.full_like(q, torch.nan) for _ in range(3))
    torch.cuda.synchronize()

    begin = time.perf_counter()
    attention = Attention(q, k, v, out, **options)
    first = time.perf_counter() - begin
    attention()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    Attention(q, k, v, out, **options)
    again = time.perf_counter() - begin

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # The second one's kernel is met here for the first time.
        calls = [
            Attention(q, k, v, captured, **options),
            Attention(shifted, k, v, other, **options),
        ]
        for call in calls:
            call()
    graph.replay()
    torch.cuda.synchronize()
    for result in (captured, other):
        if not torch.allclose(result, out, atol=2e-3, rtol=0):
            raise SystemExit(
                f"WRONG {name}: error {(result - out).abs().max().item()} in a captured graph"
            )
    print(json.dumps({"plan_ms": first * 1e3, "again_ms": again * 1e3}))


def main():
    if len(sys.argv) > 1:
        return measure(sys.argv[1])
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "FULMEN_CACHE_DIR": folder}
            runs = []
            for _ in range(2):
                run = subprocess.run(
                    [sys.executable, __file__, name],
                    env=environment,
                    check=True,
                    capture_output=True,
                    text=True,
                )
                runs.append(json.loads(run.stdout.splitlines()[-1]))
        print(
            f"suite first_use  case {name}  compiled_ms {runs[0]['plan_ms']:.0f}  from_disk_ms "
            f"{runs[1]['plan_ms']:.2f}  "
            f"same_process_ms {runs[1]['again_ms']:.3f}",
            flush=True,
        )


main()
