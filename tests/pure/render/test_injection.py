"""No text of a spec becomes code of a generated file: it stays within strings, whatever it contains.

Each test renders a spec with hostile text and its twin with harmless text: their syntax trees differ in strings only,
and their comments not at all.
"""

import ast
import functools
import io
import json
import math
import re
import tokenize
import warnings

import hypothesis
import pytest
from hypothesis import strategies as st

from codegen.errors import SpecError
from codegen.graph.names import RESERVED
from codegen.pipeline import read_op
from codegen.plan.op import Op
from codegen.render import package as build
from codegen.render import render_op
from codegen.spec.specfile import load_spec
from tests.mutants import meaning
from tests.places import SPECS
from tests.turns import FEWER, some

LIBRARY = sorted(SPECS.glob("*.yaml"))

SPEC = """\
# COMMENT
op: f
summary: SUMMARY
types:
  T: [float32, bfloat16]  # COMMENT
inputs:
  x: T[..., N]
  b: T[N] = 0
outputs:
  y: T[..., N]
  z: Q[..., N]
params:
  alpha: {type: float, default: 1.0, doc: DOC}
  beta: {type: float, default: 1.0, static: false, doc: DOC}
chain: |
  # COMMENT
  y = alpha * x + b  # COMMENT
  z = beta * x
reference: |
  # COMMENT
  y = alpha * x + b  # COMMENT
  z = jnp.einsum(STRING, x)
tolerance:
  rtol: 1e-3
  why: WHY
"""

HOSTILE = [
    '"',
    "'",
    '"""',
    "'''",
    '""""""',
    '"""\nimport os\n"""',
    "'''\nimport os\n'''",
    '" + __import__("os").system("echo") + "',
    "\\",
    "\\\\",
    "\\\\\\",
    'ends in a quote"',
    "ends in a backslash\\",
    'both\\"',
    '\\"""',
    '\\\\"""',
    "\\N{BULLET} \\x41 \\u0041 \\d \\",
    "\\\nnext",
    "{",
    "}",
    "{{ 1 + 1 }}",
    "{{ op }}",
    "{% for x in y %}",
    "{% raw %}",
    "{# comment #}",
    "{0} {x} {{x}} %s %(x)s",
    "a\nb\n\n\n\n\nc",
    "a\n    return 1\nimport os",
    "\t\ttabs\t",
    "# no comment",
    ") -> None: pass #",
    "].value; import os; [",
    "__import__('os').system('echo')",
    "().__class__.__bases__[0].__subclasses__()",
    "é 漢 😀 ﬁ ｉｍｐｏｒｔ ｏｓ",
    "a" * 150 + "\\" + "b" * 140,
    "\\" * 290,
    '"' * 290,
    "word\\ " * 45,
]


def filled(comment: str = "c", summary: str = "s", doc: str = "d", why: str = "w", string: str = "...i->...i") -> str:
    """The spec with texts put in, quoted as YAML and Python require."""
    text = SPEC.replace("Q[", "T[")
    for word, value in {"SUMMARY": summary, "DOC": doc, "WHY": why}.items():
        text = text.replace(word, json.dumps(value, ensure_ascii=False))
    return text.replace("STRING", ascii(string)).replace("COMMENT", " ".join(comment.split()))


def rendered(text: str | bytes, stem: str = "f") -> tuple[Op, str]:
    op = read_op(f"specs/{stem}.yaml", text)
    source = render_op(op)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as an escape in a string that Python does not know
        compile(source, f"{stem}.py", "exec")
    return op, source


def skeleton(source: str) -> str:
    """The syntax tree with every string emptied."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def comments(source: str) -> list[str]:
    return [t.string for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type == tokenize.COMMENT]


def one_line(text: str) -> str:
    return " ".join(text.split())


def shown_in_docstring(text: str) -> str:
    """A text as a docstring shows it: on one line, with single quotes for double ones."""
    return one_line(text).replace('"', "'")


def data_in(source: str) -> dict:
    """The spec that a module contains."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SPEC":
            return ast.literal_eval(node.value)
    raise AssertionError(source)


def docstring(source: str, name: str) -> str:
    return next(
        ast.get_docstring(n) or ""
        for n in ast.parse(source).body
        if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name
    )


@functools.lru_cache(maxsize=8)  # many texts have one twin
def code_of(twin: str) -> tuple[str, list[str]]:
    """The code that is rendered of a spec: its syntax tree and comments."""
    _, source = rendered(twin)
    return skeleton(source), comments(source)


def check_twin(text: str, twin: str) -> str:
    """Renders both, and compares everything but text."""
    op, source = rendered(text)
    assert (skeleton(source), comments(source)) == code_of(twin)
    assert meaning(load_spec(op.spec.path, data_in(source))) == meaning(op.spec)
    return source


def test_the_module_has_the_statements_it_should_have():
    _, source = rendered(filled())
    kinds = [f"{type(n).__name__} {getattr(n, 'name', '')}".strip() for n in ast.parse(source).body]
    assert "FunctionDef f_backward_kernel" in kinds
    kinds = [kind for kind in kinds if not kind.startswith(("FunctionDef f_backward_", "FunctionDef f_frozen_"))]
    assert kinds == [
        "Expr", "ImportFrom", "Import", "Import", "Import", "Import", "Import", "ImportFrom", "ImportFrom", "ImportFrom",
        "Assign",
        "FunctionDef f_chain", "FunctionDef f_kernel", "FunctionDef f_launch", "ClassDef FOutputs", "FunctionDef f_xla",
        "FunctionDef f_reference", "FunctionDef f",
    ]  # fmt: skip


def test_the_comparison_sees_code():
    """Twins that differ in code are told apart."""
    _, source = rendered(filled())
    assert skeleton(source) != skeleton(source + "import os\n")
    assert skeleton(source) != skeleton(source.replace("alpha * x", "alpha + x"))
    assert comments(source) != comments(source + "# more\n")


@pytest.mark.parametrize("text", HOSTILE)
def test_text(text):
    """In every place at once; a docstring shows a summary and the text of each parameter."""
    source = check_twin(filled(comment=text, summary=text, doc=text, why=text), filled())
    shown = ast.get_docstring(ast.parse(source), clean=False) or ""  # a long one has several lines
    assert one_line(shown) == one_line(shown_in_docstring(text))
    summary, _, parameters = docstring(source, "f").partition("Args:")
    assert one_line(summary).startswith(one_line(shown_in_docstring(text)))
    # long words may be broken over lines
    assert parameters.count("alpha: float, compiled in.") == 1
    assert "".join(parameters.split()).count("".join(shown_in_docstring(text).split())) >= 2


@pytest.mark.parametrize("text", HOSTILE)
def test_strings_of_the_reference(text):
    source = check_twin(filled(string=text), filled())
    reference = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "f_reference")
    strings = [n.value for n in ast.walk(reference) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    assert strings == ["The definition that tests hold every implementation to.", text]


@hypothesis.settings(max_examples=100 // FEWER)
@hypothesis.given(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=60))
def test_random_text(text):
    hypothesis.assume(text.strip())
    check_twin(filled(text, text, text, text, text), filled())


def test_comments_cannot_continue_in_the_file():
    check_twin(filled() + '# """\n# \\\n#\\', filled())
    check_twin('# """\n' + filled() + "\n\n\n\n\n\n# end \\\n", filled())


def test_texts_are_kept_to_the_byte():
    text = filled().replace("  z = beta", "\n\n\n\n\n    \n  z = beta").replace("chain: |\n", "chain: |-\n")
    _, source = rendered(text)
    assert data_in(source)["chain"] == "# c\ny = alpha * x + b  # c\n\n\n\n\n\n  \nz = beta * x"


@pytest.mark.parametrize("path", some(LIBRARY, 12), ids=lambda path: path.stem)
def test_line_ends_do_not_matter(path):
    data = path.read_bytes()
    _, expected = rendered(data, path.stem)
    assert data_in(expected)["op"] == path.stem
    changes = data.replace(b"\n", b"\r\n"), data.replace(b"\n", b"\r"), b"\xef\xbb\xbf" + data
    for changed in some(changes, 3, first=LIBRARY.index(path) % 3):
        assert rendered(changed, path.stem)[1] == expected


# Names

BAD_NAMES = [
    "ｘ", "𝐢𝐟", "ﬁ", "x\u200d", "x\u0301", "é", "_x", "__x__", "__class__", "X", "x y", "x;y", "x,y", "x=1", "x)", "x.y", "x#", "x\\",
    "x'", 'x"', "x\n", "x: y", "1x", "", "*x", "lambda", "None", "print", "jnp", "cute", "runtime", "self", "float",
]  # fmt: skip


def named(
    op: str = "f", type: str = "T", dtype: str = "T", axis: str = "N", input: str = "x", optional: str = "b",
    output: str = "y", param: str = "p", value: str = "z", default: str = "0", number: str = "1.0", more: str = "",
    more_reference: str = "",
) -> str:  # fmt: skip
    """A spec with names put in, each in quotes."""

    def q(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)

    return (
        f"op: {q(op)}\nsummary: s\ntypes: {{{q(type)}: [float32]}}\n"
        f"inputs: {{{q(input)}: {q(f'{dtype}[{axis}]')}, {q(optional)}: {q(f'T[N] = {default}')}}}\n"
        f"outputs: {{{q(output)}: 'T[N]'}}\nparams: {{{q(param)}: {number}}}\n"
        f"chain: {q(f'{value} = x + b * p{more}') + chr(10)}reference: {q(f'x + b * p{more_reference}')}\n"
    ).replace(q(f"{value} = x + b * p{more}"), q(f"{value} = x + b * p{more}\ny = z"))


def test_the_spec_of_names_is_good():
    rendered(named())


PLACES = ["op", "type", "dtype", "axis", "input", "optional", "output", "param", "value"]


@pytest.mark.parametrize("place", PLACES)
def test_names(place):
    """A bad name is refused wherever names are made."""
    for name in BAD_NAMES:
        if (place, name) in [("type", "X"), ("axis", "X"), ("axis", "")]:
            continue  # good ones
        with pytest.raises(SpecError):
            rendered(named(**{place: name}))


@pytest.mark.parametrize(
    "value",
    [
        "0); import os; (",
        "__import__('os')",
        "0 if x else 1",
        "1e",
        "0x10",
        "1_0",
        "[]",
        "'0'",
        "１",
        "0 # c",
        "nan()",
        "1e400",
    ],
)
def test_defaults(value):
    with pytest.raises(SpecError):
        rendered(named(default=value))


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("0", 0), ("-1", -1), ("5", 5), ("+2", 2), ("1.5", 1.5), ("2.0", 2.0), ("1e-6", 1e-6), ("inf", math.inf), ("-inf", -math.inf),
        ("nan", math.nan), (".inf", math.inf), ("-.INF", -math.inf),
    ],
)  # fmt: skip
def test_numbers_are_written_as_python_reads_them(value, number):
    dotted = value if "." in value else value.replace("inf", ".inf").replace("nan", ".nan")
    _, source = rendered(named(default=value, number=dotted))
    function = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "f")
    default = eval(ast.unparse(function.args.kw_defaults[0]))
    assert repr(default) == repr(number)


HOSTILE_FORMULAS = [
    "__import__('os')", "x.__class__", "().__class__", "eval('1')", "open('f')", "x if True else os", "[y for y in x]",
    "lambda: 0", "f'{x}'", "(y := x)", "x; import os", "x\nimport os", "print(x)", "globals()", "x.at[0].set(1)", "'a' * 9",
    "b'x'", "await x", "yield", "exec", "𝐞𝐯𝐚𝐥('1')", "jnp.load('f')", "jnp.__builtins__", "jnp.linalg.__dict__", "jax.config",
    "jnp._src", "jax.lax._src", "jnp.vectorize(x)", "getattr(x, 'y')", "x.tobytes()", "SPEC", "runtime", "cute", "f_launch",
]  # fmt: skip


@pytest.mark.parametrize("formula", HOSTILE_FORMULAS)
def test_formulas(formula):
    with pytest.raises(SpecError):
        rendered(named(more=f" + {formula}"))
    if formula not in ("x.at[0].set(1)", "'a' * 9", "[y for y in x]"):  # these are jnp, or of a reference
        with pytest.raises(SpecError):
            rendered(named(more_reference=f" + {formula}"))


# Names of the kernel's own


def kernel_names() -> dict[str, set[str]]:
    """The variables of generated kernels and launchers that are not a spec's names, with their op."""
    found: dict[str, set[str]] = {}
    for path in some(LIBRARY, 4):  # their kernels have one template
        op = read_op(path)
        if op.plan.kind != "elementwise":
            continue  # their kernels rename a spec's values beside their own
        own = {a.name for a in op.spec.arrays} | {p.name for p in op.spec.params} | {s.name for s in op.plan.stores}
        for node in ast.parse(render_op(op)).body:
            if not isinstance(node, ast.FunctionDef) or node.name not in (
                f"{op.spec.op}_kernel",
                f"{op.spec.op}_launch",
            ):
                continue
            names = {a.arg for a in node.args.args}
            names |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            for name in names - own:
                if name.islower():
                    found.setdefault(name, set()).add(path.stem)
    return found


def test_kernel_names_are_refused():
    """A parameter is a variable of the kernel: it may not have the name of another one. An output may: it gets another one there."""
    names = set(kernel_names())
    assert {"at", "flat", "how", "row"} <= names
    begin = "op: f\nsummary: s\ninputs:\n  x: float32[..., N]\noutputs:\n  "
    for name in sorted(names):
        if name.startswith(tuple(path.stem for path in LIBRARY)):
            continue  # a function of the op's own module: f_kernel here
        with pytest.raises(SpecError, match="cannot name"):
            rendered(begin + f"y: float32[..., N]\nparams:\n  {name}: 1.0\nchain: y = x * {name}\nreference: x\n")
        output = begin + f"{name}: float32[..., N]\nchain: {name} = x + 1\nreference: x + 1\n"
        if name in RESERVED:
            with pytest.raises(SpecError, match="cannot name"):
                rendered(output)
        else:
            assert re.search(rf"\b{name}_ = ", rendered(output)[1])


@pytest.mark.parametrize("suffix", ["chain", "kernel", "launch", "xla", "reference"])
def test_functions_of_the_module_are_refused(suffix):
    text = f"op: f\nsummary: s\ninputs:\n  x: float32[N]\noutputs:\n  y: float32[N]\nparams:\n  f_{suffix}: 1.0\n"
    with pytest.raises(SpecError, match="cannot name"):
        rendered(text + f"chain: y = x * f_{suffix}\nreference: x\n")


def test_names_that_look_alike_stay_apart():
    """No two arrays of a kernel get one name, however they are spelled."""
    names = ["x", "x_", "x1", "x_1", "x__1", "x_1_", "xa", "x_a", "x_a_", "x0", "x_0", "gate_up", "gateup", "gat_eup"]
    inputs = "".join(f"  {name}: float32[..., (2 N)]\n" for name in names)
    total = " + ".join(f"{name}[{i}]" for name in names for i in (0, 1))
    text = f"op: f\nsummary: s\ninputs:\n{inputs}outputs:\n  y: float32[..., N]\nchain: y = {total}\nreference: x\n"
    _, source = rendered(text)
    kernel = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "f_kernel")
    assigned = [n.id for n in ast.walk(kernel) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    fragments = [name for name in assigned if re.match("r[A-Z]", name)]
    assert len(fragments) == len(set(fragments)) == 2 * len(names)


def test_axes_that_join_to_one_name_stay_apart():
    text = "op: f\nsummary: s\ninputs:\n  x: float32[A, B, AB, C]\n  v: float32[A, B, C]\noutputs:\n  y: float32[A, B, AB, C]\n"
    op, _ = rendered(text + "chain: y = x + v\nreference: x\n")
    assert len({group.name for group in op.plan.groups}) == len(op.plan.groups)


# The package and the tests


def test_the_folder_of_specs_stays_in_a_comment():
    ops = [build.rendered(rendered(filled())[0])]
    expected = build.generated_files(ops, "generated", "specs")["__init__.py"]
    for folder in ('a\nimport os\n"""', "a\rimport os", "a\x0cb", "a\u2028b"):
        assert skeleton(build.generated_files(ops, "generated", folder)["__init__.py"]) == skeleton(expected)


def test_every_file_compiles():
    ops = [build.rendered(rendered(filled())[0])]
    for text in (
        *build.generated_files(ops, "generated", "specs").values(),
        *build.test_files(ops, "generated").values(),
    ):
        compile(text, "file.py", "exec")
