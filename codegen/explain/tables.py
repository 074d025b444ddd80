"""Prints the report of `explain` as tables."""

from __future__ import annotations

from typing import Any

from codegen import extras
from codegen.explain.masks import words as mask_words
from codegen.explain.words import scaled_words, statistics_words

with extras.needed("build"):
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text


def as_text(report: dict[str, Any]) -> Group:
    """The report as tables."""
    title = Text.assemble((report["op"], "bold"), "  ", report["summary"])
    parts: list[Table | Group] = [_facts(report), _steps(report), _arrays(report), _costs(report), _rooflines(report)]
    if any(cost["main_loop"] or cost["main_loops"] for cost in report["costs"]):
        parts.insert(4, _main_loops(report))
    if report["stages"]:
        parts.insert(1, _stages(report["stages"]))
    if report["backward"]:
        parts.append(_backward(report["backward"]))
    if "interpreted" in report:
        parts.append(_interpreted(report))
    return Group(title, *(x for part in parts for x in ("", part)))


def _facts(report: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    saved, kernels = report["saved"], report["kernels"]
    rows = {
        "kind": report["why"],
        "statistics": statistics_words(report["statistics"]),
        "axes": report["groups_why"],
        "shape": ", ".join(f"{axis} = {extent}" for axis, extent in report["shape"].items()),
        "mask": mask_words(report["mask"]),
        "kernels": f"{kernels['fused']}; one for each operation would be {kernels['unfused']}",
        "scales": "; ".join(map(scaled_words, report["scaled"])),
        "saved": f"{', '.join(saved['names']) or 'nothing'} ({saved['why']})",
        "ragged": report["ragged"],
        "left to XLA": _left_to_xla(report),
    }
    for name, text in rows.items():
        if text:
            table.add_row(f"[bold]{name}[/bold]", escape(text))
    return table


def _left_to_xla(report: dict[str, Any]) -> str:
    """Why a call of this shape that names no implementation runs the jnp form, where it does."""
    apart = [cost for cost in report["costs"] if not (cost["main_loop"] or {}).get("one_kernel")]
    costs = [(cost, cost["launch_in_clusters"] or cost["launch"]) for cost in apart]
    found = [(_types_text(cost["types"]), launch.get("left_to_xla")) for cost, launch in costs]
    return "; ".join(f"{types}: {why}" for types, why in found if why)


def _backward(made: dict[str, Any]) -> Table:
    """The backward: its arrays and its chain, or why it has no kernel."""
    if not made["kernel"]:
        table = _table("backward: no kernel")
        table.add_row(escape(f"jax.vjp of the jnp form: {made['why']}"))
        return table
    table = _table("backward", "")
    if made["idle"]:
        table.add_row("kind", "no kernel but the sums by index")
    else:
        table.add_row("kind", escape(made["why"]))
        for what in ("inputs", "outputs"):
            table.add_row(what, escape(", ".join(f"{name}: {array}" for name, array in made[what].items())))
        for name, lines in _chains(made).items():
            for place, line in enumerate(lines):
                table.add_row("" if place else name, escape(line))
    for name, other in made["same"].items():
        table.add_row("", escape(f"the gradient of {name} is {other}"))
    for added in made["by_index"]:
        value = " / ".join([added["added"], *(f"size({axis})" for axis in added["divided"])])
        text = f"the gradient of {added['table']} is {value}, summed by {added['index']} along {added['axis']}"
        text += f": XLA's scatter, {why}" if (why := added["left_to_xla"]) else ", in a fixed order"
        table.add_row("", escape(text))
    if frozen := made["frozen"]:
        names = ", ".join(frozen["without"])
        table.add_row("frozen", escape(f"where no gradient of {names} is requested: {frozen['why']}"))
        for line in frozen["chain"]:
            table.add_row("", escape(line))
    return table


def _chains(made: dict[str, Any]) -> dict[str, list[str]]:
    """The chain of a backward, or the kernels of its stages and their chains."""
    found = {f"stage {i + 1}": [stage["why"], *stage["chain"]] for i, stage in enumerate(made["stages"])}
    return found or {"chain": made["chain"]}


def _stages(stages: list[dict[str, Any]]) -> Table:
    """The kernels of an op that needs several."""
    table = _table("stage", "kernel", "reads", "writes")
    for place, stage in enumerate(stages):
        reads, writes = (
            "\n".join(f"{name}: {array}" for name, array in stage[key].items()) for key in ("inputs", "outputs")
        )
        table.add_row(*map(escape, (str(place + 1), stage["why"], reads, writes)))
    return table


def _steps(report: dict[str, Any]) -> Table:
    table = _table("value", "operation", "type")
    for o in report["graph"]:
        table.add_row(*map(escape, (o["name"], f"{o['op']} {', '.join(o['args'])}", o["type"])))
    for name, value in report["results"].items():
        if name != value:
            table.add_row(*map(escape, (name, value, "")))
    return table


def _arrays(report: dict[str, Any]) -> Table:
    table = _table("array", "", "type", "shape", "how the kernel accesses it", "and in a ragged call")
    arrays = {**report["inputs"], **report["outputs"], **report["products"]}
    between: dict[str, Any] = {
        name: {"shape": [], "type": array} for stage in report["stages"] for name, array in stage["outputs"].items()
    }
    arrays = {**between, **arrays}
    for name in dict.fromkeys(p[factor] for factor in "ab" for p in report["products"].values()):
        if name not in arrays:  # the weights of attention, which are in no memory
            continue
        shape = " x ".join(map(str, arrays[name]["shape"]))
        table.add_row(
            *map(escape, (name, "read", arrays[name]["type"], shape, "in tiles, for the tensor cores", "the same"))
        )
    for a in report["accesses"]:
        known = arrays.get(a["array"], {"shape": []})  # a call makes a size that an epilogue reads
        shape = " x ".join(map(str, known["shape"]))
        verb = ("write" if a["stored"] else "read") if a["array"] else ""
        verb = "" if a["array"] in report["products"] else verb
        how = f"stage {a['stage']}: {a['how']}" if "stage" in a else a["how"]
        table.add_row(*map(escape, (a["value"], verb, a["type"] or "", shape, how, a["ragged"])))
    return table


def _costs(report: dict[str, Any]) -> Group:
    """A row for each number and a column for each choice of types, split into tables that fit 80 columns."""
    first = report["costs"][0]["launch"]
    lines = _LAUNCH_OF_ROWS if "threads_a_row" in first else _LAUNCH
    lines = {"of": "launch of", **lines} if "of" in first else lines
    columns: list[tuple[str, list[str]]] = []
    for cost in report["costs"]:
        types, moved = _types_text(cost["types"]), cost["bytes"]
        ratio = f"{moved['unfused'] / moved['fused']:.2f}x" if moved["fused"] else "-"
        sizes = [size_text(moved["fused"]), size_text(moved["unfused"]), ratio]
        columns.append((types, [*_facts_of(cost["launch"], lines), *sizes]))
        if cost["launch_in_clusters"]:
            columns.append((f"{types} in clusters", [*_facts_of(cost["launch_in_clusters"], lines), "", "", ""]))
    names, tables = [*lines.values(), "bytes fused", "bytes unfused", "ratio"], []
    for start in range(0, len(columns), _CHOICES):
        some = columns[start : start + _CHOICES]
        tables.append(_table("types", *(types for types, _ in some), right=1))
        for place, name in enumerate(names):
            tables[-1].add_row(name, *(values[place] for _, values in some))
    return Group(*tables)


def _facts_of(launch: dict[str, Any], lines: dict[str, str]) -> list[str]:
    words = {"None": "-", "0": "-", "True": "yes", "False": "no"}
    return [words.get(str(launch.get(line)), str(launch.get(line))) for line in lines]


_CHOICES = 3
_LAUNCH = {"vector": "elements per thread", "threads": "threads", "blocks": "blocks", "ragged": "ragged"}
_LAUNCH_OF_ROWS = {
    "vector": "elements per vector", "vectors_a_thread": "vectors per thread", "rows_at_once": "rows at once", "threads_a_row": "threads per row",
    "cluster": "blocks per row", "resident": "blocks per SM, at least", "rows_read": "times read", "threads": "threads", "blocks": "blocks", "ragged": "ragged",
}  # fmt: skip


def _main_loops(report: dict[str, Any]) -> Table:
    """How the products are computed."""
    every = [(cost, [cost["main_loop"]] if cost["main_loop"] else cost["main_loops"]) for cost in report["costs"]]
    table = _table("types", every[0][1][0]["arch"])
    for cost, loops in every:
        types = _types_text(cost["types"])
        for found in loops:
            text = (
                _tiles_text(found["tiles"])
                if found["one_kernel"]
                else f"XLA's matmul, then the epilogue: {found['why']}"
            )
            if found["copied"]:
                text += f"; after a copy of its converted factor, since {found['copied']}"
            if "joint" in found:
                first, *_, last = found["joint"]
                what = f"; in one launch, stages {first} to {last}"
                text += f"; a launch of its own: {found['apart']}" if found["apart"] else what
            text = f"stage {found['stage']}: {text}" if "stage" in found else text
            table.add_row(types, escape(text))
            types = ""
    return table


def _tiles_text(tiles: dict[str, Any]) -> str:
    """The tiles of the main loop, for Hopper or for every architecture, in words."""
    words = [
        f"one kernel: tiles of {tiles['tile_m']} x {tiles['tile_n']}, {tiles['tile_k']} along K, {tiles['stages']} stages"
    ]
    if "splits" not in tiles:
        return ", ".join([*words, f"{tiles['warps_m'] * tiles['warps_n']} warps", "mma.sync"])
    if tiles["splits"] == 1:
        words += ["two warpgroups take turns" if tiles["pingpong"] else "two warpgroups share a tile"]
    words += [f"clusters of {tiles['cluster_m']} x {tiles['cluster_n']}"] * (
        tiles["cluster_m"] * tiles["cluster_n"] > 1
    )
    words += [f"{tiles['splits']} blocks of a cluster share K"] * (tiles["splits"] > 1)
    return ", ".join(words)


def _rooflines(report: dict[str, Any]) -> Table:
    """The least time that memory bandwidth, the tensor cores or the instructions allow, and which of them it is, if not memory."""
    table = _table("roofline", *(f"{g['name']}\n{g['arch']}" for g in report["gpus"]), right=1)
    table.add_row("TB/s", *(f"{g['bandwidth'] / 1e12:.2f}" for g in report["gpus"]), style="dim")
    for cost in report["costs"]:
        table.add_row(_types_text(cost["types"]), *(_longest(cost["limits_us"][g["name"]]) for g in report["gpus"]))
    return table


def _longest(limits: dict[str, float] | None) -> str:
    """The time of the resource that takes longest, and its name unless that is memory."""
    if limits is None:
        return "-"
    name = max(limits, key=lambda resource: limits[resource])
    return time_text(limits[name]) + ("" if name == "bytes" else f"\n{name}")


def _interpreted(report: dict[str, Any]) -> Group:
    """The counts of one interpreted call of each kernel (`measuring/explained.py`)."""
    calls = report["interpreted"]
    if not calls:
        return Group("interpreted: nothing, since the architecture in CUTE_DSL_ARCH has no kernel for these dtypes")
    shape = ", ".join(f"{axis} = {extent}" for axis, extent in calls[0]["shape"].items())
    table = _table(
        f"interpreted: {shape}", "array", "bytes", "loaded", "stored", "sectors per request", "coalesced", right=2
    )
    work = _table("", "instructions per thread", "per element", "idle lanes", right=1)
    for call in calls:
        types = _types_text(call["types"])
        for name, a in call["arrays"].items():
            moved = (size_text(a["minimum"]), *(size_text(a[k]) if a[k] else "-" for k in ("loaded", "stored")))
            table.add_row(types, name, *moved, f"{a['sectors_per_request']:.4g}", f"{a['coalescing']:.0%}")
            types = ""
        numbers = (call["instructions_per_thread"], call["instructions_per_element"])
        work.add_row(_types_text(call["types"]), *(f"{n:.4g}" for n in numbers), f"{call['divergence']:.1%}")
    return Group(table, "", work)


def _table(*columns: str, right: int = 99) -> Table:
    """A table in which the columns from number `right` on are right-aligned numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place >= right else "left", overflow="fold")
    return table


def _types_text(types: dict[str, str]) -> str:
    return " ".join(f"{name}={dtype}" for name, dtype in types.items()) or "-"


def size_text(count: float) -> str:
    """Bytes in the largest unit in which the number is 1 or more."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:g} B"


def time_text(us: float) -> str:
    """A time in microseconds, or in milliseconds from 10 ms on."""
    return f"{us / 1e3:.3g} ms" if us >= 1e4 else f"{us:.3g} us" if us < 100 else f"{us:.0f} us"
