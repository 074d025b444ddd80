"""Makes ops of specs while a program runs: their modules are text in memory."""

from __future__ import annotations

import itertools
import linecache
import sys
import types
from typing import Any

from codegen.plan.op import Op as PlannedOp
from codegen.render import render_op

_count = itertools.count()


def op_of(planned: PlannedOp) -> Any:
    """The JAX function of a planned op. Its module is generated and run; its source stays readable, as CuTe DSL reads it."""
    source = render_op(planned)
    name = f"cutefuse_made_{next(_count)}_{planned.spec.op}"
    path = f"<{name}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    exec(compile(source, path, "exec"), module.__dict__)
    return getattr(module, planned.spec.op)
