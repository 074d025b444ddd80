"""The choice of the values that a backward takes: outputs of the op, and further values that the forward saves for it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from codegen.autodiff.factors import saved_type
from codegen.autodiff.gradients import Gradients
from codegen.errors import UserError
from codegen.graph.contraction import is_definite
from codegen.graph.names import fresh
from codegen.graph.nodes import DTYPES, Leaf, Node, lost_axes, nodes_of, topological
from codegen.graph.ops import REDUCTIONS, SELECTIONS
from codegen.spec.spec import Spec
from codegen.stages.products import shared

# The results of these operations have about the relative error of an argument
PROPORTIONAL = {"mul", "div", "neg", "abs", "reciprocal", "square", "sqrt", "rsqrt", "sum", "mean", "float"}


@dataclass(frozen=True)
class Saved:
    """The values that a backward takes, by name: all of them, and those that only the forward with more outputs writes."""

    values: dict[str, Node]
    more: dict[str, Node]


class Saving(Gradients):
    """The sets of values with which the gradients can be computed.

    `dtype` is the type of saved values. If it is not float32, the backward's inputs are rounded to it, but the forward had them in
    more bits. So the backward does not take statistics from outputs, since they are not statistics of the rounded inputs.
    """

    def __init__(
        self,
        spec: Spec,
        dtype: str = "float32",
        by_index: bool = False,
        held: Iterable[tuple[str, Node]] = (),
        constant: Collection[int] = frozenset(),
        taken: Collection[str] = (),
    ):
        super().__init__(spec, by_index, held, constant, taken)
        self.dtype = dtype
        self.saved_type = spec.compute if dtype == "float32" else dtype
        self.from_stages = False  # whether the op's stages write all that is saved, without rounding
        self.known = frozenset(self.taken)

    def saved_for(self, statistics: str | None = None, save: tuple[str, ...] | None = None) -> Saved:
        """The values that a backward takes: the values in `save`, or in the spec's own `save` if None, and outputs. The
        forward may also save `statistics` of "rows" or of "columns" for it, or those that it has "held". Raises `UserError` if
        nothing is to be differentiated."""
        self.taken, save = set(self.known), self.spec.save if save is None else save
        if not self.assigned:
            raise UserError("no output varies with an input that has a derivative")
        saved = self.saved(save)
        ways = {
            "rows": self.statistics,
            "columns": self.column_statistics,
            "held": self.held_statistics,
            "products": self.products,
            "products and held": self.products_and_held,
        }
        more = ways[statistics](saved) if statistics and not save else {}
        found = saved | more
        found |= self.positions(found)
        reached = {id(n) for n in self.reached(found.values())}  # behind a position may be what nothing else needs

        def needed(name: str, node: Node) -> bool:
            factor = self.held_factor(name)
            return id(node) in reached or (factor is not None and id(factor.args[0]) in reached)

        unneeded = {name for name, node in more.items() if name not in saved and not needed(name, node)}
        return Saved(*({n: v for n, v in values.items() if n not in unneeded} for values in (found, more)))

    def reached(self, known: Iterable[Node]) -> list[Node]:
        """The values that the backward computes, and those that it takes, if some are `known`."""
        leaves = {id(node) for node in known}
        return list(topological((s.value for s in self.assigned), lambda n: id(n) in leaves))

    def saved(self, save: Collection[str]) -> dict[str, Node]:
        """The outputs that the backward takes, and the values in `save`.

        It takes an output if it then reads fewer arrays or has fewer reductions. An output is rounded to its type, so one that a
        few operations compute again is recomputed: 1 - y * y of a rounded tanh near 1 has few correct bits. An output that is
        `coarse` is recomputed too, and so is one that elements are compared with, such as their maximum, unless it is `exact`.
        Raises `UserError` if elements are compared with a value in `save` that is not `exact`.
        """
        compared = {id(a) for a in _compared(self.reached(()))}
        values = {s.name: s.value for s in self.statements if s.part is None and s.at is None}
        values = {name: v for name, v in values.items() if v.op not in ("input", "const", "param")}
        chosen = {name: self.held_factor(name) or v for name, v in values.items() if name in save}
        for name, value in chosen.items():
            if id(value) in compared and value.op in ("max", "min") and not self.exact(name, value):
                what = f"elements that are recomputed are compared with {name!r}, and may differ in the last bit"
                raise UserError(f"it cannot be saved: {what}")
        most = max(len(a.axes) for a in self.spec.inputs)
        now = self.cost(chosen)
        for name, value in values.items():
            if self.dtype != "float32" and len(value.dims) < most:
                continue
            if name not in self.cotangents or (id(value) in compared and not self.exact(name, value)):
                continue
            own = list(topological([value]))
            arrays = {n.attr.name for n in own if isinstance(n.attr, Leaf)}
            if len(arrays) < 2 and not any(n.op in REDUCTIONS for n in own):
                continue  # it would be read instead of one array, or of none
            more = {**chosen, name: value}
            then = self.cost(more)
            if then < now and not self.coarse(name, value, then[0] < now[0]):
                chosen, now = more, then
        return chosen

    def statistics(self, saved: Mapping[str, Node]) -> dict[str, Node]:
        """The statistics of rows that the forward saves as well. With them the backward waits for fewer reductions along a row, so it
        has fewer sweeps. A statistic costs four bytes a row."""
        if self.dtype != "float32":
            return {}
        leaves = {id(v) for v in saved.values()}
        forward = nodes_of(self.statements)
        reductions = [n for n in forward if n.op in REDUCTIONS]
        widest = max((n.dims for n in forward), key=lambda dims: (len(dims), any(of_rows(r, dims) for r in reductions)))
        reduced: set[int] = set()  # the values that depend on a reduction along a row
        for node in forward:
            if any(id(a) in reduced for a in node.args) or (node.op in REDUCTIONS and of_rows(node, widest)):
                reduced.add(id(node))
        compared = {id(a) for a in _compared(self.reached(saved.values())) if a.op in ("max", "min")}
        own = {id(n) for n in forward if id(n) in reduced and of_rows(n, widest) and n.kind == "float"} - compared
        known = [*saved.values(), *(n for n in forward if id(n) in own)]
        taken = {id(n): n for n in self.reached(known) if id(n) in own - leaves}
        for node in list(taken.values()):
            inner = topological(node.args, lambda n: id(n) in taken)
            if not any(n.op in REDUCTIONS and id(n) not in taken for n in inner) and node.op not in REDUCTIONS:
                del taken[id(node)]  # it is computed from others
        ops = {i: self.calls[i].name if i in self.calls else a.op for i, a in taken.items()}
        found = {self.named.get(i) or fresh(self.taken, f"row_{ops[i].lstrip('_')}"): a for i, a in taken.items()}
        cost = self.row_reductions({**saved, **found}, widest)
        if cost[0] == self.row_reductions(saved, widest)[0]:
            return {}
        for name in list(found):  # a statistic does not help if it saves no reduction
            others = {n: a for n, a in found.items() if n != name}
            if self.row_reductions({**saved, **others}, widest) == cost:
                found = others
        return found

    def column_statistics(self, saved: Mapping[str, Node]) -> dict[str, Node]:
        """The reductions over rows that the forward saves as well, since no row of the backward can wait for all rows."""
        own = {id(n) for n in nodes_of(self.statements)} - {id(v) for v in saved.values()}
        nodes = self.reached(saved.values())
        compared = {id(a) for a in _compared(nodes)}
        found = {}
        for node in nodes:
            if node.op in REDUCTIONS and id(node) in own and node.args[0].dims[:1] == lost_axes(node)[:1]:
                name = self.named.get(id(node)) or fresh(self.taken, f"column_{node.op.lstrip('_')}")
                if id(node) not in compared or self.exact(name, node):
                    found[name] = node
        return found

    def held_statistics(self, saved: Mapping[str, Node]) -> dict[str, Node]:
        """The values that the forward's stages write anyway, and the backward takes."""
        nodes = self.reached([*saved.values(), *self.held.values()])
        compared = {id(a) for a in _compared(nodes)}
        taken = {id(n) for n in nodes} - {id(v) for v in saved.values()}
        found = {name: node for name, node in self.held.items() if id(node) in taken}
        return {name: n for name, n in found.items() if id(n) not in compared or self.exact(name, n)}

    def positions(self, saved: Mapping[str, Node]) -> dict[str, Node]:
        """The positions of selected elements that the backward needs: elements that are computed again may tie elsewhere."""
        leaves = {id(v) for v in saved.values()}
        needed = [n for n in self.reached(saved.values()) if SELECTIONS.get(n.op) == "int" and id(n) not in leaves]
        outputs = [s for s in self.statements if s.name in self.made and s.part is None and s.at is None]
        exact = {id(s.value): s.name for s in outputs if self.spec.array(s.name).dtype == self.spec.integer}
        return {exact.get(id(n)) or self.named.get(id(n)) or fresh(self.taken, "places"): n for n in needed}

    def products(self, saved: Mapping[str, Node]) -> dict[str, Node]:
        """The values of products that the backward needs, so that it multiplies none of them again."""
        leaves = {id(v) for v in saved.values()}
        found = shared((s.value for s in self.assigned), self.of_products.values(), lambda n: id(n) in leaves)
        held = {id(v): name for name, v in self.held.items()}
        return {held.get(id(n)) or self.name_saved(n): n for n in found}

    def products_and_held(self, saved: Mapping[str, Node]) -> dict[str, Node]:
        """The values of products, and others that the forward's stages write anyway."""
        found = self.products(saved)
        return found | self.held_statistics({**saved, **found})

    def name_saved(self, node: Node) -> str:
        """The name of a saved value that is not an output."""
        name = self.named.get(id(node))
        return name if name and name not in self.held else fresh(self.taken, f"{name or 'product'}_saved")

    def held_factor(self, name: str) -> Node | None:
        """The factor of a product that the forward's stages write under a name, if there is one."""
        held = self.held.get(name)
        return held if held is not None and held.op == "cast" else None

    def row_reductions(self, saved: Mapping[str, Node], widest: tuple[str, ...]) -> tuple[int, int]:
        """The most reductions along rows with these axes that wait for each other, and the number of all of them."""
        leaves = {id(v) for v in saved.values()}
        depth: dict[int, int] = {}
        count = 0
        for node in self.reached(saved.values()):
            before = 0 if id(node) in leaves else max((depth[id(a)] for a in node.args), default=0)
            reduces = node.op in REDUCTIONS and of_rows(node, widest) and id(node) not in leaves
            depth[id(node)] = before + reduces
            count += reduces
        return max(depth.values()), count

    def cost(self, saved: Mapping[str, Node]) -> tuple[int, int]:
        """The number of arrays with the most axes that are read, and the number of reductions."""
        leaves = {id(v) for v in saved.values()}
        nodes = self.reached(saved.values())
        most = max(len(n.dims) for n in nodes)
        arrays = {(n.attr.name, len(n.dims)) for n in nodes if isinstance(n.attr, Leaf)}
        arrays |= {(name, len(v.dims)) for name, v in saved.items() if any(n is v for n in nodes)}
        large = sum(size == most for _, size in arrays)
        return large, sum(n.op in REDUCTIONS for n in nodes if id(n) not in leaves)

    def coarse(self, name: str, value: Node, fewer: bool) -> bool:
        """Whether an output is stored in too few bits to replace its value. This holds for statistics and float8 outputs that are
        narrower than the compute type. It holds for other outputs unless they make the arrays that are read `fewer`, or are only
        used as factors. A product has the relative error of its factor, but an exponential multiplies the error."""
        array = self.spec.array(name)
        size = min(DTYPES[dtype].size for dtype in self.spec.dtypes(array))
        if (size >= 4 and self.spec.doubles <= {array.dtype}) or self.exact(name, value):
            return False
        if size == 1 or len(value.dims) < max(len(a.axes) for a in self.spec.inputs):
            return True
        nodes = self.reached([value])
        return not fewer and any(n.op not in PROPORTIONAL for n in nodes if any(a is value for a in n.args))

    def exact(self, name: str, value: Node) -> bool:
        """Whether an output stores a maximum or minimum without rounding, and the elements that it is compared with have the same
        bits when they are recomputed. They do if they are an input's elements, or if their arithmetic is rounded the same
        everywhere."""
        kept = self.spec.array(name).dtype if name in self.made else self.saved_type
        if value.op not in ("max", "min"):
            return False
        (source,) = value.args
        while source.op in ("float", "abs", "neg"):  # these do not round
            (source,) = source.args
        if not isinstance(source.attr, Leaf):
            return kept == self.spec.compute and self.dtype == "float32" and is_definite(source)
        return isinstance(source.attr, Leaf) and kept in (self.spec.compute, self.spec.array(source.attr.name).dtype)

    def dtype_saved(self, node: Node) -> str:
        """The type in which a value is saved that is not an output."""
        if node.kind != "float":
            return self.spec.integer if node.kind == "int" else "bool"
        if id(node) in self.of_products:
            if (self.from_stages or id(node) in self.tied) and node.op != "cast":
                return self.spec.compute
            return saved_type(node, self.scope.inputs, dict(self.spec.types), self.spec.compute)
        return self.saved_type if node.op != "cast" else str(node.attr)

    @functools.cached_property
    def tied(self) -> frozenset[int]:
        """The values that the backward compares to find ties, and those that it computes them from: rounded, the largest would differ
        from all elements. Values are known by their identity."""
        compared = _compared(self.reached(()))
        return frozenset(id(n) for n in topological(compared, lambda n: n.op == "contract"))


def _compared(nodes: Iterable[Node]) -> Iterable[Node]:
    """The values that are compared to find ties."""
    return (a for n in nodes if n.op == "eq" for a in n.args)


def of_rows(node: Node, axes: tuple[str, ...]) -> bool:
    """Whether a value is one of each row of an array with these axes: it has only the first of them."""
    return 0 < len(node.dims) < len(axes) and node.dims == axes[: len(node.dims)]
