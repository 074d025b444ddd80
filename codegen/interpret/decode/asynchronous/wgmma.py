"""wgmma: a warpgroup multiplies two tiles asynchronously. The second tile is in shared memory, the first in shared
memory or in registers.

From wgmma.mma_async until the wait for its group, nothing may write the bytes that it reads, or access its accumulators
and the registers of its first factor. There are two exceptions: other products, which must have the same shape if they
share accumulators; and movs of accumulators, with which compilers tell the assembler that two registers are the same.
After any other access of these registers, a fence must come before the product.

Registers have the layout of the PTX ISA: each warp has 16 of a warpgroup's 64 rows. Its lane l, with g = l//4 and
q = l%4, has these accumulators of every 8 columns: (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1); and the words of a first
factor that mma.sync takes (`matrices`). Tiles in shared memory have TMA's layout:
rows of 128, 64 or 32 bytes, along K or along the other axis, with permuted chunks of 16 bytes (`tensormaps.swizzled`).

PTX does not define how products are summed. Here the products of one instruction are summed in float64 and then added
to the accumulator with one rounding to nearest. NVIDIA's GPUs differ in the last bits, and in more bits for float8,
whose sums they keep with fewer bits than float32.
"""

from __future__ import annotations

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.decode import matrices
from codegen.interpret.decode.asynchronous.tensormaps import CHUNK, swizzled
from codegen.interpret.decode.decoding import Execute, Machine, Unknown, only
from codegen.interpret.lanes import WARPGROUP
from codegen.interpret.memory.arrays import Fault
from codegen.interpret.ptx import Imm, Operand, Reg, Vector

DEPTH = 32  # bytes of K that one instruction multiplies
THREAD = np.arange(WARPGROUP)
FLOAT8 = ("e4m3", "e5m2")
# A descriptor's upper bits, which only give the length of permuted rows, in bytes
ROW_BYTES = {1 << 16: 128, 2 << 16: 64, 3 << 16: 32}
LEAST, MOST = -(1 << 31), (1 << 31) - 1


def decode(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    if words[1:] == ("sync", "aligned"):
        if words[0] == "commit_group":
            return lambda m: m.products.commit(matrices.whole_warps(m, "wgmma").reshape(-1))
        if words[0] == "wait_group" and isinstance(operands[0], Imm):
            pending = operands[0].value
            return lambda m: m.products.wait(matrices.whole_warps(m, "wgmma").reshape(-1), pending)
    if words[:3] == ("mma_async", "sync", "aligned"):
        return multiply(words[3:], operands)
    raise Unknown("." + ".".join(words))


def multiply(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """wgmma.mma_async."""
    shape, *flags, of_d, of_a, of_b = words
    bits = matrices.BITS.get(of_a)
    only(tuple(flags), ("satfinite",) if of_a == "s8" else ())
    kind, total = ("s32", np.int32) if of_a == "s8" else ("f32", np.float32)
    if bits is None or of_d != kind or (of_b != of_a and not {of_a, of_b} <= set(FLOAT8)):
        raise Unknown("." + ".".join(words))
    depth = 8 * DEPTH // bits
    columns = int(shape.removeprefix("m64n").removesuffix(f"k{depth}"))
    d, a, b, adds, *more = operands
    held_a = a.items if isinstance(a, Vector) else ()  # the first factor's words, where it is in registers
    signs = [o.value for o in more[:2] if isinstance(o, Imm)] if kind == "f32" else [1, 1]
    transposed = [o.value for o in more[2:] if isinstance(o, Imm)] if bits == 16 else [0] * (1 if held_a else 2)
    if shape != f"m64n{columns}k{depth}" or columns % 8 or not 8 <= columns <= 256:
        raise Unknown("." + shape)
    if not isinstance(d, Vector) or len(d.items) != columns // 2 or not (isinstance(a, Reg) or len(held_a) == 4):
        raise ValueError(f"{columns // 2} accumulators, a descriptor or four registers, and a descriptor")
    transposed = [0, *transposed] if held_a else transposed
    if not (len(signs) == len(transposed) == 2 and set(signs) <= {1, -1} and set(transposed) <= {0, 1}):
        raise ValueError("the factors' signs, and whether each in shared memory is transposed")
    names = [item.name for item in d.items if isinstance(item, Reg)]
    sources = tuple(item.name for item in held_a if isinstance(item, Reg))
    i, t = np.arange(columns // 2)[:, None], THREAD % 32
    row = 16 * (THREAD // 32) + t // 4 + 8 * (i // 2 % 2)
    column = 8 * (i // 4) + 2 * (t % 4) + i % 2

    def run(m: Machine) -> None:
        groups = whole_groups(m)
        for lanes in groups:
            m.products.check_start(names, sources, lanes)
        left, right = (None if held_a else uniform(m, a, groups)), uniform(m, b, groups)
        keeps = uniform(m, adds, groups, "pred")
        held, read = np.zeros((len(groups), 64, columns), total), []
        with m.products.unchecked():  # it may add to the results of earlier products
            if keeps.any():
                for k, item in enumerate(d.items):
                    held[:, row[k], column[k]] = matrices.registers(m, item, kind, groups)
            if left is None:
                factors = registers(m, held_a, of_a, groups)
            for g, lanes in enumerate(groups):
                nowhere = np.empty(0, np.int64)
                x, first = (
                    (factors[g], nowhere) if left is None else factor(m, int(left[g]), 64, of_a, transposed[0], lanes)
                )
                y, second = factor(m, int(right[g]), columns, of_b, transposed[1], lanes)
                read.append((first.reshape(-1), second.reshape(-1)))
                wide = np.int64 if total is np.int32 else np.float64
                made = signs[0] * signs[1] * (x.astype(wide) @ y.astype(wide).T)
                made = made + held[g].astype(wide) if keeps[g] else made
                held[g] = np.clip(made, LEAST, MOST) if flags else made.astype(total)
            held = held if total is np.int32 else ar.canonical(held)
            for k, item in enumerate(d.items):
                assert item is not None
                m.write(item, held[:, row[k], column[k]].reshape(-1))
        for lanes, at in zip(groups, read, strict=True):
            m.products.start(lanes, at, names, sources)

    return run


def whole_groups(m: Machine) -> np.ndarray:
    """The active lanes by warpgroups: (warpgroups, 128). Raises `Fault` for an incomplete warpgroup."""
    lanes = m.active()
    key = lanes // m.per_block * -(-m.per_block // WARPGROUP) + lanes % m.per_block // WARPGROUP
    _, first, counts = np.unique(key, return_index=True, return_counts=True)
    if (torn := counts != WARPGROUP).any():
        raise Fault(
            int(lanes[first[torn][0]]),
            f"wgmma takes all four warps of a warpgroup, and {counts[torn][0]} lanes are here",
        )
    return lanes.reshape(-1, WARPGROUP)


def uniform(m: Machine, operand: Operand, groups: np.ndarray, kind: str = "u64") -> np.ndarray:
    """An operand that all lanes of a warpgroup share, by warpgroup. Raises `Fault` where they differ."""
    found = matrices.registers(m, operand, kind, groups)
    differs = (found != found[:, :1]).any(axis=1)
    if differs.any():
        raise Fault(int(groups[differs][0, 0]), "the lanes of a warpgroup differ in an operand of wgmma")
    return found[:, 0]


def registers(m: Machine, items: tuple[Operand | None, ...], kind: str, groups: np.ndarray) -> np.ndarray:
    """The first factors that warpgroups hold in four registers: (warpgroups, 64, K)."""
    words = matrices.gathered(m, items, (16, DEPTH // 4), groups.reshape(-1, 32))
    return matrices.elements(kind, words).reshape(len(groups), 64, -1)


def factor(
    m: Machine, descriptor: int, count: int, kind: str, transposed: int, lanes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The factor of a descriptor, as (count, K), and the places of its bytes. Eight rows are contiguous, and the next eight are a
    stride further. Rows are along K, or where `transposed` along the other axis. The part that does not fit into them is a
    leading stride further."""
    start, leading, stride = ((descriptor >> bit & 0x3FFF) * CHUNK for bit in (0, 16, 32))
    width = ROW_BYTES.get(descriptor >> 46)
    if width is None:
        raise Fault(int(lanes[0]), f"a descriptor of a tile that is not known here: {descriptor:#x}")
    if transposed:
        row, chunk = np.arange(DEPTH // 2)[:, None], np.arange(count * 2 // CHUNK)  # of 8 elements
    else:
        row, chunk = np.arange(count)[:, None], np.arange(DEPTH // CHUNK)
    wide = width // CHUNK
    offset = row % 8 * width + row // 8 * stride + chunk % wide * CHUNK + chunk // wide * leading
    places = swizzled(start + offset.reshape(-1), width)
    at = m.shared.take_up(int(m.block_of[lanes[0]]), places, CHUNK, lanes[::32])
    found = matrices.elements(kind, m.shared.data[at].reshape(len(offset), -1).view(np.uint32))
    return found.T if transposed else found, at
