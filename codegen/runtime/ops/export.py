"""`codegen export`: writes an op with its compiled kernel as a serialized `jax.export` artifact, without a GPU.

An artifact takes the op's inputs, then its dynamic params, by position, and returns several outputs as a tuple. It needs
neither this program nor the spec, only JAX and CuTe DSL's custom calls (`cutlass.jax.register_ffi()`). Static params, types
and the architecture are compiled in. A size is a number, or symbolic: `rows`, or `8*n` for a multiple of 8, which JAX checks
on a call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from codegen.errors import UserError, known, named, shown
from codegen.graph.nodes import DTYPES, ROWS
from codegen.plan.limits import lacks
from codegen.runtime.call import views
from codegen.runtime.call.arguments import Axes, Types
from codegen.runtime.ops.op import AnyOp
from codegen.spec.spec import Array, Param, Spec, fits

PLATFORMS = ("cuda", "cpu")
_CUSTOM_CALL = re.compile(r'custom_call @CuteDSLRT_.*?[{ ]key = "((?:[^"\\]|\\.)*)"')  # the key is the code's hash
_EXTENT = re.compile(r"(?:([1-9]\d{0,15})\s*\*\s*)?([A-Za-z_]\w*)|[1-9]\d{0,15}")
_RESERVED = {"floordiv", "mod", "max", "min", "_"}  # words with a meaning, where JAX reads symbolic dimensions


@dataclass(frozen=True)
class Wanted:
    """The export that a user requests: sizes as text, one for each leading axis and each named axis; every type variable's dtype;
    the given static params; the omitted inputs."""

    rows: tuple[str, ...]
    extents: Mapping[str, str]
    types: Types
    params: Mapping[str, Any]
    left_out: frozenset[str]
    arch: str
    platforms: tuple[str, ...] = ("cuda",)
    vjp: bool = False


def read_wanted(
    spec: Spec,
    shape: str,
    types: Mapping[str, str],
    params: Sequence[str],
    left_out: Sequence[str],
    arch: str,
    platforms: str,
    vjp: bool,
) -> Wanted:
    """Parses the options of a command line. Raises `UserError`."""
    names = [name.strip() for name in platforms.split(",")]
    for name in names:
        if name not in PLATFORMS:
            raise UserError(f"no platform {shown(name)}", known(name, PLATFORMS, "There are"))
    if "cuda" not in names:
        raise UserError("an artifact without the platform cuda would have no kernel", "as in --platforms cuda,cpu")
    for name in left_out:
        if name not in {a.name for a in spec.inputs if a.default is not None}:
            optional = [a.name for a in spec.inputs if a.default is not None]
            raise UserError(
                f"{spec.op} has no input {shown(name)} that may be left out", known(name, optional, "it has")
            )
    if vjp and spec.grad == "none":
        raise UserError(f"{spec.op} has no gradient to export")
    rows, extents = read_shape(spec, shape)
    return Wanted(
        rows, extents, read_types(spec, types), read_params(spec, params), frozenset(left_out), arch,
        tuple(dict.fromkeys(names)), vjp,
    )  # fmt: skip


def read_shape(spec: Spec, text: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Parses `...=rows,N=8*n` or `...=(batch, 128),N=4096`: sizes of the leading axes, and of every axis that the spec does not
    fix."""
    found: dict[str, str] = {}
    form = "write it as in ...=rows,N=4096 or ...=(batch, 128),N=8*n"
    for pair in re.split(r",(?![^(]*\))", text) if text.strip() else []:
        axis, equals, extent = (word.strip() for word in pair.partition("="))
        if not equals:
            raise UserError(f"cannot read {shown(pair.strip())} of the shape {shown(text)}", form)
        if axis not in spec.axes:
            raise UserError(f"{spec.op} has no axis {shown(axis)}", known(axis, spec.axes, "its axes"))
        if axis in found:
            raise UserError(f"the axis {axis} is given twice in {shown(text)}")
        several = axis == ROWS and re.fullmatch(r"\((.*)\)", extent)
        for word in several[1].split(",") if several and several[1].strip() else [] if several else [extent]:
            match = _EXTENT.fullmatch(word.strip())
            if not match or match[2] in _RESERVED:
                raise UserError(f"cannot read {shown(word.strip())} as the size of {axis}", form)
        if axis in spec.extents and extent != str(spec.extents[axis]):
            raise UserError(f"the spec fixes {axis} at {spec.extents[axis]}")
        found[axis] = extent
    missing = [axis for axis in spec.axes if axis not in found and axis not in spec.extents]
    if missing:
        open_axis = ", ".join(f"{axis}={'rows' if axis == ROWS else axis.lower()}" for axis in missing)
        raise UserError(f"--shape lacks {', '.join(missing)}", f"give a number, or a name for any size: {open_axis}")
    rows = found.pop(ROWS, "()")
    words = rows[1:-1].split(",") if rows.startswith("(") else [rows]
    extents = {axis: str(n) for axis, n in spec.extents.items()} | found
    return tuple(word.strip() for word in words if word.strip()), extents


def read_types(spec: Spec, given: Mapping[str, str]) -> Types:
    """A dtype for every type variable: the given one, or its only one."""
    variables = dict(spec.types)
    for name, dtype in given.items():
        if name not in variables:
            raise UserError(f"{spec.op} has no type variable {shown(name)}", known(name, variables, "it has"))
        if dtype not in variables[name]:
            raise UserError(f"{name} cannot be {shown(dtype)}", known(dtype, variables[name], f"{name} may be"))
    for name, dtypes in variables.items():
        if name not in given and len(dtypes) > 1:
            raise UserError(
                f"--types must say which dtype {name} is", f"one of {', '.join(dtypes)}: {name}={dtypes[0]}"
            )
    return Types(tuple((name, given.get(name, dtypes[0])) for name, dtypes in spec.types))


def read_params(spec: Spec, words: Sequence[str]) -> dict[str, Any]:
    """Parses words such as `eps=1e-5`: the static params, with defaults for the others."""
    static = {p.name: p for p in spec.params if p.static}
    given: dict[str, Any] = {}
    for word in words:
        name, equals, text = (part.strip() for part in word.partition("="))
        if not equals:
            raise UserError(f"cannot read --param {shown(word)}", "write it as in eps=1e-5")
        if name in {p.name for p in spec.params} - static.keys():
            raise UserError(f"{name} is dynamic", "it is an argument of the artifact, behind the inputs")
        if name not in static:
            raise UserError(f"{spec.op} has no param {shown(name)}", known(name, static, "its static params"))
        if name in given:
            raise UserError(f"the param {name} is given twice")
        given[name] = _value(static[name], text)
    for name, param in static.items():
        if name not in given and param.default is None:
            raise UserError(
                f"{spec.op} needs the {param.kind} param {name}",
                f"as in --param {name}={'true' if param.kind == 'bool' else 1}",
            )
    return {name: given.get(name, param.default) for name, param in static.items()}


def _value(param: Param, text: str) -> float | int | bool:
    read: dict[str, Callable[[str], Any]] = {
        "float": float, "int": int, "bool": lambda word: {"true": True, "false": False}[word.lower()]
    }  # fmt: skip
    try:
        value = read[param.kind](text)
        if not fits(param.kind, value):
            raise UserError(f"the param {param.name} is an int of 32 bits, and {text} is out of its range")
        return value
    except (ValueError, KeyError):
        kind = "true or false" if param.kind == "bool" else f"a number of type {param.kind}"
        raise UserError(f"the param {param.name} is {kind}, not {shown(text)}") from None


def export(op: AnyOp, wanted: Wanted) -> tuple[bytes, dict[str, Any]]:
    """The artifact, and its description for --json. Raises `UserError` where there is no kernel."""
    spec, types = op.spec, wanted.types
    missing = lacks(op, types, wanted.arch)
    if missing:
        raise UserError(missing)
    wide = any(DTYPES[types.dtype(a)].size == 8 for a in spec.arrays)
    with jax.enable_x64(wide), _environment(wanted.arch):
        axes = _axes(wanted)
        for name, extent in ((ROWS, math.prod(axes.rows)), *axes.extents.items()):
            if not isinstance(extent, int) and views.exceeds(extent):  # a number: whether its kernel takes it
                raise UserError(f"{spec.op}: {views.too_many(extent, name)}")
        how, left = _launch(op, types, axes), op.left_to_xla(types, axes)
        arguments = _arguments(spec, wanted, axes)
        with _open_extents(op, wanted):
            made = _exported(op, wanted, arguments)
            data = bytes(made.serialize(vjp_order=int(wanted.vjp)))
            forward = _kernels(made)
            backward = _kernels(made.vjp()) - forward if wanted.vjp else set()
    assert bool(forward) != bool(left), f"the artifact of {spec.op} holds {len(forward)} kernels"
    names, constraints = _open(wanted)
    outputs = {a.name: (types.dtype(a), _words(views.user_shape(a, axes))) for a in spec.outputs}
    inputs = {name: (str(x.dtype), _words(x.shape)) for name, x in arguments.items()}
    return data, {
        "op": spec.op,
        "bytes": len(data),
        "arch": wanted.arch,
        "platforms": list(wanted.platforms),
        "types": dict(types.variables),
        "params": dict(wanted.params),
        "inputs": [{"name": n, "dtype": dtype, "shape": shape} for n, (dtype, shape) in inputs.items()],
        "outputs": [{"name": n, "dtype": dtype, "shape": shape} for n, (dtype, shape) in outputs.items()],
        "symbolic": names,
        "constraints": constraints,
        "launch": {} if left else dataclasses.asdict(how),
        "left_to_xla": left,
        "kernels": len(forward),
        "vjp": wanted.vjp,
        "vjp_kernels": len(backward),
        "x64": wide,
        "jax": jax.__version__,
        "calling_convention": made.calling_convention_version,
    }


def as_text(report: Mapping[str, Any], path: Path) -> str:
    """The description of an artifact as text."""
    lines = [f"wrote {named(path)}: {report['bytes']} bytes for {report['arch']} on {', '.join(report['platforms'])}"]
    for arrow, arrays in (("", report["inputs"]), ("-> ", report["outputs"])):
        lines += [f"  {arrow}{a['name']}: {a['dtype']}[{', '.join(a['shape'])}]" for a in arrays]
    if report["constraints"]:
        lines.append(f"  where {', '.join(report['constraints'])}")
    if report["left_to_xla"]:
        lines.append(f"  as XLA's form, which is faster: {report['left_to_xla']}")
    if report["vjp"]:
        lines.append(f"  with its VJP, {'a kernel too' if report['vjp_kernels'] else 'which is left to XLA'}")
    return "\n".join(lines)


def _launch(op: AnyOp, types: Types, axes: Axes) -> Any:
    try:
        return op.default_launch(types, axes)
    except UserError as error:
        raise UserError(f"{op.spec.op}: {error.message}", error.hint) from None


@contextlib.contextmanager
def _environment(arch: str) -> Iterator[None]:
    """A context in which calls that name no implementation are compiled for the architecture, and not interpreted."""
    before = {name: os.environ.pop(name, None) for name in ("CUTE_DSL_ARCH", "CODEGEN_INTERPRET")}
    os.environ["CUTE_DSL_ARCH"] = arch
    try:
        yield
    finally:
        del os.environ["CUTE_DSL_ARCH"]
        os.environ.update({name: value for name, value in before.items() if value is not None})


@contextlib.contextmanager
def _open_extents(op: AnyOp, wanted: Wanted) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a jnp function that needs a concrete size, whatever exception JAX raises for it
        if "onclusive" not in type(error).__name__:
            raise
        what = "the jnp form or the VJP" if wanted.vjp else "the jnp form"
        hint = f"give a number for each of {', '.join(_open(wanted)[0])}, or leave out --vjp and the platform cpu"
        raise UserError(f"JAX cannot export {what} of {op.spec.op} for unknown sizes", hint) from None


def _axes(wanted: Wanted) -> Axes:
    """Sizes for JAX: symbols of one scope, or numbers."""
    words = (*wanted.rows, *wanted.extents.values())
    dims = jax.export.symbolic_shape(",".join(words)) if words else ()
    count = len(wanted.rows)
    return Axes(tuple(dims[:count]), dict(zip(wanted.extents, dims[count:], strict=True)))


def _arguments(spec: Spec, wanted: Wanted, axes: Axes) -> dict[str, jax.ShapeDtypeStruct]:
    """The artifact's arguments, in order."""

    def described(array: Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(views.user_shape(array, axes), wanted.types.dtype(array))

    found = {a.name: described(a) for a in spec.inputs if a.name not in wanted.left_out}
    wide = any(wanted.types.dtype(a) == "float64" for a in spec.inputs if a.name in found)
    compute = "float64" if wide else "float32"
    return found | {p.name: jax.ShapeDtypeStruct((), p.dtype(compute)) for p in spec.dynamic_params}


def _exported(op: AnyOp, wanted: Wanted, arguments: Mapping[str, jax.ShapeDtypeStruct]) -> jax.export.Exported:
    import cutlass.jax

    bound = {a.dtype for a in op.spec.inputs if a.name not in wanted.left_out}
    chosen = {name: dtype for name, dtype in wanted.types.variables if name not in bound}

    def call(*values: Any) -> Any:
        given = dict(zip(arguments, values, strict=True)) | dict(wanted.params) | chosen
        outputs = op(**given)  # a kernel for CUDA, as `_launch` has checked; the backward is one where it has a kernel
        return tuple(outputs) if len(op.spec.outputs) > 1 else outputs

    call.__name__ = op.spec.op
    checks = cutlass.jax.get_export_disabled_safety_checks()
    return jax.export.export(jax.jit(call), platforms=wanted.platforms, disabled_checks=checks)(*arguments.values())


def _kernels(held: jax.export.Exported) -> set[str]:
    """The launchers of an artifact, by a hash of each."""
    return set(_CUSTOM_CALL.findall(held.mlir_module()))


def _words(shape: Sequence[Any]) -> list[str]:
    return [str(n) for n in shape]


def _open(wanted: Wanted) -> tuple[list[str], list[str]]:
    """The names of sizes, and the constraints on sizes, which JAX checks on a call."""
    constraints: dict[str, None] = {}
    names: dict[str, None] = {}
    for axis, word in (*((ROWS, row) for row in wanted.rows), *wanted.extents.items()):
        factor, name = _EXTENT.fullmatch(word).groups()  # type: ignore[union-attr]
        if name:
            names[name] = None
            constraints[f"{name} >= 1"] = None
        if factor:
            constraints[f"{axis} % {factor} == 0"] = None
    return list(names), list(constraints)
