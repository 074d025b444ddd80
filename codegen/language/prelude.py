"""The composite functions of the language, read from `prelude.txt`."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field, replace
from importlib import resources

from codegen.parsing import parse_expression


@dataclass(frozen=True)
class Composite:
    """A prelude definition. In `grad`, `y` is the result and `g` its cotangent. `bounded` is the body for an x with small bounds."""

    name: str
    params: tuple[str, ...]
    defaults: tuple[ast.expr | None, ...]
    body: ast.expr
    grad: dict[str, ast.expr] = field(default_factory=dict)  # an argument's name to the derivative with respect to it
    bounded: ast.expr | None = None


@functools.cache
def prelude() -> dict[str, Composite]:
    found: dict[str, Composite] = {}
    for line in (resources.files("codegen.language") / "prelude.txt").read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" "):
            argument, _, formula = line.strip().partition(": ")
            last = next(reversed(found))
            if argument == "bounded":
                found[last] = replace(found[last], bounded=parse_expression(formula))
            else:
                found[last].grad[argument] = parse_expression(formula)
            continue
        match = re.fullmatch(r"(\w+)\(([^)]*)\) = (.+)", line)
        assert match, line
        name, params, body = match.groups()
        pairs = [(p.strip().partition("=")) for p in params.split(",")]
        defaults = tuple(parse_expression(d) if d else None for _, _, d in pairs)
        found[name] = Composite(name, tuple(p for p, _, _ in pairs), defaults, parse_expression(body))
    return found
