"""Tracing of kernels by CuTe DSL without two costs of each operation that no kernel here needs: a twelfth of a compilation's time.

The compiler looks at each argument of each operation for variables of its other frontend (PyIR), which is off. It also finds the class
of a value's type in a table that it makes anew each time. Where a version of the compiler lacks these functions, nothing changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

_classes: dict[str, Any] = {}  # by the text of a type: types themselves keep their contexts in memory


@contextlib.contextmanager
def traced_quickly() -> Iterator[None]:
    """A context in which kernels are traced so. One thread at a time, as for `compiling_for`."""
    from cutlass._mlir_helpers import op
    from cutlass.base_dsl.typing import Numeric
    from cutlass.cutlass_dsl.cutlass import CuTeDSL

    settings = CuTeDSL._get_dsl().envar
    off = not settings.enable_pyir and not getattr(settings, "auto_m2s", False)
    arguments = _replaced(op, "_pyir_auto_load_arg", lambda _: _as_it_is) if off else contextlib.nullcontext()
    with arguments, _replaced(Numeric, "from_mlir_type", _by_text):
        yield


def _as_it_is(argument: Any, **_: Any) -> Any:
    return argument


def _by_text(find: Callable[[Any], Any]) -> Any:
    """The same function, which asks once for each text of a type."""

    def found(mlir_type: Any) -> Any:
        text = str(mlir_type)
        if text not in _classes:
            _classes[text] = find(mlir_type)
        return _classes[text]

    return staticmethod(found)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, instead: Callable[[Any], Any]) -> Iterator[None]:
    """A context in which an owner's function is another, made of the first; nothing changes where there is none."""
    before = vars(owner).get(name)
    if before is None:
        yield
        return
    setattr(owner, name, instead(getattr(owner, name)))
    try:
        yield
    finally:
        setattr(owner, name, before)
