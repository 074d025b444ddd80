"""The Hopper main loop on a GPU: products of every kind, at extents that tiles do not divide, against float64."""

import dataclasses

import jax
import numpy as np
import pytest
from gemm_running import Product

import generated
from codegen import sizes
from codegen.hopper_tiles import SQUARE, TABLE, WIDE, Tiles, choose
from codegen.runtime.platform import current_arch

pytestmark = pytest.mark.skipif(current_arch() != "sm_90a", reason="WGMMA is Hopper's")

BASE = Product("gelu", 0, 0, 0, tiles=WIDE)
WIDE_FP8, WHOLE_INT8 = dataclasses.replace(WIDE, tile_k=128), Tiles(128, 256, 128, 4, 2)
FAR = dataclasses.replace(WIDE, stages=5, piece=32, ahead=3)
IN_A_LOOP = dataclasses.replace(WIDE, rolled=True)
# What the epilogue reads by way of shared memory: bytes of 16 rows of 64, or 32, columns
STAGED = dataclasses.replace(IN_A_LOOP, ahead=2, staged=16 * 64 * 2)
SMALL_STAGES = dataclasses.replace(SQUARE, stages=5, rolled=True, piece=32, staged=16 * 32 * 2)
UNSHARED = Tiles(128, 256, 64, 4, ahead=2)  # no cluster multicasts
KINDS = [
    BASE,
    dataclasses.replace(BASE, b_is_nk=True),
    dataclasses.replace(BASE, tiles=IN_A_LOOP),
    dataclasses.replace(BASE, name="gelu_erf", L=2, tiles=dataclasses.replace(IN_A_LOOP, piece=32)),
    dataclasses.replace(BASE, name="swiglu", paired="interleaved", tiles=IN_A_LOOP),
    dataclasses.replace(BASE, name="plain", out="float32", tiles=IN_A_LOOP),
    dataclasses.replace(BASE, name="relu", dtype="float16", out="float16", tiles=Tiles(128, 256, 64, 4, 1, 2)),
    dataclasses.replace(BASE, name="plain", out="float32", shared_b=True, L=3, tiles=Tiles(256, 128, 64, 4, 2)),
    dataclasses.replace(BASE, name="gelu_erf", tiles=SQUARE, L=2, b_is_nk=True),
    dataclasses.replace(BASE, name="residual", tiles=FAR),
    dataclasses.replace(BASE, name="residual", tiles=STAGED),
    dataclasses.replace(BASE, name="residual", L=2, tiles=SMALL_STAGES),
    dataclasses.replace(
        BASE, name="residual", dtype="float16", out="float16", tiles=dataclasses.replace(STAGED, ahead=1)
    ),
    dataclasses.replace(BASE, name="dgelu", tiles=STAGED, b_is_nk=True, shared_b=True, L=2),
    dataclasses.replace(
        BASE, name="residual", tiles=Tiles(128, 256, 64, 3, 2, ahead=2, rolled=True, staged=16 * 64 * 2)
    ),
    dataclasses.replace(BASE, name="dgelu", tiles=SQUARE, b_is_nk=True, shared_b=True, L=2),
    dataclasses.replace(BASE, name="swiglu", paired="interleaved"),
    dataclasses.replace(BASE, name="swiglu", paired="halves", tiles=SQUARE),
    dataclasses.replace(BASE, name="swiglu", paired="halves", b_is_nk=True),
    dataclasses.replace(BASE, name="sums", tiles=SQUARE, L=2),
    dataclasses.replace(BASE, name="sums", tiles=Tiles(128, 256, 64, 4, 2), b_is_nk=True),
    # K shared out: by one warpgroup a tile, by two; pairs of columns; bytes
    *(
        dataclasses.replace(BASE, name="sums", L=2, tiles=dataclasses.replace(tiles, splits=splits, cluster_m=1))
        for tiles, splits in ((SQUARE, 2), (UNSHARED, 8), (TABLE[5], 4), (TABLE[-2], 8), (TABLE[-1], 4))
    ),
    dataclasses.replace(BASE, name="residual", tiles=dataclasses.replace(TABLE[-1], splits=2)),
    dataclasses.replace(BASE, name="swiglu", paired="interleaved", tiles=dataclasses.replace(UNSHARED, splits=4)),
    dataclasses.replace(BASE, name="swiglu", paired="halves", tiles=dataclasses.replace(TABLE[-2], splits=4)),
    dataclasses.replace(
        BASE,
        name="plain",
        dtype="int8",
        out="int32",
        b_is_nk=True,
        tiles=dataclasses.replace(TABLE[-1], tile_k=128, splits=2),
    ),
    dataclasses.replace(BASE, name="plain", dtype="int8", out="int32", b_is_nk=True, tiles=WHOLE_INT8),
    dataclasses.replace(BASE, dtype="float8_e4m3fn", b_is_nk=True, tiles=WIDE_FP8),
    dataclasses.replace(BASE, dtype="float8_e5m2", out="float8_e5m2", b_is_nk=True, tiles=WIDE_FP8),
    *(dataclasses.replace(BASE, name="relu", tiles=tiles) for tiles in TABLE[3:]),
]
# Half a unit in the last place of the output, and what sums in float32 and approximate functions add
TOLERANCES = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float32": 1e-4, "int32": 0, "float8_e5m2": 2.0**-2}


def check(product: Product, seed: int) -> list[jax.Array]:
    inputs = product.draw(seed)
    found = product.run(inputs)
    folds = [None, lambda x: x.sum(2), lambda x: x.max(2), lambda x: x.sum(1)]
    for x, want, fold in zip(found, product.expected(inputs), folds, strict=False):
        kind = str(x.dtype)
        got = np.asarray(x.astype("float32") if x.dtype != "int32" else x, np.float64)
        got = got if fold is None else fold(got)
        np.testing.assert_allclose(got, want, rtol=TOLERANCES[kind], atol=2 * TOLERANCES[kind])
    return found


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_any_extents(kind):
    """Rows in memory are whole multiples of 16 bytes, all else is as it comes."""
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
    """Ops, whose plan shares K out among the blocks of a cluster: against the products by XLA, twice the same."""
    op = getattr(generated, name)
    columns = 2048 if op.plan.tile.paired else 4096
    extents = {axis: {"K": 14336, "N": columns}[axis] for axis in op.spec.axes if axis != "..."}
    rng = np.random.default_rng(0)
    arrays = {}
    for array in op.spec.inputs:
        shape = sizes.extents(array, extents | {"...": 16})
        scale = 14336**-0.5 if array.name == "w" else 1.0
        values = rng.standard_normal(shape, np.float32) * scale
        arrays[array.name] = jax.numpy.asarray(values, "bfloat16" if array.dtype == "T" else array.dtype)
    key, operands = op.bind((), {**arrays, "implementation": "cute"})
    assert "splits=1" not in op._kernel_call(key, operands).how.config
    first, again, wanted = (op(**arrays, implementation=i) for i in ("cute", "cute", "xla"))
    for got, same, want in zip(*map(jax.tree.leaves, (first, again, wanted)), strict=True):
        assert bool((got == same).all())
        got, want = (np.asarray(x.astype("float32")) for x in (got, want))
        np.testing.assert_allclose(got, want, rtol=2.0**-7, atol=2.0**-7)
