"""`codegen explain` says of a call what the runtime does in it."""

import math

import jax.numpy as jnp
import pytest

import generated
from codegen.explain.launching import bindings, blocks_of, launch_of
from codegen.explain.traffic import fused_bytes
from codegen.graph.nodes import ROWS, put_inputs, topological
from codegen.language.sizes import default_shape
from codegen.measuring import explained
from codegen.measuring.explained import interpreted_calls
from codegen.runtime.call import views
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.ops.gemm_op import GemmOp
from codegen.shared import RowLaunch, ScanLaunch, SelectLaunch, WalkLaunch
from tests.turns import some


def bits(dtype):
    """The bits of an element in a GPU's memory."""
    return 4 if dtype in ("int4", "uint4", "float4_e2m1fn") else 8 * jnp.dtype(dtype).itemsize


PARTS = 8  # of the library: its plans take seconds, so this module's import makes none


@pytest.mark.parametrize("part", range(PARTS))
def test_explained_launches_and_bytes_are_those_of_a_call(part):
    ops = [getattr(generated, name) for name in generated.__all__[part::PARTS]]
    for op in (op for op in ops if op.plan.kind not in ("staged", "attention")):
        odd = {axis: op.spec.extents.get(axis, 3 + 2 * i) for i, axis in enumerate(op.spec.axes)}
        for shape in (default_shape(op.spec), odd):
            for binding in bindings(op.spec):
                check_explained(op, shape, binding)


def check_explained(op, shape, binding) -> None:
    rows = (shape[ROWS],) if ROWS in shape else ()
    axes = Axes(rows, {axis: extent for axis, extent in shape.items() if axis != ROWS})
    own = op.epilogue if isinstance(op, GemmOp) else op
    shapes = {a: views.user_shape(a, axes) for a in op.spec.arrays}
    sizes = [math.prod(shapes[a]) * bits(binding.dtype(a)) // 8 for a in op.spec.arrays]
    nodes = topological(s.value for s in op.statements)
    if not any(n.op in ("take", "pick") for n in nodes) and not put_inputs(op.statements):
        assert fused_bytes(binding, shape, op.statements) == sum(sizes), op.spec.op
    for arch in ("sm_80", "sm_90a"):
        how = own.launch_for(Types(binding.types), axes, arch)
        assert launch_of(op, binding, shape, arch) == how, op.spec.op
        assert blocks_of(op, how, shape) == blocks(own.plan, how, views.group_extents(own.plan, axes)), op.spec.op


def blocks(plan, how, extents) -> int:
    """The number of blocks of a launch."""
    if isinstance(how, RowLaunch):
        return (math.prod(extents[: plan.leading]) // (how.threads // how.per_row * how.at_once) + 1) * how.cluster
    if isinstance(how, WalkLaunch):
        if how.by_place:
            places = math.prod(extents[i] for i in plan.apart)
            pieces = -(-math.prod(extents[plan.leading :]) // (how.vec * how.vectors * how.per_row))
            return places * pieces // (how.threads // how.per_row) + 1
        tiles = -(-math.prod(extents[plan.leading :]) // (how.vec * how.per_row))
        return how.parts * (1 if plan.collapsed else how.cluster if plan.rows else tiles)
    if isinstance(how, SelectLaunch):
        return extents[0] // (how.threads // how.per_row) + 1  # of the rows, not of each selected element
    if isinstance(how, ScanLaunch):
        axis = next(i for i, g in enumerate(plan.groups) if plan.along.axis in g.axes)
        scans = math.prod(extents) // max(1, extents[axis])
        warps = how.threads // 32 // how.along
        return (scans // (warps * 32 * how.vec if how.apart else warps) + 1) * how.cluster
    if how.rows > 1:
        across = how.threads // how.rows * how.vec  # columns of a block's rows
        return (math.prod(extents[:-1]) // (how.rows * how.down) + 1) * (extents[-1] // across)
    return math.prod(extents) // (how.vec * how.threads * how.down) + 1


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", ["column_sum", "mean_pool", "drmsnorm", "bias_relu"])
def test_calls_of_several_kernels_are_explained(name, monkeypatch):
    """By the kernel that does most."""
    op = getattr(generated, name)
    monkeypatch.setattr(explained, "bindings", lambda spec: some(bindings(spec), 2))
    shape = {axis: op.spec.extents.get(axis, 3 + 2 * i) for i, axis in enumerate(op.spec.axes)}
    found = interpreted_calls(op, shape)
    assert found
    for call in found:
        read = [call["arrays"][a.name]["loaded"] for a in op.spec.inputs]
        assert all(loaded >= call["arrays"][a.name]["minimum"] for a, loaded in zip(op.spec.inputs, read, strict=True))


def test_of_a_table_what_is_taken_is_moved():
    op, shape = generated.embedding_rmsnorm, {"...": 16, "V": 128_000, "N": 4096}
    (binding,) = [b for b in bindings(op.spec) if dict(b.types)["T"] == "bfloat16"]
    row = 4096 * 2
    rest = sum(
        math.prod(shape[axis] for axis in a.axes) * jnp.dtype(binding.dtype(a)).itemsize
        for a in op.spec.arrays if a.name != "table"
    )  # fmt: skip
    assert fused_bytes(binding, shape, op.statements) == 16 * row + rest
    few = shape | {"V": 3}
    assert fused_bytes(binding, few, op.statements) == 3 * row + rest
