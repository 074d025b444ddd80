"""Unsigned arrays, in every way in which a kernel reads and writes them."""

import jax
import numpy as np
import pytest
from jax import export

from codegen.checking.testing import check_op
from tests.making import make_op
from tests.turns import EVERY

SPEC = """
op: levels
summary: Shift levels, saturating.
types:
  T: [uint8, int8, uint16, uint32]
inputs:
  flat: T[..., N]
  column: T[N]
  row: T[...]
  table: T[P, N]
  parts: T[(N 2)]
  place: uint8[...]
  scalar: T[] = 200
outputs:
  up: T[..., N]
  over: float32[..., N]
  wide: uint16[..., (2 N)]
chain: |
  up = flat + where(column > row, row, column)
  over = cast(take(table, place, axis=P), float32) / parts[1]
  wide[0] = parts[0]
  wide[1] = flat - scalar
reference: |
  up = flat.astype(jnp.int64) + jnp.minimum(column, row[..., None])
  over = table[jnp.minimum(place.astype(jnp.int32), table.shape[0] - 1)].astype(jnp.float32) / parts[1::2].astype(jnp.float32)
  even = jnp.broadcast_to(parts[0::2], flat.shape)
  wide = jnp.concatenate([even.astype(jnp.int64), flat.astype(jnp.int64) - scalar], -1)
domain:
  place: index(P)
grad: none
"""


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_unsigned_arrays_agree_with_the_reference(implementation, tmp_path):
    check_op(
        make_op(tmp_path, SPEC.replace(" = 200", "")),
        implementation,
        examples=8 if EVERY else 4,
    )


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("n", [7, 16])
def test_values_past_the_signed_ones(n, implementation, dtype, tmp_path):
    text = SPEC.replace("[uint8, int8, uint16, uint32]", "[uint8, uint16, uint32]")
    top = np.iinfo(dtype).max
    op = make_op(tmp_path, text)
    flat = np.stack([np.full(n, top, dtype), np.arange(n, dtype=dtype)])
    column, row = np.full(n, top, dtype), np.array([3, top], dtype)
    table = np.full((201, n), top, dtype)
    table[200] = top - 1
    parts = np.full(2 * n, top, dtype)
    got = op(flat, column, row, table, parts, np.array([0, 255], np.uint8), implementation=implementation)
    np.testing.assert_array_equal(got.up, np.full((2, n), top))  # saturated
    assert got.up.dtype == dtype
    np.testing.assert_array_equal(got.over[0], 1)
    np.testing.assert_allclose(got.over[1], (top - 1) / top, rtol=1e-6)
    np.testing.assert_array_equal(got.wide[:, :n], min(top, 65535))
    np.testing.assert_array_equal(got.wide[0, n:], min(top - 200, 65535))  # without the scalar's default
    np.testing.assert_array_equal(got.wide[1, n:], 0)


PRODUCT = """
op: requantize
summary: A product of bytes, scaled, a tile added, stored around a zero point.
types:
  U: [uint8, uint16]
inputs:
  x: int8[B, M, K]
  w: int8[B, N, K]
  tile: U[B, M, N]
  column: U[B, N]
  scale: float32[B, N]
outputs:
  sum: float32[B, M, N]
  y: U[B, M, N]
chain: |
  z = (x @ w) * scale
  sum = z + tile - column
  y = round(z) + 128
reference: |
  z = jnp.einsum('bmk,bnk->bmn', x, w) * scale[:, None]
  sum = z + tile - column[:, None]
  y = jnp.round(z) + 128
grad: none
"""


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("n", [16, 33])
def test_epilogues_of_products(n, dtype, tmp_path):
    op, random = make_op(tmp_path, PRODUCT), np.random.default_rng(0)
    top = np.iinfo(dtype).max
    x, w = (random.integers(-8, 8, (2, extent, 24), np.int8) for extent in (20, n))
    tile, column = (random.integers(top - 99, top, shape, dtype, True) for shape in ((2, 20, n), (2, n)))
    scale = random.choice(np.float32([0.5, 1, 2]), (2, n))
    got, y = (np.asarray(o) for o in op(x, w, tile, column, scale, implementation="interpret"))
    z = np.einsum("bmk,bnk->bmn", x.astype(np.int64), w) * scale[:, None]
    np.testing.assert_array_equal(got, z + tile - column[:, None].astype(np.float64))
    np.testing.assert_array_equal(y, np.clip(np.round(z) + 128, 0, top))
    assert y.max() > 127 and y.min() == 0


def test_an_unsigned_kernel_is_compiled_once(tmp_path, cold_cache, monkeypatch):
    import cutlass.jax.compile as compiling

    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    text = "op: copied\nsummary: S.\ninputs:\n  x: uint8[N]\noutputs:\n  y: uint8[N]\nchain: y = x\nreference: x\n"
    op, counted = make_op(tmp_path, text), []
    original = compiling.cutlass.cute.compile
    monkeypatch.setattr(compiling.cutlass.cute, "compile", lambda *a, **k: counted.append(1) or original(*a, **k))
    checks = compiling.cutlass.jax.get_export_disabled_safety_checks()
    for _ in range(2):
        call = jax.jit(lambda x: op(x, implementation="cute"))
        export.export(call, platforms=("cuda",), disabled_checks=checks)(jax.ShapeDtypeStruct((64,), "uint8"))
    assert len(counted) == 1
