"""Names that users choose: their form, and the names that are taken."""

from __future__ import annotations

import itertools
import keyword
import re
from collections.abc import Collection, Iterator

from codegen.errors import UserError, shown

# Names that generated files use at module level, and Python's names that must keep their meaning there.
RESERVED = frozenset("""
    cuda cutlass cute jax jnp access device partials reduce rowwise runtime compute int_compute row_axes approx vec stream implementation precision NamedTuple SPEC
    print range len tuple list dict set int float bool str bytes object type super self None True False
""".split())  # fmt: skip
# A kernel's own variables, with which a parameter or an output would clash.
KERNEL_NAMES = frozenset("""
    at flat tidx bidx bdim size start valid i row row_i rows cols rest rest_i ragged threads blocks how turned
""".split())  # fmt: skip
# Variables of the kernels that reduce: values of a chain with such a name are renamed.
REDUCING_NAMES = frozenset("""
    functools gemm middle walking config how index at acc batch own early later all_rows tensors operands turn paced
    tidx bidx row rows cols columns column count first first_row first_of_row step passes p v c u values certain inside vec ragged threads
    per_row vectors cluster holds_row exact holds_expensive only_row resident at_once staged shared_sums held whole k base part parts piece pieces pace rows_a_block total width row_count
    found there element_count once place some begin seen beside block chunk leads
""".split())  # fmt: skip
# Modules that only some generated files import.
IMPORTED_NAMES = frozenset("attend flat functools gemm middle turned walking".split())
# Names that no kernel gives to what it stores: an output with such a name has another one there.
LOCAL_NAMES = KERNEL_NAMES | IMPORTED_NAMES
# The endings, after the op's name, of the other functions in its module.
SUFFIXES = re.compile(
    r"chain|row|score|tiles|(score|full|row)_chain|kernel|launch|xla|reference|(backward|frozen|forward|rows|keep|whole|saving|stage\d+)_\w+|(columns|finish|stage)\d*"
)
# Names of the package and of the test module, with which an op would clash.
PACKAGE_NAMES = IMPORTED_NAMES | frozenset("importlib sys types pytest check_op check_gradient".split())
NAME = re.compile(r"[a-z][a-z0-9_]*")
AXIS = re.compile(r"[A-Z][A-Za-z0-9_]*")
MAX_NAME = 64


def op_name_error(name: str) -> UserError | None:
    """The error for a name that an op cannot have, if any."""
    taken = f"{shown(name)} cannot name an op: pytest would"
    if name.startswith("test"):  # also where a test module imports it
        return UserError(f"{taken} run it as a test", "pick another name")
    if name == "conftest":
        return UserError(f"{taken} load its module as settings", "pick another name")
    return name_error(name, "an op", PACKAGE_NAMES)


def name_error(name: str, what: str, also: frozenset[str] = frozenset()) -> UserError | None:
    """The error for a name that `what` cannot have, if any. `also` are names that are taken too."""
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        hint = f"names are lower-case letters, digits and underscores, at most {MAX_NAME}, a letter first"
        return UserError(f"{shown(name)} is not a valid name for {what}", hint)
    if keyword.iskeyword(name) or name in RESERVED or name in also:
        return UserError(f"{name!r} cannot name {what}: Python or the generated file uses it", "pick another name")
    return None


def temporaries(taken: Collection[str]) -> Iterator[str]:
    """t0, t1, and so on, except names that are `taken` when they are reached."""
    return (name for i in itertools.count() if (name := f"t{i}") not in taken)


def fresh(taken: set[str], name: str) -> str:
    """A name that is not `taken`: this one, or one with a number. Adds it to `taken`."""
    base, count = name, 1
    while name in taken:
        count += 1
        name = f"{base}{count}"
    taken.add(name)
    return name
