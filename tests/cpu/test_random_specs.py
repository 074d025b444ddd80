"""A few fixed random specs; `python -m tests.random_specs` tries others for as long as requested."""

import pytest

from tests.random_specs.generate import Wanted, random_spec
from tests.random_specs.trial import Effort, try_spec
from tests.turns import EVERY, some

SEEDS = (0, 1, 19, 4, 10, 12, 25, 16, 2, 22, 15, 76015)  # of every kind of kernel; every sixth one by default
FURTHER = (112005, 112013, 112021)  # with a scan, parts of blocks, a sort
MORE = (5, 7, 8, 14, 21, 23)  # of the same kinds, some of them long


WANTED = [
    *((seed, Wanted()) for seed in (*some(SEEDS, 3), *(MORE if EVERY else ()))),
    *((seed, Wanted(further=True)) for seed in some(FURTHER, 2)),
]


@pytest.mark.parametrize(("seed", "wanted"), WANTED, ids=lambda value: str(value) if isinstance(value, int) else "")
def test_a_random_spec(seed, wanted, tmp_path):
    """It builds, its kernels compile, and, interpreted, their values and gradients agree with its reference."""
    spec = random_spec(seed, wanted)
    outcome = try_spec(spec, tmp_path, Effort(variants=0, calls=1, gradients=1))
    assert not outcome.failure, f"{outcome.failure}\n{outcome.message}\n{spec.text}"
    assert not outcome.refused, f"{outcome.refused}\n{spec.text}"
