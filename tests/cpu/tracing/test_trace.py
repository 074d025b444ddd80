"""Functions become specs: each case has the lines that its spec must contain. `trace` compares the results with the function's."""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir
from typer.testing import CliRunner

import codegen
from codegen.cli.options import UsageError
from codegen.cli.program import app
from codegen.errors import SpecError
from codegen.tracing import patterns, translate

BF16, F32 = jnp.bfloat16, jnp.float32


def like(*shape, dtype=BF16):
    return jax.ShapeDtypeStruct(shape, dtype)


def norm(x, w, eps=1e-6):
    wide = x.astype(F32)
    rstd = jax.lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + eps)
    return (wide * rstd * w).astype(x.dtype)


def add_norm(x, residual, w):
    residual = residual + x
    return norm(residual, w), residual


def norm_rotary(x, w, cos, sin):
    a, b = jnp.split(norm(x, w), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def squared_relu(x, w):
    return jnp.square(jax.nn.relu(x @ w))


def capped_loss(x, w, labels):
    logits = 30 * jnp.tanh((x @ w.T).astype(F32) / 30)
    picked = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return jax.nn.logsumexp(logits, -1) - picked


def geglu(x, wg, wu):
    return jax.nn.gelu(x @ wg) * (x @ wu)


def mlp(x, w, gate, up, down):
    n = norm(x, w)
    return (jax.nn.silu(n @ gate) * (n @ up)) @ down + x


def heads_merged(x, w):
    return jnp.einsum("bshd,hdn->bsn", x, w)


def masked(x, mask, scale=0.125):
    return jax.nn.softmax(jnp.where(mask, x * scale, -1e9), axis=-1)


def embedded(table, token, w):
    return norm(jnp.take(table, token, axis=0), w)


def column_sums(x, g):
    h = jax.nn.gelu(x, approximate=False) * g
    return h, jnp.sum(h, axis=(0, 1))


def layer_norm(x):
    mean = jnp.mean(x, -1, keepdims=True)
    var = jnp.var(x, -1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5)


def step(p, v):
    return p - 0.1 * v / jnp.max(v, -1, keepdims=True)


def gated(x):
    gate, value, shift = x  # slices, or `unstack` in newer versions
    return jax.nn.silu(gate) * value + shift


def unmasked(x, mask):
    return jnp.where(mask, x, jnp.finfo(F32).min) * 2


def rotated_back(g, left, right):
    inner = left.T @ g @ right
    return left @ jnp.sqrt(inner) @ right.T, inner


def clipped_bias(scores, table):
    far = jnp.arange(8)[None] - jnp.arange(3)[:, None]
    return scores + jnp.moveaxis(table[jnp.clip(jnp.abs(far), 0, 4)], 2, 0)


def negated(x):
    return -jnp.mean(jnp.sum(-jax.nn.log_sigmoid(x), 1))


def evaluated(x):
    start = jnp.zeros(x.shape, F32)
    return COEFFICIENTS[1] * jax.lax.scan(lambda y, c: (y * x + c, None), start, COEFFICIENTS, unroll=3)[0]


X = like(2, 3, 8)
COEFFICIENTS = jnp.asarray([0.5, 2, 3])
CASES = {
    "axes of outputs that products contract": (
        rotated_back, (like(6, 9), like(6, 6), like(9, 9)), ["dot(dot(left, g, axis=M), right, axis=C)", "g: T[M, C]"],
    ),
    "a table at computed places": (clipped_bias, (X, like(5, 2)), ["y = scores + take(table, minimum(4, maximum(0, abs(far))), axis=P)"]),
    "whole numbers of a division": (
        lambda i, j, x: (i // j, i // 4 + i % 4, x // 3, jax.lax.div(i, j)), (*[like(3, 8, dtype=jnp.int32)] * 2, X),
        ["y = i_in // j", "y2 = i_in // 4 + i_in % 4", "y3 = x // 3", "y4 = (i_in - rem(i_in, j)) // j"],
    ),
    "inverse and gamma functions": (
        lambda x: jnp.arcsinh(x) + jnp.arctanh(x) + jax.scipy.special.gammaln(x) * jax.scipy.special.digamma(x), (X,),
        ["y = asinh(x) + atanh(x) + lgamma(x) * digamma(x)"],
    ),
    "scans": (
        lambda x: (jax.lax.cummin(x, axis=1), jax.lax.cumsum(x, axis=2, reverse=True), jax.lax.cumlogsumexp(x, axis=2)), (X,),
        ["y = -cummax(-x, axis=H)", "y2 = cumsum(x, axis=N, reverse=true)", "y3 = cumlogsumexp(x, axis=N)"],
    ),
    "elements of a captured array": (
        evaluated, (X,), ["y = 2 * (((0 * x + 0.5) * x + 2) * x + 3)"],
    ),
    "a sum of what is the same": (
        lambda x, w: x[..., :4] * jnp.sum(jnp.broadcast_to(w, x.shape), -1, keepdims=True) + x[..., 4:], (X, like(2, 3, 1)),
        ["x[0] * (w * 8) + x[1]"],
    ),
    "signs": (negated, (like(3, 8),), ["y = -mean(sum(softplus(-x), axis=N), axis=...)"]),
    "the largest number": (unmasked, (X, like(2, 3, 8, dtype=bool)), ["where(mask, x, -3.4028235e+38)"]),
    "names of a kernel's variables": (step, (X, X), ["p: T[..., N]", "v: T[..., N]", "y = p - 0.1 * v / max(v, axis=N)"]),
    "names of functions": (layer_norm, (X,), ["y = (x - mean(x, axis=N)) * rsqrt(var(x, axis=N) + 1e-5)"]),
    "residual + norm": (add_norm, (X, X, like(8)), ["residual_out = residual + x", "y = residual_out * rstd * w", "w: T[N]"]),
    "a parameter": (norm, (X, like(8)), ["eps: {type: float, default: 1e-06}", "mean(square(x), axis=N) + eps"]),
    "parts": (
        norm_rotary, (like(2, 6, 3, 8), like(8), like(6, 1, 4, dtype=F32), like(6, 1, 4, dtype=F32)),
        ["x: T[..., S, H, (2 D)]", "w: T[(2 D)]", "cos: float32[S, D]", "y[1] = p2 * cos + p * sin"],
    ),
    "an epilogue": (squared_relu, (X, like(8, 5)), ["w: T[K, N]", "y = squared_relu(x @ w)"]),
    "a loss": (
        capped_loss, (like(4, 8), like(7, 8), like(4, dtype=jnp.int32)),
        ["w: T[N, K]", "logits = 30 * tanh(x @ w / 30)", "where(index(N) == labels", "logsumexp(", "labels: index(N)"],
    ),
    "two products": (geglu, (X, like(8, 5), like(8, 5)), ["y = gelu_tanh(x @ wg) * (x @ wu)"]),
    "an MLP": (
        mlp, (X, like(8), like(8, 5), like(8, 5), like(5, 8)),
        ["up: T[K, N]", "y = (silu(p @ gate) * (p @ up)) @ down + x"],
    ),
    "a product of a product": (lambda x, a, b: (x @ a) @ b, (X, like(8, 5), like(5, 7)), ["y = (x @ a) @ b"]),
    "a product over two axes": (heads_merged, (like(2, 6, 3, 8), like(3, 8, 5)), ["y = dot(x, w, axis=(K, N))"]),
    "a softmax": (masked, (like(2, 3, 8), like(3, 8, dtype=bool)), ["y = softmax(where(mask, x * scale, -1e9), axis=N)"]),
    "a table": (embedded, (like(9, 8), like(2, 3, dtype=jnp.int32), like(8)), ["take(table, token, axis=P)"]),
    "one by one": (gated, (like(3, 4, 8),), ["x: T[3, H, N]", "y = silu(x[0]) * x[1] + x[2]"]),
    "over rows": (column_sums, (X, X), ["gelu(x) * g", "sum(h, axis=...)"]),
}  # fmt: skip


VERIFIED = ("parts", "one by one", "over rows", "a table at computed places")


@pytest.mark.parametrize("name", CASES)
def test_a_function_becomes_the_chain_a_person_would_write(name):
    function, examples, lines = CASES[name]
    text = codegen.trace(function, *examples, verify=name in VERIFIED)
    assert [line for line in lines if line not in text] == [], text


def horner(x, *coefficients):
    return functools.reduce(lambda total, c: total * x + c, reversed(coefficients))


NEWER = {
    "log2": (jnp.log2, lambda f, x: f(jnp.abs(x) + 1), "log2("),
    "one_minus_square": (lambda x: (1 + x) * (1 - x), lambda f, x: f(jnp.tanh(x)), "(1 + t) * (1 - t)"),
    "polynomial": (horner, lambda f, x: f(x, 1.0, 3 * x, 0.5), "(0.5 * x + 3 * x) * x + 1"),
}  # fmt: skip


def primitive(name, function):
    """A primitive of `jax.lax`, or one of the same name where this version has none."""
    if own := getattr(jax.lax, f"{name}_p", None):
        return functools.partial(own.bind, **({"accuracy": None} if name == "log2" else {}))
    made = Primitive(name)
    made.def_impl(function)
    made.def_abstract_eval(lambda x, *rest: x)
    mlir.register_lowering(made, mlir.lower_fun(function, multiple_results=False))
    return made.bind


@pytest.mark.parametrize("name", NEWER)
def test_primitives_of_newer_versions_are_read(name):
    """The derivative of tanh is one of them from JAX 0.11.2 on."""
    function, use, line = NEWER[name]
    own = primitive(name, function)
    text = codegen.trace(lambda x: use(own, x), like(4, 8, dtype=F32), op=name)
    assert line in text


def test_what_the_language_lacks_is_an_error_at_its_own_line():
    def sorted_rows(x):
        doubled = x * 2
        return jnp.sort(doubled, -1)

    with pytest.raises(SpecError) as found:
        codegen.trace(sorted_rows, X)
    (error,) = found.value.diagnostics
    assert (error.message, error.source.strip()) == ("sort is not traced", "return jnp.sort(doubled, -1)")
    assert error.span.path == __file__ and error.source[error.span.column - 1 :].startswith("jnp.sort")


@pytest.mark.parametrize(
    ("function", "message", "hint", "place"),
    [
        # As the last step of an associative scan has it
        (lambda x: jnp.exp(x[:, :0]), "a slice of 0 of 8 elements", "the language has equal parts", "x[:, :0]"),
        (lambda x: x[:, :, None] + jnp.arange(5.0), "an axis of 5 elements that no input has", "pass an", "jnp.arange"),
        (lambda x: jnp.roll(x, 1, -1) + x, "an axis is cut in two ways", "in a spec, shift(x, axis=N)", "jnp.roll"),
        (lambda x: x[:, ::2] + x[:, 4:], "an axis is cut in two ways", "use halves or interleaved", "x[:, 4:]"),
    ],
)
def test_an_error_stands_at_the_step(function, message, hint, place):
    with pytest.raises(SpecError) as found:
        codegen.trace(function, like(4, 8), op="made")
    (error,) = found.value.diagnostics
    assert error.message == message and error.hint.startswith(hint)
    assert error.source[error.span.column - 1 :].startswith(place)


def test_narrow_integers_that_wrap_are_refused():
    """In the language, 3 - 5 of uint8 is 0. What stays within the type is traced, and so are its bits."""
    a, b = like(4, 8, dtype="uint8"), like(4, 8, dtype="uint8")
    with pytest.raises(SpecError, match="sub in uint8, which wraps"):
        codegen.trace(lambda a, b: jnp.maximum(a - b, 3), a, b, op="difference")
    assert "y = maximum(a, b) & 15" in codegen.trace(lambda a, b: jnp.maximum(a, b) & 15, a, b, op="largest")
    signed = like(4, 8, dtype="int8")
    assert "y = popcount(a & 255)" in codegen.trace(lambda a: jax.lax.population_count(a), signed, op="set_bits")


def test_a_product_of_the_highest_precision_is_precise():
    x, w = like(4, 8, dtype=F32), like(8, 16, dtype=F32)
    texts = [codegen.trace(lambda x, w: jnp.dot(x, w, precision=p), x, w, op="product") for p in ("highest", None)]
    assert ["math: precise" in text for text in texts] == [True, False]


@pytest.mark.parametrize("form", ["differences", "product"])
def test_an_array_has_an_axis_once(form):
    """Steps between would have an axis twice, whatever the arguments and the result have."""

    def pairs(x):
        p = jnp.maximum(x[..., None] - x[:, None, :], 0.5) if form == "differences" else x @ jnp.swapaxes(x, 1, 2)
        return jnp.max(p, -1)

    with pytest.raises(SpecError) as found:
        codegen.trace(pairs, X if form == "product" else like(3, 8))
    (error,) = found.value.diagnostics
    assert error.message == "two axes of one array are the same"
    assert error.span.line == pairs.__code__.co_firstlineno + 1


def test_a_wrong_spec_would_be_found(monkeypatch):
    """A fault is planted where primitives become operations."""
    patterns.patterns()  # before the fault: they are kept for later tests
    monkeypatch.setitem(translate.SAME, "tanh", "sin")
    with pytest.raises(SpecError, match="y of the op and of the function differ"):
        codegen.trace(lambda x: jnp.tanh(x), like(4, 8), op="wrong")


def test_new_writes_the_spec_of_a_function(tmp_path, monkeypatch):
    (tmp_path / "gate_model.py").write_text("import jax\n\ndef gate(x, g):\n    return jax.nn.silu(g) * x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    rows = ["--like", "x=bfloat16[4,8]", "--like", "g=bfloat16[4,8]"]
    command = ["new", "my_gate", "--from", "gate_model:gate"]
    assert CliRunner().invoke(app, [*command, *rows]).exit_code == 0
    assert "y = silu(g) * x" in Path("specs/my_gate.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "gate"], "write it as in my_module:my_function"),
        (["--from", "math:cosh2"], "math has no 'cosh2'"),
        (["--from", "operator:add", "--like", "a=bfloat99[4]"], "Did you mean 'bfloat16'?"),
        (["--from", "operator:add", "--like", "c=bfloat16[4]"], "no such parameter"),
        (["--from", "operator:add", "--like", "a=bfloat16[4]"], "the function takes 'b'"),
        (
            ["--from", "operator:matmul", "--like", "a=int8[4]", "--like", "b=int8[8]"],
            "TypeError: dot_general requires",
        ),
    ],
)
def test_new_says_what_is_wrong_with_its_arguments(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, ["new", "my_gate", *arguments]).exception
    assert isinstance(error, UsageError) and message in str(error)
