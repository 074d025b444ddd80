"""Which scans of states that no output has are one kernel, and which go through memory."""

import pytest

from codegen.pipeline import read_op
from tests.making import spec_text

CHAIN = "h = cumsum(x * b, axis=S); y = sum(h * b, axis=N)"


@pytest.mark.parametrize(
    ("size", "chain", "kind"),
    [
        ("N=64", CHAIN, "scan"),
        ("N=65", CHAIN, "staged"),
        ("N", CHAIN, "staged"),
        ("N=4", "h = cumsum(x * b, axis=S); y = sum(h * softmax(h, axis=N), axis=N)", "staged"),
        ("N=4", "h = cumsum(x * b, axis=S); y = sum(h * index(N), axis=N)", "staged"),
        ("N=4", "h = cumsum(x * b, axis=S); y = sum(h * b, axis=N) + cumsum(x, axis=S)", "staged"),
    ],
    ids=["registers have them", "too many", "no fixed size", "needed again", "their positions", "another scan"],
)
def test_states_are_in_registers_where_a_thread_can_have_them(size, chain, kind):
    text = spec_text(f"x: float32[S, D]; b: float32[S, {size}]", "y: float32[S, D]", chain)
    assert read_op("specs/made.yaml", text).plan.kind == kind
