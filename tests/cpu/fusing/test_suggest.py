"""What is suggested of a model of today's shape, and how the command shows and writes it."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from codegen.cli.options import UsageError
from codegen.cli.program import app
from codegen.fusing.known import known
from codegen.fusing.suggest import disagreement, suggestions
from codegen.pipeline import read_op
from codegen.tracing import translate
from tests.places import SPECS

MODEL = '''
import jax
import jax.numpy as jnp


def norm(x, w):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-6) * w).astype(x.dtype)


def rotated(x, cos, sin):
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def block(x, residual, w, heads, wq, cos, sin, gate, up, head, labels):
    residual = residual + x
    n = norm(residual, w)
    q = rotated(norm((n @ wq).reshape(2, 8, 4, 8), heads), cos, sin)
    h = jax.nn.gelu(n @ gate, approximate=False) * (n @ up)
    logits = 30 * jnp.tanh((q.reshape(2, 8, 32) @ head).astype(jnp.float32) / 30)
    at_label = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - at_label, h, residual


def softmax(x):
    return jax.nn.softmax(jnp.tanh(x), -1)


def arguments():
    def array(*shape, dtype="bfloat16"):
        return jax.ShapeDtypeStruct(shape, dtype)

    angles = array(8, 1, 4, dtype="float32")
    x = array(2, 8, 32)
    return (x, x, array(32), array(8), array(32, 32), angles, angles, array(32, 64), array(32, 64), array(32, 128),
            array(2, 8, dtype="int32"))
'''  # fmt: skip


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "block_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("block_model", None)


def test_suggest_finds_what_is_fused_by_hand_and_writes_it(model):
    command = ["suggest", "block_model:block", "--arguments", "block_model:arguments", "--write"]
    written = CliRunner().invoke(app, command).stdout
    for name in ("fused_block2", "fused_rotated"):
        assert f"wrote specs/{name}.yaml" in written.replace("\\", "/")
    text = Path("specs/fused_block2.yaml").read_text() + Path("specs/fused_rotated.yaml").read_text()
    for line in ("logits = 30 * tanh(x / 30)", "y = logsumexp(logits, axis=N) - at_label", "y[1] = p2 * cos + p * sin"):
        assert line in text
    # what the library has is called: the op gives the norm first
    assert "y, residual_out = add_rmsnorm(residual, x, w, eps=1e-06)" in written
    assert "-    h = jax.nn.gelu(n @ gate" in written and "+    h = dense_geglu_weights(x, gate, up)" in written
    assert (
        "+    y = fused_rotated(" in written and "-    a, b" not in written
    )  # the norm before it is not in these lines


def test_suggest_prints_data(model):
    softmax = ["suggest", "block_model:softmax", "--like", "x=float32[6,64]", "--json"]
    (one,) = json.loads(CliRunner().invoke(app, softmax).stdout)
    assert (one["chain"], one["times"], one["kernels_now"]) == (["y = softmax(tanh(x), axis=N)"], 1, 3)
    assert (one["bytes_fused"], one["bytes_now"]) == (2 * 4 * 384, 4 * (3 * 384 + 5 * 6 + 384))
    assert one["where"] == [
        f"{Path('block_model.py').resolve()}:{MODEL.count(chr(10), 0, MODEL.index('jax.nn.softmax')) + 1}"
    ]


def test_what_disagrees_is_not_suggested(monkeypatch):
    def capped(x):
        return jax.nn.softmax(jnp.tanh(x), -1)

    x = jax.ShapeDtypeStruct((4, 9), jnp.float32)
    (one,) = suggestions(capped, (x,))
    assert disagreement(one) == ""
    monkeypatch.setitem(translate.SAME, "tanh", "sin")  # a fault that is planted
    (one,) = suggestions(lambda x: capped(2 * x), (x,))
    assert "differ" in disagreement(one)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("add_rmsnorm", "add_rmsnorm"),
        ("cross_entropy", "cross_entropy"),
        ("dense_swiglu_weights", "dense_swiglu_weights"),
        ("group_norm", "group_norm"),
    ],
)
def test_a_library_op_is_found_by_its_graph(name, call):
    op = read_op(SPECS / f"{name}.yaml")
    found = known(op)
    assert found is not None and found.op == call
    assert dict(found.inputs) == {a.name: a.name for a in op.spec.inputs}


def test_an_op_that_differs_in_a_number_is_another():
    text = (SPECS / "squared_relu.yaml").read_text()
    assert known(read_op("specs/squared_relu.yaml", text)) is not None
    other = text.replace("squared_relu(x)", "3 * squared_relu(x)").replace("reference:", "reference: 3 *")
    assert known(read_op("specs/squared_relu.yaml", other)) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["operator:neg", "--like", "a=float32[8,8]", "--gpu", "H500"], "unknown GPU 'H500'\n  known here: A100"),
        (["operator:neg", "--like", "a=float32[8,8]", "--measure"], "has no NVIDIA GPU"),
        (
            ["operator:matmul", "--like", "a=float32[8,4]", "--like", "b=float32[8,4]"],
            "matmul cannot be traced with these",
        ),
    ],
)
def test_suggest_says_what_is_wrong(arguments, message):
    error = CliRunner().invoke(app, ["suggest", *arguments]).exception
    assert isinstance(error, UsageError) and message in str(error)
