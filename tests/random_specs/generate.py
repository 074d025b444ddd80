"""Makes a random spec from one integer: the decisions are tables, and the functions here draw from them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.random_specs.decisions import (
    COMBINED,
    COMPARISONS,
    CONSTANTS,
    DOUBLES,
    EXTREMES,
    FACTORS,
    FAMILIES,
    FLOAT_FOLDS,
    FLOATS,
    FURTHER,
    INTS,
    NAMES,
    NARROW_FLOATS,
    NARROW_INTS,
    NO_GRADIENT,
    TWICE,
    WIDE_INTS,
)
from tests.random_specs.forms import FORMS, SELECTED
from tests.random_specs.makers import MAKERS
from tests.random_specs.nodes import (
    FOLDS,
    ROWS,
    Array,
    Dim,
    Node,
    Param,
    kind_of,
    nodes,
)
from tests.random_specs.tree import RandomSpec
from tests.random_specs.values import Values, call, const, leaf


@dataclass(frozen=True)
class Wanted:
    """What may be drawn. Without `ties`, no computed value is compared with a statistic of itself: no maximum is taken
    of a value that compilers may contract to different FMAs."""

    ties: bool = True
    further: bool = False  # whether ops have calls and types that the others lack
    families: tuple[str, ...] = ()  # none: those of several kernels for one seed of seven, and the others else


def random_spec(seed: int, wanted: Wanted = Wanted()) -> RandomSpec:
    """The spec of an integer."""
    if wanted.further:
        wanted = replace(wanted, families=tuple(COMBINED if seed % 4 == 3 else FURTHER))
    if not wanted.families:
        staged = seed % 7 == 4
        wanted = replace(wanted, families=tuple(name for name, f in FAMILIES.items() if f.staged == staged))
    return _Maker(random.Random(f"spec {seed}"), name=f"random_{seed}", wanted=wanted).spec()


@dataclass
class _Maker(Values):
    name: str = ""
    wanted: Wanted = Wanted()
    outputs: list[Array] = field(default_factory=list)
    params: list[Param] = field(default_factory=list)
    keys: list[tuple[str, str]] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)
    count: int = 0  # of elements that are selected

    def fresh(self, prefix: str) -> str:
        taken = (
            {a.name for a in (*self.inputs, *self.outputs)}
            | {p.name for p in self.params}
            | {n for n, _, _ in self.chain}
        )
        return next(name for i in range(1000) if (name := f"{prefix}{i}") not in taken)

    def dtype(self, table: dict[tuple[str, ...], int]) -> str:
        """A dtype, or a type variable, sometimes one that other arrays have."""
        kind = kind_of(next(iter(table))[0])
        alike = [name for name, dtypes in self.types if kind_of(dtypes[0]) == kind]
        if alike and self.chance(0.5):
            return self.random.choice(alike)
        dtypes = self.weighted(table)
        if len(dtypes) == 1 and self.chance(0.6):
            return dtypes[0]
        self.types.append((name := f"T{len(self.types)}", dtypes))
        return name

    # The whole

    def spec(self) -> RandomSpec:
        families = {name: (FAMILIES | FURTHER | COMBINED)[name] for name in self.wanted.families}
        self.family = families[self.weighted({name: family.often for name, family in families.items()})]
        self.wild = self.chance(0.12)
        self.floats = DOUBLES if self.chance(0.06) and not self.family.contracts else FLOATS
        self.ints = WIDE_INTS if self.chance(0.06) and not self.family.contracts else INTS
        self.width = self.random.choice([4, 8, 16, 32]) if self.family.split else 0
        self.axes = self.family.axes
        if self.family.narrow:
            self.floats, self.ints = NARROW_FLOATS, NARROW_INTS
        if self.family.maker:
            MAKERS[self.family.maker](self)
        else:
            self.make_inputs()
            self.make_params()
            self.make_chain()
        self.make_keys()
        used = {d for a in (*self.inputs, *self.outputs) for d in (a.dtype,)}
        used |= {n.attr for _, _, v in self.chain for n in nodes(v) if n.op == "cast"}
        return RandomSpec(
            self.name, self.axes, tuple(t for t in self.types if t[0] in used),
            tuple(sorted(self.inputs, key=lambda a: a.default is not None)), tuple(self.outputs), tuple(self.params),
            tuple(self.chain), tuple(self.keys), self.wild,
        )  # fmt: skip

    def make_keys(self) -> None:
        if self.chance(0.2):
            self.keys.append(("math", self.random.choice(["precise", "fast"])))
        if self.saved and not self.family.over and self.chance(0.1):
            self.keys.append(("save", f"[{self.random.choice(self.saved)}]"))
        elif self.chance(0.04) or self.without_gradient():
            self.keys.append(("grad", "none"))
        if self.chance(0.06) and not self.family.contracts:
            how = self.random.choice(["{threads: 64}", "{threads: 256, vector_bytes: 8}", "{vector_bytes: 4}"])
            self.keys.append(("schedule", how))
        if self.domains:
            self.keys.append(("domain", f"{{{', '.join(self.domains)}}}"))

    def without_gradient(self) -> bool:
        """Whether an array, or a value of the chain, has no gradient."""
        dtypes = {d for a in (*self.inputs, *self.outputs) for d in dict(self.types).get(a.dtype, (a.dtype,))}
        values = {n.op for _, _, v in self.chain for n in nodes(v)}
        return bool(dtypes & NO_GRADIENT) or bool(values & {"nucleus", "put"})

    # Inputs

    def dims(self, axes: Sequence[str]) -> tuple[Dim, ...]:
        """The dimensions of an array with these axes."""
        found = [Dim(a) for a in axes]
        blocks = axes.index("B") if self.family.split and "B" in axes and "G" in axes else None
        if blocks is not None and self.chance(0.8):
            found[blocks : blocks + 2] = [Dim("B", inner="G", width=self.width)]
        return tuple(Dim(d.axis, width=self.count) if d.axis == SELECTED else d for d in found)

    def add_input(self, axes: Sequence[str], kind: str, always: bool = False, parts: bool = True) -> None:
        table = {"float": self.floats, "int": self.ints, "bool": {("bool",): 1}}[kind]
        dims, default = self.dims(axes), None
        if parts and self.chance(0.15) and dims and dims[-1].axis != ROWS and not dims[-1].inner:
            count = self.random.choice([2, 2, 2, 3])
            dims = (*dims[:-1], Dim(dims[-1].axis, parts=count, interleaved=self.chance(0.5)))
        elif parts and self.chance(0.06) and all(not d.inner for d in dims):
            dims = (*dims, Dim(parts=self.random.choice([1, 2, 3])))
        elif parts and "parts" in self.family.forms and dims and dims[-1].inner:
            dims = (*dims[:-1], replace(dims[-1], parts=self.random.choice([2, 2, 3]), interleaved=self.chance(0.5)))
        if not always and self.chance(0.25):
            default = self.random.choice([c for c in CONSTANTS[kind] if kind != "int" or c >= 0])
        if self.family.narrow and (not dims or dims[-1].parts or dims[-1].axis == ROWS):
            # no 4 bits: two numbers in a byte are neighbours along an axis
            table = {"float": FLOATS, "int": INTS, "bool": table}[kind]
        array = Array(self.fresh(self.random.choice(NAMES[:12])), self.dtype(table), dims, default)
        self.inputs.append(array)
        for part in range(array.parts) if array.parts else (None,):
            self.pool.append(leaf("input", kind, array.axes, (array.name, part)))

    def make_inputs(self) -> None:
        axes, family = self.family.axes, self.family
        self.whole_kind = self.weighted({"float": 14, "int": 2, "bool": 1})
        if family.contracts:
            self.make_factors()
        elif not family.along and not family.over and len(axes) > 1 and self.chance(0.1):
            cut = self.random.randrange(1, len(axes))  # no input has all axes
            for own in (axes[:cut], axes[cut:]):
                if self.family.split and cut == len(axes) - 1:
                    own = axes
                self.add_input(own, self.whole_kind, always=True)
        else:
            self.add_input(axes, self.whole_kind, always=True)
        for _ in range(self.random.choice([0, 1, 1, 2, 2, 3])):
            own = [a for a in axes if self.chance(0.6)]
            if family.split and "G" in own and "B" not in own:
                own = [a for a in own if a != "G"]
            self.add_input(own, self.weighted({"float": 7, "int": 2, "bool": 2}))
        if self.chance(0.12):
            self.add_table()

    def add_table(self) -> None:
        rest = (
            [self.family.axes[-1]] if self.chance(0.6) and not self.family.split and len(self.family.axes) > 1 else []
        )
        others = [a for a in self.family.axes if a not in rest]
        axes = [a for a in others if self.chance(0.7)][: len(others)] or others[:1]
        if self.family.split and "G" in axes and "B" not in axes:
            axes.remove("G")
        kind = self.weighted({"float": 5, "int": 1})
        table = Array(
            self.fresh("table"),
            self.dtype(self.floats if kind == "float" else self.ints),
            tuple(map(Dim, ["P", *rest])),
        )
        index = Array(self.fresh("index_of"), "int32", tuple(map(Dim, axes)))
        self.inputs += [table, index]
        if self.chance(0.6):
            self.domains.append(f"{index.name}: index(P)")
        self.pool.append(leaf("take", kind, [*axes, *rest], (table.name, index.name, "P")))

    def make_factors(self) -> None:
        """The factors of one product, or of two of the same rows; or of two parts of one."""
        axes, dtype = self.family.axes, self.dtype(FACTORS)
        kind = kind_of(dict(self.types).get(dtype, (dtype,))[0])
        batch = axes[:-2] if ROWS not in axes else ()
        x = Array("x", dtype, tuple(map(Dim, [*axes[:-1], "K"])))
        turned, way = self.chance(0.5), self.weighted({"one": 6, "two": 1, "halves": 1, "pairs": 1})
        columns = Dim("N", parts=2, interleaved=way == "pairs") if way in ("halves", "pairs") else Dim("N")
        own = (columns, Dim("K")) if turned else (Dim("K"), columns)
        weights = [Array(n, dtype, (*map(Dim, batch), *own)) for n in (("w", "u") if way == "two" else ("w",))]
        self.inputs += [x, *weights]
        for w in weights:
            for part in range(2) if w.parts else (None,):
                node = leaf("product", kind, axes, ("x", w.name, part, "K"))
                self.pool.append(self.assign(self.fresh("p"), node))

    def make_params(self) -> None:
        for _ in range(self.random.choice([0, 0, 0, 1, 1, 2])):
            kind = self.weighted({"float": 5, "int": 2, "bool": 1})
            default = self.random.choice({"float": [0.5, 1.5, -0.75], "int": [1, 2, 5], "bool": [True, False]}[kind])
            self.params.append(Param(self.fresh("param"), kind, default, self.chance(0.5)))
            self.pool.append(leaf("param", kind, (), self.params[-1].name))

    def assign(self, name: str, value: Node, part: int | None = None) -> Node:
        self.chain.append((name, part, value))
        return leaf("named", value.kind, value.dims, name)

    # The chain

    def make_chain(self) -> None:
        family = self.family
        whole = frozenset(family.axes)
        for _ in range(self.random.choice([0, 0, 1, 1, 2])):
            kind = self.weighted({"float": 6, "int": 1, "bool": 1})
            self.pool.append(self.assign(self.fresh("v"), self.expression(kind, whole, 2)))
        body = self.absorbing(
            self.covering(self.expression("float", whole, self.random.choice([1, 2, 3])), whole), whole
        )
        body = self.assign(self.fresh("z"), body)
        self.pool.append(body)
        body = self.make_forms(body, whole)
        if family.contracts and (family.along or family.over):
            return self.make_product_folds(body, whole)
        for axes in family.along:
            for _ in range(self.random.choice([1, 1, 2])):
                self.make_statistic(body, axes, whole)
        if family.along and self.chance(0.25):
            self.make_softmax(body, whole)
        if family.staged:
            self.make_waited(body, whole)
        if not family.over or family.staged:
            return self.make_outputs(whole)
        self.make_columns(body, whole)
        return None

    def make_forms(self, body: Node, whole: frozenset[str]) -> Node:
        """Calls of the family, of which elements use the results; and so may the body, which is returned."""
        for _ in range(self.random.choice([1, 1, 2]) if self.family.forms else 0):
            made = FORMS[self.random.choice(self.family.forms)](self, whole)
            if made is not None:
                self.pool.append(self.assign(self.fresh("r"), made))
                if self.chance(0.4):
                    body = self.assign(self.fresh("z"), self.joined(self.covering(body, whole), self.pool[-1]))
                    self.pool.append(body)
        return body

    def folds(self, axes: tuple[str, ...]) -> dict[str, int]:
        """The reductions of a computed float, with how often each is drawn."""
        along = axes in self.family.along or self.family.staged
        left_out = (set() if along else TWICE) | (set() if self.wanted.ties else EXTREMES)
        return {name: often for name, often in FLOAT_FOLDS.items() if name not in left_out}

    def folded(self, value: Node, axes: tuple[str, ...]) -> Node:
        """A reduction along these axes of a float that varies along them, or of an integer or a bool made from it."""
        way = self.weighted({"float": 12, "bool": 1, "count": 1, "int": 1, "pick": 1})
        if way == "bool":
            return call(self.random.choice(["any", "all"]), call("gt", value, const(0.25)), attr=axes)
        if way == "count":
            return call("sum", call("where", call("lt", value, const(0.5)), const(1), const(0)), attr=axes)
        if way == "int":
            inner = Node("cast", "int", value.dims, (value,), "int8")
            return call(self.random.choice(["sum", "max", "min"] if self.wanted.ties else ["sum"]), inner, attr=axes)
        if way == "pick" and len(axes) == 1 and axes[0] != ROWS:
            place = call("eq", leaf("index", "int", axes, axes[0]), const(0))
            return call("sum", call("where", place, value, const(0.0)), attr=axes)
        name = self.weighted(self.folds(axes))
        return call(name, self.confined(FOLDS[name].confined, value), attr=axes)

    def make_statistic(self, body: Node, axes: tuple[str, ...], whole: frozenset[str]) -> None:
        value = body if self.chance(0.5) else self.covering(self.expression("float", whole, 2), whole)
        name = self.fresh("s")
        made = self.assign(name, self.folded(value, axes))
        self.pool.append(made)
        if made.kind == "float":
            self.saved.append(name)
        inputs = [n for n in self.pool if n.op == "input" and n.kind == "float" and n.dims >= frozenset(axes)]
        if self.chance(0.2):
            compared = [body] if self.wanted.ties else inputs
            if len(axes) == 1 and compared:
                self.make_hit(self.random.choice(compared), axes)
        elif inputs and self.chance(0.2):
            most = call(self.random.choice(["max", "min"]), self.random.choice(inputs), attr=axes)
            self.pool.append(self.assign(self.fresh("most"), most))

    def make_hit(self, value: Node, axes: tuple[str, ...]) -> None:
        """Where a value is the largest or the smallest of its row: the first such position, or a value there."""
        most = self.assign(self.fresh("most"), call(self.random.choice(["max", "min"]), value, attr=axes))
        place, end = leaf("index", "int", axes, axes[0]), leaf("size", "int", (), axes[0])
        found = call("min", call("where", call("eq", value, most), place, end), attr=axes)
        self.pool += [most, self.assign(self.fresh("first"), found)]

    def make_softmax(self, body: Node, whole: frozenset[str]) -> None:
        inputs = [n for n in self.pool if n.op == "input" and n.kind == "float" and n.dims >= whole]
        values = [body] if self.wanted.ties else inputs
        if values:
            name = self.random.choice(["softmax", "softmax", "log_softmax"])
            made = call(name, self.random.choice(values), attr=self.family.along[0])
            self.pool.append(self.assign(self.fresh("soft"), made))

    def add_output(
        self, axes: Sequence[str], value: Node, dtype: str = "", parts: Sequence[Node] = (), count: int = 0,
        given: tuple[Dim, ...] = (),
    ) -> None:  # fmt: skip
        dims = given or self.dims(axes)
        if count:
            dims = (*dims[:-1], replace(dims[-1], parts=count, interleaved=self.chance(0.5)))
        kind = self.weighted({"same": 9, "int": 1}) if value.kind == "float" and not count else "same"
        table = {"float": self.floats, "int": self.ints, "bool": {("bool",): 1}}["int" if kind == "int" else value.kind]
        output = Array(self.fresh("y"), dtype or self.dtype(table), dims)
        self.outputs.append(output)
        for part, own in enumerate([value, *parts]) if count else [(None, value)]:
            self.assign(output.name, own, part)

    def make_outputs(self, whole: frozenset[str]) -> None:
        """The outputs of an op without reductions over rows."""
        family = self.family
        self.late = bool(family.along or family.over)
        reduced = [tuple(a for a in family.axes if a not in lost) for lost in dict.fromkeys(family.along)]
        for axes in self.random.sample(reduced, k=self.random.randint(0, len(reduced))):
            own = frozenset(axes)
            fed = [n for n in self.pool if n.dims <= own and n.op == "named"]
            value = self.joined(self.expression("float", own, 1), self.random.choice(fed)) if fed else None
            if value is not None:
                self.add_output(axes, value)
        extra = self.random.choice([0, 0, 0, 1, 2])
        for place in range(extra + 1):
            if self.outputs and reduced and place == 0 and self.chance(0.3) and not self.unused(whole):
                break
            if place < extra and self.chance(0.25):
                kind = self.random.choice(["bool", "int"])
                self.add_output(family.axes, self.of_kind(kind, whole))
                continue
            value = self.covering(self.expression("float", whole, self.random.choice([0, 1, 2])), whole)
            if place == extra:
                value = self.absorbing(value, whole)
            count = 2 if self.chance(0.1) and family.axes[-1] != ROWS and not family.split else 0
            count = self.random.choice([2, 3]) if "parts" in family.forms and self.chance(0.4) else count
            more = [self.covering(self.expression("float", whole, 1), whole) for _ in range(count - 1)]
            self.add_output(family.axes, value, parts=more, count=count)

    def of_kind(self, kind: str, dims: frozenset[str]) -> Node:
        value = self.covering(self.expression("float", dims, 1), dims)
        if kind == "bool":
            return call(self.random.choice(COMPARISONS), value, self.expression("float", dims, 1))
        return Node("cast", "int", value.dims, (value,), self.random.choice(["int8", "int16", "uint8"]))

    def unused(self, dims: frozenset[str]) -> list[Node]:
        used = {(n.op, n.attr) for _, _, v in self.chain for n in nodes(v)}
        return [n for n in self.pool if (n.op, n.attr) not in used and n.dims <= dims]

    def make_waited(self, body: Node, whole: frozenset[str]) -> None:
        """Reductions over rows that elements use, and so may the next ones."""
        over = self.family.over
        for axes in self.random.sample(over, k=self.random.randint(1, min(2, len(over)))):
            made = self.assign(self.fresh("c"), self.folded(body, axes))
            self.pool.append(made)
            value = self.joined(self.covering(self.expression("float", whole, 1), whole), made)
            body = self.assign(self.fresh("z"), self.absorbing(value, whole))
            self.pool.append(body)

    def make_columns(self, body: Node, whole: frozenset[str]) -> None:
        """Outputs that reduce over rows, and perhaps one with whole rows."""
        family = self.family
        over = self.random.choice(family.over)
        kept = tuple(a for a in family.axes if a not in over)
        if family.along and self.chance(0.8):
            self.late = True
            value = self.absorbing(self.covering(self.expression("float", whole, 1), whole), whole)
            self.add_output(family.axes, value)
            self.late = False
        argument = self.absorbing(self.covering(body, whole), whole)
        early, self.late = list(self.pool), True
        self.pool = [n for n in self.pool if n.dims <= frozenset(kept) and n.op in ("input", "param")]
        for place in range(self.random.choice([1, 1, 2])):
            value = (
                argument if place == 0 else self.covering(self.joined(body, self.random.choice(early)), whole, early)
            )
            made = self.assign(self.fresh("c"), self.folded(value, over))
            own = self.random.choice([0, 1, 1, 2])
            self.pool.append(made)
            self.add_output(kept, self.joined(self.expression("float", frozenset(kept), own), made) if own else made)
            self.pool.remove(made)

    def make_product_folds(self, body: Node, whole: frozenset[str]) -> None:
        """A tile, reductions along its rows, reductions over its columns: some of these."""
        family = self.family
        if self.chance(0.6):
            self.add_output(
                family.axes, self.absorbing(self.covering(self.expression("float", whole, 1), whole), whole)
            )
        for axes in self.random.sample([*family.along, *family.over], k=self.random.choice([1, 1, 2])):
            own = self.outputs and self.chance(0.4)
            value = self.covering(self.expression("float", whole, 1), whole) if own else body
            name = self.weighted(self.folds(axes))
            made = call("sum" if name in ("var", "std", "prod") else name, value, attr=axes)
            self.add_output(tuple(a for a in family.axes if a not in axes), made)
