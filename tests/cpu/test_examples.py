"""The examples' models learn as well as the same models with the ops' references, also with interpreted kernels."""

import importlib.util

import numpy as np
import pytest

import generated
from codegen.runtime import interpret_mode
from tests.places import ROOT
from tests.turns import some

FOLDER = ROOT / "examples"
OPS = {"flax_layers": ("rmsnorm", "swiglu"), "equinox_layers": ("layernorm", "bias_gelu")}


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", OPS)
def test_a_model_learns(name, monkeypatch):
    module = example(name)
    losses = module.train(steps=12)
    assert losses[-1] < 0.9 * losses[0]
    for op in OPS[name]:
        monkeypatch.setattr(module, op, getattr(generated, op).reference)
    np.testing.assert_allclose(losses, module.train(steps=12), rtol=1e-3)


@pytest.mark.parametrize("name", some(OPS, 2))
def test_a_model_learns_on_interpreted_kernels(name):
    module = example(name)
    plain = module.train(steps=2, width=32, rows=16)
    with interpret_mode():
        np.testing.assert_allclose(module.train(steps=2, width=32, rows=16), plain, rtol=1e-4)
