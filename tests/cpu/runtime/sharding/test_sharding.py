"""Ops on sharded arrays, on eight virtual devices of the CPU: results, and the collectives in the compiled program.

A kernel cannot be compiled for these devices. Its path through JAX is tested with a stand-in in jnp that computes the
kernel's results on one shard. `test_kernels_on_shards` interprets the kernels themselves.
"""

import functools
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import generated
from codegen.checking import draw
from codegen.graph.nodes import least_sizes
from codegen.runtime.call import arguments
from codegen.runtime.call.arguments import all_types
from codegen.runtime.ops.op import Op
from codegen.runtime.sharding import partition, shards
from tests.making import make_op, spec_text
from tests.meshes import (
    AUTO,
    EXPLICIT,
    P,
    assert_close,
    collectives,
    make_mesh,
    normal,
    parameters,
    put,
    seen,
    tupled,
    values,
)
from tests.turns import EVERY, some

X, HALVES, W = (8, 6, 32), (8, 6, 32), (32,)
NONE = P()
GATHER, REDUCE = {"all-gather": 1}, {"all-reduce": 1}

# op, operands (shape, sharding), the collectives of the kernel's path, the sharding of the first output
TABLE = [
    # element-wise: sharded along any axis
    ("bias_relu", [(X, P("a")), (W, NONE)], {}, P("a")),
    ("bias_relu", [(X, P(("a", "b"))), (W, NONE)], {}, P(("a", "b"))),
    ("bias_relu", [(X, P("a", None, "b")), (W, P("b"))], {}, P("a", None, "b")),
    ("bias_relu", [(X, P("a", None, "b")), (W, NONE)], {}, P("a", None, "b")),
    ("bias_relu", [(X, P("a")), (W, P("a"))], GATHER, P("a")),  # a weight that is stored in shards
    ("row_scale", [(X, P("a", "b")), (X[:2], P("a", "b"))], {}, P("a", "b")),
    ("axpby", [(W, P("a")), (W, P("a"))], {}, P("a")),
    # halves must be on one device; pairs are
    ("swiglu", [(HALVES, P("a"))], {}, P("a")),
    ("swiglu", [(HALVES, P(None, None, "a"))], GATHER, NONE),
    ("swiglu_pairs", [(HALVES, P(None, "b", "a"))], {}, P(None, "b", "a")),
    ("rotary", [((4, 6, 2, 16), P("a", "b")), ((6, 8), P("b")), ((6, 8), P("b"))], {}, P("a", "b")),
    # a position along an axis is that in the whole array
    ("alibi_bias", [((4, 6, 8, 16), P("a", None, None, "b")), ((6,), NONE)], {}, P("a", None, None, "b")),
    (
        "alibi_bias",
        [((4, 6, 8, 16), P(None, None, None, ("a", "b"))), ((6,), NONE)],
        {},
        P(None, None, None, ("a", "b")),
    ),
    # rows are sharded, and reductions along them combine all devices
    ("rmsnorm", [(X, P("a")), (W, NONE)], {}, P("a")),
    ("rmsnorm", [(X, P("a", "b")), (W, NONE)], {}, P("a", "b")),
    ("rmsnorm", [(X, P("a", None, "b")), (W, NONE)], REDUCE, P("a", None, "b")),
    (
        "rmsnorm",
        [(X, P("a", None, "b")), (W, P("a"))],
        {"all-gather": 1, "all-reduce": 1, "collective-permute": 1},
        P("a", None, "b"),
    ),
    ("rmsnorm", [(X, P("a")), (W, P("b"))], GATHER, P("a")),  # a weight that is stored in shards
    ("softmax", [(X, P(("a", "b")))], {}, P(("a", "b"))),
    ("softmax", [(X, P("a", None, "b"))], {"all-reduce": 2}, P("a", None, "b")),  # the maximum, the sum
    ("layernorm", [(X, P(None, None, ("b", "a"))), (W, NONE), (W, NONE)], {"all-reduce": 2}, P(None, None, ("b", "a"))),
    ("cross_entropy_grad", [((8, 32), P("a", "b")), ((8,), P("a"))], {"all-reduce": 2}, P("a")),
    ("cross_entropy", [((8, 32), P("a", "b")), ((8,), P("a"))], {"all-reduce": 2}, P("a")),
    ("rmsnorm_reordered", [((8, 32), P("a", "b")), ((32,), NONE), ((32,), P("b"))], {"all-gather": 2}, P("a")),
    ("top1_gate", [((8, 32), P("a", "b"))], {"all-reduce": 3}, P("a")),
    ("causal_softmax", [((4, 8, 8), P("a", "b"))], {}, P("a", "b")),
    ("dlayernorm", [(X, P("a", None, "b")), (X, P("a", None, "b")), (W, P("b"))], {"all-reduce": 3}, P("a", None, "b")),
    ("cross_entropy", [((8, 32), P("a")), ((8,), P("a"))], {}, P("a")),
    ("embedding_rmsnorm", [((24, 32), P("a")), ((8, 6), P("b")), (W, NONE)], GATHER, P("b")),
    ("embedding_rmsnorm", [((24, 32), NONE), ((8, 6), P("a")), (W, NONE)], {}, P("a")),
    # rows and columns of a product are sharded; partial sums along the contracted axis are added up if both factors are
    # sharded along it
    ("dense_relu", [(X, P("a")), ((32, 16), NONE), ((16,), NONE)], {}, P("a")),
    ("dense_relu", [(X, P("a")), ((32, 16), P(None, "b")), ((16,), P("b"))], {}, P("a", None, "b")),
    ("dense_relu", [(X, P("a", None, "b")), ((32, 16), P("b")), ((16,), NONE)], REDUCE, P("a")),
    ("dense_relu", [(X, P("a")), ((32, 16), P("b")), ((16,), NONE)], GATHER, P("a")),
    # its reductions along rows and over rows combine all devices, also if each has only partial products
    ("dense_amax", [(X, P("a")), ((32, 16), NONE), ((16,), NONE)], {}, P("a")),
    ("dense_amax", [(X, P("a")), ((32, 16), P(None, "b")), ((16,), NONE)], REDUCE, P("a", None, "b")),
    (
        "dense_residual_squares",
        [(X, P("a")), ((32, 16), P(None, "b")), ((8, 6, 16), P("a"))],
        REDUCE,
        P("a", None, "b"),
    ),
    ("logits_logsumexp", [(X, P("a")), ((16, 32), P("b")), (X[:2], P("a"))], {"all-reduce": 2}, P("a", None, "b")),
    ("linear_cross_entropy", [(X, P("a")), ((16, 32), P("b")), (X[:2], P("a"))], {"all-reduce": 2}, P("a")),
    ("linear_cross_entropy", [(X, NONE), ((16, 32), P(("a", "b"))), (X[:2], NONE)], {"all-reduce": 2}, NONE),
    # a weight that is stored in shards along the mesh axis of the rows, which have more elements
    ("linear_cross_entropy", [(X, P("a")), ((64, 32), P("a")), (X[:2], P("a"))], GATHER, P("a")),
    (
        "linear_cross_entropy",
        [(X, P(None, None, "a")), ((16, 32), P("b", "a")), (X[:2], NONE)],
        {"all-reduce": 3},
        NONE,
    ),
    ("matmul_dgelu_dbias", [(X, P("a")), ((16, 32), P("b")), ((8, 6, 16), P("a"))], REDUCE, P("a", None, "b")),
    ("matmul_drelu_dbias", [(X, P("a")), ((16, 32), NONE), ((8, 6, 16), P("a"))], REDUCE, P("a")),
    (
        "matmul_drelu_dbias",
        [(X, P("a", None, "b")), ((16, 32), P(None, "b")), ((8, 6, 16), P("a"))],
        {"all-reduce": 2},
        P("a"),
    ),
    ("dense_swiglu_pairs", [(X, P("a")), ((32, 16), P(None, "b"))], {}, P("a", None, "b")),
    ("attention_scores", [((8, 4, 16), P("a")), ((8, 6, 16), P("a")), ((4, 6), NONE)], {}, P("a")),
    # each block of a row has a scale: whole blocks are on one device
    ("quantize_group_fp8", [((4, 1024), P("a", "b"))], {}, P("a", "b")),
    ("quantize_group_fp8", [((4, 1024), P(None, ("a", "b")))], {}, P(None, ("a", "b"))),
    ("quantize_group_fp8", [((4, 512), P("a", "b"))], {}, P("a", "b")),
    ("quantize_group_fp8", [((4, 512), P(None, ("a", "b")))], GATHER, P(None, "a")),  # four blocks, eight devices
    # over rows: columns are sharded, partial results of the shards' rows are combined
    ("column_sum", [(X, P("a"))], REDUCE, NONE),
    ("column_sum", [(X, P("a", None, "b"))], REDUCE, P("b")),
    ("column_sum", [(X, P(None, None, "b"))], {}, P("b")),
    ("bias_grad", [(X, P(("a", "b")))], REDUCE, NONE),
    ("column_mean", [(X, P("a", "b"))], REDUCE, NONE),
    ("column_max", [(X, P("a"))], REDUCE, NONE),
    ("column_any", [(X, P("a"))], REDUCE, NONE),
    ("column_logsumexp", [(X, P("a"))], {"all-reduce": 2}, NONE),
    ("column_moments", [(X, P("a"))], REDUCE, NONE),
    ("weighted_column_sum", [(X, P("a", None, "b")), (X[:2], P("a"))], REDUCE, P("b")),
    # over everything
    ("full_sum_squares", [(X, P("a", None, "b"))], REDUCE, NONE),
    ("mean_squared_error", [(X, P("a", None, "b")), (X, P("a", None, "b"))], REDUCE, NONE),
    ("full_amax", [(X, P(None, None, "b"))], REDUCE, NONE),
    ("all_finite", [(X, P("a", "b"))], REDUCE, NONE),
    # arrays in another order of axes, a codebook that each device has whole, and a cache that is written at an index's places
    ("transpose_quantize_fp8", [(X, P("a", None, "b")), ((), NONE)], {}, P("a", None, "b")),
    ("dequantize_codebook", [(X, P("a")), ((16,), NONE), (X[:2], P("a"))], {}, P("a")),
    (
        "write_kv_cache",
        [*[((24, 4, 8), P(None, "a"))] * 2, *[((6, 4, 8), P(None, "a"))] * 2, ((6,), NONE)],
        {},
        P(None, "a"),
    ),
    # of several kernels, each partitioned by itself: the statistics of all shards' rows, then the elements
    ("batch_norm_train", [(X, P("a")), (W, NONE), (W, NONE)], {"all-reduce": 2}, P("a")),
    ("batch_norm_train", [(X, P("a", None, "b")), (W, P("b")), (W, P("b"))], {"all-reduce": 2}, P("a", None, "b")),
    ("layernorm_channels_first", [(X, P("a")), (X[1:2], NONE), (X[1:2], NONE)], {}, P("a")),
    ("global_response_norm", [(X, P("a")), (W, NONE), (W, NONE)], {}, P("a")),
    # three products of one launch, whose columns are sharded, or the axis that they contract: then each product is summed
    ("rmsnorm_qkv", [(X, P("a")), (W, NONE), *[((16, 32), P("b"))] * 3], {}, P("a", None, "b")),
    ("rmsnorm_qkv", [(X, P("a", None, "b")), (W, P("b")), *[((16, 32), P(None, "b"))] * 3], {"all-reduce": 2}, P("a")),
    # both
    ("dbias_gelu", [(X, P("a", None, "b")), (X, P("a", None, "b")), (W, P("b"))], REDUCE, P("a", None, "b")),
    ("drmsnorm", [(X, P(("a", "b"))), (X, P(("a", "b"))), (W, NONE)], REDUCE, P(("a", "b"))),
    ("dlayernorm", [(X, P("a")), (X, P("a")), (W, NONE)], REDUCE, P("a")),
]

# Each row on one of the meshes by default, and those of every third on the one whose shardings are part of types
ON_MESHES = [
    (*row, kind) for i, row in enumerate(TABLE) for kind in (AUTO, EXPLICIT) if EVERY or (kind is AUTO) == bool(i % 3)
]


@pytest.mark.parametrize(
    ("name", "given", "expected", "out", "kind"),
    some(ON_MESHES, 3),
    ids=some([f"{i}-{r[0]}" for i, r in enumerate(ON_MESHES)], 3),
)
def test_the_kernels_path(kernels, name, given, expected, out, kind):
    op, mesh = getattr(generated, name), make_mesh(kind)
    made = values(op, [shape for shape, _ in given])
    args = [put(mesh, value, spec) for value, (_, spec) in zip(made, given, strict=True)]
    call = functools.partial(op, **parameters(op))
    compiled = jax.jit(call).lower(*args).compile()
    assert collectives(compiled) == expected
    got = compiled(*args)
    assert_close(got, op.reference(*made, **parameters(op)))
    first = tupled(got)[0]
    assert first.sharding.is_equivalent_to(NamedSharding(mesh, out), first.ndim)
    if kind is EXPLICIT:
        assert jax.typeof(first).sharding.is_equivalent_to(NamedSharding(mesh.abstract_mesh, out), first.ndim)


def test_the_size_of_a_contracted_axis_is_that_of_whole_arrays(kernels, tmp_path):
    """Each device has a part of the axis, whose products are summed, and so are the sizes."""
    inputs, outputs = "x: float32[..., K]; w: float32[K, N]", "y: float32[..., N]"
    op = make_op(tmp_path, spec_text(inputs, outputs, "y = x @ w / size(K)", "y = x @ w / w.shape[0]"))
    mesh = make_mesh()
    made = [normal(8, 32), normal(32, 16)]
    args = [put(mesh, value, s) for value, s in zip(made, (P("a", "b"), P("b")), strict=True)]
    assert_close(jax.jit(op)(*args), op.reference(*made))


ROWS_ONLY = [r for r in TABLE if all(spec in (NONE, P("a")) for _, spec in r[1]) and r[2] != GATHER]


@pytest.mark.parametrize(("name", "given"), [r[:2] for r in ROWS_ONLY], ids=[r[0] for r in ROWS_ONLY])
def test_the_jnp_forms_path(name, given):
    """XLA splits the jnp form by itself: rows need no gather, and every sum over rows is reduced."""
    op, mesh = getattr(generated, name), make_mesh()
    made = values(op, [shape for shape, _ in given])
    args = [put(mesh, value, spec) for value, (_, spec) in zip(made, given, strict=True)]
    compiled = jax.jit(functools.partial(op, implementation="xla")).lower(*args).compile()
    reduced = any(made.plan.columns for made in op.own_kernels)
    assert set(collectives(compiled)) <= ({"all-reduce"} if reduced else set())
    assert_close(compiled(*args), op.reference(*made))


def any_specs(op: Op, given: dict, rows: int, mesh: Mesh, random: Random) -> dict[str, PartitionSpec]:
    """The sharding of each array: an axis is sharded alike in all arrays, or differently in each, if its size allows it."""
    ways, alike = [None, "a", "b", ("a", "b"), ("b", "a")], random.random() < 0.6
    of_axes: dict[str, str | tuple[str, ...] | None] = {}
    specs = {}
    for array in (a for a in op.spec.inputs if a.name in given):
        names = []
        for dim in array.dims:
            names += [f"...{i}" for i in range(rows)] if dim.names == ("...",) else [str(dim.names)]
        own: list[str | tuple[str, ...] | None] = []
        used: set[str] = set()
        for extent, name in zip(given[array.name].shape, names, strict=True):
            way = of_axes.setdefault(name, random.choice(ways)) if alike else random.choice(ways)
            axes = (way,) if isinstance(way, str) else way or ()
            fits = not used & set(axes) and extent % np.prod([mesh.shape[axis] for axis in axes]) == 0
            own.append(way if fits else None)
            used |= set(axes) if fits else set()
        specs[array.name] = P(*own)
    return specs


@pytest.mark.turns(25)
@pytest.mark.parametrize("name", generated.__all__)
def test_any_sharding(kernels, name):
    """Values and gradients equal those of whole arrays."""
    op, mesh, random = getattr(generated, name), make_mesh(), Random(name)
    least = {axes[-1]: count for axes, count in least_sizes(s.value for s in op.statements).items()}
    for trial in range(2):
        extents = {
            axis: op.spec.extents.get(axis) or max(random.choice([8, 16, 24]), least.get(axis, 0))
            for axis in op.spec.axes
            if axis != "..."
        }
        rows = random.choice([(8,), (4, 8), (8, 2, 4)]) if "..." in op.spec.axes else ()
        every = list(all_types(op.spec))
        types = next((b for b in every if {d for _, d in b.variables} <= {"float32", "int32"}), every[0])
        params = tuple((p.name, 1 if p.default is None else p.default) for p in op.spec.params)
        given = draw.named(op, draw.Case(types, rows, tuple(extents.items()), (), params, False, 1.0, trial))
        specs = any_specs(op, given, len(rows), mesh, random)
        whole = {n: jnp.asarray(given[n]) for n in specs}
        split = {n: put(mesh, x, specs[n]) for n, x in whole.items()}
        rest = {n: v for n, v in given.items() if n not in specs}
        floats = (
            [n for n, x in whole.items() if jnp.issubdtype(x.dtype, jnp.floating)] if op.spec.grad != "none" else []
        )

        def results(arrays, implementation, op=op, rest=rest, floats=floats):
            def loss(own):
                found = tupled(op(**{**arrays, **own}, **rest, implementation=implementation))
                waves = (
                    jnp.cos(jnp.arange(y.size, dtype="float32")).reshape(y.shape) * y.astype("float32") for y in found
                )
                return sum(map(jnp.sum, waves)), found

            return jax.grad(loss, has_aux=True)({n: arrays[n] for n in floats})

        got, expected = (
            jax.jit(functools.partial(results, implementation=i))(x) for i, x in ((None, split), ("xla", whole))
        )
        for g, e in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            # A few roundings; one step in types of 8 bits. Infinities have to be the same ones
            rtol = {1: 0.13, 2: 2e-2}.get(e.dtype.itemsize, 2e-3)
            kind = e.dtype
            g, e = (np.asarray(x, np.float64) for x in (g, e))
            largest = np.abs(e).max(initial=0, where=np.isfinite(e))
            atol = float(kind == "int8") if kind.itemsize == 1 else rtol * largest
            np.testing.assert_allclose(g, e, rtol, atol, err_msg=str(specs))


SIZED = [
    ("y = mean(square(x - w), axis=(..., N))", "float32[]", lambda x, w: jnp.mean((x - w) ** 2)),
    ("y = mean(x * w, axis=...)", "float32[N]", lambda x, w: jnp.mean(x * w, (0, 1))),
    ("y = x * w / size(...)", "float32[..., N]", lambda x, w: x * w / (X[0] * X[1])),
    ("y = softmax(x, axis=N) * w / size(...)", "float32[..., N]", lambda x, w: jax.nn.softmax(x) * w / (X[0] * X[1])),
]


@pytest.mark.parametrize(("chain", "output", "reference"), SIZED, ids=[s[0] for s in SIZED])
def test_gradients_of_means_are_not_gathered(kernels, tmp_path, chain, output, reference):
    """A shard knows the size of the whole array, and partial results of columns are added up."""
    op = make_op(tmp_path, spec_text("x: float32[..., N]; w: float32[N]", f"y: {output}", chain))
    mesh, x, w = make_mesh(), normal(*X), normal(*W)

    def loss(f):
        return jax.grad(lambda x, w: jnp.sum(jnp.sin(f(x, w))), argnums=(0, 1))

    args = put(mesh, x, P("a")), put(mesh, w, P())
    compiled = jax.jit(loss(op)).lower(*args).compile()
    assert set(collectives(compiled)) <= {"all-reduce"}
    dx, dw = compiled(*args)
    assert dx.sharding.is_equivalent_to(NamedSharding(mesh, P("a")), 3)
    assert_close((dx, dw), loss(reference)(x, w))


@pytest.mark.parametrize("split", [(P("a", "b"), P("b")), (P(None, "b"), P("b", "a"))], ids=["rows", "columns"])
def test_a_contraction_in_parts_knows_the_size_of_the_whole(kernels, tmp_path, split):
    """The factors are sharded along the contracted axis; partial products are added up before the epilogue."""
    text = spec_text("x: float32[..., K]; w: float32[K, N]", "y: float32[..., N]", "y = (x @ w) / size(...) + size(N)")
    op, mesh, x, w = make_op(tmp_path, text), make_mesh(), normal(8, 8), normal(8, 16)

    def loss(f):
        return jax.grad(lambda x, w: jnp.sum(jnp.sin(f(x, w))), argnums=(0, 1))

    args = [put(mesh, v, s) for v, s in zip((x, w), split, strict=True)]
    compiled = jax.jit(op).lower(*args).compile()
    assert set(collectives(compiled)) <= {"all-reduce"}
    assert_close(compiled(*args), x @ w / 8 + 16)
    assert_close(jax.jit(loss(op))(*args), loss(lambda x, w: jnp.matmul(x, w) / 8 + 16)(x, w))


def test_each_device_runs_its_shard(kernels):
    x, w = normal(*X), normal(*W)
    mesh = make_mesh()
    generated.rmsnorm(put(mesh, x, P("a", "b")), w)
    assert seen[-1] == [(2, 3, 32), (32,)]


def test_an_eager_call_leaves_its_result_sharded(kernels):
    mesh = make_mesh()
    out = generated.rmsnorm(put(mesh, normal(*X), P("a")), normal(*W))
    assert out.sharding.is_equivalent_to(NamedSharding(mesh, P("a")), 3)


def test_rows_that_do_not_come_out_even_are_not_split(kernels):
    """Padding would be reduced with the rows."""
    mesh = make_mesh()
    x = normal(6, 32)

    def f(x):
        x = jax.lax.with_sharding_constraint(x.reshape(12, 16), NamedSharding(mesh, P("a"))).reshape(6, 32)
        return generated.column_sum(x)

    assert_close(jax.jit(f)(put(mesh, x, NONE)), x.sum(0))
    call = partition.ShardedCall(generated.column_sum, generated.column_sum.bind((x,), {})[0], [x.shape])
    assert call.shards([P("a")], mesh.shape) == {}
    assert call.shards([P("b")], mesh.shape) == {"...0": ("b",)}


def test_nan_and_infinities_cross_shards(kernels):
    x = normal(8, 32)
    x[0, 0], x[3, 1], x[5, 2], x[:, 3] = np.nan, np.inf, -np.inf, -np.inf
    x[7, 4], x[2, 4] = np.nan, np.inf
    x[:, 5] = -np.abs(x[:, 5])
    mesh = make_mesh()
    got = generated.column_max(put(mesh, x, P(("a", "b"))))
    np.testing.assert_array_equal(got, np.max(x, 0))
    assert not generated.all_finite(put(mesh, x, P("a", "b")))


FOLDS = [
    (op, expected, dtype)
    for op, expected in [("sum", np.sum), ("prod", np.prod), ("max", np.max), ("min", np.min)]
    for dtype in ("float32", "int32")
] + [("any", np.max, "int32"), ("all", np.min, "int32")]


@pytest.mark.parametrize(("op", "expected", "dtype"), FOLDS, ids=[f"{f[0]}-{f[2]}" for f in FOLDS])
def test_parts_of_all_shards_are_folded(op, expected, dtype):
    parts = (4 * normal(16, 5)).astype(dtype)
    parts[parts == 0] = 2
    if dtype == "float32":
        parts[3, 1], parts[9, 2], parts[:, 3] = np.nan, -0.0, np.inf
    if op in ("any", "all"):
        parts = (parts > -2).astype(dtype)
    mesh = make_mesh()
    run = jax.shard_map(
        lambda p: shards.fold(op, p, ("a", "b")), mesh=mesh, in_specs=P(("a", "b")), out_specs=P(), check_vma=False
    )
    np.testing.assert_allclose(jax.jit(run)(parts), expected(parts, 0), rtol=1e-5)


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT], ids=["auto", "explicit"])
def test_a_program_for_cuda_says_how_it_may_be_split(monkeypatch, kind):
    """Lowered, not compiled: it has the rule that Shardy reads, and no kernel before the shards are known."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    mesh = make_mesh(kind)
    args = put(mesh, normal(8, 6, 16), P("a")), put(mesh, normal(16), NONE)
    text = jax.jit(generated.rmsnorm).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    assert "#sdy.op_sharding_rule<([i, j, k], [l])->([i, j, k])" in text  # no array is sharded along the weight's own N
    assert "CuteDSL" not in text
    mapped = jax.shard_map(generated.rmsnorm, mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"))
    assert "CuteDSL" in jax.jit(mapped).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def test_a_shard_for_cuda_is_a_kernel_and_one_reduction(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op, mesh = generated.drmsnorm, make_mesh()
    key, operands = op.bind((normal(8, 64), normal(8, 64), normal(64)), {})
    kernel = functools.partial(op._run_cute, key, (False,) * 3)
    axes = arguments.bind_axes(op.spec, op.arrays(key, operands))
    split = shards.Split(axes, {"...0": ("a", "b")}, mesh.shape)
    run = jax.shard_map(
        lambda *local: op.on_shard(key, kernel, local, split),
        mesh=mesh, in_specs=(P(("a", "b")), P(("a", "b")), P()), out_specs=(P(("a", "b")), P()), check_vma=False,
    )  # fmt: skip
    text = jax.jit(run).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("CuteDSL") == 1 and text.count("stablehlo.all_reduce") == 1
