"""Fused functions give what the functions give, under JAX's transformations, and say what they replaced."""

import functools
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import codegen
from codegen.fusing import fuse as fusing
from codegen.fusing.chains.expressing import Expressing
from codegen.fusing.chains.search import chains
from codegen.fusing.cost import cost
from codegen.fusing.graph import StepGraph
from codegen.fusing.prepared import spread
from codegen.tracing.patterns import patterns
from codegen.tracing.steps import traced
from tests.meshes import AUTO, EXPLICIT, P, make_mesh, normal

SHAPES = (2, 6, 16), (2, 6, 16), (16,), (16, 24)
X, RESIDUAL, W, UP = (jnp.asarray(normal(*shape, seed=i)) for i, shape in enumerate(SHAPES))


def norm(x, w):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * w


def layer(x, residual, w, up):
    residual = residual + x
    return jnp.square(jax.nn.relu(norm(residual, w) @ up)), residual


def total(function):
    return lambda *args: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(function(*args)))


def close(a, b):
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def looped(function):
    return lambda x, r, w, up: jax.lax.scan(
        lambda c, r: (c + jnp.mean(function(c, r, w, up)[0]), None), x, jnp.stack([r, r])
    )[0]


FORMS = {
    "jit": jax.jit,
    "grad": lambda f: jax.grad(total(f), argnums=(0, 1, 2, 3)),
    "vmap": lambda f: jax.vmap(f, in_axes=(0, 0, None, None)),
    "remat": lambda f: jax.grad(total(jax.checkpoint(f))),
    "scan": looped,
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_fused_function_is_the_function(form):
    fused = codegen.fuse(layer)
    transformed = FORMS[form]
    close(jax.jit(transformed(fused))(X, RESIDUAL, W, UP), jax.jit(transformed(layer))(X, RESIDUAL, W, UP))
    assert [r.chain for r in fused.report if "squared_relu" in r.chain]
    assert [r.chain for r in fused.report if "rsqrt(mean(square(y), axis=N)" in r.chain]


def test_what_is_differentiated_already_is_fused():
    gradients = jax.grad(total(layer), argnums=(0, 1, 2, 3))
    fused = codegen.fuse(gradients)
    close(jax.jit(fused)(X, RESIDUAL, W, UP), jax.jit(gradients)(X, RESIDUAL, W, UP))
    assert fused.report


def test_a_function_without_chains_is_called_as_it_is():
    fused = codegen.fuse(lambda x, factor: x * factor + 1)
    assert "custom_vjp" not in str(jax.make_jaxpr(functools.partial(fused, factor=2.0))(X))
    assert fused.report == ()


def test_a_derivative_of_the_users_own_stays():
    @jax.custom_vjp
    def straight(x):
        return jnp.round(x)

    straight.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))

    def function(x, w):
        rounded = straight(norm(x, w))
        return norm(rounded, w), rounded

    fused = codegen.fuse(function)
    close(jax.grad(total(fused))(X, W), jax.grad(total(function))(X, W))
    assert [r.times for r in fused.report] == [1]  # XLA computes the first norm where it rounds it


def test_a_function_may_take_keys_of_random_numbers():
    def function(x, w, key):
        first, second = jax.random.split(key)
        dropped = jnp.where(jax.random.bernoulli(first, 0.5, x.shape), 2 * x, 0)
        return norm(x, w), dropped + jax.random.normal(second, x.shape)  # XLA computes these within one kernel

    fused = codegen.fuse(function)
    close(jax.jit(fused)(X, W, jax.random.key(3)), jax.jit(function)(X, W, jax.random.key(3)))
    assert len(fused.report) == 1


def test_a_function_may_have_complex_numbers():
    def function(x, w):
        return norm((x * (0.3 + 1j) / 2j).real, w), norm(x + w, w)

    fused = codegen.fuse(function)
    close(jax.jit(fused)(X, W), jax.jit(function)(X, W))
    assert len(fused.report) >= 1


def test_a_mutable_array_is_read_and_written_in_order():
    def function(x, w):
        held = jax.new_ref(jnp.zeros_like(x))
        held[...] = norm(x, w)
        y = jax.nn.softmax(held[...], -1)
        held[...] += norm(y, w)
        return held[...]

    fused = codegen.fuse(function)
    close(jax.jit(fused)(X, W), jax.jit(function)(X, W))
    assert len(fused.report) >= 2


def test_a_method_may_be_fused():
    class Norm:
        weight = W

        @codegen.fuse
        def __call__(self, x):
            return norm(x, self.weight)

    close(Norm()(X), norm(X, W))
    assert len(Norm.__call__.report) == 1


def test_narrow_integers_wrap():
    a, b = (jax.random.bits(jax.random.key(i), (4, 16), jnp.uint8) for i in range(2))

    def function(a, b):
        return a - jnp.min(b, -1, keepdims=True) * 3, norm(a.astype(jnp.float32), 1)

    fused = codegen.fuse(function)
    close(jax.jit(fused)(a, b), jax.jit(function)(a, b))
    assert [r.chain for r in fused.report if "rsqrt" in r.chain]


def test_indices_are_those_of_jax():
    """Negative ones count from the end, and outside is what the caller says. An op's indices count from the start."""
    table, rows, label = X[0], jnp.asarray([-1, 6, 2, -7]), jnp.asarray([-1, 3, -16, 20])

    def function(table, rows, label):
        given = table.at[rows].get(mode="fill", fill_value=0.5)
        last = jnp.take_along_axis(given, label[:, None], -1, mode="clip")
        first = jnp.take_along_axis(given, jnp.argmax(given, -1, keepdims=True), -1)
        return jax.nn.softmax(given + last + first, -1)

    fused = codegen.fuse(function)
    close(jax.jit(fused)(table, rows, label), jax.jit(function)(table, rows, label))
    (one,) = fused.report
    assert "take(" in one.chain and "clip(" in one.chain and "argmax(" in one.chain


def test_several_elements_of_a_row_are_taken_before_a_chain():
    """The index has the axis along which it takes, as has the array with which the result is combined."""
    fused = codegen.fuse(lambda x, i: jax.nn.softmax(x + jnp.take_along_axis(x, i, -1), -1))
    table, index = X[0, :4], jnp.argsort(X[1, :4], -1)
    close(fused(table, index), jax.nn.softmax(table + jnp.take_along_axis(table, index, -1), -1))
    assert [r.chain for r in fused.report] == ["y = softmax(x0 + x1, axis=N)"]


def test_a_value_that_float16_does_not_hold_is_infinite():
    """As where gradients are scaled: a step is left out unless they are finite."""
    a, b = (jnp.asarray(normal(4, 16, seed=i) * 300, jnp.float16) for i in range(2))

    def function(a, b):
        product = a * b
        return jnp.all(jnp.isfinite(product), -1), jax.nn.softmax(product / 300, -1)

    fused = codegen.fuse(function)
    assert not np.all(function(a, b)[0])
    np.testing.assert_array_equal(jax.jit(fused)(a, b)[0], function(a, b)[0])
    assert [r.chain for r in fused.report if "isfinite(cast(" in r.chain]


def test_a_function_of_empty_rows_is_called_as_it_is():
    fused, scale = codegen.fuse(lambda x, scale: jax.nn.softmax(x * scale, -1)), jnp.ones((4, 1))
    assert fused(jnp.zeros((4, 0)), scale).shape == (4, 0) and fused.report == ()


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
def test_a_function_may_be_fused_under_a_mesh_first(kind):
    """There, JAX inserts reshards in its own functions too. Functions of the language are recognised all the same."""

    def function(x, w):
        return jax.nn.elu(norm(x, w)) * jax.nn.gelu(x)

    patterns.cache_clear()
    fused = codegen.fuse(function)
    with jax.set_mesh(make_mesh(kind)):
        close(jax.jit(fused)(X, W), jax.jit(function)(X, W))
    (found,) = fused.report
    assert "elu(x0 * rsqrt(" in found.chain and "gelu_tanh(x0)" in found.chain


@pytest.mark.parametrize("change", [jax.sharding.reshard, jax.lax.with_sharding_constraint])
def test_a_change_of_sharding_stays_between_two_chains(change):
    mesh = make_mesh(EXPLICIT if change is jax.sharding.reshard else AUTO)

    def function(x, w):
        return norm(change(norm(x, w), NamedSharding(mesh, P("b"))), w)

    fused = codegen.fuse(function)
    with jax.set_mesh(mesh):
        got = jax.jit(fused)(X, W)
        close(got, jax.jit(function)(X, W))
        assert re.search(f"= {change.__name__.removeprefix('with_')}", str(jax.make_jaxpr(fused)(X, W)))
    assert got.sharding.spec[0] == "b" and sum(r.times for r in fused.report) == 2


def test_a_function_may_be_fused_while_jax_looks_for_nans():
    """Functions of JAX have NaN as a constant."""
    patterns.cache_clear()
    fused = codegen.fuse(norm)
    with jax.debug_nans(True):
        close(jax.jit(fused)(X, W), jax.jit(norm)(X, W))
    assert fused.report


def test_only_arrays_are_traced():
    def function(x, w, how, *, scale):
        return {"y": norm(x, w) * scale if how == "scaled" else x}

    fused = codegen.fuse(function)
    close(fused(X, W, "scaled", scale=2.0), function(X, W, "scaled", scale=2.0))


def test_the_model_of_xla_counts_kernels_and_bytes():
    """A norm is two kernels: one reads x and writes a number a row, the other reads both and writes y."""
    flat = spread(traced(norm, X, W))
    graph = StepGraph(flat)
    (whole,) = chains(graph, Expressing())
    array, row = X.size * 4, X.size // 16 * 4
    assert (whole.cost.kernels, whole.cost.now, whole.cost.fused) == (
        2,
        array + row + row + 2 * array + 64,
        2 * array + 64,
    )
    assert cost(graph, [whole.places[0]]).saved == 0


def test_a_chain_is_no_part_of_a_cycle():
    """A sort stands between two parts of what would be one kernel."""

    def function(x, other):
        a = x * other
        return jax.nn.softmax(a + jnp.sort(a, -1), -1)

    fused = codegen.fuse(function)
    close(jax.jit(fused)(X, RESIDUAL), jax.jit(function)(X, RESIDUAL))
    assert [r.chain for r in fused.report] == ["y = softmax(x0 + x1, axis=N)"]


def test_other_scatters_stay():
    """Rows that are added to a table, a whole array, and two elements of a row."""
    rows, two = jnp.asarray([3, 1, 3]), jnp.zeros((2, 6, 2), jnp.int32)

    def function(x, w):
        y = norm(x, w)
        table = jnp.zeros((5, 16)).at[rows].add(y[0, :3]).at[...].add(1.0)
        return norm(table, w), norm(jax.grad(lambda y: jnp.sum(jnp.take_along_axis(y, two, -1)))(y) + y, w)

    fused = codegen.fuse(function)
    close(jax.jit(fused)(X, W), jax.jit(function)(X, W))
    assert not [r.chain for r in fused.report if "index(" in r.chain]


def test_a_product_whose_result_a_backward_takes_too_has_its_epilogue():
    """JAX's derivative of a squared ReLU takes the product's result, and so does the forward."""
    gradients = jax.grad(lambda x, up, down: jnp.sum(jnp.sin(jnp.square(jax.nn.relu(x @ up)) @ down)), argnums=(0, 1))
    fused = codegen.fuse(gradients)
    close(jax.jit(fused)(X, UP, UP.T), jax.jit(gradients)(X, UP, UP.T))
    assert "y = x0 @ x1; y2 = squared_relu(y)" in [r.chain for r in fused.report]


def mlp(x, up, down):
    return jnp.square(jax.nn.relu(x @ up)) @ down


def gated(x, up, down):
    gate, value = jnp.split(x @ up, 2, axis=-1)
    return jax.nn.silu(gate) * value @ down[: len(down) // 2] + 1


@pytest.mark.parametrize(("function", "products"), [(mlp, [2]), (gated, [1, 2])])
def test_the_layers_of_an_mlp_are_one_chain_where_kernels_compute_its_gradient(function, products):
    """That computes what is between the products in the epilogue of one. Without a kernel it would compute the first product again."""
    fused = codegen.fuse(function)
    close(jax.jit(fused)(X, UP, UP.T), jax.jit(function)(X, UP, UP.T))
    gradients = functools.partial(jax.grad, argnums=(0, 1, 2))
    close(jax.jit(gradients(total(fused)))(X, UP, UP.T), jax.jit(gradients(total(function)))(X, UP, UP.T))
    assert sorted(r.chain.count("@") for r in fused.report) == products


def test_few_rows_of_an_mlp_are_one_chain():
    """The result is small next to the weights, as a sum over rows is."""
    fused = codegen.fuse(mlp)
    jax.eval_shape(fused, X[0, :2], UP, UP.T)
    assert [r.chain.count("@") for r in fused.report] == [2]


def test_a_product_of_the_highest_precision_stays():
    """An op rounds float32 factors to TF32."""

    def function(precision):
        fused = codegen.fuse(lambda x, up: jax.nn.relu(jnp.dot(x, up, precision=precision)))
        jax.eval_shape(fused, X, UP)
        return fused.report

    assert [len(function(p)) for p in (None, "tensorfloat32", "highest", "F32_F32_F32")] == [1, 1, 0, 0]


def test_the_bytes_between_two_products_are_counted():
    fused = codegen.fuse(mlp)
    jax.eval_shape(fused, X, UP, UP.T)
    assert [r.fused for r in fused.report] == [2 * X.nbytes + 2 * UP.nbytes + 2 * 4 * 12 * 24]


@pytest.mark.parametrize("taken", ["twice", "elsewhere"])
def test_a_result_that_others_take_stays_between_two_chains(taken):
    def function(x, up, down):
        u = jnp.square(jax.nn.relu(x @ up))
        return (u @ down, u @ -down) if taken == "twice" else (u @ down, u)

    fused = codegen.fuse(function)
    close(jax.jit(fused)(X, UP, UP.T), jax.jit(function)(X, UP, UP.T))
    assert all(r.chain.count("@") == 1 for r in fused.report)


def test_log_probabilities_of_labels_are_one_chain():
    """The logarithm of a row's sum belongs to the row, though each element uses it, and the logits in float32 are not written."""

    def function(logits, label):
        valid = label != -100
        log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
        picked = jnp.take_along_axis(log_p, jnp.where(valid, label, 0)[..., None], axis=-1)[..., 0]
        return jnp.sum(picked * valid, axis=-1)

    fused = codegen.fuse(function)
    logits, label = X.astype(jnp.bfloat16), jnp.asarray([[3, -100, 0, 15, 7, 1]] * 2, jnp.int32)
    close(jax.jit(fused)(logits, label), jax.jit(function)(logits, label))
    (chain,) = fused.report
    assert "log_softmax(x1, axis=N)" in chain.chain and chain.fused < logits.nbytes + 4 * label.nbytes


def test_a_function_with_a_derivative_of_its_own_takes_what_was_computed_before():
    """Both take -x, which is computed once."""

    def norm(x):
        y = jnp.tanh(-x) + jax.nn.softplus(-x) * -x
        return y * jax.lax.rsqrt(jnp.mean(jnp.square(y), -1, keepdims=True) + 1e-6)

    x = jnp.linspace(-2, 2, 64 * 128).reshape(64, 128)
    fused = codegen.fuse(norm)
    np.testing.assert_allclose(fused(x), norm(x), rtol=1e-5, atol=1e-6)
    assert len(fused.report) == 1


def test_what_xla_computes_where_it_is_used_is_no_saving():
    """The norm is written for the op alone: the sort is the caller's, the cosine is within the kernel of its sum."""

    def function(x, w):
        return jnp.sum(jnp.cos(jnp.repeat(norm(x, w), 2, axis=1)), axis=-1)

    fused = codegen.fuse(function)
    close(jax.jit(fused)(X, W), jax.jit(function)(X, W))
    assert fused.report == ()


def test_arrays_of_one_number_are_no_results():
    """JAX's derivative of a sum is an array of ones, which each kernel that uses it makes."""
    arrays = [a.astype(jnp.bfloat16) for a in (X, UP, UP[0], UP[1], UP[2] * jnp.ones((2, 6, 1)))]
    gradients = jax.value_and_grad(
        lambda x, up, bias, scale, r: jnp.sum((r + scale * (x @ up + bias)).astype(jnp.float32)),
        argnums=(0, 1, 2, 3, 4),
    )
    fused = codegen.fuse(gradients)
    jax.make_jaxpr(fused)(*arrays)
    assert [r.chain for r in fused.report if "= 1.0" in r.chain] == []


def test_a_group_norm_of_channels_last_is_one_chain():
    """Its weights and its activation come after the reshape that joins the channels, and its result is joined last."""

    def function(x, weight, bias, residual):
        groups = x.reshape(*x.shape[:-1], 4, 4)
        mean, var = (f(groups, axis=(1, 3), keepdims=True) for f in (jnp.mean, jnp.var))
        normed = ((groups - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(x.shape)
        return jax.nn.silu(normed * weight + bias) + residual

    fused = codegen.fuse(function)
    close(jax.jit(fused)(X, W, UP[:, 0], RESIDUAL), jax.jit(function)(X, W, UP[:, 0], RESIDUAL))
    gradients = jax.jit(jax.grad(total(fused), argnums=(0, 1, 2)))(X, W, UP[:, 0], RESIDUAL)
    close(gradients, jax.jit(jax.grad(total(function), argnums=(0, 1, 2)))(X, W, UP[:, 0], RESIDUAL))
    (chain,) = (r.chain for r in fused.report)
    assert "silu(" in chain and "var(x0, axis=(S, N))" in chain


def test_a_norm_that_no_block_holds_is_an_op_where_it_is_differentiated(monkeypatch):
    """Two kernels read the array: in the forward alone, XLA's take as long."""

    def function(x, weight):
        groups = x.reshape(*x.shape[:3], 4, -1)
        mean, var = (f(groups, axis=(1, 2, 4), keepdims=True) for f in (jnp.mean, jnp.var))
        return jax.nn.silu(((groups - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(x.shape) * weight)

    called = []

    def counted(chain):
        return lambda *arrays: called.append(chain) or op_of_chain(chain)(*arrays)

    op_of_chain = fusing.call_of
    monkeypatch.setattr(fusing, "call_of", counted)
    x, weight = jnp.asarray(normal(2, 128, 128, 64)), jnp.linspace(0.5, 2, 64)
    fused = codegen.fuse(function)
    jax.make_jaxpr(fused)(x, weight)
    assert "var(x0, axis=(B, S, N))" in fused.report[0].chain and not called
    close(*(jax.jit(lambda x, weight, f=f: jax.vjp(f, x, weight)[1](x))(x, weight) for f in (fused, function)))
    assert len(called) == 1


def test_a_norm_along_a_middle_axis_is_a_chain():
    def function(x):
        return (x - jnp.mean(x, axis=1, keepdims=True)) * jax.lax.rsqrt(jnp.var(x, axis=1, keepdims=True) + 1e-5)

    fused = codegen.fuse(function)
    close(jax.jit(fused)(X), jax.jit(function)(X))
    assert len(fused.report) == 1


def test_arrays_of_symbolic_sizes_are_left_as_they_are():
    (rows,) = jax.export.symbolic_shape("b")
    fused = codegen.fuse(norm)
    whole = jax.export.export(jax.jit(fused))(jax.ShapeDtypeStruct((rows, 6, 16), X.dtype), W)
    close(whole.call(X, W), norm(X, W))
    assert fused.report == ()


def test_numbers_of_a_function_pass_a_guard_of_transfers_and_checks_of_nan():
    """A variance divides by a count that is computed when it is traced, and is NaN where that is 0."""

    def scaled(x, w):
        return norm(x, w) * jnp.var(w), 0.5

    with jax.transfer_guard("disallow"):
        jax.eval_shape(codegen.fuse(scaled), X, W)
    fused = codegen.fuse(jax.jit(scaled))
    with jax.debug_nans(True):
        y, half = fused(X, W)
    np.testing.assert_allclose(y, norm(X, W) * np.var(W), rtol=1e-5)
    assert len(fused.report) == 1 and isinstance(half, jax.Array)
