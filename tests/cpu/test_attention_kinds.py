"""Each kind of attention in the examples has the values and gradients of plain jnp, also with interpreted kernels."""

import pytest

from codegen.runtime import interpret_mode
from examples.attention import KINDS, differences
from tests.turns import some

# Roundings to bfloat16, 2**-9 each: of the weights or of what they are multiplied with, of their gradients, and of the result
ALLOWED = 3 * 2**-9


@pytest.mark.parametrize("name", some(KINDS, 2, 1))
def test_a_kind_is_what_plain_attention_computes(name):
    assert max(differences(KINDS[name]).values()) < ALLOWED


@pytest.mark.whole
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_on_interpreted_kernels(name):
    with interpret_mode():
        assert max(differences(KINDS[name]).values()) < ALLOWED
