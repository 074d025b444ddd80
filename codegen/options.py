"""What the commands' options are called and stand for, and the error of a command line that cannot be meant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Specs = Annotated[Path, typer.Option("--specs", help="The folder of specs.")]
Out = Annotated[Path, typer.Option("--out", help="The package to write; its parent must be importable.")]
TestsOut = Annotated[
    Path | None,
    typer.Option("--tests", help="Where the property-test modules go: tests/NAME next to --out NAME; '' writes none."),
]
Names = Annotated[list[str] | None, typer.Argument(metavar="[OP]...", help="Ops by name; all where none is named.")]
OutRead = Annotated[Path, typer.Option("--package", help="The package of generated ops.")]
Archs = Annotated[str, typer.Option("--arch", help="Architectures, separated by commas.")]
TypesWanted = Annotated[str, typer.Option("--types", help="Only these dtypes, as in T=bfloat16,S=float32.")]
ShapeWanted = Annotated[str, typer.Option("--shape", help='The extents, as in "...=8192,N=4096".')]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

SPECS, OUT = Path("specs"), Path("generated")


class UsageError(Exception):
    """A mistake on the command line: one message, exit status 2."""
