"""What the decoders share: types by PTX's names, the modifiers an instruction may have, and how one is refused.

A decoder takes the words behind an opcode's first and its operands, and gives a function of the machine. Values are
arrays over the active lanes, or of length one where all lanes agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from codegen.interpret.machine import Machine

Execute = Callable[["Machine"], None]

DTYPES: dict[str, type] = {
    "s8": np.int8, "u8": np.uint8, "b8": np.uint8, "s16": np.int16, "u16": np.uint16, "b16": np.uint16,
    "s32": np.int32, "u32": np.uint32, "b32": np.uint32, "s64": np.int64, "u64": np.uint64, "b64": np.uint64,
    "f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64, "f16x2": np.uint32, "bf16x2": np.uint32,
    "f32x2": np.uint64, "pred": np.bool_,
}  # fmt: skip
# Where spaces lie among generic addresses; global memory is where it is, far below
WINDOWS = {"global": 0, "const": 0, "param": 0, "local": 1 << 61}
WINDOWS |= {"shared": 1 << 62, "shared::cta": 1 << 62, "shared::cluster": 1 << 62}
ROUNDINGS = ("rn", "rz", "rm", "rp")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")


class Unknown(Exception):
    """A modifier that a decoder does not know."""


def only(words: tuple[str, ...], allowed: tuple[str, ...]) -> set[str]:
    """The modifiers, all of them allowed."""
    for word in words:
        if word not in allowed:
            raise Unknown("." + word)
    return set(words)
