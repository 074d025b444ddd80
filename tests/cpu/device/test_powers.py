"""Powers by a static parameter: their values, slopes and costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.measuring.compiled.compile import cubins_of_call
from codegen.measuring.compiled.sass import kernels, main_loop
from codegen.runtime.call.arguments import Types
from tests.making import make_op, spec_text
from tests.turns import some

EXPONENTS = (1.0, 2.0, 3.0, -0.5, -1.5, -2.5, 2.7, -0.7)


@pytest.mark.parametrize("dtype", some(["bfloat16", "float32"], 2))
def test_powers_by_a_static_parameter_and_their_slopes(tmp_path, dtype):
    """The exponent is compiled in, so a power is as cheap as one by a number. Its slope comes from it, also where that is 0 or infinite."""
    names = range(len(EXPONENTS))
    text = spec_text(
        "; ".join(f"x{i}: T[N]" for i in names),
        "; ".join(f"p{i}: T[N]; y{i}: T[N]" for i in names),
        "; ".join(f"p{i} = x{i} ** n{i}; y{i} = p{i} * p{i}" for i in names),
        more=f"params: {{{', '.join(f'n{i}: {e}' for i, e in enumerate(EXPONENTS))}}}",
        types="{T: [float32, bfloat16]}",
    )
    op = make_op(tmp_path, text)
    x = jnp.asarray(np.concatenate([[0.0, -0.0, np.inf, np.nan, -2.0, 1.0, 1e-3], np.linspace(0.05, 3, 25)]), dtype)

    def pulled(*xs):
        found, pull = jax.vjp(lambda *xs: tuple(op(*xs, implementation="interpret")), *xs)
        return found, pull(jax.tree.map(jnp.ones_like, found))

    found, slopes = jax.jit(pulled)(*[x] * len(EXPONENTS))
    wide = np.asarray(x, np.float64)
    for exponent, *ours in zip(EXPONENTS, found[::2], found[1::2], slopes, strict=True):
        with np.errstate(all="ignore"):
            power = np.power(np.where(wide == 0, 0.0, wide), exponent)  # as any power's, the result at -0.0 has no sign
            slope = exponent * np.power(wide, exponent - 1) * (1 + 2 * power)
            expected = [e.astype(np.float32).astype(x.dtype) for e in (power, power * power, slope)]
        for got, wanted in zip(ours, expected, strict=True):
            rtol = 2e-2 if dtype == "bfloat16" else 2e-6
            np.testing.assert_allclose(
                np.asarray(got, np.float64), np.asarray(wanted, np.float64), rtol, err_msg=f"{exponent}"
            )


def test_a_static_exponent_costs_what_a_number_does(tmp_path):
    """In the instructions of a bfloat16 kernel: there is no call of the library's function."""

    def instructions(power: str, params: str) -> int:
        op = make_op(tmp_path, spec_text("x: bfloat16[N]", "y: bfloat16[N]", f"y = {power}", more=params))
        ((_, code),) = [k for c in cubins_of_call(op, Types(()), {"N": 2**16}, "sm_90a") for k in kernels(c, "sm_90a")]
        return main_loop(code).issue

    assert instructions("x ** n", "params: {n: 2.7}") == instructions("x ** 2.7", "")
