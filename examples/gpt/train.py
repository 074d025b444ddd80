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


def make_step(config: Config, given: Any, loss: Callable) -> Callable:
    """A step of training: state, number, words, following to state, loss. It takes the state's buffers. `given` are the layers."""
    layers = model.Named(given)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, number: jax.Array, words: jax.Array, following: jax.Array) -> tuple[Any, jax.Array]:
        weights = layers.weights(state, config.dtype)
        value, gradients = jax.value_and_grad(loss)(weights, words, following)
        count = number.astype(jnp.float32) + 1
        rate = config.rate * jnp.minimum(1.0, count / config.warmup)
        return layers.update(state, gradients, rate, count), value

    return step


def setup(config: Config, form: str, fuse: Callable = lambda function: function) -> tuple[Any, Callable]:
    """The first state, and a step. `fuse` may replace the function of weights, words and following that is the loss."""
    layers = FORMS[form]

    def loss(weights: Any, words: jax.Array, following: jax.Array) -> jax.Array:
        return model.loss(weights, words, following, config, layers)

    return layers.start(model.init(config), config.dtype), make_step(config, layers, fuse(loss))


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
