"""Generated modules read as hand-written: the longest line, the most parameters, the longest kernel of a norm."""

import ast
from pathlib import Path

import pytest

GENERATED = sorted(Path("generated").glob("*.py"))
MOST_COLUMNS = 120
MOST_PARAMETERS = 20  # besides the stream, which each launcher has
SCREEN = 70  # lines


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]


def test_no_line_is_longer_than_a_screen_is_wide():
    lines = [(path.name, line) for path in GENERATED for line in path.read_text().split("\n")]
    assert [(name, line) for name, line in lines if len(line) > MOST_COLUMNS] == []


def test_no_function_has_more_parameters_than_a_reader_can_tell_apart():
    found = [
        (f"{path.name}: {f.name}", sum(a.arg != "stream" for a in f.args.args))
        for path in GENERATED
        for f in functions(path)
    ]
    assert [(name, count) for name, count in found if count > MOST_PARAMETERS] == []


@pytest.mark.parametrize("op", ["rmsnorm", "layernorm", "add_rmsnorm", "softmax"])
def test_the_forward_kernel_of_a_norm_is_on_one_screen(op):
    (kernel,) = (f for f in functions(Path(f"generated/{op}.py")) if f.name == f"{op}_kernel")
    assert kernel.end_lineno - kernel.lineno < SCREEN


def test_a_template_is_shorter_than_200_lines():
    assert [t.name for t in Path("templates").glob("*.jinja") if len(t.read_text().split("\n")) > 200] == []
