"""wgmma: a warpgroup multiplies two tiles in shared memory, and goes on before it is done.

From wgmma.mma_async until the wait for its group nobody may write what it reads, or touch its accumulators: none but other
products of its shape, and movs, which compilers make for the assembler to see that two registers are one. Where anything
else has touched accumulators, a fence stands before the product.

Accumulators lie as the PTX ISA has them: of a warpgroup's 64 rows each warp has 16, and lane l of it, g = l//4 and
q = l%4, has of every 8 columns the elements (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1). Tiles lie as TMA brings
them: in rows of 128 or 64 bytes, along K or along the other axis, their chunks of 16 bytes permuted
(`tensormaps.swizzled`).

PTX leaves open how products are summed. Here those of one instruction are summed in float64 and then added to the
accumulator, rounded to nearest, once. NVIDIA's GPUs differ in last bits, and for float8 in more than those: they keep
fewer bits of its sums than float32 has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.decode import matrices
from codegen.interpret.decode.decoding import Execute, Unknown, only
from codegen.interpret.decode.tensormaps import CHUNK, swizzled
from codegen.interpret.memory.arrays import Fault
from codegen.interpret.memory.barriers import GROUP
from codegen.interpret.ptx import Imm, Operand, Program, Reg, Vector

if TYPE_CHECKING:
    from codegen.interpret.machine import Machine
    from codegen.interpret.memory.onchip import Shared

DEPTH = 32  # bytes of K that one instruction multiplies
THREAD = np.arange(GROUP)
FLOAT8 = ("e4m3", "e5m2")
ROWS = {1 << 16: 128, 2 << 16: 64}  # a descriptor's upper bits, which say no more than how long permuted rows are
LEAST, MOST = -(1 << 31), (1 << 31) - 1


@dataclass(eq=False)
class Product:
    """One under way."""

    group: int
    lanes: np.ndarray
    left: np.ndarray  # of its four warps, those that have not waited for it
    at: tuple[np.ndarray, ...]  # the bytes it reads, of each factor
    places: dict[str, int]  # of the accumulators that it writes, by all their names

    def by_place(self) -> dict[int, list[str]]:
        """The names of each accumulator."""
        found: dict[int, list[str]] = {}
        for name, place in self.places.items():
            found.setdefault(place, []).append(name)
        return found


class Products:
    """Those of a batch of blocks, and the registers that they may write: `accumulators`, by name."""

    def __init__(self, shared: Shared, accumulators: frozenset[str]):
        self.shared, self.accumulators = shared, accumulators
        lanes = shared.committed.shape
        self.under_way: list[Product] = []
        self.writing: dict[str, list[Product]] = {}  # by their registers
        self.committed = np.zeros(lanes, np.int64)
        self.fenced = np.zeros(lanes, bool)  # once
        self.touched = {name: np.zeros(lanes, bool) for name in accumulators}  # since the last fence
        self.stale = {name: np.zeros(lanes, bool) for name in accumulators}  # copied from one that was then added to
        self.checking = True

    # Registers

    def access(self, name: str, lanes: np.ndarray, writes: bool) -> None:
        """An accumulator is accessed."""
        if not self.checking:
            return
        for product in self.writing.get(name, ()):
            bad = self.of(product, lanes)
            if bad.any():
                raise Fault(int(lanes[bad][0]), f"{name} is used, which a wgmma that is not waited for may still write")
        if writes:
            self.stale[name][lanes] = False
        elif (bad := self.stale[name][lanes]).any():
            what = "a copy of an accumulator from before it was complete, which the assembler may have made the same"
            raise Fault(int(lanes[bad][0]), f"{name} is used, {what}")
        self.touched[name][lanes] = True

    def of(self, product: Product, lanes: np.ndarray) -> np.ndarray:
        """Which of some lanes have a product under way."""
        place = lanes - product.lanes[0]
        return (place >= 0) & (place < GROUP) & product.left[np.clip(place, 0, GROUP - 1) // 32]

    def move(self, m: Machine, target: Reg, source: Reg, kind: str) -> None:
        """A mov of a register that products write: the assembler makes the two the same, so it is no access."""
        lanes = m.active()
        self.access(target.name, lanes, True)
        with self.unchecked():
            m.write(target, m.read(source, kind))
        for product in list(self.writing.get(source.name, ())):
            if self.of(product, lanes).any():
                product.places[target.name] = product.places[source.name]
                self.writing.setdefault(target.name, []).append(product)

    @contextlib.contextmanager
    def unchecked(self) -> Iterator[None]:
        """No access is checked."""
        self.checking = False
        try:
            yield
        finally:
            self.checking = True

    def fence(self, lanes: np.ndarray) -> None:
        self.fenced[lanes] = True
        for touched in self.touched.values():
            touched[lanes] = False

    def check_start(self, names: list[str], lanes: np.ndarray) -> None:
        """A product of a warpgroup is to add to accumulators: nobody may have touched them since a fence but others of its
        kind."""
        others = [product for product in self.under_way if self.of(product, lanes).any()]
        copies = [product.by_place() for product in others]
        for place, name in enumerate(names):
            if not (fenced := self.fenced[lanes] & ~self.touched[name][lanes]).all():
                raise Fault(int(lanes[~fenced][0]), f"wgmma into {name} with no wgmma.fence since it was last used")
            for product, by_place in zip(others, copies, strict=True):
                if name not in product.places:
                    continue
                if product.places[name] != place or max(by_place) + 1 != len(names):
                    raise Fault(int(lanes[0]), f"wgmma into {name}, which one of another shape may still write")
                for other in by_place[place]:
                    if other != name:
                        self.stale[other][lanes] = True

    # Groups

    def start(self, lanes: np.ndarray, at: tuple[np.ndarray, ...], names: list[str]) -> None:
        places = {name: place for place, name in enumerate(names)}
        product = Product(int(self.committed[lanes[0]]), lanes, np.ones(GROUP // 32, bool), at, places)
        self.under_way.append(product)
        for one in at:
            self.shared.hold(one)
        for name in names:
            self.writing.setdefault(name, []).append(product)

    def commit(self, lanes: np.ndarray) -> None:
        self.committed[lanes] += 1

    def wait(self, lanes: np.ndarray, pending: int) -> None:
        """All groups of the lanes' warps but the last `pending` are done."""
        there = np.zeros(self.committed.shape, bool)
        there[lanes] = True
        for product in self.under_way:
            warps = product.lanes.reshape(-1, 32)
            first = warps[:, 0]
            done = product.left & there[first] & (product.group < self.committed[first] - pending)
            if done.any():
                bits = np.bitwise_or.reduce(1 << self.shared.ordering.warp[first[done]])
                for at in product.at:
                    self.shared.seen_by(at, int(first[done][0]), int(bits))
                product.left &= ~done
                if not product.left.any():
                    self.end(product)
        self.under_way = [p for p in self.under_way if p.left.any()]

    def end(self, product: Product) -> None:
        for at in product.at:
            self.shared.put_down(at)
        for name in product.places:
            self.writing[name].remove(product)
            if not self.writing[name]:
                del self.writing[name]

    def check_exit(self) -> None:
        if self.under_way:
            raise Fault(int(self.under_way[0].lanes[0]), "the thread exits without a wait for its last wgmma")


def accumulators(program: Program) -> frozenset[str]:
    """The registers that a program's products write, and those that these are moved to or from."""
    instructions = [i for block in program.blocks for i in block]
    found = {
        item.name
        for i in instructions if i.words[:2] == ("wgmma", "mma_async") and isinstance(i.operands[0], Vector)
        for item in i.operands[0].items if isinstance(item, Reg)
    }  # fmt: skip
    moves = [i.operands for i in instructions if found and i.words[0] == "mov"]
    pairs = [(a.name, b.name) for a, b in moves if isinstance(a, Reg) and isinstance(b, Reg)]
    before = -1
    while len(found) > before:
        before = len(found)
        found |= {a for a, b in pairs if b in found}
    return frozenset(found)


# Instructions


def decode(words, operands) -> Execute:
    if words[1:] == ("sync", "aligned"):
        if words[0] == "commit_group":
            return lambda m: m.products.commit(matrices.whole_warps(m, "wgmma").reshape(-1))
        if words[0] == "wait_group" and isinstance(operands[0], Imm):
            pending = operands[0].value
            return lambda m: m.products.wait(matrices.whole_warps(m, "wgmma").reshape(-1), pending)
    if words[:3] == ("mma_async", "sync", "aligned"):
        return multiply(words[3:], operands)
    raise Unknown("." + ".".join(words))


def multiply(words, operands) -> Execute:
    """wgmma.mma_async, both factors in shared memory."""
    shape, *flags, of_d, of_a, of_b = words
    bits = matrices.BITS.get(of_a)
    only(tuple(flags), ("satfinite",) if of_a == "s8" else ())
    kind, total = ("s32", np.int32) if of_a == "s8" else ("f32", np.float32)
    if bits is None or of_d != kind or (of_b != of_a and not {of_a, of_b} <= set(FLOAT8)):
        raise Unknown("." + ".".join(words))
    depth = 8 * DEPTH // bits
    columns = int(shape.removeprefix("m64n").removesuffix(f"k{depth}"))
    d, a, b, adds, *more = operands
    signs = [o.value for o in more[:2]] if kind == "f32" else [1, 1]
    transposed = [o.value for o in more[2:]] if bits == 16 else [0, 0]
    if shape != f"m64n{columns}k{depth}" or columns % 8 or not 8 <= columns <= 256:
        raise Unknown("." + shape)
    if not isinstance(d, Vector) or not isinstance(a, Reg) or len(d.items) != columns // 2:
        raise ValueError(f"{columns // 2} accumulators and two descriptors")
    if not (len(signs) == len(transposed) == 2 and set(signs) <= {1, -1} and set(transposed) <= {0, 1}):
        raise ValueError("the factors' signs, and whether each is transposed")
    names = [item.name for item in d.items if isinstance(item, Reg)]
    i, t = np.arange(columns // 2)[:, None], THREAD % 32
    row = 16 * (THREAD // 32) + t // 4 + 8 * (i // 2 % 2)
    column = 8 * (i // 4) + 2 * (t % 4) + i % 2

    def run(m: Machine) -> None:
        groups = whole_groups(m)
        for lanes in groups:
            m.products.check_start(names, lanes)
        left, right = (uniform(m, o, groups) for o in (a, b))
        keeps = uniform(m, adds, groups, "pred")
        held, read = np.zeros((len(groups), 64, columns), total), []
        with m.products.unchecked():  # it may add to what those before it make
            if keeps.any():
                for k, item in enumerate(d.items):
                    held[:, row[k], column[k]] = matrices.registers(m, item, kind, groups)
            for g, lanes in enumerate(groups):
                x, first = factor(m, int(left[g]), 64, of_a, transposed[0], lanes)
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
            m.products.start(lanes, at, names)

    return run


def whole_groups(m: Machine) -> np.ndarray:
    """The active lanes by warpgroups: (warpgroups, 128). A fault where one is not whole."""
    lanes = m.active()
    key = lanes // m.per_block * -(-m.per_block // GROUP) + lanes % m.per_block // GROUP
    _, first, counts = np.unique(key, return_index=True, return_counts=True)
    if (torn := counts != GROUP).any():
        raise Fault(
            int(lanes[first[torn][0]]),
            f"wgmma takes all four warps of a warpgroup, and {counts[torn][0]} lanes are here",
        )
    return lanes.reshape(-1, GROUP)


def uniform(m: Machine, operand: Operand, groups: np.ndarray, kind: str = "u64") -> np.ndarray:
    """What all lanes of each warpgroup agree about."""
    found = matrices.registers(m, operand, kind, groups)
    differs = (found != found[:, :1]).any(axis=1)
    if differs.any():
        raise Fault(int(groups[differs][0, 0]), "the lanes of a warpgroup differ in an operand of wgmma")
    return found[:, 0]


def factor(
    m: Machine, descriptor: int, count: int, kind: str, transposed: int, lanes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A factor that a descriptor describes, as (count, K), and where its bytes lie: eight rows one behind the other, the next
    eight a stride further. Rows lie along K, or where `transposed` along the other axis, and what does not fit into them a
    leading stride further."""
    start, leading, stride = ((descriptor >> bit & 0x3FFF) * CHUNK for bit in (0, 16, 32))
    width = ROWS.get(descriptor >> 46)
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
