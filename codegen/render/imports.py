"""The imports of a generated module: the names in one table that its code uses."""

from __future__ import annotations

from collections.abc import Iterator

# The names by the module that they come from, "" for modules themselves, in the order of the import lines. An empty line
# stands between the groups: the standard library, libraries, codegen.
GROUPS: tuple[dict[str, tuple[str, ...]], ...] = (
    {"": ("functools",), "typing": ("NamedTuple",)},
    {"": ("cuda.bindings.driver as cuda", "cutlass", "cutlass.cute as cute", "jax", "jax.numpy as jnp")},
    {
        "codegen": ("device", "runtime"),
        "codegen.device": (
            "access",
            "attention as attend",  # an op may be called attention
            "flat",
            "gemm",
            "middle",
            "partials",
            "reduce",
            "rowwise",
            "scan",
            "turned",
            "select",
            "sorting",
            "thresholds",
            "walking",
        ),
        "codegen.shared": (
            "AttentionLaunch",
            "Contraction",
            "Launch",
            "MiddleLaunch",
            "RowLaunch",
            "ScanLaunch",
            "SelectLaunch",
            "StepsLaunch",
            "Walk",
        ),
    },
)


def import_lines(code: str) -> list[str]:
    """The import lines of a module with this code."""
    groups = [[line for module, names in group.items() for line in _lines(module, names, code)] for group in GROUPS]
    return [line for group in groups if group for line in ("", *group)][1:]


def _lines(module: str, names: tuple[str, ...], code: str) -> Iterator[str]:
    used = [name for name in names if _uses(code, name.rpartition(" ")[2])]
    if module:
        yield from [f"from {module} import {', '.join(used)}"] if used else []
    else:
        yield from (f"import {name}" for name in used)


def _uses(code: str, name: str) -> bool:
    """Whether code uses a module or a class; a path such as `templates/row.py` does not."""
    at = code.find(name)
    while at >= 0:
        before, after = code[max(0, at - 1) : at], code[at + len(name) : at + len(name) + 1]
        if after in (".", "]", ")") and not (before in ("_", ".", "/") or before.isalnum()):
            return True
        at = code.find(name, at + 1)
    return False
