"""Names for a function's values, from its source: its arguments, the names that its lines assign, and what it returns."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from codegen.graph.names import LOCAL_NAMES, name_error
from codegen.language.formula.calls import functions
from codegen.parsing import parse
from codegen.tracing.steps import Step, Value, plain


def proper(name: str, other: str = "x") -> str:
    """A name that a spec may use: in lower case, and not one that a generated file uses."""
    text = re.sub(r"[^a-z0-9_]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
    text = text if text[:1].isalpha() else f"{other}_{text}".rstrip("_")
    text = text[:48].rstrip("_")
    return f"{text}_in" if name_error(text, "an array", LOCAL_NAMES) else text


def unique(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names, each with a number added where it is taken by an earlier one or by `taken`."""
    found: list[str] = []
    used = set(taken)
    for name in names:
        own, count = name, 2
        while own in used:
            own, count = f"{name}{count}", count + 1
        used.add(own)
        found.append(own)
    return found


def argument_names(function: Callable[..., Any], examples: Sequence[Any]) -> list[str]:
    """A name for each array in the arguments, by the names of the parameters, and of keys within them."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        parameters = []
    leaves = jax.tree_util.tree_flatten_with_path(tuple(examples))[0]
    found = []
    for (first, *rest), _ in leaves:
        place = first.idx
        name = parameters[place] if place < len(parameters) else "x"
        keys = [re.sub(r"\W+", "", str(key)) for key in rest]
        found.append(proper("_".join([name, *keys]) if rest else name))
    return unique(found)


def parameter_names(jaxpr: Any) -> list[str]:
    """The names of a traced function's parameters, and of keys within them, one for each array; "" where JAX does not know."""
    names = getattr(jaxpr.debug_info, "arg_names", None) or ()
    if len(names) != len(jaxpr.invars):
        return [""] * len(jaxpr.invars)
    return [proper(name) if name else "" for name in names]


@functools.lru_cache(maxsize=64)
def _assigned(path: str) -> dict[int, str]:
    """The name that the statement on each line of a file assigns, where it is one plain name."""
    source = "".join(linecache.getlines(path))
    try:
        tree = parse(source)
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found[line] = node.targets[0].id
    return found


def assigned_name(path: str, line: int) -> str:
    """The name that the statement on a line assigns; "" where it is not one plain name."""
    return _assigned(path).get(line, "")


def assigned_names(steps: Iterable[Step]) -> dict[Value, str]:
    """The name that each statement of the source gives to the value of its last step, where a chain may use it: `mean` is a
    function."""
    last: list[tuple[Value, str]] = []
    running: dict[tuple[str, str], tuple[int, int]] = {}  # the line that each function is at, and its place in `last`
    for step in plain(steps):
        where = (step.place.path, step.place.function)
        name = _assigned(step.place.path).get(step.place.line) if step.place.line else None
        if not name or not step.outputs:
            running.pop(where, None)
            continue
        line, place = running.get(where, (0, 0))
        if line != step.place.line:  # a statement of a loop is another one in each of its rounds
            place = len(last)
            last.append((step.outputs[0], name))
        last[place] = (step.outputs[0], name)
        running[where] = (step.place.line, place)
    named = ((value, proper(name, "t")) for value, name in last)
    return {value: name for value, name in named if not name.endswith("_in") and name not in functions()}


def function_tree(function: Callable[..., Any]) -> ast.FunctionDef | ast.Lambda | None:
    """The syntax tree of a function's source; None where it cannot be found."""
    try:
        tree = parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return None
    return next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)


def result_names(function: Callable[..., Any], count: int) -> list[str]:
    """The names of a function's results: the names that it returns, else y, y2 and so on."""
    tree = function_tree(function)
    returns = [n for n in ast.walk(tree) if isinstance(n, ast.Return)] if tree is not None else []
    names: list[str] = []
    if len(returns) == 1 and returns[0].value is not None:
        value = returns[0].value
        elements = value.elts if isinstance(value, ast.Tuple) else [value]
        names = [e.id if isinstance(e, ast.Name) else "y" for e in elements]
    return [proper(n, "y") for n in names] if len(names) == count else ["y"] * count
