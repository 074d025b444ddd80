"""Scalars mean what YAML 1.2 says, and know the place of each character in the file."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from codegen.errors import Diagnostic, Span, SpecError, UserError, edits, known, nearest
from codegen.spec.text import parse_yaml
from codegen.spec.tree import Mapping, Scalar, Sequence, Tree, resolve


def scalars(text: str) -> list[Scalar]:
    tree, repeated = parse_yaml("f.yaml", text)
    assert not repeated
    assert isinstance(tree, Mapping)
    return [value for _, value in tree.items if isinstance(value, Scalar)]


RESOLVED = {
    "no": "no", "on": "on", "yes": "yes", "off": "off", "y": "y", "True": True, "false": False, "FALSE": False, "tRUE": "tRUE",
    "null": None, "~": None, "": None, "nil": "nil", "1": 1, "-12": -12, "+3": 3, "007": 7, "0x10": "0x10", "0o7": "0o7",
    "1_000": "1_000", "1e-6": 1e-6, "1.0e30": 1.0e30, "1E5": 1e5, ".5": 0.5, "5.": 5.0, "-.5e1": -5.0, "1e": "1e", ".": ".",
    ".inf": math.inf, "-.INF": -math.inf, "+.inf": math.inf, "inf": "inf", "nan": "nan", "1:30": "1:30", "2001-01-01": "2001-01-01",
    "9" * 18: 10**18 - 1, "9" * 300: 10**300 - 1, "9" * 301: float("9" * 301), "1e0000000308": 1e308, "1e-999999999": 0.0, "١": "١", "=": "=",
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), RESOLVED.items(), ids=RESOLVED)
def test_plain_scalars(text, expected):
    assert repr(resolve(text)) == repr(expected)


@pytest.mark.parametrize("text", ["1e400", "-1e999999999", "9" * 310, "1" + "0" * 60_000])
def test_numbers_too_large(text):
    with pytest.raises(UserError, match="is outside the range of float64"):
        resolve(text)


def test_nan():
    assert repr(resolve(".nan")) == repr(resolve(".NaN")) == "nan"


@pytest.mark.parametrize("text", ["'1'", '"true"', "'~'", '""', "|\n  1\n", ">-\n  1\n"])
def test_quoted_and_block_scalars_are_text(text):
    (scalar,) = scalars(f"a: {text}")
    assert isinstance(scalar.resolve(), str)


REFUSED = [
    *map(chr, range(9)), "\x0b", "\x0c", *map(chr, range(14, 32)), *map(chr, range(0x7F, 0xA0)), "\u061c", "\u200e", "\u200f", "\u2028",
    "\u2029", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\ufeff", "\ufffe", "\uffff", "\ud800", "\udfff",
]  # fmt: skip


@pytest.mark.parametrize("char", [*REFUSED, "\r"], ids=ascii)
def test_escapes_are_held_to_what_a_file_may_hold(char):
    """No scalar or key contains characters that the file's text may not have; the error is at the escape."""
    escape = f"\\u{ord(char):04x}"
    text = f'a: "b{escape}c"\n"{escape}": [x, "{escape}{escape}"]\n'
    if "\ud800" <= char <= "\udfff":  # the parser's own error
        with pytest.raises(SpecError, match="invalid Unicode character escape"):
            parse_yaml("f.yaml", text)
        return
    tree, diagnostics = parse_yaml("f.yaml", text)
    assert [(d.span.line, d.span.column, d.span.length) for d in diagnostics] == [
        (1, 6, 6),
        (2, 2, 6),
        (2, 16, 6),
        (2, 22, 6),
    ]
    assert all(f"U+{ord(char):04X}" in d.message for d in diagnostics)
    assert char not in repr(tree) + str(plain(tree))


def plain(tree: Tree) -> list[str]:
    if isinstance(tree, Scalar):
        return [tree.value]
    items = tree.items if isinstance(tree, Sequence) else [part for pair in tree.items for part in pair]
    return [text for item in items for text in plain(item)]


@pytest.mark.parametrize("char", REFUSED, ids=ascii)
def test_characters_of_the_file(char):
    with pytest.raises(SpecError, match=rf"U\+{ord(char):04X} is not allowed|not valid UTF-8"):
        parse_yaml("f.yaml", f"a: b{char}c\n")


@pytest.mark.parametrize("char", ["\t", "é", "漢", "😀", "\u00a0", "\ufffd", "\u200d"], ids=ascii)
def test_characters_that_may_stand(char):
    escaped = char.encode("ascii", "backslashreplace").decode() if char != "\t" else "\\t"
    for text in (f"a: b{char}c\n", f'a: "b{escaped}c"\n'):
        (scalar,) = scalars(text)
        assert scalar.value == f"b{char}c"


def check_places(text: str) -> None:
    """Every visible character of a value is at its place in the file: itself, or its escape."""
    for scalar in scalars(text):
        for index, char in enumerate(scalar.value):
            found = text[scalar.place(index)]
            if not char.isspace():
                assert found == char or (scalar.style == "double" and found == "\\")
        assert scalar.place(len(scalar.value)) <= len(text)


CHOSEN = [
    "plain text",
    "plain\n  on two\n\n  lines",
    "'it''s'",
    "'a\n\n  b ''c'' \n  d'",
    '"a\\tb \\u00e9\\x41 \\\\ \\" c"',
    '"a \\\n   b"',
    '"a\\\n   b"',
    '"a\\\n   \\ b\\n\n  c"',
    "|\n  a\n    b\n\n  c\n",
    "|2-\n   a\n  b\n",
    "|  # a comment\n  a # no comment\n",
    ">\n  a\n  b\n\n  c\n    d\n",
    "|\n\n\n  a\n",
    "|+\n  a\n\n\n",
]


@pytest.mark.parametrize("text", CHOSEN)
def test_places(text):
    check_places(f"first: 1\na: {text}\nlast: 2\n")


values = st.text(st.sampled_from("ab '\"\\\n\té漢😀#:-|>"), max_size=30)


@given(values, st.sampled_from([None, "'", '"', "|", ">"]), st.integers(5, 40), st.booleans())
def test_places_in_what_yaml_writes(value, style, width, unicode):
    text = yaml.dump({"a": value}, default_style=style, width=width, allow_unicode=unicode)
    scalar = scalars(text)[0]
    assert scalar.value == value
    check_places(text)


@given(values, st.integers(0, 5), st.integers(0, 40), st.integers(1, 40))
def test_any_place_is_in_the_file(value, line, column, length):
    text = yaml.dump({"a": value}, width=20)
    span = scalars(text)[0].at(line, column, length)
    rows = text.split("\n")
    assert 1 <= span.line <= len(rows)
    assert 1 <= span.column <= len(rows[span.line - 1]) + 1
    assert span.length >= 1


# How an error prints


def shown(source: str, column: int, length: int = 1) -> list[str]:
    return str(Diagnostic(Span("f", 1, column, length), "m", "", source)).split("\n")[1:]


@pytest.mark.parametrize(
    ("source", "column", "length", "expected"),
    [
        ("abc", 2, 1, ["    abc", "     ^"]),
        ("  abc", 4, 2, ["    abc", "     ^^"]),
        ("abc", 4, 1, ["    abc", "       ^"]),
        ("\ta\tbc", 4, 2, ["    a bc", "      ^^"]),
        ("a漢字b", 4, 1, ["    a漢字b", "         ^"]),
        ("a漢字b", 2, 2, ["    a漢字b", "     ^^^^"]),
        ("e\u0301x", 3, 1, ["    e\u0301x", "     ^"]),
        ("abc", 2, 50, ["    abc", "     ^^"]),
        ("   ", 1, 1, []),
        ("", 1, 1, []),
    ],
)
def test_carets(source, column, length, expected):
    assert shown(source, column, length) == expected


def test_long_lines_are_cut_around_the_place():
    line, caret = shown("a" * 500 + "B" + "a" * 500, 501)
    assert len(line) == 4 + 160
    assert line[caret.index("^")] == "B"


def test_the_nearest_of_many_names():
    """A name that is one edit away, and a list that ends."""
    many = [f"value_{i}" for i in range(2000)]
    for word in ("valu_1234", "vvalue_1234", "value_12345", "valeu_1234", "value_123x"):
        assert nearest(word, many)[0] in edits(word)
        assert known(word, many).startswith("Did you mean 'value_")
    assert known("quite_other", many).startswith("known here: value_0, value_1, ")
    assert known("quite_other", many).endswith(", value_1131 and 1850 more")
    assert known("valu_12", many[:30]).endswith("value_9. Did you mean 'value_12'?")


@given(st.text("abc_1", min_size=1, max_size=5), st.text("abc_1", min_size=1, max_size=5))
def test_edits(word, other):
    """The words that are one edit away, against a search through all."""
    shorter = {word[:i] + word[i + 1 :] for i in range(len(word))}
    longer = word in {other[:i] + other[i + 1 :] for i in range(len(other))}
    changed = len(word) == len(other) and sum(a != b for a, b in zip(word, other, strict=True)) == 1
    places = [i for i in range(len(word) - 1) if word[:i] + word[i + 1] + word[i] + word[i + 2 :] == other]
    assert (other in edits(word)) == (word != other and (other in shorter or longer or changed or bool(places)))


def test_long_hints_are_wrapped():
    text = str(Diagnostic(Span("f", 1, 1), "m", "word " * 60))
    assert max(map(len, text.split("\n"))) <= 116
    assert text.count("word") == 60
