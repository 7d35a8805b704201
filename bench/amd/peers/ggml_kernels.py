"""ggml's attention kernels (llama.cpp's), compiled for a chip: which one runs a problem, with which
tiles, and how many of its workgroups a compute unit holds."""

import re
from dataclasses import dataclass
from pathlib import Path

from hip_compile import Code

# What hipBLAS's header would declare; none of it is called by these kernels.
HIPBLAS = """
#pragma once
typedef void* hipblasHandle_t;
typedef int hipblasStatus_t, hipblasOperation_t, hipblasDatatype_t, hipblasComputeType_t;
enum {
  HIPBLAS_STATUS_SUCCESS, HIPBLAS_STATUS_NOT_INITIALIZED, HIPBLAS_STATUS_ALLOC_FAILED,
  HIPBLAS_STATUS_INVALID_VALUE, HIPBLAS_STATUS_ARCH_MISMATCH, HIPBLAS_STATUS_MAPPING_ERROR,
  HIPBLAS_STATUS_EXECUTION_FAILED, HIPBLAS_STATUS_INTERNAL_ERROR, HIPBLAS_STATUS_NOT_SUPPORTED,
  HIPBLAS_COMPUTE_16F, HIPBLAS_COMPUTE_32F, HIPBLAS_COMPUTE_32F_FAST_16F
};
int hipblasCreate(hipblasHandle_t*);
int hipblasDestroy(hipblasHandle_t);
int hipblasSetStream(hipblasHandle_t, void*);
"""
SOURCE = """
#include "fattn-common.cuh"
#include "fattn-tile.cuh"
#include "fattn-mma-f16.cuh"

// Kernels that the host takes are compiled.
const void* const used[] = {{{}}};
"""
# Compute units as HIP counts them (RDNA: pairs), and vector registers of a SIMD by their granule.
UNITS = {"gfx1100": 48, "gfx1201": 32, "gfx90a": 104, "gfx942": 304, "gfx950": 256}


@dataclass(frozen=True)
class Tile:
    """rows x heads of a workgroup. family: "tile" takes vector instructions, "mma" matrix ones."""

    family: str
    head_dim: int
    rows: int
    heads: int
    lanes: int
    keys: int
    lds_bytes: int  # dynamic


def is_cdna(arch):
    return arch.startswith("gfx9")


def choose(arch, p, masked):
    """family, rows and heads of a workgroup, as ggml_cuda_get_best_fattn_kernel and the functions
    below it choose them for these chips."""
    group = p.heads // p.kv_heads
    heads = max(h for h in (8, 4, 2, 1) if group % h == 0) if masked else 1
    columns = p.seqlen_q * min(group & -group, 8)
    if is_cdna(arch):
        mma = columns > {64: 8, 128: 16, 256: 64}[p.head_dim]
    else:
        mma = heads > 1 and p.head_dim <= 128 and columns > 8
    if mma:
        size = next((n for n in (16, 32) if p.seqlen_q <= n // heads), 64)
        return "mma", size // heads, heads
    sizes = (64, 32, 16, 8, 4, 2) if p.head_dim <= 128 else (32, 16, 8, 4, 2)
    floor = max(heads, 2)
    size = next((n for n in sizes if n > floor and p.seqlen_q > n // 2 // heads), floor)
    return "tile", size // heads, heads


def _configuration(checkout, family, arch, head_dim, columns):
    """The row of numbers that the header has for this tile."""
    file, function, macro = {
        ("mma", True): ("fattn-mma-f16", "mma_get_config_cdna", "MMA"),
        ("mma", False): ("fattn-mma-f16", "mma_get_config_rdna", "MMA"),
        ("tile", True): ("fattn-tile", "tile_get_config_amd", "TILE"),
        ("tile", False): ("fattn-tile", "tile_get_config_amd_rdna", "TILE"),
    }[family, is_cdna(arch)]
    text = (Path(checkout) / f"src/ggml-cuda/{file}.cuh").read_text()
    text = text.split(f" ggml_cuda_fattn_{function}(", 1)[1].split("\n}", 1)[0]
    cases = re.findall(rf"FATTN_{macro}_CONFIG_CASE\(([^)]*)\)", text)
    rows = [[n.strip() for n in case.split(",")] for case in cases]
    return next(
        [int(n) for n in row if n.isdigit()][3:]
        for row in rows
        if row[:3] == [str(head_dim), str(head_dim), str(columns)]
    )


def tile(checkout, arch, p, masked):
    family, rows, heads = choose(arch, p, masked)
    d, columns = p.head_dim, rows * heads
    numbers = _configuration(checkout, family, arch, d, columns)
    lanes, keys = numbers[0], numbers[2]
    if family == "tile":
        return Tile(family, d, rows, heads, lanes, keys, 0)
    k_columns, v_columns, combined = numbers[3:6]
    waves = lanes // (64 if is_cdna(arch) else 32)
    # Pairs of fp16, as the kernel's caller adds them up for one stage and queries in registers.
    of_kv = keys * (max(k_columns, v_columns) + 4)
    of_mask = rows * (keys // 2 + 4)
    of_q = columns * (d // 2 + 4)
    of_sums = waves * min(columns, 16) * (combined + 4)
    return Tile(family, d, rows, heads, lanes, keys, 4 * max(of_sums, of_q, of_kv + of_mask))


def compile_tile(hip, checkout, arch, t) -> Code:
    """The attention kernel of a tile with those that launches of it need besides."""
    checkout = Path(checkout)
    d = t.head_dim
    kernels = [f"flash_attn_mask_to_KV_max<{t.rows}>"]
    if t.family == "tile":
        kernels += [f"flash_attn_tile<{d}, {d}, {t.rows}, {t.heads}, false>"]
        kernels += [f"flash_attn_combine_results<{d}>"]
    else:
        kernels += [f"flash_attn_ext_f16<{d}, {d}, {t.rows}, {t.heads}, false, false>"]
        kernels += [
            f"flash_attn_stream_k_fixup_{n}<{d}, {t.rows}, {t.heads}>"
            for n in ("uniform", "general")
        ]
    header = hip.headers / "hipblas/hipblas.h"
    header.parent.mkdir(parents=True, exist_ok=True)
    if not header.exists():
        header.write_text(HIPBLAS)
    source = hip.work / f"ggml_{t.family}_{d}_{t.rows}x{t.heads}.cu"
    text = SOURCE.format(", ".join(f"(const void*)&{n}" for n in kernels))
    if not source.exists() or source.read_text() != text:
        source.write_text(text)
    folders = ("include", "src", "src/ggml-cuda")
    options = [o for f in folders for o in ("-I", checkout / f)]
    return hip.compile(arch, source, ["-std=c++17", "-DGGML_USE_HIP", *options])


def workgroups_of_a_unit(arch, notes, t):
    """As HIP's hipOccupancyMaxActiveBlocksPerMultiprocessor answers."""
    wave, granule, registers, most, simds = (
        (64, 8, 512, 8, 4) if is_cdna(arch) else (32, 24, 1536, 16, 4)
    )
    waves = min(most, registers // (-(-notes["vgpr_count"] // granule) * granule))
    lds = notes["group_segment_fixed_size"] + t.lds_bytes
    lds_of_unit = (160 if arch == "gfx950" else 64) * 1024
    return min(simds * waves * wave // t.lanes, lds_of_unit // lds if lds else 64)
