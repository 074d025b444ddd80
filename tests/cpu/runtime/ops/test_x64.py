"""Integers without jax_enable_x64: uint32 arrays exist, the int64 in which they are computed does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import generated
from codegen.checking.testing import check_op
from tests.making import make_op
from tests.turns import EVERY

SPEC = """
op: counted
summary: Scale by a distance of counts, and sum the counts.
inputs:
  x: float32[..., N]
  a: uint32[..., N]
  b: uint32[N]
  table: float32[P]
  place: uint32[...]
outputs:
  y: float32[..., N]
  total: uint32[..., N]
  near: int32[..., N]
chain: |
  distance = where(a > b, a - b, b - a)
  y = x * distance + take(table, place, axis=P)
  total = a + b
  near = a - b
reference: |
  distance = jnp.where(a > b, a - b, b - a)
  y = x * distance + jnp.take(table, jnp.minimum(place, table.shape[0] - 1).astype(jnp.int32))[..., None]
  total = jnp.where(a + b < a, jnp.uint32(4294967295), a + b)
  near = jnp.where(a > b, jnp.minimum(a - b, 2147483647).astype(jnp.int32),
                   -jnp.minimum(b - a, 2147483647).astype(jnp.int32) - jnp.where(b - a > 2147483647, 1, 0))
domain:
  place: index(P)
"""
TOP = 2**32 - 1
A = np.array([[TOP, 5, 3_000_000_000, 7], [0, TOP, 2**31, 2**31]], np.uint32)
B = np.array([1, TOP, 2_000_000_000, 7], np.uint32)
X = np.array([[1, 2, -1, 4], [1, 1, 0.5, -2]], np.float32)
TABLE = np.array([0, 1, 2, 3, 4], np.float32) * 2.0**30
PLACE = np.array([1, TOP], np.uint32)  # the second is clipped: as an int32 it would be -1
IMPLEMENTATIONS = ("xla", "interpret")


def expected():
    """y, total and near, in Python's own integers."""
    a, b = A.astype(object), B.astype(object)
    distance = abs(a - b).astype(np.float32)
    y = X * distance + TABLE[[1, 4]][:, None]
    return y, np.minimum(a + b, TOP).astype(np.uint32), np.clip(a - b, -(2**31), 2**31 - 1).astype(np.int32)


def check(got):
    assert not jax.config.jax_enable_x64
    for mine, right in zip(got, expected(), strict=True):
        assert mine.dtype == right.dtype
        np.testing.assert_array_equal(mine, right)


@pytest.fixture(scope="module")
def op(tmp_path_factory):
    return make_op(tmp_path_factory.mktemp("ops"), SPEC)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_uint32_without_x64(op, implementation, strict_jax):
    def call(*arrays):
        return op(*arrays, implementation=implementation)

    check(call(X, A, B, TABLE, PLACE))
    check(jax.jit(call)(X, A, B, TABLE, PLACE))
    mapped = (0, 0, None, None, 0)
    check(jax.vmap(call, mapped)(X, A, B, TABLE, PLACE))
    check(jax.jit(jax.vmap(call, mapped))(X, A, B, TABLE, PLACE))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_mapped_axis_that_does_not_fold(op, implementation):
    """`b` has no rows that the mapped axis could join: the jnp form is mapped."""
    got = jax.jit(jax.vmap(lambda b: op(X, A, b, TABLE, PLACE, implementation=implementation)))(np.stack([B, B]))
    check([value[1] for value in got])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_beside_uint32(op, implementation):
    def loss(x, table):
        return (op(x, A, B, table, PLACE, implementation=implementation).y ** 2).sum()

    y = expected()[0].astype(np.float64)
    distance = abs(A.astype(np.int64) - B.astype(np.int64))
    table = np.array([0, 2 * y[0].sum(), 0, 0, 2 * y[1].sum()])
    for grad in (jax.grad(loss, (0, 1)), jax.jit(jax.grad(loss, (0, 1)))):
        dx, dtable = grad(X, TABLE)
        assert dx.dtype == dtable.dtype == jnp.float32
        np.testing.assert_allclose(dx, 2 * y * distance, rtol=1e-6)
        np.testing.assert_allclose(dtable, table, rtol=1e-5)
    second = jax.jacrev(jax.grad(loss, 1), 1)(X, TABLE)
    np.testing.assert_array_equal(second, np.diag([0.0, 8, 0, 0, 8]))


def test_export_without_x64(op, monkeypatch):
    import cutlass.jax

    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    arrays = [X, A, B, TABLE, PLACE]
    export.register_namedtuple_serialization(type(op(*arrays)), serialized_name="CountedOutputs")
    held = export.export(
        jax.jit(op), platforms=("cuda", "cpu"), disabled_checks=cutlass.jax.get_export_disabled_safety_checks()
    )(*(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays))
    assert "CuteDSL" in held.mlir_module()
    check(export.deserialize(held.serialize()).call(*arrays))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_random_calls_agree_with_the_reference(op, implementation):
    check_op(op, implementation, examples=10 if EVERY else 4)


# Features that JAX lacks without x64

WIDE = """
op: widened
summary: A wider copy.
types:
  T: [float64, float32]
  I: [int32, int64]
  O: [int32, int64]
inputs:
  x: T[N]
  i: I[N] = 0
outputs:
  y: float32[N]
  j: O[N]
chain: |
  y = x
  j = i + 1
reference: |
  y = x
  j = i + 1
grad: none
"""


@pytest.mark.parametrize("implementation", [*IMPLEMENTATIONS, "cute", None])
def test_64_bit_arrays_are_refused_without_x64(implementation, tmp_path):
    op = make_op(tmp_path, WIDE)
    x, i = np.ones(3, np.float32), np.full(3, 2**31 - 1, np.int32)
    only = "which JAX has only with jax_enable_x64"
    with pytest.raises(TypeError, match=rf"^widened: 'x' is T\[N\] with dtype float64, {only}$"):
        op(x.astype(np.float64), i, implementation=implementation)
    with pytest.raises(TypeError, match=rf"^widened: 'i' is I\[N\] with dtype int64, {only}$"):
        op(x, i.astype(np.int64), implementation=implementation)
    with pytest.raises(TypeError, match=rf"^widened: 'j' is O\[N\] with dtype int64, {only}$"):
        op(x, i, O="int64", implementation=implementation)
    if implementation != "cute":
        assert (op(x, i, implementation=implementation).j == i).all()  # saturated, from an int64 sum
    with jax.enable_x64(True):
        if implementation != "cute":
            assert (op(x, i, O="int64", implementation=implementation).j == 2**31).all()


@pytest.mark.parametrize("name", ["row_max", "row_min", "row_amax", "top1_gate"])
def test_x64_widens_no_count_of_what_ties(name):
    """Python's own numbers get a type from the arrays that they are used with."""
    op, x = getattr(generated, name), jnp.ones((3, 4), "float32")

    def total(x):
        leaves = jax.tree.leaves(op(x, implementation="xla"))
        return sum(y.sum() for y in leaves if jnp.issubdtype(y.dtype, jnp.floating))

    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        assert jax.grad(total)(x).dtype == x.dtype
        assert "f64[3" not in str(jax.make_jaxpr(jax.grad(total))(x))


CHOICES = """
op: wide_choices
summary: A choice of two numbers in 64 bits.
inputs:
  a: float64[..., N]
  i: int64[..., N]
outputs:
  y: float64[..., N]
  j: int64[..., N]
chain: |
  y = minimum(a, where(a < 0, 0.1, -1.0))
  j = minimum(i, where(i < 0, 1, -1))
reference: |
  y = jnp.minimum(a, jnp.where(a < 0, 0.1, -1.0))
  j = jnp.minimum(i, jnp.where(i < 0, 1, -1))
grad: none
"""


def test_a_choice_of_two_numbers_has_the_type_of_what_it_meets(tmp_path):
    with jax.enable_x64(True):
        op = make_op(tmp_path, CHOICES)
        a = jnp.asarray([[-0.5, 0.25, -2.0]], jnp.float64)
        y, j = op(a, (a * 4).astype(jnp.int64), implementation="interpret")
        assert y.tolist() == [[-0.5, -1.0, -2.0]] and j.tolist() == [[-2, -1, -8]]


def test_an_interpreted_call_of_float64_in_a_thread_without_x64(tmp_path):
    """Of a large computation, a callback runs in another thread, for which `jax.enable_x64` was not set."""
    op = make_op(
        tmp_path,
        """
op: doubled
summary: Made here.
inputs:
  x: float64[..., N]
outputs:
  y: float64[..., N]
  total: float64[...]
chain: |
  y = x * 2
  total = sum(x, axis=N)
reference: |
  y = x * 2
  total = jnp.sum(x, axis=-1)
""",
    )
    with jax.enable_x64(True):
        x = np.linspace(1, 2, 2**15).reshape(128, 256)
        y, total = jax.jit(lambda x: op(jnp.sin(jnp.arcsin(x / 4)) * 4, implementation="interpret"))(x)
        np.testing.assert_allclose(np.asarray(y), 2 * x, rtol=1e-13)
        np.testing.assert_allclose(np.asarray(total), x.sum(axis=1), rtol=1e-13)
