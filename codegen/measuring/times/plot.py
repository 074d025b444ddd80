"""The charts of a benchmark: each op's speed over XLA and its part of the limit, and an op's bandwidth against size."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen import extras
from codegen.measuring.times.measurement import Measurement

with extras.needed("bench"):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.axes import Axes

OURS, XLA, COPY, INK, PALE = "#1a7f37", "#7f93b2", "#9aa1ab", "#1f2328", "#d8dee4"
MANY = 26  # rows of one column: more go into two, so that a chart fits a screen
ROW, HEAD, DPI = 0.185, 0.95, 110  # inches, inches, dots an inch
SIZES = 4  # an op measured at this number of sizes, each at least twice the one before, has a curve


@dataclass(frozen=True)
class Bar:
    """A row of the chart. `of_limit` is the speed over the limit's, a copy's or a product's; None where there is no limit."""

    group: str
    label: str
    over_xla: float
    of_limit: float | None


# Speed over XLA and of the limit


def bars(measured: Iterable[Measurement]) -> list[Bar]:
    """A bar for each measurement that did not fail. Its label has the shape where an op has several."""
    rows = [m for m in measured if not m.error]
    found = []
    for m in rows:
        several = sum(other.op == m.op for other in rows) > 1
        label = f"{m.op}  {' x '.join(str(extent) for _, extent in m.shape)}" if several else m.op
        found.append(Bar(m.kind or "ops", label, m.over_xla, None if m.kind == "gemm" else m.of_limit))
    return found


def arranged(rows: Iterable[Bar]) -> list[list[Bar]]:
    """The chart's columns: one, or two of about the same height. Groups are sorted by name, and the bars in each by their
    speed over XLA."""
    groups: dict[str, list[Bar]] = {}
    for bar in sorted(rows, key=lambda bar: (bar.group, -bar.over_xla)):
        groups.setdefault(bar.group, []).append(bar)
    if sum(map(len, groups.values())) <= MANY or len(groups) == 1:
        return [[bar for group in groups.values() for bar in group]]
    halves: tuple[list[Bar], list[Bar]] = ([], [])
    for group in sorted(groups.values(), key=len, reverse=True):
        min(halves, key=len).extend(group)
    return [sorted(half, key=lambda bar: bar.group) for half in halves]  # stable: each group stays sorted


def chart(rows: Sequence[Bar], title: str, path: Path) -> None:
    """Write the chart: for each group of ops, bars of the speed over XLA, next to dots of the part of the limit."""
    columns = arranged(rows)
    lines = [_lines(column) for column in columns]
    height = HEAD + ROW * max([len(column) for column in lines], default=1)
    figure = pyplot.figure(
        figsize=(6.4 * len(columns) if len(columns) > 1 else 8, max(2.2, height)), layout="constrained"
    )
    grid = figure.subplots(1, 2 * len(columns), squeeze=False, gridspec_kw={"width_ratios": [3, 2] * len(columns)})[0]
    fastest = max([bar.over_xla for bar in rows], default=1.0)
    deepest = max([len(column) for column in lines], default=1)
    for place, column in enumerate(lines):
        _speeds(grid[2 * place], column, fastest, deepest)
        _limits(grid[2 * place + 1], column, deepest)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=INK)
    figure.savefig(path, dpi=DPI, facecolor="white")
    pyplot.close(figure)


def _lines(column: Sequence[Bar]) -> list[Bar | str]:
    """The rows of a column from top to bottom: a group's name, then its bars."""
    found: list[Bar | str] = []
    for group, members in itertools.groupby(column, key=lambda bar: bar.group):
        found += [group, *members]
    return found


def _speeds(axes: Axes, lines: Sequence[Bar | str], fastest: float, deepest: int) -> None:
    for height, bar in enumerate(lines):
        if isinstance(bar, Bar):
            axes.barh(height, bar.over_xla, 0.72, color=OURS if bar.over_xla >= 0.995 else XLA)
            axes.text(max(1.0, bar.over_xla), height, f" {bar.over_xla:.2f}", va="center", fontsize=7.5, color=INK)
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_xlim(0, 1.12 * max(1.0, fastest))
    axes.set_title("times as fast as XLA", fontsize=8.5, loc="left", color=INK)
    axes.set_yticks(range(len(lines)), [bar if isinstance(bar, str) else bar.label for bar in lines], fontsize=8)
    for bar, text in zip(lines, axes.get_yticklabels(), strict=True):
        if isinstance(bar, str):
            text.set_fontweight("bold")
    _plain(axes, deepest)


def _limits(axes: Axes, lines: Sequence[Bar | str], deepest: int) -> None:
    for height, bar in enumerate(lines):
        if isinstance(bar, Bar) and bar.of_limit is not None:
            axes.plot([0, bar.of_limit], [height, height], color=PALE, linewidth=1)
            axes.plot(bar.of_limit, height, "o", color=OURS, markersize=4)
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_xlim(0, 1.15)
    axes.set_title("of the limit", fontsize=8.5, loc="left", color=INK)
    axes.set_yticks([])
    _plain(axes, deepest)


def _plain(axes: Axes, deepest: int) -> None:
    axes.set_ylim(deepest - 0.4, -0.6)
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(axis="both", length=0, labelsize=8)
    axes.grid(axis="x", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)


# Bandwidth against size


def curves(measured: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    """The ops that were measured at enough sizes (`SIZES`), each with its measurements by size."""
    found: dict[str, list[Measurement]] = {}
    for m in sorted((m for m in measured if not m.error), key=lambda m: m.bytes):
        found.setdefault(m.op, []).append(m)
    return {op: rows for op, rows in found.items() if _doublings(m.bytes for m in rows) >= SIZES - 1}


def _doublings(sizes: Iterable[int]) -> int:
    """The number of sizes that are at least twice the last counted one, in increasing order."""
    count, last = -1, 0.0
    for size in sizes:
        if size >= 2 * last:
            count, last = count + 1, size
    return count


def bandwidth(rows: Sequence[Measurement], where: Mapping[str, str], path: Path) -> None:
    """Write the chart of one op's bandwidth against the bytes of a call, with XLA's and a copy's."""
    figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
    for name, label, color in (("copy", "device copy", COPY), ("xla", "XLA", XLA), ("ours", "cutefuse", OURS)):
        axes.plot(
            [m.bytes for m in rows], [m.bandwidth(name) for m in rows], "o-", color=color, label=label, markersize=4
        )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("bytes of a call: each input read once and each output written once")
    axes.set_ylabel("TB/s")
    axes.set_title(f"{rows[0].op} ({rows[0].types_text}), {_machine(where)}", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=PALE, linewidth=0.6)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=DPI, facecolor="white")
    pyplot.close(figure)


def _machine(where: Mapping[str, str]) -> str:
    return f"{where['gpu']}, {where['date']}"


def write_charts(measured: Sequence[Measurement], where: Mapping[str, str], out: Path, name: str) -> list[Path]:
    """Write NAME.png, and NAME-OP.png for each op with a curve; returns the files."""
    paths = [out / f"{name}.png"]
    chart(
        bars(measured), f"{_machine(where)}. The limit is a copy of the same number of bytes on the same GPU.", paths[0]
    )
    for op, rows in curves(measured).items():
        paths.append(out / f"{name}-{op}.png")
        bandwidth(rows, where, paths[-1])
    return paths
