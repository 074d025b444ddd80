"""Ops made on the spot, for tests of one function or one feature."""

import importlib.util
import itertools
from pathlib import Path

from codegen.pipeline import read_op
from codegen.render import render_op

_count = itertools.count()


def make_op(folder: Path, text: str):
    """The op of a spec's text, generated into a file of its own and imported (CuTe DSL reads its own source)."""
    name = next(line.split(":")[1].strip() for line in text.splitlines() if line.startswith("op:"))
    path = folder / f"{name}_{next(_count)}.py"
    path.write_text(render_op(read_op(f"specs/{name}.yaml", text)))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)
