"""A generated op as a JAX function: transformations, binding, errors, export. On the CPU, where the jnp form runs."""

import copy
import functools
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import generated
from codegen.runtime.ops.op import Op


def normal(i, shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(i).standard_normal(shape), dtype)


X, BIAS = normal(0, (3, 5, 8)), normal(1, (8,))


# Transformations


def test_jit_gives_what_an_eager_call_gives():
    assert jnp.array_equal(jax.jit(generated.bias_relu)(X, BIAS), generated.bias_relu(X, BIAS))


def test_gradients_are_those_of_the_reference():
    def loss(f):
        return lambda x, b: jnp.sum(jnp.sin(f(x, b)))

    ours = jax.grad(loss(generated.bias_gelu), (0, 1))(X, BIAS)
    theirs = jax.grad(loss(lambda x, b: jax.nn.gelu(x + b, approximate=False)), (0, 1))(X, BIAS)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_second_derivatives():
    f = jax.grad(lambda v: generated.gelu(v[None])[0])
    g = jax.grad(lambda v: jax.nn.gelu(v, approximate=False))
    np.testing.assert_allclose(jax.grad(f)(0.7), jax.grad(g)(0.7), rtol=1e-5)


def test_integer_and_bool_inputs_have_no_gradient():
    x, mask = normal(2, (4, 6)), normal(3, (4, 6)) > 0
    grad = jax.grad(lambda v: generated.relu_mask(v, mask).sum())(x)
    assert jnp.array_equal(grad, jnp.where(mask & (x > 0), 1.0, 0.0))
    _, pull = jax.vjp(lambda v, m: generated.relu_mask(v, m), x, mask)
    assert pull(jnp.ones((4, 6)))[1].dtype == jax.dtypes.float0


def test_the_gradient_of_a_dynamic_parameter():
    a, b = normal(4, (5,)), normal(5, (5,))
    grad = jax.grad(lambda alpha: generated.axpby(a, b, alpha=alpha, beta=2.0).sum())(1.5)
    np.testing.assert_allclose(grad, a.sum(), rtol=1e-5)


def test_a_static_parameter_is_refused_under_a_trace():
    a, b = normal(4, (5,)), normal(5, (5,))
    with pytest.raises(TypeError, match=r"saxpy: 'alpha' is a static float, compiled into the kernel"):
        jax.jit(lambda alpha: generated.saxpy(a, b, alpha=alpha))(1.0)


@pytest.mark.parametrize(
    ("in_axes", "shapes"),
    [
        ((0, None), ((4, 3, 8), (8,))),  # joins the rows
        ((1, None), ((3, 4, 8), (8,))),
        ((None, 0), ((3, 8), (4, 8))),  # a mapped column operand
        ((0, 0), ((4, 3, 8), (4, 8))),
        ((2, 1), ((3, 8, 4), (8, 4))),
    ],
    ids=str,
)
def test_vmap(in_axes, shapes):
    x, b = normal(6, shapes[0]), normal(7, shapes[1])
    ours = jax.vmap(generated.bias_relu, in_axes)(x, b)
    theirs = jax.vmap(lambda x, b: jax.nn.relu(x + b), in_axes)(x, b)
    assert jnp.array_equal(ours, theirs)


def test_nested_vmap_and_its_mixtures_with_grad():
    x, b = normal(8, (2, 4, 3, 8)), normal(9, (2, 8))
    ours = jax.vmap(jax.vmap(generated.bias_relu, (0, None)))(x, b)
    assert jnp.array_equal(ours, jax.nn.relu(x + b[:, None, None]))

    def loss(x, b):
        return jnp.sum(generated.bias_silu(x, b) ** 2)

    def plain(x, b):
        return jnp.sum(jax.nn.silu(x + b) ** 2)

    for make in (
        lambda f: jax.vmap(jax.grad(f, (0, 1)), (0, None)),
        lambda f: jax.grad(lambda x, b: jax.vmap(f, (0, None))(x, b).sum(), (0, 1)),
    ):
        for ours, theirs in zip(make(loss)(x[0], b[0]), make(plain)(x[0], b[0]), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_vmap_over_row_operands_that_are_not_mapped():
    x, scale = normal(10, (4, 3, 8)), normal(11, (3,))
    ours = jax.vmap(generated.row_scale, (0, None))(x, scale)
    np.testing.assert_allclose(ours, x * scale[None, :, None], rtol=1e-6)


def test_remat_scan_and_donation():
    def step(carry, _):
        return jax.checkpoint(generated.bias_relu)(carry, BIAS), None

    out = jax.jit(lambda x: jax.lax.scan(step, x, None, length=3)[0], donate_argnums=0)(X + 0)
    expected = functools.reduce(lambda x, _: jax.nn.relu(x + BIAS), range(3), X)
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_strict_promotion(strict_jax):
    x = X.astype(jnp.bfloat16)
    assert generated.row_scale(x[0], jnp.ones(5)).dtype == jnp.bfloat16
    assert generated.silu_mul_fp8(x, 0.5).dtype == jnp.float8_e4m3fn
    jax.grad(lambda v: generated.bias_gelu(v, BIAS.astype(v.dtype)).sum().astype(jnp.float32))(x)


# Results, defaults, parameters, types


def test_several_outputs_come_named():
    p, q = jax.nn.softmax(normal(12, (4, 6))), jax.nn.softmax(normal(13, (4, 6)))
    out = generated.total_variation_grad(p, q)
    assert out._fields == ("loss", "dp")
    np.testing.assert_allclose(out.loss, 0.5 * jnp.abs(p - q), rtol=1e-6)


def test_inputs_left_out_or_none_take_their_default():
    x, shift = normal(14, (4, 6)), normal(15, (6,))
    np.testing.assert_allclose(generated.scale_shift(x), x)
    np.testing.assert_allclose(generated.scale_shift(x, None, shift), x + shift)
    np.testing.assert_allclose(generated.scale_shift(x, shift=shift), x + shift)
    grads = jax.grad(lambda x, s: generated.scale_shift(x, shift=s).sum(), (0, 1))(x, shift)
    assert jnp.array_equal(grads[1], jnp.full(6, 4.0))


def test_inputs_go_by_name_too():
    assert jnp.array_equal(generated.bias_relu(bias=BIAS, x=X), generated.bias_relu(X, BIAS))


def test_an_output_type_that_no_input_binds_is_a_keyword():
    x = normal(16, (4, 8)) * 100
    assert generated.quantize_fp8(x, 1.0).dtype == jnp.float8_e4m3fn
    assert generated.quantize_fp8(x, 1.0, Q="float8_e5m2").dtype == jnp.float8_e5m2
    assert generated.quantize_fp8(x, 1.0, Q=jnp.float8_e5m2).dtype == jnp.float8_e5m2


def test_float8_saturates_and_keeps_nan():
    out = generated.quantize_fp8(jnp.array([1e6, -1e6, jnp.inf, jnp.nan, 449.0]), 1.0).astype(jnp.float32)
    np.testing.assert_array_equal(out, [448.0, -448.0, 448.0, np.nan, 448.0])


def test_integers_round_as_told_and_saturate():
    x = jnp.array([[0.5, 1.5, -2.5, 1e9, -1e9, jnp.nan, 126.7]])
    out = generated.quantize_int8(x, jnp.ones(1))
    np.testing.assert_array_equal(out, [[0, 2, -2, 127, -128, 0, 127]])


def test_relu_follows_jax_at_special_values():
    x = jnp.array([jnp.nan, -0.0, 0.0, jnp.inf, -jnp.inf])
    np.testing.assert_array_equal(generated.relu(x), jax.nn.relu(x))
    assert jnp.array_equal(jax.grad(lambda v: generated.relu(v).sum())(jnp.zeros(3)), jnp.zeros(3))


@pytest.mark.parametrize("shape", [(0,), (0, 8), (3, 0), (2, 0, 5)], ids=str)
def test_empty_arrays(shape):
    assert generated.bias_relu(jnp.zeros(shape), jnp.zeros(shape[-1])).shape == shape
    assert jax.grad(lambda x: generated.silu(x).sum())(jnp.zeros(shape)).shape == shape


def test_float64_is_computed_in_float64():
    with jax.enable_x64(True):
        x = jnp.linspace(0.1, 1, 7, dtype=jnp.float64)
        got, exact = generated.float64_polynomial(x), generated.float64_polynomial.reference(x)
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, exact, rtol=1e-14)


def test_reference_stores_as_the_op_does():
    x = X.astype(jnp.bfloat16)
    assert generated.bias_relu.reference(x, BIAS.astype(jnp.bfloat16)).dtype == jnp.bfloat16


# Errors at a call


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: generated.bias_relu(X), TypeError, "bias_relu needs 'bias': T[N]"),
        (
            lambda: generated.bias_relu(X, BIAS, BIAS),
            TypeError,
            "bias_relu takes 2 arrays by position (x, bias), not 3",
        ),
        (lambda: generated.bias_relu(X, bais=BIAS), TypeError, "Did you mean 'bias'?"),
        (lambda: generated.bias_relu(X, BIAS, x=X), TypeError, "bias_relu got 'x' twice, by position and by name"),
        (
            lambda: generated.bias_relu(X, BIAS[:3]),
            ValueError,
            "bias_relu: 'bias' has shape (3,) for T[N]: N is 3 here but 8 by 'x'",
        ),
        (
            lambda: generated.bias_relu(X, BIAS.astype(jnp.int32)),
            TypeError,
            "bias_relu: 'bias' is T[N] with dtype float32, float16 or bfloat16, not int32",
        ),
        (
            lambda: generated.bias_relu(X, BIAS.astype(jnp.bfloat16)),
            TypeError,
            "bias_relu: 'bias' is T[N] with dtype bfloat16, but T is float32 by 'x'",
        ),
        (
            lambda: generated.bias_relu(X, jnp.ones((1, 8))),
            ValueError,
            "bias_relu: 'bias' has shape (1, 8), but T[N] has 1 axis",
        ),
        (lambda: generated.bias_relu(1.0, BIAS), TypeError, "bias_relu: 'x' must be an array, T[..., N], not float"),
        (lambda: generated.swiglu(jnp.ones((2, 7))), ValueError, "T[..., (2 N)] divides 7 by 2"),
        (
            lambda: generated.row_scale(X, jnp.ones(3)),
            ValueError,
            "its leading axes are (3,) but those of 'x' are (3, 5)",
        ),
        (lambda: generated.bias_relu(X, BIAS, implementation="gpu"), ValueError, "implementation is 'cute', 'xla'"),
        (
            lambda: generated.bias_relu(X, BIAS, implementation="cute"),
            ValueError,
            "bias_relu: implementation='cute' needs",
        ),
        (lambda: generated.saxpy(BIAS, BIAS, alpha="a"), TypeError, "'alpha' is a static float"),
        (lambda: generated.axpby(BIAS, BIAS, alpha=BIAS, beta=1.0), ValueError, "'alpha' must be a scalar float"),
        (
            lambda: generated.quantize_fp8(X, 1.0, Q="float32"),
            TypeError,
            "Q is float8_e4m3fn or float8_e5m2, not float32",
        ),
    ],
)
def test_bad_calls_say_what_is_wrong(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


# Attributes of an op


def test_an_op_shows_its_spec_and_docstring():
    op = generated.bias_relu
    assert isinstance(op, Op)
    assert op.spec.op == "bias_relu"
    assert op.__doc__.startswith("Add a per-column bias, then ReLU")
    assert "x: T[..., N]." in op.__doc__
    assert "T is float32, float16 or bfloat16." in op.__doc__
    assert op.__annotations__["x"] is jax.Array


def test_an_op_is_one_whatever_copies_it():
    """A layer that holds an op may be copied, or sent to another process."""
    held = {"norm": generated.rmsnorm}
    assert copy.deepcopy(held)["norm"] is generated.rmsnorm
    assert pickle.loads(pickle.dumps(held))["norm"] is generated.rmsnorm


def test_a_guard_of_transfers_is_for_what_callers_pass():
    """A parameter's default is no array of the caller's."""
    with jax.transfer_guard("disallow"):
        doubled = generated.axpby(X, X)
    assert jnp.array_equal(doubled, 2 * X)


def test_a_package_attribute_is_the_function_also_after_its_module_was_imported():
    import generated.bias_relu
    from generated.bias_relu import bias_relu

    assert generated.bias_relu is bias_relu
    assert "bias_relu" in dir(generated)
    with pytest.raises(AttributeError, match="no op 'nothing'"):
        generated.nothing  # noqa: B018


# Export, and the cost of compiling


@pytest.fixture
def for_sm_90a(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")


def exported(function, *shapes, platforms=("cuda",)):
    import cutlass.jax

    checks = cutlass.jax.get_export_disabled_safety_checks()
    return export.export(jax.jit(function), platforms=platforms, disabled_checks=checks)(*shapes)


def array(shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_export_holds_the_kernel_for_cuda_and_jnp_for_the_cpu(for_sm_90a):
    both = exported(generated.bias_relu, array((16, 64)), array((64,)), platforms=("cuda", "cpu"))
    assert "CuteDSL" in both.mlir_module()
    again = export.deserialize(both.serialize())
    x, b = normal(17, (16, 64), jnp.bfloat16), normal(18, (64,), jnp.bfloat16)
    assert jnp.array_equal(again.call(x, b), generated.bias_relu(x, b))
    assert (
        "CuteDSL" not in exported(generated.bias_relu, array((16, 64)), array((64,)), platforms=("cpu",)).mlir_module()
    )


def test_export_with_symbolic_rows_and_columns(for_sm_90a):
    rows, n, even = export.symbolic_shape("rows, n, 8*m")
    for columns in (64, n, even):
        held = exported(generated.bias_relu, array((rows, columns)), array((columns,)))
        assert "CuteDSL" in held.mlir_module()


def test_explicit_cute_holds_in_vmap_and_grad(for_sm_90a):
    def loss(x, b):
        return jax.vmap(lambda v: generated.bias_relu(v, b, implementation="cute"))(x).astype(jnp.float32).sum()

    assert "CuteDSL" in exported(jax.value_and_grad(loss), array((4, 16, 64)), array((64,))).mlir_module()


def test_no_kernel_is_one_with_the_write_of_its_result_into_what_a_loop_stacks(for_sm_90a):
    """XLA would take them as one, and run the kernel a second time for the other users of the result."""

    def loss(x, b):
        return jax.lax.scan(lambda x, b: (x + generated.bias_relu(x, b), None), x, b)[0].astype(jnp.float32).sum()

    text = exported(jax.grad(loss, (0, 1)), array((16, 64)), array((3, 64))).mlir_module()
    calls = re.findall(r"(%\w+)(?::\d+)? = stablehlo.custom_call @CuteDSL", text)
    barriers = re.findall(r"stablehlo.optimization_barrier (.*?) :", text)
    assert len(calls) >= 2 and len(calls) == len(barriers)


def compiled_kernels(monkeypatch):
    """Counts what CuTe DSL compiles from now on."""
    import cutlass.jax.compile as compiling

    counted = []
    original = compiling.cutlass.cute.compile
    monkeypatch.setattr(compiling.cutlass.cute, "compile", lambda *a, **k: counted.append(1) or original(*a, **k))
    return counted


def test_static_parameters_recompile_and_dynamic_ones_do_not(for_sm_90a, cold_cache, monkeypatch):
    counted = compiled_kernels(monkeypatch)
    shape = array((16, 64))
    for alpha in (1.0, 2.0, 3.0):
        exported(lambda x, y, a=alpha: generated.axpby(x, y, alpha=a, beta=a, implementation="cute"), shape, shape)
    assert len(counted) == 1
    for alpha in (1.25, 2.25, 1.25):
        exported(lambda x, y, a=alpha: generated.saxpy(x, y, alpha=a, implementation="cute"), shape, shape)
    assert len(counted) == 1 + 2


@pytest.mark.parametrize("implementation", [None, "interpret"])
def test_a_negative_zero_is_a_parameter_of_its_own(implementation):
    """It equals zero, but gets its own kernel, in either order."""
    x = jnp.asarray([-1.0, -2.0])
    for slopes in ((0.0, -0.0), (-0.0, 0.0)):
        generated.leaky_relu._functions.cache_clear()
        got = [generated.leaky_relu(x, negative_slope=s, implementation=implementation) for s in slopes]
        assert [np.signbit(y).tolist() for y in got] == [[np.copysign(1, s) > 0] * 2 for s in slopes]
