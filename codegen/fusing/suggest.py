"""The parts of a function that are worth an op: its chains, equal ones together, ranked by the memory traffic that they save."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from codegen.errors import SpecError, UserError
from codegen.fusing.chains.expressing import Chain, Expressing, place_of_input
from codegen.fusing.chains.search import LEAST
from codegen.fusing.fuse import call_of, place_of
from codegen.fusing.graph import BODIES, FACTOR, StepGraph, elements
from codegen.fusing.known import Call, known
from codegen.fusing.program import Program, is_array, of_arrays, program_of
from codegen.fusing.running import steps_evaluated
from codegen.targets import Gpu
from codegen.tracing.agreement import CLOSE, NARROW, as_tuple, difference, drawn, with_reference
from codegen.tracing.axes import RESHAPE
from codegen.tracing.naming import argument_names, assigned_name, assigned_names, proper, unique
from codegen.tracing.ops import op_of
from codegen.tracing.specs import Made, Request, spec_of
from codegen.tracing.steps import Place, Step, Value, failed
from codegen.tracing.translate import NotExpressed, translated

EXPRESSING = Expressing()  # what was tried is known to all functions of the process
LARGE = 2**22  # bytes of a chain's arrays above which it is compared with its reference on small arrays alone
SMALL = ((2, 3),)  # the sizes of `...` on which an op is compared with its reference
SMALL_END = 0.02  # of the bytes of the largest step that ends chains: smaller ones are left out
FORMS = frozenset({FACTOR, "convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "expand_dims"})
AGREES = 8  # eps of the narrowest type, in which the function's steps round


@dataclass(frozen=True, eq=False)
class Suggestion:
    """Equal chains, which one op computes. `places` are the source lines of their last steps, and `times` says how
    often a call of the function runs them. Numbers of bytes are for one of the chains."""

    name: str
    made: Made
    chain: Chain
    program: Program
    places: tuple[Place, ...]
    times: int
    call: Call | None

    @property
    def saved(self) -> int:
        return self.chain.cost.saved * self.times

    @property
    def text(self) -> str:
        """The statements of the chain."""
        return self.made.planned.spec.chain.value.strip()

    def seconds(self, gpu: Gpu) -> tuple[float, float]:
        """The time of all of them for their memory traffic alone: as XLA compiles them, and as the op."""
        cost = self.chain.cost
        return cost.now * self.times / gpu.bandwidth, cost.fused * self.times / gpu.bandwidth

    def data(self, gpu: Gpu) -> dict[str, Any]:
        """The suggestion as data."""
        now, fused = self.seconds(gpu)
        return {
            "op": self.name, "where": [str(p) for p in self.places], "function": self.places[0].function,
            "chain": self.text.split("\n"), "times": self.times, "bytes_now": self.chain.cost.now,
            "bytes_fused": self.chain.cost.fused, "kernels_now": self.chain.cost.kernels,
            "microseconds_now": 1e6 * now, "microseconds_fused": 1e6 * fused,
            "library": call_text(self) if self.call else None,
        }  # fmt: skip


def suggestions(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Suggestion]:
    """The chains of a function that are worth an op, the largest saving first. `arguments` are arrays,
    `jax.ShapeDtypeStruct`s, trees of these, or other values, which stay as they are."""
    return looked_at(function, arguments)[0]


def looked_at(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[list[Suggestion], list[End]]:
    """The same, and the steps at which the function's chains end."""
    own, arrays, places = of_arrays(
        function, arguments, is_array=lambda leaf: is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)
    )
    try:
        closed = jax.make_jaxpr(own)(*arrays)
    except Exception as error:
        raise failed(function, error) from error
    program = program_of(closed, EXPRESSING)
    names = argument_names(function, arguments)
    named = {v: n for own, _ in program.programs() for v, n in zip(own.graph.flat.inputs, own.names, strict=True)}
    named |= {v: names[i] for v, i in zip(program.graph.flat.inputs, places, strict=True)}
    return _grouped(program, named), ends(program)


@dataclass(frozen=True)
class End:
    """A step that the language lacks, at which chains end: its source line, a message, and a hint."""

    place: Place
    message: str
    hint: str


def ends(program: Program) -> list[End]:
    """The steps of a function that the language lacks, those with the largest arrays first, each line and step once."""
    found: dict[End, int] = {}
    for own, times in program.programs():
        for place, step in enumerate(own.graph.steps):
            if not step.place.line or (error := _lacking(own.graph, place)) is None:
                continue
            end = End(replace(step.place, column=0), error.message, error.hint)
            size = sum(v.bytes for v in (*step.inputs, *step.outputs) if isinstance(v, Value))
            found[end] = found.get(end, 0) + times * size
    least = SMALL_END * max(found.values(), default=0)
    return sorted((e for e in found if found[e] > least), key=lambda e: -found[e])


def _lacking(graph: StepGraph, place: int) -> UserError | None:
    """The part of a step that the language lacks; None where it can be part of a chain, costs nothing or is of numbers alone, and for
    a loop, whose body is searched."""
    step = graph.steps[place]
    values = [v for v in (*step.inputs, *step.outputs) if isinstance(v, Value)]
    if (
        graph.is_free(place)
        or step.equation is None
        or step.name in BODIES
        or all(elements(v.shape) == 1 for v in values)
    ):
        return None
    if step.name == "reshape" and not graph.is_expressed(place):
        return UserError(f"a reshape from {step.inputs[0].shape} to {step.outputs[0].shape}", RESHAPE)
    try:
        translated([step], {v: f"x{i}" for i, v in enumerate(step.inputs) if isinstance(v, Value)})
    except NotExpressed as error:
        return error
    return None


def _grouped(program: Program, arguments: Mapping[Value, str]) -> list[Suggestion]:
    groups: dict[tuple[str, Any], list[tuple[Program, Chain, int]]] = {}
    for owner, chain, times in program.everywhere():
        groups.setdefault((chain.made.text, chain.key[0]), []).append((owner, chain, times))
    found = []
    taken: set[str] = set()
    for group in sorted(groups.values(), key=lambda g: -sum(c.cost.saved * t for _, c, t in g)):
        owner, chain, _ = group[0]
        # A function's own name would hide the op's, where the op is called within the function
        (name,) = unique([proper(f"fused_{_function(owner, chain)}", "fused_chain")], taken)
        taken.add(name)
        made = _written(owner, chain, name, arguments)
        spots = tuple(dict.fromkeys(place_of(o, c) for o, c, _ in group))
        times = sum(t for _, _, t in group)
        found.append(Suggestion(name, made, chain, owner, spots, times, known(chain.made.planned)))
    return found


def _steps(program: Program, chain: Chain) -> list[Step]:
    return [program.graph.steps[p] for p in chain.places]


def _steps_alone(program: Program, chain: Chain) -> list[Step]:
    """The same, to be run outside of a `shard_map` too, where nothing varies over a mesh."""
    return [replace(s, name=FACTOR) if s.name == "pvary" else s for s in _steps(program, chain)]


def _function(program: Program, chain: Chain) -> str:
    """The function in whose lines most steps of a chain are."""
    names = Counter(s.place.function for s in _steps(program, chain) if s.place.line)
    usual = names.most_common(1)[0][0] if names else "chain"
    parts = [p for p in usual.split(".") if not p.startswith("<")]
    return parts[-1] if parts else "chain"


def _name_of(graph: StepGraph, value: Value, named: Mapping[Value, str]) -> str:
    """The name of a value, or of the value of which it is another form."""
    while not named.get(value):
        step = graph.steps[graph.maker[value]] if value in graph.maker else None
        if step is None or step.name not in FORMS or not isinstance(step.inputs[0], Value):
            return ""
        value = step.inputs[0]
    return named[value]


def _written(program: Program, chain: Chain, name: str, arguments: Mapping[Value, str]) -> Made:
    """The spec of a chain as a person would name things: after the source, and with a type variable."""
    steps = _steps(program, chain)
    named = {**arguments, **assigned_names(program.graph.steps)}
    wished = [_name_of(program.graph, v, named) for v in chain.inputs]
    inputs = unique(w or "x" for w in wished)
    results = [named.get(v, "y") for v in chain.outputs]
    outputs = unique((f"{r}_out" if r in inputs else r for r in results), inputs)
    place = place_of(program, chain)
    request = Request(
        name, f"Found in {place.function or 'a function'}.", steps, dict(zip(chain.inputs, inputs, strict=True)),
        list(zip(outputs, chain.outputs, strict=True)), own=False,
    )  # fmt: skip
    for generic in (True, False):
        try:
            return spec_of(replace(request, generic=generic))
        except (SpecError, UserError, NotExpressed):
            continue
    arrays = [replace(a, value=chain.inputs[place_of_input(a.name)]) for a in chain.made.inputs]
    made = [replace(a, value=v) for a, v in zip(chain.made.outputs, chain.outputs, strict=True)]
    # An equal chain's spec, with this one's values
    return replace(chain.made, inputs=tuple(arrays), outputs=tuple(made))


def disagreement(suggestion: Suggestion) -> str:
    """A message where the op and the function's own steps have different results on random arrays; "" where they
    agree."""
    chain, made = suggestion.chain, suggestion.made
    steps = _steps_alone(suggestion.program, chain)
    narrow = {v.dtype for s in steps for v in s.outputs} & set(NARROW)  # constants were rounded to it too
    allowed = AGREES * max([float(jax.numpy.finfo(d).eps) for d in narrow], default=2.0**-16)
    if wrong := with_reference(made, SMALL, allowed if narrow else CLOSE):
        return wrong
    if sum(v.bytes for v in (*chain.inputs, *chain.outputs)) > LARGE:
        return ""
    sizes = [n for v in chain.inputs for n in v.shape if n > 1]
    values: dict[Value, Any] = {
        v: drawn(v.shape, v.dtype, i, min(sizes, default=2)) for i, v in enumerate(chain.inputs)
    }
    wanted = steps_evaluated(steps, values)
    op = op_of(made.planned)
    results = as_tuple(op(*(values[a.value].reshape(a.shape) for a in made.inputs), implementation="xla"))
    for array, got in zip(made.outputs, results, strict=True):
        if far := difference(got.reshape(array.value.shape), wanted[array.value], allowed):
            return f"{array.name} and the function's own steps differ {far}"
    return ""


def candidates(suggestion: Suggestion) -> dict[str, Callable[[int], Any]]:
    """Calls to time against each other on a GPU: the function's own steps under `jax.jit`, and the op."""
    chain, steps = suggestion.chain, _steps_alone(suggestion.program, suggestion.chain)
    sizes = [n for v in chain.inputs for n in v.shape if n > 1]
    given = [on_device(v, place, min(sizes, default=2)) for place, v in enumerate(chain.inputs)]

    xla, fused = jax.jit(_evaluated(chain, steps)), jax.jit(call_of(chain))
    return {"xla": lambda _: xla(*given), "op": lambda _: fused(*given)}


def compiled(suggestion: Suggestion) -> Suggestion | None:
    """The suggestion with the memory traffic of XLA's own program for its steps, compiled for the GPU that JAX has; None where that
    is no more than the op's. Without a GPU, and where XLA does not say, it stays as it is."""
    chain, steps = suggestion.chain, _steps_alone(suggestion.program, suggestion.chain)
    if jax.default_backend() != "gpu":
        return suggestion
    arrays = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in chain.inputs]
    found = jax.jit(_evaluated(chain, steps)).lower(*arrays).compile().cost_analysis()
    now = int((found or {}).get("bytes accessed", 0))
    if not now:
        return suggestion
    own = replace(chain.cost, now=now)
    return replace(suggestion, chain=replace(chain, cost=own)) if own.saved > LEAST * now else None


def _evaluated(chain: Chain, steps: Sequence[Step]) -> Callable[..., list[Any]]:
    """A chain's steps as a function of its arrays."""

    def own(*arrays: Any) -> list[Any]:
        values = steps_evaluated(steps, dict(zip(chain.inputs, arrays, strict=True)))
        return [values[v] for v in chain.outputs]

    return own


def on_device(value: Value, seed: int, limit: int) -> jax.Array:
    """A random array, drawn where JAX computes: those of a model are large. Integers are below the limit."""
    key, dtype = jax.random.key(seed), jax.numpy.dtype(value.dtype)
    if jax.numpy.issubdtype(dtype, jax.numpy.floating):
        return jax.random.normal(key, value.shape, "float32" if dtype.itemsize > 4 else "bfloat16").astype(dtype)
    return jax.random.randint(key, value.shape, 0, limit).astype(dtype)


def replacement(suggestion: Suggestion) -> list[str]:
    """A call of the op in the place of the source lines that it replaces, as a diff. Lines that do more than the chain stay, with
    the call before them."""
    program, chain = suggestion.program, suggestion.chain
    steps = _steps(program, chain)
    spots = Counter((s.place.path, s.place.function) for s in steps if s.place.line)
    if not spots:
        return []
    (path, function), _ = spots.most_common(1)[0]
    lines = sorted({s.place.line for s in steps if (s.place.path, s.place.function) == (path, function)})
    first, last = lines[0], lines[-1]
    source = [line.rstrip("\n") for line in linecache.getlines(path)[first - 1 : last]]
    if not source:
        return []
    shared = {
        s for p, s in enumerate(program.graph.steps)
        if s.place.path == path and first <= s.place.line <= last and s.place.function == function
    }  # fmt: skip
    inside = {program.graph.steps[p] for _, c, _ in program.everywhere() if c.key == chain.key for p in c.places}
    whole = len(spots) == 1 and shared <= inside
    indent = source[-1][: len(source[-1]) - len(source[-1].lstrip())]
    names = {old.name: new.name for old, new in zip(chain.made.outputs, suggestion.made.outputs, strict=True)}
    results = ", ".join(names[n] for n in (suggestion.call.outputs if suggestion.call else names))
    if whole and len(names) == 1:  # what comes after these lines calls it as they did
        results = assigned_name(path, last) or results
    target = "return " if whole and source[-1].lstrip().startswith("return") else f"{results} = "
    new = f"+{indent}{target}{call_text(suggestion)}"
    others = sorted(
        {
            f"{path}:{s.place.line}"
            for s in steps
            if s.place.line and (s.place.path, s.place.function) != (path, function)
        }
    )
    split = [a for a in suggestion.made.outputs if a.is_split and len(names) > 1]
    after = [f"+{indent}{a.name} = {a.name}.reshape{a.value.shape}" for a in split]
    if not whole:
        also = f", and of {', '.join(others)}" if others else ""
        new += f"  # instead of the same part of these lines{also}"
    old = [f"-{line}" for line in source] if whole else []
    kept = [] if whole else [f" {line}" for line in source]
    head = f"@@ -{first},{len(source)} +{first},{(1 if whole else len(source) + 1) + len(after)} @@ {function}"
    return [f"--- {path}", f"+++ {path}", head, *old, new, *after, *kept]


def call_text(suggestion: Suggestion) -> str:
    """A call of the op, or of the library's op that is the same. What the op has in more dimensions is reshaped."""
    call, made = suggestion.call, suggestion.made
    given = {a.value: f"{a.name}.reshape{a.shape}" if a.is_split else a.name for a in made.inputs}
    if call is None:
        text = f"{suggestion.name}({', '.join(given.values())})"
    else:
        arrays = [given.get(suggestion.chain.inputs[place_of_input(own)], own) for _, own in call.inputs]
        text = f"{call.op}({', '.join([*arrays, *(f'{name}={value:g}' for name, value in call.params)])})"
    (first, *others) = made.outputs
    return text if others or not first.is_split else f"{text}.reshape{first.value.shape}"
