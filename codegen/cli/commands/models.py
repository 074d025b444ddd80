"""The command `suggest`. Its heavy imports are inside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from codegen.cli.loading import arguments_like, arguments_of, load_function
from codegen.cli.options import AsJson, Like, Specs, UsageError, usage
from codegen.cli.printing import gather, show
from codegen.cli.project import find_project
from codegen.errors import known, named, shown

MOST_ENDS = 4  # steps at which chains end, that are shown
SMALL = 0.01  # of all the time that is saved: a chain that saves less is left out


def suggest(
    function: Annotated[str, typer.Argument(help="A JAX function, MODULE:FUNCTION.", metavar="FUNCTION")],
    arguments: Annotated[
        str, typer.Option("--arguments", help="A function, MODULE:FUNCTION, that gives its arguments as a tuple.")
    ] = "",
    like: Like = None,
    gpu: Annotated[str, typer.Option("--gpu", help="The GPU whose bandwidth decides, as in A100 or B200.")] = "H100",
    write: Annotated[
        bool, typer.Option("--write", help="Write the specs, and show the lines that call the ops.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="On this GPU: time each against XLA, and leave out slower ones.")
    ] = False,
    specs: Specs = None,
    as_json: AsJson = False,
) -> None:
    """Find the parts of a JAX function that are worth an op: of a loss, a layer, or a whole step of training with its gradients.

    A suggestion is a chain of the function's steps that XLA computes in several kernels, and that one kernel computes with less
    memory traffic. It is compared with the function's own steps before it is shown. XLA's traffic is read from the program that it
    compiles on a GPU; elsewhere a model of how XLA fuses estimates it. --measure times both.

    \b
    Example: codegen suggest my_module:step --arguments my_module:arguments
    Example: codegen suggest my_module:norm --like "x=bfloat16[8192,4096]" --write
    """
    if arguments and like:
        raise UsageError("--arguments and --like both give the function's arguments: leave one out")
    found = load_function(function)
    given = arguments_of(arguments) if arguments else arguments_like(found, like or [])
    project = find_project().at(specs)
    from codegen.fusing import suggest as suggesting
    from codegen.measuring.times import device_time

    chosen = _gpu(gpu)
    if measure and not device_time.is_available():
        raise UsageError("--measure: JAX has no NVIDIA GPU here whose kernels the profiler sees")
    with usage():
        every, ends = suggesting.looked_at(found, given)
    checked, whole = _checked(every)
    least = SMALL * sum(one.saved for one in checked)
    worth = sorted((one for one in checked if one.saved >= least), key=lambda one: -one.saved)
    times: dict[str, tuple[float, float]] = {}
    if measure:
        for one in worth:
            measured = device_time.measure(suggesting.candidates(one), 4, 8)
            times[one.name] = min(measured["xla"]), min(measured["op"])
        worth = [one for one in worth if times[one.name][1] < times[one.name][0]]
    if as_json:
        print(json.dumps([one.data(chosen) | _measured(times.get(one.name)) for one in worth], indent=2))
    else:
        _show(worth, chosen, times, len(every) - len(worth) if whole else 0)
        for end in ends[:MOST_ENDS]:
            print(
                f"chains end at {_short(end.place.path)}:{end.place.line}: {'; '.join(filter(None, (end.message, end.hint)))}"
            )
    if write:
        _write(worth, project.specs)


def _gpu(name: str) -> Any:
    """The GPU whose name has this part. Raises `UsageError`."""
    from codegen.targets import GPUS

    for gpu in GPUS:
        if name.lower() in gpu.name.lower():
            return gpu
    raise UsageError(f"unknown GPU {shown(name)}\n  {known(name, (gpu.name for gpu in GPUS))}")


def _checked(every: list[Any]) -> tuple[list[Any], bool]:
    """The suggestions whose compiled ops compute what the function's own steps do; and whether all of them were compared."""
    from codegen.fusing import suggest as suggesting

    wrong: list[tuple[Any, str]] = []

    def verified() -> Iterator[Any]:
        for one in every:
            if disagrees := suggesting.disagreement(one):
                wrong.append((one, disagrees))
            elif (found := suggesting.compiled(one)) is not None:
                yield found

    checked, whole = gather(verified(), len(every), "comparing")
    for bad, disagrees in wrong:
        print(f"{bad.name} is left out: {disagrees}", file=sys.stderr)
    return checked, whole


def _write(found: list[Any], specs: Path) -> None:
    """Write the specs, and show the lines that call the ops."""
    from codegen.cli.files.outputs import put
    from codegen.cli.schema import SCHEMA_FILE, keep_schema
    from codegen.fusing import suggest as suggesting

    specs.mkdir(parents=True, exist_ok=True)
    for one in found:
        path = specs / f"{one.name}.yaml"
        if one.call is None and path.exists():
            print(f"{named(path)} exists already; it is left as it is")
        elif one.call is None:
            put(path, f"# yaml-language-server: $schema={SCHEMA_FILE}\n{one.made.text}".encode())
            print(f"wrote {named(path)}")
        print("\n".join([*suggesting.replacement(one), ""]))
    keep_schema(specs)


def _measured(times: tuple[float, float] | None) -> dict[str, float]:
    return {} if times is None else {"measured_xla": times[0], "measured_op": times[1]}


def _show(found: list[Any], gpu: Any, times: dict[str, tuple[float, float]], dropped: int) -> None:
    from rich.table import Table

    if not found:
        left_out = f" ({dropped} looked promising and {'is' if dropped == 1 else 'are'} not)" if dropped else ""
        print(f"nothing: XLA computes the chains in as little memory traffic as the ops would{left_out}")
        return
    table = Table(title=f"What is worth an op, by the bandwidth of one {gpu.name}", title_justify="left")
    for title in ("saves us", "where", "what", "times", "MB now", "fused", "us now", "fused", "library"):
        table.add_column(title, justify="left" if title in ("where", "what", "library") else "right", overflow="fold")
    if times:
        table.add_column("measured us", justify="right")
    from codegen.fusing.suggest import call_text

    for one in found:
        now, fused = (1e6 * t for t in one.seconds(gpu))
        places = [f"{_short(p.path)}:{p.line}" for p in one.places[:3]] + (["..."] if len(one.places) > 3 else [])
        cost = one.chain.cost
        row = [
            _number(now - fused), "\n".join(places), f"{one.name}\n{one.text}", str(one.times), _number(cost.now / 1e6),
            _number(cost.fused / 1e6), _number(now), _number(fused), call_text(one) if one.call else "-",
        ]  # fmt: skip
        own = times.get(one.name)
        table.add_row(*row, *([f"{own[0]:.3g} -> {own[1]:.3g}"] if own else []))
    show(table)
    total = sum(one.seconds(gpu)[0] - one.seconds(gpu)[1] for one in found)
    more = f"; {dropped} more were left out" if dropped else ""
    print(f"together {_number(1e6 * total)} us of a call{more}")


def _number(value: float) -> str:
    """Three digits, or all of a larger number."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _short(path: str) -> str:
    from pathlib import Path

    found = Path(path)
    return str(found.relative_to(Path.cwd())) if found.is_relative_to(Path.cwd()) else str(found)
