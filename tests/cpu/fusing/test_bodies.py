"""Chains within loops, branches, checkpoints, shards and functions with a derivative of their own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import codegen
from codegen.fusing.suggest import disagreement, looked_at
from tests.meshes import AUTO, P, make_mesh, normal

LAYERS, HEADS = 3, 2
NORM = "* rsqrt(mean(square("


def norm(x, w):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * w


def block(x, p):
    """The layer of a transformer."""
    n = norm(x, p["before"])
    q, k, v = ((n @ p[name]).reshape(*x.shape[:2], HEADS, -1) for name in "qkv")
    scores = jnp.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    x = x + jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(scores, -1), v).reshape(x.shape) @ p["out"]
    n = norm(x, p["after"])
    return x + (jax.nn.silu(n @ p["gate"]) * (n @ p["up"])) @ p["down"]


def mlp(x, p):
    """Whose gated activation has a name."""
    n = norm(x, p["after"])
    return x + checkpoint_name(jax.nn.silu(n @ p["gate"]) * (n @ p["up"]), "gated") @ p["down"]


def weights():
    shapes = dict.fromkeys(("q", "k", "v", "out"), (16, 16)) | {"gate": (16, 24), "up": (16, 24), "down": (24, 16)}
    shapes |= {"before": (16,), "after": (16,)}
    return {name: jnp.asarray(normal(LAYERS, *shape, seed=i) * 0.3) for i, (name, shape) in enumerate(shapes.items())}


X, WEIGHTS = jnp.asarray(normal(2, 6, 16)), weights()


def scanned(layer, x, p):
    return jax.lax.scan(lambda x, w: (layer(x, w), None), x, p)[0]


def at(p, place):
    return jax.tree.map(lambda w: w[place], p)


def total(function, x, p):
    return jnp.sum(jnp.sin(function(x, p)))


def close(got, expected):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * float(jnp.max(jnp.abs(other))))


def saved(function, x=X, p=WEIGHTS):
    """The bytes that the forward of a function saves for its backward."""
    _, pull = jax.eval_shape(lambda x, p: jax.vjp(function, x, p), x, p)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pull))


@pytest.mark.parametrize("layer", [block, jax.checkpoint(block)], ids=["plain", "checkpointed"])
def test_a_scanned_transformer_is_fused_with_its_gradient(layer):
    function = functools.partial(scanned, layer)
    fused = codegen.fuse(function)
    close(jax.jit(fused)(X, WEIGHTS), jax.jit(function)(X, WEIGHTS))
    assert {r.times for r in fused.report} == {LAYERS}
    for part in ("softmax(", NORM, "silu("):
        assert [r.chain for r in fused.report if part in r.chain]
    whole = (jax.jit(jax.value_and_grad(functools.partial(total, f), (0, 1)))(X, WEIGHTS) for f in (fused, function))
    close(*whole)
    assert saved(fused) <= saved(function)


def test_suggest_shows_the_chains_of_a_scanned_transformer():
    found, ends = looked_at(functools.partial(scanned, block), (X, WEIGHTS))
    assert {s.times for s in found} == {LAYERS} and ends == []
    calls = {s.call.op for s in found if s.call}
    assert calls >= {"rmsnorm", "add_rmsnorm", "dense_swiglu_weights"}
    (gated,) = (s for s in found if s.call and s.call.op == "dense_swiglu_weights")
    assert {a.name for a in gated.made.inputs} >= {"w_gate", "w_up"}  # after the parameter of the loop's body


def nested(x, p):
    return jax.lax.scan(lambda x, _: (scanned(mlp, x, p), None), x, length=2)[0]


def branched(x, p):
    return jax.lax.switch(jnp.int32(x[0, 0, 0] > -9), [lambda x: x, lambda x: mlp(x, at(p, 0))], x)


def repeated(x, p):
    """A loop whose end is known when it runs, which has no gradient."""
    return jax.lax.while_loop(lambda s: s[0] < LAYERS, lambda s: (s[0] + 1, mlp(s[1], at(p, s[0]))), (0, x))[1]


def counted(x, p):
    return jax.lax.fori_loop(0, LAYERS, lambda i, x: mlp(x, at(p, i)), x)


def mapped(x, p):
    return jax.lax.map(lambda x: mlp(x, at(p, 0)), x)


def on_shards(x, p, checked):
    whole = jax.shard_map(
        functools.partial(scanned, mlp),
        mesh=make_mesh(AUTO),
        in_specs=(P("b"), P()),
        out_specs=P("b"),
        check_vma=checked,
    )
    return whole(x, p)


def test_what_is_suggested_within_shards_is_compared_outside():
    found, _ = looked_at(functools.partial(on_shards, checked=True), (X, WEIGHTS))
    assert len(found) >= 2 and [disagreement(s) for s in found] == [""] * len(found)


def test_a_reshape_within_shards_is_part_of_a_chain():
    """What a device has is not sharded further."""

    def heads(x, w):
        return norm((x @ w).reshape(*x.shape[:2], HEADS, -1), 2.0)

    specs = {"in_specs": (P("b"), P()), "out_specs": P("b")}
    function = jax.shard_map(heads, mesh=make_mesh(AUTO), **specs)
    fused = codegen.fuse(function)
    close(jax.jit(fused)(X, WEIGHTS["q"][0]), jax.jit(function)(X, WEIGHTS["q"][0]))
    (chain,) = (r.chain for r in fused.report)
    assert "@" in chain and "rsqrt" in chain


@jax.custom_vjp
def given(x, p):
    return mlp(x, p)


given.defvjp(lambda x, p: (mlp(x, p), (x, p)), lambda saved, d: jax.vjp(mlp, *saved)[1](d))

BODIES = {
    "nested": (nested, 2 * LAYERS),
    "branches": (branched, 1),
    "while": (repeated, 1),
    "fori": (counted, LAYERS),
    "map": (mapped, 2),
    "shards": (functools.partial(on_shards, checked=True), LAYERS),
    "shards, not checked": (functools.partial(on_shards, checked=False), LAYERS),
    "own derivative": (functools.partial(scanned, given), LAYERS),
}


@pytest.mark.parametrize("form", BODIES)
def test_a_body_is_fused_where_it_is(form):
    function, times = BODIES[form]
    fused = codegen.fuse(function)
    close(jax.jit(fused)(X, WEIGHTS), jax.jit(function)(X, WEIGHTS))
    assert {r.times for r in fused.report if NORM in r.chain} == {times}
    if form != "while":
        both = (jax.jit(jax.grad(functools.partial(total, f), (0, 1)))(X, WEIGHTS) for f in (fused, function))
        close(*both)
        assert saved(fused) <= saved(function)
    assert "codegen_op" in str(jax.make_jaxpr(fused)(X, WEIGHTS))


def test_a_derivative_by_hand_is_fused_where_it_is_traced():
    """A norm whose gradient is written out: the forward and the backward are chains, and what is saved is the function's choice."""

    @jax.custom_vjp
    def by_hand(x, rows):
        return forward(x, rows)[0]

    def forward(x, rows):
        rstd = jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)
        return jnp.where(rows[..., None] > 3, x * rstd, 0), (x, rstd, rows)

    def backward(saved, d):
        x, rstd, rows = saved
        d = jnp.where(rows[..., None] > 3, d, 0)
        return rstd * (d - x * rstd * rstd * jnp.mean(x * d, -1, keepdims=True)), None

    by_hand.defvjp(forward, backward)
    rows = jnp.arange(12).reshape(2, 6)
    gradients = [jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(x, rows)))) for f in (codegen.fuse(by_hand), by_hand)]
    close(*(gradient(X) for gradient in gradients))
    assert str(jax.make_jaxpr(gradients[0])(X)).count("= codegen_op[") == 2
    fused = codegen.fuse(by_hand)
    close(jax.jit(fused)(X, rows), by_hand(X, rows))
    assert len(fused.report) == 1


def test_a_function_with_a_custom_jvp_stays_as_it_is():
    own = jax.custom_jvp(norm)
    own.defjvp(lambda arrays, tangents: jax.jvp(norm, arrays, tangents))
    fused = codegen.fuse(lambda x, w: own(x, w) @ WEIGHTS["gate"][0])
    jax.make_jaxpr(fused)(X, WEIGHTS["after"][0])
    assert fused.report == ()


POLICIES = {
    "nothing": None,
    "a name": jax.checkpoint_policies.save_only_these_names("gated"),
    "another name": jax.checkpoint_policies.save_only_these_names("other"),
    "a name, on the host": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["gated"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
    "products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "everything": jax.checkpoint_policies.everything_saveable,
}


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_checkpoint_saves_is_saved(policy):
    """Also of a name within a chain, and of products that would be in a chain with their epilogue."""
    x, p = (jax.tree.map(lambda a: a.astype(jnp.bfloat16), a) for a in (X, WEIGHTS))
    function = functools.partial(scanned, jax.checkpoint(mlp, policy=POLICIES[policy]))
    fused = codegen.fuse(function)
    ours, theirs = saved(fused, x, p), saved(function, x, p)
    assert ours < theirs if policy == "everything" else ours == theirs
    assert fused.report
    assert [r.chain for r in fused.report if " @ " in r.chain] == [] if policy == "products" else True
    if "host" not in policy:
        both = (jax.jit(jax.grad(functools.partial(total, f), (0, 1)))(X, WEIGHTS) for f in (fused, function))
        close(*both)
