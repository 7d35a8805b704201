"""Decode by AITER's copy of flash-attention's Triton kernels: keys in splits, then their sum."""

import numpy as np
from aiter_source import import_kernels
from triton_compile import Float, Pointer, compile_kernel, strides

MOST_ROWS = 64  # of a tile: the rows that room is made for


def splits(p):
    """As many as the caller of these kernels would take."""
    count = max(p.seqlen_k, 1024) // (p.batch * p.heads)
    while count > 0 and p.seqlen_k / count < 64:
        count //= 2
    while p.batch * p.heads * count >= 1024:
        count //= 2
    return min(max(count, 1), 512)


def add(run, checkout, p):
    """Adds both launches for KV head 0 of batch 0."""
    module = import_kernels(checkout, "_triton_kernels.flash_attn_triton_amd.fwd_decode", run.arch)
    tile = 64 if run.arch.startswith("gfx9") else 32
    options = {"num_warps": 4, "num_stages": 1} | (
        {"waves_per_eu": 1} if run.arch.startswith("gfx9") else {}
    )
    count, d = splits(p), p.head_dim
    all_heads, q_row, k_row = p.batch * p.heads, p.heads * d, p.kv_heads * d
    group = p.heads // p.kv_heads
    # Room for the heads that are computed: the others' places are not touched.
    run.output("sums", (group, count, MOST_ROWS, d), "fp32")
    run.output("statistics", (group, 2, count, MOST_ROWS), "fp32")
    run.output("lse", (group, p.seqlen_q), "fp32")
    of_sums = (count * MOST_ROWS * d, MOST_ROWS * d, d, 1)
    of_statistics = (2 * count * MOST_ROWS, count * MOST_ROWS, MOST_ROWS, 1)
    q = (p.seqlen_q * q_row, q_row, q_row, d, 1)
    k = (p.seqlen_k * k_row, k_row, k_row, d, 1)
    kernel = module._fwd_kernel_splitK.fn
    values = dict.fromkeys([n for n in kernel.arg_names if n.startswith("stride_")], 0)
    values |= strides("q", "zmghd", q) | strides("k", "znghd", k)
    values |= strides("v", "znghd", k) | strides("osk_", ["zhg", "s", "m", "d"], of_sums)
    values |= strides("m", ["zhg", "2", "s", "m"], of_statistics)
    values |= dict.fromkeys(
        [
            f"stride_{n}"
            for n in (
                "kn_z",
                "kn_n",
                "kn_g",
                "kn_h",
                "kn_d",
                "vn_z",
                "vn_n",
                "vn_g",
                "vn_h",
                "vn_d",
                "az",
                "ah",
            )
        ]
    )
    values |= {
        "Q": Pointer("q"),
        "K": Pointer("k"),
        "V": Pointer("v"),
        "sm_scale": Float(d**-0.5),
        "Out_splitK": Pointer("sums", "fp32"),
        "Metadata": Pointer("statistics", "fp32"),
        "Z": p.batch,
        "N_CTX_Q": p.seqlen_q,
        "N_CTX_K": p.seqlen_k,
        "N_CTX_NEW": 0,
    }
    constants = {
        "BLOCK_N_PER_SPLIT": -(-p.seqlen_k // count),
        "BLOCK_SIZE_K": 256,
        "H_q": p.heads,
        "H_kv": p.kv_heads,
        "G_q": 1,
        "BLOCK_M": tile,
        "BLOCK_DMODEL": d,
        "ACTUAL_BLOCK_DMODEL": d,
        "BLOCK_N": tile,
        "USE_CACHE_SEQLENs": False,
        "USE_CACHE_BATCH_IDX": False,
        "NEW_KV": False,
        "IS_GQA": group > 1,
        "IS_CAUSAL": p.causal,
        "USE_ALIBI": False,
        "PADDED_HEAD": False,
        "GROUP_SIZE": group,
        "USE_SLIDING_WINDOW": False,
        "WINDOW_SIZE_LEFT": -1,
        "WINDOW_SIZE_RIGHT": -1,
        "USE_BLOCK_TABLE": False,
        "IS_FP8": False,
    }
    times = p.kv_heads * p.batch
    run.launch(
        compile_kernel(kernel, run.arch, values, constants, options),
        [-(-p.seqlen_q // tile), all_heads, count],
        [h + all_heads * s for s in range(count) for h in range(group)],
        times,
    )

    kernel = module._splitK_reduce.fn
    values = strides("osk_", ["zhg", "s", "m", "k"], of_sums)
    values |= strides("m", ["zhg", "2", "s", "m"], of_statistics)
    values |= strides("o", "zhgmk", (q[0], d, q_row, q_row, 1))
    values |= {
        "stride_lse_zhg": p.seqlen_q,
        "stride_lse_m": 1,
        "Out_splitK": Pointer("sums", "fp32"),
        "Metadata": Pointer("statistics", "fp32"),
        "Out": Pointer("out"),
        "LSE": Pointer("lse", "fp32"),
    }
    halves = 1 if all_heads * p.seqlen_q >= 512 else 2
    power = 1 << (count - 1).bit_length()
    constants = {
        "K_BLOCK_SIZE": d // halves,
        "BLOCK_DMODEL": d,
        "ACTUAL_BLOCK_DMODEL": d,
        "H": p.heads,
        "G": 1,
        "split_k": count,
        "splitK_pow2": power,
        "MASK_SPLITK": power > count,
        "PADDED_HEAD": False,
    }
    workgroups = [
        h + all_heads * (m + p.seqlen_q * half)
        for half in range(halves)
        for m in range(p.seqlen_q)
        for h in range(group)
    ]
    run.launch(
        compile_kernel(kernel, run.arch, values, constants, {"num_warps": 4, "num_stages": 1}),
        [all_heads, p.seqlen_q, halves],
        np.array(workgroups),
        times,
    )
    return f"{tile}x{tile}, 4 waves, {count} splits"
