"""Ring attention in 2 and 4 processes beside attention of the whole sequence in one."""

import multiprocessing
import os
import traceback

import problems
import pytest

torch = pytest.importorskip("torch")

import fulmen  # noqa: E402

OPTIONS = [{}, {"causal": True}, {"causal": True, "softcap": 2.0, "softmax_scale": 0.3}]


def tensors(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, 24, 4, 16), (2, 24, 2, 16), (2, 24, 2, 8), (2, 24, 4, 8), (2, 4, 24)
    q, k, v, dout, dlse = (torch.randn(shape, generator=generator) for shape in shapes)
    return [t.to(dtype) for t in (q, k, v, dout)] + [dlse]


def close(ours, theirs, dtype, what):
    error, bound = (ours.double() - theirs.double()).abs().max(), {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    assert error <= bound * max(1, theirs.abs().max()), f"{what}: error {error:.3g}"


def compare(ring, options, dtype, group, seed):
    *whole, dlse = tensors(seed, dtype)
    q, k, v = (t.requires_grad_() for t in whole[:3])
    out, lse = fulmen.attention(q, k, v, return_lse=True, **options)
    expected = torch.autograd.grad([out, lse], [q, k, v], [whole[3], dlse])

    shards = [ring.ring_shard(t.detach(), group=group).requires_grad_() for t in (q, k, v)]
    ours, our_lse = ring.ring_attention(*shards, return_lse=True, group=group, **options)
    gradients = torch.autograd.grad(
        [ours, our_lse], shards, [ring.ring_shard(whole[3], group=group), ring.ring_shard(dlse, 2, group)]
    )
    close(ring.ring_gather(ours, group=group), out, dtype, "out")
    close(ring.ring_gather(our_lse, 2, group), lse, torch.float32, "lse")
    for what, gradient, theirs in zip("qkv", gradients, expected, strict=True):
        assert gradient.dtype == dtype
        close(ring.ring_gather(gradient, group=group), theirs, dtype, f"d{what}")
    # Through out alone.
    (dq,) = torch.autograd.grad(ring.ring_attention(*shards, group=group, **options).sum(), shards[0])
    (expected_dq,) = torch.autograd.grad(fulmen.attention(q, k, v, **options).sum(), q)
    close(ring.ring_gather(dq, group=group), expected_dq, dtype, "dq of the sum")


def refuse(ring, group):
    q = torch.randn(1, 3, 2, 8)
    with pytest.raises(ValueError, match="q has 3 rows in each process: an even number is accepted with causal"):
        ring.ring_attention(q, q, q, causal=True, group=group)
    with pytest.raises(ValueError, match=r"q has shape \[1, 3, 2, 8\] and k \[1, 2, 2, 8\]: .* with the same seqlen"):
        ring.ring_attention(q, q[:, :2], q[:, :2], group=group)
    with pytest.raises(ValueError, match=r"dim 1 has size 3: a multiple of \d, twice the processes, is accepted"):
        ring.ring_shard(q, group=group)


def refuse_others(ring, group, is_member):
    q = torch.randn(1, 4, 2, 8)
    for call in (lambda: ring.ring_attention(q, q, q, group=group), lambda: ring.ring_shard(q, group=group)):
        if is_member:
            call()
            continue
        with pytest.raises(ValueError, match="group does not include this process"):
            call()


def go_on_after_an_error(ring, group):
    """Which all processes have when keys are under way: the next call must not take these for its own."""
    q, wrong = torch.randn(1, 4, 2, 8), torch.full((1, 4, 2, 8), torch.nan)
    for _ in range(5):
        with pytest.raises(ValueError, match="q, k, v and out must agree"):
            ring.ring_attention(q, wrong.half(), wrong.half(), group=group)
        with pytest.raises(ValueError, match="num_kv_heads is 3"):
            ring.ring_attention(q, torch.randn(1, 4, 3, 8), torch.randn(1, 4, 3, 8), group=group)
        assert ring.ring_attention(q, q, q, group=group).isfinite().all()


def process(rank, size, folder, seed, failures):
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
        from fulmen.torch import ring

        groups = {4: None, 2: [torch.distributed.new_group(ranks) for ranks in ([0, 1], [3, 2])][rank // 2]}
        for group in groups.values():
            for options in OPTIONS:
                compare(ring, options, torch.float32, group, seed)
            compare(ring, {"causal": True}, torch.bfloat16, group, seed)
            refuse(ring, group)
            go_on_after_an_error(ring, group)
        refuse_others(ring, torch.distributed.new_group([1, 2]), rank in (1, 2))
        torch.distributed.destroy_process_group()
    except BaseException:
        failures.put(f"process {rank}:\n{traceback.format_exc()}")


def test_ring(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "pytest", "numpy"])
    failures = context.SimpleQueue()
    processes = [context.Process(target=process, args=(r, 4, tmp_path, problems.SEED, failures)) for r in range(4)]
    for one in processes:
        one.start()
    for one in processes:
        one.join(100)
        one.kill()  # one that waits for a process that failed
    assert failures.empty(), failures.get()
    assert [one.exitcode for one in processes] == [0] * 4


def test_without_processes():
    from fulmen.torch import ring

    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(RuntimeError, match=r"torch\.distributed is not initialized"):
        ring.ring_attention(q, q, q)
