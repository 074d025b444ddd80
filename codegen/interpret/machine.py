"""A SIMT machine: all threads of a batch of blocks step together as NumPy lanes.

Each lane is at a basic block; the lowest one any lane is at runs next, for the lanes that are there, so diverged lanes
meet again as early as they can. A barrier holds lanes back until every lane of their block is at it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codegen.interpret import arithmetic as ar
from codegen.interpret.decoding import DTYPES, Execute
from codegen.interpret.instructions import decode
from codegen.interpret.memory import Array, Fault, Global, Local
from codegen.interpret.ptx import Address, Imm, Instruction, Operand, Program, PtxError, Reg, Special, Symbol, Vector
from codegen.interpret.report import Report

LANES = 1 << 17  # that step together
STEPS = 200_000  # basic blocks of one batch: more is an endless loop
DONE, WAIT = 1 << 30, 1 << 29

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


class Kernel:
    """A parsed entry function, every instruction decoded."""

    def __init__(self, program: Program):
        self.program = program
        self.blocks: list[Decoded] = []
        control = ("bra", "ret", "exit", "bar", "barrier", "trap", "call", "brx")
        for block in program.blocks:
            end = block[-1] if block and block[-1].words[0] in control else None
            body = block[:-1] if end is not None else block
            self.blocks.append(Decoded(tuple((decode(i, program.name), i) for i in body), end))
            if end is not None:
                self.check_control(end)
        self.shared = _layout(program, "shared")
        self.local = _layout(program, "local")

    def check_control(self, instruction: Instruction) -> None:
        words = instruction.words
        good = words[0] in ("bra", "ret", "exit", "trap") or words[:2] in (
            ("bar", "sync"),
            ("barrier", "sync"),
            ("bar", "warp"),
        )
        if words[0] in ("bar", "barrier") and words[1] == "sync" and len(instruction.operands) != 1:
            raise PtxError(f"{self.program.name}: a barrier of part of a block is not interpreted: {instruction.text}")
        if not good:
            raise PtxError(f"{self.program.name}: unknown instruction {instruction.op!r}: {instruction.text}")


def _layout(program: Program, space: str) -> int:
    """Offsets of a space's variables; its size."""
    size = 0
    for variable in program.variables.values():
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
        self.params = {name: launch.params[place] for name, (place, _) in self.program.params.items()}
        if launch.cluster != (1, 1, 1):
            raise PtxError(f"{launch.kernel}: launches with thread-block clusters are not interpreted")

    def run(self) -> Report:
        """Run every block, a batch after another; then check that every output was written."""
        grid, block = self.launch.grid, self.launch.block
        threads, blocks = block[0] * block[1] * block[2], grid[0] * grid[1] * grid[2]
        self.report.start(blocks, threads)
        batch = max(1, LANES // threads)
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
        rows = blocks
        self.shared = Local(rows, self.kernel.shared + self.launch.shared, shared=True)
        self.local = Local(self.lanes, self.kernel.local, shared=False) if self.kernel.local else None
        for _ in range(STEPS):
            here = int(self.at.min())
            if here == DONE:
                return
            if here >= WAIT:
                self.release()
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
            try:
                if instruction.guard is None:
                    execute(self)
                else:
                    self.guarded(execute, instruction)
            except Fault as fault:
                raise self.error(fault.lane, instruction, fault.message) from None
        self.select = select
        self.leave(here, block.end)

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

    def leave(self, here: int, end: Instruction | None) -> None:
        """Where the lanes go next."""
        select = slice(None) if self.select is None else self.select
        word = end.words[0] if end is not None else ""
        if end is None or word in ("bra", "ret", "exit"):
            target = here + 1 if end is None else DONE
            if end is not None and word == "bra":
                label = end.operands[0]
                assert isinstance(label, Symbol)
                target = self.program.labels[label.name]
            if target >= len(self.kernel.blocks):
                target = DONE
            if end is None or end.guard is None:
                self.at[select] = target
                return
            after = here + 1 if here + 1 < len(self.kernel.blocks) else DONE
            self.at[select] = np.where(self.predicate(end), target, after)
            return
        if word == "trap":
            hit = self.active()
            if end.guard is not None:
                hit = hit[np.broadcast_to(self.predicate(end), hit.shape)]
            if len(hit):
                raise self.error(int(hit[0]), end, "trap")
            self.at[select] = here + 1
            return
        if end.words[:2] == ("bar", "warp"):
            self.at[select] = here + 1
            return
        self.at[select] = WAIT + here
        if end.guard is not None:
            self.at[select] = np.where(self.predicate(end), WAIT + here, here + 1)

    def release(self) -> None:
        """Every lane is done or at a barrier: each block's lanes must all be at the same one."""
        at = self.at.reshape(-1, self.per_block)
        waiting = at >= WAIT
        waiting &= at < DONE
        rows = np.flatnonzero(waiting.any(axis=1))
        for row in rows:
            places = np.unique(at[row])
            if len(places) > 1:
                lane = int(row) * self.per_block + int(np.flatnonzero(at[row] != places[0])[0])
                first = int(np.flatnonzero(waiting[row])[0]) + int(row) * self.per_block
                end = self.kernel.blocks[int(self.at[first]) - WAIT].end
                gone = bool((at[row] == DONE).any())
                what = "other threads of its block have exited" if gone else "other threads wait at another barrier"
                raise self.error(first, end, f"divergent barrier: {what} ({self.where(lane)})")
        self.shared.barrier(rows)
        self.at = np.where(self.at >= DONE, self.at, self.at - WAIT + 1).astype(np.int32)

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
        place = "xyz".find(axis)
        inside = np.arange(self.lanes, dtype=np.int64) % self.per_block
        if base == "laneid":
            return inside % 32
        if base == "warpid":
            return inside // 32
        if base in ("ntid", "nctaid"):
            return np.array([(self.launch.block if base == "ntid" else self.launch.grid)[place]])
        shape, index = (self.launch.block, inside) if base == "tid" else (self.launch.grid, self.block_of + self.first)
        if base not in ("tid", "ctaid"):
            raise PtxError(f"{self.program.name}: unknown special register {name}")
        return (index // [1, shape[0], shape[0] * shape[1]][place]) % shape[place]

    # Memory

    def place(self, address: Address, space: str) -> np.ndarray:
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
        if space == "param":
            assert isinstance(address.base, str)
            data = np.frombuffer(self.params[address.base], np.uint8)[address.offset : address.offset + count * size]
            return [data.view(f"u{size}")[k : k + 1] for k in range(count)]
        where, lanes = self.place(address, space), self.active()
        if space in ("global", "const"):
            return self.memory.load(where, count, size, lanes, self.thread[lanes], asked)
        memory, row = self.rows(space, lanes)
        return memory.load(row, where, count, size, lanes, self.thread[lanes], asked)

    def store(self, space: str, address: Address, values: list[np.ndarray], size: int) -> None:
        where, lanes = self.place(address, space), self.active()
        if space == "global":
            self.memory.store(where, values, size, lanes, self.thread[lanes])
            return
        memory, row = self.rows(space, lanes)
        memory.store(row, where, values, size, lanes, self.thread[lanes])

    def rows(self, space: str, lanes: np.ndarray) -> tuple[Local, np.ndarray]:
        if space == "shared":
            return self.shared, self.block_of[lanes]
        if self.local is None:
            raise PtxError(f"{self.program.name}: local memory that was not declared")
        return self.local, lanes

    def atomic(self, space: str, address: Address, op: str, combine, kind: str, values, target) -> None:
        """One lane after another, in the order of threads: a legal order of many."""
        where, lanes = self.place(address, space), self.active()
        size = np.dtype(DTYPES[kind]).itemsize
        operands = [np.broadcast_to(self.read(v, kind), lanes.shape) for v in values]
        before: np.ndarray = np.zeros(lanes.shape, DTYPES[kind])
        for i, lane in enumerate(lanes):
            one = np.array([lane])
            if space == "global":
                ((array, _),) = self.memory.find(where[i : i + 1], size, one, "atomic")
                cell: np.ndarray = array.data[where[i] - array.address :][:size].view(DTYPES[kind])
                if not array.writable:
                    raise Fault(int(lane), f"atomic on the input {array.name!r}")
                assert array.initialised is not None and array.owner is not None
                offset = int(where[i] - array.address)
                if not array.initialised[offset : offset + size].all():
                    raise Fault(
                        int(lane),
                        f"atomic on element {offset // array.itemsize} of {array.name!r}, which nothing has written",
                    )
            else:
                row, offset = int(self.block_of[lane]), int(where[i])
                self.shared.check(np.array([row]), where[i : i + 1], size, one, "atomic")
                if not self.shared.initialised[row, offset : offset + size].all():
                    raise Fault(int(lane), f"atomic on byte {offset} of shared memory, which nothing has written")
                cell = self.shared.data[row, offset : offset + size].view(DTYPES[kind])
            before[i] = cell[0]
            if op == "cas":
                cell[0] = operands[1][i] if cell[0] == operands[0][i] else cell[0]
            else:
                old, other = cell[0:1], operands[0][i : i + 1]
                if op == "add" and kind == "f32" and space == "global":  # which flushes denormals; shared does not
                    cell[0] = ar.flush(ar.flush(old) + ar.flush(other))[0]
                else:
                    cell[0] = combine(old, other)[0]
        if target is not None:
            self.write(target, before)

    # Warps

    def warp_sources(self, lanes: np.ndarray, source: np.ndarray) -> np.ndarray:
        """The lane of the batch that a lane of the warp is, which must be active."""
        inside = (lanes % self.per_block) % 32
        wanted = lanes - inside + source
        active = np.zeros(self.lanes + 32, bool)
        active[lanes] = True
        missing = ~active[wanted]
        if missing.any():
            place = int(np.flatnonzero(missing)[0])
            raise Fault(int(lanes[place]), f"shuffle from lane {int(source[place])} of its warp, which is not active")
        return wanted

    def shuffle(self, mode: str, target: Operand, a: Operand, b: Operand, c: Operand, mask: Operand) -> None:
        lanes = self.active()
        self.members(lanes, mask)
        value = np.broadcast_to(self.read(a, "u32"), lanes.shape)
        step = np.broadcast_to(self.read(b, "u32"), lanes.shape).astype(np.int64) & 31
        control = np.broadcast_to(self.read(c, "u32"), lanes.shape).astype(np.int64)
        clamp, segment = control & 31, (control >> 8) & 31
        lane = (lanes % self.per_block) % 32
        top = (lane & segment) | (clamp & ~segment)
        bottom = lane & segment
        source = {"up": lane - step, "down": lane + step, "bfly": lane ^ step, "idx": bottom | (step & ~segment)}[mode]
        good = source >= top if mode == "up" else source <= top
        source = np.where(good, source, lane)
        wanted = self.warp_sources(lanes, source)
        whole = np.zeros(self.lanes, np.uint32)
        whole[lanes] = value
        if isinstance(target, Vector):
            self.write(target.items[0], whole[wanted])  # type: ignore[arg-type]
            if target.items[1] is not None:
                self.write(target.items[1], good)
        else:
            self.write(target, whole[wanted])

    def members(self, lanes: np.ndarray, mask: Operand) -> None:
        """Every lane a warp's mask names must be there."""
        named = np.broadcast_to(self.read(mask, "u32"), lanes.shape)
        lane = ((lanes % self.per_block) % 32).astype(np.uint32)
        warps = lanes - lane
        there = np.zeros(self.lanes + 32, np.uint32)
        np.bitwise_or.at(there, warps, np.uint32(1) << lane)
        exists = np.where(
            self.per_block - (warps % self.per_block) >= 32,
            0xFFFFFFFF,
            (1 << np.clip(self.per_block - (warps % self.per_block), 0, 31)) - 1,
        )
        missing = named & exists.astype(np.uint32) & ~there[warps]
        if missing.any():
            place = int(np.flatnonzero(missing)[0])
            absent = int(missing[place]).bit_length() - 1
            raise Fault(int(lanes[place]), f"lane {absent} of its warp is in the mask but not here")

    def vote(self, mode: str, target: Operand, p: Operand, mask: Operand) -> None:
        lanes = self.active()
        self.members(lanes, mask)
        value = np.broadcast_to(self.read(p, "pred"), lanes.shape)
        lane = ((lanes % self.per_block) % 32).astype(np.uint32)
        warps = lanes - lane
        ballots = np.zeros(self.lanes + 32, np.uint32)
        everyone = np.zeros(self.lanes + 32, np.uint32)
        np.bitwise_or.at(ballots, warps, np.where(value, np.uint32(1) << lane, np.uint32(0)))
        np.bitwise_or.at(everyone, warps, np.uint32(1) << lane)
        yes, there = ballots[warps], everyone[warps]
        result = {"ballot": yes, "any": yes != 0, "all": yes == there, "uni": (yes == 0) | (yes == there)}[mode]
        self.write(target, result)

    # Messages

    def where(self, lane: int) -> str:
        block, thread = int(self.block_of[lane]) + self.first, lane % self.per_block
        grid, shape = self.launch.grid, self.launch.block
        return f"block {_coordinates(block, grid)} thread {_coordinates(thread, shape)}"

    def error(self, lane: int, instruction: Instruction | None, message: str) -> InterpretError:
        text = f"{self.launch.kernel}: {message}\n  at {self.where(lane)}"
        if instruction is not None:
            text += f"\n  {instruction.text}"
            text += f"\n  {instruction.place}" if instruction.place else ""
        return InterpretError(text)


def _coordinates(index: int, shape: Dim) -> str:
    return f"({index % shape[0]}, {index // shape[0] % shape[1]}, {index // shape[0] // shape[1]})"
