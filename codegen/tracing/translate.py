"""Steps as formulas of the language: one rule for each primitive that it can express.

Floats are computed in float32 whatever their type is, so a rounding to bfloat16 or float16 between two steps is left out, as
XLA may do. A value whose axis is cut has one formula for each part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from jax.lax import GatherScatterMode

from codegen.errors import UserError
from codegen.graph.nodes import DTYPES
from codegen.tracing.axes import Axes, Axis, added, filled, sliced, taken
from codegen.tracing.formulas import Formula, Formulas, is_natural, unwrapped
from codegen.tracing.steps import Atom, Flat, Number, Step, Value, plain

# Primitives by their operation in the language
SAME = {
    "add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "neg": "neg", "max": "maximum", "min": "minimum",
    "div": "div", "rem": "rem", "abs": "abs", "sign": "sign", "floor": "floor", "ceil": "ceil", "exp": "exp",
    "exp2": "exp2", "expm1": "expm1", "log": "log", "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "cbrt": "cbrt",
    "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "atan2": "atan2",
    "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "logistic": "sigmoid", "erf": "erf", "erfc": "erfc", "log2": "log2",
    "square": "square", "is_finite": "isfinite", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne",
    "and": "and", "or": "or", "xor": "xor", "population_count": "popcount", "stop_gradient": "stop_gradient",
    "add_jaxvals": "add", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "lgamma": "lgamma", "digamma": "digamma",
}  # fmt: skip
REDUCTIONS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod",
              "reduce_and": "all", "reduce_or": "any"}  # fmt: skip
JOINED = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul", "all": "and", "any": "or"}
SCANS = {
    "cumsum": "cumsum",
    "cumprod": "cumprod",
    "cummax": "cummax",
    "cumlogsumexp": "cumlogsumexp",
    "cummin": "cummax",
}
UNCHANGED = frozenset({"copy", "copy_p", "broadcast_in_dim", "transpose", "squeeze", "expand_dims", "device_put",
                       "optimization_barrier", "sharding_constraint", "reshard", "reduce_precision", "pvary"})  # fmt: skip
LAYOUT = UNCHANGED | {"reshape"}
COMPUTED = frozenset(
    {"convert_element_type", "integer_pow", "pow", "clamp", "round", "not", "one_minus_square", "polynomial"}
)
ELEMENTWISE = frozenset(SAME) | COMPUTED | {"select_n", "shift_left", "shift_right_arithmetic"}
OF_NUMBERS = ELEMENTWISE | LAYOUT | {"iota"}  # steps of one result that may be computed of numbers alone
KNOWN = ELEMENTWISE | REDUCTIONS.keys() | SCANS.keys() | UNCHANGED | frozenset({
    "iota", "argmax", "argmin", "reshape", "slice", "split", "concatenate", "stack", "unstack", "gather", "dot_general", "own",
    "scatter-add",
})  # fmt: skip
# Steps whose result may leave the range of its type, where that is narrower than what the language computes in
LEAVING = frozenset({"add", "add_any", "add_jaxvals", "sub", "mul", "neg", "abs", "square", "pow", "integer_pow", "polynomial",
                     "one_minus_square", "not", "shift_left", "reduce_sum", "reduce_prod", "cumsum", "cumprod", "dot_general",
                     "scatter-add"})  # fmt: skip
HELP = {
    "scan": "the language has no loops: fuse the function that the loop calls",
    "while": "the language has no loops: fuse the function that the loop calls",
    "cond": "compute both and take one: jnp.where(c, a, b)",
    "sort": "write sort(x, axis=N), argsort or top_k in a spec",
    "conv_general_dilated": "leave convolutions to XLA, and trace what comes after them",
    "random_bits": "write uniform(key) or bernoulli(key, p) in a spec",
    "threefry2x32": "write uniform(key) or bernoulli(key, p) in a spec",
    "top_k": "write top_k(x, K, axis=N) in a spec",
    "scatter": "write put(table, value, i, axis=P) in a spec",
    "dynamic_slice": "slice before the call, or use jnp.take",
    "pallas_call": "a kernel cannot be part of another: trace what is around it",
}  # fmt: skip

Parts = tuple[Formula, ...]


class NotExpressed(UserError):
    """The language cannot express a step."""

    def __init__(self, step: Step, message: str, hint: str = ""):
        super().__init__(message, hint)
        self.step = step


class Translator:
    """The formulas of values. Inputs are given by name; steps are then added in order. With `from_start`, callers promise that
    indices count from the start of an axis. JAX also counts them from its end, where they are negative."""

    def __init__(self, formulas: Formulas, axes: Axes, from_start: bool = True):
        self.formulas, self.axes, self.from_start = formulas, axes, from_start
        self.values: dict[Value, Parts] = {}

    def leaf(self, value: Value, name: str) -> None:
        """Make a value an input of that name, with a formula for each part."""
        axes, parts = self.split(value)
        kind = DTYPES[value.dtype].kind
        places: Iterable[int | None] = range(parts) if parts else (None,)
        self.values[value] = tuple(self.formulas.leaf(name, part, kind, axes) for part in places)

    def split(self, value: Value) -> tuple[list[Axis], int]:
        """The axes of one part of a value, in order, and the number of parts; 0 for a value without parts."""
        axes: list[Axis] = []
        count = 0
        for axis in self.axes.all(value):
            if axis.parts is not None:
                if count:
                    raise UserError("two axes of an array are cut", "an array of the language has parts along one axis")
                count = axis.parts.count
                if any(a.parts is not None for a in axis.parts.own):
                    raise UserError("a part of an axis is cut again", "cut it into more parts at once")
                axes += axis.parts.own
            else:
                axes.append(axis)
        self._check_axes(value)
        return axes, count

    def _check_axes(self, value: Value) -> None:
        """Raise `UserError` for a value such as `x[:, None] - x[None, :]`, which has one axis of `x` twice."""
        axes = self.axes.all(value)
        if len(set(axes)) < len(axes):
            raise UserError(
                "two axes of one array are the same", "an axis of the language has a name: pass the array twice"
            )

    def parts(self, atom: Atom) -> Parts:
        if isinstance(atom, Number):
            return (self.formulas.number(atom.value, DTYPES[atom.dtype].kind),)
        return self.values[atom]

    def add(self, step: Step) -> None:
        """The formulas of a step's outputs. Raises `NotExpressed`."""
        try:
            for value in (*step.inputs, *step.outputs):
                if value.dtype not in DTYPES:
                    raise UserError(f"{step.name} of {value.dtype}", "the language has no such type")
            for result in step.outputs:
                self._check_axes(result)
            if wraps(step):
                raise UserError(
                    f"{step.name} in {step.outputs[0].dtype}, which wraps",
                    "the language computes in more bits, and saturates: convert the arguments to a wider type first",
                )
            made = self._step(step)
        except NotExpressed:
            raise
        except UserError as error:
            raise NotExpressed(step, error.message, error.hint) from None
        self.values |= zip(step.outputs, made, strict=True)

    def _step(self, step: Step) -> Sequence[Parts]:
        name = step.name
        if name in (
            "split",
            "slice",
            "concatenate",
            "stack",
            "unstack",
            "iota",
            "dot_general",
            "gather",
            "reshape",
            "scatter-add",
            *SCANS,
        ):
            own = "scanned" if name in SCANS else name.replace("-", "_")
            method: Callable[[Step], Sequence[Parts]] = getattr(self, f"_{own}")
            return method(step)
        given = [self.parts(i) for i in step.inputs]
        if name in UNCHANGED:
            return [given[0]]
        if name in REDUCTIONS or name in ("argmax", "argmin"):
            return [self._reduced(step, REDUCTIONS.get(name, name), given[0])]
        kind = DTYPES[step.outputs[0].dtype].kind
        count = max(map(len, given))
        return [tuple(self._elementwise(step, kind, *(g[i % len(g)] for g in given)) for i in range(count))]

    def _elementwise(self, step: Step, kind: str, *args: Formula) -> Formula:
        make, number, params = self.formulas.make, self.formulas.number, step.params
        match step.name:
            case "select_n":
                if len(args) != 3:
                    raise UserError("a selection among more than two", "nest jnp.where")
                condition = args[0] if args[0].kind == "bool" else make("ne", (args[0], number(0)), "bool")
                return make("where", (condition, args[2], args[1]), kind)
            case "convert_element_type":
                return self._converted(args[0], step.inputs[0].dtype, step.outputs[0].dtype)
            case "clamp":
                return make("clip", (args[1], args[0], args[2]), kind)
            case "integer_pow":
                power = params["y"]
                return make("square", args, kind) if power == 2 else make("pow", (args[0], number(power)), kind)
            case "pow":
                return make("pow", args, kind)
            case "one_minus_square":  # without the cancellation of 1 - x * x
                one = number(1, kind)
                return make("mul", (make("add", (one, args[0]), kind), make("sub", (one, args[0]), kind)), kind)
            case "polynomial":
                return self._polynomial(args[0], args[1:])
            case "round":
                return (
                    make("round", args, kind) if int(params["rounding_method"]) == 1 else self._away_from_zero(args[0])
                )
            case "not":
                return make("not" if kind == "bool" else "invert", args, kind)
            case "shift_left":
                return make("shl", args, kind)
            case "shift_right_arithmetic":
                return make("shr", args, kind)
            case "own":
                return make("own", args, kind, params["name"])
            case "is_finite" | "eq" if step.inputs[0].dtype == "float16" and args[0].op != "input":
                if step.name == "is_finite" or (args[1].is_number and args[1].attr == math.inf):
                    # A value that float32 holds may be infinite in float16, such as a scaled gradient
                    args = (make("cast", args[:1], "float", "float16"), *args[1:])
            case "div" if kind == "int":
                whole = make("sub", (args[0], make("rem", args, kind)), kind)
                return make("floordiv", (whole, args[1]), kind)
            case "population_count" if (bits := DTYPES[step.inputs[0].dtype].bits) < 32:
                # A negative number has more bits in int32
                return make("popcount", (make("and", (args[0], number(2**bits - 1)), kind),), kind)
            case "square" if kind == "int":
                return make("mul", (args[0], args[0]), kind)
        return make(SAME[step.name], args, kind)

    def _away_from_zero(self, x: Formula) -> Formula:
        """The nearest whole number, and of two the one that is farther from zero."""
        make, number = self.formulas.make, self.formulas.number
        above, below = make("ceil", (x,), "float"), make("floor", (x,), "float")
        whole = make("where", (make("lt", (x, number(0.0)), "bool"), above, below), "float")
        rest = make("abs", (make("sub", (x, whole), "float"),), "float")
        farther = make("add", (whole, make("sign", (x,), "float")), "float")
        return make("where", (make("ge", (rest, number(0.5)), "bool"), farther, whole), "float")

    def _polynomial(self, x: Formula, coefficients: Sequence[Formula]) -> Formula:
        """The value by Horner's rule. Coefficients are in the order of powers, the constant first."""
        total = coefficients[-1]
        for coefficient in reversed(coefficients[:-1]):
            product = self.formulas.make("mul", (total, x), x.kind)
            total = self.formulas.make("add", (product, coefficient), x.kind)
        return total

    def _converted(self, value: Formula, old: str, new: str) -> Formula:
        make, number = self.formulas.make, self.formulas.number
        before, after = DTYPES[old], DTYPES[new]
        match before.kind, after.kind:
            case "bool", "float" | "int":
                one, zero = (number(1.0), number(0.0)) if after.kind == "float" else (number(1), number(0))
                return make("where", (value, one, zero), after.kind)
            case _, "bool" if before.kind != "bool":
                return make("ne", (value, number(0, before.kind)), "bool")
            case "int", "float" | "int" if value.is_number:
                return number(value.attr, after.kind)
            case "float", "float" if after.size > 1:
                return make("convert", (value,), "float", new)
            case "int", "int" if after.low <= before.low and before.high <= after.high:
                return value
            case "bool", "bool":
                return value
            case "int", "int":
                raise UserError(f"a conversion from {old} to {new}, which wraps", "the language saturates: clip first")
        return make("cast", (value,), after.kind, new)

    def _reduced(self, step: Step, op: str, given: Parts) -> Parts:
        dims = self.axes.dims(step.inputs[0])
        over = [a for place in step.params["axes"] for a in dims[place]]
        cut = next((a.parts for a in over if a.parts is not None), None)
        if op.startswith("arg"):
            if len(over) != 1 or cut is not None or step.outputs[0].dtype != "int32" or over[0] not in given[0].axes:
                raise UserError(f"{op} over several axes or parts", "reshape first")
            return tuple(self.formulas.make(op, (g,), "int", frozenset(over)) for g in given)
        if cut is None or len(given) == 1:
            return tuple(self._over(op, g, over) for g in given)
        rest = [a for a in over if a.parts is None]
        own = [*rest, *cut.own]
        if own and op == "sum" and cut.alone is None and all(g.axes.issuperset(own) for g in given):
            return (self.formulas.make(op, given, given[0].kind, frozenset(own)),)
        each = [self._over(op, g, rest if place == cut.alone else own) for place, g in enumerate(given)]
        joined = each[0]
        for other in each[1:]:
            joined = self.formulas.make(JOINED[op], (joined, other), joined.kind)
        return (joined,)

    def _over(self, op: str, value: Formula, axes: Sequence[Axis]) -> Formula:
        """A value reduced over axes, of which it may be the same along some."""
        own = frozenset(axes) & value.axes
        made = self.formulas.make(op, (value,), value.kind, own) if own else value
        times = math.prod(a.size for a in axes if a not in own)
        if times == 1 or op not in ("sum", "prod"):
            return made
        return self.formulas.make(
            "mul" if op == "sum" else "pow", (made, self.formulas.number(times, made.kind)), made.kind
        )

    def _scanned(self, step: Step) -> Sequence[Parts]:
        axis = self._whole("a scan", step.inputs[0], step.params["axis"])
        attr = (axis, bool(step.params["reverse"]))
        kind = DTYPES[step.outputs[0].dtype].kind
        given = self.parts(step.inputs[0])
        if step.name != "cummin":
            return [tuple(self.formulas.make(SCANS[step.name], (g,), kind, attr) for g in given)]
        turned = [self.formulas.make("cummax", (self.formulas.make("neg", (g,), kind),), kind, attr) for g in given]
        return [tuple(self.formulas.make("neg", (t,), kind) for t in turned)]

    def _reshape(self, step: Step) -> Sequence[Parts]:
        return [self.parts(step.inputs[0])]

    def _whole(self, what: str, value: Atom, place: int) -> Axis:
        """The axis of a dimension. Raises `UserError` unless it has one, of which there are no parts."""
        found = self.axes.dims(value)[place]
        if len(found) != 1 or found[0].parts is not None:
            raise UserError(f"{what} along an axis of one element, or one that is cut or split", "")
        return found[0]

    def _slice(self, step: Step) -> Sequence[Parts]:
        given = self.parts(step.inputs[0])
        for place, (a, b) in enumerate(zip(step.inputs[0].shape, step.outputs[0].shape, strict=True)):
            if a != b:
                if len(given) == 1:
                    return [given]  # it does not vary along the axis
                given = (given[sliced(step, place)[1]],)
        return [given]

    def _split(self, step: Step) -> Sequence[Parts]:
        given = self.parts(step.inputs[0])
        return [(given[i % len(given)],) for i in range(len(step.outputs))]

    _unstack = _split

    def _concatenate(self, step: Step) -> Sequence[Parts]:
        given = [self.parts(i) for i in step.inputs]
        if any(len(g) > 1 for g in given):
            raise UserError("a concatenation of values that are cut along another axis", "")
        return [tuple(g[0] for g in given)]

    _stack = _concatenate

    def _iota(self, step: Step) -> Sequence[Parts]:
        kind = DTYPES[step.params["dtype"].name].kind
        make, number = self.formulas.make, self.formulas.number
        made: Parts = (number(0),)
        for axis in self.axes.dims(step.outputs[0])[step.params["dimension"]]:
            own, before = self._positions(axis), [make("mul", (m, number(axis.size)), "int") for m in made]
            count = max(len(own), len(before))
            made = tuple(make("add", (before[i % len(before)], own[i % len(own)]), "int") for i in range(count))
        return [tuple(make("cast", (m,), kind, "float32") if kind == "float" else m for m in made)]

    def _positions(self, axis: Axis) -> Parts:
        """The positions along an axis, of each of its parts."""
        make, number = self.formulas.make, self.formulas.number
        if axis.parts is None:
            return (make("index", (), "int", axis),)
        if len(axis.parts.own) > 1 or axis.parts.alone is not None:
            raise UserError("positions along an axis whose parts are split", "")
        count, made = axis.parts.count, []
        for i in range(count):
            if not axis.parts.own:
                made.append(number(i))
                continue
            (part,) = axis.parts.own
            if axis.parts.interleaved:
                place = make("mul", (make("index", (), "int", part), number(count)), "int")
                made.append(make("add", (place, number(i)), "int"))
            else:
                first = make("mul", (make("size", (), "int", part), number(i)), "int") if i else number(0)
                made.append(make("add", (make("index", (), "int", part), first), "int"))
        return tuple(made)

    def _dot_general(self, step: Step) -> Sequence[Parts]:
        (left, _), _ = step.params["dimension_numbers"]
        dims = self.axes.dims(step.inputs[0])
        contracted = [a for i in left for a in dims[i]]
        if not contracted or any(c.parts is not None for c in contracted):
            raise UserError("a product that contracts no axis, or one that is cut", "multiply, and sum over the parts")
        a, b = (self.parts(i) for i in step.inputs)
        if len(a) > 1 and len(b) > 1:
            raise UserError("a product of two arrays that are cut", "")
        kind = DTYPES[step.outputs[0].dtype].kind
        made = [(a[i % len(a)], b[i % len(b)]) for i in range(max(len(a), len(b)))]
        return [tuple(self.formulas.make("dot", pair, kind, frozenset(contracted)) for pair in made)]

    def _gather(self, step: Step) -> Sequence[Parts]:
        how = taken(step)
        if how is None:
            raise UserError("a gather of this form", "jnp.take along one axis can be expressed")
        axis = self._whole("a gather", step.inputs[0], how.axis)
        table, index = self.parts(step.inputs[0]), self.parts(step.inputs[1])
        if len(index) > 1:
            raise UserError("a gather at positions that are cut", "")
        place = self._index(step, index[0], axis, clamped=not how.batched)
        make, number = self.formulas.make, self.formulas.number
        if how.batched:
            here = make("eq", (make("index", (), "int", axis), place), "bool")
            nothing = number(False) if table[0].kind == "bool" else number(0, table[0].kind)
            op = "any" if table[0].kind == "bool" else "sum"
            made = [make(op, (make("where", (here, t, nothing), t.kind),), t.kind, frozenset([axis])) for t in table]
        elif any(t.op != "input" for t in table):
            raise UserError("a gather from a computed value", "gather first, then compute")
        else:
            made = [make("take", (t, place), t.kind, axis) for t in table]
        if (fill := filled(step)) is not None:
            inside = self.formulas.within(place, axis)
            made = [make("where", (inside, m, number(fill, m.kind)), m.kind) for m in made]
        return [tuple(made)]

    def _index(self, step: Step, index: Formula, axis: Axis, clamped: bool) -> Formula:
        """The index of a gather or a scatter-add, from the start of the axis. One that is `clamped` may be outside."""
        make, number = self.formulas.make, self.formulas.number
        if axis in index.axes and not clamped:
            raise UserError("an index that has the axis along which it takes", "pass the array twice")
        place = unwrapped(index, axis.size)
        if place is not index and not self.from_start and not is_natural(place):
            if place.op == "input":  # it is made one from the start before: kernels read elements at an input alone
                raise UserError("an index that may be negative", "the language counts from the start of an axis")
            place = index
        if clamped or step.params["mode"] is not GatherScatterMode.CLIP:
            return place
        return make("clip", (place, number(0), number(axis.size - 1)), "int")

    def _scatter_add(self, step: Step) -> Sequence[Parts]:
        along = added(step)
        assert along is not None  # `Axes.see` refuses others
        axis = self._whole("a scatter-add", step.inputs[0], along)
        table, index, value = (self.parts(i) for i in step.inputs)
        if len(index) > 1 or len(value) > 1:
            raise UserError("a scatter-add of values that are cut", "")
        make, kind = self.formulas.make, table[0].kind
        place = self._index(step, index[0], axis, clamped=False)
        here = make("eq", (make("index", (), "int", axis), place), "bool")
        added_up = make("where", (here, value[0], self.formulas.number(0, kind)), kind)
        return [tuple(added_up if t.is_number and t.attr == 0 else make("add", (t, added_up), kind) for t in table)]


def constants_apart(flat: Flat) -> Flat:
    """The same function, in which each use of what is computed of numbers alone has a step of its own. So positions may be along several
    axes: `i[:, None] >= i` of one `i = jnp.arange(n)` has rows and columns."""
    constants: set[Value] = set()
    for step in flat.steps:
        if step.name in OF_NUMBERS and all(isinstance(v, Number) or v in constants for v in step.inputs):
            constants.update(step.outputs)
    taken = {v for v in flat.outputs if isinstance(v, Value)}
    copies: dict[Value, list[Value]] = {}
    made: list[Step] = []
    for step in reversed(flat.steps):
        (result, *_) = step.outputs or (None,)
        whole = [step] if result not in constants or result in taken else []
        whole += [replace(step, outputs=(copy,)) for copy in copies.get(result, ())] if result is not None else []
        for one in whole:
            inputs = list(one.inputs)
            for place, given in enumerate(inputs):
                if not isinstance(given, Value) or given not in constants:
                    continue
                if given in taken and len(made) < 4 * len(flat.steps):
                    inputs[place] = copy = Value(given.shape, given.dtype)
                    copies.setdefault(given, []).append(copy)
                taken.add(given)
            made.append(replace(one, inputs=tuple(inputs)))
    return Flat(flat.inputs, tuple(reversed(made)), flat.outputs)


def wraps(step: Step) -> bool:
    """Whether a step's result may leave the range of its type, and then wraps, where the language would saturate."""
    kinds = (DTYPES.get(v.dtype) for v in step.outputs)
    return step.name in LEAVING and any(
        d is not None and d.kind == "int" and (d.bits < 32 or d.name == "uint32") for d in kinds
    )


def is_exact(step: Step) -> bool:
    """Whether a product's float32 factors may not be rounded to TF32, as the caller's precision says."""
    if step.name != "dot_general" or all(v.dtype != "float32" for v in step.inputs):
        return False
    given = step.params["precision"]
    names = [str(getattr(p, "name", p)) for p in (given if isinstance(given, tuple) else (given,))]
    return any(name == "HIGHEST" or name.startswith("F32") or "_X" in name for name in names)


def translated(
    steps: Iterable[Step], inputs: Mapping[Value, str], see: Callable[[Axes], None] = lambda axes: None,
    from_start: bool = True,
) -> Translator:  # fmt: skip
    """The formulas of steps on inputs of these names. Raises `NotExpressed`."""
    axes = Axes()
    steps = list(plain(steps))
    for step in steps:
        if step.name not in KNOWN:
            hint = HELP.get(step.name, "leave it outside of the op")
            said = hint.startswith("write ")  # in a spec
            message = f"{step.name} is not traced" if said else f"the language has no {step.name}"
            raise NotExpressed(step, message, hint)
        try:
            axes.see(step)
        except UserError as error:
            raise NotExpressed(step, error.message, error.hint) from None
    see(axes)
    made = Translator(Formulas(), axes, from_start)
    for value, name in inputs.items():
        made.leaf(value, name)
    for step in steps:
        made.add(step)
    return made
