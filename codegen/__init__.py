"""A declarative generator of fused GPU ops for JAX: a YAML spec in, a CuTe DSL kernel and a JAX function out."""

import importlib
from typing import Any

__version__ = "0.2.0"
# Imported when they are first asked for: they need JAX
_FUNCTIONS = {"trace": "codegen.tracing.trace", "fuse": "codegen.fusing.fuse"}


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'codegen' has no attribute {name!r}")
    return getattr(importlib.import_module(_FUNCTIONS[name]), name)
