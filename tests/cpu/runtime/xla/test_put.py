"""`put`: an output that is another array but for the elements at an index's places."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import generated
from codegen.checking import testing
from codegen.interpret.machine import InterpretError
from tests.making import make_op, spec_text
from tests.meshes import normal
from tests.turns import EVERY, some

# The axis that is written along is first, in the middle, or last; a batch is shared, or not; q has axes of its own
OPS = {
    "batches": (
        "cache: T[B, P, D]; x: T[B, S, D]; i: int32[B, S]", "y: T[B, P, D]", "y = put(cache, tanh(x), i, axis=P)",
        "n = cache.shape[1]; b = jnp.arange(cache.shape[0])[:, None]; "
        'y = cache.at[b, jnp.where(i < 0, n, i)].set(jnp.tanh(x).astype(cache.dtype), mode="drop")',
    ),
    "last_axis_and_more": (
        "cache: T[N, P]; x: float32[N, S]; i: int32[S]; q: T[N, K]", "y: T[N, P]; r: T[N, K]; m: float32[N]",
        "m = max(q, axis=K); y = put(cache, x * m, i, axis=P); r = q * 2",
        "n = cache.shape[1]; m = jnp.max(q, axis=1); r = q * 2; "
        'y = cache.at[:, jnp.where(i < 0, n, i)].set((x * m[:, None]).astype(cache.dtype), mode="drop")',
    ),
    "sums": (
        "table: T[B, P, D]; x: T[B, S, D]; w: float32[B, S]; i: int32[B, S]", "y: T[B, P, D]",
        "y = put(table, x * w, i, axis=P, how=add)",
        "n = table.shape[1]; b = jnp.arange(table.shape[0])[:, None]; "
        'y = table.at[b, jnp.where(i < 0, n, i)].add(x * w[..., None], mode="drop")',
    ),
    "extremes": (
        "table: T[B, P, D]; x: T[B, S, D]; w: float32[B, S]; i: int32[B, S]", "y: T[B, P, D]",
        "y = put(table, x * w, i, axis=P, how=max)",
        "n = table.shape[1]; b = jnp.arange(table.shape[0])[:, None]; "
        'y = table.at[b, jnp.where(i < 0, n, i)].max(x * w[..., None], mode="drop")',
    ),
    "sums_of_normalised_rows_and_more": (
        "table: T[N, P]; x: float32[N, S]; i: int32[S]; q: T[N, S]", "y: T[N, P]; r: T[N, S]",
        "m = softmax(x, axis=S); y = put(table, m, i, axis=P, how=add); r = m * q",
        "n = table.shape[1]; m = jax.nn.softmax(x, axis=1); r = m * q; "
        'y = table.at[:, jnp.where(i < 0, n, i)].add(m, mode="drop")',
    ),
    "histogram": (
        "counts: int32[K, P]; low: int32[K, P]; bin: int32[..., N]; x: int32[..., N]",
        "y: int32[K, P]; z: int32[K, P]",
        "y = put(counts, 1 + index(K), bin, axis=P, how=add); z = put(low, x, bin, axis=P, how=min)",
        "n = counts.shape[1]; b = jnp.where(bin < 0, n, bin).reshape(-1); "
        "k = 1 + jnp.arange(counts.shape[0], dtype=jnp.int32)[:, None]; "
        'y = counts.at[:, b].add(jnp.broadcast_to(k, (k.size, b.size)), mode="drop"); '
        'z = low.at[:, b].min(jnp.broadcast_to(x.reshape(-1)[None], (k.size, b.size)), mode="drop")',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", some(OPS, 2))
def test_values_and_gradients(name, tmp_path):
    inputs, outputs, chain, reference = OPS[name]
    op = make_op(
        tmp_path,
        spec_text(inputs, outputs, chain, reference, types="{T: [float32, bfloat16]}" if "T[" in inputs else ""),
    )
    for implementation in ("interpret", "xla"):
        testing.check_op(op, implementation, examples=1)
        if name != "histogram":  # of integers
            testing.check_gradient(op, implementation, examples=2 if EVERY else None)


WRITE = generated.write_kv_cache
KEYS, NEW = normal(6, 2, 4).astype(jnp.bfloat16), normal(3, 2, 4, seed=1).astype(jnp.bfloat16)


def expected(slots):
    made = np.array(KEYS)
    for place, slot in enumerate(slots):
        if 0 <= slot < 6:
            made[slot] = np.asarray(NEW[place])
    return made


def test_slots_out_of_range_write_nothing_and_the_cache_is_not_changed():
    before = np.array(KEYS)
    for implementation in ("interpret", "xla"):
        keys, values = WRITE(KEYS, KEYS, NEW, NEW, jnp.asarray([4, -1, 9]), implementation=implementation)
        np.testing.assert_array_equal(keys, expected([4, -1, 9]))
        np.testing.assert_array_equal(values, expected([4, -1, 9]))
    np.testing.assert_array_equal(KEYS, before)


def test_values_at_one_place_are_added_and_those_out_of_range_are_not():
    residual, y, weight = jnp.asarray([[1.0], [2.0]]), jnp.asarray([[1.0], [2.0], [4.0], [8.0]]), jnp.ones(4)
    for implementation in ("interpret", "xla"):
        out = generated.combine_experts(residual, y, weight, jnp.asarray([1, -1, 2, 1]), implementation=implementation)
        np.testing.assert_array_equal(out, [[1.0], [11.0]])


def test_ties_share_the_gradient_of_an_extreme_and_nan_wins(tmp_path):
    reference = 'y = table.at[jnp.where(i < 0, table.size, i)].min(2 * x, mode="drop")'
    text = spec_text(
        "table: float32[P]; x: float32[S]; i: int32[S]",
        "y: float32[P]",
        "y = put(table, 2 * x, i, axis=P, how=min)",
        reference,
    )
    op = make_op(tmp_path, text)
    table, x = jnp.asarray([4.0, 1.0, 7.0, 0.0]), jnp.asarray([2.0, 0.5, 3.0, 0.5, jnp.nan, -9.0])
    i = jnp.asarray([0, 1, 2, 1, 3, -1])
    for implementation in ("interpret", "xla"):
        y, pulled = jax.vjp(lambda t, x, how=implementation: op(t, x, i, implementation=how), table, x)
        np.testing.assert_array_equal(y, [4.0, 1.0, 6.0, jnp.nan])
        dtable, dx = pulled(jnp.asarray([1.0, 3.0, 1.0, 0.0]))
        np.testing.assert_allclose(dtable[:3], [0.5, 1.0, 0.0])
        np.testing.assert_allclose(dx[:4], [1.0, 2.0, 2.0, 2.0])


@pytest.mark.parametrize(("value", "dtype"), [("x", "float32"), ("cast(x, T)", "T")])
def test_what_is_added_is_written_in_the_type_of_its_cast(value, dtype, tmp_path):
    chain = f"y = put(table, {value}, i, axis=P, how=add)"
    text = spec_text("table: T[P]; x: T[S]; i: int32[S]", "y: T[P]", chain, "y = table", types="{T: [bfloat16]}")
    op = make_op(tmp_path, text)
    assert [a.dtype for a in op.plan.stages[0].spec.outputs] == [dtype]
    given = jnp.asarray([1.0, 2.0], jnp.bfloat16), jnp.asarray([1.0, 2.0, 4.0], jnp.bfloat16), jnp.asarray([1, 1, 0])
    np.testing.assert_array_equal(op(*given, implementation="interpret"), jnp.asarray([5.0, 5.0], jnp.bfloat16))


def test_the_interpreter_finds_two_values_for_one_slot():
    with pytest.raises(InterpretError):
        WRITE(KEYS, KEYS, NEW, NEW, jnp.asarray([4, 4, 1]), implementation="interpret")


def test_mapped_and_jitted():
    slots = jnp.asarray([[1, 2, 3], [5, 0, -7]])
    run = jax.jit(jax.vmap(lambda i: WRITE(KEYS, KEYS, NEW, NEW, i, implementation="interpret")[0]))
    np.testing.assert_array_equal(run(slots), [expected(own) for own in slots])


def test_after_a_product(tmp_path):
    text = spec_text(
        "a: bfloat16[S, K]; w: bfloat16[K, N]; cache: bfloat16[P, N]; i: int32[S]", "y: bfloat16[P, N]",
        "z = a @ w; y = put(cache, relu(z), i, axis=P)", "y = cache",
    )  # fmt: skip
    op, a, w, i = make_op(tmp_path, text), jnp.eye(3).astype(jnp.bfloat16), NEW[:, 0], jnp.asarray([5, -1, 0])
    expected = np.array(KEYS[:, 1])
    expected[[5, 0]] = np.maximum(np.asarray(w)[[0, 2]], 0)
    for implementation in ("interpret", "xla"):
        np.testing.assert_array_equal(op(a, w, KEYS[:, 1], i, implementation=implementation), expected)
