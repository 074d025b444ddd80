"""The messages that users see: each file of bad_specs/ has its output next to it, and every message has such a file."""

import ast
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from codegen.errors import SpecError
from codegen.graph import names
from codegen.graph import nodes as ir
from codegen.language import chain, check, reference, statements
from codegen.language.formula import calls, operations, products, reader
from codegen.pipeline import read_op
from codegen.plan import elementwise, planner
from codegen.plan.gemms import contractions as gemms
from codegen.plan.gemms import tiles
from codegen.plan.rows import reducing, reductions
from codegen.spec import declarations, notation, specfile, text
from tests.goldens import check_golden
from tests.places import BAD_SPECS

BAD = sorted(BAD_SPECS.glob("*.yaml"))
MODULES = (
    text,
    names,
    notation,
    declarations,
    specfile,
    statements,
    reader,
    calls,
    operations,
    products,
    gemms,
    tiles,
    chain,
    check,
    reference,
    elementwise,
    planner,
    reducing,
    reductions,
    ir,
)

PARSES_DEEP = sys.version_info >= (3, 13)  # Python parses what the formula's reader then refuses, at its own place

# Errors that need a file too long to be read as a golden, or none
LONG = {
    "no_file": (None, "specs/no_file.yaml: error: cannot read the file: No such file or directory"),
    "too_large": (
        "#" * 70_000,
        "specs/too_large.yaml:1:1: error: the file has 70000 bytes; a spec has at most 65536\n  split it into several ops",
    ),
    "many_statements": (
        "op: many_statements\nsummary: Long.\ninputs:\n  x: float32[N]\noutputs:\n  y: float32[N]\nreference: x\nchain: |\n"
        + "".join(f"  a{i} = x\n" for i in range(600)),
        "specs/many_statements.yaml:509:3: error: more than 500 statements\n"
        "    a500 = x\n"
        "    ^^^^^^^^\n"
        "  split it into several ops",
    ),
    "deep_signs": (
        "op: deep_signs\nsummary: Deep.\ninputs:\n  x: float32[N]\noutputs:\n  y: float32[N]\nreference: x\nchain: y = "
        + "-" * 3900
        + "x",
        f"specs/deep_signs.yaml:8:{12 if PARSES_DEEP else 8}: error: nested too deeply\n"
        "    chain: y = " + "-" * 149 + "\n"
        f"           {'    ' + '^' * 149 if PARSES_DEEP else '^'}\n"
        "  split it in several names",
    ),
    "long_statement": (
        "op: long_statement\nsummary: Long.\ninputs:\n  x: float32[N]\noutputs:\n  y: float32[N]\nreference: x\nchain: y = x"
        + " + x" * 1000,
        "specs/long_statement.yaml:8:8: error: a statement of 4005 characters; at most 4000\n"
        "    chain: y = x" + " + x" * 37 + "\n"
        "           ^\n"
        "  split it in several names",
    ),
}


def output(path: str, data: bytes | str | None) -> str:
    """The output of `codegen build`."""
    with pytest.raises(SpecError) as error:
        read_op(path, data)
    return f"{error.value}\n"


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_message(path):
    check_golden(path.with_suffix(".txt"), output(f"specs/{path.name}", path.read_bytes()))


@pytest.mark.parametrize("name", LONG)
def test_message_of_a_long_file(name):
    data, expected = LONG[name]
    assert output(f"specs/{name}.yaml", data) == f"{expected}\n"


def test_no_golden_is_left_over():
    assert {path.stem for path in BAD_SPECS.glob("*.txt")} == {path.stem for path in BAD}


def test_there_are_many():
    assert len(BAD) >= 75


# Every message has an example

EXCEPTIONS = {
    # Which of the two comes first depends on how deep the Python at hand parses; `deep_signs` shows one
    "nested too deeply": "both say the same",
    # Reasons why an op is two kernels, or has no backward: tests/pure/plan/test_gemms.py
    "a GEMM kernel": "XLA's matmul, and a kernel for the epilogue",
    "the two products differ": "the same",
    "have different types": "the same",
    "a factor of the product, as well": "the same",
    "a product of vectors": "the same",
    "columns along several axes": "the same",
    "are not whole vectors": "the same",
    "a tile has whole ones": "the same",
    "is a tile of": "the same",
    "over its tiles": "the same",
    "that is there in every call": "the same",
    "another one has to give first": "the same",
    "no tile is reduced by": "the same",
    "a reduction along": "the same",
    "no main loop for": "the same",
    # Reasons why an op is several kernels, which are cut there: tests/pure/stages
    "too many products": "of a backward, which is then left to jnp",
    "in the same kernel": "a stage before it computes the factor",
    "but {first.name!r} is {first}": "each output is a stage",
    "a reduction would wait for another one": "a stage of its own",
    "each row would be reduced": "a stage of its own",
    "every row would wait": "a stage of its own",
    "make two ops": "the hint of these",
    "no kernel that reduces puts": "a stage of its own",
    "no kernel that reduces takes": "the same",
    "no kernel for the size of": "the same",
    "pass it as a parameter": "the hint of this",
    "no kernel that reduces over rows reads neighbours": "the same",
    "no kernel reduces {what}": "the same",
    "groups of the row": "the same",
    "reductions, each of the result": "the same",
    "takes from a table after": "the same",
    "column reductions of different axes": "the same",
    "make it an op of its own": "the hint of these",
    "make several ops of it": "the same",
    "take before it": "the same",
    "but {what}": "the same",
    "join them in an op of its own": "the same",
    "no whole rows to scan, to sort or to select from": "why it is two kernels: tests/pure/autodiff/test_selected_products.py",
    "which the kernel of a gradient reads": "why a backward is two kernels: tests/cpu/runtime/xla/test_put.py",
    "more than a kernel's coordinate holds": "of a call's extents, at run time: tests/cpu/runtime/ops/test_export.py",
}
MAKERS = {"UserError", "fail", "error", "error_in_chain", "_at", "at", "diagnostic"}


def messages(module) -> list[tuple[int, int, str]]:
    """The places of messages in a module's source: first and last line, and the text."""
    found = []
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        name = ""
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            values = node.args
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "message":
            name, values = "UserError", [node.value]
        if name in MAKERS:
            texts = [a for a in values if isinstance(a, ast.Constant | ast.JoinedStr) and " " in ast.unparse(a)]
            if texts:
                found.append((node.lineno, node.end_lineno or node.lineno, ast.unparse(texts[0])))
    return found


def executed_lines(run: Callable[[], object]) -> set[tuple[str, int]]:
    files = {module.__file__ for module in MODULES}
    lines: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _arg: object):
        if frame.f_code.co_filename not in files:
            return None
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return lines


def test_every_message_has_an_example():
    """Nobody has read a message that no bad spec shows."""

    def run() -> None:
        for path in BAD:
            output(f"specs/{path.name}", path.read_bytes())

    lines = executed_lines(run)
    for name, (data, _) in LONG.items():  # one by one: where Python runs out of stack it ends the trace
        lines |= executed_lines(functools.partial(output, f"specs/{name}.yaml", data))
    missing = [
        f"{Path(module.__file__).name}:{first}: {text}"
        for module in MODULES
        for first, last, text in messages(module)
        if not any((module.__file__, line) in lines for line in range(first, last + 1))
        and not any(exception in text for exception in EXCEPTIONS)
    ]
    assert not missing, "\n".join(["no bad spec shows:", *missing])


def test_messages_are_found():
    """The search above would show nothing if it found none."""
    assert sum(len(messages(module)) for module in MODULES) > 150
    assert any("is never used" in text for _, _, text in messages(chain))
