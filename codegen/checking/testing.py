"""Property tests of a generated op: every implementation against the spec's reference.

The expected value is the reference in float64, stored as the op stores its results. The allowed interval around it is
what float32 arithmetic may do to the chain (`errorbound.py`), rounded to the output's type.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen import extras
from codegen.autodiff.backward import Derived
from codegen.checking import draw
from codegen.checking.agreement import BrokenReference, Disagreement, Report, compare, same
from codegen.checking.draw import Case
from codegen.checking.errorbound import FAST, Analysis, Bound, Terms, stored
from codegen.checking.rounding import UNIT, rounded_apart
from codegen.errors import Mistake
from codegen.graph.nodes import DTYPES, reaching
from codegen.plan.access import Access, access_key
from codegen.plan.limits import lacks
from codegen.plan.walking import in_parts
from codegen.runtime.call import arguments, views
from codegen.runtime.call.arguments import Axes, Types, all_types
from codegen.runtime.compiled import interpreted
from codegen.runtime.compiled.platform import on_gpu
from codegen.runtime.ops.gemm_op import GemmOp
from codegen.runtime.ops.op import Op
from codegen.runtime.xla.products import product
from codegen.spec.spec import Spec

with extras.needed("test"):
    import hypothesis

IMPLEMENTATIONS: tuple[str, ...] = ("xla", "cute") if on_gpu() else ("xla", "interpret")
# Calls a test, beside one of every dtype: fewer of ops that reduce, nearly each of which has a row length, so a kernel to
# compile, of its own, and of those that contract, which take long to compile
MORE = int(os.environ.get("CODEGEN_EXAMPLES", "12" if on_gpu() else "0"))
SHARES = {"elementwise": 1.0, "gemm": 0.5}


def covering(spec: Spec) -> list[Types]:
    """Bindings of type variables in which each variable has each of its dtypes."""
    bound = list(all_types(spec))
    left = {pair for types in bound for pair in types.variables}
    found: list[Types] = []
    while left or not found:
        found.append(max(bound, key=lambda types: len(left & set(types.variables))))
        left -= set(found[-1].variables)
    return found


def one_of(op: Op) -> Types:
    """One of the bindings that cover an op's dtypes, another for other ops."""
    bound = covering(op.spec)
    return bound[zlib.crc32(op.spec.op.encode()) % len(bound)]


def each_call(op: Op, more: int, check: Callable[[Case], None], **drawn: Any) -> None:
    """Check a call with each binding that covers the op's dtypes, or where no more are asked for one of them. Its number decides
    the call: the same every time whatever else is drawn, and of the same types and extents for the op and for its gradient,
    which then share kernels; now and then one of an empty array beside it. Then `more` calls of any."""
    for place, types in enumerate(covering(op.spec)):
        if not MORE and types != one_of(op):
            continue
        seed = zlib.crc32(f"{op.spec.op} {place}".encode())
        for empty in (False, True) if seed % 16 == 0 else (False,):
            # Hypothesis begins with the simplest call, whose kernel takes as long to compile as another
            _draw(op, 2, seed, check, 1, types=(types,), empty=empty, **drawn)
    if more:
        _draw(op, more, None, check, **drawn)


def _draw(op: Op, count: int, seed: int | None, check: Callable[[Case], None], skipped: int = 0, **drawn: Any) -> None:
    """Check calls that Hypothesis draws, the same every time without a seed, but for the first ones."""
    made = 0
    broken: list[BrokenReference] = []  # what says nothing of the call: no smaller one is looked for
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
            except BrokenReference as error:
                if not failed:  # else Hypothesis looks for a smaller call that fails as the first one did
                    broken.append(error)
            except Exception:
                failed.append(case)
                raise

    (property_of if seed is None else hypothesis.seed(seed)(property_of))()
    if broken:
        raise broken[0]
    if made <= skipped:
        raise AssertionError(f"{op.spec.op}: no call was drawn")


@functools.cache
def cpu_options() -> dict[str, str]:
    """XLA hands large reductions on the CPU to YNNPACK, whose max and min drop NaN (jaxlib 0.10.2): it is not to, where
    there is such an option."""
    options = {"xla_cpu_experimental_ynn_fusion_type": ""}
    try:
        with jax.default_device(jax.devices("cpu")[0]):
            jax.jit(lambda x: x, compiler_options=options)(0.0)
    except jax.errors.JaxRuntimeError:
        return {}
    return options


def computed_once(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)` on the CPU, compiled in little time rather than for speed."""
    with jax.default_device(jax.devices("cpu")[0]):
        options = {**cpu_options(), "xla_backend_optimization_level": "0"}
        return jax.jit(function, compiler_options=options)(*args)


def check_op(
    op: Op,
    implementation: str,
    examples: int | None = None,
    seed: int | None = None,
    report: Report | None = None,
    run: Callable[..., Any] | None = None,
) -> Report:
    """Run random calls of an op and compare each element with the reference: so many of them, or one of every dtype and
    some more; without a GPU, where most are a kernel to compile and to interpret, one of one dtype.

    `seed` varies the calls (they are the same every time without one); `run` replaces the op's own call. Raises
    `Disagreement` with the smallest failing call.
    """
    made = report or Report()

    def check(case: Case) -> None:
        check_case(op, implementation, case, made, run)

    if examples is not None:
        _draw(op, examples, seed, check)
    else:
        each_call(op, round(MORE * SHARES.get(op.plan.kind, 2 / 3)), check)
    made.demand_decisions(op.spec.op)
    return made


def check_case(
    op: Op, implementation: str, case: Case, report: Report | None = None, run: Callable[..., Any] | None = None
) -> None:
    """One call against the reference; where a GEMM's kernel for Hopper is interpreted, that for other architectures too."""
    report = report or Report()
    report.examples += 1
    arch = interpreted.architecture()
    _check_case(op, implementation, arch, case, report, run)
    if implementation == "interpret" and isinstance(op, GemmOp):
        other = next(a for a in ("sm_80", "sm_89") if not lacks(op, case.types, a))
        with contextlib.suppress(Mistake):
            if op.launch_for(case.types, case.axes).config.startswith("sm_90a"):
                _check_case(op, implementation, other, case, report, run)


def _check_case(
    op: Op, implementation: str, arch: str, case: Case, report: Report, run: Callable[..., Any] | None
) -> None:
    with jax.enable_x64(True), interpreted.interpreting_for(arch), _walking_far(implementation, case):
        made, args, keywords, expected, narrow, bounds = _expected(op, case)
        call = functools.partial(run or op, **keywords, implementation=implementation)
        if implementation == "xla" and op.plan.extremes and not on_gpu():
            call = jax.jit(call, compiler_options=cpu_options())
        outputs = call(*args)
        outputs = tuple(outputs) if len(op.spec.outputs) > 1 else (outputs,)
    how = f"{implementation}, {arch}" if implementation == "interpret" else implementation
    for i, array in enumerate(op.spec.outputs):
        got = np.asarray(outputs[i])
        shape, dtype = views.user_shape(array, case.axes), case.types.dtype(array)
        name = f"{op.spec.op} ({how}): {array.name}"
        if got.shape != shape or got.dtype != jnp.dtype(dtype):
            raise Disagreement(f"{name} is {got.dtype}{got.shape}, but {array} is {dtype}{shape}; {case}")
        compare(name, array.name, dtype, got, expected[i], narrow[i], bounds[i], case, report, made)


def _walking_far(implementation: str | None, case: Case) -> contextlib.AbstractContextManager[None]:
    """In every other interpreted call one group of blocks takes all rows, so that these walk far down few of them."""
    return in_parts(1) if implementation == "interpret" and case.seed % 2 else contextlib.nullcontext()


@functools.lru_cache(maxsize=24)  # tests of several implementations draw the same calls, one after the other
def _expected(op: Op, case: Case) -> tuple:
    """A call: its arrays by name, its arguments and keywords; the reference's values in float64 and in float32, and the
    bounds. `compare` looks at the float32 values only where float32 overflows on the way: elsewhere they are not computed."""
    made = draw.arrays(op, case)
    args, keywords = draw.operands(op, case, made)
    bounds = error_bounds(op, case, args, keywords)
    expected = narrow = reference_values(op, args, keywords, "float64")
    if any(np.any(bound.overflow) for bound in bounds):
        narrow = reference_values(op, args, keywords, "float32")
    return made, args, keywords, expected, narrow, bounds


@contextlib.contextmanager
def _of_reference(op: Op, axes: Axes) -> Iterator[None]:
    """What a spec's reference raises is a disagreement too."""
    try:
        yield
    except BrokenReference:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        empty = next((name for name, extent in axes.extents.items() if extent == 0), "..." if 0 in axes.rows else "")
        where = f" (in a call whose {empty} is 0: a reference is called with such extents too)" if empty else ""
        raise BrokenReference(f"{op.spec.op}: its reference fails: {type(error).__name__}: {reason}{where}") from error


def reference_values(op: Op, args: list, keywords: dict[str, Any], precision: str) -> tuple[np.ndarray, ...]:
    """The reference's values as it computes them, on the CPU, broadcast to the outputs' shapes."""
    with jax.default_device(jax.devices("cpu")[0]):
        args = [None if a is None else jax.device_put(np.asarray(a)) for a in args]
        key, operands = op.bind(tuple(args), keywords)
        axes = arguments.bind_axes(op.spec, op.arrays(key, operands))
        evaluate = functools.partial(op.evaluate_reference, key, precision=precision)
        with _of_reference(op, axes):
            values = computed_once(lambda *xs: evaluate(xs), *operands)
            return tuple(
                np.broadcast_to(np.asarray(v), views.user_shape(a, axes))
                for v, a in zip(values, op.spec.outputs, strict=True)
            )


def exact_products(op: GemmOp, arrays: dict[str, np.ndarray], axes: Axes, gpu: bool) -> dict[str, Terms]:
    """The products as they are without any rounding; what tensor cores may lose, which on a `gpu` is more."""
    made = {}
    for p in op.plan.products:
        factors = [np.asarray(arrays[x.name]) for x in (p.a, p.b)]
        wide = "int64" if all(DTYPES[x.dtype.name].kind == "int" for x in factors) else "float64"

        def terms(x: jax.Array, y: jax.Array, p=p, wide=wide) -> tuple[jax.Array, ...]:
            a, b = (v.astype(wide) for v in (x, y))
            sizes = [jnp.where(jnp.isfinite(v), abs(v), 0) for v in (a, b)]
            value, size, of_a, of_b = (
                product(p, u, v, axes, wide)
                for u, v in ((a, b), sizes, (sizes[0], jnp.ones_like(b)), (jnp.ones_like(a), sizes[1]))
            )
            return value, size, of_a + of_b

        with jax.default_device(jax.devices("cpu")[0]):
            value, size, spread = (np.asarray(x) for x in jax.jit(terms)(*factors))
        count, lost = axes.extents[p.axis], 0.0
        if op.spec.math != "precise" and any(x.dtype == np.float32 for x in factors):
            lost = 2.0**-9  # both factors rounded, or cut, to TF32
        elif gpu and all(x.dtype.itemsize == 1 for x in factors) and wide == "float64":
            # Hopper adds 32 products of float8 and what came before at the largest one's exponent, of which 13 bits
            # after the point stay (DeepSeek-V3's report, section 3.5.2; arXiv 2412.19437)
            lost = (count + count // 32 + 1) * 2.0**-13
        made[p.acc.name] = Terms(value, size, spread, count, lost)
    return made


def error_bounds(op: Op, case: Case, args: list, keywords: dict[str, Any]) -> list[Bound]:
    """For each output, the chain's own value and its bound."""
    spec = op.spec
    arrays = {a.name: np.asarray(x) for a, x in zip(spec.inputs, args, strict=True) if x is not None}
    products: dict[str, Terms] = {}
    if isinstance(op, GemmOp):
        products, op = exact_products(op, arrays, case.axes, on_gpu()), op.epilogue
        arrays |= {name: terms.value for name, terms in products.items()}
    plan = op.plan

    def read(accesses: Sequence[Access], arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        values = computed_once(
            lambda x: [views.jnp_value(plan, a, x, case.axes, "float64", "int64") for a in accesses], arrays
        )
        return [np.asarray(value) for value in values]

    leaves: dict[tuple, Any] = dict(
        zip((access_key(plan, a) for a in plan.loads), read(plan.loads, arrays), strict=True)
    )
    wide = any(case.types.dtype(a) == "float64" for a in spec.inputs if a.name not in case.absent)
    widths = {a.name: DTYPES[case.types.dtype(a)] for a in spec.outputs}
    wide_outputs = {name for name, d in widths.items() if d.kind != "float" or d.size >= 4}
    reached = reaching(op.statements, widths)
    narrow = {i for i, names in reached.items() if spec.math == "fast" or not names & wide_outputs}
    narrow = set() if spec.math == "precise" else narrow
    analysis = Analysis("float64" if wide else "float32", spec.math == "fast", narrow, dict(case.types.variables),
                        plan.order, len(case.axes.rows))  # fmt: skip
    leaves |= {("param", name): np.asarray(value) for name, value in case.params}
    for access in plan.loads:
        if access.array is None or op.spec.kind(access.array) != "float":
            continue
        name = access.array.name
        if name in case.absent:
            leaves[access_key(plan, access)] = analysis.default(leaves[access_key(plan, access)])
        if name in products:
            terms = products[name].of(*(read([access], {name: x})[0] for x in products[name].arrays))
            leaves[access_key(plan, access)] = analysis.contraction(terms)
    bounds = analysis.statements(op.statements, leaves)
    tolerance = {name: float(x) for name, x in spec.tolerance if name != "why"}
    results = []
    for array in spec.outputs:
        own, shape = array.axes, case.axes.shape(array.axes)
        whole = []
        for pick in ("value", "error", "overflow", "doubt"):
            parts = {
                part: np.broadcast_to(views.lose(getattr(bound, pick), own, plan.order, len(case.axes.rows)), shape)
                for (name, part), bound in bounds.items()
                if name == array.name
            }
            with jax.default_device(jax.devices("cpu")[0]):
                whole.append(np.asarray(views.join_parts(array, parts, case.axes)))
        value, error, overflow, doubt = whole
        if tolerance:
            finite = np.where(np.isfinite(value), np.abs(value), 0)
            error = error + tolerance.get("atol", 0.0) + tolerance.get("rtol", 0.0) * finite
        results.append(Bound(value, error, overflow, doubt))
    return results


# Gradients


def check_gradient(
    op: Op, implementation: str | None = None, examples: int | None = None, seed: int | None = None
) -> None:
    """The op's vjp against the vjp of its reference in float64, on smooth random calls: so many of them, or one of a dtype,
    of every one on a GPU, and some more.

    The backward runs in float32 over values of magnitude about one: an error of 2**-16 of the largest gradient allows for
    some hundred roundings, and a rounding to the input's type comes on top, and that of an output which the backward takes,
    to its own type: its error meets the cotangents, as in y * (dy - sum(dy * y)). Where larger terms cancel to a small gradient
    (that of a norm of one column, say), the largest gradient says nothing of these roundings: there, four times what
    they come to in the reference's own backward is allowed, the most of eight calls nearby, for one may be lucky. So is, where
    tensor cores multiply, twice what the exact gradient moves by where its factors are rounded as they round them, and where
    products are kept in fewer bits, twice what it moves by where they are rounded so: a sine's slope may turn on that.
    """

    def check(case: Case) -> None:
        check_gradient_case(op, implementation, case)

    if examples is not None:
        _draw(op, examples, seed, check, specials=False)
        return
    each_call(op, MORE // 4, check, specials=False)


def check_gradient_case(op: Op, implementation: str | None, case: Case) -> None:
    """One call's vjp: the gradients of everything, and where there is another backward, those of what rows do not share."""
    _check_gradients(op, implementation, case, frozen=False)
    if isinstance(op.backward, Derived) and op.backward.frozen is not None:
        _check_gradients(op, implementation, case, frozen=True)


def _check_gradients(op: Op, implementation: str | None, case: Case, frozen: bool) -> None:
    with jax.enable_x64(True), _walking_far(implementation, case):
        given = gradient_call(op, replace(case, scale=1.0), frozen)
        got = given.pulled(lambda values: op(**values, implementation=implementation))(given.own, given.cotangents)
    dtypes = given.kept
    if isinstance(op, GemmOp):  # the products' gradients
        dtypes = dtypes + [case.types.dtype(a) for a in op.spec.inputs if a.name in op.multiplied]
    kept = max((2 * float(jnp.finfo(jnp.dtype(d)).eps) for d in dtypes if DTYPES[d].kind == "float"), default=0.0)
    tf32 = isinstance(op, GemmOp) and (on_gpu() or implementation == "interpret") and op.spec.math != "precise"
    if tf32:
        # Tensor cores multiply float32 as TF32: a sum of n products is off by about the root of n times what one loses
        terms = max(case.axes.extents[p.axis] for p in op.plan.products)
        kept = max(kept, 2.0**-11 * max(4.0, terms**0.5))
    summed = 0.0
    if isinstance(op, GemmOp) and not on_gpu() and jax.__version_info__ >= (0, 11):
        # XLA's own products, on a CPU, of two narrow types: from then on it may add them up in that type
        summed = math.prod(case.axes.shape(op.plan.tile.rows)) ** 0.5 / 4
    outer = max((float(np.abs(c).max(initial=0)) for c in given.outer), default=0.0)
    for name, own in given.own.items():
        a, b = np.asarray(got[name], np.float64), given.expected[name]
        info: Any = jnp.finfo(own.dtype)
        beyond = np.abs(b) > float(info.max)
        b = np.where(beyond, np.asarray(stored(b, own.dtype.name), np.float64), b)
        eps, tiny = max(2.0**-16, float(info.eps)), max(1e-30, float(info.smallest_subnormal))
        size = np.where(beyond & np.isinf(b), 0, np.abs(b))  # nothing is allowed beside a stored infinity
        largest = size.max(initial=0)
        allowed = eps * size + 2.0**-16 * largest + kept * max(largest, outer) + tiny
        if eps > 2.0**-16:
            allowed = allowed + summed * eps * largest
        if a.shape != b.shape or not _within(a, b, allowed):
            allowed = allowed + 4 * given.lost[name] + (2 * given.moved[name] if tf32 else 0)
        if isinstance(op, GemmOp) and (a.shape != b.shape or not _within(a, b, allowed)):
            allowed = allowed + 2 * given.rounded[name]
        if a.shape != b.shape or not _within(a, b, allowed):
            worst = float(np.max(np.abs(a - b) / allowed)) if a.shape == b.shape else float("inf")
            raise Disagreement(
                f"{op.spec.op} ({implementation}): the gradient of {name!r} is off by {worst:.3g} times what is allowed; {case}"
            )


@functools.lru_cache(maxsize=8)  # tests of several implementations draw the same calls, one after the other
def gradient_call(op: Op, case: Case, frozen: bool) -> GradientCall:
    return GradientCall(op, case, frozen)


Values = dict[str, Any]


class GradientCall:
    """A call whose gradients are checked: its floating inputs and dynamic parameters (`own`), only those that rows do not
    share if it is `frozen`, the outputs' cotangents, the gradients `expected` of the reference in float64."""

    def __init__(self, op: Op, case: Case, frozen: bool):
        self.op, self.case = op, case
        self.all: Values = draw.named(op, case)
        self.key, operands = op.bind((), self.all)
        self.operands: Values = dict(zip(op.operand_names(self.key), operands, strict=True))
        shared = op.backward.shared if frozen and isinstance(op.backward, Derived) else ()
        self.own: Values = {
            name: x for name, x in self.operands.items() if jnp.issubdtype(x.dtype, jnp.floating) and name not in shared
        }
        shapes = jax.eval_shape(lambda xs: self.outputs(lambda values: op(**values), xs), self.own)
        self.random = np.random.default_rng(case.seed)
        self.cotangents = tuple(jnp.asarray(self.random.standard_normal(o.shape)).astype(o.dtype) for o in shapes)
        self.wide = {name: np.asarray(x, np.float64) for name, x in self.own.items()}
        self.outer = [np.asarray(c, np.float64) for c in self.cotangents]
        with jax.default_device(jax.devices("cpu")[0]):
            self.exact = self.pulled(self.reference)
            made = self.exact(jax.tree.map(jnp.asarray, self.wide), tuple(map(jnp.asarray, self.outer)))
        self.expected = {name: np.asarray(x, np.float64) for name, x in made.items()}

    def outputs(self, run: Callable[[Values], Any], own: Values) -> tuple:
        """The floating outputs of `run` with these floating arguments."""
        outputs = run(self.all | own)
        outputs = tuple(outputs) if isinstance(outputs, tuple) else (outputs,)
        kinds = [DTYPES[self.case.types.dtype(a)].kind for a in self.op.spec.outputs]
        return tuple(o for o, kind in zip(outputs, kinds, strict=True) if kind == "float")

    def reference(self, values: Values) -> tuple:
        op = self.op
        fixed = {name: jax.device_put(np.asarray(x)) for name, x in self.operands.items() if name not in self.own}
        given = tuple((values if name in self.own else fixed)[name] for name in self.operands)
        shapes = [views.user_shape(a, self.case.axes) for a in op.spec.outputs]
        with _of_reference(op, self.case.axes):
            results = [jnp.asarray(y) for y in op.evaluate_reference(self.key, given, "float64")]
            for y, array in zip(results, op.spec.outputs, strict=True):
                if jnp.issubdtype(y.dtype, jnp.floating) and y.dtype != jnp.float64:
                    raise BrokenReference(
                        f"{op.spec.op}: its reference gives {array.name} in {y.dtype} where its inputs are float64: "
                        "it must compute in its inputs' dtype, such as `x.dtype`"
                    )
            return tuple(jnp.broadcast_to(y, shape) for y, shape in zip(results, shapes, strict=True))

    def pulled(self, run: Callable[[Values], Any]) -> Callable[[Values, tuple], Values]:
        """The gradients of `run` as a function of the floating arguments and the cotangents."""
        return jax.jit(lambda own, cotangents: jax.vjp(lambda xs: self.outputs(run, xs), own)[1](cotangents)[0])

    @functools.cached_property
    def lost(self) -> dict[str, float]:
        """The largest error that rounding every operation of the reference's own backward as in float32 makes at calls nearby,
        functions as `math: fast` has them where it is that."""
        return self.apart(8, rounded_apart(self.exact, functions=FAST if self.op.spec.math == "fast" else UNIT))

    @functools.cached_property
    def moved(self) -> dict[str, float]:
        """The largest change of the exact gradients where factors are rounded to TF32's 10 bits, at calls nearby."""
        factors = self.op.multiplied

        def apart(near: dict[str, np.ndarray]) -> tuple[Values, Values]:
            rounded = {name: _tf32(x) if name in factors else x for name, x in near.items()}
            outer = tuple(map(jnp.asarray, self.outer))
            return self.exact(near, outer), self.exact(rounded, outer)

        return self.worst_of(4, apart)

    @functools.cached_property
    def rounded(self) -> dict[str, float]:
        """The largest change of the exact gradients where products are rounded to the type that they are kept in, at calls
        nearby."""
        units = [float(jnp.finfo(jnp.dtype(dtype)).eps) / 2 for dtype in self.kept if DTYPES[dtype].kind == "float"]
        return self.apart(4, rounded_apart(self.exact, products=max(units, default=UNIT)))

    @property
    def kept(self) -> list[str]:
        """The dtypes of what the forward keeps beside inputs."""
        derived = self.op.backward
        if not isinstance(derived, Derived):
            return []
        names = dict.fromkeys((*derived.how.saved, *(acc for acc, _ in derived.products)))
        return [self.case.types.dtype(derived.how.spec.array(name)) for name in names]

    def apart(self, calls: int, rounded: Callable[..., Values]) -> dict[str, float]:
        """How far the exact gradients lie from `rounded` at most, at so many calls nearby."""

        def both(near: dict[str, np.ndarray]) -> tuple[Values, Values]:
            outer = tuple(map(jnp.asarray, self.outer))
            return rounded(int(self.random.integers(2**31)), near, outer), self.exact(near, outer)

        return self.worst_of(calls, both)

    def worst_of(self, calls: int, apart: Callable[[dict[str, np.ndarray]], tuple[Values, Values]]) -> dict[str, float]:
        """How far apart two ways to compute each gradient are at most, at so many calls nearby."""
        worst = dict.fromkeys(self.own, 0.0)
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            for _ in range(calls):
                near = {n: x * (1 + 2.0**-12 * self.random.standard_normal(x.shape)) for n, x in self.wide.items()}
                rough, exact = apart(near)
                for name in worst:
                    error = np.abs(np.asarray(rough[name], np.float64) - exact[name])
                    worst[name] = max(worst[name], float(np.max(error, initial=0)))
        return worst


def _tf32(x: np.ndarray) -> np.ndarray:
    """Rounded to 10 bits after the point."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.round(mantissa * 2.0**11) / 2.0**11, exponent)


def _within(a: np.ndarray, b: np.ndarray, allowed: np.ndarray) -> bool:
    with np.errstate(invalid="ignore"):  # infinities less infinities
        return bool(np.all((np.abs(a - b) <= allowed) | same(a, b)))
