"""Parses PTX text to a program: parameters, registers, declared memory, and instructions in basic blocks."""

from __future__ import annotations

import functools
import re
import struct
from dataclasses import dataclass, field

SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]"
    r"|%(laneid|warpid|nwarpid|smid|lanemask_(eq|lt|le|gt|ge)|cluster_ctarank|cluster_nctarank)"
    r"|%(is_explicit_cluster|dynamic_smem_size)"
)


class PtxError(Exception):
    """PTX that the interpreter does not support. The message names the instruction or directive, and the kernel."""


@dataclass(frozen=True)
class Reg:
    name: str


@dataclass(frozen=True)
class Imm:
    """A literal: an integer, or a float's bits (`kind` "f32" or "f64")."""

    value: int
    kind: str = "int"


@dataclass(frozen=True)
class Special:
    """A special register, such as %tid.x."""

    name: str


@dataclass(frozen=True)
class Address:
    """[base + offset]; the base is a register or a symbol."""

    base: Reg | str
    offset: int


@dataclass(frozen=True)
class Symbol:
    """A label, or the address of a variable."""

    name: str


@dataclass(frozen=True)
class Vector:
    items: tuple[Reg | Imm | None, ...]


@dataclass(frozen=True)
class Box:
    """[base, {coordinates}]: a box of the tensor that a tensor map describes."""

    base: Address
    coordinates: Vector


Operand = Reg | Imm | Special | Address | Symbol | Vector | Box


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name with all suffixes, its operands, and where it stands."""

    op: str
    operands: tuple[Operand, ...]
    guard: tuple[str, bool] | None  # predicate register, and whether it is negated
    text: str
    place: str  # "file:line" of the source, where the PTX has it

    @property
    def words(self) -> tuple[str, ...]:
        return _words(self.op)


@functools.cache
def _words(op: str) -> tuple[str, ...]:
    return tuple(op.split("."))


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
    params: dict[str, tuple[int, int]] = field(default_factory=dict)  # name -> (position, size)
    registers: dict[str, str] = field(default_factory=lambda: {"CC.CF": "pred"})  # name or prefix -> class
    variables: dict[str, Variable] = field(default_factory=dict)
    blocks: list[list[Instruction]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    threads: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None  # the cluster size for which it is compiled

    def register_class(self, name: str) -> str:
        """ "pred", "b16", "b32" or "b64"."""
        kind = self.registers.get(name)
        if kind is None:
            kind = self.registers.get(name.rstrip(_DIGITS))
            if kind is None:
                raise PtxError(f"{self.name}: the register {name} is not declared")
            self.registers[name] = kind
        return kind


_TERMINATORS = ("bra", "ret", "exit", "bar", "barrier", "trap", "brx")


def ends_block(words: tuple[str, ...]) -> bool:
    """Whether lanes may diverge after an instruction, or wait for others at it."""
    return words[0] in _TERMINATORS or words[:2] == ("wgmma", "fence")


# Instructions that a warp's lanes execute together. The last operand of shfl, vote, redux and elect is a mask of lanes
MASKED, WHOLE = ("shfl", "vote", "redux", "elect"), ("ldmatrix", "stmatrix", "mma")


def begins_block(words: tuple[str, ...]) -> bool:
    """Whether lanes of a warp wait for each other before an instruction."""
    whole = words[0] in WHOLE or words[:2] in (("wgmma", "commit_group"), ("wgmma", "wait_group"))
    return whole or (words[0] in MASKED and words[1:2] == ("sync",))


_CLASSES = {"pred": "pred", "8": "b16", "16": "b16", "32": "b32", "64": "b64"}


def parse(text: str) -> dict[str, Program]:
    """Every entry function of a PTX module, by name."""
    return _Parser(text).module()


class _Scope:
    """The names between two braces: inline assembly may reuse names, and a call is replaced by its function's body."""

    def __init__(self, tag: str, outer: _Scope | None = None):
        self.tag, self.outer = tag, outer
        self.names: dict[str, str] = {}  # to names that are unique in the program; "%r<" for all of %r<32>
        self.operands: dict[str, Operand] = {}  # operands that were read within this scope, by their text

    def declare(self, name: str) -> str:
        self.names[name] = self.tag + name
        return self.names[name].rstrip("<")

    def find(self, name: str) -> str:
        scope: _Scope | None = self
        many = name.rstrip(_DIGITS) + "<"
        while scope:
            if name in scope.names:
                return scope.names[name]
            if many in scope.names:
                return scope.tag + name
            scope = scope.outer
        return name


@dataclass(frozen=True)
class _Function:
    """A device function's text."""

    name: str
    results: tuple[str, ...]
    parameters: tuple[str, ...]
    body: str


class _Parser:
    def __init__(self, text: str):
        self.text = re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))
        self.files: dict[str, str] = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', self.text, re.M))
        self.globals: dict[str, Variable] = {}
        self.functions: dict[str, _Function] = {}
        self.scopes = 0

    def module(self) -> dict[str, Program]:
        entry = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{;]*)\{", re.S)
        function = re.compile(r"\.func\s*(?:\(([^)]*)\))?\s*([\w$]+)\s*\(([^)]*)\)[^{;]*\{", re.S)
        outside, entries = self.text, []
        for match in entry.finditer(self.text):
            end = self.closing(match.end() - 1)
            outside = outside.replace(self.text[match.start() : end], "")
            entries.append((match[1], match[2], match[3], self.text[match.end() : end - 1]))
        for match in function.finditer(self.text):
            end = self.closing(match.end() - 1)
            outside = outside.replace(self.text[match.start() : end], "")
            results, parameters = (tuple(_parameters(match[2], match[i] or "")) for i in (1, 3))
            self.functions[match[2]] = _Function(match[2], results, parameters, self.text[match.end() : end - 1])
        for line in re.sub(r"\.func\b[^;]*;", "", outside).splitlines():
            found = self.variable(line)
            if found:
                self.globals[found.name] = found
        programs = {name: self.entry(name, *rest) for name, *rest in entries}
        for program in programs.values():
            program.variables.update({k: v for k, v in self.globals.items() if k not in program.variables})
        return programs

    def closing(self, start: int) -> int:
        depth = 0
        for brace in re.compile("[{}]").finditer(self.text, start):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                return brace.end()
        raise PtxError("PTX ends inside a function")

    def entry(self, name: str, params: str, directives: str, body: str) -> Program:
        program = Program(name)
        for place, (symbol, size) in enumerate(_parameters(name, params).items()):
            program.params[symbol] = (place, size)
        program.threads = _extents("reqntid", directives)
        program.cluster = _extents("reqnctapercluster", directives)
        program.blocks.append([])
        self.body(program, body, _Scope(""), ())
        return program

    def variable(self, line: str) -> Variable | None:
        match = re.search(
            r"\.(shared|local|global|const|param)\s+(?:\.align\s+(\d+)\s+)?\.([bfsu])(\d+)\s+([\w$]+)(?:\[(\d*)\])?(?:\s*=\s*\{([^}]*)\}|\s*=\s*([^;]+))?",
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
        space = {"const": "global", "param": "local"}.get(space, space)  # a call's parameters are the thread's own
        return Variable(name, space, size, int(align or width), data)

    def body(self, program: Program, body: str, scope: _Scope, calls: tuple[str, ...], place: str = "") -> None:
        """Add a function's instructions: an entry's, or a called function's, which `calls` ends with."""
        for line, inner in self.statements(program, body, scope):
            while ":" in line and (match := _LABEL.match(line)):
                self.label(program, inner.find(match[1]))
                line = line[match.end() :]
            if not line:
                continue
            if line.startswith("."):
                place = self.directive(program, line, place)
                continue
            instruction = self.instruction(program, line, place, inner)
            words = instruction.words
            if words[0] == "call":
                self.call(program, instruction, calls)
                continue
            if calls and words[0] == "ret":
                back = Symbol(scope.find(_RETURN))
                instruction = Instruction("bra", (back,), instruction.guard, line, place)
                words = instruction.words
            if program.blocks[-1] and begins_block(words):
                program.blocks.append([])
            program.blocks[-1].append(instruction)
            if ends_block(words):
                program.blocks.append([])

    def label(self, program: Program, name: str) -> None:
        if program.blocks[-1]:
            program.blocks.append([])
        program.labels[name] = len(program.blocks) - 1

    def statements(self, program: Program, body: str, scope: _Scope) -> list[tuple[str, _Scope]]:
        """A body's statements with their scopes. It declares all names first, because labels are used before they are defined."""
        found: list[tuple[str, _Scope]] = []
        for text in _statements(body):
            if text == "{":
                self.scopes += 1
                scope = _Scope(f"{self.scopes}@", scope)
            elif text == "}":
                assert scope.outer is not None
                scope = scope.outer
            else:
                start = 0
                while ":" in text and (label := _LABEL.match(text, start)):
                    scope.declare(label[1])
                    start = label.end()
                if text[0] == ".":
                    self.declare(program, text, scope)
                found.append((text, scope))
        return found

    def declare(self, program: Program, line: str, scope: _Scope) -> None:
        """Declare the names of a directive."""
        if line.startswith(".reg"):
            kind, names = re.match(r"\.reg\s+\.(\w+)\s+(.*)", line).groups()  # type: ignore[union-attr]
            for name in names.split(","):
                full = scope.declare(re.sub(r"<\d+>", "<", name.strip()))
                program.registers[full] = "pred" if kind == "pred" else _CLASSES[re.sub(r"[bfsu]", "", kind)]
        elif found := self.variable(line):
            found.name = scope.declare(found.name)
            program.variables[found.name] = found

    def directive(self, program: Program, line: str, place: str) -> str:
        """The place in the source of the instructions that follow."""
        words = line.split()
        if words[0] == ".loc":
            return f"{self.files.get(words[1], words[1])}:{words[2]}"
        if words[0] in (".reg", ".pragma", ".maxntid", ".reqntid", ".minnctapersm", ".file") or self.variable(line):
            return place
        raise PtxError(f"{program.name}: unknown directive {words[0]!r}")

    def call(self, program: Program, instruction: Instruction, calls: tuple[str, ...]) -> None:
        """Replace a call by the called function's body. Its parameters become the caller's variables."""
        lists = [o.items if isinstance(o, Vector) else o for o in instruction.operands]
        results = lists.pop(0) if isinstance(lists[0], tuple) else ()
        name = lists[0].name if isinstance(lists[0], Symbol) else None
        arguments = lists[1] if len(lists) > 1 else ()
        function = self.functions.get(name or "")
        if function is None or instruction.guard or len(lists) > 2:
            raise PtxError(f"{program.name}: unknown instruction {instruction.op!r}: {instruction.text}")
        if name in calls:
            raise PtxError(f"{program.name}: the device function {name!r} calls itself")
        self.scopes += 1
        scope = _Scope(f"{self.scopes}@")
        pairs = zip((*function.results, *function.parameters), (*results, *arguments), strict=True)  # type: ignore[misc]
        scope.names = {formal: actual.name for formal, actual in pairs}
        end = scope.declare(_RETURN)
        self.body(program, function.body, scope, (*calls, function.name), instruction.place)
        self.label(program, end)

    def instruction(self, program: Program, line: str, place: str, scope: _Scope) -> Instruction:
        match = _INSTRUCTION.match(line)
        if not match:
            raise PtxError(f"{program.name}: cannot read {line!r}")
        negated, guard, op, rest = match.groups()
        guard = guard and self.register(program, guard, scope).name
        operands = tuple([self.operand(program, word, scope) for word in _split(rest)])
        return Instruction(op, operands, (guard, bool(negated)) if guard else None, line, place)

    def register(self, program: Program, name: str, scope: _Scope) -> Reg:
        full = scope.find(name)
        program.register_class(full)
        return Reg(full)

    def operand(self, program: Program, word: str, scope: _Scope) -> Operand:
        """An operand; all names of its scope are declared."""
        word = word.strip()
        found = scope.operands.get(word)
        if found is None:
            found = self.new_operand(program, word, scope)
            if not isinstance(found, Symbol):  # a register without "%" is one only after its declaration was looked up
                scope.operands[word] = found
        return found

    def new_operand(self, program: Program, word: str, scope: _Scope) -> Operand:
        if word[0] in "{(":
            items = [w.strip() for w in word[1:-1].split(",")]
            return Vector(tuple(None if w == "_" else self.operand(program, w, scope) for w in items if w))  # type: ignore[misc]
        if word.startswith("[") and "{" in word:
            first, coordinates = _split(word[1:-1])
            map_, place = self.operand(program, f"[{first.strip()}]", scope), self.operand(program, coordinates, scope)
            assert isinstance(map_, Address) and isinstance(place, Vector)
            return Box(map_, place)
        if word.startswith("["):
            base, sign, offset = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:([+-])\s*([\w-]+))?\s*\]", word).groups()  # type: ignore[union-attr]
            number = int(offset, 0) if offset else 0
            full = self.operand(program, base, scope)
            start = full if isinstance(full, Reg) else full.name if isinstance(full, Symbol) else ""
            return Address(start, -number if sign == "-" else number)
        if "|" in word:
            parts = (w.strip() for w in word.split("|"))
            return Vector(tuple(None if w == "_" else self.operand(program, w, scope) for w in parts))  # type: ignore[misc]
        if word[0] == "%":
            return Special(word) if SPECIAL.fullmatch(word) else self.register(program, word, scope)
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
            full_name = scope.find(word)
            return Reg(full_name) if full_name in program.registers else Symbol(full_name)
        raise PtxError(f"{program.name}: cannot read the operand {word!r}")


_RETURN = "after the call"  # the label that a function's body returns to
_DIGITS = "0123456789"  # of a register's number
_LABEL = re.compile(r"([\w$]+):(?!:)\s*")
_INSTRUCTION = re.compile(r"(?:@(!?)([%\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)$")


def _statements(body: str) -> list[str]:
    """The statements of a body: text up to a semicolon, .loc lines, labels, and single braces (except braces of vectors)."""
    found: list[str] = []
    left = ""
    for line in body.splitlines():
        if line.strip().startswith(".loc"):
            found.append(line.strip())
            continue
        left = f"{left} {line.strip()}".strip()
        while left:
            if left[0] in "{}":
                found.append(left[0])
                left = left[1:].strip()
            elif ";" in left:
                statement, left = (part.strip() for part in left.split(";", 1))
                found += [statement] if statement else []
            elif re.fullmatch(r"[\w$]+:", left):
                found.append(left)
                left = ""
            else:
                break
    return found + ([left] if left else [])


def _parameters(name: str, text: str) -> dict[str, int]:
    """The names of a function's parameters and their sizes in bytes."""
    found = {}
    for line in (p for p in text.split(",") if p.strip()):
        match = re.search(r"\.[bfsu](\d+)\s+([\w$]+)(?:\[(\d+)\])?\s*$", line)
        if not match:
            raise PtxError(f"{name}: cannot read the parameter {line.strip()!r}")
        found[match[2]] = int(match[1]) // 8 * int(match[3] or 1)
    return found


def _extents(directive: str, text: str) -> tuple[int, int, int] | None:
    """The three numbers of a directive such as .reqntid 64, 1, 1."""
    match = re.search(rf"\.{directive}\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", text)
    if not match:
        return None
    x, y, z = (int(n or 1) for n in match.groups())
    return x, y, z


_OPERAND = re.compile(r"(?:[^,\[{(]|\[[^\]]*\]|\{[^}]*\}|\([^)]*\))+")


def _split(text: str) -> list[str]:
    """Operands between commas outside brackets; a destination `p|q` stays one operand."""
    bracketed = "[" in text or "{" in text or "(" in text
    words = _OPERAND.findall(text) if bracketed else text.split(",")
    return words if words and words[-1].strip() else words[:-1]
