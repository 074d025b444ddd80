"""Gradients that are not requested are not computed: those of weights that are not trained, of inputs that a call
leaves out, of parameters that are constants."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import generated
from codegen.autodiff.backward import Derived
from codegen.language import sizes
from tests.making import make_op, spec_text
from tests.meshes import collectives, make_mesh, normal
from tests.turns import some

X, W, B = normal(6, 8), normal(8), normal(8, seed=1)
COS = normal(6, 4)


def program(f, *args, wanted) -> str:
    """The gradient of a sum over `f` with respect to the `wanted` arguments."""

    def loss(*xs):
        return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(*xs)))

    return str(jax.make_jaxpr(jax.grad(loss, argnums=wanted))(*args))


def launched(text: str) -> set[str]:
    """The ops of the program that are kernels on a GPU."""
    return set(re.findall(r"<codegen op (\w+)>>", text))


# The call, its arguments, those with a requested gradient, the op that computes it
CALLS = [
    ("all of them", generated.rmsnorm, (X, W), (0, 1), "rmsnorm_backward"),
    ("the weight alone", generated.rmsnorm, (X, W), (1,), "rmsnorm_backward"),
    ("the row alone", generated.rmsnorm, (X, W), (0,), "rmsnorm_frozen"),
    ("no weight", generated.rmsnorm, (X,), (0,), "rmsnorm_frozen"),
    ("one of two", generated.layernorm, (X, W, B), (0, 2), "layernorm_backward"),
    ("neither of two", generated.layernorm, (X, W, B), (0,), "layernorm_frozen"),
    ("a parameter", lambda x, s: generated.scaled_softmax(x, scale=s), (X, 0.5), (0, 1), "scaled_softmax_backward"),
    ("a constant", lambda x: generated.scaled_softmax(x, scale=0.5), (X,), (0,), "scaled_softmax_frozen"),
    ("an array that is one", generated.rotary, (normal(2, 6, 3, 8), COS, COS), (0,), "rotary_frozen"),
    ("a product's bias", generated.dense_gelu, (X, normal(8, 8), B), (0, 1), "dense_gelu_frozen"),
]


@pytest.mark.parametrize(("f", "args", "wanted", "op"), [c[1:] for c in CALLS], ids=[c[0] for c in CALLS])
def test_what_gives_a_gradient(f, args, wanted, op):
    found = {name for name in launched(program(f, *args, wanted=wanted)) if name.endswith(("_backward", "_frozen"))}
    assert found == {op}


def test_what_only_hands_on_its_cotangent_is_no_kernel():
    args = (X, normal(8, 8), B)
    assert "dense_backward" in launched(program(generated.dense, *args, wanted=(0, 1, 2)))
    assert not {"dense_backward", "dense_frozen"} & launched(program(generated.dense, *args, wanted=(0, 1)))
    (dx,) = jax.grad(lambda x: generated.dense(x, *args[1:], implementation="interpret").sum(), argnums=(0,))(X)
    np.testing.assert_allclose(dx, np.ones((6, 8)) @ args[1].T, rtol=2e-3)


def test_other_transformations_keep_what_is_frozen():
    def loss(w, x):
        return jnp.sum(jnp.sin(generated.rmsnorm(x, w)))

    def scanned(x):
        return jax.lax.scan(lambda y, _: (generated.rmsnorm(y, W), None), x, None, length=3)[0]

    stacked = np.stack([X, 2 * X])
    programs = {
        "jit": jax.make_jaxpr(jax.jit(jax.grad(loss, argnums=1)))(W, X),
        "vmap": jax.make_jaxpr(jax.vmap(jax.grad(loss, argnums=1), (None, 0)))(W, stacked),
        "remat": jax.make_jaxpr(jax.grad(jax.checkpoint(loss), argnums=1))(W, X),
        "scan": jax.make_jaxpr(jax.grad(lambda x: scanned(x).sum()))(X),
        "stop_gradient": jax.make_jaxpr(jax.grad(lambda x: loss(jax.lax.stop_gradient(W), x)))(X),
    }
    for how, text in programs.items():
        assert "rmsnorm_frozen" in str(text) and "rmsnorm_backward" not in str(text), how
    expected = jax.grad(lambda x: jnp.sum(generated.rmsnorm.reference(x, W)))(X)
    by_one_step = jax.grad(lambda x: jnp.sum(generated.rmsnorm(x, W, implementation="interpret")))(X)
    np.testing.assert_allclose(by_one_step, expected, rtol=1e-4, atol=1e-5)


def test_a_second_derivative_by_what_was_frozen_in_the_first():
    def slope(f):
        return lambda w: jnp.sum(jax.grad(lambda x: jnp.sum(jnp.sin(f(x, w))))(X) ** 2)

    got, expected = (jax.grad(slope(f))(W) for f in (generated.rmsnorm, generated.rmsnorm.reference))
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


def test_an_output_that_nothing_depends_on():
    """Its cotangent is known to be zero, whichever backward runs."""
    for wanted in ((0, 1), (0, 1, 2)):

        def loss(f):
            return lambda x, r, w: jnp.sum(jnp.sin(f(x, r, w)[0]))

        ops = generated.add_rmsnorm, generated.add_rmsnorm.reference
        got, expected = (jax.grad(loss(f), argnums=wanted)(X, 2 * X, W) for f in ops)
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("kernels")
def test_shards_of_rows_exchange_nothing_for_what_is_frozen():
    mesh = make_mesh()
    x = jax.device_put(normal(8, 8), NamedSharding(mesh, PartitionSpec("a")))
    w = jax.device_put(W, NamedSharding(mesh, PartitionSpec()))

    def loss(x, w):
        return jnp.sum(jnp.sin(generated.rmsnorm(x, w)))

    frozen, whole = (jax.jit(jax.grad(loss, argnums=n)).lower(x, w).compile() for n in (0, (0, 1)))
    assert collectives(frozen) == {}
    assert collectives(whole) == {"all-reduce": 1}


def test_rows_without_a_name(tmp_path):
    """If all axes are named, the first one is the rows."""
    text = spec_text(
        "x: float32[B, S, D]; t: float32[S, D]",
        "y: float32[B, S, D]",
        "y = x * tanh(t)",
        reference="y = x * jnp.tanh(t)",
    )
    op = make_op(tmp_path, text)
    assert isinstance(op.backward, Derived) and op.backward.shared == {"t"} and op.backward.frozen is not None
    x, t = normal(2, 3, 4), normal(3, 4)
    text = program(op, x, t, wanted=(0,))
    assert "made_frozen" in text and "made_backward" not in text
    got = jax.grad(lambda x: op(x, t, implementation="interpret").sum())(x)
    np.testing.assert_allclose(got, np.broadcast_to(np.tanh(t), x.shape), rtol=1e-6)


def test_a_parameter_beside_a_float64_array_that_is_frozen(tmp_path):
    """The remaining values are computed in float32, and so is the parameter."""
    text = spec_text(
        "x: float32[..., N]; w: float64[N]", "y: float32[..., N]", "y = x * s + CHAIN", reference="y = x * s + CHAIN",
        more="params:\n  s: {type: float, static: false, default: 1.0, doc: A factor.}\n",
    )  # fmt: skip
    for chain in ("tanh(w)", "w"):
        made = text.replace("CHAIN", chain, 1).replace("CHAIN", chain.replace("tanh", "jnp.tanh"))
        with jax.enable_x64(True):
            op, wide = make_op(tmp_path, made), W.astype(np.float64)
            for wanted in ((0,), (0, 1)):
                grads = jax.grad(lambda x, w: op(x, w, s=1 / 3, implementation="interpret").sum(), wanted)(X, wide)
                np.testing.assert_array_equal(grads[0], np.full_like(X, 1 / 3))


def test_stages_of_a_frozen_backward(tmp_path):
    """Ties for a column's maximum are counted first: stages, which one kernel computes where it has room."""
    text = spec_text(
        "x: float32[..., N]; w: float32[N]",
        "y: float32[N]; z: float32[..., N]",
        "y = max(x, axis=...); z = tanh(x) * w",
    )
    op = make_op(tmp_path, text)
    assert launched(program(op, X, W, wanted=(0,))) == {"made", "made_frozen_whole"}
    assert launched(program(op, X, W, wanted=(0, 1))) == {"made", "made_backward_whole"}


# JAX caches the trace of a call by the operands that were differentiated

PROGRAMS = {  # of a loss, and how often they add it up
    "checkpoint": (lambda loss: jax.checkpoint(loss), 1),
    "scan": (lambda loss: lambda *xs: jax.lax.scan(lambda total, _: (total + loss(*xs), None), 0.0, length=2)[0], 2),
    "vmap": (lambda loss: lambda *xs: jax.vmap(lambda s: loss(*(s * x for x in xs)))(jnp.ones(2)).sum(), 2),
}


def loss_of(call, names):
    return lambda *xs: jnp.sum(jnp.sin(call(**dict(zip(names, xs, strict=True)))))


@functools.cache
def operands(name: str) -> tuple[dict, tuple]:
    """An op's arrays and parameters by name, and the reference's gradients with respect to all of them."""
    op, keys = getattr(generated, name), iter(jax.random.split(jax.random.key(0), 4))
    shapes = {a.name: sizes.array_shape(a, {"...": 3, "N": 8, "K": 8}) for a in op.spec.inputs}
    values = {name: jax.random.normal(next(keys), shape) for name, shape in shapes.items()}
    values |= {p.name: jnp.float32(0.5) for p in op.spec.params if not p.static}
    gradients = jax.jit(jax.grad(loss_of(op.reference, values), tuple(range(len(values)))))
    return values, gradients(*values.values())


ORDERS = [
    (name, program) for name in ("rmsnorm", "column_scale", "scaled_softmax", "dense_relu") for program in PROGRAMS
]


@pytest.mark.parametrize(("name", "program"), some(ORDERS, 12))
def test_the_order_of_what_is_differentiated_does_not_matter(name, program):
    """With respect to all operands, then to those that rows do not share, then each again in a program that finds both
    traced."""
    op, (wrap, times), (values, wanted) = getattr(generated, name), PROGRAMS[program], operands(name)
    every = tuple(range(len(values)))
    own = tuple(i for i, name in enumerate(values) if name not in op.backward.shared)
    assert own and own != every
    loss = loss_of(op, values)
    op._functions.cache_clear()
    jax.clear_caches()
    jax.grad(loss, every)(*values.values())
    jax.grad(loss, own)(*values.values())
    for places in (every, own):
        for i, got in zip(places, jax.grad(wrap(loss), places)(*values.values()), strict=True):
            np.testing.assert_allclose(got, times * wanted[i], rtol=1e-4, atol=1e-5)


def test_the_order_does_not_matter_to_interpreted_kernels_either():
    loss = lambda x, w: jnp.sum(jnp.sin(generated.rmsnorm(x, w, implementation="interpret")))  # noqa: E731
    generated.rmsnorm._functions.cache_clear()
    jax.clear_caches()
    _, wanted = jax.grad(loss, (0, 1))(X, W)
    jax.grad(loss)(X, W)
    _, found = jax.grad(jax.checkpoint(loss), (0, 1))(X, W)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert bool((wanted != 0).all())


MEAN_OF_SUM = """
op: mean_of_sum
summary: The mean of a sum.
inputs: {x: "float32[..., N]", bias: "float32[N]"}
outputs: {y: "float32[...]"}
chain: y = mean(x + bias, axis=N)
reference: jnp.mean(x + bias, axis=-1)
"""


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_an_array_that_only_gives_a_size_may_have_leading_axes(tmp_path, implementation):
    """The bias's gradient is the cotangent's sum: `x` says how long it is, and its rows are no axis of that kernel."""
    op = make_op(tmp_path, MEAN_OF_SUM)

    def loss(x, bias):
        return jnp.sum(jnp.sin(op(x, bias, implementation=implementation)))

    x, bias = normal(2, 3, 30), normal(30, seed=1)
    dx, dbias = jax.grad(loss, argnums=(0, 1))(x, bias)
    slope = np.cos(np.mean(np.asarray(x, "float64") + np.asarray(bias, "float64"), axis=-1)) / 30
    np.testing.assert_allclose(dx, np.broadcast_to(slope[..., None], x.shape), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(dbias, np.full(30, slope.sum()), rtol=1e-5, atol=1e-7)
