"""From a spec's text to everything known about the op: the stages, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from codegen.autodiff.backward import backward_of
from codegen.errors import Diagnostic, SpecError, UserError
from codegen.language.chain import read_chain
from codegen.language.check import check
from codegen.language.reference import read_reference
from codegen.plan.launches import Tuned
from codegen.plan.limits import why_not_in_place
from codegen.plan.op import Op
from codegen.spec.specfile import read_spec
from codegen.stages.choose import planned


def read_op(path: str | Path, data: bytes | str | dict[str, Any] | None = None) -> Op:
    """Read, check and plan one spec. It is given as a file, with the measurements for its op; as the content of one; or
    as data. Raises `SpecError` with every error found."""
    spec, diagnostics = read_spec(path, data)
    if spec is None:
        raise SpecError(diagnostics)
    reference = None
    if spec.chain.value:
        chain, found = read_chain(spec)
        spec, diagnostics = replace(spec, graph=chain), diagnostics + found
    diagnostics += check(spec)
    if spec.reference.value:
        try:
            reference = read_reference(spec)
        except SpecError as error:
            diagnostics += error.diagnostics
    if diagnostics or spec.graph is None or reference is None:
        raise SpecError(diagnostics)
    spec, plan = planned(spec)
    op = Op(spec, spec.read.statements, reference, plan, () if data is not None else _measured(Path(path)))
    if diagnostics := list(_not_in_place(op)):
        raise SpecError(diagnostics)
    asked = spec.save or not isinstance(spec.grad, str)
    if asked and isinstance(backward := backward_of(op), UserError):
        message = f"'grad' or 'save' ask for a backward that no kernel computes: {backward.message}"
        raise SpecError(
            [spec.source.diagnostic(spec.chain.span, message, "delete them: jax.vjp of the jnp form serves")]
        )
    return op


def _measured(path: Path) -> tuple[Tuned, ...]:
    from codegen.tuning.file import tuned_beside  # needs PyYAML

    return tuned_beside(path)


def _not_in_place(op: Op) -> Iterable[Diagnostic]:
    """An error for each entry of `aliases` that no kernel follows."""
    for output, source in op.spec.aliases:
        if why := why_not_in_place(op.plan, output, source):
            message = f"no kernel writes {output!r} into the buffer of {source!r}: {why}"
            yield op.spec.source.diagnostic(op.spec.place("aliases", output), message, "delete this entry")
