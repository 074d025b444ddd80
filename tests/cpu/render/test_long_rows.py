"""Rows that clusters of blocks share, and arrays without rows, interpreted: property tests without a GPU draw other
sizes."""

import functools

import jax
import numpy as np
import pytest
from making import make_op, spec_text

import generated
from codegen.checking.draw import Case
from codegen.checking.testing import check_case
from codegen.plan.rows.launching.walking import in_parts
from codegen.runtime.call.arguments import Types
from codegen.shared import RowLaunch, WalkLaunch
from tests.turns import some

LENGTHS = {
    "softmax": (9000, 40_000, 70_001), "rmsnorm": (16_393, 65_536, 9_001, 70_003), "layernorm": (16_384, 16_383),
    "quantize_row_int8": (40_000,), "cross_entropy": (20_001,), "cross_entropy_grad": (40_000,), "logsumexp": (131_072,),
    "dsoftmax": (140_001, 151_936),
}  # fmt: skip


@pytest.mark.turns(2)
@pytest.mark.parametrize(("name", "columns"), [(name, n) for name, found in LENGTHS.items() for n in found])
def test_long_rows(name, columns, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op = getattr(generated, name)
    types = Types(tuple((t, "bfloat16" if "bfloat16" in dtypes else dtypes[0]) for t, dtypes in op.spec.types))
    params = tuple((p.name, p.default) for p in op.spec.params)
    case = Case(types, (2,), (("N", columns),), (), params, False, 1.0, 0)
    how = op.launch_for(types, case.axes)
    assert isinstance(how, RowLaunch)
    # A block copies a run of up to 32 kB of bfloat16, and a longer one where it writes no row. Other rows have clusters, since they are few
    longest = 20_480 if name == "cross_entropy" else 16_392
    assert (how.cluster > 1) == (columns > longest or not how.by_runs)
    check_case(op, "interpret", case)


# Reductions along rows and over them in one kernel: op, architecture, dtype, rows, columns; blocks a row, rows that a
# thread holds, whether rows and the columns' results are in shared memory; 0 blocks a row: two kernels
WALKED = [
    ("drmsnorm", "sm_90a", "bfloat16", 5, 4096, (1, 3, True, False)),
    ("dlayernorm", "sm_90a", "bfloat16", 3, 16_384, (2, 2, True, False)),
    ("drmsnorm", "sm_90a", "bfloat16", 3, 32_768, (2, 2, True, True)),
    ("drmsnorm", "sm_90a", "bfloat16", 3, 32_769, (4, 1, False, True)),
    ("drmsnorm", "sm_90a", "bfloat16", 2, 65_536, (4, 2, True, True)),
    ("drmsnorm", "sm_90a", "bfloat16", 2, 262_144, (8, 1, False, True)),
    ("drmsnorm", "sm_90a", "float32", 1, 262_144, (0, 1, False, False)),
    ("drmsnorm", "sm_80", "bfloat16", 11, 32_768, (0, 2, False, False)),
    ("drmsnorm", "sm_80", "bfloat16", 3, 32_772, (0, 2, True, False)),  # the first kernel has narrower vectors
    ("dlayernorm", "sm_80", "bfloat16", 3, 40_001, (0, 4, True, False)),
    ("dgelu_dbias_row_fp8", "sm_90a", "bfloat16", 2, 300_000, (0, 1, False, False)),
]


@pytest.mark.turns(2)
@pytest.mark.parametrize(("name", "arch", "dtype", "rows", "columns", "launch"), WALKED)
def test_long_rows_of_a_backward(name, arch, dtype, rows, columns, launch, monkeypatch):
    """Whatever the length: in a block, in a cluster of blocks, or in two kernels."""
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    op = getattr(generated, name)
    types = Types(tuple((t, dtype if dtype in dtypes else dtypes[0]) for t, dtypes in op.spec.types))
    params = tuple((p.name, p.default) for p in op.spec.params)
    case = Case(types, (rows,), (("N", columns),), (), params, False, 1.0, 0)
    with in_parts(1):  # as if rows were many
        how = op.launch_for(types, case.axes)
        assert isinstance(how, WalkLaunch)
        assert (how.cluster if how.whole else 0, how.at_once, how.staged, how.shared_sums) == launch
        check_case(op, "interpret", case)


SOME_AND_ALL = """
op: some_and_all
summary: Bool and integer statistics of rows, and sums over them.
inputs: {x: 'float32[..., N]', n: 'int32[..., N]'}
outputs: {y: 'float32[..., N]', s: 'float32[N]', most: 'int32[...]'}
chain: |
  positive = any(x > 0.5, axis=N)
  most = max(n, axis=N)
  y = where(positive, x, 0) + most
  s = sum(where(positive, x, 1), axis=...)
reference: |
  positive = jnp.any(x > 0.5, axis=-1, keepdims=True)
  most = jnp.max(n, axis=-1)
  y = jnp.where(positive, x, 0) + most[..., None]
  s = jnp.einsum("...n->n", jnp.where(positive, x, 1))
grad: none
domain: {x: [-1, 0.6], n: [0, 100]}
"""


@pytest.mark.whole
def test_statistics_that_are_no_floats_come_from_a_kernel_before(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")
    op = make_op(tmp_path, SOME_AND_ALL)
    case = Case(Types(()), (5,), (("N", 20_001),), (), (), False, 1.0, 0)
    how = op.launch_for(case.types, case.axes)
    assert isinstance(how, WalkLaunch)
    assert not how.whole
    check_case(op, "interpret", case)


@pytest.mark.parametrize(
    ("rows", "columns", "kernel"),
    [(1, 2**20, True), (1, 2**23, False), (7, 2**23, False), (8, 2**23, True), ((2, 3), 2**23, False)],
)
def test_few_rows_that_are_too_long_are_left_to_xla(rows, columns, kernel, monkeypatch):
    """Unless the kernel is requested."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    shape = (*(rows if isinstance(rows, tuple) else (rows,)), columns)
    x, w = jax.ShapeDtypeStruct(shape, "bfloat16"), jax.ShapeDtypeStruct((columns,), "bfloat16")
    for op, *args in ((generated.softmax, x), (generated.rmsnorm, x, w), (generated.dsoftmax, x, x)):
        for implementation in (None, "cute"):
            call = functools.partial(op, implementation=implementation)
            found = "codegen_op" in str(jax.make_jaxpr(call)(*args))
            assert found == (kernel or implementation == "cute"), op


@pytest.mark.parametrize(
    ("name", "rows", "kernel"), [("column_sum", 63, False), ("column_sum", 64, True), ("dgelu_dbias", 7, False), ("dgelu_dbias", 8, True), ("drmsnorm", 7, False), ("drmsnorm", 8, True)]
)  # fmt: skip
def test_few_rows_of_many_columns_are_left_to_xla(name, rows, kernel):
    """Kernels in which blocks share the columns run, if they also write outputs along the rows, for which XLA has
    further kernels."""
    op = getattr(generated, name)
    for columns in (2**20, 2**16):
        arrays = [
            jax.ShapeDtypeStruct((rows, columns) if "..." in a.axes else (columns,), "bfloat16") for a in op.spec.inputs
        ]
        assert ("codegen_op" in str(jax.make_jaxpr(op)(*arrays))) == (kernel or columns == 2**16)


def test_why_few_rows_are_left_to_xla():
    types = Types((("T", "bfloat16"),))
    axes = Case(types, (1,), (("N", 2**23),), (), (), False, 1.0, 0).axes
    assert generated.softmax.left_to_xla(types, axes) == "one row of 16.8 MB would leave most of a GPU idle"
    words = "one row of 8388608 columns would give each block little to do"
    assert generated.column_sum.left_to_xla(types, axes) == words


# Ops with several axes of rows, one of which has size 0: a block runs for a row that does not exist
NO_ROWS = [
    ("modulated_layernorm", "S"), ("modulated_layernorm", "B"), ("head_rmsnorm_rotary", "S"), ("causal_softmax", "Q"),
    ("qk_rmsnorm", "H"), ("group_norm", "B"), ("mean_pool", "..."), ("dgroup_norm", "G"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "axis"), some(NO_ROWS, 3))
def test_no_rows(name, axis):
    op = getattr(generated, name)
    spec = op.spec
    types = Types(tuple((t, dtypes[0]) for t, dtypes in spec.types))
    extents = {a: spec.extents.get(a, 2) for a in spec.axes if a != "..."}
    extents[[a for a in extents if a not in spec.extents][-1]] = 127
    extents |= {axis: 0} if axis in extents else {}
    params = tuple((p.name, p.default) for p in spec.params)
    rows = () if "..." not in spec.axes else (0,) if axis == "..." else (2,)
    case = Case(types, rows, tuple(extents.items()), (), params, False, 1.0, 0)
    check_case(op, "interpret", case)


@pytest.mark.parametrize(
    ("dtype", "columns", "vec", "ragged"),
    [
        ("bfloat16", 4096, 8, False), ("bfloat16", 4100, 4, False), ("bfloat16", 4098, 8, True),
        ("bfloat16", 4097, 8, True), ("bfloat16", 15, 15, False), ("bfloat16", 17, 1, False),
        ("float32", 4098, 2, False), ("float32", 4097, 4, True), ("bfloat16", 0, 8, False),
    ],
)  # fmt: skip
def test_vectors_that_rows_are_whole_ones_of(dtype, columns, vec, ragged):
    """A vector that divides the row has half a wide one's elements or more, or 4 bytes or more of short rows; a short row is one vector
    if a thread has several rows. Long rows of which none does come by way of shared memory, as short ones do, of which a thread then has
    single elements."""
    op = generated.layernorm
    types = Types(tuple((t, dtype) for t, _ in op.spec.types))
    how = op.launch_for(types, Case(types, (2,), (("N", columns),), (), (), False, 1.0, 0).axes)
    assert (how.vec, how.ragged) == (vec, ragged)
    assert how.by_runs == (columns == 17 or ragged)


def test_blocks_of_a_cluster_exchange_float64(tmp_path):
    """A statistic has two words; with one, all blocks would wait for the other."""
    with jax.enable_x64(True):
        op = make_op(tmp_path, spec_text("x: float64[..., N]", "y: float64[...]", "y = sum(x, axis=N)"))
        x = np.random.default_rng(0).standard_normal((3, 8192))
        key, operands = op.bind((x,), {"implementation": "interpret"})
        assert op._kernel_call(key, operands).how.cluster > 1
        np.testing.assert_allclose(op(x, implementation="interpret"), x.sum(1), rtol=1e-13, atol=1e-12)
