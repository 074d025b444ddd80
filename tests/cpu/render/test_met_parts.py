"""One block of a cluster writes the results of columns from the partial results of all its blocks: small calls have one launch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.plan.launches import Extents, PlannedCall
from codegen.runtime.ops.backward import backward_ops
from tests.making import make_op, spec_text
from tests.meshes import normal
from tests.turns import some

TYPES = "{T: [float32, bfloat16]}"
SUMS = (
    "x: T[..., N]; w: T[N]", "y: T[N]; most: float32[N]; any_: bool[N]; n: int32[N]",
    "y = mean(x * x, axis=...) * w; most = max(x, axis=...); any_ = any(x > 1.5, axis=...); n = sum(cast(x > 0, int32), axis=...)",
    "f = x.astype(jnp.float32); y = jnp.mean(f * f, axis=0) * w; most = jnp.max(f, axis=0); any_ = jnp.any(f > 1.5, axis=0);"
    "n = jnp.sum(f > 0, axis=0).astype(jnp.int32)",
)  # fmt: skip
PLACES = (
    "x: T[B, S, N]; w: T[N]; c: T[B, N]", "y: T[B, N]; most: float32[B, N]; any_: bool[B, N]; n: int32[B, N]",
    "y = mean(x * x, axis=S) * w + c; most = max(x, axis=S); any_ = any(x > 1.5, axis=S); n = sum(cast(x > 0, int32), axis=S)",
    "f = x.astype(jnp.float32); y = jnp.mean(f * f, axis=1) * w + c; most = jnp.max(f, axis=1); any_ = jnp.any(f > 1.5, axis=1);"
    "n = jnp.sum(f > 0, axis=1).astype(jnp.int32)",
)  # fmt: skip
ONLINE = ("x: T[..., N]", "y: float32[N]", "y = logsumexp(x * 3, axis=...)", "y = jax.nn.logsumexp(x * 3.0, axis=0)")


def launch(op, rows, columns, dtype="bfloat16", arch="sm_90a", schedule=()):
    dtypes = {a.name: dtype for a in op.spec.arrays}
    return op.plan.launch(
        PlannedCall(dtypes, Extents(columns, rows and rows * columns, columns, rows, 1), dict(schedule), arch)
    )


@pytest.mark.parametrize(
    ("rows", "columns", "meets"),
    [(170, 768, 8), (256, 4096, 1), (1, 40, 1), (2000, 64, 8), (65536, 1024, 0), (300, 65536, 0), (None, 768, 0)],
)
def test_launches(tmp_path, rows, columns, meets):
    """Blocks of a cluster meet in small calls, of which the number of rows is known."""
    op = make_op(tmp_path, spec_text(*SUMS, types=TYPES))
    how = launch(op, rows, columns)
    assert (how.meets, how.settles) == (meets, meets > 0)
    assert how.parts == meets or not meets


@pytest.mark.parametrize(
    ("places", "rows", "columns", "meets"),
    some([(3, 20, 64, 1), (2, 300, 40, 8), (5, 7, 776, 1), (300, 17, 16, 1)], 2),
)
def test_values_at_places(tmp_path, places, rows, columns, meets, monkeypatch):
    """Rows meet at places: a block, or the blocks of a cluster, have those of one place."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op = make_op(tmp_path, spec_text(*PLACES, types=TYPES))
    dtypes = {a.name: "bfloat16" for a in op.spec.arrays}
    how = op.plan.launch(
        PlannedCall(dtypes, Extents(columns, places * rows * columns, columns, rows, places), arch="sm_90a")
    )
    assert (how.meets, how.settles, how.parts) == (meets, True, meets)
    x, w, c = (
        normal(*shape).astype(jnp.bfloat16) for shape in ((places, rows, columns), (columns,), (places, columns))
    )
    got = op(x, w, c, implementation="interpret")
    for own, other in zip(got, op.reference(*map(jnp.float32, (x, w, c))), strict=True):
        np.testing.assert_allclose(np.float32(own), np.float32(other), rtol=2**-7, atol=2**-7)


def test_no_clusters(tmp_path):
    op = make_op(tmp_path, spec_text(*SUMS, types=TYPES))
    assert launch(op, 200, 768, arch="sm_80").meets == 1
    assert not launch(op, 200, 768, schedule={"threads": 128}).meets


@pytest.mark.each
@pytest.mark.parametrize("spec", [SUMS, ONLINE])
@pytest.mark.parametrize(("rows", "columns"), some([(170, 776), (3, 1030), (260, 40), (1, 4096), (2, 4096)], 3))
def test_values(tmp_path, spec, rows, columns, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op = make_op(tmp_path, spec_text(*spec, types=TYPES))
    given = normal(rows, columns).astype(jnp.bfloat16), *([normal(columns).astype(jnp.bfloat16)] * (spec is SUMS))
    got = op(*given, implementation="interpret")
    expected = op.reference(*(jnp.float32(x) for x in given))
    for own, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.float32(own), np.float32(other), rtol=2**-7, atol=2**-7)


def test_gradients(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op = make_op(tmp_path, spec_text("x: T[..., N]; w: T[N]; b: float32[N]", "y: T[..., N]", "y = tanh(x * w) + b",
                                     "y = jnp.tanh(x * w) + b", types=TYPES))  # fmt: skip
    (backward,) = [k for k in backward_ops(op) if not k.spec.op.endswith("_frozen")]
    assert launch(backward, 200, 512, "float32").meets > 1
    given, dy = (normal(200, 512), normal(512), normal(512)), normal(200, 512)

    def gradients(implementation):
        return jax.vjp(lambda *given: op(*given, implementation=implementation), *given)[1](dy)

    for own, other in zip(gradients("interpret"), gradients("xla"), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-4)
