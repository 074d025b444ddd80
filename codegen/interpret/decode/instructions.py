"""The table of instructions: from an opcode's first word to its decoder. An unknown one is an error at decoding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.arithmetic import PTX_TYPES
from codegen.interpret.decode import accesses, matrices, warps
from codegen.interpret.decode.asynchronous import mbarriers, wgmma
from codegen.interpret.decode.decoding import Execute, Machine, Unknown
from codegen.interpret.decode.numbers import conversions, floating, integers, logic
from codegen.interpret.ptx import Instruction, Operand, Program, PtxError, Reg, Vector


def decode(instruction: Instruction, kernel: str) -> Execute:
    """The function that runs an instruction. Raises `PtxError` for an unknown one."""
    words = instruction.words
    make = TABLE.get(words[0])
    try:
        if make is None:
            raise Unknown(words[0])
        return make(words[1:], instruction.operands)
    except Unknown as error:
        detail = "" if str(error) == words[0] else f" (its {error} is not known)"
        raise PtxError(f"{kernel}: unknown instruction {instruction.op!r}{detail}: {instruction.text}") from None
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise PtxError(f"{kernel}: unknown form of {instruction.op!r} ({error}): {instruction.text}") from None


FLOATS = {"f16", "bf16", "f32", "f64"}


def refuse_converted_stores(program: Program) -> None:
    """Raises `PtxError` for a store of a part of a register that an instruction wrote as a float. PTX's registers have no types,
    and the interpreter would store the low bits. But ptxas 13.0 converts the number to an integer of the part's size, and
    stores that. A `mov.b32` between the two instructions prevents this."""
    instructions = [i for block in program.blocks for i in block if i.operands]
    floats = {name: i for i in instructions if _written_as(i) in FLOATS for name in _registers(i.operands[0])}
    for i in instructions:
        if i.words[0] != "st" or i.words[-1] not in PTX_TYPES:
            continue
        for name in _registers(i.operands[-1]):
            by = floats.get(name)
            if by is not None and _size(i.words[-1]) < _size(_written_as(by)):
                raise PtxError(
                    f"{program.name}: ptxas converts to an integer what is stored here in part, as it was written as a float"
                    f"\n  {i.text}\n  {by.text}" + (f"\n  at {i.place}" if i.place else "")
                )


def _registers(operand: Operand) -> list[str]:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    return [item.name for item in items if isinstance(item, Reg)]


def _size(kind: str) -> int:
    return np.dtype(PTX_TYPES[kind]).itemsize


def _written_as(instruction: Instruction) -> str:
    """The type of the result that an instruction writes to a register, or "" without a result."""
    words = instruction.words
    if words[0] in ("st", "red", "setp", "mma", "wgmma"):
        return ""
    return words[-2] if words[0] in ("cvt", "set") else words[-1]


def by_kind(
    name: str,
    on_floats: Callable[..., np.ndarray],
    on_integers: Callable[..., np.ndarray],
    words: tuple[str, ...],
    operands: tuple[Operand, ...],
) -> Execute:
    if "cc" in words:
        return integers.extended(name, words, operands)
    if words[-1].startswith(("f", "bf")):
        return floating.float_arithmetic(on_floats, words, operands)
    return integers.integer_arithmetic(on_integers, words, operands)


def multiply(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    if words[0] not in ("lo", "hi", "wide"):
        return floating.float_arithmetic(floating.mul, words, operands)
    part, kind = words
    target, a, b = operands
    if part == "lo":
        return integers.integer_arithmetic(np.multiply, (kind,), operands)
    if part == "hi":
        return integers.integer_arithmetic(ar.multiply_high, (kind,), operands)
    wide = {"s16": np.int32, "u16": np.uint32, "s32": np.int64, "u32": np.uint64}[kind]
    return lambda m: m.write(target, m.read(a, kind).astype(wide) * m.read(b, kind).astype(wide))


def pause(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """nanosleep: others run first."""

    def run(m: Machine) -> None:
        m.aside(m.active())
        m.pausing = True

    return run


def nothing(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """Hints."""
    return lambda m: None


TABLE: dict[str, Callable[..., Execute]] = {
    "add": partial(by_kind, "add", floating.add, np.add),
    "sub": partial(by_kind, "sub", floating.sub, np.subtract),
    "addc": partial(integers.extended, "addc"),
    "subc": partial(integers.extended, "subc"),
    "madc": partial(integers.extended, "madc"),
    "mul": multiply,
    "fma": partial(floating.float_arithmetic, floating.fma),
    "mad": integers.multiply_add,
    "div": floating.divide,
    "rem": partial(integers.integer_arithmetic, ar.remainder),
    "min": partial(floating.extreme, ar.smaller, np.minimum),
    "max": partial(floating.extreme, ar.larger, np.maximum),
    "neg": partial(floating.sign, negate=True),
    "abs": partial(floating.sign, negate=False),
    "copysign": floating.copysign,
    "sqrt": floating.sqrt,
    "rcp": partial(floating.function, floating.rcp),
    "rsqrt": partial(floating.function, floating.rsqrt),
    "ex2": partial(floating.function, np.exp2),
    "lg2": partial(floating.function, np.log2),
    "sin": partial(floating.function, np.sin),
    "cos": partial(floating.function, np.cos),
    "tanh": partial(floating.function, np.tanh),
    "and": partial(integers.bitwise, np.bitwise_and),
    "or": partial(integers.bitwise, np.bitwise_or),
    "xor": partial(integers.bitwise, np.bitwise_xor),
    "not": partial(integers.bitwise, np.bitwise_not),
    "shl": partial(integers.shift, integers.shl),
    "shr": partial(integers.shift, integers.shr),
    "shf": integers.funnel,
    "bfi": integers.bfi,
    "bfe": integers.bfe,
    "popc": integers.count_bits,
    "clz": integers.leading_zeros,
    "prmt": integers.prmt,
    "lop3": integers.lop3,
    "mov": logic.move,
    "selp": logic.select,
    "setp": logic.set_predicate,
    "set": logic.set_value,
    "cvt": conversions.convert,
    "cvta": accesses.address,
    "ld": accesses.load,
    "st": accesses.store,
    "atom": partial(accesses.atomic, result=True),
    "red": partial(accesses.atomic, result=False),
    "shfl": warps.shuffle,
    "vote": warps.vote,
    "mapa": accesses.map_address,
    "mbarrier": mbarriers.decode,
    "getctarank": accesses.rank_of,
    "cp": accesses.copy_async,
    "redux": warps.reduce,
    "ldmatrix": matrices.load_matrices,
    "stmatrix": matrices.store_matrices,
    "mma": matrices.multiply,
    "wgmma": wgmma.decode,
    "activemask": warps.active_mask,
    "elect": warps.elect,
    "membar": accesses.fence,
    "fence": accesses.fence,
    "griddepcontrol": nothing,
    "setmaxnreg": nothing,
    "prefetch": nothing,
    "nanosleep": pause,
}
