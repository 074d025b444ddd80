"""Cuts an op that selects into steps, which one kernel runs one after the other on the rows of a block (`plan/rows/steps.py`).

The steps are the stages of the op, of which none waits for other blocks: each works on the rows of the selection.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.errors import SpecError
from codegen.graph.nodes import DTYPES, Statement
from codegen.graph.ops import ALONE
from codegen.language.reference import Reference
from codegen.plan.op import Op
from codegen.plan.rows import selecting
from codegen.plan.rows.steps import RowStep, Step, Steps, StepsPlanner
from codegen.spec.spec import Spec
from codegen.stages.cut import cut


def make_plan(spec: Spec, statements: tuple[Statement, ...]) -> Steps:
    """The plan of one kernel for an op that selects. Raises `SpecError` or `UserError` if there is none."""
    planner = StepsPlanner(spec, statements)
    planner.check()

    def kernel(own: Spec) -> Op:
        selects = bool(own.read.ops & ALONE)
        plan = selecting.make_plan(own, own.read.statements) if selects else planner.step(own)
        return Op(own, own.read.statements, Reference(()), plan)

    stages = cut(spec, kernel)
    found = [
        Step(replace(op.spec, op=f"{spec.op}_step{i}"), op.plan)
        for i, op in enumerate(stages.ops if stages else (), 1)
        if isinstance(op.plan, RowStep | selecting.Selection)
    ]
    plan = planner.plan(found)
    if len(found) < 2 or any(a.dtype not in DTYPES or a.dtype == "bool" for a in plan.handed):
        raise SpecError([planner.error("it has no steps of the same rows", "", spec.outputs[-1])])
    return plan
