"""Chosen formulas, chains and files that a reader could fail on, and large ones."""

import pytest

from codegen.errors import SpecError
from codegen.pipeline import read_op
from codegen.plan.op import Op
from codegen.render import render_op
from codegen.spec.specfile import KEYS
from tests.mutants import examine
from tests.pure.nearly import rest, spec


def deep(opening: str, inner: str, closing: str, depth: int) -> str:
    return opening * depth + inner + closing * depth


NASTY_FORMULAS = {
    "parentheses": deep("(", "x", ")", 1500),
    "few parentheses": deep("(", "x", ")", 150),
    "minus signs": deep("-", "x", "", 3900),
    "few minus signs": deep("- ", "x", "", 400),
    "tildes": deep("~", "m", "", 3900),
    "brackets": deep("[", "x", "]", 1500),
    "braces": deep("{", "x", "}", 1500),
    "calls": deep("exp(", "x", ")", 700),
    "few calls": deep("exp(", "x", ")", 80),
    "composites": deep("gelu_tanh(", "x", ")", 90),
    "reductions": deep("softmax(", "x", ", axis=N)", 90),
    "subscripts": "p" + "[0]" * 1200,
    "attributes": "x" + ".a" * 1900,
    "additions": " + ".join(["x"] * 900),
    "powers": " ** ".join(["x", *["9"] * 30]),
    "tower": "x ** 9 ** 9 ** 9",
    "left tower": "((x ** 64) ** 64) ** 64",
    "giant exponent": "x ** 1e308",
    "giant integer exponent": "x ** " + "9" * 3000,
    "nan exponent": "x ** nan",
    "infinite exponent": "x ** inf",
    "zero": "x ** 0",
    "zero float": "x ** 0.0",
    "constant power": "2 ** 64 ** 64 * x",
    "digits": "x + " + "9" * 3900,
    "fraction digits": "x + 0." + "9" * 3900,
    "hexadecimal digits": "x + 0x" + "f" * 3900,
    "exponent digits": "x + 1e" + "9" * 3900,
    "underscored": "x + 1_000",
    "imaginary": "x + 1j",
    "number and word": "x + 1if m else 2",
    "bad escape": "x + '\\d'",
    "string": "x + '" + "a" * 3000 + "'",
    "f-string": "f'{x!r:{x}}'",
    "bytes": "x + b'a'",
    "long name": "x + " + "a" * 3900,
    "long statement": "x + " * 3000 + "x",
    "chained comparison": " < ".join(["x"] * 900),
    "ternaries": " if m else ".join(["x"] * 500),
    "lambdas": "lambda: " * 400 + "x",
    "comprehension": "[x for x in x for x in x]",
    "walrus": "(z := x)",
    "star": "exp(*x, **x)",
    "keyword in disguise": "𝐢𝐟 + x",
    "name in disguise": "ｘ + x",
    "zero width": "x\u200b + x",
    "no-break space": "x\u00a0+ x",
    "semicolons": "x; y = x; import os",
    "backslash": "x + \\\n  x",
    "open bracket": "(x",
    "closing bracket": "x)",
    "type comment": "x  # type: int",
    "ellipsis": "...",
    "division by zero": "x + 1 / 0",
    "root of a negative": "x + sqrt(-1)",
    "overflow": "x + 1e308 * 1e308",
    "integer overflow": "x + 9223372036854775807 * 9223372036854775807",
    "too large for int32": "x + where(i < 3000000000, 1, 0)",
    "smallest int64": "x + -9223372036854775808",
    "size of a table": "x * size(P)",
    "index of a table": "x * index(P)",
    "rounding an int": "x + floor(i)",
    "true": "x + True",
    "None": "None",
    "print": "print(x)",
}  # fmt: skip


@pytest.mark.parametrize("formula", NASTY_FORMULAS.values(), ids=NASTY_FORMULAS)
def test_nasty_formulas(formula):
    examine(spec(f"z = {formula}\ny = z + {rest()}"))
    examine(spec(f"y = {formula}"))
    examine(spec(f"y = {rest()}", formula))
    examine(spec(f"y = {rest()}", f"y = {formula}"))
    examine(spec(f"{formula} = x\ny = {rest()}", f"{formula} = x\ny = x"))
    examine(spec(f"y = {rest()}", grad=f"\n  x: {formula}"))


def doubled(count: int) -> str:
    """A chain with a value that would have 2**count terms if it were written out."""
    lines = ["a0 = x", *(f"a{i + 1} = a{i} + a{i}" for i in range(count))]
    return "\n".join([*lines, f"y = a{count} + {rest()}"])


NASTY_CHAINS = {
    "doubled": doubled(60),
    "doubled in calls": "\n".join(["a0 = x", *(f"a{i + 1} = atan2(a{i}, a{i} + a{i})" for i in range(60)), f"y = a60 + {rest()}"]),
    "many statements": "\n".join(f"a{i} = x" for i in range(8000)),
    "long chain of names": "\n".join(
        ["a0 = x", *(f"a{i + 1} = a{i} * x" for i in range(490)), f"y = a490 + {rest()}"]
    ),
    "many errors": "\n".join(f"a{i} = b{i}" for i in range(400)),
    "many errors in a line": "y = " + " + ".join(f"b{i}" for i in range(500)),
    "comments": "# a\n" * 5000 + f"y = {rest()}",
    "empty lines": "\n" * 5000 + f"y = {rest()}",
    "only comments": "# nothing",
    "indented": f"    y = {rest()}\n  z = x",
    "keyword": "𝐢𝐟 = x\ny = 𝐢𝐟",
    "import": "import os",
    "decorator": "@x\ndef f(): pass",
    "class": "class y: pass",
    "del": "del x",
    "annotation": "y: x = x",
    "in place": "y += x",
    "several targets": "y = z = x",
    "unpacking": "y, z = x",
    "starred": "*y, = x",
    "target call": "f(x) = x",
    "target part": "y[0][0] = x\ny[x] = x\ny[True] = x\ny[-1] = x\ny[0:1] = x\ny[10**10] = x",
    "none": "None = x",
    "debug": "__debug__ = x",
    "dunder": "__y__ = x",
}  # fmt: skip


@pytest.mark.parametrize("chain", NASTY_CHAINS.values(), ids=NASTY_CHAINS)
def test_nasty_chains(chain):
    examine(spec(chain))
    examine(spec(chain, outputs="\n  y: T[..., (2 N)]"))
    examine(spec(f"y = {rest()}", chain))


def test_a_doubled_value_stays_small():
    op = examine(spec(doubled(60)))
    assert isinstance(op, Op)
    assert len(render_op(op)) < 20_000


def bomb(levels: int) -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(rows)


NASTY_FILES: dict[str, bytes | str] = {
    "empty": "",
    "spaces": "   \n  \n",
    "comment": "# only this",
    "null": "null",
    "scalar": "a spec",
    "list": "- op: f",
    "two documents": "op: f\n---\nop: g",
    "document markers": "---\n" + spec() + "...\n",
    "directive": "%YAML 1.1\n---\n" + spec(),
    "unknown directive": "%FOO\n---\n" + spec(),
    "aliases": bomb(9),
    "anchor": spec(summary="&a Something."),
    "self reference": "&a [*a]",
    "merge key": "<<: {op: f}\n" + spec(),
    "tag": spec(summary="!!python/object/apply:os.system [echo]"),
    "local tag": spec(summary="!x Something."),
    "binary": spec(summary="!!binary aGVsbG8="),
    "deep flow lists": "op: " + "[" * 30_000,
    "closed deep flow lists": "op: " + "[" * 20_000 + "]" * 20_000,
    "deep flow mappings": "op: " + "{a: " * 15_000,
    "deep block lists": "op:\n" + "- " * 20_000 + "x",
    "deep block mappings": "".join("\n" + " " * i + f"a{i}:" for i in range(250)),
    "deep keys": "? " * 20_000 + "a",
    "complex key": "? [a, b]\n: c",
    "mapping key": "{a: b}: c",
    "long line": "op: " + "a" * 60_000,
    "long key": "a" * 60_000 + ": b",
    "long quoted": 'summary: "' + "a " * 30_000 + '"',
    "many keys": "".join(f"k{i}: v\n" for i in range(6000)),
    "many repeated keys": "op: f\n" * 8000,
    "many items": "bench: [" + "{N: 1}, " * 7000 + "]",
    "many inputs": spec(inputs="".join(f"\n  x{i}: T[N]" for i in range(3000))),
    "many bad inputs": spec(inputs="".join(f"\n  x{i}: T{i}[N]" for i in range(3000))),
    "300 kB": spec() + "#" * 300_000,
    "300 kB of keys": "".join(f"key{i}: value\n" for i in range(20_000)),
    "300 kB of bytes": b"\xff\x00" * 150_000,
    "NUL": "op: f\x00\n",
    "only NUL": "\x00",
    "control characters": "op: \x01\x02\x7f\x1b[31m",
    "lone surrogate": "op: \ud800",
    "surrogate bytes": b"op: \xed\xa0\x80",
    "overlong": b"op: \xc0\xaf",
    "truncated": "op: é".encode()[:-1],
    "Latin-1": "summary: é".encode("latin-1"),
    "UTF-16": spec().encode("utf-16"),
    "UTF-32": spec().encode("utf-32"),
    "BOM": b"\xef\xbb\xbf" + spec().encode(),
    "two BOMs": b"\xef\xbb\xbf\xef\xbb\xbf" + spec().encode(),
    "BOM inside": "op: f\ufeff",
    "CRLF": spec().replace("\n", "\r\n"),
    "CR": spec().replace("\n", "\r"),
    "mixed line ends": spec().replace("\n", "\r\n", 3),
    "NEL": spec(summary="a\x85b"),
    "line separator": spec(summary="a\u2028b"),
    "bidirectional": spec(summary="a \u202e b"),
    "tabs": "op:\tf\n\tsummary: x",
    "tab indentation": "inputs:\n\tx: T[N]",
    "open quote": 'op: "f',
    "bad escape": 'op: "\\q"',
    "unicode escapes": 'op: "\\u0066"\nsummary: "\\ud800 \\x00 \\U0010ffff"',
    "escaped line": 'summary: "a \\\n   b\\\n\\ c"\nop: "\\\n f"',
    "odd block header": "op: |9-\n          f\nsummary: >+2\n   a\n\n",
    "block with tabs": "chain: |\n  y = x\n\t\n   z\n",
    "folded chain": spec(chain=">\n  y = x\n    + x\n"),
    "quoted chain": spec(chain='"y = \\\n  x + \\u0071\\ty\\nz = é"'),
    "colon": "summary: a: b: c",
    "at": "op: @f",
    "percent": "op: %f",
    "backtick": "op: `f`",
    "flow colon": "types: {T:[float32]}",
    "null keys": ": a\n~: b\n? \n",
    "superscript": spec(inputs="\n  x: T[²]\n  z: T[(² N)]\n  w: T[(B G=²)]\n  v: T[³] = ²"),
    "fullwidth": spec(inputs="\n  x: Ｔ[..., Ｎ]", op="ｆ"),
    "long axes": spec(inputs="\n  x: T[" + "N, " * 9000 + "N]"),
    "deep axes": spec(inputs="\n  x: T[" + "(" * 5000 + "]"),
    "many axes": spec(inputs="\n  x: T[" + ", ".join(f"A{i}" for i in range(300)) + "]"),
    "many split axes": spec(inputs="\n  x: T[" + ", ".join(f"(A{i} B{i}=2)" for i in range(300)) + "]"),
    "long type": spec(inputs="\n  x: " + "T" * 5000 + "[N]"),
    "spaces in an array": spec(inputs="\n  x: " + "T" + " " * 20_000 + "[N" + " " * 20_000 + "] ="),
    "equals in an array": spec(inputs="\n  x: T[N] " + "= " * 15_000),
    "giant default": spec(inputs="\n  x: T[N]\n  z: int32[N] = " + "9" * 5000),
    "giant extent": spec(bench="[{N: " + "9" * 5000 + "}]"),
    "giant schedule": spec(schedule="{threads: 1e400}"),
    "giant tolerance": spec(tolerance="{rtol: 1e400, why: x}"),
    "nan everywhere": spec(
        params="{a: .nan, b: {default: .nan}}", tolerance="{rtol: .nan}", domain="{x: [.nan, .nan]}"
    ),
    "axes named as Python": spec(inputs="\n  x: T[None, True]", types="{None: [float32]}"),
}


@pytest.mark.parametrize("data", NASTY_FILES.values(), ids=NASTY_FILES)
def test_nasty_files(data):
    examine(data)


def inputs(count: int, dims: str = "..., N") -> str:
    return "".join(f"\n  x{i}: float32[{dims}]" for i in range(count))


def total(terms: list[str]) -> str:
    """A chain that adds all terms, a few on each line."""
    lines = [f"a{i} = {' + '.join(terms[i : i + 20])}{f' + a{i - 20}' if i else ''}" for i in range(0, len(terms), 20)]
    return "\n".join([*lines, f"y = a{(len(terms) - 1) // 20 * 20}"])


def everything(count: int) -> list[str]:
    return [f"x{i}" for i in range(count)]


LARGE: dict[str, str] = {
    "inputs": spec(total(everything(1600)), "x0", inputs=inputs(1600), types="{}"),
    "vectors": spec(total(everything(1600)), "x0", inputs="\n  x0: float32[..., N]" + inputs(1600, "N").partition("[N]")[2], types="{}"),
    "statistics of rows": spec(total([f"x{i} * sum(x{i}, axis=N)" for i in range(700)]), "x0", inputs=inputs(700), types="{}"),
    "statistics of columns": spec(
        total([f"sum(x{i}, axis=...)" for i in range(500)]), "x0", inputs=inputs(500), types="{}", outputs="\n  y: float32[N]"
    ),
    "unknown names": spec("\n".join(f"a{i} = x{i} + zx{i}y" for i in range(490)), "x0", inputs=inputs(1500), types="{}"),
    "unknown names of the reference": spec(
        total(everything(1200)), "\n".join(f"a{i} = x{i} + zx{i}y" for i in range(490)), inputs=inputs(1200), types="{}"
    ),
    "unknown domains": spec(
        total(everything(900)), "x0", inputs=inputs(900), types="{}", domain="".join(f"\n  zx{i}: index(M)" for i in range(900))
    ),
    "unknown gradients": spec(
        total(everything(900)), "x0", inputs=inputs(900), types="{}", grad="".join(f"\n  zx{i}: dy + q" for i in range(900))
    ),
    "unknown types": spec(inputs="".join(f"\n  x{i}: Tq{i}[N]" for i in range(900)), types="".join(f"\n  T{i}: [int8]" for i in range(900))),
    "escapes": spec(summary='"' + "\\e" * 30_000 + '"'),
}  # fmt: skip


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
def test_large_files(text):
    """As large as a file may be, and each within a second."""
    assert len(text) < 65536
    examine(text)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_with_every_form(key):
    for value in (
        "",
        "~",
        "true",
        "-1",
        "1e999",
        "[]",
        "{}",
        "[[]]",
        "{a: {b: {c: d}}}",
        "[{a: [b]}]",
        "{x: }",
        "'  '",
    ):
        examine(spec(**{key: value}))


def test_a_spec_given_as_a_file_that_is_none(tmp_path):
    for path in (tmp_path, tmp_path / "none.yaml", tmp_path / ("a" * 300)):
        with pytest.raises(SpecError):
            read_op(path)
