"""Parses the notation of arrays, such as `T[..., (2 N)] = 0`, to an `Array`. Raises `UserError`, with its place in the text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from codegen.errors import UserError, known, nearest, shown
from codegen.graph.names import AXIS, MAX_NAME, RESERVED
from codegen.graph.nodes import DTYPES, ROWS, dtypes_of
from codegen.spec.spec import Array, Axis
from codegen.spec.tree import LARGEST, resolve

_MAX_DIMS = 16

# What dtypes are called elsewhere
_ELSEWHERE = {
    "float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64", "boolean": "bool",
    **{f"{short}{bits}": f"{name}{bits}" for short, name in (("f", "float"), ("fp", "float")) for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (4, 8, 16, 32, 64)}, **{f"u{bits}": f"uint{bits}" for bits in (4, 8, 16, 32)},
    "bf16": "bfloat16", "fp8": "float8_e4m3fn", "float8": "float8_e4m3fn", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
    "fp4": "float4_e2m1fn", "float4": "float4_e2m1fn",
}  # fmt: skip


def known_type(name: str, types: Iterable[str] = ()) -> str:
    """The hint for an unknown type: the type variables, the dtypes and the nearest one."""
    if name in _ELSEWHERE:
        return f"it is {_ELSEWHERE[name]} here"
    if re.fullmatch(r"[A-Z][A-Za-z0-9]{0,15}", name) and not any(nearest(name, types)):
        return f"a type variable is declared above the arrays: `types: {{{name}: [float32, bfloat16]}}`"
    return known(name, [*types, *DTYPES], "types")


def parse_dims(text: str) -> tuple[Axis, ...]:
    """The axes of `..., (2 N)`. Raises `UserError`."""
    dims: list[Axis] = []
    for start, word in _split_dims(text):
        place = (0, start, len(word))
        try:
            dim = _dim(word)
        except UserError as error:
            error.place = place
            raise
        if ROWS in dim.names and dims:
            raise UserError("'...' must be the first axis", "it means all leading axes: write T[..., N]", place)
        for name in dim.names:
            if any(name in other.names for other in dims) or dim.names.count(name) > 1:
                raise UserError(f"axis {name!r} is repeated", "give the second axis another name", place)
        if dim.parts is not None and any(other.parts is not None for other in dims):
            hint = "split the array into two inputs, or name one of the axes"
            raise UserError("at most one axis may have parts", hint, place)
        dims.append(dim)
        if len(dims) > _MAX_DIMS:
            raise UserError(f"an array has at most {_MAX_DIMS} axes", "`...` is any number of leading axes", place)
    return tuple(dims)


def _split_dims(text: str) -> list[tuple[int, str]]:
    """The words between commas outside parentheses, and their starts."""
    words, depth, start = [], 0, 0
    for i, char in enumerate(text + ","):
        depth += (char == "(") - (char == ")")
        if char == "," and depth <= 0:
            word = text[start:i]
            words.append((start + len(word) - len(word.lstrip()), word.strip()))
            start = i + 1
    if depth > 0 or (text.strip() and any(not word for _, word in words)):
        hint = "axes are separated by commas: T[..., N], T[..., (2 N)], T[]"
        raise UserError(f"cannot read the axes {shown(f'[{text}]')}", hint, (0, 0, len(text)))
    return words if text.strip() else []


def _dim(word: str) -> Axis:
    if word.startswith("("):
        return _group(word)
    if _is_number(word):
        return Axis((), parts=_parts(word))
    name, equals, extent = word.partition("=")
    if equals:
        return Axis(
            (_axis(name.strip()),), extents=(_size(name.strip(), extent.strip(), "an axis of a fixed size is K=8"),)
        )
    return Axis((word if word == ROWS else _axis(word),), extents=(None,))


def _size(name: str, text: str, form: str) -> int:
    if not _is_number(text) or len(text) > 9 or not 1 <= int(text) <= 65536:
        raise UserError(f"the size of {shown(name)} must be a number from 1 to 65536", form)
    return int(text)


def _group(word: str) -> Axis:
    """The axes and parts of `(2 N)`, `(B G=128)`, `(H G)`, `(3 H G)` or `(C A=2 B=2)`: at most two axes have no size."""
    form = "a group is (2 N) for halves, (N 2) for pairs, (B G=128) or (G=32 C) with sizes, or (H G) for groups"
    inner = word[1:-1].split() if word.endswith(")") and "," not in word else []
    numbers = [place for place, item in enumerate(inner) if _is_number(item)]
    names = [item for item in inner if not _is_number(item)]
    open_names = sum("=" not in name for name in names)
    ends = numbers in ([], [0], [len(inner) - 1])
    if not ends or not names or len(inner) < 2 or open_names > 2:
        parted = "parts of blocks are (2 B G=128) for halves, and (B G=128 2) for pairs"
        hint = parted if numbers and len(names) > 1 else form
        raise UserError(f"cannot read the group {shown(word)}", hint)
    axes, extents = [], []
    for item in names:
        name, equals, extent = item.partition("=")
        axes.append(_axis(name))
        extents.append(_size(name, extent, form) if equals else None)
    parts = _parts(inner[numbers[0]]) if numbers else None
    return Axis(tuple(axes), parts, numbers != [len(inner) - 1], tuple(extents))


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit()


def _parts(word: str) -> int:
    count = int(word) if len(word) < 6 else 1000
    if not 1 <= count <= 64:
        longer = f"; a longer axis has a name: N={word}" if count > 64 and len(word) < 10 else ""
        raise UserError(f"an axis of {word[:12]} parts", f"an axis has 1 to 64 parts{longer}")
    return count


def _axis(word: str) -> str:
    if not AXIS.fullmatch(word) or len(word) > MAX_NAME or word in RESERVED:
        raise UserError(f"{shown(word)} is not a valid name for an axis", _axis_meant(word))
    return word


def _axis_meant(word: str) -> str:
    """The hint for a wrong name of an axis."""
    if parts := re.fullmatch(r"([0-9]{1,2}) ?\*? ?([A-Z][A-Za-z0-9]*)", word):
        return f"write ({parts[1]} {parts[2]})"
    capital = word[:1].upper() + word[1:]
    if AXIS.fullmatch(capital) and len(capital) <= MAX_NAME and capital not in RESERVED:
        return f"an axis begins with a capital letter: write {capital}"
    return "axes are named like N, K or Heads"


def _array_meant(name: str, text: str, types: dict[str, tuple[str, ...]]) -> str:
    """The hint for a text that is no array: the nearest text that is one."""
    near = re.sub(r"^(?:\w+\.)+", "", text.strip().rstrip(","))
    near = re.sub(r"^(\w+) ?\(([^()]*)\)", r"\1[\2]", near)
    near += "]" if near.count("[") > near.count("]") else ""
    if near in types or near in DTYPES:
        return f"write {near}[N] for one axis, {near}[] for a scalar"
    try:
        if near != text:
            parse_array(name, near, types)
            return f"write {near}"
    except UserError:
        pass
    return "an array is DTYPE[axes], as in T[..., N] or float32[]"


def parse_array(name: str, text: str, types: dict[str, tuple[str, ...]]) -> Array:
    """The `Array` of `T[..., N] = 0`. Raises `UserError`."""
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*\[(.*)\]\s*(?:=\s*(.+?))?\s*", text)
    if not match:
        raise UserError(f"cannot read {shown(text)} as an array", _array_meant(name, text, types))
    dtype, dims, default = match.groups()
    part = 1
    try:
        if dtype not in types and dtype not in DTYPES:
            raise UserError(f"unknown type {shown(dtype)}", known_type(dtype, types), (0, 0, len(dtype)))
        part = 2
        array = Array(name, dtype, parse_dims(dims))
        part = 3
        return array if default is None else Array(name, dtype, array.dims, _default(array, default, types))
    except UserError as error:
        _, column, length = error.place or (0, 0, len(default))
        error.place = (0, match.start(part) + column, length)
        raise


def _default(array: Array, text: str, types: dict[str, tuple[str, ...]]) -> float | int | bool:
    dtypes = [DTYPES[name] for name in dtypes_of(array.dtype, types)]
    kind = dtypes[0].kind
    value = {"inf": float("inf"), "+inf": float("inf"), "-inf": -float("inf"), "nan": float("nan")}.get(text.lower())
    try:
        value = as_kind(resolve(text) if value is None else value, kind)
    except UserError as error:
        error.hint = error.hint if kind == "float" else LARGEST
        raise
    if value is None:
        example = {"bool": "T[N] = true", "int": "T[N] = 0", "float": "T[N] = 1.0"}[kind]
        raise UserError(
            f"the default {shown(text)} of {array.name!r} is not of type {kind}", f"write it as in {example}"
        )
    for dtype in dtypes:
        if kind == "int" and not dtype.low <= value <= dtype.high:
            hint = f"its range is {dtype.low} to {dtype.high}"
            raise UserError(f"the default {shown(text)} of {array.name!r} does not fit {dtype.name}", hint)
    return value


def kind_of(value: object) -> str:
    """The kind of a scalar's value: a whole number is an int; a value that is not a number counts as a float."""
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"


def as_kind(value: object, kind: str) -> float | int | bool | None:
    """A value converted to this kind, or None where it is not of this kind."""
    if isinstance(value, bool) or kind == "bool":
        return value if isinstance(value, bool) and kind == "bool" else None
    if isinstance(value, int | float) and (kind == "float" or isinstance(value, int)):
        return float(value) if kind == "float" else value
    return None
