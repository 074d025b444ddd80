"""What is found in functions as public projects write them: a diffusion block, and steps of optimisers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import codegen
from codegen.fusing.suggest import call_text, disagreement, looked_at, replacement, suggestions


def like(*shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype)


def layer_norm(x):
    x = x.astype(jnp.float32)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    var = jnp.var(x, axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-6)


def diffusion(x, c, qkv, up):
    """The two halves of a block whose norms are shifted and scaled by its conditions."""
    shift, scale, gate, shift2, scale2 = jnp.split(c, 5, -1)
    h = (layer_norm(x) * (1 + scale[:, None]) + shift[:, None]).astype(x.dtype)
    q, k, v = (h @ w for w in qkv)
    o = jax.nn.dot_product_attention(*(a.reshape(2, 6, 2, 8) for a in (q, k, v)))
    x = x + gate[:, None] * o.reshape(x.shape)
    h = (layer_norm(x) * (1 + scale2[:, None]) + shift2[:, None]).astype(x.dtype)
    return x, jax.nn.gelu(h @ up)


def orthogonal(g, steps=2):
    """The iteration of Newton and Schulz, as Muon takes it."""
    x = g / (jnp.linalg.norm(g) + 1e-7)
    for _ in range(steps):
        m = x @ x.T
        n = -4.775 * m + 2.0315 * m @ m
        x = 3.4445 * x + n @ x
    return x


def adamw(params, grads, first, second):
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))

    def update(p, g, m, v):
        g = g * jnp.minimum(1.0, 1.0 / norm)
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        return p - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p), m, v

    return jax.tree.map(update, params, grads, first, second)


X, C = like(2, 6, 16), like(2, 80)
F = like(8, 12, dtype="float32")
TREE = {"w": F, "b": like(12, dtype="float32")}
MODULATED = ["mean(x, axis=N)) * rsqrt(var(x, axis=N) + 1e-6) * (1 + x2) + x3"]
CASES = {
    "diffusion": (
        diffusion, (X, C, (like(16, 16),) * 3, like(16, 32)),
        [*MODULATED, "x_out = x + x2 * o", "rsqrt(var(x_out, axis=N) + 1e-6)", "gelu_tanh(h @ up)", "softmax(dot(x2, x, axis=N) * 0.35355338, axis=K), axis=K)"],
    ),
    "muon": (orthogonal, (F,), ["n = -4.775 * m + x @ m2", "x_out = 3.4445 * x3 + n @ x2", "x_out = 3.4445 * x + n @ x2"]),
    "adamw": (adamw, (TREE,) * 4, []),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_chains_are_those_of_a_person(name):
    function, arguments, lines = CASES[name]
    found = suggestions(function, arguments)
    text = "\n".join(one.text for one in found)
    assert [line for line in lines if line not in text] == [], text
    assert bool(found) == bool(lines)


def test_a_fused_iteration_is_the_iteration():
    """A product takes an array as its factor and its epilogue takes it, along other axes."""
    g = jnp.asarray(np.random.default_rng(0).standard_normal((8, 12)), jnp.float32)
    fused = codegen.fuse(orthogonal)
    np.testing.assert_allclose(jax.jit(fused)(g), jax.jit(orthogonal)(g), rtol=1e-5, atol=1e-6)
    assert len(fused.report) > 1


def test_an_op_without_a_spec_of_its_own_has_its_own_arrays(monkeypatch):
    """Where the names of the source make no spec, an equal chain's is taken."""
    from codegen.errors import UserError
    from codegen.fusing import suggest

    def refused(request):
        raise UserError("no", "")

    monkeypatch.setattr(suggest, "spec_of", refused)

    def softmax(x):
        return jax.nn.softmax(x)

    for _ in range(2):  # the second time an equal chain has been seen
        (one,) = suggestions(softmax, (like(4, 8),))
        assert disagreement(one) == "" and call_text(one) == "softmax(x0)"


def rms(x):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)


def test_an_array_that_xla_never_writes_is_written_for_an_op():
    """A norm of some columns reads them twice and writes once; an op would have them copied first, unless a product takes them too."""

    def of_slice(x):
        return rms(x[:, :24])

    def of_slice_and_product(x, w):
        return rms(x[:, :24]), x[:, :24] @ w

    x, w = like(64, 40), like(24, 8)
    assert suggestions(of_slice, (x,)) == []
    assert [one.text for one in suggestions(of_slice_and_product, (x, w))] == [
        "y = x * rsqrt(mean(square(x), axis=N) + 1e-6)"
    ]
    assert len(suggestions(rms, (x,))) == 1


def test_the_steps_at_which_chains_end_are_said():
    def grouped(x, n):
        g = x.reshape(4, 8, 12)
        return jnp.sort(g - jnp.mean(g, (0, 2), keepdims=True), -1) * 2.0**n

    found, ends = looked_at(grouped, (like(6, 64), like(dtype="int32")))
    assert found == []
    line = grouped.__code__.co_firstlineno
    assert {(end.place.line - line, end.message) for end in ends} == {
        (1, "a reshape from (6, 64) to (4, 8, 12)"),
        (2, "sort is not traced"),
    }


def test_lines_that_are_replaced_assign_the_same_name():
    def mlp(h, up, down):
        h = jax.nn.gelu(h @ up)
        return h @ down

    (one,) = suggestions(mlp, (like(64, 16), like(16, 32), like(32, 16)))
    assert [line for line in replacement(one) if line.startswith("+ ")] == ["+        h = dense_gelu_tanh(h, up)"]


def test_attention_with_a_bias_that_is_taken_from_a_table():
    """As that of T5: the table has a column for each head, so the bias has its dimensions in another order than the scores."""

    def attention(q, k, v, table):
        far = jnp.arange(12) - jnp.arange(12)[:, None]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + table[jnp.clip(far, -3, 3) + 3].transpose(2, 0, 1)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores.astype(jnp.float32), -1).astype(v.dtype), v)

    shapes = [(2, 12, 2, 16)] * 3 + [(7, 2)]
    given = [jax.random.normal(jax.random.key(i), s).astype("bfloat16") for i, s in enumerate(shapes)]
    fused = codegen.fuse(attention)
    got, wanted = (jax.jit(f)(*given).astype("float32") for f in (fused, attention))
    np.testing.assert_allclose(got, wanted, rtol=0.03, atol=0.03)
    assert ["softmax(" in r.chain and r.chain.count("dot(") == 2 for r in fused.report] == [True]


def test_a_constant_that_was_rounded_is_no_disagreement():
    """bfloat16 has no 1.702: the op has it, and the reference what was rounded."""

    def gated(x, w):
        h = x @ w
        return h * jax.nn.sigmoid(1.702 * h)

    (one,) = suggestions(gated, (like(16, 32), like(32, 48)))
    assert "quick_gelu(" in one.text
    assert disagreement(one) == ""
