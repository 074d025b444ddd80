"""`codegen.trace`: a JAX function as the text of a spec, which computes what the function does."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax

from codegen.errors import Diagnostic, Span, SpecError, UserError
from codegen.graph.names import op_name_error
from codegen.tracing import agreement
from codegen.tracing.naming import argument_names, proper, result_names, unique
from codegen.tracing.reference import source_of
from codegen.tracing.specs import Made, Param, Request, no_source, spec_of
from codegen.tracing.steps import Flat, Place, Value, failed, traced
from codegen.tracing.translate import NotExpressed, constants_apart

Like = jax.ShapeDtypeStruct


def trace(function: Callable[..., Any], *examples: Any, op: str = "", verify: bool = True) -> str:
    """The text of a spec that computes what a JAX function computes.

    `examples` are the function's positional arguments: arrays, or `jax.ShapeDtypeStruct`s, or trees of them. Only their shapes
    and dtypes count. Dimensions get names: axes that the function combines are one axis, and leading axes that it
    treats alike are `...`. Use different sizes, above 1: a dimension of size 1 is left out of the spec. The most frequent
    narrow float type becomes the type variable T. Python floats among the arguments, and float defaults of the
    others, become parameters. `op` is the spec's name, by default the function's.

    With `verify`, the jnp form of the op is run on random arguments of these shapes and compared with the function.

    Raises `SpecError`, with the line of the function's source, for what the language lacks, for a function that no kernel computes,
    and for results that differ.
    """
    return made_of(function, examples, op, verify).text


def made_of(function: Callable[..., Any], examples: tuple[Any, ...], op: str = "", verify: bool = True) -> Made:
    """The same, with the op that was read."""
    name = op or proper(getattr(function, "__name__", "traced"), "traced")
    if error := op_name_error(name):
        raise _error(function, error)
    scalars = _scalars(function, examples)
    given, names = _traced(function, examples, scalars)
    flat, _ = _traced(function, _widened(examples), scalars)  # constants are exact in it
    try:
        dtypes = {v: w.dtype for v, w in zip((*flat.inputs, *flat.outputs), (*given.inputs, *given.outputs), strict=True)
                  if isinstance(v, Value) and isinstance(w, Value)}  # fmt: skip
        request = replace(_request(function, name, flat, names, scalars), dtypes=dtypes)
        made = spec_of(request)
        if notes := [*_reshapes(made)]:
            request = replace(request, notes=notes, source=no_source)
            made = spec_of(request)
    except NotExpressed as error:
        raise SpecError([diagnostic(error.step.place, error.message, error.hint)]) from None
    except SpecError as error:
        raise SpecError([_in_function(function, d) for d in error.diagnostics]) from None
    except UserError as error:
        raise _error(function, error) from None
    if not verify:
        return made
    wrong = agreement.with_reference(made)
    if wrong and request.source is not no_source:  # the source holds for the traced number of axes alone
        made = spec_of(replace(request, source=no_source))
        wrong = agreement.with_reference(made)
    wrong = wrong or agreement.with_function(
        _called(function, examples, scalars), made, flat, list(scalars.values()), examples
    )
    if wrong:
        raise _error(function, UserError(wrong, "codegen reads this function wrongly: please report it"))
    return made


def _reshapes(made: Made) -> Iterator[str]:
    """What a caller reshapes, for the functions that split or join dimensions: an op has each part as an axis."""
    for array in made.inputs:
        if array.is_split:
            name = array.name
            yield f"A call takes {name}.reshape{array.shape}, where the function takes {name} of shape {array.value.shape}."
    for array in made.outputs:
        if array.is_split:
            yield f"The function's result is {array.name}.reshape{array.value.shape}."


def _scalars(function: Callable[..., Any], examples: tuple[Any, ...]) -> dict[str, float]:
    """The floats among a function's arguments and defaults, by parameter."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return {}
    found = {}
    for place, parameter in enumerate(parameters):
        value = examples[place] if place < len(examples) else parameter.default
        if isinstance(value, float) and parameter.kind is not parameter.VAR_POSITIONAL:
            found[parameter.name] = value
    return found


def _called(function: Callable[..., Any], examples: tuple[Any, ...], scalars: dict[str, float]) -> Callable[..., Any]:
    """The function of arrays, then of scalars, by place."""
    names = list(scalars)
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        parameters = []

    def call(arrays: list[Any], numbers: list[Any]) -> Any:
        given, rest = dict(zip(names, numbers, strict=False)), iter(arrays)
        args, keywords = [], {}
        for place, example in enumerate(examples):
            known = parameters[place] if place < len(parameters) else ""
            args.append(given.pop(known) if known in given else (example if isinstance(example, float) else next(rest)))
        keywords = given
        return function(*args, **keywords)

    return call


def _traced(
    function: Callable[..., Any], examples: tuple[Any, ...], scalars: dict[str, float]
) -> tuple[Flat, list[str]]:
    """The function's steps on its arrays, then on the scalars that may be traced, which stay in `scalars`."""
    arrays = [e for e in examples if not isinstance(e, float)]
    names = argument_names(_without(function, scalars), tuple(arrays))
    try:
        return constants_apart(traced(_called(function, examples, scalars), arrays, list(scalars.values()))), names
    except Exception as error:  # a scalar decides what is traced: it stays a number
        if not scalars:
            raise failed(function, error) from error
        kept = dict(scalars)
        scalars.clear()
        numbers = list(kept.values())
        call = _called(function, examples, kept)
        try:
            return constants_apart(traced(lambda given: call(given, numbers), arrays)), names
        except Exception as another:
            raise failed(function, another) from another


def _widened(examples: tuple[Any, ...]) -> tuple[Any, ...]:
    """The examples with float32 arrays instead of narrower ones."""

    def wide(example: Any) -> Any:
        dtype = getattr(example, "dtype", None)
        return Like(example.shape, "float32") if str(dtype) in agreement.NARROW else example

    return tuple(jax.tree.map(wide, e) if not isinstance(e, float) else e for e in examples)


def _without(function: Callable[..., Any], scalars: dict[str, float]) -> Callable[..., Any]:
    """A function whose signature lacks the scalars."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function

    def named(*args: Any) -> Any: ...

    left = [p for p in signature.parameters.values() if p.name not in scalars]
    named.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
    return named


def _request(
    function: Callable[..., Any], name: str, flat: Flat, names: list[str], scalars: dict[str, float]
) -> Request:
    arrays = flat.inputs[: len(flat.inputs) - len(scalars)]
    inputs = dict(zip(arrays, names, strict=True))
    captured = {v: None for s in flat.steps for v in s.inputs if isinstance(v, Value) and v.constant is not None}
    if captured:
        value = next(iter(captured))
        step = next(s for s in flat.steps if value in s.inputs)
        raise NotExpressed(
            step, f"an array of shape {value.shape} that the function has captured", "make it an argument"
        )
    params = [Param(proper(n), v, value) for (n, v), value in
              zip(scalars.items(), flat.inputs[len(arrays) :], strict=True)]  # fmt: skip
    taken = {*inputs.values(), *(p.name for p in params)}
    results = []
    for result, output in zip(flat.outputs, result_names(function, len(flat.outputs)), strict=True):
        if not isinstance(result, Value) or result in inputs:
            raise UserError("a result of the function is a constant, or an argument as it is", "leave it out")
        results.append((f"{output}_out" if output in taken else output, result))
    outputs = list(zip(unique((n for n, _ in results), taken), (v for _, v in results), strict=True))
    summary = (inspect.getdoc(function) or "").strip().split("\n")[0][
        :280
    ] or f"Traced from {getattr(function, '__name__', 'a function')}."
    return Request(
        name, summary, flat.steps, inputs, outputs, params,
        lambda own, targets: source_of(function, own, targets),
    )  # fmt: skip


# Errors


def diagnostic(place: Place, message: str, hint: str = "") -> Diagnostic:
    """An error at a line of the user's source."""
    line = linecache.getline(place.path, place.line).rstrip("\n") if place.line else ""
    column = place.column + 1
    length = max(1, len(line.rstrip()) - place.column) if line else 1
    return Diagnostic(Span(place.path or "<unknown>", max(1, place.line), column, length), message, hint, line)


def _error(function: Callable[..., Any], error: UserError) -> SpecError:
    return SpecError([diagnostic(_place_of(function), error.message, error.hint)])


def _in_function(function: Callable[..., Any], found: Diagnostic) -> Diagnostic:
    """An error of the spec that was made, at the function; its line of the chain is part of the message."""
    place = _place_of(function)
    what = f"{found.message} (in the chain: {found.source.strip()})" if found.source.strip() else found.message
    return diagnostic(place, what, found.hint)


def _place_of(function: Callable[..., Any]) -> Place:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return Place(code.co_filename, code.co_firstlineno) if code is not None else Place()
