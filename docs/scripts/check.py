#!/usr/bin/env python3
"""Checks the documents: lengths, columns, links and headings, navigation, numbers, the README's
chart and limits."""

import pathlib
import re
import subprocess
import sys
from functools import cache

import behind

ROOT = pathlib.Path(__file__).resolve().parents[2]
COLUMNS = 100
LINES = {"README.md": 150, "docs/architecture.md": 150, "docs/performance/*.md": 120}
INDICES = ("docs/performance/README.md", "docs/lab/README.md")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"\s*```")


def pages():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return [ROOT / name for name in listed.stdout.split("\n") if name and (ROOT / name).exists()]


def outside_code(text):
    """The lines of a page, those of code blocks left empty: numbers stay."""
    inside = False
    for line in text.split("\n"):
        fence = FENCE.match(line)
        yield "" if inside or fence else line
        inside ^= bool(fence)


@cache
def anchors(page):
    """Of headings, as GitHub and MkDocs make them."""
    found = set()
    for line in outside_code(page.read_text()):
        if heading := re.match(r"#+ (.*)", line):
            words = re.sub(
                r"[^\w\- ]",
                "",
                LINK.sub(lambda link: link.group().split("]")[0][1:], heading.group(1)).lower(),
            )
            found.add(words.replace(" ", "-"))
    return found


def too_wide(line):
    """Tables and lines that a link makes long may be."""
    return (
        len(line) > COLUMNS
        and not line.startswith("|")
        and not (LINK.search(line) and " " not in line.strip())
    )


def links(page, text):
    for number, line in enumerate(outside_code(text), 1):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                yield number, f"{target}: there is no such file"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
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


def navigation():
    """Every page is in mkdocs.yml once, and every page of a folder with an index of its own in
    that."""
    names = {page.relative_to(ROOT).as_posix() for page in pages()}
    listed = re.findall(
        r"([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2], flags=re.M
    )
    yield from (f"mkdocs.yml: the navigation lacks {name}" for name in sorted(names - set(listed)))
    yield from (
        f"mkdocs.yml: {name} is twice in the navigation"
        for name in sorted(set(listed))
        if listed.count(name) > 1
    )
    for name in sorted(set(listed) - names):
        if not name.startswith("docs/api/"):  # which site.py makes
            yield f"mkdocs.yml: {name} is in the navigation, and there is no such page"
    for index in INDICES:
        linked = {target.partition("#")[0] for target in LINK.findall((ROOT / index).read_text())}
        for page in sorted((ROOT / index).parent.glob("*.md")):
            if page.name not in linked and page.name != "README.md":
                yield f"{index}: it lacks a link to {page.name}"


def limits():
    """The README names each case in which another library is faster."""
    said = behind.sentence((ROOT / behind.PAGE).read_text())
    if said not in " ".join((ROOT / "README.md").read_text().split()):
        yield f"README.md: the limits do not say what {behind.PAGE} measured: {said}"


def faults():
    """How many faults tests seed: the list without its three marks."""
    text = (ROOT / "tests/support/faulty_attention.h").read_text()
    return (
        len(
            re.findall(
                r"^  \w+,?(?:  //.*)?$",
                text[text.index("enum class Fault") : text.index("};")],
                flags=re.M,
            )
        )
        - 3
    )


# Numbers that the sources know: a page, the words around one, and what is right. tests/cli has
# those that the program knows.
NUMBERS = (("docs/contract.md", "a test applies {} faults", faults),)


def numbers():
    for page, words, right in NUMBERS:
        said = words.format(right())
        if said not in " ".join((ROOT / page).read_text().split()):
            yield f'{page}: it does not say "{said}"'


def reading_order():
    """Each list of the page has at most 18 files, and no more lines than its heading says."""
    page = "docs/internals/reading_order.md"
    for section in (ROOT / page).read_text().split("\n## ")[1:]:
        heading, most = (
            section.split("\n")[0],
            int(re.search(r"([\d,]+) lines", section).group(1).replace(",", "")),
        )
        files = re.findall(r"^\d+\. `([^`]+)`", section, re.M)
        lines = sum(
            len((ROOT / name).read_text().splitlines()) for name in files if (ROOT / name).exists()
        )
        if len(files) > 18 or lines > most:
            yield (
                f"{page}: {heading}: {len(files)} files of {lines} lines, 18 of {most} are accepted"
            )


def main():
    found = [one for page in pages() for one in findings(page)] + [
        *navigation(),
        *limits(),
        *numbers(),
        *reading_order(),
    ]
    print(*found, sep="\n", end="\n" if found else "")
    chart = subprocess.run([sys.executable, ROOT / "docs/scripts/chart.py", "--check"])
    sys.exit(1 if found or chart.returncode else 0)


if __name__ == "__main__":
    main()
