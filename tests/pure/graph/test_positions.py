"""What positions say of values: conditions at some of them, and numbers that rise by one number from each to the next."""

import pytest

from codegen.graph.nodes import topological
from codegen.graph.positions import holds, rises
from codegen.pipeline import read_op
from tests.making import spec_text


def values_of(chain):
    text = spec_text("x: float32[B, Q, S]", "y: float32[B, Q, S]", chain)
    return list(topological([read_op("specs/made.yaml", text).spec.read.statements[-1].value]))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("index(S) <= index(Q)", (True, True)),
        ("index(Q) - index(S) < 64", (False, False)),
        ("index(S) < size(S) - 1950", (True, False)),
        ("(index(S) <= index(Q)) | (index(Q) // 8 == index(S))", (True, True)),
    ],
    ids=str,
)
def test_a_condition_at_positions(condition, expected):
    nodes = values_of(f"y = where({condition}, x, 0.0)")
    condition = next(n for n in nodes if n.op == "where").args[0]
    assert (
        holds(list(topological([condition])), {"Q": (1000, 1127), "S": (0, 127)}, {}, {"Q": 2048, "S": 2048})
        == expected
    )


@pytest.mark.parametrize(
    ("number", "rise"),
    [
        ("index(S)", 1),
        ("index(S) - index(Q)", 1),
        ("index(Q) - index(S)", -1),
        ("-(index(S) + index(S)) + index(Q)", -2),
        ("index(S) // 2", None),
        ("abs(index(S) - index(Q))", None),
        ("index(Q) + 1", 0),
    ],
    ids=str,
)
def test_by_how_much_a_number_rises_along_an_axis(number, rise):
    nodes = values_of(f"y = x * ({number})")
    found = rises(nodes, "S")
    assert found.get(id(next(n for n in nodes if n.op == "float"))) == rise
