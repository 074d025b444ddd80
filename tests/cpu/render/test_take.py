"""Gathering along a named axis: the kernel, interpreted, and the jnp form against their reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.autodiff.backward import Derived
from codegen.checking.testing import check_gradient, check_op
from codegen.runtime.call import arguments
from tests.making import make_op, spec_text
from tests.turns import EVERY, some

SPEC = """
op: embed
summary: Add the position's row of a table.
types:
  T: [float32, bfloat16]
inputs:
  x: T[..., N]
  table: float32[P, N]
  positions: int32[...]
outputs:
  y: T[..., N]
chain: |
  y = x + take(table, positions, axis=P)
reference: x + jnp.take(table, jnp.clip(positions, 0, table.shape[0] - 1), axis=0)
domain:
  positions: index(P)
grad: none
"""


@pytest.mark.parametrize("implementation", ["xla", "interpret"])
def test_a_gather_agrees_with_its_reference(implementation, tmp_path):
    check_op(make_op(tmp_path, SPEC), implementation, examples=10)


# The same, with other orders of the table's and the positions' axes: `y` for x = 0, in NumPy
PLACES = {
    ("N, P", "..."): lambda table, i: table[:, i].T,
    ("P, N", "N"): lambda table, i: table[i, np.arange(4)][None] + np.zeros((3, 4), "float32"),
    ("P, N", "..., N"): lambda table, i: table[i, np.arange(4)],
    ("..., P, N", "..."): lambda table, i: table[np.arange(3), i],
    ("P", "..., N"): lambda table, i: table[i],
    ("..., P", ""): lambda table, i: table[:, i, None] + np.zeros((3, 4), "float32"),
}
EXTENTS = {"...": 3, "N": 4, "P": 5}


@pytest.mark.each
@pytest.mark.parametrize("implementation", ["xla", "interpret"])
@pytest.mark.parametrize("places", PLACES, ids=" by ".join)
def test_table_and_positions_meet_by_name(places, implementation, tmp_path, strict_jax):
    text = SPEC.replace("float32[P, N]", f"float32[{places[0]}]").replace("int32[...]", f"int32[{places[1]}]")
    table, i = (tuple(EXTENTS[axis] for axis in place.split(", ") if axis) for place in places)
    table = np.arange(np.prod(table), dtype=np.float32).reshape(table)
    i = np.random.default_rng(0).integers(-2, 8, i).astype(np.int32)  # clipped to 0 .. 4
    y = make_op(tmp_path, text)(np.zeros((3, 4), np.float32), table, i, implementation=implementation)
    np.testing.assert_array_equal(y, PLACES[places](table, np.clip(i, 0, 4)))


# A table without rows


def empty(rows: tuple[int, ...], n: int):
    return jnp.zeros((*rows, n)), jnp.zeros((0, n)), jnp.zeros(rows, "int32")


@pytest.mark.parametrize("implementation", ["xla", "interpret", "cute", None])
def test_an_empty_table_has_no_value_to_give(implementation, tmp_path):
    op = make_op(tmp_path, SPEC)
    message = (
        r"^embed: 'table' has shape \(0, 3\) for float32\[P, N\]: P is 0, "
        "and 'positions' has no value to take from an empty axis"
    )
    with pytest.raises(ValueError, match=message):
        op(*empty((2,), 3), implementation=implementation)
    with pytest.raises(ValueError, match=message):
        jax.jit(lambda *arrays: op(*arrays, implementation=implementation))(*empty((2,), 3))
    with pytest.raises(ValueError, match=message):
        jax.vmap(lambda x, t, i: op(x, t, i, implementation=implementation), (0, None, 0))(*empty((2,), 3))


def test_an_empty_table_where_another_output_is_empty(tmp_path):
    spec = spec_text("x: float32[B, S]; table: float32[V]; i: int32[B]", "y: float32[B, S]; m: float32[B]",
                     "m = sum(x, axis=S) + take(table, i, axis=V); y = x + m")  # fmt: skip
    arrays = jnp.zeros((3, 0)), jnp.zeros(0), jnp.zeros(3, jnp.int32)
    with pytest.raises(ValueError, match="V is 0, and 'i' has no value to take from an empty axis"):
        make_op(tmp_path, spec)(*arrays, implementation="interpret")


@pytest.mark.each
@pytest.mark.parametrize("implementation", ["xla", "interpret", None])
@pytest.mark.parametrize(("rows", "n"), [((0,), 3), ((2,), 0), ((0, 3), 3), ((3, 0), 3)])
def test_an_empty_output_takes_nothing_from_an_empty_table(rows, n, implementation, tmp_path):
    y = make_op(tmp_path, SPEC)(*empty(rows, n), implementation=implementation)
    assert y.shape == (*rows, n)


@pytest.mark.parametrize("chain", ["y = take(table, positions, axis=P)", "y = x * take(table, positions, axis=P)"])
def test_rows_of_a_table_get_their_gradient_by_index(chain, tmp_path):
    """The gradients of repeated indices add up, and those of indices out of range go to the ends; also if the table's
    values are used nowhere else."""
    more = ["x"] * chain.startswith("y = x")
    taken = "jnp.take(table, jnp.clip(positions, 0, table.shape[0] - 1), axis=0)"
    op = make_op(
        tmp_path,
        "op: made\nsummary: Made here.\ntypes:\n  T: [float32, bfloat16]\n"
        "inputs:\n  table: T[P, N]\n  positions: int32[...]\n" + "".join(f"  {x}: T[..., N]\n" for x in more) +
        f"outputs:\n  y: T[..., N]\nchain: |\n  {chain}\nreference: |\n  y = {' * '.join([*more, taken])}\n"
        "domain:\n  positions: index(P)\n",
    )  # fmt: skip
    assert isinstance(op.backward, Derived)
    check_gradient(op, "interpret")
    at, others = jnp.asarray([[3, 0, 3], [-2, 9, 3]]), [jnp.full((2, 3, 40), 2.0) for _ in more]
    dtable = jax.grad(lambda table: op(table, at, *others, implementation="interpret").sum())(jnp.ones((4, 40)))
    np.testing.assert_array_equal(dtable[:, 7], np.array([2, 0, 0, 4]) * 2 ** len(more))


OWN_AXIS = {  # the table's axis is an axis of the op: inputs, output, chain, reference
    "rows": ("x: T[P, N]; t: T[P, N]; i: int32[P]", "T[P, N]", "x * take(t, i, axis=P)", "x * jnp.take(t, i, 0, mode='clip')"),
    "columns": ("x: T[..., N]; t: T[N]; i: int32[N]", "T[..., N]", "x + take(t, i, axis=N)", "x + jnp.take(t, i, 0, mode='clip')"),
    "itself": ("t: float32[P, N]; i: int32[P]", "float32[P, N]", "t * take(t, i, axis=P)", "t * jnp.take(t, i, 0, mode='clip')"),
    "vector": ("t: T[P]; i: int32[P]", "T[P]", "take(t, i, axis=P)", "jnp.take(t, i, 0, mode='clip')"),
    "row_sums": ("t: T[P, N]; i: int32[P]", "T[P]", "sum(take(t, i, axis=P), axis=N)", "jnp.take(t, i, 0, mode='clip').sum(-1)"),
    "centred": (
        "x: T[P, N]; t: T[P, N]; i: int32[P]", "T[P, N]", "x - mean(take(t, i, axis=P), axis=N)",
        "x - jnp.mean(jnp.take(t, i, 0, mode='clip'), -1, keepdims=True)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", some(OWN_AXIS, 3))
def test_indices_along_an_axis_that_the_op_has_itself(name, tmp_path):
    """A row is selected by its index, not by its own position."""
    inputs, output, chain, reference = OWN_AXIS[name]
    op = make_op(
        tmp_path,
        spec_text(
            inputs, f"y: {output}", f"y = {chain}", f"y = {reference}",
            more=f"domain: {{i: index({'N' if 'int32[N]' in inputs else 'P'})}}\n",
            types="{T: [float32, bfloat16]}" if "T[" in inputs else "",
        ),
    )  # fmt: skip
    for implementation in ("xla", "interpret"):
        check_op(op, implementation)
    check_gradient(op, "interpret")
    assert isinstance(op.backward, Derived)


SCATTERED = {  # inputs, output, chain, reference
    "one_value_a_row": ("t: float32[P, N]; i: int32[...]; s: float32[...]", "float32[...]",
        "sum(take(t, i, axis=P), axis=N) * s", "jnp.take(t, i, 0, mode='clip').sum(-1) * s"),
    "columns": ("t: float32[P, N]; i: int32[...]", "float32[N]",
        "sum(take(t, i, axis=P), axis=...)", "jnp.take(t, i.reshape(-1), 0, mode='clip').sum(0)"),
    "everything": ("t: float32[P, N]; i: int32[...]", "float32[]",
        "mean(take(t, i, axis=P), axis=(..., N))", "jnp.mean(jnp.take(t, i, 0, mode='clip'))"),
    "a_wider_type": ("x: float64[..., N]; t: float32[P, N]; i: int32[...]", "float64[..., N]",
        "x * take(t, i, axis=P)", "x * jnp.take(t, i, 0, mode='clip')"),
}  # fmt: skip


@pytest.mark.parametrize("name", some(SCATTERED, 2))
def test_a_tables_gradient_has_the_axes_of_what_is_taken(name, tmp_path):
    inputs, output, chain, reference = SCATTERED[name]
    op = make_op(
        tmp_path,
        spec_text(inputs, f"y: {output}", f"y = {chain}", f"y = {reference}", more="domain: {i: index(P)}\n"),
    )
    check_gradient(op, "interpret")


@pytest.mark.parametrize(
    ("places", "implementation"), [*((p, "xla") for p in PLACES), *((p, "interpret") for p in some(PLACES, 3))]
)
def test_a_tables_gradient_is_added_up_along_any_axis(places, implementation, tmp_path, strict_jax):
    """Each element has its own weight, so that a gradient in the wrong place is found."""
    text = SPEC.replace("float32[P, N]", f"float32[{places[0]}]").replace("int32[...]", f"int32[{places[1]}]")
    op = make_op(tmp_path, text.replace("x + take(table", "x * take(table").replace("grad: none", ""))
    assert isinstance(op.backward, Derived)
    table, i = (tuple(EXTENTS[axis] for axis in place.split(", ") if axis) for place in places)
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    i = np.random.default_rng(0).integers(-2, 8, i).astype(np.int32)
    _, pull = jax.vjp(lambda t: jnp.asarray(x) * PLACES[places](t, np.clip(i, 0, 4)), jnp.zeros(table))
    found = jax.grad(lambda t: op(x, t, i, implementation=implementation).sum())(jnp.zeros(table))
    np.testing.assert_array_equal(found, pull(jnp.ones((3, 4)))[0])


@pytest.mark.parametrize("mapped", [(None, 0), (0, 0)], ids=["indices", "both"])
def test_a_tables_gradient_under_vmap(mapped, tmp_path):
    text = (
        SPEC.replace("float32[P, N]", "float32[N, P]")
        .replace("x + take(table", "x * take(table")
        .replace("grad: none", "")
    )
    op, random = make_op(tmp_path, text), np.random.default_rng(0)
    x, i = np.arange(1, 13, dtype=np.float32).reshape(3, 4), random.integers(0, 5, (2, 3)).astype(np.int32)
    table = jnp.asarray(random.standard_normal((2, 4, 5)[mapped[0] is None :]), "float32")
    one = jax.grad(lambda t, i: jnp.sin(op(x, t, i, implementation="interpret")).sum())
    wanted = jax.grad(lambda t, i: jnp.sin(x * t[:, i].T).sum())
    np.testing.assert_allclose(
        jax.vmap(one, mapped)(table, i), jax.vmap(wanted, mapped)(table, i), rtol=1e-5, atol=1e-6
    )


ROWS = "x: T[..., N]; t: T[P, N]; i: int32[...]"
SEVERAL = {  # a table that is gathered from and also read: inputs, output, chain, reference
    "two_indices": (f"{ROWS}; j: int32[...]", "T[..., N]", "x * take(t, i, axis=P) + take(t, j, axis=P)",
        "x * jnp.take(t, i, 0, mode='clip') + jnp.take(t, j, 0, mode='clip')"),
    "an_index_twice": (ROWS, "T[..., N]", "take(t, i, axis=P) + x * sum(square(take(t, i, axis=P)), axis=N)",
        "jnp.take(t, i, 0, mode='clip') + x * jnp.square(jnp.take(t, i, 0, mode='clip')).sum(-1, keepdims=True)"),
    "bags": ("t: T[P, N]; i: int32[..., S]; j: int32[..., S]", "T[..., N]",
        "mean(take(t, i, axis=P), axis=S) + sum(take(t, j, axis=P), axis=S)",
        "jnp.take(t, i, 0, mode='clip').mean(-2) + jnp.take(t, j, 0, mode='clip').sum(-2)"),
    "all": ("t: T[P, N]; i: int32[P]; j: int32[P]", "T[P, N]", "t * take(t, i, axis=P) * take(t, j, axis=P)",
        "t * jnp.take(t, i, 0, mode='clip') * jnp.take(t, j, 0, mode='clip')"),
}  # fmt: skip


def test_a_table_that_is_read_beside_what_is_taken_from_it(tmp_path):
    """Along the columns: each row at its own index, which is not a column of the kernel."""
    x, t = (np.random.default_rng(i).standard_normal(s).astype("float32") for i, s in enumerate([(3, 8), (8,)]))
    s, i = np.ones(3, "float32"), np.array([1, 4, 1], np.int32)
    inputs = "t: float32[N]; i: int32[...]; x: float32[..., N]"
    product = make_op(tmp_path, spec_text(inputs, "y: float32[..., N]", "y = x * t * take(t, i, axis=N)"))
    sums = make_op(tmp_path, spec_text(inputs, "p: float32[N]", "p = sum(take(t, i, axis=N) * x, axis=...)"))
    added = make_op(tmp_path, spec_text(f"{inputs}; s: float32[...]", "y: float32[..., N]",
                                        "y = sin(x) + t + take(t, i, axis=N) + s"))  # fmt: skip
    assert all(isinstance(op.backward, Derived) for op in (product, added))
    for implementation in ("xla", "interpret"):
        got = jax.grad(lambda x, t, how=implementation: product(t, i, x, implementation=how).sum(), (0, 1))(x, t)
        wanted = jax.grad(lambda x, t: (x * t * t[i][:, None]).sum(), (0, 1))(x, t)
        for own, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(sums(t, i, x, implementation=implementation), (t[i][:, None] * x).sum(0), rtol=1e-5)
        for places in some(((0,), (0, 1), (0, 1, 2)), 2):
            got = jax.grad(lambda s, x, t, how=implementation: added(t, i, x, s, implementation=how).sum(), places)(
                s, x, t
            )
            wanted = jax.grad(lambda s, x, t: (jnp.sin(x) + t + t[i][:, None] + s[:, None]).sum(), places)(s, x, t)
            for own, other in zip(got, wanted, strict=True):
                np.testing.assert_allclose(own, other, rtol=1e-5)


def test_tables_leave_what_else_has_the_same_gradient_alone(tmp_path):
    inputs = "x: float32[..., N]; a: float32[P, N]; b: float32[P, N]; i: int32[...]"
    op = make_op(tmp_path, spec_text(inputs, "y: float32[..., N]", "y = x + take(a, i, axis=P) + take(b, i, axis=P)"))
    assert [(name, array.name) for name, array in op.backward.how.same] == [("x", "dy")]


@pytest.mark.parametrize("name", some(SEVERAL, 2))
def test_all_that_is_taken_from_a_table_adds_to_its_gradient(name, tmp_path):
    inputs, output, chain, reference = SEVERAL[name]
    domains = ", ".join(f"{i}: index(P)" for i in "ij" if f"{i}: int32" in inputs)
    op = make_op(tmp_path, spec_text(inputs, f"y: {output}", f"y = {chain}", f"y = {reference}",
                                     more=f"domain: {{{domains}}}\n", types="{T: [float32, bfloat16]}"))  # fmt: skip
    assert isinstance(op.backward, Derived)
    check_gradient(op, "interpret")
    assert len(op.backward.how.scattered) == (1 if name == "an_index_twice" else 2)


IN_PARTS = {  # inputs, output, chain, reference: tables and indices with split axes or parts
    "split": ("x: T[..., (B G=4)]; t: T[P, (B G=4)]; i: int32[...]", "T[..., (B G=4)]",
        "x * take(t, i, axis=P)", "x * jnp.take(t, i, 0, mode='clip')"),
    "split_indices": ("t: T[P]; i: int32[..., (B G=4)]", "T[..., (B G=4)]",
        "square(take(t, i, axis=P))", "jnp.square(jnp.take(t, i, mode='clip'))"),
    "along_half_of_a_split": ("x: T[..., N]; t: T[(P G=2), N]; i: int32[...]", "T[..., N]",
        "x * sum(take(t, i, axis=P), axis=G)",
        "x * jnp.take(t.reshape(t.shape[0] // 2, 2, t.shape[1]), i, 0, mode='clip').sum(-2)"),
    "a_part": ("t: T[P, (N 2)]; i: int32[...]; x: T[..., N]", "T[..., N]",
        "x * take(t[1], i, axis=P)", "x * jnp.take(t[..., 1::2], i, 0, mode='clip')"),
    "halves": ("t: T[P, (2 N)]; i: int32[...]; x: T[..., N]", "T[..., N]",
        "x * take(t[0], i, axis=P) + square(take(t[1], i, axis=P))",
        "x * jnp.take(t[:, :x.shape[-1]], i, 0, mode='clip') + jnp.square(jnp.take(t[:, x.shape[-1]:], i, 0, mode='clip'))"),
    "read_besides": ("t: T[N, 2]; i: int32[..., N]", "T[..., N]",
        "t[0] * take(t[1], i, axis=N)", "t[:, 0] * jnp.take(t[:, 1], i, mode='clip')"),
}  # fmt: skip


@pytest.mark.parametrize("name", some(IN_PARTS, 2))
def test_a_tables_gradient_in_parts_and_split_axes(name, tmp_path):
    inputs, output, chain, reference = IN_PARTS[name]
    op = make_op(
        tmp_path,
        spec_text(
            inputs, f"y: {output}", f"y = {chain}", f"y = {reference}", types="{T: [float32, bfloat16]}",
            more=f"domain: {{i: index({'N' if name == 'read_besides' else 'P'})}}\n",
        ),
    )  # fmt: skip
    assert isinstance(op.backward, Derived), op.backward
    assert op.backward.how.scattered
    check_op(op, "interpret", examples=5 if EVERY else None)
    check_gradient(op, "interpret")


ALONG_COLUMNS = {  # ops that reduce and gather at an index for each column: inputs, output, chain, reference, kind
    "normalised": ("x: T[..., N]; t: T[N]; i: int32[N]", "T[..., N]",
        "x * take(t, i, axis=N) * rsqrt(mean(square(x), axis=N) + 1e-3)",
        "x * jnp.take(t, i, mode='clip') * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-3)", "row"),
    "of_each_element": ("x: T[..., N]; t: T[P]; i: int32[..., N]", "T[...]", "sum(x * take(t, i, axis=P), axis=N)",
        "jnp.sum(x * jnp.take(t, i, mode='clip'), -1)", "row"),
    "a_rows_own": ("x: T[..., N]; t: T[..., P]; i: int32[N]", "T[..., N]", "x - mean(take(t, i, axis=P), axis=N)",
        "x - jnp.mean(jnp.take(t, i, -1, mode='clip'), -1, keepdims=True)", "row"),
    "over_rows": ("x: T[..., N]; t: T[N]; i: int32[N]", "T[N]", "sum(x * take(t, i, axis=N), axis=...)",
        "(x * jnp.take(t, i, mode='clip')).reshape(-1, t.shape[0]).sum(0)", "column"),
    "one_of_two_column_axes": ("x: T[..., H, D]; t: T[P, D]; i: int32[..., H]", "T[..., H, D]",
        "x * take(t, i, axis=P) / (1 + sum(square(x), axis=(H, D)))",
        "x * jnp.take(t, i, 0, mode='clip') / (1 + jnp.sum(jnp.square(x), (-2, -1), keepdims=True))", "row"),
    "shared_by_a_vector": ("x: T[..., H, D]; t: T[P]; i: int32[H]", "T[..., H, D]",
        "x * take(t, i, axis=P) / (1 + sum(square(x), axis=(H, D)))",
        "x * jnp.take(t, i, mode='clip')[:, None] / (1 + jnp.sum(jnp.square(x), (-2, -1), keepdims=True))", "row"),
    "beside_an_axis_that_all_have": ("x: T[..., H, D]; t: T[H, D]; i: int32[H, D]", "T[...]",
        "sum(x * take(t, i, axis=H), axis=(H, D))",
        "jnp.sum(x * jnp.take_along_axis(t, jnp.clip(i, 0, t.shape[0] - 1), 0), (-2, -1))", "staged"),
    "half_of_a_split": ("x: T[..., (B G=8)]; t: T[(B G=8)]; i: int32[(B G=8)]", "T[..., (B G=8)]",
        "x * take(t, i, axis=B) / (1 + max(abs(x), axis=G))",
        "z = x.reshape(x.shape[:-1] + (x.shape[-1] // 8, 8)); u = t.reshape(t.shape[0] // 8, 8);"
        "j = jnp.clip(i.reshape(u.shape), 0, u.shape[0] - 1);"
        "y = (z * jnp.take_along_axis(u, j, 0) / (1 + jnp.max(jnp.abs(z), -1, keepdims=True))).reshape(x.shape)", "row"),
    "a_row_of_all_that_meet": ("x: T[S, D]; t: T[S, D]; i: int32[]", "T[S, D]", "x * take(t, i, axis=S); z = sum(x, axis=S)",
        "y = x * jnp.take(t, i, 0, mode='clip'); z = x.sum(0)", "column"),
    "two_indices_of_pairs": ("x: T[..., N]; t: T[P, (N 2)]; i: int32[...]; j: int32[...]", "T[..., N]",
        "softmax(x * take(t[0], i, axis=P) + take(t[1], j, axis=P), axis=N)",
        "jax.nn.softmax(x * jnp.take(t[:, 0::2], i, 0, mode='clip') + jnp.take(t[:, 1::2], j, 0, mode='clip'), -1)", "row"),
}  # fmt: skip
TAKEN_ALONG = {"normalised": "N", "a_rows_own": "P", "over_rows": "N", "beside_an_axis_that_all_have": "H", "half_of_a_split": "B",
               "a_row_of_all_that_meet": "S"}  # fmt: skip


WITH_GRADIENT = some(ALONG_COLUMNS, 4)  # their gradients, of several kernels, are interpreted too


@pytest.mark.parametrize("name", some(ALONG_COLUMNS, 2))
def test_an_index_along_the_columns_of_an_op_that_reduces(name, tmp_path):
    inputs, output, chain, reference, kind = ALONG_COLUMNS[name]
    domains = ", ".join(f"{i}: index({TAKEN_ALONG.get(name, 'P')})" for i in "ij" if f"{i}: int32" in inputs)
    op = make_op(
        tmp_path,
        spec_text(
            inputs, f"y: {output}" + ("; z: T[D]" if "z = sum" in chain else ""), f"y = {chain}",
            reference if "y = " in reference else f"y = {reference}", f"domain: {{{domains}}}\n", "{T: [float32, bfloat16]}",
        ),
    )  # fmt: skip
    assert op.plan.kind == kind
    assert isinstance(op.backward, Derived)
    check_op(op, "xla", examples=10 if EVERY else 2)
    check_op(op, "interpret", examples=20 if EVERY else None)
    check_gradient(op, "interpret" if name in WITH_GRADIENT else "xla")


def test_long_rows_gather_at_an_index_along_them(tmp_path):
    """Rows that registers cannot hold, shared by a cluster's blocks; each element has its own index."""
    op = make_op(
        tmp_path,
        spec_text("x: float32[..., N]; t: float32[P]; i: int32[..., N]", "y: float32[...]",
                  "y = sum(x * take(t, i, axis=P), axis=N)"),
    )  # fmt: skip
    rng, n = np.random.default_rng(0), 70_001
    x, t = rng.integers(-4, 5, (2, n)).astype("float32"), rng.integers(-4, 5, 1000).astype("float32")
    i = rng.integers(-5, 1005, (2, n)).astype("int32")
    wanted = (x.astype("float64") * t[np.clip(i, 0, 999)]).sum(-1)
    np.testing.assert_array_equal(op(x, t, i, implementation="interpret"), wanted)


def test_indices_narrower_than_the_table(tmp_path):
    op = make_op(
        tmp_path,
        spec_text(
            "x: float32[..., N]; t: float32[P, N]; i: uint8[...]", "y: float32[..., N]", "y = x + take(t, i, axis=P)"
        ),
    )
    at, table = jnp.asarray([100, 100, 7], "uint8"), jnp.zeros((300, 4))
    found = jax.grad(lambda t: op(jnp.zeros((3, 4)), t, at, implementation="interpret").sum())(table)
    np.testing.assert_array_equal(np.nonzero(np.asarray(found[:, 0]))[0], [7, 100])


def test_an_epilogue_reads_no_index_past_the_products_last_column(tmp_path):
    """Its vectors may end there, and its tiles do: the index array ends too."""
    op = make_op(
        tmp_path,
        spec_text(
            "x: float32[..., K]; w: float32[K, N]; t: float32[P]; i: int32[N]", "y: float32[..., N]",
            "y = x @ w + take(t, i, axis=P)", "y = x @ w + jnp.take(t, i, 0, mode='clip')", more="domain: {i: index(P)}\n",
        ),
    )  # fmt: skip
    x, w, t = (np.linspace(-1, 1, n * m).reshape(n, m).astype(np.float32) for n, m in ((5, 8), (8, 33), (1, 7)))
    i = (np.arange(33) * 5 % 7).astype(np.int32)
    got = op(x, w, t[0], i, implementation="interpret")
    np.testing.assert_allclose(got, x @ w + t[0][i], rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("places", "held"),
    [(64, True), (8, False), (400, False), (5000, False)],
    ids=["small", "one line", "nearly as many elements as a block's outputs", "large"],
)
def test_a_small_table_is_read_from_shared_memory(places, held, tmp_path):
    text = spec_text(
        "code: uint8[..., N]; book: T[P, G=4]", "y: T[..., N, G=4]", "y = take(book, (code + 3) % size(P), axis=P)", "y = book",
        types="{T: [float32, bfloat16]}",
    )  # fmt: skip
    op = make_op(tmp_path, text)
    book = jax.random.normal(jax.random.key(1), (places, 4))
    for columns in (64, 9):
        code = jax.random.randint(jax.random.key(0), (5, columns), 0, 255).astype(jnp.uint8)
        key, operands = op.bind((code, book), {})
        how = op.launch_for(key.types, arguments.bind_axes(op.spec, op.arrays(key, operands)))
        assert how.tables == ((places * 4,) if held else ())
        expected = book[(code.astype(jnp.int32) + 3) % places]
        np.testing.assert_array_equal(op(code, book, implementation="interpret"), expected)
