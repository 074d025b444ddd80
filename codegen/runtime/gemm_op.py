"""A generated op that contracts, as a JAX function.

Its products and its epilogue are one kernel where that is fast (`fused`); else XLA multiplies, and the epilogue is a
kernel of its own, as any op is. The gradients of the products are products again, by XLA, of what the epilogue's
generated backward gives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from codegen import pipeline
from codegen.gemms import Gemm
from codegen.ir import DTYPES
from codegen.plan import access_key
from codegen.runtime import arguments, views
from codegen.runtime.arguments import Axes
from codegen.runtime.evaluate import evaluate
from codegen.runtime.op import Backward, Key, Op, P, R, _Derived
from codegen.runtime.products import product


class GemmOp(Op[P, R]):
    """A generated op that contracts."""

    def __init__(self, function: Callable[P, R], text: str, parts: dict[str, Any]):
        super().__init__(function, text, parts)
        self.epilogue = Epilogue(self, "epilogue", parts)

    def _backward_of(self, parts: dict[str, Any]) -> Backward:
        return GemmBackward(self, parts)

    @property
    def kernels(self) -> tuple[Op, ...]:
        """Those of its epilogue and of its gradient."""
        return (self.epilogue,) if self._backward is None else (self.epilogue, self._backward)

    @functools.cached_property
    def multiplied(self) -> frozenset[str]:
        return frozenset(x.name for p in self.plan.products for x in (p.a, p.b))

    # The products, then the epilogue

    def products(self, key: Key, arrays: dict[str, Any], axes: Axes, dtype: str | None = None) -> dict[str, jax.Array]:
        """The products, in `dtype` or in the type that they are summed in."""
        exact = self.spec.math == "precise"
        return {
            p.acc.name: product(p, arrays[p.a.name], arrays[p.b.name], axes, dtype or p.acc.dtype, exact)
            for p in self.plan.products
        }

    def products_and_sizes(
        self, arrays: dict[str, np.ndarray], axes: Axes
    ) -> tuple[dict[str, np.ndarray], dict[str, tuple[np.ndarray, int, bool]]]:
        """The products in float64 (in int64 of integers), and for each the sum of its terms' magnitudes, terms that are not
        finite left out, how many there are, and whether their factors may be rounded to TF32."""
        made, sizes = {}, {}
        with jax.default_device(jax.devices("cpu")[0]):
            for p in self.plan.products:
                factors = [np.asarray(arrays[x.name]) for x in (p.a, p.b)]
                whole = all(DTYPES[x.dtype.name].kind == "int" for x in factors)
                wide = "int64" if whole else "float64"
                exact = [jax.numpy.asarray(x.astype(wide)) for x in factors]
                made[p.acc.name] = np.asarray(product(p, exact[0], exact[1], axes, wide))
                finite = [jax.numpy.where(jax.numpy.isfinite(x), abs(x), 0) for x in exact]
                rounded = self.spec.math != "precise" and any(x.dtype == np.float32 for x in factors)
                size = np.asarray(product(p, finite[0], finite[1], axes, wide))
                sizes[p.acc.name] = size, axes.extents[p.axis], rounded
        return made, sizes

    def epilogue_call(self, key: Key, operands: Sequence[Any]) -> tuple[Key, tuple]:
        """The epilogue's call, its products made."""
        arrays = self._arrays(key, operands)
        axes = arguments.bind_axes(self.spec, arrays)
        spec = self.epilogue.spec
        there = self.products(key, arrays, axes) | arrays
        present = tuple(a.name for a in spec.inputs if a.name in there)
        names = {p.name for p in spec.params}
        static = tuple((name, value) for name, value in key.static if name in names)
        params = self.parameters(key, operands)
        dynamic = [params[p.name] for p in spec.params if not p.static]
        return Key(key.implementation, key.types, present, static), (*(there[name] for name in present), *dynamic)

    def composed(self, key: Key, *operands) -> tuple:
        """XLA's matmul, then the epilogue's kernel."""
        own, values = self.epilogue_call(key, operands)
        return self.epilogue._functions(own)(*values)

    def jnp_form(self, key: Key, *operands, sizes: Axes | None = None) -> tuple:
        own, values = self.epilogue_call(replace(key, implementation="xla"), operands)
        return self.epilogue.jnp_form(own, *values, sizes=sizes)

    def _run_interpret(self, key: Key, *operands, parts: bool = False) -> tuple:
        own, values = self.epilogue_call(key, operands)
        return self.epilogue._run_interpret(own, *values, parts=parts)

    def _run(self, key: Key) -> Callable[..., tuple]:
        return functools.partial(self.composed, key)


class Epilogue(_Derived):
    """What follows the products of an op."""

    @functools.cached_property
    def _op(self) -> pipeline.Op:
        plan = self.origin.plan
        assert isinstance(plan, Gemm)
        return plan.epilogue


class GemmBackward(Backward):
    """The generated backward of an op's epilogue, and the gradients of the products."""

    origin: GemmOp

    def __init__(self, forward: GemmOp, parts: dict[str, Any]):
        _Derived.__init__(self, forward, "backward", parts)
        self.forward = None

    def saved(self, key: Key, plain: Callable[..., tuple], operands: tuple) -> tuple[tuple, tuple]:
        """The op's outputs, and its operands with what else the backward takes of the call: outputs, products, tiles."""
        made: dict[str, Any] = {}
        derived, op = self.derived, self.origin
        if derived.forward is None:
            outputs = plain(*operands)
        else:
            own, values = op.epilogue_call(key, operands)
            outputs = op.epilogue._functions(own)(*values)
            made = self.kept(own, values)
        made |= dict(zip((a.name for a in op.spec.outputs), outputs, strict=True))
        wanted = [*derived.how.saved, *(name for _, name in derived.products)]
        return outputs, (operands, tuple(made[name] for name in wanted))

    def kept(self, key: Key, operands: tuple) -> dict[str, jax.Array]:
        """What the forward keeps besides its outputs, from the epilogue's operands."""
        op, forward = self.origin.epilogue, self.derived.forward
        assert forward is not None
        plan = forward.plan.epilogue.plan  # type: ignore[union-attr]
        arrays = op._arrays(key, operands)
        axes = arguments.bind_axes(op.spec, arrays)
        known = {a.name for a in op.spec.outputs}
        stores = [a for a in plan.stores if a.array is not None and a.array.name not in known]
        values = {(s.name, s.part): s.value for s in forward.statements}
        roots = [values[a.array.name, a.part] for a in stores if a.array is not None]
        leaves = {
            access_key(plan, a): views.jnp_value(plan, a, arrays, axes, "float32", op.spec.integer) for a in plan.loads
        }
        for name, value in op.parameters(key, operands).items():
            leaves["param", name] = jax.numpy.asarray(value)
        made = evaluate(roots, leaves, {}, "float32", op.spec.integer, dict(key.types.variables))
        found = views.stored(stores, made, plan.order, axes, key.types)
        return {array.name: value for array, value in found.items()}

    def pull(self, key: Key, residuals: tuple, cotangents: tuple) -> tuple:
        derived, op = self.derived, self.origin
        how = derived.how
        operands, kept = residuals
        arrays = op._arrays(key, operands)
        names = [*how.inputs, *(p.name for p in self._dynamic)]
        values = {name: (arrays | op.parameters(key, operands)).get(name) for name in names}
        values |= dict(zip([*how.saved, *(acc for acc, _ in derived.products)], kept, strict=True))
        gradients = self.gradients(key, values, cotangents)
        axes = arguments.bind_axes(op.spec, arrays)
        for p in op.plan.products:
            if (inner := gradients.pop(p.acc.name, None)) is None:
                continue
            for name, value in self.through(p, arrays, inner, axes).items():
                gradients[name] = gradients[name] + value if name in gradients else value
        return self.ordered(key, gradients)

    def through(self, p: Any, arrays: dict[str, Any], inner: jax.Array, axes: Axes) -> dict[str, jax.Array]:
        """The gradients of a product's operands, from that of the product."""
        exact = self.origin.spec.math == "precise"
        a, b = (jax.numpy.asarray(arrays[x.name]) for x in (p.a, p.b))
        own = [name for name, x in ((p.a.name, a), (p.b.name, b)) if DTYPES[x.dtype.name].kind == "float"]
        wide = {n: (x if x.dtype.itemsize > 1 else x.astype(inner.dtype)) for n, x in ((p.a.name, a), (p.b.name, b))}

        def of(given):
            full = wide | given
            return product(p, full[p.a.name], full[p.b.name], axes, inner.dtype.name, exact)

        (found,) = jax.vjp(of, {name: wide[name] for name in own})[1](inner)
        return {name: value.astype(arrays[name].dtype) for name, value in found.items()}
