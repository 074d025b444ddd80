"""Ops that reduce, without their kernels: the jnp form against jnp by hand, bounds of its error, the calls that tests
draw."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.autodiff.backward import backward_of
from codegen.checking import draw, testing
from codegen.checking.bounds.analysis import Analysis, dimensions_of
from codegen.checking.bounds.records import Arithmetic, depth
from codegen.graph.nodes import nodes_of
from codegen.graph.ops import PINNED
from codegen.pipeline import read_op
from codegen.runtime.call import arguments
from codegen.runtime.sharding import shards
from codegen.runtime.xla.evaluate import Evaluation
from tests.making import make_jnp_op, make_op, spec_text
from tests.turns import EVERY, some


def made(*args: str, **more: str):
    return make_jnp_op(spec_text(*args, **more))


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape), "float32")


def agree(got, *expected) -> None:
    got = got if isinstance(got, tuple) else (got,)
    for g, e in zip(got, expected, strict=True):
        assert g.shape == e.shape
        np.testing.assert_allclose(np.asarray(g), np.asarray(e), rtol=2e-6, atol=2e-6)


LEADING = [(), (1,), (3,), (2, 3), (2, 1, 3, 2)]


@pytest.mark.parametrize("rows", LEADING)
def test_rows(rows):
    op = made("x: float32[..., N]", "y: float32[..., N]; s: float32[...]", "s = sum(x, axis=N); y = softmax(x, axis=N)")
    x = normal(*rows, 7)
    got = op(x, implementation="xla")
    agree((got.y, got.s), jax.nn.softmax(x, -1), x.sum(-1))


@pytest.mark.parametrize("rows", LEADING)
def test_columns(rows):
    op = made("x: float32[..., N]; w: float32[N]", "y: float32[N]", "y = sum(x, axis=...) * w - max(x, axis=...)")
    x, w = normal(*rows, 5), normal(5)
    flat = x.reshape(-1, 5)
    agree(op(x, w, implementation="xla"), flat.sum(0) * w - flat.max(0))


@pytest.mark.parametrize("rows", LEADING)
def test_rows_and_columns(rows):
    chain = "r = rsqrt(mean(square(x), axis=N)); dx = dy * r; dw = sum(dy * x * r, axis=...)"
    op = made("x: float32[..., N]; dy: float32[..., N]", "dx: float32[..., N]; dw: float32[N]", chain)
    x, dy = normal(*rows, 6), normal(*rows, 6) + 1
    r = 1 / jnp.sqrt((x * x).mean(-1, keepdims=True))
    agree(tuple(op(x, dy, implementation="xla")), dy * r, (dy * x * r).reshape(-1, 6).sum(0))


@pytest.mark.parametrize("rows", LEADING)
def test_everything(rows):
    op = made("x: float32[..., N]", "y: float32[]", "y = mean(abs(x), axis=(..., N))")
    x = normal(*rows, 5)
    agree(op(x, implementation="xla"), jnp.abs(x).mean())


def test_named_axes():
    op = made("x: float32[B, C, S]; w: float32[C]", "y: float32[B, C, S]", "y = (x - max(x, axis=(C, S))) * w")
    x, w = normal(2, 3, 5), normal(3)
    agree(op(x, w, implementation="xla"), (x - x.max((1, 2), keepdims=True)) * w[:, None])
    op = made("x: float32[B, C, S]", "y: float32[C, S]", "y = prod(x, axis=B)")
    agree(op(x, implementation="xla"), x.prod(0))


def test_blocks_of_a_split_axis():
    chain = "s = max(abs(x), axis=G); y = x / s"
    op = made("x: float32[..., (B G=4)]", "y: float32[..., (B G=4)]; s: float32[..., B]", chain)
    x = normal(3, 12)
    scale = jnp.abs(x.reshape(3, 3, 4)).max(-1)
    agree(tuple(op(x, implementation="xla")), (x.reshape(3, 3, 4) / scale[..., None]).reshape(3, 12), scale)


def test_a_rounded_constant_is_a_scalar():
    """It does not give a row's result the row's columns."""
    op, x = made("x: float32[..., N]", "y: float32[...]", "y = sum(x, axis=N) * cast(0.1, bfloat16)"), normal(3, 4)
    agree(op(x, implementation="xla"), x.sum(-1) * 0.100097656)


def test_positions_parts_and_defaults():
    op = made("x: float32[..., N]; i: int32[...]", "y: float32[...]", "y = sum(where(index(N) == i, x, 0), axis=N)")
    x = normal(2, 3, 5)
    i = jnp.arange(6).reshape(2, 3) % 5
    agree(op(x, i, implementation="xla"), jnp.take_along_axis(x, i[..., None], -1)[..., 0])
    op = made("x: float32[..., (2 N)]", "y: float32[...]", "y = sum(x[0] * x[1], axis=N)")
    x = normal(3, 10)
    agree(op(x, implementation="xla"), (x[:, :5] * x[:, 5:]).sum(-1))
    # the default of an input that is left out counts once for each column
    op = made("x: float32[..., N]; w: float32[N] = 1", "y: float32[...]", "y = sum(x, axis=N) / sum(w, axis=N)")
    x = normal(3, 10)
    agree(op(x, implementation="xla"), x.mean(-1))


def test_integers_keep_their_type_and_bools():
    op = made("x: int8[..., N]", "y: int32[...]; p: int32[...]", "y = sum(x, axis=N); p = prod(x, axis=N)")
    x = jnp.asarray([[100, 100, 100], [-3, 5, 7]], "int8")
    for wide in (False, True):
        with jax.enable_x64(wide):
            got = op(x, implementation="xla")
            assert got.y.dtype == got.p.dtype == jnp.int32
            assert (got.y.tolist(), got.p.tolist()) == ([300, 9], [1_000_000, -105])
    op = made("x: int32[..., N]", "y: int32[...]", "y = sum(x, axis=N)")
    with jax.enable_x64(True):  # they wrap in int32, whatever jnp would widen them to
        assert op(jnp.asarray([2**31 - 1, 1], "int32"), implementation="xla").tolist() == -(2**31)
    op = made("x: float32[..., N]", "y: bool[...]; z: bool[...]", "y = any(x > 1, axis=N); z = all(x > 1, axis=N)")
    got = op(jnp.asarray([[0.0, 2.0], [2.0, 2.0], [0.0, 0.0]]), implementation="xla")
    assert (got.y.tolist(), got.z.tolist()) == ([True, True, False], [False, True, False])


def test_vmap_and_gradient():
    op = made("x: float32[..., N]", "y: float32[..., N]", "y = softmax(x, axis=N)", "jax.nn.softmax(x, axis=-1)")
    x = normal(4, 3, 5)
    agree(jax.vmap(lambda x: op(x, implementation="xla"))(x), jax.nn.softmax(x, -1))
    column = made("x: float32[..., N]", "y: float32[N]", "y = sum(x, axis=...)")
    agree(jax.vmap(lambda x: column(x, implementation="xla"))(x), x.sum(1))
    got = jax.grad(lambda x: (op(x, implementation="xla") * x).sum())(x)
    agree(got, jax.grad(lambda x: (jax.nn.softmax(x, -1) * x).sum())(x))


# Empty reductions


def test_reductions_of_nothing():
    outputs = "s: float32[...]; m: float32[...]; p: float32[...]; a: bool[...]; b: bool[...]"
    chain = (
        "s = sum(x, axis=N); m = mean(x, axis=N); p = prod(x, axis=N); a = any(x > 0, axis=N); b = all(x > 0, axis=N)"
    )
    got = made("x: float32[..., N]", outputs, chain)(jnp.zeros((2, 0)), implementation="xla")
    assert got.s.tolist() == [0, 0] and got.p.tolist() == [1, 1]
    assert np.isnan(np.asarray(got.m)).all() and got.a.tolist() == [False, False] and got.b.tolist() == [True, True]


@pytest.mark.parametrize("implementation", ["xla", "cute", "interpret", None])
@pytest.mark.parametrize("traced", [False, True])
def test_extremes_of_nothing_are_refused(implementation, traced):
    def call(op, x):
        run = lambda x: op(x, implementation=implementation)  # noqa: E731
        return (jax.jit(run) if traced else run)(x)

    row = made("x: float32[..., N]", "y: float32[...]", "y = max(x, axis=N)")
    with pytest.raises(ValueError, match=r"^made: max over N has no value where N is 0(\n|$)"):
        call(row, jnp.zeros((2, 0)))
    column = made("x: float32[..., N]", "y: float32[N]", "y = min(x, axis=...)")
    with pytest.raises(
        ValueError, match=r"^made: min over \.\.\. has no value where the leading axes are \(2, 0\)(\n|$)"
    ):
        call(column, jnp.zeros((2, 0, 3)))


# The error of float32


def bound_of(reduction: str, x: np.ndarray, error: float = 0.0):
    """The bound of a reduction of the rows of x, if its values have a relative error of `error`."""
    kind = "bool" if x.dtype == bool else "float32"
    chain = f"y = {reduction}(x, axis=N)"
    op = read_op("specs/made.yaml", spec_text(f"x: {kind}[..., N]", f"y: {kind}[...]", chain))
    (statement,) = op.statements
    analysis = Analysis(Arithmetic(), dimensions_of(op.plan.order, x.ndim - 1))
    leaf = statement.value.args[0]
    bound = analysis.statements(op.statements, {("input", leaf.attr): x})[("y", None)]
    if error:
        arg = analysis.node(leaf, [], {("input", leaf.attr): x})
        size = np.where(np.isfinite(x), np.abs(x), 0)
        arg = type(arg)(arg.value, size * error, arg.overflow)
        with np.errstate(all="ignore"):
            bound = analysis.node(statement.value, [arg], {})
    return bound


def one_by_one(x):
    return np.add.accumulate(x, dtype=np.float32)[-1]


def in_windows(x, width=32):
    while len(x) > 1:
        x = np.array([one_by_one(x[i : i + width]) for i in range(0, len(x), width)], np.float32)
    return x[0]


def in_lanes(x, lanes=32, vec=4):
    """As in a row kernel: each of some lanes adds its own vectors, then vectors and lanes are added in pairs."""
    x = np.append(x, np.zeros(-len(x) % (lanes * vec), np.float32)).reshape(-1, lanes * vec)
    total = np.add.accumulate(x, dtype=np.float32)[-1]
    while len(total) > 1:
        total = total[: len(total) // 2] + total[len(total) // 2 :]
    return total[0]


ORDERS = {"windows": in_windows, "lanes": in_lanes, "pairs": np.sum, "reversed": lambda x: in_windows(x[::-1])}


@pytest.mark.each
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("count", [1, 2, 3, 31, 257, 1021, 4096])
@settings(max_examples=15, derandomize=True, database=None, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), mean=st.sampled_from([0.0, 1.0, 300.0]))
def test_sums_stay_within_their_bound(order, count, seed, mean):
    x = (mean + 2 * np.random.default_rng(seed).standard_normal(count)).astype(np.float32)
    got, exact = float(ORDERS[order](x)), np.sum(x, dtype=np.longdouble)
    bound = bound_of("sum", x[None])
    assert abs(got - exact) <= bound.error[0, 0]
    assert abs(np.float32(got) / np.float32(count) - exact / count) <= bound_of("mean", x[None]).error[0, 0]


@pytest.mark.parametrize("count", [2, 31, 257, 1021, 4096])
@pytest.mark.parametrize("mean", [1.0, 300.0])
def test_a_lost_element_leaves_the_bound(count, mean):
    x = (mean + 0.1 * np.random.default_rng(count).standard_normal(count)).astype(np.float32)
    exact = float(np.sum(x, dtype=np.longdouble))
    error = bound_of("sum", x[None]).error[0, 0]
    for lost in (0, count // 2, count - 1):
        assert abs(float(in_windows(np.delete(x, lost))) - exact) > 10 * error
    factors = np.append(1 + (x / mean - 1) / 10, 1.5)
    error = bound_of("prod", factors[None]).error[0, 0]
    assert abs(np.prod(factors[:-1], dtype=np.float64) - np.prod(factors, dtype=np.float64)) > 10 * error


def test_depth_allows_any_order_of_few():
    assert [depth(n) for n in (0, 1, 2, 33)] == [0, 0, 1, 32]
    assert depth(10_000) == 132


@settings(max_examples=30, derandomize=True, database=None, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.sampled_from([1, 2, 7, 100]), spread=st.sampled_from([0.1, 3.0, 20.0]))
def test_products_stay_within_their_bound(seed, count, spread):
    generator = np.random.default_rng(seed)
    x = (generator.choice([-1, 1], count) * np.exp(spread * generator.standard_normal(count))).astype(np.float32)
    bound = bound_of("prod", x[None])
    exact = np.prod(x, dtype=np.longdouble)
    with np.errstate(all="ignore"):
        for order in (x, x[::-1], np.sort(np.abs(x)) * np.sign(np.prod(np.sign(x))) ** (np.arange(count) == 0)):
            got = np.multiply.accumulate(order, dtype=np.float32)[-1]
            assert np.isinf(bound.error[0, 0]) or abs(got - exact) <= bound.error[0, 0]


def test_extremes_reach_as_far_as_any_candidate():
    x = np.array([[1.0, 0.999, -5.0], [np.inf, 1.0, 2.0], [np.nan, 1.0, 2.0], [-np.inf, -np.inf, -np.inf]])
    bound = bound_of("max", x, error=0.01)
    assert (
        bound.value[:, 0].tolist()[:2] == [1.0, np.inf] and np.isnan(bound.value[2, 0]) and bound.value[3, 0] == -np.inf
    )
    np.testing.assert_allclose(bound.error[0, 0], 0.01, rtol=1e-6)  # from 0.99 (1 at its least) to 1.01
    low = bound_of("min", x[:1], error=0.01)
    np.testing.assert_allclose(low.error[0, 0], 0.05, rtol=1e-6)


def test_a_bool_is_uncertain_only_where_it_can_change():
    chain = "y = any(x > 1, axis=N); z = all(x > 1, axis=N)"
    op = read_op("specs/made.yaml", spec_text("x: float32[..., N]", "y: bool[...]; z: bool[...]", chain))
    x = np.array([[1.0, 0.0], [1.0, 2.0], [2.0, 2.0], [0.0, 0.0]])
    analysis = Analysis(Arithmetic(), dimensions_of(op.plan.order, 1))
    bound = type(bound_of("sum", x))
    arg = bound(x > 1, (x == 1).astype(float), np.zeros(x.shape, bool))
    found = [analysis.node(s.value, [arg], {}) for s in op.statements]
    assert found[0].error[:, 0].tolist() == [1, 0, 0, 0]
    assert found[1].error[:, 0].tolist() == [0, 1, 0, 0]


def test_a_product_of_uncertain_values_is_off_by_both_at_once():
    op = read_op("specs/made.yaml", spec_text("x: float32[N]; y: float32[N]", "z: float32[N]", "z = x * y"))
    analysis = Analysis(Arithmetic(), dimensions_of(op.plan.order, 0))
    no = np.zeros(2, bool)
    args = [type(bound_of("sum", np.ones((1, 1))))(np.array([1.0, -3.0]), np.array([10.0, 0.0]), no) for _ in range(2)]
    (statement,) = op.statements
    bound = analysis.node(statement.value, args, {})
    assert bound.error[0] >= 11 * 11 - 1  # 1 is computed from the values
    assert bound.error[1] < 1e-5


def test_overflow_on_the_way_leaves_the_sum_open():
    top = float(np.finfo(np.float32).max)
    x = np.array([[top, top, -top, -top], [top, -top, 1.0, 1.0], [np.inf, -np.inf, 1.0, 1.0], [np.inf, 1.0, 1.0, 1.0]])
    bound = bound_of("sum", x)
    assert bound.overflow[:, 0].tolist() == [True, False, False, False]
    assert np.isinf(bound.error[0, 0]) and bound.error[1, 0] < 1e33
    assert np.isnan(bound.value[2, 0]) and bound.value[3, 0] == np.inf
    assert np.isfinite(bound.error[2:, 0]).all()
    products = bound_of(
        "prod", np.array([[1e30, 1e30, 1e-30, 1e-30], [1e30, 1e-30, 1e30, 1e-30], [2.0, 3.0, 4.0, 5.0]])
    )
    assert products.overflow[:, 0].tolist() == [True, True, False]
    assert products.error[2, 0] < 1e-3


# Calls of such ops

SOFTMAX = spec_text(
    "x: T[..., N]", "y: T[..., N]", "y = softmax(x, axis=N)", "y = jax.nn.softmax(x, axis=-1)",
    types="{T: [float32, bfloat16]}",
)  # fmt: skip
MOMENTS = spec_text(
    "x: T[..., N]", "m: float32[N]; v: float32[N]", "m = mean(x, axis=...); v = mean(square(x), axis=...)",
    "over = (0, 1, 2)[: x.ndim - 1]; m = x.mean(over); v = (x * x).mean(over)", types="{T: [float32, bfloat16]}",
)  # fmt: skip
NORM = spec_text(
    "x: float32[..., N]; w: float32[N] = 1", "y: float32[..., N]",
    "y = (x - mean(x, axis=N)) * rsqrt(var(x, axis=N) + 1e-5) * w",
    "c = x - jnp.mean(x, axis=-1, keepdims=True); y = c / jnp.sqrt(jnp.mean(c * c, axis=-1, keepdims=True) + 1e-5) * w",
)  # fmt: skip
PRODUCT = spec_text("x: float32[..., N]", "y: float32[...]", "y = prod(x, axis=N)", "y = jnp.prod(x, axis=-1)")
AMAX = spec_text("x: float32[..., N]", "y: float32[]", "y = max(abs(x), axis=(..., N))", "y = jnp.max(jnp.abs(x))")


@pytest.mark.parametrize("text", [SOFTMAX, MOMENTS, NORM, PRODUCT, AMAX])
def test_the_jnp_form_agrees_with_the_reference(text):
    testing.check_op(make_jnp_op(text), "xla", 8 if EVERY else 3)


@pytest.mark.parametrize("text", some([SOFTMAX, NORM, AMAX], 2))
def test_a_call_that_loses_columns_is_caught(text):
    """If `x` has more than one row and column, its last row and column are replaced by the first."""
    op = make_jnp_op(text)

    def wrong(x, *rest, **keywords):
        x = x.at[..., -1].set(x[..., 0]) if x.shape[-1] > 1 else x
        x = x.at[-1].set(x[0]) if x.ndim > 1 and x.shape[0] > 1 else x
        return op(x, *rest, **keywords)

    with pytest.raises(testing.Disagreement):
        testing.check_op(op, "xla", 30, run=wrong)


@functools.cache
def drawn(text: str, seed: int = 0) -> list[draw.Case]:
    cases = []

    @hypothesis.seed(seed)
    @settings(max_examples=400, database=None, deadline=None)
    @given(draw.cases(make_jnp_op(text)))
    def collect(case):
        cases.append(case)

    collect()
    return cases


def test_sizes_drawn():
    # a vector of 4, the elements of a row that a thread holds (16), and of a warp
    left = {0, 1, 2, 3, 4, 5, 7, 8, 13, 15, 16, 17, 31, 127, 128, 129, 257, 511, 512, 513, 1021}
    ranks = set()
    for seed in range(8):  # Hypothesis repeats parts of earlier calls: of 14 runs of 400 calls, 4 lacked a size
        cases = drawn(NORM, seed)
        left -= {dict(c.extents)["N"] for c in cases}
        ranks |= {len(c.rows) for c in cases}
        if not left:
            break
    assert not left
    assert ranks == {0, 1, 2, 3}
    assert max(np.prod(c.rows) for c in drawn(MOMENTS)) > 500
    assert min(dict(c.extents)["N"] for c in drawn(SOFTMAX)) == 1  # there is a max over N
    assert any(0 in c.rows for c in drawn(SOFTMAX)) and not any(0 in c.rows for c in drawn(AMAX))


def test_special_rows_drawn():
    op = make_jnp_op(NORM)
    seen = set()
    for case in drawn(NORM):
        if not case.specials or dict(case.extents)["N"] < 5:
            continue
        x = draw.arrays(op, case)["x"].reshape(-1, dict(case.extents)["N"]).astype(np.float64)
        with np.errstate(all="ignore"):
            center, spread = x.mean(-1), x.std(-1)
        seen |= {"-inf"} if (x == -np.inf).all(-1).any() else set()
        seen |= {"nan"} if np.isnan(x).all(-1).any() else set()
        seen |= {"zero"} if (x == 0).all(-1).any() else set()
        seen |= {"one inf"} if ((x == np.inf).sum(-1) == 1).any() else set()
        seen |= {"far"} if ((abs(center - 300) < 3) & (spread < 4)).any() else set()
        seen |= {"finite"} if np.isfinite(x).all(-1).any() else set()
    assert seen == {"-inf", "nan", "zero", "one inf", "far", "finite"}


def test_a_wrong_result_is_told_though_smaller_calls_break_the_reference():
    """Hypothesis meets these while it searches a smaller wrong call."""
    seen = []

    def check(case: draw.Case) -> None:
        columns = dict(case.extents)["N"]
        seen.append(columns)
        if columns > 30:
            raise testing.Disagreement(f"wrong with {columns} columns")
        if columns >= 2 and max(seen) > 30:
            raise testing.BrokenReference("no reference")

    with pytest.raises(testing.Disagreement, match="wrong with 31 columns"):
        testing._draw(make_jnp_op(SOFTMAX), 60, None, check)


def case_of(columns: int) -> draw.Case:
    return draw.Case(arguments.Types(()), (3,), (("N", columns),), (), (), False, 1.0, 0)


def test_a_reference_that_fails_at_an_extent_of_0_is_told_so():
    reference = "x.reshape(-1, x.shape[-1]).sum(1).reshape(x.shape[:-1])"
    op = make_jnp_op(spec_text("x: float32[..., N]", "y: float32[...]", "y = sum(x, axis=N)", reference))
    testing.check_case(op, "xla", case_of(5))
    words = r"made: its reference fails: ZeroDivisionError: .* \(in a call whose N is 0\)"
    with pytest.raises(testing.BrokenReference, match=words):
        testing.check_case(op, "xla", case_of(0))


def test_a_reference_of_a_dtype_of_its_own_is_told_so():
    op = make_jnp_op(spec_text("x: float32[..., N]", "y: float32[..., N]", "y = x * 2", "(x * 2).astype(jnp.float16)"))
    words = "made: its reference gives y in float16 where its inputs are float64: it must compute in its inputs' dtype"
    with pytest.raises(testing.BrokenReference, match=words):
        testing.check_gradient_case(op, "xla", case_of(5))


def test_a_reference_may_give_a_share_in_float32():
    """As `jnp.mean` of a bool does, whatever the inputs' type: it has no slope that could be inexact."""
    outputs, chain = "y: float32[..., N]; s: float32[...]", "y = x * x; s = mean(x > 0, axis=N)"
    op = make_jnp_op(spec_text("x: float32[..., N]", outputs, chain, "y = x * x; s = (x > 0).mean(-1)"))
    testing.check_case(op, "xla", case_of(5))
    testing.check_gradient_case(op, "xla", case_of(5))


def test_a_reference_that_raises_is_told_at_once():
    calls = []

    def check(case: draw.Case) -> None:
        calls.append(case)
        raise testing.BrokenReference("no reference")

    with pytest.raises(testing.BrokenReference, match="no reference"):
        testing._draw(make_jnp_op(SOFTMAX), 60, None, check)
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_place_of_an_extreme_follows_jnp(name, dtype):
    """The first of the elements that tie; the first NaN; infinities and zeros of both signs."""
    op = made(f"x: {dtype}[..., N]", "y: int32[...]", f"y = {name}(x, axis=N)")
    nan, inf = np.nan, np.inf
    values = [
        [1, 3, 3, 1], [nan, 1, 2, nan], [1, inf, nan, nan], [nan] * 4, [inf, inf, 0, 0], [-inf] * 4, [0, -0.0, 0, -0.0], [-inf, 1, inf, -inf],
    ]  # fmt: skip
    x = np.array(values, "float32")
    x = jnp.asarray(np.nan_to_num(x).clip(-9, 9).astype(dtype) if dtype == "int32" else x)
    np.testing.assert_array_equal(op(x, implementation="xla"), getattr(jnp, name)(x, axis=-1))


def test_the_place_along_two_axes_is_that_of_the_flattened_row(tmp_path):
    chain = "j = argmax(x, axis=(H, N)); k = argmin(x, axis=(N, H))"
    op = make_op(tmp_path, spec_text("x: float32[..., H, N]", "j: int32[...]; k: int32[...]", chain))
    x = np.random.default_rng(0).integers(0, 9, (5, 3, 7)).astype("float32")
    for implementation in ("interpret", "xla"):
        j, k = op(x, implementation=implementation)
        np.testing.assert_array_equal(j, x.reshape(5, 21).argmax(-1))
        np.testing.assert_array_equal(k, x.reshape(5, 21).argmin(-1))


def test_a_value_that_another_kernel_compares_is_computed_once(tmp_path):
    """Where a shard is evaluated node by node: XLA may compute the value again, with other bits than those of its maximum."""
    op = make_op(
        tmp_path, spec_text("x: float32[..., N]; w: float32[N]", "y: float32[N]", "y = max(x * w + w, axis=...)")
    )
    first = backward_of(op.planned).op.plan.stages[0]
    arrays = {a.name: jnp.ones((2, 3)[-len(a.dims) :]) for a in first.spec.inputs}

    def outputs(arrays):
        call = Evaluation(first, arrays, {}, arguments.bind_axes(first.spec, arrays), arguments.Types(()), "float32")
        return call.outputs(
            first.plan.stores, shards.known_in_jnp(call, nodes_of(first.statements), shards.Split(call.axes))
        )

    pinned = sum(n.op == PINNED for n in nodes_of(first.statements))
    assert str(jax.make_jaxpr(lambda x: [*outputs(x).values()])(arrays)).count("optimization_barrier") == pinned > 0
