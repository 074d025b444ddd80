"""A random spec as a tree, and the two texts that it is printed as: the chain's language, and jnp with explicit
broadcasting.

Neither text is made from the other, and none of the code under test is used. In jnp every value has one dimension for
each named axis of the spec, of size 1 if it does not vary along it, after the dimensions of `...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

ROWS = "..."


@dataclass(frozen=True)
class Dim:
    """A dimension of an array: a named axis; with `parts`, an axis of halves or pairs, or only parts; with `inner`, a
    split."""

    axis: str = ""
    parts: int = 0
    interleaved: bool = False
    inner: str = ""
    width: int = 0

    def __str__(self) -> str:
        if self.inner:
            return f"({self.axis} {self.inner}={self.width})"
        if self.parts and self.axis:
            return f"({self.axis} {self.parts})" if self.interleaved else f"({self.parts} {self.axis})"
        return str(self.parts) if self.parts else self.axis


@dataclass(frozen=True)
class Array:
    """An input or an output; `dtype` is a dtype or a type variable."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]
    default: float | int | bool | None = None

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(name for d in self.dims for name in (d.axis, d.inner) if name)

    @property
    def parts(self) -> int:
        return sum(d.parts for d in self.dims)

    def __str__(self) -> str:
        default = "" if self.default is None else f" = {self.default}"
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]{default}"


@dataclass(frozen=True)
class Param:
    """A parameter. `kind` is float, int or bool."""

    name: str
    kind: str
    default: Any
    static: bool


class Node(NamedTuple):
    """A value: an operation of `ROWS_OF`, or one of the leaves and calls that the printers know."""

    op: str
    kind: str
    dims: frozenset[str]
    args: tuple[Node, ...] = ()
    attr: Any = None


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for arg in node.args:
        yield from nodes(arg)


class Row(NamedTuple):
    """An operation: the kinds of its arguments (f: a float, to which integers are converted; n: a number of the other
    arguments' kind; b: a bool) and of its result, its two texts, and the bounds of float arguments that keep values
    moderate."""

    takes: str
    gives: str
    jnp: str
    chain: str = ""
    confined: str = ""


def _functions(gives: str, confined: str, *names: str) -> dict[str, Row]:
    return {name: Row("f", gives, f"jnp.{name}({{0}})", f"{name}({{0}})", confined) for name in names}


def _nn(*names: str) -> dict[str, Row]:
    return {name: Row("f", "f", f"jax.nn.{name}({{0}})", f"{name}({{0}})") for name in names}


def _signs(takes: str, gives: str, **signs: str) -> dict[str, Row]:
    return {name: Row(takes, gives, f"({{0}} {s} {{1}})", f"({{0}} {s} {{1}})") for name, s in signs.items()}


OPS: dict[str, Row] = {
    **_signs("nn", "n", add="+", sub="-", mul="*"),
    **_signs("nn", "b", lt="<", le="<=", gt=">", ge=">=", eq="==", ne="!="),
    **_signs("bb", "b", both="&", either="|"),
    "not": Row("b", "b", "(~{0})", "(~{0})"),
    "neg": Row("n", "n", "(-{0})", "(-{0})"),
    "minimum": Row("nn", "n", "jnp.minimum({0}, {1})", "minimum({0}, {1})"),
    "maximum": Row("nn", "n", "jnp.maximum({0}, {1})", "maximum({0}, {1})"),
    "where": Row("bnn", "n", "jnp.where({0}, {1}, {2})", "where({0}, {1}, {2})"),
    "abs": Row("n", "n", "jnp.abs({0})", "abs({0})"),
    "sign": Row("n", "n", "jnp.sign({0})", "sign({0})"),
    "square": Row("n", "n", "jnp.square({0})", "square({0})"),
    "rem": Row("nn", "n", "jnp.fmod({0}, {1})", "rem({0}, {1})"),
    "clip": Row("nnn", "n", "jnp.minimum(jnp.maximum({0}, {1}), {2})", "clip({0}, {1}, {2})"),
    "gate": Row("fb", "f", "jnp.where({1}, {0}, 0)", "({0} * {1})"),
    "div": Row("ff", "f", "({0} / {1})", "({0} / {1})", " positive"),
    "atan2": Row("ff", "f", "jnp.arctan2({0}, {1})", "atan2({0}, {1})", " positive"),
    "pow": Row("f", "f", "({0} ** {attr})", "({0} ** {attr})", "positive"),
    **_functions("f", "positive", "sqrt", "cbrt", "log", "log2"),
    **_functions("f", "bounded", "exp", "exp2", "expm1", "sinh", "cosh"),
    **_functions("f", "", "sin", "cos", "tanh", "floor", "ceil", "round"),
    **_functions("f", "unit", "tan"),
    **_functions("b", "", "isnan", "isinf", "isfinite"),
    "log1p": Row("f", "f", "jnp.log1p({0})", "log1p({0})", "positive"),
    "reciprocal": Row("f", "f", "(1 / {0})", "reciprocal({0})", "positive"),
    "rsqrt": Row("f", "f", "jax.lax.rsqrt({0})", "rsqrt({0})", "positive"),
    "asin": Row("f", "f", "jnp.arcsin({0})", "asin({0})", "unit"),
    "acos": Row("f", "f", "jnp.arccos({0})", "acos({0})", "unit"),
    "atan": Row("f", "f", "jnp.arctan({0})", "atan({0})"),
    "erf": Row("f", "f", "jax.lax.erf({0})", "erf({0})"),
    "erfc": Row("f", "f", "jax.lax.erfc({0})", "erfc({0})"),
    **_nn("relu", "relu6", "elu", "celu", "selu", "silu", "sigmoid", "log_sigmoid", "hard_sigmoid", "hard_swish",
          "softplus", "mish"),
    "squareplus": Row("f", "f", "jnp.where({0} == -jnp.inf, 0, jax.nn.squareplus({0}))", "squareplus({0})"),
    "gelu": Row("f", "f", "jax.nn.gelu({0}, approximate=False)", "gelu({0})"),
    "gelu_tanh": Row("f", "f", "jax.nn.gelu({0}, approximate=True)", "gelu_tanh({0})"),
    "quick_gelu": Row("f", "f", "({0} * jax.nn.sigmoid(1.702 * {0}))", "quick_gelu({0})"),
    "squared_relu": Row("f", "f", "jnp.square(jax.nn.relu({0}))", "squared_relu({0})"),
    "leaky_relu": Row("f", "f", "jax.nn.leaky_relu({0}, 0.2)", "leaky_relu({0}, 0.2)"),
    "softsign": Row("f", "f", "jax.nn.soft_sign({0})", "softsign({0})"),
}  # fmt: skip

# Reductions: takes, gives, the jnp text of an array {0} along {1}, and what an argument is confined to
FOLDS: dict[str, Row] = {
    "sum": Row("n", "n", "jnp.sum({0}, axis={1}, keepdims=True, dtype={0}.dtype)"),
    "prod": Row("n", "n", "jnp.prod({0}, axis={1}, keepdims=True, dtype={0}.dtype)", confined="near_one"),
    "max": Row("n", "n", "jnp.max({0}, axis={1}, keepdims=True)"),
    "min": Row("n", "n", "jnp.min({0}, axis={1}, keepdims=True)"),
    "mean": Row("f", "f", "jnp.mean({0}, axis={1}, keepdims=True)"),
    "var": Row("f", "f", "jnp.var({0}, axis={1}, keepdims=True)"),
    "norm": Row("f", "f", "jnp.sqrt(jnp.sum(jnp.square({0}), axis={1}, keepdims=True))"),
    "logsumexp": Row("f", "f", "jax.nn.logsumexp({0}, axis={1}, keepdims=True)"),
    "any": Row("b", "b", "jnp.any({0}, axis={1}, keepdims=True)"),
    "all": Row("b", "b", "jnp.all({0}, axis={1}, keepdims=True)"),
    "softmax": Row("f", "f", "jax.nn.softmax({0}, axis={1})"),
    "log_softmax": Row("f", "f", "jax.nn.log_softmax({0}, axis={1})"),
}
KEEPING = {"softmax", "log_softmax"}  # which keep the axis

SATURATING = {"float8_e4m3fn": "448", "float8_e5m2": "57344"}
INTEGERS = {
    **{f"int{b}": (-(2 ** (b - 1)), 2 ** (b - 1) - 1) for b in (8, 16, 32, 64)},
    **{f"uint{b}": (0, 2**b - 1) for b in (8, 16, 32)},
}
WIDE_INTEGERS = {"int64", "uint32"}


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


def kind_of(dtype: str) -> str:
    return "bool" if dtype == "bool" else "int" if "int" in dtype else "float"


def chain_text(node: Node) -> str:
    """A value in the language of a chain."""
    args = [chain_text(a) for a in node.args]
    if node.op in OPS:
        return OPS[node.op].chain.format(*args, attr=node.attr)
    if node.op in FOLDS:
        axes = node.attr[0] if len(node.attr) == 1 else f"({', '.join(node.attr)})"
        return f"{node.op}({args[0]}, axis={axes})"
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
                if dim.axis == axis and dim.inner:
                    return f"({extent} // {dim.width})"
                if dim.axis == axis:
                    return f"({extent} // {dim.parts})" if dim.parts else extent
                if dim.inner == axis:
                    return str(dim.width)
        raise AssertionError(f"nothing has {axis}")

    def shape(self, axes: Sequence[str] | frozenset[str]) -> str:
        """The shape of a value that varies along these axes."""
        sizes = "".join(f"{self.sizes[a] if a in axes else 1}, " for a in self.named)
        return f"{'rows' if ROWS in axes else '()'} + ({sizes.rstrip()})"

    def laid_out(self, text: str, axes: Sequence[str]) -> str:
        """An array with these axes, with a dimension for each."""
        marks = [":" if a in axes else "None" for a in self.named]
        while marks[:1] == ["None"] and ROWS not in axes:
            marks.pop(0)
        return text if "None" not in marks else f"{text}[{', '.join(['...', *marks])}]"

    def input(self, name: str, part: int | None) -> str:
        array = self.arrays[name]
        text = name
        for place, dim in enumerate(array.dims):
            after = len(array.dims) - place - 1
            tail = ", :" * after
            if dim.inner:
                rest = f" + {name}.shape[-{after}:]" if after else ""
                text = f"{name}.reshape({name}.shape[:-{after + 1}] + ({self.sizes[dim.axis]}, {dim.width}){rest})"
            elif dim.parts and not dim.axis:
                text = f"{name}[..., {part}{tail}]"
            elif dim.parts and dim.interleaved:
                text = f"{name}[..., {part}::{dim.parts}{tail}]"
            elif dim.parts:
                size = self.sizes.get(dim.axis) or self.size(dim.axis, [array])
                text = f"{name}[..., {part} * {size}:{part + 1} * {size}{tail}]"  # type: ignore[operator]
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
        if ROWS in node.attr:  # whose dimensions go
            made = self.assigned(("once", node), f"{made}.reshape({made}.shape[{made}.ndim - {named}:])")
        return made

    def cast(self, node: Node) -> str:
        (arg,), dtype = node.args, node.attr
        if node.kind == "float":
            text = self.as_float(arg)
            if dtype in SATURATING:
                text = f"jnp.clip({text}, -{SATURATING[dtype]}, {SATURATING[dtype]})"
            return f"{text}.astype(jnp.{dtype}).astype(real)"
        low, high = INTEGERS[dtype]
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
        texts = []
        for part, value in found:
            text = f"v_{array.name}{'' if part is None else part}"
            if kind_of(self.spec.dtypes(array)[0]) == "float" and value.kind == "int":
                text += ".astype(real)"
            text = f"jnp.broadcast_to({text}, {self.shape(array.axes)})"
            marks = [":" if a in array.axes else "0" for a in self.named]
            texts.append(f"{text}[{', '.join(['...', *marks])}]" if "0" in marks else text)
        last = array.dims[-1] if array.dims else Dim()
        if last.inner:
            (text,) = texts
            made = self.assigned(("output", array.name), text)
            return f"{made}.reshape({made}.shape[:-2] + ({self.sizes[last.axis]} * {last.width},))"
        if not last.parts:
            return texts[0]
        joined = f"({', '.join(texts)},)"
        if last.axis and not last.interleaved:
            return f"jnp.concatenate({joined}, axis=-1)"
        made = self.assigned(("output", array.name), f"jnp.stack({joined}, axis=-1)")
        return f"{made}.reshape({made}.shape[:-2] + ({self.sizes[last.axis]} * {last.parts},))" if last.axis else made
