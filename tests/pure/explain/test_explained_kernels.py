"""What `codegen explain` says of ops that reduce and of main loops."""

import math

import pytest
from rich.console import Console

from codegen.explain.report import explain
from codegen.explain.tables import as_text
from codegen.language.sizes import default_shape
from tests.pure.explaining import costs, library, made, run

SOFTMAX = ("y = softmax(x, axis=N) + b", "x: T[..., N]; b: T[N]; c: float32[...]", "y: T[..., N]; z: float32[...]")


def softmax():
    chain, inputs, outputs = SOFTMAX
    return made(f"{chain}; z = sum(x, axis=N) * c", inputs, outputs, "types: {T: [bfloat16, float32]}")


def test_statistics_stand_in_their_stages():
    report = explain(softmax(), {"...": 4, "N": 16})
    assert report["kind"] == "row" and report["why"].startswith(
        "row: max and sum along N; the threads that share a row"
    )
    stages = [(s["value"], s["stage"], s["over"]) for s in report["statistics"]]
    assert stages == [("max(x, axis=N)", 0, "row"), ("sum(x, axis=N)", 0, "row"), ("sum(%2, axis=N)", 1, "row")]
    assert [s["same_pass"] for s in report["statistics"]] == [False, False, True]
    assert {"name": "%2", "op": "exp", "args": ["%1"], "type": "float[..., N]"} in report["graph"]
    both = made(
        "dx = dy - mean(dy, axis=N); db = sum(dy, axis=...)",
        "dy: float32[..., N]",
        "dx: float32[..., N]; db: float32[N]",
    )
    report = explain(both, {"...": 4, "N": 16})
    assert report["kind"] == "row+column" and report["kernels"]["fused"] == 2
    assert report["why"].startswith("row+column: mean along N and sum over rows (...);")
    assert [s["over"] for s in report["statistics"]] == ["row", "column"]


def test_access_of_rows():
    rows = {a["value"]: a for a in explain(softmax(), {"...": 4, "N": 16})["accesses"]}
    assert {v: a["mode"] for v, a in rows.items()} == {"x": "flat", "b": "flat", "c": "row", "y": "flat", "z": "row"}
    assert rows["x"]["how"] == "whole vectors of each row" and rows["c"]["how"] == "one value per row"
    assert rows["b"]["how"] == "whole vectors, the same for every row"
    assert "aligned" in rows["x"]["ragged"] and "aligned" not in rows["b"]["ragged"]


def test_bytes_of_a_reduction():
    op = made("s = sum(x, axis=N); y = x / s", "x: float16[..., N]", "y: float16[..., N]")
    _, cost = costs(op, {"...": 4, "N": 16})
    # the sum reads x and writes a float a row; the division reads both and writes y
    assert cost["bytes"]["unfused"] == (2 * 64 + 4 * 4) + (2 * 64 + 4 * 4 + 2 * 64)
    assert cost["bytes"]["fused"] == 2 * 64 + 2 * 64


def test_the_launch_is_of_the_kernel_that_moves_most():
    """Of two products the larger. Of one stage and a sum by index the sum, whose arrays are listed too."""
    arrays = "x: T[M, K]; u: T[K, F]; v: T[F, N]", "y: T[M, N]"
    two = made("h = relu(x @ u); y = h @ v", *arrays, "types: {T: [bfloat16]}")
    for columns, results, stage in ((4096, 64, 1), (64, 4096, 2)):
        _, cost = costs(two, {"M": 4096, "K": columns, "F": 4096, "N": results}, T="bfloat16")
        assert cost["launch"]["of"] == f"stage {stage}"
    report, cost = costs(library("combine_experts"), {"S": 8192, "E": 65536, "D": 2048}, T="float32")
    launch = cost["launch"]
    # A block has 256 threads along D, each with vectors of 4 in four rows; D is two blocks; one more is for what is left
    assert (launch["of"], launch["vector"], launch["blocks"]) == ("the sum by token", 4, 2 * 8192 // 4 + 1)
    assert launch["vector_bytes"] == {"y": 16, "out": 16}
    assert [(a["array"], a["stored"]) for a in report["accesses"][-2:]] == [("y", False), ("out", True)]
    assert report["ragged"] == "the vector width divides the columns of a row"


def test_launch_of_rows():
    op = made("y = softmax(x, axis=N)", "x: float32[..., N]", "y: float32[..., N]")
    _, cost = costs(op, {"...": 1000, "N": 256})
    # 64 vectors of 4; a thread keeps 2 of them; 8 rows share a block of 256 threads
    assert cost["launch"] == {
        "vector": 4, "vector_bytes": {"x": 16, "y": 16}, "threads": 256, "ragged": False, "threads_a_row": 32,
        "vectors_a_thread": 2, "cluster": 1, "rows_at_once": 1, "rows_read": 1, "left_to_xla": "", "resident": 0, "blocks": 126,
    }  # fmt: skip
    assert cost["launch_in_clusters"] is None
    _, cost = costs(op, {"...": 10, "N": 2**16})
    # 256 KiB a row: read for max and sum, and for the result, or kept by eight blocks; one more cluster than rows
    assert cost["launch"]["rows_read"] == 2
    assert (cost["launch_in_clusters"]["cluster"], cost["launch_in_clusters"]["rows_read"]) == (8, 1)
    assert cost["launch_in_clusters"]["blocks"] == 88


def test_default_shape_holds_every_array():
    """A row whose own element is picked is no table, and a table of rows is no larger than other arrays."""
    text = "x: float32[P=2, B, S, V]; i: int32[P=2, B, S]"
    picked = default_shape(made("y = take(x * 2, i, axis=V)", text, "y: float32[P=2, B, S]").spec)
    rows = default_shape(made("y = take(x, i, axis=N)", "x: float32[..., N]; i: int32[...]", "y: float32[...]").spec)
    assert math.prod(picked.values()) == 2**25 and math.prod(rows.values()) == 2**27
    assert picked["V"] > 1 and rows["N"] > 1


def test_default_shape_has_the_axes_that_are_reduced():
    assert default_shape(made("y = sum(x, axis=N)", "x: float32[..., N]", "y: float32[...]").spec) == {
        "...": 8192, "N": 4096
    }  # fmt: skip
    chain, inputs = "y = sum(take(w, i, axis=P), axis=N)", "w: float32[P, N]; i: int32[...]"
    assert default_shape(made(chain, inputs, "y: float32[...]").spec) == {"...": 8192, "N": 4096, "P": 4096}


def test_explain_prints_what_rows_do(monkeypatch, capsys, tmp_path):
    lines = ["op: total", "summary: Made here.", "inputs: {x: 'float32[..., N]'}", "outputs: {y: 'float32[...]'}"]
    (tmp_path / "total.yaml").write_text("\n".join([*lines, "chain: y = sum(x, axis=N)", "reference: x.sum(-1)"]))
    drawing = tmp_path / "total.svg"
    assert run(monkeypatch, "explain", "total", "--specs", tmp_path, "--svg", drawing) == 0
    text = capsys.readouterr().out
    assert "sum along N" in text and "row_sum = sum(x, axis=N)" in text and "threads per row" in text
    assert "sum(x, axis=N)" in drawing.read_text()


# Main loops


LARGE = {"...": 4096, "K": 4096, "N": 4096}


@pytest.mark.parametrize(
    ("name", "dtype", "more", "words"),
    [
        ("dense_relu", "bfloat16", {}, ""),
        ("dense_relu", "bfloat16", {"K": 4095}, "TMA loads rows of whole 16 bytes; a row of a has 4095 of bfloat16"),
        ("dense_relu", "bfloat16", {"N": 4}, "TMA loads rows of whole 16 bytes; a row of b has 4 of bfloat16"),
        ("dense_swiglu_pairs", "bfloat16", {"N": 4}, ""),  # in pairs
        ("dense_relu", "bfloat16", {"...": 128, "N": 128, "K": 65536}, "by estimate "),
        ("dense_relu", "float32", {}, "WGMMA multiplies float16, bfloat16, and, b of shape (N, K), float8 or int8"),
        ("matmul_dgelu_dbias", "bfloat16", {}, ""),
    ],
)  # fmt: skip
def test_what_multiplies(name, dtype, more, words):
    """On Hopper: one kernel and its tiles, or XLA, and the reason."""
    _, cost = costs(library(name), LARGE | more, T=dtype)
    found = cost["main_loop"]
    assert found["one_kernel"] == (not words) and found["why"].startswith(words)
    assert {"tile_m", "tile_n", "stages", "splits"} <= found["tiles"].keys() or not found["one_kernel"]
    assert found["one_kernel"] or not found["tiles"]


def test_what_is_folded_exactly_may_cost_another_pass():
    """A float32 sum of expensive values is exact where the spec says so; of 16-bit factors it need not be."""
    for dtype, mode, words in (
        (
            "float32",
            "precise",
            "the reduced values are so expensive that another pass over the product takes less time",
        ),
        ("float32", "fast", ""),
        ("float32", "auto", ""),
        ("T", "auto", ""),
        ("bfloat16", "auto", ""),
    ):
        op = made(
            "y = silu(x @ w); dbias = sum(y, axis=...)", "x: T[..., K]; w: T[K, N]", f"y: T[..., N]; dbias: {dtype}[N]",
            f"types: {{T: [bfloat16]}}\nmath: {mode}",
        )  # fmt: skip
        _, cost = costs(op, LARGE, T="bfloat16")
        assert cost["main_loop"]["why"] == words


def test_what_multiplies_is_printed(monkeypatch, capsys):
    run(monkeypatch, "explain", "dense_relu", "--shape", "...=4096,K=4096,N=4096")
    text = " ".join(capsys.readouterr().out.split())
    assert "one kernel: tiles of 128 x 256, 64 along K" in text
    assert "XLA's matmul, then the epilogue: WGMMA multiplies" in text
    run(monkeypatch, "explain", "dense_relu", "--shape", "...=16,K=14336,N=4096")
    assert "2 blocks of a cluster share K" in " ".join(capsys.readouterr().out.split())


def test_what_does_not_contract_has_no_main_loop():
    assert all(c["main_loop"] is None for c in explain(library("rmsnorm"), {"...": 8, "N": 64})["costs"])


@pytest.mark.parametrize("name", ["rmsnorm", "layernorm_fp8", "dense_gelu", "rotary", "dgelu_dbias_fp8"])
def test_the_tables_fit_80_columns_and_lose_nothing(name):
    op = library(name)
    report = explain(op, default_shape(op.spec))
    console = Console(width=80)
    with console.capture() as shown:
        console.print(as_text(report))
    assert max(map(len, shown.get().splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown.get()
    words = set(shown.get().split())
    for cost in report["costs"]:
        assert {str(cost["launch"][name] or "-") for name in ("threads", "blocks")} <= words


def printed(op) -> str:
    console = Console(width=200)
    with console.capture() as shown:
        console.print(as_text(explain(op, default_shape(op.spec))))
    return shown.get()


def test_a_size_that_an_epilogue_reads_is_listed():
    inputs = "a: bfloat16[N, D]; b: bfloat16[N, E]"
    text = printed(made("n = b * 2; y = dot(a, n, axis=N) / size(N)", inputs, "y: float32[D, E]"))
    assert "size_of_n" in text


def test_what_is_added_to_a_table_by_index():
    """A cotangent as it is, for which no kernel runs; or what a kernel writes."""
    inputs = "t: float32[V, N]; i: int32[...]"
    alone = made("y = take(t, i, axis=V)", inputs, "y: float32[..., N]")
    text = printed(alone)
    assert "no kernel but the sums by index" in text
    assert "the gradient of t is dy, summed by i along V, in a fixed order" in text
    report = explain(alone, {"...": 64, "N": 64, "V": 64})["backward"]["by_index"]
    assert "the kernels" in report[0]["left_to_xla"]
    other = made("y = square(take(t, i, axis=V))", inputs, "y: float32[..., N]")
    text = printed(other)
    assert "no kernel but" not in text
    assert "the gradient of t is dt, summed by i along V" in text
    beside = made("y = x * 1.5 + take(t, i, axis=V)", f"{inputs}; x: float32[..., N]", "y: float32[..., N]")
    report = explain(beside, default_shape(beside.spec))["backward"]
    assert (list(report["outputs"]), report["idle"]) == (["dx"], False)
    assert [added["added"] for added in report["by_index"]] == ["dy"]
