"""Floats of distances along the columns of attention's scores."""

import pytest
from making import spec_text

from codegen.pipeline import read_op
from codegen.render import render_op

FACTORS = "q: T[Q, H, D]; k: T[S, H, D]; v: T[S, H, E]; slopes: float32[H]"


def rendered(scores, more=""):
    chain = f"s = {scores}; o = softmax(s, axis=S) @ v"
    return render_op(
        read_op("specs/made.yaml", spec_text(FACTORS + more, "o: T[Q, H, E]", chain, types="{T: [bfloat16]}"))
    )


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
    assert found in rendered(f"q @ k + {term} + slopes + near", "; near: float32[H, S]")


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        ("q @ k * 0.5 + slopes * (index(S) - index(Q))", "attend.shifted(acc, t0)"),
        ("slopes * (index(S) - index(Q)) + q @ k * 0.5", "attend.shifted(acc, t0)"),
        ("q @ k * 0.5 - slopes * (index(Q) - index(S))", "attend.shifted(acc, t0, -1.0)"),
        ("slopes * (index(S) - index(Q)) - q @ k * 0.5", ""),
        ("(q @ k + slopes * (index(S) - index(Q)) + slopes * (index(S) - index(Q))) * 0.5", ""),
    ],
    ids=str,
)
def test_scores_and_a_distance(scores, found):
    """One instruction adds the step's product to a score, which the kernel multiplies by the scale later."""
    text = rendered(scores)
    assert ("scale=0.5" in text, "attend.shifted" in text) == (True, bool(found)) and found in text
