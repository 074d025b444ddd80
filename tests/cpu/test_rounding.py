"""How far rounding may take a reference's gradient, by which tests of gradients judge where terms cancel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen.runtime.rounding import UNIT, rounded_apart
from codegen.runtime.testing import Case, Disagreement, Types, check_gradient_case
from tests.cpu.test_reductions import spec_text
from tests.making import make_op

X = np.linspace(0.5, 3, 40)


def off(function, *args):
    """By how many units the results are off, at most."""
    with jax.enable_x64(True):
        args = tuple(jnp.asarray(x) for x in args)
        exact = np.asarray(function(*args))
        found = [np.asarray(rounded_apart(function)(jax.random.key(i), *args)) for i in range(8)]
    assert all(y.dtype == exact.dtype for y in found)
    return max(np.max(np.abs(y - exact) / np.abs(exact)) for y in found) / UNIT


@pytest.mark.parametrize(
    ("function", "least", "most"),
    [
        (lambda x: 3 * x, 0.5, 1),
        (lambda x: jnp.exp(x), 0.5, 1),
        (lambda x: jax.jit(lambda x: x / 7)(x), 0.5, 1),
        (lambda x: jnp.sum(x), 0.3, 1),
        (lambda x: (3 * x - 2 * x) / x, 2, 8),  # of 1: 3 + 2 of the products, and two more
        (lambda x: jax.nn.relu(x), 0, 0),  # whose maximum is exact, behind a rule for derivatives of its own
        (lambda x: jnp.where(x > 1, x, -x), 0, 0),
        (lambda x: jax.lax.scan(lambda c, x: (c, x), 0.0, x)[1], 0, 0),
        (lambda x: (x * 1000).astype(int) % 7 + 1, 0, 10 / UNIT),
    ],
)
def test_each_operation_is_off_by_a_unit(function, least, most):
    assert least <= off(function, X) <= most


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("name", ["layernorm", "modulated_layernorm"])
def test_a_norm_of_one_column(name, implementation):
    """Its gradient is 0, the difference of terms a thousand times as large as a cotangent, which a compiler may fuse."""
    op = getattr(generated, name)
    rows, extents = ((3,), ()) if name == "layernorm" else ((), (("B", 3), ("S", 3)))
    for seed in range(2):
        case = Case(Types((("T", "float32"),)), rows, (*extents, ("N", 1)), (), (("eps", 1e-6),), False, 1.0, seed)
        check_gradient_case(op, implementation, case)


def test_a_wrong_gradient_of_one_column_is_found(tmp_path):
    chain = "d = x - mean(x, axis=N); y = d * rsqrt(mean(d * d, axis=N) + 1e-6)"
    grad = "grad:\n  x: dy * rsqrt(mean((x - mean(x, axis=N)) ** 2, axis=N) + 1e-6)"
    op = make_op(tmp_path, spec_text("x: float32[..., N]", "y: float32[..., N]", chain, "", grad))
    case = Case(Types(()), (3,), (("N", 1),), (), (), False, 1.0, 0)
    with pytest.raises(Disagreement, match="the gradient of 'x' is off by"):
        check_gradient_case(op, "interpret", case)
