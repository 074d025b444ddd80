"""Prints typed statements as lines of Python: the chain on CuTe vectors, and the same chain in jnp.

A value used once is written inside the expression that uses it. Shared values, and expressions too long for a line, get a
name. Chain names are kept, so the code reads like the spec.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from codegen.graph.contraction import Rounding, is_computed
from codegen.graph.names import temporaries
from codegen.graph.nodes import ROWS, Node, Selected, Statement, along_of, lost_axes, picked_axes, topological
from codegen.graph.ops import IN_STAGES, NUCLEUS, OPS, PINNED, PLACED, REDUCTIONS, SCANS, SELECTIONS, Operation

WIDTH = 96  # the most characters of an expression

# The precedence of Python's operators; a name, a literal or a call has the highest.
ATOM = 10
BINDING = {"or": 2, "xor": 3, "not": 3, "invert": 3, "and": 4, "add": 6, "sub": 6, "mul": 7, "neg": 8, "pow": 9}
BINDING |= dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne"), 1)
SEPARATE = {"add": "device.add", "sub": "device.subtract", "mul": "device.multiply"}  # rounded separately
# A kernel computes both of one argument together, and so the sigmoids of an argument and of its negative
PAIR = ("sin", "cos")
BOTH = {"sin": "device.sine_and_cosine({}, {})", "sigmoid": "device.both_sigmoids({}, {})"}
# Operations written as Python operators in jnp: some that a kernel calls as functions, and `~`, with a sign's precedence
PLAIN = BINDING | dict.fromkeys(("shl", "shr"), 5) | dict.fromkeys(("div", "floordiv", "mod"), BINDING["mul"])
PLAIN |= dict.fromkeys(("not", "invert"), BINDING["neg"])


@dataclass(frozen=True)
class Dialect:
    """How values are written in the emitted chain.

    `leaves` names the values that the chain reads, by (op, attr, index name). `floating` and `integer` are the compute types.
    `approx` is the text of the approximation flag.
    """

    name: str  # "cute" or "jnp"
    leaves: Mapping[tuple[Any, ...], str]
    floating: str
    integer: str
    types: Mapping[str, str]  # dtype or type variable -> its text in this dialect
    approx: str = "False"
    exact: bool = False
    fast: bool = False
    like: str = ""  # cute: a vector of the compute type, for constants that need one
    order: tuple[str, ...] = ()  # jnp: the axes of every operand that is not a scalar
    columns: tuple[str, ...] = ()  # the axes along a vector, where other axes make a row
    unusual: frozenset[str] = frozenset()  # cute: names of types that are rounded to by functions of their own
    innermost: str = ""  # cute: the last axis of all
    approx_of: Mapping[int, str] = field(default_factory=dict)  # the flag of single nodes, by identity
    written: Mapping[int, str] = field(default_factory=dict)  # the text of single nodes, by identity
    given: Mapping[int, str] = field(default_factory=dict)  # the names of nodes that are computed already, by identity
    # Cute: the number of columns that a reduction within a row reduces, by the node's identity
    widths: Mapping[int, int] = field(default_factory=dict)
    # Cute: differences with a product are rounded once. (The compiler does so with sums alone.)
    contracts: bool = False
    rounding: Rounding = field(default_factory=Rounding)
    # The modes of tables that computed indices read, by the table's name: an axis, or the number of a part
    tables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def leaf_key(node: Node) -> tuple[Any, ...]:
    if node.op == "shift":
        return node.op, node.args[0].attr, node.attr
    if node.op == "take":
        return "take", node.args[0].attr, node.args[1].attr, node.attr
    if node.op in IN_STAGES:
        return node.op, node.attr, id(node)
    return node.op, node.attr


def emit(statements: tuple[Statement, ...], names: Mapping[tuple[str, int | None], str], dialect: Dialect) -> list[str]:
    """The statements as lines; `names` gives each target's variable."""
    return _Emitter(statements, names, dialect, [s.value for s in statements]).lines()


def emit_values(
    statements: tuple[Statement, ...],
    names: Mapping[tuple[str, int | None], str],
    dialect: Dialect,
    values: Sequence[Node],
) -> tuple[list[str], list[str]]:
    """The lines that compute some values, and the values' texts. Leaves of the dialect are not computed."""
    emitter = _Emitter(statements, names, dialect, values)
    lines, results = emitter.lines(), [emitter.result(value) for value in values]
    # A second name of a value that is computed already, which nothing here uses
    idle = emitter.aliases - set(re.findall(r"\w+", " ".join([*(t.partition(" = ")[2] for t in lines), *results])))
    return [line for line in lines if line.partition(" = ")[0] not in idle], results


class _Emitter:
    def __init__(
        self,
        statements: Sequence[Statement],
        names: Mapping[tuple[str, int | None], str],
        dialect: Dialect,
        roots: Sequence[Node],
    ):
        self.names, self.dialect, self.roots = names, dialect, roots
        self.uses = Counter(map(id, roots))
        self.leaves: dict[int, bool] = {}  # whether a node is a leaf, by identity
        self.taken: dict[int, tuple[Node, ...]] = {}  # the arguments of the reached nodes, by identity: a leaf has none
        self.once: set[int] = set()
        pairs: dict[tuple[int, str], dict[int, Node]] = defaultdict(dict)
        for node in topological(roots, self.is_leaf, self.arguments):
            if self.is_leaf(node):
                self.taken[id(node)] = ()
                continue
            taken = self.taken[id(node)] = self.arguments(node)
            found = place_in_pair(node)
            if found and (found[0] in taken or not self.is_leaf(taken[0])):  # else nothing computes the argument before
                argument, first, place = found
                pairs[id(argument), first][place] = node
            for argument in taken:
                self.uses[id(argument)] += 1
            if dialect.name == "jnp":
                self.once.update(map(id, compared(node)))
        self.statements = [s for s in statements if id(s.value) in self.taken]
        self.own = {id(s.value): names[(s.name, s.part)] for s in reversed(self.statements)}
        self.temporaries = temporaries({*names.values(), *dialect.leaves.values(), *dialect.given.values()})
        self.text: dict[int, str] = {}
        self.binding: dict[int, int] = {}  # the precedence of a node's text
        self.out: list[str] = []
        self.aliases: set[str] = set()
        both = [(found[0], found[1]) for found in pairs.values() if len(found) == 2]
        self.together = {id(node): pair for pair in both if self.alike(pair) for node in pair}

    def alike(self, pair: Sequence[Node]) -> bool:
        """Whether a pair is made by one function of a kernel."""
        dialect = self.dialect
        plain = (
            dialect.name == "cute" and not dialect.fast and not any(id(n) in dialect.rounding.functions for n in pair)
        )
        same = len({self.approximate(n) for n in pair}) == 1
        return plain and not pair[0].args[0].is_const and (same or pair[0].op in PAIR)

    def approximate(self, node: Node) -> str:
        """The text that says whether a node may be approximate."""
        return self.dialect.approx_of.get(id(node), self.dialect.approx)

    def arguments(self, node: Node) -> tuple[Node, ...]:
        """The nodes whose texts are part of a node's text."""
        return node.args[1:] if node.op == "pick" else self.rounded(node) or self.multiplied(node) or node.args

    def multiplied(self, node: Node) -> tuple[Node, ...]:
        """The factors of the product in a difference that is rounded once, and the other value. Empty for other nodes."""
        separate = self.dialect.rounding.products | self.dialect.rounding.sums
        if node.op == "sub" and node.kind == "float" and self.dialect.contracts and id(node) not in separate:
            for product, other in (node.args, node.args[::-1]):
                if product.op == "mul" and id(product) not in separate and not self.is_leaf(product):
                    return *product.args, other
        return ()

    def rounded(self, node: Node) -> tuple[Node, ...]:
        """The arguments of a rounding to an integer in a kernel: the rounded value, or dividend and divisor of a quotient whose
        divisor is one value for a vector. Empty for other nodes."""
        if self.dialect.name != "cute" or node.op != "cast" or node.kind != "int" or node.attr in self.dialect.unusual:
            return ()
        (value,) = node.args
        if value.op != "round" or self.is_leaf(value):
            return ()
        divided = value.args[0].op == "div" and not self.is_leaf(value.args[0]) and self.by_one(value.args[0])
        return value.args[0].args if divided else value.args

    def is_leaf(self, node: Node) -> bool:
        found = self.leaves.get(id(node))
        if found is None:
            found = leaf_key(node) in self.dialect.leaves or id(node) in self.dialect.given
            self.leaves[id(node)] = found
        return found

    def lines(self) -> list[str]:
        roots = [*(s.value for s in self.statements), *self.roots]
        nodes = topological(roots, arguments=lambda node: self.taken[id(node)])
        # A value that a statement names is written under that name
        for statement in self.statements:
            name, value = self.names[(statement.name, statement.part)], statement.value
            while id(value) not in self.text:
                node = next(nodes)
                if id(node) not in self.text:  # as one of a pair
                    self.visit(node, name if node is value else None)
            text = self.text[id(value)]
            if text != name:
                if value.is_const:
                    text = self.constant_vector(value)
                self.out.append(f"{name} = {text}")
                if value.is_const or self.is_leaf(value):
                    self.aliases.add(name)
            if not value.is_const:
                self.text[id(value)], self.binding[id(value)] = name, ATOM
        for node in nodes:
            if id(node) not in self.text:
                self.visit(node, None)
        return self.out

    def result(self, node: Node) -> str:
        return self.constant_vector(node) if node.is_const else self.text[id(node)]

    def visit(self, node: Node, name: str | None) -> None:
        if id(node) in self.together:
            pair = self.together[id(node)]
            names = [next(self.temporaries) for _ in pair]
            flags = ", ".join(dict.fromkeys(map(self.approximate, pair)))
            both = BOTH[pair[0].op].format(self.text[id(pair[0].args[0])], flags)
            self.out.append(f"{', '.join(names)} = {both}")
            for made, text in zip(pair, names, strict=True):
                self.text[id(made)], self.binding[id(made)] = text, ATOM
            return
        text, binding = self.expression(node)
        if id(node) in self.once and not self.is_leaf(node):
            text, binding = f"jax.lax.optimization_barrier({text})", ATOM
        leaf = node.is_const or self.is_leaf(node)
        later = self.own.get(id(node))  # the name of a later statement
        if not leaf and name is None and (later or self.uses[id(node)] > 1 or len(text) > WIDTH):
            name = later or next(self.temporaries)
            self.out.append(f"{name} = {text}")
            text, binding = name, ATOM
        self.text[id(node)], self.binding[id(node)] = text, binding

    def expression(self, node: Node) -> tuple[str, int]:
        dialect = self.dialect
        if node.is_const:
            return constant(node), BINDING["neg"] if constant(node).startswith("-") else ATOM
        if id(node) in dialect.given:
            return dialect.given[id(node)], ATOM
        if leaf_key(node) in dialect.leaves:
            return dialect.leaves[leaf_key(node)], ATOM
        if node.op == "float":
            if own := dialect.written.get(id(node)):
                return own.format(self.text[id(node.args[0])]), ATOM
            return self.convert(node.args[0], dialect.floating), ATOM
        if node.op == "cast":
            return self.cast(node), ATOM
        if node.op in REDUCTIONS:
            return self.reduction(node), ATOM
        if node.op == "pick":
            return self.pick(node), ATOM
        if node.op in SCANS:
            return self.scan(node), ATOM
        if isinstance(node.attr, Selected):
            return self.selection(node, node.attr), ATOM
        op = OPS[node.op]
        if op.cute == op.jnp == "{0}":
            return self.text[id(node.args[0])], self.binding[id(node.args[0])]
        return self.in_jnp(node, op) if dialect.name == "jnp" else self.in_kernel(node, op)

    def in_jnp(self, node: Node, op: Operation) -> tuple[str, int]:
        """An operation of the table, in jnp."""
        dialect = self.dialect
        binding = PLAIN.get(node.op, BINDING.get(node.op, ATOM))
        args = [self.argument(a, binding, i) for i, a in enumerate(node.args)]
        if node.op == "where" and all(a.is_const for a in node.args[1:]) and node.kind != "bool":
            # Python's numbers are weakly typed: x64 would widen them
            args[1] = self.typed_constant(node.args[1], node.kind)
        elif node.kind != "bool" and not op.infix and all(a.is_const for a in node.args):
            args[0] = self.typed_constant(node.args[0], node.args[0].kind)
        if node.op == "rem":  # jax.lax.rem needs equal types
            args = [
                self.typed_constant(a, node.kind) if a.is_const else t for a, t in zip(node.args, args, strict=True)
            ]
        text = self.filled(op.jnp, args, node)
        settled = id(node) in dialect.rounding.products | dialect.rounding.functions
        return (f"runtime.settled({text})", ATOM) if settled else (text, binding)

    def in_kernel(self, node: Node, op: Operation) -> tuple[str, int]:
        """An operation of the table, on vectors in a kernel."""
        dialect = self.dialect
        separate = dialect.rounding.products | dialect.rounding.sums
        if id(node) in separate and not all(a.is_const for a in node.args):
            return f"{SEPARATE[node.op]}({', '.join(self.text[id(a)] for a in node.args)})", ATOM
        if factors := self.multiplied(node):
            a, b, c = (self.text[id(n)] for n in factors)
            if factors[2] is node.args[1]:
                return f"device.fma({a}, {b}, -{self.argument(factors[2], BINDING['neg'], 1)})", ATOM
            return f"device.fma(-{self.argument(factors[0], BINDING['neg'], 1)}, {b}, {c})", ATOM
        at_index = node.op == "eq" and node.args[0].op == "index"
        binding = ATOM if at_index else BINDING.get(node.op, ATOM)
        args = [self.argument(a, binding, i) for i, a in enumerate(node.args)]
        text = dialect.written.get(id(node)) or (op.cute_fast if dialect.fast and op.cute_fast else op.cute)
        if node.op == "div" and self.is_shared(node):
            text = f"device.divide_by_{'row' if self.by_one(node) else 'shared'}({{0}}, {{1}}, {{approx}})"
        elif (
            node.op == "div"
            and dialect.innermost in node.args[1].dims
            and set(node.args[1].dims) < set(node.args[0].dims)
        ):
            text = "device.divide_by_column({0}, {1}, {approx})"
        elif at_index:
            text = "device.equal_index({0}, {1})"
        if text == "{0}":
            return self.text[id(node.args[0])], self.binding[id(node.args[0])]
        alone = all(a.is_const for a in node.args) and not (op.infix and node.kind != "bool")
        if alone or (node.op == "where" and node.args[0].is_const):
            args[0] = self.constant_vector(node.args[0])
        if node.op == "where" and all(a.is_const for a in node.args[1:]) and self.is_wide(node.kind):
            args[1] = self.constant_vector(node.args[1])  # of two numbers a kernel makes 32 bits
        text = self.filled(text, args, node)
        return (f"device.settled({text})", ATOM) if id(node) in dialect.rounding.functions else (text, binding)

    def filled(self, text: str, args: list[str], node: Node) -> str:
        """An operation's text with its arguments."""
        dialect = self.dialect
        return text.format(
            *args,
            approx=self.approximate(node),
            exact=dialect.exact,
            floating=dialect.floating,
            integer=dialect.integer,
        )

    def pick(self, node: Node) -> str:
        """Elements of a table at computed places: an index along one axis, and the position along each other axis."""
        table, *places = node.args
        texts = [self.result(place) for place in places]
        along = dict(zip(picked_axes(node), texts, strict=True))
        name = self.dialect.leaves["table", table.attr]
        where = [along.get(mode, mode) for mode in self.dialect.tables[name]]
        words = f"{name}, ({', '.join(where)}{',' if len(where) == 1 else ''})"
        if self.dialect.name == "jnp":
            return f"runtime.pick({words})"
        dtype = self.dialect.types["bool"] if node.kind == "bool" else self.typed(node.kind)
        return f"access.pick({words}, {dtype})"

    def reduction(self, node: Node) -> str:
        """A reduction in jnp, where the reduced axes stay with size 1, and sums and products of integers keep their type, which
        jnp would widen. In a kernel it is a leaf, except a reduction within a row."""
        if self.dialect.name == "cute":
            return f'reduce.over_group({self.text[id(node.args[0])]}, "{node.op}", {self.dialect.widths[id(node)]})'
        axes = axis_numbers(lost_axes(node), self.dialect.order)
        widened = node.kind == "int" and node.op in ("sum", "prod")
        dtype = f", dtype={self.dialect.integer}" if widened else ""
        return f"jnp.{node.op}({self.text[id(node.args[0])]}, axis={axes}, keepdims=True{dtype})"

    def scan(self, node: Node) -> str:
        """A scan in jnp; a kernel computes it between the lines."""
        along = along_of(node)
        words = [f'"{node.op}"', str(self.dialect.order.index(along.axis) - len(self.dialect.order))]
        words += [
            str(along.reverse),
            str(along.before),
            *(self.typed_constant(a, a.kind) if a.is_const else self.text[id(a)] for a in node.args),
        ]
        return f"runtime.scanned({', '.join(words)})"

    def selection(self, node: Node, how: Selected) -> str:
        """A selection in jnp, along the place of its result's axis; the axes that it selects along stay with size 1."""
        if node.op == NUCLEUS:
            given = [self.typed_constant(a, a.kind) if a.is_const else self.text[id(a)] for a in node.args]
            return f"runtime.nucleus({', '.join(given)}, axis={axis_numbers(how.axes, self.dialect.order)})"
        axis, into = (axis_numbers(axes, self.dialect.order) for axes in (how.axes, (how.into,)))
        args = ", ".join(self.text[id(a)] for a in node.args)
        if node.op == PLACED:
            return f"runtime.placed({args}, axis={axis}, into={into})"
        words = f"axis={axis}" if how.sorts else f"{how.count}, axis={axis}, into={into}"
        text = f"runtime.{node.op}({args}, {words})"
        return f"{text}.astype({self.dialect.integer})" if SELECTIONS.get(node.op) == "int" else text

    def is_shared(self, node: Node) -> bool:
        """Whether neighbouring elements of a vector are divided by one value, in whatever kernel."""
        dividend, divisor = node.args
        last = self.dialect.innermost
        return last in dividend.dims and last not in divisor.dims and not divisor.is_const

    def by_one(self, node: Node) -> bool:
        """Whether a vector is divided by one value, of its row. One of a group of columns may end within a vector, where groups are ragged."""
        dividend, divisor = node.args
        columns = self.dialect.columns
        return bool(columns) and columns[-1] in dividend.dims and not {*columns} & {*divisor.dims}

    def argument(self, node: Node, binding: int, place: int) -> str:
        """An argument's text: `parenthesised` next to an operator, unchanged in a call."""
        text = self.text[id(node)]
        return text if binding == ATOM else parenthesised(text, self.binding[id(node)], binding, place)

    def typed_constant(self, node: Node, kind: str) -> str:
        return f"jnp.asarray({constant(node)}, {self.typed(kind)})"

    def constant_vector(self, node: Node) -> str:
        """The text of a constant where a number does not do: in jnp a scalar, which broadcasts."""
        if self.dialect.name == "jnp":
            return self.typed_constant(node, node.kind)
        return f"cute.full_like({self.dialect.like}, {constant(node)}, {self.typed(node.kind)})"

    def typed(self, kind: str) -> str:
        if kind == "bool":
            return self.dialect.types["bool"]
        return self.dialect.floating if kind == "float" else self.dialect.integer

    def is_wide(self, kind: str) -> bool:
        """Whether values of a kind may be computed in 64 bits."""
        return kind != "bool" and self.typed(kind) not in ("cutlass.Float32", "cutlass.Int32")

    def convert(self, node: Node, dtype: str) -> str:
        text = self.text[id(node)] if self.binding[id(node)] == ATOM else f"({self.text[id(node)]})"
        return f"{text}.astype({dtype})" if self.dialect.name == "jnp" else f"{text}.to({dtype})"

    def cast(self, node: Node) -> str:
        dtype, target = self.dialect.types[str(node.attr)], self.typed(node.kind)
        texts = [self.result(n) for n in self.arguments(node)]
        if self.dialect.name == "jnp":
            return f"runtime.cast({texts[0]}, {dtype})" + ("" if node.kind == "bool" else f".astype({target})")
        if str(node.attr) in self.dialect.unusual:
            return f"device.rounded({texts[0]}, {dtype}, {target})"
        function = "cast" if not self.rounded(node) else "round_to" if len(texts) == 1 else "round_quotient"
        stored = f"device.{function}({', '.join(texts)}, {dtype})"
        return stored if node.kind == "bool" else f"{stored}.to({target})"


def compared(node: Node) -> Iterator[Node]:
    """The computed elements that an operation compares with their own maximum or minimum, or whose maximum or minimum it takes for
    such a comparison elsewhere. XLA would compute the elements again in each of its kernels, with other bits: none would be equal."""
    marked = [a for a in node.args if a.op == PINNED and is_rounded(a)]
    if node.op in ("max", "min"):
        yield from marked
    if node.op == "eq" and node.args[0].kind == "float":
        extremes = [a.args[0] for a in node.args if a.op in ("max", "min")]
        yield from (a for a in extremes if a in node.args and is_rounded(a))
        yield from marked


def is_rounded(value: Node) -> bool:
    """Whether a value is the result of arithmetic that rounds."""
    while value.op in ("float", "abs", "neg", PINNED):
        (value,) = value.args
    return is_computed(value)


def place_in_pair(node: Node) -> tuple[Node, str, int] | None:
    """For one of two functions that are computed together: their argument, the first one's name, and which of the two it is."""
    if node.op in PAIR:
        return node.args[0], PAIR[0], PAIR.index(node.op)
    if node.op == "sigmoid":
        negative = node.args[0].op == "neg"
        return node.args[0].args[0] if negative else node.args[0], node.op, int(negative)
    return None


def parenthesised(text: str, own: int, binding: int, place: int) -> str:
    """An operand, in parentheses where the operator around it has a higher precedence."""
    loose = own < binding or (own == binding and (place > 0 or binding in (BINDING["lt"], BINDING["pow"])))
    return f"({text})" if loose else text


def axis_numbers(axes: tuple[str, ...], order: tuple[str, ...]) -> str:
    """Axes as jnp takes them: named axes are numbered from the end, since `...` is any number of leading axes, `row_axes`."""
    if axes == order:
        return "None"
    numbers = [str(order.index(axis) - len(order)) for axis in axes if axis != ROWS]
    if ROWS not in axes:
        return numbers[0] if len(numbers) == 1 else f"({', '.join(numbers)})"
    return f"(*row_axes, {', '.join(numbers)})" if numbers else "row_axes"


def constant(node: Node) -> str:
    return literal(node.attr)


def literal(value: object) -> str:
    """A number or a bool in Python's syntax."""
    if isinstance(value, float):
        if value != value:
            return 'float("nan")'
        if value in (float("inf"), float("-inf")):
            return 'float("inf")' if value > 0 else '-float("inf")'
    return repr(value)
