"""AITER's Triton forward kernel, with the tiles of its configuration files."""

import numpy as np
from aiter_source import configuration, import_kernels
from triton_compile import Float, Pointer, compile_kernel, strides_of_rows


def tiles(checkout, arch, head_dim):
    fwd = configuration(checkout, arch)["fwd"]
    return dict(fwd["small_head"] if head_dim <= 64 and "small_head" in fwd else fwd["default"])


def add(run, checkout, p):
    """Adds the launch for one head of batch 0 to a run whose q, k and v have all heads."""
    module = import_kernels(checkout, "_triton_kernels.attention.mha", run.arch)
    kernel = module._attn_fwd
    config = tiles(checkout, run.arch, p.head_dim)
    options = {n: config.pop(n) for n in ("num_warps", "num_stages", "waves_per_eu", "num_ctas")}
    values = dict.fromkeys(
        [n for n in kernel.arg_names if n.startswith("stride_") or n.startswith("philox_")], 0
    )
    for tensor, letters, heads, seqlen in (
        ("q", "zhmk", p.heads, p.seqlen_q),
        ("k", "zhnk", p.kv_heads, p.seqlen_k),
        ("v", "zhnk", p.kv_heads, p.seqlen_k),
        ("o", "zhmn", p.heads, p.seqlen_q),
    ):
        names = [f"{letter}_in" for letter in letters]
        values |= strides_of_rows(tensor, names, p, heads, seqlen)
    values |= {
        "q_ptr": Pointer("q", p.dtype),
        "k_ptr": Pointer("k", p.dtype),
        "v_ptr": Pointer("v", p.dtype),
        "out_ptr": Pointer("out", p.dtype),
        "softmax_lse_ptr": Pointer("lse", "fp32"),
        "stride_lse_z_in": p.heads * p.seqlen_q,
        "stride_lse_h_in": p.seqlen_q,
        "stride_lse_m_in": 1,
        "sm_scale": Float(p.head_dim**-0.5),
        "dropout_p": Float(0.0),
        "SEQLEN_Q": p.seqlen_q,
        "SEQLEN_K": p.seqlen_k,
        "BATCH": p.batch,
    }
    constants = {
        "IS_CAUSAL": p.causal,
        "NUM_Q_HEADS": p.heads,
        "NUM_K_HEADS": p.kv_heads,
        "BLOCK_DMODEL": p.head_dim,
        "BLOCK_DMODEL_POW2": p.head_dim,
        "BLOCK_DMODEL_PE": 0,
        "RETURN_SCORES": False,
        "ENABLE_DROPOUT": False,
        "IS_FP8": False,
        "FP8_MAX": None,
        "VARLEN": False,
        "NUM_XCD": 8,
        "SWIZZLE": "default",
        "USE_INT64_STRIDES": True,
        "ENABLE_SINK": False,
        "SLIDING_WINDOW": 0,
        "HEAD_STRIDE_ALIGNED_8": True,
        **config,
    }
    compiled = compile_kernel(kernel, run.arch, values, constants, options)
    blocks = -(-p.seqlen_q // config["BLOCK_M"])
    # Workgroups of one head are as many as there are heads apart.
    head = np.arange(blocks) * p.heads
    run.launch(compiled, [blocks * p.heads * p.batch], head, p.heads * p.batch)
    return f"{config['BLOCK_M']}x{config['BLOCK_N']}, {options['num_warps']} waves"
