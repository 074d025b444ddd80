"""Angles so large that their sine has a slow way, in kernels whose threads have single elements."""

import jax.numpy as jnp
import numpy as np

from codegen.measuring.compiled.compile import cubins_of_call
from codegen.measuring.compiled.sass import kernels, main_loop
from codegen.runtime.call.arguments import Types
from tests.making import make_op, spec_text


def made(folder, chain: str):
    return make_op(folder, spec_text("x: float32[B, S, N]", "y: float32[B, S, N]", chain, "y = x"))


def test_single_angles_large_and_small(tmp_path):
    x = np.random.default_rng(0).standard_normal((1, 40, 36)).astype("float32")
    x[0, ::7] *= 1e6
    x[0, 5, :4] = np.inf, -np.inf, np.nan, 3e38
    found = made(tmp_path, "y = sin(cummax(x, axis=S))")(jnp.asarray(x), implementation="interpret")
    with np.errstate(invalid="ignore"):
        exact = np.sin(np.maximum.accumulate(x, axis=1).astype("float64"))
    np.testing.assert_allclose(found, exact, rtol=3e-7, atol=1e-30)


def test_other_angles_do_not_pass_through_the_slow_way(tmp_path):
    """ptxas predicates a short branch: each element then took 110 instructions more."""
    shape = {"B": 8, "S": 1024, "N": 1024}

    def instructions(chain: str) -> float:
        op = made(tmp_path, chain)
        ((_, code),) = [k for c in cubins_of_call(op, Types(()), shape, "sm_90a") for k in kernels(c, "sm_90a")]
        return main_loop(code).issue / 8  # a thread has eight elements at once

    assert instructions("y = sin(cummax(x, axis=S))") < instructions("y = cummax(x, axis=S)") + 60
