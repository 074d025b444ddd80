"""Reads what a spec declares: type variables, arrays and parameters."""

from __future__ import annotations

import re
from pathlib import Path

from codegen.errors import UserError, known, shown
from codegen.graph.names import KERNEL_NAMES, RESERVED, name_error
from codegen.graph.nodes import DTYPES
from codegen.spec.fields import Fields
from codegen.spec.notation import as_kind, kind_of, known_type, parse_array
from codegen.spec.spec import Array, Param, fits
from codegen.spec.tree import Mapping, Scalar, Sequence, Tree


class Declarations(Fields):
    """Reads the keys `types`, `inputs`, `outputs` and `params`."""

    def __init__(self, tree: Mapping, path: Path):
        super().__init__(tree, path)
        self.types: dict[str, tuple[str, ...]] = {}
        self.taken: dict[str, str] = {}  # name -> what it names, for clashes between arrays and params

    def name(self, scalar: Scalar, what: str, also: frozenset[str] = frozenset()) -> bool:
        """Whether a scalar is a name that a generated file may use for `what`; reports an error where not."""
        name = scalar.value
        error = name_error(name, what, also)
        if error is None and name in self.taken:
            error = UserError(f"{name!r} already names {self.taken[name]}", "give each its own name")
        if error is not None:
            self.error(scalar.span, error.message, error.hint)
            return False
        self.taken[name] = what
        return True

    def read_types(self) -> dict[str, tuple[str, ...]]:
        types: dict[str, tuple[str, ...]] = {}
        for key, value in self.mapping("types"):
            types[key.value] = ("float32",)  # where it is wrong: avoids a second error where it is used
            if not re.fullmatch(r"[A-Z][A-Za-z0-9]{0,15}", key.value) or key.value in RESERVED:
                hint = "type variables are named like T: a capital letter first, at most 16 letters and digits"
                self.error(key.span, f"{shown(key.value)} is not a valid name for a type variable", hint)
                continue
            items = value.items if isinstance(value, Sequence) else ()
            names = [item.value for item in items if isinstance(item, Scalar)]
            if not names or len(names) != len(items):
                self.error(value.span, f"{key.value!r} must list dtypes", "as in T: [float32, bfloat16]")
                continue
            for i, (item, name) in enumerate(zip(items, names, strict=True)):
                if name not in DTYPES:
                    self.error(item.span, f"unknown dtype {shown(name)}", known_type(name))
                elif name in names[:i]:
                    self.error(item.span, f"{name!r} is listed twice", "delete one")
            if len({DTYPES[n].kind for n in names if n in DTYPES}) > 1:
                hint = "a variable ranges over floats, over integers or over bool; write an op for each kind"
                self.error(value.span, f"{key.value!r} mixes kinds of types", hint)
            types[key.value] = tuple(dict.fromkeys(n for n in names if n in DTYPES)) or types[key.value]
        return types

    def unused_types(self, arrays: tuple[Array, ...]) -> None:
        used = {array.dtype for array in arrays}
        for key, _ in self.mapping("types") if not self.diagnostics else ():
            if key.value not in used:
                hint = "use it in an array, or delete it"
                self.error(key.span, f"the type variable {key.value!r} is not used by any array", hint)

    def arrays(self, key: str, inputs: bool) -> tuple[Array, ...]:
        found: list[Array] = []
        items = self.mapping(key)
        value = self.values.get(key)
        if isinstance(value, Mapping) and not items:
            self.error(value.span, f"{key!r} has no array", "add one, as in x: T[..., N]")
        for name, value in items:
            ok = self.name(name, f"an {key[:-1]}", frozenset())
            if not isinstance(value, Scalar):
                self.error(value.span, f"{shown(name.value)} must be an array", "as in x: T[..., N]")
                continue
            try:
                array = parse_array(name.value, value.value, self.types)
            except UserError as error:
                span = value.at(*error.place) if error.place else value.span if value.value else name.span
                self.error(span, error.message, error.hint)
                continue
            if array.default is not None and not inputs:
                self.error(value.span, f"the output {name.value!r} has a default", "only inputs may have one")
            if array.default is None and inputs and found and found[-1].default is not None:
                hint = "inputs are positional: put inputs with a default last"
                self.error(name.span, f"{name.value!r} has no default but follows an input that has one", hint)
            if ok:
                found.append(Array(array.name, array.dtype, array.dims, array.default, name.span))
        if key in self.values and inputs and found and all(a.default is not None for a in found):
            self.error(
                self.keys[key].span, "every input has a default", "at least one must be required: it gives the shape"
            )
        return tuple(found)

    def params(self) -> tuple[Param, ...]:
        found = []
        for name, value in self.mapping("params"):
            # The module's functions have such names
            own = {name.value} if name.value.startswith(f"{self.stem}_") else set()
            if not self.name(name, "a parameter", KERNEL_NAMES | own):
                continue
            self.places["params", name.value] = name.span
            param = self.short_param(name, value) if isinstance(value, Scalar) else self.long_param(name, value)
            if param:
                found.append(param)
        return tuple(found)

    def short_param(self, name: Scalar, value: Scalar) -> Param | None:
        number = self.resolved(value, infinite=True)
        if isinstance(number, bool) or not isinstance(number, int | float):
            hint = "write `alpha: 1.0`, or {type: float|int|bool, default: ..., static: true|false, doc: ...}"
            self.error(value.span if value.value else name.span, f"the parameter {name.value!r} must be a number", hint)
            return None
        kind = kind_of(number)
        self.fits_param(name, kind, number, value, typed=False)
        return Param(name.value, kind, number, static=True, whole=kind == "int")

    def fits_param(self, name: Scalar, kind: str, default: float, place: Scalar, typed: bool) -> None:
        """Reports a default outside a parameter's range."""
        if not fits(kind, default):
            hint = f"its range is {-(2**31)} to {2**31 - 1}" + ("" if typed else f"; write {place.value}.0 for a float")
            self.error(place.span, f"the default {shown(place.value)} of {name.value!r} does not fit 32 bits", hint)

    def long_param(self, name: Scalar, value: Tree) -> Param | None:
        if not isinstance(value, Mapping):
            hint = "write `alpha: 1.0`, or {type: float|int|bool, default: ..., static: true|false, doc: ...}"
            self.error(value.span, f"the parameter {name.value!r} must be a number or a mapping", hint)
            return None
        fields: dict[str, Scalar] = {}
        for key, item in value.items:
            if key.value not in ("type", "default", "static", "doc"):
                hint = known(key.value, ("type", "default", "static", "doc"), "a parameter's keys")
                self.error(key.span, f"unknown key {shown(key.value)}", hint)
            elif not isinstance(item, Scalar):
                self.error(item.span, f"{key.value!r} must be a single value", "not a list or a mapping")
            else:
                fields[key.value] = item
        kind, static, default, doc = "", True, None, ""
        if "type" in fields:
            kind = fields["type"].value
            if kind not in ("float", "int", "bool"):
                self.error(
                    fields["type"].span, f"unknown parameter type {shown(kind)}", "it must be one of float, int, bool"
                )
                return None
        if "static" in fields:
            resolved = self.resolved(fields["static"])
            static = resolved is not False
            if not isinstance(resolved, bool):
                self.error(
                    fields["static"].span, f"'static' is {shown(fields['static'].value)}", "it must be true or false"
                )
        if "default" in fields and (number := self.resolved(fields["default"], kind in ("", "float"))) is not None:
            item = fields["default"]
            kind = kind or kind_of(number)
            default = as_kind(number, kind)
            if default is None:
                hint = {"float": "as in 1.0", "int": "as in 1", "bool": "it must be true or false"}[kind]
                self.error(item.span, f"the default {shown(item.value)} of {name.value!r} is not of type {kind}", hint)
            else:
                self.fits_param(name, kind, default, item, "type" in fields)
        if "doc" in fields:
            doc = self.sentence("doc", fields["doc"])
        whole = kind == "int" and "type" not in fields
        return Param(name.value, kind or "float", default, static, doc, whole)
