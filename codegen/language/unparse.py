"""The typed graph back to the language of a chain: what `formula.py` reads, written out again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from codegen.graph.contraction import pin_types
from codegen.graph.emit import ATOM, BINDING, PLAIN, literal, parenthesised
from codegen.graph.nodes import Call, Leaf, Node, Statement, axes_text, lost_axes, topological
from codegen.graph.ops import OPERATORS, OPS, PINNED, REDUCTIONS

WIDTH = 100  # of an expression
SIGNS = {"div": "{0} / {1}", "pow": "{0} ** {1}", "not": "~{0}"}  # where jnp's text is not the language's


def unparse(
    statements: Iterable[Statement], calls: Mapping[int, Call], names: Mapping[int, str], leaves: Mapping[int, str],
    taken: Collection[str], pinned: Mapping[int, tuple[str, ...]] = MappingProxyType({}),
) -> str:  # fmt: skip
    """A line for each statement, and before it for each value it shares with others: `names` are what the values were
    called before. Composite functions (`calls`) are written as calls; the private ones of the prelude are written out.
    `leaves` are there already, under these names; no new one is among those `taken`. `pinned` values are marked so, by
    identity, with the types that each has there (`contraction.marks`)."""
    return _Writer(list(statements), calls, names, leaves, taken, pinned).text()


class _Writer:
    def __init__(
        self, statements: list[Statement], calls: Mapping, names: Mapping[int, str], leaves: Mapping[int, str],
        taken: Collection[str], pinned: Mapping[int, tuple[str, ...]],
    ):  # fmt: skip
        self.pinned = pinned
        self.statements, self.calls, self.names, self.leaves = statements, calls, names, leaves
        self.uses: Counter[int] = Counter(id(s.value) for s in statements)
        for node in self.reached(s.value for s in statements):
            if id(node) not in leaves:
                self.uses.update(id(a) for a in set(self.arguments(node)))
        self.written: dict[int, tuple[str, int]] = {}
        self.taken = {*taken, *names.values(), *leaves.values(), *(s.name for s in statements)}
        self.lines: list[str] = []
        self.count = 0

    def call(self, node: Node) -> Call | None:
        call = self.calls.get(id(node))
        return (
            call if call is not None and not call.name.startswith("_") and not self.marked_inside(node, call) else None
        )

    def marked_inside(self, node: Node, call: Call) -> bool:
        """Whether a call stands for a function whose mark names types: it is written out, to show the mark."""
        if not any(self.pinned.values()):
            return False
        given = {id(a) for a in call.values}
        return any(self.pinned.get(id(n)) for n in topological([node], lambda n: id(n) in given) if n is not node)

    def arguments(self, node: Node) -> tuple[Node, ...]:
        call = self.call(node)
        return node.args if call is None else call.values

    def reached(self, roots: Iterable[Node]) -> Iterable[Node]:
        return topological(roots, lambda node: id(node) in self.leaves, self.arguments)

    def is_met(self, node: Node) -> bool:
        """Whether nothing that is still to be written lies behind a node."""
        return id(node) in self.written or id(node) in self.leaves

    def text(self) -> str:
        for statement in self.statements:
            for node in topological([statement.value], self.is_met, self.arguments):
                if id(node) not in self.written:
                    self.write(node)
            text = self.written[id(statement.value)][0]
            if text != statement.target:
                self.lines.append(f"{statement.target} = {text}")
        return "\n".join(self.lines) + "\n"

    def write(self, node: Node) -> None:
        text, binding = self.expression(node)
        if id(node) in self.pinned and id(node) not in self.leaves:
            text, binding = f"{PINNED}({', '.join([text, *self.pinned[id(node)]])})", ATOM
        leaf = id(node) in self.leaves or node.op in ("input", "param", "const", "index", "size", "float")
        if not leaf and (self.uses[id(node)] > 1 or len(text) > WIDTH):
            name = self.names.get(id(node)) or self.fresh()
            self.lines.append(f"{name} = {text}")
            text, binding = name, ATOM
        self.written[id(node)] = text, binding

    def fresh(self) -> str:
        while (name := f"t{self.count}") in self.taken:
            self.count += 1
        self.taken.add(name)
        return name

    def expression(self, node: Node) -> tuple[str, int]:
        if id(node) in self.leaves:
            return self.leaves[id(node)], ATOM
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
        args = [self.written[id(a)] for a in node.args]
        if node.op == "param":
            return str(node.attr), ATOM
        if node.op in ("index", "size"):
            return f"{node.op}({node.attr})", ATOM
        if node.op == "float":
            return args[0]
        if node.op == "take":
            return f"take({args[0][0]}, {args[1][0]}, axis={node.attr})", ATOM
        if node.op == "cast":
            return f"cast({args[0][0]}, {node.attr})", ATOM
        if node.op == PINNED:
            return f"{PINNED}({', '.join([args[0][0], *pin_types(node)])})", ATOM
        if node.op in REDUCTIONS:
            return f"{node.op}({args[0][0]}, axis={axes_text(lost_axes(node))})", ATOM
        numbers = [a.op for a in node.args if a.kind != "bool"]
        if OPS[node.op].rule in ("arith", "compare", "select") and set(numbers) == {"float"}:
            # integers that are brought to float here: nothing else would say so
            place = len(args) - 1
            args[place] = f"1.0 * {parenthesised(*args[place], BINDING['mul'], 1)}", BINDING["mul"]
        if node.op not in OPERATORS:
            return f"{node.op}({', '.join(text for text, _ in args)})", ATOM
        binding = PLAIN[node.op]
        texts = [parenthesised(*arg, binding, place) for place, arg in enumerate(args)]
        return SIGNS.get(node.op, OPS[node.op].jnp).format(*texts), binding


def constant(node: Node) -> str:
    value = node.attr
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "nan" if value != value else "inf" if value > 0 else "-inf"
    return literal(value)
