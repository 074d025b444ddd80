"""Which of many similar tests run by default."""

import itertools
from types import SimpleNamespace

import pytest

from tests.conftest import has_each


@pytest.mark.parametrize("lengths", [(4, 2), (2, 4), (3, 3), (2, 2, 5), (1, 6)], ids=str)
def test_each_item_of_each_list_is_in_a_combination_that_runs(lengths):
    names = ["a, b", "c", ["d", "e"]][: len(lengths)]
    sets = [range(n) if name == "c" else [(i, 0) for i in range(n)] for name, n in zip(names, lengths, strict=False)]
    marks = [SimpleNamespace(args=pair) for pair in zip(names, sets, strict=True)]
    kept = []
    for places in itertools.product(*map(range, lengths)):
        spec = SimpleNamespace(params={"b": 0, "e": 0, **dict(zip("acd", places, strict=False))})
        if has_each(SimpleNamespace(iter_markers=lambda _: marks, callspec=spec)):
            kept.append(places)
    assert len(kept) == max(lengths)
    assert [{places[i] for places in kept} for i in range(len(lengths))] == [{*range(n)} for n in lengths]
