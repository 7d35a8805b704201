#!/usr/bin/env python3
"""Checks the documents: lengths of pages, columns, links and their headings, the README's chart."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = 100
LINES = {"README.md": 150, "docs/architecture.md": 150, "docs/performance/*.md": 120}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"\s*```")


def pages():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"], cwd=ROOT, capture_output=True, text=True
    )
    return [ROOT / name for name in listed.stdout.split("\n") if name and (ROOT / name).exists()]


def outside_code(text):
    """The lines of a page, those of code blocks left empty: numbers stay."""
    inside = False
    for line in text.split("\n"):
        fence = FENCE.match(line)
        yield "" if inside or fence else line
        inside ^= bool(fence)


def anchors(text):
    """Of headings, as GitHub and MkDocs make them."""
    found = set()
    for line in outside_code(text):
        if heading := re.match(r"#+ (.*)", line):
            words = re.sub(r"[^\w\- ]", "", LINK.sub(lambda link: link.group().split("]")[0][1:], heading.group(1)).lower())
            found.add(words.replace(" ", "-"))
    return found


def too_wide(line):
    """Tables and lines that a link makes long may be."""
    return len(line) > COLUMNS and not line.startswith("|") and not (LINK.search(line) and " " not in line.strip())


def links(page, text):
    for number, line in enumerate(outside_code(text), 1):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                yield number, f"{target}: there is no such file"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
                yield number, f"{target}: there is no such heading"


def findings(page):
    text = page.read_text()
    name = page.relative_to(ROOT).as_posix()
    for pattern, most in LINES.items():
        count = text.count("\n")
        if page.relative_to(ROOT).match(pattern) and count > most:
            yield f"{name}: {count} lines, at most {most} are read in a sitting"
    for number, line in enumerate(text.split("\n"), 1):
        if too_wide(line):
            yield f"{name}:{number}: {len(line)} columns, at most {COLUMNS}"
    for number, words in links(page, text):
        yield f"{name}:{number}: {words}"


def main():
    found = [one for page in pages() for one in findings(page)]
    print(*found, sep="\n", end="\n" if found else "")
    chart = subprocess.run([sys.executable, ROOT / "docs/scripts/chart.py", "--check"])
    sys.exit(1 if found or chart.returncode else 0)


if __name__ == "__main__":
    main()
