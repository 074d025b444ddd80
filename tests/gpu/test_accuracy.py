"""Accuracy of functions for every float32 (precise), and for every bfloat16 and float16 (auto).

The exact value is that of the float64 function on the same GPU, whose error of an ulp of float64 does not matter here.
"""

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen.checking.expected import reference_values
from codegen.pipeline import read_op
from codegen.render import render_op
from codegen.runtime.compiled.platform import on_gpu
from tests.making import import_op, make_op

FUNCTIONS = {
    "sqrt": jnp.sqrt, "rsqrt": jax.lax.rsqrt, "reciprocal": jnp.reciprocal, "cbrt": jnp.cbrt, "exp": jnp.exp,
    "exp2": jnp.exp2, "expm1": jnp.expm1, "log": jnp.log, "log2": jnp.log2, "log1p": jnp.log1p, "sin": jnp.sin,
    "cos": jnp.cos, "tan": jnp.tan, "asin": jnp.asin, "acos": jnp.acos, "atan": jnp.atan, "sinh": jnp.sinh,
    "cosh": jnp.cosh, "tanh": jnp.tanh, "erf": jax.lax.erf, "erfc": jax.lax.erfc,
    "sigmoid": jax.nn.sigmoid,
}  # fmt: skip
ULPS = {"sigmoid": 4.0}  # others are within 2

SPEC = """
op: one_function
summary: One function, for its accuracy.
inputs:
  x: float32[N]
outputs:
  y: float32[N]
chain: |
  y = {name}(x)
reference: x
math: precise
"""


def note(kind: str, name: str, value: float) -> None:
    """Writes a result to the file of results, if one is named."""
    path = os.environ.get("CODEGEN_ACCURACY")
    if path:
        file = Path(path)
        data = json.loads(file.read_text()) if file.exists() else {}
        data.setdefault(kind, {})[name] = round(value, 4)
        file.write_text(json.dumps(data, indent=1, sort_keys=True))


@jax.jit
def ulps(got, exact):
    """The largest error in ulps of float32, where the result is a normal number; and whether special values agree."""
    magnitude = jnp.abs(exact)
    normal = (magnitude >= 2.0**-126) & (magnitude < 2.0**128 * (1 - 2.0**-25))
    unit = jnp.exp2(jnp.floor(jnp.log2(jnp.where(normal, magnitude, 1.0))) - 23)
    error = jnp.where(normal, jnp.abs(got.astype(jnp.float64) - exact) / unit, 0)
    same = jnp.isnan(got) == jnp.isnan(exact)
    infinite = jnp.isinf(exact) <= (got == exact.astype(jnp.float32))
    return jnp.max(jnp.where(jnp.isnan(error), jnp.inf, error)), jnp.all(same & infinite)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_precise_functions_are_within_their_bound(name, tmp_path):
    op, worst, agree = make_op(tmp_path, SPEC.format(name=name)), 0.0, True
    with jax.enable_x64(True):
        for chunk in range(16):
            bits = jnp.arange(2**28, dtype=jnp.uint32) + jnp.uint32(chunk * 2**28)
            x = jax.lax.bitcast_convert_type(bits, jnp.float32)
            got = op(x, implementation="cute")
            exact = jax.jit(lambda v: FUNCTIONS[name](v.astype(jnp.float64)))(x)
            error, same = ulps(got, exact)
            worst, agree = max(worst, float(error)), agree and bool(same)
    note("precise float32, ulp", name, worst)
    assert agree
    assert worst <= ULPS.get(name, 2.0)


APPROXIMATE = ("tanh", "erf", "log", "log2", "log1p", "expm1", "sin", "cos", "tan", "sinh", "cosh")


@jax.jit
def relative(got, exact):
    """The largest relative error; that of a denormal result is relative to the smallest normal number. And whether
    special values and the signs of zeros agree."""
    finite = jnp.isfinite(exact.astype(jnp.float32)) & jnp.isfinite(exact)
    error = jnp.abs(got.astype(jnp.float64) - exact) / jnp.maximum(jnp.abs(exact), 2.0**-126)
    same = jnp.where(jnp.isnan(exact), jnp.isnan(got), got == exact.astype(jnp.float32))
    zero = (exact != 0) | ((got == 0) & (jnp.signbit(got) == jnp.signbit(exact)))
    # an infinity where the exact result is near the largest number, within the allowed error
    edge = jnp.isinf(got) != jnp.isinf(exact.astype(jnp.float32))
    near = edge & (jnp.abs(jnp.abs(exact) / 2.0**128 - 1) < 2.0**-16)
    return jnp.max(jnp.where(finite & ~near, error, 0)), jnp.all(finite | same | near) & jnp.all(zero)


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximate_functions_are_within_their_bound(name, tmp_path):
    """The forms for narrow outputs, for every float32, since their arguments are float32."""
    text = SPEC.format(name=name).replace("precise", "auto").replace("op: one_function", f"op: approximate_{name}")
    module = render_op(read_op(f"specs/approximate_{name}.yaml", text))
    assert f"device.{name}(x, False" in module
    op = import_op(tmp_path, f"approximate_{name}", module.replace(f"device.{name}(x, False", f"device.{name}(x, True"))
    worst, agree = 0.0, True
    with jax.enable_x64(True):
        for chunk in range(16):
            bits = jnp.arange(2**28, dtype=jnp.uint32) + jnp.uint32(chunk * 2**28)
            x = jax.lax.bitcast_convert_type(bits, jnp.float32)
            exact = jax.jit(lambda v: FUNCTIONS[name](v.astype(jnp.float64)))(x)
            error, same = relative(op(x, implementation="cute"), exact)
            worst, agree = max(worst, float(error)), agree and bool(same)
    note("approximate, relative error times 2**16", name, worst * 2**16)
    assert agree
    assert worst < 2.0**-16


def is_activation(op) -> bool:
    """Whether a function takes one floating array, and gives one of the same type and axes."""
    spec = op.spec
    arrays = (*spec.inputs, *spec.outputs)
    alike = len(arrays) == 2 and arrays[0].dims == arrays[1].dims and arrays[0].dtype == arrays[1].dtype
    plain = not spec.domain and all(p.default is not None for p in spec.params)
    return op.plan.kind == "elementwise" and alike and plain and "bfloat16" in spec.dtypes(arrays[0])


# Where nothing runs, the plans of all ops would be made for their names
UNARY = [name for name in generated.__all__ if is_activation(getattr(generated, name))] if on_gpu() else ["relu"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", UNARY)
def test_activations_are_within_one_ulp_of_the_output(name, dtype):
    op = getattr(generated, name)
    x = jax.lax.bitcast_convert_type(jnp.arange(2**16, dtype=jnp.uint16), jnp.dtype(dtype)).reshape(256, 256)
    with np.errstate(invalid="ignore"):  # the conversion of a signalling NaN warns
        got = np.asarray(op(x, implementation="cute")).astype(np.float64)
    with jax.enable_x64(True), np.errstate(invalid="ignore"):
        exact = np.asarray(reference_values(op, [x], {}, "float64")[0])
    info = jnp.finfo(dtype)
    with np.errstate(all="ignore"):
        normal = (np.abs(exact) >= float(info.smallest_normal)) & (np.abs(exact) <= float(info.max))
        unit = 2.0 ** (np.floor(np.log2(np.where(normal, np.abs(exact), 1))) - info.nmant)
        error = np.where(normal, np.abs(got - exact) / unit, 0)
        error = np.where(np.abs(got - exact) <= 2.0**-62, 0, error)  # all that docs/language.md says of gelu below -8
    worst = float(np.max(np.where(np.isnan(error), np.inf, error)))
    note(f"auto {dtype}, ulp", name, worst)
    known = ~np.isinf(np.asarray(x.astype(jnp.float32)))  # at the infinities some have their limit where jnp gives NaN
    assert np.array_equal(np.isnan(got)[known], np.isnan(exact)[known])
    assert worst < 1.0
