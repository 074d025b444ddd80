"""Every op under JAX's transformations, against its reference without those of the op.

There are two compiled programs for each op: all its transformations, and the reference's results. Nearly all the time
here is XLA's, so the programs are compiled with few optimisations, and each transformation is in them once.
"""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import generated
from codegen.checking import draw
from codegen.graph.nodes import DTYPES, least_sizes
from codegen.plan.attention import Attention
from codegen.runtime.call.arguments import all_types
from codegen.runtime.ops.op import Op
from tests.turns import some

P = PartitionSpec
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
ROWS, EXTENT, COPIES = (3,), 4, 2
OPS = [name for name in generated.__all__ if name != "float64_polynomial"]  # the op needs x64
KEEP_DOTS = jax.checkpoint_policies.checkpoint_dots


def calls(op: Op) -> tuple[list[jax.Array], dict, tuple[int, ...]]:
    """The arrays of some calls, stacked; keywords; the positions of those with a gradient."""
    least = {axes[-1]: count for axes, count in least_sizes(s.value for s in op.statements).items()}
    extents = {a: op.spec.extents.get(a, max(EXTENT, least.get(a, 0))) for a in op.spec.axes if a != "..."}
    types = next(all_types(op.spec))
    params = tuple((p.name, 0.5 if p.default is None else p.default) for p in op.spec.params)
    rows = ROWS if "..." in op.spec.axes else ()
    made = []
    for seed in range(COPIES):
        case = draw.Case(types, rows, tuple(extents.items()), (), params, False, 1.0, seed)
        args, keywords = draw.operands(op, case, draw.arrays(op, case))
        made.append(args)
    kinds = [DTYPES[types.dtype(a)].kind for a in op.spec.inputs]
    floats = tuple(i for i, kind in enumerate(kinds) if kind == "float" and op.spec.grad != "none")
    return [jnp.stack(column) for column in zip(*made, strict=True)], keywords, floats


def tupled(value) -> tuple:
    return tuple(value) if isinstance(value, tuple) else (value,)


def loss_of(f):
    """A number that depends on every floating output."""

    def loss(*xs):
        outputs = [y.astype(jnp.float32) for y in tupled(f(*xs)) if jnp.issubdtype(y.dtype, jnp.floating)]
        return sum(jnp.sum(jnp.sin(y)) for y in outputs)

    return loss


def transformed(f, floats: tuple[int, ...], first: jax.Array, *others: jax.Array) -> dict[str, tuple]:
    """Each transformation of some calls, with results stacked along axis 0. Values come from calls that share all
    arrays but the first, gradients from calls that share none."""
    shared, none = [x[0] for x in others], [None] * len(others)
    last = jnp.stack([jnp.moveaxis(first, 0, -1)] * 3)
    nested = jax.vmap(jax.vmap(f, (-1, *none)), (0, *none), -1)(last, *shared)
    made = {"vmap of vmap": jax.tree.map(lambda y: y[..., 1], nested)}
    if not floats:
        made["scan"] = jax.lax.scan(lambda carry, x: (carry, f(x, *shared)), 0, first)[1]
        return made
    loss = loss_of(f)
    gradients = jax.vmap(jax.grad(jax.checkpoint(loss, policy=KEEP_DOTS), floats))
    once = tuple(x[None] for x in (first, *others))
    scanned = jax.lax.scan(lambda carry, xs: (carry, gradients(*xs)), 0, once)[1]
    made["scan of vmap of grad of remat"] = jax.tree.map(lambda y: y[0], scanned)
    made["grad of vmap"] = jax.grad(lambda *xs: jnp.sum(jax.vmap(loss)(*xs)), floats)(first, *others)
    return made


def expectations(f, floats: tuple[int, ...], first: jax.Array, *others: jax.Array) -> tuple[tuple, tuple]:
    """The reference's values and gradients of the same calls."""
    values = jax.vmap(f, (0, *[None] * len(others)))(first, *(x[0] for x in others))
    gradients = jax.vmap(jax.grad(loss_of(f), floats))(first, *others) if floats else ()
    return tupled(values), gradients


KERNELS = ["bias_relu", "swiglu", "rmsnorm"]  # the interpreted kernels' backwards too


@pytest.mark.parametrize(
    ("name", "implementation"), [(name, "xla") for name in some(OPS, 15)] + [(name, "interpret") for name in KERNELS]
)
def test_transformations(name, implementation):
    op = getattr(generated, name)
    stacked, keywords, floats = calls(op)
    ours = functools.partial(op, implementation=implementation, **keywords)
    reference = functools.partial(op.reference, **keywords)
    expect = jax.jit(functools.partial(expectations, reference, floats), compiler_options=FAST)
    values, gradients = expect(*stacked)
    run = jax.jit(functools.partial(transformed, ours, floats), donate_argnums=0, compiler_options=FAST)
    with warnings.catch_warnings(), jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        warnings.simplefilter("ignore")  # no output has the shape of the donated array
        got = run(stacked[0].copy(), *stacked[1:])
    rounded = 0.0
    if isinstance(op.plan, Attention):  # weights and their gradients are rounded before their products
        rounded = 2 * max(float(jnp.finfo(x.dtype).eps) for x in stacked if jnp.issubdtype(x.dtype, jnp.floating))
    for how, results in got.items():
        wanted = gradients if "grad" in how else values
        for value, expected in zip(tupled(results), wanted, strict=True):
            compare(value, expected, "grad" in how or bool(rounded), f"{name}, {how}", rounded)


def compare(got: jax.Array, expected: jax.Array, cancels: bool, what: str, rounded: float) -> None:
    assert got.shape == expected.shape and got.dtype == expected.dtype, what
    a, b = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    if got.dtype == bool:
        allowed = np.zeros_like(b)
    elif jnp.issubdtype(got.dtype, jnp.integer):
        allowed = np.ones_like(b)  # the middle between two numbers may be rounded to either
    else:  # some roundings of the type; a gradient, and a product of computed factors, lose bits where its terms cancel
        eps = max(float(jnp.finfo(got.dtype).eps), rounded, 2.0**-12 if cancels else 2.0**-16)
        allowed = eps * np.maximum(np.abs(b), np.abs(b[np.isfinite(b)]).max(initial=0) if cancels else 2.0**-4)
    with np.errstate(invalid="ignore"):  # infinities that are equal
        assert np.all((np.abs(a - b) <= allowed) | (a == b) | (np.isnan(a) & np.isnan(b))), what


@pytest.mark.parametrize("name", some(OPS, 11))
def test_types_in_shard_map(name):
    """Only traced: the types of values and gradients name the mesh axes along which they vary."""
    op = getattr(generated, name)
    stacked, keywords, floats = calls(op)
    mesh = Mesh(np.array(jax.devices("cpu")[:COPIES]), ("d",))
    f = functools.partial(op, **keywords)

    def on_shard(x, *shared):
        outputs = tuple(y[None] for y in tupled(f(x[0], *shared)))
        gradients = jax.grad(loss_of(f), floats)(x[0], *shared) if floats else ()
        return outputs, tuple(g[None] if i == 0 else g for i, g in zip(floats, gradients, strict=True))

    shared = [x[0] for x in stacked[1:]]
    specs = P("d"), tuple(P("d") if i == 0 else P() for i in floats)
    run = jax.shard_map(on_shard, mesh=mesh, in_specs=(P("d"), *[P() for _ in shared]), out_specs=specs)
    outputs, gradients = jax.eval_shape(run, stacked[0], *shared)
    assert all(y.shape[0] == COPIES for y in outputs)
    assert [g.shape for g in gradients] == [stacked[i].shape[i != 0 :] for i in floats]
