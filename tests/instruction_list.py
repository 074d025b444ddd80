"""Every distinct instruction of the generated kernels, on all architectures.

    python tests/instruction_list.py [OP ...]

compiles them, an hour of work for four cores, and writes the list that tests hold the interpreter to; with names, only
those ops, and adds what they have. On each architecture a kernel is compiled with each of its types, and in each of its
shapes (lengths of a row, whole and ragged, with and without what has a default), not for all pairs of these. Operands are
reduced to their kinds: registers are all `%r`, literals 0 (but where an instruction's meaning is in them), parameters
`parameter`, variables and labels `place`.
"""

import functools
import os
import sys
from multiprocessing import get_context
from pathlib import Path

from codegen.interpret import ptx
from codegen.interpret.kernel import Kernel

LIST = Path(__file__).parent / "instructions.txt"
OPS = Path(__file__).parent.parent / "generated"
LITERAL = ("bar", "barrier", "cp", "wgmma")  # a barrier's number, the bytes of a copy, a product's signs


def forms(text: str) -> set[str]:
    """The distinct instructions of a PTX module."""
    return {
        f"{i.op} {', '.join(_form(o, p, i.words[0] in LITERAL) for o in i.operands)}".strip()
        for p in ptx.parse(text.rstrip("\0")).values()
        for block in p.blocks
        for i in block
    }


def _form(operand: ptx.Operand | None, program: ptx.Program, literal: bool) -> str:
    match operand:
        case None:
            return "_"
        case ptx.Reg():
            return "%r"
        case ptx.Imm(value, "int"):
            return str(value if literal else 0)
        case ptx.Imm(_, "f32"):
            return "0f00000000"
        case ptx.Imm():
            return "0d0000000000000000"
        case ptx.Special(name):
            return name
        case ptx.Address(base):
            return f"[{'%r' if isinstance(base, ptx.Reg) else _symbol(base, program)}]"
        case ptx.Box(base, coordinates):
            return f"[{_form(base, program, literal)[1:-1]}, {_form(coordinates, program, literal)}]"
        case ptx.Symbol(name):
            return _symbol(name, program)
        case ptx.Vector(items):
            return f"{{{', '.join(_form(o, program, literal) for o in items)}}}"


def _symbol(name: str, program: ptx.Program) -> str:
    return "parameter" if name in program.params else "place"


def problem(form: str) -> str:
    """The interpreter's error for an instruction that it does not support, or ""."""
    text = f".entry listed(.param .b64 parameter) {{\n.reg .b32 %r;\n.shared .align 16 .b8 place[16];\n{form};\n}}"
    try:
        (program,) = ptx.parse(text).values()
        Kernel(program)
    except ptx.PtxError as error:
        return str(error)
    return ""


@functools.cache
def listed() -> frozenset[str]:
    return frozenset(LIST.read_text().splitlines())


def dealt(op, arch: str) -> list:
    """Variants of an op that together have each of its types and each of its shapes; the pairs differ between
    architectures."""
    from codegen.measuring.compiled.variants import row_lengths, variants
    from codegen.plan.limits import lacks
    from codegen.targets import USUAL

    def traits(v):
        length = None if v.columns is None else row_lengths(op, v.types).index(v.columns)
        return {v.types, (length, v.ragged, v.defaults)}

    found = [v for v in variants(op) if not lacks(op, v.types, arch)]
    architectures = USUAL.split(",")
    turn = architectures.index(arch) * len(found) // len(architectures)
    kept, seen = [], set()
    for missing in (2, 1):  # first the variants that add a type and a shape
        for variant in found[turn:] + found[:turn]:
            if len(traits(variant) - seen) >= missing:
                kept.append(variant)
                seen |= traits(variant)
    return kept


def forms_of(name: str, arch: str) -> set[str]:
    """The instructions of all kernels of one op for one architecture."""
    from codegen.measuring.compiled.compile import compile_kernel
    from codegen.measuring.compiled.tasks import kernels_named, load_package

    found: set[str] = set()
    for op in kernels_named(load_package(OPS), [name]):
        for variant in dealt(op, arch):
            found |= forms(compile_kernel(op, variant, arch).ptx)
    return found


def _of_task(task: tuple[str, str]) -> set[str]:
    return forms_of(*task)


def main(names: list[str]) -> None:
    from codegen.measuring.compiled.tasks import load_package
    from codegen.targets import USUAL

    found = set(listed() if names else ())
    tasks = [(name, arch) for name in names or load_package(OPS).__all__ for arch in USUAL.split(",")]
    # Spawned, not forked: the compiler has its own threads; replaced after some ops, since it keeps everything it
    # compiled
    with get_context("spawn").Pool(os.cpu_count(), maxtasksperchild=8) as pool:
        for i, more in enumerate(pool.imap_unordered(_of_task, tasks)):
            found |= more
            print(f"\r{i + 1} of {len(tasks)}, {len(found)} instructions", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    LIST.write_text("".join(f"{form}\n" for form in sorted(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
