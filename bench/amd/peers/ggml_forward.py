"""ggml's attention (llama.cpp's) as its launch_fattn launches it. Queries and results are fp32,
keys and values fp16; what several workgroups computed of a tile is summed by a second launch."""

import math

import numpy as np
from attention import decode, prefill
from checks import run_forward
from ggml_kernels import UNITS, compile_tile, is_cdna, tile, workgroups_of_a_unit

MASK_STRIDE = 256  # keys that flash_attn_mask_to_KV_max passes over at once


def runs(arch, checkout, hip):
    """(name of the kernel, problem, runner, adds its launches)."""
    of_ggml = {"dtype": "fp16", "rows_dtype": "fp32", "has_lse": False}
    problems = [decode(rows, **of_ggml) for rows in (1, 4)]
    for d in (64, 128):
        problems += [prefill(d, causal=c, **of_ggml) for c in (False, True)]
    if not is_cdna(arch):  # there its matrix instructions serve shared heads alone
        problems += [prefill(d, causal=True, group=4, **of_ggml) for d in (64, 128)]
    for p in problems:
        shares = p.seqlen_q == p.seqlen_k and p.heads > p.kv_heads
        name = "ggml, 4 heads a KV head" if shares else "ggml"
        yield name, p, run_forward, lambda run, p: add(run, hip, checkout, p)


def _divisor(n):
    """Numbers by which ggml's fastdiv divides."""
    shift = (n - 1).bit_length()
    return [((1 << 32) * ((1 << shift) - n) // n + 1) % (1 << 32), shift, n]


def _structure(values):
    """Arguments with their offsets: buffers and i64 have 8 bytes, all others 4."""
    arguments, at = [], 0
    for value in values:
        size = 4 if "i32" in value or "f32" in value else 8
        at = -(-at // size) * size
        arguments.append(value | {"offset": at})
        at += size
    return arguments


def _i32(*numbers):
    return [{"i32": n - (1 << 32) if n >= 1 << 31 else n} for n in numbers]


def _buffer(name):
    return {"buffer": name} if name else {"i64": 0}


def _arguments(p, mask, most_keys, out, statistics):
    """fattn_kernel_t's."""
    d = p.head_dim
    q, k = (4 * d, 4 * d * p.heads), (2 * d, 2 * d * p.kv_heads)
    values = [_buffer(n) for n in ("q", "k", "v", mask, None, most_keys, out, statistics)]
    values += [{"f32": n} for n in (d**-0.5, 0.0, 1.0, 1.0)]
    values += [*_i32(1 << p.heads.bit_length() - 1), {"f32": 0.0}]
    values += _i32(d, *_divisor(p.seqlen_q), p.heads, p.batch, q[1], q[0], q[1] * p.seqlen_q)
    values += _i32(d, p.seqlen_k, p.kv_heads, p.batch, k[1], k[0])
    values += [{"i64": k[1] * p.seqlen_k}, *_i32(k[1], k[0]), {"i64": k[1] * p.seqlen_k}]
    of_mask = (p.seqlen_q, 1, p.batch, 2 * p.seqlen_k, 2 * p.seqlen_k * p.seqlen_q)
    values += _i32(*(of_mask if mask else [0] * 5))
    values += [{"i64": of_mask[4] if mask else 0}]
    return _structure(values)


def _mask(p):
    """fp16 that is added to scores, of the first sequence."""
    keys = np.arange(p.seqlen_k)[None, :]
    last = np.arange(p.seqlen_q)[:, None] + p.seqlen_k - p.seqlen_q
    hidden = (keys > last) & p.causal
    return np.where(hidden, -np.inf, 0).astype(np.float16)


def _splits(tiles, steps, units, of_a_unit):
    """Workgroups that share a tile's keys, of launches that take no stream of tiles."""
    splits, best, rounds_of_best = min(of_a_unit, steps), 0, 0
    for n in range(splits, steps + 1):
        rounds = -(-tiles * n // (units * of_a_unit))
        efficiency = 100 * tiles * n // (rounds * units * of_a_unit)
        if best >= 95 and rounds > rounds_of_best:
            break
        if efficiency > best:
            best, rounds_of_best, splits = efficiency, rounds, n
    return splits


def _streams(tiles, steps, most, always):
    """Workgroups that take parts of the stream of all tiles and their keys."""
    rounds = -(-tiles // most)
    if not always and 100 * tiles // (most * rounds) >= 75:
        return tiles
    raw = min(most, steps * tiles)
    rounded = raw // tiles * tiles
    return rounded if rounded and 100 * (raw - rounded) <= 5 * raw else raw


def add(run, hip, checkout, p):
    """Adds the launches for KV head 0 of batch 0, and of more where workgroups span them."""
    group = p.heads // p.kv_heads
    # llama.cpp has a mask for every batch; without one only what needs none is fastest.
    mask = "mask" if p.causal or group > 1 else None
    if mask:
        run.input("mask", _mask(p))
    t = tile(checkout, run.arch, p, bool(mask))
    code = compile_tile(hip, checkout, run.arch, t)
    name = "flash_attn_tile" if t.family == "tile" else "flash_attn_ext_f16"
    of_a_unit = workgroups_of_a_unit(run.arch, code.kernels[code.find(name)], t)
    steps, row_tiles = -(-p.seqlen_k // t.keys), -(-p.seqlen_q // t.rows)
    head_tiles = -(-group // t.heads)
    per_head = row_tiles * head_tiles
    tiles = per_head * p.kv_heads * p.batch
    times = p.kv_heads * p.batch

    most_keys = None
    if mask and p.seqlen_k % MASK_STRIDE == 0 and (p.seqlen_q >= 1024 or p.batch > 1):
        most_keys = "most_keys"
        run.output(most_keys, (row_tiles,), "int32")
        row, steps_of_mask = p.seqlen_k // 2, _i32(p.seqlen_k // MASK_STRIDE)
        numbers = [*steps_of_mask, {"i64": row}, {"i64": row * p.seqlen_q}]
        arguments = _structure([_buffer("mask"), _buffer(most_keys), *numbers])
        run.launch(
            code.kernel("mask_to_KV_max", 0, MASK_STRIDE // 2, arguments),
            [row_tiles, p.batch],
            range(row_tiles),
            p.batch,
        )
    wave = 64 if t.family == "mma" and is_cdna(run.arch) else 32
    lanes = (wave, t.lanes // wave)
    units = UNITS[run.arch]
    if t.family == "tile":
        n = _splits(tiles, steps, units, of_a_unit)
        _add_split(run, code, p, t, n, mask, most_keys, lanes, times)
        return f"{t.rows} rows x {t.heads} heads, {t.keys} keys, {lanes[1]} waves, {n} splits"
    n = _streams(tiles, steps, units * of_a_unit, not is_cdna(run.arch))
    # The fewest workgroups that compute whole heads; the others do the same.
    share = math.gcd(tiles, n)
    share = next(
        k for k in range(1, share + 1) if share % k == 0 and k * tiles // share % per_head == 0
    ) / math.gcd(tiles, n)
    _add_stream(run, code, p, t, n, int(n * share), mask, most_keys, lanes, steps)
    return f"{t.rows} rows x {t.heads} heads, {t.keys} keys, {lanes[1]} waves, {n} workgroups"


def _add_split(run, code, p, t, splits, mask, most_keys, lanes, times):
    group, d = p.heads // p.kv_heads, p.head_dim
    row_tiles, head_tiles = -(-p.seqlen_q // t.rows), -(-group // t.heads)
    whole = splits == 1
    if not whole:
        rows = p.seqlen_q * p.heads * splits
        run.output("parts", (rows, d), "fp32")
        run.output("statistics", (rows, 2), "fp32")
    out, statistics = ("out", None) if whole else ("parts", "statistics")
    arguments = _arguments(p, mask, most_keys, out, statistics)
    run.launch(
        code.kernel("flash_attn_tile", 0, lanes, arguments),
        [row_tiles, splits, head_tiles * times],
        range(row_tiles * splits * head_tiles),
        times,
    )
    if whole:
        return
    values = [_buffer(n) for n in ("parts", "statistics", "out")] + _i32(splits)
    run.launch(
        code.kernel("flash_attn_combine_results", 8 * splits, d, _structure(values)),
        [p.seqlen_q, p.heads, p.batch],
        range(p.seqlen_q * group),
        times,
    )


def _add_stream(run, code, p, t, workgroups, those, mask, most_keys, lanes, steps):
    """those: how many of the workgroups run."""
    group, d = p.heads // p.kv_heads, p.head_dim
    row_tiles, head_tiles = -(-p.seqlen_q // t.rows), -(-group // t.heads)
    per_head, columns = row_tiles * head_tiles, t.rows * t.heads
    tiles = per_head * p.kv_heads * p.batch
    whole = tiles % workgroups == 0
    if not whole:
        run.output("statistics", (workgroups * columns * (2 + d // 2), 2), "fp32")
    arguments = _arguments(p, mask, most_keys, "out", None if whole else "statistics")
    run.launch(
        code.kernel("flash_attn_ext_f16", t.lds_bytes, lanes, arguments),
        [workgroups],
        range(those),
        workgroups // those,
    )
    if whole:
        return
    values = [_buffer("out"), _buffer("statistics"), *_i32(p.seqlen_q, p.heads)]
    if workgroups % tiles == 0:
        kernel, blocks = "stream_k_fixup_uniform", tiles
        values += _i32(p.kv_heads, workgroups, group, workgroups // tiles)
        divisors = (per_head * p.kv_heads, per_head, row_tiles)
    else:
        kernel, blocks = "stream_k_fixup_general", workgroups
        values += _i32(group, steps * tiles)
        divisors = (steps * per_head * p.kv_heads, steps * per_head, steps * row_tiles, steps)
    for n in divisors:
        values += _i32(*_divisor(n))
    run_of_them = those * blocks // workgroups
    run.launch(
        code.kernel(kernel, 0, d, _structure(values)),
        [blocks, t.rows, t.heads],
        [n + blocks * c for c in range(columns) for n in range(run_of_them)],
        workgroups // those,
    )
