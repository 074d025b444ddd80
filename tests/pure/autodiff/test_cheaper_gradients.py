"""The forms in which gradients are computed: what is shared, what cancels, and which values keep their form."""

import pytest

from codegen.autodiff.backward import Derived, backward_of
from codegen.pipeline import read_op
from tests.making import spec_text


def gradients(chain: str, inputs: str = "x a b", params: str = "", outputs: str = "y: float32[..., N]") -> str:
    """The backward of a chain of float32 arrays, as text."""
    arrays = "; ".join(f"{name}: float32[..., N]" for name in inputs.split())
    found = backward_of(read_op("specs/made.yaml", spec_text(arrays, outputs, chain, more=params)))
    assert isinstance(found, Derived), found
    return found.op.spec.chain.value


def test_quotients_with_one_divisor_share_its_reciprocal():
    text = gradients("y = x * a / (1 + b * b)")
    assert text.count("reciprocal(") == 1 and "/" not in text


def test_a_single_quotient_stays_one():
    assert gradients("y = log(x)", "x") == "dx = dy / x\n"


def test_a_value_that_is_compared_keeps_its_form():
    # y and the gradient's clip are compared with the quotient: a product might lie on the other side of the bound
    text = gradients("y = clip(x / a, 0, 1)", "x a")
    assert "t0 = x / a\n" in text and "reciprocal" not in text


def test_a_quotient_by_a_root_takes_the_reciprocal_root():
    assert gradients("y = sqrt(x)", "x") == "dx = dy * rsqrt(x) * 0.5\n"
    # where the root itself is needed, it is computed once
    assert "rsqrt" not in gradients("y = sqrt(x) * sqrt(x) * sqrt(x)", "x")


def test_a_power_is_made_from_the_one_above_it():
    op = backward_of(
        read_op("specs/made.yaml", spec_text("x: float32[..., N]", "y: float32[..., N]", "y = exp(x ** 2.7)"))
    )
    assert isinstance(op, Derived)
    assert [n.op for n in op.op.spec.read.nodes if "pow" in n.op] == ["pow", "_lowered_power"]
    alone = backward_of(
        read_op("specs/made.yaml", spec_text("x: float32[..., N]", "y: float32[..., N]", "y = x ** 2.7"))
    )
    assert isinstance(alone, Derived)
    assert [n.op for n in alone.op.spec.read.nodes if "pow" in n.op] == ["pow"]


@pytest.mark.parametrize("exponent", ["1e308", "1e16"])
def test_a_power_is_not_made_from_itself(exponent: str):
    """1 is lost in the sum with such an exponent: the power above it would be itself."""
    assert gradients(f"y = exp(x ** {exponent})", "x").count(" ** ") == 1


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ("y = 0.5 * x * x", "dx = dy * x\n"),  # two terms that differ in a number
        ("y = 3 * x * x", "dx = dy * (3.0 * x) * 2.0\n"),
        ("y = 2.0 / exp(x)", "dx = -(dy * (2.0 / exp(x)))\n"),  # a factor and its reciprocal
        ("y = x ** 2.5", "dx = dy * x ** 1.5 * 2.5\n"),  # no test whether the exponent is 0
        ("y = 10 ** x", "dx = dy * 10.0 ** x * 2.302585092994046\n"),
        ("y = erf(x / 4)", "dx = dy * exp(-(x / 4.0 * (x / 4.0))) * 0.28209479177387814\n"),  # one constant
    ],
)
def test_terms_and_factors(chain: str, expected: str):
    assert gradients(chain, "x") == expected


def test_conditions_of_neighbours():
    """A position that is two from the first one's neighbour is three from the first. Of a neighbour's neighbour, the element itself,
    nothing is tested that always holds."""
    arrays, chain = "x: float32[..., N]", "y = shift(shift(x, axis=N, by=1), axis=N, by=2)"
    op = read_op("specs/made.yaml", spec_text(arrays, "y: float32[..., N]", chain))
    assert [n.args[1].attr for n in op.spec.read.nodes if n.op == "ge"] == [2, 3]
    assert gradients("y = sin(shift(x, axis=N))", "x") == (
        "dx = where(index(N) < size(N) - 1, shift(dy, axis=N, by=-1) * cos(x), 0.0)\n"
    )


def of_rows_and_columns(chain: str) -> list[str]:
    """As `gradients`, of an array, values of its rows, and values of its columns: in lines."""
    arrays = "x: float32[..., N]; r: float32[...]; s: float32[...]; w: float32[N]; v: float32[N]"
    found = backward_of(read_op("specs/made.yaml", spec_text(arrays, "y: float32[..., N]", chain)))
    assert isinstance(found, Derived), found
    return found.op.spec.chain.value.splitlines()


def test_factors_with_the_same_axes_are_multiplied_first():
    """Those of a row once for all of its elements. Those with all axes one by one: their product may be out of range."""
    lines = of_rows_and_columns("y = exp(x) * w * r * v * s")
    assert lines[:4] == ["t0 = s * r", "t1 = v * w", "t2 = exp(x)", "dx = t0 * t1 * dy * t2"]


def test_a_product_that_is_compared_keeps_its_form():
    assert any(
        line.endswith(" = x * w * r * v * s") for line in of_rows_and_columns("y = clip(x * w * r * v * s, 0, 1)")
    )


def test_equal_products_are_one():
    """The forward's factors are in another order than the derivative's."""
    assert gradients("y = x * sigmoid(1.7 * x)", "x").startswith("t0 = 1.7 * x\nt1 = sigmoid(t0)\n")


def test_numbers_of_a_product_are_not_multiplied_with_each_other():
    """Their product may be out of range."""
    assert "dx = dy * a * 1e-30 * 1e-30\n" in gradients("y = 1e-30 * (x * 1e-30) * a", "x a")
