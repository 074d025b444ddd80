"""Small specs, commands as a user runs them, and the files of a folder, for tests of the command line."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.places import ROOT

HERE = os.environ | {"PYTHONPATH": str(ROOT)}  # this tree, whatever is installed

SPEC = """\
op: {op}
summary: Scales.
inputs:
  x: float32[..., N]
outputs:
  y: float32[..., N]
chain: y = {factor} * x
reference: {factor} * x
"""


class Result(NamedTuple):
    status: int
    out: str
    err: str


def write_specs(folder: Path, **factors: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for op, factor in factors.items():
        (folder / f"{op}.yaml").write_text(SPEC.format(op=op, factor=factor))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def process(*args: str, cwd: Path, env: dict[str, str] = HERE, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *args], cwd=cwd, env=env, capture_output=True, text=True, **options)


def left_by_builds(folder: Path) -> list[Path]:
    """Files of builds that have not ended, below a folder."""
    return [p for p in folder.rglob(".*") if p.name.startswith(".codegen")]
