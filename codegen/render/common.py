"""The common values of all templates: the arrays, the chain's names, the jnp form, the function for JAX."""

from __future__ import annotations

import functools
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from codegen.graph import emit, online, ranges
from codegen.graph.contraction import is_approximable, pin_types, rounding
from codegen.graph.names import fresh
from codegen.graph.nodes import DTYPES, Node, nodes_of
from codegen.graph.ops import PINNED
from codegen.graph.precision import deciding_types, widths
from codegen.plan.access import Access, access_key
from codegen.plan.op import AnyPlan, Op
from codegen.plan.planner import dtype_constant, unheld_types
from codegen.render.records import Constant, Described, Head, Jnp, Kernel, Reference, ResultClass, Tensor
from codegen.render.wrapping import WIDTH
from codegen.spec.spec import Array, Param

# Of integers with few bits (`ranges.SMALL`)
OF_SMALL = {"floordiv": "device.floor_divide_small({0}, {1})", "mod": "device.modulo_small({0}, {1})"}


@functools.cache
def camel(name: str) -> str:
    """`gate_up` becomes GateUp. Different names stay different: x_1 keeps its underscore, and is not x1."""
    return re.sub(r"(?:^|_)([a-z])", lambda match: match[1].upper(), name)


@functools.cache  # most are of functions that many kernels have
def doc_lines(text: str, indent: int) -> tuple[str, ...]:
    """The lines of a docstring's first sentence, at an indent: the first stands behind the quotes, the last before them."""
    width = WIDTH - indent - 6
    return tuple(quoted(line) for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def quoted(text: str) -> str:
    """A docstring's text, which can neither end the string nor contain an escape."""
    return text.replace("\\", "\\\\").replace('"', "'")


class Context:
    """The values of a template. Each kind of kernel adds `template` and `kernel`."""

    template: str

    def __init__(self, op: Op):
        self.op, self.spec = op, op.spec
        self.plan = self.planned(op)
        self.statements = op.statements
        self.nodes = nodes_of(op.statements)
        self.rounding = rounding(self.nodes)
        dtypes = {d for a in self.spec.inputs for d in self.spec.dtypes(a)}
        self.wide = "float64" in dtypes
        integers = {d for a in self.spec.arrays for d in self.spec.dtypes(a)}
        self.integer = "Int64" if integers & {"int64", "uint32"} else "Int32"
        self.groups = self.plan.groups
        unheld = unheld_types(self.spec, self.statements, self.in_registers())
        self.static = [p for p in self.spec.params if p.static]
        self.static += [Param(dtype_constant(name), "str", None, static=True) for name in unheld]
        self.dynamic = self.spec.dynamic_params
        self.tensors = {a.name: f"m{camel(a.name)}" for a in self.spec.arrays}
        # Parts that are neighbours are in one fragment
        self.leaf_names = {access_key(self.plan, access): access.name for access in self.plan.loads}

    def planned(self, op: Op) -> AnyPlan:
        return op.plan

    def in_registers(self) -> frozenset[str]:
        """The arrays for which the kernel has no tensors."""
        return frozenset()

    def kernel(self) -> Kernel | None:
        """The template's values for this kind of kernel."""
        raise NotImplementedError

    def earlier(self) -> Context | None:
        """The values of a kernel of the same launcher that runs before it."""
        return None

    @functools.cached_property
    def head(self) -> Head:
        """The other values of the kernel's template."""
        return Head(
            op=self.spec.op,
            tensors=self.tensor_lines(),
            static_params=[Constant(name=p.constant, kind=p.kind) for p in self.static],
            byte_tensors=self.byte_tensors(),
        )

    def described(self) -> Described:
        """The values of the module's parts that describe the op."""
        spec = self.spec
        return Described(
            **vars(self.head),
            path=f"specs/{spec.op}.yaml",
            template=self.template,
            summary="\n".join(doc_lines(spec.summary, 0)),
            xla=self.xla(),
            reference=Reference(
                params=[*(a.name for a in spec.inputs), *(p.name for p in spec.params)],
                lines=[row for line in self.op.reference.lines for row in line.split("\n")],
            ),
            result_class=self.result_class(),
            signature=self.signature(),
            returns=camel(spec.op) + "Outputs" if len(spec.outputs) > 1 else "jax.Array",
            doc=self.doc(),
        )

    @functools.cached_property
    def dialect(self) -> emit.Dialect:
        """How a kernel writes the chain."""
        approx = {"precise": "False", "fast": "True", "auto": "False"}[self.spec.math]
        types = {d: t.text for d, t in DTYPES.items()}
        types |= {t: DTYPES[d[0]].text if len(d) == 1 else t for t, d in self.spec.types}
        return emit.Dialect(
            "cute", self.leaves(), self.compute(), f"cutlass.{self.integer}", types, approx,
            self.spec.math == "precise", self.spec.math == "fast", self.like(), approx_of=self.approximations[0],
            tables=self.tables(),
            written=self.cheaper() | self.own_forms() | dict.fromkeys(self.terms(), "device.exp_term({0}, {approx})"),
            rounding=self.rounding, innermost=self.spec.axes[-1] if self.spec.axes else "", unusual=self.unusual(),
        )  # fmt: skip

    def unusual(self) -> frozenset[str]:
        """The dtypes, and type variables with such a dtype, that kernels convert with functions of their own."""
        variables = {t for t, dtypes in self.spec.types if any(DTYPES[d].unusual for d in dtypes)}
        return frozenset({d for d, t in DTYPES.items() if t.unusual} | variables)

    def tables(self) -> dict[str, tuple[str, ...]]:
        """The modes of each table that is read at computed indices, as the kernel has them: axes, and parts by
        number."""
        return {
            a.name: tuple(
                str(a.part) if t == "parts" else self.groups[t].axes[0] if isinstance(t, int) else t for t in a.tokens
            )
            for a in self.plan.loads
            if a.mode == "table"
        }

    # Approximations under `math: auto`

    @functools.cached_property
    def approximations(self) -> tuple[dict[int, str], dict[str, tuple[Array, ...]]]:
        """Whether each operation may be approximate, by the node's identity (`precision.py`). If that depends on a
        call's types, it is a flag of the kernel: the second dict, with an array of each type that decides it."""
        if self.spec.math != "auto":
            return {}, {}
        taken = (
            {a.name for a in self.spec.arrays} | {p.name for p in self.spec.params} | {s.name for s in self.statements}
        )
        outputs = {a.name: a.dtype for a in self.asking()}
        read, variables = self.spec.float_types(self.spec.inputs), dict(self.spec.types)
        found = deciding_types(self.statements, outputs, read, variables)
        deciding = {i: self.arrays_of(types) for i, types in found.items()} | self.marked()
        kinds = {some for some in deciding.values() if some}
        texts: dict[int, str] = {}
        flags: dict[tuple[Array, ...], str] = {}
        for i in (id(n) for n in self.nodes if is_approximable(n)):
            arrays = deciding.get(i)
            if not arrays:
                texts[i] = "False" if arrays is None else "True"
                continue
            name = "approx" if len(kinds) == 1 else "_".join(["approx", *(a.name for a in arrays)])
            texts[i] = flags[arrays] = flags.get(arrays) or fresh(taken, name)
        return texts, {name: arrays for arrays, name in flags.items()}

    def arrays_of(self, types: Iterable[str]) -> tuple[Array, ...] | None:
        """An array of each type that may be narrow or not, in the order of outputs and inputs. None if one of the types
        is never narrow, or if no array of the kernel has it."""
        there = [a for a in self.spec.inputs if a.default is None and a.name not in self.in_registers()]
        arrays = {a.dtype: a for a in reversed([*self.asking(), *there])}
        narrow = {t: widths(t, dict(self.spec.types)) for t in types}
        undecided = {t for t, found in narrow.items() if len(found) == 2}
        if {False} in narrow.values() or not undecided <= arrays.keys():
            return None
        return tuple(a for t, a in reversed(arrays.items()) if t in undecided)

    def marked(self) -> dict[int, tuple[Array, ...] | None]:
        """The functions that another kernel recomputes, by identity, with an array of each type that decides in both
        kernels whether they may be approximate. None: never."""
        pinned = [n for n in self.nodes if n.op == PINNED and pin_types(n)]
        return {id(n.args[0]): self.arrays_of(pin_types(n)) for n in pinned}

    def asking(self) -> tuple[Array, ...]:
        """The outputs whose types decide how accurate the values that they depend on must be."""
        return self.spec.asking

    def cheaper(self) -> dict[int, str]:
        """The cheaper text of operations that bounds of their arguments allow."""
        arrays = {a.name: ranges.of_types(self.spec.dtypes(a)) for a in self.spec.inputs}
        known, found = ranges.ranges(self.nodes, arrays), {}
        for node in self.nodes:
            if node.op in OF_SMALL and not node.args[1].is_const and self.spec.integer == "int32":
                if all(ranges.is_within(known[id(a)], ranges.SMALL) for a in node.args):
                    found[id(node)] = OF_SMALL[node.op]
            elif node.op == "div" and ranges.is_normal(known[id(node.args[1])]):
                found[id(node)] = "device.divide_by_normal({0}, {1}, {approx})"
            elif node.op == "reciprocal" and ranges.is_normal(known[id(node.args[0])]):
                found[id(node)] = "device.divide_by_normal(1.0, {0}, {approx})"
            elif node.op == "ldexp" and ranges.is_within(known[id(node.args[1])], ranges.POWERS):
                found[id(node)] = "device.ldexp_near({0}, {1}, {floating})"
            elif text := self.above(node, known):
                found[id(node)] = text
        return found

    def above(self, node: Node, known: Mapping[int, ranges.Range]) -> str:
        """The text of a comparison that all numbers may pass, though NaN does not: with a constant that no value can be
        below, or with a static parameter. Empty for other nodes."""
        if node.op not in ("gt", "ge", "lt", "le") or any(a.kind != "float" for a in node.args):
            return ""
        places = (0, 1) if node.op in ("gt", "ge") else (1, 0)
        value, bound = (node.args[i] for i in places)
        least, high, or_equal = known[id(value)][0], known[id(bound)][1], node.op in ("ge", "le")
        static = bound.op == "param" and bound.attr in {p.name for p in self.static}
        holds = bound.is_const and (high < least or (or_equal and high == least))
        if value.is_const or least == -math.inf or not (static or holds):
            return ""
        return f"device.above({{{places[0]}}}, {{{places[1]}}}, {least!r}, {or_equal})"

    def own_forms(self) -> dict[int, str]:
        """The text of operations that this kind of kernel writes in a form of its own."""
        return {}

    def terms(self) -> set[int]:
        """The identities of exponentials that are only used in a sum that follows their maximum: the largest of them is
        1."""
        uses = Counter(id(a) for n in self.nodes for a in n.args)
        results = {a.name for a in self.spec.outputs}
        uses.update(id(s.value) for s in self.statements if s.name in results)
        ways = [(online.rescaled(n), n.args[0]) for n in self.nodes if n.args]
        return {id(term) for way, term in ways if way is not None and way.power == "exp" and uses[id(term)] == 1}

    def compute_line(self) -> str:
        """How a kernel sets the compute type of floats, if some of its inputs may be float64."""
        floats = [self.tensors[a.name] for a in self.spec.inputs if "float64" in self.spec.dtypes(a)]
        return f"compute = device.compute_type({', '.join(floats)})"

    def flag_lines(self, names: Iterable[str]) -> list[str]:
        """The lines that set the flags with these names."""
        return [
            f"{flag} = device.narrow({', '.join(self.tensors[a.name] for a in outputs)})"
            for flag, outputs in self.approximations[1].items()
            if flag in names
        ]

    @property
    def flags(self) -> list[str]:
        return list(self.approximations[1])

    def target_names(self) -> dict[tuple[str, int | None], str]:
        stores = {(s.array.name, s.part): s.name for s in self.plan.stores if s.array}
        return {(s.name, s.part): stores.get((s.name, s.part), s.name) for s in self.statements}

    def leaves(self) -> dict[tuple[Any, ...], str]:
        params = {("param", p.name): p.name for p in self.spec.params}
        return {**self.leaf_names, **params}

    def vector_names(self) -> list[str]:
        return [*dict.fromkeys(a.name for a in self.plan.loads), *(p.name for p in self.spec.params)]

    def like(self) -> str:
        return self.plan.loads[0].name

    @staticmethod
    def mentions(lines: list[str], name: str) -> bool:
        return any(name in line and re.search(rf"\b{name}\b", line) for line in lines)

    def extra_argument(self, name: str) -> str:
        if name == "compute" or name in self.flags:
            return name
        if any(p.name == dtype_constant(name) for p in self.static):
            return f"getattr(cutlass, {dtype_constant(name)})"
        own = (a for a in self.spec.arrays if a.dtype == name and a.default is None)
        array = next(a for a in own if a.name not in self.in_registers())
        return f"{self.tensors[array.name]}.element_type"

    def xla(self) -> Jnp | None:
        types = {d: f"jnp.{'bool_' if d == 'bool' else d}" for d in DTYPES}
        types |= {t: f"jnp.{d[0]}" if len(d) == 1 else t for t, d in self.spec.types}
        floating = "compute" if self.wide else "jnp.float32"
        integer = "jnp.int64" if self.integer == "Int64" else "jnp.int32"
        dialect = emit.Dialect(
            "jnp", self.leaves(), floating, integer, types, order=self.plan.order, rounding=self.rounding,
            tables={a.name: a.array.axes for a in self.plan.loads if a.mode == "table" and a.array is not None},
        )  # fmt: skip
        lines = emit.emit(self.statements, self.target_names(), dialect)
        extra = [n for n in ("compute", "row_axes", *dict(self.spec.types)) if self.mentions(lines, n)]
        return Jnp(
            params=[*self.vector_names(), *extra],
            extra=extra,
            doc="The chain in jnp: where there is no NVIDIA GPU, and what gradients differentiate.",
            lines=lines,
            returns=", ".join(s.name for s in self.plan.stores),
        )

    # Kernel text

    def tensor_lines(self) -> list[Tensor]:
        rows = []
        for array in self.spec.inputs:
            rows.append(self.tensor(array))
        for p in self.dynamic:
            rows.append(Tensor(name=f"m{camel(p.name)}", hint="cute.Tensor", comment=f"(1) {p.name}"))
        return rows + [self.tensor(a) for a in self.spec.outputs]

    def extent_in(self, arrays: Iterable[Array], group: int) -> str:
        """The kernel's text for a group's size: its size in the first of the arrays with that group that is always
        present, if any."""
        for array in arrays:
            tokens = self.plan.view(array.name).tokens
            if group in tokens and array.default is None:
                return f"{self.tensors[array.name]}.shape[{tokens.index(group)}]"
        return ""

    def table_size(self, axis: str) -> str:
        """The kernel's text for the size of an axis that only tables have."""
        view = next(v for v in self.plan.views if axis in v.tokens and v.array.default is None)
        return f"{self.tensors[view.array.name]}.shape[{view.tokens.index(axis)}]"

    def tensor(self, array: Array) -> Tensor:
        modes = [
            self.groups[t].name if isinstance(t, int) else str(array.parts) if t == "parts" else t
            for t in self.plan.view(array.name).tokens
        ]
        hint = "cute.Tensor" if array.default is None else "cute.Tensor | None"
        shape = f"({', '.join(modes)})" if modes else "(1)"
        return Tensor(name=self.tensors[array.name], hint=hint, comment=f"{shape} {array.dtype}")

    def compute(self) -> str:
        return "compute" if self.wide else "cutlass.Float32"

    def as_computed(self, load: str, array: Array) -> str:
        """A value loaded from an array, converted to the compute type of its kind."""
        kind = self.spec.kind(array)
        if any(DTYPES[d].unusual for d in self.spec.dtypes(array)):
            own = f"cutlass.{self.integer}" if kind == "int" else self.compute()
            return f"device.read({load.removesuffix('.load()')}, {own})"
        if kind == "float":
            values = load.removesuffix(".load()")
            return f"device.floats({values}, compute)" if self.wide else f"device.floats({values})"
        return f"{load}.to(cutlass.{self.integer})" if kind == "int" else f"{load} != 0"

    def byte_tensors(self) -> list[str]:
        """The tensors of bools, which are bytes in memory."""
        dynamic = [f"m{camel(p.name)}" for p in self.dynamic if p.kind == "bool"]
        return [*(self.tensors[a.name] for a in self.spec.arrays if self.spec.kind(a) == "bool"), *dynamic]

    @staticmethod
    def parameter_text(param: Param) -> str:
        """The kernel's text for a parameter: its constant, or the one element of its tensor."""
        if param.static:
            return param.constant
        return f"m{camel(param.name)}[0]" + (" != 0" if param.kind == "bool" else "")

    def type_of(self, kind: str) -> str:
        """The type in which values of a kind are computed."""
        return {"float": self.compute(), "int": f"cutlass.{self.integer}", "bool": "cutlass.Boolean"}[kind]

    def default(self, array: Array) -> list[str]:
        """The value of an array that may be left out, and its type unless that is float32; nothing for other arrays."""
        if (value := array.default) is None:
            return []
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
        dtype = "cutlass.Uint8" if kind == "bool" else self.type_of(kind)
        return [emit.literal(value), *([] if dtype == "cutlass.Float32" else [dtype])]

    def default_words(self, array: Array) -> list[str]:
        """The default and its type as keyword arguments."""
        return [f"{name}={text}" for name, text in zip(("default", "dtype"), self.default(array), strict=False)]

    def guard(self, access: Access) -> str:
        array = access.array
        return self.tensors[array.name] if array is not None and array.default is not None else ""

    def converted(self, access: Access) -> str:
        assert access.array is not None
        dtypes = [DTYPES[d] for d in self.spec.dtypes(access.array)]
        if any(d.unusual for d in dtypes):
            return "device.stored({0}, {1})"
        plain = all(d.kind != "int" and (d.kind == "bool" or d.size > 1) for d in dtypes)
        return "{0}.to({1})" if plain else "device.cast({0}, {1})"

    def launch_arguments(self) -> str:
        """The arguments that the launcher passes to the kernel."""
        return ", ".join([*(t.name for t in self.tensor_lines()), *(p.constant for p in self.static), "how"])

    # The JAX side

    def result_class(self) -> ResultClass | None:
        if len(self.spec.outputs) == 1:
            return None
        return ResultClass(name=camel(self.spec.op) + "Outputs", fields=[a.name for a in self.spec.outputs])

    def signature(self) -> list[str]:
        rows = []
        for a in self.spec.inputs:
            rows.append(f"{a.name}: jax.Array," if a.default is None else f"{a.name}: jax.Array | None = None,")
        rows.append("*,")
        for p in self.spec.params:
            hint = p.kind if p.static else f"{p.kind} | jax.Array"
            default = "" if p.default is None else f" = {emit.literal(p.default)}"
            rows.append(f"{p.name}: {hint}{default},")
        for t in self.spec.free_types:
            rows.append(f'{t}: str = "{dict(self.spec.types)[t][0]}",')
        rows.append("implementation: runtime.Implementation = None,")
        return rows

    def doc(self) -> list[str]:
        spec = self.spec
        lines = [*doc_lines(spec.summary, 4), "", "Args:"]
        for a in spec.inputs:
            extra = "" if a.default is None else f"; {a.default!r} where it is left out or None"
            lines.append(f"  {a.name}: {a}{extra}.")
        for p in spec.params:
            how = "compiled in" if p.static else "may be traced"
            doc = f" {p.doc}" if p.doc else ""
            text = f"{p.name}: {p.kind}, {how}.{doc}"
            lines += map(quoted, textwrap.wrap(text, 110, initial_indent="  ", subsequent_indent="    "))
        for t in self.spec.free_types:
            lines.append(f"  {t}: the dtype of {', '.join(a.name for a in spec.outputs if a.dtype == t)}.")
        lines.append(
            '  implementation: "cute", "xla", "interpret", or None: on a GPU the kernel, or XLA where faster; jnp elsewhere.'
        )
        lines += ["", "Returns:"]
        lines += [f"  {a.name}: {a}." for a in spec.outputs]
        if spec.types:
            names = "; ".join(
                f"{t} is {' or '.join([', '.join(d[:-1]), d[-1]] if len(d) > 1 else d)}" for t, d in spec.types
            )
            lines += ["", *textwrap.wrap(names + ".", 112)]
        lines += [
            "",
            "Raises:",
            "  TypeError, ValueError: an argument's dtype or shape does not fit; the message says which.",
        ]
        return lines


class StagedContext(Context):
    """The values of the module of an op in stages. Each stage has its own context."""

    template = "op.py.jinja"

    def kernel(self) -> None:
        return None

    def xla(self) -> None:
        """The jnp form; the stages have theirs."""
        return None

    def tensor_lines(self) -> list[Tensor]:
        return []


def listed(words: Iterable[str]) -> str:
    """Some expressions, with a comma behind a single one: what a tuple has between brackets."""
    found = list(words)
    return ", ".join(found) + ("," if len(found) == 1 else "")


def tuple_text(words: Iterable[str]) -> str:
    """A tuple of some expressions."""
    return f"({listed(words)})"


def place_text(coordinates: str) -> str:
    """The position with these coordinates, which are separated by commas."""
    return f"({coordinates}{'' if ',' in coordinates else ','})"


def full(width: str, value: str, dtype: str) -> str:
    """The text of a vector with one value in all elements."""
    return f"device.full({width}, {value})" if dtype == "cutlass.Float32" else f"device.full({width}, {value}, {dtype})"
