"""Specs at the language's own limits: they are built and explained in about linear time, however deep and shared the
graph is.

Times are those of the process, with three times the promised ones allowed: 2 s to build, 3 s to explain.
"""

import time

import pytest

from codegen.autodiff.backward import Derived, backward_of
from codegen.explain import report as explain
from codegen.explain import svg
from codegen.explain.report import graph
from codegen.language import sizes
from codegen.language.statements import MAX_STATEMENTS
from codegen.pipeline import read_op
from codegen.plan.op import Op
from codegen.render import render_op
from tests.turns import some

BUILD, EXPLAIN = 3 * 2.0, 3 * 3.0
TYPES = "types:\n  T: [float32, bfloat16, float16]\n"


def text(chain: str, inputs: str, outputs: str = "y: T[..., N]") -> str:
    names = [line.partition(":")[0] for line in outputs.split("\n")]
    first = inputs.partition(":")[0]
    reference = first if len(names) == 1 else "|\n" + "\n".join(f"  {name} = {first}" for name in names)

    def block(lines: str) -> str:
        return "".join(f"  {line}\n" for line in lines.split("\n"))

    return (
        f"op: large\nsummary: A large one.\n{TYPES}inputs:\n{block(inputs)}outputs:\n{block(outputs)}"
        f"chain: |\n{block(chain)}reference: {reference}\n"
    )


def chained(form: str, first: str, count: int = MAX_STATEMENTS) -> str:
    """A chain of statements that each take the previous one, `p`, and the one before it, `q`; `i` is the statement's
    number."""
    lines = [f"t0 = {first}"]
    lines += ["t{i} = " + form for _ in range(count - 2)]
    lines = [line.format(i=i, p=f"t{i - 1}", q=f"t{max(0, i - 2)}") for i, line in enumerate(lines)]
    return "\n".join([*lines, f"y = t{count - 2}"])


def numbered(name: str, form: str, count: int) -> str:
    return "\n".join(f"{name}{i}: {form}" for i in range(count))


MOST = MAX_STATEMENTS
X, AB = "x: T[..., N]\nbias: T[N]", "a: T[..., K]\nb: T[K, N]\nbias: T[N]"
LARGE = {
    "chain and its backward": text(chained("maximum({p}, {q}) * bias", "x", MOST // 2), X),
    "many operations each": text(chained("{p} * gelu_tanh(x + {i}.5) / (1 + {q} * {q}) - bias", "x"), X),
    "inputs": text(chained("{p} * x{i}", "x0"), numbered("x", "T[..., N]", MOST - 1)),
    "inputs and outputs": text(
        "\n".join(f"y{i} = tanh(x{i})" for i in range(MOST // 2)),
        numbered("x", "T[..., N]", MOST // 2), numbered("y", "T[..., N]", MOST // 2),
    ),
    "reductions over rows": text(
        "\n".join(f"y{i} = sum(x * {i}.5, axis=...)" for i in range(MOST)), "x: T[..., N]", numbered("y", "T[N]", MOST)
    ),
    "a product and its backward": text(chained("tanh({p}) + bias", "a @ b", 200), AB),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", some(LARGE, 2))
def test_specs_at_the_limits_take_no_longer_than_promised(name):
    start = time.process_time()
    op = read_op("specs/large.yaml", LARGE[name])
    assert render_op(op)
    built = time.process_time()
    assert built - start < BUILD
    assert explain.explain(op, sizes.default_shape(op.spec))["graph"]
    assert svg.draw(op).startswith("<svg")
    assert time.process_time() - built < EXPLAIN


# Towers of powers: as many nodes as the exponents' logarithm, as many factors as the exponents' product


def tower(chain: str, outputs: str = "y: float32[..., N]") -> Op:
    made = read_op("specs/large.yaml", text(chain, "x: float32[..., N]\nbias: float32[N]", outputs).replace(TYPES, ""))
    assert isinstance(backward_of(made), Derived), backward_of(made)
    return made


@pytest.mark.parametrize(
    ("chain", "outputs", "most"),
    [
        ("y = ((x + bias) ** 32) ** 32", "y: float32[..., N]", 12),
        ("y = (((x + bias) ** 64) ** 64) ** 64", "y: float32[..., N]", 20),
        ("a = ((x + bias) ** 64) ** 64\nb = (a ** 64) ** 64\ny = b ** 64", "y: float32[..., N]", 32),
        ("y = sum(((x + bias) ** 63) ** 63, axis=N)", "y: float32[...]", 24),
    ],
)
def test_towers_of_powers_are_as_long_as_their_graph(chain, outputs, most):
    op = tower(chain, outputs)
    assert len(graph(op).operations) <= most
    source = render_op(op)
    assert max(map(len, source.splitlines())) < 200
    # the backward multiplies at most once more for each power
    assert len(graph(backward_of(op).op).operations) < 8 * most
    assert len(backward_of(op).how.spec.chain.value) < 60 * 8 * most


def test_a_derivative_of_a_large_power_is_that_of_the_power():
    """Read again and evaluated: y = (x + b) ** 1024, of numbers near 1."""
    op = tower("y = ((x + bias) ** 32) ** 32")
    x, bias, dy = 0.4, 0.6 + 1e-4, 0.7
    scope = {"x": x, "bias": bias, "dy": dy, "y": (x + bias) ** 1024, "sum": lambda value, axis: value, "N": "N"}
    exec(backward_of(op).op.spec.chain.value.replace("axis=...", "axis=0"), {}, scope)
    assert scope["dx"] == pytest.approx(dy * 1024 * (x + bias) ** 1023, rel=1e-9)
    assert scope["dbias"] == pytest.approx(dy * 1024 * (x + bias) ** 1023, rel=1e-9)
