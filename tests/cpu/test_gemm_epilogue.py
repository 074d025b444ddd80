"""Where the driver of epilogues keeps a piece of accumulators in shared memory: each chunk has a place of its own, and
neither writes nor reads meet in a bank."""

from collections import Counter

import pytest

from codegen.runtime.gemm_pieces import place_of, shifted

WIDTHS = (64, 32, 16)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_chunk_has_its_place(width):
    places = {place_of(row, chunk, width) for row in range(16) for chunk in range(width // 4)}
    assert places == set(range(0, 16 * width, 4))


@pytest.mark.parametrize("width", WIDTHS)
def test_places_of_sums(width):
    """A lane's part and a constant's, which share no bits, are put together as the kernel does it."""
    for row in range(8):
        for fixed_row in (0, 8):
            for chunk in range(width // 4):
                for fixed in range(width // 4):
                    if chunk & fixed == 0:
                        whole = place_of(row + fixed_row, chunk + fixed, width)
                        assert shifted(place_of(row, chunk, width), place_of(fixed_row, fixed, width)) == whole


def most(words: list[list[int]]) -> int:
    """Of 32 banks, how many different words of one come at once. `words`: of each lane that comes."""
    return max(Counter(word % 32 for lane in words for word in lane).values())


@pytest.mark.parametrize("width", [64, 32])
def test_pairs_are_written_without_conflicts(width):
    """8 bytes a lane: half of a warp at once."""
    for block in range(width // 8):
        for first in (0, 16):
            lanes = range(first, first + 16)
            at = [place_of(n // 4, 2 * block + n % 4 // 2, width) + n % 2 * 2 for n in lanes]
            assert most([[a, a + 1] for a in at]) == 1


@pytest.mark.parametrize(("width", "words"), [(64, 4), (64, 8), (64, 16), (32, 4), (32, 8)])
def test_vectors_are_read_without_conflicts(width, words):
    """16 bytes a lane: a quarter of a warp at once."""
    per_row = width // words
    for i in range(words // 4):
        for first in range(0, 32, 8):
            lanes = range(first, first + 8)
            at = [place_of(n // per_row, n % per_row * (words // 4) + i, width) for n in lanes]
            assert most([[a + k for k in range(4)] for a in at]) == 1
