"""References as users write them: they widen to float32, and can't compute arrays of size 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.checking import testing
from codegen.checking.agreement import Disagreement
from codegen.checking.draw import Case
from codegen.checking.expected import error_bounds, reference_values
from codegen.checking.gradients import check_gradient_case
from codegen.checking.testing import check_case, check_gradient, check_op
from codegen.checking.verify import verify
from codegen.runtime.call.arguments import Types
from tests.making import make_jnp_op, spec_text

CHAIN = "y = x * rsqrt(mean(square(x), axis=N) + 1e-6)"
WIDENED = (
    "a = x.astype(jnp.float32); y = a / jnp.sqrt(jnp.mean(a * a, axis=-1, keepdims=True, dtype=jnp.float32) + 1e-6)"
)


def case(rows: tuple[int, ...], n: int, dtype: str = "bfloat16") -> Case:
    return Case(Types((("T", dtype),)), rows, (("N", n),), (), (), False, 1.0, 0)


def normalised(reference: str):
    return make_jnp_op(spec_text("x: T[..., N]", "y: T[..., N]", CHAIN, reference, types="{T: [float32, bfloat16]}"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_reference_may_widen_to_float32(dtype):
    """What it widens is float64 where its inputs are: its gradients are exact, and so are the values that a kernel is held to."""
    op = normalised(WIDENED)
    check_case(op, "xla", case((3,), 40, dtype))
    check_gradient_case(op, "xla", case((3,), 40, dtype))


def test_a_wrong_reference_that_widens_is_found():
    op = normalised(WIDENED.replace("1e-6", "2e-1"))
    with pytest.raises(Disagreement):
        check_case(op, "xla", case((3,), 40))
    with pytest.raises(Disagreement):
        check_gradient_case(op, "xla", case((3,), 40))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_reference_reads_the_smallest_numbers_as_they_are(dtype):
    """A kernel divides them, where XLA on a CPU makes NaN of 0 / 0: either is right."""
    op = make_jnp_op(
        spec_text("x: T[..., N]", "y: T[..., N]", "y = x / x", "y = x / x", types="{T: [float32, bfloat16]}")
    )
    x = jnp.full((1, 4), jnp.finfo(dtype).smallest_subnormal, dtype)
    with jax.enable_x64(True):
        (expected,), (bound,) = reference_values(op, [x], {}, "float64"), error_bounds(op, case((1,), 4, dtype), [x])
    np.testing.assert_array_equal(expected, 1)
    np.testing.assert_array_equal(bound.error, np.inf)


def test_sums_of_maxima_keep_nan_on_a_cpu():
    """XLA on a CPU may join both in one function that drops NaN."""
    text = spec_text("x: float32[A, B, N]", "y: float32[A, N]", "y = sum(maximum(x, 0), axis=B)",
                     "y = jnp.sum(jnp.maximum(x, 0), axis=1)")  # fmt: skip
    check_case(make_jnp_op(text), "xla", Case(Types(()), (), (("A", 9), ("B", 60), ("N", 31)), (), (), True, 1.0, 0))


def test_a_reference_is_not_called_where_all_outputs_are_empty():
    """It could not infer the number of rows."""
    op = normalised(
        "y = jnp.reshape(x, (-1, x.shape[-1])) / jnp.sqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)"
    )
    for check in (check_case, check_gradient_case):
        check(op, "xla", case((3,), 0))
        check(op, "xla", case((3,), 5))


def test_calls_of_size_0_that_a_reference_cannot_compute_are_left_out():
    text = spec_text(
        "x: float32[..., N]",
        "y: float32[...]",
        "y = {} * sum(x, axis=N)",
        "y = x[..., 0] + jnp.sum(x[..., 1:], axis=-1)",
    )
    good, wrong = (make_jnp_op(text.format(factor)) for factor in (1, 2))
    with pytest.raises(Disagreement, match=r"its reference fails: .* \(in a call whose N is 0\)"):
        check_case(good, "xla", case((3,), 0, "float32"))
    for examples in (1, 12):  # the first one is empty, and another is drawn in its place
        check_op(good, "xla", examples)
        check_gradient(good, "xla", examples)
        with pytest.raises(Disagreement, match="elements differ"):
            check_op(wrong, "xla", examples)
    broken = make_jnp_op(text.format(1).replace("axis=-1", "axis=7"))
    with pytest.raises(Disagreement, match="its reference fails"):
        check_op(broken, "xla", 12)


def test_an_index_past_its_axis_says_which_domain_to_write():
    text = spec_text("x: float32[..., N]; i: int32[...]", "y: float32[...]", "y = take(2 * x, i, axis=N)",
                     "y = 2 * jnp.take_along_axis(x, i[..., None], -1)[..., 0]", "grad: none")  # fmt: skip
    with pytest.raises(Disagreement, match=r"i was drawn past the ends of N; .* write `domain: \{i: index\(N\)\}`"):
        check_op(make_jnp_op(text), "xla", 4)
    check_op(make_jnp_op(text + "\ndomain: {i: index(N)}"), "xla", 4)


def test_a_reference_may_use_complex_numbers():
    text = spec_text(
        "x: T[..., (N 2)]", "y: T[..., N]", "y = x[0] * cos(index(N)) - x[1] * sin(index(N))",
        "z = (x[..., ::2] + 1j * x[..., 1::2]) * jnp.exp(1j * jnp.arange(x.shape[-1] // 2)); y = jnp.real(z)",
        types="{T: [float32, bfloat16]}",
    )  # fmt: skip
    op = make_jnp_op(text)
    check_case(op, "xla", case((3,), 40))
    check_gradient_case(op, "xla", case((3,), 40))
    op = make_jnp_op(text.replace("jnp.real(z)", "z"))
    for check in (check_case, check_gradient_case):
        with pytest.raises(Disagreement, match="gives y as complex numbers"):
            check(op, "xla", case((3,), 40))


def test_a_reference_that_rounds_its_result_is_told_not_to():
    op = normalised(WIDENED.replace("y = ", "z = ") + "; y = z.astype(jnp.bfloat16)")
    with pytest.raises(Disagreement, match="leave out its last cast"):
        check_gradient_case(op, "xla", case((3,), 40))


@pytest.mark.parametrize(
    ("kind", "chain", "reference"),
    [
        ("true", "y = where(bernoulli(key, p), x / p, 0)", "y = jnp.where(jax.random.bernoulli(key, p, x.shape), x / p, 0)"),
        ("false", "y = where(bernoulli(key, p), x / p, 0)", "y = jnp.where(jax.random.bernoulli(key, p, x.shape), x / p, 0)"),
        ("true", "y = x * p + uniform(key)", "y = x.astype(jnp.float32) * p + jax.random.uniform(key, x.shape, jnp.float32)"),
        ("true", "y = x - p * log(normal(key))", "y = x - p * jnp.log(jax.random.normal(key, x.shape))"),
    ],
)  # fmt: skip
def test_a_reference_draws_what_the_op_draws(kind, chain, reference):
    """In tests, whose other numbers are float64, as without x64."""
    more = f"params: {{p: {{type: float, default: 0.5, static: {kind}}}}}\ndomain: {{p: [0.1, 0.9]}}"
    op = make_jnp_op(
        spec_text("x: T[..., N]; key: uint32[2]", "y: T[..., N]", chain, reference, more, types="{T: [float32]}")
    )
    check_op(op, "xla", 4)
    check_gradient(op, "xla", 2)


def test_an_exception_of_a_call_is_that_op_s_failure_and_the_next_op_is_checked(monkeypatch):
    broken, good = normalised(WIDENED), normalised(WIDENED)

    def refused(op, *rest):  # before the reference is compiled: a smaller call is searched, and each is another program
        if op is broken:
            raise RuntimeError("no room")
        check_case(op, *rest)

    monkeypatch.setattr(testing, "check_case", refused)
    first, second = verify([broken, good], "xla", 2, None)
    assert not first.good and "RuntimeError: no room\n  in a call of T=" in first.report.failure
    assert second.good


@pytest.mark.parametrize("examples", [1, 2])
def test_few_random_calls_compare_some_elements(examples):
    """The first calls that are drawn are empty."""
    assert check_op(normalised(WIDENED), "xla", examples).elements
