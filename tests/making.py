"""Makes ops for tests of one function or one feature, and inputs of attention."""

import importlib.util
import itertools
from collections import namedtuple
from pathlib import Path

import ml_dtypes  # noqa: F401  # so that NumPy knows bfloat16
import numpy as np

from codegen.pipeline import read_op
from codegen.render import render_op

_count = itertools.count()


def make_op(folder: Path, text: str):
    """The op of a spec's text, generated into its own file and imported, since CuTe DSL reads its source."""
    name = next(line.split(":")[1].strip() for line in text.splitlines() if line.startswith("op:"))
    return import_op(folder, name, render_op(read_op(f"specs/{name}.yaml", text)))


def import_op(folder: Path, name: str, module: str):
    """The op of a generated module's text."""
    path = folder / f"{name}_{next(_count)}.py"
    path.write_text(module)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def make_jnp_op(text: str):
    """The op of a spec's text without a kernel: its jnp form and its reference."""
    import jax
    import jax.numpy as jnp

    from codegen import runtime
    from codegen.graph import emit
    from codegen.graph.nodes import DTYPES
    from codegen.plan.access import access_key
    from codegen.spec.embedding import to_data

    name = next(line.split(":")[1].strip() for line in text.splitlines() if line.startswith("op:"))
    made = read_op(f"specs/{name}.yaml", text)
    spec, plan = made.spec, made.plan
    leaves = {access_key(plan, a): a.name for a in plan.loads} | {("param", p.name): p.name for p in spec.params}
    types = {d: f"jnp.{d}" for d in DTYPES} | {t: t for t, _ in spec.types}
    dialect = emit.Dialect("jnp", leaves, "compute", "jnp.int32", types, order=plan.order)
    stores = {(a.array.name, a.part): a.name for a in plan.stores if a.array}
    targets = {(s.name, s.part): stores.get((s.name, s.part), s.name) for s in made.statements}
    body = emit.emit(made.statements, targets, dialect)
    body.append(f"return {', '.join(stores.values())}")
    reference = [line for lines in made.reference.lines for line in lines.split("\n")]
    parameters = [*dict.fromkeys(leaves.values()), "compute", "row_axes", *dict(spec.types)]
    names = [*(a.name for a in spec.inputs), *(p.name for p in spec.params)]
    lines = [f"def xla({', '.join(parameters)}):", *(f"    {line}" for line in body)]
    lines += [f"def reference({', '.join(names)}):", *(f"    {line}" for line in reference)]
    found: dict = {"jax": jax, "jnp": jnp, "runtime": runtime}
    exec("\n".join(lines), found)
    fields = [a.name for a in spec.outputs]
    result = namedtuple("Outputs", fields) if len(fields) > 1 else None

    def declaration(): ...

    declaration.__name__ = name
    parts = {"launch": None, "xla": found["xla"], "reference": found["reference"], "result": result}
    return runtime.op(to_data(spec), **parts)(declaration)


def spec_text(inputs: str, outputs: str, chain: str, reference: str = "", more: str = "", types: str = "") -> str:
    """The text of a spec. Commas separate arrays, semicolons statements."""
    arrays = [pair.split(":", 1)[0].strip() for pair in outputs.split(";")]
    lines = ["op: made", "summary: Made here."]
    lines += [f"types: {types}"] if types else []
    lines += ["inputs:", *(f"  {i.strip()}" for i in inputs.split(";"))]
    lines += ["outputs:", *(f"  {o.strip()}" for o in outputs.split(";"))]
    lines += ["chain: |", *(f"  {c.strip()}" for c in chain.split(";"))]
    expected = reference.split(";") if reference else [f"{name} = 0" for name in arrays]
    return "\n".join([*lines, "reference: |", *(f"  {line.strip()}" for line in expected), more])


def attention_inputs(rows: int, columns: int, groups: int, d: int, e: int, dtype: str) -> list[np.ndarray]:
    """q, k, v and the cotangent of o."""
    rng = np.random.default_rng(rows)
    shapes = (2, rows, 1, groups, d), (2, columns, 1, d), (2, columns, 1, e), (2, rows, 1, groups, e)
    return [rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]
