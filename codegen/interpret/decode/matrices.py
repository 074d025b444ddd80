"""Instructions that a whole warp executes on matrices: ldmatrix, stmatrix and mma.sync, for all warps at once.

Fragments have the layout of the PTX ISA. As 32-bit words, the layout is the same for every type. Lane l, with g = l//4 and
q = l%4, holds these words of a (16 rows, 8 words): (g, q), (g + 8, q), (g, q + 4), (g + 8, q + 4); these words of b (8
columns, 8 words of K): (g, q), (g, q + 4); and these elements of c and d: (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1).

PTX does not define how mma sums in float32, except that products are exact. Here d = c, then d = d + a_k * b_k for
k = 0, 1, 2, ..., each rounded to nearest. NVIDIA's GPUs sum several products at once, and differ in the last bits. The 13
lowest bits of tf32 operands are ignored. Integers wrap around.
"""

from __future__ import annotations

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.decode.decoding import Execute, Machine, Unknown
from codegen.interpret.memory.arrays import Fault
from codegen.interpret.ptx import Address, Operand, Vector

BITS = {"tf32": 32, "bf16": 16, "f16": 16, "s8": 8, "e4m3": 8, "e5m2": 8}  # bits of the operands' types
G, Q = np.arange(32) // 4, np.arange(32) % 4
ROW = np.stack([G, G + 8, G, G + 8])  # the rows of a fragment's words, by word and lane
WORD = np.stack([Q, Q, Q + 4, Q + 4])
COLUMN = np.stack([2 * Q, 2 * Q + 1, 2 * Q, 2 * Q + 1])  # the columns of the elements of c and d; their rows:
ELEMENT_ROW = np.stack([G, G, G + 8, G + 8])


def whole_warps(m: Machine, name: str) -> np.ndarray:
    """The active lanes by warps: (warps, 32). Raises `Fault` for an incomplete warp."""
    lanes = m.active()
    warps = lanes // m.per_block * (-(-m.per_block // 32)) + lanes % m.per_block // 32
    _, first, counts = np.unique(warps, return_index=True, return_counts=True)
    torn = counts != 32
    if torn.any():
        raise Fault(int(lanes[first[torn][0]]), f"{name} takes all 32 lanes of a warp, and {counts[torn][0]} are here")
    return lanes.reshape(-1, 32)


def load_matrices(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """ldmatrix: lanes 8i .. 8i + 7 give the row addresses of the i-th 8 x 8 matrix of 16-bit elements."""
    count, transposed = _eights(words)
    target, address = operands
    if not isinstance(target, Vector) or len(target.items) != count or not isinstance(address, Address):
        raise ValueError(f"{count} registers and an address")

    def run(m: Machine) -> None:
        lanes = whole_warps(m, "ldmatrix")
        row, offset, who = _rows(m, address, lanes, count)
        loaded = m.shared.load(row, offset, 4, 4, who, 4)
        rows = np.stack(loaded, axis=1).view(np.uint16).reshape(-1, count, 8, 8)  # warp, matrix, row, element
        if transposed:
            rows = np.ascontiguousarray(rows.transpose(0, 1, 3, 2))
        found = rows.view(np.uint32).reshape(-1, count, 32)
        for i, item in enumerate(target.items):
            if item is not None:
                m.write(item, found[:, i].reshape(-1))

    return run


def store_matrices(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """stmatrix: the reverse of ldmatrix; the lane that gives a row's address stores the row."""
    count, transposed = _eights(words)
    address, source = operands
    if not isinstance(source, Vector) or len(source.items) != count or not isinstance(address, Address):
        raise ValueError(f"an address and {count} registers")

    def run(m: Machine) -> None:
        lanes = whole_warps(m, "stmatrix")
        row, offset, who = _rows(m, address, lanes, count)
        held = np.stack([registers(m, item, "b32", lanes) for item in source.items], axis=1)  # warp, matrix, lane
        halves = np.ascontiguousarray(held, np.uint32).view(np.uint16).reshape(-1, count, 8, 8)
        if transposed:
            halves = np.ascontiguousarray(halves.transpose(0, 1, 3, 2))
        stored = halves.view(np.uint32).reshape(-1, 4)  # a row's words
        m.shared.store(row, offset, [stored[:, i] for i in range(4)], 4, who)

    return run


def _eights(words: tuple[str, ...]) -> tuple[int, bool]:
    """The number of 8 x 8 matrices, and whether they are transposed."""
    sync, aligned, shape, number, *rest = words
    count = {"x1": 1, "x2": 2, "x4": 4}.get(number)
    transposed = rest[:1] == ["trans"]
    if (sync, aligned, shape) != ("sync", "aligned", "m8n8") or count is None:
        raise Unknown("." + ".".join(words))
    if rest[transposed:] not in (["shared", "b16"], ["shared::cta", "b16"]):
        raise Unknown("." + ".".join(rest))
    return count, transposed


def _rows(m: Machine, address: Address, lanes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The places of matrices' rows in shared memory, and the lanes that give their addresses."""
    where = m.spaces.place(address).reshape(lanes.shape)[:, : 8 * count].reshape(-1)
    who = lanes[:, : 8 * count].reshape(-1)
    return *m.spaces.shared_place("shared", where, who), who


def multiply(words: tuple[str, ...], operands: tuple[Operand, ...]) -> Execute:
    """mma.sync: d = a * b + c, for the shapes whose K is 32 bytes."""
    shape, *types = words[2:]
    if words[:2] != ("sync", "aligned") or types[:2] != ["row", "col"] or len(types) != 6:
        raise Unknown("." + ".".join(words))
    of_d, of_a, of_b, of_c = types[2:]
    if of_a not in BITS or shape != f"m16n8k{256 // BITS[of_a]}" or (of_b != of_a and {of_a, of_b} != {"e4m3", "e5m2"}):
        raise Unknown("." + ".".join(words[2:]))
    kind, total = ("s32", np.int32) if of_a == "s8" else ("f32", np.float32)
    if {of_c, of_d} != {kind}:
        raise Unknown("." + ".".join(words[2:]))
    d, a, b, c = (o.items if isinstance(o, Vector) else (o,) for o in operands)
    if [len(o) for o in (d, a, b, c)] != [4, 4, 2, 4]:
        raise ValueError("fragments of 4, 4, 2 and 4 registers")

    def run(m: Machine) -> None:
        lanes = whole_warps(m, "mma")
        left = elements(of_a, gathered(m, a, (16, 8), lanes)).transpose(2, 0, 1)  # K, warps, rows
        right = elements(of_b, gathered(m, b, (8, 8), lanes)).transpose(2, 0, 1)
        held: np.ndarray = np.empty((len(lanes), 16, 8), total)
        for i, item in enumerate(c):
            held[:, ELEMENT_ROW[i], COLUMN[i]] = registers(m, item, kind, lanes)
        if total is np.int32:
            held += np.einsum("kwr,kwc->wrc", left, right)
        else:
            for x, y in zip(left, right, strict=True):
                held += x[:, :, None] * y[:, None, :]
            held = ar.canonical(held)
        for i, item in enumerate(d):
            assert item is not None
            m.write(item, held[:, ELEMENT_ROW[i], COLUMN[i]].reshape(-1))

    return run


def registers(m: Machine, item: Operand | None, kind: str, lanes: np.ndarray) -> np.ndarray:
    assert item is not None
    value = m.read(item, kind)
    return value.reshape(lanes.shape) if value.size == lanes.size else np.broadcast_to(value, lanes.shape)


def gathered(m: Machine, items: tuple[Operand | None, ...], shape: tuple[int, int], lanes: np.ndarray) -> np.ndarray:
    """Fragments as matrices of words: (warps, rows of a or columns of b, 8)."""
    held = np.empty((len(lanes), *shape), np.uint32)
    row, word = (ROW, WORD) if len(items) == 4 else (ROW[[0, 2]], WORD[[0, 2]])
    for i, item in enumerate(items):
        held[:, row[i], word[i]] = registers(m, item, "b32", lanes)
    return held


def elements(kind: str, words: np.ndarray) -> np.ndarray:
    """The numbers in words, from the lowest bits: float32, or int32."""
    if kind == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(np.float32)
    if kind == "bf16":
        return (words.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind in ("e4m3", "e5m2"):
        return ar.from_float8(words.view(np.uint8).astype(np.uint16), kind).view(np.float16).astype(np.float32)
    return words.view(np.float16).astype(np.float32) if kind == "f16" else words.view(np.int8).astype(np.int32)
