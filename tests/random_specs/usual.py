"""From one integer, a random op as users write them: a few steps of a known kind (a bias, a gate, a mask, a norm, a loss), at
a size at which they are run. Specs that try the language's corners are those of `generate.py`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.random_specs.nodes import ROWS, Array, Dim, Node, Param
from tests.random_specs.tree import RandomSpec
from tests.random_specs.values import Values, call, const, leaf

LARGE = 2**26  # elements of a large op's largest array
SMALL = (2**11, 2**14, 2**17, 2**20)


class Layout(NamedTuple):
    """The axes of an op's largest arrays, the sizes that are usual for all but the first, and the axes that its reductions
    may lose. `split` is a last axis of blocks. `lacking` are the axes of arrays that are broadcast over the others."""

    axes: tuple[str, ...]
    sizes: dict[str, tuple[int, ...]]
    lacking: tuple[tuple[str, ...], ...]
    along: tuple[tuple[str, ...], ...] = ()
    over: tuple[tuple[str, ...], ...] = ()
    often: int = 2
    split: bool = False


LONG = (256, 512, 768, 1000, 1024, 2048, 2560, 3000, 4096, 4097, 5120, 8191, 8192, 11008, 16384)
VOCABULARY = (32000, 32768, 50257, 50304, 128256, 131072)
ROW, BATCH = (ROWS, "N"), ("B", "S", "N")
LAYOUTS = {
    "elementwise": Layout(ROW, {"N": LONG}, (("N",), ("N",), (ROWS,)), often=6),
    "elementwise of a batch": Layout(
        BATCH, {"S": (49, 196, 512, 2048), "N": (64, 128, 768, 1024, 4096)}, (("S", "N"), ("B", "N"), ("N",), ("B", "S"))
    ),
    "channels first": Layout(("B", "C", "S"), {"C": (3, 64, 80, 256), "S": (49, 1024, 3136, 4096)}, (("C",), ("B", "C"))),
    "row": Layout(ROW, {"N": LONG}, (("N",), ("N",), (ROWS,)), (("N",),), often=7),
    "long row": Layout(ROW, {"N": VOCABULARY}, ((ROWS,), ("N",)), (("N",),), often=3),
    "short row": Layout(ROW, {"N": (3, 8, 16, 32, 49, 64, 80, 128)}, (("N",), (ROWS,)), (("N",),)),
    "row of a batch": Layout(BATCH, {"S": (77, 512, 2048), "N": (64, 128, 1024, 4096)}, (("S", "N"), ("B", "N"), ("N",)), (("N",),)),
    "scores": Layout(
        ("B", "H", "Q", "S"), {"H": (8, 12, 16, 32), "Q": (49, 197, 512, 1024), "S": (49, 197, 512, 1024, 2048)},
        (("H", "Q", "S"), ("B", "S"), ("Q", "S"), ("B", "Q", "S"), ("H",)), (("S",),), often=4,
    ),
    "heads": Layout(
        ("B", "S", "H", "D"), {"S": (512, 2048), "H": (3, 8, 9, 32), "D": (64, 80, 128, 256)},
        (("S", "D"), ("S", "D"), ("D",), ("D",), ("H",), ("B", "S")), (("D",),), often=3,
    ),
    "blocks": Layout((ROWS, "B", "G"), {"B": (8, 32, 64), "G": (16, 32, 64, 128)}, (("B", "G"), (ROWS,)), (("G",),), often=3, split=True),
    "groups": Layout(
        ("B", "H", "C", "S"), {"H": (8, 32), "C": (4, 6, 16), "S": (49, 256, 1024, 4096)}, (("H", "C"), ("B", "H", "C")), (("C", "S"),)
    ),
    "middle": Layout(BATCH, {"S": (2, 4, 7, 16, 49, 197, 512), "N": (64, 256, 768, 1024, 4096)}, (("B", "S"), ("N",), ("S",)), over=(("S",),), often=4),
    "column": Layout(ROW, {"N": LONG}, (("N",), (ROWS,)), over=((ROWS,),), often=3),
    "row and column": Layout(ROW, {"N": LONG[:12]}, (("N",), (ROWS,)), (("N",),), ((ROWS,),), often=3),
    "whole": Layout(ROW, {"N": LONG}, (("N",),), over=((ROWS, "N"),), often=1),
}  # fmt: skip

# Of every eighth op: what its reductions give goes back to the elements, so that all wait for all others they meet
BACK = {
    "norm over rows": Layout(ROW, {"N": (64, 256, 1024, 4096)}, (("N",),), over=((ROWS,),)),
    "norm over the middle": Layout(
        BATCH, {"S": (16, 49, 196, 512), "N": (64, 256, 1024)}, (("B", "S"), ("N",)), over=(("S",),), often=3
    ),
    "norm of channels": Layout(
        ("B", "C", "S"), {"C": (64, 80, 256), "S": (49, 1024, 3136)}, (("C",),), over=(("B", "S"),)
    ),
}
EIGHTH = 8

ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh", "sigmoid", "tanh", "softplus", "squared_relu", "leaky_relu", "hard_swish",
               "mish", "elu", "quick_gelu", "log_sigmoid", "softsign")  # fmt: skip
FUNCTIONS = ("sin", "cos", "exp", "log1p", "sqrt", "erf", "atan", "log", "rsqrt", "expm1")
STEPS = {
    "bias": 5, "scale": 5, "residual": 4, "gate": 4, "activation": 7, "function": 3, "softcap": 1, "clip": 2, "dropout": 2,
    "mask": 2, "temperature": 2, "threshold": 1, "lerp": 1, "power": 2, "snake": 1, "product": 1, "noise": 1, "distance": 1,
}  # fmt: skip
# What a reduction gives back to its row, and reductions that are results themselves
NORMS = {
    "rms": 6,
    "layer": 4,
    "softmax": 5,
    "log_softmax": 2,
    "l2": 2,
    "quantise": 3,
    "unit": 1,
    "centre": 2,
    "shift": 1,
}
RESULTS = {"sum": 3, "mean": 4, "max": 2, "squares": 3, "distance": 3, "weighted": 4, "logsumexp": 2, "divergence": 1,
           "entropy": 1, "moments": 1, "likelihood": 2}  # fmt: skip
OF_ROWS = (
    "sum",
    "mean",
    "max",
    "squares",
    "distance",
    "weighted",
    "moments",
)  # that reductions over rows have kernels for


@dataclass(frozen=True)
class Usual:
    """An op, a size of each of its axes, and which kind of op it is."""

    spec: RandomSpec
    shape: dict[str, int]
    layout: str


def usual_spec(seed: int, number: int) -> Usual:
    """The op of this number among those of a seed."""
    layouts = BACK if number % EIGHTH == EIGHTH - 1 else LAYOUTS
    return Maker(random.Random(f"usual {seed} {number}"), name=f"any_{seed}_{number}").usual(layouts)


@dataclass
class Maker(Values):
    """The spec as it grows, step by step: each step reads the value before it, so that nothing is unused."""

    name: str = ""
    params: list[Param] = field(default_factory=list)
    outputs: list[Array] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    keys: list[tuple[str, str]] = field(default_factory=list)
    narrow: bool = False  # whether values are divided by a scale for float8

    def usual(self, layouts: dict[str, Layout]) -> Usual:
        self.lay_out(self.weighted({name: layout.often for name, layout in layouts.items()}), layouts)
        if self.kind == "elementwise" and self.chance(0.12):
            self.rotated()
        else:
            self.steps()
        return self.made()

    def lay_out(self, kind: str, layouts: dict[str, Layout]) -> None:
        self.kind, self.layout = kind, layouts[kind]
        self.shape = self.sizes()
        self.types = [("T", ("float32", "bfloat16"))]

    def made(self, *more: str) -> Usual:
        """What was drawn, whose values may have `more` axes than the layout."""
        if self.domains:
            self.keys.append(("domain", f"{{{', '.join(self.domains)}}}"))
        inputs = sorted(self.inputs, key=lambda a: a.default is not None)
        self.types = self.types if any(a.dtype == "T" for a in (*inputs, *self.outputs)) else []
        spec = RandomSpec(
            self.name, (*self.layout.axes, *more), tuple(self.types), tuple(inputs), tuple(self.outputs),
            tuple(self.params), tuple(self.chain), tuple(self.keys),
        )  # fmt: skip
        return Usual(spec, self.shape, self.kind)

    def sizes(self) -> dict[str, int]:
        first, *rest = self.layout.axes
        total = LARGE if self.chance(0.85) else self.random.choice(SMALL)
        shape = {axis: self.random.choice(self.layout.sizes[axis]) for axis in rest}
        if self.kind == "scores" and self.chance(0.5):
            shape["Q"] = shape["S"]
        return {first: max(1, total // math.prod(shape.values()))} | shape

    # What a spec is made of

    def input(self, name: str, axes: Sequence[str], dtype: str = "T", default: float | None = None) -> Node:
        """A new array."""
        if count := sum(a.name.rstrip("0123456789") == name for a in self.inputs):
            name = f"{name}{count + 1}"
        self.inputs.append(Array(name, dtype, self.dims(axes), default))
        kind = "bool" if dtype == "bool" else "int" if "int" in dtype else "float"
        return leaf("input", kind, axes, (name, None))

    def dims(self, axes: Sequence[str]) -> tuple[Dim, ...]:
        found = [Dim(a) for a in axes]
        if self.layout.split and tuple(axes[-2:]) == ("B", "G"):
            found[-2:] = [Dim("B", inner="G", width=self.shape["G"])]
        return tuple(found)

    def param(self, name: str, value: float) -> Node:
        if all(p.name != name for p in self.params):
            self.params.append(Param(name, "float", value, self.chance(0.3)))
        return leaf("param", "float", (), name)

    def assign(self, value: Node, name: str = "") -> Node:
        name = name or f"v{len(self.chain)}"
        self.chain.append((name, None, value))
        return leaf("named", value.kind, value.dims, name)

    def output(self, axes: Sequence[str], value: Node, dtype: str = "T") -> Node:
        name = f"y{len(self.outputs) or ''}"
        self.outputs.append(Array(name, dtype, self.dims(axes)))
        return self.assign(value, name)

    def small(self) -> Sequence[str]:
        """The axes of an array that lacks some."""
        return self.random.choice(self.layout.lacking)

    def whole(self, name: str) -> Node:
        return self.input(name, self.layout.axes)

    def activated(self, value: Node) -> Node:
        return call(self.random.choice(ACTIVATIONS), value)

    # Steps

    def steps(self) -> None:
        layout, axes = self.layout, self.layout.axes
        value = self.begin()
        for _ in range(self.random.choice([0, 1, 1, 2, 3] if layout.along or layout.over else [1, 2, 2, 3, 4])):
            value = self.step(value)
        if self.chance(0.15):
            value = self.output(axes, value)  # before what follows
        if self.kind in BACK:
            self.finish(self.norm(value, layout.over[0]))
            return
        if layout.over and not layout.along:
            self.results(value, self.random.choice(layout.over), OF_ROWS)
            return
        if layout.along and not layout.over and self.chance(0.25):
            self.results(value, layout.along[0], tuple(RESULTS))
            return
        if layout.along:
            value = self.norm(value, layout.along[0])
            for _ in range(self.random.choice([0, 0, 1, 1, 2])):
                value = self.step(value)
        if layout.along and layout.over:
            self.results(value, layout.over[0], OF_ROWS)
            if self.chance(0.3):
                return
        self.finish(value)

    def begin(self) -> Node:
        axes = self.layout.axes
        way = self.weighted({"x": 16, "int8": 1, "halves": 2, "taken": 1, "shared": 1})
        if way == "int8":
            q = self.input("q", axes, "int8")
            return self.assign(call("mul", q, self.input("scale", self.small(), "float32")))
        if way == "halves" and not self.layout.split and self.layout.axes[-1] == "N" and self.shape["N"] > 64:
            dim = Dim("N", parts=2, interleaved=self.chance(0.3))
            self.inputs.append(Array("x", "T", (*map(Dim, axes[:-1]), dim)))
            one, two = (leaf("input", "float", axes, ("x", part)) for part in (0, 1))
            return self.assign(call("mul", self.activated(one), two))
        if way == "taken" and axes == ROW and self.shape["N"] <= 16384:
            self.inputs += [Array("table", "T", (Dim("P"), Dim("N"))), Array("place", "int32", (Dim(ROWS),))]
            self.domains.append("place: index(P)")
            self.shape["P"] = self.random.choice([128, 4096, 32768])
            taken = leaf("take", "float", axes, ("table", "place", "P"))
            return self.assign(call("add", self.whole("x"), taken))
        if way == "shared" and len(axes) > 2 and not self.layout.split:
            return self.assign(call("add", self.whole("x"), self.input("bias", self.small())))
        return self.whole("x")

    def step(self, value: Node) -> Node:
        name = self.weighted(STEPS)
        found = getattr(self, f"step_{name}", None)
        if found is not None:
            return self.assign(found(value))
        return self.assign(STEPS_OF_ONE[name](self, value))

    def step_bias(self, v: Node) -> Node:
        default = 0.0 if self.chance(0.2) else None
        return call("add", v, self.input("bias", self.small(), self.weighted({"T": 3, "float32": 1}), default))

    def step_scale(self, v: Node) -> Node:
        weight = self.input(
            "weight", self.small(), self.weighted({"T": 3, "float32": 1}), 1.0 if self.chance(0.2) else None
        )
        return call("mul", v, call("add", weight, const(1.0)) if self.chance(0.2) else weight)

    def step_gate(self, v: Node) -> Node:
        return (
            call("mul", self.activated(v), self.whole("gate"))
            if self.chance(0.5)
            else call("mul", v, self.activated(self.whole("gate")))
        )

    def step_function(self, v: Node) -> Node:
        name = self.random.choice(FUNCTIONS)
        if name in ("sin", "cos", "erf", "atan"):
            return call(name, v)
        if name in ("exp", "expm1"):
            return call(name, call("neg", call("abs", v)))
        return call(name, call("add", call("abs", v) if self.chance(0.5) else call("square", v), const(1e-3)))

    def step_mask(self, v: Node) -> Node:
        axes = self.layout.axes if self.chance(0.4) else self.small()
        return call("where", self.input("mask", axes, "bool"), v, const(self.random.choice([0.0, -1e4])))

    def step_distance(self, v: Node) -> Node:
        axes = [a for a in self.layout.axes if a != ROWS]
        last = leaf("index", "int", [axes[-1]], axes[-1])
        if len(axes) < 2:
            return call("sub", v, call("mul", last, self.param("slope", 0.01)))
        before = leaf("index", "int", [axes[-2]], axes[-2])
        if self.chance(0.5) or self.kind != "scores":
            return call("add", v, call("mul", call("sub", last, before), self.param("slope", 0.01)))
        return call("where", call("le", last, before), v, const(-1e4))

    # Reductions

    def norm(self, v: Node, axes: tuple[str, ...]) -> Node:
        name = self.weighted(NORMS)

        def eps() -> Node:
            return const(1e-6) if self.chance(0.5) else self.param("eps", 1e-5)

        def fold(how: str, x: Node) -> Node:
            return call(how, x, attr=axes)

        if name in ("rms", "l2"):
            squares = self.assign(fold("mean" if name == "rms" else "sum", call("square", v)))
            scale = self.assign(call("rsqrt", call("add", squares, eps())))
            if self.chance(0.15):
                scale = self.kept(scale, axes)
            return self.weighed(call("mul", v, scale), axes)
        if name == "layer":
            mean = self.assign(fold("mean", v))
            centred = self.assign(call("sub", v, mean))
            scale = self.assign(call("rsqrt", call("add", fold("mean", call("square", centred)), eps())))
            return self.weighed(call("mul", centred, scale), axes)
        if name == "quantise":
            self.narrow = True
            scale = self.assign(call("div", call("maximum", fold("max", call("abs", v)), const(1e-6)), const(448.0)))
            return self.assign(call("div", v, self.kept(scale, axes)))
        if name == "unit":
            low, high = self.assign(fold("min", v)), self.assign(fold("max", v))
            return self.assign(call("div", call("sub", v, low), call("add", call("sub", high, low), const(1e-3))))
        if name == "centre":
            return self.assign(call("sub", v, fold("mean", v)))
        if name == "shift":
            total = self.assign(fold("logsumexp", v))
            return self.assign(call("sub", v, total))
        return self.assign(fold(name, call("mul", v, self.param("beta", 0.125)) if self.chance(0.4) else v))

    def weighed(self, v: Node, axes: tuple[str, ...]) -> Node:
        """A normalised value, with a weight and perhaps a bias."""
        v = self.assign(v)
        if self.chance(0.7):
            own = {("C", "S"): ("H", "C"), (ROWS,): ("N",), ("S",): ("N",), ("B", "S"): ("C",)}.get(axes, axes)
            own = ("S",) if self.kind == "scores" else ("B", "G") if self.layout.split else own
            v = self.assign(call("mul", v, self.input("weight", own)))
            v = self.assign(call("add", v, self.input("bias", own))) if self.chance(0.4) else v
        return v

    def kept(self, statistic: Node, axes: tuple[str, ...]) -> Node:
        """A statistic that is an output too."""
        return self.output([a for a in self.layout.axes if a not in axes], statistic, "float32")

    def results(self, v: Node, axes: tuple[str, ...], names: Sequence[str]) -> None:
        """One or two outputs that have lost these axes."""
        kept = [a for a in self.layout.axes if a not in axes]
        table = {n: RESULTS[n] for n in names}
        for _ in range(self.random.choice([1, 1, 1, 2])):
            name = self.weighted(table)
            del table[name]
            for value in self.result(name, v, axes):
                self.output(kept, value, self.weighted({"T": 2, "float32": 3}))

    def result(self, name: str, v: Node, axes: tuple[str, ...]) -> list[Node]:
        def fold(how: str, x: Node) -> Node:
            return call(how, x, attr=axes)

        if name in ("sum", "mean", "max", "logsumexp"):
            return [fold(name, v)]
        if name == "squares":
            squares = fold(self.random.choice(["sum", "mean"]), call("square", v))
            return [call("sqrt", call("add", squares, const(1e-6))) if self.chance(0.4) else squares]
        if name == "distance":
            off = call("sub", v, self.whole("target"))
            return [fold("mean", call(self.random.choice(["square", "abs"]), off))]
        if name == "weighted":
            lacks = [own for own in self.layout.lacking if set(own) & set(axes)]
            own = self.random.choice(lacks) if lacks else self.layout.axes
            by = self.whole("w") if self.chance(0.4) else self.input("w", own)
            return [fold("sum", call("mul", v, by))]
        if name == "moments":
            return [fold("mean", v), fold("mean", call("square", v))]
        if name == "entropy":
            p = self.assign(fold("softmax", v))
            return [call("neg", fold("sum", call("mul", p, call("log", call("add", p, const(1e-9))))))]
        if name == "divergence":
            log_p, log_q = self.assign(fold("log_softmax", v)), self.assign(fold("log_softmax", self.whole("other")))
            return [fold("sum", call("mul", call("exp", log_p), call("sub", log_p, log_q)))]
        assert name == "likelihood", name
        if len(axes) > 1:
            return [fold("logsumexp", v)]
        label = self.input("label", [a for a in self.layout.axes if a not in axes], "int32")
        if label.attr[0] == "label":
            self.domains.append(f"label: index({axes[0]})")
        place = call("eq", leaf("index", "int", axes, axes[0]), label)
        return [call("sub", fold("logsumexp", v), fold("sum", call("where", place, v, const(0.0))))]

    # Results

    def finish(self, v: Node) -> None:
        """The last value is an output, in float8 where it was scaled for that, perhaps with another."""
        axes = self.layout.axes
        if self.chance(0.1) or self.narrow:
            v = v if self.narrow else self.assign(call("mul", v, self.input("inverse", (), "float32")))
            self.output(axes, v, "float8_e4m3fn")
            self.keys.append(("grad", "none"))
            return
        done = self.output(axes, v, self.weighted({"T": 6, "float32": 1}))
        if self.chance(0.04):
            self.output(axes, call("gt", done, const(0.0)), "bool")
        elif self.chance(0.04):
            self.output(axes, call("square", done))

    def rotated(self) -> None:
        """Pairs or halves, turned by angles."""
        axes = self.layout.axes
        self.shape = {ROWS: LARGE // 64, "N": 64}
        dim = Dim("N", parts=2, interleaved=self.chance(0.5))
        self.inputs.append(Array("x", "T", (*map(Dim, axes[:-1]), dim)))
        one, two = (leaf("input", "float", axes, ("x", part)) for part in (0, 1))
        cos, sin = (self.input(name, axes, "float32") for name in ("cos", "sin"))
        self.outputs.append(Array("y", "T", (*map(Dim, axes[:-1]), dim)))
        self.chain.append(("y", 0, call("sub", call("mul", one, cos), call("mul", two, sin))))
        self.chain.append(("y", 1, call("add", call("mul", two, cos), call("mul", one, sin))))


def _snake(m: Maker, v: Node) -> Node:
    a = m.param("a", 1.5)
    return call("add", v, call("div", call("square", call("sin", call("mul", v, a))), a))


def _lerp(m: Maker, v: Node) -> Node:
    a = m.param("alpha", 0.9)
    return call("add", call("mul", v, a), call("mul", m.whole("state"), call("sub", const(1.0), a)))


STEPS_OF_ONE: dict[str, Callable[[Maker, Node], Node]] = {
    "residual": lambda m, v: call("add", v, m.whole("residual")),
    "activation": lambda m, v: m.activated(v),
    "softcap": lambda m, v: call("mul", call("tanh", call("div", v, const(15.0))), const(15.0)),
    "clip": lambda m, v: call("clip", v, const(-2.0), const(2.5)),
    "dropout": lambda m, v: call("where", m.input("keep", m.layout.axes, "bool"), call("mul", v, const(1.25)), const(0.0)),
    "temperature": lambda m, v: call("div", v, m.param("temperature", 1.5)),
    "threshold": lambda m, v: call("where", call("gt", v, m.param("threshold", 0.1)), v, const(0.0)),
    "lerp": _lerp,
    "power": lambda m, v: call("pow", v, attr=m.random.choice([2, 3])) if m.chance(0.6) else call("pow", call("add", call("abs", v), const(0.1)), attr=m.random.choice([0.5, 1.5, -0.5])),
    "snake": _snake,
    "product": lambda m, v: call("mul", v, call("mul", call("sigmoid", m.whole("u")), call("tanh", m.whole("h")))),
    "noise": lambda m, v: call("add", v, call("mul", m.whole("noise"), m.param("sigma", 0.1))),
}  # fmt: skip
