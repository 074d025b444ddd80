"""Imports a package of generated ops for a command that runs them, or raises one clear error."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from codegen.cli.options import UsageError, usage
from codegen.errors import known, named, suggested


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
    try:
        with _importing(folder):
            return kernels_named(package, names or package.__all__)
    except KeyError:
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
    return f"no op {name!r} in {named(folder)}. {suggested(name, names)}\n  `codegen list WORD` searches the ops"


@contextlib.contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """A context for access to a package, which imports its modules lazily. Raises `UsageError` where an import fails."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{named(folder)} cannot be imported: {error}\n  `codegen build` makes it again") from None


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
