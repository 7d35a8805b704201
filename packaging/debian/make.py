#!/usr/bin/env python3
"""What a Debian package has beside the files that other systems take: a changelog, made of
CHANGELOG.md, and a manual page, made of docs/guide/cli.md.

    packaging/debian/make.py FOLDER     writes changelog.gz and fulmen.1.gz there; SOURCE_DATE_EPOCH
                                        has their date
"""

import datetime
import email.utils
import gzip
import os
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import release  # noqa: E402

CONTACT = "Fulmen developers <fulmen@localhost>"


def day(seconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def plain(markdown: str) -> str:
    """A paragraph of Markdown as words alone, on one line."""
    text = re.sub(r"\s\(\[[^]]*\]\([^)]*\)\)", "", markdown)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"`|\*\*", "", text).split())


def changelog(changes: str, version: str, seconds: int) -> str:
    """CHANGELOG.md's first section in Debian's form."""
    first = re.split(r"^## .*\n", changes, flags=re.MULTILINE)[1]
    items = [plain(item) for item in re.split(r"^- ", first, flags=re.MULTILINE)[1:]]
    if not items:
        raise SystemExit("CHANGELOG.md's first section has no list of changes")
    lines = [
        textwrap.fill(item, 78, initial_indent="  * ", subsequent_indent="    ") for item in items
    ]
    date = email.utils.format_datetime(day(seconds))
    return (
        f"fulmen ({version}) stable; urgency=medium\n\n"
        + "\n".join(lines)
        + f"\n\n -- {CONTACT}  {date}\n"
    )


def commands(guide: str) -> list[tuple[str, str]]:
    """The table of commands in docs/guide/cli.md."""
    found = re.findall(r"^\| `(fulmen [^`]+)` \| (.+) \|$", guide, re.MULTILINE)
    if not found:
        raise SystemExit("docs/guide/cli.md has no table of commands")
    return [(name, plain(what)) for name, what in found]


def roff(text: str) -> str:
    return text.replace("\\", r"\e").replace("-", r"\-")


def manual(guide: str, version: str, seconds: int) -> str:
    page = [
        f'.TH FULMEN 1 "{day(seconds).date()}" "fulmen {version}" "User Commands"',
        ".SH NAME",
        r"fulmen \- exact attention on CPUs and GPUs",
        ".SH SYNOPSIS",
        r"\fBfulmen\fR \fICOMMAND\fR [\fIOPTION\fR]...",
        ".SH DESCRIPTION",
        "Computes attention and its gradients, and says what runs where. Every command lists its",
        r"options by \fB\-\-help\fR.",
        ".SH COMMANDS",
    ]
    for name, what in commands(guide):
        page += [".TP", rf"\fB{roff(name)}\fR", roff(what[:1].upper() + what[1:]) + "."]
    page += [
        ".SH EXIT STATUS",
        "0, 1 (a result is wrong, no memory, a defect), or 2 and a sentence on what the caller can",
        "mend.",
    ]
    return "\n".join(page) + "\n"


def main() -> None:
    (folder,) = map(pathlib.Path, sys.argv[1:])
    version, seconds = release.stated(ROOT)[0][1], int(os.environ["SOURCE_DATE_EPOCH"])
    guide = (ROOT / "docs/guide/cli.md").read_text()
    files = {
        "changelog.gz": changelog((ROOT / "CHANGELOG.md").read_text(), version, seconds),
        "fulmen.1.gz": manual(guide, version, seconds),
    }
    for name, text in files.items():
        # Without a time in it: the same text gives the same bytes.
        (folder / name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
