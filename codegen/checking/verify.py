"""`codegen verify`: the property tests of ops, reported one line each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from codegen import extras
from codegen.checking.agreement import Disagreement, Report
from codegen.checking.testing import CALL, check_gradient, check_op
from codegen.runtime.compiled.platform import on_gpu
from codegen.runtime.ops.op import AnyOp

with extras.needed("build"):
    from rich.table import Table


@dataclass(frozen=True)
class Outcome:
    """The result of one op's random calls."""

    op: str
    implementation: str
    report: Report
    gradient: str  # "agrees", "-" where there is none, or what is wrong
    seconds: float

    @property
    def good(self) -> bool:
        return not self.report.failure and self.gradient in ("agrees", "-")


def default_implementation() -> str:
    """The implementation that `verify` runs by default."""
    return "cute" if on_gpu() else "interpret"


def verify(ops: Iterable[AnyOp], implementation: str, examples: int, seed: int | None) -> Iterator[Outcome]:
    """Check ops one after the other. An outcome holds its op's disagreement, or the exception of a call. Gradients get a quarter
    of the examples."""
    for op in ops:
        start, report, gradient = time.perf_counter(), Report(), "-"
        try:
            check_op(op, implementation, examples, seed, report)
        except Exception as error:
            report.failure = _failure(op, error)
        if op.spec.grad != "none":
            try:
                check_gradient(op, implementation, max(2, examples // 4), seed)
                gradient = "agrees"
            except Exception as error:
                gradient = _failure(op, error)
        yield Outcome(op.spec.op, implementation, report, gradient, time.perf_counter() - start)


def _failure(op: AnyOp, error: Exception) -> str:
    """The message for a check that failed. An exception of a kernel or of JAX has its call in a note."""
    if isinstance(error, Disagreement):
        return str(error)
    calls = [note for note in getattr(error, "__notes__", ()) if note.startswith(CALL)]
    return "\n  ".join([f"{op.spec.op}: {type(error).__name__}: {str(error).strip()}", *calls[:1]])


def as_row(outcome: Outcome) -> dict[str, Any]:
    """An outcome for --json."""
    report = outcome.report
    return {
        "op": outcome.op,
        "implementation": outcome.implementation,
        "examples": report.examples,
        "elements": report.elements,
        "worst_ulp": round(report.worst_ulp, 4),
        "worst_ulp_elements": report.tight,
        "worst_of_all_ulp": round(report.worst_of_all, 4),
        "allowed_there_ulp": round(report.bound_of_worst, 4),
        "undecided": report.undecided,
        "worst_case": report.worst_case,
        "failure": report.failure,
        "gradient": outcome.gradient,
        "seconds": round(outcome.seconds, 2),
    }


def as_table(outcomes: Iterable[Outcome]) -> Table:
    """The table of outcomes, one line each. In 80 columns, names of ops and headings are wrapped."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("op", "calls", "elements", "worst ulp", "of", "worst of all", "undecided", "gradient", ""):
        table.add_column(name, overflow="fold")
    for o in outcomes:
        gradient = o.gradient if o.gradient in ("agrees", "-") else "differs"
        r = o.report
        verdict = "[green]agrees[/green]" if o.good else "[red]differs[/red]"
        worst = f"{r.worst_of_all:.3g} of {r.bound_of_worst:.3g}"
        numbers = (r.examples, r.elements, f"{r.worst_ulp:.2f}", r.tight, worst, r.undecided)
        cells = (*map(str, numbers), gradient, verdict)
        table.add_row(o.op, *cells)
    return table
