"""How far functions move within intervals, compared with their values at many places of the intervals; and the bound of
an op's error that follows."""

import jax
import numpy as np
import pytest

from codegen.checking.bounds.intervals import distance, reach
from codegen.checking.bounds.twins import FUNCTIONS
from codegen.checking.draw import Case
from codegen.checking.expected import error_bounds
from codegen.checking.testing import check_case
from codegen.runtime.call.arguments import Types
from tests.making import make_jnp_op, make_op, spec_text

ONE = [
    "sin",
    "cos",
    "tan",
    "gelu",
    "dgelu",
    "abs",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp",
    "tanh",
    "cosh",
    "floor",
    "sign",
    "atan",
]
TWO = ["add", "mul", "div", "rem", "pow", "atan2", "maximum"]


def places(op: str, count: int, inside: int):
    """Centers and radii of intervals, and places inside each."""
    random = np.random.default_rng(len(op))
    center = random.choice([0.3, 2.0, 20.0], count) * random.standard_normal(count)
    radius = np.abs(center) * 10.0 ** random.uniform(-4, 1, count) + 10.0 ** random.uniform(-6, 0, count)
    return center, radius, center + radius * np.linspace(-1, 1, inside)[:, None]


@pytest.mark.parametrize("op", ONE)
def test_functions_of_one_argument(op):
    """The values stay within the reach, and come close to it, unless the reach is infinite."""
    center, radius, inside = places(op, 500, 2001)
    with np.errstate(all="ignore"):
        value, error = reach(op, FUNCTIONS[op], [center], [radius])
        moved = distance(FUNCTIONS[op](inside), value)
    checked = np.isfinite(error)
    assert checked.sum() > 60
    assert (moved[:, checked] <= error[checked] * (1 + 1e-12)).all()
    assert (moved.max(0)[checked] >= 0.9 * error[checked]).all()
    poles = {"tan": np.floor(inside[-1] / np.pi + 0.5) > np.floor(inside[0] / np.pi + 0.5), "reciprocal": radius > abs(center),
             "sqrt": radius > abs(center), "rsqrt": radius > abs(center)}  # fmt: skip
    np.testing.assert_array_equal(~checked, poles.get(op, np.zeros(500, bool)))


@pytest.mark.parametrize("op", TWO)
def test_functions_of_two_arguments(op):
    a, of_a, inside_a = places(op, 400, 41)
    b, of_b, inside_b = places(op, 400, 41)
    b, inside_b = b[::-1], inside_b[:, ::-1]
    if op == "pow":
        a, inside_a = abs(a) + of_a + 0.1, abs(a) + of_a + 0.1 + (inside_a - a)
    with np.errstate(all="ignore"):
        value, error = reach(op, FUNCTIONS[op], [a, b], [of_a, of_b[::-1]])
        moved = np.abs(FUNCTIONS[op](inside_a[:, None], inside_b) - value).max((0, 1))
    checked = np.isfinite(error)
    assert checked.sum() > 100
    assert (moved[checked] <= error[checked] * (1 + 1e-9)).all()
    assert np.median(moved[checked] / error[checked]) > 0.9


def test_what_is_exact_stays_where_it_is():
    """Also where a float64 is too coarse for the interval."""
    x = np.array([1e20, 1e30, 3.0, 0.5])
    for op in ("sin", "cos", "tan"):
        assert not reach(op, FUNCTIONS[op], [x], [np.full(4, 1e-38)])[1].any()
    divisor, tiny = np.full(4, 0.75), np.full(4, 1e-38)
    assert not reach("rem", FUNCTIONS["rem"], [x, divisor], [tiny, tiny])[1].any()


CHAINS = [
    "sin(x * 1e6)",
    "cos(x * 1e6)",
    "tan(x * 1000)",
    "rem(x * 1e5 + b, 0.5)",
    "rem(x, b * 1e-3)",
    "1 / sin(x * 1e6)",
]


def test_no_false_alarm_of_what_turns_and_jumps(tmp_path):
    """Where the argument's error spans periods, or spans a pole or a multiple."""
    names = [f"y{i}" for i in range(len(CHAINS))]
    chain = [f"{name} = {c} + b" for name, c in zip(names, CHAINS, strict=True)]
    written = {"sin": "jnp.sin", "cos": "jnp.cos", "tan": "jnp.tan", "rem": "jax.lax.rem", "0.5)": "x * 0 + 0.5)", "b * 1e-3": "x * 0 + b * 1e-3"}  # fmt: skip
    reference = ";".join(chain)
    for ours, theirs in written.items():
        reference = reference.replace(ours, theirs)
    outputs = "; ".join(f"{name}: float32[..., N]" for name in names)
    text = spec_text("x: float32[..., N]; b: float32[N]", outputs, "; ".join(chain), reference, "grad: none")
    op = make_op(tmp_path, text)
    for scale in (1.0, 1e4):
        check_case(op, "xla", Case(Types(()), (40,), (("N", 65),), (), (), False, scale, 0))


def test_a_default_is_rounded():
    """0.001 is not a float32: the op multiplies with another number than the reference in float64."""
    spec = spec_text("x: float32[N]; a: float32[] = 0.001", "y: float32[N]", "y = x * a")
    op = make_jnp_op(spec)
    x = np.asarray([1e4], "float32")
    for absent, given, wanted in ((("a",), None, 1.1), ((), np.float32(0.001), 0.6)):
        case = Case(Types(()), (), (("N", 1),), absent, (), False, 1.0, 0)
        with jax.enable_x64(True):
            (bound,) = error_bounds(op, case, [x, given])
        assert bound.value == pytest.approx(10) and bound.error / 2.0**-20 == pytest.approx(wanted, abs=0.1)


@pytest.mark.parametrize("name", ["exp2", "sinh", "cosh"])
def test_what_xla_computes_of_exp_has_the_error_of_its_argument(name):
    """An argument of 60 is rounded by up to 2**-19, which a kernel's own function is not."""
    op = make_jnp_op(spec_text("x: float32[N]", "y: float32[N]", f"y = {name}(x)", f"y = jnp.{name}(x)"))
    case = Case(Types(()), (), (("N", 1000),), (), (), False, 30.0, 0)
    check_case(op, "xla", case)
    for by_xla, most in ((False, 17), (True, 77)):
        with jax.enable_x64(True):
            (bound,) = error_bounds(op, case, [np.full(1000, 60, "float32")], by_xla)
        assert np.all(bound.error / bound.value <= most * 2.0**-24)
