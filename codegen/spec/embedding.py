"""A spec as data, which a generated module embeds, so that running an op reads no YAML.

The data consists of dicts, lists, strings and numbers, as YAML would load a plainly written spec. The chain, the reference
and the formulas keep their text. Comments between a spec's keys are left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from codegen.spec.spec import Array, Param, Spec
from codegen.spec.tree import Mapping, Scalar, Sequence, Source, Tree


def to_data(spec: Spec) -> dict[str, Any]:
    """The data of a spec: reading it gives an equal spec. Keys with their default value are left out."""
    found = {
        "op": spec.op,
        "summary": spec.summary,
        "types": {name: list(dtypes) for name, dtypes in spec.types},
        "inputs": {array.name: _array(array) for array in spec.inputs},
        "outputs": {array.name: _array(array) for array in spec.outputs},
        "params": {param.name: _param(param) for param in spec.params},
        "chain": spec.chain.value,
        "reference": spec.reference.value,
        "grad": spec.grad if isinstance(spec.grad, str) else {name: text.value for name, text in spec.grad},
        "aliases": dict(spec.aliases),
        "save": list(spec.save),
        "math": spec.math,
        "tolerance": dict(spec.tolerance),
        "domain": {name: _domain(values) for name, values in spec.domain},
        "schedule": {name: dict(value) if isinstance(value, tuple) else value for name, value in spec.schedule},
        "bench": [dict(shape) for shape in spec.bench],
    }
    return {key: value for key, value in found.items() if value and value != "auto"}


def _array(array: Array) -> str:
    return str(array) if array.default is None else f"{array} = {_word(array.default)}"


def _param(param: Param) -> Any:
    default = None if param.default is None else _number(param.default)
    if default is not None and param.static and not param.doc and (param.kind == "float" or param.whole):
        return default
    found: dict[str, Any] = {} if param.whole else {"type": param.kind}
    found |= {} if default is None else {"default": default}
    found |= {} if param.static else {"static": False}
    return found | ({"doc": param.doc} if param.doc else {})


def _domain(values: object) -> object:
    return [_number(value) for value in values] if isinstance(values, tuple) else values


def _number(value: float) -> float | str:
    """A number, or YAML's word for it where Python has no literal."""
    return value if math.isfinite(value) else _word(value)


def _word(value: object) -> str:
    """A scalar as YAML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return str(value)


def from_data(title: str, data: dict[str, Any]) -> Mapping:
    """The tree of a spec's data. Messages name `title`, and show the data with one key per line and texts unchanged."""
    pieces = list(_pieces(data))
    text = "".join(piece + after for piece, after in pieces)
    starts = itertools.accumulate((len(piece) + len(after) for piece, after in pieces), initial=0)
    tree = _tree(Source(title, text), data, starts)
    assert isinstance(tree, Mapping)
    return tree


def _pieces(value: Any) -> Iterator[tuple[str, str]]:
    """Each key and each scalar in order, with the text after it."""
    if isinstance(value, dict):
        for key, item in value.items():
            lines = isinstance(item, dict | list) or "\n" in str(item)
            yield _word(key), ":\n" if lines else ": "
            yield from _pieces(item)
    elif isinstance(value, list):
        for item in value:
            yield from _pieces(item)
    else:
        yield _word(value), "\n"


def _tree(source: Source, value: Any, starts: Iterator[int]) -> Tree:
    """The tree of a value whose pieces start where `starts` says."""
    if isinstance(value, dict):
        pairs = []
        for key, item in value.items():
            name = _scalar(source, key, starts)
            pairs.append((name, _tree(source, item, starts)))
        return Mapping(source, pairs[0][0].span if pairs else source.span(0, 0), tuple(pairs))
    if isinstance(value, list):
        items = tuple(_tree(source, item, starts) for item in value)
        return Sequence(source, items[0].span if items else source.span(0, 0), items)
    return _scalar(source, value, starts)


def _scalar(source: Source, value: object, starts: Iterator[int]) -> Scalar:
    """A plain scalar: a spec's numbers are plain, and for texts the style makes no difference."""
    text, start = _word(value), next(starts)
    return Scalar(source, text, "plain", start, start + len(text))
