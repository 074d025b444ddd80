"""Tracing of kernels by CuTe DSL without three costs of each operation that no kernel here needs: a sixth of a compilation's time.

The compiler looks at each argument of each operation for variables of its other frontend (PyIR), which is off. It wraps each operation
in a function that knows its place in the source, which is only asked for with source lines. It also finds the class of a value's type
in a table that it makes anew each time. Where a version of the compiler lacks these functions, nothing changes.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

_classes: dict[str, Any] = {}  # by the text of a type: types themselves keep their contexts in memory


@contextlib.contextmanager
def traced_quickly() -> Iterator[None]:
    """A context in which kernels are traced so. One thread at a time, as for `compiling_for`."""
    from cutlass._mlir_helpers import op
    from cutlass.base_dsl import dsl
    from cutlass.base_dsl.typing import Numeric
    from cutlass.cutlass_dsl.cutlass import CuTeDSL

    with contextlib.ExitStack() as until:
        settings = CuTeDSL._get_dsl().envar
        if not settings.enable_pyir and not getattr(settings, "auto_m2s", False):
            until.enter_context(_replaced(op, "_pyir_auto_load_arg", lambda _: _as_it_is))
            if not settings.debug:
                until.enter_context(_replaced(dsl, "_set_enable_frame_filtering", _and_bare_operations))
                until.callback(_wrap, _operations()[0])
        until.enter_context(_replaced(Numeric, "from_mlir_type", _by_text))
        yield


def _as_it_is(argument: Any, **_: Any) -> Any:
    return argument


def _and_bare_operations(track: Callable[[bool], None]) -> Callable[[bool], None]:
    """The function that tells the compiler whether to track operations' places. Where it is not to, it need not wrap them."""

    def tracked(enable: bool) -> None:
        track(enable)
        wrapped = _operations()[0]
        _wrap(wrapped if enable or len(wrapped.co_freevars) != 1 else _bare(_as_it_is).__code__)

    return tracked


def _bare(operation: Callable[..., Any]) -> FunctionType:
    """As the compiler's wrapper, without the place of the call."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("loc", None)
        return operation(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def _wrap(code: CodeType) -> None:
    """Give the functions that wrap operations this code. Each keeps its operation."""
    for function in _operations()[1]:
        function.__code__ = code


@functools.cache
def _operations() -> tuple[CodeType, tuple[FunctionType, ...]]:
    """The code of the functions that wrap operations, and those of the compiler's modules."""
    from cutlass._mlir_helpers import op

    code = op.dsl_user_op(_as_it_is).__code__
    names = [name for name in sys.modules if name.partition(".")[0] == "cutlass"]
    owners = [value for name in names for value in vars(sys.modules[name]).values()]
    owners += [value for owner in owners if isinstance(owner, type) for value in vars(owner).values()]
    found = {id(f): f for owner in owners for f in _functions(owner) if f.__code__ is code}
    return code, tuple(found.values())


def _functions(value: Any) -> Iterator[FunctionType]:
    """A function or method, and the functions that it wraps."""
    for one in (value.fget, value.fset) if isinstance(value, property) else (value,):
        while (one := getattr(one, "__func__", one)) is not None:
            if isinstance(one, FunctionType):
                yield one
            one = getattr(one, "__wrapped__", None) if isinstance(one, FunctionType) else None


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
