"""The gradients of attention for chains that no op of the library has, and the chains whose gradients kernels do not compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.autodiff.backward import Derived, backward_of
from codegen.checking.draw import Case
from codegen.checking.gradients import check_gradient_case
from codegen.checking.testing import check_case, check_gradient, check_op
from codegen.graph.nodes import topological
from codegen.pipeline import read_op
from codegen.plan.attention import AttentionBackward
from codegen.runtime.call.arguments import Types
from tests.making import make_op, spec_text
from tests.turns import EVERY, some

pytestmark = pytest.mark.usefixtures("narrow_tiles")

TYPES = "{T: [float16, bfloat16]}"
INPUTS = "q: T[..., Q, D]; k: T[..., S, D]; v: T[..., S, E]"


def attention(chain: str, reference: str, inputs: str = "", outputs: str = "o: T[..., Q, E]") -> str:
    """The text of a spec; `x` stands for the products in the reference."""
    first = 'x = jnp.einsum("...qd,...sd->...qs", q, k)'
    last = 'o = jnp.einsum("...qs,...se->...qe", p, v)'
    return spec_text(
        f"{INPUTS}; {inputs}" if inputs else INPUTS, outputs, chain, f"{first}; {reference}; {last}", types=TYPES
    )


@pytest.mark.whole
def test_gates_rows_and_documents(tmp_path):
    """Weights have a factor of their row, named as variables of kernels could be; documents are read at places of the batch."""
    text = attention(
        "s = where(one == two, (q @ k) * at, -1e4); o = (softmax(s, axis=S) * row) @ v",
        "s = jnp.where(one[..., :, None] == two[..., None, :], x * at[..., None], -1e4); "
        "p = jax.nn.softmax(s) * row[..., None]",
        "at: float32[..., Q]; row: float32[..., Q]; one: int32[..., Q]; two: int32[..., S]",
    )
    op = make_op(tmp_path, text + "\ndomain: {one: [0, 2], two: [0, 2], at: [0, 0.5]}")
    assert isinstance(op.backward, Derived)
    check_gradient(op, "interpret", examples=2)


@pytest.mark.parametrize("factors", ["softmax(s, axis=S), v", "v, softmax(s, axis=S)"])
def test_the_weights_may_be_either_factor_of_their_product(factors):
    """The forward saves the statistics of rows of q, whichever array the chain reads first."""
    text = attention(f"s = dot(k, q, axis=D); o = dot({factors}, axis=S)", "p = jax.nn.softmax(x)")
    found = backward_of(read_op("specs/made.yaml", text))
    assert isinstance(found, Derived) and {"row_max", "row_sum"} <= {a.name for a in found.op.spec.inputs}


@pytest.mark.parametrize("arch", some(["sm_90a", "sm_80"], 2))
def test_a_row_whose_scores_are_all_huge_has_equal_weights(tmp_path, monkeypatch, arch):
    """As a mask of -1e30 gives where it hides every key; the least float32 is even infinite once it is scaled."""
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    text = attention(
        "o = softmax(where(seen > 0, q @ k, hidden), axis=S) @ v",
        "p = jax.nn.softmax(jnp.where(seen[..., None, :] > 0, x, hidden[..., None]))",
        "seen: int32[..., S]; hidden: float32[..., Q]",
    )
    op = make_op(tmp_path, text)
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal(shape), "bfloat16") for shape in ((4, 8), (19, 8), (19, 8)))
    hidden = jnp.asarray([-1e9, -1e30, float(np.finfo(np.float32).min), 1e20], "float32")
    o = op(q, k, v, jnp.zeros(19, "int32"), hidden, implementation="interpret")
    mean = np.asarray(v, np.float32).mean(0)
    np.testing.assert_allclose(np.asarray(o, np.float32), np.tile(mean, (4, 1)), rtol=0.01, atol=0.01)


def test_weights_with_factors_of_their_keys(tmp_path):
    """Weights are not the softmax: they have a gate for each key, and some keys have none."""
    text = attention(
        "o = where(kept > 0, gate * softmax(q @ k, axis=S), 0) @ v",
        "p = jnp.where(kept[..., None, :] > 0, gate[..., None, :] * jax.nn.softmax(x), 0)",
        "gate: float32[..., S]; kept: int32[..., S]",
    )
    op = make_op(tmp_path, text + "\ndomain: {q: [-1, 1], k: [-1, 1], gate: [-2, 2], kept: [0, 1]}")
    assert op.plan.kind == "attention" and isinstance(op.backward, Derived)
    check_gradient(op, "interpret")


@pytest.mark.parametrize(
    ("chain", "outputs", "reason"),
    [
        ("s = q @ k; o = softmax(s, axis=S) @ v; m = max(s, axis=S)", "o: T[..., Q, E]; m: float32[..., Q]", "'m', which depends on"),
        ("s = q @ k; e = exp(s - max(s, axis=S)); o = e / (sum(e, axis=S) + 1) @ v", "o: T[..., Q, E]", "'add' takes a row's largest"),
        (
            "s = q @ k; e = exp(s - max(s, axis=S)); o = (e * reciprocal(sum(e, axis=S)) * gate * gate) @ v", "o: T[..., Q, E]",
            "a sum along S that is not part of",
        ),
    ],
    ids=["the largest score", "an absolute term", "a sum before"],
)  # fmt: skip
def test_what_no_kernel_computes(chain, outputs, reason):
    """Where an output depends on the largest score, and where the slopes need a sum that their own kernel would give."""
    gate = "gate: float32[..., Q]" if "gate" in chain else ""
    op = read_op("specs/made.yaml", attention(chain, "p = x; m = x.max(-1)", gate, outputs))
    assert reason in str(backward_of(op))


@pytest.mark.parametrize("top", some(["max(stop_gradient(t), axis=S)", "stop_gradient(max(t, axis=S))"], 2))
def test_the_largest_score_as_an_output(tmp_path, top):
    """As for a limit of the logits: it has no gradient, and so the kernels give the others."""
    text = attention(
        f"t = where(index(S) <= index(Q), q @ k, -inf); o = softmax(t, axis=S) @ v; top = {top}",
        "t = jnp.where(jnp.arange(k.shape[-2]) <= jnp.arange(q.shape[-2])[:, None], x, -jnp.inf); p = jax.nn.softmax(t); "
        "top = jax.lax.stop_gradient(t).max(-1)",
        outputs="o: T[..., Q, E]; top: float32[..., Q]",
    )
    op = make_op(tmp_path, text)
    assert op.plan.kind == "attention" and isinstance(op.backward, Derived)
    check_op(op, "interpret", examples=2 if EVERY else None)
    check_gradient(op, "interpret" if EVERY else "xla", examples=2 if EVERY else None)


def test_a_cotangent_of_the_logsumexp_costs_no_exponential_of_a_score():
    """Its weights are those of the softmax, up to a factor of the row, which the row's other numbers have."""
    chain = "s = q @ k; l = logsumexp(s, axis=S); o = softmax(s, axis=S) @ v"
    op = read_op("specs/made.yaml", attention(chain, "p = x; l = x", outputs="o: T[..., Q, E]; l: float32[..., Q]"))
    found = backward_of(op)
    assert isinstance(found, Derived)
    (plan,) = [s.plan for s in found.op.plan.stages if isinstance(s.plan, AttentionBackward)]
    nodes = topological(s.value for s in plan.slope.statements)
    assert [n.op for n in nodes].count("exp") == 1 and len(plan.statistics) == 3


@pytest.mark.parametrize(
    ("table", "taken", "written"),
    some(
        [
            ("table: float32[R, H]; at: int32[Q, S]", "take(table, at, axis=R)", "jnp.moveaxis(table[at], 2, 0)"),
            (
                "parts: T[R, H]",
                "take(parts, minimum(maximum(index(Q) - index(S), 0), 5), axis=R)",
                'jnp.take(parts.T, jnp.clip(jnp.arange(q.shape[2])[:, None] - jnp.arange(k.shape[2]), 0, 5), axis=1, mode="clip")',
            ),
        ],
        2,
        1,
    ),
    ids=some(["an array of places", "computed places"], 2, 1),
)
def test_a_table_of_biases(tmp_path, table, taken, written):
    """The kernels give the gradient of what is taken, summed over the batch, and a sum by index adds it to the table."""
    text = attention(f"o = softmax(q @ k + {taken}, axis=S) @ v", f"p = jax.nn.softmax(x + {written})", table)
    text = text.replace("[..., Q", "[B, H, Q").replace("[..., S", "[B, H, S").replace("...", "bh")
    op = make_op(tmp_path, text + "\ndomain: {q: [-1, 1], k: [-1, 1]" + (", at: index(R)}" if "at:" in table else "}"))
    assert op.plan.kind == "attention" and isinstance(op.backward, Derived) and not op.backward.lacking
    check_op(op, "interpret")
    check_gradient(op, "interpret" if EVERY else "xla")  # the next test has the kernels of a table's gradient


@pytest.mark.parametrize("arch", some(["sm_90a", "sm_80"], 2))
def test_whole_tiles_of_biases_at_an_arrays_places(tmp_path, monkeypatch, arch):
    """No column of a tile is past the last, so loads have constant distances: not those from a table, whose places an array has.
    What is added to the table by index has the heads innermost."""
    text = spec_text(
        "q: T[B, Q, H, D]; k: T[B, S, H, D]; v: T[B, S, H, D]; table: float32[N, H]; at: int32[Q, S]", "o: T[B, Q, H, D]",
        "o = softmax(q @ k + take(table, at, axis=N), axis=S) @ v",
        'x = jnp.einsum("bqhd,bshd->bhqs", q, k) + jnp.moveaxis(table[at], 2, 0); '
        'o = jnp.einsum("bhqs,bshd->bqhd", jax.nn.softmax(x), v)', types=TYPES,
    )  # fmt: skip
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    op = make_op(tmp_path, text + "\ndomain: {q: [-1, 1], k: [-1, 1], at: index(N)}")
    sizes = {"B": 1, "Q": 16, "S": 128, "H": 2, "D": 16, "N": 4}
    made = Case(Types((("T", "float16"),)), (), tuple(sizes.items()), (), (), False, 1.0, 0)
    check_case(op, "interpret", made)
    check_gradient_case(op, "interpret", made)


@pytest.mark.parametrize(
    ("chain", "reference", "before"),
    [
        (
            "c = cumsum(log_sigmoid(f), axis=S); s = where(index(S) <= index(Q), (q @ k) * 0.5 - c, -inf); o = softmax(s, axis=S) @ v",
            "c = jnp.cumsum(jax.nn.log_sigmoid(f), -1)[..., None, :]; seen = jnp.arange(k.shape[-2]) <= jnp.arange(q.shape[-2])[:, None]; "
            "p = jax.nn.softmax(jnp.where(seen, x * 0.5 - c, -jnp.inf))",
            ["scan"],
        ),
        (
            "s = (2 * (q @ k) - sum(square(k), axis=D) - sum(square(q), axis=D)) * mean(f, axis=S); o = softmax(s, axis=S) @ v",
            "s = 2 * x - jnp.sum(k * k, -1)[..., None, :] - jnp.sum(q * q, -1)[..., None]; "
            "p = jax.nn.softmax(s * jnp.mean(f, -1)[..., None, None])",
            ["row", "row", "row"],
        ),
    ],
    ids=["forgetting", "distances"],
)
def test_scans_and_sums_in_scores_are_written_before_attention(tmp_path, chain, reference, before):
    text = attention(chain, reference, "f: float32[..., S]").replace("float16, ", "")
    op = make_op(tmp_path, text + "\ndomain: {q: [-1, 1], k: [-1, 1], f: [-1, 1]}")
    assert [stage.plan.kind for stage in op.plan.stages] == [*before, "attention"]
    assert isinstance(op.backward, Derived) and "attention" in [s.plan.kind for s in op.backward.op.plan.stages]
    check_op(op, "interpret" if EVERY else "xla")
    check_gradient(op, "interpret" if EVERY else "xla")


def test_computed_queries_keys_and_values(tmp_path):
    """Stages write them before attention's kernel; the backward gives their gradients to that of these stages."""
    text = attention(
        "n = q * rsqrt(mean(square(q), axis=D) + 0.01) * weight; s = (n @ (k + shift(k, axis=D))) * scale; "
        "t = where(index(S) <= index(Q) + 1, s, -inf); o = softmax(t, axis=S) @ silu(v); l = logsumexp(t, axis=S)",
        "last = jnp.concatenate([0 * k[..., :1], k[..., :-1]], -1)[..., : k.shape[-1]]; "
        'x = jnp.einsum("...qd,...sd->...qs", q / jnp.sqrt(jnp.mean(q * q, -1, keepdims=True) + 0.01) * weight, k + last); '
        "s = x * scale; seen = jnp.arange(k.shape[-2]) <= jnp.arange(q.shape[-2])[:, None] + 1; "
        "t = jnp.where(seen, s, -jnp.inf); p = jax.nn.softmax(t); l = jax.nn.logsumexp(t, -1); v = jax.nn.silu(v)",
        "weight: float32[D]; scale: float32[]",
        "o: T[..., Q, E]; l: float32[..., Q]",
    )
    op = make_op(tmp_path, text + "\ndomain: {q: [-1, 1], k: [-1, 1], weight: [0.5, 1], scale: [0.1, 1]}")
    kinds = [stage.plan.kind for stage in op.plan.stages]
    assert kinds.count("attention") == 1 and kinds[-1] == "attention" and "gemm" not in kinds
    assert isinstance(op.backward, Derived) and not op.backward.lacking
    assert any(isinstance(stage.plan, AttentionBackward) for stage in op.backward.op.plan.stages)
    assert "contract" not in {n.op for s in op.backward.op.plan.stages[-1:] for n in s.spec.read.nodes}
    check_gradient(op, "interpret" if EVERY else "xla")


def test_attention_between_other_stages(tmp_path):
    """A norm before it, a projection and a residual after it: each part has its own backward."""
    text = attention(
        "n = q * rsqrt(mean(square(q), axis=D) + 0.01); p = softmax(dot(n, k, axis=D), axis=S); "
        "y = x + dot(dot(p, v, axis=S), w, axis=E)",
        'n = q / jnp.sqrt(jnp.mean(q * q, -1, keepdims=True) + 0.01); s = jnp.einsum("...qd,...sd->...qs", n, k); '
        'p = jax.nn.softmax(s); y = a + jnp.einsum("...qs,...se,en->...qn", p, v, w)',
        "x: T[..., Q, N]; w: T[E, N]",
        "y: T[..., Q, N]",
    )
    text = text.replace('  x = jnp.einsum("...qd,...sd->...qs", q, k)\n', "  a = x\n").replace(
        '  o = jnp.einsum("...qs,...se->...qe", p, v)\n', ""
    )
    op = make_op(tmp_path, text + "\ndomain: {q: [-1, 1], k: [-1, 1], v: [-1, 1], w: [-1, 1]}")
    assert [stage.plan.kind for stage in op.plan.stages] == ["row", "attention", "gemm"]
    kinds = [stage.plan.kind for stage in op.backward.op.plan.stages]
    assert kinds == ["gemm", "gemm", "row", "attention", "row"]
    check_gradient(op, "xla", examples=2)


@pytest.mark.parametrize(
    ("result", "written"), some([("(p @ v) * sigmoid(gate)", "o * jax.nn.sigmoid(gate)"), ("p @ v", "o")], 2)
)
def test_a_result_in_float32(tmp_path, result, written):
    """Its cotangent is rounded to the type of the products before their kernels: by the kernel of the rows' sums."""
    gate = "gate: T[..., Q, E]" if "gate" in result else ""
    chain = f"p = softmax(where(index(S) <= index(Q), q @ k, -inf), axis=S); o = {result}"
    reference = "seen = jnp.arange(k.shape[-2]) <= jnp.arange(q.shape[-2])[:, None]; p = jax.nn.softmax(jnp.where(seen, x, -jnp.inf))"
    text = attention(chain, reference, gate, "o: float32[..., Q, E]") + f"\n  o = {written}"
    op = make_op(tmp_path, text + "\ndomain: {q: [-1, 1], k: [-1, 1]}")
    assert isinstance(op.backward, Derived) and not op.backward.lacking
    kinds = [stage.plan.kind for stage in op.backward.op.plan.stages]
    assert kinds == [*["elementwise"] * ("gate" in result), "row", "attention"]
    check_gradient(op, "interpret" if EVERY else "xla", examples=2 if EVERY else None)


def test_of_one_key_a_result_in_float32_has_no_gradient_of_scores(tmp_path):
    """The cotangent, in float32, is rounded before its product with v. So it is in sum(do * o), which then is equal to the product."""
    op = make_op(
        tmp_path, attention("o = softmax(q @ k, axis=S) @ v", "p = jax.nn.softmax(x)", outputs="o: float32[..., Q, E]")
    )
    rng = np.random.default_rng(0)
    q, k, v, do = (rng.standard_normal((*rows, 16)).astype("float32") for rows in ((9,), (1,), (1,), (9,)))
    arrays = [jnp.asarray(x, "bfloat16") for x in (q, k, v)]
    dq, dk, _ = jax.vjp(lambda *xs: op(*xs, implementation="interpret"), *arrays)[1](jnp.asarray(do))
    assert max(float(abs(dx.astype("float32")).max()) for dx in (dq, dk)) < 1e-4


@pytest.mark.parametrize(
    ("query", "result", "added"),
    some(
        [
            ("q * rsqrt(mean(square(q), axis=D) + 0.1)", "a + b", {"da", "db", "dn", "dv"}),
            ("q", "a - gate * b", {"dq", "dv"}),
        ],
        2,
    ),
    ids=some(["a sum", "a difference"], 2),
)
def test_two_attentions(tmp_path, query, result, added):
    """The gradients of what both read are added up: of inputs, and of a value that an earlier stage writes. A sum's two cotangents
    are the cotangent of the result."""
    chain = f"""n = {query}; s = n @ k; t = where(index(S) <= index(Q), n @ r, -inf); a = softmax(s, axis=S) @ v
  b = softmax(t, axis=S) @ v; o = {result}"""
    reference = f"""n = q if "{query}" == "q" else q * jax.lax.rsqrt(jnp.mean(q * q, -1, keepdims=True) + 0.1)
  s, t = (jnp.einsum("...qd,...sd->...qs", n, x) for x in (k, r))
  t = jnp.where(jnp.arange(k.shape[-2]) <= jnp.arange(q.shape[-2])[:, None], t, -jnp.inf)
  a, b = (jnp.einsum("...qs,...se->...qe", jax.nn.softmax(x), v) for x in (s, t)); o = {result}"""
    gate = "; gate: float32[]" if "gate" in result else ""
    text = spec_text(f"{INPUTS}; r: T[..., S, D]{gate}", "o: T[..., Q, E]", chain, reference, types=TYPES)
    op = make_op(tmp_path, text + "\ndomain: {q: [-1, 1], k: [-1, 1], r: [-1, 1]}")
    stages = op.backward.op.plan.stages
    assert [stage.plan.kind for stage in stages].count("attention") == 2 and not op.backward.lacking
    assert {a.name.rstrip("23456") for s in stages if s.plan.kind == "elementwise" for a in s.spec.outputs} == added
    sizes = (("Q", 5), ("S", 19), ("D", 16), ("E", 24))
    case = Case(Types((("T", "bfloat16"),)), (2,), sizes, (), (), False, 1.0, 0)
    check_case(op, "interpret", case)
    check_gradient_case(op, "interpret" if EVERY else "xla", case)


def test_the_logarithm_of_a_sum_with_another_term(tmp_path):
    """The sum's gradient has two terms, and the term of the weights is guarded where their result has no cotangent."""
    text = attention(
        "s = q @ k; m = maximum(max(s, axis=S), 0.0); e = exp(s - m); z = sum(e, axis=S) + exp(-m); o = e / z @ v; l = m + log(z)",
        "l = jnp.logaddexp(jax.nn.logsumexp(x, axis=-1), 0.0); p = jnp.exp(x - l[..., None])",
        outputs="o: T[..., Q, E]; l: float32[..., Q]",
    )
    op = make_op(tmp_path, text)
    assert [stage.plan.kind for stage in op.backward.op.plan.stages] == ["row", "attention"]
    sizes = (("Q", 5), ("S", 19), ("D", 16), ("E", 24))
    check_gradient_case(op, "interpret", Case(Types((("T", "bfloat16"),)), (2,), sizes, (), (), False, 1.0, 0))


def test_a_product_with_a_difference_of_weights(tmp_path):
    """It is a difference of two attentions, whose weights are rounded each."""
    chain = """p = softmax(q @ k, axis=S); r = softmax(where(index(S) <= index(Q), q @ w, -inf), axis=S)
  o = (p - gate * r + 0.5 * softmax(k_bias + q @ w, axis=S)) @ v"""
    reference = """y = jnp.einsum("...qd,...sd->...qs", q, w); seen = jnp.arange(k.shape[-2]) <= jnp.arange(q.shape[-2])[:, None]
  p = jax.nn.softmax(x) - gate * jax.nn.softmax(jnp.where(seen, y, -jnp.inf)) + 0.5 * jax.nn.softmax(k_bias + y)"""
    text = attention(chain, reference, "w: T[..., S, D]; k_bias: float32[S]; gate: float32[]")
    op = make_op(tmp_path, text + "\ndomain: {q: [-1, 1], k: [-1, 1], w: [-1, 1]}")
    assert [stage.plan.kind for stage in op.plan.stages] == [*["attention"] * 3, "elementwise"]
    assert [stage.plan.kind for stage in op.backward.op.plan.stages].count("attention") == 3
    sizes = (("Q", 5), ("S", 19), ("D", 16), ("E", 24))
    case = Case(Types((("T", "bfloat16"),)), (2,), sizes, (), (), False, 1.0, 0)
    check_case(op, "interpret", case)
    check_gradient_case(op, "xla", case)


def test_a_sum_of_products_that_are_no_weights_stays_one_product():
    """As in a layer with two branches: no kernel computes two products in sequence, and one product more would be multiplied."""
    text = spec_text(
        "x: T[N, D]; a: T[F, D]; b: T[F, D]; w: T[E, F]", "o: T[N, E]", "o = (relu(x @ a) + x @ b) @ w", types=TYPES
    )
    op = read_op("specs/made.yaml", text)
    assert sum(node.op == "contract" for node in topological(s.value for s in op.statements)) == 3


def test_the_entropy_of_weights(tmp_path):
    """The sum of weights times scores is q times the weights' sum of keys: attention whose keys are its values too. It shares q and k
    with another one, which writes an output, and what follows it another output."""
    chain = """s = q @ k; p = softmax(s, axis=S); o = p @ v
  entropy = logsumexp(s, axis=S) - sum(q * (p @ k), axis=D)"""
    reference = "p = jax.nn.softmax(x); entropy = jax.nn.logsumexp(x, axis=-1) - (p * x).sum(-1)"
    text = attention(chain, reference, outputs="o: T[..., Q, E]; entropy: float32[..., Q]")
    op = make_op(tmp_path, text + "\ndomain: {q: [-1, 1], k: [-1, 1]}")
    kinds = [stage.plan.kind for stage in op.backward.op.plan.stages]
    assert kinds.count("attention") == 2 and "gemm" not in kinds and not op.backward.lacking
    sizes = (("Q", 5), ("S", 19), ("D", 16), ("E", 24))
    case = Case(Types((("T", "bfloat16"),)), (2,), sizes, (), (), False, 1.0, 0)
    check_case(op, "interpret", case)
    check_gradient_case(op, "interpret" if EVERY else "xla", case)


NORMALISED = attention(
    """w = (q @ k) * where(index(S) <= index(Q) + ahead, exp(-0.01 * abs(index(Q) - index(S))), 0); n = sum(w, axis=S)
  o = w / maximum(abs(n), 1.0) @ v""",
    """i, j = jnp.arange(q.shape[-2])[:, None], jnp.arange(k.shape[-2]); p = jnp.where(j <= i + ahead, x * jnp.exp(-0.01 * abs(i - j)), 0)
  n = p.sum(-1); p = p / jnp.maximum(jnp.abs(n), 1.0)[..., None]""",
    "ahead: int32[]", "o: T[..., Q, E]; n: float32[..., Q]",
)  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "rows", "columns"),
    some([("sm_90a", 130, 200), ("sm_80", 70, 130), ("sm_90a", 2, 600)], 3),
    ids=some(["sm_90a", "sm_80", "few rows"], 3),
)
def test_scores_divided_by_their_sum(tmp_path, monkeypatch, arch, rows, columns):
    """As in retention: the weights are no exponentials, they have a factor with a mask, and a function of their sum divides each row. Blocks that share a few rows
    add up their sums as they are."""
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    op = make_op(
        tmp_path,
        NORMALISED + "\ndomain: {ahead: [590, 600]}" if rows < 16 else NORMALISED + "\ndomain: {ahead: [0, 1]}",
    )
    assert [stage.plan.kind for stage in op.backward.op.plan.stages] == ["row", "attention"] and not op.plan.exponential
    assert op.plan.condition is not None and op.plan.scores != op.plan.unmasked
    sizes = (("Q", rows), ("S", columns), ("D", 16), ("E", 32))
    case = Case(Types((("T", "bfloat16"),)), (2,), sizes, (), (), False, 1.0, 0)
    assert (op.launch_for(case.types, case.axes, arch).splits > 1) == (rows < 16)
    check_case(op, "interpret", case)
    if rows > 16:
        check_gradient_case(op, "interpret", case)


def test_scores_that_two_products_share():
    """Each of three attentions computes its scores, though two have them alike; what is computed from them all is a stage after."""
    chain = """s = q @ k; near = index(Q) - index(S) < 4; p = softmax(s, axis=S); n = softmax(where(near, s, -inf), axis=S)
  l = logsumexp(s, axis=S); o = (p @ v) * l + (n @ v) - (p @ w)"""
    op = read_op("specs/made.yaml", attention(chain, "p = x", "w: T[..., S, E]"))
    assert [stage.plan.kind for stage in op.plan.stages] == ["attention", "attention", "attention", "elementwise"]
    kinds = [stage.plan.kind for stage in backward_of(op).op.plan.stages]
    assert kinds.count("attention") == 3 and "gemm" not in kinds


def test_attention_merged_with_a_part_that_is_given(tmp_path):
    """Values of rows that other stages need are results of attention's kernel, and have cotangents."""
    text = attention(
        "s = q @ k; w = sigmoid(logsumexp(s, axis=S) - before); o = w * (softmax(s, axis=S) @ v) + (1 - w) * r",
        "l = jax.nn.logsumexp(x, axis=-1); w = jax.nn.sigmoid(l - before)[..., None]; p = jax.nn.softmax(x)",
        "r: T[..., Q, E]; before: float32[..., Q]",
    )
    op = make_op(tmp_path, text + "\n  o = w * o + (1 - w) * r\ndomain: {q: [-1, 1], k: [-1, 1]}")
    assert [stage.plan.kind for stage in op.plan.stages] == ["attention", "elementwise"]
    assert "attention" in [stage.plan.kind for stage in op.backward.op.plan.stages] and not op.backward.lacking
    check_op(op, "interpret", examples=2 if EVERY else None)
    check_gradient(op, "interpret" if EVERY else "xla")


def test_scores_far_below_those_of_keys_past_the_last(tmp_path, monkeypatch):
    """A tile of k is filled with zeros, whose exponentials are infinite relative to the row's: they have no part in q's gradient."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op = make_op(tmp_path, attention("o = softmax(q @ k, axis=S) @ v", "p = jax.nn.softmax(x)"))
    rng = np.random.default_rng(0)
    q, k, v, do = (
        jnp.asarray(rng.standard_normal(shape), "bfloat16") for shape in ((5, 16), (9, 16), (9, 16), (5, 16))
    )
    q, k = 0.25 * q - 8, 0.25 * k + 8
    found = jax.vjp(lambda *x: op(*x, implementation="interpret"), q, k, v)[1](do)
    expected = jax.vjp(op.reference, q, k, v)[1](do)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float32), np.asarray(y, np.float32), rtol=0.05, atol=0.2)


@pytest.mark.parametrize("mask", some([True, False], 2), ids=some(["masked", "all"], 2))
def test_exponentials_of_the_scores_themselves(tmp_path, mask):
    """Nothing is subtracted from the scores, and masked exponentials are zeros: the kernel still keeps the largest score."""
    e = "where(index(S) <= index(Q), exp(q @ k), 0)" if mask else "exp(q @ k)"
    reference = (
        "jnp.where(jnp.arange(k.shape[-2]) <= jnp.arange(q.shape[-2])[:, None], jnp.exp(x), 0)"
        if mask
        else "jnp.exp(x)"
    )
    text = attention(
        f"e = {e}; o = e / (1 + sum(e, axis=S)) @ v", f"e = {reference}; p = e / (1 + e.sum(-1, keepdims=True))"
    )
    op = make_op(tmp_path, text + "\ndomain: {q: [-1, 1], k: [-1, 1]}")
    assert op.plan.kind == "attention" and (op.plan.condition is not None) == mask
    assert isinstance(op.backward, Derived) and not op.backward.lacking
    check_op(op, "interpret" if EVERY else "xla")
    check_gradient(op, "interpret")


def test_a_decay_in_a_factor_that_the_batch_shares(tmp_path):
    """As in retention. The factor's gradient is a sum over the batch; the decay's is a sum of it, times what batches share, over rows
    and columns: one sum, since no kernel writes an array of both."""
    text = attention(
        "d = where(index(S) <= index(Q), exp(decay * maximum(index(Q) - index(S), 0)), 0); o = ((q @ k) * d) @ v",
        "i, j = jnp.arange(q.shape[2])[:, None], jnp.arange(k.shape[2]); "
        "p = x * jnp.where(j <= i, jnp.exp(decay[:, None, None] * jnp.maximum(i - j, 0)), 0)",
        "decay: float32[H]",
    )
    for axis in "QS":
        text = text.replace(f"[..., {axis}", f"[B, H, {axis}")
    op = make_op(tmp_path, text.replace("...", "bh") + "\ndomain: {decay: [-0.5, 0]}")
    assert isinstance(op.backward, Derived) and not op.backward.lacking
    sizes = (("B", 2), ("H", 2), ("Q", 20), ("S", 40), ("D", 16), ("E", 16))
    check_gradient_case(op, "interpret", Case(Types((("T", "bfloat16"),)), (), sizes, (), (), False, 1.0, 0))


def test_queries_that_the_batch_shares(tmp_path):
    """As learned ones: a stage repeats them, and sums their gradients over the batch. Otherwise a product would write the scores."""
    text = spec_text(
        "q: T[Q, H, D]; k: T[B, S, H, D]; v: T[B, S, H, E]; seen: bool[B, S]",
        "o: T[B, Q, H, E]",
        "o = softmax(where(seen, q @ k, -1e4), axis=S) @ v",
        's = jnp.einsum("qhd,bshd->bhqs", q, k); p = jax.nn.softmax(jnp.where(seen[:, None, None], s, -1e4)); '
        'o = jnp.einsum("bhqs,bshe->bqhe", p, v)',
        types=TYPES,
    )
    op = make_op(tmp_path, text)
    assert [stage.plan.kind for stage in op.plan.stages] == ["elementwise", "attention"]
    assert isinstance(op.backward, Derived) and not op.backward.lacking
    assert [stage.plan.kind for stage in op.backward.op.plan.stages] == ["row", "attention", "column"]
    sizes = (("B", 2), ("Q", 20), ("S", 40), ("H", 2), ("D", 16), ("E", 16))
    case = Case(Types((("T", "bfloat16"),)), (), sizes, (), (), False, 1.0, 0)
    check_case(op, "interpret", case)
    check_gradient_case(op, "interpret" if EVERY else "xla", case)
