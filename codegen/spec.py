"""A spec file as a frozen value: the keys of the language, their forms, and the places of what they hold.

Reads YAML trees (`text.py`), writes `Spec`. Expressions stay text here: `formula.py` reads them.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, field
from pathlib import Path

from codegen.errors import Diagnostic, Mistake, Span, SpecError, known
from codegen.ir import DTYPES, ROWS
from codegen.text import Mapping, Scalar, Sequence, Source, Tree, parse_yaml

KEYS = (
    "op", "summary", "types", "inputs", "outputs", "params", "chain", "reference", "grad", "aliases", "save", "math",
    "tolerance", "domain", "schedule", "bench",
)  # fmt: skip
REQUIRED = ("op", "summary", "inputs", "outputs", "chain", "reference")

# Names that generated files use at module level, and Python's own that must keep their meaning there.
RESERVED = frozenset(
    "cuda cutlass cute jax jnp device runtime compute int_compute approx vec stream implementation NamedTuple "
    "print range len tuple list dict set int float bool str bytes object type super self None True False".split()
)
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_AXIS = re.compile(r"[A-Z][A-Za-z0-9_]*")
_MAX_NAME = 64


@dataclass(frozen=True)
class Axis:
    """One array dimension as written: a named axis, the rows, parts of an axis, or a split in two axes."""

    names: tuple[str, ...]  # the axes it holds, outer first; empty for an integer axis
    parts: int | None = None  # `(2 N)`, `(N 2)` and integer axes: how many parts
    parts_first: bool = True  # `(2 N)`: the parts are halves; `(N 2)`: they are interleaved
    extents: tuple[int | None, ...] = ()  # known extents of `names`: `(B G=128)` is (None, 128)

    def __str__(self) -> str:
        if self.parts is not None:
            if not self.names:
                return str(self.parts)
            return f"({self.parts} {self.names[0]})" if self.parts_first else f"({self.names[0]} {self.parts})"
        words = [n if e is None else f"{n}={e}" for n, e in zip(self.names, self.extents, strict=True)]
        return words[0] if len(words) == 1 and self.extents[0] is None else f"({' '.join(words)})"


@dataclass(frozen=True)
class Array:
    """An input or an output: `x: T[..., N] = 0`."""

    name: str
    dtype: str  # a type variable or a dtype's name
    dims: tuple[Axis, ...]
    default: float | int | bool | None = None
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def axes(self) -> tuple[str, ...]:
        """The named axes (and `...`) it has, parts left out."""
        return tuple(name for dim in self.dims for name in dim.names)

    @property
    def parts(self) -> int | None:
        return next((dim.parts for dim in self.dims if dim.parts is not None), None)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims))}]"


@dataclass(frozen=True)
class Param:
    """A scalar argument; a static one is compiled in, a dynamic one may be traced."""

    name: str
    kind: str
    default: float | int | bool | None
    static: bool
    doc: str = ""


@dataclass(frozen=True)
class Spec:
    path: str
    source: Source = field(compare=False, repr=False)
    op: str
    summary: str
    types: tuple[tuple[str, tuple[str, ...]], ...]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    params: tuple[Param, ...]
    chain: Scalar = field(compare=False)
    reference: Scalar = field(compare=False)
    grad: str | tuple[tuple[str, Scalar], ...] = "auto"
    aliases: tuple[tuple[str, str], ...] = ()
    save: tuple[str, ...] = ()
    math: str = "auto"
    tolerance: tuple[tuple[str, float | str], ...] = ()
    domain: tuple[tuple[str, object], ...] = ()
    schedule: tuple[tuple[str, object], ...] = ()
    bench: tuple[tuple[tuple[str, int], ...], ...] = ()

    @property
    def arrays(self) -> tuple[Array, ...]:
        return self.inputs + self.outputs

    def array(self, name: str) -> Array:
        return next(a for a in self.arrays if a.name == name)

    def dtypes(self, array: Array | str) -> tuple[str, ...]:
        """The dtypes an array may have."""
        name = array if isinstance(array, str) else array.dtype
        return dict(self.types).get(name, (name,))

    def kind(self, array: Array) -> str:
        return DTYPES[self.dtypes(array)[0]].kind

    @property
    def extents(self) -> dict[str, int]:
        """Axes whose extent the spec fixes, such as G in `(B G=128)`."""
        return {n: e for a in self.arrays for d in a.dims for n, e in zip(d.names, d.extents, strict=False) if e}

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis, in the order in which the spec orders them: `...` first, then outputs', then inputs'."""
        return axis_order(tuple(a.axes for a in (*self.outputs, *self.inputs)))


def axis_order(rows: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """One order of axes that agrees with each array's own: longest arrays first, others slotted in."""
    order: list[str] = []
    for axes in sorted(rows, key=len, reverse=True):
        at = 0
        for axis in axes:
            if axis in order:
                at = order.index(axis) + 1
            else:
                order.insert(at, axis)
                at += 1
    return tuple(sorted(order, key=lambda axis: axis != ROWS))


def parse_dims(text: str) -> tuple[Axis, ...]:
    """`..., (2 N)` to axes. Raises `Mistake`."""
    if not text.strip():
        return ()
    dims = []
    for position, word in enumerate(_split_dims(text)):
        if word == ROWS:
            if position:
                raise Mistake("'...' must be the first axis", "it stands for all leading axes: write T[..., N]")
            dims.append(Axis((ROWS,), extents=(None,)))
        elif word.startswith("("):
            dims.append(_group(word))
        elif word.isdigit():
            dims.append(Axis((), parts=_parts(word)))
        else:
            dims.append(Axis((_axis(word),), extents=(None,)))
    names = [name for dim in dims for name in dim.names]
    for name in names:
        if names.count(name) > 1:
            raise Mistake(f"axis {name!r} stands twice", "give the second axis a name of its own")
    if sum(dim.parts is not None for dim in dims) > 1:
        raise Mistake("at most one axis may have parts", "split the array in two inputs, or name one of the axes")
    return tuple(dims)


def _split_dims(text: str) -> list[str]:
    words, depth, start = [], 0, 0
    for i, char in enumerate(text + ","):
        depth += (char == "(") - (char == ")")
        if char == "," and depth <= 0:
            words.append(text[start:i].strip())
            start = i + 1
    if "" in words or depth > 0:
        raise Mistake(f"cannot read the axes [{text}]", "axes are separated by commas: T[..., N], T[..., (2 N)], T[]")
    return words


def _group(word: str) -> Axis:
    form = "a group is (2 N) for halves, (N 2) for interleaved pairs, or (B G=128) for blocks of a fixed extent"
    inner = word[1:-1].split() if word.endswith(")") else []
    if len(inner) != 2 or "," in word:
        raise Mistake(f"cannot read the group {word!r}", form)
    first, second = inner
    if first.isdigit() and not second.isdigit():
        return Axis((_axis(second),), _parts(first), True, (None,))
    if second.isdigit() and not first.isdigit():
        return Axis((_axis(first),), _parts(second), False, (None,))
    if "=" in second and "=" not in first and not first.isdigit():
        name, _, extent = second.partition("=")
        if not extent.isdigit() or not 1 <= int(extent[:9]) <= 65536 or len(extent) > 9:
            raise Mistake(f"the extent of {name!r} must be a number from 1 to 65536", form)
        return Axis((_axis(first), _axis(name)), extents=(None, int(extent)))
    raise Mistake(f"cannot read the group {word!r}", form)


def _parts(word: str) -> int:
    count = int(word) if len(word) < 6 else 1000
    if not 1 <= count <= 64:
        raise Mistake(f"an axis of {word[:12]} parts", "a count of parts is a number from 1 to 64; name a longer axis")
    return count


def _axis(word: str) -> str:
    if not _AXIS.fullmatch(word) or len(word) > _MAX_NAME:
        raise Mistake(f"{word[:_MAX_NAME]!r} is no name for an axis", "axes are named like N, K or Heads")
    return word


def parse_array(name: str, text: str, types: dict[str, tuple[str, ...]]) -> Array:
    """`T[..., N] = 0` to an `Array`. Raises `Mistake`."""
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*\[(.*)\]\s*(?:=\s*(.+?))?\s*", text)
    if not match:
        raise Mistake(f"cannot read {text[:80]!r} as an array", "an array is DTYPE[axes], as in T[..., N] or float32[]")
    dtype, dims, default = match.groups()
    if dtype not in types and dtype not in DTYPES:
        raise Mistake(f"unknown type {dtype!r}", known(dtype, [*types, *DTYPES]))
    array = Array(name, dtype, parse_dims(dims))
    return array if default is None else Array(name, dtype, array.dims, _default(array, default, types))


def _default(array: Array, text: str, types: dict[str, tuple[str, ...]]) -> float | int | bool:
    kind = DTYPES[types.get(array.dtype, (array.dtype,))[0]].kind
    try:
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        number = int(text) if kind == "int" else float(text)
    except (KeyError, ValueError):
        raise Mistake(f"the default {text[:40]!r} of {array.name!r} is no {kind}", "write it as in T[N] = 0") from None
    if kind == "int" and not -(2**31) <= number < 2**31:
        raise Mistake(f"the default {text[:40]} of {array.name!r} does not fit 32 bits")
    return number


def load_spec(path: str | Path, data: bytes | str | None = None) -> Spec:
    """Read one spec. Raises `SpecError` with every mistake in its form; expressions are read later."""
    path = Path(path)
    if data is None:
        try:
            data = path.read_bytes()
        except OSError as error:
            span = Span(str(path), 1, 1)
            raise SpecError([Diagnostic(span, f"cannot read the file: {error.strerror or error}")]) from None
    return _Reader(parse_yaml(str(path), data), path.stem).spec()


class _Reader:
    """Takes a spec's tree apart, collecting mistakes as it goes."""

    def __init__(self, tree: Mapping, stem: str):
        self.tree, self.stem = tree, stem
        self.source = tree.source
        self.values = {key.value: value for key, value in tree.items}
        self.keys = {key.value: key for key, _ in tree.items}
        self.diagnostics: list[Diagnostic] = []
        self.types: dict[str, tuple[str, ...]] = {}
        self.taken: dict[str, str] = {}  # name -> what it is, for clashes between arrays, params and types

    def mistake(self, span: Span, message: str, hint: str = "") -> None:
        self.diagnostics.append(self.source.diagnostic(span, message, hint))

    def spec(self) -> Spec:
        for key, _ in self.tree.items:
            if key.value not in KEYS:
                self.mistake(key.span, f"unknown key {key.value[:60]!r}", known(key.value, KEYS, "a spec's keys"))
        missing = [key for key in REQUIRED if key not in self.values]
        if missing:
            self.mistake(self.tree.span, f"missing {', '.join(map(repr, missing))}", "see `codegen new` for a start")
        op = self.op()
        summary = self.line("summary")
        self.types = self.read_types()
        inputs, outputs = self.arrays("inputs", True), self.arrays("outputs", False)
        params = self.params()
        chain, reference = self.text("chain"), self.text("reference")
        fields = {
            "grad": self.grad(),
            "aliases": self.aliases(inputs, outputs),
            "save": self.names("save"),
            "math": self.choice("math", ("auto", "precise", "fast"), "auto"),
            "tolerance": self.tolerance(),
            "domain": self.domain(inputs, params),
            "schedule": self.plain("schedule"),
            "bench": self.bench(inputs + outputs),
        }
        self.unused_types(inputs + outputs)
        if self.diagnostics:
            raise SpecError(self.diagnostics)
        assert op and summary is not None and chain and reference
        return Spec(
            self.source.path, self.source, op, summary, tuple(self.types.items()), inputs, outputs, params, chain,
            reference, **fields,
        )  # fmt: skip

    # Scalars

    def text(self, key: str) -> Scalar | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Scalar) or not value.value.strip():
            self.mistake(_span(value), f"{key!r} must be text", f"write it as `{key}: |` and the lines below it")
            return None
        return value

    def line(self, key: str) -> str | None:
        value = self.text(key)
        if value is None:
            return None
        text = " ".join(value.value.split())
        if len(text) > 300:
            self.mistake(value.span, f"{key!r} has {len(text)} characters; one sentence has at most 300")
        return text

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, Scalar) or value.value not in choices:
            got = value.value[:60] if isinstance(value, Scalar) else "a collection"
            self.mistake(_span(value), f"{key!r} is {got!r}", f"it is one of {', '.join(choices)}.")
            return default
        return value.value

    def name(self, scalar: Scalar, what: str) -> bool:
        """Whether a scalar is a name that a generated file may use for `what`; says why not."""
        name = scalar.value
        if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
            hint = f"names are lower-case letters, digits and underscores, at most {_MAX_NAME}, a letter first"
            self.mistake(scalar.span, f"{name[:80]!r} is no name for {what}", hint)
        elif keyword.iskeyword(name) or name in RESERVED:
            self.mistake(scalar.span, f"{name!r} cannot name {what}: Python or the generated file uses it itself")
        elif name in self.taken:
            self.mistake(scalar.span, f"{name!r} already names {self.taken[name]}", "give each its own name")
        else:
            self.taken[name] = what
            return True
        return False

    def op(self) -> str | None:
        value = self.text("op")
        if value is None or not self.name(value, "an op"):
            return None
        del self.taken[value.value]  # an op and its array may share a name: they never meet in one scope
        if value.value != self.stem:
            hint = f"rename the file to {value.value}.yaml, or write `op: {self.stem}`"
            self.mistake(value.span, f"the op {value.value!r} stands in a file named {self.stem!r}", hint)
        return value.value

    # Mappings

    def mapping(self, key: str, needed: bool = False) -> tuple[tuple[Scalar, Tree], ...]:
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, Mapping) or (needed and not value.items):
            self.mistake(_span(value), f"{key!r} must be a mapping", f"write it as `{key}:` and one `name: ...` a line")
            return ()
        return value.items

    def read_types(self) -> dict[str, tuple[str, ...]]:
        types: dict[str, tuple[str, ...]] = {}
        for key, value in self.mapping("types"):
            if not re.fullmatch(r"[A-Z][A-Za-z0-9]{0,15}", key.value) or key.value in DTYPES:
                self.mistake(key.span, f"{key.value[:60]!r} is no type variable", "type variables are named like T")
                continue
            items = value.items if isinstance(value, Sequence) else ()
            names = [item.value for item in items if isinstance(item, Scalar)]
            if not names or len(names) != len(items):
                self.mistake(_span(value), f"{key.value!r} must list dtypes", "as in T: [float32, bfloat16]")
                continue
            for item in items:
                if item.value not in DTYPES:
                    self.mistake(item.span, f"unknown dtype {item.value[:60]!r}", known(item.value, DTYPES))
                elif names.count(item.value) > 1 and item is not items[names.index(item.value)]:
                    self.mistake(item.span, f"{item.value!r} is listed twice")
            if len({DTYPES[n].kind for n in names if n in DTYPES}) > 1:
                hint = "a variable ranges over floats, over integers or over bool; write an op for each kind"
                self.mistake(_span(value), f"{key.value!r} mixes kinds of types", hint)
            types[key.value] = tuple(dict.fromkeys(n for n in names if n in DTYPES)) or ("float32",)
        return types

    def unused_types(self, arrays: tuple[Array, ...]) -> None:
        used = {array.dtype for array in arrays}
        for key, _ in self.mapping("types"):
            if key.value in self.types and key.value not in used and not self.diagnostics:
                self.mistake(key.span, f"the type variable {key.value!r} is not used by any array")

    def arrays(self, key: str, inputs: bool) -> tuple[Array, ...]:
        found: list[Array] = []
        for name, value in self.mapping(key, needed=True):
            ok = self.name(name, f"an {key[:-1]}")
            if not isinstance(value, Scalar):
                self.mistake(_span(value), f"{name.value!r} must be an array such as T[..., N]")
                continue
            try:
                array = parse_array(name.value, value.value, self.types)
            except Mistake as error:
                self.mistake(value.span, error.message, error.hint)
                continue
            if array.default is not None and not inputs:
                self.mistake(value.span, f"the output {name.value!r} has a default; only inputs may have one")
            if array.default is None and inputs and found and found[-1].default is not None:
                hint = "inputs go by position: put those with a default last"
                self.mistake(value.span, f"{name.value!r} has no default but follows an input that has one", hint)
            if ok:
                found.append(Array(array.name, array.dtype, array.dims, array.default, name.span))
        if key in self.values and inputs and found and all(a.default is not None for a in found):
            self.mistake(self.keys[key].span, "every input has a default; at least one must be needed")
        return tuple(found)

    def params(self) -> tuple[Param, ...]:
        found = []
        for name, value in self.mapping("params"):
            if not self.name(name, "a parameter"):
                continue
            param = self.short_param(name, value) if isinstance(value, Scalar) else self.long_param(name, value)
            if param:
                found.append(param)
        return tuple(found)

    def short_param(self, name: Scalar, value: Scalar) -> Param | None:
        number = value.resolve()
        if isinstance(number, bool) or not isinstance(number, int | float):
            hint = "write `alpha: 1.0`, or {type: float|int|bool, default: ..., static: true|false, doc: ...}"
            self.mistake(value.span, f"the parameter {name.value!r} must be a number or a mapping", hint)
            return None
        return Param(name.value, "float", float(number), static=True)

    def long_param(self, name: Scalar, value: Tree) -> Param | None:
        if not isinstance(value, Mapping):
            self.mistake(_span(value), f"the parameter {name.value!r} must be a number or a mapping")
            return None
        fields: dict[str, object] = {"type": "float", "default": None, "static": True, "doc": ""}
        for key, item in value.items:
            if key.value not in fields:
                self.mistake(key.span, f"unknown key {key.value[:60]!r}", known(key.value, fields, "a parameter's keys"))
            elif not isinstance(item, Scalar):
                self.mistake(_span(item), f"{key.value!r} must be a single value")
            else:
                fields[key.value] = item.value if key.value in ("type", "doc") else item.resolve()
                self.check_param_field(key.value, fields[key.value], item)
        kind, default, static = fields["type"], fields["default"], fields["static"]
        if kind not in ("float", "int", "bool") or not isinstance(static, bool):
            return None
        if default is not None:
            wanted = {"float": (int, float), "int": (int,), "bool": (bool,)}[kind]
            if not isinstance(default, wanted) or (kind != "bool" and isinstance(default, bool)):
                self.mistake(value.span, f"the default {default!r} of {name.value!r} is no {kind}")
                return None
            if kind == "int" and not -(2**31) <= default < 2**31:
                self.mistake(value.span, f"the default {default!r} of {name.value!r} does not fit 32 bits")
            default = float(default) if kind == "float" else default
        doc = " ".join(str(fields["doc"]).split())[:300]
        return Param(name.value, str(kind), default, static, doc)  # type: ignore[arg-type]

    def check_param_field(self, key: str, value: object, item: Scalar) -> None:
        if key == "type" and value not in ("float", "int", "bool"):
            self.mistake(item.span, f"unknown parameter type {str(value)[:60]!r}", "it is one of float, int, bool.")
        if key == "static" and not isinstance(value, bool):
            self.mistake(item.span, f"'static' is {item.value[:60]!r}", "it is true or false.")

    def grad(self) -> str | tuple[tuple[str, Scalar], ...]:
        value = self.values.get("grad")
        if value is None:
            return "auto"
        if isinstance(value, Scalar):
            return self.choice("grad", ("auto", "none"), "auto")
        formulas = []
        for key, item in self.mapping("grad"):
            if not isinstance(item, Scalar):
                self.mistake(_span(item), f"the gradient of {key.value!r} must be a formula")
            else:
                formulas.append((key.value, item))
        return tuple(formulas)

    def aliases(self, inputs: tuple[Array, ...], outputs: tuple[Array, ...]) -> tuple[tuple[str, str], ...]:
        found = []
        by_input, by_output = {a.name: a for a in inputs}, {a.name: a for a in outputs}
        for key, value in self.mapping("aliases"):
            target = value.value if isinstance(value, Scalar) else ""
            if key.value not in by_output:
                self.mistake(key.span, f"unknown output {key.value[:60]!r}", known(key.value, by_output))
            elif target not in by_input:
                self.mistake(_span(value), f"unknown input {target[:60]!r}", known(target, by_input))
            elif str(by_output[key.value]) != str(by_input[target]).partition(" =")[0]:
                message = f"{key.value!r} is {by_output[key.value]} but {target!r} is {by_input[target]}"
                self.mistake(key.span, message, "an output can take the buffer of an input of the same type and axes")
            else:
                found.append((key.value, target))
        return tuple(found)

    def names(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key)
        if value is None:
            return ()
        items = value.items if isinstance(value, Sequence) else (value,)
        if not all(isinstance(item, Scalar) and _NAME.fullmatch(item.value) for item in items):
            self.mistake(_span(value), f"{key!r} must list names of the chain", f"as in `{key}: [rstd]`")
            return ()
        return tuple(item.value for item in items)  # type: ignore[union-attr]

    def tolerance(self) -> tuple[tuple[str, float | str], ...]:
        found: dict[str, float | str] = {}
        items = self.mapping("tolerance")
        for key, value in items:
            resolved = value.resolve() if isinstance(value, Scalar) else None
            if key.value not in ("rtol", "atol", "why"):
                self.mistake(key.span, f"unknown key {key.value[:60]!r}", known(key.value, ("rtol", "atol", "why")))
            elif key.value == "why":
                found["why"] = " ".join(str(resolved).split())
            elif isinstance(resolved, bool) or not isinstance(resolved, int | float) or not 0 <= resolved < 1e6:
                self.mistake(_span(value), f"{key.value!r} must be a number from 0 to 1e6")
            else:
                found[key.value] = float(resolved)
        if items and not found.get("why"):
            self.mistake(self.keys["tolerance"].span, "a tolerance needs a 'why'", "say what error it allows for")
        return tuple(found.items())

    def domain(self, inputs: tuple[Array, ...], params: tuple[Param, ...]) -> tuple[tuple[str, object], ...]:
        names = [a.name for a in inputs] + [p.name for p in params]
        forms = "a domain is positive, nonzero, finite, [lo, hi] or index(N)"
        found: list[tuple[str, object]] = []
        for key, value in self.mapping("domain"):
            if key.value not in names:
                self.mistake(key.span, f"unknown input {key.value[:60]!r}", known(key.value, names))
            elif isinstance(value, Sequence):
                bounds = [i.resolve() if isinstance(i, Scalar) else None for i in value.items]
                if len(bounds) == 2 and all(isinstance(b, int | float) for b in bounds) and bounds[0] <= bounds[1]:
                    found.append((key.value, (float(bounds[0]), float(bounds[1]))))
                else:
                    self.mistake(value.span, "cannot read the bounds", forms)
            elif isinstance(value, Scalar) and (
                value.value in ("positive", "nonzero", "finite") or re.fullmatch(r"index\([A-Z]\w*\)", value.value)
            ):
                found.append((key.value, value.value))
            else:
                self.mistake(_span(value), f"unknown domain of {key.value!r}", forms)
        return tuple(found)

    def plain(self, key: str) -> tuple[tuple[str, object], ...]:
        """A mapping of scalars, or of such mappings one level down (per architecture)."""
        found: list[tuple[str, object]] = []
        for name, value in self.mapping(key):
            if isinstance(value, Scalar):
                found.append((name.value, self.schedule_value(name, value)))
            elif isinstance(value, Mapping) and re.fullmatch(r"sm_\d+a?", name.value):
                inner = [(k, v) for k, v in value.items if isinstance(v, Scalar)]
                found.append((name.value, tuple((k.value, self.schedule_value(k, v)) for k, v in inner)))
            else:
                self.mistake(name.span, f"cannot read {name.value[:60]!r} under {key!r}", "as in `threads: 256`")
        return tuple(found)

    def schedule_value(self, name: Scalar, value: Scalar) -> object:
        number = value.resolve()
        limits = {"threads": (32, 1024), "vector_bytes": (1, 16)}
        if name.value not in limits:
            self.mistake(name.span, f"unknown key {name.value[:60]!r}", known(name.value, limits, "a schedule's keys"))
            return None
        low, high = limits[name.value]
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high or number & (number - 1):
            self.mistake(value.span, f"{name.value!r} must be a power of two from {low} to {high}")
            return None
        return number

    def bench(self, arrays: tuple[Array, ...]) -> tuple[tuple[tuple[str, int], ...], ...]:
        value = self.values.get("bench")
        if value is None:
            return ()
        axes = {axis for array in arrays for axis in array.axes}
        found = []
        for item in value.items if isinstance(value, Sequence) else ():
            sizes: dict[str, int] = {}
            for key, size in item.items if isinstance(item, Mapping) else ():
                number = size.resolve() if isinstance(size, Scalar) else None
                if key.value not in axes:
                    self.mistake(key.span, f"unknown axis {key.value[:60]!r}", known(key.value, axes))
                elif isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**40:
                    self.mistake(_span(size), f"the extent of {key.value!r} must be a positive integer")
                else:
                    sizes[key.value] = number
            missing = sorted(axes - set(sizes) - {n for a in arrays for d in a.dims for n in _fixed(d)})
            if missing and not self.diagnostics:
                self.mistake(_span(item), f"no extent for {', '.join(missing)}", "give every axis: {...: 8192, N: 4096}")
            found.append(tuple(sizes.items()))
        if not found:
            self.mistake(_span(value), "'bench' must be a list of shapes", "as in - {...: 8192, N: 4096}")
        return tuple(found)


def _fixed(dim: Axis) -> list[str]:
    return [name for name, extent in zip(dim.names, dim.extents, strict=False) if extent]


def _span(tree: Tree) -> Span:
    return tree.span
