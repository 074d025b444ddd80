"""Finds the memory of an instruction's addresses (which space, whose shared memory, which bytes), and accesses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.arithmetic import PTX_TYPES
from codegen.interpret.lanes import Lanes
from codegen.interpret.memory.arrays import Fault, Global
from codegen.interpret.memory.onchip import Rows, Shared
from codegen.interpret.ptx import Address, Operand, PtxError, Reg

# The windows of spaces among generic addresses; global memory is far below, at its own addresses
WINDOWS = {"global": 0, "const": 0, "param": 0, "local": 1 << 61}
WINDOWS |= {"shared": 1 << 62, "shared::cta": 1 << 62, "shared::cluster": 1 << 62}
RANK = 24  # addresses of a cluster's shared memory: a block's rank and one above these bits, 0 for the block's own
# The address of a kernel's parameters, and the bits between two of them: below local memory's window, above any array
PARAMETERS, PARAMETER = 1 << 59, 20


class Spaces:
    """The memory of a batch of blocks, as the machine's active lanes reach it."""

    def __init__(self, machine: Lanes, arrays: Global, shared: Shared, local: Rows | None):
        self.m, self.arrays, self.shared, self.local = machine, arrays, shared, local

    def place(self, address: Address) -> np.ndarray:
        """Addresses (of global memory) or offsets, in the active lanes."""
        if isinstance(address.base, Reg):
            bits = "s64" if self.m.program.register_class(address.base.name) == "b64" else "u32"
            base = self.m.read(address.base, bits).astype(np.int64)
        else:
            bits, base = "s64", self.address_of(address.base).astype(np.int64)
        base = base + address.offset
        if bits == "u32":
            base = (base + (1 << 31)) % (1 << 32) - (1 << 31)  # addresses of 32 bits wrap around
        return np.broadcast_to(base, (self.m.width(),)) if base.shape[0] != self.m.width() else base

    def address_of(self, name: str) -> np.ndarray:
        if name in self.m.program.params:
            return np.array([PARAMETERS + (self.m.program.params[name][0] << PARAMETER)], np.uint64)
        variable = self.m.program.variables.get(name)
        if variable is None:
            raise PtxError(f"{self.m.program.name}: unknown symbol {name!r}")
        if variable.space == "global":
            found = next((a for a in self.m.constants if a.name == name), None)
            if found is None:
                raise PtxError(f"{self.m.program.name}: the variable {name!r} has no value")
            return np.array([found.address], np.uint64)
        return np.array([variable.offset], np.uint64)

    def parameter(self, address: int, lane: int) -> bytes:
        """The parameter of the kernel at an address."""
        place, inside = divmod(address - PARAMETERS, 1 << PARAMETER)
        if inside or not 0 <= place < len(self.m.launch.params):
            raise Fault(lane, f"no parameter of the kernel is at {address:#x}")
        return self.m.launch.params[place]

    def load_parameters(self, where: np.ndarray, lanes: np.ndarray, count: int, size: int) -> list[np.ndarray]:
        """Words of the kernel's parameters, where registers hold their addresses: of one of two parameters, or of one's elements."""
        results = [np.zeros(where.shape, f"u{size}") for _ in range(count)]
        for address in np.unique(where):
            inside, chosen = int(address - PARAMETERS) % (1 << PARAMETER), where == address
            data = self.parameter(int(address) - inside, int(lanes[chosen][0]))[inside : inside + count * size]
            if len(data) < count * size:
                raise Fault(int(lanes[chosen][0]), f"a read past the end of a parameter, at {int(address):#x}")
            for k, result in enumerate(results):
                result[chosen] = np.frombuffer(data, f"u{size}")[k]
        return results

    def load(
        self, space: str, address: Address, count: int, size: int, asked: int, strong: bool = False
    ) -> list[np.ndarray]:
        """`count` of the `asked` words of one access. It is `strong` if threads synchronise by these words."""
        if space == "param" and address.base in self.m.params:
            assert isinstance(address.base, str)
            data = np.frombuffer(self.m.params[address.base], np.uint8)[address.offset : address.offset + count * size]
            return [data.view(f"u{size}")[k : k + 1] for k in range(count)]
        return self.load_from(space, self.place(address), self.m.active(), count, size, asked, strong)

    def load_from(
        self, space: str, where: np.ndarray, lanes: np.ndarray, count: int, size: int, asked: int, strong: bool = False
    ) -> list[np.ndarray]:
        if space == "generic":
            results = [np.zeros(lanes.shape, f"u{size}") for _ in range(count)]
            for inner, chosen, offset in self.windows(where):
                parts = self.load_from(inner, offset, lanes[chosen], count, size, asked, strong)
                for result, part in zip(results, parts, strict=True):
                    result[chosen] = part
            return results
        if space == "param" and (where >= PARAMETERS).all():
            return self.load_parameters(where, lanes, count, size)
        if space in ("global", "const"):
            return self.arrays.load(where, count, size, lanes, self.m.thread[lanes], asked, strong)
        if space in ("local", "param"):
            return self.own_local().load(lanes, where, count, size, lanes, asked)
        row, offset = self.shared_place(space, where, lanes)
        values = self.shared.load(row, offset, count, size, lanes, asked)
        self.shared.visit(row, lanes, self.m.current)
        return values

    def store(self, space: str, address: Address, values: list[np.ndarray], size: int, strong: bool = False) -> None:
        self.store_to(space, self.place(address), self.m.active(), values, size, strong)

    def store_to(
        self,
        space: str,
        where: np.ndarray,
        lanes: np.ndarray,
        values: list[np.ndarray],
        size: int,
        strong: bool = False,
    ) -> None:
        if space == "generic":
            for inner, chosen, offset in self.windows(where):
                parts = [np.broadcast_to(v, lanes.shape)[chosen] for v in values]
                self.store_to(inner, offset, lanes[chosen], parts, size, strong)
        elif space == "global":
            self.arrays.store(where, values, size, lanes, self.m.thread[lanes], strong)
        elif space in ("local", "param"):
            self.own_local().store(lanes, where, values, size, lanes)
        else:
            row, offset = self.shared_place(space, where, lanes)
            self.shared.store(row, offset, values, size, lanes)
            self.shared.visit(row, lanes, self.m.current)

    def windows(self, where: np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Generic addresses by their spaces: the indices of these addresses, and the addresses in the space."""
        shared, local = where >= 3 << 60, (where >= 1 << 60) & (where < 3 << 60)
        found = []
        for space, chosen in (("global", ~shared & ~local), ("local", local), ("shared::cluster", shared)):
            if chosen.any():
                found.append((space, chosen, where[chosen] - WINDOWS[space]))
        return found

    def own_local(self) -> Rows:
        if self.local is None:
            raise PtxError(f"{self.m.program.name}: local memory that was not declared")
        return self.local

    def shared_place(self, space: str, where: np.ndarray, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The blocks whose shared memory contains the addresses, and the offsets there."""
        row = self.m.block_of[lanes]
        rank, offset = self.split(where)
        mapped = (rank >= 0) & (rank < self.m.cluster_size)  # else it is out of everyone's bounds
        if not mapped.any():
            return row, where
        if space == "shared":
            lane = int(lanes[mapped][0])
            raise Fault(
                lane, "an address in the cluster's shared memory, which this instruction takes for its own block's"
            )
        size = self.m.cluster_size
        return np.where(mapped, row - row % size + rank, row), np.where(mapped, offset, where)

    def split(self, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rank of an address of the cluster's shared memory, -1 for the block's own, and its offset."""
        field = (where + (1 << (RANK - 1))) >> RANK  # offsets may be a little below 0
        return field - 1, where - (field << RANK)

    def map_shared(self, target: Operand, address: np.ndarray, rank: np.ndarray) -> None:
        """mapa: the cluster address of an address in the block of a rank. An invalid rank is an error only where the address is
        used, since compilers compute addresses before the branch that needs them."""
        lanes = self.m.active()
        address, rank = (np.broadcast_to(v.astype(np.int64), lanes.shape) for v in (address, rank))
        bad = self.split(address)[0] >= 0
        if bad.any():
            raise Fault(int(lanes[bad][0]), "mapa of an address that is mapped already")
        rank = np.where((rank >= 0) & (rank < self.m.cluster_size), rank, self.m.cluster_size)
        self.m.write(target, (address + ((rank + 1) << RANK)).astype(np.uint32))

    def rank_of(self, address: np.ndarray) -> np.ndarray:
        own = self.m.block_of[self.m.active()] % self.m.cluster_size
        rank = self.split(address)[0]
        return np.where(rank < 0, own, rank).astype(np.uint32)

    def copy_async(self, target: Address, source: Address, size: int, given: Operand | None) -> None:
        """cp.async of `size` bytes: only the first `given` are read (none if it is a true predicate), and the rest are zeros."""
        lanes, where = self.m.active(), self.place(source)
        row, offset = self.shared_place("shared", self.place(target), lanes)
        if given is None:
            read = np.full(lanes.shape, size)
        elif isinstance(given, Reg) and self.m.program.register_class(given.name) == "pred":
            read = np.broadcast_to(np.where(self.m.read(given, "pred"), 0, size), lanes.shape)
        else:
            read = np.broadcast_to(self.m.read(given, "u32"), lanes.shape)
        if (read > size).any():
            raise Fault(int(lanes[read > size][0]), f"cp.async of {size} bytes that takes more of its source")
        misaligned = where % size != 0
        if misaligned.any():
            raise Fault(int(lanes[misaligned][0]), f"cp.async of {size} bytes from an address that they do not divide")
        whole = np.zeros((len(lanes), size), np.uint8)
        for count in np.unique(read):
            chosen = read == count
            if count:
                who = lanes[chosen]
                values = self.arrays.load(where[chosen], int(count), 1, who, self.m.thread[who], 1)
                whole[chosen, : int(count)] = np.stack(values, axis=1)
        self.shared.copy(row, offset, whole, lanes)

    def atomic(
        self,
        space: str,
        address: Address,
        op: str,
        combine: Callable[..., np.ndarray] | None,
        kind: str,
        values: Sequence[Operand],
        target: Operand | None,
    ) -> None:
        """Lanes execute one after the other, in the order of threads, which is one of the legal orders."""
        where, lanes = self.place(address), self.m.active()
        size = np.dtype(PTX_TYPES[kind]).itemsize
        operands = [np.broadcast_to(self.m.read(v, kind), lanes.shape) for v in values]
        before: np.ndarray = np.zeros(lanes.shape, PTX_TYPES[kind])
        row, offset = self.shared_place(space, where, lanes) if space != "global" else (lanes, where)
        for i in range(len(lanes)):
            one = lanes[i : i + 1]
            if space == "global":
                cell = self.arrays.cell(where[i : i + 1], size, one)
            else:
                cell = self.shared.cell(row[i : i + 1], offset[i : i + 1], size, one)
            cell = cell.view(PTX_TYPES[kind])
            before[i] = cell[0]
            if op == "cas":
                cell[0] = operands[1][i] if cell[0] == operands[0][i] else cell[0]
            else:
                old, other = cell[0:1], operands[0][i : i + 1]
                # Global memory's addition flushes denormals; shared memory's does not
                if op == "add" and kind == "f32" and space == "global":
                    cell[0] = ar.flush(ar.flush(old) + ar.flush(other))[0]
                else:
                    assert combine is not None
                    cell[0] = combine(old, other)[0]
        if space != "global":
            self.shared.visit(row, lanes, self.m.current)
        if target is not None:
            self.m.write(target, before)
