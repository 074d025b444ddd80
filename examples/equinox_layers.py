"""An Equinox model whose layers are generated ops, trained a few steps: python examples/equinox_layers.py

LayerNorm, then a dense layer whose bias and GELU are one op. A layer is written for one example, as Equinox does it;
`jax.vmap` over the batch makes one kernel of all of them. On an NVIDIA GPU forward and backward run the ops' kernels;
elsewhere their jnp forms.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from cutefuse import bias_gelu, layernorm


class LayerNorm(eqx.Module):
    """x: [width] to the same shape, with mean 0 and variance 1 before weight and bias."""

    weight: jax.Array
    bias: jax.Array

    def __init__(self, width: int):
        self.weight, self.bias = jnp.ones(width), jnp.zeros(width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return layernorm(x, self.weight, self.bias, eps=1e-5)


class Dense(eqx.Module):
    """x: [width] to [hidden]: gelu(x @ kernel + bias)."""

    kernel: jax.Array
    bias: jax.Array

    def __init__(self, width: int, hidden: int, key: jax.Array):
        self.kernel = jax.random.normal(key, (width, hidden)) / width**0.5
        self.bias = jnp.zeros(hidden)

    def __call__(self, x: jax.Array) -> jax.Array:
        return bias_gelu(x @ self.kernel, self.bias)


class Model(eqx.Module):
    """x: [width] to the same shape."""

    norm: LayerNorm
    dense: Dense
    out: eqx.nn.Linear

    def __init__(self, width: int, hidden: int, key: jax.Array):
        one, two = jax.random.split(key)
        self.norm, self.dense = LayerNorm(width), Dense(width, hidden, one)
        self.out = eqx.nn.Linear(hidden, width, key=two)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.out(self.dense(self.norm(x)))


def train(steps: int = 20, width: int = 64, rows: int = 256, rate: float = 0.5) -> list[float]:
    """The loss at each step of plain gradient descent towards a fixed function of the input."""
    model = Model(width, 4 * width, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (rows, width))
    goal = jnp.roll(x, 1, axis=-1) * jnp.tanh(x)

    @eqx.filter_jit
    def step(model: Model) -> tuple[Model, jax.Array]:
        loss, slopes = eqx.filter_value_and_grad(lambda m: jnp.mean((jax.vmap(m)(x) - goal) ** 2))(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -rate * g, slopes)), loss

    losses = []
    for _ in range(steps):
        model, loss = step(model)
        losses.append(float(loss))
    return losses


if __name__ == "__main__":
    for number, loss in enumerate(train()):
        print(f"step {number:2}  loss {loss:.4f}")
