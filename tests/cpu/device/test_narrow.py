"""Arrays of 4-bit numbers, two in a byte, and of powers of two (E8M0): all their values, and what is rounded to them."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tests.making import make_op, spec_text

IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["xla", "interpret"])
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


@IMPLEMENTATIONS
@pytest.mark.parametrize("dtype", ["int4", "uint4", "float4_e2m1fn"])
@pytest.mark.parametrize("N", [16, 6])  # words of eight, and bytes
def test_every_4_bit_number_is_read(tmp_path, dtype, N, implementation):
    op = make_op(tmp_path, spec_text(f"x: {dtype}[N]", "y: float32[N]", "y = 1.0 * x", "", "grad: none"))
    codes = np.resize(np.arange(16)[::-1], 48).reshape(-1, N).astype(np.uint8)
    signed = {
        "int4": np.where(codes < 8, codes, codes - 16.0), "uint4": codes,
        "float4_e2m1fn": np.where(codes < 8, 1, -1) * FLOAT4[codes & 7],
    }[dtype]  # fmt: skip
    for row, expected in zip(codes, signed, strict=True):
        x = jax.lax.bitcast_convert_type((row[0::2] | row[1::2] << 4).astype(np.uint8), jnp.dtype(dtype)).reshape(-1)
        np.testing.assert_array_equal(op(x, implementation=implementation), expected)


@IMPLEMENTATIONS
@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_floats_become_float4(tmp_path, wide, implementation):
    """The nearest, ties to the even code; larger ones 6, NaN 0. In the chain and at the store."""
    text = spec_text(
        f"x: {wide}[N]", "y: float4_e2m1fn[N]; z: float32[N]", "y = x; z = cast(x, float4_e2m1fn)", "", "grad: none"
    )
    ties = (FLOAT4[1:] + FLOAT4[:-1]) / 2
    x = np.concatenate(
        [FLOAT4, ties, np.nextafter(ties, 0, dtype=wide), np.nextafter(ties, 9, dtype=wide), [7, np.inf, 1e-40]]
    )
    x = np.concatenate([x, -x, [np.nan, 0]]).astype(wide)
    above, from_ = ties[0::2], ties[1::2]  # ties to the code below, and to that above
    a = np.where(np.isnan(x), 0, abs(x))[:, None]
    expected = np.copysign(FLOAT4[(a > above).sum(-1) + (a >= from_).sum(-1)], x)
    with jax.enable_x64(wide == "float64"):
        for found in make_op(tmp_path, text)(x, implementation=implementation):
            np.testing.assert_array_equal(np.asarray(found, np.float32), expected)


@IMPLEMENTATIONS
def test_numbers_become_4_bit_integers(tmp_path, implementation):
    """They saturate, NaN is 0, and floats are cut off; an integer becomes float4 too."""
    text = spec_text(
        "x: float32[N]; i: int32[N]", "a: int4[N]; b: uint4[N]; c: int4[N]; d: uint4[N]; e: float4_e2m1fn[N]",
        "a = x; b = x; c = i; d = cast(i, uint4); e = i", "", "grad: none",
    )  # fmt: skip
    x = np.array([-9, -7.9, -0.5, 0.9, 7.5, 8, 15.9, 1e9, np.inf, np.nan], np.float32)
    i = np.array([-(2**31), -9, -8, -1, 0, 7, 8, 15, 16, 2**31 - 1], np.int32)
    found = make_op(tmp_path, text)(x, i, implementation=implementation)
    expected = [
        [-8, -7, 0, 0, 7, 7, 7, 7, 7, 0], [0, 0, 0, 0, 7, 8, 15, 15, 15, 0], [-8, -8, -8, -1, 0, 7, 7, 7, 7, 7],
        [0, 0, 0, 0, 0, 7, 8, 15, 15, 15], [-6, -6, -6, -1, 0, 6, 6, 6, 6, 6],
    ]  # fmt: skip
    np.testing.assert_array_equal([np.asarray(y, np.float32) for y in found], expected)


@IMPLEMENTATIONS
@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_powers_of_two(tmp_path, wide, implementation):
    """The nearest one, halves up; it saturates, and negative numbers are NaN. One per row, one per element, and in the chain."""
    text = spec_text(
        f"x: {wide}[M, N]", "r: float8_e8m0fnu[M]; e: float8_e8m0fnu[M, N]; c: float32[M, N]",
        "r = max(x, axis=N); e = x; c = cast(x, float8_e8m0fnu)", "", "grad: none",
    )  # fmt: skip
    half = [np.nextafter(1.5, 0, dtype=wide), 1.5, 1.75, 2, 3, 5, 6, 7]
    x = np.array(
        [
            0,
            -0.0,
            1e-45,
            2**-127,
            1.25 * 2**-127,
            1.5 * 2**-127,
            2**-126,
            *half,
            2.0**127,
            1.6 * 2.0**127,
            np.inf,
            np.nan,
            -1,
            -np.inf,
        ]
    )
    known = [2.0**-127] * 5 + [2.0**-126] * 2 + [1, 2, 2, 2, 4, 4, 8, 8] + [2.0**127] * 3 + [np.nan] * 3
    x = np.stack([x.astype(wide)] * 2, 1)
    with jax.enable_x64(wide == "float64"):
        r, e, c = make_op(tmp_path, text)(x, implementation=implementation)
    flushed = 2.0**-127 if implementation == "xla" else 0  # XLA on a CPU makes zeros of denormal numbers
    for found in (r, np.asarray(e)[:, 0], np.asarray(e)[:, 1], c[:, 0]):
        np.testing.assert_allclose(np.asarray(found).astype(np.float64), known, rtol=0, atol=flushed)


@IMPLEMENTATIONS
def test_every_power_of_two_is_read(tmp_path, implementation):
    op = make_op(tmp_path, spec_text("x: float8_e8m0fnu[N]", "y: float32[N]", "y = 1.0 * x", "", "grad: none"))
    x = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
    expected = np.append(np.ldexp(1.0, np.arange(-127, 128)), np.nan)
    np.testing.assert_array_equal(op(x, implementation=implementation), expected.astype(np.float32))


def test_an_odd_number_is_left_to_xla(tmp_path):
    op = make_op(tmp_path, spec_text("x: int4[..., N]", "y: int4[..., N]", "y = -x", "", "grad: none"))
    x = jnp.ones((3, 5), "int4")
    np.testing.assert_array_equal(op(x), np.full((3, 5), -1))
    with pytest.raises(ValueError, match="two 4-bit numbers share a byte, and 15 of them do not fill whole bytes"):
        op(x, implementation="interpret")
