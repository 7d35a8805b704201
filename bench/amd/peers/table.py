"""Tables of docs/performance/amd_peers.md from the lines of compare.py and the rows of `fulmen bench
--model --json`."""

import argparse
import json

# Compute units and GHz, as tools/bench/model/rates.cpp has them, of chips whose waits are priced.
CDNA = {"gfx90a": (104, 1.7), "gfx942": (304, 2.1), "gfx950": (256, 2.4)}
SIMDS = 4
# Cycles that a wait or a barrier costs its SIMD: what brings AITER's Triton kernel on MI355X to its
# published speed.
WAIT_CYCLES = 30


def waits_s(arch, waits):
    if arch not in CDNA:
        return None
    units, ghz = CDNA[arch]
    return WAIT_CYCLES * waits / (SIMDS * units * ghz * 1e9)


def our_name(row):
    mask = " causal" if row["causal"] else ""
    d = row["head_dim"]
    if row["suite"] == "decode":
        if (row["batch"], row["seqlen_k"], row["heads"], row["kv_heads"]) != (16, 8192, 32, 8):
            return None
        return f"decode d{d} q{row['seqlen_q']} 8192 keys"
    if row["seqlen_q"] != 2048 or row["bias"] or row["batch"] != 8:
        return None
    if row["pass"] == "backward":
        return None if row["causal"] else f"backward d{d} S2048"
    return f"prefill d{d} S2048{mask}"


def ours(paths):
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for row in json.load(file):
                name = our_name(row)
                if name is None:
                    continue
                exponentials = row["exponentials"] / (64 if row["arch"] in CDNA else 32)
                yield row["arch"], name, {
                    "kernel": "Fulmen", "registers": row["registers"],
                    "matrix": row["matrix_flops"] / 2**13, "valu": row["vector_instructions"],
                    "transcendental": exponentials, "salu": row["scalar_instructions"],
                    "lds": row["lds_cycles"], "conflicts": row["lds_conflicts"],
                    "bytes": row["global_bytes"], "waits": row["waits"],
                    "seconds": row["modelled_s"], "flops": row["modelled_tflops"] *
                    row["modelled_s"], "limit": row["limit"]}


def peers(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if "counts" not in row:
                continue
            launches, modelled = row["counts"]["launches"], row["counts"]["modelled"]

            def of(*kinds, launches=launches):
                return sum(one["instructions"][k] for one in launches for k in kinds)

            def total(key, launches=launches):
                return sum(one[key] for one in launches)

            yield row["arch"], row["problem"], {
                "kernel": row["kernel"] + (" (result wrong)" if row["error"] > 0.01 else ""),
                "registers": max(one["registers"] for one in launches),
                "matrix": total("matrix_flops") / 2**13, "valu": of("VALU"),
                "transcendental": of("transcendental"), "salu": of("SALU", "branch"),
                "lds": total("lds_cycles"), "conflicts": total("lds_conflicts"),
                "bytes": total("global_bytes"), "waits": of("wait", "barrier"),
                "seconds": modelled["seconds"], "flops": modelled["tflops"] * modelled["seconds"],
                "limit": modelled["limit"]}


def table(arch, rows):
    priced = arch in CDNA
    head = ["problem", "kernel", "registers", "VALU", "transc.", "SALU", "LDS", "conflicts",
            "bytes", "waits", "modelled us", "TFLOP/s", "limit", "Fulmen / peer"]
    if priced:
        head += ["with waits us", "Fulmen / peer"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for problem in dict.fromkeys(p for p, _ in rows):
        group = [r for p, r in rows if p == problem]
        mine = next((r for r in group if r["kernel"] == "Fulmen"), None)
        for r in group:
            products = max(r["matrix"], 1)
            cells = [problem, r["kernel"], str(r["registers"])]
            cells += [f"{r[k] / products:.2f}" for k in ("valu", "transcendental", "salu", "lds",
                                                         "conflicts")]
            cells += [f"{r['bytes'] / products:.0f}", f"{r['waits'] / products:.2f}",
                      f"{1e6 * r['seconds']:.1f}", f"{r['flops'] / r['seconds']:.0f}", r["limit"]]
            is_peer = mine is not None and r is not mine
            cells.append(f"{mine['seconds'] / r['seconds']:.2f}" if is_peer else "-")
            if priced:
                both = [x["seconds"] + waits_s(arch, x["waits"]) for x in (r, mine or r)]
                cells += [f"{1e6 * both[0]:.1f}", f"{both[1] / both[0]:.2f}" if is_peer else "-"]
            print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--ours", nargs="*", default=[])
    arguments = parser.parse_args()
    rows = {}
    for arch, problem, row in [*ours(arguments.ours), *peers(arguments.peers)]:
        rows.setdefault(arch, []).append((problem, row))
    for arch in sorted(rows):
        print(f"\n### {arch}\n")
        order = {p: n for n, p in enumerate(dict.fromkeys(p for p, _ in rows[arch]))}
        table(arch, sorted(rows[arch], key=lambda r: order[r[0]]))


if __name__ == "__main__":
    main()
