"""Sums by index: the interpreted kernels against NumPy, and how they are mapped, sharded, differentiated and exported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.plan import by_index as plan
from codegen.runtime.compiled import by_index as kernels
from codegen.runtime.ops import by_index
from codegen.runtime.ops.by_index import sums_by_index
from codegen.shared import TallyLaunch
from tests.meshes import P, collectives, make_mesh
from tests.meshes import put as put_on

CASES = {  # outer, rows, columns, keys; the dtypes of values and sums; most of the keys
    "few": (2, 30, 8, 7, "float32", "bfloat16", None),
    "one_column": (3, 50, 1, 5, "float32", "float32", 4),
    "narrow": (1, 4, 3, 90, "bfloat16", "bfloat16", 5),
}


@pytest.fixture
def small(monkeypatch):
    """Chunks of a few rows, on several levels."""
    monkeypatch.setattr(plan, "CHUNK", 4)
    monkeypatch.setattr(plan, "MOST_IN_A_ROW", 4)
    monkeypatch.setattr(plan, "TALLIED", 0)  # rows are read in the order of their keys


def made(case):
    outer, rows, columns, keys, dtype, _, most = case
    random = np.random.default_rng(rows)
    places = random.integers(0, keys + 1, rows)  # the last is that of no row
    places = places if most is None else np.where(random.random(rows) < 0.9, most, places)
    return places.astype(np.int32), jnp.asarray(random.standard_normal((outer, rows, columns)), dtype)


def expected(places, values, keys):
    found = np.zeros((values.shape[0], keys + 1, values.shape[2]))
    every = np.repeat(np.asarray(values, np.float64), len(places) // values.shape[1], 1)
    np.add.at(found, (slice(None), places), every)
    return found[:, :keys]


def check(case):
    keys, result = case[3], case[5]
    places, values = made(case)
    got = sums_by_index("interpret", jnp.asarray(places), values, keys, result)
    assert got.dtype == result
    error = max(2.0**-20, 2 * float(jnp.finfo(result).eps))
    np.testing.assert_allclose(np.asarray(got, np.float64), expected(places, values, keys), error, error)


@pytest.mark.parametrize(("name", "ranked", "levels"), [("few", 10**4, 2), ("one_column", 0, 2), ("narrow", 10**4, 0)])
def test_sums_of_sorted_rows(name, ranked, levels, small, monkeypatch):
    """A kernel sorts them, or XLA."""
    monkeypatch.setattr(plan, "RANKED", ranked)
    how = kernels.sizes(*made(CASES[name]), CASES[name][3], CASES[name][5]).launch()
    assert how.levels == levels and how.ranks == (ranked > 0)
    check(CASES[name])


def test_pairs_are_sorted_where_a_key_and_a_rows_number_are_too_long_for_one_number(small, monkeypatch):
    monkeypatch.setattr(plan, "PACKED", 1)
    check(CASES["one_column"])


def test_the_order_of_a_sum(small):
    """19 rows of one key, in chunks of four: the last row of a chunk, three whole chunks, two rows."""
    values = np.random.default_rng(0).standard_normal((3, 22, 1)).astype(np.float32)
    places = np.where(np.arange(22) < 7, 0, 1).astype(np.int32)
    got = sums_by_index("interpret", jnp.asarray(places), jnp.asarray(values), 5, "float32")
    x = values[0, :, 0]
    total = x[7]
    for i in (8, 12, 16):
        total += ((x[i] + x[i + 1]) + x[i + 2]) + x[i + 3]
    assert got[0, 1, 0] == (total + x[20]) + x[21]


def scaled(places, values, factors, into):
    """Sums of rows that are multiplied before; they are added to an array."""
    return expected(places, np.asarray(values, np.float64) * factors[:, None], into.shape[1]) + into


def with_factors(case):
    """A case's arrays, with factors of the rows, and what the sums are added to."""
    places, values = made(case)
    random = np.random.default_rng(1)
    return places, values, random.standard_normal(case[1]), random.standard_normal((case[0], case[3], case[2]))


@pytest.mark.parametrize("name", ["few", "one_column", "narrow"])
@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_rows_with_factors_are_added_to_an_array(name, implementation, small):
    keys, result = CASES[name][3], CASES[name][5]
    places, values, factors, into = with_factors(CASES[name])
    factors, into = jnp.asarray(factors, "float32"), jnp.asarray(into, result)
    got = sums_by_index(implementation, jnp.asarray(places), values, keys, result, factors=factors, into=into)
    error = max(2.0**-20, 2 * float(jnp.finfo(result).eps))
    want = scaled(places, values, np.asarray(factors), np.asarray(into, np.float64))
    np.testing.assert_allclose(np.asarray(got, np.float64), want, error, 2 * error)


def test_an_infinite_factor_is_of_its_own_row(small):
    factors = jnp.ones(3).at[0].set(jnp.inf)
    places, values = jnp.asarray([1, 1, 2]), jnp.ones((1, 3, 8))
    got = sums_by_index("interpret", places, values, 4, "float32", factors=factors)
    np.testing.assert_array_equal(got[0, :, 0], [0, jnp.inf, 1, 0])
    got = sums_by_index("interpret", places, values.at[:, 0].set(-1), 4, "float32", factors=factors)
    np.testing.assert_array_equal(got[0, :, 0], [0, -jnp.inf, 1, 0])


def test_gradients_and_vmap_of_factors(small):
    places, values, factors, into = (jnp.asarray(x) for x in with_factors(CASES["few"]))
    slopes = jnp.cos(jnp.arange(7.0))[:, None] * jnp.ones(8)

    def total(how, values, factors, into):
        return (sums_by_index(how, places, values, 7, "float32", factors=factors, into=into) * slopes).sum()

    taken = jnp.pad(slopes, ((0, 1), (0, 0)))[places]
    found = jax.grad(total, (1, 2, 3))("interpret", values, factors, into)
    for own, want in zip(found, (taken * factors[:, None], (taken * values).sum((0, 2)), slopes), strict=True):
        np.testing.assert_allclose(own, jnp.broadcast_to(want, own.shape), 1e-5, 1e-5)
    several = jnp.stack([factors, 2 * factors])
    got = jax.vmap(lambda f: total("interpret", values, f, into))(several)
    np.testing.assert_allclose(got, [total("xla", values, f, into) for f in several], 1e-5)


TABLES = {  # the case; how many neighbouring keys have the same values; tables of a warp, and blocks
    "a table for each lane": ((1, 1000, 1, 5, "bfloat16", "float32", 4), 1, 32, 1),
    "several blocks, and columns": ((2, 4200, 3, 40, "float32", "bfloat16", 7), 2, 4, 5),
    "one table for a warp": ((1, 300, 1, 900, "float16", "float32", None), 1, 1, 3),
}


@pytest.mark.parametrize("name", TABLES)
def test_sums_of_few_keys(name, monkeypatch):
    """Tables in shared memory: most rows have one key, some have none, and the last are fewer than the threads."""
    case, alike, copies, parts = TABLES[name]
    _, rows, columns, keys, *_, result, _ = case
    monkeypatch.setattr(plan, "TABLES", (keys + 1) * columns * 4 * copies * (1 if copies == 1 else plan.LEAST_WARPS))
    monkeypatch.setattr(plan, "ALONE", 0 if parts > 1 else plan.ALONE)
    places, values = made(case)
    values = values[:, : rows // alike]
    how = kernels.sizes(places, values, keys, result).launch()
    assert isinstance(how, TallyLaunch) and (how.copies, how.parts, how.alike) == (copies, parts, alike)
    got = sums_by_index("interpret", jnp.asarray(places), values, keys, result)
    error = max(2.0**-20, 2 * float(jnp.finfo(result).eps))
    np.testing.assert_allclose(np.asarray(got, np.float64), expected(places, values, keys), error, 4 * error)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_keys_out_of_range_are_the_nearest_ones(dtype, implementation):
    """A kernel with tables takes an index as it is, if its type has no more than 32 bits with a sign."""
    keys = np.array([0, 1, 2, 3, 4, 120, 6, 7] * 8).astype(dtype)
    keys[5::16] = np.array(-3).astype(dtype)
    values = np.arange(64, dtype=np.float32).reshape(1, 64, 1)

    def summed(values):
        return sums_by_index(implementation, jnp.asarray(keys), values, 5, "float32", clamp=True)

    places = np.clip(keys.astype(np.int64), 0, 4)
    np.testing.assert_array_equal(summed(jnp.asarray(values)), expected(places, values, 5))
    slopes = jax.grad(lambda v: (summed(v)[0, :, 0] * jnp.arange(5)).sum())(jnp.asarray(values))
    np.testing.assert_array_equal(slopes[0, :, 0], places)


def test_infinities_stay_in_their_sums():
    """Also of rows whose neighbours have other keys, and of rows without a key."""
    places = jnp.arange(200, dtype=jnp.int32) % 8
    values = jnp.where(places % 4 == 3, jnp.inf, 1.0).reshape(1, 200, 1)
    got = sums_by_index("interpret", places, values, 7, "float32")
    np.testing.assert_array_equal(got[0, :, 0], [25, 25, 25, jnp.inf, 25, 25, 25])


@pytest.mark.parametrize("mapped", [(0, None), (None, 1), (0, 2)], ids=["keys", "values", "both"])
def test_vmap(mapped):
    random = np.random.default_rng(0)
    places = jnp.asarray(random.integers(0, 4, (3, 20)), jnp.int32)  # two of the same values
    values = jnp.asarray(random.standard_normal((2, 10, 4)), "float32")
    every = jnp.stack([values, 2 * values, -values], mapped[1] or 0)
    given = places if mapped[0] == 0 else places[0], every if mapped[1] is not None else values
    got = jax.vmap(lambda k, v: sums_by_index("interpret", k.reshape(10, 2), v, 4, "float32"), mapped)(*given)
    for i in range(3):
        own = places[i] if mapped[0] == 0 else places[0], jnp.take(every, i, mapped[1]) if mapped[1] else values
        np.testing.assert_allclose(got[i], expected(*map(np.asarray, own), 4), 1e-5, 1e-5)


def test_gradients():
    """Of values that two keys have each, too."""
    places, values = made(CASES["few"])
    values = values[:, :15]
    got = jax.grad(lambda v: jnp.sin(sums_by_index("interpret", places.reshape(15, 2), v, 7, "float32")).sum())(values)
    slopes = np.cos(np.pad(expected(places, values, 7), ((0, 0), (0, 1), (0, 0)), constant_values=np.pi / 2))
    np.testing.assert_allclose(got, slopes[:, places].reshape(2, 15, 2, 8).sum(2), 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("keys", "values", "sums", "each", "found", "clamp"),
    [
        (P(), P("a", None, "b"), P("a", None, "b"), 1, set(), False),
        (P("a"), P(None, "a", "b"), P(None, None, "b"), 1, {"all-reduce"}, True),
        (P("b"), P(None, "b"), P(None, "a"), 1, {"all-reduce"}, False),
        (P("b"), P(None, "b"), P(None, "a"), 1, {"all-reduce"}, True),
        (P("a"), P(None, "a"), P(), 3, {"all-reduce"}, False),
    ],
)
def test_sharded(keys, values, sums, each, found, clamp, monkeypatch):
    """Each device sums what it has, to the rows that it has. Neighbouring keys may be `each` of the same values. Keys are clamped before
    a device has its own rows."""
    mesh, case = make_mesh(), (4, 16, 4, 8)
    seen = []

    def launched(keys, values, rows, result, clamp):
        keys = jnp.clip(keys, 0, rows - 1) if clamp else keys
        seen.append((*values.shape, rows))
        return by_index._by_scatter(keys.reshape(values.shape[1], -1), values, rows, result)

    monkeypatch.setattr(kernels, "launched", launched)
    monkeypatch.setattr(by_index, "choose", lambda cute, _, *operands, refuse: cute((False, False))(*operands))
    by_index._mappable.cache_clear()
    random = np.random.default_rng(0)
    places = random.integers(0, 9, (16, each)).astype(np.int32)
    x = random.standard_normal(case[:3]).astype(np.float32)

    def run(k, v):
        got = sums_by_index("cute", k, v, 8, "float32", clamp=clamp)
        return jax.lax.with_sharding_constraint(got, jax.sharding.NamedSharding(mesh, sums))

    compiled = jax.jit(run).lower(put_on(mesh, places, keys), put_on(mesh, x, values)).compile()
    by_index._mappable.cache_clear()
    assert set(collectives(compiled)) == found
    sizes = {"a": 4, "b": 2}
    split = [sizes.get(axis, 1) for axis in (*values, None, None)[:3]]
    assert seen[-1][:3] == tuple(n // by for n, by in zip(case, split, strict=False))
    assert seen[-1][3] == 8 // sizes.get((*sums, None)[1] if len(sums) > 1 else None, 1)
    got = compiled(put_on(mesh, places, keys), put_on(mesh, x, values))
    places = np.clip(places, 0, 7) if clamp else places
    np.testing.assert_allclose(got, expected(places.reshape(-1), x, 8), 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("keys", "values", "sums"),
    [
        (P(), P("a", None, "b"), P("a", None, "b")),
        (P("a"), P(None, "a", "b"), P(None, None, "b")),
        (P("b"), P(), P(None, "a")),
    ],
)
def test_sharded_with_factors(keys, values, sums, monkeypatch):
    """What the sums are added to is added once."""
    mesh = make_mesh()

    def launched(keys, values, rows, result, clamp, factors, into=None):
        found = by_index._by_scatter(keys, values * factors[:, None], rows, result)
        return found if into is None else found + into

    monkeypatch.setattr(kernels, "launched", launched)
    monkeypatch.setattr(plan, "TALLIED", 0)
    monkeypatch.setattr(by_index, "choose", lambda cute, _, *operands, refuse: cute((False, False))(*operands))
    by_index._mappable.cache_clear()
    given = with_factors((4, 16, 4, 8, "float32", "float32", None))
    places, x, factors, into = (np.asarray(v, np.float32) if v.dtype == float else np.asarray(v) for v in given)

    def run(k, v, f, i):
        got = sums_by_index("cute", k, v, 8, "float32", factors=f, into=i)
        return jax.lax.with_sharding_constraint(got, jax.sharding.NamedSharding(mesh, sums))

    arrays = zip((places, x, factors, into), (keys, values, keys, sums), strict=True)
    got = jax.jit(run)(*(put_on(mesh, array, spec) for array, spec in arrays))
    by_index._mappable.cache_clear()
    np.testing.assert_allclose(got, scaled(places, x, factors, into), 1e-5, 1e-5)


def test_export_with_a_symbolic_number_of_rows(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    (n,) = jax.export.symbolic_shape("n")
    shapes = jax.ShapeDtypeStruct((n,), jnp.int32), jax.ShapeDtypeStruct((1, n, 8), jnp.float32)
    sums = jax.jit(lambda k, v: sums_by_index("cute", k, v, 5, "bfloat16"))
    checks = [jax.export.DisabledSafetyCheck.custom_call("CuteDSLRT_NvJaxCutlassCall_v2")]
    (found,) = jax.export.export(sums, platforms=["cuda"], disabled_checks=checks)(*shapes).out_avals
    assert found.shape == (1, 5, 8)


@pytest.mark.parametrize("ordered", [False, True])
def test_sums_that_must_be_ordered_are_not_left_to_xla(ordered, monkeypatch):
    """Few sums of many rows, for which the estimate prefers XLA's scatter."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    keys, values = jax.ShapeDtypeStruct((4096,), "int32"), jax.ShapeDtypeStruct((1, 4096, 64), "float32")
    assert kernels.sizes(keys, values, 64, "float32").left_to_xla()

    def sums(keys, values):
        return sums_by_index(None, keys, values, 64, "float32", ordered=ordered)

    checks = [jax.export.DisabledSafetyCheck.custom_call("CuteDSLRT_NvJaxCutlassCall_v2")]
    text = jax.export.export(jax.jit(sums), platforms=["cuda"], disabled_checks=checks)(keys, values).mlir_module()
    assert ("scatter" in text) == (not ordered)
