"""Cuts an op that one kernel could compute but for sums over more axes than the kernel's rows, or its scans, have.

The gradients of a norm along middle axes are of this kind. Its elements need sums along these axes, `[B, S, N]` along S. The gradient of
its weight is a sum over B and S. Here the one kernel writes the sum along S too, and another kernel adds these sums up along B. A kernel
that holds rows does the same where a sum over rows adds up columns too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from codegen.errors import SpecError, UserError
from codegen.graph.nodes import Graph, Node, along_of, lost_axes, topological
from codegen.graph.ops import REDUCTIONS, SCANS
from codegen.plan.op import Op
from codegen.spec.spec import Spec
from codegen.stages.cut import Cutting, Kernel
from codegen.stages.rewriting import rewritten


def in_parts(spec: Spec, first: Kernel, last: Kernel, along: tuple[str, ...] = ()) -> tuple[Op, ...] | None:
    """The kernels of an op: the `first` writes the outputs that need no sums over more axes, and parts of those sums; the `last` ones add
    up the parts. The parts are sums `along` some axes, by default those of a reduction. None if there are no such kernels."""
    for axes in [along] if along else _shorter(spec):
        with suppress(SpecError, UserError):
            return _cut_along(spec, axes, first, last)
    return None


def _shorter(spec: Spec) -> Iterator[tuple[str, ...]]:
    """The axes along which the op reduces, where it also reduces along these and more."""
    found = dict.fromkeys(lost_axes(n) for n in spec.read.nodes if n.op in REDUCTIONS)
    return (axes for axes in found if any({*axes} < {*others} for others in found))


def summed_along_scans(spec: Spec) -> Spec | None:
    """The same op with sums over more axes than the scans' in two: first along that axis, as the kernel that scans can. None if there are
    no such sums."""
    along = {along_of(n).axis for n in spec.read.nodes if n.op in SCANS}
    if len(along) != 1:
        return None
    own, _, sums = _in_two(spec, tuple(along))
    return own if sums else None


def _in_two(spec: Spec, axes: tuple[str, ...]) -> tuple[Spec, list[Node], list[Node]]:
    """The same op with sums of parts that are summed along these axes, instead of sums over them and more; the parts, and the sums."""
    parts, sums = list[Node](), list[Node]()

    def rule(graph: Graph, node: Node, args: tuple[Node, ...]) -> Node | None:
        if (
            node.op != "sum"
            or node.kind != "float"
            or not {*axes} < {*lost_axes(node)}
            or not {*axes} <= {*args[0].dims}
        ):
            return None
        dims = [d for d in args[0].dims if d not in axes]
        parts.append(graph.node("sum", args, graph.order(axes), kind="float", dims=dims))
        others = graph.order(d for d in lost_axes(node) if d not in axes)
        sums.append(graph.node("sum", (parts[-1],), others, kind="float", dims=node.dims))
        return sums[-1]

    return rewritten(spec, rule, "sums in parts"), parts, sums


def _cut_along(spec: Spec, axes: tuple[str, ...], first: Kernel, last: Kernel) -> tuple[Op, ...]:
    """The kernels, of which the first sums along these axes. Raises `SpecError` or `UserError` if there are none."""
    own, parts, sums = _in_two(spec, axes)
    made = {id(n) for n in sums}
    late = {s.name for s in own.read.statements if any(id(n) in made for n in topological([s.value]))}
    elements = [a for a in own.outputs if a.name not in late]
    if not elements:
        raise UserError("all outputs need sums over more axes")
    before, after = Cutting(own, first), Cutting(own, last)
    after.know(parts)
    own_stage = before.made_of([*elements, *dict.fromkeys(parts)])
    others = [after.made_of(group) for group in after.grouped(a for a in own.outputs if a.name in late)]
    return before.named(own_stage, 1), *(after.named(op, i) for i, op in enumerate(others, 2))
