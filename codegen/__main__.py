"""Runs the program. Ctrl-C ends it without a traceback, also while its modules are imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exit status 130 where Ctrl-C ended it."""
    try:
        from codegen.cli.program import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
