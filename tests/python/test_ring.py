"""Attention of a sequence that is spread over 2, 3 and 4 processes beside attention of the whole
sequence in one."""

import datetime
import itertools
import multiprocessing
import os
import signal
import traceback

import problems
import pytest

torch = pytest.importorskip("torch")

import fulmen  # noqa: E402

METHODS = ("ring", "all_gather", "ulysses")
OPTIONS = [{}, {"causal": True}, {"causal": True, "softcap": 2.0, "softmax_scale": 0.3}]


def tensors(seed, dtype, batch=2, length=24, heads=4, kv_heads=2):
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (batch, length, heads, 16),
        (batch, length, kv_heads, 16),
        (batch, length, kv_heads, 8),
        (batch, length, heads, 8),
    )
    q, k, v, dout, dlse = (
        torch.randn(shape, generator=generator) for shape in (*shapes, (batch, heads, length))
    )
    return [t.to(dtype) for t in (q, k, v, dout)] + [dlse]


def close(ours, theirs, dtype, what):
    assert ours.shape == theirs.shape, f"{what} has shape {ours.shape}, expected {theirs.shape}"
    error, bound = (
        (ours.double() - theirs.double()).abs().max(),
        {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype],
    )
    assert error <= bound * max(1, theirs.abs().max()), f"{what}: error {error:.3g}"


def judged(ours, theirs, whole, options):
    """Checks by the tolerance rule of docs/contract.md, against float64 in one process."""
    q, k, v, dout, dlse = whole
    report = fulmen.verify(q, k, v, ours[0], lse=ours[1], **options)
    assert report.ok, report.message
    dq, dk, dv = ours[2:]
    report = fulmen.verify(
        q, k, v, theirs[0], lse=theirs[1], dout=dout, dlse=dlse, dq=dq, dk=dk, dv=dv, **options
    )
    assert report.ok, report.message


def compare(ring, method, options, dtype, group, seed, documents=None, **shape):
    whole = tensors(seed, dtype, **shape)
    *inputs, dout, dlse = whole
    leaves = [t.requires_grad_() for t in inputs]
    shard, gather = ring.ring_shard, ring.ring_gather
    shards = [shard(t.detach(), group=group).requires_grad_() for t in inputs]
    cotangents = [shard(dout, group=group), shard(dlse, 2, group)]
    spread = {
        "cu_seqlens": documents,
        "seqlens": ring.ring_seqlens(dout.shape[1], group),
        "group": group,
    }
    if method is None:
        function = ring.ring_attention
    else:
        function, spread["method"] = ring.context_parallel_attention, method

    def run():
        out, lse = function(*shards, return_lse=True, **spread, **options)
        return [out.detach(), lse.detach(), *torch.autograd.grad([out, lse], shards, cotangents)]

    ours = run()
    assert all(torch.equal(a, b) for a, b in zip(ours, run(), strict=True)), "two runs differ"
    assert all(t.dtype == dtype for t in ours[2:])
    ours = [gather(t, 2 if at == 1 else 1, group) for at, t in enumerate(ours)]

    if documents is None:
        out, lse = fulmen.attention(*leaves, return_lse=True, **options)
        theirs = [out, lse, *torch.autograd.grad([out, lse], leaves, [dout, dlse])]
        judged(ours, [t.detach() for t in theirs], [t.detach() for t in whole], options)
    else:
        lengths = [b - a for a, b in itertools.pairwise(documents)]
        packed = {
            "cu_seqlens_q": documents,
            "cu_seqlens_k": documents,
            "max_seqlen_q": max(lengths),
            "max_seqlen_k": max(lengths),
        }
        out, lse = fulmen.attention(*(t[0] for t in leaves), return_lse=True, **packed, **options)
        theirs = [
            out[None],
            lse[None],
            *torch.autograd.grad([out, lse], leaves, [dout[0], dlse[0]]),
        ]
    for what, one, other in zip(("out", "lse", "dq", "dk", "dv"), ours, theirs, strict=True):
        close(
            one,
            other,
            torch.float32 if what == "lse" else dtype,
            f"{method} {options} {documents}: {what}",
        )


def through_out_alone(ring, method, group, seed):
    q, k, v, _, _ = tensors(seed, torch.float32)
    shards = [ring.ring_shard(t, group=group).requires_grad_() for t in (q, k, v)]
    out = ring.context_parallel_attention(*shards, causal=True, method=method, group=group)
    ours = torch.autograd.grad(out.square().sum(), shards)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    theirs = torch.autograd.grad(fulmen.attention(*leaves, causal=True).square().sum(), leaves)
    for what, one, other in zip("qkv", ours, theirs, strict=True):
        close(
            ring.ring_gather(one, group=group),
            other,
            torch.float32,
            f"{method}: d{what} of out alone",
        )


def refuse(ring, group):
    q = torch.randn(1, 4, 2, 8)
    size = torch.distributed.get_world_size(group)
    attention = ring.context_parallel_attention
    for call, text in (
        (
            lambda: ring.ring_attention(q, q[:, :2], q[:, :2], group=group),
            r"k \[1, 2, 2, 8\] .* with the same seqlen is accepted",
        ),
        (
            lambda: ring.ring_attention(q, q.half(), q.half(), group=group),
            "q, k and v are .*: the same dtype is accepted",
        ),
        (
            lambda: ring.ring_attention(q, q, q, seqlens=[4], group=group),
            rf"seqlens is \[4\]: one number .* each of {size}",
        ),
        (
            lambda: ring.ring_attention(q, q, q, seqlens=[5] * size, group=group),
            r"is 5, and q has 4 rows in that process",
        ),
        (
            lambda: ring.ring_attention(q, q, q, cu_seqlens=[0, 3], group=group),
            rf"cu_seqlens is \[0, 3\]: .* 0 to {4 * size}",
        ),
        (lambda: ring.ring_shard(q[:, :1], group=group), rf"seqlen is 1: {size} or more"),
        (
            lambda: attention(q, q, q, method="tree", group=group),
            "method is 'tree': None, 'ring', 'all_gather', 'ulysses' are",
        ),
        (
            lambda: attention(q[:, :, :1], q[:, :, :1], q[:, :, :1], method="ulysses", group=group),
            f'method is "ulysses": impossible: 1 heads are not a multiple of {size} processes',
        ),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    wide = torch.randn(2, 4 * size, 2, 8)
    with pytest.raises(ValueError, match="q has batch size 2: 1 is accepted with cu_seqlens"):
        ring.ring_attention(wide, wide, wide, cu_seqlens=[0, 4 * size * size], group=group)


def explain(ring, group):
    size = torch.distributed.get_world_size(group)

    def first(length, heads=12, kv_heads=12, **options):
        q, k = (
            torch.empty(1, length, n, 64, device="meta", dtype=torch.bfloat16)
            for n in (heads, kv_heads)
        )
        return ring.context_parallel_explain(q, k, k, group=group, **options).splitlines()

    long = first(65536)
    assert (
        long[0].startswith(f"ring of {size} processes: kernels hide the transfers")
        and len(long) == 4
    )
    assert first(256)[0].startswith("ulysses of ") and "does not hide" in first(256)[0]
    assert first(256, kv_heads=1)[0].startswith("all_gather of ")
    assert any("ulysses: impossible: 7 heads" in line for line in first(65536, heads=7, kv_heads=7))
    # One document that is far longer than the others is in few processes.
    whole = 65536 * size
    uneven = first(65536, cu_seqlens=[0, *range(65536 // 2, whole + 1, 64)], causal=True)
    assert uneven[0].startswith("ulysses of ") and "times as long as equal shares" in uneven[0]
    assert first(512, method="ring")[0] == f"ring of {size} processes: asked for"


def refuse_others(ring, group, is_member):
    q = torch.randn(1, 4, 2, 8)
    for call in (
        lambda: ring.ring_attention(q, q, q, group=group),
        lambda: ring.ring_shard(q, group=group),
    ):
        if is_member:
            call()
            continue
        with pytest.raises(ValueError, match="group does not include this process"):
            call()


def go_on_after_an_error(ring, group):
    """All processes have the error while keys are in flight: the next call must not receive these
    keys.
    """
    q = torch.randn(1, 4, 2, 8)
    for _ in range(5):
        with pytest.raises(ValueError, match="num_kv_heads is 3"):
            ring.ring_attention(q, torch.randn(1, 4, 3, 8), torch.randn(1, 4, 3, 8), group=group)
        assert ring.ring_attention(q, q, q, group=group).isfinite().all()


def be_late(ring, rank):
    """The last process does not join: the others raise an error that names the timeout."""
    q = torch.randn(1, 4, 4, 8)
    if rank == 3:
        return
    with pytest.raises(
        RuntimeError,
        match=rf"process {rank} of 4 could not exchange .* late by more than timeout, 0\.5 s",
    ):
        ring.ring_attention(q, q, q, timeout=0.5)


def meet(rank, size, folder, seconds):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=seconds)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size, timeout=timeout
    )
    import fulmen.torch

    return fulmen.torch


def process(rank, size, folder, seed, failures):
    try:
        ring = meet(rank, size, folder, 100)
        three = torch.distributed.new_group([0, 1, 2])
        pairs = [torch.distributed.new_group(ranks) for ranks in ([0, 1], [3, 2])]
        groups = [None, pairs[rank // 2], *([three] if rank < 3 else [])]
        for group in groups:
            n = torch.distributed.get_world_size(group)
            for options in OPTIONS:
                compare(ring, None, options, torch.float32, group, seed)
            compare(ring, None, {"causal": True}, torch.bfloat16, group, seed)
            for method in METHODS:
                if method == "ulysses" and n == 3:
                    continue
                # Two KV heads for four processes: two have the same.
                compare(ring, method, {"causal": True}, torch.float32, group, seed)
                compare(ring, method, {}, torch.bfloat16, group, seed, kv_heads=1)
                compare(ring, method, {"causal": True}, torch.float32, group, seed, length=29)
                through_out_alone(ring, method, group, seed)
                for documents in ([0, 29], [0, 1, 4, 4, 17, 29], list(range(30))):
                    for causal in (False, True):
                        options = {"causal": causal}
                        compare(
                            ring,
                            method,
                            options,
                            torch.float32,
                            group,
                            seed,
                            documents,
                            batch=1,
                            length=29,
                            kv_heads=4,
                        )
            refuse(ring, group)
            explain(ring, group)
            go_on_after_an_error(ring, group)
        refuse_others(ring, torch.distributed.new_group([1, 2]), rank in (1, 2))
        torch.distributed.barrier()
        be_late(ring, rank)
        torch.distributed.destroy_process_group()
    except BaseException:
        failures.put(f"process {rank}:\n{traceback.format_exc()}")


def one_is_killed(rank, size, folder, seed, failures):
    """Kills the second of three processes between two calls."""
    try:
        ring = meet(rank, size, folder, 20)
        q = torch.randn(1, 4, 4, 8, requires_grad=True)
        ring.ring_attention(q, q, q, causal=True).sum().backward()
        torch.distributed.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(
            RuntimeError,
            match=r"could not exchange keys .* has failed, or is late by more than the group's "
            r"timeout, 20 s",
        ):
            ring.ring_attention(q, q, q, causal=True).sum().backward()
    except BaseException:
        failures.put(f"process {rank}:\n{traceback.format_exc()}")


def exit_codes(target, size, folder):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "pytest", "numpy"])
    failures = context.SimpleQueue()
    processes = [
        context.Process(target=target, args=(r, size, folder, problems.SEED, failures))
        for r in range(size)
    ]
    for one in processes:
        one.start()
    for one in processes:
        one.join(100)
        one.kill()  # one that waits for a process that failed
    assert failures.empty(), failures.get()
    return [one.exitcode for one in processes]


def test_ring(tmp_path):
    assert exit_codes(process, 4, tmp_path) == [0] * 4


def test_one_is_killed(tmp_path):
    assert exit_codes(one_is_killed, 3, tmp_path) == [0, -signal.SIGKILL, 0]


def test_without_processes():
    from fulmen.torch import ring

    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(RuntimeError, match=r"torch\.distributed is not initialized"):
        ring.ring_attention(q, q, q)
