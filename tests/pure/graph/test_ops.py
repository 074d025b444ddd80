"""Every row of the op table is complete, and every line of the prelude can be read, before anything is computed with
them."""

import ast
import functools
import itertools
import re
from pathlib import Path

import pytest

from codegen.graph import ops
from codegen.graph.nodes import DTYPES, Node
from codegen.graph.ops import BINARY, COMPARE, OPERATORS, OPS, REDUCTIONS, Operation
from codegen.language.formula.calls import OWN, functions
from codegen.language.formula.operations import EVALUATED
from codegen.language.formula.reader import reader
from codegen.language.prelude import prelude
from codegen.language.scope import CONSTANTS, make_scope
from codegen.language.statements import Placed
from codegen.spec.specfile import load_spec

RULES = {"arith", "float", "compare", "predicate", "logic", "select", "round", "bits", "whole", "digits", "scale"}
DOMAINS = {"any", "positive", "nonnegative", "nonzero", "unit", "small"}
FOLDER = Path(ops.__file__).parents[1] / "device"
DEVICE = [FOLDER / "functions.py", *FOLDER.glob("math/*.py")]

# Without those that derivatives alone are written with
LANGUAGE = {name: op for name, op in OPS.items() if not name.startswith("_")}
rows = pytest.mark.parametrize("op", LANGUAGE.values(), ids=LANGUAGE)


def value(formula: str, **arrays: str) -> Node:
    """The value of a formula; its names are arrays."""
    inputs = "".join(f"  {name}: {array}\n" for name, array in arrays.items())
    spec = load_spec(
        "f.yaml",
        f"op: f\nsummary: s\ninputs:\n{inputs}outputs:\n  out: float32[..., N]\nchain: out = 1\nreference: '1'\n",
    )
    return reader(make_scope(spec))(ast.parse(formula, mode="eval").body)


def call(op: Operation, *arguments: str) -> str:
    """The operation as a formula writes it."""
    if op.name not in OPERATORS:
        return f"{op.name}({', '.join(arguments)})"
    return op.jnp.format(*(f"({a})" for a in arguments))


# The rows


def test_a_row_is_named_as_its_key():
    for name, op in LANGUAGE.items():
        assert OPS[name] is op and op.name == name
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        assert op.arity in (1, 2, 3)
        assert op.rule in RULES
        assert op.domain in DOMAINS


def test_texts_take_every_argument_once():
    """An argument that is in the text twice would be computed twice."""
    for op, which in itertools.product(LANGUAGE.values(), ("cute", "jnp", "cute_fast")):
        text = getattr(op, which)
        if which == "cute_fast" and not text:
            continue
        found = re.findall(r"\{(\w+)\}", text)
        flags = {"approx", "exact", "floating", "integer"} if which == "cute" else {"floating", "integer"}
        assert sorted(f for f in found if f not in flags) == [str(i) for i in range(op.arity)]
        assert text.count("{") == len(found)


@functools.cache
def of_device() -> set[str]:
    """The names of functions that kernels call."""
    return {n.name for m in DEVICE for n in ast.parse(m.read_text()).body if isinstance(n, ast.FunctionDef)}


@rows
def test_texts_are_python(op):
    arguments = [f"arg{i}" for i in range(op.arity)]
    known = {*arguments, "True", "False", "FLAG"}
    for text, modules in (
        (op.cute, {"cute", "device"}),
        (op.cute_fast or "0", {"cute"}),
        (op.jnp, {"jnp", "jax", "runtime"}),
    ):
        tree = ast.parse(
            text.format(*arguments, approx="FLAG", exact="FLAG", floating="FLAG", integer="FLAG"), mode="eval"
        )
        assert {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} <= known | modules
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "device":
                assert node.attr in of_device()
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("cute"):
                assert re.fullmatch(r"cute(\.math(\.\w+)?)?", ast.unparse(node))


def test_infix_says_whether_the_kernel_writes_an_operator():
    for op in LANGUAGE.values():
        tree = ast.parse(
            op.cute.format("a", "b", "c", approx="False", exact="False", floating="0", integer="0"), mode="eval"
        ).body
        assert op.infix == isinstance(tree, ast.BinOp | ast.UnaryOp | ast.Compare)


@rows
def test_there_is_a_derivative_for_every_argument(op):
    assert len(op.grad) == op.arity
    for place, formula in enumerate(op.grad):
        formula = formula.replace("_hypot(a, b)", "sqrt(a * a + b * b)")  # which specs do not know
        own = "abc"[: op.arity]
        names = {n.id for n in ast.walk(ast.parse(formula)) if isinstance(n, ast.Name)} - set(functions())
        assert names <= {*own, "y", "g"}
        kinds = ["float32"] * 3
        if op.rule in ("logic", "select"):
            kinds[0] = "bool"
        if op.rule in ("bits", "whole"):
            kinds = ["int32"] * 3
        if op.rule == "scale":
            kinds[1] = "int32"
        result = value(
            formula,
            **{n: f"{k}[..., N]" for n, k in zip("abc", kinds, strict=True)},
            y="float32[..., N]",
            g="float32[..., N]",
        )
        assert result.kind == "float" or formula == "0"
        if op.rule in ("compare", "predicate", "logic") or kinds[place] != "float32":
            assert formula == "0"


@rows
def test_what_a_row_takes_and_gives(op):
    """The table of `rule`s in the module's docstring."""

    def kind(*kinds: str) -> str:
        names = "abc"[: op.arity]
        dtypes = {"float": "float16", "int": "int8", "bool": "bool"}
        try:
            node = value(call(op, *names), **{n: f"{dtypes[k]}[..., N]" for n, k in zip(names, kinds, strict=True)})
        except Placed:
            return "refused"
        return node.kind

    n = op.arity
    floats, ints, bools = (kind(*[k] * n) for k in ("float", "int", "bool"))
    mixed = kind("float", *["int"] * (n - 1)) if n > 1 else floats
    expected = {
        "arith": ("float", "int", "refused", "float"),
        "float": ("float", "float", "refused", "float"),
        "compare": ("bool", "bool", "bool" if op.name in ("eq", "ne") else "refused", "bool"),
        "predicate": ("bool", "bool", "refused", "bool"),
        "logic": ("refused", "refused", "bool", "refused"),
        "select": ("refused", "refused", "bool", "refused"),
        "round": ("float", "int", "refused", "float"),
        "bits": ("refused", "int", "bool", "refused"),
        "whole": ("refused", "int", "refused", "refused"),
        "digits": ("int", "int", "refused", "int"),
        "scale": ("refused", "float", "refused", "float"),
    }
    # ~ is two operations; % and // of floats are functions of the prelude
    own = {"not": "bits", "invert": "bits", "mod": "arith", "floordiv": "arith"}
    expected = expected[own.get(op.name, op.rule)]
    assert (floats, ints, bools, mixed) == expected
    if op.rule == "select":
        assert [kind("bool", *ks) for ks in (("float", "float"), ("int", "int"), ("int", "float"), ("bool", "int"))] == [
            "float", "int", "float", "refused",
        ]  # fmt: skip


def test_a_result_varies_along_the_axes_of_all_arguments():
    for op in LANGUAGE.values():
        if op.name == "pow":
            continue
        names = "abc"[: op.arity]
        dtype = {"logic": "bool", "bits": "int8", "whole": "int8", "scale": "int8"}.get(op.rule, "float32")
        arrays = {"a": f"{'bool' if op.rule == 'select' else dtype}[...]", "b": f"{dtype}[N]", "c": f"{dtype}[]"}
        node = value(call(op, *names), **{n: arrays[n] for n in names})
        assert node.dims == (("...", "N") if op.arity > 1 else ("...",))


# The tables beside it


def test_operators_are_rows():
    assert set(BINARY.values()) | set(COMPARE.values()) | {"neg", "not", "invert", "pow"} == OPERATORS
    assert set(OPS) >= OPERATORS
    assert all(issubclass(getattr(ast, name), ast.operator) for name in BINARY)
    assert all(issubclass(getattr(ast, name), ast.cmpop) for name in COMPARE)
    assert set(EVALUATED) <= set(OPS)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    rule = REDUCTIONS[name].rule
    dtype = "bool" if rule == "logic" else "int8"
    node = value(f"{name}(x, axis=N)", x=f"{dtype}[..., N]")
    assert (node.op, node.dims, node.attr) == (name, ("...",), ("N",))
    assert node.kind == {"arith": "int", "float": "float", "logic": "bool"}[rule]


def test_no_name_means_two_things():
    tables = [set(OPS), set(REDUCTIONS), set(OWN), set(prelude()), set(CONSTANTS), set(DTYPES)]
    assert sum(map(len, tables)) == len(set().union(*tables))


def test_the_language_has_every_function_that_its_description_names():
    promised = """
        abs sign minimum maximum clip where square sqrt rsqrt reciprocal cbrt exp exp2 expm1 log log2 log1p sin cos tan tanh sinh cosh
        asin acos atan atan2 erf floor ceil round rem isnan isinf isfinite
        relu relu6 leaky_relu elu selu celu gelu gelu_tanh quick_gelu silu sigmoid hard_sigmoid hard_swish softplus softsign
        log_sigmoid mish squareplus squared_relu
        sum mean max min prod any all logsumexp softmax log_softmax var norm index size take cast
    """
    assert set(promised.split()) <= set(functions())


def test_integer_limits():
    assert {d.name: (d.low, d.high) for d in DTYPES.values() if d.kind == "int"} == {
        "int4": (-8, 7),
        "uint4": (0, 15),
        "int8": (-128, 127),
        "int16": (-(2**15), 2**15 - 1),
        "int32": (-(2**31), 2**31 - 1),
        "int64": (-(2**63), 2**63 - 1),
        "uint8": (0, 255),
        "uint16": (0, 2**16 - 1),
        "uint32": (0, 2**32 - 1),
    }


# The prelude


@pytest.mark.parametrize("name", prelude())
@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "float64"])
def test_composites_read(name, dtype):
    made = prelude()[name]
    if name.startswith("_"):  # reached through others alone
        assert name not in functions()
        bodies = [b for other in prelude().values() for b in (other.body, *other.grad.values())]
        texts = [*map(ast.unparse, bodies), *(reduction.grad for reduction in REDUCTIONS.values())]
        # x ** 0.5, a % b, a // b, normal(key)
        read_otherwise = ("_half_power", "_modulo", "_floor_divide", "_normal_of")
        assert any(re.search(rf"\b{name}\(", text) for text in texts) or name in read_otherwise
        return
    needed = [p for p, default in zip(made.params, made.defaults, strict=True) if default is None]
    assert made.defaults[: len(needed)] == (None,) * len(needed)
    arguments = ["axis=N" if p == "axis" else "xyz"[i] for i, p in enumerate(needed)]
    arrays = dict.fromkeys("xyz", f"{dtype}[..., N]")
    node = value(f"{name}({', '.join(arguments)})", **arrays)
    whole = [f"{p}={'N' if p == 'axis' else 'xyz'[i]}" for i, p in enumerate(made.params)]
    assert value(f"{name}({', '.join(whole)})", **arrays).dims == node.dims
    place = name.startswith("arg")
    assert node.kind == ("int" if place or (dtype == "int32" and node.kind == "int") else "float")
    assert node.dims == (("...",) if "axis" in made.params and not name.endswith("softmax") else ("...", "N"))


@pytest.mark.parametrize("name", [n for n in prelude() if not n.startswith("_")])
def test_composites_refuse_bools(name):
    made = prelude()[name]
    arguments = [
        "axis=N" if p == "axis" else "m"
        for p, default in zip(made.params, made.defaults, strict=True)
        if default is None
    ]
    with pytest.raises(Placed, match=f"'{name}' takes numbers, not a bool"):
        value(f"{name}({', '.join(arguments)})", m="bool[..., N]")


def test_helpers_of_the_prelude_are_not_part_of_the_language():
    for name in prelude():
        if name.startswith("_"):
            with pytest.raises(Placed, match="unknown function"):
                value(f"{name}(x)", x="float32[N]")
