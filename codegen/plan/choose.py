"""The kind of plan that a chain asks for."""

from __future__ import annotations

from codegen.errors import Mistake, SpecError
from codegen.graph.nodes import topological
from codegen.graph.ops import REDUCTIONS
from codegen.language.chain import in_chain
from codegen.language.reference import Reference
from codegen.plan import contractions as gemms
from codegen.plan import elementwise, reducing
from codegen.plan.elementwise import Elementwise
from codegen.plan.op import Gemm, Op
from codegen.plan.reductions import Reduction
from codegen.plan.tiles import Product, tile_of
from codegen.spec.spec import Spec


def plan_of(spec: Spec) -> Elementwise | Reduction | Gemm:
    """The plan of the kind that the chain asks for. Raises `SpecError` where no kernel of ours can do it."""
    statements = spec.read.statements
    if gemms.contracts(statements):
        products, after = gemms.split(spec)
        try:
            return gemm_plan(products, derived(after))
        except SpecError as error:
            raise SpecError([in_chain(spec, d) for d in error.diagnostics]) from None
    reduces = any(node.op in REDUCTIONS for node in topological(s.value for s in statements))
    return (reducing if reduces else elementwise).make_plan(spec, statements)


def derived(spec: Spec) -> Op:
    """The op of a spec that was made from another. Raises `SpecError` where it has no kernel."""
    plan = plan_of(spec)
    if isinstance(plan, Elementwise | Reduction) and not plan.loads:
        raise Mistake("it reads nothing: what it gives does not depend on anything")
    return Op(spec, spec.read.statements, Reference(()), plan)


def gemm_plan(products: tuple[Product, ...], epilogue: Op) -> Gemm:
    try:
        return Gemm(products, epilogue, tile_of(products, epilogue.spec, epilogue.statements))
    except Mistake as mistake:
        return Gemm(products, epilogue, mistake)
