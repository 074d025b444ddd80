"""Where the epilogue keeps a piece of the accumulators in shared memory: each word has its own place, a lane reads the
words that it needs, and neither writes nor reads have bank conflicts."""

from collections import Counter
from types import SimpleNamespace

import pytest

from codegen.device.gemm.pieces import Form, Pieces, read_place, write_place
from codegen.shared import GAP, STAGED_ROWS, stage_bytes

LANES = range(32)
# Columns and rows of a piece, vectors, how accumulators are paired
FORMS = [
    (width, rows, vec, paired)
    for width in (64, 32, 16)
    for rows in (8, 16)
    for vec in (4, 8, 16)
    for paired in ("", "halves", "interleaved")
    if 32 // rows <= width // vec // (2 if paired else 1) and width // vec // (2 if paired else 1) >= 2
]


def walk_of(width: int, rows: int, vec: int, paired: str) -> Pieces:
    own = width // (2 if paired else 1)
    return Pieces(0, 0, 0, 0, 0, 64, 1, 1, width, rows, own // vec, vec, own)


def column_of(block: int, column: int, width: int, paired: str) -> int:
    """The column of a warp's piece that a lane holds: that of the block-th in shared memory, where the columns of two
    halves alternate."""
    return (block % 2 * (width // 2) + block // 2 * 8 if paired == "halves" else block * 8) + column


def words(walk: Pieces, paired: str) -> dict[tuple[int, int], int]:
    """The place of each row's columns, in words, as the description says."""
    gap = GAP * 8 // walk.width
    return {
        (row, column_of(block, c, walk.width, paired)): (
            block * (walk.rows * 32 + gap) + c % 2 * walk.rows * 16 + row * 16 + c // 2 * 4
        )
        // 4
        for row in range(walk.rows)
        for block in range(walk.width // 8)
        for c in range(8)
    }


@pytest.mark.parametrize("form", FORMS)
def test_every_word_has_its_place(form):
    walk = walk_of(*form)
    places = list(words(walk, form[3]).values())
    assert len(set(places)) == len(places) == walk.rows * walk.width
    assert max(places) < stage_bytes(walk.width) // 4 // walk.buffers


def most(words: list[list[int]]) -> int:
    """The largest number of different words of one of 32 banks that are accessed at once. `words` has those of each
    active lane."""
    return max(Counter(word % 32 for word in {w for lane in words for w in lane}).values())


@pytest.mark.parametrize("form", FORMS)
def test_matrices_are_written_in_place(form):
    """Lanes 8i .. 8i + 7 give the rows of the i-th matrix: even and odd columns of rows 0 to 7, then of rows 8 to 15."""
    width, rows, _, paired = form
    walk = walk_of(*form)
    where = words(walk, paired)
    for block in range(width // 8):
        for matrix in range(4 if rows == STAGED_ROWS else 2):
            at = [
                (write_place(8 * matrix + r, walk, SimpleNamespace(matrices=True)) + block * walk.block) // 4
                for r in range(8)
            ]
            wanted = [where[matrix // 2 * 8 + r, column_of(block, matrix % 2, width, paired)] for r in range(8)]
            assert at == wanted
            assert most([list(range(a, a + 4)) for a in at]) == 1


@pytest.mark.parametrize("form", FORMS)
def test_words_are_written_in_place(form):
    """One word a lane, as on Ampere: row lane // 4, columns 2 * (lane % 4) + {0, 1}."""
    walk, paired = walk_of(*form), form[3]
    where = words(walk, paired)
    plain = SimpleNamespace(matrices=False, fours=False)
    for block in range(form[0] // 8):
        for e in range(2):
            at = [(write_place(n, walk, plain) + block * walk.block + e * walk.plane) // 4 for n in LANES]
            assert at == [where[n // 4, column_of(block, n % 4 * 2 + e, form[0], paired)] for n in LANES]
            assert most([[a] for a in at]) == 1


@pytest.mark.parametrize("form", [f for f in FORMS if f[0] >= (32 if f[3] == "halves" else 16)])
def test_fours_are_written_in_place(form):
    """Lanes with four neighbouring columns of each sixteen: pair j of them."""
    width, _, _, paired = form
    walk = walk_of(*form)
    where, halves = words(walk, paired), 2 if paired == "halves" else 1
    fours = SimpleNamespace(matrices=False, fours=True, halves=halves)
    for block in range(width // 8):
        half, j = block % halves, block // halves
        for e in range(2):
            further = ((j - j % 2) * halves + half) * walk.block + j % 2 * 4 + e * walk.plane
            at = [(write_place(n, walk, fours) + further) // 4 for n in LANES]
            columns = [half * (width // 2) + 8 * (j - j % 2) + n % 4 * 4 + j % 2 * 2 + e for n in LANES]
            assert at == [where[n // 4, c] for n, c in zip(LANES, columns, strict=True)]


@pytest.mark.parametrize("form", FORMS)
def test_vectors_are_read_without_conflicts(form):
    """With 16 bytes a lane, a quarter of a warp accesses memory at once; with 8 bytes (vectors of 4), half a warp."""
    width, _, vec, paired = form
    walk = walk_of(*form)
    where, halves = words(walk, paired), 2 if paired == "halves" else 1
    shape = SimpleNamespace(paired=paired, halves=halves)
    count = vec * (2 if paired == "interleaved" else 1)  # side by side
    size = min(count, 8) // 2  # words of an access
    for block in range(-(-count // 8)):
        for half in range(halves):
            for plane in range(2):
                further = (block * halves + half) * walk.block + plane * walk.plane
                at = [(read_place(n, walk, shape) + further) // 4 for n in LANES]
                for n in LANES:
                    first = half * (width // 2) + n % walk.per_row * count + block * 8 + plane
                    assert [at[n] + k for k in range(size)] == [
                        where[n // walk.per_row, first + 2 * k] for k in range(size)
                    ]
                for first in range(0, 32, 32 // size):
                    assert most([list(range(a, a + size)) for a in at[first : first + 32 // size]]) == 1


def test_what_a_plan_counts():
    for piece in (64, 32):
        assert Form(None, None, None, 8, piece=piece).stage * 4 == stage_bytes(piece)
