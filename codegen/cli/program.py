"""The commands, and how their errors end.

Heavy imports stand inside the commands: `codegen --help` and everything up to `codegen build` load neither JAX nor
CuTe DSL.
"""

from __future__ import annotations

import gc
import io
import sys
import warnings
from pathlib import Path
from typing import Annotated

try:
    import typer
except ModuleNotFoundError:  # said here, before other modules of the command line import it
    print("error: typer is not installed: pip install 'cutefuse[build]'", file=sys.stderr)
    sys.exit(2)

from codegen import __version__
from codegen.cli.commands import kernels as kernel_commands
from codegen.cli.commands import models as model_commands
from codegen.cli.commands import specs as spec_commands
from codegen.cli.commands import tuning as tuning_commands
from codegen.cli.options import UsageError, print_error
from codegen.errors import SpecError
from codegen.extras import MissingExtra

app = typer.Typer(
    name="codegen",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"codegen {__version__} (cutefuse)")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Fused GPU ops for JAX from YAML: readable CuTe DSL kernels, checked against a jnp reference."""


for name, command, summary in (
    ("init", spec_commands.init, "Make this folder a project, with a first spec."),
    ("new", spec_commands.new, "Write a starter spec, or the spec of a JAX function."),
    ("build", spec_commands.build, "Turn specs into kernels, JAX functions and tests."),
    ("check", spec_commands.check, "Check that the generated files are up to date."),
    ("list", spec_commands.list_ops, "List the ops, by kind or by words."),
    ("schema", spec_commands.schema, "Print the JSON Schema of a spec, for editors."),
    ("suggest", model_commands.suggest, "Find the parts of a JAX function that are worth an op."),
    ("explain", kernel_commands.explain, "Show an op's graph, plan, bytes and least time."),
    ("compile", kernel_commands.compile_ops, "Compile kernels without a GPU: registers, spills, PTX."),
    ("verify", kernel_commands.verify_ops, "Test ops against their references with random calls."),
    ("bench", kernel_commands.bench, "Time ops on this GPU against XLA and a copy."),
    ("tune", tuning_commands.tune, "Search for faster launches on this GPU."),
    ("export", kernel_commands.export_op, "Write an op with its kernel as a jax.export artifact."),
    ("cache", kernel_commands.show_cache, "Show or remove the kernels and builds kept on disk."),
):
    app.command(name, short_help=summary)(command)


def _formatted(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning's text: one of this program's own is one line, without the place in its source."""
    own = Path(filename).is_relative_to(Path(__file__).parents[1])
    return f"warning: {message}\n" if own else _WITH_PLACE(message, category, filename, lineno, line)


_WITH_PLACE = warnings.formatwarning


def run() -> None:
    """Run the command line; user errors end in one message and exit status 2."""
    gc.set_threshold(100_000, 20, 100)  # with Python's defaults it takes about a tenth of a build
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a locale cannot encode is escaped, as it is on stderr
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.formatwarning = _formatted
    try:
        app()
    except (SpecError, UsageError, MissingExtra, OSError) as error:  # OSError: a folder that cannot be read or written
        print_error(error)
        sys.exit(2)
