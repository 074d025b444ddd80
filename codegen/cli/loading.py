"""Imports a package of generated ops, or a user's function, for a command that runs them, or raises one clear error."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from codegen.cli.options import UsageError, usage
from codegen.errors import SpecError, known, named, raised, suggested
from codegen.extras import MissingExtra


def load_ops(folder: Path, names: Sequence[str] | None) -> list[Any]:
    """The generated ops of these names, or all. Raises `UsageError`."""
    package = load_package(folder)
    for name in names or []:
        if name not in package.__all__:
            raise UsageError(no_op(name, package.__all__, folder))
    _check_devices()
    with _importing(folder):
        return [getattr(package, name) for name in names or package.__all__]


def load_kernels(folder: Path, names: Sequence[str] | None) -> list[Any]:
    """The kernels of the ops of these names, or of all. Raises `UsageError`."""
    from codegen.measuring.compiled.tasks import kernels_named

    package = load_package(folder)
    with _importing(folder), contextlib.suppress(KeyError):
        return kernels_named(package, names or package.__all__)
    return load_ops(folder, names)  # its error says which


def load_package(folder: Path) -> Any:
    """The package of generated ops in a folder. Raises `UsageError`."""
    from codegen.cli.files.placing import is_generated, settle

    settle([folder])
    if not is_generated(folder / "__init__.py"):
        raise UsageError(f"no ops in {named(folder)}: run `codegen build`, or name their package with --package")
    from codegen.measuring.compiled.tasks import load_package

    _check_environment()
    with _importing(folder):
        return load_package(folder)


def no_op(name: str, names: Sequence[str], folder: Path) -> str:
    """The message for an op that does not exist."""
    if (path := Path(name)).suffix in (".yaml", ".yml"):
        named_alone = f"an op is named without its file, as {path.stem!r}"
        return f"no op {name!r} in {named(folder)}: {named_alone}\n  --specs says which folder has the specs"
    return f"no op {name!r} in {named(folder)}. {suggested(name, names)}\n  `codegen list WORD` searches the ops"


def load_function(text: str) -> Any:
    """The object that MODULE:NAME names, with the current folder to import from. Raises `UsageError`."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise UsageError(f"cannot read {text!r}: write it as in my_module:my_function")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    path = os.path.relpath(module) if "/" in module else module
    if path.startswith(".."):
        raise UsageError(f"{module} is not in this folder: run codegen in a folder that contains it")
    try:
        found: Any = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    except (MissingExtra, SpecError):
        raise
    except Exception as error:
        raise UsageError(f"{module} cannot be imported{raised(error)}") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{module} has no {name!r}\n  {known(part, (n for n in vars(found) if n[:1] != '_'))}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{text} is not a function")
    return found


def arguments_of(text: str) -> tuple[Any, ...]:
    """The arguments that the function MODULE:NAME returns. Raises `UsageError`."""
    function = load_function(text)
    try:
        found = function()
    except (MissingExtra, SpecError):
        raise
    except Exception as error:
        raise UsageError(f"{text}, called without arguments, failed{raised(error)}") from None
    return found if isinstance(found, tuple) else (found,)


def arguments_like(function: Any, like: Sequence[str]) -> tuple[Any, ...]:
    """Arguments for a function, from `x=bfloat16[8192,4096]` or `scale=0.5` for each parameter. Raises `UsageError`."""
    import jax

    from codegen.graph.nodes import DTYPES

    given: dict[str, Any] = {}
    for text in like:
        found = re.fullmatch(r"\s*(\w+)\s*=\s*(?:(\w+)\s*\[([\d,\s]*)\]|([-+.\de]+))\s*", text)
        if found is None:
            raise UsageError(f"cannot read --like {text!r}: write it as in x=bfloat16[8192,4096]")
        name, dtype, sizes, number = found.groups()
        if dtype is None:
            given[name] = float(number)
        elif dtype not in DTYPES:
            raise UsageError(f"--like {text!r}: there is no dtype {dtype!r}\n  {known(dtype, DTYPES)}")
        else:
            given[name] = jax.ShapeDtypeStruct(tuple(int(n) for n in sizes.split(",") if n.strip()), dtype)
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters]
    if wrong := [name for name in given if name not in names]:
        raise UsageError(f"--like {wrong[0]}: the function has no such parameter\n  {known(wrong[0], names)}")
    needed = [
        p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if missing := [name for name in needed if name not in given]:
        raise UsageError(f'the function takes {missing[0]!r}: --like "{missing[0]}=bfloat16[8192,4096]"')
    last = max((names.index(name) for name in given), default=-1)
    defaults = {p.name: p.default for p in parameters}
    return tuple(given.get(name, defaults[name]) for name in names[: last + 1])


@contextlib.contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """A context for access to a package, which imports its modules lazily. Raises `UsageError` where an import fails."""
    try:
        yield
    except (MissingExtra, UsageError):
        raise
    except Exception as error:
        raise UsageError(
            f"{named(folder)} cannot be imported{raised(error)}\n  `codegen build` makes it again"
        ) from None


def _check_environment() -> None:
    """Check the environment variables for the architecture and the kernel cache. Raises `UsageError`."""
    from codegen import cache
    from codegen.targets import ARCHITECTURES

    arch = os.environ.get("CUTE_DSL_ARCH")
    if arch and arch not in ARCHITECTURES:
        hint = known(arch, ARCHITECTURES, "There are")
        raise UsageError(f"CUTE_DSL_ARCH: there is no architecture {arch!r}\n  {hint}")
    with usage():
        cache.limit()


def _check_devices() -> None:
    """Check that JAX has a device. Raises `UsageError`."""
    import jax

    try:
        jax.devices()
    except RuntimeError as error:
        raise UsageError(f"JAX finds no device: {error}") from None
