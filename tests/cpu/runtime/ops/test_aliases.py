"""Outputs in the buffers of inputs that the caller donates: the program that is lowered for CUDA, with no GPU."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated


@pytest.fixture(autouse=True)
def for_sm_90a(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")


def aliases(f, *args, donate=()) -> dict[int, int]:
    """The positions of the kernel's inputs whose buffers outputs take."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        text = jax.jit(f, donate_argnums=donate).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    assert "CuteDSL" in text
    found = re.findall(r"output_tuple_indices = \[(\d*)\], operand_index = (\d+)", text)
    return {int(source): int(output or 0) for output, source in found}


def array(*shape, dtype=jnp.bfloat16):
    return jnp.asarray(np.ones(shape), dtype)


X, W, LONG = array(8, 64), array(64), array(2, 1 << 20)

# op, operands, donated inputs, aliased inputs
TABLE = [
    ("add_rmsnorm", (X, X, W), 1, {1: 1}),
    ("add_rmsnorm", (X, X, W), (), {}),
    ("add_rmsnorm", (array(8, 63), array(8, 63), array(63)), (0, 1), {1: 1}),
    ("add_rmsnorm", (LONG, LONG, LONG[0]), 1, {}),  # rows that registers cannot hold
    ("bias_residual", (X, W, X), 2, {2: 0}),
    ("bias_residual", (X, W, X), 1, {}),  # another shape
    ("qk_rmsnorm", (array(2, 4, 64), array(2, 4, 64), W, W), (0, 1), {0: 0, 1: 1}),
]


@pytest.mark.parametrize(
    ("name", "args", "donate", "expected"), TABLE, ids=[f"{i}-{r[0]}" for i, r in enumerate(TABLE)]
)
def test_aliases(name, args, donate, expected):
    assert aliases(getattr(generated, name), *args, donate=donate) == expected


def test_within_a_larger_program():
    def program(x, residual, w):
        y, residual = generated.add_rmsnorm(x, residual, w)
        return generated.add_rmsnorm(2 * y, residual, w)

    assert aliases(program, X, X, W, donate=(0, 1)) == {1: 1}


def test_donation_changes_no_value():
    """Where no kernel runs, as on any platform."""
    x, residual, w = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(8, 64), (8, 64), (64,)]))
    expected = generated.add_rmsnorm(x, residual, w)
    got = jax.jit(generated.add_rmsnorm, donate_argnums=(0, 1))(x + 0, residual + 0, w)
    for a, b in zip(got, expected, strict=True):
        assert jnp.allclose(a, b, rtol=1e-6)
