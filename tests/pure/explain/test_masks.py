"""The tiles of a mask, as `explain` counts and draws them."""

import pytest

from codegen.explain.masks import mask, words
from codegen.pipeline import read_op
from tests.making import spec_text


def tiles(condition: str, rows: int = 2048, more: str = ""):
    """The mask's tiles of a square of scores."""
    text = spec_text(
        f"q: T[H, Q, D]; k: T[H, S, D]; v: T[H, S, E]{more}", "o: T[H, Q, E]",
        f"o = softmax(where({condition}, q @ k, -inf), axis=S) @ v", types="{T: [bfloat16]}",
    )  # fmt: skip
    op = read_op("specs/made.yaml", text)
    return mask(op, {"H": 2, "Q": rows, "S": rows, "D": 64, "E": 64})


@pytest.mark.parametrize(
    ("condition", "computed", "whole", "line"),
    [
        ("index(S) <= index(Q)", 136, 120, "██▒·············"),
        ("abs(index(S) - index(Q)) < 64", 46, 0, "·▒▒▒············"),
        ("(index(S) <= index(Q)) & (index(S) // 256 == index(Q) // 256)", 24, 8, "··▒·············"),
        ("~(index(S) > index(Q)) | (index(S) < 128)", 136, 121, "██▒·············"),
        ("index(S) % 4096 > index(Q) - 100", 151, 120, "·▒▒█████████████"),
    ],
    ids=str,
)
def test_tiles_are_counted_and_drawn(condition, computed, whole, line):
    found = tiles(condition)
    assert found["tile"] == [128, 128] and not found["arrays"]
    assert (256 * found["computed"], 256 * found["whole"]) == (computed, whole)
    assert found["picture"][2] == line
    assert words(found).startswith(f"of all tiles of 128 x 128, {computed / 256:.1%} are computed")


def test_nothing_is_known_of_arrays():
    found = tiles("(index(S) <= index(Q)) & (index(S) < lengths)", more="; lengths: int32[H]")
    assert found["arrays"] == ["lengths"] and (256 * found["computed"], found["whole"]) == (136, 0)
    assert "at most, for any lengths, 53.1% are computed" in words(found)


def test_long_and_short_axes():
    """Tiles are larger where there would be more than 128 along an axis; one tile is no picture."""
    assert tiles("index(S) <= index(Q)", 32768)["tile"] == [256, 256]
    assert tiles("index(S) <= index(Q)", 128) is None
