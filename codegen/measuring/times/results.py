"""The results of a benchmark as JSON, as a table and as a page with charts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codegen import extras
from codegen.explain.tables import size_text, time_text
from codegen.measuring.times.measurement import Measurement

with extras.needed("bench"):
    from rich.table import Table


def as_json(measured: Sequence[Measurement], where: Mapping[str, str]) -> dict[str, Any]:
    """All results, with the times of each group."""
    rows: list[dict[str, Any]] = []
    for m in measured:
        row: dict[str, Any] = {"op": m.op, "shape": dict(m.shape), "types": dict(m.types), "bytes": m.bytes}
        row |= {"kind": m.kind} if m.kind else {}
        if m.error:
            rows.append(row | {"error": m.error})
            continue
        row |= {"us": {name: round(m.us(name), 3) for name, _ in m.groups}}
        row |= {"tb_s": {name: round(m.bandwidth(name), 4) for name, _ in m.groups}}
        row |= {"over_xla": round(m.over_xla, 4), "of_copy": round(m.of_copy, 4)}
        row |= {"limit": m.limit[0], "of_limit": round(m.of_limit, 4)}
        row |= {"instructions_us": {name: round(us, 3) for name, us in m.instructions}}
        rows.append(row | {"groups_us": {name: [round(t, 3) for t in times] for name, times in m.groups}})
    return {"machine": dict(where), "measurements": rows}


def from_json(results: Mapping[str, Any]) -> tuple[list[Measurement], dict[str, str]]:
    """Reads the output of `as_json`: the measurements and the machine."""
    measured = [
        Measurement(
            row["op"],
            tuple(row["shape"].items()),
            tuple(row["types"].items()),
            row["bytes"],
            tuple((name, tuple(times)) for name, times in row.get("groups_us", {}).items()),
            row.get("error", ""),
            row.get("kind", ""),
            tuple(row.get("instructions_us", {}).items()),
        )
        for row in results["measurements"]
    ]
    return measured, results["machine"]


HEADINGS = (
    "op",
    "shape",
    "types",
    "bytes",
    "ours",
    "XLA",
    "copy",
    "TB/s ours",
    "XLA",
    "copy",
    "over XLA",
    "of copy",
    "of limit",
)


def cells(m: Measurement) -> tuple[str, ...]:
    """A measurement's row under `HEADINGS`."""
    first = (m.op, m.shape_text, m.types_text, size_text(m.bytes))
    if m.error:
        return (*first, m.error, *[""] * 8)
    names = ("ours", "xla", "copy")
    times = [time_text(m.us(name)) for name in names]
    speeds = [speed_text(m.bandwidth(name)) for name in names]
    return (*first, *times, *speeds, f"{m.over_xla:.2f}x", f"{m.of_copy:.2f}", f"{m.of_limit:.2f} {m.limit[0]}")


def speed_text(tb_s: float) -> str:
    return f"{tb_s:.2f}" if tb_s >= 0.01 else "< 0.01"


def as_table(measured: Sequence[Measurement]) -> Table:
    """The table for a terminal of 80 columns, where calls are wrapped. The page has the other speeds too."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("call", overflow="fold")
    places = [HEADINGS.index(name) for name in HEADINGS[3:8]] + [-3, -1]
    for place in places:
        table.add_column(HEADINGS[place], justify="right")
    for m in measured:
        row = cells(m)
        table.add_row(" ".join(row[:3]), *(row[place] for place in places), style="red" if m.error else "")
    return table


def as_markdown(measured: Sequence[Measurement], where: Mapping[str, str], name: str, command: str) -> str:
    """The page that goes with the chart."""
    facts = ", ".join(
        v if k in ("gpu", "date") else f"{k} {v}" for k, v in where.items() if k not in ("clock", "empty call")
    )
    clock = {
        "device": "Times are what the GPU worked on a call, by its own clock; Python takes longer to dispatch a short one: "
        f"{where['empty call']} for a call with nothing to do.",
        "host": f"Times are Python's. A call with nothing to do took {where['empty call']}: times near that say little about a kernel.",
    }[where.get("clock", "host")]
    rows = [HEADINGS, tuple("---" if i < 3 else "---:" for i in range(len(HEADINGS))), *map(cells, measured)]
    return "\n".join(
        [
            f"# {name}",
            "",
            f"{facts}.",
            "",
            f"Measured with `{command}`: the median of groups of calls queued back to back, the candidates in turns.",
            "XLA compiles the spec's reference; the copy moves the same number of bytes, half read and half written. Bytes and TB/s",
            "count each input read once and each output written once. The limit is the longest of the copy's time and the times that the",
            "kernel's instructions take at full rate: all of them (issue), those of special functions and conversions (special), and those of",
            "integers, comparisons and selections (half).",
            "",
            clock,
            "",
            f"![speed over XLA, and of a copy]({name}.png)",
            "",
            *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows),
            "",
        ]
    )


def write(measured: Sequence[Measurement], where: Mapping[str, str], out: Path, name: str, command: str) -> list[Path]:
    """Write the results as JSON, a page and charts; returns the files."""
    from codegen.measuring.times.plot import write_charts

    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.{ending}" for ending in ("json", "md")]
    paths[0].write_text(json.dumps(as_json(measured, where), indent=1) + "\n", encoding="utf-8")
    paths[1].write_text(as_markdown(measured, where, name, command), encoding="utf-8")
    return [*paths, *write_charts(measured, where, out, name)]
