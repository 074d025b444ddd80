"""Measured launches in calls: a call of these dtypes and sizes takes them, any other does not, and results stay right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen.plan.launches import Extents, PlannedCall, Tuned
from codegen.runtime.compiled import interpreted
from codegen.tuning.candidates import neighbours
from tests.turns import some

ROWS, COLUMNS = 24, 512


def tuned(
    kernel: str, take: str = "launch", columns: tuple[int, int] = (512, 1023), arch: str = "", **changes
) -> Tuned:
    sizes = (("rows", 1, None), ("columns", *columns))
    measured = (("us", 9.5), ("xla_us", 5.25))
    arch = arch or interpreted.architecture()
    return Tuned(kernel, arch, (("T", "float32"),), sizes, take, tuple(changes.items()), measured)


def array(columns: int = COLUMNS, dtype: str = "float32") -> jax.Array:
    return jax.random.normal(jax.random.key(0), (ROWS, columns)).astype(dtype)


def threads_of(op, x: jax.Array) -> int:
    op(x, implementation="interpret")
    (report,) = interpreted.last_reports()
    return report.threads


def test_a_call_takes_a_measured_launch():
    planned = threads_of(generated.softmax, array())
    op = generated.softmax.with_tuning([tuned("softmax", threads=1024)])
    assert planned != 1024
    assert threads_of(op, array()) == 1024
    assert threads_of(op, array(256)) == threads_of(generated.softmax, array(256))  # of another size
    assert threads_of(op, array(dtype="bfloat16")) != 1024  # of another type
    assert threads_of(generated.softmax, array()) == planned  # the op itself is as before


@pytest.mark.parametrize(
    "entry",
    [
        tuned("softmax", arch="sm_100a", threads=1024),
        tuned("softmax_backward", threads=1024),
        tuned("softmax", cluster=16),  # which no GPU has
        tuned("softmax", vectors=7),  # which follows from others
        tuned("softmax", resident=33),
    ],
    ids=str,
)
def test_what_is_of_other_calls_or_does_not_fit_changes_nothing(entry):
    assert threads_of(generated.softmax.with_tuning([entry]), array()) == threads_of(generated.softmax, array())


def launches(op, *shapes: tuple[int, int]) -> list[dict]:
    """Every change of one setting that fits a kernel with an array of so many rows and columns."""
    dtypes = {a.name: "float32" for a in op.spec.arrays}
    rows, columns = shapes[0]
    extents = Extents(columns, rows * columns, columns, rows)
    call = PlannedCall(dtypes, extents, arch=interpreted.architecture())
    return list(neighbours(op.plan, call, {}).values())


KERNELS = {"bias_relu": "elements", "softmax": "rows", "rmsnorm_backward": "rows", "column_sum": "rows"}


@pytest.mark.parametrize("name", some(KERNELS, 1))
def test_every_launch_that_is_tried_is_right(name):
    """Of an element-wise kernel, one along rows, one that walks down whole rows, one down columns."""
    origin = getattr(generated, name.removesuffix("_backward"))
    kernel = next(k for k in origin.kernels if k.spec.op == name)
    found = launches(kernel, (ROWS, COLUMNS))
    assert len(found) > 5
    x, key = array(), jax.random.key(1)
    weights = {
        "bias_relu": {"bias": jax.random.normal(key, (COLUMNS,))},
        "rmsnorm_backward": {"weight": jax.random.normal(key, (COLUMNS,))},
    }
    more = weights.get(name, {})

    def results(op):
        def call(x, more):
            return op(x, **more, implementation="interpret")

        if name.endswith("_backward"):
            y, pull = jax.vjp(call, x, more)
            return jax.tree.leaves(pull(jnp.cos(y)))
        return jax.tree.leaves(call(x, more))

    expected = results(origin)
    for changes in some(found, len(found) // 2):
        sizes = (("elements", 1, None),) if KERNELS[name] == "elements" else (("rows", 1, None), ("columns", 1, None))
        entry = Tuned(name, interpreted.architecture(), (("T", "float32"),), sizes, "launch", tuple(changes.items()))
        for got, wanted in zip(results(origin.with_tuning([entry])), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5, err_msg=str(changes))


def test_a_call_that_xla_does_faster_is_left_to_it():
    op = generated.softmax.with_tuning([tuned("softmax", take="xla")])
    key, _ = op.bind((array(),), {})
    from codegen.runtime.call import arguments

    axes = arguments.bind_axes(op.spec, {"x": array()})
    assert op.left_to_xla(key.types, axes) == "measured: 5.25 us, the kernel 9.5 us"
    other = arguments.bind_axes(op.spec, {"x": array(256)})
    assert op.left_to_xla(key.types, other) == ""


def test_a_product_takes_measured_tiles():
    op = generated.dense_gelu
    shape = {"...": 4096, "K": 1024, "N": 4096}
    from codegen.language.sizes import array_shape
    from codegen.runtime.call import arguments
    from codegen.runtime.call.arguments import Types

    arrays = {a.name: jax.ShapeDtypeStruct(array_shape(a, shape), "bfloat16") for a in op.spec.inputs}
    axes, types = arguments.bind_axes(op.spec, arrays), Types((("T", "bfloat16"),))
    planned = op.launch_for(types, axes, "sm_90a")
    other = next(n for n in (64, 128, 192, 256) if n != planned.tiles.tile_n)
    sizes = (("M", 4096, 8191), ("N", 4096, 8191), ("K", 1024, 2047))

    def with_entry(take: str, **changes):
        return op.with_tuning([Tuned(op.spec.op, "sm_90a", (("T", "bfloat16"),), sizes, take, tuple(changes.items()))])

    assert with_entry("launch", tile_n=other).launch_for(types, axes, "sm_90a").tiles.tile_n == other
    assert with_entry("launch", tile_n=7).launch_for(types, axes, "sm_90a") == planned
    assert not with_entry("xla").launch_for(types, axes, "sm_90a").fast
