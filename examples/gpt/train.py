"""Train the GPT on generated text: python -m examples.gpt.train --form fused --steps 200

`--size tiny` takes seconds on a CPU. The least loss is that of the text itself, 1.28.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .. import text
from . import layers_fused, layers_plain, model
from .model import Config

FORMS = {"plain": layers_plain, "fused": layers_fused}


def setup(config: Config, form: str, fuse: Callable = lambda function: function) -> tuple[Any, Callable]:
    """The first state, and a step of training: state, number, words, following to state, loss. A step takes the state's buffers.

    `fuse` may replace the function of weights, words and following that is the loss.
    """
    layers, params = FORMS[form], model.init(config)
    optimiser = layers.Optimiser.of(params, config.dtype, model.KEPT)
    loss = fuse(lambda weights, words, following: model.loss(weights, words, following, config, layers))

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, number: jax.Array, words: jax.Array, following: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(optimiser.weights(state), words, following)
        count = number.astype(jnp.float32) + 1
        rate = config.rate * jnp.minimum(1.0, count / config.warmup)
        with jax.named_scope("update"):
            return optimiser.update(state, gradients, rate, count), value

    return optimiser.start(params), step


def train(config: Config, form: str, steps: int, report: Callable[[int, float], None] = lambda *_: None) -> list[float]:
    """The loss at each step."""
    state, step = setup(config, form)
    losses = []
    for number in range(steps):
        state, loss = step(
            state, jnp.int32(number), *text.batch(number, config.sequences, config.length, config.vocabulary)
        )
        losses.append(float(loss))
        report(number, losses[-1])
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--form", choices=FORMS, default="fused")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--size", choices=("tiny", "full"), default="tiny" if jax.default_backend() == "cpu" else "full"
    )
    given = parser.parse_args()
    config = model.TINY if given.size == "tiny" else Config()
    train(config, given.form, given.steps, lambda number, loss: print(f"step {number:4}  loss {loss:.4f}", flush=True))


if __name__ == "__main__":
    main()
