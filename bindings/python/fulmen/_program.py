"""The command line: what `fulmen` and `python -m fulmen` run."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the program that lies beside the library; `doctor --torch` alone is Python's."""
    if sys.argv[1:2] == ["doctor"] and "--torch" in sys.argv:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            sys.exit(f"fulmen doctor --torch: torch cannot be imported: {error}")
        from fulmen.torch._doctor import main as examine_torch

        return examine_torch(sys.argv[2:])
    windows = sys.platform == "win32"  # which looks for the library beside the program
    program = Path(__file__).parent / ("fulmen.exe" if windows else "bin/fulmen")
    if not program.exists():
        sys.exit(
            "This build of the package has no command line. The wheels of ./dev wheels have it; "
            "./dev build makes it, too: build/release/fulmen."
        )
    if windows:  # a program cannot become another one
        import subprocess

        sys.exit(subprocess.call([program, *sys.argv[1:]]))
    return os.execv(program, ["fulmen", *sys.argv[1:]])
