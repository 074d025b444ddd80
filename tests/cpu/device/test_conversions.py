"""Conversions and remainders at the ends of their ranges, and kernels that did not compile or import in the past."""

import io

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from codegen.autodiff.backward import Derived
from codegen.measuring.compiled.compile import cubins_of_call
from codegen.runtime.call.arguments import Types
from tests.making import make_op, spec_text
from tests.turns import some

FLOATS = np.array([-1.0, 1, -0.3, 0.1, 2, -4, 0, np.nan], np.float32)
INTEGERS = np.array([-(2**31), -70000, -449, -448, -3, 0, 1, 17, 300, 448, 465, 57344, 10**6, 2**31 - 1], np.int32)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_integers_become_float8(tmp_path, dtype, implementation):
    """They are rounded once to the nearest, and saturate."""
    op = make_op(tmp_path, spec_text("x: int32[N]", f"y: {dtype}[N]", "y = x", "y = x", "grad: none"))
    top = float(ml_dtypes.finfo(dtype).max)
    expected = np.clip(INTEGERS.astype(np.float64), -top, top).astype(dtype)
    found = op(INTEGERS, implementation=implementation)
    np.testing.assert_array_equal(np.asarray(found, np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_a_cast_to_float8_of_integers_and_of_bools(tmp_path, implementation):
    text = spec_text(
        "x: float32[N]", "h: float8_e5m2[N]; b: float8_e4m3fn[N]",
        "h = cast(cast(x * 30, int8), float8_e5m2); b = where(x > 0, 1, 0)", "", "grad: none",
    )  # fmt: skip
    h, b = make_op(tmp_path, text)(FLOATS, implementation=implementation)
    np.testing.assert_array_equal(np.asarray(h, np.float32), [-32, 32, -8, 3, 64, -128, 0, 0])
    np.testing.assert_array_equal(np.asarray(b, np.float32), FLOATS > 0)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_a_count_is_stored_as_float8(tmp_path, implementation):
    text = spec_text(
        "x: float32[..., N]", "r: float8_e4m3fn[...]; c: float8_e4m3fn[N]",
        "r = sum(where(x > 0, 1, 0), axis=N); c = sum(where(x > 0, 1, 0), axis=...)", "", "grad: none",
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((5, 33)).astype(np.float32)
    r, c = make_op(tmp_path, text)(x, implementation=implementation)
    for found, axis in ((r, 1), (c, 0)):
        expected = (x > 0).sum(axis).astype(np.float64).astype("float8_e4m3fn")
        np.testing.assert_array_equal(np.asarray(found, np.float32), expected.astype(np.float32))


@pytest.mark.each
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("value", ["x", "exp(x)"])
def test_a_store_that_saturates_hands_its_cotangent_on(tmp_path, implementation, value):
    """As a conversion does in JAX."""
    op = make_op(tmp_path, spec_text("x: float32[..., N]", "y: float8_e4m3fn[N]", f"y = 400 * max({value}, axis=...)"))
    assert isinstance(op.backward, Derived)
    x = jnp.asarray([[-3.0, 0.5, 2.0]])
    (dx,) = jax.vjp(lambda x: op(x, implementation=implementation), x)[1](jnp.ones(3, "float8_e4m3fn"))
    np.testing.assert_allclose(dx, np.full((1, 3), 400) if value == "x" else 400 * np.exp(x), rtol=1e-5)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_the_remainder_of_the_least_integer(tmp_path, implementation):
    op = make_op(tmp_path, spec_text("x: int32[N]; y: int32[N]", "p: int32[N]", "p = rem(x, y)", "", "grad: none"))
    least, most = -(2**31), 2**31 - 1
    pairs = [
        (least, 7),
        (least, 47),
        (least, -7),
        (least, most),
        (least, least),
        (least, 3),
        (least + 1, least),
        (-9, 4),
    ]
    x, y = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    expected = [int(np.fmod(a, b)) for a, b in pairs]  # the sign of the dividend
    np.testing.assert_array_equal(np.asarray(op(x, y, implementation=implementation)), expected)


@pytest.mark.parametrize(
    ("dtype", "parts", "columns"), some([("float32", 3, 5), ("bfloat16", 3, 16), ("float32", 6, 8)], 2)
)
def test_parts_that_are_no_power_of_two_are_not_sent_for(tmp_path, dtype, parts, columns):
    text = spec_text(
        f"x: {dtype}[..., (N {parts})]", "y: float32[..., N]; c: float32[N]",
        "z = x[0] + x[1] * x[2]; y = z - max(z, axis=N); c = sum(z, axis=...)", "", "grad: none",
    )  # fmt: skip
    x = jax.random.normal(jax.random.key(0), (7, columns * parts)).astype(dtype)
    y, c = make_op(tmp_path, text)(x, implementation="interpret")
    p = np.asarray(x, np.float64).reshape(7, columns, parts)
    z = p[..., 0] + p[..., 1] * p[..., 2]
    np.testing.assert_allclose(np.asarray(y), z - z.max(-1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(np.asarray(c), z.sum(0), atol=1e-5)


def test_a_second_result_over_other_rows_has_a_name(tmp_path):
    """The gradients of an axis and of rows, in this order, each have a finishing kernel."""
    text = spec_text(
        "x: float32[..., H, D]; w: float32[D]; s: float32[..., D]", "y: float32[..., H, D]", "y = x * w * s"
    )
    op = make_op(tmp_path, text)
    x, w, s = (jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(3, 5, 8), (8,), (3, 8)]))
    found = jax.grad(lambda *a: op(*a, implementation="interpret").sum(), (0, 1, 2))(x, w, s)
    expected = jax.grad(lambda x, w, s: (x * w * s[:, None]).sum(), (0, 1, 2))(x, w, s)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.each
@pytest.mark.parametrize("chain", ["y = x * 0", "y = where(x > 0, x * 0, 0)", "y = relu(x) * 0 + index(N)"])
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_gradients_that_are_all_zero(tmp_path, chain, implementation):
    op = make_op(tmp_path, spec_text("x: float32[..., N]", "y: float32[..., N]", chain))
    x = jnp.arange(10.0).reshape(2, 5) - 5
    found = jax.grad(lambda x: op(x, implementation=implementation).sum())(x)
    np.testing.assert_array_equal(found, np.zeros((2, 5)))


WHOLE = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(2**15), 2**15 - 1), "int32": (-(2**31), 2**31 - 1)}


@pytest.mark.parametrize("dtype", some(WHOLE, 3))
def test_quotients_by_a_value_of_the_row_are_rounded(tmp_path, dtype):
    """At ties and close to them, at either end of the range, and where the dividend, the divisor or its reciprocal is
    not a normal number."""
    low, high = WHOLE[dtype]
    chain = f"m = max(x, axis=N); q = cast(round(x / s), {dtype}); r = cast(round(x), {dtype})"
    text = spec_text("x: float32[..., N]; s: float32[...]", f"m: float32[...]; q: {dtype}[..., N]; r: {dtype}[..., N]", chain,
                     "", "grad: none")  # fmt: skip
    draw = np.random.default_rng(0)
    usual = 2.0 ** draw.uniform(-126, 100, 24) * draw.choice([-1, 1], 24)
    s = np.array([*usual, 1, 3, 0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38], np.float32)
    ties = draw.integers(low - 3, min(high, 2**20) + 3, 40) + 0.5
    with np.errstate(all="ignore"):
        x = np.concatenate(
            [np.outer(s, ties), np.outer(s, draw.uniform(-2, 2, 20)), draw.standard_normal((len(s), 8))], 1
        )
        x = x.astype(np.float32)
        x = np.concatenate([x, np.nextafter(x, np.float32(0)), np.nextafter(x, np.float32(np.inf))], 1)
        ends = [0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -3e38]
        x = np.concatenate([x, np.tile(np.array(ends, np.float32), (len(s), 1))], 1)
        op = make_op(tmp_path, text)
        for part in (x, x[:, :31]):  # in vectors, and one by one
            found = op(part, s, implementation="interpret")
            for got, value in ((found[1], part / s[:, None]), (found[2], part)):
                assert value.dtype == np.float32
                wanted = np.clip(np.rint(np.nan_to_num(value.astype(np.float64), nan=0)), low, high)
                np.testing.assert_array_equal(np.asarray(got, np.float64), wanted)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quotients_are_rounded_to_the_type_of_a_call(tmp_path, dtype):
    text = spec_text("x: float32[..., N]; s: float32[...]", "m: float32[...]; q: Q[..., N]",
                     "m = max(x, axis=N); q = cast(round(x / s), Q)", "", "grad: none", "{Q: [int8, uint8]}")  # fmt: skip
    op, draw = make_op(tmp_path, text), np.random.default_rng(0)
    x, s = draw.uniform(-400, 400, (5, 40)).astype(np.float32), draw.uniform(1, 3, 5).astype(np.float32)
    low, high = WHOLE[dtype]
    for implementation in ("xla", "interpret"):
        q = op(x, s, Q=dtype, implementation=implementation).q
        assert q.dtype == dtype
        np.testing.assert_array_equal(q, np.clip(np.rint(x / s[:, None]), low, high))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("value", ["max(x, axis=N)", "tanh(5.0)"])
def test_words_of_equal_float8_numbers(tmp_path, dtype, value):
    """ptxas converted two of the four, and put them beside what some register held. The interpreter, which reads PTX, cannot see that:
    no conversion of Hopper's machine code (opcode 0x23e) may have a third register, which it would merge."""
    text = spec_text(
        "x: float32[..., N]", f"y: {dtype}[..., N]; z: float32[..., N]", f"y = {value}; z = x + 1", "", "grad: none"
    )
    op = make_op(tmp_path, text)
    (cubin,) = cubins_of_call(op, Types(()), {"...": 16, "N": 64}, "sm_90a")
    words = np.frombuffer(_machine_code(cubin), "<u8").reshape(-1, 2)
    merged = words[(words[:, 0] & 0xFFF) == 0x23E, 1] & 0xFF
    assert len(merged) and (merged == 0xFF).all()


def _machine_code(cubin: bytes) -> bytes:
    (text,) = [s for s in ELFFile(io.BytesIO(cubin)).iter_sections() if s.name.startswith(".text")]
    return text.data()


@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("int16", "uint16"), ("uint16", "int8")])
def test_quotients_of_small_integers(tmp_path, dtypes):
    """All pairs of int8; others at the ends of their types, near whole quotients, and at random."""
    draw, pairs = np.random.default_rng(0), []
    for dtype in dtypes:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        near = np.array([low, low + 1, -3, -2, -1, 0, 1, 2, 3, high - 1, high]).clip(low, high)
        pairs.append(np.arange(low, high + 1) if high < 200 else np.concatenate([near, draw.integers(low, high, 250)]))
    a, b = (x.ravel() for x in np.meshgrid(*pairs))
    if dtypes != ("int8", "int8"):  # and multiples of the divisor, and their neighbours
        a, b = np.concatenate([a, *(a // np.where(b == 0, 1, b) * b + i for i in (-1, 0, 1))]), np.tile(b, 4)
        a = a.clip(np.iinfo(dtypes[0]).min, np.iinfo(dtypes[0]).max)
    text = spec_text(
        f"a: {dtypes[0]}[N]; b: {dtypes[1]}[N]",
        "q: int32[N]; r: int32[N]",
        "q = a // b; r = a % b",
        "q = 0; r = 0",
        "grad: none",
    )
    op = make_op(tmp_path, text)
    assert "floor_divide_small" in next(tmp_path.glob("made_*.py")).read_text()
    q, r = op(jnp.asarray(a, dtypes[0]), jnp.asarray(b, dtypes[1]), implementation="interpret")
    wide = jnp.asarray(a, jnp.int32), jnp.asarray(b, jnp.int32)
    np.testing.assert_array_equal(q, wide[0] // wide[1])
    np.testing.assert_array_equal(r, wide[0] % wide[1])
