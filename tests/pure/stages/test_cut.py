"""Where the graph of an op of several kernels is cut: what each stage reads and writes."""

import pytest

from codegen.autodiff.backward import Derived, backward_of
from codegen.errors import SpecError
from codegen.pipeline import read_op
from codegen.plan.gemms.tiles import Tile
from codegen.plan.launches import GemmLaunch, ProductCall
from codegen.plan.op import Gemm, Op, Staged
from codegen.shared import AmpereTiles, Loading, Tiles


def made(inputs: str, outputs: str, chain: str, more: str = "") -> Op:
    parts = {"inputs": inputs, "outputs": outputs}
    text = f"op: made\nsummary: Made.\n{more}"
    text += "".join(f"{key}:\n" + "".join(f"  {a}\n" for a in arrays.split("; ")) for key, arrays in parts.items())
    text += "chain: |\n" + "".join(f"  {line}\n" for line in chain.split("; "))
    names = [array.partition(":")[0] for array in outputs.split("; ")]
    return read_op("specs/made.yaml", text + "reference: |\n" + "".join(f"  {name} = 0\n" for name in names))


def stages(op: Op) -> list[tuple[str, str]]:
    """The kind of each stage, and what it writes, after what it reads."""
    assert isinstance(op.plan, Staged)
    return [
        (s.plan.kind, f"{' '.join(a.name for a in s.spec.inputs)} -> {' '.join(a.name for a in s.spec.outputs)}")
        for s in op.plan.stages
    ]


X, Y = "x: float32[..., N]", "y: float32[..., N]"
QKV = "q: bfloat16[B, Q, D]; k: bfloat16[B, S, D]; v: bfloat16[B, S, E]"
MIDDLE = "x: float32[B, C, S]", "y: float32[B, C, S]"

CUT = {
    "quantised rows": (
        (
            "x: bfloat16[..., K]; w: int8[N, K]", "y: bfloat16[..., N]",
            "s = max(abs(x), axis=K) / 127; q = cast(round(x / s), int8); y = (q @ w) * s",
        ),
        [("row", "x -> max_of_rows q"), ("gemm", "w max_of_rows q -> y")],
    ),
    "columns": ((X, Y, "y = x - mean(x, axis=...)"), [("column", "x -> mean_of_n"), ("elementwise", "x mean_of_n -> y")]),
    "everything": (
        (X, Y, "y = x / norm(x, axis=(..., N))"),
        [("column", "x -> sum_of_all"), ("elementwise", "x sum_of_all -> y")],
    ),
    "a middle axis": (
        (*MIDDLE, "y = softmax(x, axis=C)"),
        [
            ("column", "x -> max_of_b_s sum_of_b_s"),
            ("elementwise", "x max_of_b_s sum_of_b_s -> y"),
        ],
    ),
    # Each row is reduced once, not for each element along E
    "a sum that many elements take": (
        ("x: float32[B, D]; z: float32[B, E]", "y: float32[B, E]", "y = z / sum(x, axis=D)"),
        [("row", "x -> sum_of_b"), ("elementwise", "z sum_of_b -> y")],
    ),
    # An output is what later stages take, and a name of the chain stays
    "statistics that are outputs": (
        (X, f"{Y}; m: float32[N]; v: float32[N]", "m = mean(x, axis=...); v = var(x, axis=...); y = (x - m) * rsqrt(v)"),
        [("column", "x -> centre_of_n"), ("column", "x centre_of_n -> m v"), ("elementwise", "x m v -> y")],
    ),
    "a name of the chain": (
        (X, Y, "top = max(x, axis=...); y = x / top"),
        [("column", "x -> top"), ("elementwise", "x top -> y")],
    ),
    # bfloat16 does not hold what stages take
    "a rounded output": (
        ("x: bfloat16[..., N]", "y: bfloat16[..., N]; m: bfloat16[N]", "m = mean(x, axis=...); y = x - m"),
        [("column", "x -> mean_of_n m"), ("elementwise", "x mean_of_n -> y")],
    ),
    "reductions of one level": (
        ("x: float32[M, N]", "y: float32[M, N]", "y = x - mean(x, axis=M) - mean(x, axis=N) + mean(x, axis=(M, N))"),
        [("row+column", "x -> mean_of_n mean_of_m mean_of_all"), ("elementwise", "x mean_of_n mean_of_m mean_of_all -> y")],
    ),
    "two levels": (
        ("x: float32[B, S, N]", "y: float32[B]", "y = sum(max(x, axis=N), axis=S)"),
        [("row", "x -> max_of_b_s"), ("row", "max_of_b_s -> y")],
    ),
    "blocks of both axes": (
        ("x: float32[(P R=128), (Q C=128)]", "q: float8_e4m3fn[(P R=128), (Q C=128)]", "q = x / max(abs(x), axis=(R, C))"),
        [("column", "x -> max_of_p_q"), ("elementwise", "x max_of_p_q -> q")],
    ),
    # Two steps of Sinkhorn's algorithm: the sums along rows come with those over rows that follow them
    "sums of sums": (
        ("x: float32[B, M, N]", "y: float32[B, M, N]",
         "a = x / sum(x, axis=N); b = a / sum(a, axis=M); c = b / sum(b, axis=N); y = c / sum(c, axis=M)"),
        [
            ("row+column", "x -> sum_of_b_m sum_of_b_n"),
            ("row+column", "x sum_of_b_m sum_of_b_n -> sum_of_b_m2 sum_of_b_n2"),
            ("elementwise", "x sum_of_b_m sum_of_b_n sum_of_b_m2 sum_of_b_n2 -> y"),
        ],
    ),
    # The last kernel has the row in registers: it needs no other to reduce it
    "a statistic of the last kernel's rows": (
        (X, f"{Y}; z: float32[..., N]", "y = softmax(x, axis=N); z = x - mean(x, axis=...)"),
        [("column", "x -> mean_of_n"), ("row", "x mean_of_n -> y z")],
    ),
    # 20 reductions, of which a kernel chains 16
    "many after each other": (
        (X, Y, "; ".join(f"{'y' if i == 9 else f'v{i}'} = softmax({f'v{i - 1}' if i else 'x'}, axis=N)" for i in range(10))),
        None,
    ),
    # No kernel reads these while it reduces: what is reduced is written first, or what is read where that is less
    "neighbours that are reduced": (
        ("x: float32[B, S, N]", "y: float32[N]", "y = sum(abs(x - shift(x, axis=N)), axis=(B, S))"),
        [("elementwise", "x -> read_of_b_s_n"), ("column", "x read_of_b_s_n -> y")],
    ),
    "of a table, reduced": (
        ("code: int32[..., N]; book: float32[P]", "y: float32[...]", "y = sum(take(book, code + 1, axis=P), axis=N)"),
        [("elementwise", "code book -> read_of_rows_n"), ("row", "read_of_rows_n -> y")],
    ),
    "neighbours that are reduced once": (
        ("x: float32[B, S, N]", "y: float32[N]", "y = sum(shift(x, axis=N, by=-1) * shift(x, axis=N), axis=(B, S))"),
        [("elementwise", "x -> reduced_of_b_s_n"), ("column", "reduced_of_b_s_n -> y")],
    ),
    "outputs of different axes": (
        (f"{X}; w: float32[N]", f"{Y}; z: float32[N]", "y = -x; z = -w"),
        [("elementwise", "x -> y"), ("elementwise", "w -> z")],
    ),
    "gated attention": (
        (
            f"{QKV}; g: bfloat16[B, Q, E]",
            "y: bfloat16[B, Q, E]",
            "o = softmax(0.1 * (q @ k), axis=S) @ v; y = o * sigmoid(g)",
        ),
        [("attention", "q k v -> o"), ("elementwise", "g o -> y")],
    ),
    "attention in 8 bits": (
        (QKV, "y: int8[B, Q, E]", "y = softmax(q @ k, axis=S) @ v"),
        [("attention", "q k v -> product_of_b_q_e"), ("elementwise", "product_of_b_q_e -> y")],
    ),
    "attention and a layer": (
        (f"{QKV}; w: bfloat16[E, M]", "y: bfloat16[B, Q, M]", "o = softmax(q @ k, axis=S) @ v; y = relu(o @ w)"),
        [("attention", "q k v -> o"), ("gemm", "w o -> y")],
    ),
    "attention and its logsumexp": (
        (f"{QKV}; r: bfloat16[B, Q, E]; l: float32[B, Q]", "y: bfloat16[B, Q, E]",
         "s = q @ k; w = sigmoid(logsumexp(s, axis=S) - l); y = w * (softmax(s, axis=S) @ v) + (1 - w) * r"),
        [("attention", "q k v l -> product_of_b_q_e w"), ("elementwise", "r product_of_b_q_e w -> y")],
    ),
    "attention to two sequences": (
        (f"{QKV}; m: bfloat16[B, P, D]; n: bfloat16[B, P, E]", "y: bfloat16[B, Q, E]",
         "s = q @ k; t = q @ m; l = logsumexp(s, axis=S); r = logsumexp(t, axis=P); w = sigmoid(l - r); "
         "y = w * (softmax(s, axis=S) @ v) + (1 - w) * (softmax(t, axis=P) @ n)"),
        [("attention", "q k v -> product_of_b_q_e l"), ("attention", "q m n -> product_of_b_q_e2 r"),
         ("elementwise", "product_of_b_q_e l product_of_b_q_e2 r -> y")],
    ),
}  # fmt: skip


DENSE = "x: bfloat16[..., K]; w: bfloat16[K, N]"
LAYERS = "x: bfloat16[..., K]; w: bfloat16[K, F]; v: bfloat16[F, K]", "y: bfloat16[..., K]"

PRODUCTS = {
    "a computed factor": (
        (f"{DENSE}; g: bfloat16[K]", "y: bfloat16[..., N]", "y = (x * rsqrt(mean(square(x), axis=K)) * g) @ w"),
        [("row", "x g -> factor_of_rows_k"), ("gemm", "w factor_of_rows_k -> y")],
    ),
    "both factors": (
        ("x: bfloat16[..., K]; q: int8[K, N]; s: float32[N]", "y: bfloat16[..., N]",
         "y = cast(square(x), bfloat16) @ (cast(q, bfloat16) * s)"),
        [("elementwise", "x -> factor_of_rows_k"), ("gemm", "q s factor_of_rows_k -> y")],
    ),
    "the mean of what is selected": (
        ("s: bfloat16[..., H, G]; w: bfloat16[H, N]", "y: bfloat16[..., N]", "y = mean(top_k(s, K=2, axis=G), axis=K) @ w"),
        [
            ("selection", "s -> top_k_of_rows_h_k"),
            ("row", "top_k_of_rows_h_k -> factor_of_rows_h"),
            ("gemm", "w factor_of_rows_h -> y"),
        ],
    ),
    "elements and what is selected of them": (
        (f"{DENSE}", "t: float32[..., J=2]; y: float32[..., N]", "z = x @ w; t = top_k(z, J, axis=N); y = z - min(t, axis=J)"),
        [
            ("gemm", "x w -> z"), ("selection", "z -> t"), ("selection", "z -> top_k_of_rows_j"),
            ("row", "z top_k_of_rows_j -> y"),
        ],
    ),
    "a running sum of a product": (
        (f"{DENSE}", "y: float32[..., N]", "y = cumsum(x @ w, axis=N)"),
        [("gemm", "x w -> product_of_rows_n"), ("scan", "product_of_rows_n -> y")],
    ),
    "two layers": ((*LAYERS, "u = squared_relu(x @ w); y = u @ v + x"), [("gemm", "x w -> u"), ("gemm", "x v u -> y")]),
    # a value of a product that two stages use is written, and not multiplied again
    "what two stages use": (
        (*LAYERS, "h = x @ w; u = relu(h); z = u @ v; y = z + max(h, axis=F)"),
        [("gemm", "x w -> u h"), ("gemm", "v u -> z"), ("row", "h -> max_of_rows"), ("elementwise", "z max_of_rows -> y")],
    ),
    "an output that is a factor": (
        (LAYERS[0], "y: bfloat16[..., K]; u: bfloat16[..., F]", "u = relu(x @ w); y = u @ v"),
        [("gemm", "x w -> u"), ("gemm", "v u -> y")],
    ),
    "norms of both factors": (
        ("x: bfloat16[M, D]; z: bfloat16[N, D]", "y: float32[M, N]", "y = sum(x * x, axis=D) + sum(z * z, axis=D) - 2 * (x @ z)"),
        [("row", "x -> sum_of_m"), ("row", "z -> sum_of_n"), ("gemm", "x z sum_of_m sum_of_n -> y")],
    ),
    # an epilogue that no kernel computes follows the product alone
    "all rows of a product": (
        (DENSE, "y: bfloat16[..., N]", "z = x @ w; y = z - max(z, axis=...)"),
        [("gemm", "x w -> z"), ("column", "z -> max_of_n"), ("elementwise", "z max_of_n -> y")],
    ),
    "a statistic of the contracted axis": (
        (DENSE, "y: float32[..., N]", "y = (x @ w) * sum(w, axis=K)"),
        [("column", "w -> sum_of_n"), ("gemm", "x w sum_of_n -> y")],
    ),
}  # fmt: skip


# What scales a factor multiplies the product where the factor is then multiplied as it is in memory: (spec, stages, the reason why
# it stays on the factor). A statistic is 0 where K is (`where`).
NORM = "n = x * rsqrt(mean(square(x), axis=K) + 1.0); "
INT8 = "y = x @ (cast(q, bfloat16) * s)"
SCALED = {
    "a statistic": ((DENSE, "y: bfloat16[..., N]", f"{NORM}y = relu(n @ w)"),
                    [("row", "x -> where_of_rows"), ("gemm", "x w where_of_rows -> y")], ""),
    "inputs": ((f"{DENSE}; r: float32[...]; s: float32[N]", "y: bfloat16[..., N]", "y = (x * r) @ (w / s)"),
               [("gemm", "x w r s -> y")], ""),
    "a factor that is an output": ((DENSE, "y: bfloat16[..., N]; n: bfloat16[..., K]", f"{NORM}y = n @ w"),
                                   [("row", "x -> n"), ("gemm", "w n -> y")], "it is an output"),
    "a weight along the contracted axis": ((f"{DENSE}; g: bfloat16[K]", "y: bfloat16[..., N]", f"{NORM}y = (n * g) @ w"),
                                           [("row", "x g -> factor_of_rows_k"), ("gemm", "w factor_of_rows_k -> y")],
                                           "g varies along K and is multiplied with it"),
    "a factor in another type": (("x: float32[..., K]; w: bfloat16[K, N]; r: float32[...]", "y: float32[..., N]",
                                  "y = cast(x * r, bfloat16) @ w"),
                                 [("elementwise", "x r -> factor_of_rows_k"), ("gemm", "w factor_of_rows_k -> y")], None),
    "a factor that is used again": ((*LAYERS, f"{NORM}z = n @ w; y = (z @ v) * n"),
                                    [("row", "x -> where_of_rows"), ("gemm", "x w where_of_rows -> z"),
                                     ("gemm", "x v where_of_rows z -> y")], ""),
    "a scale at a computed index": ((f"{DENSE}; t: float32[B]", "y: bfloat16[..., N]", "y = x @ (w * take(t, index(N) // 8, axis=B))"),
                                    [("elementwise", "w t -> factor_of_k_n"), ("gemm", "x factor_of_k_n -> y")],
                                    "the values after the product would need a kernel of their own"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALED)
def test_scales_of_factors(name):
    spec, expected, why = SCALED[name]
    op = made(*spec)
    assert stages(op) == expected
    assert isinstance(op.plan, Staged) and {s.why for s in op.plan.scaled} == {why} - {None}


@pytest.mark.parametrize("name", CUT | PRODUCTS)
def test_stages(name):
    spec, expected = (CUT | PRODUCTS)[name]
    found = stages(made(*spec))
    assert len(found) == 2 if expected is None else found == expected


def test_every_stage_reads_what_is_there():
    for spec, _ in (CUT | PRODUCTS).values():
        op = made(*spec)
        there = {a.name: a for a in op.spec.inputs}
        assert isinstance(op.plan, Staged)
        for stage in op.plan.stages:
            assert all(a.name in there and there[a.name].dims == a.dims for a in stage.spec.inputs)
            there |= {a.name: a for a in stage.spec.outputs}
        assert {a.name for a in op.spec.outputs} <= there.keys()


def test_moved_scales_multiply_and_divide_the_product():
    spec, _, _ = SCALED["inputs"]
    plan = made(*spec).plan
    assert isinstance(plan, Staged) and plan.stages[0].spec.chain.value == "y = x @ w * r / s\n"


def test_a_factor_of_bytes_is_converted_in_the_product_of_few_rows():
    """Of many rows it is cheaper to convert it once, and to multiply it by WGMMA."""
    plan = made("x: bfloat16[..., K]; q: int8[K, N]; s: float32[N]", "y: bfloat16[..., N]", INT8).plan
    assert isinstance(plan, Staged)
    (stage,) = plan.stages
    assert isinstance(stage.plan, Gemm) and stage.plan.products[0].widened
    dtypes = {"a": "bfloat16", "b": "int8"} | {a.name: a.dtype for a in stage.plan.epilogue.spec.arrays}

    def launch(rows: int, arch: str) -> GemmLaunch:
        assert isinstance(stage.plan, Gemm) and isinstance(stage.plan.tile, Tile)
        return stage.plan.tile.launch(ProductCall(dtypes, {"L": 1, "M": rows, "N": 14336, "K": 4096}, False, arch))

    for arch in ("sm_80", "sm_90a"):
        few = launch(16, arch)
        assert isinstance(few.tiles, AmpereTiles) and not few.copied
        assert few.tiles.warps_k * few.tiles.stages == 6  # of 12.25 KiB: as many bytes in flight as fit
        assert not few.why and launch(33, arch).why == "XLA converts bytes in its own product of few rows"
    many = launch(8192, "sm_90a")
    assert isinstance(many.tiles, Tiles) and many.copied.startswith("by estimate")


HALF = "take(q, index(K) // 2, axis=P)"
FOUR_BITS = {  # how an unsigned or a signed number of 4 bits is written, and what the kernel computes of its bits
    f"(({HALF} >> (index(K) % 2 * 4)) & 15) - 8": Loading(4, 0, 8, 128),
    f"where(index(K) % 2 == 0, {HALF} & 15, {HALF} // 16)": Loading(4, 0, 0, 128),
    f"((({HALF} >> (index(K) % 2 * 4)) & 15) ^ 8) - 8": Loading(4, 8, 8, 128),
    f"(({HALF} >> (index(K) % 2 * 4)) & 7) - 8": None,  # of 3 bits
    f"(({HALF} >> ((1 - index(K) % 2) * 4)) & 15) - 8": None,  # the first in a byte's upper half
}


@pytest.mark.parametrize("number", FOUR_BITS)
def test_numbers_of_4_bits_in_any_spelling(number):
    arrays = "x: bfloat16[..., K]; q: uint8[P, N]; s: float32[B, N]", "y: bfloat16[..., N]"
    plan = made(*arrays, f"y = x @ (({number}) * take(s, index(K) // 128, axis=B))").plan
    assert isinstance(plan, Staged)
    found = plan.stages[-1].plan
    assert isinstance(found, Gemm) and isinstance(found.tile, Tile)
    assert (found.tile.loaded and found.tile.loaded.how) == FOUR_BITS[number] and len(plan.stages) == 1 + (
        not found.tile.loaded
    )


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_a_factor_of_bytes_without_a_cast_is_converted_too(dtype):
    plan = made(f"x: bfloat16[..., K]; q: {dtype}[K, N]", "y: bfloat16[..., N]", "y = x @ q").plan
    assert isinstance(plan, Gemm) and isinstance(plan.tile, Tile) and plan.products[0].widened
    plan = made(f"x: {dtype}[..., K]; q: bfloat16[K, N]", "y: bfloat16[..., N]", "y = x @ q").plan
    assert isinstance(plan, Gemm) and not isinstance(plan.tile, Tile)  # of the rows' side it is XLA's product


def test_what_stages_write_is_saved_for_the_backward():
    op = made(X, Y, "m = mean(x, axis=...); y = (x - m) * rsqrt(var(x, axis=...))")
    found = backward_of(op)
    assert isinstance(found, Derived) and found.forward is None
    assert found.how.saved == ("m", "var_of_n")
    assert stages(found.op) == [
        ("column", "dy m x -> sum_of_n sum_of_n2"),
        ("elementwise", "dy m var_of_n x sum_of_n sum_of_n2 -> dx"),
    ]


def test_gradients_that_reduce_over_rows_come_with_the_elements():
    """Sums over C and over B and S share no kernel: each block would have one row."""
    chain = "y = (x - mean(x, axis=C)) * rsqrt(var(x, axis=C)) * w"
    found = backward_of(made("x: float32[B, C, S]; w: float32[C]", "y: float32[B, C, S]", chain))
    assert isinstance(found, Derived)
    kinds = [(kind, arrays.partition(" -> ")[2]) for kind, arrays in stages(found.op)]
    assert kinds == [("column", "sum_of_b_s sum_of_b_s2"), ("column", "dx dw")]


def test_what_no_kernel_does_is_the_first_error():
    with pytest.raises(SpecError, match=r"no order of the axes fits 'x', .* and 'w'"):
        made("x: float32[M, N]; w: float32[N, M]", "y: float32[M, N]", "y = x - mean(x + w, axis=M)")


def test_an_array_in_another_order_is_read_where_nothing_reduces():
    op = made("x: float32[M, N]; w: float32[N, M]", "y: float32[M, N]", "y = x - mean(x, axis=M) + w")
    assert [kind for kind, _ in stages(op)] == ["column", "elementwise"]


def test_an_ambiguous_product_names_its_axes():
    arrays = "x: bfloat16[A, B]; w: bfloat16[A, B, N]", "y: bfloat16[N]"
    with pytest.raises(SpecError, match=r"no output has, and these are A, B\n.*\n.*\n  name it: dot\(a, b, axis=A\)"):
        made(*arrays, "y = x @ w")
    assert made(*arrays, "y = dot(x, w, axis=(A, B))").plan.products[0].axes == ("A", "B")


def test_a_backward_reads_what_stages_write_in_the_type_in_which_they_write_it():
    """Two stages write bfloat16 products' values in float32."""
    arrays = "x: bfloat16[N, K]; w: bfloat16[K, M]", "p: bfloat16[N, M]; u: float32[M]"
    op = made(*arrays, "p = softmax((x @ w) * rsqrt(sum(square(w), axis=K)), axis=M); u = mean(p, axis=N)")
    backward = backward_of(op)
    assert isinstance(op.plan, Staged)
    assert isinstance(backward, Derived)
    assert backward.forward is None
    written = {a.name: a.dtype for stage in op.plan.stages for a in stage.spec.outputs}
    read = {a.name: a.dtype for a in backward.op.spec.inputs if a.name in backward.how.saved}
    assert read == {name: written[name] for name in read}
    assert set(read.values()) == {"float32"}


def test_a_stage_may_reduce_along_an_axis_that_none_of_its_arrays_has():
    """A gradient that sums what was placed: no width of a vector follows from its arrays."""
    arrays = (
        "x: float32[B, S, K]; w: float32[B, N, K]; t: float32[P]; i: int32[B]",
        "y: float32[B, S, J=4]; z: float32[B, S, N]",
    )
    chain = "p = x @ w; y = top_k(p, J, axis=N); z = max(y, axis=J) * (take(t, i, axis=P) + p) * tanh(c)"
    found = backward_of(made(*arrays, chain, "params:\n  c: {type: int, default: 1, static: false}\n"))
    assert isinstance(found, Derived)
    assert [kind for kind, _ in stages(found.op)][-2:] == ["gemm", "gemm"]
