"""A generated op as a JAX function.

One call: bind the arguments, then run a jitted function that depends only on what is compiled in (implementation, types,
which inputs are there, static params). `differentiable.py` makes it differentiable. Within that is

  platform choice    the CuTe kernel on CUDA, the jnp form elsewhere, also inside jit and under jax.export
  partitioning       the kernel runs on each device's shard (`partition.py`)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, ParamSpec, Self, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp

from codegen import pipeline
from codegen.autodiff import backward as backwards
from codegen.errors import UserError
from codegen.graph.nodes import DTYPES, Statement
from codegen.interpret import host
from codegen.plan.launches import AnyLaunch, Extents, Tuned
from codegen.plan.limits import lacks
from codegen.plan.op import Op as PlannedOp
from codegen.plan.planner import dtype_constant, planned_call, unheld_types
from codegen.runtime.call import arguments, typed, views
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.call.cast import store
from codegen.runtime.call.described import Implementation, Key
from codegen.runtime.compiled import interpreted
from codegen.runtime.compiled.launcher_call import LauncherCall, Tensor
from codegen.runtime.compiled.platform import choose, current_arch
from codegen.runtime.ops import aliases
from codegen.runtime.ops.differentiable import Gradient, differentiable
from codegen.runtime.sharding import partition, shards
from codegen.runtime.xla import by_position, scatter
from codegen.runtime.xla.evaluate import wide, widened
from codegen.spec.spec import Array, Spec
from codegen.tuning import choosing
from codegen.tuning.entries import entry_of

P = ParamSpec("P")
R = TypeVar("R")


class Op(Generic[P, R]):
    """A generated op: a function of JAX arrays, with its `spec`, `plan` and `reference`."""

    def __init__(
        self,
        function: Callable[P, R],
        content: dict[str, Any],
        parts: dict[str, Any],
        backward: Callable[..., Gradient],
    ):
        functools.update_wrapper(self, function)
        self._function, self._make_backward = function, backward
        self._parts = parts
        self._tuning: tuple[Tuned, ...] = tuple(map(entry_of, parts.get("tuning", ())))
        self._content, self._reference, self._result = content, parts["reference"], parts.get("result")
        self._begin(parts.get("launch"), parts.get("xla"))
        made = any(name.startswith("backward_") and name.endswith("_launch") for name in parts)
        self._backward: Gradient | None = backward(self, parts) if made else None

    def with_tuning(self, tuning: Sequence[Tuned]) -> Self:
        """The same op, and those generated with it, with other measured launches."""
        made = type(self)(self._function, self._content, self._parts, self._make_backward)
        made._tuning = tuple(tuning)
        made.__dict__["planned"] = self.planned
        return made

    def __reduce__(self) -> str:
        """Copying and unpickling return this op, which its module has under its name."""
        return self.__name__  # type: ignore[attr-defined]

    def _begin(self, launch: Callable[..., None] | None, xla: Callable[..., Any] | None) -> None:
        """Sets the attributes of every generated kernel: its launcher, its jnp form, and the functions behind its calls."""
        self._launch: Any = launch
        self._xla: Any = xla
        self._functions = functools.lru_cache(maxsize=None)(self._make)
        self._xla_extra = [] if xla is None else list(inspect.signature(xla).parameters)

    @functools.cached_property
    def planned(self) -> PlannedOp:
        """The op as read from its spec and planned."""
        return pipeline.read_op(f"specs/{self.__name__}.yaml", self._content)  # type: ignore[attr-defined]

    @property
    def spec(self) -> Spec:
        """The spec from which this op was generated."""
        return self.planned.spec

    @property
    def plan(self) -> Any:
        """The kernel's plan."""
        return self.planned.plan

    @property
    def tuning(self) -> tuple[Tuned, ...]:
        """The measured launches of the op and of those generated with it."""
        return self._tuning

    @property
    def own_kernels(self) -> tuple[AnyOp, ...]:
        """The `kernels` that a call without gradients may run."""
        return (self,)

    @property
    def kernels(self) -> tuple[AnyOp, ...]:
        """Its own kernels, and the ops generated for its gradient. The backward is the last; before it are the ops that run with it
        or replace it."""
        return (*self.own_kernels, *(self._backward.generated if self._backward is not None else ()))

    @property
    def backward(self) -> backwards.Derived | UserError:
        """The generated backward, or why there is none."""
        return backwards.backward_of(self.planned)

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The chain as a typed graph."""
        return self.planned.statements

    @property
    def refuses_gradients(self) -> bool:
        """Whether its spec says `grad: none`: to ask for a gradient is then an error."""
        return self.spec.grad == "none"

    @property
    def multiplied(self) -> frozenset[str]:
        """The inputs that are factors of a contraction."""
        return frozenset()

    def __repr__(self) -> str:
        return f"<codegen op {self.__name__}>"  # type: ignore[attr-defined]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The op's output, or the NamedTuple of its outputs, with the shapes and dtypes that the spec says. Arguments are those of the
        declaration. Raises TypeError for a wrong dtype, a missing or unknown argument, ValueError for a shape or size that does not
        fit, and where `implementation="cute"` has no GPU or no kernel."""
        key, operands = self.bind(args, kwargs)
        if any(isinstance(x, jax.ShapeDtypeStruct) for x in operands):
            hint = "for a jax.ShapeDtypeStruct, jax.eval_shape gives the results' types"
            raise TypeError(f"{self.spec.op} takes arrays; {hint}")
        traced = any(isinstance(x, jax.core.Tracer) for x in operands)
        if key.implementation == "interpret" and not traced and partition.explicit_shardings(operands) is None:
            return cast(R, self._named(self._run_interpret(key, *operands)))
        return cast(R, self._named(self._functions(key)(*operands)))

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """The spec's reference on the same arguments, with the shapes and dtypes of the op's results. Floats are computed in
        float32 (in float64 where an input is float64, or with `precision="float64"`) and rounded as the kernel rounds them.
        Raises TypeError or ValueError as a call of the op does."""
        precision = kwargs.pop("precision", None)
        key, operands = self.bind(args, kwargs)
        values = self.evaluate_reference(key, operands, precision)
        axes = arguments.bind_axes(self.spec, self.arrays(key, operands))
        outputs = []
        for array, value in zip(self.spec.outputs, values, strict=True):
            shape = views.user_shape(array, axes)
            outputs.append(store(jnp.broadcast_to(value, shape), key.types.dtype(array)))
        return self._named(tuple(outputs))

    def evaluate_reference(self, key: Key, operands: tuple[Any, ...], precision: str | None = None) -> tuple[Any, ...]:
        """The reference's values before they are rounded to the outputs' dtypes."""
        compute = precision or self.compute(key)
        given: dict[str, Any] = {}
        arrays = self.arrays(key, operands)
        for array in self.spec.inputs:
            value = arrays.get(array.name)
            if value is None:
                given[array.name] = array.default
            elif DTYPES[key.types.dtype(array)].kind == "float":
                given[array.name] = jnp.asarray(value).astype(compute)
            elif array.name in self.multiplied or DTYPES[key.types.dtype(array)].packed:
                given[array.name] = jnp.asarray(value).astype(jnp.int32)
            else:
                given[array.name] = jnp.asarray(value)
        given.update(key.static)
        for param, value in zip(self.spec.dynamic_params, operands[len(key.present) :], strict=True):
            given[param.name] = value.astype(compute) if param.kind == "float" else value
        result = widened(self.spec, self._reference, compute)(**given)
        return result if len(self.spec.outputs) > 1 else (result,)

    # Binding

    @functools.cached_property
    def _names(self) -> list[str]:
        names = [*(a.name for a in self.spec.inputs), *(p.name for p in self.spec.params)]
        return [*names, *self.spec.free_types, "implementation"]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Key, tuple[Any, ...]]:
        """The call's key, which is compiled in, and its arrays (present inputs, then dynamic params). Raises TypeError or ValueError
        for arguments that do not fit."""
        spec = self.spec
        given = arguments.bind_names(spec, self._names, args, kwargs)
        implementation = given.get("implementation")
        if implementation not in (None, "cute", "xla", "interpret"):
            raise ValueError(f"{spec.op}: implementation is 'cute', 'xla', 'interpret' or None, not {implementation!r}")
        arrays = arguments.bind_arrays(spec, given)
        types = arguments.bind_types(spec, arrays, {t: given[t] for t, _ in spec.types if t in given})
        axes = arguments.bind_axes(spec, arrays)
        views.check_tables(spec, self.plan, arrays, axes)
        arguments.refuse_empty(spec, self.plan, axes)
        static = []
        for param in spec.params:
            value = given.get(param.name, param.default)
            if value is None:
                raise TypeError(f"{spec.op} needs the {param.kind} parameter {param.name!r}")
            if param.static:
                static.append((param.name, arguments.static_value(spec, param, value)))
        if implementation is None and interpreted.chosen():
            implementation = "interpret"
        if implementation == "interpret":
            host.llvm_binding()  # reports a missing library here, not from within a running computation
        key = Key(cast(Implementation, implementation), types, tuple(arrays), tuple(static))
        dynamic = [
            arguments.dynamic_value(spec, p, given.get(p.name), p.dtype(self.compute(key)))
            for p in self.spec.dynamic_params
        ]
        return key, (*arrays.values(), *dynamic)

    def compute(self, key: Key) -> str:
        """The dtype in which floats are computed."""
        wide = any(key.types.dtype(a) == "float64" for a in self.spec.inputs if a.name in key.present)
        return "float64" if wide else "float32"

    def operand_names(self, key: Key) -> list[str]:
        """The names of a call's operands: present inputs, dynamic parameters."""
        return [*key.present, *(p.name for p in self.spec.dynamic_params)]

    def arrays(self, key: Key, operands: Sequence[Any]) -> dict[str, Any]:
        """The present inputs, by name."""
        return dict(zip(key.present, operands, strict=False))

    def parameters(self, key: Key, operands: Sequence[Any]) -> dict[str, Any]:
        """The values of the parameters, by name."""
        dynamic = zip(self.spec.dynamic_params, operands[len(key.present) :], strict=True)
        return {**dict(key.static), **{param.name: value for param, value in dynamic}}

    def _named(self, outputs: tuple[Any, ...]) -> Any:
        return outputs[0] if self._result is None else self._result(*outputs)

    def _on_gpu(self, key: Key) -> Callable[[tuple[bool, ...]], Callable[..., tuple[Any, ...]]]:
        """The kernel on arrays that may be sharded, for each choice of donated arrays."""

        @functools.cache
        def cute(donated: tuple[bool, ...]) -> Any:
            return partition.partitioned(self, key, functools.partial(self._run_cute, key, donated))

        return cute

    def _run(self, key: Key) -> Callable[..., tuple[Any, ...]]:
        """A call of the requested implementation, not yet differentiable."""
        xla, cute = functools.partial(self.jnp_form, key), self._on_gpu(key)

        def run(*operands: Any) -> Any:
            if key.implementation == "xla":
                return xla(*operands)
            if key.implementation == "interpret":
                return self._run_interpret(key, *operands)
            if key.implementation == "cute":
                hint = "needs an NVIDIA GPU; 'interpret' runs the kernel without"
                return choose(cute, xla, *operands, refuse=f"{self.spec.op}: implementation='cute' {hint}")
            axes = arguments.bind_axes(self.spec, self.arrays(key, operands))
            if self._refused(key.types, axes) is not None or self.left_to_xla(key.types, axes):
                return xla(*operands)
            return choose(cute, xla, *operands)

        return run

    def _make(self, key: Key) -> Callable[..., tuple[Any, ...]]:
        return differentiable(self, key, self._run(key))

    def backward_for(self, key: Key) -> Gradient | None:
        """The generated backward, if every dtype is bound: a type variable may belong only to an input that is left out."""
        backward = self._backward
        if backward is None or any(key.types.dtype(a) not in DTYPES for a in backward.spec.arrays):
            return None
        return backward

    def on_shard(
        self, key: Key, kernel: Callable[..., tuple[Any, ...]], operands: tuple[Any, ...], split: shards.Split
    ) -> tuple[Any, ...]:
        """The outputs on one shard of arrays that are split; `kernel` returns what is to be `finished`."""
        if split.across(partition.asked_axes(self)):
            return shards.in_jnp(self, key, operands, split)
        return self.finished(key, operands, kernel(*operands, split=split), split)

    def finished(
        self, key: Key, operands: tuple[Any, ...], results: tuple[Any, ...], split: shards.Split
    ) -> tuple[Any, ...]:
        """The outputs, from what the kernel returned: of the whole, or of one shard where arrays are split."""
        return shards.finished(self, key, operands, results, split)

    def jnp_form(self, key: Key, *operands: Any) -> tuple[Any, ...]:
        """The jnp form: operands are converted to the compute type and broadcast by name, and results are stored."""
        with wide(self.spec):
            return self._evaluate_xla(key, operands)

    def _evaluate_xla(self, key: Key, operands: tuple[Any, ...]) -> tuple[Any, ...]:
        spec, plan, arrays = self.spec, self.plan, self.arrays(key, operands)
        axes = arguments.bind_axes(spec, arrays)
        compute = self.compute(key)
        read = by_position.widened(plan, arrays, compute)
        values = {a.name: by_position.jnp_value(plan, a, read, axes, compute, spec.integer) for a in plan.loads}
        given = self.parameters(key, operands)  # as arrays: static numbers would be weakly typed
        values |= {p.name: jnp.asarray(given[p.name], p.dtype(self.compute(key))) for p in spec.params}
        extra = {
            "compute": jnp.dtype(compute),
            "row_axes": tuple(range(len(axes.rows))),
            **{t: jnp.dtype(d) for t, d in key.types.variables},
        }
        results = self._xla(**{name: values[name] if name in values else extra[name] for name in self._xla_extra})
        results = results if isinstance(results, tuple) else (results,)
        stored = scatter.stored(plan, plan.stores, results, arrays, axes, key.types)
        return tuple(stored[array] for array in spec.outputs)

    def _run_cute(self, key: Key, donated: tuple[bool, ...], *operands: Any, **given: Any) -> tuple[Any, ...]:
        """The kernel on canonical views of the operands, which it may overwrite where they are `donated`. Returns its outputs, then
        its blocks' partial results of each column statistic. `given` is passed to `_kernel_call`."""
        arch = current_arch()
        if arch is None:
            raise ValueError(f"{self.spec.op}: CUTE_DSL_ARCH must say which GPU to compile for, as in sm_90a")
        call = self._kernel_call(key, operands, arch, **given)
        return call.launched(arch, aliases.pairs(self, call.how, key.present, donated))

    def _run_interpret(self, key: Key, *operands: Any, parts: bool = False, **given: Any) -> tuple[Any, ...]:
        """The compiled kernel's PTX, on the CPU: its outputs, then `parts` as `_run_cute` returns them."""
        arch = interpreted.architecture()
        call = self._kernel_call(key, operands, arch, **given)
        count = len(call.shapes) if parts else len(self.spec.outputs)
        return call.interpreted(arch, self._tensor_names(), count, aliases.put_pairs(self, key.present))

    def _tensor_names(self) -> list[str]:
        """The names of a kernel's tensors in messages: inputs, dynamic parameters, outputs, partial results."""
        dynamic = [p.name for p in self.spec.dynamic_params]
        folded = [*self.plan.between]
        folded += [f"{s.name} of rows" for s, _ in views.row_statistic_dtypes(self.plan, "float32", "int32")]
        folded += ["counter"] * views.counts(self.plan)
        return [*(a.name for a in self.spec.inputs), *dynamic, *(a.name for a in self.spec.outputs), *folded]

    def _kernel_call(
        self, key: Key, operands: tuple[Any, ...], arch: str | None = None, split: shards.Split | None = None
    ) -> LauncherCall:
        """The call of the launcher, on one shard where arrays are `split`. Raises ValueError for sizes that a kernel cannot handle, and
        for dtypes that the architecture lacks."""
        arch = arch or interpreted.architecture()
        spec, plan = self.spec, self.plan
        arrays = self.arrays(key, operands)
        axes = arguments.bind_axes(spec, arrays)
        if problem := self._refused(key.types, axes, arch):
            raise ValueError(f"{spec.op}: {problem}")
        if missing := lacks(self, key.types, arch):
            raise ValueError(f"{missing}; implementation='xla' runs without")
        sizes = views.known_extents(plan, axes)
        if split is not None and any(split.across(s.axes) for s in plan.columns):
            sizes = replace(sizes, rows=None)  # others, on other devices, meet with these: partial results are written
        how = self._chosen_launch(key.types, sizes, arch)

        def tensor(array: Array) -> Tensor:
            shape = views.kernel_shape(plan, array, axes)
            dtype = views.kernel_dtype(array, key.types.dtype(array), how)
            return Tensor(shape, dtype, views.divisibility(plan, array, how), views.alignment(plan, array, dtype))

        kinds = [p.dtype(self.compute(key)) for p in self.spec.dynamic_params]
        scalars = [Tensor((1,), kind, (1,), DTYPES[kind].size) for kind in kinds]
        inputs = (*map(tensor, spec.inputs), *scalars)
        compute, integer = self.compute(key), spec.integer
        left = views.parts(plan, axes, how, compute, integer) + views.row_statistics(plan, axes, how, compute, integer)
        left += views.counter(plan, axes, how)
        parts = [Tensor(shape, dtype, (1,) * len(shape), views.PARTS_ALIGNMENT) for shape, dtype in left]
        params = self.parameters(key, operands)
        static = {p.constant: params[p.name] for p in spec.params if p.static}
        outputs = (*map(tensor, spec.outputs), *parts)
        return LauncherCall(
            typed.launcher(self._launch, tuple(t.dtype for t in (*inputs, *outputs))),
            (*(views.converted(arrays.get(a.name), a, how) for a in spec.inputs), *operands[len(key.present) :]),
            inputs,
            outputs,
            (*(views.user_shape(a, axes) for a in spec.outputs), *(t.shape for t in parts)),
            how,
            {**static, **self.passed_types(key.types), **how.constants},
        )

    def passed_types(self, types: Types) -> dict[str, str]:
        """The launcher's arguments for type variables that no tensor has: CuTe DSL's name of each one's dtype."""
        names = unheld_types(*self._emitted)
        return {dtype_constant(name): DTYPES[types.dtype(name)].cutlass for name in names}

    @property
    def _emitted(self) -> tuple[Spec, tuple[Statement, ...], frozenset[str]]:
        """The spec and the chain that the kernel computes, and the arrays for which it has no tensors."""
        return self.spec, self.planned.statements, frozenset()

    def _refused(self, types: Types, axes: Axes, arch: str | None = None) -> str | None:
        """Why no kernel takes these sizes: too many rows for its coordinates, or rows too long for it."""
        problem = views.fits(self.plan, axes)
        if problem is None:
            try:
                self.launch_for(types, axes, arch)
            except UserError as error:
                problem = f"{error.message}; implementation='xla' runs without"
        return problem

    def default_launch(self, types: Types, axes: Axes) -> AnyLaunch:
        """The launch of the kernel for a call that names no implementation. Raises `UserError` where there is none."""
        if problem := views.fits(self.plan, axes):
            raise UserError(problem)
        return self.launch_for(types, axes)

    def left_to_xla(self, types: Types, axes: Axes) -> str:
        """Why such a call runs the jnp form although there is a kernel, or ""."""
        sizes = views.known_extents(self.plan, axes)
        call = planned_call(self.spec, types, sizes)
        return choosing.left_to_xla(self.plan, self.launch_for(types, axes), call, self._tuned(types, sizes))

    def launch_for(self, types: Types, axes: Axes, arch: str | None = None) -> AnyLaunch:
        """The launch for these types and sizes. Raises `UserError` where there is none."""
        return self._chosen_launch(types, views.known_extents(self.plan, axes), arch or interpreted.architecture())

    def _chosen_launch(self, types: Types, sizes: Extents, arch: str) -> AnyLaunch:
        call = planned_call(self.spec, types, sizes, arch)
        return choosing.launch(self.plan, call, self._tuned(types, sizes, arch))

    def _tuned(self, types: Types, sizes: Extents, arch: str | None = None) -> Tuned | None:
        own = choosing.sizes_of(self.plan, sizes) if self.tuning else {}
        return choosing.found(self.tuning, self.spec.op, arch or interpreted.architecture(), types.variables, own)


AnyOp: TypeAlias = Op[..., Any]  # an op of any parameters and outputs
