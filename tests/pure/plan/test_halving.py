"""Which products are added from two halves: those whose last round of tiles leaves many SMs idle."""

import pytest

from codegen.plan.gemms.halving import saves_time

ROWS = 32768


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((1280, 5120), True), ((5120, 1280), True),  # 2.4 rounds of tiles, which take 3; as halves 4.8, which take 5
     ((1280, 3840), False), ((1280, 1280), False), ((1280, 50304), False), ((4096, 14336), False), ((0, 5120), False)],
    ids=str,
)  # fmt: skip
def test_the_rounds_of_tiles_decide(sizes, expected):
    assert saves_time(*sizes, ROWS, "sm_90a") == expected


def test_a_short_axis_is_not_cut_nor_one_of_odd_size():
    assert not saves_time(1280, 5120, 8192, "sm_90a")
    assert not saves_time(1280, 5120, ROWS + 1, "sm_90a")


@pytest.mark.parametrize("arch", [None, "sm_80", "sm_100a"])
def test_other_architectures_have_other_tiles(arch):
    assert not saves_time(1280, 5120, ROWS, arch)
