"""A checked spec and its plan to the text of `generated/<op>.py`.

Everything a template shows is a line prepared here; templates hold the kernel's shape and no decisions.
"""

from __future__ import annotations

import functools
import re
import textwrap
from pathlib import Path

import jinja2

from codegen import emit
from codegen.ir import DTYPES, topological
from codegen.pipeline import Op
from codegen.plan import Access, access_key
from codegen.spec import Array

TEMPLATES = Path(__file__).parent.parent / "templates"
WIDTH = 120


@functools.cache
def environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render_op(op: Op) -> str:
    """The generated module of an op."""
    context = _Context(op)
    values = context.values()
    template = environment().get_template("elementwise.py.jinja")
    text = template.render(values, imports=context.imports(template.render(values, imports=[])))
    # The template's runs of empty lines, not the spec's
    head, spec, rest = text.partition(values["spec"])
    return re.sub(r"\n{4,}", "\n\n\n", head) + spec + re.sub(r"\n{4,}", "\n\n\n", rest).rstrip("\n") + "\n"


def camel(name: str) -> str:
    """`gate_up` to GateUp. No two names give the same: x_1 keeps its underscore, and is not x1."""
    return re.sub(r"(?:^|_)([a-z])", lambda match: match[1].upper(), name)


def quoted_block(text: str) -> str:
    """A spec's text inside triple quotes: it reads back the same, and can neither end the string nor escape in it."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"').rstrip("\n") + "\n"


def quoted(text: str) -> str:
    """A docstring's text: it can neither end the string nor escape in it."""
    return text.replace("\\", "\\\\").replace('"', "'")


class _Context:
    def __init__(self, op: Op):
        self.op, self.spec, self.plan = op, op.spec, op.plan
        self.statements = op.statements
        self.nodes = list(topological(s.value for s in op.statements))
        dtypes = {d for a in self.spec.inputs for d in self.spec.dtypes(a)}
        self.wide = "float64" in dtypes
        integers = {d for a in self.spec.arrays for d in self.spec.dtypes(a)}
        self.integer = "Int64" if integers & {"int64", "uint32"} else "Int32"
        self.groups = self.plan.groups
        self.static = [p for p in self.spec.params if p.static]
        self.dynamic = [p for p in self.spec.params if not p.static]
        self.tensors = {a.name: f"m{camel(a.name)}" for a in self.spec.arrays}
        # Parts that lie next to each other come in one fragment
        self.leaf_names = {access_key(self.plan, access): access.name for access in self.plan.loads}

    def values(self) -> dict:
        spec = self.spec
        chain, xla = self.chain(), self.xla()
        return {
            "op": spec.op,
            "path": f"specs/{spec.op}.yaml",
            "template": "elementwise.py.jinja",
            "summary": quoted(spec.summary),
            "chain": chain,
            "xla": xla,
            "reference": {
                "params": [*(a.name for a in spec.inputs), *(p.name for p in spec.params)],
                "lines": [row for line in self.op.reference.lines for row in line.split("\n")],
            },
            "tensors": self.tensor_lines(),
            "static_params": [{"name": p.name, "kind": p.kind} for p in self.static],
            "ragged_means": self.ragged_means(),
            "at_words": self.at_words(),
            "extents": self.extents(),
            "coordinates": self.coordinates(),
            "settings": self.settings(chain),
            "fragments": self.fragments(),
            "flat_tiles": self.flat_tiles(),
            "loads": self.loads(),
            "elements": self.elements(),
            "results": self.result_lines(),
            "stores": self.stores(),
            "size": self.size_text(),
            "byte_tensors": [self.tensors[a.name] for a in spec.arrays if spec.kind(a) == "bool"],
            "launch_arguments": self.launch_arguments(),
            "result_class": self.result_class(),
            "spec": quoted_block(spec.source.text),
            "signature": self.signature(),
            "returns": camel(spec.op) + "Outputs" if len(spec.outputs) > 1 else "jax.Array",
            "doc": self.doc(),
        }

    # The chain, twice

    def target_names(self) -> dict[tuple[str, int | None], str]:
        stores = {(s.array.name, s.part): s.name for s in self.plan.stores if s.array}
        return {(s.name, s.part): stores.get((s.name, s.part), s.name) for s in self.statements}

    def leaves(self) -> dict[tuple, str]:
        params = {("param", p.name): p.name for p in self.spec.params}
        return {**self.leaf_names, **params}

    def vector_names(self) -> list[str]:
        return [*dict.fromkeys(a.name for a in self.plan.loads), *(p.name for p in self.spec.params)]

    def like(self) -> str:
        return self.plan.loads[0].name

    def chain(self) -> dict:
        names = self.target_names()
        approx = {"precise": "False", "fast": "True"}.get(self.spec.math, self.approx())
        types = {d: f"cutlass.{t.cutlass}" for d, t in DTYPES.items()}
        types |= {t: f"cutlass.{DTYPES[d[0]].cutlass}" if len(d) == 1 else t for t, d in self.spec.types}
        floating = "compute" if self.wide else "cutlass.Float32"
        dialect = emit.Dialect(
            "cute", self.leaves(), floating, f"cutlass.{self.integer}", types, approx, self.spec.math == "precise",
            self.spec.math == "fast", self.like(),
        )  # fmt: skip
        lines = emit.emit(self.statements, names, dialect)
        extra = [n for n in ("compute", "approx", *dict(self.spec.types)) if self.mentions(lines, n)]
        returns = [s.name for s in self.plan.stores]
        return {
            "params": [*self.vector_names(), *extra],
            "extra": extra,
            "doc": quoted(self.formula_doc()),
            "cute": lines,
            "returns": ", ".join(returns),
            "results": ", ".join(returns),
            "arguments": [*self.chain_arguments(), *(self.extra_argument(n) for n in extra)],
        }

    def formula_doc(self) -> str:
        return "The chain, on one vector of each operand."

    def approx(self) -> str:
        """`math: auto`: decided at build where every type of every output agrees, else by the kernel."""
        widths = {
            DTYPES[d].kind == "float" and DTYPES[d].size < 4 for a in self.spec.outputs for d in self.spec.dtypes(a)
        }
        return str(widths.pop()) if len(widths) == 1 else "approx"

    @staticmethod
    def mentions(lines: list[str], name: str) -> bool:
        return any(re.search(rf"\b{name}\b", line) for line in lines)

    def extra_argument(self, name: str) -> str:
        if name in ("compute", "approx"):
            return name
        array = next(a for a in self.spec.arrays if a.dtype == name)
        return f"{self.tensors[array.name]}.element_type"

    def xla(self) -> dict:
        types = {d: f"jnp.{'bool_' if d == 'bool' else d}" for d in DTYPES}
        types |= {t: f"jnp.{d[0]}" if len(d) == 1 else t for t, d in self.spec.types}
        floating = "compute" if self.wide else "jnp.float32"
        integer = "jnp.int64" if self.integer == "Int64" else "jnp.int32"
        dialect = emit.Dialect("jnp", self.leaves(), floating, integer, types, like=self.like(), order=self.plan.order)
        lines = emit.emit(self.statements, self.target_names(), dialect)
        extra = [n for n in ("compute", "row_axes", *dict(self.spec.types)) if self.mentions(lines, n)]
        return {
            "params": [*self.vector_names(), *extra],
            "extra": extra,
            "doc": "The chain in jnp: where there is no NVIDIA GPU, and what gradients differentiate.",
            "lines": lines,
            "returns": ", ".join(s.name for s in self.plan.stores),
        }

    # Kernel text

    def tensor_lines(self) -> list[dict]:
        rows = []
        for array in self.spec.inputs:
            rows.append(self.tensor(array))
        for p in self.dynamic:
            rows.append({"name": f"m{camel(p.name)}", "hint": "cute.Tensor", "comment": f"(1) {p.name}"})
        return rows + [self.tensor(a) for a in self.spec.outputs]

    def tensor(self, array: Array) -> dict:
        modes = [
            self.groups[t].name if isinstance(t, int) else str(array.parts) if t == "parts" else t
            for t in self.plan.view(array.name).tokens
        ]
        hint = "cute.Tensor" if array.default is None else "cute.Tensor | None"
        shape = f"({', '.join(modes)})" if modes else "(1)"
        return {"name": self.tensors[array.name], "hint": hint, "comment": f"{shape} {array.dtype}"}

    def ragged_means(self) -> str:
        if not self.plan.coordinates:
            return "whether the arrays' end lies inside a vector"
        return f"whether {self.groups[-1].name} is no multiple of vec"

    def at_words(self) -> str:
        used = self.plan.coordinates
        if not used:
            return ""
        words = ", ".join(self.groups[i].coordinate for i in used)
        return f", the first at ({words})" if len(used) > 1 else f", the first at {words}"

    def extent_source(self, group: int) -> str:
        """Where the kernel reads a group's extent: outputs first, then inputs that are always there."""
        needed = [a for a in (*self.spec.outputs, *self.spec.inputs) if a.default is None]
        for array in needed:
            tokens = self.plan.view(array.name).tokens
            if group in tokens:
                return f"{self.tensors[array.name]}.shape[{tokens.index(group)}]"
        raise AssertionError(f"no array has group {group}")

    def size_text(self) -> str:
        factors = [self.extent_source(i) for i in range(len(self.groups))]
        return " * ".join([f"cutlass.Int64({factors[0]})", *factors[1:]]) if factors else "cutlass.Int64(1)"

    def extents(self) -> list[str]:
        """Names for the extents that coordinates need, and the element count."""
        lines = []
        if self.needed_extents():
            names = [self.groups[i].name for i in self.needed_extents()]
            sources = [self.extent_source(i) for i in self.needed_extents()]
            lines.append(f"{', '.join(names)} = {', '.join(sources)}")
        text = self.size_text()
        for i in self.needed_extents():
            text = text.replace(self.extent_source(i), self.groups[i].name)
        return [*lines, f"size = {text}"]

    def needed_extents(self) -> list[int]:
        """The extents that coordinates are found with, and sizes that the chain asks for."""
        sizes = {a.group for a in self.plan.loads if a.mode == "size" and a.group is not None}
        return sorted({i for i in self.plan.coordinates if i} | sizes)

    def coordinates(self) -> list[str]:
        """The coordinates of the vector's first element."""
        used = self.plan.coordinates
        lines, rest = [], "start"
        for i in reversed(used):
            group = self.groups[i]
            if i == 0:
                lines.append(f"{group.coordinate} = cutlass.Int32({rest})")
                continue
            lines.append(f"{group.coordinate} = cutlass.Int32({rest} % {group.name})")
            if i - 1 in used:
                outer = f"{rest} // {group.name}"
                if i > 1:
                    lines.append(f"rest = {outer}")
                rest = "rest" if i > 1 else outer
        return lines

    def settings(self, chain: dict) -> list[str]:
        lines = []
        floats = [a for a in self.spec.inputs if "float64" in self.spec.dtypes(a)]
        if self.wide and (self.needs_compute(chain)):
            lines.append(f"compute = device.compute_type({', '.join(self.tensors[a.name] for a in floats)})")
        if "approx" in chain["extra"]:
            outputs = ", ".join(self.tensors[a.name] for a in self.spec.outputs)
            lines.append(f"approx = device.narrow({outputs})")
        return lines

    def needs_compute(self, chain: dict) -> bool:
        return any("compute" in text for text in (*chain["arguments"], *chain["cute"])) or "compute" in str(
            self.fragments()
        )

    def compute(self) -> str:
        return "compute" if self.wide else "cutlass.Float32"

    # Fragments: one an access, shared by interleaved parts

    def fragment(self, access: Access) -> str:
        if access.array is not None and access.mode == "flat" and access.array.parts:
            return f"r{camel(access.array.name)}"
        return f"r{camel(access.name)}"

    def fragments(self) -> list[dict]:
        rows: dict[str, dict] = {}
        for access in (*self.plan.loads, *self.plan.stores):
            if access.mode == "size":
                continue
            name = self.fragment(access)
            shape, dtype, tensor, default = "(vec,)", "cutlass.Int32", "", None
            if access.array is not None:
                tensor = self.tensors[access.array.name]
                dtype = f"{tensor}.element_type"
                if access.mode == "flat" and access.array.parts:
                    shape = f"({access.array.parts}, vec)"
                default = access.array.default if access in self.plan.loads else None
            kind = "bool" if isinstance(default, bool) else "int" if isinstance(default, int) else "float"
            default_type = {"bool": "cutlass.Uint8", "int": f"cutlass.{self.integer}", "float": self.compute()}[kind]
            rows[name] = {
                "name": name, "shape": shape, "dtype": dtype, "tensor": tensor,
                "default": None if default is None else emit.literal(default), "default_type": default_type,
            }  # fmt: skip
        return list(rows.values())

    def flat_tiles(self) -> list[str]:
        """The flat arrays' vectors, as tensors in global memory."""
        lines: dict[str, str] = {}
        for access in (*self.plan.loads, *self.plan.stores):
            if access.mode != "flat" or access.array is None:
                continue
            tensor, parts = self.tensors[access.array.name], access.array.parts
            tile = "g" + tensor[1:]
            if parts:
                text = (
                    f"{tile} = cute.make_tensor({tensor}.iterator + {parts} * start, cute.make_layout(({parts}, vec)))"
                )
            else:
                text = f"{tile} = cute.make_tensor({tensor}.iterator + start, cute.make_layout((vec,)))"
            if access.array.default is not None:
                lines[tile] = f"if cutlass.const_expr({tensor} is not None):\n            {text}"
            else:
                lines[tile] = text
        return list(lines.values())

    def guard(self, access: Access) -> str:
        array = access.array
        return self.tensors[array.name] if array is not None and array.default is not None else ""

    def at(self, access: Access, suffix: str, last: str | None = None) -> str:
        """The coordinates of an access; `last` replaces the innermost one."""
        words: list[str] = []
        inner = len(self.groups) - 1
        for mode, token in enumerate(access.tokens):
            if token == "parts":
                words.append(str(access.part))
            elif isinstance(token, int):
                name = self.groups[token].coordinate + suffix
                words.append(last if last is not None and token == inner else name)
            else:
                assert access.index_of and access.array
                index, _ = access.index_of
                tokens = self.plan.view(index).tokens
                where = ", ".join(self.groups[t].coordinate + suffix for t in tokens if isinstance(t, int)) or "0"
                table = self.tensors[access.array.name]
                words.append(f"device.clip_index({self.tensors[index]}[{where}], {table}.shape[{mode}])")
        return ", ".join(words) or "0"

    def loads(self) -> list[dict]:
        rows: dict[str, dict] = {}
        for access in self.plan.loads:
            if access.mode == "size":
                continue
            name = self.fragment(access)
            row = {"name": name, "guard": self.guard(access), "part": ""}
            if access.mode == "index":
                assert access.group is not None
                coordinate = self.groups[access.group].coordinate
                consecutive = access.group == len(self.groups) - 1
                row["whole"] = f"device.count_up({name}, {coordinate})" if consecutive else f"{name}.fill({coordinate})"
            else:
                assert access.array is not None
                tensor = self.tensors[access.array.name]
                if access.mode == "flat":
                    tile = "g" + tensor[1:]
                    row["whole"] = f"cute.autovec_copy({tile}, {name})"
                    row["part"] = f"device.copy_whole_or_part({tile}, {name}, {self.valid(access)})"
                elif access.mode == "tile":
                    inner = self.groups[-1].coordinate
                    row["whole"] = f"cute.autovec_copy({self.tile(access)}, {name})"
                elif access.mode == "scalar":
                    row["whole"] = f"{name}.fill({self.element(access.array, self.at(access, ''))})"
                else:
                    inner = self.groups[-1].coordinate
                    row["whole"] = (
                        f"for i in cutlass.range_constexpr(vec):\n"
                        f"                {name}[i] = {self.element(access.array, self.at(access, '', f'{inner} + i'))}"
                    )
                    if access.index_of and (len(self.groups) - 1) in self.plan.view(access.index_of[0]).tokens:
                        row["whole"] = row["whole"].replace(
                            f"{self.tensors[access.index_of[0]]}[{self.index_at(access)}]",
                            f"{self.tensors[access.index_of[0]]}[{self.index_at(access)} + i]",
                        )
                    if row["guard"]:
                        row["whole"] = row["whole"].replace("\n                ", "\n                    ")
            rows[name] = row
        return list(rows.values())

    def element(self, array: Array, where: str) -> str:
        """One element of an array in global memory."""
        text = f"{self.tensors[array.name]}[{where}]"
        return text

    def index_at(self, access: Access) -> str:
        assert access.index_of
        tokens = self.plan.view(access.index_of[0]).tokens
        return ", ".join(self.groups[t].coordinate for t in tokens if isinstance(t, int))

    def valid(self, access: Access) -> str:
        parts = access.array.parts if access.array is not None else None
        return f"{parts} * valid" if parts else "valid"

    def tile(self, access: Access) -> str:
        """The vector of an array whose last mode is the innermost group."""
        assert access.array is not None
        tensor, inner = self.tensors[access.array.name], self.groups[-1].coordinate
        where = self.at(access, "", "None")
        row = tensor if where == "None" else f"{tensor}[{where}]"
        return f"cute.local_tile({row}, (vec,), ({inner} // vec,))"

    def elements(self) -> dict:
        """The ragged form: a vector inside a row, wherever it starts; else every element at its own coordinates."""
        inner = self.groups[-1].coordinate if self.groups else ""
        loads, whole = [], self.loads()
        for access in self.plan.loads:
            if access.mode in ("flat", "size"):
                continue
            name = self.fragment(access)
            if access.mode == "index":
                assert access.group is not None
                value = self.groups[access.group].coordinate + "_i"
            else:
                assert access.array is not None
                value = self.element(access.array, self.at(access, "_i"))
            in_row = next(row["whole"] for row in whole if row["name"] == name)
            if access.mode == "tile":
                assert access.array is not None
                tensor = self.tensors[access.array.name]
                in_row = f"device.load_anywhere({tensor}, cute.crd2idx({self.where(access)}, {tensor}.layout), {name})"
            loads.append({"guard": self.guard(access), "element": f"{name}[i] = {value}", "in_row": in_row})
        whole_row = f"{inner} + vec <= {self.groups[-1].name}" if len(self.groups) > 1 else "valid >= vec"
        stores = self.element_stores()
        rests = " | ".join(row["rest"] for row in stores)
        rests = f"({rests})" if len(stores) > 1 else rests
        return {"loads": loads, "stores": stores, "rests": rests, "row": whole_row,
                "parts": any(row["part"] for row in self.stores()), **self.next_element()}  # fmt: skip

    def element_stores(self) -> list[dict]:
        """The ragged stores of outputs that are not flat: what wide stores leave over goes element by element."""
        rows = []
        for access in self.plan.stores:
            if access.mode == "flat" or access.array is None:
                continue
            name, tensor = self.fragment(access), self.tensors[access.array.name]
            rest, inner = f"rest{camel(access.name)}", self.groups[-1]
            if access.mode == "tile":
                before, after = inner.coordinate, "valid"
                if len(self.groups) > 1:
                    after = f"{inner.name} - {inner.coordinate}"
                offset = f"cute.crd2idx({self.where(access)}, {tensor}.layout)"
                wide = f"device.store_anywhere({name}, {tensor}, {offset}, {before}, {after}, valid)"
            else:
                wide = "device.first_bits(valid, vec)"
            rows.append({"rest": rest, "wide": wide, "element": f"{tensor}[{self.at(access, '_i')}] = {name}[i]"})
        return rows

    def where(self, access: Access) -> str:
        """An access's coordinates as a tuple."""
        where = self.at(access, "")
        return f"({where})" if "," in where else f"({where},)"

    def next_element(self) -> dict:
        """How a ragged vector's elements are walked: the first one's coordinates, and the step to the next."""
        used = self.plan.coordinates
        walked = range(used[0], len(self.groups)) if used else range(0)
        names = [self.groups[i].coordinate for i in walked]
        extents = [self.groups[i].name for i in walked if i]  # the outermost one never wraps
        each = ", ".join(f"{name}_i" for name in names)
        if not names:
            return {"first": "", "step": ""}
        target = f"({each},)" if len(names) == 1 else each
        wraps = f"({extents[0]},)" if len(extents) == 1 else f"({', '.join(extents)})"
        return {
            "first": f"{each} = {', '.join(names)}",
            "step": f"{target} = device.next_coordinates(({each}{',' * (len(names) == 1)}), {wraps})",
        }

    def chain_arguments(self) -> list[str]:
        texts: dict[str, str] = {}
        for access in self.plan.loads:
            if access.mode == "size":
                assert access.group is not None
                texts[access.name] = f"cute.full((vec,), {self.groups[access.group].name}, cutlass.{self.integer})"
                continue
            name = self.fragment(access)
            if access.array is None:
                kind, load = "int", f"{name}.load()"
            else:
                kind = self.spec.kind(access.array)
                parts = access.mode == "flat" and access.array.parts
                load = f"{name}[{access.part}, None].load()" if parts else f"{name}.load()"
            target = {"float": f".to({self.compute()})", "int": f".to(cutlass.{self.integer})", "bool": " != 0"}[kind]
            texts[access.name] = load + target
        for p in self.spec.params:
            dtype = {"float": self.compute(), "int": f"cutlass.{self.integer}", "bool": "cutlass.Boolean"}[p.kind]
            value = p.name if p.static else f"m{camel(p.name)}[0]"
            texts[p.name] = f"cute.full((vec,), {value}, {dtype})"
        return list(texts.values())

    def stores(self) -> list[dict]:
        rows: list[dict] = []
        done: set[str] = set()
        for access in self.plan.stores:
            assert access.array is not None
            name, tensor = self.fragment(access), self.tensors[access.array.name]
            if name in done:
                continue
            done.add(name)
            if access.mode == "flat":
                tile = "g" + tensor[1:]
                part = f"device.copy_whole_or_part({name}, {tile}, {self.valid(access)})"
                rows.append({"whole": f"cute.autovec_copy({name}, {tile})", "part": part})
            elif access.mode == "tile":
                rows.append({"whole": f"cute.autovec_copy({name}, {self.tile(access)})", "part": ""})
            else:
                inner = self.groups[-1].coordinate if self.groups else ""
                whole = (
                    f"for i in cutlass.range_constexpr(vec):\n"
                    f"                {tensor}[{self.at(access, '', f'{inner} + i')}] = {name}[i]"
                )
                rows.append({"whole": whole, "part": ""})
        return rows

    def result_lines(self) -> list[str]:
        lines = []
        for access in self.plan.stores:
            assert access.array is not None
            name, tensor = self.fragment(access), self.tensors[access.array.name]
            value = self.converted(access)
            target = f"{name}[{access.part}, None]" if access.mode == "flat" and access.array.parts else name
            lines.append(f"{target}.store({value.format(access.name, f'{tensor}.element_type')})")
        return lines

    def converted(self, access: Access) -> str:
        assert access.array is not None
        kind = self.spec.kind(access.array)
        return "device.cast({0}, {1})" if kind == "int" else "{0}.to({1})"

    def launch_arguments(self) -> list[str]:
        names = [t["name"] for t in self.tensor_lines()]
        return [", ".join(names), ", ".join([*(p.name for p in self.static), "vec", "ragged", "threads"])]

    # The JAX side

    def imports(self, body: str) -> list[str]:
        """What the module's body uses."""
        lines = ["from typing import NamedTuple", ""] if len(self.spec.outputs) > 1 else []
        lines += ["import cuda.bindings.driver as cuda", "import cutlass", "import cutlass.cute as cute", "import jax"]
        lines += ["import jax.numpy as jnp"] if re.search(r"\bjnp\.", body) else []
        lines += ["", "from codegen import runtime"]
        return [*lines, "from codegen.runtime import device"] if re.search(r"\bdevice\.", body) else lines

    def result_class(self) -> dict | None:
        if len(self.spec.outputs) == 1:
            return None
        return {"name": camel(self.spec.op) + "Outputs", "fields": [a.name for a in self.spec.outputs]}

    def free_types(self) -> list[str]:
        """Type variables that no input binds: keywords of the function."""
        bound = {a.dtype for a in self.spec.inputs}
        return [t for t, d in self.spec.types if t not in bound]

    def signature(self) -> list[str]:
        rows = []
        for a in self.spec.inputs:
            rows.append(f"{a.name}: jax.Array," if a.default is None else f"{a.name}: jax.Array | None = None,")
        rows.append("*,")
        for p in self.spec.params:
            hint = p.kind if p.static else f"{p.kind} | jax.Array"
            default = "" if p.default is None else f" = {emit.literal(p.default)}"
            rows.append(f"{p.name}: {hint}{default},")
        for t in self.free_types():
            rows.append(f'{t}: str = "{dict(self.spec.types)[t][0]}",')
        rows.append("implementation: runtime.Implementation = None,")
        return rows

    def doc(self) -> list[str]:
        spec = self.spec
        lines = [quoted(spec.summary), "", "Args:"]
        for a in spec.inputs:
            extra = "" if a.default is None else f"; {a.default!r} where it is left out or None"
            lines.append(f"  {a.name}: {a}{extra}.")
        for p in spec.params:
            how = "compiled in" if p.static else "may be traced"
            doc = f" {p.doc}" if p.doc else ""
            text = f"{p.name}: {p.kind}, {how}.{doc}"
            lines += map(quoted, textwrap.wrap(text, 110, initial_indent="  ", subsequent_indent="    "))
        for t in self.free_types():
            lines.append(f"  {t}: the dtype of {', '.join(a.name for a in spec.outputs if a.dtype == t)}.")
        lines.append(
            '  implementation: "cute", "xla", "interpret", or None: the kernel on an NVIDIA GPU, jnp elsewhere.'
        )
        lines += ["", "Returns:"]
        lines += [f"  {a.name}: {a}." for a in spec.outputs]
        if spec.types:
            names = "; ".join(
                f"{t} is {' or '.join([', '.join(d[:-1]), d[-1]] if len(d) > 1 else d)}" for t, d in spec.types
            )
            lines += ["", *textwrap.wrap(names + ".", 112)]
        lines += [
            "",
            "Raises:",
            "  TypeError, ValueError: an argument's dtype or shape does not fit; the message says which.",
        ]
        return lines
