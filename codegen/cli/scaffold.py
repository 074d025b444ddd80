"""What `codegen new` and `codegen init` write: a starter spec, and what a project needs besides."""

from __future__ import annotations

from codegen.cli.schema import SCHEMA_FILE

STARTER = """\
# yaml-language-server: $schema={schema}
# A fused op: what it takes, what it gives, how it is computed, and what it is held to.
op: {op}
summary: Add a per-column bias, then ReLU.

# Type variables: each ranges over the dtypes listed, and is bound by the arrays of a call.
types:
  T: [float32, float16, bfloat16]

# name: DTYPE[axes]. `...` is any number of leading axes, a name is one axis; values broadcast by name.
# A default makes an input optional: `bias: T[N] = 0`.
inputs:
  x: T[..., N]
  bias: T[N]
outputs:
  y: T[..., N]

# Scalars: `alpha: 1.0` is compiled in; {{type: float, default: 1.0, static: false}} may change with every call.
# params:
#   alpha: 1.0

# One `name = expression` a line. Floats are computed in float32 and rounded once, at the store.
chain: |
  z = x + bias
  y = relu(z)

# The same op in jnp, written independently: tests hold the kernel to it.
reference: jax.nn.relu(x + bias)
"""


def starter(op: str) -> str:
    """The starter spec of an op."""
    return STARTER.format(op=op, schema=SCHEMA_FILE)
