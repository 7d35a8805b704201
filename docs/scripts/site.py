#!/usr/bin/env python3
"""Builds the documentation site in build/site: the Markdown as it lies in the repository, and the
interfaces' pages.

Run by ./dev docs, in an environment that has mkdocs-material and mkdocstrings. A broken link, or a
public symbol without a comment or docstring, fails it.
"""

import pathlib
import shutil
import subprocess
import sys

import griffe
from api_reference import page

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = ROOT / "build" / "site-source"
COPIED = ["*.md", "LICENSE", "docs/images/*", "docs/scripts/site.css", "include/fulmen/*.h"]
MODULES = ["fulmen", "fulmen.torch", "fulmen.transformers", "fulmen.flash_attn", "fulmen.xformers"]


def stage():
    shutil.rmtree(SOURCE, ignore_errors=True)
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *COPIED]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\n")):
        if (ROOT / name).exists():
            (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, SOURCE / name)


def c_pages():
    include = ROOT / "include" / "fulmen"
    own = [include / "fulmen_c.h"]
    others = [
        one
        for one in sorted(include.glob("*.h"))
        if one not in own and one.name not in ("export.h", "fulmen.h")
    ]
    others.sort(key=lambda header: header.name != "attention.h")
    undocumented = []
    for name, title, headers, language in (
        ("cpp", "C++ interface", others, "cpp"),
        ("c", "C interface", own, "c"),
    ):
        text, missing = page(title, headers, language)
        (SOURCE / "docs" / "api").mkdir(exist_ok=True)
        (SOURCE / "docs" / "api" / f"{name}.md").write_text(text)
        undocumented += missing
    return undocumented


def python_page():
    package = griffe.load("fulmen", search_paths=[ROOT / "bindings" / "python"])
    undocumented, parts = [], ["# Python interface\n"]
    for name in MODULES:
        module = package if name == "fulmen" else package[name.removeprefix("fulmen.")]
        if not module.has_docstring:
            undocumented.append(f"{name}: the module has no docstring")
        members = [str(one) for one in module.exports or [] if not str(one).startswith("__")]
        known = []
        for member in members:
            try:
                target = module[member].final_target if module[member].is_alias else module[member]
            except (griffe.AliasResolutionError, KeyError):
                continue  # of the extension module, or of a package that is not here
            known.append(member)
            if not target.has_docstring and (target.is_class or target.is_function):
                undocumented.append(f"{name}.{member} has no docstring")
        shown = "[" + ", ".join(known) + "]" if known else "false"
        parts.append(f"## {name}\n\n::: {name}\n    options:\n      members: {shown}\n")
    (SOURCE / "docs" / "api" / "python.md").write_text("\n".join(parts))
    return undocumented


def main():
    stage()
    undocumented = c_pages() + python_page()
    if undocumented:
        sys.exit("\n".join(undocumented))
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "mkdocs.yml")],
        check=True,
    )
    print("build/site/index.html")


if __name__ == "__main__":
    main()
