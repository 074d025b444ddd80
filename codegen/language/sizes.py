"""The sizes of a spec's axes and arrays, for a shape that a user or the spec gives."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping

from codegen.errors import UserError, known
from codegen.graph.nodes import DTYPES
from codegen.language.statements import read_lines
from codegen.spec.spec import Array, Spec

Shape = Mapping[str, int]  # the size of every axis; `...` stands for the product of the leading axes

DEFAULT_BITS = 25  # an output has 2**25 elements if a spec has no `bench`: as many as 8192 x 4096


def parse_shape(spec: Spec, text: str) -> dict[str, int]:
    """Reads a shape such as `...=8192,N=4096`. An axis that is left out has its size in `default_shape`. Raises `UserError`."""
    shape: dict[str, int] = {}
    form = f"write it as in {format_shape(default_shape(spec))}"
    for pair in text.split(","):
        name, equals, size = (word.strip() for word in pair.partition("="))
        if not equals or not size.isdigit() or not 0 < int(size[:16]) < 2**40 or len(size) > 16:
            raise UserError(f"cannot read {pair.strip()!r} of the shape {text!r}", form)
        if name not in spec.axes:
            raise UserError(f"{spec.op} has no axis {name!r}", known(name, spec.axes, "its axes"))
        if name in shape:
            raise UserError(f"the axis {name} is given twice in {text!r}")
        if spec.extents.get(name, int(size)) != int(size):
            raise UserError(f"the spec fixes {name} at {spec.extents[name]}")
        shape[name] = int(size)
    return default_shape(spec) | shape


def bench_shapes(spec: Spec) -> list[dict[str, int]]:
    """The shapes under the spec's `bench`."""
    return [{axis: (spec.extents | dict(sizes))[axis] for axis in spec.axes} for sizes in spec.bench]


def default_shape(spec: Spec) -> dict[str, int]:
    """The first shape of the spec's `bench`, else powers of two: 8192 rows of 4096, or as many elements in other axes. No
    array has over four times as many."""
    if spec.bench:
        return bench_shapes(spec)[0]
    given = {*spec.extents, *_tables(spec)}
    *outer, last = [a for a in spec.axes if a not in given] or [""]
    left = DEFAULT_BITS - math.ceil(math.log2(math.prod(spec.extents.values())))
    bits = {last: left if not outer else 12 if len(outer) == 1 else 7}
    left -= bits[last]
    for count, axis in zip(range(len(outer), 0, -1), reversed(outer), strict=True):
        bits[axis] = max(0, left // count)
        left -= bits[axis]
    shape = {**{axis: 2**n for axis, n in bits.items()}, **spec.extents}
    shape = {axis: shape.get(axis, 4096) for axis in spec.axes}  # 4096: an axis that only a table has
    for array in spec.arrays:
        free = [axis for axis in array.axes if axis not in spec.extents]
        while (
            free
            and math.prod(array_shape(array, shape)) > 4 * 2**DEFAULT_BITS
            and max(shape[axis] for axis in free) > 1
        ):
            shape[max(free, key=lambda axis: shape[axis])] //= 2
    return shape


def _tables(spec: Spec) -> set[str]:
    """The axes along which the chain gathers from inputs with `take`."""
    found, inputs = set(), {a.name for a in spec.inputs}
    for line in read_lines(spec.chain)[0]:
        for call in ast.walk(line.tree) if line.tree else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "take":
                tables = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "table")]
                arguments = [*call.args[2:], *(k.value for k in call.keywords if k.arg == "axis")]
                if any(isinstance(table, ast.Name) and table.id in inputs for table in tables):
                    found |= {argument.id for argument in arguments if isinstance(argument, ast.Name)}
    return found


def format_shape(shape: Shape) -> str:
    return ",".join(f"{axis}={size}" for axis, size in shape.items())


def array_shape(array: Array, shape: Shape) -> tuple[int, ...]:
    """The array's shape as users see it, with its leading axes merged into one."""
    return tuple((dim.parts or 1) * math.prod(shape[name] for name in dim.names) for dim in array.dims)


def elements(axes: tuple[str, ...], shape: Shape) -> int:
    """The number of elements along these axes."""
    return math.prod(shape[axis] for axis in axes)


def array_bytes(array: Array, shape: Shape, dtype: str) -> int:
    return DTYPES[dtype].bytes_of(math.prod(array_shape(array, shape)))
