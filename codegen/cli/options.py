"""The options that commands share, and the error for a wrong command line. An option has one name in all commands. Its old
names are hidden options, for the scripts that use them."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from codegen.cli.completing import built_ops
from codegen.cli.project import PACKAGE, SPECS, Project, checked_architectures
from codegen.errors import SpecError, UserError, printable
from codegen.targets import USUAL

Specs = Annotated[Path | None, typer.Option("--specs", help="The folder of specs.", show_default=str(SPECS))]
Package = Annotated[
    Path | None,
    typer.Option("--package", help="The folder of the package of generated ops.", show_default=str(PACKAGE)),
]
OldPackage = Annotated[Path | None, typer.Option("--out", hidden=True)]  # of the commands that write the package
Tests = Annotated[
    Path | None,
    typer.Option(
        "--tests",
        help="The folder of the property tests; '' writes none.",
        show_default="tests/NAME next to the package NAME",
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="OP", help="Names of ops; by default all.", autocompletion=built_ops),
]
Archs = Annotated[
    str | None, typer.Option("--arch", help="Architectures, separated by commas.", show_default=USUAL, metavar="ARCH")
]
Types = Annotated[str, typer.Option("--types", help="Only these dtypes, as in T=bfloat16,S=float32.")]
Shape = Annotated[str, typer.Option("--shape", help='The size of each axis, as in "...=8192,N=4096".')]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", help='A shape to use instead of the specs\' own, as in "N=8191"; may be repeated.'),
]
Like = Annotated[
    list[str] | None,
    typer.Option("--like", help='An argument of the function, as in "x=bfloat16[8192,4096]"; may be repeated.'),
]
Kind = Annotated[str, typer.Option("--kind", help="Only ops of this kind, as in elementwise.")]
OldKind = Annotated[str, typer.Option("--suite", hidden=True)]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="Number of processes that compile; by default one per core.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class UsageError(Exception):
    """An error on the command line: one message, exit status 2."""


def print_error(error: Exception) -> None:
    """Print a user's error, or an OSError of a folder, to stderr."""
    if isinstance(error, SpecError):
        print(error, file=sys.stderr)
        return
    text = str(error)
    if isinstance(error, OSError) and error.strerror:  # Python's own text begins with the error's number
        paths = " -> ".join(str(path) for path in (error.filename, error.filename2) if path is not None)
        if not paths and error.errno == errno.ENOENT:  # of os.getcwd
            paths = " ".join(("the current folder", os.environ.get("PWD", ""))).strip()
        text = f"{paths}: {error.strerror}" if paths else error.strerror
    print(f"error: {printable(text, keep=chr(10))}", file=sys.stderr)


@contextlib.contextmanager
def usage() -> Iterator[None]:
    """A context in which a `UserError` is an error of the command line. Raises `UsageError`."""
    try:
        yield
    except UserError as error:
        raise UsageError("\n  ".join(filter(None, (error.message, error.hint)))) from None


def read_types(text: str) -> dict[str, str]:
    """The dtype of each type variable in `T=bfloat16,S=float32`. Raises `UsageError`."""
    pairs = [pair.partition("=") for pair in text.split(",") if text]
    for name, equals, dtype in pairs:
        if not (name.strip() and equals and dtype.strip()):
            raise UsageError(f"cannot read --types {text!r}: write it as in T=bfloat16")
    if len({name.strip() for name, _, _ in pairs}) < len(pairs):
        raise UsageError(f"--types {text!r} gives a dtype twice")
    return {name.strip(): dtype.strip() for name, _, dtype in pairs}


def read_architectures(text: str | None, project: Project) -> tuple[str, ...]:
    """The architectures of `sm_90a,sm_100a`; by default the project's, or else the usual ones. Raises `UsageError`."""
    if text is None and project.arch:
        return project.arch
    with usage():
        return checked_architectures((USUAL if text is None else text).split(","))


def check_kind(kind: str, kinds: Iterable[str]) -> None:
    """Check that there are ops of a kind. Raises `UsageError`."""
    if kind and kind not in kinds:
        raise UsageError(f"--kind {kind!r}: the ops are of the kinds {', '.join(sorted(kinds))}")
