"""Rows as lines of JSON, as text and as a page's tables."""

import json
from pathlib import Path


def is_peer(name: str) -> bool:
    return not name.startswith("fulmen")


def ratios(times: dict[str, float], refused: dict[str, str]) -> dict:
    """The best peer's time divided by ours; the same of ours and of peers that are deterministic.
    Peers that are wrong are left out."""
    found = {}
    peers = {n: t for n, t in times.items() if is_peer(n) and n not in refused}
    for ours, among in (
        ("fulmen", peers),
        ("fulmen deterministic", {n: t for n, t in peers.items() if n.endswith("deterministic")}),
    ):
        if ours in times and among:
            best = min(among, key=among.get)
            kind = ours.removeprefix("fulmen").replace(" ", "_")
            found |= {"ratio" + kind: among[best] / times[ours], "best" + kind: best}
    if "fulmen contiguous" in times and "fulmen" in times:
        found["of_contiguous"] = times["fulmen contiguous"] / times["fulmen"]
    return found


class Report:
    def __init__(self, path: Path | None, fresh: bool) -> None:
        self.path = path
        if path and fresh:
            path.write_text("")

    def __call__(self, row: dict) -> None:
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        print(text_of(row), flush=True)


def text_of(row: dict) -> str:
    words = [f"{row['case']}, {row['pass']}:" if "pass" in row else f"{row['case']}:"]
    words += [f"{n} {1e6 * t:.1f}" for n, t in row.get("seconds", {}).items()]
    words += [f"{n} {row[n]:.3f}" for n in row if n.startswith(("ratio", "of_"))]
    words += [f"({n}: {why[:90]})" for n, why in row.get("refused", {}).items()]
    words += [f"({n} without a graph: {why[:90]})" for n, why in row.get("eager", {}).items()]
    return "  ".join(words)


def markdown(path: Path) -> str:
    """Tables of the file's rows, a group a table: microseconds of ours and of the best peer, and
    the ratio; in brackets that of deterministic gradients."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lines = []
    for group in dict.fromkeys(row["group"] for row in rows if "group" in row):
        lines += ["", f"## {TITLES.get(group, group)}", "", HEADER, "|---" * 7 + "|"]
        mine = [row for row in rows if row.get("group") == group]
        for case in dict.fromkeys(row["case"] for row in mine):
            cells = []
            for which in ("forward", "backward"):
                found = [row for row in mine if row["case"] == case and row["pass"] == which]
                cells += _cells(found[-1]) if found else ["", "", ""]
            lines.append(f"| {case} | {' | '.join(cells)} |")
    others = [row for row in rows if "group" not in row]
    lines += ["", *(f"- {text_of(row)}" for row in others)]
    return "\n".join(lines).strip()


HEADER = "| call | forward, us | best peer | ratio | backward, us | best peer | ratio |"
TITLES = {
    "more": "Vision, protein and video models, generation with masks",
    "masks": "Masks in memory",
    "packed": "Packed documents",
    "caches": "KV caches, pages and cross attention",
    "scores": "Windows, softcap, MLA, dropout",
    "plain": "Plain calls, fp32",
    "pairs": "Pair representations and windows with a bias",
    "others": "More calls of vLLM, Axolotl, Boltz, diffusers, Swin, whisper, gpt-oss",
}


def _cells(row: dict) -> list[str]:
    """Ours, the best peer and the ratio of one pass."""
    times = row["seconds"]
    if "fulmen" not in times:
        return [row["refused"].get("fulmen", "none")[:60], "", ""]
    ours = f"{1e6 * times['fulmen']:.0f}"
    if "best" in row:
        peer, ratio = f"{row['best']} {1e6 * times[row['best']]:.0f}", f"{row['ratio']:.2f}"
    else:
        peer, ratio = "none", ""
    if "ratio_deterministic" in row:
        ratio += f" ({row['ratio_deterministic']:.2f})"
    if "of_contiguous" in row:
        peer += f"; contiguous {1e6 * times['fulmen contiguous']:.0f}"
    return [ours, peer, ratio]
