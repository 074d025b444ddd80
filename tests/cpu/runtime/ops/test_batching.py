"""`vmap` of ops is correct, and is one call of the kernel if the mapped axis can join an axis of the op."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen.runtime.ops import op as op_module
from codegen.runtime.ops.op import Op
from tests.making import make_op

seen: list[list[tuple[int, ...]]] = []  # the shapes that kernels ran on


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def stand_in(op: Op, key, donated, *operands, split=None):
    seen.append([x.shape for x in operands])
    return op.jnp_form(key, *operands)


@pytest.fixture
def kernels(monkeypatch):
    """Makes every op run its kernel, as on CUDA; yields the shapes that kernels ran on."""
    monkeypatch.setattr(Op, "_run_cute", stand_in)
    monkeypatch.setattr(op_module, "choose", lambda cuda, default, *operands, refuse="": cuda(())(*operands))
    ops = [getattr(generated, name) for name in ("bias_relu", "row_scale", "rotary", "rmsnorm", "column_sum", "axpby")]
    for op in ops:
        op._functions.cache_clear()
    seen.clear()
    yield seen
    for op in ops:
        op._functions.cache_clear()


def mapped_by_hand(f, in_axes, out_axes, *args):
    """The definition of `vmap`: one call after the other."""
    size = next(x.shape[a] for x, a in zip(args, in_axes, strict=True) if a is not None)
    slices = [
        f(*(x if a is None else np.take(x, i, a) for x, a in zip(args, in_axes, strict=True))) for i in range(size)
    ]
    return jnp.stack(slices, out_axes)


COS = ((3, 8), None)
# op, operands' shapes and mapped axes, the axis of the result, the shapes of the kernel's one call (None: no kernel)
TABLE = [
    ("bias_relu", [((4, 3, 8), 0), ((8,), None)], 0, [(4, 3, 8), (8,)]),
    ("bias_relu", [((3, 4, 8), 1), ((8,), None)], 1, [(4, 3, 8), (8,)]),
    ("bias_relu", [((3, 8, 4), -1), ((8,), None)], -1, [(4, 3, 8), (8,)]),
    ("bias_relu", [((4, 8), 0), ((8,), None)], 0, [(4, 8), (8,)]),  # `...` had no axis before
    ("bias_relu", [((4, 3, 8), 0), ((4, 8), 0)], 0, None),  # one weight for each
    ("bias_relu", [((3, 8), None), ((4, 8), 0)], 1, None),
    ("row_scale", [((4, 3, 8), 0), ((3,), None)], 0, [(4, 3, 8), (4, 3)]),  # one value a row is repeated
    ("row_scale", [((3, 8), None), ((3, 4), 1)], 0, [(4, 3, 8), (4, 3)]),
    ("rmsnorm", [((5, 4, 3, 8), 1), ((8,), None)], 0, [(4, 5, 3, 8), (8,)]),
    # no `...`: the first axis, if all mapped arrays begin with it
    ("rotary", [((4, 2, 3, 5, 16), 0), COS, COS], 0, [(8, 3, 5, 16), (3, 8), (3, 8)]),
    ("rotary", [((2, 3, 5, 16, 4), 4), COS, COS], 2, [(8, 3, 5, 16), (3, 8), (3, 8)]),
    ("rotary", [((4, 2, 3, 5, 16), 0), ((4, 3, 8), 0), COS], 0, None),
    # a result over all rows has no rows
    ("column_sum", [((4, 3, 8), 0)], 0, None),
]


@pytest.mark.parametrize(
    ("name", "given", "out_axes", "shapes"), TABLE, ids=[f"{i}-{r[0]}" for i, r in enumerate(TABLE)]
)
@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_vmap(kernels, name, given, out_axes, shapes, wrap):
    op = getattr(generated, name)
    args, in_axes = [normal(*shape) for shape, _ in given], tuple(axis for _, axis in given)
    mapped = wrap(jax.vmap(op, in_axes, out_axes))
    seen.clear()
    got = mapped(*args)
    assert seen[1:] == ([] if shapes is None else [shapes])  # after custom_vmap's own trace of the unmapped call
    expected = mapped_by_hand(op.reference, in_axes, out_axes, *args)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_mapped_dynamic_parameter():
    x, y, alpha = normal(3, 8), normal(3, 8), normal(4)
    got = jax.vmap(lambda a: generated.axpby(x, y, alpha=a, beta=2.0))(alpha)
    np.testing.assert_allclose(got, alpha[:, None, None] * x + 2 * y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["channel_affine", "group_norm", "rmsnorm"])
def test_nothing_mapped_many_times(name):
    shapes = {
        "channel_affine": [(0, 2, 3, 4), (3,), (3,)],
        "group_norm": [(0, 2, 2, 3, 4)],
        "rmsnorm": [(0, 5, 8), (8,)],
    }[name]
    args = [normal(*shape) for shape in shapes]
    in_axes = (0, *(None for _ in args[1:]))
    assert jax.vmap(getattr(generated, name), in_axes)(*args).shape == args[0].shape


def test_nested_vmap_is_one_call(kernels):
    x, w = normal(2, 5, 4, 3, 8), normal(8)
    inner = jax.vmap(generated.rmsnorm, (1, None), 1)
    got = jax.jit(jax.vmap(inner, (0, None), 2))(x, w)
    assert seen[-1] == [(4, 2, 5, 3, 8), (8,)] or seen[-1] == [(2, 4, 5, 3, 8), (8,)]
    np.testing.assert_allclose(got, jnp.moveaxis(generated.rmsnorm.reference(x, w), 0, 2), rtol=1e-5, atol=1e-5)


def test_an_unmapped_weight_is_not_copied():
    """Neither the jaxpr nor the compiled program has an array with the weight's size for each mapped position."""
    x, w = normal(4, 3, 8), normal(8)
    mapped = jax.vmap(functools.partial(generated.bias_relu, implementation="interpret"), (0, None))
    text = str(jax.make_jaxpr(mapped)(x, w))
    assert "f32[4,3,8]" in text and "f32[4,8]" not in text and "broadcast" not in text
    assert "f32[4,8]" not in jax.jit(mapped).lower(x, w).compile().as_text()


@pytest.mark.parametrize(
    ("in_axes", "shapes"), [((0, None), ((4, 3, 8), (8,))), ((0, 0), ((2, 3, 8), (2, 8)))], ids=str
)
def test_the_kernel_that_was_asked_for_runs_also_where_nothing_joins(in_axes, shapes):
    """Interpreted, in one call or in one after the other."""
    from codegen.runtime.compiled import interpreted

    x, w = (normal(*shape) for shape in shapes)
    interpreted._last.clear()
    got = jax.vmap(functools.partial(generated.bias_relu, implementation="interpret"), in_axes)(x, w)
    got.block_until_ready()
    assert interpreted.last_reports()
    np.testing.assert_allclose(got, mapped_by_hand(generated.bias_relu.reference, in_axes, 0, x, w), rtol=1e-6)


POSITIONS = """\
op: positions
summary: Each row's place among all.
inputs:
  x: float32[M, N]
outputs:
  y: float32[M, N]
chain: |
  y = x + index(M)
reference: x + jnp.arange(x.shape[0])[:, None]
"""


def test_an_axis_with_positions_is_not_joined(tmp_path):
    op = make_op(tmp_path, POSITIONS)
    x = normal(4, 3, 8)
    np.testing.assert_allclose(jax.vmap(op)(x), x + np.arange(3, dtype=np.float32)[:, None], rtol=1e-6)


def test_an_axis_whose_size_is_asked_for_is_not_joined():
    """The backward of a mean divides by the number of elements in one call; its cotangent, 1, is not mapped."""
    x, y = normal(4, 3, 8), normal(4, 3, 8) + 1
    got = jax.vmap(jax.grad(generated.mean_squared_error))(x, y)
    np.testing.assert_allclose(got, 2 * (x - y) / 24, rtol=1e-5)
