"""The text of a generated module: spec, plan and graph become the values that a template shows.

Every line that a template inserts is prepared here; templates contain the kernel's structure and no decisions.

In reading order:
  package      the files of a build
  records      the values that templates show
  common       what all kinds of kernel share
  elementwise  element-wise kernels
  turned       the same, with arrays in different orders of axes
  rows/        the kernels of `plan/rows`
  gemms        contractions
  attention    attention, and the parts of its chain
  attention_gradients  its gradients
  imports      the imports of a generated module
  literals     data as literals
  wrapping     long lines broken
  once         methods whose result is computed once
  workers      work shared among processes
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from codegen import extras, library
from codegen.autodiff.backward import Derived, backward_of
from codegen.plan.attention import Attention, AttentionBackward, AttentionPlan
from codegen.plan.elementwise import Elementwise
from codegen.plan.op import Gemm, Op, Staged
from codegen.plan.rows.middle import Middle
from codegen.plan.rows.scanning import Scan
from codegen.plan.rows.selecting import Permutation, Placement, Selection, Sort, Threshold
from codegen.plan.rows.steps import Steps
from codegen.render.attention import AttentionContext
from codegen.render.attention_gradients import AttentionBackwardContext
from codegen.render.common import Context, StagedContext
from codegen.render.elementwise import ElementwiseContext, NeighboursContext
from codegen.render.gemms import GemmContext
from codegen.render.imports import import_lines
from codegen.render.literals import dict_literal, line_literal
from codegen.render.records import DerivedKernel, Module
from codegen.render.rows.column import WalkContext
from codegen.render.rows.middle import MiddleContext
from codegen.render.rows.row import RowContext
from codegen.render.rows.scan import ScanContext
from codegen.render.rows.selection import (
    PermutationContext,
    PlacementContext,
    SelectionContext,
    SortContext,
    ThresholdContext,
)
from codegen.render.rows.steps import StepsContext
from codegen.render.turned import TurnedContext
from codegen.render.wrapping import wrapped
from codegen.spec.embedding import to_data
from codegen.tuning.entries import data_of

with extras.needed("build"):
    import jinja2

# The kernels that compute all stages of an op; the second writes what a backward takes, too
JOINED = ("whole", "saving")


@functools.cache
def environment() -> jinja2.Environment:
    folder = library.folder("templates")
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def context_of(op: Op) -> Context:
    if isinstance(op.plan, Scan):
        return ScanContext(op)
    if isinstance(op.plan, Elementwise):
        if op.plan.turned is not None:
            return TurnedContext(op)
        return NeighboursContext(op) if op.plan.reads_rows else ElementwiseContext(op)
    if isinstance(op.plan, Steps):
        return StepsContext(op, kernel_text)
    if isinstance(op.plan, Placement):
        return PermutationContext(op) if isinstance(op.plan, Permutation) else PlacementContext(op)
    if isinstance(op.plan, Threshold):
        return ThresholdContext(op)
    if isinstance(op.plan, Selection):
        return SortContext(op) if isinstance(op.plan, Sort) else SelectionContext(op)
    if isinstance(op.plan, Attention):
        return AttentionContext(op)
    if isinstance(op.plan, AttentionBackward):
        return AttentionBackwardContext(op)
    if isinstance(op.plan, Gemm):
        return GemmContext(op)
    if isinstance(op.plan, Staged):
        return StagedContext(op)
    if isinstance(op.plan, Middle):
        return MiddleContext(op)
    return WalkContext(op) if op.plan.columns else RowContext(op)


def render_op(op: Op) -> str:
    """The generated module of an op."""
    context = context_of(op)
    module = Module(
        **vars(context.described()),
        kernel=kernel_text(context),
        kind=kind_of(op),
        derived=without_repeats({name: derived_kernel(name, derived) for name, derived in derived_ops(op).items()}),
        spec=dict_literal(to_data(op.spec)),
        tuning=[line_literal(data_of(tuned)) for tuned in op.tuning if tuned.take != "plan"],
    )
    template = environment().get_template("op.py.jinja")
    text = template.render(vars(module), imports=import_lines)
    # runs of empty lines from the template, not from the spec
    before, spec, rest = text.partition(module.spec)
    code = re.sub(r"\n{4,}", "\n\n\n", rest).rstrip("\n") + "\n"
    return re.sub(r"\n{4,}", "\n\n\n", before) + spec + wrapped(code)


def derived_ops(op: Op) -> dict[str, Op]:
    """The ops that an op's module has besides the op, by their role."""
    found = {name: made for name, made in kernels("", op).items() if name}
    backward = backward_of(op)
    if isinstance(backward, Derived):
        if (forward := backward.forward) is not None:  # one that contracts has the op's own epilogue
            found |= {"forward": forward} if isinstance(forward.plan, Gemm) else kernels("forward", forward)
        if backward.frozen is not None:
            found |= kernels("frozen", backward.frozen.op)
        found |= kernels("backward", backward.op)
    return found


def kernels(name: str, op: Op) -> dict[str, Op]:
    """An op under its name in a module, with its epilogue if it contracts, or its stages, under their names."""
    if not isinstance(op.plan, Staged):
        own = {"_".join(filter(None, (name, "epilogue"))): op.plan.epilogue} if isinstance(op.plan, Gemm) else {}
        return {name: op, **own}
    stages = [kernels("_".join(filter(None, (name, f"stage{i}"))), op) for i, op in enumerate(op.plan.stages, 1)]
    joined = dict(zip(JOINED, (op.plan.whole, op.plan.saving), strict=True))
    stages += [kernels("_".join(filter(None, (name, how))), made) for how, made in joined.items() if made is not None]
    return {name: made for stage in stages for name, made in stage.items()}


def kind_of(op: Op) -> str:
    """The kind of an op that has a class of its own."""
    return op.plan.kind if isinstance(op.plan, AttentionPlan) else ""


def derived_kernel(name: str, op: Op) -> DerivedKernel:
    """The part of a module for an op under this name. The jnp form of one kernel for several stages is that of the stages."""
    context = context_of(op)
    xla = None if name.endswith(JOINED) else context.xla()
    return DerivedKernel(op.spec.op, kernel_text(context), xla, kind_of(op))


def without_repeats(kernels: dict[str, DerivedKernel]) -> dict[str, DerivedKernel]:
    """The kernels of a module. A kernel that differs from an earlier one only in names uses the functions of that one.
    An example is a stage of the backward that the frozen backward has too. A product and its epilogue, which it calls,
    are compared together; other kernels that call each other's functions keep their own."""
    first: dict[tuple[str, bool], str] = {}
    found = {}
    for name, made in kernels.items():
        product = name.removesuffix("_epilogue")
        both = [kernels[n] for n in (product, f"{product}_epilogue") if n in kernels]
        called = any(f"{made.op}_" in other.kernel for other in kernels.values() if other not in both)
        text = "\n".join(f"{k.kernel}\n{k.xla}" for k in both).replace(both[0].op, "\0")
        op = made.op if called else first.setdefault((text, name == product), made.op)
        found[name] = replace(made, op=op, repeated=op != made.op)
    return found


def kernel_text(context: Context) -> str:
    """The kernel, or kernels, and their launchers; "" for an op without one."""
    kernel = context.kernel()
    if kernel is None:
        return ""
    text = environment().get_template(context.template).render(vars(context.head) | vars(kernel)).rstrip("\n")
    first = context.earlier()
    return text if first is None else f"{kernel_text(first)}\n\n\n{text}"
