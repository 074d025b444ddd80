"""Contractions: the products that are split off, what a tile can compute, what a backward saves."""

import pytest

from codegen.autodiff.backward import Derived, backward_of
from codegen.errors import UserError
from codegen.pipeline import read_op
from codegen.plan.launches import ProductCall
from codegen.plan.op import Gemm


def made(inputs: str, chain: str, outputs: str = "y: T[..., N]", types: str = "T: [float16, bfloat16]"):
    text = "op: made\nsummary: Made.\ntypes:\n" + "".join(f"  {t}\n" for t in types.split("; "))
    text += "inputs:\n" + "".join(f"  {i}\n" for i in inputs.split("; "))
    text += "outputs:\n" + "".join(f"  {o}\n" for o in outputs.split("; "))
    text += "chain: |\n" + "".join(f"  {line}\n" for line in chain.split("; "))
    names = [o.partition(":")[0] for o in outputs.split("; ")]
    text += "reference: |\n" + "".join(f"  {n} = 0\n" for n in names)
    return read_op("specs/made.yaml", text)


def plan(*args: str, **kwargs: str) -> Gemm:
    found = made(*args, **kwargs).plan
    assert isinstance(found, Gemm)
    return found


def test_the_epilogue_takes_the_product_in_float32():
    found = plan("x: T[..., K]; w: T[K, N]; bias: T[N]", "z = x @ w + bias; y = relu(z)")
    (product,) = found.products
    assert (product.a.name, product.b.name, product.axis) == ("x", "w", "K")
    assert (product.acc.name, str(product.acc)) == ("acc", "float32[..., N]")
    assert [a.name for a in found.epilogue.spec.inputs] == ["acc", "bias"]
    assert found.epilogue.spec.chain.value == "z = acc + bias\ny = relu(z)\n"


def test_a_product_of_integers_is_one():
    found = plan("x: T[..., K]; w: T[K, N]", "y = x @ w", "y: int32[..., N]", types="T: [int8]")
    assert found.products[0].acc.dtype == "int32"


@pytest.mark.parametrize(
    ("inputs", "chain", "paired", "accs"),
    [
        ("x: T[..., K]; w: T[K, (2 N)]", "y = (x @ w[0]) * (x @ w[1])", "halves", ["float32[..., (2 N)]"]),
        ("x: T[..., K]; w: T[(N 2), K]", "y = (x @ w[0]) * (x @ w[1])", "interleaved", ["float32[..., (N 2)]"]),
        ("x: T[..., K]; w: T[K, N]; v: T[K, N]", "y = (x @ w) * (x @ v)", "two", ["float32[..., N]"] * 2),
    ],
)
def test_two_products_of_the_same_rows_are_one_kernel(inputs, chain, paired, accs):
    found = plan(inputs, chain)
    assert [str(p.acc) for p in found.products] == accs
    assert found.tile.paired == paired


@pytest.mark.parametrize(
    ("chain", "dtype", "fast"),
    [("y = x @ w", "bfloat16", False), ("y = relu(x @ w)", "bfloat16", True), ("y = x @ w", "float8_e4m3fn", True)],
)
def test_a_product_that_nothing_follows_is_the_librarys(chain, dtype, fast):
    """A library has more kernels to choose from. Products of float8 it has in bfloat16 alone."""
    found = plan("x: T[..., K]; w: T[N, K]", chain, "y: bfloat16[..., N]", types=f"T: [{dtype}]")
    sizes = {"L": 1, "M": 32768, "N": 1280, "K": 5120}
    how = found.tile.launch(ProductCall({"a": dtype, "b": dtype, "y": "bfloat16"}, sizes, False, "sm_90a"))
    assert how.fast == fast


def test_the_side_with_the_columns_is_b():
    found = plan("w: T[N, K]; x: T[..., K]", "y = w @ x")
    assert (found.products[0].a.name, found.products[0].b.name) == ("x", "w")
    assert found.tile.b_is_nk


def test_axes_of_both_are_a_batch():
    found = plan("q: T[B, H, S, D]; k: T[B, H, P, D]", "y = q @ k", "y: T[B, H, S, P]")
    assert (found.tile.batch, found.tile.rows, found.tile.column) == (("B", "H"), ("S",), "P")


REASONS = {
    "one product, or two of the same rows": ("x: T[..., K]; v: T[..., J]; w: T[K, N]; u: T[J, N]", "y = x @ w + v @ u"),
    "a GEMM kernel reads rows along K": ("x: T[K, M]; w: T[K, N]", "y = x @ w", "y: T[M, N]"),
    "the two products differ": ("x: T[..., K]; w: T[K, N]; v: T[N, K]", "y = x @ w + x @ v"),
    "a factor of the product, as well": (
        "x: T[..., K]; w: T[K, N]; i: int32[...]",
        "y = x @ w + take(w, i, axis=K)",
    ),
    "have different types": ("x: T[..., K]; w: float32[K, N]", "y = x @ w"),
    "a product of vectors": ("x: T[..., K]; w: T[K]", "y = x @ w", "y: T[...]"),
    "axes in an order": ("x: T[M, B, K]; w: T[B, K, N]", "y = x @ w", "y: T[M, B, N]"),
    "and 'r' (T[N, M]) have several": ("x: T[M, K]; w: T[K, N]; r: T[N, M]", "y = x @ w + r", "y: T[M, N]"),
    "no output is a tile": ("x: T[A, B, K]; w: T[K, N]", "y = x @ w", "y: T[B, A, N]"),
    "has (S), but rows count it": (
        "x: T[B, S, K]; w: T[K, N]; b: T[B]",
        "y = max(x @ w + b, axis=N)",
        "y: T[B, S]",
    ),
    "has the axis whose size is": ("x: T[..., K]; w: T[K, N]", "y = max((x @ w) * size(N), axis=N)", "y: T[...]"),
    "needs reductions over its tiles": ("x: T[..., K]; w: T[K, N]", "z = x @ w; y = z / max(z, axis=N)"),
    "nor made of reductions over its tiles": (
        "x: T[..., K]; w: T[K, N]; s: T[...]",
        "y = x @ w; r = 2 * s; m = max(y, axis=N)",
        "y: T[..., N]; r: T[...]; m: T[...]",
    ),
    "a reduction that needs the result of another one": (
        "x: T[..., K]; w: T[K, N]",
        "y = x @ w; v = sum(square(y - mean(y, axis=N)), axis=N)",
        "y: T[..., N]; v: T[...]",
    ),
    "no tile is reduced by 'sum' of int64": (
        "x: T[..., K]; w: T[K, N]; u: uint32[..., N]",
        "y = x @ w; p = sum(where(y > 0, u, 0), axis=N)",
        "y: T[..., N]; p: uint32[...]",
    ),
    "a reduction along (B)": (
        "q: T[B, S, D]; k: T[B, P, D]",
        "y = q @ k; c = sum(y, axis=B)",
        "y: T[B, S, P]; c: T[S, P]",
    ),
    "columns along several axes": ("x: T[..., K]; w: int8[K, H, D]", "y = x @ w", "y: T[..., H, D]"),
    "that needs more than the products": (
        "x: T[..., K]; w: T[K, H, D]; b: T[D]",
        "z = x @ w; y = z / max(z + b, axis=D)",
        "y: T[..., H, D]",
    ),
    "a tile reduces floats along D alone": (
        "x: T[..., K]; w: T[K, H, D]",
        "z = x @ w; y = z / max(z, axis=(H, D))",
        "y: T[..., H, D]",
    ),
    "parts of its columns, two of them": ("x: T[..., K]; w: T[K, (3 N)]", "y = (x @ w[0]) * (x @ w[1]) * (x @ w[2])"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_no_tile_can_do_is_two_kernels(reason):
    tile = plan(*REASONS[reason]).tile
    assert isinstance(tile, UserError)
    assert reason in tile.message


def test_a_tile_has_whole_segments():
    """Of 64, 128 or 256 accumulators, and whole vectors where nothing asks for them."""
    tile = plan(
        "x: T[..., K]; w: T[K, H, (2 D)]", "y[0] = x @ w[0] - x @ w[1]; y[1] = x @ w[1]", "y: T[..., H, (2 D)]"
    ).tile
    assert (tile.paired, tile.columns, tile.segment({"D": 64})) == ("segments", ("H", "D"), 64)
    dtypes = {"a": "bfloat16", "b": "bfloat16", "y": "bfloat16"}
    for D, message in ((96, "192 columns of a product along D"), (20, "are not whole vectors")):
        with pytest.raises(UserError, match=message):
            tile.launch(ProductCall(dtypes, {"L": 1, "M": 64, "N": 2 * D, "K": 64, "D": D}, False, "sm_90a"))
    sizes = {"L": 1, "M": 4096, "N": 16 * 128, "K": 4096, "D": 128}
    call = ProductCall(dtypes, sizes, False, "sm_90a")
    how = tile.launch(call)
    assert how.segment == 128 and how.tiles.tile_n == 256
    assert all(t.tile_n // t.splits == 256 for t in tile.hopper(call, False))


def test_what_is_folded_may_be_all_that_there_is():
    tile = plan("x: T[..., K]; w: T[K, N]; b: T[N]", "y = max(x @ w + b, axis=N)", "y: T[...]").tile
    assert tile.outputs == () and tile.plan.stores == () and [f.op for f in tile.folds] == ["max"]


def backward(*args: str) -> Derived:
    found = backward_of(made(*args))
    assert isinstance(found, Derived), found
    return found


def test_a_backward_keeps_what_it_reads_least_with():
    found = backward("x: T[..., K]; w: T[K, N]; bias: T[N]", "y = silu(x @ w + bias)")
    assert [a.name for a in found.op.spec.inputs] == ["dy", "z"]  # not the product and the bias
    assert found.forward is not None
    assert [str(a) for a in found.forward.spec.outputs] == ["T[..., N]", "wide T[..., N]"]
    (kept,) = found.forward.spec.outputs[1:]
    assert set(found.forward.spec.dtypes(kept)) == {"float32", "bfloat16"}  # float32 where T is float16


def test_a_backward_keeps_nothing_where_the_gradient_is_linear():
    found = backward("x: T[..., K]; w: T[K, N]; bias: T[N]", "y = x @ w + bias")
    assert (found.forward, found.products) == (None, ())


def test_an_output_that_is_the_product_serves_as_one_that_is_kept():
    found = backward("x: T[..., K]; w: T[K, N]", "z = x @ w; y = silu(z)", "y: T[..., N]; z: T[..., N]")
    assert found.forward is None


def test_products_of_float8_are_kept_as_the_output_is():
    types = "Q: [float8_e4m3fn]; T: [float16, bfloat16]"
    found = backward_of(made("x: Q[..., K]; w: Q[K, N]; bias: T[N]", "y = silu(x @ w + bias)", types=types))
    assert [str(a) for a in found.op.spec.outputs] == ["T[..., N]", "T[N]"]


def test_products_of_float8_alone_are_kept_in_float32():
    types = "Q: [float8_e4m3fn]"
    found = backward_of(made("x: Q[..., K]; w: Q[K, N]", "y = silu(x @ w)", "y: Q[..., N]", types=types))
    assert [str(a) for a in found.forward.spec.outputs] == ["Q[..., N]", "float32[..., N]"]
    assert [str(a) for a in found.op.spec.outputs] == ["float32[..., N]"]


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_a_type_without_a_main_loop_is_refused_by_name(dtype):
    tile = plan("x: T[..., K]; w: T[K, N]", "y = cast(x @ w, int32)", "y: int32[..., N]", types=f"T: [{dtype}]").tile
    with pytest.raises(UserError, match=f"no main loop for {dtype} on sm_80"):
        tile.launch(ProductCall({"y": "int32", "a": dtype, "b": dtype}, dict.fromkeys("LMNK", 8), False, "sm_80"))


@pytest.mark.parametrize(
    ("outputs", "chain", "types"),
    [
        ("y: T[..., N]; c: T[N]", "y = exp(x @ w); c = sum(y, axis=...)", ["T"]),
        ("y: T[..., N]; c: float16[N]", "y = exp(x @ w); c = sum(y, axis=...)", ["float16"]),
        # A product is made of its factors, which are rounded
        ("y: T[..., N]; c: float32[N]", "y = exp(x @ w); c = sum(y, axis=...)", ["T"]),
        ("r: float32[...]", "r = logsumexp(tanh(x @ w), axis=N)", ["T"]),
        ("r: float32[...]", "r = max(tanh(x @ w), axis=N)", ["float32"]),
        ("r: float32[...]; m: float32[...]", "z = tanh(x @ w); m = max(z, axis=N); r = logsumexp(z, axis=N)", ["float32"]),
        ("y: float32[..., N]; c: float32[N]", "y = exp(x @ w); c = sum(y, axis=...)", ["float32"]),
        ("c: float32[N]", "z = exp(x @ w); c = sum(z - log(x @ w), axis=...)", ["float32"]),  # the two might cancel
        ("c: T[N]", "c = sum(exp(x @ w), axis=...)", ["bfloat16"]),  # either would do
        # Nothing that the kernel writes says what S is
        ("y: T[..., N]; c: S[N]", "y = exp(x @ w); c = prod(y, axis=...)", ["float32"]),
        ("y: T[..., N]; c: T[N]; r: float32[...]", "y = exp(x @ w); c = sum(y, axis=...); r = prod(y, axis=N)", ["float32"]),
        ("y: T[..., N]; c: T[N]; r: float32[...]", "y = exp(x @ w); c = sum(y, axis=...); r = sum(y, axis=N)", ["T"]),
        ("y: T[..., N]; c: T[N]; r: float32[...]", "y = exp(x @ w); c = sum(y, axis=...); r = max(x @ w, axis=N)",
         ["float32", "T"]),
    ],
)  # fmt: skip
def test_what_says_how_exact_a_fold_is(outputs, chain, types):
    variables = "T: [float16, bfloat16]" + ("; S: [float16, float32]" if " S[" in outputs else "")
    found = plan("x: T[..., K]; w: T[K, N]", chain, outputs, variables)
    assert [dtype for _, dtype in found.tile.exactness] == types
