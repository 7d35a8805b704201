#!/usr/bin/env python3
"""Draws the README's chart, docs/images/speed.svg, from the tables of docs/performance.

Without an argument it writes the file; with --check it says whether the file is what it would
write.
"""

import pathlib
import re
import sys

DOCS = pathlib.Path(__file__).resolve().parents[1]
IMAGE = DOCS / "images" / "speed.svg"
WIDTH, LABELS, BAR, MOST = 860, 480, 20, 8  # pixels, and the largest ratio that the axis has
INDENT, GAP = 20, 10
# Pixels of a letter at 13px, in the mean of a label: DejaVu Sans, wider than what most systems
# show.
LETTER = 7.2


def cell(page, heading, row, column):
    """The text of a table's cell: the first table below a heading that has the row and the
    column."""
    lines = (DOCS / "performance" / page).read_text().split("\n")
    columns = None
    for line in lines[lines.index("## " + heading) + 1 :]:
        cells = [one.strip() for one in line.strip("|").split("|")]
        if line.startswith("## "):
            break
        if not line.startswith("|"):
            columns = None
        elif columns is None:
            columns = cells
        elif cells[0] == row and column in columns:
            return cells[columns.index(column)]
    raise KeyError(f"{page}, {heading}: no row {row} with a column {column}")


def number(text):
    """The number in brackets, where there is one, else the first."""
    return float(
        re.search(r"\(([\d.]+)\)", text).group(1)
        if "(" in text
        else re.search(r"[\d.]+", text).group()
    )


def ratio(page, heading, row, column):
    return number(cell(page, heading, row, column))


def quotient(page, heading, row, peer, ours):
    return number(cell(page, heading, row, peer)) / number(cell(page, heading, row, ours))


ZEN5, ZEN5_BACK = "Beside PyTorch and ONNX Runtime: Zen 5", "Beside PyTorch: Zen 5"
BOARDS, TRAINING = "Boards, fp16, microseconds", "Boards in training, fp16, microseconds"
FORWARD = "Forward: 16384 tokens, width 2048 (H100)"
BACKWARD = "Backward: the same (H100)"
PEERS = "FlashAttention 4, cuDNN"
CALLS = "Calls of models, forward (H100)"
CALLS_BACK = "Calls of models, backward (H100)"

# A group's title and its bars: what it is, the peer, the ratio.
GROUPS = [
    (
        "CPU: AMD Zen 5, 2 threads",
        [
            (
                "64 boards, 24 heads of 32, fp32",
                "PyTorch, ONNX RT",
                ratio("cpu.md", ZEN5, "boards 24x32", "fp32"),
            ),
            (
                "the same with a bias",
                "PyTorch, ONNX RT",
                ratio("cpu.md", ZEN5, "boards 24x32 with bias", "fp32"),
            ),
            (
                "the same with a bias, bf16",
                "PyTorch",
                ratio("cpu.md", ZEN5, "boards 24x32 with bias", "bf16"),
            ),
            (
                "gradients with a bias, fp32",
                "PyTorch",
                ratio(
                    "cpu_backward.md",
                    ZEN5_BACK,
                    "boards 24x32, bias a head, dbias summed",
                    "speed-up, fp32",
                ),
            ),
            (
                "prefill 2k, heads of 128, fp32",
                "PyTorch, ONNX RT",
                ratio("cpu.md", ZEN5, "prefill D128, 2k", "fp32"),
            ),
            (
                "the same, causal",
                "PyTorch, ONNX RT",
                ratio("cpu.md", ZEN5, "prefill D128, 2k causal", "fp32"),
            ),
            (
                "the same, causal, bf16",
                "PyTorch",
                ratio("cpu.md", ZEN5, "prefill D128, 2k causal", "bf16"),
            ),
            (
                "gradients 2k, heads of 128, fp32",
                "PyTorch",
                ratio("cpu_backward.md", ZEN5_BACK, "8x128, 2k", "speed-up, fp32"),
            ),
        ],
    ),
    (
        "GPU: one NVIDIA H200",
        [
            (
                "1024 boards, 24 heads of 32, bias, fp16",
                "PyTorch, fused",
                quotient("nvidia.md", BOARDS, "24x32 bias", "peer at 1024", "1024"),
            ),
            (
                "1024 boards, 12 heads of 64, bias, fp16",
                "PyTorch, fused",
                quotient("nvidia.md", BOARDS, "12x64 bias", "peer at 1024", "1024"),
            ),
            (
                "training 1024 boards, 24 heads of 32",
                "PyTorch, fused",
                ratio("nvidia.md", TRAINING, "24x32", "1024"),
            ),
        ],
    ),
    (
        "GPU: one NVIDIA H100, bf16; heads of 128 but BERT's",
        [
            ("prefill 2k", PEERS, ratio("nvidia_peers.md", FORWARD, "D128 S2048 full", "ratio")),
            (
                "prefill 2k, causal",
                PEERS,
                ratio("nvidia_peers.md", FORWARD, "D128 S2048 causal", "ratio"),
            ),
            (
                "prefill 512, causal",
                PEERS,
                ratio("nvidia_peers.md", FORWARD, "D128 S512 causal", "ratio"),
            ),
            ("BERT-base, 512 tokens", PEERS, ratio("nvidia_peers.md", CALLS, "BERT 512", "ratio")),
            (
                "gradients of BERT-base, 512 tokens",
                PEERS,
                ratio("nvidia_peers.md", CALLS_BACK, "BERT 512", "ratio"),
            ),
            ("gradients 2k", PEERS, ratio("nvidia_peers.md", BACKWARD, "D128 S2048 full", "ratio")),
            (
                "gradients 2k, causal",
                PEERS,
                ratio("nvidia_peers.md", BACKWARD, "D128 S2048 causal", "ratio"),
            ),
        ],
    ),
]

STYLE = """text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-weight:600}.peer{fill:#6e7781}
.bar{fill:#1f6feb}.slower{fill:#bf8700}.axis{stroke:#8c959f}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.peer{fill:#9198a1}.bar{fill:#4493f8}.slower{fill:#d29922}}"""  # noqa: E501


def draw():
    parts, y = [], 30
    per = (WIDTH - LABELS - 60) / MOST

    def text(x, at, words, kind=""):
        parts.append(f'<text x="{x:g}" y="{at}"{kind}>{words}</text>')

    text(10, y - 10, "Speed-up over the best measured peer (1 = as fast)", ' class="title"')
    top = y
    for title, bars in GROUPS:
        y += 22
        text(10, y, title, ' class="title"')
        for words, peer, value in bars:
            y += BAR
            if value > MOST:
                raise ValueError(f"{words}: {value} is beyond the axis")
            if INDENT + LETTER * (len(words) + len(peer)) + 2 * GAP > LABELS:
                raise ValueError(
                    f"{words}: its label overlaps the peer's, {peer}: shorten one, or widen LABELS"
                )
            text(INDENT, y, words)
            text(LABELS - GAP, y, peer, ' class="peer" text-anchor="end"')
            kind = "bar" if value >= 1 else "slower"
            parts.append(
                f'<rect class="{kind}" x="{LABELS}" y="{y - 11}" width="{value * per:.1f}" '
                'height="14" rx="2"/>'
            )
            text(LABELS + value * per + 6, y, f"{value:.2f}")
    y += 14
    one = LABELS + per
    parts.append(
        f'<line class="axis" x1="{one:g}" x2="{one:g}" y1="{top}" y2="{y}" stroke-dasharray="3 3"/>'
    )
    label = "Bars of Fulmen's speed-up over named peers; the tables are in docs/performance"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 6}" width="{WIDTH}" '
        'role="img"'
    )
    return (
        "\n".join([f'{head} aria-label="{label}">', f"<style>{STYLE}</style>", *parts, "</svg>"])
        + "\n"
    )


def main():
    if sys.argv[1:] == ["--check"]:
        if IMAGE.read_text() != draw():
            sys.exit(
                f"{IMAGE.relative_to(DOCS.parent)} is not what docs/scripts/chart.py draws: run it"
            )
    elif sys.argv[1:]:
        sys.exit(f"{sys.argv[1:]}: nothing, or --check, is expected")
    else:
        IMAGE.write_text(draw())


if __name__ == "__main__":
    main()
