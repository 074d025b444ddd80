"""Floats of distances along the columns of attention's scores."""

import pytest
from making import spec_text

from codegen.pipeline import read_op
from codegen.render import render_op


@pytest.mark.parametrize(
    ("term", "found"),
    [
        ("slopes * (index(S) - index(Q))", "attend.multiples(attend.line(index_s - index_q, 1.0 * steps), slopes)"),
        ("(index(Q) - index(S)) * slopes", "attend.multiples(attend.line(index_q - index_s, -1.0 * steps), slopes)"),
        (
            "slopes * (index(S) - index(Q)) + near * (index(S) - index(Q))",
            "attend.floats(index_s - index_q, 1.0 * steps)",
        ),
        ("near * (index(S) - index(Q))", "near * attend.floats(index_s - index_q, 1.0 * steps)"),
    ],
    ids=str,
)
def test_products_with_a_distance(term, found):
    """Those of a row's value are one instruction each: a step times the value, and the first product added. Others take the floats."""
    text = spec_text(
        "q: T[Q, H, D]; k: T[S, H, D]; v: T[S, H, E]; slopes: float32[H]; near: float32[H, S]", "o: T[Q, H, E]",
        f"s = q @ k + slopes + near + {term}; o = softmax(s, axis=S) @ v", types="{T: [bfloat16]}",
    )  # fmt: skip
    assert found in render_op(read_op("specs/made.yaml", text))
