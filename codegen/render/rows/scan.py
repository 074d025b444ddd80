"""The kernel of an op that scans: prepares the values of `templates/scan.py.jinja`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from codegen.graph import emit
from codegen.graph.names import fresh
from codegen.graph.nodes import Node, along_of, topological
from codegen.plan.access import Access
from codegen.plan.rows.scanning import Scan
from codegen.render.common import listed, quoted, tuple_text
from codegen.render.elementwise import ElementwiseContext
from codegen.render.once import once
from codegen.render.records import Function, Kernel, Tensor

PARTS = "mParts"  # the tensor with the parts of sums along the innermost axis


@dataclass(frozen=True)
class ScanFunction(Function):
    """A function of a kernel that scans. It computes the operands of a scan, values that states share or are reduced
    from, or the outputs."""

    tuple: bool  # whether it gives a tuple, also of one value
    extra: list[str]  # the parameters that are not operands
    arguments: list[str]  # for the extra parameters
    op: str  # the scan, or ""
    before: bool
    starts: str = ""  # the tensor with the states before a thread's tiles, of a scan in the other direction
    number: int = 0  # of a scan: which of those in its direction

    @property
    def returns(self) -> str:
        return super().returns + ("," if self.tuple and len(self.results) == 1 else "")


@dataclass(frozen=True)
class Reads:
    """The loads for a vector."""

    loads: list[str]
    loaded: str  # the registers' names
    arguments: list[str]  # of the chain's functions


@dataclass(frozen=True)
class ReadsAhead:
    """The loads that are in flight while the tile before is computed."""

    loads: list[str]
    loaded: str  # the registers' names
    axes: str  # the names of the axes, if the loads have any


@dataclass(frozen=True)
class States:
    """How a thread goes through an element's states, and reduces them."""

    reduced: ScanFunction | None
    axes: str  # the names of a state's positions
    sizes: str
    count: int
    ops: str  # of the reductions
    reads: Reads
    reductions: int
    sums: int  # along the axis, of the values of states
    across: int  # sums along the innermost axis
    stores: list[str]  # of the sums along the axis
    results: str  # their names
    written: str  # the names of the axes, if these stores have any


@dataclass(frozen=True)
class Sums:
    """The sums along the axis that a kernel writes."""

    ops: str
    values: str  # the names of what is summed
    results: str
    axes: str  # the names of the axes
    stores: list[str]


@dataclass(frozen=True)
class Crossed:
    """An output that is summed along the innermost axis, and how parts of its sums are added up."""

    tensor: str
    place: str


@dataclass(frozen=True)
class ScanKernel(Kernel):
    """The values of `scan.py.jinja`."""

    functions: list[ScanFunction]  # all that the module has
    shared: ScanFunction | None
    scans: list[ScanFunction]
    carried: list[ScanFunction]  # those of the scans whose states are carried
    told: list[str]  # the tensors to which these states are written
    chain: ScanFunction | None
    states: States | None
    sums: Sums | None
    across: list[Crossed]
    crossed: str  # the names of what a vector's elements give to these
    place: int
    reverse: bool
    compute: str
    extents: str
    tile_axes: str  # the names of the axes, if a tile's loads and stores have any
    settings: list[str]
    tile_params: list[str]
    reads: Reads
    ahead: ReadsAhead
    written: list[str]
    stores: list[str]
    results: str
    launch_arguments: str
    first: str  # the launcher of the kernel for scans in the other direction


class ScanContext(ElementwiseContext):
    """The values of the scan template."""

    holds_tables = False

    plan: Scan
    template = "scan.py.jinja"

    def kernel(self) -> ScanKernel:
        shared, scans, reduced, chain = self.functions()
        functions, first = [f for f in (shared, *scans, reduced, chain) if f is not None], self.earlier()
        asked = {name for f in functions for name in f.extra}
        flags = [n for n in self.flags if n in asked]
        reads, of_states = self.reads(of_states=False), self.states(reduced) if self.plan.states else None
        return ScanKernel(
            functions=functions,
            shared=shared,
            scans=scans,
            carried=[f for f in scans if not f.starts],
            told=self.told(),
            chain=chain,
            states=of_states,
            sums=self.sums() if self.of_vectors(self.plan.summed) else None,
            across=self.across(),
            crossed=", ".join(self.summed_names(self.plan.crossed)),
            place=self.plan.place,
            reverse=self.plan.along.reverse,
            compute=self.compute(),
            extents=self.extents(),
            tile_axes=self.axes_in(
                [*reads.loads, *(of_states.reads.loads if of_states else []), *self.stores_of(self.of_elements())]
            ),
            settings=[*([self.compute_line()] if self.wide else []), *self.flag_lines(flags)],
            tile_params=[
                *self.tensors_of_tile(),
                *(p.constant for p in self.static),
                "how",
                *(["compute"] if self.wide else []),
                *flags,
            ],
            reads=reads,
            ahead=self.reads_ahead(),
            written=[self.registers(a) for a in self.of_elements() if a.mode != "flat"],
            stores=self.stores_of(self.of_elements()),
            results=", ".join(
                [
                    *(a.name for a in self.of_elements()),
                    *self.summed_names(self.plan.summed),
                    *self.summed_names(self.plan.crossed),
                ]
            ),
            launch_arguments=self.launch_arguments(),
            first="" if first is None else f"{first.spec.op}_launch",
        )

    def tensors_of_tile(self) -> list[str]:
        """The names of the tensors that a tile's function takes: it does not write sums."""
        own = [self.tensors[a.array.name] for a in (*self.plan.summed, *self.plan.crossed) if a.array]
        late = {name for name in own if not self.mentions(self.chain_arguments(), name)} | {PARTS}
        return [t.name for t in self.tensor_lines() if t.name not in late]

    # The kernel for scans in the other direction

    @once
    def earlier(self) -> StartsContext | None:
        """The values that it shows."""
        return StartsContext(self) if self.plan.back else None

    def told(self) -> list[str]:
        """The tensors to which the kernel writes states for the other one."""
        return []

    def starts_of(self) -> dict[int, str]:
        """The tensors with the states before each of a thread's tiles, by the scans' identities."""
        return {id(n): f"mStarts{i if len(self.plan.back) > 1 else ''}" for i, n in enumerate(self.plan.back, 1)}

    def tensor_lines(self) -> list[Tensor]:
        states = "(chunks and states, scans) the states before each chunk"
        found = [Tensor(name, "cute.Tensor", states) for name in self.starts_of().values()]
        if self.plan.across:
            found.append(Tensor(PARTS, "cute.Tensor", "(parts, outputs and rows and states) sums of each part"))
        return super().tensor_lines() + found

    def of_elements(self) -> list[Access]:
        """The stores of elements, and not of sums."""
        return [] if self.told() else [a for a in self.plan.stores if a not in (*self.plan.summed, *self.plan.crossed)]

    def of_vectors(self, stores: Iterable[Access]) -> list[Access]:
        """The stores of sums of the values of elements, and not of their states."""
        return [a for a in stores if not self.plan.is_of_states(a)]

    def in_states(self, stores: Iterable[Access]) -> list[Access]:
        """The stores of sums of the values of states."""
        return [a for a in stores if self.plan.is_of_states(a)]

    def summed_names(self, stores: Iterable[Access]) -> list[str]:
        """The names of what elements give to sums."""
        return [f"{a.name}_of" for a in self.of_vectors(stores)]

    def sums(self) -> Sums:
        """How sums along the axis are written."""
        own = self.of_vectors(self.plan.summed)
        lines = [self.registers(a) for a in own] + self.stores_of(own)
        ops = tuple_text('"sum"' for _ in own)
        names = ", ".join(a.name for a in own)
        return Sums(ops, ", ".join(self.summed_names(own)), names, self.axes_in(lines), lines)

    def across(self) -> list[Crossed]:
        """The outputs that are summed along the innermost axis."""
        sizes, strides, stride = dict(self.plan.states), {}, 1
        for axis in reversed(sizes):
            strides[axis], stride = stride, stride * sizes[axis]

        def entry(token: int | str) -> str:
            return f"flat.Axis({token})" if isinstance(token, int) else f"({strides[token]}, {sizes[token]})"

        stores = [a for a in self.plan.crossed if a.array is not None]
        return [Crossed(self.tensors[a.array.name], tuple_text(map(entry, a.tokens))) for a in stores if a.array]

    def states(self, reduced: ScanFunction | None) -> States:
        """How a thread goes through an element's states, and reduces them."""
        ops = [n.op for n in self.plan.reductions]
        summed = self.in_states(self.plan.summed)
        lines = [self.registers(a) for a in summed] + self.stores_of(summed)
        return States(
            reduced=reduced,
            axes=tuple_text(f"i{axis}" for axis, _ in self.plan.states)[1:-1],
            sizes=", ".join(str(size) for _, size in self.plan.states),
            count=self.plan.count,
            ops=tuple_text(f'"{op}"' for op in ops),
            reads=self.reads(of_states=True),
            reductions=len(ops),
            sums=len(summed),
            across=len(self.in_states(self.plan.crossed)),
            stores=lines,
            results=listed(a.name for a in summed),
            written=self.axes_in(lines),
        )

    # What is read

    def of_states(self) -> set[str]:
        """The names of the values that each state of an element reads for itself."""
        return {a.name for a in self.plan.loads if self.plan.is_of_states(a)}

    def reads(self, of_states: bool) -> Reads:
        """The loads for an element, or for each of its states, but for those ahead."""
        found = [a for a in self.plan.loads if self.plan.is_of_states(a) == of_states]
        loads = self.loads_of(a for a in found if of_states or not self.plan.is_ahead(a))
        own, texts = self.of_states(), self.chain_arguments()
        arguments = [t for n, t in zip(self.vector_names(), texts, strict=True) if (n in own) == of_states]
        return Reads(list(loads.values()), listed(loads), arguments)

    def reads_ahead(self) -> ReadsAhead:
        """The loads of arrays with elements along the scanned axis: they wait for memory, others find theirs in a cache."""
        loads = self.loads_of(a for a in self.plan.loads if self.plan.is_ahead(a))
        return ReadsAhead(list(loads.values()), tuple_text(loads), self.axes_in(loads.values()))

    def axes_in(self, lines: Iterable[str]) -> str:
        """The names of the axes, if lines have any."""
        axes = self.used_axes()
        names = [name.strip() for name in axes.split(",") if name.strip(" _")]
        return axes if any(self.mentions([*lines], name) for name in names) else ""

    def place_on(self, axis: str) -> str:
        """The position of the state that is computed, along one of the states' axes."""
        assert axis in dict(self.plan.states)
        return f"i{axis}"

    # The chain's functions

    def named(self, nodes: Iterable[Node], word: str, taken: set[str]) -> dict[int, str]:
        """The names of nodes in the chain's functions, by identity: as the chain calls them, where it does."""
        names, outputs = self.target_names(), {a.name for a in self.spec.outputs}
        own = {id(s.value): names[s.name, s.part] for s in self.statements if s.name not in outputs}
        return {id(n): own.get(id(n)) or fresh(taken, word) for n in nodes}

    def given_values(self) -> set[int]:
        """The values that functions are given or write as numbers, by identity."""
        leaves = self.leaves()
        return {id(n) for n in self.nodes if n.is_const or emit.leaf_key(n) in leaves or n in self.plan.scans}

    def shared_by_states(self) -> list[Node]:
        """The computed values that all states of an element use."""
        plan, given = self.plan, self.given_values()
        used = {id(a) for n in self.nodes if plan.has_states(n) and n not in plan.reductions for a in n.args}
        return [n for n in self.nodes if id(n) in used - given and not plan.has_states(n)]

    def shared_values(self, results: Sequence[Node]) -> list[Node]:
        """The computed values that the operands of scans and the results have in common. Values that a compiler cannot
        move across the exchange of states, such as sines, would be computed twice."""
        given, computed = self.given_values(), [*(n.args for n in self.plan.scans), results]  # by a function each
        needed = [[*topological(values, lambda n: id(n) in given)] for values in computed]
        count, late = Counter(id(n) for found in needed for n in found), {id(n) for n in self.plan.scans}
        for node in self.nodes:
            if any(id(a) in late for a in node.args):
                late.add(id(node))
        common = {key for key, uses in count.items() if uses > 1} - given - late
        used = {id(n) for values in computed for n in values}
        used |= {id(a) for found in needed for n in found if id(n) not in common | given for a in n.args}
        return [n for n in self.nodes if id(n) in common & used]

    def functions(self) -> tuple[ScanFunction | None, list[ScanFunction], ScanFunction | None, ScanFunction | None]:
        """The functions of the values that others share, of each scan's operands, of the values that are reduced over
        states, and of the results, which are computed from all states or from their reductions."""
        plan, names = self.plan, self.vector_names()
        taken = {*self.target_names().values(), *names}
        states = self.named(plan.scans, "state", taken)
        values = {(s.name, s.part): s.value for s in self.statements}
        results = [] if self.told() else [values[a.array.name, a.part] for a in self.of_elements() if a.array]
        given_to = {a.name: values[a.array.name, a.part].args[0] for a in (*plan.summed, *plan.crossed) if a.array}
        results += [given_to[a.name] for a in self.of_vectors((*plan.summed, *plan.crossed))]
        common = self.shared_by_states() if plan.states else self.shared_values(results)
        known = self.named(common, "shared", taken)
        alone = [n for n in names if n not in self.of_states()]
        every = [*alone, *known.values(), *(n for n in names if n not in alone)]
        shared, reduced, scans, given = None, None, list[ScanFunction](), dict(known)
        if common:
            sharing = "all states of an element" if plan.states else "the functions below"
            doc = f"What {sharing} share, on one vector of each input."
            shared = self.function("shared", doc, common, alone, {})
        for i, node in enumerate(plan.scans):
            name = f"operands{i + 1}" if len(plan.scans) > 1 else "operands"
            doc = f"The operands of {node.op}, on one vector of each input."
            own = self.function(name, doc, node.args, every, given, node)
            number = sum(bool(f.starts) == bool(own.starts) for f in scans)
            scans.append(replace(own, number=number))
            given |= {id(node): states[id(node)]}
            every = [*every, states[id(node)]]
        if self.told():
            return shared, scans, None, None
        if plan.states:
            added = self.in_states((*plan.summed, *plan.crossed))
            ops = dict.fromkeys([*(n.op for n in plan.reductions), *("sum" for _ in added)])
            doc = f"The values to reduce ({', '.join(ops)}), for one state of each element."
            found = [*(n.args[0] for n in plan.reductions), *(given_to[a.name] for a in added)]
            reduced = self.function("reduced", doc, found, every, given)
            totals = self.named(plan.reductions, "total", taken)
            every, given = [*alone, *known.values(), *totals.values()], {**known, **totals}
        return shared, scans, reduced, self.function("chain", self.formula_doc(), results, every, given)

    def function(
        self,
        name: str,
        doc: str,
        values: Sequence[Node],
        params: list[str],
        given: dict[int, str],
        scan: Node | None = None,
    ) -> ScanFunction:
        """The function of some values; those `given` are parameters."""
        dialect = replace(self.dialect, given=given)
        if dialect.like not in params:
            dialect = replace(dialect, like=params[0])
        lines, results = emit.emit_values(self.statements, self.target_names(), dialect, values)
        extra = [n for n in ("compute", *self.flags, *dict(self.spec.types)) if self.mentions([*lines, *results], n)]
        return ScanFunction(
            name=f"{self.spec.op}_{name}",
            doc=quoted(doc),
            params=[*params, *extra],
            lines=lines,
            results=results,
            tuple=name != "chain",
            extra=extra,
            arguments=[self.extra_argument(n) for n in extra],
            op=scan.op if scan else "",
            before=along_of(scan).before if scan else False,
            starts=self.starts_of().get(id(scan), ""),
        )


class StartsContext(ScanContext):
    """The values of the kernel that goes in the other direction first, and writes states that the other kernel begins with."""

    def __init__(self, main: ScanContext):
        plan = main.plan
        along = along_of(plan.back[0])
        self.main = main
        own = replace(
            plan, along=along, scans=plan.back, back=(), loads=plan.back_loads, reductions=(), sums=(), across=()
        )
        super().__init__(replace(main.op, spec=replace(main.spec, op=f"{main.spec.op}_starts"), plan=own))
        self.nodes = tuple(topological(plan.back))

    def earlier(self) -> None:
        return None

    def told(self) -> list[str]:
        return list(self.main.starts_of().values())

    def tensor_lines(self) -> list[Tensor]:
        return self.main.tensor_lines()
