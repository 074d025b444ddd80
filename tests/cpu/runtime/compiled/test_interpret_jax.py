"""Interpreted kernels as JAX functions: eager, under transformations, and chosen by a mode instead of an argument."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen import runtime
from codegen.interpret.machine import InterpretError
from codegen.interpret.memory import arrays as memory
from codegen.runtime.compiled import interpreted
from tests.meshes import normal

X, BIAS = jnp.asarray(normal(3, 5, 8)), jnp.asarray(normal(8))
EXPECTED = np.maximum(np.asarray(X) + np.asarray(BIAS), 0)

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="the mode is for the CPU")


@pytest.fixture(autouse=True)
def forget_reports():
    interpreted._last.clear()


def bias_relu(x, bias):
    return generated.bias_relu(x, bias, implementation="interpret")


def ran() -> bool:
    """Whether a kernel ran since the test began."""
    return bool(interpreted.last_reports())


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_calls(wrap):
    np.testing.assert_array_equal(wrap(bias_relu)(X, BIAS), EXPECTED)
    assert ran()


@pytest.mark.parametrize(
    ("in_axes", "shapes"), [((0, None), (X.shape, (8,))), ((1, None), (X.shape, (8,))), ((0, 0), (X.shape, (3, 8)))], ids=str
)  # fmt: skip
def test_vmap(in_axes, shapes):
    x, bias = (jnp.arange(np.prod(s), dtype=jnp.float32).reshape(s) - 20 for s in shapes)
    expected = jax.vmap(lambda x, b: jax.nn.relu(x + b), in_axes)(x, bias)
    np.testing.assert_array_equal(jax.vmap(bias_relu, in_axes)(x, bias), expected)
    np.testing.assert_array_equal(jax.jit(jax.vmap(bias_relu, in_axes))(x, bias), expected)


def test_gradients():
    ours = jax.grad(lambda x, b: jnp.sum(bias_relu(x, b) ** 2), (0, 1))(X, BIAS)
    theirs = jax.grad(lambda x, b: jnp.sum(jax.nn.relu(x + b) ** 2), (0, 1))(X, BIAS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours, theirs)
    assert ran()


def test_the_mode_chooses_what_no_argument_does():
    np.testing.assert_array_equal(generated.bias_relu(X, BIAS), EXPECTED)
    assert not ran()
    with runtime.interpret_mode():
        generated.bias_relu(X, BIAS, implementation="xla")
        assert not ran()
        np.testing.assert_array_equal(generated.bias_relu(X, BIAS), EXPECTED)
        assert ran()
        with runtime.interpret_mode(False):
            interpreted._last.clear()
            generated.bias_relu(X, BIAS)
            assert not ran()


def test_a_function_that_is_jitted_already_is_traced_again_in_the_mode():
    function = jax.jit(lambda x, b: generated.bias_relu(x, b))
    for on in (False, True, False, True):
        interpreted._last.clear()
        with runtime.interpret_mode(on):
            np.testing.assert_array_equal(function(X, BIAS), EXPECTED)
        assert ran() == on


@pytest.mark.parametrize("value", ["1", "0"])
def test_the_environment_variable(value, monkeypatch):
    monkeypatch.setenv("CODEGEN_INTERPRET", value)
    np.testing.assert_array_equal(generated.bias_relu(X, BIAS), EXPECTED)
    assert ran() == (value == "1")


def test_a_failed_check_reaches_the_user_as_its_message(monkeypatch):
    def refuse(*_):
        raise memory.Fault(3, "a planted fault")

    monkeypatch.setattr(memory.Global, "store", refuse)
    with pytest.raises(
        InterpretError, match=r"a planted fault\n  at block \(0, 0, 0\) thread \(3, 0, 0\)\n  st\.global"
    ):
        bias_relu(X, BIAS)
    with pytest.raises(Exception, match=r"InterpretError: .*: a planted fault\n  at block \(0, 0, 0\)") as caught:
        jax.block_until_ready(jax.jit(bias_relu)(X + 1, BIAS))
    assert "machine.py" not in str(caught.value)  # the interpreter's own frames do not help a user


def test_float64_kernels_are_compiled_as_such():
    """JAX's setting of 64-bit types belongs to a thread, and kernels are compiled in another one."""
    interpreted.compile_call.cache_clear()
    with jax.enable_x64(True):
        x = jnp.linspace(-2, 2, 7, dtype=jnp.float64)
        got = generated.float64_polynomial(x, implementation="interpret")
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, generated.float64_polynomial(x, implementation="xla"), rtol=1e-14)


def test_small_exponentials_keep_their_digits():
    """exp(-88) is a denormal, but -88 exp(-88) is a normal number: an approximation may not flush the first before it
    becomes the second."""
    x = jnp.arange(-90, -84, 0.5).astype(jnp.bfloat16)
    exact = np.asarray(x, np.float64) * np.exp(np.asarray(x, np.float64))
    made = np.asarray(generated.silu(x, implementation="interpret"), np.float64)
    normal = np.abs(exact) > float(jnp.finfo(jnp.bfloat16).smallest_normal)
    np.testing.assert_allclose(made[normal], exact[normal], rtol=2**-8)
    assert normal.sum() > 5


def test_numbers_that_are_not_normal_are_kept_whoever_comes_first():
    """A thread inherits how denormals are treated from the thread that starts it; under jit, that would be a thread of
    XLA. A forked process has no thread of the first, and starts its own."""
    code = """
import os
import jax, jax.numpy as jnp, numpy as np, generated
from codegen.runtime.compiled import interpreted
relu = jax.jit(lambda x: generated.relu(x @ x, implementation="interpret"))
relu(jnp.ones((512, 512), jnp.bfloat16)).block_until_ready()
def kept():
    return interpreted._thread.submit(lambda: np.float32(1e-38) * np.float32(0.1)).result(5) > 0
if not os.fork():
    os._exit(not kept())
print(kept(), os.wait()[1])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["True", "0"], found.stderr


def test_a_result_lies_where_its_arguments_are_bound_to():
    device = jax.devices()[3]
    bound, free = jax.device_put(X, device), jax.device_put(BIAS)
    for found in (bias_relu(bound, free), bias_relu(bound, jax.device_put(BIAS, device))):
        assert found.devices() == {device}
        assert found.committed
        np.testing.assert_allclose(found, EXPECTED, rtol=1e-6)
    assert not bias_relu(X, BIAS).committed


def test_the_architecture_is_part_of_what_is_traced():
    """A contraction's kernel for Hopper, and that for Ampere."""
    x, w, bias = (jnp.ones(shape, jnp.bfloat16) for shape in ((16, 64), (64, 32), (32,)))

    @jax.jit
    def call(x):
        return generated.dense_relu(x, w, bias, implementation="interpret")

    threads = []
    for arch in ("sm_90a", "sm_80", "sm_90a"):
        with interpreted.interpreting_for(arch):
            for form in (call, jax.vmap(call)):
                y = form(x)
                jax.block_until_ready(y)
                assert bool((y == 65).all())
                threads.append(interpreted.last_reports()[-1].threads)
    assert threads == [384, 384, 64, 64, 384, 384]


def test_a_call_is_planned_for_the_architecture_it_is_compiled_for(monkeypatch):
    """The architecture is that of `interpreting_for`, else of CUTE_DSL_ARCH, else sm_90a; also where a row needs a
    cluster on Hopper."""

    class Asked(Exception):
        pass

    def asked(call, *_):
        raise Asked(call)

    def call():
        with pytest.raises(Asked) as found:
            generated.rmsnorm(x, weight, implementation="interpret")
        return found.value.args[0]

    monkeypatch.setattr(interpreted, "run", asked)
    x, weight = jnp.ones((2, 32_768), jnp.bfloat16), jnp.ones(32_768, jnp.bfloat16)
    monkeypatch.delenv("CUTE_DSL_ARCH", raising=False)
    unnamed = call()
    with interpreted.interpreting_for("sm_80"):
        told = call()
    named = {}
    for arch in ("sm_80", "sm_90a"):
        monkeypatch.setenv("CUTE_DSL_ARCH", arch)
        named[arch] = call()
    assert dict(named["sm_90a"].constants)["how"].cluster > 1
    assert dict(named["sm_80"].constants)["how"].cluster == 1
    assert (unnamed, told) == (named["sm_90a"], named["sm_80"])
