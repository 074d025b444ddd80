"""Products on the Hopper main loop with the epilogues of `gemm_epilogues`: as calls of the runtime, in float64, and the
cases that tests run on a GPU and interpreted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from gemm_epilogues import LAUNCHERS

from codegen.plan.gemms.hopper_tiles import SQUARE, TABLE, WIDE
from codegen.runtime.compiled import interpreted, kernels
from codegen.shared import Tiles


@dataclass(frozen=True)
class Product:
    """One call of one launcher. The epilogue's operands have the type of a, or bfloat16 if that has one byte."""

    name: str  # of LAUNCHERS
    M: int
    K: int
    N: int
    L: int = 1
    dtype: str = "bfloat16"
    out: str = "bfloat16"
    b_is_nk: bool = False
    paired: str = ""
    shared_b: bool = False  # one b for the whole batch
    tiles: Tiles = field(default=SQUARE)
    b_dtype: str = ""  # if it differs from that of a

    def __str__(self) -> str:
        t = self.tiles
        words = [
            self.name,
            f"{self.dtype}{self.b_dtype and '-'}{self.b_dtype}",
            f"{self.L}x{self.M}x{self.K}x{self.N}",
            "nk" if self.b_is_nk else "kn",
            self.out,
        ]
        tiles = f"{t.tile_m}x{t.tile_n}x{t.tile_k}s{t.stages}c{t.cluster_m}{t.cluster_n}{'pp' if t.pingpong else ''}{'r' if t.rolled else ''}{f'-{t.piece}by{t.ahead}' if t.staged else ''}{f'-{t.splits}' if t.splits > 1 else ''}"
        return "-".join([*words, *([self.paired] if self.paired else []), tiles])

    @property
    def inputs(self) -> list[jax.ShapeDtypeStruct]:
        """a, one or two b, the epilogue's operands."""
        columns = 2 * self.N if self.paired == "interleaved" else self.N
        batches = 1 if self.shared_b else self.L
        b = (batches, columns, self.K) if self.b_is_nk else (batches, self.K, columns)
        kind = jnp.dtype(self.dtype)
        wide = kind if kind.itemsize > 1 else jnp.dtype("bfloat16")
        operands = {"r": (self.N,), "t": (self.L, self.M, self.N)}
        return [
            jax.ShapeDtypeStruct((self.L, self.M, self.K), kind),
            *[jax.ShapeDtypeStruct(b, jnp.dtype(self.b_dtype or self.dtype))] * (2 if self.paired == "halves" else 1),
            *(jax.ShapeDtypeStruct(operands[o], wide) for o in LAUNCHERS[self.name][1]),
        ]

    @property
    def outputs(self) -> list[jax.ShapeDtypeStruct]:
        found = [jax.ShapeDtypeStruct((self.L, self.M, self.N), jnp.dtype(self.out))]
        if self.name in ("sums", "row_sums"):
            wide, high = self.tiles.row_pieces(self.N, self.paired), self.tiles.column_pieces(self.M)
            found += [jax.ShapeDtypeStruct((self.L, self.M, wide), jnp.float32)] * 2
            found += [jax.ShapeDtypeStruct((self.L, high, self.N), jnp.float32)]
        return found[:3] if self.name == "row_sums" else found

    @property
    def call(self) -> kernels.CompiledCall:
        """The call for sm_90a."""
        vec = 16 // jnp.dtype(self.out).itemsize
        vec = min(vec, 8) if self.paired else vec

        def described(x):
            widest = max(16 // x.dtype.itemsize, vec)
            divisor = next(d for d in (16, 8, 4, 2, 1) if d <= widest and x.shape[-1] % d == 0)
            return x.dtype.name, (*(1 for _ in x.shape[:-1]), divisor), 16

        constants = {"name": self.name, "b_is_nk": self.b_is_nk, "paired": self.paired, "vec": vec,
                     "ragged": self.N % vec != 0, "tiles": self.tiles}  # fmt: skip
        launcher = LAUNCHERS[self.name][0] if self.paired != "halves" else LAUNCHERS["two"][0]
        inputs, outputs = (tuple(map(described, xs)) for xs in (self.inputs, self.outputs))
        return kernels.CompiledCall(launcher, inputs, outputs, tuple(constants.items()), "sm_90a")

    def draw(self, seed: int) -> list[jax.Array]:
        """Random inputs: integers, or normal numbers with b scaled so that sums have the magnitude 2."""
        rng = np.random.default_rng(seed)
        found = []
        for i, x in enumerate(self.inputs):
            if jnp.issubdtype(x.dtype, jnp.integer):
                found.append(jnp.asarray(rng.integers(-128, 128, x.shape), x.dtype))
            else:
                scale = 2 * max(self.K, 1) ** -0.5 if 0 < i <= 1 + (self.paired == "halves") else 1.0
                found.append(jnp.asarray(rng.standard_normal(x.shape, np.float32) * scale, x.dtype))
        return found

    def run(self, inputs: list[jax.Array]) -> list[jax.Array]:
        """The results of the kernel on a GPU."""
        return _jitted(self)(*inputs)

    def interpret(self, inputs: list[jax.Array]) -> list[np.ndarray]:
        """The results of the interpreted kernel."""
        names = [f"input {i}" for i in range(len(inputs))] + [f"output {i}" for i in range(len(self.outputs))]
        shapes = [x.shape for x in self.outputs]
        return list(interpreted.run(self.call, names, [np.asarray(x) for x in inputs], shapes))

    def lost(self, sums: np.ndarray) -> float:
        """The error of tensor cores for sums of this magnitude: of 32 products of float8 and the previous sum they keep
        13 bits after the point of the largest (DeepSeek-V3's report, section 3.5.2; arXiv 2412.19437)."""
        return -(-self.K // 32) * 2.0**-13 * np.abs(sums).max(initial=0.0) if "float8" in self.dtype else 0.0

    def expected(self, inputs: list[jax.Array]) -> list[np.ndarray]:
        """The outputs in float64, and the results of reductions."""
        a, *rest = (np.asarray(x.astype(jnp.float32), np.float64) for x in inputs)
        bs = [np.swapaxes(b, 1, 2) if self.b_is_nk else b for b in rest[: 2 if self.paired == "halves" else 1]]
        accs, operands = [a @ b for b in bs], rest[len(bs) :]
        if self.paired == "interleaved":
            accs = [accs[0][..., 0::2], accs[0][..., 1::2]]
        acc = accs[0]
        if self.name in ("sums", "row_sums"):
            return [acc, acc.sum(2), acc.max(2, initial=-np.inf), acc.sum(1)][: 3 if self.name == "row_sums" else 4]
        return [REFERENCES[self.name](acc, *accs[1:], *operands)]


@functools.cache
def _jitted(product: Product):
    return jax.jit(lambda *operands: kernels.launch(product.call, operands, product.outputs, {}))


def _tanh(z):
    return np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))


def _silu(z):
    return z / (1 + np.exp(-z))


def _gelu_slope(z):
    inner = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * z * z)
    return 0.5 * (1 + _tanh(z)) + 0.5 * z * (1 - _tanh(z) ** 2) * inner


REFERENCES = {
    "plain": lambda acc: acc,
    "relu": lambda acc, bias: np.maximum(acc + bias, 0),
    "gelu": lambda acc, bias: 0.5 * (acc + bias) * (1 + _tanh(acc + bias)),
    "gelu_erf": lambda acc, bias: (acc + bias) * 0.5 * np.asarray(jax.scipy.special.erfc(-(acc + bias) * 0.5**0.5)),
    "residual": lambda acc, bias, skip: _silu(acc + bias) + skip,
    "dgelu": lambda acc, z: acc * _gelu_slope(z),
    "swiglu": lambda acc, up: _silu(acc) * up,
}


# The cases that tests run

BASE = Product("gelu", 0, 0, 0, tiles=WIDE)
WIDE_FP8, WHOLE_INT8 = dataclasses.replace(WIDE, tile_k=128), Tiles(128, 256, 128, 4, 2)
FAR = dataclasses.replace(WIDE, stages=5, piece=32, ahead=3)
IN_A_LOOP = dataclasses.replace(WIDE, rolled=True)
# The operands that the epilogue reads through shared memory: bytes of 16 rows of 64, or 32, columns
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
    dataclasses.replace(BASE, name="sums", tiles=dataclasses.replace(SQUARE, rolled=True), L=2),
    dataclasses.replace(BASE, name="row_sums"),
    dataclasses.replace(BASE, name="row_sums", tiles=IN_A_LOOP),
    dataclasses.replace(BASE, name="row_sums", L=2, tiles=dataclasses.replace(IN_A_LOOP, piece=32)),
    # K is split: by one warpgroup a tile, by two; pairs of columns; bytes
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
    dataclasses.replace(BASE, dtype="float8_e5m2", b_dtype="float8_e4m3fn", b_is_nk=True, tiles=WIDE_FP8),
    dataclasses.replace(BASE, dtype="float8_e4m3fn", b_dtype="float8_e5m2", b_is_nk=True, tiles=WIDE_FP8),
    *(dataclasses.replace(BASE, name="relu", tiles=tiles) for tiles in (TABLE[1], *TABLE[3:])),
]
# Half a unit in the last place of the output, and the error of sums in float32 and of approximate functions
TOLERANCES = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float32": 1e-4, "int32": 0, "float8_e5m2": 2.0**-2}


def check(product: Product, seed: int, run: Callable[[Product, list], list] = Product.run) -> list:
    """Runs it on random inputs and compares the results with the product in float64."""
    inputs = product.draw(seed)
    found = run(product, inputs)
    folds = [None, lambda x: x.sum(2), lambda x: x.max(2, initial=-np.inf), lambda x: x.sum(1)]
    for x, want, fold in zip(found, product.expected(inputs), folds, strict=False):
        kind = str(x.dtype)
        got = np.asarray(x.astype("float32") if x.dtype != "int32" else x, np.float64)
        got = got if fold is None else fold(got)
        np.testing.assert_allclose(got, want, rtol=TOLERANCES[kind], atol=2 * TOLERANCES[kind] + product.lost(want))
    return found
