"""Fulmen as torch's flash attention on a GPU, against double precision on the host: half a minute.

    python tests/python_gpu/torch_check.py [--cpu]

Needs fulmen and torch 2.11 or later; --cpu checks the operators on the CPU. Prints a line for each
check, then how many passed and failed; the exit status is 0 where all passed."""

import sys

import fulmen
import fulmen.torch
import numpy as np
import oracle
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

DEVICE = "cpu" if "--cpu" in sys.argv else "cuda"
attention = torch.nn.attention
aten = torch.ops.aten
generator = torch.Generator().manual_seed(7)


def normal(*shape, dtype=torch.bfloat16):
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return values.to(dtype).to(DEVICE).requires_grad_()


def host(*tensors):
    return [t.detach().double().cpu().numpy() for t in tensors]


def sdpa(q, k, v, **options):
    """By torch's flash backend: where it does not take a call, that is an error."""
    if DEVICE == "cpu":
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, options.get("is_causal"))[0]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def plain(q, k, v, keep=None):
    """By torch's matrix products, in the dtype of q, with a softmax in float32."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = (q @ k.mT).float() * q.shape[-1] ** -0.5
    if keep is not None:
        scores = scores.masked_fill(~torch.from_numpy(keep).to(DEVICE), -1e30)
    return scores.softmax(-1).to(q.dtype) @ v


def both_passes(ours, q, k, v, keep):
    """q, k and v are [batch, heads, seqlen, head_dim]."""
    results = []
    dout = normal(*q.shape[:3], v.shape[-1], dtype=q.dtype).detach()
    for function in (ours, lambda *t: plain(*t, keep)):
        out = function(q, k, v)
        results.append((out, *torch.autograd.grad(out, (q, k, v), dout)))
    first = [t.swapaxes(1, 2) for t in host(q, k, v, dout)]
    out, _, *gradients = oracle.attention(*first, keep=keep)
    exact = [t.swapaxes(1, 2) for t in (out, *gradients[:3])]
    ratios = [
        oracle.compare(name, one, right, theirs)
        for name, one, right, theirs in zip(
            ("out", "dq", "dk", "dv"), host(*results[0]), exact, host(*results[1]), strict=True
        )
    ]
    return f"{max(ratios):.2f} of what is allowed"


def scaled_dot_product(dtype, d, causal):
    q, k, v = (normal(2, 4, 150, d, dtype=dtype) for _ in range(3))
    keep = oracle.causal(150, 150) if causal else None
    return both_passes(lambda *t: sdpa(*t, is_causal=causal), q, k, v, keep)


def compiled():
    q, k, v = (normal(2, 150, 4, 64).detach().transpose(1, 2) for _ in range(3))
    for t in (q, k, v):
        t.requires_grad_()
    call = torch.compile(lambda q, k, v: sdpa(q * 1.0, k, v, is_causal=True), fullgraph=True)
    return both_passes(call, q, k, v, oracle.causal(150, 150))


def ours_runs():
    """Bit by bit."""
    q, k, v = (normal(2, 4, 150, 64).detach() for _ in range(3))
    out = sdpa(q, k, v, is_causal=True)
    ours, _ = fulmen.attention(q, k, v, causal=True, layout="bhsd", return_lse=True)
    assert torch.equal(out, ours)


def varlen(window):
    lengths = (100, 1, 37)
    total = sum(lengths)
    q, k, v = (normal(total, 4, 64) for _ in range(3))
    ends = np.cumsum([0, *lengths])
    bounds = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    distance = np.arange(total)[None] - np.arange(total)[:, None]
    document = np.searchsorted(ends, np.arange(total), side="right")
    keep = document[None] == document[:, None]
    for side, sign in zip(window, (-1, 1), strict=True):
        if side >= 0:
            keep = keep & (sign * distance <= side)

    def ours(q, k, v):
        rows = [t[0].transpose(0, 1) for t in (q, k, v)]
        out = varlen_attn(*rows, bounds, bounds, 100, 100, window_size=window)
        return out.transpose(0, 1)[None]

    return both_passes(ours, *(t.transpose(0, 1)[None] for t in (q, k, v)), keep)


def dropout():
    """The weights themselves, by values that are the identity."""
    q, k = (normal(1, 2, 64, 64, dtype=torch.float16) for _ in range(2))
    v = torch.eye(64, dtype=torch.float16, device=DEVICE).expand(1, 2, 64, 64).clone()
    v.requires_grad_()
    torch.manual_seed(1)
    if DEVICE == "cpu":
        out = aten._scaled_dot_product_flash_attention(q, k, v, 0.25)[0]
    else:
        out = sdpa(q, k, v, dropout_p=0.25)
    dropped = (out == 0).float().mean().item()
    assert 0.2 < dropped < 0.3, f"{dropped:.2f} of the weights are 0"
    (dv,) = torch.autograd.grad(out, v, torch.eye(64, dtype=v.dtype, device=DEVICE).expand_as(out))
    torch.testing.assert_close(dv, out.mT, atol=2e-3, rtol=1e-2)
    return f"{dropped:.3f} dropped"


def restored():
    before = attention.current_flash_attention_impl()
    attention.restore_flash_attention_impl()
    assert before == "fulmen" and attention.current_flash_attention_impl() is None
    if DEVICE == "cuda":
        q, k, v = (normal(2, 4, 150, 64) for _ in range(3))
        return both_passes(lambda *t: sdpa(*t, is_causal=True), q, k, v, oracle.causal(150, 150))


checks = oracle.Checks()
name = torch.cuda.get_device_name() if DEVICE == "cuda" else "the CPU"
print(f"torch {torch.__version__}, {name}, fulmen {fulmen.__version__}")
attention.activate_flash_attention_impl("fulmen")
checks.run("results are Fulmen's", ours_runs)
for dtype in (torch.bfloat16, torch.float16):
    for d in (64, 128, 256):
        checks.run(f"SDPA, {dtype}, {d}, causal", scaled_dot_product, dtype, d, True)
checks.run("SDPA, all keys", scaled_dot_product, torch.bfloat16, 64, False)
checks.run("SDPA, head_dim 72, which torch fills up", scaled_dot_product, torch.bfloat16, 72, True)
if DEVICE == "cuda":
    checks.run("torch.compile", compiled)
for window in ((-1, -1), (-1, 0), (20, 0)):
    checks.run(f"varlen_attn, window {window}", varlen, window)
checks.run("dropout", dropout)
checks.run("torch's own kernels are back", restored)
checks.finish()
