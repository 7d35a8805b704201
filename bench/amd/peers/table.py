"""Tables of docs/performance/amd_peers.md from the lines of compare.py, the rows of `fulmen bench
--model --json` and the lines of time_ours."""

import argparse
import json
import pathlib
import re

CDNA = ("gfx90a", "gfx942", "gfx950")  # chips that have timelines
PRODUCT = 2 * 16**3  # operations of a product of 16 x 16 x 16


def our_name(row):
    mask = " causal" if row["causal"] else ""
    d, s = row["head_dim"], row["seqlen_q"]
    if row["suite"] == "decode":
        if (row["batch"], row["seqlen_k"], row["heads"], row["kv_heads"]) != (16, 8192, 32, 8):
            return None
        return f"decode d{d} q{s} 8192 keys"
    if row["bias"] or row["batch"] * s != 16384 or s < 2048:
        return None
    if row["pass"] == "backward":
        return None if row["causal"] else f"backward d{d} S{s}"
    return f"prefill d{d} S{s}{mask}"


def our_timelines(path):
    """Seconds by chip and problem, of lines that time_ours wrote."""
    seconds = {}
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines() if path else []:
        row = json.loads(line)
        rows, dim, mask = re.search(
            r"sq=(\d+).* d=(\d+)/\d+ (none|causal)", row["problem"]
        ).groups()
        family = "backward" if "backward" in row["problem"] else "prefill"
        name = f"{family} d{dim} S{rows}" + (" causal" if mask == "causal" else "")
        seconds[row["arch"], name] = row["seconds"]
    return seconds


def our_row(row):
    lanes = 64 if row["arch"] in CDNA else 32
    return {
        "kernel": "Fulmen",
        "registers": row["registers"],
        "matrix": row["matrix_flops"] / PRODUCT,
        "valu": row["vector_instructions"],
        "transcendental": row["exponentials"] / lanes,
        "salu": row["scalar_instructions"],
        "lds": row["lds_cycles"],
        "conflicts": row["lds_conflicts"],
        "bytes": row["global_bytes"],
        "waits": row["waits"],
        "seconds": row["modelled_s"],
        "flops": row["modelled_tflops"] * row["modelled_s"],
        "limit": row["limit"],
    }


def between(short, long, share):
    """Of as many rows in longer sequences: everything grows evenly with their length."""
    return {
        k: v if isinstance(v, str) or k == "registers" else v + share * (long[k] - v)
        for k, v in short.items()
    }


def ours(paths):
    for path in paths:
        with open(path, encoding="utf-8") as file:
            rows = {our_name(row): (row["arch"], our_row(row)) for row in json.load(file)}
        rows.pop(None, None)
        for name, (arch, row) in rows.items():
            yield arch, name, row
        name = "prefill d128 S{} causal"
        if name.format(2048) in rows and name.format(16384) in rows:
            arch, short = rows[name.format(2048)]
            yield (
                arch,
                name.format(8192),
                between(short, rows[name.format(16384)][1], (8192 - 2048) / (16384 - 2048)),
            )


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

            yield (
                row["arch"],
                row["problem"],
                {
                    "kernel": row["kernel"] + ("" if row["error"] < 0.01 else " (result wrong)"),
                    "registers": max(one["registers"] for one in launches),
                    "matrix": total("matrix_flops") / PRODUCT,
                    "valu": of("VALU"),
                    "transcendental": of("transcendental"),
                    "salu": of("SALU", "branch"),
                    "lds": total("lds_cycles"),
                    "conflicts": total("lds_conflicts"),
                    "bytes": total("global_bytes"),
                    "waits": of("wait", "barrier"),
                    "seconds": modelled["seconds"],
                    "flops": modelled["tflops"] * modelled["seconds"],
                    "limit": modelled["limit"],
                    "timeline": sum(
                        (one.get("timeline") or {}).get("seconds", 0) for one in launches
                    )
                    or None,
                },
            )


def ratio(mine, peer, key):
    return f"{mine[key] / peer[key]:.2f}" if mine.get(key) and peer.get(key) else "-"


def table(arch, rows):
    head = [
        "problem",
        "kernel",
        "registers",
        "VALU",
        "transc.",
        "SALU",
        "LDS",
        "conflicts",
        "bytes",
        "waits",
        "modelled us",
        "TFLOP/s",
        "limit",
        "Fulmen / peer",
    ]
    if arch in CDNA:
        head += ["timeline us", "TFLOP/s", "Fulmen / peer"]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for problem in dict.fromkeys(p for p, _ in rows):
        group = [r for p, r in rows if p == problem]
        mine = next((r for r in group if r["kernel"] == "Fulmen"), None)
        if mine is None or len(group) == 1:
            continue
        for r in group:
            # Kernels of vector instructions alone: those that the problem needs.
            products = r["matrix"] or 1e12 * r["flops"] / PRODUCT
            cells = [problem if r is mine else "", r["kernel"], str(r["registers"])]
            cells += [
                f"{r[k] / products:.2f}"
                for k in ("valu", "transcendental", "salu", "lds", "conflicts")
            ]
            cells += [
                f"{r['bytes'] / products:.0f}",
                f"{r['waits'] / products:.2f}",
                f"{1e6 * r['seconds']:.0f}",
                f"{r['flops'] / r['seconds']:.0f}",
                r["limit"],
                "-" if r is mine else ratio(mine, r, "seconds"),
            ]
            if arch in CDNA:
                time = r.get("timeline")
                cells += [f"{1e6 * time:.0f}", f"{r['flops'] / time:.0f}"] if time else ["-", "-"]
                cells.append("-" if r is mine else ratio(mine, r, "timeline"))
            print("| " + " | ".join(cells) + " |")


def summary(rows):
    """Ratios by problem and chip, of each peer in turn; in brackets by timelines."""
    archs = sorted(rows)
    print("| problem | " + " | ".join(archs) + " |\n|" + "---|" * (len(archs) + 1))
    for problem in dict.fromkeys(p for arch in archs for p, _ in rows[arch]):
        cells = []
        for arch in archs:
            group = [r for p, r in rows[arch] if p == problem]
            mine = next((r for r in group if r["kernel"] == "Fulmen"), {})
            ratios = [
                ratio(mine, r, "seconds")
                + (
                    f" ({ratio(mine, r, 'timeline')})"
                    if mine.get("timeline") and r.get("timeline")
                    else ""
                )
                for r in group
                if r is not mine
            ]
            cells.append(", ".join(ratios) if mine and ratios else "-")
        if any(c != "-" for c in cells):
            print(f"| {problem} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--ours", nargs="*", default=[])
    parser.add_argument("--timelines", help="lines of time_ours")
    parser.add_argument("--summary", action="store_true", help="the ratios alone")
    arguments = parser.parse_args()
    rows = {}
    timelines = our_timelines(arguments.timelines)
    for arch, problem, row in [*ours(arguments.ours), *peers(arguments.peers)]:
        if row["kernel"] == "Fulmen":
            row["timeline"] = timelines.get((arch, problem))
        rows.setdefault(arch, []).append((problem, row))
    if arguments.summary:
        return summary(rows)
    for arch in sorted(rows):
        print(f"\n## {arch}\n")
        order = {p: n for n, p in enumerate(dict.fromkeys(p for p, _ in rows[arch]))}
        table(arch, sorted(rows[arch], key=lambda r: order[r[0]]))


if __name__ == "__main__":
    main()
