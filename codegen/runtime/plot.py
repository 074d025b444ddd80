"""The plot of a benchmark: bandwidth of each op, ours beside XLA's and a copy's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from codegen.runtime.bench import Measurement, speed_text

BARS = (("copy", "device copy", "#c9ced6"), ("xla", "XLA", "#7f93b2"), ("ours", "cutefuse", "#1a7f37"))
THICK = 0.27  # of a bar; a row is one unit high


def plot(measured: Sequence[Measurement], where: Mapping[str, str], path: Path) -> None:
    """Write horizontal bars, one group an op and shape, in the order measured."""
    rows = [m for m in measured if not m.error]
    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.75 * max(1, len(rows))), layout="constrained")
    for place, (name, label, color) in enumerate(BARS):
        heights = [i + (place - 1) * THICK for i in range(len(rows))]
        speeds = [m.bandwidth(name) for m in rows]
        axes.barh(heights, speeds, THICK * 0.92, color=color, label=label)
        for height, m, speed in zip(heights, rows, speeds, strict=True):
            text = f" {speed_text(speed)}" + (f"   {m.over_xla:.2f}x XLA" if name == "ours" else "")
            axes.text(speed, height, text, va="center", fontsize=8, color="#1f2328" if name == "ours" else "#59636e")
    shapes = [" x ".join(str(extent) for _, extent in m.shape) for m in rows]
    labels = [f"{m.op}\n{shape}, {m.types_text}" for m, shape in zip(rows, shapes, strict=True)]
    axes.set_yticks(range(len(rows)), labels, fontsize=9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.2 * max([m.bandwidth(name) for m in rows for name, _, _ in BARS], default=1.0))
    axes.set_xlabel("TB/s, each input read once and each output written once")
    axes.set_title(f"{where['gpu']}, {where['date']}", loc="left", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#d8dee4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=150, facecolor="white")
    pyplot.close(figure)
