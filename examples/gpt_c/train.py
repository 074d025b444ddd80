"""Train the GPT on generated text: python -m examples.gpt.train --form fused --steps 200

`--size tiny` takes seconds on a CPU. The least loss is that of the text itself, 1.28.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import training
from . import layers_fused, layers_plain, model

FORMS = {"plain": layers_plain, "fused": layers_fused}


def setup(config: model.Config, form: str, fuse: Callable = lambda function: function) -> tuple[Any, Callable]:
    """The first state, and a step of training. `fuse` may replace the function of weights and words that is the loss."""
    params, layers = model.init(config), FORMS[form]
    optimiser, named = layers.Optimiser.of(params, config.dtype, model.KEPT), training.Named(layers)
    loss = fuse(lambda weights, words, following: model.loss(weights, words, following, config, named))
    return training.setup_of(config, params, optimiser, loss)


if __name__ == "__main__":
    training.main(__doc__, setup, model.TINY, model.Config())
