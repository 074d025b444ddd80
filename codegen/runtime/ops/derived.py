"""An op that is generated with another: its backward, a forward that saves more for it, a stage of these, an epilogue."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from codegen.autodiff import backward as backwards
from codegen.plan.launches import Tuned
from codegen.plan.op import Op as PlannedOp
from codegen.runtime.call.described import Key
from codegen.runtime.ops.op import AnyOp, Op


class DerivedOp(Op[..., Any]):
    """An op generated with another: its backward, a stage of it or of its backward, or the forward that saves more than its
    outputs."""

    def __init__(self, forward: AnyOp, which: str, parts: dict[str, Any]):
        self.__name__ = f"{forward.__name__}_{which}"  # type: ignore[attr-defined]
        self.origin, self._which = forward, which
        self._backward = self._result = None
        self._begin(parts.get(f"{which}_launch"), parts.get(f"{which}_xla"))

    @property
    def tuning(self) -> tuple[Tuned, ...]:
        """The measured launches of the op with which this one is generated."""
        return self.origin.tuning

    @functools.cached_property
    def derived(self) -> backwards.Derived:
        """The relation of backward and forward to the op."""
        found: Any = backwards.backward_of(self.origin.planned)
        found = found.frozen if self._which == "frozen" else found
        assert isinstance(found, backwards.Derived), found
        return found

    @functools.cached_property
    def planned(self) -> PlannedOp:
        found = self.derived.forward if self._which == "forward" else self.derived.op
        assert found is not None
        return found

    @property
    def refuses_gradients(self) -> bool:
        """False: its jnp form has gradients, the second derivatives of the op."""
        return False

    def call(self, key: Key, there: Mapping[str, jax.Array]) -> tuple[Key, tuple[Any, ...]]:
        """Its call in a call of the op it was generated with, where these arrays and dynamic parameters are `there`, by name."""
        given = [a for a in self.spec.inputs if a.name in there]
        # a kernel would read the bytes of another type as its own
        other = [a.name for a in given if key.implementation != "xla" and there[a.name].dtype != key.types.dtype(a)]
        assert not other, f"{self.__name__}: another type than the kernel's: {', '.join(other)}"
        arrays = tuple(a.name for a in given)
        static = tuple((name, value) for name, value in key.static if any(p.name == name for p in self.spec.params))
        own = Key(key.implementation, key.types, arrays, static)
        # its compute type may be narrower than the op's, which has other inputs
        dynamic = (jnp.asarray(there[p.name]).astype(p.dtype(self.compute(own))) for p in self.spec.dynamic_params)
        return own, (*(there[name] for name in arrays), *dynamic)

    def given(self, key: Key, there: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The outputs of that call, by name."""
        own, operands = self.call(key, there)
        return self.named(self._functions(own)(*operands))

    def named(self, outputs: Sequence[jax.Array]) -> dict[str, jax.Array]:
        return dict(zip((a.name for a in self.spec.outputs), outputs, strict=True))
