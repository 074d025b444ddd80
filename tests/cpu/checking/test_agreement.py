"""What property tests decide, count and report: comparisons of a value with its own extreme, and the worst errors."""

import re

import numpy as np
import pytest

from codegen.checking.agreement import Disagreement, Report
from codegen.checking.bounds.analysis import Analysis, dimensions_of
from codegen.checking.bounds.products import product
from codegen.checking.bounds.records import Arithmetic, Bound
from codegen.checking.draw import Case
from codegen.checking.testing import check_case, check_op
from codegen.checking.verify import as_row, verify
from codegen.graph.nodes import Leaf
from codegen.pipeline import read_op
from codegen.runtime.call.arguments import Types
from tests.making import make_jnp_op, make_op, spec_text

RIVALS = {  # a row of x: where its largest element is certain, within the float32 rounding of x * 3 + 1
    (1.0, 2.0, 3.0): "certain",
    (1.0, 3.0, 3.0): "open",
    (1.0, 3.0 - 2**-21, 3.0): "open",
    (1.0, 3.0 - 2**-12, 3.0): "certain",
    (1.0, np.nan, 3.0): "certain",
    (np.inf, np.inf, 3.0): "certain",
    (-np.inf, -np.inf, -np.inf): "certain",
}


@pytest.mark.parametrize("op", ["==", "!=", ">=", "<"])
@pytest.mark.parametrize("extreme", ["max", "min"])
@pytest.mark.parametrize("row", RIVALS, ids=str)
def test_a_value_is_its_own_extreme_where_no_other_may_be(row, extreme, op):
    """However large their errors are, the value and the extreme have the same error. This does not hold for elements
    that are close to it."""
    relation = op if extreme == "max" else op.replace(">", "~").replace("<", ">").replace("~", "<")
    chain = f"z = x * 3 + 1; y = z {relation} {extreme}(z, axis=N); t = {extreme}(z, axis=N) == z"
    made = read_op("specs/made.yaml", spec_text("x: float32[..., N]", "y: bool[..., N]; t: bool[..., N]", chain))
    x = np.array([row]) * (1 if extreme == "max" else -1)
    analysis = Analysis(Arithmetic(), dimensions_of(made.plan.order, 1))
    bounds = analysis.statements(made.statements, {("input", Leaf("x")): x})
    for bound in (bounds["y", None], bounds["t", None]):
        assert bound.error.any() == (RIVALS[row] == "open")
        assert not bound.error[0, 0] or row[0] != 1.0  # it is far from the largest
    expected = (
        {"==": x == x.max(), "!=": x != x.max(), ">=": x >= x.max(), "<": x < x.max()}[op] if extreme == "max" else None
    )
    if expected is not None:
        np.testing.assert_array_equal(bounds["y", None].value, expected)


@pytest.mark.parametrize("op", ["==", "!="])
def test_an_equality_is_uncertain_within_the_errors(op):
    """In float32, tanh(-10) is -1, and in float64 it is not. The number itself need not be an end of the interval."""
    made = read_op("specs/made.yaml", spec_text("x: float32[N]", "y: bool[N]", f"y = tanh(x) {op} -1"))
    x = np.array([-30.0, -10.0, -3.0, np.nan])
    analysis = Analysis(Arithmetic(), dimensions_of(made.plan.order, 1))
    bound = analysis.statements(made.statements, {("input", Leaf("x")): x})["y", None]
    np.testing.assert_array_equal(bound.error, [1, 1, 0, 0])


def test_a_factor_that_may_be_rounded_to_0_makes_anything_of_an_infinity():
    """In float16, 1e-9 is 0, and 0 times infinity is NaN. 1 times infinity is infinite."""
    small, large = (Bound(np.array([[x, 2.0]]), np.array([[1e-7, 0.0]]), np.zeros((1, 2), bool)) for x in (1e-9, 1.0))
    other = Bound(np.array([[-np.inf, 3.0]]), np.zeros((1, 2)), np.zeros((1, 2), bool))
    for factors in ((small, other), (other, small)):
        assert product(*factors, (1,)).error == np.inf
    assert product(large, other, (1,)).error < 1e-6


def test_integers_wrap_in_the_bounds_too():
    """2 * (1 - 2**31) is 2 in int32."""
    made = read_op(
        "specs/made.yaml",
        spec_text("x: int32[N]", "y: int32[N]; z: float32[N]", "y = x + x; z = tanh(cast(x + x, uint16))"),
    )
    analysis = Analysis(Arithmetic(), dimensions_of(made.plan.order, 1))
    bounds = analysis.statements(made.statements, {("input", Leaf("x")): np.array([1 - 2**31, 3])})
    np.testing.assert_array_equal(bounds["y", None].value, [2, 6])
    np.testing.assert_allclose(bounds["z", None].value, np.tanh([2.0, 6.0]))


def argmax(folder):
    reference = "z = x * a + b; y = jnp.argmax(z, -1).astype('int32')"
    chain = "z = x * a + b; m = max(z, axis=N); y = min(where(z == m, index(N), size(N)), axis=N)"
    return make_op(
        folder, spec_text("x: float32[..., N]; a: float32[N]; b: float32[N]", "y: int32[...]", chain, reference, "grad: none"))  # fmt: skip


@pytest.mark.parametrize("fault", ["none found", "another found"])
def test_an_argmax_that_finds_nothing_or_another_element_is_found(fault, tmp_path):
    op = argmax(tmp_path)
    case = Case(Types(()), (30,), (("N", 200),), (), (), False, 1.0, 0)
    report = Report()
    check_case(op, "xla", case, report)
    assert (report.elements, report.undecided) == (30, 0)

    def wrong(*args, **keywords):
        y = op(*args, **keywords)
        return y.at[3].set(200 if fault == "none found" else (y[3] + 1) % 200)

    with pytest.raises(Disagreement, match=re.escape("y[3] is")):
        check_case(op, "xla", case, run=wrong)


def test_a_stored_product_is_checked_as_calls_get_it_by_default(tmp_path, monkeypatch):
    op = make_op(tmp_path, spec_text("x: float32[H, N]; w: float32[H, K]", "y: float32[K, N]", "y = dot(x, w, axis=H)",
                                     "y = w.T @ x"))  # fmt: skip
    case = Case(Types(()), (), (("H", 5), ("N", 4), ("K", 3)), (), (), False, 1.0, 0)
    stored = type(op).stored
    monkeypatch.setattr(type(op), "stored", lambda *given: tuple(-y for y in stored(*given)))
    with pytest.raises(Disagreement, match="by default"):
        check_case(op, "xla", case)


def test_elements_that_nothing_decides_are_counted_and_agree_with_nothing():
    """All elements of a row tie: rounding decides whether the first or the last is the largest."""
    chain = "z = x * 0.1; m = max(z, axis=N); y = where(x * 0.1 + 1 == m + 1, 1.0, 0.0)"
    reference = "z = x * 0.1; y = jnp.where(z == z.max(-1, keepdims=True), 1.0, 0.0)"
    op = make_jnp_op(spec_text("x: float32[..., N]", "y: float32[..., N]", chain, reference, "domain: {x: [1, 1]}\ngrad: none"))  # fmt: skip
    case = Case(Types(()), (10,), (("N", 7),), (), (), False, 1.0, 0)
    report = Report()
    check_case(op, "xla", case, report, run=lambda *args, **keywords: np.zeros((10, 7), np.float32))
    assert (report.elements, report.undecided) == (70, 70)
    with pytest.raises(Disagreement, match="none of 70 elements of y is decided"):
        report.demand_decisions("made")
    right = Report()
    check_case(op, "xla", case, right)
    assert right.undecided == 0
    right.demand_decisions("made")


def test_an_op_of_which_nothing_is_decided_does_not_agree():
    chain = "z = x * 0.1; m = max(z, axis=N); y = where(x * 0.1 + 1 == m + 1, 0.0, 1.0)"
    reference = "z = x * 0.1; y = jnp.where(z == z.max(-1, keepdims=True), 1.0, 0.0)"
    op = make_jnp_op(spec_text("x: float32[..., N]", "y: float32[..., N]", chain, reference, "domain: {x: [1, 1]}\ngrad: none"))  # fmt: skip
    with pytest.raises(Disagreement, match=r"none of \d+ elements of y is decided"):
        check_op(op, "xla", 6)
    (outcome,) = verify([op], "xla", 6, None)
    assert not outcome.good


def test_the_worst_error_says_of_how_many_elements_and_the_worst_of_all_is_beside_it():
    """x + b - b loses bits if b is larger: hundreds of ulps, of thousands that are allowed."""
    text = spec_text("x: float32[..., N]; b: float32[N]", "y: float32[..., N]; z: float32[..., N]",
                     "y = (x + b * 1e4) - b * 1e4; z = x * b", "y = x + 0 * b; z = x * b", "grad: none")  # fmt: skip
    report = Report()
    check_case(make_jnp_op(text), "xla", Case(Types(()), (10,), (("N", 10),), (), (), False, 1.0, 0), report)
    assert report.elements == 200
    assert 100 <= report.tight < 120
    assert report.worst_ulp <= 0.5
    assert 100 < report.worst_of_all < report.bound_of_worst < 1e7
    (outcome,) = verify([make_jnp_op(text)], "xla", 2, 1)
    assert {"worst_ulp_elements", "worst_of_all_ulp", "allowed_there_ulp", "undecided"} <= set(as_row(outcome))
