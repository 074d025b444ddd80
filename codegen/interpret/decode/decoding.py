"""Shared by the decoders: types by PTX's names, the allowed modifiers of an instruction, and the error for others.

A decoder takes the words after an opcode's first, and the operands, and returns a function of the machine. Values are arrays
over the active lanes, or of length one where all lanes agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from codegen.interpret.lanes import Lanes
from codegen.interpret.memory.arrays import Global
from codegen.interpret.memory.bulks import Bulks
from codegen.interpret.memory.onchip import Shared
from codegen.interpret.memory.ordering import Ordering
from codegen.interpret.memory.products import Products
from codegen.interpret.memory.spaces import Spaces

ROUNDINGS = ("rn", "rz", "rm", "rp")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")


class Machine(Lanes, Protocol):
    """The state that an instruction works on: the lanes and their memory."""

    memory: Global
    shared: Shared
    spaces: Spaces
    ordering: Ordering
    products: Products
    bulks: Bulks


Execute = Callable[[Machine], None]


class Unknown(Exception):
    """A modifier that a decoder does not know."""


def only(words: tuple[str, ...], allowed: tuple[str, ...]) -> set[str]:
    """The modifiers, all of them allowed."""
    for word in words:
        if word not in allowed:
            raise Unknown("." + word)
    return set(words)
