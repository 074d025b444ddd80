"""A SIMT machine: all threads of a batch of blocks step together as NumPy lanes.

Each lane is at a basic block; the lowest one any lane is at runs next, for the lanes that are there, so diverged lanes
meet again as early as they can. A barrier holds lanes back until all that it takes are at it. Blocks come cluster after
cluster, in the order of their ranks, and the blocks of a cluster are always in one batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret import barriers
from codegen.interpret.accesses import WINDOWS
from codegen.interpret.approximations import bounds_of, noise_of
from codegen.interpret.barriers import DONE, WAIT, Barrier, Barriers
from codegen.interpret.decoding import DTYPES, Execute, Unknown
from codegen.interpret.instructions import decode
from codegen.interpret.memory import Array, Fault, Global
from codegen.interpret.onchip import Rows, Shared
from codegen.interpret.ordering import Ordering
from codegen.interpret.ptx import Address, Imm, Instruction, Operand, Program, PtxError, Reg, Special, Symbol, Vector
from codegen.interpret.report import Report

LANES = 1 << 17  # that step together
STEPS = 200_000  # basic blocks of one batch: more is an endless loop
SHARED = 8 << 20  # bytes of shared memory in one batch: each is remembered in about thirty
RANK = 24  # addresses of a cluster's shared memory: a block's rank and one above these bits, 0 for the block's own

Dim = tuple[int, int, int]


class InterpretError(Exception):
    """A check that failed while a kernel ran; the message says where."""


@dataclass(frozen=True)
class LaunchConfig:
    """A launch as the compiled launcher asks for it."""

    kernel: str
    grid: Dim
    block: Dim
    shared: int  # bytes of dynamic shared memory
    params: tuple[bytes, ...]
    cluster: Dim = (1, 1, 1)


@dataclass(frozen=True)
class Decoded:
    """A basic block, ready to run: instructions with their guards, and what ends it."""

    body: tuple[tuple[Execute, Instruction], ...]
    end: Instruction | None
    barrier: Barrier | None  # where that is one


class Kernel:
    """A parsed entry function, every instruction decoded."""

    def __init__(self, program: Program):
        self.program = program
        self.blocks: list[Decoded] = []
        control = ("bra", "ret", "exit", "bar", "barrier", "trap", "brx")
        for block in program.blocks:
            end = block[-1] if block and block[-1].words[0] in control else None
            body = block[:-1] if end is not None else block
            barrier = None if end is None else self.control(end)
            self.blocks.append(Decoded(tuple((decode(i, program.name), i) for i in body), end, barrier))
        self.shared = _layout(program, "shared")
        self.local = _layout(program, "local")

    def control(self, instruction: Instruction) -> Barrier | None:
        """The barrier that an instruction of control flow is. Raises `PtxError` for one that is not known."""
        if instruction.words[0] in ("bra", "ret", "exit", "trap"):
            return None
        try:
            if instruction.words[0] not in ("bar", "barrier"):
                raise Unknown
            return barriers.decode(instruction)
        except Unknown:
            op = instruction.op
            raise PtxError(f"{self.program.name}: unknown instruction {op!r}: {instruction.text}") from None


def _layout(program: Program, space: str) -> int:
    """Offsets of a space's variables; its size."""
    size = 0
    for variable in sorted(program.variables.values(), key=lambda v: v.size == 0):  # dynamic shared memory comes last
        if variable.space == space:
            size = -(-size // variable.align) * variable.align
            variable.offset = size
            size += variable.size
    return size


class Machine:
    """One launch of a kernel. Raises `InterpretError` where a check fails."""

    def __init__(self, kernel: Kernel, launch: LaunchConfig, arrays: list[Array], report: Report | None = None):
        self.kernel, self.launch, self.program = kernel, launch, kernel.program
        self.constants = [
            Array(v.name, np.frombuffer(v.data, np.uint8).copy(), v.size, 1, False, read=np.zeros(v.size, bool))
            for v in self.program.variables.values() if v.space == "global" and v.data
        ]  # fmt: skip
        self.memory = Global([*arrays, *self.constants])
        self.report = report or Report(launch.kernel)
        self.report.approximate = sum(bounds_of(i.op) is not None for block in self.program.blocks for i in block)
        self.noise = noise_of(self.program)
        self.params = {name: launch.params[place] for name, (place, _) in self.program.params.items()}
        self.cluster = self.program.cluster or launch.cluster
        self.cluster_size = self.cluster[0] * self.cluster[1] * self.cluster[2]
        self.check_cluster()
        x, y, z = (g // c for g, c in zip(launch.grid, self.cluster, strict=True))
        self.clusters: Dim = (x, y, z)

    def check_cluster(self) -> None:
        """What a launch on a GPU would refuse."""
        grid, asked, cluster = self.launch.grid, self.launch.cluster, self.cluster
        for bad, why in (
            (asked not in ((1, 1, 1), cluster), f"is launched with clusters of {asked}, but compiled for {cluster}"),
            (any(g % c for g, c in zip(grid, cluster, strict=True)), f"has a grid of {grid}, not whole clusters of {cluster}"),
            (self.cluster_size > 16, f"has clusters of {self.cluster_size} blocks, and 16 are the most"),
        ):  # fmt: skip
            if bad:
                raise InterpretError(f"{self.launch.kernel}: the kernel {why}")

    def run(self) -> Report:
        """Run every block, a batch after another; then check that every output was written."""
        grid, block = self.launch.grid, self.launch.block
        threads, blocks = block[0] * block[1] * block[2], grid[0] * grid[1] * grid[2]
        self.report.start(blocks, threads)
        shared = max(1, self.kernel.shared + self.launch.shared)
        batch = max(1, min(LANES // threads, SHARED // shared) // self.cluster_size) * self.cluster_size
        with np.errstate(all="ignore"):
            for first in range(0, blocks, batch):
                self.batch(first, min(batch, blocks - first), threads)
        self.report.finish(self.memory.arrays)
        return self.report

    # One batch

    def batch(self, first: int, blocks: int, threads: int) -> None:
        self.lanes = blocks * threads
        self.per_block = threads
        lane = np.arange(self.lanes, dtype=np.int64)
        self.block_of = lane // threads
        self.first = first
        self.thread = lane + first * threads
        self.registers: dict[str, np.ndarray] = {}
        self.specials: dict[str, np.ndarray] = {}
        self.at = np.zeros(self.lanes, np.int32)
        self.select: np.ndarray | None = None
        self.ordering = Ordering(blocks, threads, self.cluster_size)
        self.barriers = Barriers(self.ordering)
        self.shared = Shared(blocks, self.kernel.shared + self.launch.shared, self.ordering)
        self.local = Rows(self.lanes, self.kernel.local) if self.kernel.local else None
        for _ in range(STEPS):
            here = int(self.at.min())
            if here == DONE:
                return
            if here >= WAIT:
                self.checked(None, self.barriers.release, self)
                continue
            there = self.at == here
            whole = bool(there.all())
            self.step(here, None if whole else np.flatnonzero(there))
        stuck = int(np.argmin(self.at))
        block = self.kernel.blocks[int(self.at[stuck]) % WAIT]
        here_now = block.body[0][1] if block.body else block.end
        raise self.error(stuck, here_now, f"still running after {STEPS} basic blocks: an endless loop")

    def step(self, here: int, select: np.ndarray | None) -> None:
        """Run a basic block for the lanes that are at it."""
        self.select = select
        block = self.kernel.blocks[here]
        count = self.lanes if select is None else len(select)
        self.report.issue(len(block.body) + (block.end is not None), count, self.warps(select))
        for execute, instruction in block.body:
            self.current = instruction
            if self.noise is not None:
                execute = self.noise.around(execute, instruction)
            try:
                if instruction.guard is None:
                    execute(self)
                else:
                    self.guarded(execute, instruction)
            except Fault as fault:
                raise self.error(fault.lane, instruction, fault.message) from None
        self.select = select
        self.checked(block.end, self.leave, here, block)

    def checked(self, instruction: Instruction | None, action, *arguments) -> None:
        """An action whose faults get their thread's place; with no instruction given, that is the thread's own."""
        try:
            action(*arguments)
        except Fault as fault:
            if instruction is None:
                instruction = self.kernel.blocks[int(self.at[fault.lane]) % WAIT].end
            raise self.error(fault.lane, instruction, fault.message) from None

    def warps(self, select: np.ndarray | None) -> int:
        if select is None:
            return (self.lanes + 31) // 32
        return 1 + int(np.count_nonzero(np.diff(select >> 5)))

    def guarded(self, execute: Execute, instruction: Instruction) -> None:
        """Run for the lanes whose predicate holds."""
        outer, taken = self.select, self.predicate(instruction)
        if taken.shape[0] == 1:
            if taken[0]:
                execute(self)
            return
        chosen = np.flatnonzero(taken) if outer is None else outer[taken]
        if len(chosen):
            self.select = chosen
            execute(self)
            self.select = outer

    def predicate(self, instruction: Instruction) -> np.ndarray:
        assert instruction.guard is not None
        name, negated = instruction.guard
        value = self.read(Reg(name), "pred")
        return ~value if negated else value

    def leave(self, here: int, block: Decoded) -> None:
        """Where the lanes go next."""
        end, lanes = block.end, self.active()
        word = end.words[0] if end is not None else ""
        after = np.int32(here + 1 if here + 1 < len(self.kernel.blocks) else DONE)
        taken = None if end is None or end.guard is None else np.broadcast_to(self.predicate(end), lanes.shape)
        if word == "trap":
            hit = lanes if taken is None else lanes[taken]
            if len(hit):
                raise Fault(int(hit[0]), "trap")
        target = after
        if word in ("ret", "exit"):
            target = np.int32(DONE)
        elif word == "bra":
            assert end is not None and isinstance(end.operands[0], Symbol)
            target = np.int32(self.program.labels[end.operands[0].name])
            target = np.int32(DONE) if target >= len(self.kernel.blocks) else target
        elif block.barrier is not None:
            outer, self.select = self.select, self.select if taken is None else lanes[taken]
            if self.width():
                self.barriers.reach(self, block.barrier, self.active())
            self.select = outer
            target = np.int32(WAIT + here) if block.barrier.waits else after
        self.at[slice(None) if self.select is None else lanes] = (
            target if taken is None else np.where(taken, target, after)
        )
        if self.cluster_size > 1 and DONE in (target, after):
            self.exits(lanes)

    def exits(self, lanes: np.ndarray) -> None:
        """Blocks all of whose threads have exited now: nobody may need their shared memory any more."""
        rows = np.unique(self.block_of[lanes])
        rows = rows[(self.at.reshape(-1, self.per_block)[rows] == DONE).all(axis=1)]
        self.shared.gone[rows] = True
        waited = self.ordering.waited.reshape(-1, self.per_block)[rows].max(axis=1, initial=0)
        early = rows[waited < self.shared.until[rows]]
        if len(early):
            block = int(early[0])
            lane, instruction = self.shared.because[block]
            name = self.shared.name(block, lane)
            what = f"race: access to {name}, which may have exited: it waits for no cluster barrier after"
            raise self.error(lane, instruction, what)

    # Registers and operands

    def width(self) -> int:
        """How many lanes are active."""
        return self.lanes if self.select is None else len(self.select)

    def active(self) -> np.ndarray:
        return np.arange(self.lanes) if self.select is None else self.select

    def read(self, operand: Operand, kind: str) -> np.ndarray:
        """An operand's bits seen as a type."""
        dtype = DTYPES[kind]
        if isinstance(operand, Reg):
            value = self.registers.get(operand.name)
            if value is None:  # undefined: the compiler promises that nothing depends on it
                return np.zeros(1, dtype)
            if self.select is not None and value.shape[0] != 1:
                value = value[self.select]
            if dtype is np.bool_ or value.dtype == dtype:
                return value
            size = np.dtype(dtype).itemsize
            if size == value.dtype.itemsize:
                return value.view(dtype)
            if size < value.dtype.itemsize:
                return value.astype(f"u{size}").view(dtype)
            return value.astype(f"u{size}").view(dtype)
        if isinstance(operand, Imm):
            return self.immediate(operand, dtype)
        if isinstance(operand, Special):
            return self.special(operand.name).astype(dtype)
        raise PtxError(f"{self.program.name}: cannot read the operand of {self.current.text!r}")

    def immediate(self, operand: Imm, dtype: type) -> np.ndarray:
        size = np.dtype(dtype).itemsize
        if operand.kind == "f64" and dtype is np.float32:
            return np.array([operand.value], np.uint64).view(np.float64).astype(np.float32)
        if dtype is np.bool_:
            return np.array([operand.value != 0])
        return np.array([operand.value % (1 << (8 * size))], f"u{size}").view(dtype)

    def number(self, operand: Operand, kind: str) -> np.ndarray:
        """An operand as a number: bfloat16 widened to float32."""
        if kind == "bf16":
            return (self.read(operand, "u16").astype(np.uint32) << np.uint32(16)).view(np.float32)
        return self.read(operand, kind)

    def write(self, target: Operand, value: np.ndarray) -> None:
        """Set a register in the active lanes."""
        if isinstance(target, Vector) and target.items == (None,):
            return
        if not isinstance(target, Reg):
            raise PtxError(f"{self.program.name}: cannot write the operand of {self.current.text!r}")
        dtype = {"pred": np.bool_, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}[
            self.program.register_class(target.name)
        ]
        if value.dtype != dtype:
            size = np.dtype(dtype).itemsize
            if dtype is np.bool_:
                value = value.astype(np.bool_)
            elif value.dtype.itemsize == size:
                value = value.view(dtype)
            elif value.dtype.kind == "i":  # narrower signed values are extended by their sign
                value = value.astype(f"i{size}").view(dtype)
            elif value.dtype.kind == "f":
                value = value.view(f"u{value.dtype.itemsize}").astype(dtype)
            else:
                value = value.astype(dtype)
        if self.select is None:
            self.registers[target.name] = value
            return
        old = self.registers.get(target.name)
        new = np.zeros(self.lanes, dtype) if old is None else np.array(np.broadcast_to(old, (self.lanes,)))
        new[self.select] = value
        self.registers[target.name] = new

    def repack(self, target: Operand, source: Operand, kind: str) -> None:
        """mov between a register and a vector of narrower ones."""
        size = np.dtype(DTYPES[kind]).itemsize
        if isinstance(source, Vector):
            bits = 8 * size // len(source.items)
            total = np.zeros(1, f"u{size}")
            for i, item in enumerate(source.items):
                assert item is not None
                total = total | (self.read(item, f"u{bits}").astype(f"u{size}") << np.array(bits * i, f"u{size}"))
            self.write(target, total)
            return
        assert isinstance(target, Vector)
        bits = 8 * size // len(target.items)
        value = self.read(source, f"u{8 * size}")
        for i, item in enumerate(target.items):
            if item is not None:
                part = value >> np.array(bits * i, value.dtype)
                self.write(item, (part & np.array((1 << bits) - 1, value.dtype)).astype(f"u{bits // 8}"))

    def special(self, name: str) -> np.ndarray:
        value = self.specials.get(name)
        if value is None:
            value = self.specials[name] = self.special_value(name)
        return value if self.select is None or value.shape[0] == 1 else value[self.select]

    def special_value(self, name: str) -> np.ndarray:
        base, _, axis = name[1:].partition(".")
        lane = np.arange(self.lanes, dtype=np.int64)
        inside, block = lane % self.per_block, self.block_of + self.first
        within = block % self.cluster_size  # the cluster
        bit = np.int64(1) << (inside % 32)
        plain = {
            "laneid": inside % 32, "warpid": inside // 32, "nwarpid": -(-self.per_block // 32),
            "lanemask_eq": bit, "lanemask_lt": bit - 1, "lanemask_le": 2 * bit - 1, "lanemask_gt": -2 * bit & 0xFFFFFFFF,
            "lanemask_ge": -bit & 0xFFFFFFFF, "cluster_ctarank": within, "cluster_nctarank": self.cluster_size,
            "is_explicit_cluster": self.launch.cluster != (1, 1, 1) or self.program.cluster is not None,
            "dynamic_smem_size": self.launch.shared,
        }.get(base)  # fmt: skip
        if plain is not None:
            return np.atleast_1d(np.asarray(plain))
        extents = {
            "ntid": self.launch.block, "nctaid": self.launch.grid, "cluster_nctaid": self.cluster, "nclusterid": self.clusters
        }  # fmt: skip
        places = {
            "tid": (self.launch.block, inside), "cluster_ctaid": (self.cluster, within),
            "clusterid": (self.clusters, block // self.cluster_size),
        }  # fmt: skip
        axis_of = "xyz".find(axis)
        if base in extents and axis_of >= 0:
            return np.array([extents[base][axis_of]])
        if base == "ctaid" and axis_of >= 0:
            return self.block_place(block, axis_of)
        if base not in places or axis_of < 0:
            raise PtxError(f"{self.program.name}: unknown special register {name}")
        shape, index = places[base]
        return _coordinate(index, shape, axis_of)

    def block_place(self, block, axis: int):
        """A coordinate in the grid of blocks counted cluster after cluster."""
        start = _coordinate(block // self.cluster_size, self.clusters, axis) * self.cluster[axis]
        return start + _coordinate(block % self.cluster_size, self.cluster, axis)

    # Memory

    def place(self, address: Address) -> np.ndarray:
        """Addresses (of global memory) or offsets, in the active lanes."""
        if isinstance(address.base, Reg):
            bits = "s64" if self.program.register_class(address.base.name) == "b64" else "u32"
            base = self.read(address.base, bits).astype(np.int64)
        else:
            base = self.address_of(address.base).astype(np.int64)
        base = base + address.offset
        return np.broadcast_to(base, (self.width(),)) if base.shape[0] != self.width() else base

    def address_of(self, name: str) -> np.ndarray:
        variable = self.program.variables.get(name)
        if variable is None:
            raise PtxError(f"{self.program.name}: unknown symbol {name!r}")
        if variable.space == "global":
            found = next((a for a in self.constants if a.name == name), None)
            if found is None:
                raise PtxError(f"{self.program.name}: the variable {name!r} has no value")
            return np.array([found.address], np.uint64)
        return np.array([variable.offset], np.uint64)

    def load(self, space: str, address: Address, count: int, size: int, asked: int) -> list[np.ndarray]:
        """`count` words of the `asked` that one access takes."""
        if space == "param" and address.base in self.params:
            assert isinstance(address.base, str)
            data = np.frombuffer(self.params[address.base], np.uint8)[address.offset : address.offset + count * size]
            return [data.view(f"u{size}")[k : k + 1] for k in range(count)]
        return self.load_from(space, self.place(address), self.active(), count, size, asked)

    def load_from(self, space: str, where: np.ndarray, lanes: np.ndarray, count: int, size: int, asked: int):
        if space == "generic":
            results = [np.zeros(lanes.shape, f"u{size}") for _ in range(count)]
            for inner, chosen, offset in self.windows(where):
                parts = self.load_from(inner, offset, lanes[chosen], count, size, asked)
                for result, part in zip(results, parts, strict=True):
                    result[chosen] = part
            return results
        if space in ("global", "const"):
            return self.memory.load(where, count, size, lanes, self.thread[lanes], asked)
        if space in ("local", "param"):
            return self.own_local().load(lanes, where, count, size, lanes, asked)
        row, offset = self.shared_place(space, where, lanes)
        values = self.shared.load(row, offset, count, size, lanes, asked)
        self.shared.visit(row, lanes, self.current)
        return values

    def store(self, space: str, address: Address, values: list[np.ndarray], size: int) -> None:
        self.store_to(space, self.place(address), self.active(), values, size)

    def store_to(self, space: str, where: np.ndarray, lanes: np.ndarray, values: list[np.ndarray], size: int) -> None:
        if space == "generic":
            for inner, chosen, offset in self.windows(where):
                parts = [np.broadcast_to(v, lanes.shape)[chosen] for v in values]
                self.store_to(inner, offset, lanes[chosen], parts, size)
        elif space == "global":
            self.memory.store(where, values, size, lanes, self.thread[lanes])
        elif space in ("local", "param"):
            self.own_local().store(lanes, where, values, size, lanes)
        else:
            row, offset = self.shared_place(space, where, lanes)
            self.shared.store(row, offset, values, size, lanes)
            self.shared.visit(row, lanes, self.current)

    def windows(self, where: np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Generic addresses by the spaces that they lie in: which of them, and where there."""
        bounds = (("global", 0, 1 << 60), ("local", 1 << 60, 3 << 60), ("shared::cluster", 3 << 60, 5 << 60))
        found = []
        for space, low, high in bounds:
            chosen = (where >= low) & (where < high)
            if chosen.any():
                found.append((space, chosen, where[chosen] - WINDOWS[space]))
        return found

    def own_local(self) -> Rows:
        if self.local is None:
            raise PtxError(f"{self.program.name}: local memory that was not declared")
        return self.local

    def shared_place(self, space: str, where: np.ndarray, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The block whose shared memory addresses lie in, and the offsets there."""
        row = self.block_of[lanes]
        rank, offset = self.split(where)
        mapped = rank >= 0
        if not mapped.any():
            return row, where
        if space == "shared":
            lane = int(lanes[mapped][0])
            raise Fault(
                lane, "an address in the cluster's shared memory, which this instruction takes for its own block's"
            )
        beyond = rank >= self.cluster_size
        if beyond.any():
            lane, size = int(lanes[beyond][0]), self.cluster_size
            raise Fault(lane, f"the shared memory of block {int(rank[beyond][0])} of a cluster of {size}")
        return np.where(mapped, row - row % self.cluster_size + rank, row), offset

    def split(self, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rank of an address of the cluster's shared memory, -1 for the block's own, and its offset."""
        field = (where + (1 << (RANK - 1))) >> RANK  # offsets may be a little below 0
        return field - 1, where - (field << RANK)

    def map_shared(self, target: Operand, address: np.ndarray, rank: np.ndarray) -> None:
        """mapa: the address in the cluster of what is there in the block of a rank."""
        lanes = self.active()
        address, rank = (np.broadcast_to(v.astype(np.int64), lanes.shape) for v in (address, rank))
        for bad, what in (
            (self.split(address)[0] >= 0, "an address that is mapped already"),
            (rank >= self.cluster_size, f"block {int(rank.max())} of a cluster of {self.cluster_size}"),
        ):
            if bad.any():
                raise Fault(int(lanes[bad][0]), f"mapa to {what}" if "block" in what else f"mapa of {what}")
        self.write(target, (address + ((rank + 1) << RANK)).astype(np.uint32))

    def rank_of(self, address: np.ndarray) -> np.ndarray:
        own = self.block_of[self.active()] % self.cluster_size
        rank = self.split(address)[0]
        return np.where(rank < 0, own, rank).astype(np.uint32)

    def copy_async(self, target: Address, source: Address, size: int, given: Operand | None) -> None:
        """cp.async of `size` bytes, of which only the first `given` are read (none if it is a predicate that holds) and
        the rest are zeros."""
        lanes, where = self.active(), self.place(source)
        row, offset = self.shared_place("shared", self.place(target), lanes)
        if given is None:
            read = np.full(lanes.shape, size)
        elif isinstance(given, Reg) and self.program.register_class(given.name) == "pred":  # which ignores the source
            read = np.broadcast_to(np.where(self.read(given, "pred"), 0, size), lanes.shape)
        else:
            read = np.broadcast_to(self.read(given, "u32"), lanes.shape)
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
                values = self.memory.load(where[chosen], int(count), 1, who, self.thread[who], 1)
                whole[chosen, : int(count)] = np.stack(values, axis=1)
        self.shared.copy(row, offset, whole, lanes)

    def atomic(self, space: str, address: Address, op: str, combine, kind: str, values, target) -> None:
        """One lane after another, in the order of threads: a legal order of many."""
        where, lanes = self.place(address), self.active()
        size = np.dtype(DTYPES[kind]).itemsize
        operands = [np.broadcast_to(self.read(v, kind), lanes.shape) for v in values]
        before: np.ndarray = np.zeros(lanes.shape, DTYPES[kind])
        row, offset = self.shared_place(space, where, lanes) if space != "global" else (lanes, where)
        for i in range(len(lanes)):
            one = lanes[i : i + 1]
            if space == "global":
                cell = self.memory.cell(where[i : i + 1], size, one)
            else:
                cell = self.shared.cell(row[i : i + 1], offset[i : i + 1], size, one)
            cell = cell.view(DTYPES[kind])
            before[i] = cell[0]
            if op == "cas":
                cell[0] = operands[1][i] if cell[0] == operands[0][i] else cell[0]
            else:
                old, other = cell[0:1], operands[0][i : i + 1]
                if op == "add" and kind == "f32" and space == "global":  # which flushes denormals; shared does not
                    cell[0] = ar.flush(ar.flush(old) + ar.flush(other))[0]
                else:
                    cell[0] = combine(old, other)[0]
        if space != "global":
            self.shared.visit(row, lanes, self.current)
        if target is not None:
            self.write(target, before)

    # Messages

    def where(self, lane: int) -> str:
        block, thread = int(self.block_of[lane]) + self.first, lane % self.per_block
        at = tuple(int(self.block_place(block, axis)) for axis in range(3))
        return f"block {at} thread {tuple(_coordinate(thread, self.launch.block, axis) for axis in range(3))}"

    def error(self, lane: int, instruction: Instruction | None, message: str) -> InterpretError:
        text = f"{self.launch.kernel}: {message}\n  at {self.where(lane)}"
        if instruction is not None:
            text += f"\n  {instruction.text}"
            text += f"\n  {instruction.place}" if instruction.place else ""
        return InterpretError(text)


def _coordinate(index, shape: Dim, axis: int):
    return index // [1, shape[0], shape[0] * shape[1]][axis] % shape[axis]
