"""Products by XLA: those of bytes are exact, in either way of computing them. And products that are saved for their
gradients."""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from making import make_op

import generated
from codegen.plan.gemms import halving
from codegen.runtime.call import arguments
from codegen.runtime.xla import products
from tests.making import spec_text

OP = generated.scaled_matmul_int8


def product(a, b):
    with jax.default_device(jax.devices("cpu")[0]):
        axes = arguments.bind_axes(OP.spec, {"a": a, "b": b})
        return products.product(OP.plan.products[0], a, b, axes, "int32")


@pytest.mark.each
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    "extents", [(2, 2, 1), (3, 5, 0), (0, 3, 5), (4, 7, 1024), (4, 7, 1025), (3, 2, 4100)], ids=str
)
def test_products_of_bytes_are_exact(extents, dtype, checked, monkeypatch):
    """Also the largest sums, of which a float32 would lose the last addends."""
    monkeypatch.setattr(products, "_checked", lambda: checked)
    m, n, k = extents
    rng, limits = np.random.default_rng(k), np.iinfo(dtype)
    for edge in (False, True):
        a, b = (rng.integers(limits.min, limits.max, shape, dtype, endpoint=True) for shape in ((m, k), (k, n)))
        if edge:
            a[:] = b[:] = max(limits.min, limits.max, key=abs)
            a[:, -1:], b[-1:] = 127, 1
        got = product(a, b)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("checked", [True, False])
def test_products_of_bytes_over_an_extent_that_is_not_known(checked, monkeypatch):
    monkeypatch.setattr(products, "_checked", lambda: checked)
    (k,) = jax.export.symbolic_shape("k")
    shapes = [jax.ShapeDtypeStruct(shape, "int8") for shape in ((2, k), (k, 3))]
    held = jax.export.export(jax.jit(product))(*shapes)
    a, b = np.full((2, 1500), -128, np.int8), np.full((1500, 3), 127, np.int8)
    np.testing.assert_array_equal(held.call(a, b), np.full((2, 3), -128 * 127 * 1500))


@pytest.mark.parametrize(
    ("flags", "checked"),
    [("", True), ("--xla_gpu_autotune_level=0", False), ("--x=1 --xla_gpu_autotune_level=3 --y=2", False),
     ("--xla_gpu_autotune_level=0 --xla_gpu_autotune_level=4", True), ("--xla_gpu_autotune_level=5", True)],
)  # fmt: skip
def test_whether_xla_compares_its_kernels(flags, checked, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert products._checked() == checked


# Products that are saved for the backward


def scaled_by_rows(rows: str, factors: str, types: str = "{T: [float16, bfloat16]}") -> str:
    inputs = f'x: "{factors}[..., K]"; w: "{factors}[N, K]"; rs: "float32[...]"'
    return spec_text(inputs, 'y: "T[..., N]"', f"y = {rows}", types=types)


@pytest.mark.each
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_integers_are_kept_as_they_are(tmp_path, dtype, implementation):
    op = make_op(tmp_path, scaled_by_rows("rs * (x @ w)", "int8"))
    x, w = jnp.full((2, 8), 127, "int8"), jnp.full((3, 8), 127, "int8")
    run = functools.partial(op, x, w, T=dtype, implementation=implementation)
    (found,) = jax.vjp(run, jnp.full((2,), 1e-4, "float32"))[1](jnp.ones((2, 3), dtype))
    np.testing.assert_array_equal(found, [3 * 8 * 127 * 127] * 2)


B, G, S = 'b: "float32[N]"', 'g: "float32[..., N]"', 'rs: "float32[...]"'
HALVES = [  # products of 1.28e6, and values computed from them
    (S, "silu(rs * (x @ w))", lambda z, rs: jax.nn.silu(rs[:, None] * z)),
    (f"{S}; {B}", "silu(rs * (x @ w + b))", lambda z, rs, b: jax.nn.silu(rs[:, None] * (z + b))),
    (S, "rs * relu(x @ w)", lambda z, rs: rs[:, None] * jax.nn.relu(z)),
    (G, "(x @ w) * g", lambda z, g: z * g),
    (S, "sin((x @ w) * 100000 * 0.00000000001) * rs", lambda z, rs: jnp.sin(z * 1e-6) * rs[:, None]),
    (S, "rs * (x @ w) / (1 + abs(x @ w))", lambda z, rs: rs[:, None] * z / (1 + abs(z))),
]


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.turns(2)
@pytest.mark.parametrize(("inputs", "chain", "reference"), HALVES, ids=[h[1] for h in HALVES])
def test_products_that_float16_does_not_hold_are_kept(tmp_path, inputs, chain, reference, implementation):
    text = f'x: "float16[..., K]"; w: "float16[N, K]"; {inputs}'
    op = make_op(tmp_path, spec_text(text, 'y: "float16[..., N]"', f"y = {chain}"))
    x, w = jnp.full((2, 128), 100, "float16"), jnp.full((3, 128), 100, "float16")
    values = {"rs": jnp.full((2,), 1e-6), "b": jnp.ones((3,)), "g": jnp.full((2, 3), 1e-6)}
    more = [values[part.split(":")[0].strip()] for part in inputs.split(";")]
    found = jax.vjp(functools.partial(op, implementation=implementation), x, w, *more)[1](jnp.ones((2, 3), "float16"))
    expected = jax.vjp(reference, jnp.full((2, 3), 1.28e6), *more)[1](jnp.ones((2, 3)))
    for got, right in zip(found[2:], expected[1:], strict=True):
        np.testing.assert_allclose(got, right, rtol=2e-3)
    # float16 resolves slopes of 1e-6 to a sixteenth
    np.testing.assert_allclose(np.asarray(found[1], "float32"), np.full((3, 128), 200 * expected[0][0, 0]), 0.1, 2e-5)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_probabilities_are_those_of_what_is_kept(implementation):
    """Rounded logits minus a logsumexp of unrounded ones would not be probabilities: these add up to 1."""
    x, w = jnp.asarray([[128, 3]], "bfloat16"), jnp.asarray([[2, 1]], "bfloat16")
    op = functools.partial(generated.logits_logsumexp, w=w, label=jnp.zeros(1, "int32"), implementation=implementation)
    (dx,) = jax.vjp(lambda x: op(x).lse, x)[1](jnp.ones(1))
    np.testing.assert_array_equal(np.asarray(dx, "float32"), [[2, 1]])


MIXED = [
    ("float16", "float32", 0.01, 1e6),
    ("bfloat16", "float32", 1.0, 1.003),
    ("int8", "float32", 100, 1.003),
    ("int32", "float16", 70000, 1e-3),
]


@pytest.mark.parametrize(("first", "second", "x", "dy"), MIXED)
def test_gradients_of_products_of_two_types(tmp_path, first, second, x, dy):
    op = make_op(tmp_path, spec_text(f'x: "{first}[..., K]"; w: "{second}[K, N]"', 'y: "float32[..., N]"', "y = x @ w"))
    x, w = jnp.full((1, 1), x, first), jnp.ones((1, 1), second)
    (dw,) = jax.vjp(lambda w: op(x, w), w)[1](jnp.full((1, 1), dy))
    np.testing.assert_allclose(dw, float(x[0, 0]) * np.float32(dy) * np.ones((1, 1)), rtol=1e-3 * (first == "float16"))


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_products_of_integers_have_no_gradient_to_make(tmp_path, implementation):
    """Integers that wrap in the forward wrap in the backward."""
    text = spec_text(
        'x: "int8[..., K]"; w: "int8[N, K]"; s: "float32[]"', 'y: "bfloat16[..., N]"', "z = x @ w; y = s * (z * z)"
    )
    op = make_op(tmp_path, text)
    x, w, s = jnp.full((1, 8), 100, "int8"), jnp.full((1, 8), 100, "int8"), jnp.float32(1)
    y, pull = jax.vjp(functools.partial(op, x, w, implementation=implementation), s)
    (ds,) = pull(jnp.ones_like(y))
    assert float(ds) == 80000 * 80000 - 2**32


@pytest.mark.parametrize(("dtype", "most"), [("float8_e4m3fn", 448), ("float8_e5m2", 57344)])
def test_gradients_of_float8_saturate(tmp_path, dtype, most):
    text = f'x: "{dtype}[..., K]"; w: "{dtype}[N, K]"; v: "{dtype}[N, K]"'
    op = make_op(tmp_path, spec_text(text, 'y: "bfloat16[..., N]"', "y = x @ w + x @ v"))
    x, w = jnp.full((8, 2), most / 2, dtype), jnp.full((3, 2), most / 4, dtype)
    dx, dw, _ = jax.vjp(op, x, w, w)[1](jnp.ones((8, 3), "bfloat16"))
    assert {float(v) for v in dw.reshape(-1)} == {most} == {float(v) for v in dx.reshape(-1)}


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_products_are_kept_in_the_outputs_type(tmp_path, implementation):
    text = spec_text('x: "bfloat16[..., K]"; w: "bfloat16[K, N]"', 'y: "float32[..., N]"', "y = sin(x @ w)")
    op = make_op(tmp_path, text)
    x, w = jnp.asarray([[64, 0.125]], "bfloat16"), jnp.ones((2, 3), "bfloat16")
    dx, _ = jax.vjp(functools.partial(op, implementation=implementation), x, w)[1](jnp.ones((1, 3), "float32"))
    np.testing.assert_allclose(np.asarray(dx, "float32"), np.full((1, 2), 3 * np.cos(64.125)), rtol=2**-7)


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_products_are_kept_as_they_are_where_outputs_are_reductions(tmp_path, implementation):
    """The gradient of a scale is a sum of the products, as accurate as the output: rounded to the factors' type, it has
    an error of 1e-3. So has the difference of 1 and a correlation near 1, from which the factors' gradients are
    computed."""
    chain = "z = x @ w; y = sum(z * scale, axis=N); d = sum(square(z * 0.0625 - 1), axis=N)"
    inputs = "x: bfloat16[..., K]; w: bfloat16[K, N]; scale: float32[N]"
    op = make_op(tmp_path, spec_text(inputs, "y: float32[...]; d: float32[...]", chain))
    random = np.random.default_rng(0)
    x, w = (jnp.asarray(1 + 0.05 * random.standard_normal(shape), "bfloat16") for shape in ((9, 16), (16, 24)))
    ones = jnp.ones(24)
    z = np.asarray(x, float) @ np.asarray(w, float)
    _, pull = jax.vjp(lambda *args: tuple(op(*args, implementation=implementation)), x, w, ones)
    (_, _, dscale), (dx, _, _) = (pull((jnp.full(9, a), jnp.full(9, b))) for a, b in ((1.0, 0.0), (0.0, 1.0)))
    np.testing.assert_allclose(dscale, z.sum(0), rtol=1e-6)
    expected = (z * 0.0625 - 1) * 0.125 @ np.asarray(w, float).T
    np.testing.assert_allclose(np.asarray(dx, float), expected, rtol=2**-8, atol=2**-8 * abs(expected).max())


@pytest.mark.parametrize("name", ["c", "mini_n"])
def test_names_that_hold_a_coordinate_s(tmp_path, name):
    """A batch axis whose name begins like the column's, and an array with parts: elements of either half, read one by
    one."""
    inputs = f"x: bfloat16[N2, M, K]; w: bfloat16[K, N]; {name}: float32[N2, (N 2)]"
    op = make_op(tmp_path, spec_text(inputs, "y: float32[N2, M, N]", f"y = (x @ w) * {name}[0] + {name}[1]"))
    random = np.random.default_rng(0)
    x, w = (jnp.asarray(random.integers(-3, 4, shape), "bfloat16") for shape in ((2, 8, 16), (16, 24)))
    c = random.standard_normal((2, 48)).astype("float32")
    expected = np.asarray(x, "float32") @ np.asarray(w, "float32") * c[:, None, ::2] + c[:, None, 1::2]
    np.testing.assert_allclose(op(x, w, c, implementation="interpret"), expected, rtol=1e-6, atol=1e-6)


SHARED = [  # factors whose shared axis is not the first, or is any number of axes; the product
    ("x: T[..., H, D]; w: T[H, D, E]", "y: float32[..., H, E]", (2, 3, 32), (3, 32, 24), "...hd,hde->...he"),
    ("x: T[S, H, M, D]; w: T[H, E, D]", "y: float32[S, H, M, E]", (2, 3, 5, 32), (3, 24, 32), "shmd,hed->shme"),
    ("x: T[..., M, K]; w: T[..., K, N]", "y: float32[..., M, N]", (2, 2, 3, 7), (2, 2, 7, 5), "...mk,...kn->...mn"),
    ("x: T[..., M, K]; w: T[..., N, K]", "y: float32[..., M, N]", (3, 17, 7), (3, 5, 7), "...mk,...nk->...mn"),
    ("x: T[..., B, M, K]; w: T[..., B, K, N]", "y: float32[..., B, M, N]", (3, 2, 4, 8), (3, 2, 8, 16), "...mk,...kn->...mn"),
]  # fmt: skip


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.turns(2)
@pytest.mark.parametrize(("inputs", "output", "x", "w", "letters"), SHARED, ids=[s[0] for s in SHARED])
def test_axes_that_both_factors_have(tmp_path, inputs, output, x, w, letters, dtype, implementation):
    """Values and gradients of numbers that neither type rounds."""
    op = make_op(tmp_path, spec_text(inputs, output, "y = x @ w", types="{T: [float32, bfloat16]}"))
    random = np.random.default_rng(0)
    x, w, g = (
        random.integers(-3, 4, s).astype("float32") for s in (x, w, np.einsum(letters, np.ones(x), np.ones(w)).shape)
    )
    y, pull = jax.vjp(
        functools.partial(op, implementation=implementation), jnp.asarray(x, dtype), jnp.asarray(w, dtype)
    )
    expected, wanted = jax.vjp(lambda x, w: jnp.einsum(letters, x, w, precision="highest"), x, w)
    np.testing.assert_array_equal(y, expected)
    for got, e in zip(pull(g), wanted(g), strict=True):
        np.testing.assert_array_equal(got.astype("float32"), e)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_an_epilogue_reads_tiles_of_any_width(tmp_path, dtype):
    """TMA copies them on Hopper, with words of an element's size."""
    inputs = f"x: bfloat16[..., K]; w: bfloat16[N, K]; r: {dtype}[..., N]"
    op = make_op(tmp_path, spec_text(inputs, "y: bfloat16[..., N]", "y = x @ w + r", "y = x @ w.T + r"))
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        x, w = (jnp.asarray(random.integers(-3, 4, shape), "bfloat16") for shape in ((128, 64), (64, 64)))
        r = jnp.asarray(random.integers(-9, 10, (128, 64)), dtype)
        got = op(x, w, r, implementation="interpret")
        np.testing.assert_array_equal(got, (np.float32(x) @ np.float32(w).T + r).astype(got.dtype))


@pytest.mark.parametrize("first", ["x: float16[B, (H G), K]", "x: float16[B, H, G, K]"])
@pytest.mark.parametrize("implementation", [None, "xla"])
def test_joined_axes_of_which_the_other_factor_has_one(tmp_path, first, implementation):
    """The result has the output's shape, whichever way it is written."""
    op = make_op(
        tmp_path, spec_text(f"{first}; w: float16[B, K, H, N]", "y: float16[B, (H G), N]", "y = dot(x, w, axis=K)")
    )
    x, w = np.arange(24.0).reshape(1, 3, 2, 4) / 8, np.arange(60.0).reshape(1, 4, 3, 5) / 16
    expected = np.einsum("bhgk,bkhn->bhgn", x, w).reshape(1, 6, 5)
    x = x if "G," in first else x.reshape(1, 6, 4)
    got = op(x.astype("float16"), w.astype("float16"), implementation=implementation)
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, rtol=2e-3)


@pytest.mark.parametrize("implementation", [None, "xla"])
@pytest.mark.parametrize("result", ["KSN", "SKN", "SNK", "NSK"])
def test_the_axes_of_a_stored_product_in_any_order(tmp_path, result, implementation):
    """A gradient by a weight has the weight's axes, in its order."""
    inputs, axes = "x: float32[..., S, H, N]; w: float32[..., H, K]", ", ".join(result)
    op = make_op(tmp_path, spec_text(inputs, f"y: float32[{axes}]", "y = dot(x, w, axis=(..., H))"))
    x, w = np.arange(144.0).reshape(2, 4, 3, 6), np.arange(30.0).reshape(2, 3, 5)
    expected = np.einsum(f"bshn,bhk->{result.lower()}", x, w)
    np.testing.assert_array_equal(op(x.astype("float32"), w.astype("float32"), implementation=implementation), expected)


WEIGHTS = {
    "dense_squared_relu": lambda x, w: jnp.square(jax.nn.relu(x @ w)),
    "dense_transposed": lambda x, w, bias: x @ w.T + bias,
    "mlp_squared_relu": lambda x, w, bias, v, residual: jnp.square(jax.nn.relu(x @ w.T + bias)) @ v.T + residual,
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_gradients_of_weights_are_added_from_halves_where_that_takes_less_time(name, monkeypatch):
    op, sizes = getattr(generated, name), {"...": (6, 8), "K": (16,), "F": (24,), "N": (24,)}
    rng, halved = np.random.default_rng(0), []
    shapes = [[n for d in a.dims for axis in d.names for n in sizes[axis]] for a in op.spec.inputs]
    arrays = [jnp.asarray(rng.normal(size=shape), "bfloat16") for shape in shapes]
    monkeypatch.setattr(halving, "saves_time", lambda *of: of[2] == 48 and not halved.append(of))

    def gradients(function, arrays):
        return jax.grad(lambda *given: jnp.sum(jnp.square(jnp.float32(function(*given)))), range(len(arrays)))(*arrays)

    found = gradients(functools.partial(op, implementation="xla"), arrays)
    assert len(halved) >= (2 if name.startswith("mlp") else 1)
    for array, a, b in zip(
        op.spec.inputs, found, gradients(WEIGHTS[name], [jnp.float32(x) for x in arrays]), strict=True
    ):
        np.testing.assert_allclose(np.float32(a), b, rtol=0.02, atol=0.02 * abs(b).max(), err_msg=array.name)


def test_gradients_of_factors_are_products_in_their_own_order():
    """Not JAX's transpose of one: XLA would leave that to the optimiser's kernels."""
    x, w, residual = (jnp.ones(shape, "bfloat16") for shape in ((2, 8, 16), (16, 24), (2, 8, 24)))

    def loss(x, w):
        return jnp.sum(generated.dense_residual(x, w, residual).astype("float32"))

    text = jax.jit(jax.grad(loss, (0, 1))).lower(x, w).as_text()
    assert text.count("stablehlo.dot_general") == 2
    assert "stablehlo.transpose" not in text


def test_gradients_of_shared_keys_and_values_on_a_cpu(tmp_path):
    """Products over a group's heads and rows, in bfloat16, of which XLA on a CPU has not every order of axes."""
    inputs = "q: bfloat16[B, (H G), Q, D]; k: bfloat16[B, H, S, D]; v: bfloat16[B, H, S, D]"
    chain = "p = softmax(dot(q, k, axis=D), axis=S); o = dot(p, v, axis=S)"
    op = make_op(tmp_path, spec_text(inputs, "o: bfloat16[B, (H G), Q, D]", chain))
    draw = np.random.default_rng(0).standard_normal
    q, k, v, do = (jnp.asarray(draw((2, heads, 6, 8)), jnp.bfloat16) for heads in (4, 2, 2, 4))

    def plain(q, k, v):
        scores = jnp.einsum("bhgqd,bhsd->bhgqs", q.reshape(2, 2, 2, 6, 8), k)
        return jnp.einsum("bhgqs,bhsd->bhgqd", jax.nn.softmax(scores), v).reshape(q.shape)

    found = jax.jit(lambda *a: jax.vjp(lambda *b: op(*b, implementation="xla"), *a)[1](do))(q, k, v)
    wide = (x.astype(jnp.float32) for x in (q, k, v))
    for own, expected in zip(found, jax.vjp(plain, *wide)[1](do.astype(jnp.float32)), strict=True):
        np.testing.assert_allclose(own.astype(jnp.float32), expected, rtol=0.05, atol=0.05)
