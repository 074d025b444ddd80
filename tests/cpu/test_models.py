"""The examples' models learn, and fused layers give the plain layers' losses, also with interpreted kernels."""

import importlib
from dataclasses import replace

import numpy as np
import pytest

from codegen.runtime import interpret_mode
from examples.training import train
from tests.turns import some

INTERPRETED = ("gpt",)  # compiling a model's kernels takes seconds


@pytest.mark.parametrize("name", some(["gpt", "gemma"], 2))
def test_fused_layers_have_the_losses_of_plain_ones(name):
    setup = importlib.import_module(f"examples.{name}.train").setup
    config = replace(importlib.import_module(f"examples.{name}.model").TINY, dtype="float32")
    plain = train(setup, config, "plain", 10)
    assert plain[-1] < 0.75 * plain[0]
    np.testing.assert_allclose(train(setup, config, "fused", 10), plain, rtol=1e-4)
    if name in INTERPRETED:
        with interpret_mode():
            np.testing.assert_allclose(train(setup, config, "fused", 2), plain[:2], rtol=1e-4)
