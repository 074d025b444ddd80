"""The tiles that a product on Hopper may have, and those that are chosen."""

import itertools
from dataclasses import replace

import pytest
from hopper_choice import choose

from codegen.graph.nodes import DTYPES
from codegen.plan.gemms.hopper_tiles import (
    MOST_ACCUMULATORS,
    SHARED,
    SQUARE,
    TABLE,
    WIDE,
    EpilogueNeeds,
    loses,
    refusal,
)
from codegen.shared import Tiles

TILES = Tiles(128, 128, 64, 4)


@pytest.mark.parametrize("tiles", TABLE, ids=str)
def test_every_tile_of_the_table_fits(tiles):
    for nk in (True, False):
        assert refusal(tiles, "bfloat16", "bfloat16", b_is_nk=nk, K=8, N=8) == ""
    bytes_wide = replace(tiles, tile_k=2 * tiles.tile_k)
    assert refusal(bytes_wide, "float8_e4m3fn", "float8_e5m2", b_is_nk=True, K=16, N=3) == ""


@pytest.mark.parametrize(
    ("tiles", "a", "b", "more", "words"),
    [
        (TILES, "float32", "float32", {"b_is_nk": True}, "got float32 and float32"),
        (TILES, "bfloat16", "float16", {"b_is_nk": True}, "got bfloat16 and float16"),
        (TILES, "int8", "int8", {"b_is_nk": False}, "got int8 and int8, b of shape (K, N)"),
        (TILES, "bfloat16", "bfloat16", {"b_is_nk": True, "K": 12}, "a row of a has 12 of bfloat16"),
        (TILES, "bfloat16", "bfloat16", {"b_is_nk": False, "N": 4}, "a row of b has 4 of bfloat16"),
        (
            replace(TILES, tile_n=96),
            "float16",
            "float16",
            {"b_is_nk": False, "paired": "halves"},
            "48 columns of each b",
        ),
        (replace(TILES, cluster_m=4), "float16", "float16", {"b_is_nk": True}, "got 4 x 1"),
        (replace(TILES, tile_m=64), "float16", "float16", {"b_is_nk": True}, "tiles of 64 x 128"),
        (replace(TILES, tile_k=8), "float16", "float16", {"b_is_nk": True}, "16 bytes wide"),
        (replace(TILES, tile_n=256, pingpong=True), "float16", "float16", {"b_is_nk": True}, "256 accumulators"),
        (replace(TILES, stages=7), "float16", "float16", {"b_is_nk": True}, "7 stages need 264328 bytes"),
        (
            replace(TILES, splits=3),
            "float16",
            "float16",
            {"b_is_nk": True},
            "K is split among two, four or eight blocks of a cluster; got 3",
        ),
        (replace(TILES, splits=2, cluster_m=2), "float16", "float16", {"b_is_nk": True}, "blocks of a cluster; got"),
        (replace(TABLE[-1], splits=8), "int8", "int8", {"b_is_nk": True}, "cannot finish 16 columns each"),
        (Tiles(128, 160, 64, 5, splits=4), "int8", "int8", {"b_is_nk": True}, "4 blocks cannot finish 16"),
        (
            Tiles(128, 160, 64, 5, splits=2),
            "int8",
            "int8",
            {"b_is_nk": True, "paired": "interleaved"},
            "2 blocks cannot finish 32 columns each, or a multiple of them, of 160",
        ),
        (replace(WIDE, cluster_m=1, splits=2), "float16", "float16", {"b_is_nk": True}, "besides 192 of its own"),
        (Tiles(128, 128, 32, 4, splits=2), "float16", "float16", {"b_is_nk": True}, "128 rows do not fit"),
        (Tiles(256, 128, 64, 4, splits=2), "float16", "float16", {"b_is_nk": True}, "256 rows do not fit"),
    ],
)
def test_refusals_say_why(tiles, a, b, more, words):
    assert words in refusal(tiles, a, b, **more)


@pytest.mark.parametrize(
    ("shape", "work", "reads", "expected"),
    [
        ((8192, 8192, 8192), 12, 0, (128, 192)),
        ((8192, 8192, 1024), 12, 0, (128, 192)),
        ((8192, 8192, 256), 14, 0, (128, 192)),
        ((4096, 4096, 4096), 12, 0, (128, 256)),  # 704 tiles of 128 x 192 are 5.3 a multiprocessor, taken as 6
        ((32768, 1280, 1280), 5, 0, (128, 160)),  # in a loop of calls an H200 took 178 us, 204 with 128 x 256
        ((32768, 1280, 5120), 5, 0, (128, 256)),  # and 640 us, 663 with 128 x 160
        ((16, 14336, 4096), 12, 0, (64, 128)),
        ((16, 14336, 4096), 28, 0, (64, 128)),
    ],
)
def test_choices_that_measured_best(shape, work, reads, expected):
    tiles = choose(*shape, epilogue=EpilogueNeeds(work=work, reads=reads))
    assert tiles is not None and (tiles.tile_m, tiles.tile_n) == expected


@pytest.mark.parametrize(
    ("shape", "splits"),
    [((16, 4096, 14336), 2), ((1, 4096, 4096), 2), ((128, 1024, 8192), 8), ((16, 14336, 4096), 1), ((8192, 8192, 8192), 1),
     ((8192, 8192, 65536), 1), ((64, 64, 64), 1), ((16, 128, 512), 1)],
)  # fmt: skip
def test_few_tiles_share_out_a_long_axis(shape, splits):
    tiles = choose(*shape)
    assert tiles is not None and tiles.splits == splits


@pytest.mark.parametrize(
    ("shape", "loses_there"),
    [((128, 128, 65536), True), ((1024, 1024, 16384), True), ((16, 4096, 14336), False), ((16, 14336, 4096), False),
     ((8192, 8192, 8192), False), ((8192, 8192, 256), False), ((64, 64, 64), False), ((0, 64, 64), False),
     ((64, 64, 0), False)],
)  # fmt: skip
def test_where_a_library_is_faster(shape, loses_there):
    """As measured: few outputs of very many terms each, unless the epilogue is long."""
    for work in (7, 22, 40):
        for L in (1,) if loses_there else (1, 3):
            tiles = choose(*shape, L, epilogue=EpilogueNeeds(work=work))
            assert tiles is not None
            assert bool(loses(tiles, *shape, L, a="bfloat16", paired="", work=work)) == loses_there


def test_the_epilogue_decides_how_registers_are_used():
    assert choose(8192, 8192, 1024, epilogue=EpilogueNeeds(work=22)) == replace(WIDE, rolled=True)
    assert choose(8192, 8192, 8192, epilogue=EpilogueNeeds(work=22, folds=True)) == replace(WIDE, rolled=True)
    crowded = choose(8192, 8192, 1024, epilogue=EpilogueNeeds(work=7, folds=True, keeps=True))
    assert crowded is not None and crowded.accumulators <= 160


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("paired", ["", "halves", "interleaved"])
def test_what_is_chosen_fits(dtype, paired):
    for M, N, K in itertools.product([1, 64, 1000, 8192], [8, 120, 2048, 4352], [0, 16, 4096, 14336]):
        tiles = choose(M, N, K, a=dtype, b=dtype, b_is_nk=True, paired=paired, processors=114)
        assert tiles is not None and tiles.blocks == 114
        assert refusal(tiles, dtype, dtype, b_is_nk=True, paired=paired, K=K, N=N) == ""
        width = DTYPES[dtype].size
        assert tiles.shared(width, width) <= SHARED and tiles.accumulators <= MOST_ACCUMULATORS
        # what a block finishes is whole: a vector or two of each of what is paired
        assert tiles.tile_n % tiles.splits == 0 and tiles.tile_n // tiles.splits % (32 if paired else 16) == 0


def test_nothing_is_chosen_where_nothing_fits():
    assert choose(128, 128, 127) is None
    assert choose(128, 128, 128, a="float32", b="float32") is None


def test_operands_in_tiles_are_read_further_ahead():
    """They are prefetched into shared memory; if TMA cannot copy them, as late as possible, in a loop with fewer
    accumulators."""
    tiles = choose(8192, 8192, 8192, epilogue=EpilogueNeeds(reads=2, boxes=True))
    assert tiles == replace(WIDE, ahead=2, rolled=True, staged=16 * 64 * 2)
    assert choose(8192, 8192, 8192, epilogue=EpilogueNeeds(reads=2, boxes=True, folds=True)) == tiles
    for ragged in (False, True):
        tiles = choose(8192, 8192, 8192, epilogue=EpilogueNeeds(reads=2, ragged=ragged))
        assert tiles is not None and tiles.rolled and not tiles.staged and tiles.accumulators == 128


@pytest.mark.parametrize("reads", [1, 2, 4, 6, 8, 16, 40])
@pytest.mark.parametrize("paired", ["", "halves", "interleaved"])
def test_there_is_room_for_operands(reads, paired):
    tiles = choose(8192, 8192, 8192, epilogue=EpilogueNeeds(reads=reads, boxes=True), paired=paired)
    assert tiles is not None and tiles.shared(2, 2) <= SHARED
    assert tiles.staged == 0 or (tiles.staged >= 16 * tiles.piece * reads // 2 and tiles.rolled)


def test_columns_results_leave_registers():
    """With one reduction over rows, tiles have 256 columns; with two, half as many columns and as many accumulators."""
    one, two = (
        choose(4096, 4096, 4096, epilogue=EpilogueNeeds(reads=2, boxes=True, keeps=True, over_rows=n)) for n in (1, 2)
    )
    assert one is not None and two is not None
    assert one.tile_n > 128 >= two.tile_n and two.accumulators == 128


def test_pieces():
    assert (SQUARE.row_pieces(300), SQUARE.row_pieces(300, "halves"), SQUARE.column_pieces(129)) == (3, 5, 2)
