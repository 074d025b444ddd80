"""Kernels that select, and that sort: the order of jax.lax.top_k and of jnp.sort among equal elements, infinities, zeros and NaN, for
every way to hold a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.device.select import largest
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.rows import selecting
from tests.making import make_op, spec_text
from tests.turns import some


@pytest.fixture(scope="module")
def top_k(tmp_path_factory):
    reference = "y, place = jax.lax.top_k(x, 40)"
    chain = "y = top_k(x, K, axis=N); place = top_k_index(x, K, axis=N)"
    return make_op(
        tmp_path_factory.mktemp("ops"),
        spec_text("x: float32[..., N]", "y: float32[..., K=40]; place: int32[..., K=40]", chain, reference),
    )


def rows(size: int) -> np.ndarray:
    """A row of different numbers, one of few different numbers, and one with infinities and zeros of both signs."""
    generator = np.random.default_rng(size)
    special = np.array([np.inf, -np.inf, 0.0, -0.0, 1.0], "float32")
    return np.stack(
        [generator.standard_normal(size), generator.integers(0, 3, size), special[generator.integers(0, 5, size)]]
    ).astype("float32")


@pytest.mark.parametrize("size", [40, 301, 1100])  # all of a row; a warp's row, not of whole vectors; a block's
def test_the_order_is_that_of_jax(top_k, size):
    x = rows(size)
    expected = jax.lax.top_k(x, 40)
    for implementation in ("interpret", "xla"):
        y, i = top_k(x, implementation=implementation)
        np.testing.assert_array_equal(i, expected[1])
        np.testing.assert_array_equal(np.asarray(y).view("uint32"), np.asarray(expected[0]).view("uint32"))


def test_ties_are_taken_in_order_where_shared_memory_has_no_room_for_all(top_k, monkeypatch):
    """200 elements equal the largest one, in four pieces of a warp; or one piece has more of them than there is room for."""
    monkeypatch.setattr(selecting, "BUSY", 1)
    generator = np.random.default_rng(0)
    x = np.stack([generator.integers(0, 20, 4000), generator.integers(0, 3, 4000), -generator.integers(0, 20, 4000)])
    assert top_k.plan.launch(PlannedCall({"x": "float32"}, Extents(4000, None, 4000, 3))).per_row == 32
    values, places = jax.lax.top_k(x.astype("float32"), 40)
    y, place = top_k(x.astype("float32"), implementation="interpret")
    np.testing.assert_array_equal(place, places)
    np.testing.assert_array_equal(y, values)


@pytest.mark.parametrize("size", some([64, 300, 1100], 2))
def test_equal_elements_have_equal_weights(tmp_path, size):
    """Of threads that see other maxima of a row before they know its own: the first of equal elements comes first."""
    chain = "p = softmax(x, axis=N); y = top_k(p, K, axis=N); place = top_k_index(p, K, axis=N)"
    op = make_op(tmp_path, spec_text("x: float32[..., N]", "y: float32[..., K=16]; place: int32[..., K=16]", chain))
    x = np.round(np.random.default_rng(size).standard_normal((32, size)).astype("float32") * 16) / 16
    for implementation in ("interpret", "xla"):
        place = op(x, implementation=implementation)[1]
        np.testing.assert_array_equal(place, np.argsort(-x, axis=1, kind="stable")[:, :16])


def test_positions_are_int32_where_integers_have_64_bits(tmp_path):
    """As with a key of random numbers."""
    chain = "z = x + 0 * uniform(key); i = top_k_index(z, K, axis=N); y = take(x, i, axis=N); u = x"
    op = make_op(tmp_path, spec_text(
        "x: float32[..., N]; key: uint32[2]", "u: float32[..., N]; y: float32[..., K=5]; i: int32[..., K=5]", chain, more="grad: none",
    ))  # fmt: skip
    x = rows(70)
    for implementation in ("interpret", "xla"):
        y, i = op(x, np.zeros(2, "uint32"), implementation=implementation)[1:]
        expected = jax.lax.top_k(x, 5)
        np.testing.assert_array_equal(i, expected[1])
        np.testing.assert_array_equal(y, expected[0])


@pytest.mark.parametrize("many", [1, 30])
def test_selected_elements_that_no_output_has(tmp_path, many):
    """Two selections of a computed value, of which a kernel of its own uses the elements, or a step that has a block's rows alone."""
    chain = "z = x * w  # not K=7; t = top_k(z, K=4, axis=N); y = where(z >= min(t, axis=K), z, 0); m = mean(top_k(z, L=3, axis=N), axis=L)"
    for outputs, own in (
        ("y: float32[..., N]; m: float32[...]", chain),
        ("y: float32[..., N]", chain.partition("; m")[0]),
    ):
        op = make_op(tmp_path, spec_text("x: float32[..., N]; w: float32[N]", outputs, own))
        x, w = np.concatenate([rows(37)] * many), np.linspace(0.5, 1.5, 37, dtype="float32")
        z = x * w
        z[2::3], x[2::3] = 0, 0
        for implementation in ("interpret", "xla"):
            y = op(x, w, implementation=implementation)
            y, m = y if ";" in outputs else (y, None)
            np.testing.assert_array_equal(y, np.where(z >= np.sort(z)[:, -4:-3], z, 0))
            if m is None:
                continue
            np.testing.assert_allclose(m, np.sort(z)[:, -3:].mean(-1), rtol=1e-6)
            dx = jax.grad(lambda x: op(x, w, implementation=implementation)[1].sum())(x)
            places = np.asarray(jax.lax.top_k(z, 3)[1])
            np.testing.assert_allclose(np.take_along_axis(np.asarray(dx), places, 1), w[places] / 3, rtol=1e-6)
            assert np.count_nonzero(dx) == places.size


@pytest.mark.parametrize("dtype", some(["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"], 3))
def test_numbers_of_fewer_bits(tmp_path, dtype):
    """Their keys have fewer bits. Half of the row is negative, and selected too."""
    inputs, outputs = f"x: {dtype}[..., N]", f"y: {dtype}[..., K=40]; place: int32[..., K=40]"
    op = make_op(
        tmp_path,
        spec_text(inputs, outputs, "y = top_k(x, K, axis=N); place = top_k_index(x, K, axis=N)", more="grad: none"),
    )
    x = jnp.asarray(np.concatenate([rows(60)[:2], -np.abs(rows(60)[:1])])).astype(dtype)
    x = x.at[0, 3:8].set(jnp.asarray([jnp.nan, -96.0, 2.0**-14, -(2.0**-14), 0.0], dtype))
    values, places = jax.lax.top_k(x.astype("float32"), 40)
    for implementation in ("interpret", "xla"):
        y, place = op(x, implementation=implementation)
        np.testing.assert_array_equal(place, places)
        np.testing.assert_array_equal(y.astype("float32"), values)


# Each number of threads of a row, one to a warp; keys that fit 32 bits with their places, and that do not
@pytest.mark.parametrize(
    ("dtype", "size", "count"),
    [("float32", 3, 3), ("float16", 5, 2), ("float32", 49, 1), ("bfloat16", 32, 8), ("bfloat16", 200, 3), ("int32", 300, 16)],
)  # fmt: skip
def test_few_elements_of_short_rows_are_taken_in_turn(tmp_path, dtype, size, count):
    inputs, outputs = f"x: {dtype}[..., N]", f"y: {dtype}[..., K={count}]; place: int32[..., K={count}]"
    op = make_op(
        tmp_path,
        spec_text(inputs, outputs, "y = top_k(x, K, axis=N); place = top_k_index(x, K, axis=N)", more="grad: none"),
    )
    assert op.plan.launch(PlannedCall({"x": dtype}, Extents(size, None, size))).in_turn
    x = 3 * np.random.default_rng(size).standard_normal((11, size))
    x[:4], x[4] = np.round(x[:4]), -np.abs(x[4])
    x = jnp.asarray(x).astype(dtype)
    if dtype != "int32":
        x = x.at[5, :3].set(jnp.asarray([jnp.nan, -jnp.inf, jnp.inf], dtype))
    values, places = jax.lax.top_k(x, count)
    y, place = op(x, implementation="interpret")
    np.testing.assert_array_equal(place, places)
    np.testing.assert_array_equal(y.astype("float32"), values.astype("float32"))


def test_any_nan_is_the_largest(top_k):
    x = rows(64)[:1]
    x[0, 5], x[0, 9] = np.nan, np.copysign(np.nan, -1)
    for implementation in ("interpret", "xla"):
        y, i = top_k(x, implementation=implementation)
        assert i[0, :2].tolist() == [5, 9] and bool(jnp.isnan(y[0, :2]).all())
        np.testing.assert_array_equal(y[0, 2:], -np.sort(-x[0][~np.isnan(x[0])])[:38])


@pytest.mark.parametrize("size", [64, 301, 1100])  # in whole vectors; one by one; a block's row
def test_gradients_go_to_the_selected_elements(top_k, size):
    x, weights = rows(size)[:2], np.arange(1.0, 41.0, dtype="float32")
    expected = np.zeros((2, size), "float32")
    np.put_along_axis(expected, np.argsort(-x, kind="stable")[:, :40], weights[None], 1)
    for implementation in ("interpret", "xla"):
        got = jax.grad(lambda x, how=implementation: (top_k(x, implementation=how)[0] * weights).sum())(x)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 32), ("bfloat16", 64), ("float32", 49)])
def test_few_gradients_are_written_with_the_zeros(tmp_path, dtype, size):
    text = spec_text(
        f"x: {dtype}[..., N]", f"y: {dtype}[..., K=3]", "y = top_k(x, K, axis=N)", "y = jax.lax.top_k(x, 3)[0]"
    )
    op = make_op(tmp_path, text)
    x = jnp.asarray(np.random.default_rng(size).permuted(np.tile(np.arange(size), (9, 1)), axis=1)).astype(dtype)
    got = jax.grad(lambda x: (op(x, implementation="interpret").astype("float32") * jnp.arange(1.0, 4.0)).sum())(x)
    place = size - np.asarray(x, np.float32)  # 1 for the largest
    np.testing.assert_array_equal(np.asarray(got, np.float32), np.where(place <= 3, place, 0))


def test_parts_and_any_axis_are_selected_by_way_of_a_copy(tmp_path):
    """The kernels work along the last axis of an array, so an earlier stage writes one."""

    def reference(x):
        a, b = jnp.moveaxis(x[..., 0::2], 1, -1), x[..., 1::2]
        return jnp.moveaxis(jax.lax.top_k(a, 3)[0], -1, 1), jnp.sort(b, axis=1)

    chain = "y = top_k(x[0], K, axis=S); z = sort(x[1], axis=S)"
    text = "y = jnp.moveaxis(jax.lax.top_k(jnp.moveaxis(x[..., 0::2], 1, -1), 3)[0], -1, 1); z = jnp.sort(x[..., 1::2], axis=1)"
    op = make_op(
        tmp_path, spec_text("x: float32[B, S, (N 2)]", "y: float32[B, K=3, N]; z: float32[B, S, N]", chain, text)
    )
    x = rows(60)[0].reshape(2, 5, 6)
    expected, pull = jax.vjp(reference, x)
    weights = tuple(np.arange(1.0, 1 + y.size, dtype="float32").reshape(y.shape) for y in expected)
    for implementation in ("interpret", "xla"):
        got, pulled = jax.vjp(lambda x, how=implementation: tuple(op(x, implementation=how)), x)
        for y, other in zip(got, expected, strict=True):
            np.testing.assert_array_equal(y, other)
        np.testing.assert_array_equal(pulled(weights)[0], pull(weights)[0])


@pytest.mark.parametrize(
    ("axes", "order"), some([("H, B, N", (1, 0, 2)), ("B, H, N", (0, 1, 2))], 2)
)  # a copy; as they are
def test_axes_are_joined(tmp_path, axes, order):
    """Positions count along both axes, in the spec's order."""
    chain = "y = top_k(x, K, axis=(H, N)); place = top_k_index(x, K, axis=(H, N))"
    outputs = "y: float32[B, K=6]; place: int32[B, K=6]; z: float32[B, H, N]"
    op = make_op(tmp_path, spec_text(f"x: float32[{axes}]; w: float32[B, H, N]", outputs, f"{chain}; z = x * w"))
    x, weights = rows(55).reshape(3, 5, 11), np.arange(1.0, 7.0, dtype="float32")
    ones = np.ones_like(x)
    given, (values, places) = x.transpose(order), jax.lax.top_k(x.reshape(3, 55), 6)
    expected = np.zeros((3, 55), "float32")
    np.put_along_axis(expected, np.asarray(places), np.broadcast_to(weights, (3, 6)), 1)
    for implementation in ("interpret", "xla"):
        y, place, _ = op(given, ones, implementation=implementation)
        np.testing.assert_array_equal(place, places)
        np.testing.assert_array_equal(np.asarray(y).view("uint32"), np.asarray(values).view("uint32"))
        got = jax.grad(lambda x, how=implementation: (op(x, ones, implementation=how)[0] * weights).sum())(given)
        np.testing.assert_array_equal(got, expected.reshape(3, 5, 11).transpose(order))
    with pytest.raises(ValueError, match="H x N is 4, and the largest 6 of its elements are selected"):
        op(given[:2, :2, :2], ones[:2, :2, :2])


def test_too_few_elements(top_k):
    with pytest.raises(ValueError, match="N is 39, and the largest 40 of its elements are selected"):
        top_k(rows(39))


@pytest.fixture(scope="module")
def sort(tmp_path_factory):
    chain = "y = sort(x, axis=N); place = argsort(x, axis=N)"
    return make_op(
        tmp_path_factory.mktemp("ops"),
        spec_text(
            "x: float32[..., N]",
            "y: float32[..., N]; place: int32[..., N]",
            chain,
            "y, place = jnp.sort(x), jnp.argsort(x)",
        ),
    )


def with_nan(size: int) -> np.ndarray:
    x = rows(size)
    x[:, size // 3], x[:, size // 2] = np.nan, np.copysign(np.nan, -1)
    return x


# An element of each thread; some of a warp's row, not of whole vectors; a block's row, and the longest
@pytest.mark.parametrize("size", [31, 203, 1100, 8192])
def test_a_sort_has_the_order_of_jnp(sort, size):
    x = with_nan(size)
    y, i = sort(x, implementation="interpret")
    np.testing.assert_array_equal(i, np.argsort(x, kind="stable"))
    np.testing.assert_array_equal(
        np.asarray(y).view("uint32"), np.take_along_axis(x, np.argsort(x, kind="stable"), -1).view("uint32")
    )


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_gradients_go_to_where_sorted_elements_were(sort, implementation):
    x, weights = rows(70)[:2], np.arange(1.0, 71.0, dtype="float32")
    expected = np.zeros((2, 70), "float32")
    np.put_along_axis(expected, np.argsort(x, kind="stable"), weights[None], 1)
    got = jax.grad(lambda x: (sort(x, implementation=implementation)[0] * weights).sum())(x)
    np.testing.assert_array_equal(got, expected)


def test_a_row_that_no_block_holds(sort):
    x = np.zeros((1, 8193), "float32")
    message = "N is 8193, and a kernel sorts rows of up to 8192 elements; implementation='xla' runs without"
    with pytest.raises(ValueError, match=message):
        sort(x, implementation="interpret")
    assert sort(x)[1][0, -1] == 8192


def test_what_was_sorted_goes_back(tmp_path):
    """Ranks, and values that were made in another order, with their gradient, which sorts again."""
    chain = "i = argsort(score, axis=N); y = unsort(2 * cumsum(x, axis=N), i, axis=N); rank = unsort(index(N) + 0 * i, i, axis=N)"
    op = make_op(
        tmp_path,
        spec_text(
            "x: float32[..., N]; score: float32[..., N]",
            "y: float32[..., N]; rank: int32[..., N]",
            chain,
            "y, rank = x, x",
        ),
    )
    x, score = np.arange(74.0, dtype="float32").reshape(2, 37), rows(37)[:2]
    y, rank = op(x, score, implementation="interpret")
    order = np.argsort(score, kind="stable")
    expected = np.zeros_like(x)
    np.put_along_axis(expected, order, 2 * np.cumsum(x, -1), -1)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(np.take_along_axis(np.asarray(rank), order, -1), [np.arange(37)] * 2)
    got = jax.grad(lambda x: (op(x, score, implementation="xla")[0] * x).sum())(x * 0 + 1)
    back = np.take_along_axis(np.ones_like(x), order, -1)[:, ::-1].cumsum(-1)[:, ::-1]
    np.testing.assert_array_equal(got, 2 * back + op(x * 0 + 1, score, implementation="xla")[0])


@pytest.fixture(scope="module")
def nucleus(tmp_path_factory):
    text = spec_text("x: float32[..., N]; mass: float32[...]", "y: float32[...]", "y = nucleus(x, mass, axis=N)")
    return make_op(tmp_path_factory.mktemp("ops"), text)


@pytest.mark.parametrize(
    "size", [1, 37, 1100]
)  # a lane; a warp, not in whole vectors; a block, whose registers have it or not
def test_the_least_of_the_largest_elements_that_sum_to_a_mass(nucleus, size, monkeypatch):
    """Sums of multiples of 1/64 are exact, so a mass that is one of them is reached, and with a little more it is not."""
    held = np.random.default_rng(size).integers(0, 20, size)
    order, sums = -np.sort(-held), np.cumsum(-np.sort(-held))
    wanted, expected = [0.0, -1.0], [order[0] / 64] * 2
    for place in {0, size // 3, size // 2}:
        wanted += [sums[place] / 64, sums[place] / 64 + 1e-3]
        expected += [order[place] / 64, order[np.argmax(sums > sums[place])] / 64 if sums[-1] > sums[place] else 0]
    wanted, expected = [*wanted, sums[-1] / 64 + 1], [*expected, 0]
    x = np.tile(np.asarray(held / 64, "float32"), (len(wanted), 1))
    if size > 10:
        x[:, [3, 9]] = np.where(x[:, [3, 9]] == 0, [np.nan, -np.inf], x[:, [3, 9]])  # neither is added
    for implementation, piece in (("xla", 32), ("interpret", 32), ("interpret", 4)):
        monkeypatch.setattr(selecting, "THREAD_ELEMENTS", piece)
        if piece == 32 or size > 1000:
            got = nucleus(x, np.asarray(wanted, "float32"), implementation=implementation)
            np.testing.assert_array_equal(got, np.asarray(expected, "float32"))
    assert jax.grad(lambda x: nucleus(x, jnp.ones(1), implementation="xla").sum())(jnp.ones((1, 3))).tolist() == [
        [0.0] * 3
    ]


def test_positions_in_a_stage_of_their_own(tmp_path):
    """Another output says how many elements are selected."""
    reference = "v, place = jax.lax.top_k(-x, 3); y = -v"
    chain = "y = -top_k(-x, K, axis=N); place = top_k_index(-x, K, axis=N)"
    op = make_op(
        tmp_path, spec_text("x: float32[..., N]", "y: float32[..., K=3]; place: int32[..., K]", chain, reference)
    )
    x = rows(40)
    expected = jax.lax.top_k(-x, 3)
    for implementation in ("interpret", "xla"):
        y, place = op(x, implementation=implementation)
        np.testing.assert_array_equal(place, expected[1])
        np.testing.assert_array_equal(y, -expected[0])


# Slightly more groups of elements than wanted reach the bound; elements of equal groups, all equal, and NaN in all
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "int8", "float32"])
def test_elements_that_reach_a_bound(tmp_path, kind):
    op = make_op(
        tmp_path,
        spec_text(
            f"x: {kind}[..., N]", f"y: {kind}[..., K=40]; place: int32[..., K=40]",
            "y = top_k(x, K, axis=N); place = top_k_index(x, K, axis=N)", "y, place = jax.lax.top_k(x, 40)",
        ),
    )  # fmt: skip
    generator = np.random.default_rng(5)
    x = 20 * generator.standard_normal((6, 2048))
    x[1], x[2] = np.sort(x[1]), np.sort(x[2])[::-1]
    x[3, :1500] = x[3, 0]
    x[4] = x[4, 0]
    x[5, ::3] = 0 if kind == "int8" else np.nan
    x = jnp.asarray(np.clip(np.nan_to_num(x), -128, 127) if kind == "int8" else x).astype(kind)
    expected = jax.lax.top_k(x, 40)
    y, place = op(x, implementation="interpret")
    np.testing.assert_array_equal(place, expected[1])
    np.testing.assert_array_equal(np.asarray(y, "float32"), np.asarray(expected[0], "float32"))


@pytest.mark.parametrize(("kind", "size"), [("bfloat16", 2048), ("float32", 1100)])
def test_equal_elements_need_no_pieces(tmp_path, monkeypatch, kind, size):
    """A bound and the first elements that equal it are enough, however many do."""
    monkeypatch.setattr(largest, "by_pieces", lambda *_: None)
    monkeypatch.setenv("CODEGEN_CACHE_DIR", str(tmp_path / "cache"))
    op = make_op(
        tmp_path,
        spec_text(
            f"x: {kind}[..., N]", f"y: {kind}[..., K=41]; place: int32[..., K=41]",
            "y = top_k(x, K, axis=N); place = top_k_index(x, K, axis=N)", "y, place = jax.lax.top_k(x, 41)",
        ),
    )  # fmt: skip
    generator = np.random.default_rng(6)
    some = generator.standard_normal((3, size))
    x = np.stack([np.maximum(some[0] - 2, 0), np.where(some[1] < 0, 0.0, -0.0), np.round(some[2]), np.ones(size)])
    x = jnp.asarray(x, kind)
    y, place = op(x, implementation="interpret")
    expected = jax.lax.top_k(x, 41)
    np.testing.assert_array_equal(place, expected[1])
    np.testing.assert_array_equal(np.asarray(y, "float32"), np.asarray(expected[0], "float32"))


def test_gradients_of_a_router(tmp_path):
    """Its logits are a product, and what is selected of them is multiplied again."""
    chain = "best = softmax(top_k(x @ w, J, axis=E), axis=J); y = cast(best, float32) @ v"
    inputs = "x: float32[M, K]; w: float32[K, E]; v: float32[J=3, D]"
    op = make_op(tmp_path, spec_text(inputs, "y: float32[M, D]", chain, "y = x"))
    generator = np.random.default_rng(0)
    x, w, v = (generator.standard_normal(s).astype("float32") for s in ((5, 8), (8, 12), (3, 4)))

    def loss(run):
        return lambda x, w, v: (run(x, w, v) * np.cos(np.arange(20.0, dtype="float32").reshape(5, 4))).sum()

    def plain(x, w, v):
        return jax.nn.softmax(jax.lax.top_k(x @ w, 3)[0], axis=-1) @ v

    expected = jax.grad(loss(plain), (0, 1, 2))(x, w, v)
    for how in ("interpret", "xla"):
        found = jax.grad(loss(lambda *given, how=how: op(*given, implementation=how)), (0, 1, 2))(x, w, v)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)  # products of float32 round factors to tf32
