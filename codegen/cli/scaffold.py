"""The starter spec that `codegen new` writes, and the JSON Schema of a spec."""

from __future__ import annotations

from codegen.arch import ARCHITECTURES
from codegen.ir import DTYPES
from codegen.specfile import KEYS, REQUIRED

STARTER = """\
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
    return STARTER.format(op=op)


def json_schema() -> dict:
    """The JSON Schema (2020-12) of a spec: keys and forms. What the chain says is checked by `codegen build`."""
    dtype = {"enum": sorted(DTYPES)}
    array = {
        "type": "string",
        "pattern": r"^\s*[A-Za-z_]\w*\s*\[.*\]\s*(=\s*.+)?$",
        "description": "DTYPE[axes], as in T[..., N]; an input may have a default: T[N] = 0",
    }
    arrays = {"type": "object", "minProperties": 1, "additionalProperties": array}
    param = {
        "oneOf": [
            {
                "type": "number",
                "description": "a static parameter with this default: an int where it is whole, else a float",
            },
            {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "type": {
                        "enum": ["float", "int", "bool"],
                        "description": "that of the default if not given, else float",
                    },
                    "default": {"type": ["number", "boolean", "null"]},
                    "static": {"type": "boolean", "default": True},
                    "doc": {"type": "string"},
                },
            },
        ]
    }
    domain = {
        "oneOf": [
            {"enum": ["positive", "nonzero", "finite"]},
            {"type": "string", "pattern": r"^index\([A-Z]\w*\)$"},
            {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
        ]
    }
    power = {"type": "integer", "minimum": 1}
    schedule = {"threads": power, "vector_bytes": power}
    properties = {
        "op": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"},
        "summary": {"type": "string", "maxLength": 300},
        "types": {
            "type": "object",
            "propertyNames": {"pattern": "^[A-Z][A-Za-z0-9]{0,15}$"},
            "additionalProperties": {"type": "array", "items": dtype, "minItems": 1, "uniqueItems": True},
        },
        "inputs": arrays,
        "outputs": arrays,
        "params": {"type": "object", "additionalProperties": param},
        "chain": {"type": "string", "description": "`name = expression`, one a line"},
        "reference": {"type": "string", "description": "a jnp expression, or statements that assign every output"},
        "grad": {"oneOf": [{"enum": ["auto", "none"]}, {"type": "object", "additionalProperties": {"type": "string"}}]},
        "aliases": {"type": "object", "additionalProperties": {"type": "string"}},
        "save": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "math": {"enum": ["auto", "precise", "fast"], "default": "auto"},
        "tolerance": {
            "type": "object",
            "additionalProperties": False,
            "required": ["why"],
            "properties": {"rtol": {"type": "number"}, "atol": {"type": "number"}, "why": {"type": "string"}},
        },
        "domain": {"type": "object", "additionalProperties": domain},
        "schedule": {
            "type": "object",
            "additionalProperties": False,
            "properties": schedule
            | {a: {"type": "object", "additionalProperties": False, "properties": schedule} for a in ARCHITECTURES},
        },
        "bench": {
            "type": "array",
            "items": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
        },
    }
    assert set(properties) == set(KEYS)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "codegen op spec",
        "type": "object",
        "additionalProperties": False,
        "required": list(REQUIRED),
        "properties": properties,
    }
