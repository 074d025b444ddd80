"""Short ragged rows, interpreted: a thread has several rows, which together are whole vectors."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen.checking.draw import Case
from codegen.checking.testing import check_case
from codegen.measuring.compiled.compile import compile_call, compile_kernel
from codegen.measuring.compiled.variants import Variant
from codegen.plan.rows.launching import cost
from codegen.runtime.call.arguments import Types
from codegen.shared import RowLaunch
from tests.making import make_op, spec_text
from tests.turns import some

OPS = (
    "layernorm", "rmsnorm", "softmax", "rmsnorm_row_fp8", "add_rmsnorm", "row_moments", "row_any", "dsoftmax",
    "cross_entropy", "quantize_row_int8", "embedding_rmsnorm",
)  # fmt: skip

APART = ("embedding_rmsnorm",)  # its rows begin at any offset
BYTES = {"float32": 4, "bfloat16": 2}
COLUMNS = (3, 5, 6, 7, 10, 12, 15)


# Some lengths for each op, by default of every other one; the dtypes in turns
LENGTHS = [(n, c) for i, n in enumerate(OPS) for c in some(COLUMNS, 7, i % 7)]


@pytest.mark.parametrize(("name", "columns"), some(LENGTHS, 1))
def test_short_rows(name, columns, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    dtype = list(BYTES)[(OPS.index(name) // 2 + COLUMNS.index(columns) // 2) % 2]
    op = getattr(generated, name)
    types = Types(tuple((t, dtype if dtype in dtypes else dtypes[0]) for t, dtypes in op.spec.types))
    params = tuple((p.name, p.default) for p in op.spec.params)
    for rows in (0, 7, 8, 1001):  # fewer rows than a thread has, as many, and one more
        extents = (("N", columns), *((axis, 5) for axis in op.spec.axes if axis not in ("...", "N")))
        case = Case(types, (rows,), extents, (), params, False, 1.0, rows)
        how = op.launch_for(types, case.axes)
        assert isinstance(how, RowLaunch)
        width = max(BYTES.get(types.dtype(a), 1) for a, _ in op.plan.full)
        together = 16 // math.gcd(16, columns * width)
        fits = together * columns * width <= 256 and name not in APART
        assert how.at_once == (together if fits else 1)
        check_case(op, "interpret", case)


@pytest.mark.parametrize(
    ("name", "columns"), some(itertools.product(["layernorm", "softmax", "row_moments"], [3, 10, 15]), 4)
)
def test_rows_of_a_thread_are_in_registers(name, columns):
    """The thread accesses whole vectors, except in the last rows."""
    op = getattr(generated, name)
    x = jax.ShapeDtypeStruct((1000, columns), jnp.bfloat16)
    key, operands = op.bind((x,), {"implementation": "cute"})
    compiled = compile_call(op, op._kernel_call(key, operands), "sm_90a")
    assert compiled.stack == 0 and "ld.global.v4.b32" in compiled.ptx and "st.global.v4.b32" in compiled.ptx


@pytest.mark.parametrize("extents", some([(2, 3), (3, 5), (5, 1), (7, 2), (4, 4)], 2))
def test_columns_of_two_axes(extents, tmp_path):
    """Arrays that all rows share may lack the inner axis: then a row is not a vector of one value."""
    inputs = "x: float32[..., C, S]; w: float32[C]; v: float32[S]"
    chain = "y = (x - mean(x, axis=(C, S))) * w + v * index(C) + index(S)"
    op = make_op(tmp_path, spec_text(inputs, "y: float32[..., C, S]", chain))
    draw = np.random.default_rng(sum(extents)).standard_normal
    x, w, v = (draw(shape).astype("float32") for shape in ((300, *extents), extents[:1], extents[1:]))
    c, s = np.arange(extents[0])[:, None], np.arange(extents[1])
    want = (x - x.mean((1, 2), keepdims=True)) * w[:, None] + v * c + s
    np.testing.assert_allclose(np.asarray(op(x, w, v, implementation="interpret")), want, rtol=1e-5, atol=1e-5)


# Two bytes of a mask are no whole word: they are read one by one, all of them, where rows begin anywhere
@pytest.mark.parametrize("columns", [13, 21])
def test_masks_in_narrow_vectors_of_ragged_rows(tmp_path, columns):
    text = spec_text(
        "x: T[B, N]; keep: bool[B, N]", "y: T[B, N]",
        "v = where(keep, x, shift(x, axis=N, by=2)); y = v - max(v, axis=N)",
        more="schedule: {vector_bytes: 4}", types="{T: [bfloat16]}",
    )  # fmt: skip
    op, random = make_op(tmp_path, text), np.random.default_rng(5)
    x, keep = jnp.asarray(random.integers(-9, 9, (5, columns)), jnp.bfloat16), random.random((5, columns)) < 0.6
    found = op(x, jnp.asarray(keep), implementation="interpret")
    x = np.asarray(x, np.float64)
    v = np.where(keep, x, np.pad(x, ((0, 0), (2, 0)))[:, :columns])
    assert np.array_equal(np.asarray(found, np.float64), v - v.max(1, keepdims=True))


@pytest.mark.parametrize("lanes", [1, 2])
def test_the_rest_of_a_sector_stays_in_the_cache(tmp_path, monkeypatch, lanes):
    """A thread's vectors of 16 bytes each are halves of sectors; those of lanes together are whole ones, which nothing reads again."""
    monkeypatch.setattr(cost.Candidates, "_threads_of_row", lambda *_: lanes)
    text = spec_text("x: bfloat16[..., N]", "y: float32[...]", "y = sum(x, axis=N)", "y = jnp.sum(x, axis=-1)")
    variant = Variant(Types((), "float32"), False, True, 32)
    ptx = compile_kernel(make_op(tmp_path, text), variant, "sm_90a").ptx
    assert ("no_allocate" in ptx) == (lanes > 1)
