#!/usr/bin/env python3
"""Files that comments and pages name exist, one finding a line.

A comment names a file by its path or the end of it. A page's paths begin with a folder of the
repository or of src. A public header sends its reader to public headers and pages alone. docs/lab
and the changelog tell what was: they are left out."""

import pathlib
import re
import subprocess
import sys

PATH = re.compile(r"(?<![\w/.$<{*~}>-])((?:[\w.-]+/)*[\w-]+\.(?:h|cpp|py|rs|md|cmake))(?![\w*<{-])")
COMMENT = {
    ".h": r"//|/\*|^ \*",
    ".cpp": r"//",
    ".c": r"//|/\*",
    ".rs": r"//",
    ".py": r"#",
    ".cmake": r"#",
}
# Files that other projects have, and a project and a folder whose names end as a file's.
OTHERS = {"hip_runtime.h", "xla/ffi/api/c_api.h", "llama.cpp", "integrations/llama.cpp"}


def named(name, lines):
    """Numbers of lines and the paths that they name in comments, or in a page's code."""
    for number, line in enumerate(lines, 1):
        if name.endswith(".md"):
            texts = re.findall(r"`([^`]+)`", line)
        else:
            found = re.search(rf"(?:{COMMENT[pathlib.Path(name).suffix]})(?![^\"]*\",)(.*)", line)
            texts = [found.group(1)] if found else []
        for text in texts:
            for path in PATH.findall(text):
                yield number, path


def findings(root, files):
    ends = {
        "/".join(parts[at:])
        for parts in (file.split("/") for file in files)
        for at in range(len(parts))
    }
    folders = {parts[0] for parts in (file.split("/") for file in files) if len(parts) > 1}
    folders |= {file.split("/")[1] for file in files if file.startswith("src/")}
    for file in files:
        page = file.endswith(".md")
        if (
            file.startswith("docs/lab/")
            or file == "CHANGELOG.md"
            or not (page or pathlib.Path(file).suffix in COMMENT)
        ):
            continue
        for number, path in named(file, (root / file).read_text(errors="replace").split("\n")):
            if path in OTHERS or (page and path.split("/")[0] not in folders):
                continue
            if path not in ends:
                yield f"{file}:{number}: there is no {path}"
            elif (
                file.startswith("include/")
                and f"include/fulmen/{path.removeprefix('fulmen/')}" not in files
                and path[:5] != "docs/"
            ):
                yield (
                    f"{file}:{number}: {path} in a public header: its readers have fulmen/*.h and "
                    "docs/"
                )


def main():
    root = pathlib.Path(
        sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1]
    )
    command = ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    found = list(
        findings(root, sorted(file for file in set(listed) if file and (root / file).is_file()))
    )
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
