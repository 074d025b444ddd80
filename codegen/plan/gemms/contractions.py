"""Contractions: splits an op with `a @ b` into products and the op that follows them, its epilogue.

The epilogue is a spec of its own, in the same language. Its inputs hold the products (`acc`). It has the plan of an
element-wise or a reducing kernel, which can follow a matmul of XLA. A GEMM kernel can compute an element-wise epilogue
tile by tile, before anything is written (`Gemm.tile`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from codegen.errors import Diagnostic, Later, SpecError, UserError
from codegen.graph.names import fresh
from codegen.graph.nodes import (
    DTYPES,
    ROWS,
    Leaf,
    Node,
    Statement,
    as_multiplied,
    lost_axes,
    nodes_of,
    put_inputs,
    topological,
)
from codegen.graph.ops import ALONE, SCANS
from codegen.language.chain import in_chain, line_with
from codegen.language.statements import Placed
from codegen.language.transfer import Values, derived_spec
from codegen.plan.gemms.loading import Loaded, loaded
from codegen.plan.gemms.narrow_tiles import SOURCES
from codegen.plan.gemms.tiles import Product
from codegen.spec.spec import Array, Axis, Spec


def takes_inputs(statements: tuple[Statement, ...]) -> bool:
    """Whether all factors of a chain's products are inputs."""
    nodes = topological(s.value for s in statements)
    return all(as_multiplied(f).op == "input" for n in nodes if n.op == "contract" for f in n.args)


def check(spec: Spec) -> None:
    """Raises `SpecError` for what neither kernels nor the jnp form around them compute in a chain that contracts."""
    _Splitter(spec).check()


def split(spec: Spec, widens: bool = False) -> tuple[tuple[Product, ...], Spec]:
    """The products of a checked spec, and its epilogue. Raises `SpecError` for a contraction of other values
    than two inputs. If the kernel `widens`, b may be computed from narrow elements (`loading`)."""
    return _Splitter(spec, widens).split()


class _Splitter:
    """Splits a chain that contracts into its products and the epilogue, an element-wise op of their results."""

    def __init__(self, spec: Spec, widens: bool = False):
        self.widens = widens
        self.spec, self.calls, self.statements = spec, spec.read.graph.calls, spec.read.statements
        self.taken = {a.name for a in spec.arrays} | {p.name for p in spec.params} | {s.name for s in self.statements}
        self.found: dict[tuple[str, str, tuple[str, ...]], Product] = {}

    @property
    def products(self) -> list[Node]:
        return [n for n in nodes_of(self.statements) if n.op == "contract"]

    def check(self) -> None:
        """Raises `SpecError` with all keys and factors of the spec that no product takes."""
        spec, problems = self.spec, list[Diagnostic]()
        for node in self.products:
            for side in map(as_multiplied, node.args):
                if isinstance(side.attr, Leaf) and spec.array(side.attr.name).default is not None:
                    error = UserError(
                        f"{side.attr.name!r} has a default, but a factor of '@' cannot be left out",
                        "give it no default",
                    )
                    problems.append(self.place(node, error))
        if spec.doubles:
            span = next(a.span for a in spec.inputs if "float64" in spec.dtypes(a)) or spec.chain.span
            message = "no kernel for a contraction (@) in float64"
            problems.append(spec.source.diagnostic(span, message, "leave float64 out of its types"))
        for key in ("save", "grad") if takes_inputs(self.statements) else ():
            if (key == "save" and spec.save) or (key == "grad" and not isinstance(spec.grad, str)):
                message = f"{key!r} has no effect on the gradients of a product (@)"
                hint = "the backward decides what the forward saves, and the gradients of a product are products"
                problems.append(spec.source.diagnostic(spec.chain.span, message, f"delete it: {hint}"))
        if problems:
            raise SpecError(problems)

    def split(self) -> tuple[tuple[Product, ...], Spec]:
        """The products, and the spec of the epilogue. Raises `SpecError` for products that no kernel computes."""
        spec = self.spec
        leaves: dict[int, Leaf] = {}
        problems: list[Diagnostic] = []
        for node in self.products:
            try:
                leaves[id(node)] = self.leaf(node)
            except UserError as error:
                problems.append(self.place(node, error))
        for node in [n for n in nodes_of(self.statements) if n.op in (*ALONE, *SCANS)][:1]:
            refused = UserError(
                "a kernel that multiplies has tiles, and no whole rows to scan, to sort or to select from"
            )
            problems.append(self.place(node, refused))
        if problems:
            raise SpecError(problems)
        made = {a.name for a in spec.outputs}
        nodes = list(topological((s.value for s in self.statements if s.name in made), lambda n: id(n) in leaves))
        read = [spec.array(n.attr.name) for n in nodes if isinstance(n.attr, Leaf)]
        there = {axis for a in (*spec.outputs, *read, *(p.acc for p in self.found.values())) for axis in a.axes}
        axes = dict.fromkeys(str(n.attr) for n in nodes if n.op == "size" and n.attr not in there)
        held = {axis: fresh(self.taken, f"size_of_{'rows' if axis == ROWS else axis.lower()}") for axis in axes}
        leaves |= {id(n): Leaf(held[str(n.attr)]) for n in nodes if n.op == "size" and n.attr in held}
        first, *others = self.found.values()  # the first one has the sizes that none contracts
        contracted = {axis for p in others for axis in p.axes}
        own = [replace(p, sizes=tuple((held[a], a) for a in held if a in p.axes)) for p in others]
        own = [replace(first, sizes=tuple((held[a], a) for a in held if a not in contracted)), *own]
        return tuple(own), self.epilogue(leaves, [Array(name, "int32", ()) for name in held.values()])

    def place(self, node: Node, error: UserError) -> Diagnostic:
        """The error at the product in the first statement that computes this node."""
        return Later(error.message, error.hint, lambda: self.placed(node, error))

    def placed(self, node: Node, error: UserError) -> Diagnostic:
        line = line_with(self.spec, self.statements, node)
        assert isinstance(line.tree, ast.Assign)

        def shows(tree: ast.AST) -> bool:
            if isinstance(tree, ast.Call):
                return ast.unparse(tree.func) == "dot"
            return node.op == "contract" and isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.MatMult)

        found = [n for n in ast.walk(line.tree) if isinstance(n, ast.expr) and shows(n)]
        return line.diagnostic(Placed(found[0] if found else line.tree.value, error))

    def leaf(self, node: Node) -> Leaf:
        """The epilogue's input for a contraction."""
        axes = lost_axes(node)
        left, right = node.args
        if self.last(left, right) > self.last(right, left):
            left, right = right, left  # b has the columns
        made = loaded(self.spec, right, axes) if self.widens else None
        for side in (left, right):
            value = as_multiplied(side)
            if (made is None or side is left) and (value.op != "input" or not isinstance(value.attr, Leaf)):
                raise UserError("'@' of a computed value in the same kernel")  # a stage before it computes it
        a, b = as_multiplied(left).attr, as_multiplied(right).attr if made is None else made[0]
        assert isinstance(a, Leaf) and isinstance(b, Leaf)
        if a.part is not None:
            raise UserError(
                f"'@' takes a part of {a.name!r} as the factor with the rows", "pass the part as an input of its own"
            )
        array = self.spec.array(b.name) if made is None else made[1]
        product = self.found[a.name, b.name, axes] = self.product(a, b, array, axes, node, made and made[2])
        return Leaf(product.acc.name, b.part)

    def last(self, own: Node, other: Node) -> int:
        """The position of the last axis that only one side has."""
        return max((self.spec.axes.index(axis) for axis in own.dims if axis not in other.dims), default=-1)

    def product(
        self, a: Leaf, b: Leaf, second: Array, axes: tuple[str, ...], node: Node, how: Loaded | None
    ) -> Product:
        if (found := self.found.get((a.name, b.name, axes))) is not None:
            return found
        first = self.spec.array(a.name)
        for array in (first, second):
            for dim in array.dims:
                own = sorted({*axes} & {*dim.names})
                if not dim.names:
                    message = f"'@' of {array.name!r}, of which the axis of {dim} elements has no name"
                    raise UserError(message, "give the axis a name")
                if own and dim.parts is not None:
                    raise UserError(
                        f"'@' over {own[0]}, of which {array.name!r} has parts", "give it an axis of its own"
                    )
                if own and len(dim.names) > 1:
                    message = f"'@' over {own[0]}, which {array.name!r} has joined with another axis, as {dim}"
                    raise UserError(message, "declare them as two axes, and reshape the array for the call")
        dims = {d.names: d for array in (first, second) for d in array.dims if not {*axes} & {*d.names}}
        order = self.in_order(dims.values())
        held = [name for d in order for name in d.names]
        if len({*held}) < len(held):  # one array has joined axes that the other has not
            order = self.in_order(one for d in order for one in _axes_of(d))
        kinds = {"float": "float32", "int": "int32"}
        named = next((s.name for s in self.statements if s.value is node and s.part is None), None)
        taken = named is None or b.part is not None or named in {o.name for o in self.spec.outputs}
        name = fresh(self.taken, "acc") if named is None or taken else named
        return Product(
            first,
            second,
            axes,
            Array(name, kinds[node.kind], tuple(order)),
            how or (Loaded(second, "") if self.widens_input(first, second) else None),
        )

    def in_order(self, dims: Iterable[Axis]) -> list[Axis]:
        """Different dimensions in the spec's order."""
        return sorted({d.names: d for d in dims}.values(), key=lambda d: self.spec.axes.index(d.names[0]))

    def widens_input(self, a: Array, b: Array) -> bool:
        """Whether a product of two inputs converts b to the type of a, which is exact."""
        wide = all(DTYPES[d].kind == "float" and DTYPES[d].size > 1 for d in self.spec.dtypes(a))
        return wide and {*self.spec.dtypes(b)} <= SOURCES

    def straight(self, assigned: list[Statement], leaves: Mapping[int, Leaf]) -> list[Node]:
        """The values that are sums and scaled values of products and that other operations take. A backward may need
        them: with the terms added, such a value has the sign that a ReLU saw."""
        calls = self.calls

        def arguments(node: Node) -> tuple[Node, ...]:
            """The arguments of a function of the prelude, whose inner values are skipped, else the arguments of the operation."""
            return calls[id(node)].values if id(node) in calls else node.args

        linear: set[int] = set()
        taken: dict[int, Node] = {}
        for node in topological((s.value for s in assigned), lambda n: id(n) in leaves, arguments):
            own = [a for a in arguments(node) if id(a) in linear]
            scaled = len(own) == 1 and (node.op == "mul" or (node.op == "div" and own[0] is node.args[0]))
            kept = id(node) not in calls and own and (scaled or node.op in ("add", "sub", "neg"))
            if id(node) in leaves or kept:
                linear.add(id(node))
            else:
                taken |= {id(a): a for a in own if id(a) not in leaves}
        return list(taken.values())

    def epilogue(self, leaves: Mapping[int, Leaf], sizes: Sequence[Array]) -> Spec:
        """The spec of the values after the products, which are its `leaves`. Inputs `sizes` give it the sizes of axes."""
        spec = self.spec
        made = {a.name for a in spec.outputs}
        accs = {p.acc.name for p in self.found.values()}
        plain = {"input", "param", "const", "index", "size"}
        ends = (s.value for s in self.statements if s.name in made)
        after = {id(n) for n in topological(ends, lambda n: id(n) in leaves)}  # not what only factors are made of
        assigned = [
            s
            for s in self.statements
            if s.name in made
            or (id(s.value) in after - leaves.keys() and s.value.op not in plain and s.name not in accs)
        ]
        known = {id(s.value) for s in assigned if s.part is None and s.name not in made}
        straight = [
            Statement(fresh(self.taken, "z"), None, n) for n in self.straight(assigned, leaves) if id(n) not in known
        ]
        assigned = [*straight, *assigned]
        names = {
            id(s.value): s.name
            for s in reversed((*straight, *self.statements))
            if s.part is None and s.name not in made | accs and id(s.value) not in leaves
        }
        nodes = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
        used = {n.attr.name for n in nodes if isinstance(n.attr, Leaf)} | put_inputs(assigned)
        used |= {str(n.attr) for n in nodes if n.op == "param"}
        params = tuple(p for p in spec.params if p.name in used)
        inputs = (*(p.acc for p in self.found.values()), *(a for a in spec.inputs if a.name in used), *sizes)
        domain = tuple((n, d) for n, d in spec.domain if n in used)
        own = replace(
            spec, op=f"{spec.op}_epilogue", summary=f"What follows the matmul of {spec.op}.",
            inputs=inputs, params=params, save=(), aliases=(), domain=domain, bench=(),
        )  # fmt: skip
        values = Values(tuple(assigned), self.calls, names, leaves)
        try:
            return derived_spec(own, f"{spec.path} (epilogue)", values, self.taken)
        except SpecError as error:
            raise SpecError([in_chain(spec, d) for d in error.diagnostics]) from None


def _axes_of(dim: Axis) -> list[Axis]:
    """Joined axes as axes of their own."""
    if dim.parts is not None:
        return [dim]
    return [Axis((name,), extents=(size,)) for name, size in zip(dim.names, dim.extents, strict=True)]
