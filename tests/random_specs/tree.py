"""A random spec as a tree, and the two texts that it is printed as: the chain's language, and jnp with explicit
broadcasting.

Neither text is made from the other, and none of the code under test is used. In jnp every value has one dimension for
each named axis of the spec, of size 1 if it does not vary along it, after the dimensions of `...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.random_specs.calls import CALLS, axes_text
from tests.random_specs.nodes import (
    FOLDS,
    INTEGERS,
    KEEPING,
    NARROW,
    OPS,
    ROWS,
    SATURATING,
    WIDE_INTEGERS,
    Array,
    Dim,
    Node,
    Param,
    kind_of,
    nodes,
)  # fmt: skip


@dataclass(frozen=True)
class RandomSpec:
    """Everything that is decided. `chain` holds the statements in their order: (a name, or an output and a part; its
    value)."""

    name: str
    axes: tuple[str, ...]
    types: tuple[tuple[str, tuple[str, ...]], ...]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    params: tuple[Param, ...]
    chain: tuple[tuple[str, int | None, Node], ...]
    keys: tuple[tuple[str, str], ...] = ()  # further lines of the spec
    wild: bool = False  # whether nothing keeps values moderate

    @property
    def text(self) -> str:
        lines = [f"op: {self.name}", "summary: Drawn at random."]
        lines += ["types:", *(f"  {name}: [{', '.join(d)}]" for name, d in self.types)] if self.types else []
        for key, arrays in (("inputs", self.inputs), ("outputs", self.outputs)):
            lines += [f"{key}:", *(f"  {a.name}: {str(a)!r}" for a in arrays)]
        if self.params:
            lines += ["params:", *(f"  {p.name}: {{type: {p.kind}, default: {str(p.default).lower()}, "
                                   f"static: {str(p.static).lower()}}}" for p in self.params)]  # fmt: skip
        lines += ["chain: |"]
        for name, part, value in self.chain:
            lines.append(f"  {name}{'' if part is None else f'[{part}]'} = {chain_text(value)}")
        lines += ["reference: |", *(f"  {line}" for line in Reference(self).lines)]
        lines += [f"{key}: {value}" for key, value in self.keys]
        return "\n".join(lines) + "\n"

    @property
    def values(self) -> Iterator[Node]:
        for _, _, value in self.chain:
            yield from nodes(value)

    def dtypes(self, array: Array) -> tuple[str, ...]:
        return dict(self.types).get(array.dtype, (array.dtype,))


def chain_text(node: Node) -> str:
    """A value in the language of a chain."""
    args = [chain_text(a) for a in node.args]
    if node.op in OPS:
        return OPS[node.op].chain.format(*args, attr=node.attr)
    if node.op in FOLDS:
        return f"{node.op}({args[0]}, axis={axes_text(node.attr)})"
    if node.op == "input":
        name, part = node.attr
        return name if part is None else f"{name}[{part}]"
    if node.op in ("const", "named", "param"):
        text = str(node.attr)
        return f"({text})" if text.startswith("-") else text
    if node.op in ("index", "size"):
        return f"{node.op}({node.attr})"
    if node.op == "take":
        table, index, axis = node.attr
        return f"take({table}, {index}, axis={axis})"
    if node.op == "cast":
        return f"cast({args[0]}, {node.attr})"
    if node.op in CALLS:
        return CALLS[node.op].chain(node, args)
    assert node.op == "product", node.op
    a, b, part, _ = node.attr
    return f"({a} @ {b})" if part is None else f"({a} @ {b}[{part}])"


class Reference:
    """The `lines` of a spec's reference."""

    def __init__(self, spec: RandomSpec):
        self.spec = spec
        self.named = [a for a in spec.axes if a != ROWS]
        self.arrays = {a.name: a for a in spec.inputs}
        self.integer = (
            "int64" if WIDE_INTEGERS & {d for a in (*spec.inputs, *spec.outputs) for d in spec.dtypes(a)} else "int32"
        )
        self.lines: list[str] = []
        self.held: dict[Any, str] = {}
        there = [a for a in spec.inputs if a.default is None]
        floats = [a for a in there if kind_of(spec.dtypes(a)[0]) == "float"]
        self.lines.append(f"real = {floats[0].name}.dtype" if floats else "real = jnp.float64")
        rows = next((a for a in there if ROWS in a.axes), None)
        self.lines.append(
            f"rows = {rows.name}.shape[:{rows.name}.ndim - {len(rows.dims) - 1}]" if rows else "rows = ()"
        )
        self.sizes = {axis: self.size(axis, there) for axis in self.named}
        for name, part, value in spec.chain:
            self.lines.append(f"v_{name}{'' if part is None else part} = {self.value(value)}")
        for output in spec.outputs:
            self.lines.append(f"{output.name} = {self.output(output)}")

    def size(self, axis: str, there: Sequence[Array]) -> str:
        for array in there:
            for place, dim in enumerate(array.dims):
                extent = f"{array.name}.shape[{place - len(array.dims)}]"
                if dim.axis == axis and dim.width and not dim.inner:
                    return str(dim.width)
                if dim.axis == axis and (dim.width or not dim.inner):
                    return f"({extent} // {count})" if (count := max(1, dim.parts) * max(1, dim.width)) > 1 else extent
                if dim.inner == axis:
                    groups = self.size(dim.axis, there)
                    return str(dim.width) if dim.width else f"({extent} // {groups} if {groups} else 1)"
        if dims := [d for a in self.spec.outputs for d in a.dims if d.axis == axis and d.width]:
            return str(dims[0].width)
        raise AssertionError(f"nothing has {axis}")

    def at(self, axis: str) -> int:
        """The dimension of a named axis, from the end."""
        return self.named.index(axis) - len(self.named)

    def shape(self, axes: Sequence[str] | frozenset[str], **given: str) -> str:
        """The shape of a value that varies along these axes, of which some have a `given` size."""
        sizes = "".join(f"{given.get(a, self.sizes[a] if a in axes else 1)}, " for a in self.named)
        return f"{'rows' if ROWS in axes else '()'} + ({sizes.rstrip()})"

    def ordered(self, text: str, axes: Sequence[str], wanted: Sequence[str]) -> str:
        """An array with these axes, in another order."""
        return text if list(axes) == list(wanted) else f"jnp.transpose({text}, {tuple(axes.index(a) for a in wanted)})"

    def laid_out(self, text: str, axes: Sequence[str]) -> str:
        """An array with these axes, with a dimension for each."""
        marks = [":" if a in axes else "None" for a in self.named]
        while marks[:1] == ["None"] and ROWS not in axes:
            marks.pop(0)
        return text if "None" not in marks else f"{text}[{', '.join(['...', *marks])}]"

    def flat(self, text: str, dims: Sequence[str] | frozenset[str], axes: Sequence[str]) -> str:
        """A value that varies along `dims`, with a dimension for each of these axes only."""
        text = f"jnp.broadcast_to({text}, {self.shape(dims)})"
        marks = [":" if a in axes else "0" for a in self.named]
        return f"{text}[{', '.join(['...', *marks])}]" if "0" in marks else text

    def whole(self, node: Node, dims: Sequence[str] | frozenset[str]) -> str:
        """The name of a value that is broadcast to these dims."""
        text = f"jnp.broadcast_to({self.value(node)}, {self.shape(dims)})"
        return self.assigned(("whole", node, frozenset(dims)), text)

    def input(self, name: str, part: int | None) -> str:
        array = self.arrays[name]
        text = name
        for place, dim in enumerate(array.dims):
            after = len(array.dims) - place - 1
            tail = ", :" * after
            if dim.parts and not dim.axis:
                text = f"{name}[..., {part}{tail}]"
            elif dim.parts and dim.interleaved:
                text = f"{name}[..., {part}::{dim.parts}{tail}]"
            elif dim.parts:
                size = self.sizes.get(dim.axis) or self.size(dim.axis, [array])
                size = f"{size} * {dim.width}" if dim.inner else size
                text = f"{name}[..., {part} * {size}:{part + 1} * {size}{tail}]"  # type: ignore[operator]
        for place, dim in enumerate(array.dims):
            if dim.inner:
                own, after = self.assigned(("part", name, part), text), len(array.dims) - place - 1
                rest = f" + {own}.shape[-{after}:]" if after else ""
                blocks = f"{self.sizes[dim.axis]}, {dim.width or self.sizes[dim.inner]}"
                text = f"{own}.reshape({own}.shape[:-{after + 1}] + ({blocks}){rest})"
        text = self.ordered(text, array.axes, [a for a in (ROWS, *self.named) if a in array.axes])
        text = self.laid_out(text, array.axes)
        if array.default is not None:
            text = f"jnp.asarray({text} if jnp.ndim({name}) else {name})"
        kind = kind_of(self.spec.dtypes(array)[0])
        return text if kind == "bool" else f"{text}.astype({self.dtype(kind)})"

    def dtype(self, kind: str) -> str:
        return {"float": "real", "int": f"jnp.{self.integer}", "bool": "bool"}[kind]

    def as_float(self, node: Node) -> str:
        return self.value(node) + (".astype(real)" if node.kind == "int" else "")

    def assigned(self, key: Any, text: str) -> str:
        if key not in self.held:
            self.held[key] = f"t{len(self.held)}"
            self.lines.append(f"{self.held[key]} = {text}")
        return self.held[key]

    def value(self, node: Node) -> str:
        if node.op in OPS:
            return self.operation(node)
        if node.op in FOLDS:
            return self.fold(node)
        if node.op == "input":
            return self.assigned(("input", *node.attr), self.input(*node.attr))
        if node.op in ("const", "param"):
            kind = f", {self.dtype(node.kind)}" if node.kind != "bool" else ""
            text = {"inf": "jnp.inf", "-inf": "-jnp.inf", "nan": "jnp.nan"}.get(str(node.attr), str(node.attr))
            return f"jnp.asarray({text}{kind})"
        if node.op == "named":
            return f"v_{node.attr}"
        if node.op == "index":
            return self.laid_out(f"jnp.arange({self.sizes[node.attr]}, dtype=jnp.{self.integer})", [node.attr])
        if node.op == "size":
            return f"jnp.asarray({self.sizes[node.attr]}, jnp.{self.integer})"
        if node.op == "take":
            table, index, axis = node.attr
            axes = [*self.arrays[index].axes, *(a for a in self.arrays[table].axes if a != axis)]
            text = self.laid_out(f"jnp.take({table}, {index}, axis=0, mode='clip')", axes)
            return self.assigned(node.attr, text if node.kind == "bool" else f"{text}.astype({self.dtype(node.kind)})")
        if node.op == "cast":
            return self.cast(node)
        if node.op in CALLS:
            return self.assigned(node, CALLS[node.op].jnp(self, node))
        return self.product(node)

    def operation(self, node: Node) -> str:
        row = OPS[node.op]
        numbers = [a for a, takes in zip(node.args, row.takes, strict=True) if takes == "n"]
        real = any(a.kind == "float" for a in numbers)
        args = [
            self.as_float(a) if takes == "f" or (takes == "n" and real) else self.value(a)
            for a, takes in zip(node.args, row.takes, strict=True)
        ]
        return row.jnp.format(*args, attr=node.attr)

    def fold(self, node: Node) -> str:
        row, (arg,), named = FOLDS[node.op], node.args, len(self.named)
        whole = (
            f"jnp.broadcast_to({self.as_float(arg) if row.takes == 'f' else self.value(arg)}, {self.shape(arg.dims)})"
        )
        array = self.assigned(("whole", node), whole)
        axes = [f"{array}.ndim - {named - self.named.index(a)}" for a in node.attr if a != ROWS]
        text = f"({', '.join(axes)},)" if axes else "()"
        if ROWS in node.attr:
            text = f"(0, 1, 2, 3, 4, 5)[:{array}.ndim - {named}] + {text}"
        made = self.assigned(("fold", node), row.jnp.format(array, text))
        if ROWS in node.attr and node.op not in KEEPING:  # whose dimensions go
            made = self.assigned(("once", node), f"{made}.reshape({made}.shape[{made}.ndim - {named}:])")
        return made

    def cast(self, node: Node) -> str:
        (arg,), dtype = node.args, node.attr
        if node.kind == "float":
            text = self.as_float(arg)
            if dtype in SATURATING:
                text = f"jnp.clip({text}, -{SATURATING[dtype]}, {SATURATING[dtype]})"
            return f"{text}.astype(jnp.{dtype}).astype(real)"
        low, high = (INTEGERS | NARROW)[dtype]
        if arg.kind == "int":
            return f"jnp.clip({self.value(arg)}, {low}, {high})"
        text = self.assigned(("rounded", node), f"jnp.trunc({self.value(arg)})")
        return f"jnp.where(jnp.isnan({text}), 0, jnp.clip({text}, {low}, {high})).astype(jnp.{self.integer})"

    def product(self, node: Node) -> str:
        left, right, part, axis = node.attr
        a, b = self.arrays[left], self.arrays[right]
        places = dict(zip([axis, *self.named], "kabcdefg", strict=False))
        dims = [["..." if n == ROWS else places[n] for n in x.axes] for x in (a, b)]
        axes = [*a.axes[:-1], *(n for n in b.axes if n not in a.axes)]
        result = "".join("..." if n == ROWS else places[n] for n in axes)
        text = right if part is None else self.input_part(b, part)
        wide = "real" if node.kind == "float" else "jnp.int32"
        made = f"jnp.einsum('{''.join(dims[0])},{''.join(dims[1])}->{result}', {left}.astype({wide}), {text}.astype({wide}))"
        return self.assigned(node.attr, self.laid_out(made, axes))

    def input_part(self, array: Array, part: int) -> str:
        place = next(i for i, d in enumerate(array.dims) if d.parts)
        dim, tail = array.dims[place], ", :" * (len(array.dims) - place - 1)
        size = self.sizes[dim.axis]
        where = f"{part}::{dim.parts}" if dim.interleaved else f"{part} * {size}:{part + 1} * {size}"
        return f"{array.name}[..., {where}{tail}]"

    def output(self, array: Array) -> str:
        found = [(part, value) for name, part, value in self.spec.chain if name == array.name]
        if found[0][1].op == "put":  # it has its table's shape
            return f"v_{array.name}"
        texts = []
        for part, value in found:
            text = f"v_{array.name}{'' if part is None else part}"
            if kind_of(self.spec.dtypes(array)[0]) == "float" and value.kind == "int":
                text += ".astype(real)"
            text = f"jnp.broadcast_to({text}, {self.shape(array.axes)})"
            marks = [":" if a in array.axes else "0" for a in self.named]
            text = f"{text}[{', '.join(['...', *marks])}]" if "0" in marks else text
            text = self.ordered(text, [a for a in (ROWS, *self.named) if a in array.axes], array.axes)
            for place, dim in enumerate(array.dims):
                if dim.inner:
                    made, after = self.assigned(("output", array.name, part), text), len(array.dims) - place - 1
                    rest = f" + {made}.shape[-{after}:]" if after else ""
                    size = f"{self.sizes[dim.axis]} * {dim.width or self.sizes[dim.inner]}"
                    text = f"{made}.reshape({made}.shape[:-{after + 2}] + ({size},){rest})"
            texts.append(text)
        last = array.dims[-1] if array.dims else Dim()
        if not last.parts:
            return texts[0]
        joined = f"({', '.join(texts)},)"
        if last.axis and not last.interleaved:
            return f"jnp.concatenate({joined}, axis=-1)"
        made = self.assigned(("output", array.name), f"jnp.stack({joined}, axis=-1)")
        size = f"{self.sizes[last.axis]} * {f'{last.width} * ' if last.width else ''}{last.parts}" if last.axis else ""
        return f"{made}.reshape({made}.shape[:-2] + ({size},))" if last.axis else made
