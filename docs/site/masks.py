"""Draws `docs/assets/masks.png`: the tiles that attention skips, and those that it computes with and without the mask.

    python docs/site/masks.py

Each mask is bounded over a tile by the operations that kernels use (`codegen/device/attention/bounds.py`), on Python's numbers.
"""

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from codegen.device.attention import bounds

matplotlib.use("Agg")
from matplotlib import pyplot

SIZE, TILE, WINDOW, PREFIX, DOCUMENTS = 1024, 64, 256, 320, (256, 384, 384)
NAMES = ("skipped", "with the mask", "without the mask")
COLOURS = ("#eceff4", "#e0a458", "#3b6ea5")
document = np.repeat(np.arange(len(DOCUMENTS)), DOCUMENTS)


def of_array(array: np.ndarray, places: bounds.Bounds) -> bounds.Bounds:
    """The bounds of an array's elements at consecutive places."""
    own = array[places[0] : places[1] + 1]
    return int(own.min()), int(own.max())


def causal(rows: bounds.Bounds, columns: bounds.Bounds) -> bounds.Bounds:
    return bounds.le(columns, rows)


def window(rows: bounds.Bounds, columns: bounds.Bounds) -> bounds.Bounds:
    return bounds.both(causal(rows, columns), bounds.lt(bounds.sub(rows, columns), bounds.exact(WINDOW)))


def prefix(rows: bounds.Bounds, columns: bounds.Bounds) -> bounds.Bounds:
    return bounds.either(causal(rows, columns), bounds.lt(columns, bounds.exact(PREFIX)))


def documents(rows: bounds.Bounds, columns: bounds.Bounds) -> bounds.Bounds:
    return bounds.both(causal(rows, columns), bounds.eq(of_array(document, rows), of_array(document, columns)))


def tiles(mask: Callable[[bounds.Bounds, bounds.Bounds], bounds.Bounds]) -> np.ndarray:
    """For each tile the number of its name: the mask holds nowhere, somewhere, everywhere."""
    spans = [(first, first + TILE - 1) for first in range(0, SIZE, TILE)]
    found = [[mask(rows, columns) for columns in spans] for rows in spans]
    return np.array([[int(some) + int(some and every) for some, every in line] for line in found])


def main() -> None:
    masks = {
        "causal": causal,
        f"causal, window of {WINDOW}": window,
        f"causal, prefix of {PREFIX}": prefix,
        f"causal, documents of {', '.join(map(str, DOCUMENTS))}": documents,
    }
    figure, places = pyplot.subplots(1, len(masks), figsize=(13, 4.4), layout="constrained")
    for place, (title, mask) in zip(places, masks.items(), strict=True):
        found = tiles(mask)
        place.pcolormesh(found, cmap=ListedColormap(COLOURS), vmin=0, vmax=2, edgecolors="white", linewidth=0.8)
        place.set_title(f"{title}\n{np.mean(found > 0):.0%} of tiles computed", fontsize=10)
        place.set(aspect="equal", xticks=[], yticks=[])
        place.set(xlabel="tiles of k and v", ylabel="tiles of q" if place is places[0] else "")
        place.invert_yaxis()
    handles = [Patch(color=colour, label=name) for colour, name in zip(COLOURS, NAMES, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(Path(__file__).parent.parent / "assets" / "masks.png", dpi=110)


if __name__ == "__main__":
    main()
