#!/usr/bin/env python3
"""Writes the first program in a language that a page shows to a file:
packaging/readme_program.py README.md python build/readme.py"""

import pathlib
import re
import sys

page, language, output = sys.argv[1:]
found = re.search(rf"^```{language}\n(.*?)^```$", pathlib.Path(page).read_text(), re.M | re.S)
if found is None:
    sys.exit(f"{page} has no program in {language}")
pathlib.Path(output).write_text(found[1])
