"""Cross-entropy's loss and its gradient on a GPU: our one kernel, what XLA makes of `jax.value_and_grad`, and a copy of as
many bytes, in one run.

    python benchmarks/loss_and_gradient.py OUT.json
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from codegen.measuring.times.bench import machine, measure
from cutefuse import cross_entropy_grad

ROWS, CLASSES = 4096, 128256


def mean_loss(logits: jax.Array, label: jax.Array) -> jax.Array:
    """As one writes it: the mean over the rows of logits, in float32."""
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(log_p, label[:, None], 1).mean()


def main(out: Path) -> None:
    logits = 3 * jax.random.normal(jax.random.key(0), (ROWS, CLASSES), jnp.bfloat16)
    label = jax.random.randint(jax.random.key(1), (ROWS,), 0, CLASSES)
    words = jax.random.bits(jax.random.key(2), (logits.nbytes // 4,), "uint32")
    ours = jax.jit(lambda x, c: cross_entropy_grad(x, c, weight=jnp.float32(1 / ROWS), implementation="cute"))
    xla = jax.jit(jax.value_and_grad(mean_loss))
    copy = jax.jit(lambda x: x ^ 1)
    (loss, dx), (mean, gradient) = ours(logits, label), xla(logits, label)
    np.testing.assert_allclose(loss.mean(), mean, rtol=1e-5)
    apart = jnp.abs(dx.astype(jnp.float32) - gradient.astype(jnp.float32)).max() / jnp.abs(gradient).max()
    assert apart < 2**-7, f"gradients differ by {apart} of the largest"
    times = measure(
        {"ours": lambda i: ours(logits, label), "xla": lambda i: xla(logits, label), "copy": lambda i: copy(words)}
    )
    us = {name: round(statistics.median(found), 2) for name, found in times.items()}
    row = {"rows": ROWS, "classes": CLASSES, "type": "bfloat16", "us": us, "over_xla": round(us["xla"] / us["ours"], 4)}
    row |= {"of_copy": round(us["copy"] / us["ours"], 4), "groups_us": times}
    out.write_text(json.dumps({"machine": machine(), "measurements": [row]}, indent=1) + "\n")
    print(us)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__))
