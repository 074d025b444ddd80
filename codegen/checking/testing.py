"""Property tests of a generated op: every implementation against the spec's reference.

The expected value is the reference in float64, rounded as the op stores its results. The allowed interval around it is the
error bound of the chain in float32 arithmetic (`bounds`), rounded to the output's type.
"""

from __future__ import annotations

import contextlib
import functools
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen import extras
from codegen.checking import draw
from codegen.checking.agreement import BrokenReference, Disagreement, EmptyCall, Report, Result, compare
from codegen.checking.bounds.records import BY_EXP
from codegen.checking.draw import Case, walking_far
from codegen.checking.expected import cpu_options, error_bounds, reference_values
from codegen.checking.gradients import check_gradient_case
from codegen.errors import UserError
from codegen.graph.nodes import Leaf, nodes_of, topological
from codegen.graph.ops import REDUCTIONS, TAKES
from codegen.plan.limits import lacks
from codegen.runtime.call import views
from codegen.runtime.call.arguments import Types
from codegen.runtime.compiled import interpreted
from codegen.runtime.compiled.platform import on_gpu
from codegen.runtime.ops.gemm_op import GemmOp
from codegen.runtime.ops.op import AnyOp
from codegen.shared import Tiles

with extras.needed("test"):
    import hypothesis

CALL = "in a call of"  # the beginning of a note of an exception
IMPLEMENTATIONS: tuple[str, ...] = ("xla", "cute") if on_gpu() else ("xla", "interpret")
# Calls of a test, in addition to one of every dtype. There are fewer for ops that reduce, where nearly each call has its own row
# length and so its own kernel to compile, and for ops that contract, which take long to compile
MORE = int(os.environ.get("CODEGEN_EXAMPLES", "12" if on_gpu() else "0"))
# Whether four in five ops have rows of whole vectors in such calls: kernels for other rows take several times as long to compile
WHOLE_ROWS = os.environ.get("CODEGEN_WHOLE_ROWS") == "1"
SHARES = {"elementwise": 1.0, "gemm": 0.5}


def covering(op: AnyOp, implementation: str | None, gradients: bool = False) -> list[Types]:
    """Bindings of type variables in which each variable takes each of the dtypes that such an implementation runs at least once."""
    bound = draw.types_of_calls(op, implementation, gradients)
    left = {pair for types in bound for pair in types.variables}
    found: list[Types] = []
    while left or (bound and not found):
        found.append(max(bound, key=lambda types: len(left & set(types.variables))))
        left -= set(found[-1].variables)
    return found


def one_of(op: AnyOp, bound: list[Types]) -> Types:
    """One of the bindings that cover an op's dtypes. Different ops get different ones."""
    return bound[zlib.crc32(op.spec.op.encode()) % len(bound)]


def has_whole_rows(op: AnyOp, place: int = 0) -> bool:
    """Whether the calls with a binding have rows of whole vectors, where these are to be four in five."""
    return WHOLE_ROWS and zlib.crc32(f"{op.spec.op} {op.spec.chain.value} {place}".encode()) % 5 > 0


def each_call(op: AnyOp, implementation: str | None, more: int, check: Callable[[Case], None], **drawn: Any) -> None:
    """Check a call with each binding that covers the op's dtypes, or with only one of them where `MORE` is 0; sometimes also a call
    with an empty array. Then check `more` calls of any binding. The number of a binding decides its call, so an op and its
    gradient have calls of the same types and sizes, and share kernels."""
    gradients = drawn.get("gradients", False)
    bound = covering(op, implementation, gradients)
    for place, types in enumerate(bound):
        if not MORE and types != one_of(op, bound):
            continue
        seed = zlib.crc32(f"{op.spec.op} {place}".encode())
        for empty in (False, True) if seed % 16 == 0 else (False,):
            # Hypothesis begins with the simplest call, whose kernel takes as long to compile as any other
            _draw(op, 2, seed, check, 1, types=(types,), empty=empty, whole=has_whole_rows(op, place), **drawn)
    if more and bound:
        _draw(op, more, None, check, types=draw.types_of_calls(op, implementation, gradients), **drawn)


def _draw(
    op: AnyOp, count: int, seed: int | None, check: Callable[[Case], None], skipped: int = 0, **drawn: Any
) -> None:
    """Check calls that Hypothesis draws, except the first `skipped`, and except empty ones that the reference cannot compute. Without a
    seed they are the same every time."""
    made = 0
    empty: list[EmptyCall] = []
    broken: list[BrokenReference] = []  # not an error of the call: no smaller one is searched
    failed: list[Case] = []

    @hypothesis.settings(
        max_examples=count, deadline=None, database=None, derandomize=seed is None, print_blob=False,
        report_multiple_bugs=False, suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(draw.cases(op, **drawn))
    def property_of(case: Case) -> None:
        nonlocal made
        made += 1
        if made > skipped and not broken:
            try:
                check(case)
            except EmptyCall as error:
                empty.append(error)
            except BrokenReference as error:
                if not failed:  # else Hypothesis searches a smaller call that fails as the first one did
                    broken.append(error)
            except Exception as error:
                failed.append(case)
                if not isinstance(error, Disagreement):
                    error.add_note(f"{CALL} {case}")
                raise

    (property_of if seed is None else hypothesis.seed(seed)(property_of))()
    if broken:
        raise broken[0]
    if empty and made - len(empty) <= skipped and drawn.get("empty") is None:
        _draw(op, 2, seed, check, 1, **{**drawn, "empty": False})
    if made <= skipped:
        raise AssertionError(f"{op.spec.op}: no call was drawn")


def check_op(
    op: AnyOp,
    implementation: str,
    examples: int | None = None,
    seed: int | None = None,
    report: Report | None = None,
    run: Callable[..., Any] | None = None,
) -> Report:
    """Run random calls of an op and compare each element with the reference in float64.

    `implementation` is one of `IMPLEMENTATIONS`. `examples` is the number of calls; by default one of every dtype and some
    more, or without a GPU, where most calls compile and interpret a kernel, one of one dtype. `seed` varies the calls; by
    default they are the same every time. `run` replaces the op's own call. There is no call where no kernel of attention takes
    the op's types. Raises `Disagreement` with the smallest failing call.
    """
    made = report or Report()

    def check(case: Case) -> None:
        check_case(op, implementation, case, made, run)

    if examples is not None:
        types = draw.types_of_calls(op, implementation)
        if not types:
            return made
        _draw(op, examples, seed, check, types=types, whole=has_whole_rows(op))
        if not made.elements:  # the simplest calls are often empty
            _draw(op, 2, seed, check, 1, types=types, empty=False, whole=has_whole_rows(op))
    else:
        each_call(op, implementation, round(MORE * SHARES.get(op.plan.kind, 2 / 3)), check)
    made.demand_decisions(op.spec.op)
    return made


def check_case(
    op: AnyOp, implementation: str, case: Case, report: Report | None = None, run: Callable[..., Any] | None = None
) -> None:
    """Check one call against the reference. Where a GEMM's kernel for Hopper is interpreted, so is the kernel for others. A product
    that XLA stores is also checked as calls get it by default."""
    report = report or Report()
    report.examples += 1
    arch = interpreted.architecture()
    _check_case(op, implementation, arch, case, report, run)
    if implementation == "xla" and isinstance(op, GemmOp) and op.stored_sums:
        _check_case(op, None, arch, case, report, run)
    if implementation == "interpret" and isinstance(op, GemmOp):
        other = next(a for a in ("sm_80", "sm_89") if not lacks(op, case.types, a))
        with contextlib.suppress(UserError):
            if isinstance(op.launch_for(case.types, case.axes).tiles, Tiles):
                _check_case(op, implementation, other, case, report, run)


def _check_case(
    op: AnyOp, implementation: str | None, arch: str, case: Case, report: Report, run: Callable[..., Any] | None
) -> None:
    with jax.enable_x64(True), interpreted.interpreting_for(arch), walking_far(implementation, case):
        used = {n.op for n in nodes_of(op.spec.read.statements)}
        by_xla = implementation in (None, "xla") and any(name in BY_EXP for name in used)
        made, args, keywords, expected, narrow, bounds = _expected(op, case, by_xla)
        call = functools.partial(run or op, **keywords, implementation=implementation)
        joined = used & REDUCTIONS.keys() and used & {"maximum", "minimum"}  # XLA on a CPU may join them
        if implementation == "xla" and (op.plan.extremes or joined) and not on_gpu():
            call = jax.jit(call, compiler_options=cpu_options())
        outputs = call(*args)
        outputs = tuple(outputs) if len(op.spec.outputs) > 1 else (outputs,)
    how = f"{implementation}, {arch}" if implementation == "interpret" else implementation or "by default"
    for i, array in enumerate(op.spec.outputs):
        got = np.asarray(outputs[i])
        shape, dtype = views.user_shape(array, case.axes), case.types.dtype(array)
        name = f"{op.spec.op} ({how}): {array.name}"
        if got.shape != shape or got.dtype != jnp.dtype(dtype):
            raise Disagreement(f"{name} is {got.dtype}{got.shape}, but {array} is {dtype}{shape}; {case}")
        try:
            compare(name, Result(array.name, dtype, got, expected[i], narrow[i], bounds[i]), case, report, made)
        except Disagreement as error:
            raise Disagreement(f"{error}{_past_axes(op, case, made)}") from None


def _past_axes(op: AnyOp, case: Case, made: Mapping[str, np.ndarray]) -> str:
    """A line about indices that were drawn past the ends of their axis, where references differ; or nothing."""
    for node in nodes_of(op.spec.read.statements):
        axis, places = node.attr, node.args[1:2] if node.op in TAKES else ()
        if node.op == "eq" and (position := next((a for a in node.args if a.op == "index"), None)) is not None:
            axis, places = position.attr, node.args
        leaves = [n.attr for n in topological(places) if n.kind == "int" and isinstance(n.attr, Leaf)]
        for name in (leaf.name for leaf in leaves if leaf.name not in dict(op.spec.domain)):
            if np.any((made[name] < 0) | (made[name] >= case.axes.extents[str(axis)])):
                hint = f"for indices within the axis, write `domain: {{{name}: index({axis})}}`"
                return f"\n  {name} was drawn past the ends of {axis}; {hint}"
    return ""


@functools.lru_cache(maxsize=24)  # tests of several implementations draw the same calls, one after the other
def _expected(op: AnyOp, case: Case, by_xla: bool) -> tuple[Any, ...]:
    """A call: its arrays by name, its arguments and keywords, the reference's values in float64 and in float32, and the bounds.
    The float32 values are computed only where float32 overflows on the way, since `compare` needs them only there."""
    made = draw.arrays(op, case)
    args, keywords = draw.operands(op, case, made)
    bounds = error_bounds(op, case, args, by_xla)
    expected = narrow = reference_values(op, args, keywords, "float64")
    if any(np.any(bound.overflow) for bound in bounds):
        narrow = reference_values(op, args, keywords, "float32")
    return made, args, keywords, expected, narrow, bounds


# Gradients


def check_gradient(
    op: AnyOp, implementation: str | None = None, examples: int | None = None, seed: int | None = None
) -> None:
    """Compare the op's vjp with the vjp of its reference in float64, on smooth random calls.

    `examples` is the number of calls; by default one dtype, on a GPU every dtype, and some more. Raises `Disagreement`.

    The backward runs in float32 over values of magnitude about one. An error of 2**-16 of the largest gradient allows for some
    hundred roundings. In addition, the gradient is rounded to the input's type. An output that the backward reads is rounded to its
    own type, and that error multiplies the cotangents, as in y * (dy - sum(dy * y)). Where larger terms cancel to a small gradient
    (a norm of one column, say), the largest gradient is no measure of these roundings. There, four times the rounding error of the
    reference's own backward is allowed: the largest of eight similar calls, since a single one may be small by chance. Where tensor
    cores multiply, twice the change of the exact gradient is allowed that their rounding of the factors causes. Where the factors of
    what is saved are large, as of sum(do * o) in attention, twice the change is allowed that its
    rounding causes: the weights are rounded too. Where products are
    saved in fewer bits, twice the change is allowed that this rounding causes: it may change a sine's slope.
    """

    def check(case: Case) -> None:
        check_gradient_case(op, implementation, case)

    if examples is not None:
        if types := draw.types_of_calls(op, implementation, gradients=True):
            _draw(op, examples, seed, check, types=types, specials=False, whole=has_whole_rows(op), gradients=True)
        return
    each_call(op, implementation, MORE // 4, check, specials=False, gradients=True)
