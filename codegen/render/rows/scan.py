"""The kernel of an op that scans: prepares the values of `templates/scan.py.jinja`."""

from __future__ import annotations

from dataclasses import replace

from codegen.graph import emit
from codegen.graph.names import fresh
from codegen.graph.nodes import Node, along_of
from codegen.plan.op import Op
from codegen.plan.rows.scanning import Scan
from codegen.render.common import quoted
from codegen.render.elementwise import ElementwiseContext
from codegen.render.records import ScanFunction, ScanKernel


class ScanContext(ElementwiseContext):
    """The values of the scan template."""

    plan: Scan
    template = "scan.py.jinja"

    def planned(self, op: Op) -> Scan:
        assert isinstance(op.plan, Scan)
        return op.plan

    def kernel(self) -> ScanKernel:
        functions = self.functions()
        asked = {name for f in functions for name in f.extra}
        flags = [n for n in self.flags if n in asked]
        return ScanKernel(
            functions=functions,
            place=self.plan.place,
            reverse=self.plan.along.reverse,
            compute=self.compute(),
            extents=self.extents(),
            axes=self.used_axes(),
            settings=[*([self.compute_line()] if self.wide else []), *self.flag_lines(flags)],
            tile_params=[
                *(t.name for t in self.tensor_lines()),
                *(p.constant for p in self.static),
                "how",
                *(["compute"] if self.wide else []),
                *flags,
            ],
            arguments=self.chain_arguments(),
            written=[self.registers(a) for a in self.plan.stores if a.mode != "flat"],
            loads=self.loads(),
            loaded=self.loaded(),
            stores=self.stores(),
            results=", ".join(s.name for s in self.plan.stores),
            launch_arguments=self.launch_arguments(),
        )

    def state_names(self) -> dict[int, str]:
        """The names of the scans' states in the chain's functions, by identity: as the chain calls them, where it does."""
        names, outputs = self.target_names(), {a.name for a in self.spec.outputs}
        own = {id(s.value): names[s.name, s.part] for s in self.statements if s.name not in outputs}
        taken = {*names.values(), *self.vector_names()}
        return {id(n): own.get(id(n)) or fresh(taken, "state") for n in self.plan.scans}

    def functions(self) -> list[ScanFunction]:
        """A function for each scan's operands, and one for what is computed from all states."""
        names, found = self.state_names(), []
        known: dict[int, str] = {}
        for i, node in enumerate(self.plan.scans):
            name = f"operands{i + 1}" if len(self.plan.scans) > 1 else "operands"
            doc = f"The operands of {node.op}, on one vector of each input."
            found.append(self.function(name, doc, node.args, known, node))
            known = {**known, id(node): names[id(node)]}
        values = {(s.name, s.part): s.value for s in self.statements}
        results = tuple(values[s.array.name, s.part] for s in self.plan.stores if s.array)
        return [*found, self.function("chain", self.formula_doc(), results, known, None)]

    def function(
        self, name: str, doc: str, values: tuple[Node, ...], states: dict[int, str], scan: Node | None
    ) -> ScanFunction:
        dialect = replace(self.dialect(), given=states)
        lines, results = emit.emit_values(self.statements, self.target_names(), dialect, values)
        extra = [n for n in ("compute", *self.flags, *dict(self.spec.types)) if self.mentions([*lines, *results], n)]
        return ScanFunction(
            name=f"{self.spec.op}_{name}",
            doc=quoted(doc),
            params=[*self.vector_names(), *states.values(), *extra],
            lines=lines,
            results=results,
            tuple=scan is not None,
            extra=extra,
            states=len(states),
            arguments=[self.extra_argument(n) for n in extra],
            op=scan.op if scan else "",
            before=along_of(scan).before if scan else False,
        )
