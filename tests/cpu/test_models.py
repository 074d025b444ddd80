"""The examples' models learn, and fused layers give the plain layers' losses, also with interpreted kernels."""

import importlib
from dataclasses import replace

import numpy as np
import pytest

from codegen.runtime import interpret_mode
from examples.training import train
from tests.turns import EVERY, some

# Compiling a model's kernels takes seconds: by default those of a smaller example are interpreted, in test_examples.py
INTERPRETED = ("gpt",) if EVERY else ()


def setup_and_config(name, dtype):
    setup = importlib.import_module(f"examples.{name}.train").setup
    return setup, replace(importlib.import_module(f"examples.{name}.model").TINY, dtype=dtype)


@pytest.mark.parametrize("name", some(["gpt", "gemma"], 2))
def test_fused_layers_have_the_losses_of_plain_ones(name):
    setup, config = setup_and_config(name, "float32")
    plain = train(setup, config, "plain", 10)
    assert plain[-1] < 0.75 * plain[0]
    np.testing.assert_allclose(train(setup, config, "fused", 10), plain, rtol=1e-4)
    if name in INTERPRETED:
        with interpret_mode():
            np.testing.assert_allclose(train(setup, config, "fused", 2), plain[:2], rtol=1e-4)


@pytest.mark.parametrize("name", some(["gpt", "gemma"], 2))
def test_fused_layers_in_half_precision_too(name):
    """Attention has kernels of 16-bit types alone."""
    setup, config = setup_and_config(name, "bfloat16")
    np.testing.assert_allclose(train(setup, config, "fused", 10), train(setup, config, "plain", 10), rtol=5e-3)
