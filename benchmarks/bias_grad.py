"""The gradient of a bias on a GPU: ours, the forms in which JAX has XLA sum the same, and a copy, which take turns in one run.

    python benchmarks/bias_grad.py OUT.json

XLA makes different kernels of them: a sum in float32, as jnp.sum of bfloat16 is; the sum in bfloat16 that jax.vjp makes of
an addition, which XLA widens where it sees fit; and that of a row of ones with the cotangent, a product.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import cutefuse
from codegen.measuring.times.bench import machine, measure

SHAPES = ((8192, 8192), (4096, 16384))
CALLS, GROUPS = 25, 5


def of_an_addition(dy: jax.Array) -> jax.Array:
    bias = jnp.zeros(dy.shape[-1:], dy.dtype)
    return jax.vjp(lambda bias: jnp.zeros_like(dy) + bias, bias)[1](dy)[0]


FORMS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "ours": cutefuse.bias_grad,
    "sum": lambda dy: jnp.sum(dy, axis=0),
    "vjp of an addition": of_an_addition,
    "product": lambda dy: jnp.ones(dy.shape[:1], dy.dtype) @ dy,
}


def bench(rows: int, columns: int) -> dict:
    """One shape, bfloat16. Each result is held to the sum in float32: the largest difference, over the largest magnitude."""
    dy = [
        jax.random.normal(jax.random.key(i), (rows, columns), jnp.bfloat16) for i in range(4)
    ]  # more than a cache holds
    calls = {name: jax.jit(form) for name, form in FORMS.items()}
    wanted = np.asarray(dy[0], np.float32).sum(axis=0)
    errors = {
        name: float(np.abs(np.asarray(f(dy[0]), np.float32) - wanted).max() / np.abs(wanted).max())
        for name, f in calls.items()
    }
    half = [x.view(jnp.uint16)[: rows // 2] for x in dy]
    copy = jax.jit(lambda words: words ^ jnp.uint16(1))  # reads half as many bytes, and writes as many
    candidates = {name: lambda i, f=f: f(dy[i % len(dy)]) for name, f in calls.items()}
    times = measure(candidates | {"copy": lambda i: copy(half[i % len(half)])}, GROUPS, CALLS)
    return {
        "shape": [rows, columns],
        "us": {name: round(statistics.median(found), 2) for name, found in times.items()},
        "error": {name: round(error, 5) for name, error in errors.items()},
    }


def main(out: str) -> None:
    found = [bench(*shape) for shape in SHAPES]
    for row in found:
        print(row)
    Path(out).write_text(json.dumps({"machine": machine(), "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
