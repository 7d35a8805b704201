"""AITER's Triton forward kernel, with the tiles of its configuration files."""

import json
from pathlib import Path

import numpy as np
from aiter_source import import_kernels
from triton_compile import Float, Pointer, compile_kernel

# Chips without a configuration file of their own take the one of the chip that is nearest.
CONFIGURED = {"gfx90a": "gfx942", "gfx1100": "gfx1151", "gfx1201": "gfx1151"}


def tiles(checkout, arch, head_dim):
    name = f"{CONFIGURED.get(arch, arch)}-MHA-DEFAULT.json"
    fwd = json.loads((Path(checkout) / "aiter/ops/triton/configs" / name).read_text())["fwd"]
    return dict(fwd["small_head"] if head_dim <= 64 and "small_head" in fwd else fwd["default"])


def strides(letter, first, last, p, seqlen, heads):
    """Of [batch, seqlen, heads, head_dim]."""
    row = heads * p.head_dim
    return {
        f"stride_{letter}z_in": seqlen * row,
        f"stride_{letter}h_in": p.head_dim,
        f"stride_{letter}{first}_in": row,
        f"stride_{letter}{last}_in": 1,
    }


def add(run, checkout, p, slopes=False):
    """Adds the launch for one head of batch 0 to a run whose q, k and v have all heads."""
    module = import_kernels(checkout, "_triton_kernels.attention.mha", run.arch)
    kernel = module._attn_fwd
    config = tiles(checkout, run.arch, p.head_dim)
    options = {n: config.pop(n) for n in ("num_warps", "num_stages", "waves_per_eu", "num_ctas")}
    values = dict.fromkeys(
        [n for n in kernel.arg_names if n.startswith("stride_") or n.startswith("philox_")], 0
    )
    values |= strides("q", "m", "k", p, p.seqlen_q, p.heads)
    values |= strides("k", "n", "k", p, p.seqlen_k, p.kv_heads)
    values |= strides("v", "n", "k", p, p.seqlen_k, p.kv_heads)
    values |= strides("o", "m", "n", p, p.seqlen_q, p.heads)
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
    if slopes:
        values |= {
            "alibi_slopes_ptr": Pointer("slopes", "fp32"),
            "stride_alibi_z_in": p.heads,
            "stride_alibi_h_in": 1,
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
