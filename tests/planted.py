"""Plants small faults in the text of generated kernels, and checks that the project's own tests of the op find them.

An op is generated, one line of its module is made wrong, and the checks of `codegen verify` are run on it, interpreted:
random calls against the reference, and gradients. All faults, with the check that found each:

    python -m tests.planted
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import hypothesis

from codegen.checking.agreement import Disagreement
from codegen.checking.testing import check_gradient, check_op
from codegen.pipeline import read_op
from codegen.render import render_op
from tests.making import import_op

GATE = """
op: gate
summary: Element by element, with what is one value a row and one a column.
types:
  T: [float32, bfloat16]
inputs:
  x: T[..., N]
  bias: T[N]
  scale: float32[...]
outputs:
  y: T[..., N]
chain: |
  z = x + bias
  y = scale * where(z > 0, z, 0.1 * z)
reference: |
  z = x + bias
  y = scale[..., None] * jnp.where(z > 0, z, 0.1 * z)
"""

NORM = """
op: norm
summary: Rows less their mean, by their deviation.
types:
  T: [float32, bfloat16]
inputs:
  x: T[..., N]
  weight: T[N]
outputs:
  y: T[..., N]
chain: |
  d = x - mean(x, axis=N)
  y = d * rsqrt(mean(square(d), axis=N) + 1e-3) * weight
reference: |
  d = x - jnp.mean(x, axis=-1, keepdims=True)
  y = d / jnp.sqrt(jnp.mean(d * d, axis=-1, keepdims=True) + 1e-3) * weight
"""

PEAK = """
op: peak
summary: Rows by their maximum's exponentials.
inputs:
  x: float32[..., N]
outputs:
  y: float32[..., N]
chain: |
  e = exp(x - max(x, axis=N))
  y = e / sum(e, axis=N)
reference: jax.nn.softmax(x, axis=-1)
"""

COLUMNS = """
op: columns
summary: What rows come to.
types:
  T: [float32, bfloat16]
inputs:
  x: T[..., N]
outputs:
  most: T[N]
  total: float32[N]
chain: |
  most = max(x, axis=...)
  total = sum(x * x, axis=...)
reference: |
  rows = x.reshape((-1, x.shape[-1])) if x.size else jnp.zeros((0, x.shape[-1]), x.dtype)
  most = jnp.max(rows, axis=0, initial=-jnp.inf)
  total = jnp.sum(rows * rows, axis=0)
grad: none
"""

BOTH = """
op: both
summary: Rows by their root mean square, and columns of that.
types:
  T: [float32, bfloat16]
inputs:
  x: T[..., N]
  dy: T[..., N]
outputs:
  dx: T[..., N]
  dw: float32[N]
chain: |
  r = rsqrt(mean(square(x), axis=N) + 1e-3)
  dx = dy * r
  dw = sum(dy * x * r, axis=...)
reference: |
  r = 1 / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-3)
  dx = dy * r
  dw = jnp.einsum('...n->n', dy * x * r)
grad: none
"""

DENSE = """
op: dense
summary: A product, a bias, ReLU.
types:
  T: [bfloat16, float16]
inputs:
  x: T[..., K]
  w: T[K, N]
  bias: T[N]
outputs:
  y: T[..., N]
chain: |
  z = x @ w + bias
  y = relu(z)
reference: jax.nn.relu(x @ w + bias)
"""


# The first call that fails is enough: no smaller one is searched
hypothesis.settings.register_profile("planted", phases=[hypothesis.Phase.generate])
SPECS = {"gate": GATE, "norm": NORM, "peak": PEAK, "columns": COLUMNS, "both": BOTH, "dense": DENSE}


@dataclass(frozen=True)
class Fault:
    """The `nth` text `old` in the module of an op is replaced by `new`. Faults that show only for some sizes need more
    `calls`."""

    op: str
    what: str
    old: str
    new: str
    nth: int = 0
    calls: int = 16


FAULTS = [
    # element by element
    Fault("gate", "a wrong constant", "device.where(z > 0.0, z, 0.1 * z)", "device.where(z > 0.0, z, 0.1001 * z)"),
    Fault("gate", "a dropped term", "    z = x + bias\n    y = scale * device", "    z = x\n    y = scale * device"),
    Fault("gate", "a comparison the other way", "device.where(z > 0.0, z", "device.where(z < 0.0, z"),
    Fault("gate", "a missing predicate", "    if at.valid > 0:", "    if at.valid > -4096:"),
    Fault("gate", "a predicate off by one", "    if at.valid > 0:", "    if at.valid > -1:"),
    Fault("gate", "a vector over the end of a row", "at.load(", "flat.Flat(how, (mY.shape[0], mY.shape[1] + 1), at.start, at.valid, at.first).load("),
    Fault("gate", "another axis", "row, iN = at.axes", "iN, row = at.axes"),
    Fault("gate", "the first row for all", "flat.read(mScale, (row,))", "flat.read(mScale, (0,))"),
    Fault("gate", "a store by way of fewer bits", "at.store(y.to(mY.element_type), mY)", "at.store(y.to(cutlass.BFloat16).to(mY.element_type), mY)"),
    Fault("gate", "the last element not stored", "at.store(", "flat.Flat(how, at.extents, at.start, at.valid - 1, at.first).store("),
    Fault("gate", "rows of another size", "flat.vector(how, mY.shape)", "flat.vector(how, (mY.shape[0], mY.shape[1] + 1))"),
    # along rows, and their gradients
    Fault("norm", "a mean of one more", '[rRowMean], ("mean",), sRowMean)', '[rRowMean], ("mean",), sRowMean)\n        row_mean = row_mean * (cutlass.Float32(N) / (cutlass.Float32(N) + 1.0))'),
    Fault("norm", "a dropped constant under the root", "device.rsqrt(row_mean2 + 0.001, approx) * weight", "device.rsqrt(row_mean2, approx) * weight"),
    Fault("norm", "a variance about 0", "    d = x - row_mean\n    return d * d", "    d = x\n    return d * d"),
    Fault("norm", "a reduction over half the lanes", 'row.reduce([rRowMean], ("mean",), sRowMean)', 'reduce.over_row([rRowMean], ("mean",), sRowMean, max(how.per_row // 2, 1), how.cluster)'),
    Fault("norm", "elements outside the row reduced", "values, part.vector(v).inside())", "values, reduce.inside(part.vector(v).c, part.columns + 1, vec, how.ragged, how.exact))", 1),
    Fault("norm", "another column's weight", "at.load_shared(mWeight, (0,), rWeight)", "access.load_row(mWeight, 0, at.c + 1, at.step, at.columns, rWeight, 1, how.ragged, False, False)"),
    Fault("norm", "a row's last element not stored", "at.store(y.to(mY.element_type), mY, (index, 0), rY[None, v, u], run=sYRun)",
          '__import__("dataclasses").replace(at, columns=at.columns - 1, length=at.length - 1).store('
          "y.to(mY.element_type), mY, (index, 0), rY[None, v, u], run=sYRun)"),
    Fault("norm", "a stale saved statistic", "    row_mean = row_mean_\n    return row_rsqrt, row_mean", "    row_mean = row_mean_ * 0.0\n    return row_rsqrt, row_mean"),
    Fault("norm", "a gradient's last term", "    dx = t2 - device.divide(row_rsqrt, t1, approx) * row_sum2\n    return dx, dy", "    dx = t2\n    return dx, dy"),
    Fault("norm", "a factor of a weight's gradient", "return dx, dy * (d * row_rsqrt)", "return dx, dy * d"),
    Fault("norm", "a power of a gradient's factor", "row_sum, t1, approx) * row_rsqrt * row_rsqrt * row_rsqrt", "row_sum, t1, approx) * row_rsqrt * row_rsqrt", 1),
    Fault("norm", "the gradient of what rows do not share", "    dx = t2 - device.divide(row_rsqrt, t1, approx) * row_sum2\n    return dx\n", "    dx = t2\n    return dx\n"),
    Fault("peak", "a sum that is not rescaled", ', ((1, 0, "exp", 1.0),))', ")"),
    Fault("peak", "values that are not rescaled", 'reduce.rescale_held(rEHeld, rRowMaxSeen, row_max, "exp", 1.0)', "pass"),
    Fault("peak", "a maximum that begins at 0", 'rRowMax = reduce.accumulator(vec, "max", cutlass.Float32)', 'rRowMax = reduce.accumulator(vec, "sum", cutlass.Float32)', calls=80),
    # down the rows
    Fault("columns", "a maximum that drops NaN", "    return x, x * x", "    return device.where(device.isnan(x), float('-inf'), x), x * x"),
    Fault("columns", "the last row", "cutlass.range(part * rows_a_block, rows, pace * at_once)", "cutlass.range(part * rows_a_block, rows - 1, pace * at_once)"),
    Fault("columns", "rows past the last one", "own = rowwise.walked(how, row < rows", "own = rowwise.walked(how, row <= rows"),
    Fault("columns", "the last column", "    if there:", "    if there & (c < mColumnMaxParts.shape[1] - 1):"),
    Fault("columns", "swapped parts", "[mColumnMaxParts, mColumnSumParts], sColumns", "[mColumnSumParts, mColumnMaxParts], sColumns"),
    Fault("columns", "a row that is read twice", "row = base + (u + at_once) * pace", "row = base + (u + at_once - 1) * pace"),
    Fault("both", "shared memory used again too soon", "sRowMean, turn=turn)", "sRowMean)", calls=80),
    Fault("both", "a factor of the columns' sum", "return dx, dy * x * r", "return dx, dy * x"),
    Fault("both", "the wrong input", "    return x * x\n\n\ndef both_chain", "    return x * x * 0.999\n\n\ndef both_chain"),
    # products
    Fault("dense", "the first column's bias for all", "rBias = at.load(mBias, (iN,))", "rBias = at.load(mBias, (0,))"),
    Fault("dense", "a sign", "    z = acc + bias", "    z = acc - bias"),
    Fault("dense", "an element of a tile not stored", "    at.store(", "    gemm.Vector(at.row, at.column, at.batch, at.valid - 1, at.vec, at.ragged).store("),
    Fault("dense", "a gradient past the kink", "t0 = device.where(z > 0.0, dy, 0.0)", "t0 = dy"),
    Fault("dense", "kept before the bias", "    return z, y", "    return acc, y"),
]  # fmt: skip
# One of each kind of kernel, found by values, by addresses and by what was never written
SHORT = {
    "a wrong constant", "a predicate off by one", "a row's last element not stored", "a maximum that drops NaN",
    "a factor of the columns' sum", "an element of a tile not stored",
}  # fmt: skip


def module_of(op: str, fault: Fault | None = None) -> str:
    """The generated module of an op, with a fault in it."""
    text = render_op(read_op(f"specs/{op}.yaml", SPECS[op]))
    if fault is None:
        return text
    assert text.count(fault.old) > fault.nth, f"{fault.what}: no longer in the text"
    *before, after = text.split(fault.old, fault.nth + 1)
    return fault.old.join(before) + fault.new + after


def found(folder: Path, op: str, fault: Fault | None = None, examples: int = 16) -> str:
    """What finds a fault: "values", "gradient" or "interpreter", with the message; "" if nothing does."""
    made, before = import_op(folder, op, module_of(op, fault)), hypothesis.settings.get_current_profile_name()
    hypothesis.settings.load_profile("planted")
    try:
        check_op(made, "interpret", examples, 0)
        if made.spec.grad != "none":
            check_gradient(made, "interpret", max(4, examples // 4), 0)
    except Exception as error:
        text = str(error).partition("\n")[0]
        if not isinstance(error, Disagreement):
            return f"interpreter: {text}"
        return f"{'gradient' if 'the gradient of' in text else 'values'}: {text}"
    finally:
        hypothesis.settings.load_profile(before)
    return ""


def main() -> None:
    """Tries all faults, or those with one of the given words in their names, and prints what found each. The exit
    status is 1 if one was not found."""
    slipped, words = 0, sys.argv[1:] or [""]
    faults = [f for f in FAULTS if any(word in f"{f.op}: {f.what}" for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        for op in dict.fromkeys(fault.op for fault in faults):
            wrong = found(Path(folder), op)
            print(f"{op}: {wrong or 'sound'}", flush=True)
            slipped += bool(wrong)
        for fault in faults:
            start = time.perf_counter()
            how = found(Path(folder), fault.op, fault, fault.calls)
            slipped += not how
            print(f"{fault.op}: {fault.what}: {how or 'NOT FOUND'} ({time.perf_counter() - start:.0f} s)", flush=True)
    print(f"{len(faults) - slipped} of {len(faults)} faults were found")
    sys.exit(slipped > 0)


if __name__ == "__main__":
    main()
