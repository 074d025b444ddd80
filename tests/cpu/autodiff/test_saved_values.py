"""What an op's forward saves for its backward, and formulas that a spec gives for gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from making import make_op

import generated
from codegen.checking import testing
from tests.making import spec_text

SPEC = """
op: made
summary: Made here.
inputs:
  x: float32[..., N]
  s: float32[..., N]
outputs:
  y: float32[..., N]
chain: |
  z = x * s
  y = maximum(z, 0)
reference: jnp.maximum(x * s, 0)
grad:
  x: 7 * dy * where(y > 0, s, 0) + 0 * z
"""


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_a_formula_overrides_one_gradient(implementation, tmp_path):
    op = make_op(tmp_path, SPEC)
    x, s = jnp.asarray([[1.0, -2.0, 3.0]]), jnp.asarray([[2.0, 5.0, -1.0]])
    _, pull = jax.vjp(lambda *a: op(*a, implementation=implementation), x, s)
    dx, ds = pull(jnp.ones((1, 3)))
    assert dx.tolist() == [[14.0, 0.0, 0.0]]  # seven times the exact one
    assert ds.tolist() == [[1.0, 0.0, 0.0]]  # computed as without `grad`


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_a_parameter_of_a_formula_alone(implementation, tmp_path):
    """The width of a pseudo-derivative: the kernel of the values does not have it, each call may give it."""
    text = SPEC.replace("chain:", "params:\n  width: 0.1\nchain:").replace("7 * dy *", "dy / width *")
    op = make_op(tmp_path, text)
    x, s = jnp.asarray([[1.0, -2.0, 3.0]]), jnp.asarray([[2.0, 5.0, -1.0]])
    slope = jax.grad(lambda x: op(x, s, width=0.25, implementation=implementation).sum())(x)
    assert slope.tolist() == [[8.0, 0.0, 0.0]]


def test_an_output_is_saved_where_the_spec_says_so(tmp_path):
    text = SPEC[: SPEC.index("grad:")].replace("y = maximum(z, 0)", "y = tanh(z)")
    computed, saved = make_op(tmp_path, text).backward, make_op(tmp_path, text + "save: [y]\n").backward
    assert computed.how.saved == ()
    assert saved.how.saved == ("y",)
    assert "tanh" in computed.op.spec.chain.value
    assert "tanh" not in saved.op.spec.chain.value


def normalised(x):
    return x * jax.lax.rsqrt(jnp.sum(jnp.square(x), -1, keepdims=True) + 1)


COARSE = [  # a statistic that overflows its output, or is rounded there; y; x's mean and deviation
    ("x: float16[..., N]", "s: float16[...]", "s = sum(square(x), axis=N); y = x * rsqrt(s + 1)", normalised, 0, 100),
    ("x: float32[..., N]", "s: bfloat16[...]", "s = mean(x, axis=N); y = square(x - s)",
     lambda x: jnp.square(x - jnp.mean(x, -1, keepdims=True)), 900, 1),
    ("x: float32[..., N]", "s: float8_e4m3fn[...]", "s = sum(abs(x), axis=N); y = x / s",
     lambda x: x / jnp.sum(jnp.abs(x), -1, keepdims=True), 0, 99),
    ("x: float32[..., N]; w: float32[N, M]", "s: float16[...]",
     "z = x @ w; s = sum(square(z), axis=M); y = z * rsqrt(s + 1)", normalised, 0, 90),
]  # fmt: skip


@pytest.mark.each
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize(("inputs", "statistic", "chain", "formula", "mean", "deviation"), COARSE)
def test_an_output_that_is_stored_coarsely_is_computed_again(
    inputs, statistic, chain, formula, mean, deviation, implementation, tmp_path
):
    columns = "M" if "w" in inputs else "N"
    text = spec_text(inputs, f"y: {inputs[3:10]}[..., {columns}]; {statistic}", chain)
    op, random = make_op(tmp_path, text), np.random.default_rng(0)
    x = jnp.asarray(mean + deviation * random.standard_normal((2, 64)), op.spec.inputs[0].dtype)
    w = [jnp.eye(64)] * (len(op.spec.inputs) - 1)
    dy = jnp.asarray(random.standard_normal(x.shape), x.dtype)
    (got,) = jax.jit(lambda x: jax.vjp(lambda x: op(x, *w, implementation=implementation)[0], x)[1](dy))(x)
    with jax.enable_x64(True):
        (wide,) = jax.jit(lambda x, dy: jax.vjp(formula, x)[1](dy))(x.astype("float64"), dy.astype("float64"))
    expected = np.asarray(wide)
    np.testing.assert_allclose(got, expected, rtol=5e-3, atol=5e-3 * np.abs(expected).max())


def test_what_an_output_in_few_bits_stands_for():
    """It may replace a factor, but not an exponent, which would magnify its rounding error."""
    assert generated.softmax.backward.how.saved == ("y",)
    assert generated.log_softmax.backward.how.saved == ("row_max", "row_log")  # y is not among them
    assert generated.add_rmsnorm.backward.how.saved == ("residual_out",)  # for two arrays


STATISTICS = """
op: made
summary: Made here.
inputs:
  x: float32[..., N]
  w: float32[N]
outputs:
  y: float32[..., N]
chain: |
  m = mean(x, axis=N)
  r = rsqrt(var(x, axis=N) + 1e-5)
  y = (x - m) * r * w
reference: |
  m = jnp.mean(x, axis=-1, keepdims=True)
  y = (x - m) / jnp.sqrt(jnp.mean((x - m) ** 2, axis=-1, keepdims=True) + 1e-5) * w
save: [m, r]
"""


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_statistics_are_saved_by_a_forward_of_their_own(implementation, tmp_path):
    op = make_op(tmp_path, STATISTICS)
    _, forward, frozen, backward = op.kernels
    assert [a.name for a in frozen.spec.inputs] == ["dy", "m", "r", "x", "w"]
    assert [str(a) for a in forward.spec.outputs] == ["float32[..., N]", "float32[...]", "float32[...]"]
    assert "var" not in backward.spec.chain.value
    assert len(backward.plan.stages) == 1  # nothing waits for the mean
    testing.check_gradient(op, implementation)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 8)), jnp.float32)
    y, _ = jax.vjp(lambda v: op(v, jnp.ones(8), implementation=implementation), x)
    np.testing.assert_allclose(y, op.reference(x, jnp.ones(8)), rtol=1e-5, atol=1e-6)
    if implementation == "interpret":
        return
    second = jax.grad(
        lambda v: jnp.sum(jax.grad(lambda u: jnp.sum(jnp.sin(op(u, jnp.ones(8), implementation="xla"))))(v) ** 2)
    )
    theirs = jax.grad(lambda v: jnp.sum(jax.grad(lambda u: jnp.sum(jnp.sin(op.reference(u, jnp.ones(8)))))(v) ** 2))
    np.testing.assert_allclose(second(x), theirs(x), rtol=2e-4, atol=2e-5)


KEPT = {  # the statistics that the forward saves, and the remaining reductions along the row
    "layernorm": (("rstd", "row_mean"), 1), "group_norm": (("rstd", "row_mean"), 1), "causal_softmax": (("row_max", "row_sum"), 1),
    "cross_entropy_smoothed": (("row_finite_or_zero", "row_sum"), 0), "cosine_similarity": (("row_norm", "row_norm2"), 0),
    "rmsnorm": ((), 1), "softmax": ((), 1), "top1_gate": ((), 2), "bias_gelu": ((), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_rows_are_not_folded_again_for_what_others_wait_for(name):
    names, folds = KEPT[name]
    backward = getattr(generated, name).backward
    forward = backward.forward.spec.outputs if backward.forward else ()
    made = [a for a in forward if a.name not in {o.name for o in getattr(generated, name).spec.outputs}]
    assert {a.name: a.dtype for a in made} == dict.fromkeys(names, "float32")
    assert len(getattr(backward.op.plan, "stages", ())) == folds


def test_names_of_what_rows_come_to_are_new(tmp_path):
    """Names of saved statistics are new, and so are the names in the lines that compute them."""
    inputs = "t0: float32[..., N]; row_max: float32[N]; row_sum: float32[...]"
    chain = "y = softmax(t0 * row_max, axis=N) + row_sum"
    op = make_op(tmp_path, spec_text(inputs, "y: float32[..., N]", chain))
    assert op.backward.how.saved == ("row_max2", "row_sum2")
    t0, row_max = (
        np.random.default_rng(i).standard_normal(s).astype("float32") for i, s in enumerate([(5, 24), (24,)])
    )

    def loss(f):
        return lambda x, w: jnp.sum(jnp.sin(3 * f(x, w)))

    expected = jax.grad(loss(lambda x, w: jax.nn.softmax(x * w, axis=-1)), (0, 1))(t0, row_max)
    for implementation in ("interpret", "xla"):
        found = jax.grad(
            loss(lambda x, w, i=implementation: op(x, w, np.zeros(5, "float32"), implementation=i)), (0, 1)
        )
        for own, other in zip(found(t0, row_max), expected, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


def test_what_must_be_folded_again_all_the_same_is_not_kept(tmp_path):
    """The backward searches the largest element of a row again, and what is computed from it follows."""
    chain = "m = mean(x, axis=G); n = max(abs(x - m), axis=(B, G)); z = x - m; y = softmax(z * w, axis=G) / (1 + n)"
    inputs = "x: float32[..., (B G=32)]; w: float32[..., (B G=32)]"
    op = make_op(tmp_path, spec_text(inputs, "y: float32[..., (B G=32)]", chain))
    assert not any("add" in name for name in op.backward.how.saved)


def test_the_gradient_of_a_rounded_maximum(tmp_path):
    """No element equals the rounded output, so the maximum is recomputed."""
    op = make_op(
        tmp_path,
        "op: made\nsummary: Made here.\ntypes: {T: [float32, bfloat16]}\ninputs: {x: 'T[..., N]', w: 'T[N]'}\n"
        "outputs: {y: 'T[...]'}\nchain: y = max(x * w, axis=N)\nreference: y = 0\n",
    )
    x, w = (jax.random.normal(jax.random.key(i), shape).astype("bfloat16") for i, shape in enumerate([(7, 40), (40,)]))
    for implementation in ("interpret", "xla"):
        dx = jax.grad(lambda x, i=implementation: op(x, w, implementation=i).astype("float32").sum())(x)
        wanted = jax.grad(lambda x: jnp.max(x * w.astype("float32"), axis=-1).sum())(x.astype("float32"))
        np.testing.assert_array_equal(dx, wanted.astype("bfloat16"))


def test_a_gradient_that_a_spec_rules_out_is_refused():
    with pytest.raises(TypeError, match=r"drmsnorm has no gradient.*`grad: none`"):
        jax.grad(lambda v: generated.drmsnorm(v, v, v[0]).dx.sum())(jnp.ones((2, 3)))


def test_integers_have_float0():
    x, label = jnp.ones((2, 5)), jnp.asarray([1, 3])
    y, pull = jax.vjp(lambda x, label: generated.cross_entropy(x, label)[0], x, label)
    assert pull(jnp.ones_like(y))[1].dtype == jax.dtypes.float0
