"""Ops in `shard_map`, and gradients and `vmap` of sharded arrays, with a stand-in for kernels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

import generated
from codegen.autodiff.backward import Derived
from tests.making import make_op, spec_text
from tests.meshes import (
    AUTO,
    EXPLICIT,
    P,
    assert_close,
    collectives,
    make_mesh,
    normal,
    put,
    seen,
    tupled,
    values,
)
from tests.turns import some

X, HALVES, W = (8, 6, 32), (8, 6, 32), (32,)
NONE = P()
GATHER, REDUCE = {"all-gather": 1}, {"all-reduce": 1}


@pytest.mark.parametrize(
    ("kind", "check"), [(AUTO, True), (AUTO, False), (EXPLICIT, True)], ids=["typed", "untyped", "explicit"]
)
@pytest.mark.parametrize("implementation", some([None, "xla", "interpret"], 1))
def test_shard_map(implementation, kind, check):
    mesh, x, w = make_mesh(kind), normal(8, 16), normal(16)
    args = put(mesh, x, P("a")), put(mesh, w, NONE)
    call = functools.partial(generated.rmsnorm, implementation=implementation)
    mapped = jax.shard_map(call, mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"), check_vma=check)
    assert_close(jax.jit(mapped)(*args), generated.rmsnorm.reference(x, w))

    def loss(f):
        return lambda x, w: jnp.sum(jnp.sin(f(x, w)))

    got = jax.jit(jax.grad(loss(mapped), (0, 1)))(*args)
    assert_close(got, jax.jit(jax.grad(loss(generated.rmsnorm.reference), (0, 1)))(x, w))


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT], ids=["auto", "explicit"])
def test_shard_map_of_some_mesh_axes(kernels, kind):
    mesh, x, w = make_mesh(kind), normal(8, 16), normal(16)
    mapped = jax.shard_map(generated.rmsnorm, mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"), axis_names={"a"})
    assert_close(jax.jit(mapped)(put(mesh, x, P(("a", "b"))), put(mesh, w, P("b"))), generated.rmsnorm.reference(x, w))


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT], ids=["auto", "explicit"])
def test_gradients_of_sharded_arrays(kernels, kind):
    mesh, x, w = make_mesh(kind), normal(8, 16), normal(16)

    def loss(f):
        return lambda x, w: jnp.sum(jnp.sin(f(x, w)))

    gradient = jax.jit(jax.grad(loss(generated.rmsnorm), (0, 1)))
    args = put(mesh, x, P("a")), put(mesh, w, NONE)
    compiled = gradient.lower(*args).compile()
    assert set(collectives(compiled)) == {"all-reduce"}
    got = compiled(*args)
    assert got[0].sharding.is_equivalent_to(NamedSharding(mesh, P("a")), 2)
    assert_close(got, jax.grad(loss(generated.rmsnorm.reference), (0, 1))(x, w))


BACKWARDS = [
    # op, the sharding of its first input, collectives of value and gradients together
    ("swiglu", P("a", "b"), {}),
    ("softmax", P(("a", "b")), {}),
    ("bias_gelu", P("a", None, "b"), REDUCE),  # that of the bias
    ("layernorm", P("a"), REDUCE),  # those of the weight and the bias
    ("column_sum", P("a"), REDUCE),  # that of the value
    ("column_mean", P("a", None, "b"), REDUCE),  # the gradient divides by the number of all rows
    ("mean_squared_error", P("a"), REDUCE),
    # rows are sharded along N: each statistic combines all devices
    ("softmax", P("a", None, "b"), {"all-reduce": 3}),
    ("rmsnorm", P("a", None, "b"), {"all-reduce": 3}),
    ("layernorm", P("a", None, "b"), {"all-reduce": 4}),
]


@pytest.mark.parametrize(("name", "spec", "expected"), BACKWARDS, ids=[r[0] for r in BACKWARDS])
def test_generated_backwards(kernels, name, spec, expected):
    """The kernel of a gradient is sharded by the same rules, from its own axes."""
    op, mesh = getattr(generated, name), make_mesh()
    made = values(op, [X if "..." in a.axes else W for a in op.spec.inputs])
    shared = [put(mesh, v, spec if v.ndim > 1 else NONE) for v in made]

    def pull(f):
        def both(*args):
            y, back = jax.vjp(f, *args)
            return (y, *back(jnp.cos(y)))

        return jax.jit(both)

    assert isinstance(op.backward, Derived)
    compiled = pull(op).lower(*shared).compile()
    assert collectives(compiled) == expected
    assert_close(compiled(*shared), pull(op.reference)(*made))


@pytest.mark.each
@pytest.mark.parametrize("kind", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("name", ["linear_cross_entropy", "logits_logsumexp"])
def test_a_vocabulary_in_parts_is_not_gathered(kernels, name, kind):
    """Nor are logits and their gradient: each device has its own tokens of each row, in the forward and in the backward."""
    op, mesh = getattr(generated, name), make_mesh(kind)
    x, w, label = normal(8, 32), normal(16, 32), np.random.default_rng(0).integers(0, 16, 8).astype(np.int32)

    def loss(f):
        return lambda x, w, label: sum(jnp.sum(jnp.sin(y)) for y in tupled(f(x, w, label)))

    args = put(mesh, x, P("a")), put(mesh, w, P("b")), put(mesh, label, P("a"))
    compiled = jax.jit(jax.grad(loss(op), (0, 1))).lower(*args).compile()
    assert set(collectives(compiled)) == {"all-reduce"}
    dx, dw = compiled(*args)
    assert dx.sharding.is_equivalent_to(NamedSharding(mesh, P("a")), 2)
    assert dw.sharding.is_equivalent_to(NamedSharding(mesh, P("b")), 2)
    assert_close((dx, dw), jax.grad(loss(op.reference), (0, 1))(x, w, label))
    assert ((2, 32), (8, 32), (2,)) in [tuple(shapes) for shapes in seen]  # the kernel, on a shard of each array


def test_what_follows_a_products_folds_takes_from_the_whole(kernels, tmp_path):
    inputs = "x: float32[..., K]; w: float32[K, N]; b: float32[N]; label: int32[...]"
    chain = "y = max(x @ w, axis=N) - take(b, label, axis=N)"
    op = make_op(tmp_path, spec_text(inputs, "y: float32[...]", chain, "y = (x @ w).max(-1) - b[label]"))
    mesh, label = make_mesh(), np.arange(8, dtype=np.int32) * 4
    args = normal(8, 16), normal(16, 32), normal(32), label
    split = [put(mesh, v, s) for v, s in zip(args, (P("a"), P(None, "b"), P("b"), P("a")), strict=True)]
    assert_close(jax.jit(op)(*split), (args[0] @ args[1]).max(-1) - args[2][label])


def test_a_mean_of_more_than_integers_count(kernels, tmp_path):
    text = spec_text("x: bfloat16[..., K]; w: bfloat16[K, N]", "m: float32[]", "m = mean(x @ w, axis=(..., N))")
    op, mesh = make_op(tmp_path, text), make_mesh()
    shapes = [((2**16, 16), P("a")), ((16, 2**17), P(None, "b"))]
    args = [jax.ShapeDtypeStruct(s, "bfloat16", sharding=NamedSharding(mesh, spec)) for s, spec in shapes]
    assert jax.jit(op).lower(*args).compile().out_info.shape == ()


def test_shard_map_that_leaves_mesh_axes_of_one_device(kernels):
    mesh, x = Mesh(np.array(jax.devices("cpu")[:8]).reshape(8, 1), ("a", "b")), normal(8, 16)
    mapped = jax.shard_map(generated.softmax, mesh=mesh, in_specs=(P("a"),), out_specs=P("a"), axis_names={"a"})
    assert_close(jax.jit(mapped)(x), jax.nn.softmax(x))
    assert seen[-1] == [(1, 16)]


def test_vmap_of_sharded_arrays(kernels):
    mesh, x, w = make_mesh(), normal(8, 6, 16), normal(16)
    mapped = jax.jit(jax.vmap(generated.rmsnorm, (0, None), spmd_axis_name="a"))
    args = put(mesh, x, P("a")), put(mesh, w, NONE)
    assert collectives(mapped.lower(*args).compile()) == {}
    assert_close(mapped(*args), generated.rmsnorm.reference(x, w))
    assert seen[-1] == [(2, 6, 16), (16,)]
