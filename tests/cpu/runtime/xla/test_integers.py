"""Operations on integers: at negative numbers, at a zero divisor, and at shifts by any amount."""

import jax.numpy as jnp
import numpy as np
import pytest

from codegen.checking import testing
from tests.making import make_op, spec_text
from tests.turns import EVERY

CHAIN = """q = a // b; r = a % b; left = a << s; right = a >> s
both = (a & b) | ~(a ^ b); bits = popcount(a); q8 = a // 8; r8 = a % 8; by3 = a // -3; shifted = (a + 1 << 4) - 1
odd = (a & 1 != 0) ^ (b < 0)"""
REFERENCE = """q = jnp.floor_divide(a, b); r = jnp.mod(a, b); left = jnp.left_shift(a, s); right = jnp.right_shift(a, s)
both = jnp.bitwise_or(jnp.bitwise_and(a, b), jnp.bitwise_not(jnp.bitwise_xor(a, b))); bits = jax.lax.population_count(a)
q8 = jnp.floor_divide(a, 8); r8 = jnp.mod(a, 8); by3 = jnp.floor_divide(a, -3); shifted = jnp.left_shift(a + 1, 4) - 1
odd = jnp.not_equal(jnp.mod(a, 2) == 1, b < 0)"""
NUMBERS = [-(2**31), -(2**31) + 1, -100, -9, -8, -7, -1, 0, 1, 2, 7, 8, 9, 31, 32, 33, 100, 2**31 - 1]


def as_text(lines: str) -> str:
    return lines.replace("\n", "; ")


@pytest.fixture(scope="module")
def op(tmp_path_factory):
    names = as_text(CHAIN).split("; ")
    outputs = "; ".join(f"{n.split(' = ')[0]}: {'bool' if n.startswith('odd') else 'int32'}[..., N]" for n in names)
    text = spec_text(
        "a: int32[..., N]; b: int32[..., N]; s: int32[..., N]", outputs, as_text(CHAIN), as_text(REFERENCE)
    )
    return make_op(tmp_path_factory.mktemp("integers"), text)


@pytest.mark.parametrize("implementation", ["interpret", "xla"])
def test_every_pair_is_as_in_jnp(op, implementation):
    a, b = (x.ravel() for x in np.meshgrid(np.array(NUMBERS, np.int32), np.array(NUMBERS, np.int32)))
    got = op(a[None], b[None], b[None], implementation=implementation)
    for name, x, y in zip(got._fields, got, op.reference(a[None], b[None], b[None]), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y), name)


def test_values_are_pythons(op):
    """Expected values from Python's own integers, where those have a result."""
    pairs = [(a, b) for a in NUMBERS for b in NUMBERS if abs(a) < 1000 and abs(b) < 1000]
    a, b = (jnp.array([p], jnp.int32) for p in zip(*pairs, strict=True))
    got = op(a, b, b, implementation="interpret")
    for i, (x, y) in enumerate(pairs):
        if y != 0:
            assert (got.q[0, i], got.r[0, i]) == (x // y, x % y)
        else:
            assert (got.q[0, i], got.r[0, i]) == (-1 if x == 0 else -2, 0)
        assert got.right[0, i] == (x >> y if y >= 0 else min(x, 0) >> 31)
        assert got.bits[0, i] == (x & 0xFFFFFFFF).bit_count()
        assert got.both[0, i] == (x & y) | ~(x ^ y)


def test_other_calls(op):
    testing.check_op(op, "interpret", examples=2 if EVERY else None)
