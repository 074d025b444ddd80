"""Functions for which PTX gives only an error bound: ours are within the bounds, and outputs of two machines are
compared with them."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from ptx_running import apply

import generated
from codegen.interpret import approximations
from codegen.interpret.approximations import BOUNDS, Noise, allowed, compare, distance, unit
from codegen.runtime.compiled import interpreted

EXACT = {
    "rcp": lambda x: 1 / x, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos,
    "lg2": np.log2, "ex2": np.exp2, "tanh": np.tanh,
}  # fmt: skip


def sweep(name: str) -> np.ndarray:
    """Float32 numbers of every exponent and of both signs, where the function is finite."""
    count = 1 << 15
    bits = (np.arange(count, dtype=np.uint64) * (1 << 32) // count + np.arange(count) % 997).astype(np.uint32)
    x = bits.view(np.float32)
    if name in ("sin", "cos"):
        near = np.linspace(-2 * np.pi, 2 * np.pi, count, dtype=np.float32)
        return np.concatenate([x[np.abs(x) < 314], near[1:-1]])
    if name == "ex2":
        x = np.concatenate([x[np.abs(x) < 127], np.linspace(-148, 127.9, count, dtype=np.float32)])
    if name == "lg2":
        x = np.concatenate([x, np.linspace(0.4, 2.1, count, dtype=np.float32)])
    return x[np.isfinite(x) & (x > 0 if name in ("sqrt", "rsqrt", "lg2") else x != 0)]


def run(op: str, *operands: np.ndarray) -> np.ndarray:
    place = ", ".join(["%a", "%b"][: len(operands)])
    got = apply(f"{op} %d, {place};", 32, *((32, x.view(np.uint32).tolist()) for x in operands))
    return np.array(got, np.uint32).view(np.float32)


@pytest.mark.parametrize("op", [op for op in BOUNDS if not op.startswith("div")])
def test_functions_keep_their_bounds(op):
    """The exact values come from the C library's long doubles."""
    name = op.split(".")[0]
    x = sweep(name)
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype(np.longdouble))
    fits = np.abs(exact) < np.finfo(np.float32).max
    x, exact = x[fits], exact[fits]
    assert len(x) > 10_000
    assert np.all(np.abs(run(op, x).astype(np.longdouble) - exact) <= allowed(op, x, exact.astype(np.float64)))


@pytest.mark.parametrize("op", ["div.approx.f32", "div.full.f32"])
def test_divisions_keep_their_bounds(op):
    x, y = sweep("rcp"), np.roll(sweep("rcp"), 12345)
    usual = (np.abs(y) >= 2.0**-126) & (np.abs(y) <= 2.0**126)
    with np.errstate(all="ignore"):
        exact = x.astype(np.longdouble) / y.astype(np.longdouble)
    fits = usual & (np.abs(exact) < np.finfo(np.float32).max)
    x, y, exact = x[fits], y[fits], exact[fits]
    assert len(x) > 10_000
    assert np.all(np.abs(run(op, x, y).astype(np.longdouble) - exact) <= allowed(op, y, exact.astype(np.float64)))


def test_bounds_by_range():
    x = np.array([0.25, 0.75, 1.5, 8], np.float32)
    assert allowed("lg2.approx.f32", x, np.log2(x.astype(np.float64))).tolist() == [
        2 * 2.0**-22, 2.0**-22, 2.0**-22, 3 * 2.0**-22]  # fmt: skip
    x = np.array([1, 7, 400], np.float32)
    assert allowed("sin.approx.ftz.f32", x, np.sin(x.astype(np.float64))).tolist() == [2**-20.5, 2**-14.7, 2]
    one = np.array([1.0])
    assert allowed("ex2.approx.ftz.f32", np.zeros(1), one) == 2.5 * 2.0**-23
    assert allowed("rcp.approx.f32", one, one) == 2.0**-23
    assert np.isinf(allowed("div.approx.f32", np.array([1e-40]), one))
    for op in ("ex2.approx.f16x2", "sqrt.rn.f32", "rcp.approx.ftz.f64", "add.f32"):
        assert approximations.bounds_of(op) is None


# Two machines. The other one is ours with random errors of its own


def approximate() -> bool:
    return any(report.approximate for report in interpreted.last_reports())


def wrong(monkeypatch, times: float) -> None:
    """Approximate results have errors of so many bounds, each up or down."""

    def off(noise, execute, instruction):
        if approximations.bounds_of(instruction.op) is None:
            return execute
        target, *sources = instruction.operands

        def run(m):
            operand = m.read(sources[-1], "f32")
            execute(m)
            exact = m.read(target, "f32").astype(np.float64)
            sign = noise.random.choice([-times, times], exact.shape)
            m.write(target, (exact + sign * allowed(instruction.op, operand, exact)).astype(np.float32))

        return run

    monkeypatch.setattr(Noise, "around", off)


@pytest.mark.parametrize(
    ("name", "dtype", "times"),
    [("gelu", jnp.float32, 100), ("silu", jnp.float32, 100), ("silu_mul", jnp.float16, 10_000), ("dsilu", jnp.float32, 100),
     ("gelu_tanh_mul", jnp.bfloat16, 100_000), ("softplus", jnp.float32, 100), ("dgelu_tanh", jnp.float32, 100)],
)  # fmt: skip
def test_errors_within_the_bounds_are_allowed_and_others_not(name, dtype, times, monkeypatch):
    op = getattr(generated, name)
    args = [jax.random.normal(jax.random.key(i), (5, 128), dtype) * 3 for i in range(len(op.spec.inputs))]

    def call() -> list[np.ndarray]:
        return [np.asarray(op(*args, implementation="interpret"))]

    def other(times: float) -> list[np.ndarray]:
        with monkeypatch.context() as patch, approximations.noise(99):
            wrong(patch, times)
            return call()

    within = compare(call, other(1), approximate)
    assert (within.equal + within.differing, within.beyond) == (640, 0)
    assert within.worst <= 1
    without = compare(call, other(times), approximate)
    assert without.beyond > 50
    assert without.worst > 2


def test_noise_keeps_what_does_not_come_from_approximations():
    x, bias = jnp.linspace(-3, 3, 64).reshape(4, 16), jnp.ones(16)
    with approximations.noise(1):
        np.testing.assert_array_equal(generated.bias_relu(x, bias, implementation="interpret"), jax.nn.relu(x + bias))
        silu = np.asarray(generated.silu(x, implementation="interpret"))
    exact = np.asarray(generated.silu(x, implementation="interpret"))
    gap = distance(silu, exact) / unit(exact)
    assert 0 < gap.mean() < 4


def test_a_kernel_with_no_approximations_must_agree_to_the_bit():
    x, bias = jnp.linspace(-3, 3, 64).reshape(4, 16), jnp.ones(16)

    def call() -> list[np.ndarray]:
        return [np.asarray(generated.bias_relu(x, bias, implementation="interpret"))]

    theirs = call()
    assert compare(call, theirs, approximate) == approximations.Agreement(64, 0, 0, 0.0)
    theirs[0] = theirs[0].copy()
    theirs[0][3, 15] = np.nextafter(theirs[0][3, 15], np.float32(9))
    assert compare(call, theirs, approximate) == approximations.Agreement(63, 1, 1, np.inf)


def test_distances_and_units():
    a = np.array([1, np.inf, np.nan, -np.inf, 3, np.nan, np.inf], np.float32)
    b = np.array([1.5, np.inf, np.nan, np.inf, np.inf, 1, 1], np.float32)
    assert distance(a, b).tolist() == [0.5, 0, 0, np.inf, np.inf, np.inf, np.inf]
    assert approximations.same_bits(a, b).tolist() == [False, True, True, False, False, False, False]
    assert approximations.same_bits(np.array([0.0]), np.array([-0.0])).tolist() == [False]
    assert unit(np.array([1, -2, 0, 3.4028235e38], np.float32)).tolist() == [2.0**-23, 2.0**-22, 2.0**-149, 2.0**104]
    assert unit(np.array([1, -2, 448], ml_dtypes.float8_e4m3fn)).tolist() == [2.0**-3, 2.0**-2, 32]
    assert unit(np.array([1, 3], ml_dtypes.bfloat16)).tolist() == [2.0**-7, 2.0**-6]
    assert unit(np.array([7, -1], np.int8)).tolist() == [1, 1]
    assert unit(np.array([True])).tolist() == [0]
