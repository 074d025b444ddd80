"""The graph of a derived chain as text in the language of chains, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from codegen.graph.emit import ATOM, BINDING, PLAIN, literal, parenthesised
from codegen.graph.names import temporaries
from codegen.graph.nodes import Call, Chain, Leaf, Node, Selected, along_of, axes_text, lost_axes, topological
from codegen.graph.ops import LOWERED_POWER, OPERATORS, OPS, PLACED, REDUCTIONS, SCANS

WIDTH = 100  # the most characters of an expression
# Operations that jnp writes in another way than a chain
SIGNS = {"div": "{0} / {1}", "pow": "{0} ** {1}", "not": "~{0}", "invert": "~{0}"}


def unparse(chain: Chain, outputs: Collection[str], taken: Collection[str], first: int = 0) -> str:
    """A line for each statement from number `first` on; each long expression in it has a line before it. Composite functions
    are written as calls, except private ones of the prelude. Values keep the names of their statements, except `outputs`, which
    expressions cannot use; new names differ from those `taken`. Marks (`_pinned`, `_others`) are left out."""
    return _Writer(chain, outputs, taken).text(first)


class _Writer:
    def __init__(self, chain: Chain, outputs: Collection[str], taken: Collection[str]):
        self.statements, self.calls = chain.statements, chain.graph.calls
        named = [s for s in reversed(self.statements) if s.part is None and s.name not in outputs]
        self.names = {id(s.value): s.name for s in named}
        self.uses: Counter[int] = Counter(id(s.value) for s in self.statements)
        for node in topological((s.value for s in self.statements), arguments=self.arguments):
            self.uses.update(id(a) for a in set(self.arguments(node)))
        self.written: dict[int, tuple[str, int]] = {}
        self.temporaries = temporaries({*taken, *(s.name for s in self.statements)})
        self.lines: list[str] = []

    def call(self, node: Node) -> Call | None:
        call = self.calls.get(id(node))
        return None if call is None or call.is_private else call

    def arguments(self, node: Node) -> tuple[Node, ...]:
        call = self.call(node)
        if call is not None:
            return call.values
        if node.op == "_bits":
            return ()
        if node.op == LOWERED_POWER:
            return node.args[:2]
        return node.args[:1] if node.op.startswith("_") and node.op != PLACED else node.args

    def text(self, first: int) -> str:
        known = [s for s in reversed(self.statements[:first]) if s.part is None]
        self.written |= {id(s.value): (s.name, ATOM) for s in known}
        for statement in self.statements[first:]:
            for node in topological([statement.value], lambda n: id(n) in self.written, self.arguments):
                if id(node) not in self.written:
                    self.write(node)
            text = self.written[id(statement.value)][0]
            if at := statement.at:
                how = "" if at.how == "set" else f", how={at.how}"
                text = f"put({at.table}, {text}, {at.index}, axis={at.axis}{how})"
            if text != statement.target:
                self.lines.append(f"{statement.target} = {text}")
        return "\n".join(self.lines) + "\n"

    def write(self, node: Node) -> None:
        text, binding = self.expression(node)
        leaf = node.op in ("input", "param", "const", "index", "size", "float")
        if not leaf and (self.uses[id(node)] > 1 or len(text) > WIDTH):
            name = self.names.get(id(node)) or next(self.temporaries)
            self.lines.append(f"{name} = {text}")
            text, binding = name, ATOM
        self.written[id(node)] = text, binding

    def expression(self, node: Node) -> tuple[str, int]:
        call = self.call(node)
        if call is not None:
            given = call.arguments.items()
            words = [f"{n}={axes_text(a)}" if isinstance(a, tuple) else self.written[id(a)][0] for n, a in given]
            return f"{call.name}({', '.join(words)})", ATOM
        if node.is_const:
            text = constant(node)
            return text, BINDING["neg"] if text.startswith("-") else ATOM
        if isinstance(node.attr, Leaf):
            return str(node.attr), ATOM
        args = [self.written[id(a)] for a in self.arguments(node)]
        if node.op == "param":
            return str(node.attr), ATOM
        if node.op in ("index", "size"):
            return f"{node.op}({node.attr})", ATOM
        if node.op == "_bits":
            assert isinstance(node.args[0].attr, Leaf)
            return f"bits({node.args[0].attr.name}, axes={axes_text(node.attr)})", ATOM  # type: ignore[arg-type]
        if node.op == PLACED:  # as the sum that it is, of one value at most
            assert isinstance(node.attr, Selected)
            values, places, index = (text for text, _ in args)
            return f"sum(where({index} == {places}, {values}, 0.0), axis={node.attr.into})", ATOM
        op = "pow" if node.op == LOWERED_POWER else node.op
        if op == "float" or op.startswith("_"):
            return args[0]
        if node.op == "shift":
            assert isinstance(node.attr, tuple)
            text = args[0][0]
            for axis, by in node.attr:
                text = f"shift({text}, axis={axis}, by={by})"
            return text, ATOM
        if node.op in ("take", "pick"):
            return f"take({args[0][0]}, {args[1][0]}, axis={node.attr})", ATOM
        if node.op == "cast":
            return f"cast({args[0][0]}, {node.attr})", ATOM
        if node.op == "contract":
            return _product(node, args)
        if node.op in REDUCTIONS:
            if node.args[0].op == "float" and REDUCTIONS[node.op].rule == "arith":
                args[0] = _as_float(args[0])
            return f"{node.op}({args[0][0]}, axis={axes_text(lost_axes(node))})", ATOM
        if node.op in SCANS:
            return _scan(node, [text for text, _ in args]), ATOM
        if isinstance(node.attr, Selected):
            words = [text for text, _ in args] + ([node.attr.into] if node.attr.count else [])
            return f"{node.op}({', '.join(words)}, axis={axes_text(node.attr.axes)})", ATOM
        numbers = [a.op for a in node.args if a.kind != "bool"]
        if OPS[node.op].rule in ("arith", "compare", "select") and set(numbers) == {"float"}:
            args[-1] = _as_float(args[-1])
        if op not in OPERATORS:
            return f"{op}({', '.join(text for text, _ in args)})", ATOM
        binding = PLAIN[op]
        texts = [parenthesised(*arg, binding, place) for place, arg in enumerate(args)]
        return SIGNS.get(op, OPS[op].jnp).format(*texts), binding


def _as_float(text: tuple[str, int]) -> tuple[str, int]:
    """Integers that are converted to float here, where nothing else in the text says so."""
    return f"1.0 * {parenthesised(*text, BINDING['mul'], 1)}", BINDING["mul"]


def _product(node: Node, args: list[tuple[str, int]]) -> tuple[str, int]:
    both, axes = {*node.args[0].dims} & {*node.args[1].dims}, lost_axes(node)
    if both != {*axes} or node.args[0].dims[-1:] != axes:  # the axis would be another one, or unclear
        return f"dot({args[0][0]}, {args[1][0]}, axis={axes_text(axes)})", ATOM
    return " @ ".join(parenthesised(*arg, BINDING["mul"], place) for place, arg in enumerate(args)), BINDING["mul"]


def _scan(node: Node, texts: list[str]) -> str:
    along = along_of(node)
    words = [*texts[:2], f"axis={along.axis}"]
    words += [f"initial={texts[2]}"] if len(texts) > 2 and not node.args[2].is_const else []
    words += [f"{word}=true" for word in ("reverse", "before") if getattr(along, word)]
    return f"{node.op}({', '.join(words)})"


def constant(node: Node) -> str:
    value = node.attr
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "nan" if value != value else "inf" if value > 0 else "-inf"
    return literal(value)
