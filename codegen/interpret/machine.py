"""A SIMT machine: all threads of a batch of blocks step together as NumPy lanes.

Each lane is at a basic block. The lowest of these blocks runs next, for the lanes that are there, so diverged lanes converge
as early as possible. A barrier holds lanes until all its participants have arrived. So does an instruction of several lanes,
such as `shfl.sync`, until all lanes of its mask have. Blocks are ordered by cluster, then by rank, and the blocks of a cluster
are always in one batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from codegen.interpret.approximations import noise_of
from codegen.interpret.arithmetic import PTX_TYPES
from codegen.interpret.decode.decoding import Execute
from codegen.interpret.kernel import Decoded, Kernel
from codegen.interpret.lanes import MOST_SHARED, Dim, LaunchConfig
from codegen.interpret.memory.arrays import Array, Fault, Global
from codegen.interpret.memory.barriers import ASIDE, DONE, TOGETHER, WAIT, Barriers
from codegen.interpret.memory.bulks import Bulks
from codegen.interpret.memory.onchip import Rows, Shared
from codegen.interpret.memory.ordering import Ordering
from codegen.interpret.memory.products import Products
from codegen.interpret.memory.spaces import Spaces
from codegen.interpret.ptx import Imm, Instruction, Operand, PtxError, Reg, Special, Symbol, Vector
from codegen.interpret.report import Report

Index = TypeVar("Index", int, np.ndarray)

LANES = 1 << 17  # that step together
STEPS = 200_000  # basic blocks of one batch: more is an endless loop
SHARED = 8 << 20  # bytes of shared memory in one batch: tracking one takes about thirty


class InterpretError(Exception):
    """A check that failed while a kernel ran; the message says where."""


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
        self.report.approximate = kernel.approximate
        self.noise = noise_of(self.program)
        self.params = {name: launch.params[place] for name, (place, _) in self.program.params.items()}
        self.cluster = self.program.cluster or launch.cluster
        self.cluster_size = self.cluster[0] * self.cluster[1] * self.cluster[2]
        self.check_launch()
        x, y, z = (g // c for g, c in zip(launch.grid, self.cluster, strict=True))
        self.clusters: Dim = (x, y, z)

    def check_launch(self) -> None:
        """Raises `InterpretError` for a launch that a GPU would refuse."""
        grid, asked, cluster = self.launch.grid, self.launch.cluster, self.cluster
        size = self.kernel.shared + self.launch.shared
        for bad, why in (
            (0 in grid, f"has a grid of {grid}: no blocks"),
            (asked not in ((1, 1, 1), cluster), f"is launched with clusters of {asked}, but compiled for {cluster}"),
            (any(g % c for g, c in zip(grid, cluster, strict=True)), f"has a grid of {grid}, not whole clusters of {cluster}"),
            (size > MOST_SHARED, f"has {size} bytes of shared memory, and {MOST_SHARED} are the most"),
            (self.cluster_size > 16, f"has clusters of {self.cluster_size} blocks, and 16 are the most"),
        ):  # fmt: skip
            if bad:
                raise InterpretError(f"{self.launch.kernel}: the kernel {why}")

    def run(self) -> Report:
        """Run every block, batch by batch, then check that every output was written."""
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
        """Run some neighbouring blocks, all threads together, until each has exited."""
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
        self.idle = np.zeros(self.lanes, bool)
        self.pausing = False
        self.ordering = Ordering(blocks, threads, self.cluster_size, self.kernel.mbarriers)
        self.shared = Shared(blocks, self.kernel.shared + self.launch.shared, self.ordering)
        self.products = Products(self.shared, self.kernel.of_products)
        self.bulks = Bulks(self.shared, self.memory)
        self.barriers = Barriers(self.ordering, self.products)
        local = Rows(self.lanes, self.kernel.local) if self.kernel.local else None
        self.spaces = Spaces(self, self.memory, self.shared, local)
        for _ in range(STEPS):
            here = int(self.at.min())
            if here == DONE:
                for flying in (self.products, self.bulks):
                    self.checked(None, flying.check_exit)
                return
            if here >= ASIDE:
                self.checked(None, self.go_on, here)
                continue
            there = self.at == here
            self.step(here, None if there.all() else np.flatnonzero(there))
        stuck = int(np.argmin(self.at))
        block = self.kernel.blocks[int(self.at[stuck]) % ASIDE]
        here_now = block.body[0][1] if block.body else block.end
        raise self.error(stuck, here_now, f"still running after {STEPS} basic blocks: an endless loop")

    def go_on(self, here: int) -> None:
        """When no lane can run, let some lanes pass a barrier, or continue lanes that pause."""
        if here < WAIT and not self.pausing and not ((self.at >= WAIT) & (self.at < DONE)).any():
            raise Fault(int(np.argmin(self.at)), "a wait for a phase of an mbarrier that nothing brings to its end")
        self.barriers.release(self)

    def aside(self, lanes: np.ndarray) -> None:
        """After this basic block, these lanes wait until a phase of an mbarrier completes."""
        self.idle[lanes] = True

    def wake(self) -> None:
        """Let lanes continue that wait for a phase of an mbarrier: they try again."""
        self.at[(self.at >= ASIDE) & (self.at < WAIT)] -= ASIDE
        self.idle[:] = False
        self.pausing = False

    def step(self, here: int, select: np.ndarray | None) -> None:
        """Run a basic block for the lanes that are at it, and the following blocks that have no other predecessor."""
        while True:
            block = self.kernel.blocks[here]
            if block.meeting is not None and select is not None:
                self.select = select
                select = self.barriers.meet(self, here, block.meeting)
                if not len(select):
                    return
            self.body(block, select)
            if not block.goes_on:
                break
            here += 1
        self.select = select
        self.checked(block.end, self.leave, here, block)

    def body(self, block: Decoded, select: np.ndarray | None) -> None:
        """Run a basic block's instructions, except its last one."""
        self.select = select
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

    def checked(self, instruction: Instruction | None, action: Callable[..., None], *arguments: object) -> None:
        """Run an action; a fault gets its thread's place, and the instruction: by default the thread's current one."""
        try:
            action(*arguments)
        except Fault as fault:
            if instruction is None:
                instruction = self.instruction_at(fault.lane)
            raise self.error(fault.lane, instruction, fault.message) from None

    def instruction_at(self, lane: int) -> Instruction | None:
        """The instruction at which a lane waits; None where it has exited."""
        if self.at[lane] == DONE:
            return None
        block = self.kernel.blocks[int(self.at[lane]) % ASIDE]
        meets = self.at[lane] >= WAIT and self.barriers.at[lane] == TOGETHER
        return block.meeting if meets else block.end

    def warps(self, select: np.ndarray | None) -> int:
        """The number of warps with active lanes."""
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
        """Set the next basic block of the lanes."""
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
        idle = lanes[self.idle[lanes]]
        if len(idle):
            self.at[idle] = np.where(self.at[idle] < ASIDE, self.at[idle] + ASIDE, self.at[idle])
            self.idle[idle] = False
        if DONE in (target, after) and (self.cluster_size > 1 or self.shared.mbarriers.found):
            self.exits(lanes)

    def exits(self, lanes: np.ndarray) -> None:
        """Handle blocks whose threads have all exited: no other block may still need their shared memory."""
        rows = np.unique(self.block_of[lanes])
        rows = rows[(self.at.reshape(-1, self.per_block)[rows] == DONE).all(axis=1)]
        self.shared.gone[rows] = True
        self.shared.mbarriers.check_exit(rows)
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
        """The number of active lanes."""
        return self.lanes if self.select is None else len(self.select)

    def active(self) -> np.ndarray:
        """The active lanes' numbers in the batch."""
        return np.arange(self.lanes) if self.select is None else self.select

    def read(self, operand: Operand, kind: str) -> np.ndarray:
        """An operand's bits, reinterpreted as a type."""
        dtype = PTX_TYPES[kind]
        if isinstance(operand, Reg):
            if operand.name in self.kernel.of_products:
                self.products.access(operand.name, self.active(), False)
            value = self.registers.get(operand.name)
            if value is None:  # undefined: the compiler promises that nothing depends on it
                return np.zeros(1, dtype)
            if self.select is not None and value.shape[0] != 1:
                value = value[self.select]
            if dtype is np.bool_ or value.dtype.type is dtype:
                return value
            size = np.dtype(dtype).itemsize
            return (value if size == value.dtype.itemsize else value.astype(f"u{size}")).view(dtype)
        if isinstance(operand, Imm):
            return _immediate(operand, dtype)
        if isinstance(operand, Special):
            return self.special(operand.name).astype(dtype)
        raise PtxError(f"{self.program.name}: cannot read the operand of {self.current.text!r}")

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
        if target.name in self.kernel.of_products:
            self.products.access(target.name, self.active(), True)
        dtype = _REGISTERS[self.program.register_class(target.name)]
        if value.dtype != dtype:
            size = dtype.itemsize
            if dtype.kind == "b":
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
        if old is None:
            new = np.zeros(self.lanes, dtype)
        else:  # a copy: other registers may hold the same array
            new = old.copy() if len(old) == self.lanes else np.full(self.lanes, old[0], dtype)
        new[self.select] = value
        self.registers[target.name] = new

    def repack(self, target: Operand, source: Operand, kind: str) -> None:
        """mov between a register and a vector of narrower ones."""
        size = np.dtype(PTX_TYPES[kind]).itemsize
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
        """A special register's value in every lane, or one value for all."""
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

    def block_place(self, block: Index, axis: int) -> Index:
        """A coordinate in the grid of a block, which is numbered by cluster, then by rank."""
        start = _coordinate(block // self.cluster_size, self.clusters, axis) * self.cluster[axis]
        return start + _coordinate(block % self.cluster_size, self.cluster, axis)

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


_REGISTERS = {name: np.dtype(kind) for name, kind in (("pred", "?"), ("b16", "u2"), ("b32", "u4"), ("b64", "u8"))}


def _coordinate(index: Index, shape: Dim, axis: int) -> Index:
    return index // [1, shape[0], shape[0] * shape[1]][axis] % shape[axis]


@functools.lru_cache(4096)
def _immediate(operand: Imm, dtype: type) -> np.ndarray:
    """A literal's bits as a type, for reading only."""
    size = np.dtype(dtype).itemsize
    if dtype is np.bool_:
        value = np.array([operand.value != 0])
    elif operand.kind == "f64" and dtype is np.float32:
        value = np.array([operand.value], np.uint64).view(np.float64).astype(np.float32)
    else:
        value = np.array([operand.value % (1 << (8 * size))], f"u{size}").view(dtype)
    value.flags.writeable = False
    return value
