"""Products with their epilogues on a GPU: ours, XLA's form of the same in the same types, and the product alone by XLA
(cuBLAS), which take turns in one run.

    python benchmarks/gemm.py OUT.json [TURN] [OP ...]

A turn is 20 calls, or where TURN says so as many as take the product alone that many milliseconds: in long ones a GPU at its
limit of power has the clock that a candidate's own power leaves it, in short ones that of what ran before.
Each result is held to XLA's first: the largest difference, over the largest magnitude.
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

SHAPES = (
    (8192, 8192, 8192), (8192, 4096, 14336), (8192, 1024, 8192), (8192, 256, 8192), (4096, 4096, 4096), (16, 4096, 14336),
    (16, 14336, 4096),
)  # fmt: skip
CALLS, GROUPS = 20, 5


def gelu(z):
    return jax.nn.gelu(z, approximate=False)


def slope(z):
    return jax.jvp(gelu, (z,), (jnp.ones_like(z),))[1]


# Inputs by name, "k" and "n" for K and N of them; and the op as one writes it for XLA
FORMS: dict[str, tuple[dict[str, str], Callable]] = {
    "dense_relu": ({"x": "mk", "w": "kn", "bias": "n"}, lambda x, w, bias: jax.nn.relu(x @ w + bias)),
    "dense_gelu": ({"x": "mk", "w": "kn", "bias": "n"}, lambda x, w, bias: gelu(x @ w + bias)),
    "dense_gelu_tanh": ({"x": "mk", "w": "kn", "bias": "n"}, lambda x, w, bias: jax.nn.gelu(x @ w + bias)),
    "dense_silu_residual": (
        {"x": "mk", "w": "kn", "residual": "mn", "bias": "n"},
        lambda x, w, residual, bias: jax.nn.silu(x @ w + bias) + residual,
    ),
    # N columns of the product, half as many of the output
    "dense_swiglu_pairs": (
        {"x": "mk", "w": "kn"},
        lambda x, w: (lambda z: jax.nn.silu(z[:, 0::2]) * z[:, 1::2])(x @ w),
    ),
    "dense_swiglu": (
        {"x": "mk", "w": "nk"},
        lambda x, w: (lambda g, u: jax.nn.silu(g) * u)(*jnp.split(x @ w.T, 2, axis=-1)),
    ),
    "matmul_dgelu": ({"dy": "mk", "w": "nk", "z": "mn"}, lambda dy, w, z: (dy @ w.T) * slope(z)),
}


def bench(name: str, shape: tuple[int, int, int], turn: int) -> dict:
    """One op at one shape (M, K, N)."""
    extents = dict(zip("mkn", shape, strict=True))
    inputs, form = FORMS[name]
    op = getattr(cutefuse, name)

    def made(words: str, seed: int) -> jax.Array:
        scale = extents["k"] ** -0.5 if words in ("kn", "nk") else 1.0
        values = jax.random.normal(jax.random.key(seed), [extents[c] for c in words], jnp.bfloat16)
        return values * jnp.bfloat16(scale)

    arrays = {n: made(words, i) for i, (n, words) in enumerate(inputs.items())}
    first, second = list(arrays.values())[:2]
    plain = jax.jit(lambda a, b: a @ (b if inputs["w"] == "kn" else b.T))
    candidates = {implementation or "ours": jax.jit(lambda a, i=implementation: op(**a, implementation=i))
                  for implementation in (None, "cute")}  # fmt: skip
    xla = jax.jit(lambda a: form(**a))
    wanted = np.asarray(xla(arrays), np.float32)
    error = max(
        np.abs(np.asarray(f(arrays), np.float32) - wanted).max() / np.abs(wanted).max() for f in candidates.values()
    )
    calls = {n: (lambda i, f=f: f(arrays)) for n, f in (*candidates.items(), ("xla", xla))}
    calls["matmul"] = lambda i: plain(first, second)
    many = CALLS
    if turn:
        (once,) = measure({"matmul": calls["matmul"]}, 1, CALLS)["matmul"]
        many = max(CALLS, round(1000 * turn / once))
    times = measure(calls, GROUPS, many)
    us = {n: statistics.median(found) for n, found in times.items()}
    row = {"op": name, "M": shape[0], "K": shape[1], "N": shape[2], "us": {n: round(t, 1) for n, t in us.items()}}
    best = us["ours"]
    row |= {
        "over_xla": round(us["xla"] / best, 3),
        "of_matmul": round(best / us["matmul"], 3),
        "error": float(f"{error:.2e}"),
    }
    return row


def main(out: str, *names: str) -> None:
    rows, turn = [], int(names[0]) if names and names[0].isdigit() else 0
    for name in (names[1:] if turn else names) or FORMS:
        for shape in SHAPES:
            try:
                rows.append(bench(name, shape, turn))
            except Exception as error:
                words = f"{type(error).__name__}: {error}"[:300]
                rows.append({"op": name, "M": shape[0], "K": shape[1], "N": shape[2], "error": words})
            print(json.dumps(rows[-1]), flush=True)
            Path(out).write_text(json.dumps({"environment": machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
