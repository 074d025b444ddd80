"""A spec as a frozen value: its arrays, axes and parameters.

`specfile.py` reads it from a file. Expressions are text at first: `chain.py` reads them, and the spec then carries a graph.
"""

from __future__ import annotations

import collections.abc
import functools
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from codegen.errors import Span
from codegen.graph.names import REDUCING_NAMES
from codegen.graph.nodes import COMPUTE, DTYPES, ROWS, Chain, Leaf, Node, Selected, dtypes_of
from codegen.spec.tree import Printed, Scalar, Source, Whole

_TAKE = re.compile(r"\btake\(\s*(\w+)\s*,\s*(\w+)\s*,\s*axis\s*=\s*(\w+)\s*\)")

# K of `top_k(x, K=8, axis=N)`: an axis of a selection, its size, and an axis along which it selects
_SIZED = re.compile(r"\b([A-Z]\w*)\s*=\s*(\d+)\b(?:\s*,\s*axis\s*=\s*\(?\s*([A-Z]\w*))?")
_COMMENT = re.compile("#.*")


@dataclass(frozen=True)
class Axis:
    """One array dimension as written: a named axis, the rows, an axis with parts, an axis split into two, or parts of a
    split axis."""

    names: tuple[str, ...]  # the axes it holds, outer first; empty for an integer axis
    parts: int | None = None  # `(2 N)`, `(N 2)`, `(2 B G=128)` and integer axes: how many parts
    parts_first: bool = True  # `(2 N)`: the parts are halves; `(N 2)`: they are interleaved
    extents: tuple[int | None, ...] = ()  # known sizes of `names`: `(B G=128)` is (None, 128)

    @functools.cached_property
    def open_names(self) -> tuple[str, ...]:
        """H and G of `(H G)` or `(3 H G)`: two axes without sizes. Another array gives the size of one of them."""
        names = tuple(n for n, extent in zip(self.names, self.extents, strict=False) if extent is None)
        return names if len(names) == 2 else ()

    def __str__(self) -> str:
        words = [n if e is None else f"{n}={e}" for n, e in zip(self.names, self.extents, strict=True)]
        if self.parts is not None:
            words.insert(0 if self.parts_first else len(words), str(self.parts))
        return words[0] if len(words) == 1 else f"({' '.join(words)})"


@dataclass(frozen=True)
class Array:
    """An input or an output: `x: T[..., N] = 0`."""

    name: str
    dtype: str  # a type variable or a dtype's name
    dims: tuple[Axis, ...]
    default: float | int | bool | None = None
    span: Span | None = field(default=None, compare=False, repr=False)

    @functools.cached_property
    def axes(self) -> tuple[str, ...]:
        """Its named axes and `...`, without parts."""
        return tuple(name for dim in self.dims for name in dim.names)

    @functools.cached_property
    def parts(self) -> int | None:
        return next((dim.parts for dim in self.dims if dim.parts is not None), None)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"


def fits(kind: str, value: float) -> bool:
    """Whether a parameter of this kind can hold a value of that kind: integers have 32 bits."""
    return kind != "int" or -(2**31) <= value < 2**31


@dataclass(frozen=True)
class Param:
    """A scalar argument. A static one is compiled in; a dynamic one may be traced."""

    name: str
    kind: str
    default: float | int | bool | None
    static: bool
    doc: str = ""
    whole: bool = False  # an int only because its default is a whole number: the spec gives no type

    @property
    def constant(self) -> str:
        """Its name in kernels where it is compiled in: no name of a kernel's own variables, nor of the first of two kernels."""
        own = self.name in REDUCING_NAMES or self.name.startswith("rows_")
        return f"{self.name}_" if own else self.name

    def dtype(self, compute: str = "float32") -> str:
        """The dtype of its value in a kernel that computes floats in `compute`."""
        return {"float": compute, "int": "int32", "bool": "bool"}[self.kind]

    @property
    def example(self) -> float | int | bool:
        """A value for calls where any value will do: the default, if there is one."""
        if self.default is not None:
            return self.default
        return True if self.kind == "bool" else 1


@dataclass(frozen=True)
class Spec:
    """A spec as read from its file or made for a derived op: frozen, with the chain as text and, once it is read, as a graph. Fields
    that a file leaves out have their defaults."""

    path: str
    source: Source = field(compare=False, repr=False)
    op: str
    summary: str
    types: tuple[tuple[str, tuple[str, ...]], ...]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    params: tuple[Param, ...]
    chain: Scalar = field(compare=False)
    reference: Scalar = field(compare=False)
    grad: str | tuple[tuple[str, Scalar], ...] = "auto"
    aliases: tuple[tuple[str, str], ...] = ()
    save: tuple[str, ...] = ()
    math: str = "auto"
    tolerance: tuple[tuple[str, float | str], ...] = ()
    domain: tuple[tuple[str, object], ...] = ()
    schedule: tuple[tuple[str, object], ...] = ()
    bench: tuple[tuple[tuple[str, int], ...], ...] = ()
    graph: Chain | None = field(default=None, compare=False, repr=False)  # the chain, once it is read
    for_backward: tuple[str, ...] = ()  # outputs of a derived forward that only the backward takes
    # Outputs of a stage whose elements a later one puts in order: equal ones have equal bits
    ordered: tuple[str, ...] = ()
    places: collections.abc.Mapping[tuple[str, str], Span] = field(default_factory=dict, compare=False, repr=False)

    def place(self, key: str, name: str) -> Span:
        """The place of `name` under `key` (params, save, domain, grad, aliases)."""
        return self.places[key, name]

    @property
    def read(self) -> Chain:
        """The chain as a graph."""
        assert self.graph is not None, f"the chain of {self.path} is not read yet"
        return self.graph

    def with_chain(self, title: str, chain: Chain, text: Callable[[], str]) -> Spec:
        """This spec with another chain, which no file holds: messages about it name `title`, and show its `text`."""
        source = Printed(title, text)
        return replace(self, source=source, chain=Whole(source), graph=chain)

    def plain(self) -> Spec:
        """This spec without the keys that concern its own op alone: gradients, tests and measurements. A derived op has none of them."""
        return replace(self, grad="none", aliases=(), save=(), tolerance=(), domain=(), bench=())

    def dims(self, axes: collections.abc.Iterable[str]) -> tuple[Axis, ...]:
        """The dimensions of an array with these axes, each a dimension of its own."""
        return tuple(Axis((axis,), extents=(self.extents.get(axis),)) for axis in axes)

    def params_of(self, nodes: collections.abc.Iterable[Node]) -> tuple[Param, ...]:
        """The parameters that are among these nodes."""
        names = {n.attr for n in nodes if n.op == "param"}
        return tuple(p for p in self.params if p.name in names)

    def inputs_for(
        self, read: collections.abc.Collection[str], given: collections.abc.Iterable[Array], axes: set[str]
    ) -> tuple[Array, ...]:
        """The inputs whose values a part of the chain reads (`read`), and the inputs that give it the sizes of `axes` that no
        `given` array has."""
        chosen, given = [a for a in self.inputs if a.name in read], list(given)
        for array in self.inputs:
            known = self.sized((*given, *chosen))
            if array not in chosen and array.default is None and (self.sized((*given, *chosen, array)) - known) & axes:
                chosen.append(array)
        return tuple(sorted(chosen, key=self.inputs.index))

    def sized(self, arrays: collections.abc.Iterable[Array]) -> set[str]:
        """The axes whose sizes these arrays give. `(H G)` gives both if another array has one of them by itself."""
        dims = [dim for a in arrays if a.default is None for dim in a.dims]
        found = {name for dim in dims if not dim.open_names for name in dim.names} | set(self.extents)
        for dim in dims:
            found |= {*dim.open_names} if found & {*dim.open_names} else set()
        return found

    @property
    def asking(self) -> tuple[Array, ...]:
        """The outputs whose types decide how accurate the values that they depend on must be: all except outputs that
        are only for a backward."""
        return tuple(a for a in self.outputs if a.name not in self.for_backward)

    @property
    def asked_types(self) -> dict[str, str]:
        """The types of the `asking` outputs, by name."""
        return types_of(self.asking)

    def float_types(self, arrays: collections.abc.Iterable[Array]) -> dict[str, str]:
        """The types of the floating arrays among these, by name."""
        return types_of(a for a in arrays if self.kind(a) == "float")

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """All inputs, then all outputs."""
        return self.inputs + self.outputs

    def array(self, name: str) -> Array:
        """The input or output of this name. Raises KeyError."""
        return self._by_name[name]

    @functools.cached_property
    def _by_name(self) -> dict[str, Array]:
        return {a.name: a for a in reversed(self.arrays)}

    @property
    def dynamic_params(self) -> tuple[Param, ...]:
        """The parameters that are operands of kernels."""
        return tuple(p for p in self.params if not p.static)

    @property
    def free_types(self) -> tuple[str, ...]:
        """The type variables that no required input binds: a call may name their dtypes."""
        bound = {a.dtype for a in self.inputs if a.default is None}
        return tuple(name for name, _ in self.types if name not in bound)

    def dtypes(self, array: Array | str) -> tuple[str, ...]:
        """The dtypes an array may have."""
        name = array if isinstance(array, str) else array.dtype
        return dtypes_of(name, self._variables)

    @functools.cached_property
    def _variables(self) -> dict[str, tuple[str, ...]]:
        return dict(self.types)

    def kind(self, array: Array) -> str:
        """The kind of an array's elements: float, int or bool, the same for each dtype that it may have."""
        return DTYPES[self.dtypes(array)[0]].kind

    @property
    def integer(self) -> str:
        """The type that integers are computed in: the narrowest of int32 and int64 that holds every array's integers."""
        wide = {"int64", "uint32"}
        return "int64" if any(wide & set(self.dtypes(array)) for array in self.arrays) else "int32"

    @functools.cached_property
    def compute(self) -> str:
        """The type that floats are computed in: float64 where an input is float64, which a call may decide."""
        always = any(a.dtype == "float64" and a.default is None for a in self.inputs)
        return "float64" if always else COMPUTE if self.doubles else "float32"

    @property
    def doubles(self) -> frozenset[str]:
        """The types of inputs that are, or may be, float64."""
        return frozenset(a.dtype for a in self.inputs if "float64" in self.dtypes(a))

    def computes_as(self, other: Spec) -> bool:
        """Whether it computes in float64 in all calls in which `other` does."""
        deciding = {name for name, dtypes in other.types if "float64" in dtypes} if COMPUTE in other.doubles else set()
        wanted = other.doubles - {COMPUTE} | deciding
        return self.compute == "float64" or COMPUTE in self.doubles or self.doubles >= wanted

    @functools.cached_property
    def extents(self) -> dict[str, int]:
        """The sizes of axes that the spec fixes, such as G in `(B G=128)`, or those of selections."""
        found = {n: e for a in self.arrays for d in a.dims for n, e in zip(d.names, d.extents, strict=False) if e}
        return found | {name: size for name, size, _ in self._selected}

    @functools.cached_property
    def axes(self) -> tuple[str, ...]:
        """Every axis, in the spec's order: `...` first, then the outputs' axes, then the inputs'. The order agrees with all
        arrays where it can, and then with the elements that are taken from tables."""
        rows = tuple(a.axes for a in (*self.outputs, *self.inputs))
        rows += tuple(tuple(filter(None, (name, axis))) for name, _, axis in self._selected)
        taken = tuple(self._taken())
        found = axis_order((*rows, *taken))
        return found if not taken or all(follows(axes, found) for axes in rows) else axis_order(rows)

    @functools.cached_property
    def _selected(self) -> tuple[tuple[str, int, str], ...]:
        """The axes of selections that no array has, their sizes, and an axis along which each selects. The text says it before the
        chain is read."""
        words = [] if isinstance(self.chain, Whole) else _SIZED.findall(_COMMENT.sub("", self.chain.value))
        nodes = self.graph.nodes if self.graph else ()
        chosen = [n.attr for n in nodes if isinstance(n.attr, Selected) and n.attr.count]
        # Also where an output of another spec has the axis
        words += [(how.into, how.count, how.axes[0]) for how in chosen]
        known = {axis for a in self.arrays for axis in a.axes}
        return tuple({name: (name, int(size), axis) for name, size, axis in words if name not in known}.values())

    def _taken(self) -> collections.abc.Iterator[tuple[str, ...]]:
        """The axes of elements that are taken from tables at the indices of inputs, in the order of memory: the index's axes stand in
        place of the axis that it indexes."""
        own = {a.name: a.axes for a in self.inputs}
        for table, places, axis in self._takes():
            if axis in own.get(table, ()) and places in own:
                before, after = own[table][: own[table].index(axis)], own[table][own[table].index(axis) + 1 :]
                yield (*before, *(a for a in own[places] if a not in own[table]), *after)

    def _takes(self) -> collections.abc.Iterable[tuple[str, str, str]]:
        """The names of each `take` in the chain: a table, an index, an axis. The text says it before the chain is read; a derived op has
        no text."""
        if not isinstance(self.chain, Whole):
            return _TAKE.findall(self.chain.value)
        if self.graph is None:
            return []
        takes = [n for n in self.graph.nodes if n.op == "take"]
        leaves = [(n.args[0].attr, n.args[1].attr, str(n.attr)) for n in takes]
        return [(t.name, i.name, axis) for t, i, axis in leaves if isinstance(t, Leaf) and isinstance(i, Leaf)]

    @functools.cached_property
    def disagreeing(self) -> tuple[Array, ...]:
        """The fewest arrays with axes that no order fits. Either the second has two axes of the first the other way round, or each
        has an axis before one that the next has before others, back to the first. Empty if one order fits all arrays."""
        alike: dict[tuple[str, ...], Array] = {}
        for array in self.arrays:
            alike.setdefault(array.axes, array)
        before = {a.name: set(itertools.combinations(a.axes, 2)) for a in alike.values()}
        shortest: tuple[Array, ...] = ()
        for start in alike.values():
            for first, second in itertools.combinations(start.axes, 2):
                # from `second` back to `first`, each step an array that has one axis before another
                ways: list[tuple[str, tuple[Array, ...]]] = [(second, (start,))]
                met = {second}
                for axis, way in ways:
                    for array in alike.values():
                        for other in [b for a, b in before[array.name] if a == axis and b not in met]:
                            met.add(other)
                            ways.append((other, (*way, array)))
                found = next((way for axis, way in ways if axis == first), ())
                if found and (not shortest or len(found) < len(shortest)):
                    shortest = found
        return shortest


def positions(domain: object) -> tuple[str, ...]:
    """The axes of a domain `index(N)`, or `index(N, R)`, the positions along both; () for others."""
    return tuple(domain[6:-1].split(", ")) if isinstance(domain, str) and domain.startswith("index(") else ()


def follows(axes: tuple[str, ...], order: tuple[str, ...]) -> bool:
    """Whether an array has its axes in an order."""
    return tuple(axis for axis in order if axis in axes) == axes


def axis_order(rows: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """An order of axes that agrees with the order in each array, or with most arrays where no order agrees with all. If several
    orders agree, the longest array decides, and the first one of these."""
    before: dict[str, set[str]] = {axis: set() for axes in sorted(rows, key=len, reverse=True) for axis in axes}
    before = {axis: before[axis] for axis in sorted(before, key=lambda axis: axis != ROWS)}
    for axes in rows:
        for first, second in itertools.pairwise(axes):
            before[second].add(first)
    order: list[str] = []
    while before:
        axis = next((axis for axis in before if not before[axis] & before.keys()), next(iter(before)))
        order.append(axis)
        del before[axis]
    return tuple(order)


def types_of(arrays: collections.abc.Iterable[Array]) -> dict[str, str]:
    """The type of each array, by name."""
    return {a.name: a.dtype for a in arrays}
