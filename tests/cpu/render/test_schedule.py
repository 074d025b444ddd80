"""Schedules that a spec may ask for, run through the interpreter."""

import jax
import jax.numpy as jnp
import pytest

import generated
from tests.making import make_op

SPEC = """
op: gated
summary: SwiGLU with a schedule of its own.
types:
  T: [float32, bfloat16]
inputs:
  x: T[..., (2 N)]
outputs:
  y: T[..., N]
chain: |
  y = silu(x[0]) * x[1]
reference: |
  g, u = jnp.split(x, 2, axis=-1)
  y = jax.nn.silu(g) * u
schedule:
  threads: {threads}
  vector_bytes: {vector_bytes}
"""


# 1024: a kernel that read its block's size was miscompiled there
@pytest.mark.each
@pytest.mark.parametrize(("threads", "vector_bytes"), [(32, 16), (512, 8), (1024, 16), (1024, 8)])
@pytest.mark.parametrize("shape", [(7, 8192), (3, 2 * 1021)], ids=str)
def test_every_schedule_gives_the_same(threads, vector_bytes, shape, tmp_path):
    op = make_op(tmp_path, SPEC.format(threads=threads, vector_bytes=vector_bytes))
    x = jax.random.normal(jax.random.key(0), shape, jnp.bfloat16)
    plain = generated.swiglu(x, implementation="interpret")
    assert jnp.array_equal(op(x, implementation="interpret"), plain)
    assert jnp.allclose(plain.astype(jnp.float32), op(x, implementation="xla").astype(jnp.float32), rtol=2**-7)
