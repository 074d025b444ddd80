"""Reads a spec file to a `Spec`: the keys of the language, the forms of their values, and their places.

It reads trees of YAML (`text.py`), or of the data that a generated module embeds (`embedding.py`), and collects all errors
of a file.

Longer than 500 lines: one reader has a method for each key.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from codegen.errors import Diagnostic, Span, SpecError, UserError, known, nearest, shown
from codegen.graph.names import IMPORTED_NAMES, KERNEL_NAMES, NAME, RESERVED, name_error, op_name_error
from codegen.graph.nodes import DTYPES, dtypes_of
from codegen.spec.embedding import from_data
from codegen.spec.notation import as_kind, kind_of, parse_array
from codegen.spec.spec import Array, Axis, Param, Spec, fits
from codegen.spec.tree import LARGEST, Mapping, Scalar, Sequence, Tree
from codegen.targets import ARCHITECTURES

KEYS = (
    "op", "summary", "types", "inputs", "outputs", "params", "chain", "reference", "grad", "aliases", "save", "math",
    "tolerance", "domain", "schedule", "bench",
)  # fmt: skip
REQUIRED = ("op", "summary", "inputs", "outputs", "chain", "reference")
_MAX_LINE = 300  # characters of a summary or a parameter's doc


def load_spec(path: str | Path, data: bytes | str | dict[str, Any] | None = None) -> Spec:
    """Read one spec. Raises `SpecError` with every error of form; expressions are read later."""
    spec, diagnostics = read_spec(path, data)
    if diagnostics or spec is None:
        raise SpecError(diagnostics)
    return spec


def read_spec(
    path: str | Path, data: bytes | str | dict[str, Any] | None = None
) -> tuple[Spec | None, list[Diagnostic]]:
    """A spec and its errors of form. With errors the spec is still returned, if its formulas can be read; a missing formula
    is empty. `data` is the file's content, or a spec as data; by default the file is read. Raises `SpecError` where the
    file is not a YAML mapping."""
    path = Path(path)
    if isinstance(data, dict):
        reader = _Reader(from_data(f"{path} (as built)", data), path)
        return reader.spec(), reader.diagnostics
    if data is None:
        try:
            data = path.read_bytes()
        except OSError as error:
            span = Span(str(path), 1, 1)
            message = f"cannot read the file: {error.strerror or error}"
            raise SpecError([Diagnostic(span, message)]) from None
    from codegen.spec.text import parse_yaml  # needs PyYAML

    tree, repeated = parse_yaml(str(path), data)
    reader = _Reader(tree, path)
    spec = reader.spec()
    return spec, [*repeated, *reader.diagnostics]


class _Reader:
    """Reads the keys of a spec's tree and collects errors."""

    def __init__(self, tree: Mapping, path: Path):
        self.tree, self.path, self.stem = tree, path, path.stem
        self.source = tree.source
        self.values = {key.value: value for key, value in tree.items}
        self.keys = {key.value: key for key, _ in tree.items}
        self.diagnostics: list[Diagnostic] = []
        self.types: dict[str, tuple[str, ...]] = {}
        self.taken: dict[str, str] = {}  # name -> what it names, for clashes between arrays and params
        self.places: dict[tuple[str, str], Span] = {}
        self.unread: set[Span] = set()  # scalars whose error is reported: they get no second one

    def error(self, span: Span, message: str, hint: str = "") -> None:
        if span not in self.unread:
            self.diagnostics.append(self.source.diagnostic(span, message, hint))

    def resolved(self, value: Tree, infinite: bool = False) -> bool | int | float | str | None:
        """The value of a scalar; None for a collection, and for a number outside the range of float64, which is reported.
        `infinite` says whether infinity is allowed instead."""
        try:
            return value.resolve() if isinstance(value, Scalar) else None
        except UserError as error:
            self.error(value.span, error.message, error.hint if infinite else LARGEST)
            self.unread.add(value.span)
            return None

    def spec(self) -> Spec | None:
        """The spec; None where its types, arrays or parameters, which its formulas use, have errors."""
        self.types = self.read_types()
        inputs, outputs = self.arrays("inputs", True), self.arrays("outputs", False)
        params = self.params()
        self.unused_types(inputs + outputs)
        sound = not self.diagnostics and inputs and outputs
        op = self.op()
        meant: list[str] = []
        for key, _ in self.tree.items:
            if key.value not in KEYS:
                self.error(key.span, f"unknown key {shown(key.value)}", known(key.value, KEYS, "a spec's keys"))
                meant += nearest(key.value, KEYS)
        missing = [key for key in REQUIRED if key not in self.values and key not in meant]
        if missing:
            self.error(self.tree.span, f"missing {', '.join(map(repr, missing))}", "see `codegen new` for a start")
        empty = Scalar(self.source, "", "plain", 0, 0)
        spec = Spec(
            path=str(self.path),
            source=self.source,
            op=op or "",
            summary=self.line("summary"),
            types=tuple(self.types.items()),
            inputs=inputs,
            outputs=outputs,
            params=params,
            chain=self.text("chain") or empty,
            reference=self.text("reference") or empty,
            grad=self.grad(inputs, params),
            aliases=self.aliases(inputs, outputs),
            save=self.names("save"),
            math=self.choice("math", ("auto", "precise", "fast"), "auto"),
            tolerance=self.tolerance(),
            domain=self.domain(),
            schedule=self.schedule(),
            bench=self.bench(inputs + outputs) if sound else (),
            places=self.places,
        )
        return spec if sound else None

    # Scalars

    def text(self, key: str) -> Scalar | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Scalar) or not value.value.strip():
            self.error(self.span(key), f"{key!r} must be text", f"write it as `{key}: |` and the lines below it")
            return None
        return value

    def span(self, key: str) -> Span:
        """The place of a key's value, or of the key where there is no value."""
        value = self.values[key]
        return value.span if not isinstance(value, Scalar) or value.value else self.keys[key].span

    def line(self, key: str) -> str:
        value = self.text(key)
        return "" if value is None else self.sentence(key, value)

    def sentence(self, key: str, value: Scalar) -> str:
        """Text on one line."""
        text = " ".join(value.value.split())
        if len(text) > _MAX_LINE:
            hint = f"it has at most {_MAX_LINE}; a `#` comment may be longer"
            self.error(value.span, f"{key!r} has {len(text)} characters", hint)
        return text

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, Scalar) or value.value not in choices:
            got = shown(value.value) if isinstance(value, Scalar) else "a collection"
            self.error(self.span(key), f"{key!r} is {got}", f"it must be one of {', '.join(choices)}")
            return default
        return value.value

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

    def op(self) -> str | None:
        value = self.text("op")
        if value is None:
            return None
        error = op_name_error(value.value)
        if error is not None:
            self.error(value.span, error.message, error.hint)
            return None
        if value.value != self.stem:
            hint = f"rename the file to {value.value}.yaml"
            if op_name_error(self.stem) is None:
                hint += f", or write `op: {self.stem}`"
            self.error(value.span, f"the op {value.value!r} is in a file named {shown(self.stem)}", hint)
        return value.value

    # Mappings

    def mapping(self, key: str) -> tuple[tuple[Scalar, Tree], ...]:
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, Mapping):
            self.error(
                self.span(key), f"{key!r} must be a mapping", f"write `{key}:` and below it one `name: ...` per line"
            )
            return ()
        return value.items

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
                    self.error(item.span, f"unknown dtype {shown(name)}", known(name, DTYPES))
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
            ok = self.name(name, f"an {key[:-1]}", frozenset() if inputs else KERNEL_NAMES | IMPORTED_NAMES)
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
            own = (
                {name.value} if name.value.startswith(f"{self.stem}_") else set()
            )  # the module's functions have such names
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

    def grad(self, inputs: tuple[Array, ...], params: tuple[Param, ...]) -> str | tuple[tuple[str, Scalar], ...]:
        value = self.values.get("grad")
        floating = any(DTYPES[dtypes_of(a.dtype, self.types)[0]].kind == "float" for a in inputs)
        floating = floating or any(p.kind == "float" and not p.static for p in params)
        if value is None:
            return "auto" if floating or not inputs else "none"
        if isinstance(value, Scalar):
            choice = self.choice("grad", ("auto", "none"), "auto")
            if value.value == "auto" and inputs and not floating:
                self.error(
                    value.span,
                    "no input and no dynamic parameter is a float: there is nothing to differentiate",
                    "write `grad: none`",
                )
            return choice
        formulas = []
        for key, item in self.mapping("grad"):
            self.places["grad", key.value] = key.span
            if not isinstance(item, Scalar) or not item.value:
                span = key.span if isinstance(item, Scalar) else item.span
                self.error(span, f"the gradient of {shown(key.value)} must be a formula", "as in x: dy * (y > 0)")
            else:
                formulas.append((key.value, item))
        return tuple(formulas)

    def aliases(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> tuple[tuple[str, str], ...]:
        found: dict[str, str] = {}
        declared = self.declared("inputs"), self.declared("outputs")
        by_input, by_output = {a.name: a for a in inputs}, {a.name: a for a in outputs}
        for key, value in self.mapping("aliases"):
            target, span = "", key.span
            if isinstance(value, Scalar) and value.value:
                target, span = value.value, value.span
            if not target:
                self.error(
                    span,
                    f"the value of {shown(key.value)} must be the name of an input",
                    "as in residual_out: residual",
                )
            elif key.value not in declared[1]:
                self.error(key.span, f"unknown output {shown(key.value)}", known(key.value, declared[1], "the outputs"))
            elif target not in declared[0]:
                self.error(span, f"unknown input {shown(target)}", known(target, declared[0], "the inputs"))
            elif key.value not in by_output or target not in by_input:
                continue  # its error is reported elsewhere
            elif str(by_output[key.value]) != str(by_input[target]):
                message = f"{key.value!r} is {by_output[key.value]} but {target!r} is {by_input[target]}"
                self.error(span, message, "an output can take the buffer of an input of the same type and axes")
            elif target in found.values():
                self.error(span, f"two outputs cannot both take the buffer of {target!r}", "leave one of them out")
            else:
                found[key.value] = target
                self.places["aliases", key.value] = key.span
        return tuple(found.items())

    def names(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key)
        if value is None:
            return ()
        found = []
        for item in value.items if isinstance(value, Sequence) else (value,):
            if not isinstance(item, Scalar) or not NAME.fullmatch(item.value):
                span = item.span if not isinstance(item, Scalar) or item.value else self.keys[key].span
                self.error(span, f"{key!r} must list names of the chain", f"as in `{key}: [rstd]`")
            else:
                self.places[key, item.value] = item.span
                found.append(item.value)
        return tuple(dict.fromkeys(found))

    def tolerance(self) -> tuple[tuple[str, float | str], ...]:
        found: dict[str, float | str] = {}
        items = self.mapping("tolerance")
        for key, value in items:
            resolved = self.resolved(value) if key.value in ("rtol", "atol") else None
            if key.value == "why" and isinstance(value, Scalar):
                found["why"] = self.sentence("why", value)
            elif key.value == "why":
                self.error(value.span, "'why' must be text", "say what error it allows for")
            elif key.value not in ("rtol", "atol"):
                hint = known(key.value, ("rtol", "atol", "why"), "a tolerance's keys")
                self.error(key.span, f"unknown key {shown(key.value)}", hint)
            elif isinstance(resolved, bool) or not isinstance(resolved, int | float) or not 0 <= resolved < 1e6:
                span = key.span if isinstance(value, Scalar) and not value.value else value.span
                self.error(span, f"{key.value!r} must be a number from 0 to 1e6", f"as in {key.value}: 1e-3")
            else:
                found[key.value] = float(resolved)
        if items and not found.get("why") and "why" not in {k.value for k, v in items if not isinstance(v, Scalar)}:
            self.error(self.keys["tolerance"].span, "a tolerance needs a 'why'", "say what error it allows for")
        return tuple(found.items())

    def declared(self, key: str) -> list[str]:
        """The names that a mapping declares, valid or not."""
        value = self.values.get(key)
        return [name.value for name, _ in value.items] if isinstance(value, Mapping) else []

    def domain(self) -> tuple[tuple[str, object], ...]:
        names = [*self.declared("inputs"), *self.declared("params")]
        forms = "a domain is positive, nonzero, finite, [lo, hi] or index(N)"
        found: list[tuple[str, object]] = []
        for key, value in self.mapping("domain"):
            self.places["domain", key.value] = value.span
            if key.value not in names:
                self.error(
                    key.span, f"unknown input {shown(key.value)}", known(key.value, names, "inputs and parameters")
                )
            elif isinstance(value, Sequence):
                bounds = [
                    as_kind(self.resolved(i, infinite=True), "float") for i in value.items if isinstance(i, Scalar)
                ]
                low, high = bounds if len(bounds) == len(value.items) == 2 else (None, None)
                if any(item.span in self.unread for item in value.items):
                    continue
                if low is not None and high is not None and low <= high:
                    found.append((key.value, (low, high)))
                else:
                    self.error(
                        value.span, f"cannot read the bounds of {key.value!r}", "they must be [lo, hi] with lo <= hi"
                    )
            elif isinstance(value, Scalar) and (
                value.value in ("positive", "nonzero", "finite") or re.fullmatch(r"index\([A-Z]\w*\)", value.value)
            ):
                found.append((key.value, value.value))
            else:
                self.error(value.span, f"unknown domain of {key.value!r}", forms)
        return tuple(found)

    def schedule(self) -> tuple[tuple[str, object], ...]:
        """Settings of the launch, or a mapping of them for each architecture."""
        found: list[tuple[str, object]] = []
        for name, value in self.mapping("schedule"):
            if name.value.startswith("sm_"):
                if name.value not in ARCHITECTURES:
                    hint = known(name.value, ARCHITECTURES, "there are")
                    self.error(name.span, f"there is no architecture {shown(name.value)}", hint)
                elif isinstance(value, Mapping):
                    found.append((name.value, tuple((k.value, self.setting(k, v)) for k, v in value.items)))
                else:
                    self.error(value.span, f"{name.value!r} must be a mapping", "as in sm_90a: {threads: 256}")
            else:
                found.append((name.value, self.setting(name, value)))
        return tuple(found)

    def setting(self, name: Scalar, value: Tree) -> object:
        number = self.resolved(value)
        limits = {"threads": (32, 1024), "vector_bytes": (1, 16)}
        if name.value not in limits:
            hint = "a schedule's keys: threads, vector_bytes, or an architecture such as sm_90a with these below it"
            self.error(name.span, f"unknown key {shown(name.value)}", hint)
            return None
        low, high = limits[name.value]
        if (
            isinstance(number, bool)
            or not isinstance(number, int)
            or not low <= number <= high
            or number & (number - 1)
        ):
            span = name.span if isinstance(value, Scalar) and not value.value else value.span
            self.error(
                span, f"{name.value!r} must be a power of two from {low} to {high}", f"as in {name.value}: {high}"
            )
            return None
        return number

    def bench(self, arrays: tuple[Array, ...]) -> tuple[tuple[tuple[str, int], ...], ...]:
        value = self.values.get("bench")
        if value is None:
            return ()
        axes = {axis for array in arrays for axis in array.axes}
        fixed = {axis for array in arrays for dim in array.dims for axis in _fixed(dim)}
        found = []
        for item in value.items if isinstance(value, Sequence) else ():
            sizes: dict[str, int] = {}
            wrong = False
            if not isinstance(item, Mapping):
                self.error(item.span, "a shape must be a mapping", "as in {...: 8192, N: 4096}")
                continue
            for key, size in item.items:
                number = self.resolved(size)
                if key.value not in axes:
                    self.error(key.span, f"unknown axis {shown(key.value)}", known(key.value, axes, "the axes"))
                    wrong = True
                elif isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**40:
                    self.error(size.span, f"the size of {key.value!r} must be a positive integer", "as in N: 4096")
                    wrong = True
                else:
                    sizes[key.value] = number
            missing = sorted(axes - set(sizes) - fixed)
            if missing and not wrong:
                self.error(
                    item.span, f"no size for {', '.join(missing)}", "give every axis a size, as in {...: 8192, N: 4096}"
                )
            found.append(tuple(sizes.items()))
        if not isinstance(value, Sequence) or not value.items:
            self.error(self.span("bench"), "'bench' must be a list of shapes", "as in - {...: 8192, N: 4096}")
        return tuple(found)


def _fixed(dim: Axis) -> list[str]:
    return [name for name, extent in zip(dim.names, dim.extents, strict=False) if extent]
