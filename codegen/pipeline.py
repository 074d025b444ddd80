"""From a spec's text to everything known about the op: the stages, in order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from codegen import plan, reducing
from codegen.chain import read_chain
from codegen.check import check
from codegen.errors import SpecError
from codegen.ir import Statement, topological
from codegen.ops import REDUCTIONS
from codegen.plan import Elementwise
from codegen.reductions import Reduction
from codegen.reference import Reference, read_reference
from codegen.spec import Spec
from codegen.specfile import read_spec


@dataclass(frozen=True)
class Op:
    """Everything known about an op once its spec is read: what all later stages take."""

    spec: Spec
    statements: tuple[Statement, ...]
    reference: Reference
    plan: Elementwise | Reduction


def read_op(path: str | Path, data: bytes | str | None = None) -> Op:
    """Read, check and plan one spec. Raises `SpecError` with every mistake found."""
    spec, diagnostics = read_spec(path, data)
    if spec is None:
        raise SpecError(diagnostics)
    diagnostics += check(spec)
    statements = reference = None
    if spec.chain.value:
        try:
            statements = read_chain(spec)
        except SpecError as error:
            diagnostics += error.diagnostics
    if spec.reference.value:
        try:
            reference = read_reference(spec)
        except SpecError as error:
            diagnostics += error.diagnostics
    if diagnostics or statements is None or reference is None:
        raise SpecError(diagnostics)
    reduces = any(node.op in REDUCTIONS for node in topological(s.value for s in statements))
    stage = reducing if reduces else plan
    return Op(spec, statements, reference, stage.make_plan(spec, statements))
