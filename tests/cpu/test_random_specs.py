"""A few fixed random specs; `python -m tests.random_specs` tries others for as long as requested."""

import pytest

from tests.random_specs.generate import random_spec
from tests.random_specs.trial import Effort, try_spec
from tests.turns import EVERY

SEEDS = (0, 1, 2, 4, 10, 12, 15, 16, 19, 22, 25, 76015)  # of every kind of kernel
MORE = (5, 7, 8, 14, 21, 23)  # of the same kinds, some of them long


@pytest.mark.parametrize("seed", (*SEEDS, *MORE) if EVERY else SEEDS)
def test_a_random_spec(seed, tmp_path):
    """It builds, its kernels compile, and, interpreted, their values and gradients agree with its reference."""
    spec = random_spec(seed)
    outcome = try_spec(spec, tmp_path, Effort(variants=0, calls=1, gradients=1))
    assert not outcome.failure, f"{outcome.failure}\n{outcome.message}\n{spec.text}"
    assert not outcome.refused, f"{outcome.refused}\n{spec.text}"
