"""Formula text to the typed graph, through Python's own grammar.

`read_chain` turns a spec's chain into checked statements. What the language does not have is refused with its place;
so is a name, a kind or an axis that does not fit. The prelude's composites are expanded here, argument nodes shared.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from codegen.errors import Diagnostic, Mistake, SpecError, known
from codegen.ir import DTYPES, ROWS, Graph, Leaf, Node, Statement
from codegen.ops import BINARY, COMPARE, OPERATORS, OPS, REDUCTIONS
from codegen.spec import RESERVED, Array, Spec
from codegen.text import Scalar

MAX_FORMULA = 4000  # characters of one statement
MAX_EXPONENT = 64
CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}


@dataclass(frozen=True)
class Composite:
    """A prelude definition."""

    name: str
    params: tuple[str, ...]
    defaults: tuple[ast.expr | None, ...]
    body: ast.expr


@functools.cache
def prelude() -> dict[str, Composite]:
    found: dict[str, Composite] = {}
    for line in (Path(__file__).parent / "prelude.txt").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\w+)\(([^)]*)\) = (.+)", line)
        assert match, line
        name, params, body = match.groups()
        pairs = [(p.strip().partition("=")) for p in params.split(",")]
        defaults = tuple(ast.parse(d, mode="eval").body if d else None for _, _, d in pairs)
        found[name] = Composite(name, tuple(p for p, _, _ in pairs), defaults, ast.parse(body, mode="eval").body)
    return found


SPECIAL = {"cast": ("e", "dtype"), "index": ("axis",), "size": ("axis",), "take": ("table", "i", "axis")}


def functions() -> list[str]:
    """Every function a formula may call."""
    names = (set(OPS) - OPERATORS) | set(REDUCTIONS) | set(SPECIAL) | set(prelude())
    return sorted(names - {"finite_or_zero"})


class Placed(Exception):
    """A mistake at an ast node."""

    def __init__(self, node: ast.AST, mistake: Mistake):
        super().__init__(mistake.message)
        self.node, self.mistake = node, mistake


@dataclass
class Scope:
    """What names mean while a formula is read."""

    graph: Graph
    types: dict[str, tuple[str, ...]]
    inputs: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Node] = field(default_factory=dict)  # params and the chain's names so far
    axes: frozenset[str] = frozenset()
    output_axes: frozenset[str] = frozenset()
    used: set[str] = field(default_factory=set)

    def names(self) -> list[str]:
        return [*self.inputs, *self.values]


def make_scope(spec: Spec) -> Scope:
    graph = Graph(spec.axes)
    scope = Scope(graph, dict(spec.types), {a.name: a for a in spec.inputs}, axes=frozenset(spec.axes))
    scope.output_axes = frozenset(axis for a in spec.outputs for axis in a.axes)
    for p in spec.params:
        scope.values[p.name] = graph.node("param", attr=p.name, kind=p.kind, dims=())
    return scope


def read_chain(spec: Spec) -> tuple[Statement, ...]:
    """The chain as statements, every one checked. Raises `SpecError` with all its mistakes."""
    scope = make_scope(spec)
    outputs = {a.name: a for a in spec.outputs}
    diagnostics: list[Diagnostic] = []
    statements: list[Statement] = []
    assigned: dict[tuple[str, int | None], int] = {}
    broken: set[str] = set()  # names whose own statement failed: what follows from them is not reported
    for line in statement_lines(spec.chain):
        try:
            target, part, tree = split_statement(line.tree)
            key = (target.id, part)
            check_target(spec, target, part, assigned, key, line.line)
            assigned[key] = line.line
            if broken & {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}:
                if part is None:
                    broken.add(target.id)
                continue
            broken.add(target.id)
            value = reader(scope)(tree)
            broken.discard(target.id)
            output = outputs.get(target.id)
            if output is not None:
                value = stored(spec, scope, output, value, tree)
            statements.append(Statement(target.id, part, value))
            if part is None:
                scope.values[target.id] = value
        except Placed as error:
            diagnostics.append(line.diagnostic(error))
        except LineError as error:
            diagnostics.append(error.diagnostic)
    for bad in statement_errors(spec.chain):
        diagnostics.append(bad)
    if not diagnostics:
        diagnostics += unfinished(spec, scope, assigned, statements)
    if diagnostics:
        raise SpecError(diagnostics)
    return tuple(statements)


# Statements and their places


class LineError(Exception):
    def __init__(self, diagnostic: Diagnostic):
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


@dataclass(frozen=True)
class Line:
    scalar: Scalar
    line: int  # 0-based, in the scalar's text
    text: str
    tree: ast.stmt

    def diagnostic(self, error: Placed) -> Diagnostic:
        node = error.node
        row = getattr(node, "lineno", 1) - 1
        rows = self.text.split("\n")
        encoded = rows[row].encode() if row < len(rows) else b""
        column = len(encoded[: getattr(node, "col_offset", 0)].decode(errors="ignore"))
        end = getattr(node, "end_col_offset", None)
        length = len(encoded[:end].decode(errors="ignore")) - column if node_is_one_row(node) and end else 1
        span = self.scalar.at(self.line + row, column, max(1, length))
        return self.scalar.source.diagnostic(span, error.mistake.message, error.mistake.hint)


def node_is_one_row(node: ast.AST) -> bool:
    return getattr(node, "lineno", 1) == getattr(node, "end_lineno", 1)


def _chunks(text: str) -> Iterator[tuple[int, str]]:
    """Statements with their first line: a line that leaves a bracket open goes on in the next."""
    rows, first, depth, chunk = text.split("\n"), 0, 0, []
    for i, row in enumerate(rows):
        code = row.split("#", 1)[0]
        if not chunk and not code.strip():
            continue
        if not chunk:
            first = i
        chunk.append(row)
        depth += sum(code.count(c) for c in "([{") - sum(code.count(c) for c in ")]}")
        if depth <= 0:
            yield first, "\n".join(chunk)
            chunk, depth = [], 0
    if chunk:
        yield first, "\n".join(chunk)


def statement_lines(scalar: Scalar) -> Iterator[Line]:
    for first, text in _chunks(scalar.value):
        try:
            tree = parse_python(text)
        except Mistake:
            continue
        if len(tree.body) == 1:
            yield Line(scalar, first, text, tree.body[0])


def statement_errors(scalar: Scalar) -> Iterator[Diagnostic]:
    for first, text in _chunks(scalar.value):
        try:
            tree = parse_python(text)
            if len(tree.body) != 1:
                raise Mistake("one statement a line", "write each `name = expression` on a line of its own")
        except Mistake as error:
            row, column = getattr(error, "place", (0, len(text) - len(text.lstrip())))
            span = scalar.at(first + row, column)
            yield scalar.source.diagnostic(span, error.message, error.hint)


def parse_python(text: str) -> ast.Module:
    """Python's parse of a statement. Raises `Mistake`, with `place` where Python gives one."""
    if len(text) > MAX_FORMULA:
        raise Mistake(f"a statement of {len(text)} characters; at most {MAX_FORMULA}", "split it in several names")
    lead = len(text) - len(text.lstrip(" \t"))
    try:
        return _shifted(ast.parse(text[lead:]), lead)
    except SyntaxError as error:
        mistake = Mistake("cannot read this: " + _plain(error.msg), "a statement is `name = expression`")
        column = max(0, (error.offset or 1) - 1) + (lead if (error.lineno or 1) == 1 else 0)
        mistake.place = (max(0, (error.lineno or 1) - 1), column)  # type: ignore[attr-defined]
        raise mistake from None
    except (RecursionError, MemoryError, ValueError, OverflowError):
        raise Mistake("cannot read this: too deeply nested, or a number too long", "split it in several names") from None


def _plain(message: str) -> str:
    """Python's message without what differs between its versions."""
    return "invalid syntax" if not message.startswith(("'(' was", "'[' was", "unmatched", "unterminated")) else message


def _shifted(tree: ast.Module, lead: int) -> ast.Module:
    if lead:
        for node in ast.walk(tree):
            if getattr(node, "lineno", 0) == 1:
                node.col_offset += lead  # type: ignore[attr-defined]
            if getattr(node, "end_lineno", 0) == 1:
                node.end_col_offset += lead  # type: ignore[attr-defined]
    return tree


def split_statement(node: ast.stmt) -> tuple[ast.Name, int | None, ast.expr]:
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        raise Placed(node, Mistake("not a statement of the form `name = expression`"))
    target = node.targets[0]
    if isinstance(target, ast.Name):
        return target, None, node.value
    if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        part = target.slice
        if isinstance(part, ast.Constant) and type(part.value) is int:
            return target.value, part.value, node.value
    raise Placed(target, Mistake("only a name or an output's part, such as y[0], can be assigned"))


def check_target(
    spec: Spec,
    target: ast.Name,
    part: int | None,
    assigned: dict[tuple[str, int | None], int],
    key: tuple[str, int | None],
    line: int,
) -> None:
    name = target.id
    output = next((a for a in spec.outputs if a.name == name), None)
    if key in assigned:
        text = name if part is None else f"{name}[{part}]"
        raise Placed(target, Mistake(f"{text!r} is assigned twice", "give the second value a name of its own"))
    if any(a.name == name for a in spec.inputs) or any(p.name == name for p in spec.params):
        raise Placed(target, Mistake(f"{name!r} is an input or a parameter and cannot be assigned"))
    if output is None:
        if part is not None:
            raise Placed(target, Mistake(f"{name!r} has no parts: it is no output", "assign a plain name"))
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or len(name) > 64:
            raise Placed(target, Mistake(f"{name[:64]!r} is no name for a value", "names are lower-case: z, row_max"))
        if name in RESERVED or name in functions():
            raise Placed(target, Mistake(f"{name!r} cannot name a value: the language or the generated file uses it"))
    elif output.parts is None and part is not None:
        raise Placed(target, Mistake(f"{name!r} is {output} and has no parts", f"assign it whole: {name} = ..."))
    elif output.parts is not None and (part is None or not 0 <= part < output.parts):
        hint = f"assign {', '.join(f'{name}[{i}]' for i in range(min(output.parts, 4)))}"
        raise Placed(target, Mistake(f"{name!r} is {output}; its parts are assigned one by one", hint))


def stored(spec: Spec, scope: Scope, output: Array, value: Node, tree: ast.expr) -> Node:
    """The value as an output stores it: its kind brought to the output's, its axes checked."""
    kind = spec.kind(output)
    extra = [axis for axis in value.dims if axis not in output.axes]
    if extra:
        hint = f"reduce over {', '.join(extra)}, or declare {output.name!r} with it"
        message = f"{output.name!r} is {output} but this varies along {', '.join(extra)}"
        raise Placed(tree, Mistake(message, hint))
    if "bool" in (kind, value.kind) and kind != value.kind:
        hint = "write where(condition, 1, 0) to get numbers, a comparison to get a bool"
        raise Placed(tree, Mistake(f"{output.name!r} is {output} but this is a {value.kind}", hint))
    if value.is_const and kind == "float":
        value = scope.graph.const(float(value.attr))  # type: ignore[arg-type]
    return value


def unfinished(
    spec: Spec, scope: Scope, assigned: dict[tuple[str, int | None], int], statements: list[Statement]
) -> Iterator[Diagnostic]:
    """Outputs never assigned, and names never used."""
    source = spec.source
    for output in spec.outputs:
        parts = [None] if output.parts is None else range(output.parts)
        missing = [p for p in parts if (output.name, p) not in assigned]
        for part in missing:
            text = output.name if part is None else f"{output.name}[{part}]"
            yield source.diagnostic(output.span, f"the chain never assigns {text!r}", f"end it with `{text} = ...`")
    outputs = {a.name for a in spec.outputs}
    for (name, _), line in assigned.items():
        if name not in outputs and name not in scope.used:
            span = spec.chain.at(line, 0, len(name))
            yield source.diagnostic(_unindent(spec.chain, span, line), f"{name!r} is never used", "delete the line")
    for array in spec.inputs:
        if array.name not in scope.used:
            yield source.diagnostic(array.span, f"the input {array.name!r} is never used", "use it in the chain, or delete it")
    for param in spec.params:
        if param.name not in scope.used:
            yield source.diagnostic(_key_span(spec, param.name), f"the parameter {param.name!r} is never used")


def _unindent(scalar: Scalar, span, line: int):
    row = scalar.value.split("\n")[line]
    lead = len(row) - len(row.lstrip(" "))
    return scalar.at(line, lead, span.length)


def _key_span(spec: Spec, name: str):
    from codegen.errors import Span

    for i, row in enumerate(spec.source.lines):
        match = re.match(rf"\s+{re.escape(name)}\s*:", row)
        if match:
            return Span(spec.path, i + 1, row.index(name) + 1, len(name))
    return spec.chain.span


# Expressions


def reader(scope: Scope) -> Callable[[ast.expr], Node]:
    """A function that reads one expression in `scope`."""
    inner = _Reader(scope)

    def read(tree: ast.expr) -> Node:
        try:
            return inner.read(tree)
        except RecursionError:
            raise Placed(tree, Mistake("nested too deeply", "split it in several names")) from None

    return read


class _Reader:
    """One method a construct of the language; anything else is refused."""

    def __init__(self, scope: Scope, bound: dict[str, Node | tuple[str, ...]] | None = None, site: ast.AST | None = None):
        self.scope, self.graph = scope, scope.graph
        self.bound = bound  # inside a prelude body: its parameters
        self.site = site  # ... and the call that mistakes are reported at

    def fail(self, tree: ast.AST, message: str, hint: str = "") -> Placed:
        return Placed(self.site or tree, Mistake(message, hint))

    def read(self, tree: ast.expr) -> Node:
        method = getattr(self, "read_" + type(tree).__name__, None)
        if method is None:
            hint = "formulas have numbers, names, + - * / **, comparisons, & | ~, x[0], a @ b and calls"
            raise self.fail(tree, f"{_construct(tree)} is not part of the language", hint)
        return method(tree)

    def read_Constant(self, tree: ast.Constant) -> Node:
        value = tree.value
        if not isinstance(value, bool | int | float):
            raise self.fail(tree, f"the literal {str(value)[:40]!r} is not part of the language", "write a number")
        return self.at(tree, lambda: self.graph.const(value))

    def read_Name(self, tree: ast.Name) -> Node:
        name, scope = tree.id, self.scope
        if self.bound is not None:
            value = self.bound[name]
            assert isinstance(value, Node)
            return value
        if name in scope.values:
            scope.used.add(name)
            return scope.values[name]
        if name in scope.inputs:
            array = scope.inputs[name]
            scope.used.add(name)
            if array.parts is not None:
                parts = ", ".join(f"{name}[{i}]" for i in range(min(array.parts, 4)))
                raise self.fail(tree, f"{name!r} is {array}: name its part", f"its parts are {parts}")
            return self.leaf(array, None)
        if name in CONSTANTS:
            return self.graph.const(CONSTANTS[name])
        if name in functions():
            raise self.fail(tree, f"{name!r} is a function", f"call it: {name}(...)")
        if name in scope.axes:
            raise self.fail(tree, f"{name!r} is an axis", f"its position is index({name}), its extent size({name})")
        raise self.fail(tree, f"unknown name {name[:60]!r}", known(name, scope.names()))

    def leaf(self, array: Array, part: int | None) -> Node:
        kind = DTYPES[self.scope.types.get(array.dtype, (array.dtype,))[0]].kind
        return self.graph.node("input", attr=Leaf(array.name, part), kind=kind, dims=array.axes)

    def read_Subscript(self, tree: ast.Subscript) -> Node:
        base, index = tree.value, tree.slice
        array = self.scope.inputs.get(base.id) if isinstance(base, ast.Name) else None
        if self.bound is not None or array is None:
            raise self.fail(tree, "only an input with parts can be indexed", "parts come from (2 N), (N 2) or T[3]")
        self.scope.used.add(array.name)
        if array.parts is None:
            raise self.fail(tree, f"{array.name!r} is {array} and has no parts", f"write {array.name}")
        if not isinstance(index, ast.Constant) or type(index.value) is not int or not 0 <= index.value < array.parts:
            raise self.fail(index, f"{array.name!r} has the parts 0 to {array.parts - 1}", f"as in {array.name}[0]")
        return self.leaf(array, index.value)

    def read_UnaryOp(self, tree: ast.UnaryOp) -> Node:
        value = self.read(tree.operand)
        if isinstance(tree.op, ast.UAdd):
            return value
        if isinstance(tree.op, ast.USub):
            if value.is_const and value.kind != "bool":
                return self.at(tree, lambda: self.graph.const(-value.attr))  # type: ignore[operator]
            return self.apply(tree, "neg", [value])
        if isinstance(tree.op, ast.Invert):
            return self.apply(tree, "not", [value])
        raise self.fail(tree, "'not' is not part of the language", "write ~condition")

    def read_BinOp(self, tree: ast.BinOp) -> Node:
        kind = type(tree.op).__name__
        if kind not in (*BINARY, "Pow", "MatMult"):
            raise self.fail(tree, f"this operator ({kind}) is not part of the language", "it has + - * / ** @ & |")
        left, right = self.read(tree.left), self.read(tree.right)
        if kind == "Pow":
            return self.power(tree, left, right)
        if kind == "MatMult":
            return self.contract(tree, left, right)
        return self.apply(tree, BINARY[kind], [left, right])

    def read_BoolOp(self, tree: ast.BoolOp) -> Node:
        raise self.fail(tree, "'and' and 'or' are not part of the language", "write (a > 0) & (b > 0)")

    def read_Compare(self, tree: ast.Compare) -> Node:
        if len(tree.ops) != 1:
            raise self.fail(tree, "chained comparisons are not part of the language", "write (a < b) & (b < c)")
        kind = type(tree.ops[0]).__name__
        if kind not in COMPARE:
            raise self.fail(tree, f"the comparison {kind} is not part of the language", "it has < <= > >= == !=")
        return self.apply(tree, COMPARE[kind], [self.read(tree.left), self.read(tree.comparators[0])])

    def read_IfExp(self, tree: ast.IfExp) -> Node:
        raise self.fail(tree, "'if' is not part of the language", "write where(condition, a, b)")

    def read_Call(self, tree: ast.Call) -> Node:
        if not isinstance(tree.func, ast.Name):
            raise self.fail(tree.func, "functions are called by their plain name", "as in tanh(x), not jnp.tanh(x)")
        name = tree.func.id
        if any(isinstance(a, ast.Starred) for a in tree.args) or any(k.arg is None for k in tree.keywords):
            raise self.fail(tree, "* and ** are not part of the language")
        if name in SPECIAL:
            return getattr(self, "call_" + name)(tree)
        if name in REDUCTIONS:
            return self.reduction(tree, name)
        if name in OPS and name not in OPERATORS:
            op = OPS[name]
            if tree.keywords or len(tree.args) != op.arity:
                plural = "argument" if op.arity == 1 else "arguments"
                raise self.fail(tree, f"{name!r} takes {op.arity} {plural}")
            return self.apply(tree, name, [self.read(a) for a in tree.args])
        if name in prelude() and (self.bound is not None or name != "finite_or_zero"):
            return self.composite(tree, prelude()[name])
        if name in self.scope.names():
            raise self.fail(tree.func, f"{name!r} is a value, not a function")
        raise self.fail(tree.func, f"unknown function {name[:60]!r}", known(name, functions(), "functions"))

    def composite(self, tree: ast.Call, made: Composite) -> Node:
        given = self.arguments(tree, made.params, made.defaults)
        bound: dict[str, Node | tuple[str, ...]] = {}
        for name, value in given.items():
            if name == "axis":
                bound[name] = self.axes(value)
            elif value in made.defaults:
                bound[name] = _Reader(self.scope, {}, self.site or tree).read(value)
            else:
                bound[name] = self.read(value)
        return _Reader(self.scope, bound, self.site or tree).read(made.body)

    def arguments(
        self, tree: ast.Call, params: tuple[str, ...], defaults: tuple[ast.expr | None, ...] = ()
    ) -> dict[str, ast.expr]:
        """Arguments by the name of their parameter."""
        name = tree.func.id if isinstance(tree.func, ast.Name) else ""
        usage = f"{name}({', '.join(params)})"
        given = dict(zip(params, tree.args, strict=False))
        for keyword in tree.keywords:
            if keyword.arg not in params or keyword.arg in given:
                raise self.fail(keyword, f"{name!r} does not take {str(keyword.arg)[:60]!r} here", f"it is {usage}")
            given[keyword.arg] = keyword.value
        for param, default in zip(params, defaults, strict=False):
            if param not in given and default is not None:
                given[param] = default
        if len(tree.args) > len(params) or set(given) != set(params):
            raise self.fail(tree, f"{name!r} takes {', '.join(params)}", f"it is {usage}")
        return given

    # The language's own calls

    def call_cast(self, tree: ast.Call) -> Node:
        given = self.arguments(tree, SPECIAL["cast"])
        dtype = given["dtype"]
        names = [*self.scope.types, *DTYPES]
        if not isinstance(dtype, ast.Name) or dtype.id not in names:
            text = dtype.id if isinstance(dtype, ast.Name) else "this"
            raise self.fail(dtype, f"{text[:60]!r} is no type", known(text, names, "types"))
        value = self.read(given["e"])
        kind = DTYPES[self.scope.types.get(dtype.id, (dtype.id,))[0]].kind
        if kind == "bool" and value.kind != "bool":
            raise self.fail(tree, "a number is not cast to bool", "compare it: e != 0")
        return self.graph.node("cast", (value,), dtype.id, kind=kind, dims=value.dims)

    def call_index(self, tree: ast.Call) -> Node:
        axis = self.one_axis(tree, "index")
        return self.graph.node("index", attr=axis, kind="int", dims=(axis,))

    def call_size(self, tree: ast.Call) -> Node:
        axis = self.one_axis(tree, "size")
        return self.graph.node("size", attr=axis, kind="int", dims=())

    def one_axis(self, tree: ast.Call, name: str) -> str:
        axes = self.axes(self.arguments(tree, SPECIAL[name])["axis"])
        if len(axes) != 1 or axes[0] == ROWS:
            raise self.fail(tree, f"{name!r} takes one named axis", f"as in {name}(N)")
        return axes[0]

    def call_take(self, tree: ast.Call) -> Node:
        given = self.arguments(tree, SPECIAL["take"])
        axes = self.axes(given["axis"])
        table, place = self.read(given["table"]), self.read(given["i"])
        if table.op != "input" or place.op != "input" or place.kind != "int":
            raise self.fail(tree, "'take' gathers from an input by an integer input", "as in take(cos, positions, axis=P)")
        if len(axes) != 1 or axes[0] == ROWS or axes[0] not in table.dims:
            raise self.fail(given["axis"], f"{axes[0]!r} is no axis of the table", f"it has {', '.join(table.dims)}")
        dims = set(table.dims) - set(axes) | set(place.dims)
        return self.graph.node("take", (table, place), axes[0], kind=table.kind, dims=dims)

    def reduction(self, tree: ast.Call, name: str) -> Node:
        given = self.arguments(tree, ("e", "axis"))
        value, axes = self.read(given["e"]), self.axes(given["axis"])
        missing = [axis for axis in axes if axis not in value.dims]
        if missing:
            has = f"it varies along {', '.join(value.dims)}" if value.dims else "it is a scalar"
            raise self.fail(given["axis"], f"{name!r} over {', '.join(missing)}, which this does not have", has)
        rule = REDUCTIONS[name][0]
        if rule == "logic" and value.kind != "bool":
            raise self.fail(tree, f"{name!r} takes a bool, not a {value.kind}", "compare first")
        if rule != "logic" and value.kind == "bool":
            raise self.fail(tree, f"{name!r} takes numbers, not a bool", "write where(condition, 1, 0)")
        if rule == "float":
            value = self.to_float(value)
        dims = [d for d in value.dims if d not in axes]
        return self.graph.node(name, (value,), self.graph.order(axes), kind=value.kind, dims=dims)

    def axes(self, tree: ast.expr) -> tuple[str, ...]:
        """An axis argument: N, ..., or a tuple of them."""
        if isinstance(tree, ast.Name) and self.bound and isinstance(self.bound.get(tree.id), tuple):
            return self.bound[tree.id]  # type: ignore[return-value]
        items = tree.elts if isinstance(tree, ast.Tuple) else [tree]
        names: list[str] = []
        for item in items:
            if isinstance(item, ast.Constant) and item.value is Ellipsis:
                name = ROWS
            elif isinstance(item, ast.Name):
                name = item.id
            else:
                raise self.fail(item, "an axis is named, not numbered", f"axes are {', '.join(self.graph.axes)}")
            if name not in self.scope.axes:
                raise self.fail(item, f"unknown axis {name[:60]!r}", known(name, self.graph.axes, "axes"))
            if name in names:
                raise self.fail(item, f"axis {name!r} stands twice")
            names.append(name)
        if not names:
            raise self.fail(tree, "no axis is named", f"axes are {', '.join(self.graph.axes)}")
        return tuple(names)

    # Operations

    def contract(self, tree: ast.BinOp, left: Node, right: Node) -> Node:
        shared = [a for a in left.dims if a in right.dims and a not in self.scope.output_axes]
        if len(shared) != 1:
            found = f"these share {', '.join(shared)}" if shared else "these share none"
            raise self.fail(tree, "'@' contracts over the one axis that both sides have and no output has", found)
        if "bool" in (left.kind, right.kind):
            raise self.fail(tree, "'@' takes numbers, not bools")
        left, right = self.same_kind(left, right)
        dims = (set(left.dims) | set(right.dims)) - set(shared)
        return self.graph.node("contract", (left, right), shared[0], kind=left.kind, dims=dims)

    def power(self, tree: ast.BinOp, base: Node, exponent: Node) -> Node:
        if exponent.op == "param":
            if base.kind == "bool" or exponent.kind == "bool":
                raise self.fail(tree, "'**' takes numbers, not bools")
            return self.fold("pow", [self.to_float(base), self.to_float(exponent)])
        if not exponent.is_const or exponent.kind == "bool":
            raise self.fail(tree.right, "the exponent must be a number or a parameter", "write exp(b * log(a))")
        if base.kind == "bool":
            raise self.fail(tree.left, "'**' takes numbers, not bools")
        n = exponent.attr
        assert isinstance(n, int | float)
        if abs(n) > MAX_EXPONENT:
            raise self.fail(tree.right, f"the exponent must be from -{MAX_EXPONENT} to {MAX_EXPONENT}")
        if n == 0.5:
            return self.apply(tree, "sqrt", [base])
        if n != int(n):
            return self.apply(tree, "pow", [base, exponent])
        if isinstance(n, float):
            base = self.to_float(base)
        if n < 0:
            return self.apply(tree, "reciprocal", [self.integer_power(tree, self.to_float(base), -int(n))])
        return self.integer_power(tree, base, int(n))

    def integer_power(self, tree: ast.AST, base: Node, n: int) -> Node:
        """Repeated squaring, as lax.integer_pow."""
        result = None
        while n:
            if n & 1:
                result = base if result is None else self.apply(tree, "mul", [result, base])
            n >>= 1
            if n:
                base = self.apply(tree, "mul", [base, base])
        return result or self.graph.const(1.0 if base.kind == "float" else 1)

    def apply(self, tree: ast.AST, name: str, args: list[Node]) -> Node:
        """A row of the op table, its kinds checked and brought together."""
        op, kinds = OPS[name], [a.kind for a in args]
        sign = op.cute.format("a", "b").strip() if op.infix else f"{name!r}"
        if op.rule == "logic" or (name in ("eq", "ne") and kinds == ["bool", "bool"]):
            if set(kinds) != {"bool"}:
                other = next(k for k in kinds if k != "bool")
                raise self.fail(tree, f"{sign} takes bools, not a {other}", "compare first, as in (x > 0) & (x < 1)")
            return self.fold(name, args)
        if op.rule == "select":
            condition, *rest = args
            if condition.kind != "bool":
                raise self.fail(tree, f"{name!r} takes a bool first, not a {condition.kind}", "compare first: x > 0")
            if [n.kind for n in rest] == ["bool", "bool"]:
                return self.fold(name, args)
            args, kinds = rest, kinds[1:]
        if "bool" in kinds:
            raise self.fail(tree, f"{sign} takes numbers, not a bool", "write where(condition, a, b)")
        if op.rule in ("float", "predicate"):
            args = [self.to_float(a) for a in args]
        elif len(args) == 2:
            args = list(self.same_kind(*args))
        if op.rule == "round" and args[0].kind == "int":
            return args[0]
        if op.rule == "select":
            args = [condition, *args]
        return self.fold(name, args)

    def fold(self, name: str, args: list[Node]) -> Node:
        """The node, or its value where every argument is a constant and Python computes it as a kernel would."""
        op = OPS[name]
        if all(a.is_const for a in args) and name in ("add", "sub", "mul", "div", "neg", "sqrt"):
            values = [a.attr for a in args]
            try:
                result = math.sqrt(values[0]) if name == "sqrt" else eval(  # noqa: S307 - numbers and one operator
                    {"div": "a / b", "neg": "-a"}.get(name, f"a {op.cute[4]} b"), {}, dict(zip("ab", values, strict=False))
                )
                return self.graph.const(result)
            except (ArithmeticError, ValueError, Mistake):
                pass
        boolean = op.rule in ("compare", "predicate", "logic") or (op.rule == "select" and args[1].kind == "bool")
        kind = "bool" if boolean else args[-1].kind
        return self.graph.node(name, tuple(args), kind=kind, dims=[d for a in args for d in a.dims])

    def same_kind(self, left: Node, right: Node) -> tuple[Node, Node]:
        if left.kind == right.kind:
            return left, right
        return self.to_float(left), self.to_float(right)

    def to_float(self, node: Node) -> Node:
        if node.kind == "float":
            return node
        if node.is_const:
            return self.graph.const(float(node.attr))  # type: ignore[arg-type]
        if node.kind == "bool":
            raise Mistake("takes numbers, not a bool", "write where(condition, a, b)")
        return self.graph.node("float", (node,), kind="float", dims=node.dims)

    def at(self, tree: ast.AST, make: Callable[[], Node]) -> Node:
        try:
            return make()
        except Mistake as error:
            raise Placed(self.site or tree, error) from None


def _construct(tree: ast.AST) -> str:
    names = {
        "Lambda": "lambda", "List": "a list", "Dict": "a dict", "Set": "a set", "Tuple": "a tuple",
        "Attribute": "an attribute", "NamedExpr": "':='", "JoinedStr": "an f-string", "Starred": "'*'",
        "ListComp": "a comprehension", "GeneratorExp": "a comprehension", "Await": "await", "Yield": "yield",
    }  # fmt: skip
    return names.get(type(tree).__name__, f"this ({type(tree).__name__})")
