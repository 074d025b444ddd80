"""The bounds of a chain's values: as the chain's text shows them, and for numbers drawn within the bounds of inputs."""

import math
import random
import re

import pytest

from codegen.graph.nodes import topological
from codegen.graph.ranges import NORMAL, is_normal, ranges
from codegen.pipeline import read_op
from codegen.render import render_op

INFINITE = math.inf
SPEC = """
op: made
summary: Made here.
inputs: {{{inputs}}}
outputs: {{y: "bfloat16[N]"}}
chain: y = {chain}
reference: y = 0
"""


def op(chain: str):
    """An op with the inputs that the chain names."""
    inputs = ", ".join(f'{name}: "bfloat16[N]"' for name in "xz" if re.search(rf"\b{name}\b", chain))
    return read_op("specs/made.yaml", SPEC.format(chain=chain, inputs=inputs))


def bounds(chain: str) -> tuple[float, float]:
    (statement,) = op(chain).statements
    return ranges(topological([statement.value]))[id(statement.value)]


@pytest.mark.parametrize(
    ("chain", "low", "high"),
    [
        ("x", -INFINITE, INFINITE),
        ("abs(x)", 0, INFINITE),
        ("exp(-abs(x))", 0, 1),
        ("1 + exp(-abs(x))", 1, 2),
        ("1 / (1 + exp(-abs(x)))", 0.5, 1),
        ("sigmoid(x)", 0, 1),
        ("exp(-0.5 * square(x))", 0, 1),
        ("x * z", -INFINITE, INFINITE),
        ("clip(x, -2.0, 3.0) * clip(z, -5.0, 1.0)", -15, 10),
        ("square(clip(x, -2.0, 3.0))", 0, 9),
        ("abs(clip(x, -5.0, -2.0))", 2, 5),
        ("clip(x, 1.0, 2.0) - clip(z, 3.0, 4.0)", -3, -1),
        ("clip(x, 1.0, 2.0) / clip(z, -4.0, -0.5)", -4, -0.25),
        ("clip(x, 1.0, 2.0) / clip(z, -4.0, 0.5)", -INFINITE, INFINITE),
        ("where(x > 0, tanh(x), 3.0)", -1, 3),
        ("erfc(x) + cos(z)", -1, 3),
        ("exp(x)", 0, INFINITE),
        ("abs(x) - abs(z)", -INFINITE, INFINITE),
        ("sqrt(clip(x, 4.0, 9.0))", 2, 3),
        ("max(clip(x, 4.0, 9.0), axis=N) + z * 0.0", 4, 9),
        ("sum(abs(x), axis=N) + exp2(clip(z, 0.0, 3.0))", 1, INFINITE),
        ("clip(exponent(x) - 8, -127, 2000)", -127, 1016),
        ("(exponent(x) & 7) - (exponent(z) % 5 >> 1)", -2, 7),
        ("clip(abs(exponent(x)) >> 1, 0, 9) - 1", -1, 8),
        ("maximum(exponent(x) * 4000000, 0) >> 1", 0, INFINITE),
        ("exponent(x) * 4000000", -INFINITE, INFINITE),  # it may wrap
        ("floor(clip(x, 0.5, 1.5))", 0, 1.5),
        ("cast(floor(clip(x, 2.0, 9.0)), int32) + 1", 1, 10),  # a NaN becomes 0
        ("cast(floor(x), int32)", -INFINITE, INFINITE),
        ("erf(clip(x, 0.0, 1.0))", -1, 1),
    ],
)
def test_bounds(chain, low, high):
    found = bounds(chain)
    assert found == pytest.approx((low, high))


@pytest.mark.parametrize("seed", range(40))
def test_values_lie_between_the_bounds(seed):
    """Random expressions of two numbers, evaluated."""
    rng = random.Random(seed)

    def made(depth: int) -> str:
        if depth == 0:
            return rng.choice(["clip(x, -3.0, 2.0)", "clip(z, 0.5, 1.5)", "(x * 0.5)", "(1.5 - z)"])
        one, other = made(depth - 1), made(depth - 1)
        return rng.choice(
            [f"({one} + {other})", f"({one} - {other})", f"({one} * {other})", f"abs({one})", f"square({one})", f"-({one})",
             f"exp(-abs({one}))", f"maximum({one}, {other})", f"minimum({one}, {other})", f"({one} / clip(z, 0.5, 1.5))",
             f"where(x > 0, {one}, {other})"]
        )  # fmt: skip

    chain = made(4)
    low, high = bounds(chain)
    functions = {
        "abs": abs, "exp": math.exp, "maximum": max, "minimum": min, "square": lambda v: v * v,
        "clip": lambda v, a, b: min(max(v, a), b), "where": lambda c, a, b: a if c else b,
    }  # fmt: skip
    for _ in range(200):
        value = eval(chain, functions, {"x": rng.uniform(-4, 4), "z": rng.uniform(-1, 3)})
        assert low - 1e-9 * abs(low) <= value <= high + 1e-9 * abs(high), chain


def test_what_can_be_divided_by():
    assert is_normal((1, 2)) and is_normal((-8, -0.125)) and is_normal((1 / NORMAL, NORMAL))
    for bounds in ((0, 1), (-1, 1), (1, INFINITE), (1e-38, 1), (-INFINITE, -1), (-1, 0)):
        assert not is_normal(bounds)


def text(chain: str) -> str:
    return render_op(op(chain)).partition("def made_backward")[0]


def test_kernels_divide_accordingly():
    assert "device.divide_by_normal(x, 1.0 + " in text("x / (1 + exp(-abs(z)))")
    assert "device.divide(x, " in text("x / (1 + exp(abs(z)))")


def test_a_divisor_that_another_kernel_computes_too_keeps_its_bounds():
    """The gradient of a maximum compares the divided values: without bounds, small ones took the slow way of the hardware's division."""
    spec = SPEC.format(inputs='x: "float32[N]"', chain="max(x / (1 + exp(-abs(x))), axis=N)")
    text = render_op(read_op("specs/made.yaml", spec.replace('y: "bfloat16[N]"', 'y: "float32[]"')))
    assert "device.divide_by_normal(x" in text and "device.divide(x" not in text
