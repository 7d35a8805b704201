"""AITER's forward kernels in assembly, as its repository publishes them (hsa/<chip>)."""

from pathlib import Path

from emulator import Kernel

# Kernel and code object by chip and mask: heads of 128, bf16 rounded to nearest even.
KERNELS = {
    ("gfx942", False): (
        "_ZN5aiter24fmha_fwd_hd128_bf16_rtneE",
        "gfx942/fmha_v3_fwd/MI300/fwd_hd128_bf16_rtne.co",
    ),
    ("gfx942", True): (
        "_ZN5aiter31fmha_fwd_hd128_bf16_causal_rtneE",
        "gfx942/fmha_v3_fwd/MI300/fwd_hd128_bf16_causal_rtne.co",
    ),
    ("gfx950", False): ("_ZN5aiter19fmha_fwd_hd128_bf16E", "gfx950/fmha_v3_fwd/fwd_hd128_bf16.co"),
    ("gfx950", True): (
        "_ZN5aiter26fmha_fwd_hd128_bf16_causalE",
        "gfx950/fmha_v3_fwd/fwd_hd128_bf16_causal.co",
    ),
}
ROWS = 256  # of queries, a tile
LANES = 512


def serves(arch, p):
    return (arch, p.causal) in KERNELS and p.head_dim == 128 and p.dtype == "bf16"


def add(run, checkout, p):
    """Adds the launch for head 0 of batch 0 to a run whose q, k and v have all heads."""
    name, file = KERNELS[run.arch, p.causal]
    q_row, k_row = p.heads * p.head_dim * 2, p.kv_heads * p.head_dim * 2
    head, q_batch, k_batch = p.head_dim * 2, q_row * p.seqlen_q, k_row * p.seqlen_k
    pointers = [{"buffer": b} for b in ("out", "q", "k", "v", "lse")]
    numbers = (
        [{"f32": p.head_dim**-0.5}]
        + [
            {"i32": n}
            for n in (
                p.seqlen_q,
                q_row,
                ROWS * q_row,
                head,
                q_batch,
                p.heads // p.kv_heads,
                k_row,
                head,
                k_batch,
                5,
                1,
                p.seqlen_k,
                p.head_dim,
                p.head_dim,
                p.heads,
                k_row,
                head,
                k_batch,
                q_row,
                head,
                q_batch,
            )
        ]
        + [{"i64": 0}, {"i64": 0}, {"i32": p.seqlen_q * 4}]
    )
    # Each has 16 bytes.
    arguments = [a | {"offset": 16 * n} for n, a in enumerate(pointers + numbers)]
    code = (Path(checkout) / "hsa" / file).read_bytes()
    # A workgroup takes two tiles of rows under a causal mask. Eight heads then alternate.
    tiles = -(-p.seqlen_q // (2 * ROWS if p.causal else ROWS))
    head_zero = [8 * n for n in range(tiles)] if p.causal else range(tiles)
    run.launch(
        Kernel(code, name, 0, LANES, arguments),
        [tiles, p.heads, p.batch],
        head_zero,
        p.heads * p.batch,
    )
    return f"{ROWS} rows, 8 waves"
