"""A hint that proposes a text can be followed: the text, put in the place that the hint names, is not an error."""

import functools
import itertools
import re

import pytest

from codegen.errors import Diagnostic, SpecError
from codegen.language.formula.instead import INSTEAD
from codegen.pipeline import read_op
from codegen.plan.op import Op
from tests.places import BAD_SPECS

BAD = {path.stem: path.read_bytes() for path in sorted(BAD_SPECS.glob("*.yaml"))}

# What stands in a line of a bad spec once its hint is followed; None where the line is deleted
FOLLOWED: dict[str, dict[int, str | None]] = {
    "aliases_empty": {10: "  y: x"},
    "aliases_of_columns": {14: None, 15: None},
    "aliases_of_products": {12: None, 13: None},
    "aliases_shifted": {22: None, 23: None},
    "array_forms": {4: "  a: float32[]", 5: "  b: float32[N]", 8: "  e: float32[N]", 9: "  f: float32[..., N]", 10: "  g: float32[..., N]"},
    "axis_names": {4: "  a: float32[N]", 10: "  g: float32[(2 N)]", 11: "  h: float32[..., (2 N)]", 12: "  i: float32[Heads]"},
    "axes_of_index": {8: "  a = index(N)", 12: "  e = argmax(x, axis=N)", 13: "  y = x + index(N)"},
    "axis_order": {4: "  x: float32[..., N]"},
    "bench": {11: "  - {...: 8192, N: 4096}", 12: "  - {...: 8192, N: 4096}", 13: "  - {...: 8192, N: 4096}"},
    "bench_forms": {9: "bench:\n  - {...: 8192, N: 4096}"},
    "bools": {
        10: "  a = where(m, 1, 0) + 1", 11: "  b = (x > 0) & m", 12: "  c = ~((i > 0) & (i < 1))", 13: "  d = -where(m, 1, 0)",
        14: "  e = relu(where(m, 1, 0))", 15: "  f = exp(where(m, 1, 0))", 16: "  g = where(x > 0, 1, 0)",
        17: "  h = where(m, where(m, 1, 0), x)", 18: "  k = where(m, 1, 0) < where(m, 1, 0)", 19: "  l = where(m, 1, 0) / x",
    },
    "calls": {
        8: "  a = tanh(x)", 9: "  b = x * (2)", 10: "  c = exp(x)", 12: "  f = exp(x)", 13: "  g = atan2(x, x)", 14: "  h = gelu(x)",
        15: "  k = clip(x, lo=0, hi=1)", 16: f"  m = {INSTEAD['amax'].removeprefix('write ')}",
    },
    "casts": {9: "  b = cast(x, int8)", 10: "  c = cast(x, int8)", 11: "  d = x != 0", 12: "  e = cast(x, float32)"},
    "colon_in_text": {2: 'summary: "Two steps: scale, then shift."'},
    "shifts": {
        9: "  a = shift(x, axis=N)", 10: "  b = shift(x, axis=S, by=1)", 11: "  c = shift(x, axis=S, by=-1)", 12: "  d = shift(k, axis=N)",
        13: "  e = shift(x > 0, axis=S, fill=x > 1)", 14: "  g = shift(x, axis=N)",
    },
    "draw_of_nothing": {9: "  y = sum(x * uniform(key, axes=N), axis=N)"},
    "draws": {
        11: "  a = uniform(key)", 12: "  b = uniform(key)", 13: "  c = bits(key)", 14: "  d = bernoulli(key, 0.5)",
        15: "  e = bernoulli(key, where(x > 0, 1, 0))", 17: "  g = bits(key)", 18: "  h = uniform(key, N)",
    },
    "continued_lines": {12: "                x + 1)", 20: "    x)"},
    "contractions": {14: "  g = where(m, 1, 0) @ b"},
    "defaults": {7: "  a: float32[N] = 1.0", 8: "  b: I[N] = 255", 9: "  c: int32[N] = 0", 10: "  d: bool[N] = true", 11: "  e: float32[N] = 0"},
    "file_name": {1: "op: file_name"},
    "grad_cotangent": {5: "  w: float32[N]", 8: "chain: y = x * w", 9: "reference: x * w"},
    "grad_of_a_count": {11: None, 12: None},
    "grad_forms": {11: "  x: sum(dy * (y > 0), axis=...)"},
    "grad_formulas": {14: "  p[1]: sum(dy * (y > 0), axis=...)", 17: None, 18: "  bias: sum(where(y > 0, dy, 0), axis=...)", 19: None},
    "grad_integer": {9: "grad: none"},
    "quantised_gradient": {10: "reference: q * s\ngrad: none"},
    "grad_list": {9: "grad:\n  x: dy * (y > 0)"},
    "grad_of_integers": {11: None},
    "integers": {
        9: "  a = i + 3000000000.0", 10: "  b = 1e20 * i", 11: "  c = 1e20 * i", 12: "  y = 2147483648.0", 13: "  z = cast(3000000000.0, int8)",
    },
    "literals": {7: "chain: y = x + 1 + 2 + 3 + 4"},
    "literals_too_large": {8: "  z = x + inf", 9: "  y = z * -inf", 10: "reference: x + jnp.inf - jnp.inf"},
    "joined_chain": {7: "chain: |"},
    "logic": {
        8: "  a = (x > 0) & (x < 1)", 9: "  b = (0 < x) & (x < 1)", 10: "  c = x == x", 11: "  e = (x == 1) | (x == 2)", 12: "  f = isnan(x)",
        14: "  y = where(x > 0, x, 0)",
    },
    "many_mistakes": {1: "op: many_mistakes"},
    "never_assigned": {6: None, 7: None, 8: None},
    "never_used": {5: None, 9: None, 11: None, 13: None},
    "no_arrays": {3: "inputs:\n  x: T[..., N]", 4: "outputs:\n  y: T[..., N]"},
    "no_values": {7: "chain: y = relu(x) + index(N) + size(N) + x"},
    "selections": {
        10: "  a = top_k(x, K, axis=N)", 11: "  b = top_k(x, K, axis=N)", 12: "  c = top_k(x, K, axis=N)",
        13: "  d = top_k(where(m, 1, 0), K, axis=N)", 14: "  e = top_k(x, K, axis=N)",
        15: "  f = sort(where(m, 1, 0), axis=N)", 16: "  g = argsort(x, axis=N)",
        17: "  h = unsort(x, argsort(x, axis=N), axis=N)", 18: "  i = unsort(x, argsort(x, axis=N), axis=N)",
        19: "  j = top_k(x, L=4, axis=N)", 20: "  k = top_k(x, L=4, axis=N)", 21: "  y = top_k(x, K=8, axis=N)",
    },
    "parts_of_values": {
        12: "  b = a * v[0]", 13: "  c = a[0] @ w[0] + a[1] @ w[1]", 14: "  d = sum(a[0], axis=N)", 15: "  e = softmax(x[0], axis=N)",
        16: "  f = a[0]", 17: "  g = a[0]", 18: "  z[0] = v[0]", 19: "  y = a[0]",
    },
    "not_text": {2: "summary: |\n  A list.", 8: "  y = x", 9: "reference: |\n  x"},
    "numbers_too_large": {5: "  b: float32[N] = -.inf", 10: "  alpha: .inf", 11: "  beta: {type: float, default: -.inf}", 17: "  x: [0, .inf]"},
    "operators": {
        8: "  a = where(x > 0, 1, 0) % 2", 9: "  b = cast(floor(x), int32) >> 2", 10: "  c = x ** 2",
        11: "  d = cast(floor(x), int32) << 2", 12: "  e = ldexp(x, exponent(2.0))", 13: "  y = where(~(x > 0), 1, 0)",
    },
    "param_defaults": {
        8: "  a: {default: 1.0}", 9: "  b: {type: int, default: 1}", 10: "  c: {type: bool, default: true}", 12: "  e: 10000000000.0",
        13: "  f: {default: -3000000000.0, static: false}", 14: "  g: {type: float, default: 1.0}",
    },
    "param_forms": {
        8: "  a: 1.0", 9: "  b: 1.0", 10: "  c: {type: float, default: 1.0, static: true, doc: Something.}", 11: "  d: {type: bool, default: true}",
    },
    "params_as_list": {9: "params:\n  alpha: 1.0\n  beta: 1.0"},
    "part_of_input": {
        7: "  u: float32[(3 N)]", 11: "  a = x[0] + b", 12: "  c = b", 13: "  d = x[1]", 14: "  e = x[1]", 15: "  f = x[0]",
        16: "  g = w[0]", 19: "  l = u[1]",
    },
    "powers": {
        10: "  b = exp(65 * log(i))", 11: "  c = exp(nan * log(x))", 12: "  d = 1", 13: "  e = where(m, 1, 0) ** 2",
        14: "  f = exp(9 ** 9 * log(i))", 15: "  y = x ** where(m, 1, 0)",
    },
    "products_in_float64": {4: "  T: [float32]", 11: None},
    "products_with_formulas": {11: None, 12: None, 13: None, 14: None},
    "reductions": {
        10: "  a = sum(x, axis=N)", 11: "  b1 = mean(x, axis=N)", 13: "  d = maximum(x, 0)", 15: "  f = any(x > 0, axis=N)",
        16: "  g = max(where(m, 1, 0), axis=N)", 19: "  l = sum(x, axis=N)",
    },
    "reference_expression": {10: "  z = jnp.exp(x)"},
    "reference_forms": {8: "reference: y = jnp.stack(x) + jnp.logical_and(x, x) + 1 + 2 + jnp.exp(x)"},
    "open_group": {4: "  x: float32[..., (H G=4)]", 6: "  y: float32[..., (H G=4)]"},
    "reference_lambda": {9: "  f = lambda a, b: a + b", 10: "  g = lambda a, b: a + b", 12: "  k = jnp.exp(x)"},
    "reference_modules": {8: "reference: y = jnp.exp(x) + jax.nn.relu(x) + jax.lax.rsqrt(x)"},
    "reference_names": {8: "reference: jnp.maximum(x, 0) + jnp.exp(x)"},
    "reference_of_itself": {8: "reference: jnp.where(x > 0, x, x + 1)"},
    "reference_outputs": {11: "reference: |\n  y = x\n  z = x"},
    "reference_statements": {9: "  z = jnp.exp(x)", 13: "  z = jnp.exp(x)"},
    "thresholds": {
        12: "  a = nucleus(x, 0.9, axis=N)", 13: "  b = nucleus(1.0 * i, 0.9, axis=N)", 14: "  c = nucleus(x, 0.5, axis=N)",
        15: "  d = nucleus(x, 0.5, axis=N)", 9: "  k: {type: float, default: 1.0}",
    },
    "save_forms": {10: "  - rstd", 11: "  - rstd"},
    "scans": {
        10: "  a = cumsum(x, axis=N)", 11: "  b = cumsum(x, axis=N)", 12: "  c = cumsum(1.0 * n, axis=S)",
        13: "  d = cummax(where(x > 0, 1.0, 0.0), axis=S)", 16: "  g = cumsum(x, axis=S, reverse=true)",
        17: "  k = scan(x, x, axis=S)", 18: "  m = cumlogsumexp(x, S, reverse=true)",
    },
    "schedule": {10: "  threads: 1024", 11: "  vector_bytes: 16", 13: "  sm_90a: {threads: 256}", 14: "  sm_80: {threads: 1024}"},
    "schedule_list": {9: "schedule:\n  threads: 128"},
    "statement_forms": dict.fromkeys((8, 9, 10, 11, 12), "  z = x + bias") | {14: "  y = x\n  z = x", 15: "  z = where(x > 0, x, 0)"},
    "python_statements": {13: "  z = where(x > 0, x, 0)", 22: "  z = x + bias"},
    "modules_and_methods": {
        8: "  a = exp(x)", 9: "  b = silu(x)", 10: "  c = x - mean(x, axis=N)", 11: "  d = sum(x, axis=N)", 12: "  e = cast(x, float32)",
        13: "  f = x ** 2", 14: "  g = x", 16: "  k = x * pi", 18: "  m = abs(x + 1)", 19: "  n = tanh(x)",
    },
    "signs_of_other_languages": {
        9: "  a = (x > 0) & (x < 1)", 10: "  b = (x > 0) | (x < 1)", 11: "  c = ~(x > 0)", 12: "  d = where(x > 0, x, 0)", 13: "  e = x ** 2",
        14: "  f = x ** 2", 15: "  g = x ** x", 17: "  i = where(bernoulli(key, 0.9), x / 0.9, 0)",
    },
    "slices": {11: "  b = x", 13: "  d = take(t, i, axis=P)", 14: "  e = x", 15: "  f = x", 17: "reference: jnp.sum(x, axis=-1) + x"},
    "constructs": {9: "  b = x"},
    "stored_kinds": {10: "  y = x > 0", 11: "  z = where(m, 1, 0)"},
    "takes": {
        8: "  u: float32[P, N]", 9: "  j: int32[...]", 14: "  b = take(t, i, axis=P)", 18: "  f = take(t, i, axis=P)",
        19: "  g = take(u, i, axis=P)", 20: "  h = take(t, j, axis=P)", 22: "  l = take(log_softmax(x, axis=N), i, axis=N)",
        23: "  m = sum(where(index(P) == i, cumsum(t, axis=P), 0), axis=P)", 24: "  n = take(t, i, axis=P)",
        26: "  p = unsort(2 * x, argsort(argsort(x, axis=N), axis=N), axis=N)",
    },
    "puts": {12: "  c: float32[P, N]", 15: "  a = put(cache, x, i, axis=P)", 16: "  b = put(cache, x, i, axis=P)"},
    "syntax_marks": {8: "  a = x * 2"},
    "target_parts": {8: None, 11: "  h = x", 12: None},
    "tolerance": {10: "  rtol: 1e-3", 11: "  atol: 1e-3"},
    "tolerance_empty": {10: "  rtol: 1e-3"},
    "type_dtypes": {4: "  T: [float32, float16]"},
    "type_kinds": {4: "  T: [float32, float16]"},
    "type_lists": {4: "  T: [float32, bfloat16]", 5: "  U: [float32, bfloat16]", 6: "  V: [float32, bfloat16]"},
    "type_unused": {5: None},
    "types_as_list": {3: "types:\n  T: [float32]", 4: "inputs:\n  x: T[N]"},
    "unicode_before": {9: "  z = x + 1"},
}  # fmt: skip

# What is changed stands in other lines than the error
ELSEWHERE = {
    "grad_cotangent",
    "joined_chain",
    "quantised_gradient",
    "products_in_float64",
    "products_with_formulas",
}

# The ops that a spec becomes where its hint is to make several: inputs, outputs, chain of each
SPLIT: dict[str, list[tuple[str, str, str]]] = {
    "products_of_parts": [
        ("a: bfloat16[..., K]; b: bfloat16[..., K]; c: bfloat16[K, N]", "y: bfloat16[..., N]", "u = a @ c; y = u + b @ c"),
    ],
    "product_over_blocks": [("x: bfloat16[..., B, G=32]; w: bfloat16[N, B, G=32]", "y: float32[..., N]", "y = dot(x, w, axis=(B, G))")],
    "product_over_parts": [("a: bfloat16[..., K]; b: bfloat16[K, N]", "y: bfloat16[..., N]", "y = a @ b")],
    "shift_in_a_reduction": [
        ("x: float32[..., S, N]", "d: float32[..., S, N]", "d = x - shift(x, axis=N)"),
        ("d: float32[..., S, N]", "y: float32[..., S]", "y = sum(abs(d), axis=N)"),
    ],
    "takes_and_reduces": [
        ("code: int32[..., N]; book: float32[P]", "x: float32[..., N]", "x = take(book, code + 1, axis=P)"),
        ("x: float32[..., N]", "y: float32[...]", "y = sum(x, axis=N)"),
    ],
}  # fmt: skip

# Hints that say what a text must be like, or name what there is, and propose none
FORMS = re.compile(
    r"write (the value out|`key: value`|it with functions of jnp|every argument out|a statement `name|each `name|each step|it of the inputs)"
    r"|delete it$|delete its escape$|delete one$|delete this entry$|^it has at most|give every axis|give it no default"
)
PROPOSALS = re.compile(
    r"\bwrite\b|\bas in\b|\bit is \w+\(|\bassign it whole\b|\bcall it\b|\bdelete\b|\bmake\b|\bpass it\b|\btake (an array|before)\b"
)
MEANT = re.compile(r"Did you mean '([^']*)'\?")


@functools.cache
def errors(stem: str, data: bytes) -> tuple[Diagnostic, ...]:
    try:
        read_op(f"specs/{stem}.yaml", data)
    except SpecError as error:
        return tuple(error.diagnostics)
    return ()


@pytest.mark.parametrize("stem", BAD)
def test_every_hint_that_proposes_a_text_is_followed(stem):
    for error in errors(stem, BAD[stem]):
        hint = MEANT.sub("", error.hint)
        if PROPOSALS.search(hint) and not FORMS.search(hint):
            lines = FOLLOWED.get(stem, {})
            assert stem in SPLIT or error.span.line in lines or (stem in ELSEWHERE and lines), error


@pytest.mark.parametrize("stem", FOLLOWED)
def test_following(stem):
    """Lines whose hint was followed have no error, except that nothing uses their names."""
    rows: list[str] = []
    changed = set()
    for number, row in enumerate(BAD[stem].decode().split("\n"), 1):
        new = FOLLOWED[stem].get(number, row)
        if new is not None:
            first = len(rows) + 1
            rows += new.split("\n")
            if number in FOLLOWED[stem]:
                changed |= set(range(first, len(rows) + 1))
    found = [d for d in errors(stem, "\n".join(rows).encode()) if d.span.line in changed or stem in ELSEWHERE]
    allowed = (
        "never used",
        "not used by any",
        "never assigns",
        "unknown type 'T'",
        "unknown name 'bias'",
        "is assigned twice",
        "repeated key",
        "already names",
    )
    assert not [d for d in found if not any(words in d.message for words in allowed)]


def test_following_finds_mistakes():
    """The test above would show little if it changed other lines than those with errors."""
    for stem, lines in FOLLOWED.items():
        wrong = {d.span.line for d in errors(stem, BAD[stem])}
        assert len(wrong & set(lines)) >= len(lines) / 2 or stem in ELSEWHERE, stem


def test_deleting_entries():
    """A spec without the entries that its hints say to delete, and without keys that have no other entry."""
    deleted = {stem: [d.span.line for d in errors(stem, BAD[stem]) if d.hint == "delete this entry"] for stem in BAD}
    assert any(deleted.values())
    for stem, lines in deleted.items():
        if not lines:
            continue
        rows = [row for number, row in enumerate(BAD[stem].decode().split("\n"), 1) if number not in lines]
        kept = [a for a, b in itertools.pairwise([*rows, "end"]) if not (a.endswith(":") and not b.startswith(" "))]
        assert errors(stem, "\n".join(kept).encode()) == (), stem


@pytest.mark.parametrize("stem", BAD)
def test_names_that_were_meant(stem):
    """The nearest name, in the place of the unknown one, is known there."""
    for error in errors(stem, BAD[stem]):
        meant = MEANT.search(error.hint)
        if meant is None or "\\" in error.source:  # of an escape, the place is the escape's
            continue
        rows, span = BAD[stem].decode().split("\n"), error.span
        row, start, end = rows[span.line - 1], span.column - 1, span.column - 1 + span.length
        wrong = row[start:end].rpartition(".")[2]
        rows[span.line - 1] = row[: end - len(wrong)] + meant[1] + row[end:]
        found = [
            d
            for d in errors(stem, "\n".join(rows).encode())
            if d.span.line == span.line and d.span.column == span.column
        ]
        assert not [d for d in found if d.hint == error.hint]


@pytest.mark.parametrize(("stem", "place"), [(stem, i) for stem, ops in SPLIT.items() for i in range(len(ops))])
def test_ops_that_a_hint_says_to_make(stem, place):
    inputs, outputs, chain = SPLIT[stem][place]
    assert isinstance(made(inputs, outputs, chain), Op)


def made(inputs: str, outputs: str, chain: str) -> Op:
    types = "types:\n  T: [float32, float64]\n" if "T[" in inputs else ""
    parts = [
        f"{key}:\n" + "".join(f"  {part}\n" for part in text.split("; "))
        for key, text in (("inputs", inputs), ("outputs", outputs))
    ]
    reference = "".join(f"  {name.partition(':')[0]} = 0\n" for name in outputs.split("; "))
    lines = "".join(f"  {line}\n" for line in chain.split("; "))
    return read_op("f.yaml", f"op: f\nsummary: s\n{types}{''.join(parts)}chain: |\n{lines}reference: |\n{reference}")


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_what_serves_instead(name):
    """The formulas that replace a function of jnp can be read, and are an op."""
    if INSTEAD[name].startswith("write "):
        formula = INSTEAD[name].removeprefix("write ")
        dtype = "int32" if "index" in formula else "float32"
        made("x: float32[..., N]", f"y: {dtype}[...]", f"y = {formula}")
