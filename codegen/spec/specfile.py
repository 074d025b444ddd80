"""Reads a spec file to a `Spec`: the keys of the language, the forms of their values, and their places.

It reads trees of YAML (`text.py`), or of the data that a generated module embeds (`embedding.py`), and collects all errors
of a file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from codegen.errors import Diagnostic, Span, SpecError, known, nearest, shown
from codegen.graph.names import NAME, op_name_error
from codegen.graph.nodes import DTYPES, dtypes_of
from codegen.spec.declarations import Declarations
from codegen.spec.embedding import from_data
from codegen.spec.notation import as_kind
from codegen.spec.spec import Array, Axis, Param, Spec
from codegen.spec.tree import Mapping, Scalar, Sequence, Tree
from codegen.targets import ARCHITECTURES

KEYS = (
    "op", "summary", "types", "inputs", "outputs", "params", "chain", "reference", "grad", "aliases", "save", "math",
    "tolerance", "domain", "schedule", "bench",
)  # fmt: skip
POSITIONS = r"index\([A-Z]\w*(, [A-Z]\w*)*\)"  # a domain: along an axis, or along several
REQUIRED = ("op", "summary", "inputs", "outputs", "chain", "reference")


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
            message = f"cannot read the file: {error.strerror or error}"
            raise SpecError([Diagnostic(Span(str(path)), message)]) from None
    from codegen.spec.text import parse_yaml  # needs PyYAML

    tree, repeated = parse_yaml(str(path), data)
    reader = _Reader(tree, path)
    spec = reader.spec()
    return spec, [*repeated, *reader.diagnostics]


class _Reader(Declarations):
    """Reads a spec's keys. It has a method for each key."""

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

    def grad(self, inputs: tuple[Array, ...], params: tuple[Param, ...]) -> str | tuple[tuple[str, Scalar], ...]:
        value = self.values.get("grad")
        floating = any(DTYPES[dtypes_of(a.dtype, self.types)[0]].kind == "float" for a in inputs)
        floating = floating or any(p.kind == "float" and not p.static for p in params)
        default = "auto" if floating or not inputs else "none"
        if value is None:
            return default
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
        return tuple(formulas) or default

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
                value.value in ("positive", "nonzero", "finite") or re.fullmatch(POSITIONS, value.value)
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
