"""Whether the library has an op for a chain: the same graph, up to the names of arrays and axes and the order of factors.

A number of the chain may stand for a parameter of the library's op, and an input with a default may be left out.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from codegen.graph.nodes import ROWS, Leaf, Node, Statement, topological
from codegen.graph.ops import PINNED
from codegen.language.chain import read_chain
from codegen.library import folder
from codegen.plan.op import Op
from codegen.spec.spec import Array, Spec
from codegen.spec.specfile import read_spec

SWAPPED = frozenset({"add", "mul", "maximum", "minimum", "and", "or", "eq", "ne"})
CLOSE = 1e-2  # how far constants of a chain may be from an op's: bfloat16 code rounds them


@dataclass(frozen=True, eq=False)
class Term:
    """A node of a graph without marks. `form` is equal for terms that are equal up to names, numbers and orders of factors."""

    op: str
    attr: object
    args: tuple[Term, ...]
    form: int


@dataclass(frozen=True)
class Known:
    """An op of the library in a call with some inputs left out."""

    name: str
    spec: Spec
    inputs: tuple[Array, ...]
    outputs: tuple[Term, ...]

    @property
    def form(self) -> tuple[int, ...]:
        return tuple(sorted(t.form for t in self.outputs))


@dataclass(frozen=True)
class Call:
    """A call of a library op that computes a chain: the chain's inputs and outputs in the op's order, and the
    parameters."""

    op: str
    inputs: tuple[tuple[str, str], ...]  # the op's name, the chain's
    outputs: tuple[str, ...]
    params: tuple[tuple[str, float], ...]


def known(op: Op) -> Call | None:
    """The call of a library op that computes what an op does."""
    outputs = _outputs(op.spec, op.statements, {})
    form = tuple(sorted(t.form for t in outputs))
    for candidate in library().get(form, ()):
        for order in itertools.permutations(range(len(outputs))) if len(outputs) <= 4 else ():
            bound = _matched(candidate.outputs, [outputs[i] for i in order], _Bound({}, {}, {}))
            if bound is not None and _fits(candidate, op.spec, bound):
                inputs = tuple((a.name, bound.inputs[a.name]) for a in candidate.inputs if a.name in bound.inputs)
                names = dict.fromkeys(_assigned(op.spec, op.statements)[i].name for i in order)
                return Call(candidate.name, inputs, tuple(names), tuple(bound.params.items()))
    return None


def _assigned(spec: Spec, statements: Sequence[Statement]) -> list[Statement]:
    """The statements that assign outputs, in the outputs' order."""
    return [s for a in spec.outputs for s in statements if s.name == a.name and s.at is None]


@functools.cache
def library() -> Mapping[tuple[int, ...], tuple[Known, ...]]:
    """The library's ops, by the forms of their outputs, with those inputs left out that have a default."""
    found: dict[tuple[int, ...], list[Known]] = {}
    for path in sorted(folder("specs").iterdir(), key=lambda p: p.name):
        if path.name.endswith(".yaml"):
            spec, _ = read_spec(f"specs/{path.name}", path.read_bytes())
            chain = read_chain(spec)[0] if spec is not None else None
            if spec is None or chain is None:
                continue
            for one in _calls(spec, chain.statements):
                found.setdefault(one.form, []).append(one)
    return {form: tuple(ops) for form, ops in found.items()}


def _calls(spec: Spec, statements: Sequence[Statement]) -> Iterator[Known]:
    optional = [a for a in spec.inputs if a.default is not None]
    for count in range(len(optional) + 1):
        for left_out in itertools.combinations(optional, count):
            constants = {a.name: a.default for a in left_out if a.default is not None}
            inputs = tuple(a for a in spec.inputs if a not in left_out)
            yield Known(spec.op, spec, inputs, tuple(_outputs(spec, statements, constants)))


def _outputs(spec: Spec, statements: Sequence[Statement], constants: Mapping[str, float]) -> list[Term]:
    """The terms of the outputs, in their order."""
    roots = [s.value for s in _assigned(spec, statements)]
    made: dict[int, Term] = {}
    for node in topological(roots):
        made[id(node)] = _term(node, [made[id(a)] for a in node.args], constants, spec)
    return [made[id(root)] for root in roots]


def _term(node: Node, args: list[Term], constants: Mapping[str, float], spec: Spec) -> Term:
    attr = node.attr
    if node.op in (PINNED, "float"):
        return args[0]
    if isinstance(attr, Leaf):
        if attr.name in constants:
            return _new("const", float(constants[attr.name]), ())
        array = spec.array(attr.name)
        return Term("input", attr, (), hash(("input", _pattern(array.axes), array.parts, attr.part, node.kind)))
    if node.op in ("mul", "div") and _is(args[1], 1):
        return args[0]
    if node.op == "mul" and _is(args[0], 1):
        return args[1]
    if node.op in ("add", "sub") and _is(args[1], 0):
        return args[0]
    if node.op == "add" and _is(args[0], 0):
        return args[1]
    return _new(node.op, attr, tuple(args))


def _new(op: str, attr: object, args: tuple[Term, ...]) -> Term:
    if op in ("const", "param"):
        return Term(op, attr, args, hash("number"))
    forms = [a.form for a in args]
    named = _pattern(attr) if isinstance(attr, tuple) else "axis" if op in ("index", "size") else str(attr)
    return Term(op, attr, args, hash((op, named, tuple(sorted(forms) if op in SWAPPED else forms))))


def _pattern(axes: object) -> object:
    return tuple(a if a == ROWS else "axis" for a in axes) if isinstance(axes, tuple) else str(axes)


def _is(term: Term, value: float) -> bool:
    return term.op == "const" and term.attr == value


@dataclass(frozen=True)
class _Bound:
    """The names of the chain that names of the library's op stand for."""

    inputs: dict[str, str]
    axes: dict[str, str]
    params: dict[str, float]


def _matched(own: Sequence[Term], chain: Sequence[Term], bound: _Bound) -> _Bound | None:
    """The names with which the library's terms are equal to the chain's."""
    if not own:
        return bound
    for first in _ways(own[0], chain[0], bound):
        found = _matched(own[1:], chain[1:], first)
        if found is not None:
            return found
    return None


def _ways(own: Term, chain: Term, bound: _Bound) -> Iterator[_Bound]:
    if own.form != chain.form:
        return
    if own.op == "param" and chain.op == "const" and isinstance(chain.attr, int | float):
        name, value = str(own.attr), float(chain.attr)
        if bound.params.get(name, value) == value:
            yield _Bound(bound.inputs, bound.axes, {**bound.params, name: value})
        return
    if own.op == "const" or chain.op == "const":
        numbers = (own.attr, chain.attr)
        if own.op == chain.op and all(isinstance(n, int | float) for n in numbers):
            a, b = (float(n) for n in numbers if isinstance(n, int | float))
            if a == b or math.isclose(a, b, rel_tol=CLOSE):
                yield bound
        return
    if own.op != chain.op:
        return
    if isinstance(own.attr, Leaf) and isinstance(chain.attr, Leaf):
        if own.attr.part != chain.attr.part or bound.inputs.get(own.attr.name, chain.attr.name) != chain.attr.name:
            return
        if own.attr.name not in bound.inputs and chain.attr.name in bound.inputs.values():
            return
        yield _Bound({**bound.inputs, own.attr.name: chain.attr.name}, bound.axes, bound.params)
        return
    pairs = zip(own.attr, chain.attr, strict=True) if isinstance(own.attr, tuple) and isinstance(chain.attr, tuple) else (
        [(own.attr, chain.attr)] if own.op in ("index", "size") else [])  # fmt: skip
    axes = dict(bound.axes)
    for one, other in pairs:
        if axes.setdefault(str(one), str(other)) != str(other):
            return
    here = _Bound(bound.inputs, axes, bound.params)
    orders = [chain.args, chain.args[::-1]] if own.op in SWAPPED else [chain.args]
    for order in orders:
        yield from _all(own.args, order, here)


def _all(own: tuple[Term, ...], chain: tuple[Term, ...], bound: _Bound) -> Iterator[_Bound]:
    if not own:
        yield bound
        return
    for first in _ways(own[0], chain[0], bound):
        yield from _all(own[1:], chain[1:], first)


def _fits(candidate: Known, spec: Spec, bound: _Bound) -> bool:
    """Whether the chain's arrays are of dtypes and axes that the library's op takes."""
    if {a.name for a in candidate.inputs} != bound.inputs.keys():
        return False
    axes = dict(bound.axes)
    for array in candidate.inputs:
        other = spec.array(bound.inputs[array.name])
        if len(array.axes) != len(other.axes) or not set(spec.dtypes(other)) <= set(candidate.spec.dtypes(array)):
            return False
        for a, b in zip(array.axes, other.axes, strict=True):
            if axes.setdefault(a, b) != b:
                return False
    return len(set(axes.values())) == len(axes)
