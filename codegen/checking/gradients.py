"""Compares the gradients of one call with the gradients of its reference in float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from codegen.autodiff.backward import Derived
from codegen.checking import draw
from codegen.checking.agreement import BrokenReference, Disagreement, same
from codegen.checking.bounds.records import FAST
from codegen.checking.bounds.twins import stored
from codegen.checking.draw import Case, walking_far
from codegen.checking.expected import demand_shapes, of_reference, shapes_of_outputs
from codegen.checking.rounding import UNIT, rounded_apart
from codegen.graph.nodes import DTYPES, nodes_of
from codegen.plan.op import attention_in, products_in
from codegen.runtime.compiled.platform import on_gpu
from codegen.runtime.ops.op import AnyOp


def with_slopes(op: AnyOp) -> set[str]:
    """The outputs that floats reach otherwise than through comparisons, as a share of elements where a condition holds."""
    varying: set[int] = set()
    for node in nodes_of(op.statements):
        if node.kind == "float" and (node.op in ("input", "param") or any(id(a) in varying for a in node.args)):
            varying.add(id(node))
    return {s.name for s in op.statements if id(s.value) in varying}


def check_gradient_case(op: AnyOp, implementation: str | None, case: Case) -> None:
    """Check one call's vjp: all gradients, and where there is a frozen backward, the gradients of arrays that rows do not share."""
    _check_gradients(op, implementation, case, constant=())
    if isinstance(op.backward, Derived) and op.backward.frozen is not None:
        _check_gradients(op, implementation, case, constant=op.backward.shared)


def _check_gradients(op: AnyOp, implementation: str | None, case: Case, constant: Collection[str]) -> None:
    """Compare the gradients of all inputs but the `constant` ones."""
    with jax.enable_x64(True), walking_far(implementation, case):
        given = gradient_call(op, replace(case, scale=1.0))
        own = {name: x for name, x in given.own.items() if name not in constant}
        got = given.pulled(lambda values: op(**values, implementation=implementation))(own, given.cotangents)
    rounding = _Rounding.of(given, implementation)
    for name, x in own.items():
        a, b = np.asarray(got[name], np.float64), given.expected[name]
        if any(plan.condition is not None for plan in attention_in(op.plan)):
            b = np.where(np.isnan(b), a, b)  # of a row that sees nothing, which skipped tiles leave out
        beyond = np.abs(b) > float(jnp.finfo(x.dtype).max)
        b = np.where(beyond, np.asarray(stored(b, x.dtype.name), np.float64), b)
        size = np.where(beyond & np.isinf(b), 0, np.abs(b))  # a stored infinity has no allowed error
        for allowed in rounding.allowances(given, name, size):
            wrong = difference(a, b, allowed)
            if not wrong:
                break
        else:
            raise Disagreement(f"{op.spec.op} ({implementation}): the gradient of {name!r} {wrong}; {case}")


@dataclass(frozen=True)
class _Rounding:
    """The rounding errors within a call's gradients, as parts of the largest element."""

    kept: float  # of values that are saved or multiplied in fewer bits
    summed: float  # of sums in a narrow type, in units of its epsilon
    tf32: bool  # whether tensor cores multiply float32 as TF32
    multiplies: bool  # whether there are products

    @classmethod
    def of(cls, given: GradientCall, implementation: str | None) -> _Rounding:
        case, products = given.case, products_in(given.op.plan)
        factors = [x for p in products for x in (p.a, *([] if p.widened else [p.b]))]
        dtypes = given.kept + [case.types.dtype(x) for x in factors]  # of the products' gradients too
        kept = max((2 * float(jnp.finfo(jnp.dtype(d)).eps) for d in dtypes if DTYPES[d].kind == "float"), default=0.0)
        tf32 = bool(products) and (on_gpu() or implementation == "interpret") and given.op.spec.math != "precise"
        if tf32:
            # Tensor cores multiply float32 as TF32: the error of a sum of n products is about sqrt(n) times that of one
            terms = max(math.prod(case.axes.shape(p.axes)) for p in products)
            kept = max(kept, 2.0**-11 * max(4.0, terms**0.5))
        summed = 0.0
        if products and not on_gpu() and jax.__version_info__ >= (0, 11):
            # From this version on, XLA on a CPU may sum its products of two narrow types in that type
            rows = [tuple(x for x in p.a.axes if x not in p.b.axes) for p in products]
            summed = max(math.prod(case.axes.shape(own)) for own in rows) ** 0.5 / 4
        return cls(kept, summed, tf32, bool(products))

    def allowances(self, given: GradientCall, name: str, size: np.ndarray) -> Iterator[np.ndarray]:
        """The allowed errors of a gradient whose elements have this `size`: first what costs nothing to compute, then more and more
        terms that are measured in similar calls."""
        info: Any = jnp.finfo(given.own[name].dtype)
        eps, tiny = max(2.0**-16, float(info.eps)), max(1e-30, float(info.smallest_subnormal))
        largest = size.max(initial=0, where=np.isfinite(size))  # what is NaN says nothing about other elements
        outer = max((float(np.abs(c).max(initial=0)) for c in given.outer), default=0.0)
        allowed = eps * size + 2.0**-16 * largest + self.kept * max(largest, outer) + tiny
        if eps > 2.0**-16:
            allowed = allowed + self.summed * eps * largest
        yield allowed
        allowed = allowed + 4 * given.lost[name] + (2 * given.moved[name] if self.tf32 else 0)
        yield allowed
        allowed = allowed + 2 * given.resaved.get(name, 0.0)
        yield allowed
        if self.multiplies:
            yield allowed + 2 * given.rounded[name]


@functools.lru_cache(maxsize=8)  # tests of several implementations draw the same calls, one after the other
def gradient_call(op: AnyOp, case: Case) -> GradientCall:
    return GradientCall(op, case)


Values = dict[str, Any]


class GradientCall:
    """A call whose gradients are checked: its floating inputs and dynamic parameters (`own`), the outputs' cotangents
    (`outer`), and the reference's gradients in float64 (`expected`)."""

    def __init__(self, op: AnyOp, case: Case):
        self.op, self.case = op, case
        self.all: Values = draw.named(op, case)
        self.key, operands = op.bind((), self.all)
        self.operands: Values = dict(zip(op.operand_names(self.key), operands, strict=True))
        self.own: Values = {name: x for name, x in self.operands.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        shapes = jax.eval_shape(lambda xs: self.outputs(lambda values: op(**values), xs), self.own)
        self.random = np.random.default_rng(case.seed)
        self.cotangents = tuple(self.random.standard_normal(o.shape).astype(o.dtype) for o in shapes)
        self.wide = {name: np.asarray(x, np.float64) for name, x in self.own.items()}
        self.outer = [np.asarray(c, np.float64) for c in self.cotangents]
        with jax.default_device(jax.devices("cpu")[0]):
            self.exact = self.pulled(self.reference)
            made = self.exact(self.wide, tuple(self.outer))
        self.expected = {name: np.asarray(x, np.float64) for name, x in made.items()}

    def outputs(self, run: Callable[[Values], Any], own: Values) -> tuple[Any, ...]:
        """The floating outputs of `run` for these floating arguments."""
        outputs = run(self.all | own)
        outputs = tuple(outputs) if isinstance(outputs, tuple) else (outputs,)
        kinds = [DTYPES[self.case.types.dtype(a)].kind for a in self.op.spec.outputs]
        return tuple(o for o, kind in zip(outputs, kinds, strict=True) if kind == "float")

    def reference(self, values: Values) -> tuple[Any, ...]:
        op = self.op
        fixed = {name: jax.device_put(np.asarray(x)) for name, x in self.operands.items() if name not in self.own}
        given = tuple((values if name in self.own else fixed)[name] for name in self.operands)
        shapes, empty = shapes_of_outputs(op, self.case.axes)
        if empty:
            return tuple(jnp.zeros(shape, "float64") for shape in shapes)
        with of_reference(op, self.case.axes):
            results = [jnp.asarray(y) for y in op.evaluate_reference(self.key, given, "float64")]
            counts = [array.name not in with_slopes(op) for array in op.spec.outputs]
            floating = [jnp.issubdtype(y.dtype, jnp.floating) for y in results]
            results = [y.astype("float64") if c and f else y for y, c, f in zip(results, counts, floating, strict=True)]
            for y, array in zip(results, op.spec.outputs, strict=True):
                if jnp.issubdtype(y.dtype, jnp.floating) and y.dtype != jnp.float64:
                    rounds = y.dtype == jnp.dtype(self.case.types.dtype(array)) != jnp.float32
                    hint = "leave out its last cast, since results are rounded to the types of their outputs"
                    hint = hint if rounds else "it must compute in its inputs' dtype, such as `x.dtype`"
                    message = f"its reference gives {array.name} in {y.dtype} where its inputs are float64"
                    raise BrokenReference(f"{op.spec.op}: {message}: {hint}")
            demand_shapes(op, results, shapes)
            return tuple(jnp.broadcast_to(y, shape) for y, shape in zip(results, shapes, strict=True))

    def pulled(self, run: Callable[[Values], Any]) -> Callable[[Values, tuple[Any, ...]], Values]:
        """The gradients of `run` as a function of the floating arguments and the cotangents."""
        return jax.jit(lambda own, cotangents: jax.vjp(lambda xs: self.outputs(run, xs), own)[1](cotangents)[0])

    @functools.cached_property
    def lost(self) -> dict[str, float]:
        """The largest error, over similar calls, from rounding every operation of the reference's own backward as in float32.
        Under `math: fast`, functions have the errors of that."""
        return self.apart(8, rounded_apart(self.exact, functions=FAST if self.op.spec.math == "fast" else UNIT))

    @functools.cached_property
    def moved(self) -> dict[str, float]:
        """The largest change of the exact gradients, over similar calls, where factors are rounded to TF32's 10 bits."""
        factors = self.op.multiplied

        def apart(near: dict[str, np.ndarray]) -> tuple[Values, Values]:
            rounded = {name: _tf32(x) if name in factors else x for name, x in near.items()}
            outer = tuple(map(jnp.asarray, self.outer))
            return self.exact(near, outer), self.exact(rounded, outer)

        return self.worst_of(4, apart)

    @functools.cached_property
    def resaved(self) -> dict[str, float]:
        """The largest change of the gradients, over four calls of the generated backward's jnp form, where rounding moves the
        numbers that the forward saves. Each number moves by up to a unit of its type, since one of its type cannot move by less, and
        half of the change is taken."""
        key = replace(self.key, implementation="xla")
        kernel, names = self.op.backward_for(key), self.op.operand_names(self.key)
        operands = tuple(jnp.asarray(x) for x in self.operands.values())
        if kernel is None or kernel.way(key, [name in self.own for name in names]) != "backward":
            return {}
        outputs, saved = kernel.saved(
            key, lambda *_: tuple(jax.tree.leaves(self.op(**self.all, implementation="xla"))), operands
        )
        floating, outer = [jnp.issubdtype(y.dtype, jnp.floating) for y in outputs], iter(self.cotangents)
        pulled = [
            jnp.asarray(next(outer)) if is_float else np.zeros(y.shape, jax.dtypes.float0)
            for y, is_float in zip(outputs, floating, strict=True)
        ]

        def gradients(saved: Values) -> Values:
            left_out = dict.fromkeys(a.name for a in self.op.spec.inputs)
            found = kernel.pull(key, left_out | self.operands | saved, tuple(pulled))
            return {
                n: np.asarray(x, np.float64)
                for n, x in zip(names, found, strict=True)
                if n in self.own and x is not None
            }

        exact, worst = gradients(saved), dict.fromkeys(self.own, 0.0)
        for _ in range(4):
            for name, x in gradients({n: self.nearby(x) for n, x in saved.items()}).items():
                change = np.abs(x - exact[name]) / 2
                worst[name] = max(worst[name], float(np.max(change, initial=0, where=np.isfinite(change))))
        return worst

    def nearby(self, x: jax.Array) -> jax.Array:
        """Each number moved by up to a unit of its type."""
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        unit = float(jnp.finfo(x.dtype).eps)
        return jnp.asarray(np.asarray(x, np.float64) * (1 + unit * self.random.uniform(-1, 1, x.shape)), x.dtype)

    @functools.cached_property
    def rounded(self) -> dict[str, float]:
        """The largest change of the exact gradients, over similar calls, where products are rounded to their saved type."""
        units = [float(jnp.finfo(jnp.dtype(dtype)).eps) / 2 for dtype in self.kept if DTYPES[dtype].kind == "float"]
        return self.apart(4, rounded_apart(self.exact, products=max(units, default=UNIT)))

    @property
    def kept(self) -> list[str]:
        """The dtypes of the arrays that the forward saves, other than inputs."""
        derived = self.op.backward
        if not isinstance(derived, Derived):
            return []
        names = dict.fromkeys((*derived.how.saved, *(acc for acc, _ in derived.products)))
        return [self.case.types.dtype(derived.how.spec.array(name)) for name in names]

    def apart(self, calls: int, rounded: Callable[..., Values]) -> dict[str, float]:
        """The largest difference between the exact gradients and `rounded`, over this number of similar calls."""

        def both(near: dict[str, np.ndarray]) -> tuple[Values, Values]:
            outer = tuple(map(jnp.asarray, self.outer))
            return rounded(int(self.random.integers(2**31)), near, outer), self.exact(near, outer)

        return self.worst_of(calls, both)

    def worst_of(self, calls: int, apart: Callable[[dict[str, np.ndarray]], tuple[Values, Values]]) -> dict[str, float]:
        """The largest difference between two computations of each gradient, over this number of similar calls."""
        worst = dict.fromkeys(self.own, 0.0)
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            for _ in range(calls):
                near = {n: x * (1 + 2.0**-12 * self.random.standard_normal(x.shape)) for n, x in self.wide.items()}
                rough, exact = apart(near)
                for name in worst:
                    error = np.abs(np.asarray(rough[name], np.float64) - exact[name])
                    worst[name] = max(worst[name], float(np.max(error, initial=0, where=~np.isnan(error))))
        return worst


def _tf32(x: np.ndarray) -> np.ndarray:
    """Rounded to 10 bits after the point."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.round(mantissa * 2.0**11) / 2.0**11, exponent)


def difference(a: np.ndarray, b: np.ndarray, allowed: np.ndarray) -> str:
    """How a gradient differs from the reference's by more than is allowed, in words; "" where it does not."""
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        apart = np.abs(a - b)
    wrong = ~((apart <= allowed) | same(a, b))
    if not np.any(wrong):
        return ""
    alone = np.isnan(a) != np.isnan(b)
    if np.any(alone):
        place = tuple(int(i) for i in np.argwhere(alone)[0])
        where = f" at [{', '.join(map(str, place))}]" if place else ""
        share = f"one of the two is NaN in {np.count_nonzero(alone)} of {a.size} elements"
        return f"is {a[place]:.3g}{where}, but the reference's is {b[place]:.3g} ({share})"
    with np.errstate(divide="ignore"):  # where nothing is allowed
        return f"is off by {float(np.max(apart[wrong] / allowed[wrong])):.3g} times what is allowed"
