"""Generated code reads as a person would write it: lines end before column 120, signatures and kernels are short."""

import ast
import re

import pytest

from codegen.render.wrapping import WIDTH, wrapped
from tests.places import ROOT

GENERATED = sorted((ROOT / "generated").glob("*.py"))
LONG = [
    "y = f(" + ", ".join(f"argument{i}" for i in range(20)) + ")  # why",
    "def f(" + ", ".join(f"parameter{i}: int = {i}" for i in range(12)) + "):\n    return parameter0",
    "if x:\n    y = " + " + ".join(f"some_value_{i}" for i in range(14)),
    "y = first * (" + " + ".join(f"some_value_{i}" for i in range(14)) + ") - last",
    "y = f(g(" + ", ".join(f"argument{i}" for i in range(14)) + "), h(" + ", ".join(f"b{i}" for i in range(30)) + "))",
    ", ".join(f"long_result_{i}" for i in range(8)) + " = f(" + ", ".join(f"argument{i}" for i in range(20)) + ")",
    "a, b = [" + ", ".join(f"m{i}[0, u]" for i in range(20)) + "]",
    "y = f(" + "x" * 60 + ")[" + "z" * 60 + ", None]",
    "y = (lambda a, b, c=1: a * b / c - " + " + ".join(f"some_value_{i}" for i in range(14)) + ")(first, second)",
    "y = f(lambda a, b=(1, 2): a + b, " + "lambda " + ", ".join(f"a{i}" for i in range(20)) + ": a0, last_argument)",
    "y = f(first, initial=" + " + ".join(f"some_value_{i}" for i in range(14)) + ", where=None)",
    "y = f(first, initial=" + " + ".join(f"some_value_{i}" for i in range(14)) + ")",
    "total += " + " + ".join(f"some_value_{i}" for i in range(14)),
    "y: tuple[dict[str, int], ...] = " + " + ".join(f"some_value_{i}" for i in range(14)),
    "y = f(values for values in " + " + ".join(f"some_value_{i}" for i in range(14)) + ")",
    "y = (lambda first, second: first + jax.lax.stop_gradient(jnp.round(first / second) * second - first))(jnp.clip(x, -a, a), a / 127)",
    "y = reduced(lambda first, second: maximum_of_both(first, second) + 1, the_first_of_several_arguments, another_one, and_another_one)",
]


@pytest.mark.parametrize("text", LONG)
def test_a_broken_line_means_the_same(text):
    made = wrapped(text)
    assert ast.dump(ast.parse(made)) == ast.dump(ast.parse(text))
    assert max(map(len, made.split("\n"))) <= WIDTH
    assert ("# why" in made) == ("# why" in text)


def test_what_fits_and_what_stands_in_strings_stays():
    text = 'x = f(1,2)\n"""' + "word " * 50 + '"""\n'
    assert wrapped(text) == text


def test_generated_code_is_readable():
    assert len(GENERATED) > 200
    for path in GENERATED:
        source = path.read_text()
        tree = ast.parse(source)
        wide = [number for number, line in enumerate(source.split("\n"), 1) if len(line) > WIDTH]
        quoted = {n for s in strings(tree) for n in range(s.lineno, (s.end_lineno or 0) + 1)} if wide else set()
        assert set(wide) <= quoted, path


def strings(tree):
    return [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def test_a_norm_s_forward_kernel_is_on_one_screen():
    source = (ROOT / "generated/rmsnorm.py").read_text()
    (kernel,) = (n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "rmsnorm_kernel")
    assert kernel.end_lineno - kernel.body[0].lineno < 50
    assert not re.search(r"load_row|crd2idx", ast.unparse(kernel))
