"""Explains what an op does and costs, before anything is compiled: its graph, its kernel's plan, bytes, launches, roofline.

Bytes moved, for one shape and one choice of dtypes:
  fused    each input read once, each output written once
  unfused  one kernel for each operation of the graph: it reads its operands and writes its result. Inputs and outputs have
           their own types, intermediate values the compute type (a bool one byte, a `cast` the type it rounds to).
           Constants, parameters and positions (`index`) are not in memory. Conversions between types cost nothing. `take`
           reads its indices and the elements that it gathers.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from codegen.autodiff.backward import Derived, backward_of
from codegen.errors import UserError
from codegen.explain import sums
from codegen.explain.backward import backward, stages
from codegen.explain.estimate import work
from codegen.explain.launching import (
    Binding,
    as_called,
    bindings,
    launch_facts,
    launch_of,
    launched,
    spacing_of,
)
from codegen.explain.masks import mask
from codegen.explain.traffic import busiest, moved_bytes
from codegen.explain.words import words
from codegen.graph.nodes import DTYPES, Leaf, Node, axes_text, dims_text, lost_axes, topological
from codegen.graph.ops import NUCLEUS, REDUCTIONS, SELECTIONS, UNSORT
from codegen.language.sizes import Shape, array_bytes, array_shape, elements
from codegen.plan.attention import AttentionPlan
from codegen.plan.gemms import joint
from codegen.plan.gemms.tiles import Product
from codegen.plan.launches import Tuned
from codegen.plan.limits import lacks
from codegen.plan.op import Gemm, Op, Staged, Summed, products_in, stages_of
from codegen.plan.rows.reductions import Reduction
from codegen.spec.spec import Array
from codegen.targets import GPUS, Gpu, Work
from codegen.tuning import choosing

# The graph


@dataclass(frozen=True)
class Operation:
    """One operation of the chain: `args` are names of inputs, parameters and earlier operations, or constants."""

    name: str
    op: str
    args: tuple[str, ...]
    type: str  # kind and axes, as in float[..., N]
    node: Node


@dataclass(frozen=True)
class Graph:
    """The operations of the chain in order, and the value of each output (or part of one)."""

    operations: tuple[Operation, ...]
    outputs: tuple[tuple[str, str], ...]  # (y or y[0], name of its value)


NOT_COMPUTED = ("input", "param", "const", "index", "size", "float")


def graph(op: Op) -> Graph:
    """The graph of an op. A value that a statement names keeps its name; others are numbered."""
    names: dict[int, str] = {}
    outputs = {a.name for a in op.spec.outputs}
    for statement in sorted(op.statements, key=lambda s: s.name in outputs):
        if statement.value.op not in NOT_COMPUTED:
            names.setdefault(id(statement.value), statement.target)
    operations: list[Operation] = []
    results: list[tuple[str, str]] = []
    numbers = itertools.count()
    met: set[int] = set()
    for statement in op.statements:
        for node in topological([statement.value], lambda n: id(n) in met):
            if id(node) in met:
                continue
            met.add(id(node))
            if node.op in NOT_COMPUTED:
                names[id(node)] = names[id(node.args[0])] if node.op == "float" else _leaf(node)
            else:
                name = names.get(id(node))
                if name is None:
                    name = names[id(node)] = f"%{next(numbers)}"
                args = tuple(names[id(a)] for a in node.args)
                if node.op in REDUCTIONS:
                    args += (f"axis={axes_text(lost_axes(node))}",)
                elif node.op == "shift":
                    args += tuple(f"{axis} - {n}" if n > 0 else f"{axis} + {-n}" for axis, n in node.attr)  # type: ignore[attr-defined]
                elif node.op == "contract":
                    args += (axes_text(lost_axes(node)),)
                elif node.op in ("cast", "take", "pick", UNSORT, NUCLEUS, *SELECTIONS):
                    args += (str(node.attr),)
                operations.append(
                    Operation(name, node.op.removeprefix("_"), args, node.kind + dims_text(node.dims), node)
                )
        if statement.name in outputs:
            results.append((statement.target, names[id(statement.value)]))
    return Graph(tuple(operations), tuple(results))


def _leaf(node: Node) -> str:
    if node.op in ("index", "size"):
        return f"{node.op}({node.attr})"
    return repr(node.attr) if node.is_const else str(node.attr)


# Bytes


def unfused_bytes(op: Op, binding: Binding, shape: Shape) -> int:
    return sum(read + written for read, written in _traffic(op, binding, shape))


def unfused_kernels(op: Op) -> int:
    """The number of kernels: one for each operation, and one for each output that is a copy."""
    binding = next(bindings(op.spec))
    return len(_traffic(op, binding, dict.fromkeys(op.spec.axes, 1)))


def _traffic(op: Op, binding: Binding, shape: Shape) -> list[tuple[int, int]]:
    """The bytes that each kernel reads and writes, with one kernel for each operation."""
    stored: dict[int, int] = {}  # a value that is an output: the bytes of an element
    copies = []
    for statement in op.statements:
        output = next((a for a in op.spec.outputs if a.name == statement.name), None)
        if output is None or (statement.at and statement.at.apart):
            continue
        value, width = _source(statement.value), DTYPES[binding.dtype(output)].size
        if value.op in NOT_COMPUTED or id(value) in stored:
            copies.append((value, output.axes, width))
        else:
            stored[id(value)] = width

    def size(node: Node) -> int:
        if node.op in ("const", "param", "index", "size"):
            return 0
        if isinstance(node.attr, Leaf):
            width = DTYPES[binding.dtype(op.spec.array(node.attr.name))].size
        elif node.op == "cast":
            width = DTYPES[binding.dtype(str(node.attr))].size
        else:
            width = binding.width(node.kind)
        return elements(node.dims, shape) * stored.get(id(node), width)

    def reads(node: Node) -> int:
        if node.op in ("take", "pick"):
            table, index = node.args[:2]
            assert isinstance(table.attr, Leaf)
            return size(index) + elements(node.dims, shape) * DTYPES[binding.dtype(op.spec.array(table.attr.name))].size
        return sum(size(argument) for argument in {id(a): a for a in map(_source, node.args)}.values())

    kernels = [(reads(o.node), size(o.node)) for o in graph(op).operations]
    for s in op.statements:
        if s.at:  # a kernel of its own, which copies the value, or adds it to all of the table
            index, table = op.spec.array(s.at.index), op.spec.array(s.at.table)
            added = array_bytes(table, shape, binding.dtype(table)) if s.at.apart else 0
            read = size(s.value) + array_bytes(index, shape, binding.dtype(index)) + added
            kernels.append((read, added or size(s.value)))
    return kernels + [(size(value), elements(axes, shape) * width) for value, axes, width in copies]


def _source(node: Node) -> Node:
    """The value as stored, before its conversion to float, which happens at the load."""
    while node.op == "float":
        node = node.args[0]
    return node


# The kernel


def accesses(op: Op) -> list[dict[str, Any]]:
    """How the kernel accesses each array, in words."""
    if isinstance(op.plan, Staged):
        names = _sums(op)
        return [
            {**row, "array": names.get((i, row["array"]), row["array"]), "stage": i + 1}
            for i, stage in enumerate(op.plan.stages)
            for row in accesses(stage)
        ] + [row for summed in op.plan.summed for row in sums.accesses(op, summed)]
    rows: list[dict[str, Any]] = []
    words_of = words(op.plan)
    for stored, found in ((False, op.plan.loads), (True, op.plan.stores)):
        for access in found:
            name, how, ragged = words_of.access(access)
            array = access.array
            rows.append(
                {
                    "value": name,
                    "array": array.name if array else None,
                    "type": str(array) if array else None,
                    "stored": stored,
                    "mode": access.mode,
                    "how": how,
                    "ragged": ragged,
                }
            )
    return rows


def ragged_words(op: Op, shape: Shape) -> str:
    """How the kernel that moves the most bytes handles sizes that are not a multiple of the vector width."""
    one = busiest(op, next(bindings(op.spec)), shape)
    if isinstance(one, Summed):
        return "the vector width divides the columns of a row"
    op = launched(one)
    if any(DTYPES[d].packed for a in op.spec.arrays for d in op.spec.dtypes(a)):
        return "the vector width divides the last axis, since two 4-bit numbers share a byte; an odd number of them is left to XLA"
    long = {**dict.fromkeys(op.spec.axes, 4096), **op.spec.extents}  # short rows may have no vectors
    if all(launch_of(op, binding, long).vec == 1 for binding in bindings(op.spec)):
        return "one element per thread: all sizes are equally fast"
    return words(op.plan).ragged()


def saved(op: Op) -> dict[str, Any]:
    """The arrays that the forward saves for the backward, and why."""
    if op.spec.grad == "none":
        return {"names": [], "why": "it has no gradient"}
    backward = backward_of(op)
    if not isinstance(backward, Derived):
        names = [a.name for a in op.spec.inputs] + [p.name for p in op.spec.dynamic_params]
        return {"names": names, "why": "the backward differentiates the jnp form (jax.vjp)"}
    how, own = backward.how, backward.op.spec
    names = [*how.saved, *how.inputs, *(p.name for p in own.dynamic_params)]
    if isinstance(op.plan, Gemm):
        made = dict.fromkeys((*how.saved, *(acc for acc, _ in backward.products)))
        factors = (x.name for p in op.plan.products for x in (p.a, p.b))
        why = "the products' factors and inputs"
        why += f", and {', '.join(made)} as the forward writes it" if made else ""
        return {"names": list(dict.fromkeys((*made, *factors, *names))), "why": why}
    why = "inputs; everything else is recomputed, which moves no bytes"
    outputs, chosen = {a.name for a in op.spec.outputs}, [name for name in how.saved if name not in op.spec.save]
    reasons = []
    if taken := [name for name in chosen if name in outputs]:
        reasons.append(f"with {', '.join(taken)} the backward reads fewer arrays or reduces less")
    if more := [name for name in chosen if name not in outputs]:
        rows = all(how.spec.array(name).axes[:1] == op.plan.order[:1] for name in more)
        what = "one value per row, which saves a pass over it" if rows else "which every row needs"
        what = "so that no product is computed again" if products_in(op.plan) else what
        reasons.append(f"the forward writes {', '.join(more)}, {what}")
    if not reasons and how.saved:
        reasons.append("the values of the spec's `save`, and inputs")
    if reasons:
        why = "; ".join([*reasons, "everything else is recomputed"])
    return {"names": names, "why": why}


def _kept(op: Op, names: list[str]) -> list[Array]:
    """The arrays that a call saves."""
    backward = backward_of(op)
    more = backward.how.spec.inputs if isinstance(backward, Derived) else ()
    arrays = {a.name: a for a in (*op.spec.inputs, *more)}
    return [arrays[name] for name in names if name in arrays]


def _launch(op: Op, binding: Binding, shape: Shape, arch: str | None = None) -> dict[str, Any]:
    """The launch of the kernel that moves the most bytes. Where there are several, `of` says which one it is."""
    op = as_called(op, binding, shape, arch)
    one = busiest(op, binding, shape)
    if isinstance(one, Summed):
        facts = sums.launch_facts(op, one, binding, shape)
        assert facts is not None
        return facts
    if not isinstance(op.plan, Staged):
        return launch_facts(op, binding, shape, arch)
    several = len(op.plan.stages) + len(op.plan.summed) > 1
    of = {"of": f"stage {op.plan.stages.index(one) + 1}"} if several else {}
    return of | launch_facts(replace(one, tuning=op.tuning), binding, shape, arch)


def products(op: Op, shape: Shape) -> list[tuple[Product, int]]:
    """The contractions, and the operations (multiplications and additions) of each."""
    return [(p, 2 * elements((*p.acc.axes, *p.axes), shape) * (p.acc.parts or 1)) for p in products_in(op.plan)]


def _sums(op: Op) -> dict[tuple[int, str], str]:
    """The name in the report of each array that holds a product, by its stage and its name there: two stages may use one name."""
    found: dict[tuple[int, str], str] = {}
    for i, stage in enumerate(stages_of(op)):
        for p in products_in(stage.plan):
            found[i, p.acc.name] = f"{p.acc.name} of stage {i + 1}" if p.acc.name in found.values() else p.acc.name
    return found


def main_loop(op: Op, binding: Binding, shape: Shape, arch: str = "sm_90a") -> dict[str, Any] | None:
    """How an op's products are computed: in one kernel with the epilogue, with its tiles, or by XLA, and why. None for an op that
    is not one such kernel; its stages may be some."""
    if not isinstance(op.plan, Gemm):
        return None
    try:

        def find(sizes: Mapping[str, int]) -> Tuned | None:
            return choosing.found(op.tuning, op.spec.op, arch, binding.types, sizes)

        how = op.plan.in_one_kernel(binding, functools.partial(elements, shape=shape), arch, find)
    except UserError as error:
        return {"arch": arch, "one_kernel": False, "why": error.message, "tiles": {}, "copied": ""}
    return {
        "arch": arch,
        "one_kernel": how.fast,
        "why": how.why,
        "tiles": asdict(how.tiles) if how.fast else {},
        "copied": how.copied,
    }


def main_loops(op: Op, binding: Binding, shape: Shape, arch: str = "sm_90a") -> list[dict[str, Any]]:
    """How each stage's products are computed, and of those that may be in one launch, whether they are, and why not."""
    if not isinstance(op.plan, Staged):
        return []
    found = {i: main_loop(stage, binding, shape, arch) for i, stage in enumerate(op.plan.stages)}
    loops = {i: {"stage": i + 1, **how} for i, how in found.items() if how is not None}
    count = functools.partial(elements, shape=shape)
    for run in op.plan.joint:
        plans = [stage.plan for stage in op.plan.stages[run.start : run.stop] if isinstance(stage.plan, Gemm)]
        try:
            (how, *_) = joint.launches([plan.member(binding, count, arch) for plan in plans])
        except UserError:  # there is no kernel for one of them alone
            continue
        for i in run:
            loops[i] |= {"joint": [j + 1 for j in run], "apart": how.why}
            loops[i] |= {} if how.why else {"one_kernel": True, "why": "", "tiles": asdict(how.tiles)}
    return [*loops.values()]


def _limits(
    op: Op, binding: Binding, moved: int, found: list[tuple[Product, int]], gpu: Gpu, instructions: Work | None
) -> dict[str, float] | None:
    """The least microseconds that each resource takes: memory for the bytes, the tensor cores for the products, the SMs for the
    instructions of all elements. None where the architecture lacks a dtype. Tensor cores do twice as many operations per second on
    half as many bits."""
    if lacks(op, binding, gpu.arch):
        return None
    limits = {"bytes": moved / gpu.bandwidth}
    if found:
        limits["products"] = sum(n * DTYPES[binding.dtype(p.a)].size / 2 for p, n in found) / gpu.tensor_cores
    if instructions is not None:
        limits |= gpu.seconds(instructions)
    return {name: round(seconds * 1e6, 3) for name, seconds in limits.items()}


def _instructions(op: Op, binding: Binding, shape: Shape) -> Work | None:
    """An estimate of the instructions of a call's kernels (`estimate.py`). None for products, and for float64."""
    if any(isinstance(stage.plan, Gemm | AttentionPlan) for stage in stages_of(op)) or binding.width("float") > 4:
        return None
    total = Work(0, 0, 0)
    for i, stage in enumerate(stages_of(op)):
        assert not isinstance(stage.plan, Gemm | Staged)
        count = math.prod(stage.plan.rows_and_columns(functools.partial(elements, shape=shape))) // spacing_of(
            op, i, shape
        )
        total += work(stage, dict(binding.types), launch_of(stage, binding, shape).vec).times(count)
    return total


# All of it


def cost(op: Op, binding: Binding, shape: Shape) -> dict[str, Any]:
    """The part of the report for one choice of dtypes: launches, bytes, instructions, and the least time on each GPU."""
    called = as_called(op, binding, shape)
    fused = moved_bytes(called, binding, shape)
    facts, clustered = (_launch(op, binding, shape, arch) for arch in (None, "sm_90a"))
    keeps = saved(op)["names"]
    instructions, many = _instructions(called, binding, shape), max(elements(op.spec.axes, shape), 1)
    limits = {g.name: _limits(op, binding, fused, products(op, shape), g, instructions) for g in GPUS}
    return {
        "types": dict(binding.types),
        "launch": facts,
        "launch_in_clusters": None if clustered == facts else clustered,
        "main_loop": main_loop(op, binding, shape),
        "main_loops": main_loops(op, binding, shape),
        "bytes": {
            "fused": fused,
            "unfused": unfused_bytes(op, binding, shape),
            "saved": sum(array_bytes(a, shape, binding.dtype(a)) for a in _kept(op, keeps)),
        },
        "instructions": None
        if instructions is None
        else {name: round(n, 2) for name, n in asdict(instructions.times(1 / many)).items()},
        "limits_us": limits,
        "roofline_us": {name: None if of is None else max(of.values()) for name, of in limits.items()},
    }


def product_facts(op: Op, shape: Shape) -> dict[str, dict[str, Any]]:
    """Each product of the chain: its result, its factors, what it contracts, and its number of operations."""
    return {
        name: {
            "type": str(p.acc),
            "shape": list(array_shape(p.acc, shape)),
            "a": p.a.name,
            "b": p.b.name,
            "over": axes_text(p.axes),
            "operations": count,
        }
        for name, (p, count) in zip(_sums(op).values(), products(op, shape), strict=True)
    }


def explain(op: Op, shape: Shape) -> dict[str, Any]:
    """The whole report, as --json prints it; `tables.as_text` shows the same."""
    spec, found = op.spec, graph(op)
    reducing = [graph(launched(stage)) for stage in stages_of(op)]
    calls = {id(o.node): f"{o.op}({', '.join(o.args)})" for one in reducing for o in one.operations}
    costs = [cost(op, binding, shape) for binding in bindings(spec)]
    return {
        "op": spec.op,
        "summary": spec.summary,
        "kind": op.plan.kind,
        "why": words(op.plan).kind(),
        "shape": dict(shape),
        "inputs": {a.name: {"type": str(a), "shape": list(array_shape(a, shape))} for a in spec.inputs},
        "params": {p.name: {"type": p.kind, "static": p.static, "default": p.default} for p in spec.params},
        "outputs": {a.name: {"type": str(a), "shape": list(array_shape(a, shape))} for a in spec.outputs},
        "graph": [{"name": o.name, "op": o.op, "args": list(o.args), "type": o.type} for o in found.operations],
        "results": dict(found.outputs),
        "products": product_facts(op, shape),
        "groups": [list(g.axes) for g in op.plan.groups] if not op.plan.collapsed else [],
        "groups_why": words(op.plan).groups(),
        "mask": mask(op, shape),
        "statistics": [
            {
                "name": s.name,
                "value": calls[id(s.node)],
                "stage": s.stage,
                "over": s.over,
                "same_pass": isinstance(one.plan, Reduction) and one.plan.in_same_pass(s),
            }
            for one in stages_of(op)
            for s in (*one.plan.rows, *one.plan.inner, *one.plan.columns)
        ],
        "stages": stages(op),
        "accesses": accesses(op),
        "ragged": ragged_words(op, shape),
        "kernels": {"fused": op.plan.kernels, "unfused": unfused_kernels(op)},
        "scaled": [asdict(s) for s in op.plan.scaled] if isinstance(op.plan, Staged) else [],
        "saved": saved(op),
        "backward": backward(op, shape),
        "gpus": [{"arch": g.arch, "name": g.name, "bandwidth": g.bandwidth} for g in GPUS],
        "costs": costs,
    }
