"""The rows of docs/performance/nvidia_peers.md in which a peer is faster, as the README's limits
have to name them."""

import re

PAGE = "docs/performance/nvidia_peers.md"


def tables(text):
    """(heading, rows) of each table, a row as {column: cell}."""
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        lines = [line for line in section.split("\n") if line.startswith("|")]
        cells = [[one.strip() for one in line.strip("|").split("|")] for line in lines]
        yield section.split("\n")[0], [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def ratios(row):
    """Of a row: each column that is a ratio, or ours by the best of the peers where there is
    none."""
    names = [name for name in row if name.startswith("ratio")]
    if names:
        return [float(row[name]) for name in names]
    ours, *peers = [float(value) for value in list(row.values())[1:]]
    return [ours / max(peers)]


def sentence(text):
    """What the README says, in one line."""
    parts = {"forward": [], "backward": [], "decode": []}
    for heading, rows in tables(text):
        part = next(name for name in parts if name in heading.lower())
        for row in rows:
            case = re.sub(r" \(.*\)", "", row["case"])
            parts[part] += [f"{case} {ratio:.2f}" for ratio in ratios(row) if ratio < 0.995]
    named = "; ".join(f"{part} {', '.join(rows)}" for part, rows in parts.items() if rows)
    return (
        f"On an H100, bf16, a [peer](docs/performance/nvidia_peers.md) is faster at {named}."
        if named
        else ""
    )
