"""Whatever a spec file contains, reading it ends in an op that renders to valid Python or in a `SpecError`: no other
exception, no warning, and within a second."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.graph.nodes import DTYPES
from codegen.language.formula.calls import functions
from codegen.plan.op import Op
from codegen.spec.specfile import KEYS
from tests.mutants import examine
from tests.places import GOOD_SPECS, SPECS
from tests.pure.nearly import rest, spec
from tests.turns import FEWER, some


def stems(folder: Path) -> list[str]:
    """The names of the specs in a folder."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


FOLDERS = SPECS, GOOD_SPECS
SPECS = {path.stem: path.read_text() for folder in FOLDERS for path in sorted(folder.glob("*.yaml"))}
SOME = [stem for folder, step in zip(FOLDERS, (12, 1), strict=True) for stem in some(stems(folder), step)]


# Good ones


@pytest.mark.parametrize("stem", SOME)  # of the library, all of which other tests build
def test_good_specs(stem):
    outcome = examine(SPECS[stem], stem)
    refusals = "no kernel for a", "no kernel reduces over", "row reductions here give"
    assert isinstance(outcome, Op) or any(words in str(outcome) for words in refusals)


# What random specs found: inputs, output, chain
FOUND = {
    "the number of rows in a gradient": (
        "x: float32[..., N]\n  a: float32[]",
        "float32[N]",
        "y = sum(x - a, axis=...)",
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_chains_that_random_specs_found(case):
    inputs, output, chain = FOUND[case]
    outcome = examine(spec(chain, inputs=f"\n  {inputs}", outputs=f"\n  y: {output}", types="{}"))
    assert isinstance(outcome, Op), outcome


# Random ones


@given(st.binary(max_size=400))
def test_random_bytes(data):
    examine(data)


@given(st.text(max_size=400))
def test_random_text(text):
    examine(text)


WORDS = [
    *KEYS, *DTYPES, *functions(), "T", "N", "...", "x", "y", "x[0]", "p[1]", "T[..., N]", "T[..., (2 N)]", "T[..., (B G=128)]",
    "T[] = 0", "axis=N", "0", "1", "-1", "2.5", "1e-6", ".inf", ".nan", "9999999999999999999", "true", "null", "~", "=", "==",
    "+", "-", "*", "/", "**", "@", "&", "|", "~x", "(", ")", "[", "]", "{", "}", ",", ":", ": ", "#", "'", '"', "\\", "\n",
    "\n  ", "\n    ", "  ", "\t", "- ", "? ", "| ", ">", "&a ", "*a", "!!x ", "%", "---\n", "...\n", "<<", "é", "漢", "\x00", "𝐢𝐟",
    "²", "lambda", "if", "else", "for", "not", "and", "in", "jnp.", "jax.nn.", ".at[0].set(1)", "__import__('os')", "f'{x}'",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=60).map("".join))
def test_random_words(text):
    examine(text)


scalars = st.one_of(
    st.sampled_from(WORDS),
    st.integers().map(str),
    st.floats().map(str),
    st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), max_size=12),
)
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: "[" + ", ".join(items) + "]"),
        st.lists(st.tuples(scalars, inner), max_size=4).map(
            lambda items: "{" + ", ".join(f"{k}: {v}" for k, v in items) + "}"
        ),
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(KEYS), trees), st.booleans())
def test_random_documents(keys, whole):
    text = spec(**{key: value for key, value in keys.items() if key not in ("chain", "reference")}) if whole else ""
    examine(text or "".join(f"{key}: {value}\n" for key, value in keys.items()))


@st.composite
def edited(draw: st.DrawFn) -> tuple[str, str]:
    """One of the library's specs, a few edits away."""
    stem = draw(st.sampled_from(sorted(SPECS)))
    text = SPECS[stem]
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        kind = draw(st.sampled_from(["delete", "insert", "replace", "duplicate", "swap", "word"]))
        if kind == "delete":
            text = text[:start] + text[end:]
        elif kind == "insert":
            text = text[:start] + draw(st.sampled_from(WORDS)) + text[start:]
        elif kind == "replace":
            text = text[:start] + draw(st.sampled_from(WORDS)) + text[end:]
        elif kind == "duplicate":
            text = text[:end] + text[start:end] + text[end:]
        elif kind == "swap":
            rows = text.split("\n")
            i, j = draw(st.integers(0, len(rows) - 1)), draw(st.integers(0, len(rows) - 1))
            rows[i], rows[j] = rows[j], rows[i]
            text = "\n".join(rows)
        else:
            words = text.split(" ")
            words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from(WORDS))
            text = " ".join(words)
    return stem, text


@settings(max_examples=600 // FEWER)
@given(edited())
def test_edited_specs(pair):
    examine(pair[1], pair[0])


ATOMS = ["x", "p[0]", "p[1]", "i", "m", "t", "a", "N", "1", "0", "-1", "2.5", "0.5", "True", "inf", "nan", "pi", "3000000000",
         "size(N)", "index(N)", "take(t, i, axis=P)", "q", "..."]  # fmt: skip
formulas = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "**", "<", "==", "&", "|", "@", "%"]), inner).map(
            " ".join
        ),
        inner.map("-{}".format),
        inner.map("~{}".format),
        inner.map("({})".format),
        st.tuples(st.sampled_from(functions()), inner).map("{0[0]}({0[1]})".format),
        st.tuples(st.sampled_from(functions()), inner, inner).map("{0[0]}({0[1]}, {0[2]})".format),
        st.tuples(st.sampled_from(functions()), inner, st.sampled_from(["N", "...", "(..., N)", "P", "0"])).map(
            "{0[0]}({0[1]}, axis={0[2]})".format
        ),
        st.tuples(inner, st.sampled_from(["T", "int8", "bool", "float8_e4m3fn"])).map("cast({0[0]}, {0[1]})".format),
        st.tuples(inner, inner, inner).map("where({0[0]}, {0[1]}, {0[2]})".format),
    ),
    max_leaves=10,
)


@settings(max_examples=600 // FEWER)
@given(st.lists(formulas, min_size=1, max_size=3))
def test_random_formulas(values):
    """Every input is used, so that only the formulas have errors."""
    lines = [f"{name} = {value}" for name, value in zip("abc", values, strict=False)]
    last = "abc"[len(values) - 1]
    rest = "where(m, x, p[0] + p[1] + take(t, i, axis=P))"
    keep = " + ".join(f"0 * {name}" for name in "abc"[: len(values) - 1])
    total = f"y = {last} + {rest}" + (f" + {keep}" if keep else "")
    examine(spec("\n".join([*lines, total])))


def test_random_formulas_are_not_all_mistakes():
    """The strategy above would show little if none of its specs were an op."""
    good = [value for value in ATOMS if isinstance(examine(spec(f"y = {value} * x + {rest()}")), Op)]
    assert {"x", "p[0]", "1", "size(N)", "take(t, i, axis=P)"} <= set(good)


@settings(max_examples=300 // FEWER)
@given(st.lists(st.sampled_from(["x", "p", "i", "m", "t", "jnp", "jax", ".nn", ".lax", ".relu", ".exp", ".linalg", ".at", ".T", "[0]",
                                 "[..., 0]", "(", ")", "x, axis=-1", "lambda a: ", "lambda *a: ", " + ", " if ", " else ", "'s'",
                                 "\n", "y = ", "1", "1e9", "0x" + "f" * 5000, "; ", "é", "𝐢𝐟", "#", "\\"]), max_size=12))  # fmt: skip
def test_random_references(words):
    examine(spec(f"y = {rest()}", "".join(words)))


# Arrays of every shape, all of them read and written

FAMILIES = {  # what outputs are, and what else inputs may be
    "...": (["...", "..., 2"], ["", "3", "..., 3"]),
    "N": (["N", "(2 N)", "(N 2)", "3, N"], ["", "N, 4", "2"]),
    "..., N": (["..., N", "..., (2 N)", "..., (N 2)", "..., (N 3)"], ["", "...", "N", "(2 N)", "(N 2)", "..., 2", "5", "2, N"]),
    "N, M": (["N, M", "N, (2 M)", "N, M, 2", "2, N, M"], ["", "N", "M", "(M 2)", "(2 N)"]),
    "..., N, M": (["..., N, M", "..., N, (M 4)", "..., (2 N), M"], ["...", "..., N", "N, M", "..., M", "M", "N", "..., (2 M)"]),
    "..., (B G=4)": (["..., (B G=4)", "..., (2 B G=4)", "..., (B G=4 2)"], ["..., B", "B", "G", "...", "..., G", "B, 2", ""]),
    "A, B, C, D": (["A, B, C, D", "A, B, C, (2 D)", "A, (B C=8), D"], ["A, C", "B, C", "A, B, D", "D", "C", "A, B, C", "B, C, D", ""]),
    "": (["", "2"], ["3"]),
}  # fmt: skip
DTYPES_USED = [
    "T",
    "T",
    "T",
    "float32",
    "float16",
    "float64",
    "float8_e4m3fn",
    "float4_e2m1fn",
    "int8",
    "int4",
    "int64",
    "bool",
]


def elements(name: str, dims: str) -> list[str]:
    """An array, or its parts."""
    found = re.search(r"\((\d+) |\w (\d+)\)|(?:^|, )(\d+)(?:,|$)", dims)
    return [f"{name}[{i}]" for i in range(int(found[1] or found[2] or found[3]))] if found else [name]


@st.composite
def shaped(draw: st.DrawFn) -> str:
    """A spec that computes one sum of all its inputs, and stores it in all outputs."""
    whole = draw(st.sampled_from(sorted(FAMILIES)))
    outputs, inputs = FAMILIES[whole]
    dtypes = st.sampled_from(DTYPES_USED)
    ins = [
        (draw(dtypes), dims, "") for dims in [whole, *draw(st.lists(st.sampled_from([*inputs, *outputs]), max_size=3))]
    ]
    if draw(st.booleans()):
        dtype = draw(dtypes)
        ins.append((dtype, draw(st.sampled_from(inputs)), {"b": " = true", "i": " = 3"}.get(dtype[0], " = 1.5")))
    outs = [(draw(dtypes), dims) for dims in draw(st.lists(st.sampled_from(outputs), min_size=1, max_size=2))]
    axis = draw(st.sampled_from(re.findall("[A-Z]", whole) or [""]))
    terms = [e if d != "bool" else f"where({e}, 1, 0)" for i, (d, s, _) in enumerate(ins) for e in elements(f"x{i}", s)]
    more = draw(st.sampled_from(["", "", "", f"index({axis})", f"size({axis})", "take(t, j, axis=P)"])) if axis else ""
    terms += [more] * bool(more)
    rows = [f"  x{i}: {d}[{s}]{default}" for i, (d, s, default) in enumerate(ins)]
    if "take" in more:
        rows[1:1] = [
            f"  t: bfloat16[P{draw(st.sampled_from(['', ', ' + axis]))}]",
            f"  j: int32[{draw(st.sampled_from(inputs)) if whole[0] != '.' else '...'}]",
        ]
    rows += ["outputs:", *(f"  y{i}: {d}[{s}]" for i, (d, s) in enumerate(outs))]
    types = ["types:", "  T: [float32, bfloat16]"] * any(d == "T" for d, *_ in [*ins, *outs])
    rows = ["op: f", "summary: s", *types, "inputs:", *rows, "chain: |", "  s = " + " + ".join(terms)]
    for i, (d, s) in enumerate(outs):
        rows += [f"  {e} = {'s > 0' if d == 'bool' else 's'}" for e in elements(f"y{i}", s)]
    return "\n".join([*rows, "reference: |", *(f"  y{i} = 0" for i in range(len(outs))), ""])


@settings(max_examples=400 // FEWER)
@given(shaped())
def test_random_arrays(text):
    examine(text)
