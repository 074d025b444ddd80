"""What the decoders share: types by PTX's names, the modifiers an instruction may have, and how one is refused.

A decoder takes the words behind an opcode's first and its operands, and gives a function of the machine. Values are
arrays over the active lanes, or of length one where all lanes agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from codegen.interpret.lanes import Lanes
from codegen.interpret.memory.arrays import Global
from codegen.interpret.memory.onchip import Shared
from codegen.interpret.memory.ordering import Ordering
from codegen.interpret.memory.products import Products
from codegen.interpret.memory.spaces import Spaces

ROUNDINGS = ("rn", "rz", "rm", "rp")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")


class Machine(Lanes, Protocol):
    """What an instruction works on: the lanes and all the memory that they reach."""

    memory: Global
    shared: Shared
    spaces: Spaces
    ordering: Ordering
    products: Products


Execute = Callable[[Machine], None]


class Unknown(Exception):
    """A modifier that a decoder does not know."""


def only(words: tuple[str, ...], allowed: tuple[str, ...]) -> set[str]:
    """The modifiers, all of them allowed."""
    for word in words:
        if word not in allowed:
            raise Unknown("." + word)
    return set(words)
