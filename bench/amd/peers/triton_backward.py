"""AITER's Triton backward kernel: dq, dk and dv in one launch, after one for the rows' sums."""

from aiter_source import configuration, import_kernels
from triton_compile import Float, Pointer, compile_kernel, strides, strides_of_rows


def add(run, checkout, p):
    """Adds both launches for head 0 of batch 0, without a mask."""
    module = import_kernels(checkout, "_triton_kernels.attention.mha_onekernel_bwd", run.arch)
    config = configuration(checkout, run.arch)["bkwd_onekernel"]
    rows, d = config["preprocess_kernel"]["PRE_BLOCK"], p.head_dim
    of_delta = (p.heads * p.seqlen_q, p.seqlen_q, 1)
    times = p.heads * p.batch

    values = strides_of_rows("o_", "bhmk", p, p.heads, p.seqlen_q)
    values |= strides_of_rows("do_", "bhmk", p, p.heads, p.seqlen_q)
    values |= strides("delta_", "bhm", of_delta)
    values |= {
        "o_ptr": Pointer("o"),
        "do_ptr": Pointer("dout"),
        "delta_ptr": Pointer("delta", "fp32"),
        "max_seqlen_q": p.seqlen_q,
    }
    constants = {
        "BLOCK_M": rows,
        "BLOCK_D_MODEL": d,
        "BLOCK_D_MODEL_POW2": d,
        "IS_VARLEN": False,
        "IS_FP8": False,
    }
    blocks = -(-p.seqlen_q // rows)
    run.launch(
        compile_kernel(
            module._bwd_preprocess, run.arch, values, constants, {"num_warps": 4, "num_stages": 2}
        ),
        [blocks, p.batch, p.heads],
        range(blocks),
        times,
    )

    config = dict(config["onekernel"])
    options = {
        n: config.pop(n)
        for n in ("num_warps", "num_stages", "waves_per_eu", "num_ctas", "matrix_instr_nonkdim")
    }
    kernel = module.bwd_kernel_noncausal
    values = dict.fromkeys([n for n in kernel.arg_names if n.startswith("stride_drop")], 0)
    for tensor, letters, seqlen, heads in (
        ("q", "bhmd", p.seqlen_q, p.heads),
        ("k", "bhnd", p.seqlen_k, p.kv_heads),
        ("v", "bhnd", p.seqlen_k, p.kv_heads),
        ("dq", "bhmd", p.seqlen_q, p.heads),
        ("dk", "bhnd", p.seqlen_k, p.kv_heads),
        ("dv", "bhnd", p.seqlen_k, p.kv_heads),
        ("do", "bhmd", p.seqlen_q, p.heads),
    ):
        names = [f"{letter}_in" for letter in letters]
        values |= strides_of_rows(tensor, names, p, heads, seqlen)
    values |= strides("delta", ["b_in", "h_in", "m_in"], of_delta)
    values |= {
        "Q": Pointer("q"),
        "K": Pointer("k"),
        "V": Pointer("v"),
        "sm_scale": Float(d**-0.5),
        "DO": Pointer("dout"),
        "DQ": Pointer("dq"),
        "DK": Pointer("dk"),
        "DV": Pointer("dv"),
        "M": Pointer("stats", "fp32"),
        "Delta": Pointer("delta", "fp32"),
        "stride_az_in": 0,
        "stride_ah_in": 0,
        "HQ": p.heads,
        "HK": p.kv_heads,
        "max_seqlen_q": p.seqlen_q,
        "max_seqlen_k": p.seqlen_k,
        "dropout_p": Float(0.0),
        "philox_seed": 0,
        "philox_offset_base_in": 0,
    }
    constants = {
        "HEAD_DIM": d,
        "ACTUAL_HEAD_DIM": d,
        "PE_HEAD_DIM": 0,
        "ENABLE_DROPOUT": False,
        "IS_VARLEN": False,
        "USE_ALIBI": False,
        "USE_EXP2": True,
        "IS_FP8": False,
        "FP8_MAX": None,
        "DEBUG_TRITON": False,
        "DEBUG_TRITON_DETAIL": False,
        "USE_INT64_STRIDES": True,
        "ENABLE_SINK": False,
        "SLIDING_WINDOW": 0,
        **config,
    }
    blocks = -(-max(p.seqlen_q, p.seqlen_k) // config["BLOCK_N1"])
    run.launch(
        compile_kernel(kernel, run.arch, values, constants, options),
        [p.kv_heads, blocks, p.batch],
        [p.kv_heads * n for n in range(blocks)],
        times,
    )
    return (
        f"{config['BLOCK_M1']}x{config['BLOCK_N1']} and {config['BLOCK_M2']}x"
        f"{config['BLOCK_N2']}, {options['num_warps']} waves"
    )
