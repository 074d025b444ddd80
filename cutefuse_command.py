"""The commands `codegen` and `cutefuse`, which are one program.

It stands outside the package `codegen`, so that it can say so where that name is another distribution's.
"""

from __future__ import annotations

import importlib.util
import sys


def main() -> None:
    """Run the command line. Exit status 2 where the package `codegen` is not this program's, and 130 where Ctrl-C ended it."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    other = _other()
    if not _is_whole():
        where = f"the distribution {other}, another program, is installed" if other else "another program is installed"
        remedy = "pip install --force-reinstall --no-deps cutefuse"
        if other:
            remedy = f"pip uninstall codegen && {remedy}"
        print(f"error: {where} as the package `codegen`, which cutefuse needs\n  {remedy}", file=sys.stderr)
        sys.exit(2)
    if other:
        print(f"warning: {other}, another program, has files in cutefuse's package `codegen`", file=sys.stderr)
    from codegen.cli.program import run

    run()


def _other() -> str:
    """The foreign distribution named codegen, with its version; "" where there is none."""
    from importlib import metadata  # slow, and Ctrl-C has no traceback from here on

    try:
        return f"codegen {metadata.version('codegen')}"
    except metadata.PackageNotFoundError:
        return ""


def _is_whole() -> bool:
    """Whether `import codegen` finds this program: a foreign one has no such modules."""
    try:
        return importlib.util.find_spec("codegen.op_package") is not None
    except ModuleNotFoundError:  # codegen is no package at all
        return False
