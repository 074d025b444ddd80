"""Sharded arrays in tests: a mesh of eight virtual devices of the CPU, and a stand-in for kernels, which cannot run
there."""

import re
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import generated
from codegen.graph.nodes import topological
from codegen.plan.gemms.tiles import Tile
from codegen.runtime.call import arguments, views
from codegen.runtime.ops import gemm_op, staged
from codegen.runtime.ops import op as op_module
from codegen.runtime.ops.op import Op
from codegen.runtime.sharding import shards
from codegen.runtime.xla import by_position
from codegen.runtime.xla.evaluate import Evaluation

P = PartitionSpec
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


def make_mesh(kind=AUTO) -> Mesh:
    devices = np.array(jax.devices("cpu")[:8]).reshape(4, 2)
    return Mesh(devices, ("a", "b"), axis_types=(kind, kind))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def values(op: Op, shapes) -> list:
    """Arrays of these shapes, with types that an op takes."""
    made = []
    for array, shape in zip(op.spec.inputs, shapes, strict=False):
        kind = op.spec.kind(array)
        value = normal(*shape, seed=len(made))
        if kind == "int":
            value = np.random.default_rng(0).integers(0, 24, shape).astype(op.spec.dtypes(array)[0])
        made.append(value > 1 if kind == "bool" else value)
    return made


def parameters(op: Op) -> dict:
    return {p.name: 0.5 for p in op.spec.params if p.default is None}


def put(mesh: Mesh, value, spec: PartitionSpec):
    return jax.device_put(value, NamedSharding(mesh, spec))


def collectives(compiled) -> dict[str, int]:
    names = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
    return dict(Counter(re.findall(rf" ({names})(?:-start)?\(", compiled.as_text())))


def tupled(value) -> tuple:
    return tuple(value) if isinstance(value, tuple) else (value,)


def assert_close(got, expected) -> None:
    for g, e in zip(tupled(got), tupled(expected), strict=True):
        assert g.shape == e.shape and g.dtype == e.dtype
        np.testing.assert_allclose(np.asarray(g, np.float64), np.asarray(e, np.float64), rtol=2e-5, atol=2e-5)


seen: list[list[tuple[int, ...]]] = []  # the shapes that kernels ran on


def stand_in(op: Op, key, donated, *operands, split=None):
    """The results of a kernel, in jnp: the outputs, then the reductions over rows before any division. A reduction
    belongs to an output or to a value of the chain."""
    if isinstance(op, staged.Joint):
        calls = zip(op.products, op.calls(key, operands), strict=True)
        return tuple(y for own, (k, values) in calls for y in stand_in(own, k, donated, *values, split=split))
    seen.append([x.shape for x in operands])
    if op.plan.kind == "gemm":
        placed = op.plan.tile.placed if split is not None else ()
        firsts = {axis: split.first(axis) for axis in placed if split.across((axis,))}
        return tiles_stand_in(op, key, operands, firsts)
    outputs = op.jnp_form(key, *operands)
    axes = arguments.bind_axes(op.spec, dict(zip(key.present, operands, strict=False)))
    values = {id(s.value): s.name for s in op.statements if s.part is None}
    by_name = dict(zip([a.name for a in op.spec.outputs], outputs, strict=True))
    parts = []
    known: dict = {}
    for statistic in op.plan.columns:
        name = values.get(id(statistic.node))
        if name not in by_name and not known:
            arrays, params = op.arrays(key, operands), op.parameters(key, operands)
            roots = [s.value for s in op.statements]
            call = Evaluation(op.planned, arrays, params, axes, key.types, op.compute(key))
            known = shards.known_in_jnp(call, roots, shards.Split(axes))
        part = by_name[name] if name in by_name else known[id(statistic.node)]
        part = part.astype("int32" if statistic.kind == "bool" else op.compute(key))
        count = np.prod(axes.shape(statistic.node.attr)) if statistic.op == "mean" else 1
        part = (part * count).astype(part.dtype).reshape(1, *([-1] if part.ndim else []))
        parts.append(spread(op.plan, statistic, part, axes) if statistic.over == "column" else part)
    return (*outputs, *parts)


def tiles_stand_in(op, key, operands, firsts):
    """The results of a contraction's kernel, in jnp: the outputs with all axes, then one partial result of each
    reduction."""
    tile, epilogue = op.plan.tile, op.epilogue
    own, values = op.epilogue_call(replace(key, implementation="xla"), operands)
    arrays, params = epilogue.arrays(own, values), epilogue.parameters(own, values)
    axes = arguments.bind_axes(epilogue.spec, arrays)
    chain = op.plan.epilogue
    places = [n for n in topological(s.value for s in tile.statements) if n.op == "index"]
    known = {}
    for node in places:
        shape = by_position.with_every_axis(chain.plan.order, (str(node.attr),), axes)
        known[id(node)] = jnp.arange(np.prod(shape)).reshape(shape) + firsts.get(node.attr, 0)
    stores = [a for a in chain.plan.stores if a.array in tile.outputs]
    call = Evaluation(chain, arrays, params, axes, key.types, "float32")
    outputs = call.outputs(stores, known)
    made = {s.name: s.value for s in tile.statements}
    folded = call.values([made[f.value] for f in tile.folds], call.leaves(list(made.values()), {}), known)
    extents = [int(np.prod(axes.shape(names))) for names in (tile.batch, tile.rows, (tile.column,))]
    parts = []
    for fold, value in zip(tile.folds, folded, strict=True):
        value = jnp.broadcast_to(value, axes.shape((*tile.batch, *tile.rows, tile.column))).reshape(extents)
        if fold.rescaled is not None:
            place, power, scale, finite = fold.rescaled
            top = jnp.where(finite & ~jnp.isfinite(parts[place]), 0, parts[place])
            value = getattr(jnp, power)((value - top) * scale)
        parts.append(getattr(jnp, fold.op)(value, axis=2 if fold.along else 1, keepdims=True))
    return (*(outputs[a] for a in tile.outputs), *parts)


def spread(plan, statistic, part, axes):
    """A statistic of columns as a kernel that does not reduce columns stores it: here the first column of each result
    has all of it, and the others nothing."""
    extents = [views.group_extents(plan, axes)[i] for i in plan.spread]
    lost = [i not in statistic.keeps for i in plan.spread]
    nothing = {"max": -jnp.inf, "min": jnp.inf, "prod": 1}.get(statistic.op, 0)
    own = part.reshape([1 if gone else n for n, gone in zip(extents, lost, strict=True)])
    rest = [(0, n - 1 if gone else 0, 0) for n, gone in zip(extents, lost, strict=True)]
    return jax.lax.pad(own, np.asarray(nothing, part.dtype), rest).reshape(1, -1) if any(lost) else part


def forget() -> None:
    """Makes every op, and every op derived from it, make its functions again."""
    for op in (getattr(generated, name) for name in generated.__all__):
        steps = getattr(op, "steps", ())
        for made in (op, *op.kernels, *steps, op._backward, getattr(op._backward, "forward", None)):
            if made is not None:
                made._functions.cache_clear()


@pytest.fixture
def kernels(monkeypatch):
    """Makes every op run its kernel, as on CUDA; yields the shapes that kernels ran on."""
    forget()
    monkeypatch.setattr(Op, "_run_cute", stand_in)
    for module in (op_module, gemm_op):
        monkeypatch.setattr(module, "choose", lambda cuda, default, *operands, refuse="": cuda(())(*operands))
    launch = Tile.launch
    monkeypatch.setattr(Tile, "launch", lambda *args, **kwargs: replace(launch(*args, **kwargs), why=""))
    seen.clear()
    yield seen
    forget()
