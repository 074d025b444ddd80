"""The files that `codegen new` and `codegen init` write: a starter spec, a project's section and its hook."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from codegen import extras
from codegen.cli.project import Project
from codegen.cli.schema import SCHEMA_FILE
from codegen.errors import UserError, named

with extras.needed("build"):
    import yaml

FIRST = "bias_relu"  # the op of a project's first spec

STARTER = """\
# yaml-language-server: $schema={schema}
# A fused op: its inputs, its outputs, its formulas, and the reference that it is tested against.
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

# One `name = expression` per line. Floats are computed in float32 and rounded once, at the store.
chain: |
  z = x + bias
  y = relu(z)

# The same op in jnp, written independently: tests compare the kernel with it.
reference: jax.nn.relu(x + bias)
"""


def starter(op: str) -> str:
    """The starter spec of an op."""
    return STARTER.format(op=op, schema=SCHEMA_FILE)


# A project

HOOK = """\
- repo: local
  hooks:
    - id: codegen-check
      name: codegen check
      entry: codegen check
      language: system
      pass_filenames: false
      always_run: true
"""


def has_section(pyproject: Path) -> bool:
    """Whether a pyproject.toml has a section [tool.cutefuse]. Raises `UserError` where it is not valid TOML."""
    tool = _toml(pyproject, _read(pyproject)).get("tool")
    return isinstance(tool, dict) and "cutefuse" in tool


def with_section(pyproject: Path, project: Project, root: Path) -> str:
    """The text of a pyproject.toml with a section for the project's folders added at its end. A new one also says from which folder
    tests import the package: `pytest` does not import from the folder that it runs in. Raises `UserError`."""
    before = _read(pyproject)
    tests = "" if project.tests == Path() else project.tests.as_posix()
    folders = {"specs": project.specs.as_posix(), "package": project.package.as_posix(), "tests": tests}
    section = "\n".join(["[tool.cutefuse]", *(f"{key} = {json.dumps(value)}" for key, value in folders.items()), ""])
    tested = f"\n[tool.pytest.ini_options]\npythonpath = [{json.dumps(root.as_posix())}]\n"
    text = f"{before.rstrip()}\n\n{section}" if before.strip() else section + tested
    _toml(pyproject, text, f"add this to it:\n{section}")
    return text


def _toml(path: Path, text: str, hint: str = "") -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{named(path)}: {error}", hint) from None


def with_hook(path: Path) -> str:
    """The text of a .pre-commit-config.yaml that runs `codegen check` before every commit; unchanged where it already does.
    Raises `UserError` where the hook cannot be added at its end."""
    before = _read(path)
    if "codegen check" in before:
        return before
    if not before.strip():
        return f"repos:\n{_indented(HOOK, '  ')}"
    entry = re.search(r"^([ ]*)- repo:", before, re.MULTILINE)
    text = f"{before.rstrip()}\n{_indented(HOOK, entry[1] if entry else '  ')}"
    old, new = _yaml(before), _yaml(text)
    repos = old.get("repos") if isinstance(old, dict) else None
    if not isinstance(repos, list) or new != {**old, "repos": [*repos, *_yaml(HOOK)]}:
        raise UserError(f"{named(path)}: its hooks are not at its end", f"add this to its `repos`:\n{HOOK}")
    return text


def _indented(text: str, indent: str) -> str:
    return "".join(f"{indent}{line}" for line in text.splitlines(keepends=True))


def _yaml(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
