"""Contractions: an op with `a @ b` as products and the op that follows them, its epilogue.

The epilogue is a spec of its own, in the same language, whose inputs hold the products (`acc`) in place of what they are
made from. Its plan is one of an element-wise or a reducing kernel, which can follow a matmul of XLA's; where it is
element-wise, a GEMM kernel can do it tile by tile, before anything is written (`Gemm.tile`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from codegen.autodiff import Backward, Reverse
from codegen.chain import line_with, read_chain
from codegen.errors import Diagnostic, Mistake, SpecError
from codegen.ir import DTYPES, WIDE, Leaf, Node, Statement, topological
from codegen.plan import INT_MAX
from codegen.scope import make_scope
from codegen.spec import Array, Spec
from codegen.statements import Placed
from codegen.supported import Types
from codegen.tiles import GemmLaunch, Product, Tile, fresh
from codegen.unparse import unparse

if TYPE_CHECKING:
    from codegen.pipeline import Op

MOST_TILES = 8  # of the chain's names, the first ones, that a backward may take rather than the product


@dataclass(frozen=True)
class Gemm:
    """The plan of an op that contracts."""

    products: tuple[Product, ...]
    epilogue: Op
    tile: Tile | Mistake  # why there is none
    kind: str = "gemm"

    def __getattr__(self, name: str) -> Any:
        """Of arrays, axes and reductions, the epilogue's plan knows."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.epilogue.plan, name)

    @property
    def kernels(self) -> int:
        """Those of the epilogue, and the matmul where that is one of its own."""
        return self.epilogue.plan.kernels + (isinstance(self.tile, Mistake) or bool(self.tile.folds))

    @property
    def accs(self) -> tuple[str, ...]:
        return tuple(p.acc.name for p in self.products)

    def in_one_kernel(self, types: Types, count: Callable[[tuple[str, ...]], int], arch: str) -> GemmLaunch:
        """The launch of products and epilogue as one kernel, for these dtypes and so many elements along some axes. Raises
        `Mistake` where there is none."""
        tile, (first, *_) = self.tile, self.products
        if isinstance(tile, Mistake):
            raise tile
        spec = self.epilogue.spec
        dtypes = {a.name: types.dtype(a) for a in spec.arrays}
        dtypes |= {"a": types.dtype(first.a), "b": types.dtype(first.b)}
        axes = {"L": tile.batch, "M": tile.rows, "N": (tile.column,), "K": (first.axis,)}
        extents = {name: count(own) for name, own in axes.items()}
        for name, extent in extents.items():
            if extent > INT_MAX:
                raise Mistake(f"{extent} {' x '.join(axes[name])}: more than a kernel's coordinate holds")
        return tile.launch(dtypes, extents, spec.math == "precise", arch)


def contracts(statements: tuple[Statement, ...]) -> bool:
    """Whether a chain has a contraction."""
    return any(n.op == "contract" for n in topological(s.value for s in statements))


def split(spec: Spec) -> tuple[tuple[Product, ...], Spec]:
    """The products of a checked spec, and its epilogue. Raises `SpecError` for a contraction that is not one of two
    inputs."""
    return _Splitter(spec).split()


class _Splitter:
    def __init__(self, spec: Spec):
        self.spec, self.scope = spec, make_scope(spec)
        self.statements = read_chain(spec, self.scope, whole=False)
        self.taken = {a.name for a in spec.arrays} | {p.name for p in spec.params} | {s.name for s in self.statements}
        self.found: dict[tuple[str, str, str], Product] = {}

    def split(self) -> tuple[tuple[Product, ...], Spec]:
        spec, leaves = self.spec, {}
        problems: list[Diagnostic] = []
        nodes = [n for n in topological(s.value for s in self.statements) if n.op == "contract"]
        for node in nodes:
            try:
                leaves[id(node)] = self.leaf(node)
            except Mistake as mistake:
                problems.append(self.place(node, mistake))
        contracted = {str(n.attr) for n in nodes} - {axis for a in spec.outputs for axis in a.axes}
        for node in topological(s.value for s in self.statements):
            if node.op == "size" and node.attr in contracted:
                message = f"no kernel for the size of {node.attr}, which '@' contracts"
                problems.append(self.place(node, Mistake(message, "pass it, or what is made of it, as a parameter")))
        if spec.doubles:
            span = next(a.span for a in spec.inputs if "float64" in spec.dtypes(a)) or spec.chain.span
            message = "no kernel for a contraction (@) in float64"
            problems.append(spec.source.diagnostic(span, message, "leave float64 out of its types"))
        for key in ("save", "grad"):
            if (key == "save" and spec.save) or (key == "grad" and not isinstance(spec.grad, str)):
                message = f"{key!r} says nothing in an op that contracts (@)"
                hint = "what its backward needs is kept, and the products' gradients are products"
                problems.append(spec.source.diagnostic(spec.chain.span, message, f"delete it: {hint}"))
        if problems:
            raise SpecError(problems)
        return tuple(self.found.values()), self.epilogue(leaves)

    def place(self, node: Node, mistake: Mistake) -> Diagnostic:
        line = line_with(self.spec, self.statements, node)
        assert isinstance(line.tree, ast.Assign)

        def shows(tree: ast.AST) -> bool:
            if isinstance(tree, ast.Call):
                return ast.unparse(tree) == f"{node.op}({node.attr})"
            return node.op == "contract" and isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.MatMult)

        found = [n for n in ast.walk(line.tree) if isinstance(n, ast.expr) and shows(n)]
        return line.diagnostic(Placed(found[0] if found else line.tree.value, mistake))

    def leaf(self, node: Node) -> str:
        """What the epilogue calls a contraction."""
        left, right = (n.args[0] if n.op == "float" else n for n in node.args)
        for side in (left, right):
            if not isinstance(side.attr, Leaf) or side.op != "input":
                raise Mistake("'@' takes inputs as they are", "compute what it is to take in an op of its own")
            if self.spec.array(side.attr.name).default is not None:
                raise Mistake(f"'@' of {side.attr.name!r}, which may be left out", "give it no default")
        if self.last(left, right) > self.last(right, left):
            left, right = right, left  # b has the columns
        a, b, axis = left.attr, right.attr, str(node.attr)
        assert isinstance(a, Leaf) and isinstance(b, Leaf)
        if a.part is not None:
            raise Mistake(f"'@' of a part of {a.name!r} on the side of the rows", "take an array of its own")
        product = self.found[a.name, b.name, axis] = self.product(a, b, axis, node)
        return product.acc.name if b.part is None else f"{product.acc.name}[{b.part}]"

    def last(self, own: Node, other: Node) -> int:
        """The place of the last axis that a side has alone."""
        return max((self.spec.axes.index(axis) for axis in own.dims if axis not in other.dims), default=-1)

    def product(self, a: Leaf, b: Leaf, axis: str, node: Node) -> Product:
        if (found := self.found.get((a.name, b.name, axis))) is not None:
            return found
        first, second = self.spec.array(a.name), self.spec.array(b.name)
        for array in (first, second):
            for dim in array.dims:
                if axis in dim.names and (dim.parts is not None or len(dim.names) > 1):
                    raise Mistake(f"'@' over {axis}, of which {array.name!r} has parts", "give it an axis of its own")
        dims = {d.names: d for array in (first, second) for d in array.dims if axis not in d.names}
        order = [d for _, d in sorted(dims.items(), key=lambda item: self.spec.axes.index(item[0][0]))]
        kinds = {"float": "float32", "int": "int32"}
        named = next((s.name for s in self.statements if s.value is node and s.part is None), None)
        taken = named is None or b.part is not None or named in {o.name for o in self.spec.outputs}
        name = fresh(self.taken, "acc") if named is None or taken else named
        return Product(first, second, axis, Array(name, kinds[node.kind], tuple(order)))

    def straight(self, assigned: list[Statement], leaves: Mapping[int, str]) -> list[Node]:
        """What becomes of the products by sums and scales alone, where something else takes it: what a backward may want.
        With the terms added, it has the sign that a ReLU saw."""
        calls = self.scope.graph.calls

        def arguments(node: Node) -> tuple[Node, ...]:
            """Of a function of the prelude, its own: what is within it stays there."""
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

    def epilogue(self, leaves: Mapping[int, str]) -> Spec:
        spec = self.spec
        made = {a.name for a in spec.outputs}
        accs = {p.acc.name for p in self.found.values()}
        plain = {"input", "param", "const", "index", "size"}
        assigned = [
            s
            for s in self.statements
            if s.name in made or (id(s.value) not in leaves and s.value.op not in plain and s.name not in accs)
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
        text = unparse(assigned, self.scope.graph.calls, names, leaves, self.taken)
        nodes = list(topological((s.value for s in assigned), lambda n: id(n) in leaves))
        used = {n.attr.name for n in nodes if isinstance(n.attr, Leaf)}
        used |= {str(n.attr) for n in nodes if n.op == "param"}
        params = tuple(p for p in spec.params if p.name in used)
        inputs = (*(p.acc for p in self.found.values()), *(a for a in spec.inputs if a.name in used))
        domain = tuple((n, d) for n, d in spec.domain if n in used)
        return spec.with_chain(
            f"{spec.path} (epilogue)", text,
            op=f"{spec.op}_epilogue", summary=f"What follows the matmul of {spec.op}.",
            inputs=inputs, params=params, save=(), aliases=(), domain=domain, bench=(),
        )  # fmt: skip


# The backward


@dataclass(frozen=True)
class Pulled:
    """The backward of an op that contracts: that of its epilogue, which takes what `forward`, the epilogue as it runs where
    gradients will be asked for, keeps: its outputs, and products, by the names that they are kept under."""

    how: Backward
    forward: Spec | None
    products: tuple[tuple[str, str], ...]  # (acc, the output of `forward` that keeps it)


def pull(spec: Spec, products: tuple[Product, ...], epilogue: Spec) -> Pulled:
    """The backward of an op's epilogue. Of the products and the tiles that the chain names after them, it takes those with
    which it reads least. Raises `Mistake` where no kernel can do it."""
    try:
        return _pull(spec, products, epilogue, kept_dtype(spec, products))
    except Mistake:
        # Of products that are not rounded it may take the forward's statistics, and then needs fewer turns
        return _pull(spec, products, epilogue, "float32")


def _pull(spec: Spec, products: tuple[Product, ...], epilogue: Spec, dtype: str) -> Pulled:
    """The same, products kept in this type, those of integers as they are. Their gradients have that of what they are
    multiplied with again."""
    stored = {(s.value.attr, spec.array(s.name).dtype): s.name for s in read_chain(epilogue, whole=False)
              if s.value.op == "input" and s.name in {o.name for o in spec.outputs}}  # fmt: skip
    accs, outputs = {}, {}
    for p in products:
        own_dtype = "int32" if p.acc.dtype == "int32" else dtype
        plain = own_dtype.removeprefix(WIDE)
        outputs[p.acc.name] = stored.get((Leaf(p.acc.name), plain))
        accs[p.acc.name] = replace(p.acc, dtype=plain if outputs[p.acc.name] else own_dtype)
    own = replace(epilogue, op=spec.op, inputs=tuple(accs.get(a.name, a) for a in epilogue.inputs))
    axes = products[0].acc.axes
    tiles = [
        s.name for s in read_chain(own, whole=False)
        if s.part is None and s.value.dims == axes and s.value.kind == "float" and s.value.args
        and s.name not in {o.name for o in spec.outputs}
    ]  # fmt: skip
    reverse = Reverse(own, dtype)
    found, reasons = [], []
    for save in ((), *((name,) for name in tiles[:MOST_TILES])):
        try:
            found.append(reverse.backward(save=save))
        except Mistake as reason:
            reasons.append(reason)
    if not found:
        raise reasons[0]
    how = min(found, key=_reads)
    if dtype != "float32" and _compares_tiles(how.spec, axes):
        return _pull(spec, products, epilogue, "float32")  # rounding makes ties of elements that are none
    inner = {dacc for acc, dacc in how.gradients if acc in accs}
    if inner:
        type_of = gradient_dtype(spec, products)
        made = tuple(replace(a, dtype=type_of) if a.name in inner else a for a in how.spec.outputs)
        how = replace(how, spec=replace(how.spec, outputs=made))
    shared = tuple((acc, name) for acc, name in outputs.items() if name is not None and acc in how.inputs)
    kept = [p.acc for p in products if p.acc.name in how.inputs and not outputs[p.acc.name]]
    more = list(how.forward.outputs[len(epilogue.outputs) :]) if how.forward else []
    if not kept and not more:
        return Pulled(how, None, shared)
    taken = {a.name for a in epilogue.arrays} | {s.name for s in read_chain(own, whole=False)}
    names = {acc.name: fresh(taken, f"{acc.name}_kept") for acc in kept}
    lines = [
        f"{names[acc.name]}{part} = {acc.name}{part}"
        for acc in kept
        for part in ([f"[{k}]" for k in range(acc.parts)] if acc.parts else [""])
    ]
    text = epilogue.chain.value + "".join(f"{line}\n" for line in lines)
    forward = epilogue.with_chain(
        epilogue.source.path, text,
        op=f"{spec.op}_forward", summary=f"{spec.op}, with what its backward takes.",
        outputs=(*epilogue.outputs, *more, *(replace(accs[a.name], name=names[a.name]) for a in kept)), grad="none",
    )  # fmt: skip
    return Pulled(how, forward, (*shared, *names.items()))


def _compares_tiles(spec: Spec, axes: tuple[str, ...]) -> bool:
    """Whether a backward looks for ties of values with all the axes of a product."""
    nodes = topological(s.value for s in read_chain(spec, whole=False))
    return any(
        n.op == "eq" and any(a.kind == "float" and a.dims == axes and not a.is_const for a in n.args) for n in nodes
    )


def _reads(how: Backward) -> tuple[int, int]:
    """The tiles and the arrays that a backward reads."""
    most = max(len(a.axes) for a in how.spec.inputs)
    return sum((a.parts or 1) for a in how.spec.inputs if len(a.axes) == most), len(how.spec.inputs)


def kept_dtype(spec: Spec, products: tuple[Product, ...]) -> str:
    """The type (a dtype or a type variable) that products are kept in: that of the outputs made of them, if it is that of the
    factors as well or has no 32 bits; not float16, which may not hold what is scaled afterwards. float32 where factors are
    float8 or integers, and where outputs are reductions alone: these have the float32 sums, and so do their gradients."""
    factors = _factors(products)
    reduced = all(a.axes != products[0].acc.axes for a in spec.outputs)
    if reduced or not all(_is_wide(spec, dtype) for dtype in factors):
        return "float32"
    made = [a.dtype for a in spec.outputs if a.axes == products[0].acc.axes and _is_wide(spec, a.dtype)]
    kinds = {*made, *factors}
    if len(kinds) > 1 and any("float32" in spec.dtypes(dtype) for dtype in kinds):
        return "float32"
    found = (made or factors)[0]
    halves = [dtype == "float16" for dtype in spec.dtypes(found)]
    return "float32" if all(halves) else WIDE + found if any(halves) else found


def gradient_dtype(spec: Spec, products: tuple[Product, ...]) -> str:
    """The type of products' gradients, which the other factors are multiplied with: theirs, float32 where they are of several,
    or integers of more than 8 bits; where none has 16 bits, the first output's."""
    factors = [dtype for dtype in _factors(products) if any(DTYPES[d].size > 1 for d in spec.dtypes(dtype))]
    outputs = [a.dtype for a in spec.outputs if _is_wide(spec, a.dtype)]
    found = dict.fromkeys(factors or outputs[:1])
    return next((dtype for dtype in found if len(found) == 1 and _is_wide(spec, dtype)), "float32")


def _factors(products: tuple[Product, ...]) -> list[str]:
    """Their types."""
    return [x.dtype for p in products for x in (p.a, p.b)]


def _is_wide(spec: Spec, dtype: str) -> bool:
    """Whether a type (or all that a variable stands for) is a float of at least 16 bits."""
    return all(DTYPES[d].kind == "float" and DTYPES[d].size > 1 for d in spec.dtypes(dtype))
