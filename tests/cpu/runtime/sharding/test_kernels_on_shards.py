"""Kernels, interpreted, on the shards that the rules of sharding make."""

import functools

import jax
import numpy as np
import pytest

import generated
from codegen.runtime.ops.op import Op
from codegen.runtime.sharding import partition, shards
from tests.making import make_op, spec_text
from tests.meshes import P, assert_close, make_mesh, normal, values


def on_shards(op: Op, args, specs, **keywords):
    """An op's outputs, with its interpreted kernel run on every shard."""
    mesh = make_mesh()
    key, operands = op.bind(args, {**keywords, "implementation": "interpret"})
    call = partition.ShardedCall(op, key, [x.shape for x in operands])
    along = call.shards(specs, mesh.shape)
    inner, outer = call.specs(along)
    kernel = functools.partial(op._run_interpret, key, parts=True)
    split = shards.Split(call.axes, along, mesh.shape)

    def shard(*local):
        return op.on_shard(key, kernel, local, split)

    run = jax.shard_map(shard, mesh=mesh, in_specs=inner, out_specs=outer, check_vma=False)
    return jax.jit(run)(*operands), along


INTERPRETED = [
    ("bias_relu", [((8, 24), P("a", "b")), ((24,), P("b"))]),
    ("rmsnorm", [((8, 24), P("a")), ((24,), P())]),
    ("column_mean", [((8, 24), P("a", "b"))]),
    ("full_sum_squares", [((8, 24), P("a", "b"))]),
    ("drmsnorm", [((8, 24), P("a")), ((8, 24), P("a")), ((24,), P())]),
    # statistics over rows alone, and over everything
    ("daffine", [((8, 24), P("a")), ((8, 24), P("a")), ((), P())]),
    ("daffine", [((8, 24), P(None, "b")), ((8, 24), P(None, "b")), ((), P())]),
    ("daffine", [((8, 24), P("a", "b")), ((8, 24), P("a", "b")), ((), P())]),
    # statistics that also reduce columns: each block stores its partial results, and neighbouring columns of one result
    # store one
    ("dchannel_affine", [((8, 4, 6), P(None, "b")), ((8, 4, 6), P(None, "b")), ((4,), P("b"))]),
    ("dchannel_affine", [((8, 4, 16), P(None, None, "a")), ((8, 4, 16), P(None, None, "a")), ((4,), P())]),
    ("dgroup_norm", [((8, 4, 2, 9), P("a", "b")), ((8, 4, 2, 9), P("a", "b")), ((4, 2), P("b"))]),
    # products: partial results of tiles along rows and over them, and the offset of a shard's columns
    ("logits_logsumexp", [((8, 32), P("a")), ((48, 32), P("b")), ((8,), P("a"))]),
    ("linear_cross_entropy", [((8, 32), P()), ((48, 32), P(("a", "b"))), ((8,), P())]),
    ("dense_amax", [((8, 32), P("a")), ((32, 48), P(None, "b")), ((48,), P())]),
    ("matmul_drelu_dbias", [((8, 32), P("a")), ((48, 32), P("b")), ((8, 48), P("a", "b"))]),
]  # fmt: skip


@pytest.mark.turns(2)
@pytest.mark.parametrize(("name", "given"), INTERPRETED, ids=[f"{r[0]}-{r[1][0][1]}" for r in INTERPRETED])
def test_kernels_on_shards(name, given):
    op = getattr(generated, name)
    made = values(op, [shape for shape, _ in given])
    if op.multiplied:  # exact in the type in which kernels multiply float32
        made = [np.round(8 * v) / 8 if v.dtype == np.float32 else v for v in made]
    got, shards = on_shards(op, made, [spec for _, spec in given])
    assert shards
    assert_close(got, op.reference(*made))


FINISHED = """\
op: column_rms
summary: Root mean square of each column, rounded on the way, and each value over it.
types:
  T: [float32]
inputs:
  x: T[..., N]
  w: T[N]
outputs:
  rms: T[N]
  y: T[..., N]
params:
  eps: {type: float, default: 0.25, static: false}
chain: |
  rms = cast(sqrt(mean(square(x), axis=...) + eps) * w, bfloat16) + 1
  y = x * w
reference: |
  rms = (jnp.sqrt(jnp.mean(x**2, axis=0) + eps) * w).astype(jnp.bfloat16).astype(jnp.float32) + 1
  y = x * w
grad: none
"""


def test_what_follows_a_fold_follows_the_fold_of_all_shards(tmp_path):
    """The mean of the shards' roots would be another number."""
    op = make_op(tmp_path, FINISHED)
    x, w = normal(8, 24) * np.arange(1, 9, dtype=np.float32)[:, None], normal(24)
    got, shards = on_shards(op, (x, w), [P("a", "b"), P(), P()], eps=0.5)
    assert shards == {"...0": ("a",), "N": ("b",)}
    assert_close(got, op.reference(x, w, eps=0.5))


def test_elements_that_equal_the_largest_of_all_shards(tmp_path):
    """A shard whose largest element is smaller counts none."""
    text = spec_text(
        "x: float32[..., N]", "y: float32[N]", "y = sum(where(x == max(x, axis=...), 1.0, 0.0), axis=...)",
        "y = jnp.sum(x == jnp.max(x, axis=0), axis=0, dtype=jnp.float32)",
    )  # fmt: skip
    op, x = make_op(tmp_path, text), np.random.default_rng(0).integers(0, 3, (8, 24)).astype(np.float32)
    x[:, 0] = -np.inf
    got, shards = on_shards(op, (x,), [P("a", "b")])
    assert shards == {"...0": ("a",), "N": ("b",)}
    np.testing.assert_array_equal(got, (x == x.max(0)).sum(0, keepdims=True))


def test_sums_of_scans_along_an_axis_that_is_sharded(tmp_path):
    text = spec_text(
        "x: float32[B, S, N]", "y: float32[B, S, N]; z: float32[S, B]",
        "y = scan(0.5, x, axis=S); z = sum(y * x, axis=N)",
        "y = jnp.stack([x[:, 0], x[:, 1] + 0.5 * x[:, 0]], 1); z = jnp.sum(y * x, 2).T", more="grad: none",
    )  # fmt: skip
    op, x = make_op(tmp_path, text), normal(2, 2, 16)
    got, shards = on_shards(op, (x,), [P("b", None, "a")])
    assert op.plan.across and shards == {"B": ("b",), "N": ("a",)}
    assert_close(got, op.reference(x))


@pytest.mark.parametrize(
    ("chain", "output", "reference"),
    [
        ("cumsum(x, axis=N) * index(B)", "B, S, N", "jnp.cumsum(x, 2) * jnp.arange(8.0)[:, None, None]"),
        ("sum(top_k(x, K=2, axis=N), axis=K) / size(B)", "B, S", "jnp.sum(jnp.sort(x, 2)[..., -2:], 2) / 8"),
    ],
    ids=["scanned", "selected"],
)
def test_what_is_scanned_or_selected_where_a_shard_is_computed_in_jnp(chain, output, reference, tmp_path):
    """The chain has the positions or the size of an axis that is sharded. That of the scan or selection is not."""
    text = spec_text("x: float32[B, S, N]", f"y: float32[{output}]", f"y = {chain}", f"y = {reference}")
    op, x = make_op(tmp_path, text), normal(8, 2, 16)
    got, shards = on_shards(op, (x,), [P("a", "b")])
    assert shards == {"B": ("a",), "S": ("b",)}
    assert_close(got, op.reference(x))
