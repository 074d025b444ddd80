"""Estimates the instructions that a kernel takes for an element, from its graph: nothing is compiled.

Each operation that varies along the last axis costs the number of instructions that was measured for it (`work.py`). In
a sum, one product costs nothing (a fused multiply-add); a reduction costs one more operation, and an element of an
array its conversion and its part of the access.
"""

from __future__ import annotations

from codegen.explain.work import OPERATIONS
from codegen.graph.emit import PAIR
from codegen.graph.nodes import DTYPES, Node, dtype_of, nodes_of
from codegen.graph.ops import OPS, PINNED, REDUCTIONS
from codegen.graph.precision import deciding_types, is_narrow
from codegen.plan.op import Op
from codegen.shared import HALF_POWERS
from codegen.targets import Work

FREE = frozenset({"input", "param", "const", "index", "size", "float", "neg", "abs", PINNED, "_others"})
PLAIN, HALF = Work(1, 0, 0), Work(1, 0, 1)  # float32 arithmetic; integers, comparisons, selections
# Of a vector: addresses, bounds and the loop; of a vector that is reduced along a row, also what threads exchange
OVERHEAD, REDUCED = Work(24, 0, 10), Work(8, 0, 3)


def work(op: Op, types: dict[str, str], vector: int) -> Work:
    """The instructions for each element of a call with these dtypes of type variables, of an op that is one kernel and does not
    contract."""
    spec, last = op.spec, op.spec.axes[-1] if op.spec.axes else ""
    nodes = [n for n in nodes_of(op.statements) if last in n.dims or n.op in REDUCTIONS]
    approximate = _approximate(op, types)
    fused = _fused(nodes)
    total = OVERHEAD.times(1 / vector)
    for node in nodes:
        if node.op in REDUCTIONS:
            along = last in node.args[0].dims
            total += (
                (HALF if node.op in ("max", "min") else PLAIN) + REDUCED.times(1 / vector) if along else Work(0, 0, 0)
            )
        elif id(node) not in fused:
            total += _cost(node, id(node) in approximate, last)
    for array in spec.arrays:
        if last in array.axes:
            total += _access(DTYPES[dtype_of(array.dtype, types)].size).times(array.parts or 1)
    return total


def _access(size: int) -> Work:
    """The instructions to load or store an element of so many bytes, of a vector of 16 bytes, and to convert it."""
    return Work(size / 16 + (1 if size == 2 else 1.5 if size == 1 else 0), 0, 0.5 if size < 4 else 0)


def _cost(node: Node, approximate: bool, last: str) -> Work:
    if node.op in FREE:
        return Work(0, 0, 0)
    if node.op == "cast" or node.kind == "int" or node.kind == "bool" or node.op == "where":
        return HALF
    name = node.op
    if name == "pow" and node.args[1].is_const and node.args[1].attr in HALF_POWERS:
        name = "half_power"
    if name == "div" and last not in node.args[1].dims:
        name = "divide_by_row"
    if name not in OPERATIONS:
        return PLAIN
    forms = OPERATIONS[name]
    return Work(*forms[approximate and len(forms) > 1])


def _fused(nodes: list[Node]) -> set[int]:
    """The operations that cost nothing next to others: products that a sum takes, and a sine next to a cosine of its argument."""
    uses: dict[int, int] = {}
    for node in nodes:
        for argument in node.args:
            uses[id(argument)] = uses.get(id(argument), 0) + 1
    found = set()
    for node in nodes:
        if node.op in ("add", "sub"):
            products = [a for a in node.args if a.op == "mul" and uses[id(a)] == 1 and id(a) not in found]
            found |= {id(a) for a in products[:1]}
    circular = {(n.op, id(n.args[0])) for n in nodes if n.op in PAIR}
    return found | {id(n) for n in nodes if n.op == PAIR[0] and (PAIR[1], id(n.args[0])) in circular}


def _approximate(op: Op, types: dict[str, str]) -> set[int]:
    """The operations that are approximate with these dtypes, by identity."""
    spec = op.spec
    if spec.math != "auto":
        return {id(n) for n in nodes_of(op.statements) if spec.math == "fast"}
    found = deciding_types(op.statements, spec.asked_types, spec.float_types(spec.inputs), dict(spec.types))
    return {i for i, decide in found.items() if all(is_narrow(dtype_of(t, types)) for t in decide)}


assert OPERATIONS.keys() - {"divide_by_row", "half_power", "sine_and_cosine"} <= OPS.keys()
