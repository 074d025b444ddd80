"""The Hopper main loop on a GPU: products of every kind, with sizes that tiles do not divide, against float64."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gemm_running import BASE, KINDS, STAGED, check
from hopper_choice import choose

import generated
from codegen.language import sizes
from codegen.plan.gemms.hopper_tiles import SQUARE, TABLE, WIDE
from codegen.runtime.compiled.platform import current_arch

pytestmark = pytest.mark.skipif(current_arch() != "sm_90a", reason="WGMMA is Hopper's")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_any_extents(kind):
    """Rows in memory are multiples of 16 bytes; the other sizes are arbitrary."""
    rng = np.random.default_rng(len(str(kind)))
    step = 16 // np.dtype(jax.numpy.dtype(kind.dtype)).itemsize
    for seed in range(6):
        n = int(rng.integers(1, 700))
        n = n if kind.b_is_nk and seed % 2 else -(-n // step) * step
        m, k = int(rng.integers(1, 900)), step * int(rng.integers(1, 100))
        product = dataclasses.replace(kind, M=m, N=n, K=k)
        first, again = check(product, seed), product.run(product.draw(seed))
        for x, y in zip(first, again, strict=True):
            assert bool((x == y).all())  # to the bit, every time


@pytest.mark.parametrize("extents", [(0, 64, 64), (64, 0, 64), (64, 64, 0), (1, 8, 8), (1, 4096, 8)], ids=str)
def test_nothing_and_next_to_nothing(extents):
    m, k, n = extents
    check(dataclasses.replace(BASE, M=m, K=k, N=n), 0)
    check(dataclasses.replace(BASE, M=m, K=k, N=n, L=2, shared_b=True, tiles=TABLE[3]), 0)
    check(dataclasses.replace(BASE, name="residual", M=m, K=k, N=n, L=2, tiles=STAGED), 0)


@pytest.mark.parametrize("extents", [(2048, 4096, 2304), (5000, 512, 4104), (130, 8192, 10000)], ids=str)
def test_more_tiles_than_multiprocessors(extents):
    m, k, n = extents
    for tiles in (WIDE, SQUARE, choose(m, n, k)):
        check(dataclasses.replace(BASE, name="plain", M=m, K=k, N=n, out="float32", tiles=tiles), 0)


@pytest.mark.parametrize("name", ["dense_relu", "dense_swiglu_pairs", "dense_silu_residual", "logits_logsumexp"])
def test_few_rows_of_many_terms(name):
    """Ops with plans that split K among the blocks of a cluster, against products by XLA; two runs give the same bits."""
    op = getattr(generated, name)
    columns = 2048 if op.plan.tile.paired else 4096
    extents = {axis: {"K": 14336, "N": columns}[axis] for axis in op.spec.axes if axis != "..."}
    rng = np.random.default_rng(0)
    arrays = {}
    for array in op.spec.inputs:
        shape = sizes.array_shape(array, extents | {"...": 16})
        scale = 14336**-0.5 if array.name == "w" else 1.0
        values = rng.standard_normal(shape, np.float32) * scale
        arrays[array.name] = jax.numpy.asarray(values, "bfloat16" if array.dtype == "T" else array.dtype)
    key, operands = op.bind((), {**arrays, "implementation": "cute"})
    assert op._kernel_call(key, operands).how.tiles.splits > 1
    first, again, wanted = (op(**arrays, implementation=i) for i in ("cute", "cute", "xla"))
    for got, same, want in zip(*map(jax.tree.leaves, (first, again, wanted)), strict=True):
        assert bool((got == same).all())
        got, want = (np.asarray(x.astype("float32")) for x in (got, want))
        np.testing.assert_allclose(got, want, rtol=2.0**-7, atol=2.0**-7)


@pytest.mark.parametrize("shape", [(512, 256, 4096), (300, 64, 1000)], ids=str)
def test_columns_in_parts(shape):
    """Each of several devices has its own columns: its kernel is told where they begin, and stores the partial results
    of its tiles."""
    (M, K, N), op = shape, generated.logits_logsumexp
    x, w = (jax.random.normal(jax.random.key(i), s).astype("bfloat16") for i, s in enumerate([(M, K), (N, K)]))
    label = jax.random.randint(jax.random.key(2), (M,), 0, N)
    maxima, sums, picked = [], [], []
    for first in (0, N // 2):
        key, operands = op.bind((x, w[first : first + N // 2], label), {"implementation": "cute"})
        _, *parts = op._run_cute(key, (False,) * 3, *operands, firsts={"N": jnp.full(1, first, "int32")})
        maximum, total, found = (np.asarray(p, np.float64)[0] for p in parts)
        maxima.append(maximum)
        sums.append(total)
        picked.append(found)
    logits = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
    maximum, total = np.concatenate(maxima, 1), np.concatenate(sums, 1)
    lse = np.log((total * np.exp(maximum)).sum(1))
    np.testing.assert_allclose(lse, np.log(np.exp(logits).sum(1)), rtol=1e-5)
    there = logits[np.arange(M), np.asarray(label)]
    np.testing.assert_allclose(np.concatenate(picked, 1).sum(1), there, rtol=1e-4, atol=1e-4)
