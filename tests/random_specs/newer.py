"""From one integer, a random op of the kinds that `usual.py` draws none of, as users write them and at a size at which they are run:
neighbours along an axis, scans, random numbers, the largest elements, products and their chains, statistics over rows that elements
use, tables at computed indices, and outputs whose axes are in another order."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.random_specs.calls import Draw, Scan
from tests.random_specs.makers import dot
from tests.random_specs.nodes import ROWS, Array, Dim, Node
from tests.random_specs.usual import BACK, BATCH, LARGE, LAYOUTS, LONG, ROW, Layout, Maker, Usual
from tests.random_specs.values import call, const, leaf

TIMES = Layout(BATCH, {"S": (512, 2048, 4096), "N": (64, 128, 768, 1024, 4096)}, (("N",), ("B", "N"), ("B", "S")))
EXPERTS = Layout(ROW, {"N": (32, 64, 128, 256)}, (("N",), (ROWS,)))
WIDTHS = (512, 1024, 2048, 4096)  # of a product's factors
PRODUCT = Layout((ROWS, "N"), {"N": WIDTHS}, (("N",), (ROWS,)))
IMAGE = Layout(("B", "C", "S"), {"C": (64, 80, 256, 1024), "S": (49, 1024, 4096)}, (("C",), ("S",), ("B", "C")))
LAYOUTS_OF = {
    "neighbours": TIMES,
    "scan": TIMES,
    "scan of rows": Layout(ROW, {"N": (*LONG[3:], 65536)}, (("N",), (ROWS,))),
    "random numbers": LAYOUTS["elementwise"],
    "random numbers of a row": LAYOUTS["row"],
    "largest": EXPERTS,
    "product": PRODUCT,
    "computed index": LAYOUTS["scores"],
    "looked up": LAYOUTS["elementwise"],
    "transposed": IMAGE,
    **BACK,
}
OFTEN = {"neighbours": 5, "scan": 4, "scan of rows": 2, "random numbers": 3, "random numbers of a row": 2, "largest": 3, "product": 4,
         "computed index": 2, "looked up": 2, "transposed": 3, **dict.fromkeys(BACK, 1)}  # fmt: skip


def newer_spec(seed: int, number: int) -> Usual:
    """The op of this number among those of a seed."""
    return _Newer(random.Random(f"newer {seed} {number}"), name=f"newer_{seed}_{number}").newer()


class _Newer(Maker):
    def newer(self) -> Usual:
        self.lay_out(self.weighted(OFTEN), LAYOUTS_OF)
        more = MAKERS.get(self.kind, _Newer.used_statistics)(self)
        return self.made(*more)

    def some_steps(self, value: Node, counts: tuple[int, ...]) -> Node:
        for _ in range(self.random.choice(counts)):
            value = self.step(value)
        return value

    def param_of(self, name: str, values: tuple[float, ...]) -> Node:
        return self.param(name, self.random.choice(values))

    # Neighbours: of an input, or of what a chain computes

    def neighbours(self) -> tuple[str, ...]:
        value = self.some_steps(self.whole("x"), (0, 0, 1, 2))
        way = self.weighted({"mixed": 2, "taps": 3, "difference": 2, "band": 1})
        self.finish(self.some_steps(self.assign(getattr(self, way)(value)), (0, 1, 1)))
        return ()

    def before(self, v: Node, by: int) -> Node:
        return Node("shift", "float", v.dims, (v,), ("S", by, 0)) if by else v

    def mixed(self, v: Node) -> Node:
        """A mixture of an element and the one before."""
        mu = self.input("mu", ("N",))
        return call("add", call("mul", v, mu), call("mul", self.before(v, 1), call("sub", const(1.0), mu)))

    def taps(self, v: Node) -> Node:
        """A causal convolution along time, a weight of each channel for each tap."""
        found = [call("mul", self.before(v, by), self.input("tap", ("N",))) for by in range(self.random.choice([3, 4]))]
        total = found[0]
        for term in found[1:]:
            total = call("add", total, term)
        return self.activated(self.assign(total)) if self.chance(0.7) else total

    def difference(self, v: Node) -> Node:
        central = call("mul", call("sub", self.before(v, -1), self.before(v, 1)), const(0.5))
        if self.chance(0.5):
            return central
        curve = call("add", call("sub", self.before(v, -1), call("mul", v, const(2.0))), self.before(v, 1))
        return call("mul", curve, self.param_of("diffusion", (0.1, 0.25)))

    def band(self, v: Node) -> Node:
        """How many deviations of the last elements an element is off their mean."""
        count = self.random.choice([3, 4, 5])

        def mean(x: Node) -> Node:
            total = x
            for by in range(1, count):
                total = call("add", total, self.before(x, by))
            return self.assign(call("mul", total, const(1 / count)))

        v = self.assign(v)
        centre = mean(v)
        off = self.assign(call("square", call("sub", v, centre)))
        return call("div", call("sub", v, centre), call("sqrt", call("add", mean(off), const(1e-3))))

    # Scans

    def scan(self) -> tuple[str, ...]:
        self.scanned("S")
        return ()

    def scan_of_rows(self) -> tuple[str, ...]:
        self.scanned("N")
        return ()

    def scanned(self, axis: str) -> None:
        value = self.some_steps(self.whole("x"), (0, 1, 1, 2))
        name = self.weighted({"cumsum": 3, "scan": 5, "returns": 2, "cummax": 1, "cumlogsumexp": 1})
        if name == "scan":  # a gated recurrence
            decay = self.assign(call("sigmoid", self.whole("gate")))
            value = call("mul", call("sub", const(1.0), decay), value) if self.chance(0.5) else value
            made = Node("scan", "float", value.dims | decay.dims, (decay, value), Scan(axis))
        elif name == "returns":  # discounted, from the end
            made = Node("scan", "float", value.dims, (const(0.99), value), Scan(axis, True))
        else:
            value = call("mul", value, const(0.01)) if name == "cumsum" else value
            made = Node(name, "float", value.dims, (value,), Scan(axis))
        self.finish(self.some_steps(self.assign(made), (0, 1, 2)))

    # Random numbers

    def random_numbers(self) -> tuple[str, ...]:
        value = self.drawn(self.some_steps(self.whole("x"), (0, 1, 2)))
        self.finish(self.some_steps(value, (0, 1)))
        return ()

    def random_numbers_of_a_row(self) -> tuple[str, ...]:
        value = self.some_steps(self.whole("x"), (0, 1))
        first = self.chance(0.5)
        value = self.drawn(value) if first else self.norm(value, ("N",))
        self.finish(self.norm(value, ("N",)) if first else self.drawn(value))
        return ()

    def drawn(self, v: Node) -> Node:
        axes = self.layout.axes
        self.inputs.append(Array("key", "uint32", (Dim(parts=2),)))
        way = self.weighted({"dropout": 4, "noise": 2, "gumbel": 1, "rounding": 1})
        if way == "dropout":
            rate = self.random.choice([0.9, 0.5])
            kept = Node("bernoulli", "bool", frozenset(axes), (const(rate),), Draw("key", axes, True))
            return self.assign(call("where", kept, call("div", v, const(rate)), const(0.0)))
        if way == "noise":
            noise = Node("normal", "float", frozenset(axes), (), Draw("key", axes, True, "float32"))
            return self.assign(call("add", v, call("mul", noise, self.param_of("sigma", (0.1, 1.0)))))
        u = self.assign(Node("uniform", "float", frozenset(axes), (), Draw("key", axes, True, "float32")))
        if way == "rounding":  # up with the probability of what is cut off
            return self.assign(call("mul", call("floor", call("add", call("mul", v, const(8.0)), u)), const(0.125)))
        gumbel = call(
            "neg", call("log", call("neg", call("log", call("add", call("mul", u, const(0.999)), const(5e-4)))))
        )
        return self.assign(call("add", v, gumbel))

    # The largest elements of a row

    def largest(self) -> tuple[str, ...]:
        count = self.random.choice([1, 2, 4, 8])
        value = self.some_steps(self.whole("x"), (0, 0, 1))
        before = self.chance(0.6)
        value = self.assign(call("softmax", value, attr=("N",))) if before else value
        dims, attr = frozenset((ROWS, "K")), ("N", "K", count)
        top = self.assign(Node("top_k", "float", dims, (value,), attr))
        if before and self.chance(0.6):
            top = self.assign(call("div", top, call("sum", top, attr=("K",))))
        elif not before:
            top = self.assign(call("softmax", top, attr=("K",)))
        self.shape["K"] = count
        for v, dtype in ((top, "float32"), (Node("top_k_index", "int", dims, (value,), attr), "int32")):
            name = f"y{len(self.outputs) or ''}"
            self.outputs.append(Array(name, dtype, (Dim(ROWS), Dim("K", width=count))))
            self.assign(v, name)
        return ("K",)

    # Products

    def product(self) -> tuple[str, ...]:
        self.types = [("T", ("bfloat16",))]
        self.shape["K"] = self.random.choice(WIDTHS)
        self.shape[ROWS] = max(256, LARGE // 2 // max(self.shape["K"], self.shape["N"]))
        x = self.input("x", (ROWS, "K"))
        if self.chance(0.3):
            mean = call("mean", call("square", x), attr=("K",))
            x = self.assign(call("mul", x, call("rsqrt", call("add", mean, const(1e-6)))))
        made = self.assign(dot(x, self.input("w", ("K", "N")), "K"))
        for _ in range(self.random.choice([1, 1, 2, 3])):
            step = self.weighted({"bias": 4, "activation": 4, "residual": 3, "gate": 2, "softcap": 1, "scale": 1})
            if step == "gate":
                other = self.assign(dot(x, self.input("up", ("K", "N")), "K"))
                made = self.assign(call("mul", self.activated(made), other))
            else:
                made = self.assign({
                    "bias": lambda v: call("add", v, self.input("bias", ("N",))),
                    "activation": self.activated,
                    "residual": lambda v: call("add", v, self.whole("residual")),
                    "softcap": lambda v: call("mul", call("tanh", call("div", v, const(15.0))), const(15.0)),
                    "scale": lambda v: call("mul", v, self.input("scale", ("N",))),
                }[step](made))  # fmt: skip
        self.output(self.layout.axes, made)
        return ("K",)

    # Statistics over rows that elements use

    def used_statistics(self) -> tuple[str, ...]:
        axes = self.layout.over[0]
        value = self.some_steps(self.whole("x"), (0, 1, 2))
        if self.chance(0.4):
            value = self.assign(call("softmax", value, attr=axes))
        else:
            low, high = (self.assign(call(name, value, attr=axes)) for name in ("min", "mean"))
            value = self.assign(call("div", call("sub", value, low), call("add", call("sub", high, low), const(1e-2))))
        self.finish(self.some_steps(value, (0, 1)))
        return ()

    # Tables

    def computed_index(self) -> tuple[str, ...]:
        """Scores with a bias that depends on the distance of the two positions."""
        reach = self.random.choice([16, 64])
        size = 2 * reach + 1
        self.inputs.append(Array("bias", "T", (Dim("P"), Dim("H"))))
        self.shape["P"] = size
        off = call("sub", leaf("index", "int", ("S",), "S"), leaf("index", "int", ("Q",), "Q"))
        place = call("clip", call("add", off, const(reach)), const(0), const(size - 1))
        bias = self.assign(Node("gather", "float", place.dims | {"H"}, (place,), ("bias", "P", "H")))
        value = self.assign(call("add", call("mul", self.whole("x"), const(0.125)), bias))
        self.finish(self.assign(call("softmax", value, attr=("S",))))
        return ()

    def looked_up(self) -> tuple[str, ...]:
        """A function as a table of its values, of which it takes the nearest or a mixture of two."""
        self.inputs.append(Array("table", "float32", (Dim("P"),)))
        self.shape["P"] = size = self.random.choice([33, 257, 1025])
        value = self.some_steps(self.whole("x"), (0, 1))
        at = self.assign(
            call("clip", call("mul", call("add", value, const(4.0)), const(size / 8)), const(0.0), const(size - 1.5))
        )
        index = Node("cast", "int", at.dims, (call("floor", at),), "int32")
        first = Node("gather", "float", at.dims, (index,), ("table", "P", None))
        if self.chance(0.5):
            self.finish(self.assign(first))
            return ()
        second = Node("gather", "float", at.dims, (call("add", index, const(1)),), ("table", "P", None))
        rest = self.assign(call("sub", at, call("floor", at)))
        self.finish(self.assign(call("add", first, call("mul", rest, call("sub", second, first)))))
        return ()

    # Outputs in other orders

    def transposed(self) -> tuple[str, ...]:
        value = self.some_steps(self.whole("x"), (1, 2, 3))
        self.output(("B", "S", "C"), value)
        if self.chance(0.3):
            self.output(self.layout.axes, self.step(value))
        return ()


MAKERS: dict[str, Callable[[_Newer], tuple[str, ...]]] = {
    "neighbours": _Newer.neighbours, "scan": _Newer.scan, "scan of rows": _Newer.scan_of_rows,
    "random numbers": _Newer.random_numbers, "random numbers of a row": _Newer.random_numbers_of_a_row, "largest": _Newer.largest,
    "product": _Newer.product, "computed index": _Newer.computed_index, "looked up": _Newer.looked_up,
    "transposed": _Newer.transposed,
}  # fmt: skip
