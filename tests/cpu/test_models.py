"""The examples' models learn, and fused layers give the plain layers' losses, also with interpreted kernels."""

import importlib
from dataclasses import replace

import numpy as np
import pytest

from codegen.runtime import interpret_mode

INTERPRETED = ("gpt",)  # compiling a model's kernels takes seconds


@pytest.mark.parametrize("name", ["gpt"])
def test_fused_layers_have_the_losses_of_plain_ones(name):
    model, train = (importlib.import_module(f"examples.{name}.{module}") for module in ("model", "train"))
    config = replace(model.TINY, dtype="float32")
    plain = train.train(config, "plain", 10)
    assert plain[-1] < 0.75 * plain[0]
    np.testing.assert_allclose(train.train(config, "fused", 10), plain, rtol=1e-4)
    if name in INTERPRETED:
        with interpret_mode():
            np.testing.assert_allclose(train.train(config, "fused", 2), plain[:2], rtol=1e-4)
