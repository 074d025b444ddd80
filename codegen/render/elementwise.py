"""The kernel of an element-wise op: its plan to what `templates/elementwise.py.jinja` shows."""

from __future__ import annotations

from codegen.graph import emit
from codegen.plan.access import Access
from codegen.plan.elementwise import Elementwise
from codegen.plan.op import Op
from codegen.render.common import Context, camel, full, quoted
from codegen.spec.spec import Array


class ElementwiseContext(Context):
    """What the element-wise template shows."""

    plan: Elementwise
    template = "elementwise.py.jinja"

    def planned(self, op: Op) -> Elementwise:
        assert isinstance(op.plan, Elementwise)
        return op.plan

    def kernel(self) -> dict:
        chain = self.chain()
        return {
            "chain": chain,
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
            "launch_arguments": self.launch_arguments(),
        }

    def chain(self) -> dict:
        names = self.target_names()
        lines = emit.emit(self.statements, names, self.dialect())
        extra = [n for n in ("compute", *self.flags, *dict(self.spec.types)) if self.mentions(lines, n)]
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
        found = self.extent_in((*self.spec.outputs, *self.spec.inputs), group)
        assert found, f"no array has group {group}"
        return found

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
        if self.wide and (self.needs_compute(chain)):
            lines.append(self.compute_line())
        lines += self.flag_lines(chain["extra"])
        return lines

    def needs_compute(self, chain: dict) -> bool:
        return any("compute" in text for text in (*chain["arguments"], *chain["cute"])) or "compute" in str(
            self.fragments()
        )

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
            held = None if default is None else emit.literal(default)
            values = "" if held is None else f", {held}"
            values += f", {default_type}" if values and default_type != "cutlass.Float32" else ""
            made = (
                f"access.registers({tensor}, {shape}{values})" if tensor else f"cute.make_rmem_tensor({shape}, {dtype})"
            )
            rows[name] = {
                "name": name, "shape": shape, "dtype": dtype, "tensor": tensor, "text": made,
                "default": held, "default_type": default_type,
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

    def at(self, access: Access, suffix: str, last: str | None = None) -> str:
        """The coordinates of an access; `last` replaces the innermost one, also where an index is read."""
        words: list[str] = []

        def coordinate(group: int) -> str:
            innermost = last is not None and group == len(self.groups) - 1
            return str(last) if innermost else self.groups[group].coordinate + suffix

        for mode, token in enumerate(access.tokens):
            if token == "parts":
                words.append(str(access.part))
            elif isinstance(token, int):
                words.append(coordinate(token))
            else:
                assert access.index_of and access.array
                index, _ = access.index_of
                tokens = self.plan.view(index).tokens
                where = ", ".join(coordinate(t) for t in tokens if isinstance(t, int)) or "0"
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
                    if row["guard"]:
                        row["whole"] = row["whole"].replace("\n                ", "\n                    ")
            rows[name] = row
        return list(rows.values())

    def element(self, array: Array, where: str) -> str:
        """One element of an array in global memory."""
        return f"{self.tensors[array.name]}[{where}]"

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
            rest = f"rest{camel(access.name)}"
            if access.mode == "tile":
                inner = self.groups[-1]
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
                texts[access.name] = full("vec", self.groups[access.group].name, f"cutlass.{self.integer}")
                continue
            name = self.fragment(access)
            if access.array is None:
                kind, load = "int", f"{name}.load()"
            else:
                kind = self.spec.kind(access.array)
                parts = access.mode == "flat" and access.array.parts
                load = f"{name}[{access.part}, None].load()" if parts else f"{name}.load()"
            texts[access.name] = self.as_computed(load, kind)
        for p in self.spec.params:
            dtype = {"float": self.compute(), "int": f"cutlass.{self.integer}", "bool": "cutlass.Boolean"}[p.kind]
            texts[p.name] = full("vec", self.parameter_text(p), dtype)
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
