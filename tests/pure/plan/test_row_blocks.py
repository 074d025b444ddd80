"""The work of a block of several rows: a GPU starts a limited number of blocks in a given time."""

import pytest

from codegen.pipeline import read_op
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.op import Op
from codegen.shared import RowLaunch, WalkLaunch

SPEC = """
op: made
summary: Made here.
inputs: {{{inputs}}}
outputs: {{y: "{output}"}}
chain: y = {chain}
reference: y = {reference}
"""


def read(output: str, chain: str, inputs: str) -> Op:
    names = " + ".join(part.split(":")[0] for part in inputs.split(", ") if ":" in part)
    return read_op("specs/made.yaml", SPEC.format(inputs=inputs, output=output, chain=chain, reference=names))


def launch(inputs: str, output: str, chain: str, rows: int, columns: int) -> RowLaunch:
    op = read(output, chain, inputs)
    dtypes = {a.name: op.spec.dtypes(a)[0] for a in op.spec.arrays}
    extents = Extents(columns, rows * columns, columns, rows)
    how = op.plan.launch(PlannedCall(dtypes, extents, arch="sm_90a"))
    assert isinstance(how, RowLaunch)
    return how


X, GROUPED = 'x: "bfloat16[..., N]"', 'x: "bfloat16[..., (B N=32)]"'


@pytest.mark.parametrize("columns", [8, 32, 64, 128, 512, 1024])
def test_blocks_move_much(columns):
    """A row's bytes are read and written once: those of shared arrays are no work. In 390 blocks a microsecond, that is more than an
    H200's memory moves."""
    for more, factor in (("", ""), (', w: "float32[N]"', " * w")):
        how = launch(X + more, "bfloat16[..., N]", f"x * rsqrt(mean(square(x), axis=N)){factor}", 10**6, columns)
        moved = how.rows_a_block * columns * 4
        assert moved >= 12 * 1024


def test_a_maximum_of_few_columns_has_large_blocks():
    """Of 64 bytes a row that are read, and two that are written."""
    how = launch(GROUPED + ', b: "bfloat16[(B N=32)]"', "bfloat16[..., B]", "max(x + b, axis=N)", 10**6, 32)
    assert how.threads > 128 and how.rows_a_block * 64 >= 12 * 1024


@pytest.mark.parametrize(("columns", "few"), [(64, 500), (256, 500)])
def test_few_rows_are_in_smaller_blocks(columns, few):
    """So that more SMs have one. Rows of which each SM has a block at most have more threads each. These are two more kernels, however
    many rows there are."""
    chain = "x * rsqrt(mean(square(x), axis=N))"
    fewest, same, less, *many = (
        launch(X, "bfloat16[..., N]", chain, rows, columns) for rows in (1, 30, few, 10**5, 10**6)
    )
    assert fewest == same and many[0] == many[1]
    assert fewest.threads == fewest.per_row > less.per_row == many[0].per_row
    assert less.blocks(few) >= 2 * many[0].blocks(few)


def test_rows_of_several_warps_are_in_smaller_blocks():
    how = launch(X + ', k: "bool[..., N]"', "float32[...]", "sum(where(k, sin(x), 0.0), axis=N)", 10**6, 3000)
    assert how.per_row > 32 and how.threads <= 256


# Of vectors of a row: the threads that have them. An H200 took up to a third less time than with a thread for each vector
@pytest.mark.parametrize(
    ("count", "per_row"),
    [(1, 1), (2, 2), (3, 2), (4, 2), (8, 4), (10, 4), (12, 4), (16, 8), (24, 8), (32, 16), (64, 32)],
)
def test_few_threads_share_a_short_row(count, per_row):
    how = launch(X, "bfloat16[..., N]", "x - mean(x, axis=N)", 10**6, 8 * count)
    assert (how.per_row, how.vectors) == (per_row, -(-count // per_row))


def test_a_thread_has_registers_for_its_vectors():
    """Of three arrays, each vector has a thread."""
    more = ', u: "bfloat16[..., N]", v: "bfloat16[..., N]"'
    how = launch(X + more, "bfloat16[..., N]", "x * u - mean(v, axis=N)", 10**6, 64)
    assert (how.per_row, how.vectors) == (8, 1)


def test_threads_that_walk_down_rows_have_registers_for_what_rows_share():
    """Of a vector 16 bytes of the row, 32 of two weights, 32 of the maxima: 80 of the 256 that a thread has."""
    inputs = X + ', w: "bfloat16[N]", b: "bfloat16[N]"'
    op = read("bfloat16[N]", "max((x - mean(x, axis=N)) * w + b, axis=...)", inputs)
    how = op.plan.launch(
        PlannedCall({a.name: "bfloat16" for a in op.spec.arrays}, Extents(256, 2**26, 256, 2**18), arch="sm_90a")
    )
    assert isinstance(how, WalkLaunch) and how.whole
    assert (how.threads, how.per_row, how.vectors) == (256, 16, 2)


# Rows that a cluster reads again: of an expensive value, blocks are small if threads hold much and there are many rows. They fill SMs
# if there are few, and few of them are resident if threads hold little: a cache then has the rows
@pytest.mark.parametrize(
    ("value", "rows", "threads"),
    [("exp(x)", 4, 512), ("exp(x)", 4096, 512), ("(exp(x) * sin(x) + tanh(x) * cos(x))", 4, 512),
     ("(exp(x) * sin(x) + tanh(x) * cos(x))", 100, 128), ("(exp(x) * sin(x) + tanh(x) * cos(x))", 4096, 128)],
)  # fmt: skip
def test_few_long_rows_have_large_blocks(value, rows, threads):
    how = launch(X, "bfloat16[..., N]", f"{value} - max({value}, axis=N)", rows, 2**20)
    assert not how.holds_row and how.cluster == 8 and how.threads == how.per_row == threads


def arrays(count: int) -> str:
    return ", ".join(f'x{i}: "float32[..., N]"' for i in range(count))


# Rows that registers could hold, of one array to four; rows that they could not; too few rows for all SMs
@pytest.mark.parametrize(
    ("count", "rows", "columns", "streams"),
    [(1, 8192, 2**14, False), (2, 8192, 2**14, False), (4, 8192, 2**13, True), (4, 128, 2**13, False),
     (1, 256, 2**20, True), (2, 32, 2**20, False)],
)  # fmt: skip
def test_long_rows_are_read_in_one_pass_by_blocks_that_fill_all_sms(count, rows, columns, streams):
    chain = " + ".join(f"sum(x{i}, axis=N)" for i in range(count))
    how = launch(arrays(count), "float32[...]", chain, rows, columns)
    fills = rows * how.cluster >= 4 * 132 and (how.threads == 512 or rows * how.threads >= 2048 * 132)
    assert (not how.holds_row and fills) == streams


def test_long_rows_that_elements_need_are_not_streamed():
    chain = f"sum({' + '.join(f'x{i}' for i in range(4))}, axis=N) * x0"
    assert launch(arrays(4), "float32[..., N]", chain, 8192, 2**13).holds_row


def test_random_numbers_are_held_for_a_later_sweep():
    """A draw takes some 80 instructions."""
    chain = "(x + uniform(key, axes=(..., N))) / sum(x + uniform(key, axes=(..., N)), axis=N)"
    plan = read("bfloat16[..., N]", chain, f'{X}, key: "uint32[2]"').plan
    assert [c.node.op for c in plan.expensive] == ["add"]


@pytest.mark.parametrize(
    ("more", "value", "vec"), [("", "x", 4), (', key: "uint32[2]"', "x * uniform(key, axes=(..., N))", 1)]
)
def test_narrow_vectors_divide_a_long_row_of_random_numbers(more, value, vec):
    """Other rows that no wide vector divides come by way of shared memory."""
    text = SPEC.format(
        inputs='x: "float32[..., N]", w: "float32[N]"' + more,
        output="float32[..., N]",
        reference="x",
        chain=f"({value}) * w - mean(x, axis=N)",
    )
    plan = read_op("specs/made.yaml", text).plan
    dtypes = {"x": "float32", "w": "float32", "y": "float32", "key": "uint32"}
    how = plan.launch(PlannedCall(dtypes, Extents(4097, 2**26, 4097, 2**14), arch="sm_90a"))
    assert isinstance(how, RowLaunch) and (how.vec, how.by_runs) == (vec, vec > 1)


# What landscapes of random kernels showed on an H200: the chosen launch takes 0.6 to 0.8 of the time of the one before
@pytest.mark.parametrize(
    ("chain", "columns", "columns_of_thread"),
    [
        (
            "x * rsqrt(mean(square(x), axis=N) + 1.0) * w",
            1024,
            32,
        ),  # 128 threads, of one vector each, took 1.25 times as long
        ("max(tanh(x) * w, axis=N)", 4096, 32),  # 512 threads took 1.17 times as long
    ],
)
def test_a_thread_has_many_columns_of_a_row(chain, columns, columns_of_thread):
    output = "bfloat16[...]" if chain.startswith("max") else "bfloat16[..., N]"
    how = launch(X + ', w: "float32[N]"', output, chain, 10**5, columns)
    assert how.vec * how.vectors == columns_of_thread and how.cluster == 1


def test_values_that_are_alive_at_once_leave_a_thread_fewer_columns():
    values = [f"(x * {i}.0 + mean(x * {i}.5, axis=N))" for i in range(1, 11)]
    few = launch(X, "bfloat16[..., N]", "exp(x) * mean(exp(x), axis=N)", 10**5, 1024)
    how = launch(X, "bfloat16[..., N]", f"exp({' * '.join(values)}) * ({' + '.join(values)})", 10**5, 1024)
    assert how.vec * how.vectors < few.vec * few.vectors


def test_what_a_sweep_leaves_to_later_ones():
    """Of a softmax of an expensive value, first that value and then its exponential: neither is computed twice, nor are both kept."""
    plan = read("bfloat16[..., N]", "softmax(tanh(x) * u, axis=N)", X + ', u: "bfloat16[..., N]"').plan
    assert [c.stage for c in plan.expensive] == [0, 1] and plan.most_expensive == 1
    assert [(d.kept, d.expensive, d.inputs) for d in plan.demands] == [(1, 1, ()), (1, 1, ()), (0, 0, ())]


def test_what_is_cheap_to_compute_of_a_held_value_is_not_held():
    chain = "(v - mean(v, axis=N)) * mean(square(v - mean(v, axis=N)), axis=N)".replace("v", "tanh(x)")
    plan = read("bfloat16[..., N]", chain, X).plan
    assert [c.node.op for c in plan.expensive] == ["tanh"]


def test_a_cluster_holds_a_long_row_of_several_arrays():
    """Where no block of 256 threads has room, larger blocks have: else the row would be read twice."""
    more = ', u: "bfloat16[..., N]"'
    how = launch(X + more, "bfloat16[..., N]", "tanh(x) * u - mean(tanh(x) * u, axis=N)", 523, 128256)
    assert how.holds_row and how.cluster == 8 and how.threads > 256


THREE = X + ', u: "bfloat16[..., N]", w: "bfloat16[..., N]"'


@pytest.mark.parametrize(
    ("value", "held", "expensive", "resident"),
    [
        ("tanh(x) * u * rsqrt(mean(square(tanh(x) * u), axis=N)) * w", True, True, 1),
        ("x * where(u > 0, w, 0) * rsqrt(mean(square(x * where(u > 0, w, 0)), axis=N))", True, False, 1),
        ("tanh(u) * w * mean(x, axis=N)", False, False, 0),  # little is read again
    ],
)
def test_all_registers_of_a_cluster_hold_what_a_sweep_has_computed(value, held, expensive, resident):
    """Each SM has 96 KiB of the row. Else the row is read again from memory, since the cache has no room for so many rows."""
    how = launch(THREE, "bfloat16[..., N]", value, 512, 131072)
    assert (how.holds_row, how.holds_expensive, how.resident) == (held, expensive, resident)


def test_threads_hold_expensive_values_where_registers_have_room_for_one_block_anyway():
    value = "sin(x) + x * rsqrt(mean(square(sin(x) + x), axis=N)) + u"
    inputs = X + ', u: "bfloat16[..., N]", w: "bfloat16[N]"'
    how = launch(inputs, "bfloat16[..., N]", f"({value}) * w", 523, 128256)
    assert how.holds_row and how.holds_expensive and how.resident == 1


@pytest.mark.parametrize("columns", [*range(8193, 40000, 1111), 33333, 50257])
def test_a_long_row_of_runs_ends_in_the_last_vector_of_its_threads(columns):
    """A block of a cluster has neighbouring columns, and only its threads' last vectors have a mask: with more threads than vectors
    that are missing, those before the last one would have columns past the row's end."""
    inputs = 'x: "float32[..., N]", a: "float32[N]"'
    how = launch(inputs, "float32[..., N]", "x * a - max(tanh(x * a), axis=N)", 64, columns)
    if how.by_runs:
        assert columns > how.vec * how.per_row * (how.vectors * how.cluster - 1)


def test_ragged_rows_of_many_arrays_come_through_shared_memory():
    """Rows of whole vectors are streamed: registers hold no more than is in flight."""
    inputs = ", ".join(f'{name}: "bfloat16[..., N]"' for name in "xuvw")
    even, odd = (launch(inputs, "float32[...]", "sum(tanh(x) * u * v * w, axis=N)", 2**13, n) for n in (8192, 8191))
    assert not even.holds_row and not even.by_runs
    assert odd.by_runs and odd.holds_row and odd.vec > 1


def test_some_long_rows_of_runs_are_shared_by_a_cluster():
    inputs = 'x: "float32[..., N]", a: "float32[N]"'
    found = [
        launch(inputs, "float32[..., N]", "x * a - max(tanh(x * a), axis=N)", 64, n) for n in range(8193, 40000, 1111)
    ]
    assert any(how.by_runs and how.cluster > 1 for how in found)


# Rows that leave SMs without threads, if each has as few threads as of many rows
@pytest.mark.parametrize(("rows", "columns", "cluster"), [(1, 11008, True), (8, 16384, True), (170, 768, False)])
def test_few_rows_have_more_threads(rows, columns, cluster):
    def threads(rows: int) -> RowLaunch:
        return launch(X, "bfloat16[..., N]", "tanh(x) - mean(tanh(x), axis=N)", rows, columns)

    few, many = threads(rows), threads(10**5)
    assert many.cluster == 1 and (few.cluster > 1) == cluster
    assert few.per_row * few.cluster > many.per_row and few.blocks(rows) > many.blocks(rows)


def test_rows_that_fill_all_sms_are_many():
    """Their number does not matter: calls of other batches run the same kernel."""
    found = {launch(X, "bfloat16[..., N]", "tanh(x) - mean(tanh(x), axis=N)", n, 4096) for n in (4096, 10**4, 10**5)}
    assert len(found) == 1


def test_a_block_alone_holds_expensive_values():
    """Of a row of 44 KB in two arrays it has room for one such value of each column. Of two, a cluster shares the row."""
    for total, alone in (("exp(x) * z", True), ("exp(x) * tanh(z)", False)):
        chain = f"x * sum({total}, axis=N) + exp(x) - {'z' if alone else 'tanh(z)'}"
        how = launch(X + ', z: "bfloat16[..., N]"', "bfloat16[..., N]", chain, 6000, 11008)
        assert (how.cluster == 1) == alone and how.holds_expensive
