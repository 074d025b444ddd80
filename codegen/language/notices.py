"""What a build says of a spec that is right, for its meaning may not be the one that its writer has in mind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from codegen.errors import Diagnostic
from codegen.graph.nodes import DTYPES, Node, Statement, dtypes_of, topological
from codegen.spec.spec import Spec


def notices(spec: Spec, statements: Iterable[Statement]) -> Iterator[Diagnostic]:
    """Every notice on a spec, by rule."""
    yield from whole_numbers(spec, statements)


def whole_numbers(spec: Spec, statements: Iterable[Statement]) -> Iterator[Diagnostic]:
    """Parameters that are ints only because their default is a whole number, where a float would mean something else. In
    version 0.1 they were floats."""
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
    """Whether an operation brings what it takes to a float, so that a whole number is the same as an int or a float."""
    if user.op == "cast":
        return DTYPES[dtypes_of(str(user.attr), dict(spec.types))[0]].kind == "float"
    return user.op == "float"
