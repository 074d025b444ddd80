"""The JSON Schema of a spec, and its file for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from codegen.cli.files.outputs import put
from codegen.graph.nodes import DTYPES
from codegen.spec.specfile import KEYS, POSITIONS, REQUIRED
from codegen.targets import ARCHITECTURES

SCHEMA_FILE = "spec.schema.json"  # in the folder of specs
TITLE = "codegen op spec"

DESCRIPTIONS = {
    "op": "The name of the op: the file's stem, the generated module and the Python function.",
    "summary": "One sentence: the first line of the docstring.",
    "types": "Type variables, each with the dtypes it ranges over: `T: [float32, bfloat16]`. The arrays of a call bind them.",
    "inputs": "The arrays that the op takes, in the order of the function's arguments: `x: T[..., N]`. `...` is any number of "
    "leading axes, a name is one axis. `bias: T[N] = 0` may be left out of a call.",
    "outputs": "The arrays that the op returns: `y: T[..., N]`. Several come back as a NamedTuple.",
    "params": "Scalars, given by keyword: `eps: 1e-6` is compiled in, `{type: float, default: 1.0, static: false}` may change "
    "with every call.",
    "chain": "The formulas of the kernel, one `name = expression` per line. Values broadcast by the names of their axes. Floats "
    "are computed in float32 and rounded at the store.",
    "reference": "The same op in jnp, written independently: an expression, or statements that assign every output. Tests "
    "compare the kernel with it.",
    "grad": "auto: the backward is derived from the chain. none: the op has no gradient. Or a formula for each input, in the "
    "chain's language, with `dy` for the cotangent of `y`.",
    "aliases": "Which output may take the buffer of which input, where a call donates it: `{residual_out: residual}`.",
    "save": "Values of the chain that the forward saves for the backward. By default codegen decides.",
    "math": "auto: approximate functions where the output's type hides the error. precise: none. fast: wherever there is one.",
    "tolerance": "Replaces the tolerance that tests derive from the chain.",
    "domain": "The values that an input or a parameter may take, for tests: `x: positive`, `x: [0, 1]`, `i: index(N)`.",
    "schedule": "Settings of the launch in place of the plan's, for all architectures or for one.",
    "bench": "Shapes that `codegen bench` measures, with a size for every axis: `- {...: 8192, N: 4096}`.",
}


# The forms of values
_DTYPE = {"enum": sorted(DTYPES)}
_ARRAY = {
    "type": "string",
    "pattern": r"^\s*[A-Za-z_]\w*\s*\[.*\]\s*(=\s*.+)?$",
    "description": "DTYPE[axes], as in T[..., N]; an input may have a default: T[N] = 0",
}
_ARRAYS = {"type": "object", "minProperties": 1, "additionalProperties": _ARRAY}
_NUMBER: dict[str, Any] = {"type": "number"}
_PARAM = {
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
                    "description": "by default the default's type, or float without a default",
                },
                "default": {
                    "type": ["number", "boolean", "null"],
                    "description": "without one, every call passes a value",
                },
                "static": {
                    "type": "boolean",
                    "default": True,
                    "description": "true: compiled in; false: it may change with every call and be traced",
                },
                "doc": {"type": "string", "description": "its line in the docstring"},
            },
        },
    ]
}
_DOMAIN = {
    "oneOf": [
        {"enum": ["positive", "nonzero", "finite"]},
        {"type": "string", "pattern": f"^{POSITIONS}$"},
        {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
    ]
}
_POWER: dict[str, Any] = {"type": "integer", "minimum": 1}
_SCHEDULE = {
    "threads": _POWER | {"description": "threads per block"},
    "vector_bytes": _POWER | {"description": "bytes that a thread loads and stores at once"},
}
PROPERTIES: dict[str, dict[str, Any]] = {
    "op": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"},
    "summary": {"type": "string", "maxLength": 300},
    "types": {
        "type": "object",
        "propertyNames": {"pattern": "^[A-Z][A-Za-z0-9]{0,15}$"},
        "additionalProperties": {"type": "array", "items": _DTYPE, "minItems": 1, "uniqueItems": True},
    },
    "inputs": _ARRAYS,
    "outputs": _ARRAYS,
    "params": {"type": "object", "additionalProperties": _PARAM},
    "chain": {"type": "string"},
    "reference": {"type": "string"},
    "grad": {"oneOf": [{"enum": ["auto", "none"]}, {"type": "object", "additionalProperties": {"type": "string"}}]},
    "aliases": {"type": "object", "additionalProperties": {"type": "string"}},
    "save": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "math": {"enum": ["auto", "precise", "fast"], "default": "auto"},
    "tolerance": {
        "type": "object",
        "additionalProperties": False,
        "required": ["why"],
        "properties": {
            "rtol": _NUMBER | {"description": "relative to the reference's value"},
            "atol": _NUMBER | {"description": "absolute"},
            "why": {"type": "string", "description": "why the derived tolerance does not apply"},
        },
    },
    "domain": {"type": "object", "additionalProperties": _DOMAIN},
    "schedule": {
        "type": "object",
        "additionalProperties": False,
        "properties": _SCHEDULE
        | {
            a: {
                "type": "object",
                "additionalProperties": False,
                "properties": _SCHEDULE,
                "description": f"only for {a}",
            }
            for a in ARCHITECTURES
        },
    },
    "bench": {
        "type": "array",
        "items": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
    },
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a spec: its keys and their forms. `codegen build` checks the formulas."""
    assert set(PROPERTIES) == set(DESCRIPTIONS) == set(KEYS)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": TITLE,
        "type": "object",
        "additionalProperties": False,
        "required": list(REQUIRED),
        "properties": {key: {"description": DESCRIPTIONS[key]} | value for key, value in PROPERTIES.items()},
    }


def schema_text() -> str:
    """The text of the schema's file."""
    return json.dumps(json_schema(), indent=2) + "\n"


def keep_schema(folder: Path, only_where_there: bool = False) -> None:
    """Write this version's schema into a folder of specs. The first line of `codegen new`'s specs refers editors to it. A file
    of that name that is not our schema stays. Raises OSError."""
    path = folder / SCHEMA_FILE
    there = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
    if (there is None and only_where_there) or (there is not None and f'"title": "{TITLE}"' not in there):
        return
    if there != schema_text():
        put(path, schema_text().encode())
