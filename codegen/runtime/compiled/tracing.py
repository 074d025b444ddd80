"""Makes CuTe DSL trace kernels without work that no kernel here needs. That saves an eighth of a compilation's time.

The compiler looks at each argument of each operation for variables of its other frontend (PyIR), which is off. It also
finds the class of a value's type in a table that it makes anew each time. Before each kernel it prints the launcher's
earlier kernels, for a log that is not kept. At the end it calls a Python function for each operation, to find modules
without a kernel: launchers have none. Where a version of the compiler lacks these functions, nothing changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

_classes: dict[str, Any] = {}  # by the text of a type: types themselves keep their contexts in memory


@contextlib.contextmanager
def traced_quickly() -> Iterator[None]:
    """A context in which kernels are traced without that work. One thread at a time, as for `compiling_for`."""
    from cutlass._mlir_helpers import op
    from cutlass.base_dsl.dsl import BaseDSL
    from cutlass.base_dsl.typing import Numeric
    from cutlass.cutlass_dsl.cutlass import CuTeDSL, CutlassBaseDSL

    settings = CuTeDSL._get_dsl().envar
    off = not settings.enable_pyir and not getattr(settings, "auto_m2s", False)
    with contextlib.ExitStack() as until:
        if off:
            until.enter_context(_replaced(op, "_pyir_auto_load_arg", lambda _: _as_it_is))
        until.enter_context(_replaced(Numeric, "from_mlir_type", _by_text))
        until.enter_context(_replaced(BaseDSL, "_should_remove_empty_gpu_modules", lambda _: _no))
        until.enter_context(_replaced(CutlassBaseDSL, "_enter_gpu_module", lambda _: _among_kernels))
        yield


def _as_it_is(argument: Any, **_: Any) -> Any:
    return argument


def _no(_: Any) -> bool:
    return False


def _among_kernels(compiler: Any) -> Any:
    """Where the compiler adds a kernel: at the end of the module that holds them."""
    from cutlass._mlir import ir

    return ir.InsertionPoint(compiler.gpu_module.bodyRegion.blocks[0])


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
    """A context in which a function of an object is replaced by another, made from it. Nothing changes if the object
    lacks the function."""
    before = vars(owner).get(name)
    if before is None:
        yield
        return
    setattr(owner, name, instead(getattr(owner, name)))
    try:
        yield
    finally:
        setattr(owner, name, before)
