"""The meaning of chains: the typed graphs of small specs as goldens, and kinds and axes of single expressions."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codegen.graph.emit import axis_numbers
from codegen.graph.nodes import Graph, Node, Statement, print_statements, topological
from codegen.language.chain import read_chain
from codegen.pipeline import read_op
from codegen.spec.notation import parse_dims
from codegen.spec.spec import Spec, axis_order
from codegen.spec.specfile import load_spec
from tests.goldens import check_golden
from tests.places import GOOD_SPECS, SPECS

GOOD = sorted(GOOD_SPECS.glob("*.yaml"))
LIBRARY = sorted(SPECS.glob("*.yaml"))


def read(path: Path) -> tuple[Statement, ...]:
    chain, errors = read_chain(load_spec(path))
    assert chain is not None
    assert not errors
    return chain.statements


@given(
    st.permutations("ABCD"),
    st.lists(st.sets(st.integers(0, 3), min_size=2, max_size=2), min_size=3, max_size=4),
    st.booleans(),
)
def test_axes_have_one_order_where_arrays_fit_one(axes, chosen, rows):
    """If all arrays keep one order of the axes, the spec has such an order, rows first."""
    arrays = [("...",) * rows + tuple(axes[i] for i in sorted(places)) for places in chosen]
    order = axis_order(tuple(arrays))
    assert sorted(order) == sorted({axis for array in arrays for axis in array})
    assert order[:1] == ("...",) or not (rows and arrays)
    for array in arrays:
        assert tuple(axis for axis in order if axis in array) == array


def test_axes_in_a_circle_all_have_a_place():
    assert sorted(axis_order((("A", "B"), ("B", "C"), ("C", "A")))) == ["A", "B", "C"]


def test_an_order_that_no_two_arrays_give():
    """Q, N, K, whichever array comes first."""
    for arrays in itertools.permutations(["Q, N", "Q, K", "N, K"]):
        inputs = "".join(f"  x{i}: float32[{axes}]\n" for i, axes in enumerate(arrays))
        text = f"op: f\nsummary: s\ninputs:\n{inputs}outputs:\n  y: float32[Q]\nreference: x0\n"
        op = read_op("f.yaml", text + "chain: y = sum(x0 * x1 * x2, axis=(N, K))\n")
        assert op.spec.axes == ("Q", "N", "K")


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_graph(path):
    check_golden(path.with_suffix(".txt"), print_statements(read(path)))


def test_there_are_enough():
    assert len(GOOD) >= 12
    assert {p.stem for p in GOOD_SPECS.glob("*.txt")} == {p.stem for p in GOOD}


def test_same_text_same_graph():
    for path in [*GOOD, *LIBRARY]:
        assert print_statements(read(path)) == print_statements(read(path))
        assert load_spec(path) == load_spec(path)


def test_equal_nodes_are_one():
    for path in [*GOOD, *LIBRARY]:
        nodes = list(topological(s.value for s in read(path)))
        keys = [(n.op, tuple(map(id, n.args)), repr(n.attr), n.kind) for n in nodes]
        assert len(set(keys)) == len(keys), path


def test_axes_of_a_spec_print_as_they_are_read():
    for path in [*GOOD, *LIBRARY]:
        for array in load_spec(path).arrays:
            text = str(array)
            assert parse_dims(text[text.index("[") + 1 : -1]) == array.dims, path


# Kinds and axes

INPUTS = """
  x: float32[..., N]
  row: bfloat16[...]
  col: float16[N]
  one: float64[]
  i: int8[..., N]
  j: uint32[N]
  m: bool[..., N]
  p: float32[..., (2 N)]
  w: float32[3]
  s: float32[..., (B G=4)]
  sc: float32[B]
  a: float32[..., K]
  b: float32[K, N]
  t: float32[P, N]
  at: int32[...]"""


def value(formula: str) -> Node:
    text = f"op: f\nsummary: One formula.\ninputs:{INPUTS}\noutputs:\n  y: float32[..., N]\nparams:\n  alpha: 1.0\n"
    text += "  k: {type: int}\n  on: {type: bool}\nreference: x\nchain: |\n  v = " + formula
    from codegen.language.formula.reader import reader
    from codegen.language.scope import make_scope
    from codegen.language.statements import read_lines

    spec: Spec = load_spec("f.yaml", text)
    (line,), problems = read_lines(spec.chain)
    assert not problems
    return reader(make_scope(spec))(line.tree.value)


TYPES = {
    "x": "float [..., N]",
    "row": "float [...]",
    "one": "float []",
    "i": "int [..., N]",
    "m": "bool [..., N]",
    "p[1]": "float [..., N]",
    "w[2]": "float []",
    "s": "float [..., B, G]",
    "alpha": "float []",
    "k": "int []",
    "on": "bool []",
    "1": "int []",
    "1.0": "float []",
    "True": "bool []",
    "1 / 2": "float []",
    "2 * 3": "int []",
    "row + col": "float [..., N]",
    "col + row": "float [..., N]",
    "row * one": "float [...]",
    "s * sc": "float [..., B, G]",
    "i + 1": "int [..., N]",
    "i + 1.0": "float [..., N]",
    "i + x": "float [..., N]",
    "i / 2": "float [..., N]",
    "i ** 2": "int [..., N]",
    "i ** -1": "float [..., N]",
    "i ** 0.5": "float [..., N]",
    "x ** k": "float [..., N]",
    "-i": "int [..., N]",
    "-x": "float [..., N]",
    "abs(i)": "int [..., N]",
    "sqrt(i)": "float [..., N]",
    "floor(x)": "float [..., N]",
    "floor(i)": "int [..., N]",
    "maximum(i, 0)": "int [..., N]",
    "maximum(i, 0.0)": "float [..., N]",
    "atan2(i, j)": "float [..., N]",
    "col > row": "bool [..., N]",
    "m == on": "bool [..., N]",
    "m & on": "bool [..., N]",
    "~m": "bool [..., N]",
    "isnan(row)": "bool [...]",
    "where(m, 1, 2)": "int [..., N]",
    "where(on, 1, x)": "float [..., N]",
    "where(on, m, True)": "bool [..., N]",
    "where(m, row, col)": "float [..., N]",
    "cast(x, int8)": "int [..., N]",
    "cast(i, float16)": "float [..., N]",
    "cast(m, int32)": "int [..., N]",
    "cast(m, bool)": "bool [..., N]",
    "index(N)": "int [N]",
    "index(B)": "int [B]",
    "size(N)": "int []",
    "sum(x, axis=N)": "float [...]",
    "sum(x, N)": "float [...]",
    "sum(x, axis=...)": "float [N]",
    "sum(x, axis=(..., N))": "float []",
    "sum(i, axis=N)": "int [...]",
    "mean(i, axis=N)": "float [...]",
    "max(abs(s), axis=G)": "float [..., B]",
    "max(s, axis=(B, G))": "float [...]",
    "any(m, axis=N)": "bool [...]",
    "all(m, axis=...)": "bool [N]",
    "a @ b": "float [..., N]",
    "take(t, at, axis=P)": "float [..., N]",
    "take(t, j, axis=P)": "float [N]",
    "softmax(x, axis=N)": "float [..., N]",
    "logsumexp(x, axis=N)": "float [...]",
    "log_softmax(i, axis=N)": "float [..., N]",
    "norm(x, axis=(..., N))": "float []",
    "var(x, axis=...)": "float [N]",
    "gelu(row)": "float [...]",
    "relu(i)": "int [..., N]",
}  # fmt: skip


@pytest.mark.parametrize(("formula", "expected"), TYPES.items(), ids=TYPES)
def test_kind_and_axes(formula, expected):
    node = value(formula)
    assert f"{node.kind} [{', '.join(node.dims)}]" == expected


def test_constants_that_are_equal_numbers_stay_apart():
    graph = Graph(["N"])
    made = [graph.const(c) for c in (0, 0.0, -0.0, False, 1, 1.0, True, float("nan"))]
    assert len({id(n) for n in made}) == len(made)
    assert graph.const(float("nan")) is made[-1]


@pytest.mark.parametrize(
    ("formula", "constant"),
    [("1 + 2", 3), ("2 ** 10", 1024), ("1 / 4", 0.25), ("-0.0", -0.0), ("sqrt(2.0)", 2**0.5), ("2 * pi", 6.283185307179586),
     ("-9223372036854775808", -(2**63)), ("1e308 * 10", float("inf"))],
)  # fmt: skip
def test_constants_are_folded(formula, constant):
    node = value(formula)
    assert node.is_const
    assert repr(node.attr) == repr(constant)


@pytest.mark.parametrize("formula", ["1 / 0", "sqrt(-1)", "exp(1)", "maximum(1, 2)", "0.0 * x"])
def test_what_a_kernel_may_compute_otherwise_is_not_folded(formula):
    assert not value(formula).is_const


def test_shared_values_are_one_node():
    node = value("gelu(x) + gelu(x)")
    assert node.args[0] is node.args[1]


def test_axes_of_a_reduction_in_jnp():
    """Named axes count from the end, since `...` is any number of leading dimensions."""
    order = ("...", "B", "N")
    assert axis_numbers(("N",), order) == "-1" and axis_numbers(("B", "N"), order) == "(-2, -1)"
    assert axis_numbers(("...",), order) == "row_axes" and axis_numbers(("...", "B"), order) == "(*row_axes, -2)"
    assert axis_numbers(order, order) == axis_numbers(("N",), ("N",)) == "None"


@pytest.mark.parametrize("function", ["softmax", "logsumexp", "log_softmax"])
@pytest.mark.parametrize(
    ("values", "follows"),
    [("15 * tanh(x)", False), ("60 * sigmoid(x)", False), ("70 * tanh(x)", True), ("x", True),
     ("where(x > 0, tanh(x), -inf)", True)],
)  # fmt: skip
def test_exponentials_of_bounded_values_need_no_maximum(function, values, follows):
    nodes = topological([value(f"{function}({values}, axis=N)")])
    assert any(n.op == "max" for n in nodes) == follows


def test_of_a_computed_table_only_what_is_taken_is_computed():
    """Along the table's other axes it may be reduced, and along its own axis before elements are taken."""
    arrays = "inputs:\n  t: float32[P, N]\n  i: int32[B, S]\noutputs:\n  y: float32[B, S, N]\n  z: float32[B, S, N]\n"
    chain = (
        "chain: |\n"
        "  c = t * rsqrt(sum(t * t, axis=N)) - max(t, axis=P) + index(P)\n"
        "  y = take(c, i, axis=P)\n"
        "  r = take(t, i, axis=P)\n"
        "  z = r * rsqrt(sum(r * r, axis=N)) - max(t, axis=P) + maximum(minimum(i, size(P) - 1), 0)\n"
    )
    op = read_op("f.yaml", f"op: f\nsummary: s\n{arrays}reference: |\n  y = t\n  z = t\n{chain}")
    values = {s.name: s.value for s in op.statements}
    assert values["y"] is values["z"]
    assert "c" not in values
