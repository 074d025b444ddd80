"""The versions of JAX and CuTe DSL with which the tests passed, and whether the installed ones are among them."""

import re
from importlib import metadata

# From the first on, and below the second
TRIED = {"jax": ((0, 10, 2), (0, 13)), "nvidia-cutlass-dsl": ((4, 8, 1), (4, 9))}


def untried() -> list[str]:
    """The installed distributions with other versions, one sentence each."""
    found = []
    for name, (first, end) in TRIED.items():
        version = metadata.version(name)
        if not first <= numbers(version) < end:
            words = [".".join(map(str, v)) for v in (first, end)]
            found.append(f"{name} {version} is not among the versions tried, from {words[0]} to below {words[1]}")
    return found


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))
