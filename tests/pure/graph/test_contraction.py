"""The products and sums of a chain that are rounded separately."""

import pytest

from codegen.pipeline import read_op
from codegen.render import render_op

HEAD = """
op: met
summary: A value and a statistic of itself.
inputs:
  x: float32[..., N]
  a: float32[N]
outputs:
  y: float32[..., N]
chain: |
"""


def chain_of(lines: str) -> str:
    """The generated text of a chain, with its functions only."""
    text = HEAD + "".join(f"  {line}\n" for line in lines.split("; ")) + "reference: x\ngrad: none\n"
    return render_op(read_op("specs/met.yaml", text)).partition("@cute.kernel")[0]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("z = x * a + 1; y = z - max(z, axis=N)", ["device.multiply(x, a) + 1.0"]),
        ("z = x * a; y = exp(z - max(z, axis=N))", ["device.multiply(x, a)"]),
        ("z = -(x * a); y = exp(z - max(z, axis=N))", ["-device.multiply(x, a)"]),
        ("z = x * a + x; y = z - mean(z, axis=N)", ["device.multiply(x, a) + x"]),
        (
            "z = tanh(x); y = z - min(z, axis=N) + a",
            ["device.settled(device.tanh(x, False))", "device.subtract(z, row_min)"],
        ),
    ],
)
def test_what_is_rounded_by_itself(lines, expected):
    text = chain_of(lines)
    assert all(line in text for line in expected), text


@pytest.mark.parametrize(
    "lines",
    [
        "y = x * a + 1 + 0 * sum(x, axis=N)",  # the statistic is another value's
        "y = (x * a + 1) + sum(x * x, axis=N)",  # what is reduced is not used again
        "z = x + a; y = z - max(z, axis=N)",  # no product
        "z = x * a; y = z / max(z, axis=N)",  # no sum
    ],
)
def test_other_values_may_be_contracted(lines):
    assert "device.multiply" not in chain_of(lines) and "device.settled" not in chain_of(lines)


def test_a_tile_of_products_is_rounded_as_what_follows_it():
    text = """
op: met
summary: A product with its epilogue, and the greatest of each row.
inputs:
  x: bfloat16[..., K]
  w: bfloat16[K, N]
  a: float32[N]
outputs:
  y: bfloat16[..., N]
  top: float32[...]
chain: |
  z = (x @ w) * a + 0.5
  y = z
  top = max(z, axis=N)
reference: |
  y, top = x, x
"""
    made = render_op(read_op("specs/met.yaml", text))
    written = [line.strip() for line in made.splitlines() if "acc" in line and "0.5" in line]
    assert len(written) > 5 and all(
        "device.multiply(acc, a)" in w or "runtime.settled(acc * a)" in w for w in written
    ), written


def test_elements_that_are_compared_with_their_maximum_are_computed_once_in_jnp():
    """XLA computes elements again in each of its kernels, and may round them otherwise: none would be the maximum."""
    barrier = "jax.lax.optimization_barrier("
    text = HEAD + "  z = exp(x)\n  y = z - max(z, axis=...) * a\nreference: x\n"
    stages = render_op(read_op("specs/met.yaml", text)).split("\ndef ")
    meeting = [s for s in stages if "_xla(" in s.partition("\n")[0] and ("jnp.max(" in s or " == " in s)]
    assert len(meeting) >= 3 and all(barrier in s for s in meeting), meeting
    assert barrier not in render_op(read_op("specs/met.yaml", text.replace("exp(x)", "-x")))
