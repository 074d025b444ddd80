"""Explicit meshes: the types of arrays carry their sharding through every transformation."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import generated
from tests.meshes import (
    EXPLICIT,
    P,
    assert_close,
    collectives,
    make_mesh,
    put,
    tupled,
    values,
)
from tests.turns import some

X, HALVES, W = (8, 6, 32), (8, 6, 32), (32,)
NONE = P()
GATHER, REDUCE = {"all-gather": 1}, {"all-reduce": 1}


MAPPED, ROWS = (8, 8), P("a", "b")  # a mapped axis and rows, or rows alone; all other operands are whole
TRANSFORMED = {
    "bias_relu": [(*MAPPED, 16), (16,)],
    "swiglu": [(*MAPPED, 16)],
    "rmsnorm": [(*MAPPED, 16), (16,)],
    "layernorm": [(*MAPPED, 16), (16,), (16,)],
    "softmax": [(*MAPPED, 16)],
    "cross_entropy": [(*MAPPED, 32), MAPPED],
    "embedding_rmsnorm": [
        (24, 16),
        MAPPED,
        (16,),
    ],  # the jnp form is differentiated, and one of its operands has integers
    "dense_gelu": [(*MAPPED, 16), (16, 24), (24,)],
}


def transformed(f, axes, floats) -> dict:
    """Functions of the same arrays."""

    def loss(*xs):
        return sum(jnp.sum(jnp.sin(y)) for y in tupled(f(*xs)))

    def scan_of_grad_of_remat(*xs):
        def step(count, _):
            return count + 1, jax.grad(jax.checkpoint(loss), floats)(*xs)

        return jax.lax.scan(step, 0, length=2)[1]

    def second_grad(*xs):
        return jax.grad(lambda *xs: sum(jnp.sum(jnp.cos(dx)) for dx in jax.grad(loss, floats)(*xs)), floats)(*xs)

    return {
        "value": f,
        "grad": jax.grad(loss, floats),
        "second grad": second_grad,
        "scan of grad": scan_of_grad_of_remat,
        "vmap": jax.vmap(f, axes),
        "vmap of grad": jax.vmap(jax.grad(loss, floats), axes),
        "grad of vmap": jax.grad(lambda *xs: jnp.sum(jax.vmap(loss, axes)(*xs)), floats),
    }


def result_specs(name: str, axes, floats, count: int) -> list[PartitionSpec]:
    """The sharding of `count` results: values like the rows, gradients like the arrays whose gradients they are."""
    if "grad" not in name:
        return [ROWS] * count
    own = [ROWS if axes[i] == 0 else P() for i in floats]
    if name == "vmap of grad":
        return [spec if spec == ROWS else P("a") for spec in own]
    return [P(None, *spec) for spec in own] if name.startswith("scan") else own


@functools.cache
def transformed_reference(name: str) -> tuple:
    """An op's operands, the mapped ones, those with gradients, and the results of its reference."""
    op = getattr(generated, name)
    made = values(op, TRANSFORMED[name])
    axes = tuple(0 if x.shape[:2] == MAPPED else None for x in made)
    floats = tuple(i for i, x in enumerate(made) if x.dtype == np.float32)
    run = jax.jit(lambda *xs: {k: g(*xs) for k, g in transformed(op.reference, axes, floats).items()})
    return made, axes, floats, run(*made)


def check_transformed(name: str, how: str, got, mesh: Mesh) -> None:
    _, axes, floats, reference = transformed_reference(name)
    specs = result_specs(how, axes, floats, len(tupled(got)))
    for g, e, spec in zip(tupled(got), tupled(reference[how]), specs, strict=True):
        np.testing.assert_allclose(g, e, rtol=2e-4, atol=2e-4, err_msg=how)
        wanted = NamedSharding(mesh, spec)
        assert g.sharding.is_equivalent_to(wanted, g.ndim), (how, g.sharding)
        assert jax.typeof(g).sharding.is_equivalent_to(NamedSharding(mesh.abstract_mesh, spec), g.ndim), how


@pytest.mark.parametrize(("name", "path"), some(itertools.product(TRANSFORMED, ["kernel", "jnp"]), 7))
def test_transformations_on_an_explicit_mesh(request, name, path):
    if path == "kernel":
        request.getfixturevalue("kernels")
    op, mesh = getattr(generated, name), make_mesh(EXPLICIT)
    made, axes, floats, _ = transformed_reference(name)
    args = [put(mesh, x, ROWS if axis == 0 else NONE) for x, axis in zip(made, axes, strict=True)]
    with jax.set_mesh(mesh):
        run = jax.jit(lambda *xs: {k: g(*xs) for k, g in transformed(op, axes, floats).items()})
        compiled = run.lower(*args).compile()
        assert set(collectives(compiled)) <= {"all-reduce"}
        for how, got in compiled(*args).items():
            check_transformed(name, how, got, mesh)


@pytest.mark.parametrize("path", some(["interpret", "jnp", "kernel"], 2))
def test_eager_transformations_on_an_explicit_mesh(request, path):
    if path == "kernel":
        request.getfixturevalue("kernels")
    mesh = make_mesh(EXPLICIT)
    made, axes, floats, _ = transformed_reference("rmsnorm")
    op = functools.partial(generated.rmsnorm, implementation="interpret" if path == "interpret" else None)
    args = [put(mesh, x, spec) for x, spec in zip(made, (ROWS, NONE), strict=True)]
    with jax.set_mesh(mesh):
        for how in ("value", "grad", "vmap", "vmap of grad"):
            check_transformed("rmsnorm", how, transformed(op, axes, floats)[how](*args), mesh)


@pytest.mark.parametrize("implementation", [None, "interpret"])
def test_arrays_of_no_mesh_on_an_explicit_mesh(implementation):
    """They are whole on every device."""
    mesh, (x, w) = make_mesh(EXPLICIT), transformed_reference("rmsnorm")[0]
    call = functools.partial(generated.rmsnorm, implementation=implementation)
    with jax.set_mesh(mesh):
        for got in (call(x, w), jax.jit(call)(x, w)):
            assert_close(got, transformed_reference("rmsnorm")[-1]["value"])
            assert got.sharding.is_equivalent_to(NamedSharding(mesh, NONE), 3)


def test_a_gradient_is_sharded_as_what_it_is_of(kernels):
    """Also if the op's own rules shard it in another way: rows are gathered along N."""
    mesh = make_mesh(EXPLICIT)
    made, _, floats, expected = transformed_reference("rmsnorm")
    specs = [P("a", None, "b"), P("b")]
    with jax.set_mesh(mesh):
        args = [put(mesh, x, spec) for x, spec in zip(made, specs, strict=True)]
        got = jax.jit(transformed(generated.rmsnorm, None, floats)["grad"])(*args)
        for dx, spec, e in zip(got, specs, expected["grad"], strict=True):
            assert dx.sharding.is_equivalent_to(NamedSharding(mesh, spec), dx.ndim)
            np.testing.assert_allclose(dx, e, rtol=2e-4, atol=2e-4)


def test_auto_axes_of_an_explicit_mesh():
    """If a caller makes mesh axes automatic, types still name the mesh: the mapped axis is sharded along it."""
    mesh = make_mesh(EXPLICIT)
    made, axes, floats, _ = transformed_reference("rmsnorm")
    with jax.set_mesh(mesh):
        call = jax.sharding.auto_axes(generated.rmsnorm, out_sharding=P("b"))
        args = [put(mesh, x, spec) for x, spec in zip(made, (ROWS, NONE), strict=True)]
        got = jax.jit(transformed(call, axes, floats)["vmap of grad"])(*args)
        check_transformed("rmsnorm", "vmap of grad", got, mesh)
