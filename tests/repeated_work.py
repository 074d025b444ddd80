"""Spares the libraries' work that each test repeats, and that no test's result depends on. These functions are not part of the
libraries' interface: where a version lacks one, nothing changes."""

import functools
import sys


def read_no_constants() -> None:
    """Hypothesis draws numbers and texts that it finds in the sources of modules, those that tests generate among them. It parses
    all again in each process, and what a test draws depends on what others have imported."""
    from hypothesis.internal.conjecture import providers

    found = getattr(providers, "_local_constants", None)
    if found is not None and hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: found


def share_contexts() -> None:
    """JAX makes a context of MLIR for each program, which takes a fifth of a small program's time. A hundred programs share one: it
    keeps their types and constants."""
    mlir = sys.modules.get("jax._src.interpreters.mlir")
    make = getattr(mlir, "make_ir_context", None)
    if make is None or hasattr(make, "__wrapped__"):
        return
    made: list = []

    @functools.wraps(make)
    def shared(*args, **kwargs):
        if args or kwargs:
            return make(*args, **kwargs)
        if not made or made[0][1] == 0:
            made[:] = [[make(), 100]]
        made[0][1] -= 1
        return made[0][0]

    mlir.make_ir_context = shared
