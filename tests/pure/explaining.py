"""Ops that are explained, what `explain` says that they cost, and the command."""

import functools
import sys

import pytest

from codegen import __main__ as command_line
from codegen.explain.report import explain
from codegen.pipeline import read_op
from tests.places import SPECS


@functools.cache
def library(name: str):
    return read_op(SPECS / f"{name}.yaml")


def made(chain: str, inputs: str, outputs: str, more: str = ""):
    """An op whose reference does not matter."""
    arrays = [pair.split(":") for pair in outputs.split(";")]
    reference = "\n".join(f"  {name.strip()} = 0" for name, _ in arrays)
    rows = ["op: made", "summary: Made here.", "inputs:", *(f"  {i.strip()}" for i in inputs.split(";")), "outputs:"]
    rows += [*(f"  {o.strip()}" for o in outputs.split(";")), "chain: |", *(f"  {c.strip()}" for c in chain.split(";"))]
    return read_op("specs/made.yaml", "\n".join([*rows, "reference: |", reference, more]))


def costs(op, shape, **types):
    """The report on a call, and what it says of these types."""
    report = explain(op, shape)
    return report, next(c for c in report["costs"] if c["types"] == types)


def run(monkeypatch, *words) -> int:
    """The status of a command."""
    monkeypatch.setattr(sys, "argv", ["codegen", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    return stopped.value.code or 0
