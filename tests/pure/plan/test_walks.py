"""The launches of kernels that walk down rows."""

from dataclasses import replace

import pytest

from codegen.pipeline import read_op
from codegen.plan.launches import Extents, PlannedCall
from codegen.plan.rows.launching import cost, tiling, walking
from codegen.targets import registers_of_thread
from codegen.tuning.choosing import changed

POINTS = """
op: made
summary: A total, and a result for each of some points with three coordinates.
inputs: {x: "float32[..., 3]"}
outputs: {y: "float32[...]", z: "float32[]"}
chain: |
  y = x[0] * x[1] * x[2]
  z = sum(y, axis=...)
reference: |
  y = x
  z = x
"""

NOTHING = cost.Wanted(cost.Held(0, ()), ())


def test_few_rows_have_all_threads_of_a_block():
    text = "op: made\nsummary: S.\ninputs: {x: 'float32[R, N]'}\noutputs: {y: 'float32[N]'}\nchain: y = sum(x, axis=R)\nreference: x"
    plan, dtypes = read_op("specs/made.yaml", text).plan, {"x": "float32", "y": "float32"}
    one, two, three, met, some, many = (
        plan.launch(PlannedCall(dtypes, Extents(4096, rows * 4096, 4096, rows), arch="sm_90a"))
        for rows in (1, 2, 3, 60, 5000, 100_000)
    )
    for how, rows in ((one, 1), (two, 2), (three, 4)):
        assert (how.threads // how.per_row, how.at_once, how.parts) == (rows, 1, 1)
    assert met.meets == 1 and some.constants == many.constants  # large numbers of rows share a kernel


@pytest.mark.parametrize(("points", "threads", "per_row"), [(2**23, 256, 256), (40, 64, 64), (1, 32, 1)])
def test_all_threads_of_a_block_have_the_only_row(points, threads, per_row):
    op = read_op("specs/made.yaml", POINTS)
    how = op.plan.launch(
        PlannedCall({"x": "float32", "y": "float32", "z": "float32"}, Extents(points, points, points, 1), arch="sm_90a")
    )
    assert (how.threads, how.per_row) == (threads, per_row)


SUMMED = """
op: made
summary: A softmax of each row, and sums over rows.
inputs: {x: "bfloat16[..., N]"}
outputs: {y: "bfloat16[..., N]", z: "float32[N]"}
chain: |
  y = softmax(x, axis=N)
  z = sum(y, axis=...)
reference: |
  y = x
  z = x
"""


def test_whole_rows_that_leave_sms_idle_have_smaller_blocks():
    few, fewer, short, many = (
        launched(SUMMED, Extents(columns, rows * columns, columns, rows))
        for rows, columns in ((256, 512), (64, 256), (300, 64), (2**20, 512))
    )
    assert [(how.threads, how.per_row, how.parts) for how in (few, fewer)] == [(128, 32, 64), (128, 32, 16)]
    assert (short.threads, short.per_row) == (128, 64 // short.vec)  # a thread has a vector
    assert many.threads == 256 and many.per_row < 32
    with walking.in_parts(1):  # small arrays in tests take the kernels of many rows
        assert launched(SUMMED, Extents(512, 2**17, 512, 256)).constants == many.constants


@pytest.mark.parametrize(
    ("at_once", "rows", "held"),
    [(3, 1, 1), (3, 2, 2), (3, 4, 2), (3, 5, 3), (3, 7, 2), (2, 3, 2), (3, 13, 3), (1, 5, 1)],
)
def test_few_rows_of_a_thread_fill_its_steps(at_once, rows, held):
    """But others are in flight meanwhile, and among many rows those past the last do not count."""
    assert walking.in_steps(at_once, rows) == held


def held(columns, width, threads=256, arch="sm_90a"):
    needs = walking.Needs(
        width=width, fixed=0, sums=64, stageable=True, costly=False, alive=4, folds=1, wanted=NOTHING, shared=0
    )
    rows = walking._WholeRows(8, False, needs, 1, PlannedCall({}, Extents(columns=columns, rows=2**20), arch=arch))
    return rows.may_pace(threads, rows.threads(1)[1])


def test_blocks_keep_pace_where_their_warps_meet_and_rows_are_long():
    assert held(4096, 32)
    assert not held(256, 32)  # a warp has a row
    assert not held(1024, 16, threads=64)  # a count for each 2 KiB
    assert not held(4096, 32, arch="sm_100a")


def test_what_is_computed_once_columns_are_reduced_is_not_costly():
    text = "op: made\nsummary: Made.\ninputs: {{x: 'float32[R, C]', n: 'float32[C]'}}\noutputs: {{y: 'float32[C]'}}\nchain: y = {}\nreference: x"
    costs = [
        read_op("specs/made.yaml", text.format(c)).plan.costly for c in ("sum(x, axis=R) / n", "sum(x / n, axis=R)")
    ]
    assert costs == [False, True]


GROUPS = """
op: made
summary: Gradients of a norm of groups by the elements and by the weights.
inputs:
  dy: bfloat16[..., (B G=256)]
  x: bfloat16[..., (B G=256)]
  scale: bfloat16[..., B]
  weight: bfloat16[(B G=256)]
outputs:
  dx: bfloat16[..., (B G=256)]
  dweight: bfloat16[(B G=256)]
chain: |
  own = dy * weight
  dx = (own - x * mean(own * x, axis=G)) * scale
  dweight = sum(dy * x * scale, axis=...)
reference: |
  dx = x
  dweight = weight
"""


def test_lanes_of_a_warp_have_a_group_of_columns():
    """However many values are alive: with narrower vectors, lanes of two warps would have it, which no shuffle reduces."""
    op = read_op("specs/made.yaml", GROUPS)
    plan, dtypes = op.plan, {a.name: op.spec.dtypes(a)[0] for a in op.spec.arrays}
    call = PlannedCall(dtypes, Extents(2048, 2**24, 256, 2**13), arch="sm_90a")
    for alive in (plan.alive, 40):
        how = replace(plan, alive=alive).launch(call)
        assert plan.inner and (how.vec, plan.lanes(how.vec)) == (8, 32)
    assert changed(plan, call, {"vector_bytes": 8}) is None


def launched(text, sizes, dtype="bfloat16"):
    op = read_op("specs/made.yaml", text)
    dtypes = {a.name: dtype if dtype in op.spec.dtypes(a) else op.spec.dtypes(a)[0] for a in op.spec.arrays}
    return op.plan.launch(PlannedCall(dtypes, sizes, arch="sm_90a"))


MEETING = """
op: made
summary: Sums over some rows of each place.
inputs: {x: "bfloat16[B, S, N]", g: "bfloat16[B, S, N]"}
outputs: {y: "float32[B, N]"}
chain: y = sum(CHAIN, axis=S)
reference: x
"""


@pytest.mark.parametrize(("places", "vec", "at_once"), [(1337, 4, 7), (8192, 8, 4)])
def test_few_places_have_narrower_vectors(places, vec, at_once):
    """A thread for each vector of 16 bytes would leave SMs without threads."""
    how = launched(MEETING.replace("CHAIN", "x * g"), Extents(1024, places * 49 * 1024, 1024, 49, places))
    assert how.by_place and (how.vec, how.at_once) == (vec, at_once)


MANY = "; ".join(f"v{i} = tanh(x * {i}.5)" for i in range(9))
TILES = f"""
op: made
summary: Sums over rows of many values that are alive at once.
inputs: {{x: "bfloat16[R, C]"}}
outputs: {{y: "bfloat16[C]"}}
chain: |
  {MANY.replace("; ", chr(10) + "  ")}
  y = sum({" * ".join(f"(v{i} - v8)" for i in range(9))}, axis=R)
reference: x
"""


@pytest.mark.parametrize(("rows", "columns", "threads"), [(32768, 2048, 256), (1337, 50176, 128)])
def test_threads_that_need_many_registers_have_them(rows, columns, threads):
    """For 1024 threads of an SM the compiler would have to spill; smaller blocks are resident then where not all run at a time."""
    how = launched(TILES, Extents(columns, rows * columns, columns, rows))
    assert not how.whole and (how.threads, how.threads * how.resident, how.at_once) == (threads, 512, 2)


def test_short_rows_that_lie_apart_are_not_copied_one_by_one():
    """98 bytes each: their neighbours are of other blocks."""
    text = """
op: made
summary: Gradients of a bias of each head.
inputs: {x: "bfloat16[B, H, Q, S]", bias: "bfloat16[H, S]"}
outputs: {y: "bfloat16[B, H, Q, S]", z: "float32[H, S]"}
chain: |
  y = softmax(x + bias, axis=S)
  z = sum(y, axis=(B, Q))
reference: |
  y = x
  z = bias
"""
    for columns, by_runs in ((49, False), (197, True)):
        rows = 83 * 1024
        assert launched(text, Extents(columns, 16 * rows * columns, columns, rows, 16)).by_runs == by_runs


VALUES = "; ".join(f"v{i} = tanh(x * {i}.5)" for i in range(6))
HELD = f"""
op: made
summary: Rows of many expensive values, and sums over them.
inputs: {{x: "bfloat16[..., N]"}}
outputs: {{y: "bfloat16[..., N]", z: "float32[N]"}}
chain: |
  {VALUES.replace("; ", chr(10) + "  ")}
  most = max({" * ".join(f"v{i}" for i in range(6))}, axis=N)
  y = ({" + ".join(f"v{i}" for i in range(6))}) * most
  z = sum(y, axis=...)
reference: |
  y = x
  z = x
"""


def test_threads_hold_expensive_values_of_rows_that_come_to_shared_memory():
    """However many: registers hold nothing else of the row. Elsewhere, they must fit beside the rows in flight."""
    how = launched(HELD, Extents(4096, 2**26, 4096, 2**14))
    assert how.whole and how.staged and how.holds_expensive
    one_row = HELD.replace("axis=...", "axis=S").replace("...", "B, S").replace("float32[N]", "float32[B, N]")
    alone = launched(one_row, Extents(4096, 2**26, 4096, 1, 2**14))
    assert not alone.staged and not alone.holds_expensive


APART = """
op: made
summary: Gradients of a mean and of a weighted sum of each row, by a parameter.
inputs: {x: "bfloat16[..., N]", w: "bfloat16[..., N]", dy: "bfloat16[...]"}
outputs: {z: "float32[N]", dx: "bfloat16[..., N]"}
chain: |
  z = sum(tanh(x) * w * dy, axis=...)
  dx = w * dy
reference: |
  z = x
  dx = x
"""


def test_a_thread_of_a_tile_has_two_rows_in_flight():
    """One, of 32 bytes, left an H200's memory idle: 1.1 times as long, of seven kernels. Where many values are alive, there is one."""
    how = launched(APART, Extents(1024, 2**26, 1024, 2**16))
    assert not how.whole and how.at_once == 2
    values = "\n  ".join(f"t{i} = tanh(x * {i}.5)" for i in range(9))
    value = f"({' + '.join(f't{i}' for i in range(9))}) * ({' * '.join(f't{i}' for i in range(9))})"
    text = APART.replace("z = sum(tanh(x)", f"{values}\n  z = sum({value}")
    assert launched(text, Extents(1024, 2**26, 1024, 2**16)).at_once == 1


GATHERED = """
op: made
summary: Gradients of a norm of groups of channels, each with a scale of its own.
inputs: {dy: "T[B, H, C, S]", q: "int8[B, H, C, S]", scale: "float32[B, H, C]", weight: "T[H, C]"}
outputs: {dq: "T[B, H, C, S]", dweight: "T[H, C]"}
types: {T: [float32, bfloat16]}
chain: |
  x = q * scale
  g = dy * tanh(x)
  dq = g * weight * mean(g * x, axis=(C, S))
  dweight = sum(g * x, axis=(B, S))
reference: |
  dq = dy
  dweight = weight
"""


def test_gathered_values_do_not_keep_rows_from_being_prefetched():
    """Those of rows that are in flight are in registers, all else in shared memory."""
    how = launched(GATHERED, Extents(4096, 512 * 32 * 4096, 256, 512, 32))
    assert how.whole and how.staged and how.at_once > 1 and how.holds_expensive


def test_a_cosine_is_held_where_its_sine_is_computed():
    text = """
op: made
summary: Made.
inputs: {x: "float32[..., N]"}
outputs: {y: "float32[..., N]", z: "float32[N]"}
chain: |
  s = sin(x)
  y = cos(x) * max(s, axis=N)
  z = sum(y * s, axis=...)
reference: |
  y = x
  z = x
"""
    plan = read_op("specs/made.yaml", text).plan
    assert [(e.node.op, e.stage) for e in plan.expensive] == [("sin", 0), ("cos", 0)]


@pytest.mark.parametrize(("vec", "alive", "rows"), [(8, 6, 2), (8, 8, 2), (8, 10, 1), (4, 13, 2)])
def test_threads_hold_two_rows_of_expensive_values_if_registers_allow(vec, alive, rows):
    """They would hold one: its bytes take most of the room."""
    needs = walking.Needs(
        width=7 * vec,
        fixed=0,
        sums=4 * vec,
        stageable=True,
        costly=True,
        alive=alive,
        folds=0,
        wanted=NOTHING,
        shared=0,
        written=2 * vec,
    )
    call = PlannedCall({}, Extents(columns=4096, rows=2**14), arch="sm_90a")
    how = tiling.tiles(vec, False, needs, 1, 1, call)
    assert how.at_once == rows


@pytest.mark.parametrize(
    ("chain", "places", "rows", "alone"),
    [("x * g", 64, 16, True), ("x * g", 8, 16, False), ("x * g", 8, 4, True), ("gelu(x) * g", 64, 60, False)],
)
def test_few_rows_of_few_places_are_summed_by_one_kernel(chain, places, rows, alone):
    """A thread has all rows of a place, or a block does: parts of them would be added up by a second kernel."""
    how = launched(MEETING.replace("CHAIN", chain), Extents(1024, places * rows * 1024, 1024, rows, places))
    assert (how.by_place, how.settles) == (alone, not alone)


def test_small_blocks_have_few_rows_of_few_places():
    """So they run on all SMs, and each thread loads all its rows at once."""
    how = launched(MEETING.replace("CHAIN", "gelu(x) * g"), Extents(1024, 16 * 4 * 1024, 1024, 4, 16))
    assert (how.by_place, how.threads, how.at_once) == (True, 32, 4)


SCORES = """
op: made
summary: Rows of scores, and sums over their heads.
inputs: {x: "bfloat16[B, H, Q, S]", g: "bfloat16[B, H, Q, S]"}
outputs: {y: "bfloat16[B, H, Q, S]", z: "bfloat16[B, Q, S]"}
chain: |
  t = CHAIN
  y = t * mean(square(t), axis=S)
  z = sum(g * y, axis=H)
reference: |
  y = x
  z = x[:, 0]
"""


@pytest.mark.parametrize(("chain", "columns"), [("tanh(x)", 200), ("tanh(x)", 197), ("x * 2", 197)])
def test_ragged_rows_of_expensive_values_at_places_come_by_way_of_shared_memory(chain, columns):
    """Else each vector has a mask, and its values take most registers."""
    places = 434 * 49
    how = launched(SCORES.replace("CHAIN", chain), Extents(columns, places * 16 * columns, columns, 16, places))
    assert how.by_runs == (chain == "tanh(x)" and columns == 197) and how.by_place != how.by_runs


NORM = """
op: made
summary: A norm of each row, by a division or a product.
inputs: {{x: "bfloat16[..., N]", weight: "bfloat16[N]"}}
outputs: {{y: "bfloat16[..., N]"}}
params: {{temperature: 1.5}}
chain: |
  v = x {divided} temperature
  y = v {by} * weight
reference: x
"""


@pytest.mark.parametrize("columns", [128, 4096, 50257])
def test_a_division_by_what_a_row_shares_is_no_more_than_a_product(columns):
    sizes = Extents(columns, 2**27, columns, 2**27 // columns)
    divided = launched(NORM.format(divided="/", by="/ sqrt(sum(square(v), axis=N) + 1e-6)"), sizes)
    product = launched(NORM.format(divided="*", by="* rsqrt(sum(square(v), axis=N) + 1e-6)"), sizes)
    assert divided == product
    each = launched(NORM.format(divided="/ weight *", by="/ sqrt(sum(square(v), axis=N) + 1e-6)"), sizes)
    assert each.holds_expensive  # a reciprocal of each element, which is not computed again


@pytest.mark.parametrize(("kept", "cluster"), [(0, 4), (4, 8)])
def test_a_larger_cluster_shares_a_row_where_threads_would_spill(kept, cluster):
    """What they keep from one sweep to the next decides: gradients of rows of 50304 took an H100 308 us in clusters of 4, and 265 in
    clusters of 8."""
    row = cost.Held(0, (2, 2))
    wanted = cost.Wanted(row, [(4, cost.Held(kept, (2, 2))), (6, NOTHING.row)])
    needs = walking.Needs(
        width=32, fixed=16, sums=32, stageable=True, costly=False, alive=6, folds=1, wanted=wanted, shared=1
    )
    how = walking.whole(8, False, needs, 1, PlannedCall({}, Extents(columns=50304, rows=1334), arch="sm_90a"))
    assert how is not None and how.cluster == cluster


def test_warps_of_a_part_of_an_sm_share_its_registers():
    assert [registers_of_thread(n) for n in (128, 384, 416, 512, 544, 2048)] == [255, 168, 128, 128, 96, 32]


@pytest.mark.parametrize(("costly", "rows"), [(False, 3), (True, 2)])
def test_few_rows_of_expensive_values_are_in_flight(costly, rows):
    """Ragged rows of bfloat16: the instructions for each row in flight are the kernel's own."""
    text = "op: made\nsummary: S.\ninputs: {x: 'bfloat16[R, N]'}\noutputs: {y: 'float32[N]', z: 'float32[N]'}\n"
    chain = "chain: |\n  v = F\n  y = sum(v, axis=R)\n  z = sum(square(v), axis=R)\nreference: |\n  y = x\n  z = x"
    plan = read_op("specs/made.yaml", text + chain.replace("F", "softplus(x)" if costly else "x * 2.0")).plan
    call = PlannedCall(
        {"x": "bfloat16", "y": "float32", "z": "float32"}, Extents(8191, 8193 * 8191, 8191, 8193), arch="sm_90a"
    )
    how = plan.launch(call)
    assert how.by_runs and how.at_once == rows
