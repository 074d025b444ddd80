"""A whole number is an int parameter, and the build warns about specs for which that makes a difference."""

import pytest

from codegen.errors import Diagnostic
from codegen.language.notices import notices
from codegen.pipeline import read_op
from codegen.plan.op import Op
from tests.places import SPECS

LIBRARY = sorted(SPECS.glob("*.yaml"))


def op(param: str, chain: str = "y = x * p") -> Op:
    """An op of a float input, an integer one and a parameter; its second output uses both inputs."""
    text = "op: f\nsummary: s\ninputs:\n  x: float32[..., N]\n  i: int32[..., N]\noutputs:\n  y: float32[..., N]\n  q: float32[..., N]\n"
    return read_op(
        "f.yaml", f"{text}params:\n  p: {param}\nchain: |\n  {chain}\n  q = x + i\nreference: |\n  y = x\n  q = x + i\n"
    )


@pytest.mark.parametrize(
    ("written", "kind", "default"),
    [
        ("1.0", "float", 1.0), ("1e3", "float", 1000.0), ("16.", "float", 16.0), (".inf", "float", float("inf")), ("-0.0", "float", -0.0),
        ("16", "int", 16), ("-3", "int", -3), ("+7", "int", 7), ("0", "int", 0), ("2147483647", "int", 2**31 - 1),
        ("{default: 16}", "int", 16), ("{default: 16.0}", "float", 16.0), ("{default: true}", "bool", True), ("{doc: d}", "float", None),
        ("{type: float, default: 16}", "float", 16.0), ("{type: int, default: 16}", "int", 16), ("{type: int}", "int", None),
        ("{default: 2, static: false}", "int", 2), ("{default: }", "float", None),
    ],
)  # fmt: skip
def test_the_type_of_a_parameter_is_that_of_its_default(written, kind, default):
    chain = "y = where(p, x, 0)" if kind == "bool" else "y = x * p"
    (param,) = op(written, chain).spec.params
    assert (param.kind, repr(param.default)) == (kind, repr(default))


AS_FLOATS = [
    "y = x * p", "y = x + p", "y = x / p", "y = i / p", "y = x ** p", "y = where(x > p, x, p)", "y = clip(x, 0.0, p)", "y = elu(x, p)",
    "y = rsqrt(x * x + p)", "y = x + sqrt(p)", "y = maximum(x, p)", "y = x * cast(p, float32)", "y = log(p) * x", "y = p",
]  # fmt: skip
AS_INTEGERS = [
    "y = x * where(i == p, 1, 0)", "y = x * (i < p)", "y = i * p", "y = i + p", "y = minimum(i, p)", "y = x * (p + 1)", "y = x * -p",
    "y = x * (index(N) < p)", "y = x * abs(p)", "y = x * cast(p, int8)", "y = where(x > 0, p, 0) * x",
]  # fmt: skip


def said_of(op: Op) -> list[Diagnostic]:
    return list(notices(op.spec, op.statements))


@pytest.mark.parametrize("chain", AS_FLOATS)
def test_a_whole_number_among_floats_is_not_spoken_of(chain):
    assert said_of(op("3", chain)) == []


@pytest.mark.parametrize("chain", AS_INTEGERS)
def test_a_whole_number_among_integers_is_told(chain):
    (notice,) = said_of(op("3", chain))
    assert str(notice) == (
        "f.yaml:10:3: warning: 'p' is an int, for its default is a whole number: this op computes with it as an integer\n"
        "    p: 3\n"
        "    ^\n"
        "  before version 0.2 it was a float: write 3.0 for that; `type: int` says that an int is meant"
    )
    for said in ("3.0", "{type: int, default: 3}", "{type: float, default: 3}"):
        assert said_of(op(said, chain.replace("int8", "float16") if "int8" in chain else chain)) == []


def test_a_dynamic_whole_number_has_no_gradient_and_is_told():
    (notice,) = said_of(op("{default: 3, static: false}"))
    assert notice.message == "'p' is an int, for its default is a whole number: it has no gradient"
    for said in ("{default: 3.0, static: false}", "{type: int, default: 3, static: false}"):
        assert said_of(op(said)) == []


def test_the_library_needs_no_notice():
    assert [said for path in LIBRARY for said in said_of(read_op(path))] == []
