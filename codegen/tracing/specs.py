"""Makes a spec of steps: its text, read again and planned."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from codegen.errors import SpecError, UserError
from codegen.graph.nodes import DTYPES, Leaf, Node, lost_axes, nodes_of
from codegen.pipeline import read_op
from codegen.plan.attention import Attention
from codegen.plan.op import Op, Staged
from codegen.tracing.axes import Axis
from codegen.tracing.formulas import Formula, walk, with_less_work, with_masks
from codegen.tracing.layout import ArrayOf, Layout, array_of, layouts
from codegen.tracing.naming import assigned_names
from codegen.tracing.patterns import recognised
from codegen.tracing.reference import NoSize, Printer
from codegen.tracing.steps import Step, Value, plain
from codegen.tracing.translate import NotExpressed, Translator, is_exact, translated
from codegen.tracing.write import Writer, used_names

EXACT, ROUNDED = 1e-6, 2.0**-8  # how far constants may be from a pattern's: those of bfloat16 are rounded
FREE = ("float32", "float16", "bfloat16")  # what the type variable T ranges over


@dataclass(frozen=True)
class Param:
    """A scalar that becomes a parameter of the op."""

    name: str
    default: float
    value: Value


def no_source(names: Sequence[str], outputs: Sequence[str]) -> list[str]:
    """No statements: the reference is written from the steps."""
    del names, outputs
    return []


@dataclass(frozen=True)
class Request:
    """The steps to make a spec of, with their inputs, outputs and names."""

    op: str
    summary: str
    steps: Sequence[Step]
    inputs: Mapping[Value, str]
    outputs: Sequence[tuple[str, Value]]
    params: Sequence[Param] = ()
    source: Callable[[Sequence[str], Sequence[str]], list[str]] = no_source
    generic: bool = True  # whether the common float type is a type variable
    own: bool = True  # whether functions with their own derivative may be read by their values
    lean: bool = False  # whether formulas may be written otherwise than the steps are, with less work
    from_start: bool = True  # whether no index is negative, as callers of the op promise
    notes: Sequence[str] = ()
    copies: Mapping[str, str] = field(default_factory=dict)  # inputs that are another one's array
    dtypes: Mapping[Value, str] = field(default_factory=dict)  # of inputs and outputs, where they are not their values'


@dataclass(frozen=True)
class Made:
    """A spec that was made, and its op."""

    text: str
    planned: Op
    inputs: tuple[ArrayOf, ...]
    outputs: tuple[ArrayOf, ...]


def spec_of(request: Request) -> Made:
    """The spec of steps. Raises `NotExpressed` for a step that the language lacks, `SpecError` where no kernel can do it."""
    made = _spec_of(request, ())
    single = _single_row(request, made.planned)
    if single:
        with contextlib.suppress(SpecError, UserError):
            other = _spec_of(request, single)
            if isinstance(other.planned.plan, Attention):
                return other
    return made


def _single_row(request: Request, op: Op) -> tuple[Value, ...]:
    """The queries and the result of attention whose queries have one row for each head, as in decoding: the language has the row as
    an axis. Nothing for other ops."""
    products = [n for n in nodes_of(op.statements) if n.op == "contract"]
    if len(products) != 2 or not isinstance(op.plan, Staged):
        return ()
    first, second = products
    columns = {*lost_axes(second)}
    results = {s.name for s in op.statements if _converted(s.value) is second}
    found = [value for name, value in request.outputs if name in results]
    for queries, keys in (first.args, first.args[::-1]):
        if columns <= {*keys.dims} - {*queries.dims} and {*queries.dims} < {*keys.dims}:
            leaf = _converted(queries).attr
            found += [value for value, name in request.inputs.items() if isinstance(leaf, Leaf) and leaf.name == name]
    return tuple(found) if len(found) == 2 else ()


def _converted(node: Node) -> Node:
    """What a node converts to its type, or the node."""
    while node.op in ("cast", "float"):
        node = node.args[0]
    return node


def _spec_of(request: Request, single: Sequence[Value]) -> Made:
    """The spec of steps, with an axis of one row more in these values."""
    row = Axis(1)
    translator = translated(
        request.steps, {**request.inputs, **{p.value: p.name for p in request.params}},
        lambda axes: axes.rows.update(dict.fromkeys(single, row)), request.from_start,
    )  # fmt: skip
    formulas = translator.formulas
    for param in request.params:
        translator.values[param.value] = (formulas.make("param", (), "float", param.name),)
    if request.params:  # once more, with the parameters as such
        translator = _with_params(request, translator)
        formulas = translator.formulas
    axes = translator.axes
    wished = assigned_names(request.steps)
    roots = [translator.parts(value) for _, value in request.outputs]
    named = [(value, name) for value, name in wished.items() if len(translator.values.get(value, ())) == 1]
    flat = [f for parts in roots for f in parts]
    tolerance = ROUNDED if any(v.dtype in ("bfloat16", "float16") for s in request.steps for v in s.outputs) else EXACT
    after = recognised(formulas, [*flat, *(translator.values[v][0] for v, _ in named)], tolerance)
    if not request.own and any(f.op == "own" for f in walk(after[: len(flat)])):
        raise UserError("a function has a derivative of its own", "")
    forms = [after]
    if request.lean:
        slopes = any(step.name == "scatter-add" for step in request.steps)
        lean = with_less_work(formulas, with_masks(formulas, after, request.copies), picks=slopes)
        forms = [lean, after] if lean != after else forms
    sizes = [len(parts) for parts in roots]
    chains = [_Chain.of(form, sizes, [name for _, name in named]) for form in forms]
    used = used_names(after[: len(flat)])
    inputs = [array_of(n, v, axes, request.dtypes.get(v, "")) for v, n in request.inputs.items() if n in used]
    outputs = [array_of(n, v, axes, request.dtypes.get(v, "")) for n, v in request.outputs]
    if not inputs:
        raise UserError("the function's results do not depend on its arguments", "")
    error: SpecError | UserError | None = None
    for layout in layouts(inputs, outputs, flat):
        for chain in chains:
            writing = _Writing(request, layout, inputs, outputs, chain, roots, used)
            for reference in writing.references():
                try:
                    text = writing.text(reference())
                    return Made(text, read_op(f"specs/{request.op}.yaml", text), tuple(inputs), tuple(outputs))
                except (SpecError, UserError) as found:
                    error = found
    assert error is not None
    if isinstance(error, NoSize):
        step = next(s for s in plain(request.steps) if any(error.axis in axes.all(value) for value in s.outputs))
        raise NotExpressed(step, error.message, error.hint)
    raise error


def _with_params(request: Request, before: Translator) -> Translator:
    made = Translator(before.formulas, before.axes, before.from_start)
    for value, name in request.inputs.items():
        made.leaf(value, name)
    for param in request.params:
        made.values[param.value] = (made.formulas.make("param", (), "float", param.name),)
    for step in plain(request.steps):
        made.add(step)
    return made


@dataclass(frozen=True)
class _Chain:
    """The formulas of a chain: those of each output's parts, and the names of some of them."""

    outputs: Sequence[Sequence[Formula]]
    names: Mapping[int, str]

    @classmethod
    def of(cls, formulas: Sequence[Formula], sizes: Sequence[int], names: Sequence[str]) -> _Chain:
        """The chain of the outputs' formulas, `sizes` of them for each output, followed by the formulas that have `names`."""
        left = iter(formulas)
        outputs = [[next(left) for _ in range(size)] for size in sizes]
        return cls(outputs, {id(f): name for f, name in zip(left, names, strict=True)})


@dataclass(frozen=True)
class _Writing:
    """The parts of a spec's text: arrays, and the formulas of outputs, as a chain has them and as steps were."""

    request: Request
    layout: Layout
    inputs: Sequence[ArrayOf]
    outputs: Sequence[ArrayOf]
    chain: _Chain
    plain: Sequence[Sequence[Formula]]
    used: set[str]

    @property
    def params(self) -> list[Param]:
        return [p for p in self.request.params if p.name in self.used]

    @property
    def taken(self) -> set[str]:
        return {a.name for a in (*self.inputs, *self.outputs)} | {p.name for p in self.params}

    def references(self) -> Iterator[Callable[[], list[str]]]:
        """The ways to write the reference: the function's source, where its arrays are the spec's, then the steps."""
        squeezed = any(1 in a.value.shape or a.is_split for a in (*self.inputs, *self.outputs))
        own = [*(a.name for a in self.inputs), *(p.name for p in self.params)]
        source = self.request.source(own, [a.name for a in self.outputs])
        if source and not squeezed:
            yield lambda: source
        yield lambda: Printer(self.layout, self.inputs, sorted(self.taken)).write(self.outputs, self.plain)

    def text(self, reference: list[str]) -> str:
        request, layout = self.request, self.layout
        arrays = [*self.inputs, *self.outputs]
        types = type_variable(arrays) if request.generic else {}
        targets: list[str] = []
        roots: list[Formula] = []
        for array, parts in zip(self.outputs, self.chain.outputs, strict=True):
            cut = any(d.parts for d in array.dims)
            targets += [f"{array.name}[{i}]" if cut else array.name for i in range(len(parts))]
            roots += parts
        lines = Writer(layout, self.chain.names, self.taken, arrays).write(targets, roots)
        written = [
            *(f"# {note}" for note in request.notes),
            f"op: {request.op}",
            f"summary: {json.dumps(request.summary)}",
        ]
        if types:
            written += ["types:", f"  T: [{', '.join(FREE)}]"]
        for key, own in (("inputs", self.inputs), ("outputs", self.outputs)):
            written.append(f"{key}:")
            written += [f"  {a.name}: {types.get(a.dtype, a.dtype)}[{layout.dims(a)}]" for a in own]
        if self.params:
            written += ["params:", *(f"  {p.name}: {{type: float, default: {p.default!r}}}" for p in self.params)]
        written += ["chain: |", *(f"  {line}" for line in lines)]
        written += ["reference: |", *(f"  {line}" for line in reference)]
        if any(map(is_exact, plain(request.steps))):
            written.append("math: precise")
        domain = {f.attr[0]: layout.names[axis] for f, axis in _indices(self.chain.outputs) if f.op == "input"}
        if domain:
            written += ["domain:", *(f"  {name}: index({axis})" for name, axis in domain.items())]
        return "\n".join(written) + "\n"


def _indices(chain: Sequence[Sequence[Formula]]) -> Iterator[tuple[Formula, Axis]]:
    """The inputs that are positions along an axis: those of `take`, and those that are compared with `index`."""
    for formula in walk(f for parts in chain for f in parts):
        if formula.op == "take":
            yield formula.args[1], formula.attr
        elif formula.op == "eq" and formula.args[0].op == "index" and formula.args[1].op == "input":
            yield formula.args[1], formula.args[0].attr


def type_variable(arrays: Sequence[ArrayOf]) -> dict[str, str]:
    """The dtype that is the type variable: the most frequent of the narrow float types, else float32."""
    counts = Counter(a.dtype for a in arrays if DTYPES[a.dtype].kind == "float" and a.dtype in FREE)
    narrow = [d for d, _ in counts.most_common() if d != "float32"]
    return dict.fromkeys((narrow or list(counts))[:1], "T")
