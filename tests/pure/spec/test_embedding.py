"""A generated module contains its spec as data, which reads as the spec of the YAML file."""

import ast
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.errors import SpecError
from codegen.pipeline import read_op
from codegen.render import render_op
from codegen.render.literals import dict_literal
from codegen.render.wrapping import WIDTH
from codegen.spec.embedding import to_data
from codegen.spec.specfile import load_spec
from tests.mutants import meaning
from tests.places import GOOD_SPECS, ROOT, SPECS
from tests.turns import FEWER

FILES = sorted((*SPECS.glob("*.yaml"), *GOOD_SPECS.glob("*.yaml")))

SPEC = """\
op: f
summary: Something.
inputs: {x: 'float32[..., N]', i: 'int32[...] = 0', b: 'bool[N] = true', w: 'float32[N] = .inf', v: 'float32[N] = -0.0'}
outputs: {y: 'float32[..., N]'}
params: {p: PARAM}
chain: y = where(b, x + p + w + v, i)
reference: jnp.where(b, x + p + w + v, i[..., None])
"""


def test_specs():
    """A spec that is read from its data equals the one that is read from its file."""
    for path in FILES:
        spec = load_spec(path)
        data = ast.literal_eval(dict_literal(to_data(spec)))
        assert meaning(load_spec(path, data)) == meaning(spec)


@pytest.mark.parametrize("path", FILES[::16], ids=lambda path: path.stem)
def test_modules(path):
    """The module can be generated again from its data, and from what was measured of it, which is in files of its own."""
    op = read_op(path)
    assert render_op(replace(read_op(path, to_data(op.spec)), tuning=op.tuning)) == render_op(op)


PARAMS = {
    "1e-6": 1e-6, "1.0e30": 1e30, "16": 16, "16.0": 16.0, "-0.0": -0.0, ".5": 0.5, "007": 7, "+3": 3, ".inf": ".inf",
    "-.INF": "-.inf", ".nan": ".nan", "5e-324": 5e-324, "{default: 16}": 16, "{type: int, default: 16}": {"type": "int", "default": 16},
    "{type: float, default: 16}": 16.0, "{type: float}": {"type": "float"}, "{type: int}": {"type": "int"},
    "{default: 16, static: false}": {"default": 16, "static": False},
    "{type: bool, default: true}": {"type": "bool", "default": True}, "{default: false, doc: '1'}": {"type": "bool", "default": False, "doc": "1"},
    '{default: .inf, doc: "a\\tb \\u00e9\\\\ \\" \'"}': {"type": "float", "default": ".inf", "doc": "a b é\\ \" '"},
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PARAMS.items(), ids=PARAMS)
def test_numbers(text, expected):
    spec = load_spec("f.yaml", SPEC.replace("PARAM", text))
    data = to_data(spec)
    assert repr(data["params"]) == repr({"p": expected})
    assert meaning(load_spec("f.yaml", ast.literal_eval(dict_literal(data)))) == meaning(spec)
    defaults = [array.default for array in load_spec("f.yaml", data).inputs]
    assert repr(defaults) == repr([None, 0, True, math.inf, -0.0])


GRADIENT = """\
op: f
summary: "1e3"
types: {T: [float32, float16]}
inputs: {x: 'T[..., (2 N)]', w: 'float32[N]'}
outputs: {y: 'T[..., N]'}
chain: "y = x[0]  # é \\" \\\\ \\"\\"\\"\\n\\n\\n\\n# '''\\"\\"\\""
reference: |
  y = x[..., :x.shape[-1] // 2]

grad: {'x[0]': dy, 'x[1]': 0.0, w: 1e-6 * dy}
save: []
math: precise
tolerance: {rtol: 1, atol: 1e-6, why: 5}
domain: {x: [-.inf, 1], w: nonzero}
schedule: {threads: 128, sm_90a: {threads: 256, vector_bytes: 8}}
bench: [{...: 16, N: 8}]
"""


def test_every_key():
    spec = load_spec("f.yaml", GRADIENT)
    data = to_data(spec)
    assert data == {
        "op": "f",
        "summary": "1e3",
        "types": {"T": ["float32", "float16"]},
        "inputs": {"x": "T[..., (2 N)]", "w": "float32[N]"},
        "outputs": {"y": "T[..., N]"},
        "chain": 'y = x[0]  # é " \\ """\n\n\n\n# \'\'\'"""',
        "reference": "y = x[..., :x.shape[-1] // 2]\n",
        "grad": {"x[0]": "dy", "x[1]": "0.0", "w": "1e-6 * dy"},
        "math": "precise",
        "tolerance": {"rtol": 1.0, "atol": 1e-6, "why": "5"},
        "domain": {"x": ["-.inf", 1.0], "w": "nonzero"},
        "schedule": {"threads": 128, "sm_90a": {"threads": 256, "vector_bytes": 8}},
        "bench": [{"...": 16, "N": 8}],
    }
    assert meaning(load_spec("f.yaml", ast.literal_eval(dict_literal(data)))) == meaning(spec)


def test_gradients_without_a_formula_are_the_default():
    assert load_spec("f.yaml", SPEC.replace("PARAM", "1.0") + "grad: {}\n").grad == "auto"


texts = st.text(st.sampled_from('""\'\\\n\n\ta {}#é漢😀'), max_size=8)
values = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), texts)
data = st.recursive(values, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8)


@settings(max_examples=200 // FEWER)
@given(st.dictionaries(texts, data, max_size=4))
def test_literals(value):
    assert repr(ast.literal_eval(dict_literal(value))) == repr(value)


def test_literals_are_laid_out_for_reading():
    short, long = {"a": 1, "b": ["x"]}, {f"name_{i}": "some text" for i in range(5)}
    lines = dict_literal({"short": short, "long": long, "rows": [short, long], "chain": "y = x\nz = y\n"}).split("\n")
    assert max(map(len, lines)) <= WIDTH
    assert lines == [
        "{",
        '    "short": {"a": 1, "b": ["x"]},',
        '    "long": {',
        *(f'        "name_{i}": "some text",' for i in range(5)),
        "    },",
        '    "rows": [',
        '        {"a": 1, "b": ["x"]},',
        "        {",
        *(f'            "name_{i}": "some text",' for i in range(5)),
        "        },",
        "    ],",
        '    "chain": """\\',
        "y = x",
        "z = y",
        '""",',
        "}",
    ]


def test_mistakes_show_the_line():
    """As if an older or newer codegen found an error in a module's spec."""
    data = to_data(load_spec(ROOT / "specs/rmsnorm.yaml"))
    data["chain"] = data["chain"].replace("* weight", "* wait")
    data["params"] = {"eps": "much"}
    data["more"] = [None]
    with pytest.raises(SpecError) as error:
        read_op("specs/rmsnorm.yaml", data)
    assert str(error.value).split("\n") == [
        "specs/rmsnorm.yaml (as built):14:6: error: the parameter 'eps' must be a number",
        "    eps: much",
        "         ^^^^",
        "  write `alpha: 1.0`, or {type: float|int|bool, default: ..., static: true|false, doc: ...}",
        "specs/rmsnorm.yaml (as built):27:1: error: unknown key 'more'",
        "    more:",
        "    ^^^^",
        "  a spec's keys: aliases, bench, chain, domain, grad, inputs, math, op, outputs, params, reference, save, schedule,",
        "  summary, tolerance, types.",
    ]
    del data["params"]["eps"], data["more"]
    data["params"]["eps"] = 1.0
    with pytest.raises(SpecError) as error:
        read_op("specs/rmsnorm.yaml", data)
    assert str(error.value).split("\n")[:3] == [
        "specs/rmsnorm.yaml (as built):17:16: error: unknown name 'wait'",
        "    y = x * rstd * wait",
        "                   ^^^^",
    ]


@pytest.mark.parametrize("data", [{}, {"op": []}, {"op": {}, "inputs": [{}]}, {"chain": None, "bench": [[]]}])
def test_data_of_no_spec(data):
    with pytest.raises(SpecError, match=r"missing ('op', )?'summary'"):
        read_op("f.yaml", data)


def test_data_is_read_without_yaml():
    code = f"""
import sys
from dataclasses import replace
sys.modules["yaml"] = None
from codegen.pipeline import read_op
assert read_op("f.yaml", {to_data(load_spec("f.yaml", SPEC.replace("PARAM", "1e-6")))!r}).spec.op == "f"
try:
    read_op("f.yaml", "op: f")
except ImportError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "yaml is not installed: pip install 'cutefuse[build]'\n"
