"""A drawing of an op's dataflow graph: inputs above, operations in layers below them, outputs at the bottom.

The usual layered layout: every node is one layer below its lowest operand, and edges that cross layers get a waypoint in each.
Layers are ordered by barycenters to avoid crossings, and nodes are then moved towards their neighbours.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar
from xml.sax.saxutils import escape

from codegen.explain.report import Operation, graph
from codegen.graph.nodes import axes_text, lost_axes
from codegen.graph.ops import NUCLEUS, REDUCTIONS, SELECTIONS, UNSORT
from codegen.plan.op import Op

Item = TypeVar("Item")
Key = TypeVar("Key")

CHARACTER, LINE = 7.8, 17  # of the labels: a monospaced font at 13 px
SMALL = 6.6  # a character at 11 px
MOST_WAYPOINTS = 1000  # in a drawing: edges that cross more layers than these allow are straight
# The most sweeps over the layers, and the most links that they visit: a large drawing gets fewer sweeps
ORDERING, ORDERED = 24, 60_000
PLACING, PLACED = 200, 200_000
HEIGHT, GAP, SPACE, MARGIN = 46, 36, 26, 24

# The text of an operation; "·" stands for an operand without a name
SIGNS = {
    "add": "{} + {}", "sub": "{} − {}", "mul": "{} × {}", "div": "{} ÷ {}", "neg": "−{}", "pow": "{} ^ {}",
    "lt": "{} < {}", "le": "{} ≤ {}", "gt": "{} > {}", "ge": "{} ≥ {}", "eq": "{} = {}", "ne": "{} ≠ {}",
    "and": "{} & {}", "or": "{} | {}", "not": "not {}", "reciprocal": "1 ÷ {}",
}  # fmt: skip


@dataclass(eq=False)
class Box:
    """A node of the drawing, or a waypoint of an edge: one without lines."""

    kind: str  # input, operation or output
    lines: tuple[str, ...]
    layer: int = 0
    x: float = 0.0  # of its middle

    @property
    def width(self) -> float:
        if not self.lines:
            return 0
        return max(len(self.lines[0]) * CHARACTER, len(self.lines[1]) * SMALL, 32) + 24


@dataclass(eq=False)
class Link:
    """A piece of an edge, from one layer to the next. Offsets are from the boxes' middles to its ends."""

    above: Box
    below: Box
    start: float = 0.0
    end: float = 0.0


@dataclass(eq=False)
class Edge:
    """An edge from a box to the box that reads it, as operand number `place` of `count`."""

    above: Box
    below: Box
    place: int
    count: int


@dataclass(frozen=True)
class Links:
    """The links of a drawing: all of them, and the links that end at each box from above and from below."""

    every: list[Link]
    above: dict[Box, list[Link]]
    below: dict[Box, list[Link]]

    def sweeps(self, most: int, links: int) -> range:
        """As many sweeps as visit `links` links, from 2 to `most`."""
        return range(max(2, min(most, links // max(1, len(self.every)))))


def draw(op: Op) -> str:
    """The drawing as an SVG file's text."""
    edges = _edges(op)
    layers, found = _layers(edges)
    links = Links(found, _grouped(found, lambda link: link.below), _grouped(found, lambda link: link.above))
    layers = _ordered(layers, links)
    _place(layers, links)
    return _svg(op.spec.op, op.spec.summary, layers, found)


def _grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items grouped by key, in order."""
    found: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


def _edges(op: Op) -> list[Edge]:
    """An edge from each value to each of its readers."""
    found, edges = graph(op), []
    boxes = {a.name: Box("input", (a.name, str(a))) for a in op.spec.inputs}
    boxes |= {p.name: Box("input", (p.name, p.kind)) for p in op.spec.params}

    def connect(names: list[str], box: Box) -> None:
        for place, name in enumerate(names):
            array = name.partition("[")[0]  # without the part
            if name not in boxes and array in boxes:
                above = boxes[array]
            else:
                above = boxes.setdefault(name, Box("input", (name, "constant" if name[0] in "-.0123456789" else "int")))
            edges.append(Edge(above, box, place, len(names)))

    for operation in found.operations:
        text, names = _label(operation)
        shown = operation.type if operation.name.startswith("%") else f"{operation.name}: {operation.type}"
        boxes[operation.name] = box = Box("operation", (text, shown))
        connect(names, box)
    for output in op.spec.outputs:
        results = [value for target, value in found.outputs if target.partition("[")[0] == output.name]
        puts = [s.at for s in op.statements if s.at and s.name == output.name]
        results += [name for at in puts for name in (at.table, at.index)]
        connect(results, Box("output", (output.name, str(output))))
    return edges


def _label(operation: Operation) -> tuple[str, list[str]]:
    """The text of an operation's box, and the operands that edges bring."""
    names, words = [], []
    for name, node in zip(operation.args, operation.node.args, strict=False):
        if node.is_const:
            words.append(_number(node.attr))
        else:
            names.append(name)
            words.append("·" if name.startswith("%") else name)
    if operation.op == "cast":
        return f"cast({words[0]}, {operation.node.attr})", names
    if operation.op in (UNSORT, NUCLEUS, *SELECTIONS):
        return f"{operation.op}({', '.join(words)}, {operation.node.attr})", names
    if operation.op in ("take", "pick"):
        return f"take({', '.join(words[:2])}, {operation.node.attr})", names
    if operation.op in REDUCTIONS:
        return f"{operation.op}({words[0]}, axis={axes_text(lost_axes(operation.node))})", names
    text = SIGNS.get(operation.op, f"{operation.op}({', '.join(['{}'] * len(words))})").format(*words)
    return text, names


def _number(value: object) -> str:
    return (f"{value:.6g}" if isinstance(value, float) else str(value)).replace("-", "−")


# Layout


def _layers(edges: list[Edge]) -> tuple[list[list[Box]], list[Link]]:
    """Every box on its layer, every edge cut into links from one layer to the next."""
    boxes = list(dict.fromkeys(box for edge in edges for box in (edge.above, edge.below)))
    for _ in boxes:  # the longest path to each; edges are in order, so this ends early in practice
        before = [box.layer for box in boxes]
        for edge in edges:
            edge.below.layer = max(edge.below.layer, edge.above.layer + 1)
        if before == [box.layer for box in boxes]:
            break
    bottom = max(box.layer for box in boxes)
    readers = _grouped(edges, lambda edge: edge.above)
    for box in boxes:
        if box.kind == "input":  # close to its first reader
            box.layer = min(edge.below.layer for edge in readers[box]) - 1
        elif box.kind == "output":
            box.layer = bottom
    links, longest = [], _longest(edges)
    for edge in edges:
        above, end = edge.above, ((edge.place + 1) / (edge.count + 1) - 0.5) * edge.below.width
        crossed = range(edge.above.layer + 1, edge.below.layer)
        for layer in crossed if len(crossed) <= longest else ():
            waypoint = Box("waypoint", (), layer)
            boxes.append(waypoint)
            links.append(Link(above, waypoint))
            above = waypoint
        links.append(Link(above, edge.below, end=end))
    placed = _grouped(boxes, lambda box: box.layer)
    return [placed[layer] for layer in range(bottom + 1)], links


def _longest(edges: list[Edge]) -> int:
    """The most layers that an edge with waypoints may cross, so that there are no more than `MOST_WAYPOINTS`."""
    counts = sorted(max(0, edge.below.layer - edge.above.layer - 1) for edge in edges)
    totals = itertools.accumulate(counts)
    return next((count - 1 for count, total in zip(counts, totals, strict=True) if total > MOST_WAYPOINTS), counts[-1])


def _ordered(layers: list[list[Box]], links: Links) -> list[list[Box]]:
    """The order with the fewest crossings of several sweeps down and up, which sort each layer by its neighbours' places."""
    best, fewest = layers, _crossings(layers, links.every)
    for sweep in links.sweeps(ORDERING, ORDERED):
        down = sweep % 2 == 0
        place = {box: float(i) for layer in layers for i, box in enumerate(layer)}
        fresh = [list(layer) for layer in layers]
        for layer in fresh if down else reversed(fresh):
            wanted = {}
            for box in layer:
                near = [
                    place[link.above] if down else place[link.below] + link.end / (link.below.width + 1)
                    for link in (links.above if down else links.below)[box]
                ]
                wanted[box] = sum(near) / len(near) if near else place[box]
            layer.sort(key=wanted.__getitem__)
            place.update({box: float(i) for i, box in enumerate(layer)})
        layers, count = fresh, _crossings(fresh, links.every)
        if count < fewest:
            best, fewest = layers, count
    return best


def _crossings(layers: list[list[Box]], links: list[Link]) -> int:
    place = {box: i for layer in layers for i, box in enumerate(layer)}
    count = 0
    for between in _grouped(links, lambda link: link.above.layer).values():
        ends = sorted((place[n.above], place[n.below] + n.end / (n.below.width + 1)) for n in between)
        below: list[float] = []  # ends of the links that start further left: each end further right is a crossing
        for _, end in ends:
            at = bisect.bisect_right(below, end)
            count += len(below) - at
            below.insert(at, end)
    return count


def _place(layers: list[list[Box]], links: Links) -> None:
    """Sets the boxes' middles: each moves towards its neighbours, as far as the order and the spacing allow."""
    for layer in layers:
        _spread(layer, [0.0] * len(layer))
    for sweep in links.sweeps(PLACING, PLACED):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = []
            for box in layer:
                near = [(link.above.x - link.end, _pull(link)) for link in links.above[box]]
                near += [(link.below.x + link.end, _pull(link)) for link in links.below[box]]
                wanted.append(sum(x * pull for x, pull in near) / sum(pull for _, pull in near))
            _spread(layer, wanted)
    left = min(box.x - box.width / 2 for layer in layers for box in layer)
    for layer in layers:
        for box in layer:
            box.x += MARGIN - left
    for box, readers in links.below.items():
        out = sorted(readers, key=lambda link: link.below.x + link.end)
        step = min(14.0, box.width / (len(out) + 1))
        for i, link in enumerate(out):
            link.start = (i - (len(out) - 1) / 2) * step


def _pull(link: Link) -> int:
    """The weight of a link: long edges are kept straighter than short ones."""
    return (1, 2, 8)[(not link.above.lines) + (not link.below.lines)]


def _spread(layer: list[Box], wanted: list[float]) -> None:
    """The places nearest to the wanted ones (least squares) that keep the order and the spacing: neighbours that would
    overlap are merged into one block."""
    offsets = [0.0]
    for left, right in itertools.pairwise(layer):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + SPACE)
    blocks: list[list[float]] = []  # the sum of wanted places minus offsets, and their number
    for place, offset in zip(wanted, offsets, strict=True):
        blocks.append([place - offset, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + count]
    starts = [total / count for total, count in blocks for _ in range(int(count))]
    for box, start, offset in zip(layer, starts, offsets, strict=True):
        box.x = start + offset


# The file

STYLE = """
  text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; text-anchor: middle }
  .name { font-size: 13px; fill: #1f2328 } .type { font-size: 11px; fill: #59636e }
  .title { font-size: 15px; font-weight: 600; fill: #1f2328; text-anchor: start }
  .page { fill: #ffffff } rect { stroke-width: 1.2 } .page { stroke: none }
  .input { fill: #ddf4ff; stroke: #0969da } .operation { fill: #f6f8fa; stroke: #8c959f }
  .output { fill: #dafbe1; stroke: #1a7f37 }
  .edge { fill: none; stroke: #6e7781; stroke-width: 1.3 } .tip { fill: #6e7781 }
  @media (prefers-color-scheme: dark) {
    .name, .title { fill: #e6edf3 } .type { fill: #9198a1 } .page { fill: #0d1117 }
    .input { fill: #0c2d4a; stroke: #4493f8 } .operation { fill: #1b222c; stroke: #656d76 }
    .output { fill: #10321c; stroke: #3fb950 }
    .edge { stroke: #9198a1 } .tip { fill: #9198a1 }
  }
"""


def _svg(name: str, summary: str, layers: list[list[Box]], links: list[Link]) -> str:
    top = MARGIN + 30
    right = max(box.x + box.width / 2 for layer in layers for box in layer)
    width = max(right + MARGIN, len(name) * 9.2 + 2 * MARGIN)
    height = top + len(layers) * (HEIGHT + GAP) - GAP + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(name)}: {escape(summary)}</title>",
        f"<style>{STYLE}</style>",
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0.5 L8 4 L0 7.5 z"/></marker>',
        '<rect class="page" width="100%" height="100%"/>',
        f'<text class="title" x="{MARGIN}" y="{MARGIN + 8}">{escape(name)}</text>',
    ]

    def y(box: Box) -> float:
        return top + box.layer * (HEIGHT + GAP)

    for link in links:
        x0, x1 = link.above.x + link.start, link.below.x + link.end
        y0, y1 = y(link.above) + HEIGHT, y(link.below)
        middle = (y0 + y1) / 2
        path = f"M{x0:.1f} {y0:.1f} C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
        if not link.below.lines:  # through the waypoint's layer
            path += f" V{y1 + HEIGHT:.1f}"
        tip = ' marker-end="url(#tip)"' if link.below.lines else ""
        lines.append(f'<path class="edge" d="{path}"{tip}/>')
    for box in (box for layer in layers for box in layer if box.lines):
        left, above = box.x - box.width / 2, y(box)
        radius = 6 if box.kind == "operation" else HEIGHT / 2
        lines.append(
            f'<rect class="{box.kind}" x="{left:.1f}" y="{above:.1f}" width="{box.width:.1f}" height="{HEIGHT}" rx="{radius:g}"/>'
        )
        for i, line in enumerate(box.lines):
            style = ("name", "type")[i]
            lines.append(f'<text class="{style}" x="{box.x:.1f}" y="{above + 20 + i * LINE:.1f}">{escape(line)}</text>')
    return "\n".join([*lines, "</svg>", ""])
