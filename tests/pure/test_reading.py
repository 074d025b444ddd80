"""A chain is read once, and its derivatives are made graph to graph: counts of texts that are read and printed. The
text that is printed for people reads as the graph that kernels are made from."""

import ast
from dataclasses import replace

import pytest

from codegen.autodiff.backward import backward_of
from codegen.errors import SpecError, UserError
from codegen.graph.contraction import pin_types
from codegen.graph.nodes import Chain, Node, print_statements
from codegen.graph.ops import OPS, PINNED, PLACED
from codegen.language import chain as chains
from codegen.language import transfer
from codegen.language.chain import read_chain
from codegen.pipeline import read_op
from codegen.plan.op import Op
from codegen.render import render_op
from tests.places import SPECS
from tests.turns import some

SOME = """add_layernorm add_rmsnorm celu cosine_similarity cross_entropy_z_loss dense_rms_scaled group_norm instance_norm head_rmsnorm_rotary l2_normalize layernorm
    log_softmax mean_squared_error relu rmsnorm row_prod softcap_softmax softmax swiglu swiglu_clamped""".split()


def derived_of(op: Op) -> list[Op]:
    """The ops that are derived from an op's spec."""
    found = backward_of(op)
    if isinstance(found, UserError):
        return []
    frozen = found.frozen.op if found.frozen is not None else None
    return [made for made in (found.op, found.forward, frozen) if made is not None]


def test_each_chain_is_read_once_and_none_is_printed(monkeypatch):
    """20 ops with their kernels, backwards and kernels of those: 20 chains are read, and no other text is printed or
    parsed."""
    for stem in SOME:  # at first use, the derivatives of the tables are read
        backward_of(read_op(SPECS / f"{stem}.yaml"))
    read: list[str] = []
    printed: list[str] = []
    parsed: list[str] = []

    def reading(scalar, *rest, lines=chains.read_lines):
        read.append(scalar.source.path)
        return lines(scalar, *rest)

    def printing(spec, *rest, text=transfer.printed):
        printed.append(spec.op)
        return text(spec, *rest)

    def parsing(text, *rest, parse=ast.parse, **more):
        parsed.append(text)
        return parse(text, *rest, **more)

    monkeypatch.setattr(chains, "read_lines", reading)
    monkeypatch.setattr(transfer, "printed", printing)
    monkeypatch.setattr(ast, "parse", parsing)
    statements = 0
    for stem in SOME:
        op = read_op(SPECS / f"{stem}.yaml")
        render_op(op)
        statements += len(op.statements) + len(op.reference.lines) + len(op.spec.grad if op.spec.grad != "auto" else ())
    assert sorted(read) == sorted(str(SPECS / f"{stem}.yaml") for stem in SOME)
    assert printed == []
    assert len(parsed) <= statements


@pytest.mark.long
@pytest.mark.parametrize("path", some(sorted(SPECS.glob("*.yaml")), 2), ids=lambda path: path.stem)
def test_the_text_of_a_derived_chain_reads_as_its_graph(path):
    """The printed text is in the language of chains, and means what the kernel computes."""
    for made in derived_of(read_op(path)):
        if made.plan.kind == "gemm":
            made = made.plan.epilogue
        spec = replace(made.spec, graph=None)
        chain, errors = read_chain(spec)
        assert [d for d in errors if "never used" not in d.message] == []
        assert chain is not None
        assert outputs(spec.outputs, chain) == outputs(spec.outputs, made.spec.read)


def outputs(arrays, chain: Chain) -> str:
    """The outputs' values, without the marks and conversions that a text does not show."""
    kept: dict[int, Node] = {}
    for node in chain.nodes:
        args = tuple(kept[id(a)] for a in node.args)
        one = node.op == "mul" and args[0].is_const and args[0].attr == 1.0 and args[1].op == "float"
        if node.op == PLACED:
            values, places, index = args
            same = interned(node, "eq", (index, places), None, "bool")
            zero = interned(node, "const", (), 0.0, "float")
            chosen = interned(node, "where", (same, values, zero), None, "float")
            kept[id(node)] = interned(node, "sum", (chosen,), (node.attr.into,), "float")
        elif node.op.startswith("_"):
            kept[id(node)] = args[0]
        elif one or (node.op == "where" and args[1].op == "shift"):  # a text says again what is outside
            kept[id(node)] = args[1]
        else:
            kept[id(node)] = interned(node, node.op, args, node.attr, node.kind)
    names = {a.name for a in arrays}
    return print_statements([replace(s, value=kept[id(s.value)]) for s in chain.statements if s.name in names])


INTERNED: dict[tuple, Node] = {}


def interned(like: Node, op: str, args: tuple[Node, ...], attr: object, kind: str) -> Node:
    made = (op, tuple(map(id, args)), repr(attr), kind)
    return INTERNED.setdefault(made, replace(like, op=op, args=args, attr=attr, kind=kind))


def op_of(chain: str, types: str = "T: [float32, bfloat16]") -> Op:
    return read_op(
        "f.yaml",
        f"op: f\nsummary: s\ntypes: {{{types}}}\ninputs:\n  x: T[..., N]\noutputs:\n  y: T[..., N]\nreference: x\nchain: |\n  {chain}\n",
    )


@pytest.mark.parametrize("name", sorted(n for n in (*OPS, "_half_power", "_root") if n.startswith("_")))
def test_marks_and_private_functions_are_unknown_to_users(name):
    with pytest.raises(SpecError) as error:
        op_of(f"y = {name}(x)")
    assert f"unknown function '{name}'" in str(error.value)


def test_marks_are_in_the_graph_and_not_in_the_text():
    op = op_of("y = softmax(tanh(x), axis=N)")
    marks = [n for made in derived_of(op) for n in made.spec.read.nodes if n.op == PINNED]
    assert marks
    assert all(isinstance(pin_types(mark), tuple) for mark in marks)
    assert not any(PINNED in made.spec.chain.value for made in derived_of(op))


def test_a_function_within_a_function_keeps_its_derivative_in_an_epilogue():
    """By its own rule relu has derivative 0 at NaN; also within squared_relu, after a product."""
    text = """op: f
summary: s
inputs:
  a: float32[M, K]
  b: float32[K, N]
outputs:
  y: float32[M, N]
reference: jnp.square(jax.nn.relu(a @ b))
chain: y = squared_relu(a @ b)
"""
    found = backward_of(read_op("f.yaml", text))
    assert not isinstance(found, UserError)
    assert "gt" in {n.op for n in found.op.spec.read.nodes}


def test_a_mistake_of_a_derived_chain_shows_its_line():
    """Text is printed when a message needs it."""
    op = op_of("y = x * mean(x, axis=N)")
    made = derived_of(op)[-1]
    assert made.spec.chain.value.count("\n") == len(made.spec.read.statements)
    line = chains.line_with(made.spec, made.statements, made.statements[-1].value)
    assert line.text == made.spec.chain.value.rstrip("\n").split("\n")[-1]
