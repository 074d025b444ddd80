"""PTX text to a program: parameters, registers, memory it declares, and instructions in basic blocks."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

SPECIAL = re.compile(r"%(tid|ntid|ctaid|nctaid)\.([xyz])|%(laneid|warpid|clusterid|smid)\b")


class PtxError(Exception):
    """PTX that the interpreter does not know: names the instruction or directive, and the kernel."""


@dataclass(frozen=True)
class Reg:
    name: str


@dataclass(frozen=True)
class Imm:
    """A literal: integers as they are, floats by their bits (`kind` "f32" or "f64")."""

    value: int
    kind: str = "int"


@dataclass(frozen=True)
class Special:
    """A special register, such as %tid.x."""

    name: str


@dataclass(frozen=True)
class Address:
    """[base + offset]; base is a register or a symbol."""

    base: Reg | str
    offset: int


@dataclass(frozen=True)
class Symbol:
    """A label, or the address of a variable."""

    name: str


@dataclass(frozen=True)
class Vector:
    items: tuple[Reg | Imm | None, ...]


Operand = Reg | Imm | Special | Address | Symbol | Vector


@dataclass(frozen=True)
class Instruction:
    op: str
    operands: tuple[Operand, ...]
    guard: tuple[str, bool] | None  # predicate register, and whether it is negated
    text: str
    place: str  # "file:line" of the source, where the PTX says it

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.op.split("."))


@dataclass
class Variable:
    """A .shared, .local or .global variable."""

    name: str
    space: str
    size: int
    align: int
    data: bytes | None = None
    offset: int = 0


@dataclass
class Program:
    """An entry function. Blocks are runs of instructions; `labels` maps a label to its block."""

    name: str
    params: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> (place in order, size)
    registers: dict[str, str] = field(default_factory=dict)  # name prefix -> class
    variables: dict[str, Variable] = field(default_factory=dict)
    blocks: list[list[Instruction]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    threads: tuple[int, int, int] | None = None

    def register_class(self, name: str) -> str:
        """ "pred", "b16", "b32" or "b64"."""
        kind = self.registers.get(re.sub(r"\d+$", "", name)) or self.registers.get(name)
        if kind is None:
            raise PtxError(f"{self.name}: the register {name} is not declared")
        return kind


_TERMINATORS = ("bra", "ret", "exit", "bar", "barrier", "call", "trap", "brx")
_CLASSES = {"pred": "pred", "8": "b16", "16": "b16", "32": "b32", "64": "b64"}


def parse(text: str) -> dict[str, Program]:
    """Every entry function of a PTX module, by name."""
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str):
        self.text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        self.files: dict[str, str] = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', self.text, re.M))
        self.globals: dict[str, Variable] = {}

    def module(self) -> dict[str, Program]:
        programs: dict[str, Program] = {}
        head = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{]*)\{", re.S)
        outside = self.text
        for match in head.finditer(self.text):
            end = self.closing(match.end() - 1)
            outside = outside.replace(self.text[match.start() : end], "")
            programs[match[1]] = self.entry(match[1], match[2], match[3], self.text[match.end() : end - 1])
        if re.search(r"\.func\b", outside):
            name = next(iter(programs), "the module")
            raise PtxError(f"{name}: device functions (.func) are not interpreted")
        for line in outside.splitlines():
            found = self.variable(line)
            if found:
                self.globals[found.name] = found
        for program in programs.values():
            program.variables.update({k: v for k, v in self.globals.items() if k not in program.variables})
        return programs

    def closing(self, start: int) -> int:
        depth = 0
        for i in range(start, len(self.text)):
            if self.text[i] == "{":
                depth += 1
            elif self.text[i] == "}":
                depth -= 1
                if depth == 0:
                    return i + 1
        raise PtxError("PTX ends inside a function")

    def entry(self, name: str, params: str, directives: str, body: str) -> Program:
        program = Program(name)
        for place, line in enumerate(p for p in params.split(",") if p.strip()):
            match = re.search(r"\.b(\d+)\s+([\w$]+)(?:\[(\d+)\])?|\.[fsu](\d+)\s+([\w$]+)", line)
            if not match:
                raise PtxError(f"{name}: cannot read the parameter {line.strip()!r}")
            bits, symbol = match[1] or match[4], match[2] or match[5]
            program.params[symbol] = (place, int(bits) // 8 * int(match[3] or 1))
        threads = re.search(r"\.reqntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", directives)
        if threads:
            x, y, z = (int(n or 1) for n in threads.groups())
            program.threads = (x, y, z)
        self.body(program, body)
        return program

    def variable(self, line: str) -> Variable | None:
        match = re.search(
            r"\.(shared|local|global|const)\s+(?:\.align\s+(\d+)\s+)?\.([bfsu])(\d+)\s+([\w$]+)(?:\[(\d*)\])?(?:\s*=\s*\{([^}]*)\}|\s*=\s*([^;]+))?",
            line,
        )
        if not match:
            return None
        space, align, _, bits, name, count, many, one = match.groups()
        width = int(bits) // 8
        data = None
        if many or one:
            numbers = [int(w.strip(), 0) for w in (many or one).split(",") if w.strip()]
            data = b"".join((n % (1 << (8 * width))).to_bytes(width, "little") for n in numbers)
        size = width * int(count or 1) if count != "" else 0
        if data and len(data) < size:
            data += bytes(size - len(data))
        return Variable(name, "global" if space == "const" else space, size, int(align or width), data)

    def body(self, program: Program, body: str) -> None:
        place = ""
        current: list[Instruction] = []
        program.blocks.append(current)
        for raw in re.split(r"[;\n]", re.sub(r"//[^\n]*", "", body)):
            line = raw.strip().strip("{}").strip() if raw.strip() in ("{", "}") else raw.strip()
            # an inline-assembly scope may open or close beside an instruction
            line = re.sub(r"^\{\s+(?=[a-z@.])", "", line)
            line = re.sub(r"(?<=[\w\]])\s*\}$", "", line) if line.count("}") > line.count("{") else line
            if not line:
                continue
            while match := re.match(r"([\w$]+):\s*", line):
                if current:
                    current = []
                    program.blocks.append(current)
                program.labels[match[1]] = len(program.blocks) - 1
                line = line[match.end() :]
            if not line:
                continue
            if line.startswith("."):
                place = self.directive(program, line, place)
                continue
            instruction = self.instruction(program, line, place)
            current.append(instruction)
            if instruction.words[0] in _TERMINATORS:
                current = []
                program.blocks.append(current)

    def directive(self, program: Program, line: str, place: str) -> str:
        words = line.split()
        if words[0] == ".loc":
            return f"{self.files.get(words[1], words[1])}:{words[2]}"
        if words[0] == ".reg":
            for name in re.findall(r"(%[\w$]+)", line):
                program.registers[name] = (
                    _CLASSES[re.sub(r"[bfsu.]", "", words[1]) or "pred"] if words[1] != ".pred" else "pred"
                )
            return place
        found = self.variable(line)
        if found:
            program.variables[found.name] = found
            return place
        if words[0] in (".pragma", ".maxntid", ".reqntid", ".minnctapersm", ".file"):
            return place
        raise PtxError(f"{program.name}: unknown directive {words[0]!r}")

    def instruction(self, program: Program, line: str, place: str) -> Instruction:
        match = re.match(r"(?:@(!?)(%[\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)$", line)
        if not match:
            raise PtxError(f"{program.name}: cannot read {line!r}")
        negated, guard, op, rest = match.groups()
        if guard:
            program.register_class(guard)
        operands = tuple(self.operand(program, word) for word in _split(rest))
        return Instruction(op, operands, (guard, bool(negated)) if guard else None, line, place)

    def register(self, program: Program, name: str) -> Reg:
        program.register_class(name)
        return Reg(name)

    def operand(self, program: Program, word: str) -> Operand:
        word = word.strip()
        if word.startswith("{"):
            items = [w.strip() for w in word[1:-1].split(",")]
            return Vector(tuple(None if w == "_" else self.operand(program, w) for w in items))  # type: ignore[misc]
        if word.startswith("["):
            base, sign, offset = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:([+-])\s*([\w-]+))?\s*\]", word).groups()  # type: ignore[union-attr]
            number = int(offset, 0) if offset else 0
            return Address(
                self.register(program, base) if base.startswith("%") else base, -number if sign == "-" else number
            )
        if "|" in word:
            return Vector(tuple(None if w == "_" else self.operand(program, w) for w in word.split("|")))  # type: ignore[misc]
        if SPECIAL.fullmatch(word):
            return Special(word)
        if word.startswith("%"):
            return self.register(program, word)
        if word == "_":
            return Vector((None,))
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", word):
            return Imm(int(word[2:], 16), "f32")
        if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", word):
            return Imm(int(word[2:], 16), "f64")
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", word):
            return Imm(int(word.rstrip("U"), 0))
        if re.fullmatch(r"-?\d*\.\d+", word):
            return Imm(struct.unpack("<Q", struct.pack("<d", float(word)))[0], "f64")
        if re.fullmatch(r"[\w$]+", word):
            return Symbol(word)
        raise PtxError(f"{program.name}: cannot read the operand {word!r}")


def _split(text: str) -> list[str]:
    """Operands between commas outside brackets; `p|q` destinations stay one."""
    words, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "{[(") - (char in "}])")
        if char == "," and depth == 0:
            words.append(text[start:i])
            start = i + 1
    if text[start:].strip():
        words.append(text[start:])
    return words
