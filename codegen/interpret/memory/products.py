"""wgmma's products in flight, and the registers that they may still read or write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from codegen.interpret.lanes import WARPGROUP, Lanes
from codegen.interpret.memory.arrays import Fault
from codegen.interpret.memory.onchip import Shared
from codegen.interpret.ptx import Program, Reg, Vector


@dataclass(eq=False)
class Product:
    """A product in flight."""

    group: int
    lanes: np.ndarray
    left: np.ndarray  # its warps that have not waited for it
    at: tuple[np.ndarray, ...]  # the bytes that it reads of each factor
    places: dict[str, int]  # the numbers of the accumulators that it writes, by all their names
    sources: tuple[str, ...]  # the registers of the first factor, if it is in registers

    def by_place(self) -> dict[int, list[str]]:
        """The names of each accumulator."""
        found: dict[int, list[str]] = {}
        for name, place in self.places.items():
            found.setdefault(place, []).append(name)
        return found


class Products:
    """The products of a batch of blocks, and the registers that they read and write: `registers`, by name."""

    def __init__(self, shared: Shared, registers: frozenset[str]):
        self.shared = shared
        lanes = shared.committed.shape
        self.under_way: list[Product] = []
        self.writing: dict[str, list[Product]] = {}  # by their registers
        self.reading: dict[str, list[Product]] = {}
        self.committed = np.zeros(lanes, np.int64)
        self.fenced = np.zeros(lanes, bool)  # once
        self.numbers = {name: number for number, name in enumerate(registers)}
        self.touched = np.zeros((len(registers), *lanes), bool)  # since the last fence, by the registers' numbers
        self.stale = {name: np.zeros(lanes, bool) for name in registers}  # copied from one that was then added to
        self.checking = True

    # Registers

    def access(self, name: str, lanes: np.ndarray, writes: bool) -> None:
        """Check an access of an accumulator, or of a register of a factor."""
        if not self.checking:
            return
        self.check_free(
            name, lanes, self.writing, f"{name} is used, which a wgmma that is not waited for may still write"
        )
        self.check_free(
            name, lanes, self.reading, f"{name} is used, which a wgmma that is not waited for may still read"
        )
        if writes:
            self.stale[name][lanes] = False
        elif (bad := self.stale[name][lanes]).any():
            what = "a copy of an accumulator from before it was complete, which the assembler may have made the same"
            raise Fault(int(lanes[bad][0]), f"{name} is used, {what}")
        self.touched[self.numbers[name], lanes] = True

    def check_free(self, name: str, lanes: np.ndarray, users: dict[str, list[Product]], message: str) -> None:
        """Raises `Fault` where a product in flight of the lanes is among a register's users."""
        for product in users.get(name, ()):
            bad = self.of(product, lanes)
            if bad.any():
                raise Fault(int(lanes[bad][0]), message)

    def of(self, product: Product, lanes: np.ndarray) -> np.ndarray:
        """Whether each of these lanes takes part in a product in flight."""
        place = lanes - product.lanes[0]
        return (place >= 0) & (place < WARPGROUP) & product.left[np.clip(place, 0, WARPGROUP - 1) // 32]

    def move(self, m: Lanes, target: Reg, source: Reg, kind: str) -> None:
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
        self.touched[:, lanes] = False

    def check_start(self, names: list[str], sources: tuple[str, ...], lanes: np.ndarray) -> None:
        """Check the registers of a new product of a warpgroup. Since a fence, only products of the same shape may have
        accessed its accumulators, and only products may have read its first factor."""
        numbers = np.array([self.numbers[name] for name in (*sources, *names)])
        unfenced = self.touched[np.ix_(numbers, lanes)] | ~self.fenced[lanes]
        bad = dict(zip((*sources, *names), unfenced, strict=True)) if unfenced.any() else {}

        def check_fenced(name: str, what: str) -> None:
            if name in bad and bad[name].any():
                raise Fault(int(lanes[bad[name]][0]), f"wgmma {what} {name} with no wgmma.fence since it was last used")

        for name in sources:
            self.check_free(
                name, lanes, self.writing, f"wgmma of {name}, which one that is not waited for may still write"
            )
            check_fenced(name, "of")
        others = [product for product in self.under_way if self.of(product, lanes).any()]
        own = {name: place for place, name in enumerate(names)}
        copies = [(product, product.by_place()) for product in others if product.places != own]
        shapes = [max(by_place) + 1 for _, by_place in copies]
        for place, name in enumerate(names):
            self.check_free(
                name, lanes, self.reading, f"wgmma into {name}, which one that is not waited for may still read"
            )
            check_fenced(name, "into")
            for (product, by_place), count in zip(copies, shapes, strict=True):
                if name not in product.places:
                    continue
                if product.places[name] != place or count != len(names):
                    raise Fault(int(lanes[0]), f"wgmma into {name}, which one of another shape may still write")
                for other in by_place[place]:
                    if other != name:
                        self.stale[other][lanes] = True

    # Groups

    def start(self, lanes: np.ndarray, at: tuple[np.ndarray, ...], names: list[str], sources: tuple[str, ...]) -> None:
        places = {name: place for place, name in enumerate(names)}
        product = Product(int(self.committed[lanes[0]]), lanes, np.ones(WARPGROUP // 32, bool), at, places, sources)
        self.under_way.append(product)
        for one in at:
            self.shared.hold(one)
        for name in names:
            self.writing.setdefault(name, []).append(product)
        for name in dict.fromkeys(sources):
            self.reading.setdefault(name, []).append(product)

    def commit(self, lanes: np.ndarray) -> None:
        self.committed[lanes] += 1

    def wait(self, lanes: np.ndarray, pending: int) -> None:
        """All groups of the lanes' warps except the last `pending` complete."""
        there = np.zeros(self.committed.shape, bool)
        there[lanes] = True
        for product in self.under_way:
            warps = product.lanes.reshape(-1, 32)
            first = warps[:, 0]
            done = product.left & there[first] & (product.group < self.committed[first] - pending)
            if done.any():
                for at in product.at:
                    self.shared.seen_by(at, int(first[done][0]))
                product.left &= ~done
                if not product.left.any():
                    self.end(product)
        self.under_way = [p for p in self.under_way if p.left.any()]

    def end(self, product: Product) -> None:
        for at in product.at:
            self.shared.put_down(at)
        for users, names in ((self.writing, product.places), (self.reading, dict.fromkeys(product.sources))):
            for name in names:
                users[name].remove(product)
                if not users[name]:
                    del users[name]

    def check_exit(self) -> None:
        if self.under_way:
            raise Fault(int(self.under_way[0].lanes[0]), "the thread exits without a wait for its last wgmma")


def registers(program: Program) -> frozenset[str]:
    """The registers that a program's products read and write, and the registers that these are moved to."""
    instructions = [i for block in program.blocks for i in block]
    found = {
        item.name
        for i in instructions if i.words[:2] == ("wgmma", "mma_async")
        for operand in i.operands[:2] if isinstance(operand, Vector)
        for item in operand.items if isinstance(item, Reg)
    }  # fmt: skip
    moves = [i.operands for i in instructions if found and i.words[0] == "mov"]
    pairs = [(a.name, b.name) for a, b in moves if isinstance(a, Reg) and isinstance(b, Reg)]
    before = -1
    while len(found) > before:
        before = len(found)
        found |= {a for a, b in pairs if b in found}
    return frozenset(found)
