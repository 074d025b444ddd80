"""A Flax model whose layers are generated ops, trained a few steps: python examples/flax_layers.py

A residual block of a transformer's feed-forward part: RMSNorm, a projection to gate and up halves, SwiGLU, a projection
back. On an NVIDIA GPU forward and backward run the ops' kernels; elsewhere their jnp forms.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from cutefuse import rmsnorm, swiglu


class RMSNorm(nnx.Module):
    """x: [..., width] to the same shape, each row divided by its root mean square."""

    def __init__(self, width: int):
        self.weight = nnx.Param(jnp.ones(width))

    def __call__(self, x: jax.Array) -> jax.Array:
        return rmsnorm(x, self.weight[...].astype(x.dtype), eps=1e-5)


class FeedForward(nnx.Module):
    """x: [..., width] to the same shape."""

    def __init__(self, width: int, hidden: int, rngs: nnx.Rngs):
        self.norm = RMSNorm(width)
        self.inner = nnx.Linear(width, 2 * hidden, use_bias=False, rngs=rngs)
        self.outer = nnx.Linear(hidden, width, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.outer(swiglu(self.inner(self.norm(x))))


def train(steps: int = 20, width: int = 64, rows: int = 256, rate: float = 0.5) -> list[float]:
    """The loss at each step of plain gradient descent towards a fixed function of the input."""
    model = FeedForward(width, 2 * width, nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (rows, width))
    goal = jnp.roll(x, 1, axis=-1) * jnp.tanh(x)

    @nnx.jit
    def step(model: FeedForward) -> jax.Array:
        loss, slopes = nnx.value_and_grad(lambda m: jnp.mean((m(x) - goal) ** 2))(model)
        state = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda p, g: p - rate * g, state, slopes))
        return loss

    return [float(step(model)) for _ in range(steps)]


if __name__ == "__main__":
    for number, loss in enumerate(train()):
        print(f"step {number:2}  loss {loss:.4f}")
