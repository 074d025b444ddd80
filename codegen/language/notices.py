"""Warnings about valid specs that may not mean what their author expects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from codegen.errors import Diagnostic
from codegen.graph.nodes import DTYPES, Node, Statement, dtypes_of, topological
from codegen.spec.spec import Spec


def notices(spec: Spec, statements: Iterable[Statement]) -> Iterator[Diagnostic]:
    """Every warning about a spec."""
    yield from whole_numbers(spec, statements)


def whole_numbers(spec: Spec, statements: Iterable[Statement]) -> Iterator[Diagnostic]:
    """A warning for each parameter that is an int only because its default is a whole number, if a float would give another
    result. In version 0.1 such a parameter was a float."""
    nodes = list(topological(s.value for s in statements))
    for param in spec.params:
        users = [n for n in nodes if any(a.op == "param" and a.attr == param.name for a in n.args)]
        among_ints = any(not _takes_floats(spec, user) for user in users)
        if not param.whole or (param.static and not among_ints):
            continue
        effect = "this op computes with it as an integer" if among_ints else "it has no gradient"
        message = f"{param.name!r} is an int, for its default is a whole number: {effect}"
        hint = f"before version 0.2 it was a float: write {param.default}.0 for that; `type: int` says that an int is meant"
        yield spec.source.diagnostic(spec.place("params", param.name), message, hint, "warning")


def _takes_floats(spec: Spec, user: Node) -> bool:
    """Whether an operation converts its argument to a float, so that a whole number gives the same result as an int or a float."""
    if user.op == "cast":
        return DTYPES[dtypes_of(str(user.attr), dict(spec.types))[0]].kind == "float"
    return user.op == "float"
