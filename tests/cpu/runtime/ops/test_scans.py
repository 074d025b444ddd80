"""Scans: interpreted kernels, and the jnp form, against a loop in float64; under `vmap`; on a sharded array; and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from codegen.runtime.compiled import interpreted
from tests.making import make_op, spec_text
from tests.turns import some


@pytest.fixture(scope="module")
def op(tmp_path_factory):
    """All scans of a row, in both positions of their axis, with what is before and after them."""
    made = {}
    for axes in ("R, S", "R, S, D"):
        for reverse in ("false", "true"):
            way = f"axis=S, reverse={reverse}"
            chain = f"h = scan(a, 2.0 * b, {way}, initial=h0); y = h + 1.0; p = cumprod(a, {way}, before=true); "
            chain += f"m = cummax(b, {way}); e = cumlogsumexp(b, {way}); s = cumsum(b * h, {way})"
            first = axes.replace(", S", "")
            text = spec_text(
                f"a: float32[{axes}]; b: float32[{axes}]; h0: float32[{first}]",
                "; ".join(f"{name}: float32[{axes}]" for name in "ypmes"),
                chain,
            )
            made[axes, reverse == "true"] = make_op(tmp_path_factory.mktemp("scans"), text)
    return made


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def looped(a, b, h0, reverse: bool) -> dict[str, np.ndarray]:
    """What a loop gives, along the second axis."""
    found = {name: np.zeros(a.shape) for name in "ypmes"}
    h, p, s, m, e = h0.copy(), np.ones_like(h0), np.zeros_like(h0), np.full_like(h0, -np.inf), np.full_like(h0, -np.inf)
    for t in range(a.shape[1])[:: -1 if reverse else 1]:
        found["p"][:, t] = p
        h = a[:, t] * h + 2 * b[:, t]
        p, s, m = p * a[:, t], s + b[:, t] * h, np.maximum(m, b[:, t])
        e = np.logaddexp(e, b[:, t])
        for name, value in zip("ymes", (h + 1, m, e, s), strict=True):
            found[name][:, t] = value
    return found


@pytest.mark.parametrize(
    ("shape", "reverse"),
    some([((2, 67), True), ((3, 1), False), ((1, 300, 8), True), ((1, 2052), False), ((1, 9000), True)], 2),
    ids=some(
        ["a warp, no vectors", "one element", "blocks across lanes", "blocks of a cluster", "two tiles of a cluster"], 2
    ),
)
def test_scans_agree_with_a_loop(op, shape, reverse):
    agrees_with_a_loop(op, shape, reverse)


@pytest.mark.parametrize(
    ("shape", "reverse"), some([((1, 2052), False), ((1, 300, 8), True)], 2), ids=some(["warps", "across lanes"], 2)
)
def test_several_tiles_of_a_block(op, shape, reverse):
    """Where there are no clusters."""
    with interpreted.interpreting_for("sm_80"):
        agrees_with_a_loop(op, shape, reverse)


def agrees_with_a_loop(op, shape, reverse):
    a, b, h0 = np.tanh(values(*shape)), values(*shape, seed=1), values(shape[0], *shape[2:], seed=2)
    made = op["R, S" if len(shape) == 2 else "R, S, D", reverse]
    expected = looped(a, b, h0, reverse)
    given = [jnp.asarray(x, jnp.float32) for x in (a, b, h0)]
    for implementation in ("interpret", "xla"):
        got = made(*given, implementation=implementation)
        for name, value in expected.items():
            np.testing.assert_allclose(
                getattr(got, name), value, rtol=1e-4, atol=1e-4, err_msg=f"{implementation} {name}"
            )


def test_a_mapped_axis_joins_the_rows(op):
    given = [jnp.asarray(values(2, 3, *s, seed=i), jnp.float32) for i, s in enumerate(((40,), (40,), ()))]
    made = op["R, S", True]
    mapped = jax.vmap(lambda *xs: made(*xs, implementation="interpret"))(*given)
    for i in range(2):
        for got, expected in zip(mapped, made(*(x[i] for x in given), implementation="interpret"), strict=True):
            np.testing.assert_array_equal(got[i], expected)


def test_a_sharded_axis_is_gathered_where_it_is_scanned(op):
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
    a, b, h0 = np.tanh(values(2, 6)), values(2, 6, seed=1), values(2, seed=2)
    given = [jax.device_put(jnp.asarray(x, jnp.float32), NamedSharding(mesh, PartitionSpec(None, "d"))) for x in (a, b)]
    got = jax.jit(lambda *xs: op["R, S", False](*xs))(*given, jnp.asarray(h0, jnp.float32))
    for name, value in looped(a, b, h0, False).items():
        np.testing.assert_allclose(getattr(got, name), value, rtol=2e-5, atol=2e-5)


def test_a_running_product_has_its_gradient_where_an_element_is_zero(tmp_path):
    """By hand: of x, 0, z the running products are x, 0, 0; their sum with weights c has the slopes c0, c1 x + c2 x z, 0."""
    made = make_op(tmp_path, spec_text("x: float32[S]", "y: float32[S]", "y = cumprod(x, axis=S)"))
    x, c = jnp.asarray([3.0, 0.0, 5.0]), jnp.asarray([1.0, 10.0, 100.0])
    for implementation in ("interpret", "xla"):
        got = jax.grad(lambda x, i=implementation: jnp.sum(c * made(x, implementation=i)))(x)
        np.testing.assert_allclose(got, [1, 10 * 3 + 100 * 15, 0])


@pytest.mark.parametrize("reverse", some([False, True], 1))
def test_gradients_of_states_before_each_element(tmp_path, reverse):
    """Against those of the states after each element, moved by one place. Some elements are 0, some are equal."""
    ways = {"cumprod": 1.0, "cummax": -jnp.inf, "cumlogsumexp": -jnp.inf}
    way = f"axis=S, before=true, reverse={str(reverse).lower()}"
    text = spec_text(
        "; ".join(f"x{i}: float32[R, S]" for i in range(3)),
        "; ".join(f"y{i}: float32[R, S]" for i in range(3)),
        "; ".join(f"y{i} = {word}(x{i}, {way})" for i, word in enumerate(ways)),
    )
    made = make_op(tmp_path, text)
    assert made.backward.op.plan.kind == "staged"

    def moved(*xs):
        for x, (word, first) in zip(xs, ways.items(), strict=True):
            y = getattr(jax.lax, word)(x, axis=1, reverse=reverse)
            edge = jnp.full_like(y[:, :1], first)
            yield jnp.concatenate([y[:, 1:], edge] if reverse else [edge, y[:, :-1]], 1)

    given = [jnp.asarray(np.round(values(3, 48, seed=i), 1), jnp.float32).at[:, 9].set(0.0) for i in range(3)]
    given[1] += jnp.arange(48) * (-1 if reverse else 1)  # so that a running maximum equals one element at most
    expected, pull = jax.vjp(jax.jit(lambda *xs: tuple(moved(*xs))), *given)
    cotangents = tuple(jnp.cos(y.at[jnp.isinf(y)].set(0)) for y in expected)
    for implementation in ("interpret", "xla"):
        got, own = jax.vjp(lambda *xs, i=implementation: tuple(made(*xs, implementation=i)), *given)
        for found, wanted in zip((*got, *own(cotangents)), (*expected, *pull(cotangents)), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_gradients_of_running_maxima_store_those_before_each_element(tmp_path):
    """The one with an element is computed from the one before it, with the same bits: equal elements share the gradient."""
    text = spec_text(
        "x: float32[R, S]", "y: float32[R, S]", "y = square(cummax(x, axis=S))", "y = jax.lax.cummax(x, axis=1) ** 2"
    )
    op = make_op(tmp_path, text)
    first, last = op.backward.op.plan.stages
    assert [len(stage.spec.outputs) for stage in (first, last)] == [1, 1]
    x = jnp.asarray(np.random.default_rng(3).integers(-3, 9, (3, 45)), "float32")
    found, expected = (
        jax.grad(lambda x, how=how: (op(x, implementation=how) * jnp.cos(x)).sum())(x) for how in ("interpret", "xla")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.count_nonzero(np.asarray(found)) > x.shape[0]


@pytest.mark.parametrize("axes", some(["R, D, S", "R, S, D"], 2))
def test_states_are_reduced_in_the_kernel_that_scans(tmp_path, axes):
    """Two scans of two states each, of which the second uses the first, and all reductions; and what all states share."""
    chain = (
        "e = exp(x); h = scan(a, e * b, axis=S, initial=h0); m = cummax(h - x, axis=S); y = sum(h * b, axis=N) + x; "
    )
    chain += "z = max(m, axis=N) + e; u = mean(m * h, axis=N) * min(h, axis=N)"
    inputs = f"x: float32[{axes}]; a: float32[N=2, D]; b: float32[R, S, N=2]; h0: float32[N=2]"
    made = make_op(tmp_path, spec_text(inputs, "; ".join(f"{name}: float32[{axes}]" for name in "yzu"), chain))
    assert made.plan.kind == "scan"
    x, a, b, h0 = values(1, 40, 2), np.tanh(values(2, 2, seed=1)), values(1, 40, 2, seed=2), values(2, seed=3)
    h, m, expected = np.broadcast_to(h0, (1, 2, 2)).copy(), np.full((1, 2, 2), -np.inf), []  # (R, D, N)
    for t in range(40):
        now, own = x[:, t, :, None], b[:, t, None]
        h = a.T * h + np.exp(now) * own
        m = np.maximum(m, h - now)
        totals = (h * own).sum(-1) + x[:, t], m.max(-1) + np.exp(x[:, t]), (m * h).mean(-1) * h.min(-1)
        expected.append(totals)
    x = x if axes == "R, S, D" else x.transpose(0, 2, 1)
    for implementation in ("interpret", "xla"):
        got = made(*(jnp.asarray(v, jnp.float32) for v in (x, a, b, h0)), implementation=implementation)
        for value, wanted in zip(got, np.moveaxis(expected, 0, 2), strict=True):  # (R, S, D)
            value = value if axes == "R, S, D" else value.transpose(0, 2, 1)
            np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-4, err_msg=implementation)


LINEAR_ATTENTION = spec_text(
    "q: float32[B, S, K=4]; k: float32[B, S, K=4]; v: float32[B, S, D]",
    "y: float32[B, S, D]",
    "state = cumsum(k * v, axis=S); total = cumsum(k, axis=S); y = sum(q * state, axis=K) / (sum(q * total, axis=K) + 8)",
)


def test_gradients_of_states_alone(tmp_path):
    """In a kernel of the gradients, every array has an element for each state."""
    op = make_op(tmp_path, LINEAR_ATTENTION)
    q, k, v, dy = (jnp.asarray(values(2, 8, n, seed=n + i), "float32") for i, n in enumerate((4, 4, 4, 4)))
    q, k = jnp.abs(q), jnp.abs(k)

    def wanted(q, k, v):
        state = jnp.cumsum(jnp.einsum("bsk,bsd->bskd", k, v), axis=1)
        total = jnp.sum(q * jnp.cumsum(k, axis=1), axis=-1)
        return jnp.einsum("bsk,bskd->bsd", q, state) / (total[..., None] + 8)

    found = jax.vjp(lambda *arrays: op(*arrays, implementation="interpret"), q, k, v)
    expected = jax.vjp(wanted, q, k, v)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)
    for own, other in zip(found[1](dy), expected[1](dy), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)
