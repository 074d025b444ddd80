"""What training both models takes: the step, the loop, and the command line."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from . import text

Setup = Callable[..., tuple[Any, Callable]]  # of a config and the name of a form: the first state, and a step


@dataclass(frozen=True)
class Named:
    """Layers, each under its own name in profiles."""

    layers: Any

    def __getattr__(self, name: str) -> Any:
        return jax.named_scope(name)(getattr(self.layers, name))


def setup_of(config: Any, params: Any, optimiser: Any, loss: Callable) -> tuple[Any, Callable]:
    """The first state, and a step: state, number, words, following to state, loss. A step takes the state's buffers.

    `loss` is a function of the weights, the words, and the words that follow, int32[sequences, length] each.
    """

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, number: jax.Array, words: jax.Array, following: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(optimiser.weights(state), words, following)
        count = number.astype(jnp.float32) + 1
        rate = config.rate * jnp.minimum(1.0, count / config.warmup)
        with jax.named_scope("update"):
            return optimiser.update(state, gradients, rate, count), value

    return optimiser.start(params), step


def train(
    setup: Setup, config: Any, form: str, steps: int, report: Callable = lambda number, loss: None
) -> list[float]:
    """The loss at each step. `form` is "plain" or "fused"."""
    state, step = setup(config, form)
    losses = []
    for number in range(steps):
        words = text.batch(number, config.sequences, config.length, config.vocabulary)
        state, loss = step(state, jnp.int32(number), *words)
        losses.append(float(loss))
        report(number, losses[-1])
    return losses


def main(doc: str, setup: Setup, tiny: Any, full: Any) -> None:
    """The command line of an example."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=("plain", "fused"), default="fused")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--size", choices=("tiny", "full"), default="tiny" if jax.default_backend() == "cpu" else "full"
    )
    given = parser.parse_args()
    config = tiny if given.size == "tiny" else full
    train(
        setup,
        config,
        given.form,
        given.steps,
        lambda number, loss: print(f"step {number:4}  loss {loss:.4f}", flush=True),
    )
