"""A generated op that contracts, as a JAX function.

Its products and its epilogue are one kernel where that is fast (`fused`). Otherwise XLA multiplies, and the epilogue is a
separate kernel, like any op. The gradients of the products are again products by XLA, with the results of the epilogue's
generated backward.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from codegen.errors import UserError
from codegen.graph.nodes import DTYPES, Leaf, Statement
from codegen.language import sizes
from codegen.plan.gemms.joint import Member
from codegen.plan.gemms.tiles import Product, Tile
from codegen.plan.launches import AnyLaunch, GemmLaunch, Tuned
from codegen.plan.op import Gemm, contracted_axes
from codegen.plan.op import Op as PlannedOp
from codegen.runtime.call import arguments, typed, views
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.call.cast import store
from codegen.runtime.call.described import Key
from codegen.runtime.compiled import interpreted
from codegen.runtime.compiled.launcher_call import LauncherCall, Tensor
from codegen.runtime.compiled.platform import arch_alone, choose
from codegen.runtime.ops.derived import DerivedOp
from codegen.runtime.ops.op import AnyOp, Op, P, R
from codegen.runtime.sharding import tile_folds
from codegen.runtime.sharding.shards import Split
from codegen.runtime.xla.loaded import copied
from codegen.runtime.xla.products import product
from codegen.spec.spec import Array, Spec
from codegen.tuning import choosing


class GemmOp(Op[P, R]):
    """A generated op that contracts."""

    @functools.cached_property
    def epilogue(self) -> Epilogue:
        """The epilogue as an op."""
        return Epilogue(self, "epilogue", self._parts)

    @property
    def own_kernels(self) -> tuple[AnyOp, ...]:
        """Its own kernel, where it has one, and its epilogue's."""
        return (self, self.epilogue) if isinstance(self.plan.tile, Tile) else (self.epilogue,)

    @functools.cached_property
    def multiplied(self) -> frozenset[str]:
        return frozenset(x.name for p in self.plan.products for x in (p.a, *p.inputs))

    def arrays(self, key: Key, operands: Sequence[Any]) -> dict[str, Any]:
        """The present inputs, by name, and the sizes that the epilogue reads of axes that it has no array with."""
        found = super().arrays(key, operands)
        if held := [held for p in self.plan.products for held in p.sizes]:
            axes = arguments.bind_axes(self.spec, found)
            found |= {name: jnp.asarray(math.prod(axes.shape((axis,))), jnp.int32) for name, axis in held}
        return found

    # The products, then the epilogue

    def products(self, key: Key, arrays: dict[str, Any], axes: Axes, dtype: str | None = None) -> dict[str, jax.Array]:
        """The products, in `dtype` or by default in the type of their sums."""
        exact, arch = self.spec.math == "precise", arch_alone()
        return {
            p.acc.name: product(
                p, arrays[p.a.name], self._b(key, p, arrays, axes), axes, dtype or p.acc.dtype, exact, arch
            )
            for p in self.plan.products
        }

    def epilogue_call(self, key: Key, operands: Sequence[Any]) -> tuple[Key, tuple[Any, ...]]:
        """The epilogue's call, with the products computed."""
        arrays = self.arrays(key, operands)
        axes = arguments.bind_axes(self.spec, arrays)
        spec = self.epilogue.spec
        there = self.products(key, arrays, axes) | arrays
        present = tuple(a.name for a in spec.inputs if a.name in there)
        names = {p.name for p in spec.params}
        static = tuple((name, value) for name, value in key.static if name in names)
        params = self.parameters(key, operands)
        dynamic = [params[p.name] for p in spec.dynamic_params]
        return Key(key.implementation, key.types, present, static), (*(there[name] for name in present), *dynamic)

    def on_shard(
        self, key: Key, kernel: Callable[..., tuple[Any, ...]], operands: tuple[Any, ...], split: Split
    ) -> tuple[Any, ...]:
        tile, contracted = self.plan.tile, contracted_axes(self.plan)
        if split.across(contracted) or split.across(tile.undivided):
            return self.after_products(key, operands, split)
        return self.finished(key, operands, kernel(*operands, split=split), split)

    def finished(self, key: Key, operands: tuple[Any, ...], results: tuple[Any, ...], split: Split) -> tuple[Any, ...]:
        return tile_folds.finished(self, key, operands, results, split)

    def after_products(self, key: Key, operands: tuple[Any, ...], split: Split) -> tuple[Any, ...]:
        """On one shard: XLA's matmul, the sum over the mesh axes that shard its contracted axis, then the epilogue."""
        own, values = self.epilogue_call(key, operands)
        over = {p.acc.name: split.across(p.axes) for p in self.plan.products}
        over |= {name: split.across((axis,)) for p in self.plan.products for name, axis in p.sizes}
        names = [*own.present, *("" for _ in values[len(own.present) :])]
        values = tuple(jax.lax.psum(x, over[n]) if over.get(n) else x for n, x in zip(names, values, strict=True))
        kernel = functools.partial(self.epilogue._run_cute, own, ())
        return (*self.epilogue.on_shard(own, kernel, values, split), *self.more_outputs(own, values, split))

    @functools.cached_property
    def stored_sums(self) -> tuple[str, ...]:
        """The product that each output is, if they are nothing but products, each another, stored: XLA's matmul then writes them."""
        values = {s.name: s.value.attr for s in self.plan.epilogue.statements if s.part is None}
        found = [values.get(a.name) for a in self.spec.outputs]
        names = tuple(leaf.name for leaf in found if isinstance(leaf, Leaf) and leaf.part is None)
        alone = len(names) == len(self.spec.outputs) and len(set(names)) == len(names)
        return names if alone and set(names) <= set(self.plan.accs) else ()

    def stored(self, narrow: bool, key: Key, *operands: Any) -> tuple[Any, ...]:
        """The outputs that are products. With `narrow`, the matmul rounds its float32 sums to the output's type as it stores them, as
        it does on a GPU; a CPU may add in that type."""
        arrays = self.arrays(key, operands)
        axes = arguments.bind_axes(self.spec, arrays)
        made = []
        for name, output in zip(self.stored_sums, self.spec.outputs, strict=True):
            p, dtype = next(p for p in self.plan.products if p.acc.name == name), key.types.dtype(output)
            p = replace(p, acc=replace(p.acc, dims=output.dims))  # whose axes may have another order, or be joined
            direct = narrow and DTYPES[dtype].kind == "float" and DTYPES[dtype].size > 1 and p.acc.dtype == "float32"
            exact = self.spec.math == "precise"
            factors, kept = (arrays[p.a.name], self._b(key, p, arrays, axes)), dtype if direct else p.acc.dtype
            found = product(p, *factors, axes, kept, exact, arch_alone())
            made.append(store(found, dtype))
        return tuple(made)

    def composed(self, key: Key, *operands: Any) -> tuple[Any, ...]:
        """XLA's matmul, then the epilogue's kernel."""
        if self.stored_sums and key.implementation is None:
            ways = [functools.partial(self.stored, narrow, key) for narrow in (True, False)]
            return tuple(choose(lambda donated: ways[0], ways[1], *operands))
        own, values = self.epilogue_call(key, operands)
        return (*self.epilogue._functions(own)(*values), *self.more_outputs(own, values))

    def jnp_form(self, key: Key, *operands: Any) -> tuple[Any, ...]:
        own, values = self.epilogue_call(replace(key, implementation="xla"), operands)
        return (*self.epilogue.jnp_form(own, *values), *self.more_outputs(own, values))

    def more_outputs(self, key: Key, operands: tuple[Any, ...], split: Split | None = None) -> tuple[jax.Array, ...]:
        """The outputs that its epilogue does not compute, from the epilogue's operands, on one shard where arrays are `split`."""
        del key, operands, split
        return ()

    # One kernel

    def launch_for(self, types: Types, axes: Axes, arch: str | None = None) -> GemmLaunch:
        """The launch of the single kernel for these types and sizes. Raises `UserError` where there is none."""

        def find(sizes: Mapping[str, int]) -> Tuned | None:
            return choosing.found(self.tuning, self.spec.op, own, types.variables, sizes)

        own = arch or interpreted.architecture()
        known = all(isinstance(n, int) for n in (*axes.rows, *axes.extents.values()))
        return self.plan.in_one_kernel(types, _counter(axes), own, *([find] if known else []))

    def member(self, types: Types, axes: Axes, arch: str) -> Member:
        """The facts that decide whether the single kernel is launched with others. Raises `UserError` where there is no single
        kernel."""
        return self.plan.member(types, _counter(axes), arch)

    def default_launch(self, types: Types, axes: Axes) -> AnyLaunch:
        """The launch of the single kernel where it is faster; else the epilogue's."""
        with contextlib.suppress(UserError):
            how = self.launch_for(types, axes)
            if how.fast:
                return how
        return self.epilogue.default_launch(types, axes)

    def left_to_xla(self, types: Types, axes: Axes) -> str:
        """Why its epilogue, where that is a separate kernel, is left to XLA, or ""."""
        one_kernel = isinstance(self.default_launch(types, axes), GemmLaunch)
        return "" if one_kernel else self.epilogue.left_to_xla(types, axes)

    def _kernel_call(
        self, key: Key, operands: tuple[Any, ...], arch: str | None = None, split: Split | None = None,
        how: GemmLaunch | None = None,
    ) -> LauncherCall:  # fmt: skip
        """The call of the launcher: the factors, the epilogue's operands, its outputs, and where arrays are `split` the starts,
        int32, of this shard along sharded axes; for the call's own launch, or `how`."""
        spec, tile = self.plan.epilogue.spec, self.plan.tile
        firsts = {} if split is None else {axis: split.first(axis) for axis in tile.placed if split.across((axis,))}
        arrays = self.arrays(key, operands)
        axes = arguments.bind_axes(self.spec, arrays)
        how = how or self.launch_for(key.types, axes, arch)
        products = self.plan.products
        a = products[0].a
        bs = [p.b if how.copied else p.inputs[0] for p in products]
        factors, scales = [a, *bs], [scale for p in products for scale in p.inputs[1:]]
        if how.copied:
            arrays |= {p.b.name: self._b(key, p, arrays, axes) for p in products}
        own = [a for a in spec.inputs if a.name not in self.plan.accs]

        dynamic = spec.dynamic_params
        kinds = [p.dtype(self.compute(key)) for p in dynamic]
        scalars = [Tensor((1,), kind, (1,), DTYPES[kind].size) for kind in (*kinds, *("int32" for _ in tile.placed))]
        operand = functools.partial(self._operand, key, axes, how)
        inputs = (
            *(self._factor(key, axes, how, f, f is a) for f in factors),
            *(self._scales(key, axes, s) for s in scales),
            *map(operand, own),
            *scalars,
        )
        shapes = zip(tile_folds.shapes(tile, axes, how), tile.folds, strict=True)
        parts = [Tensor(shape, fold.dtype, (1, 1, 1), 4) for shape, fold in shapes]
        outputs = (*map(operand, tile.outputs), *parts)
        params = self.parameters(key, operands)
        static = {p.constant: params[p.name] for p in spec.params if p.static}
        return LauncherCall(
            typed.launcher(self._launch, tuple(t.dtype for t in (*inputs, *outputs))),
            (
                *(arrays[a.name] for a in (*factors, *scales)),
                *(arrays.get(a.name) for a in own),
                *(params[p.name] for p in dynamic),
                *(firsts.get(axis) for axis in tile.placed),
            ),
            inputs,
            outputs,
            (*(views.user_shape(a, axes) for a in tile.outputs), *(t.shape for t in parts)),
            how,
            {**static, **self.passed_types(key.types), **how.constants},
        )

    def _factor(self, key: Key, axes: Axes, how: GemmLaunch, array: Array, is_a: bool) -> Tensor:
        """A factor as the kernel sees it: batch axes are one mode, and so are rows."""
        tile = self.plan.tile
        shape: list[Any] = [math.prod(axes.shape(tile.batch))] if tile.batch else []
        shape += [math.prod(axes.shape(tile.rows))] if is_a else []
        several = not is_a and len(tile.columns) > 1
        if several:  # columns along several axes are one mode, with the halves of each segment
            parts = [2] if tile.paired == "interleaved" else []
            wide = math.prod(axes.shape(tile.columns)) * (2 if tile.paired == "segments" else 1)
            (deep,) = axes.shape(self.plan.products[0].axes)
            shape += [wide, *parts, deep] if tile.b_is_nk else [deep, wide, *parts]
        for dim in () if several else array.dims:
            if not set(dim.names) & {*tile.batch, *tile.rows}:
                extent = [axes.extents[dim.names[0]]]
                parts = [] if dim.parts is None else [dim.parts]
                shape += [*parts, *extent] if dim.parts_first else [*extent, *parts]
        divisors = (*(1 for _ in shape[:-1]), views.power_of_two(shape[-1], 16))
        if not is_a and not tile.b_is_nk and tile.paired == "interleaved":
            divisors = (*divisors[:-2], views.power_of_two(shape[-2], 16), 2)
        return Tensor(tuple(shape), key.types.dtype(self.plan.products[0].a if how.copied else array), divisors, 256)

    def _scales(self, key: Key, axes: Axes, array: Array) -> Tensor:
        """The scales of a narrower b as the kernel sees them: (blocks, N)."""
        shape = axes.shape(array.axes)
        return Tensor(shape, key.types.dtype(array), (1, views.power_of_two(shape[-1], 16)), 16)

    def _operand(self, key: Key, axes: Axes, how: GemmLaunch, array: Array) -> Tensor:
        """An array of the epilogue as the kernel sees it."""
        plan = self.plan.tile.plan
        shape, dtype = views.kernel_shape(plan, array, axes), key.types.dtype(array)
        return Tensor(shape, dtype, views.divisibility(plan, array, how), views.alignment(plan, array, dtype))

    def _b(self, key: Key, found: Product, arrays: dict[str, Any], axes: Axes) -> Any:
        """The b of a product, in the product's type."""
        return arrays[found.b.name] if found.loaded is None else copied(found, arrays, axes, key.types.dtype(found.a))

    @property
    def _emitted(self) -> tuple[Spec, tuple[Statement, ...], frozenset[str]]:
        tile = self.plan.tile
        return tile.spec, tile.statements, tile.in_registers

    def example_call(self, types: Types, ragged: bool, defaults: bool, arch: str) -> LauncherCall:
        """A call of large matrices, to compile its kernel: with odd sizes where `ragged`, and without optional inputs where
        `defaults`. Raises `UserError` where no kernel takes these types."""
        tile = self.plan.tile
        extents = dict.fromkeys(self.spec.axes, 4097 if ragged else 4096) | dict.fromkeys(tile.batch, 2)
        if len(tile.columns) > 1:
            extents |= {tile.column: 128 // (2 if tile.paired else 1)} | dict.fromkeys(tile.columns[:-1], 32 + ragged)
        arrays = {
            a.name: jax.ShapeDtypeStruct(sizes.array_shape(a, extents), types.dtype(a))
            for a in self.spec.inputs if a.default is None or not defaults
        }  # fmt: skip
        chosen = {name: dtype for name, dtype in types.variables if name in self.spec.free_types and defaults}
        static = {p.name: p.example for p in self.spec.params if p.static}
        key, operands = self.bind((), {**arrays, **static, **chosen, "implementation": "cute"})
        return self._kernel_call(key, operands, arch)

    def _tensor_names(self) -> list[str]:
        spec, products = self.plan.epilogue.spec, self.plan.products
        own = [a.name for a in spec.inputs if a.name not in self.plan.accs]
        dynamic = [p.name for p in spec.dynamic_params]
        tile = self.plan.tile
        firsts = [f"first of {axis}" for axis in tile.placed]
        outputs = (*(a.name for a in tile.outputs), *(f"{f.name} parts" for f in tile.folds))
        factors = [products[0].a, *(p.inputs[0] for p in products), *(s for p in products for s in p.inputs[1:])]
        return [*(x.name for x in factors), *own, *dynamic, *firsts, *outputs]

    def _fuses(self, key: Key, operands: Sequence[Any]) -> bool:
        """Whether a call is one kernel: that is possible, and it was requested by name or is faster."""
        axes = arguments.bind_axes(self.spec, self.arrays(key, operands))
        try:
            how = self.launch_for(key.types, axes)
        except UserError:
            return False
        return key.implementation in ("cute", "interpret") or how.fast

    def _run_interpret(self, key: Key, *operands: Any, parts: bool = False, **given: Any) -> tuple[Any, ...]:
        if self._fuses(key, operands):
            results = super()._run_interpret(key, *operands, parts=True, **given)
            axes = arguments.bind_axes(self.spec, self.arrays(key, operands))
            return results if parts else self.finished(key, operands, results, Split(axes))
        own, values = self.epilogue_call(key, operands)
        return (*self.epilogue._run_interpret(own, *values, parts=parts), *self.more_outputs(own, values))

    def _run(self, key: Key) -> Callable[..., tuple[Any, ...]]:
        return fused_or(self, key, self._fuses, functools.partial(self.composed, key))


def fused_or(
    op: AnyOp, key: Key, fuses: Callable[[Key, Sequence[Any]], bool], apart: Callable[..., tuple[Any, ...]]
) -> Callable[..., tuple[Any, ...]]:
    """A call as one kernel if it `fuses`, else its parts `apart`."""
    cute = op._on_gpu(key)

    def run(*operands: Any) -> Any:
        if key.implementation == "xla" or not fuses(key, operands):
            return apart(*operands)
        if key.implementation == "interpret":
            return op._run_interpret(key, *operands)
        return choose(cute, apart, *operands)

    return run


def _counter(axes: Axes) -> Callable[[tuple[str, ...]], int]:
    """The number of elements along some axes."""
    return lambda names: views.stands_for(math.prod(axes.shape(names)))


class Epilogue(DerivedOp):
    """The epilogue of an op."""

    @functools.cached_property
    def planned(self) -> PlannedOp:
        plan = self.origin.plan
        assert isinstance(plan, Gemm)
        return plan.epilogue
