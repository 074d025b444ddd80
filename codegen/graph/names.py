"""Names that users choose: which are taken already, and what one looks like."""

from __future__ import annotations

import keyword
import re

from codegen.errors import Mistake, shown

# Names that generated files use at module level, and Python's own that must keep their meaning there.
RESERVED = frozenset("""
    cuda cutlass cute jax jnp access device partials reduce runtime compute int_compute row_axes approx vec stream implementation precision NamedTuple SPEC
    print range len tuple list dict set int float bool str bytes object type super self None True False
""".split())  # fmt: skip
# Those of a kernel's own variables that a parameter or an output would stand beside.
KERNEL_NAMES = frozenset("""
    tidx bidx bdim size start valid i row row_i rows cols rest rest_i ragged threads blocks
""".split())  # fmt: skip
# Those of the kernels that reduce, which values of a chain are renamed beside.
REDUCING_NAMES = frozenset("""
    functools gemm config acc batch tensors operands turn paced
    tidx bidx row rows cols columns column count first first_row first_of_row step passes p v c u values certain inside vec ragged threads
    per_row vectors cluster kept exact carried lean resident at_once staged shared_sums held whole k base part parts piece pieces pace rows_a_block total width row_count
    found there element_count once place some begin seen beside
""".split())  # fmt: skip
# Modules that only some generated files import.
IMPORTED_NAMES = frozenset("functools gemm vectors".split())
# Of the other functions in an op's module, what stands behind its name.
SUFFIXES = re.compile(
    r"chain|row|kernel|launch|xla|reference|(backward|frozen|forward|first|beside|rows|keep)_\w+|(columns|finish|stage)\d*"
)
# Those of the package and of the test module that an op would stand beside.
PACKAGE_NAMES = IMPORTED_NAMES | frozenset("importlib sys types pytest check_op check_gradient".split())
NAME = re.compile(r"[a-z][a-z0-9_]*")
AXIS = re.compile(r"[A-Z][A-Za-z0-9_]*")
MAX_NAME = 64


def op_name_mistake(name: str) -> Mistake | None:
    """Why a name cannot be an op's, if so."""
    return name_mistake(name, "an op", PACKAGE_NAMES)


def name_mistake(name: str, what: str, also: frozenset[str] = frozenset()) -> Mistake | None:
    """Why a name cannot be that of `what`, if so; `also` is taken where `what` stands."""
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        hint = f"names are lower-case letters, digits and underscores, at most {MAX_NAME}, a letter first"
        return Mistake(f"{shown(name)} is no name for {what}", hint)
    if keyword.iskeyword(name) or name in RESERVED or name in also:
        return Mistake(f"{name!r} cannot name {what}: Python or the generated file uses it", "pick another name")
    return None


def fresh(taken: set[str], name: str) -> str:
    """A name that is not `taken`, which it then is: this one, or one with a number."""
    base, count = name, 1
    while name in taken:
        count += 1
        name = f"{base}{count}"
    taken.add(name)
    return name
