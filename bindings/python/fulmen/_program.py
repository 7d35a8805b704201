"""The command line: what `fulmen` and `python -m fulmen` run."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the program that lies beside the library."""
    program = Path(__file__).parent / "bin" / "fulmen"
    if not program.exists():
        sys.exit(
            "This build of the package has no command line. The wheels of ./dev wheels have it; "
            "./dev build makes it, too: build/release/fulmen."
        )
    os.execv(program, ["fulmen", *sys.argv[1:]])
