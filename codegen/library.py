"""The folders that come with the program: templates, and the specs of the library of ops.

An installed distribution has them inside the package `codegen`; in a checkout they stand next to it.
"""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path


def folder(name: str) -> Traversable:
    """The folder of that name: `templates` or `specs`."""
    inside = resources.files("codegen") / name
    return inside if inside.is_dir() else Path(__file__).parent.parent / name
