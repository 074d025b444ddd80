"""An op's calls as a JAX function that is differentiated, mapped and sharded. It is, outermost first,

jax.jit            so that an eager call is one dispatch
jax.custom_vjp     the forward unchanged; the generated backward, or the frozen one; else the gradient of the jnp form
auto_axes          for explicit mesh axes, which are automatic inside; results are typed by `partition.py`'s rules
custom_vmap        a mapped axis joins `...` or the first axis (`batching.py`); else the jnp form is mapped
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad

from codegen.runtime.call import arguments
from codegen.runtime.call.described import CalledOp, Key
from codegen.runtime.ops import batching
from codegen.runtime.sharding import partition
from codegen.spec.spec import Spec

Function = Callable[..., tuple[Any, ...]]


class Gradient(Protocol):
    """The interface of a generated backward to its op."""

    @property
    def spec(self) -> Spec:
        """The spec of the backward."""

    @property
    def generated(self) -> tuple[Any, ...]:
        """The ops that are generated for gradients: the backward is the last; before it, the ops that run with it or replace it."""

    def way(self, key: Key, perturbed: Sequence[bool]) -> str:
        """The way in which gradients of the `perturbed` operands are computed."""

    def by(self, way: str) -> Gradient:
        """The backward that computes gradients in this way."""

    def saved(
        self, key: Key, plain: Callable[..., tuple[Any, ...]], operands: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The outputs of a call, which `plain` computes too, and the values that are saved for the gradients."""

    def packed(self, key: Key, way: str, values: dict[str, Any], operands: tuple[Any, ...]) -> tuple[Any, ...]:
        """The residuals of a call."""

    def unpacked(self, key: Key, residuals: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
        """The way of a call, and its values by name."""

    def pull(
        self, key: Key, values: dict[str, Any], cotangents: tuple[Any, ...], copies: bool = False
    ) -> tuple[Any, ...]:
        """The gradients of the operands."""


class DifferentiableOp(CalledOp, Protocol):
    """The interface of an op to its gradients."""

    @property
    def refuses_gradients(self) -> bool:
        """Whether its spec says `grad: none`: to ask for a gradient is then an error."""

    def operand_names(self, key: Key) -> list[str]:
        """The names of a call's operands: present inputs, dynamic parameters."""

    def jnp_form(self, key: Key, *operands: Any) -> tuple[Any, ...]:
        """The jnp form of a call."""

    def backward_for(self, key: Key) -> Gradient | None:
        """The generated backward, if it has one for such calls."""


def differentiable(op: DifferentiableOp, key: Key, run: Function) -> Function:
    """The function of the calls with this key, whose values `run` computes."""
    xla = functools.partial(op.jnp_form, key)
    batched = jax.custom_batching.custom_vmap(lambda *operands: partition.varying(run(*operands), operands))

    @batched.def_vmap
    def batch(size: int, mapped: Sequence[bool], *operands: Any) -> Any:
        outputs = batching.batch(op, key, batched, xla, size, mapped, operands)
        return outputs, tuple(True for _ in outputs)

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def value(shardings: Any, *operands: Any) -> Any:
        outputs = partition.output_shardings(op, key, shardings, operands)
        return partition.typed(batched, outputs)(*operands)

    def forward(shardings: Any, *primals: Any) -> Any:
        # Through itself, so that a second derivative differentiates this call as the first did
        plain, operands = functools.partial(value, shardings), tuple(p.value for p in primals)
        kernel = op.backward_for(key)
        if kernel is None or _is_empty(op, key, operands):
            return plain(*operands), {"": operands}
        way = kernel.way(key, [p.perturbed for p in primals])
        outputs, values = kernel.by(way).saved(key, plain, operands)
        return outputs, kernel.packed(key, way, values, operands)

    def pull(residuals: Any, cotangents: Any) -> Any:
        kernel = op.backward_for(key)
        if kernel is None or isinstance(residuals, dict):
            return jax.vjp(xla, *residuals[""])[1](cotangents)
        way, values = kernel.unpacked(key, residuals)
        if way == "op in jnp":
            return jax.vjp(xla, *(values[name] for name in op.operand_names(key)))[1](cotangents)
        return kernel.by(way).pull(key, values, cotangents, way == "backward in jnp")

    def backward(shardings: Any, residuals: Any, cotangents: Any) -> Any:
        if op.refuses_gradients:
            raise TypeError(f"{op.spec.op} has no gradient: its spec says `grad: none`")
        cotangents = tuple(
            ad.instantiate_zeros(ad.Zero(c.aval)) if isinstance(c, SymbolicZero) else c for c in cotangents
        )
        return partition.typed(pull, shardings)(residuals, cotangents)  # each gradient is sharded like its operand

    value.defvjp(forward, backward, symbolic_zeros=True)

    def call(*operands: Any) -> Any:
        # In shard_map, where an operand does not vary: its gradient is then summed over the mesh
        operands = partition.varying(operands, operands)
        return value(partition.explicit_shardings(operands), *operands)

    return jax.jit(call)


def _is_empty(op: CalledOp, key: Key, operands: Sequence[Any]) -> bool:
    """Whether an axis has size 0. Sums along that axis are 0, whatever their factors. But the generated backward
    moves factors out of sums, and 0 times an infinite factor is NaN. So JAX computes the derivative."""
    axes = arguments.bind_axes(op.spec, op.arrays(key, operands))
    return any(isinstance(n, int) and n == 0 for n in (*axes.rows, *axes.extents.values()))
