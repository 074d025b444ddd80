"""Products that `gemm_kernels` compute, and their expected results, from NumPy in float64.

Operands hold small integers, so that every sum is exact and the result is known to the bit, whatever the order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gemm_kernels
import ml_dtypes
import numpy as np

from codegen.runtime.compiled.kernels import CompiledCall
from codegen.shared import AmpereTiles, Loading

DEFAULT = AmpereTiles(64, 64, 64, warps_m=2, warps_n=2, stages=3)
TF32, INT8 = replace(DEFAULT, tile_k=32), replace(DEFAULT, tile_k=128)
NARROW = AmpereTiles(16, 64, 64, warps_m=1, warps_n=4, stages=4)
PRECISE = replace(TF32, precise=True)


@dataclass(frozen=True)
class Case:
    """One call of one launcher."""

    launcher: str
    dtype: str
    M: int
    N: int
    K: int
    b_is_nk: bool = True
    out: str = "float32"
    L: int = 1
    shared_b: bool = False  # one b for the whole batch
    paired: str = ""  # "halves", "interleaved", and "two" for two tensors
    vec: int = 8
    tiles: AmpereTiles = DEFAULT
    known: bool = True  # whether the compiler gets the divisors of sizes
    b_dtype: str = ""  # if it differs from that of a
    loading: Loading | None = None  # how b is read, whose scales are float32 or `scale`
    scale: str = "float32"

    def __str__(self) -> str:
        words = [
            self.launcher,
            f"{self.dtype}{self.b_dtype and '-'}{self.b_dtype}",
            f"{self.L}x{self.M}x{self.N}x{self.K}",
            "nk" if self.b_is_nk else "kn",
        ]
        return "-".join([*words, self.out, *([self.paired] if self.paired else [])])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the operands, then of the outputs."""
        wide = self.N * (2 if self.paired in ("halves", "interleaved") else 1)
        deep = -(-self.K // 2) if self.loading and self.loading.bits == 4 else self.K
        b = (1 if self.shared_b else self.L, *((wide, deep) if self.b_is_nk else (deep, wide)))
        whole = (self.L, self.M, self.N)
        found: dict[str, tuple[int, ...]] = {"a": (self.L, self.M, self.K), "b": b}
        if self.loading and self.loading.group:
            found["scale"] = (-(-self.K // self.loading.group), self.N)
        if self.launcher == "bias_relu":
            found["bias"] = (self.N,)
        if self.launcher == "residual":
            found["residual"] = whole
        if self.paired == "two":
            found["up"] = b
        return found | self.outputs

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        whole = (self.L, self.M, self.N)
        if self.launcher == "residual":
            return {"z": whole, "y": whole}
        if self.launcher != "statistics":
            return {"y": whole}
        rows = (self.L, self.M, self.tiles.row_pieces(self.N))
        columns = (self.L, self.tiles.column_pieces(self.M), self.N)
        return {"y": whole, "row_sum": rows, "row_max": rows, "column_sum": columns, "column_min": columns}

    def dtype_of(self, name: str) -> np.dtype:
        b = self.b_dtype or self.dtype
        names = {
            "a": self.dtype,
            "scale": self.scale,
            "b": b,
            "up": b,
            "y": self.out,
            "z": self.out,
            "residual": self.out,
        }
        found = names.get(name, "float32")
        return np.dtype(getattr(ml_dtypes, found, found))

    @property
    def arch(self) -> str:
        """The oldest architecture that has the instructions."""
        return "sm_89" if (self.b_dtype or self.dtype).startswith("float8") else "sm_80"

    def call(self, arch: str) -> CompiledCall:
        """The launcher's call with tensors of which only divisors are known."""

        def tensor(name: str) -> tuple[str, tuple[int, ...], int]:
            shape, dtype = self.shapes[name], self.dtype_of(name)
            last = next(d for d in (16, 8, 4, 2, 1) if shape[-1] % d == 0) if self.known else 1
            return str(dtype), (*[1] * (len(shape) - 1), last), 16

        inputs = [tensor(name) for name in self.shapes if name not in self.outputs]
        constants: dict[str, Any] = {
            "b_is_nk": self.b_is_nk,
            "vec": self.vec,
            "ragged": not self.known or self.N % self.vec != 0,
        }
        if self.launcher == "swiglu":
            constants = {"paired": self.paired.replace("two", "halves")} | constants
            inputs += [None] if self.paired != "two" else []
        constants["tiles"] = self.tiles
        if self.loading:
            constants["loading"] = self.loading
        launcher = getattr(gemm_kernels, self.launcher)
        return CompiledCall(launcher, tuple(inputs), tuple(map(tensor, self.outputs)), tuple(constants.items()), arch)

    def operands(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Random operands. They are integers, so that all sums are exact."""

        def drawn(name: str) -> np.ndarray:
            most = 128 if self.dtype_of(name) in (np.int8, np.uint8) else 4
            return rng.integers(-most, most, self.shapes[name]).astype(self.dtype_of(name))

        return {name: drawn(name) for name in self.shapes if name not in self.outputs}

    def arguments(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray | None]:
        """The launcher's inputs: None for an operand that a case lacks."""
        return {**given, "up": None} if self.launcher == "swiglu" and "up" not in given else dict(given)

    def expected(self, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs before they are rounded, and the results of the partial ones."""
        a, b, *rest = (x.astype(np.float64) for x in given.values())
        product = self.product(a, self.read(b, *rest) if self.loading else b)
        if self.launcher == "bias_relu":
            return {"y": np.maximum(product + rest[0], 0)}
        if self.launcher == "residual":
            return {"z": product + rest[0], "y": (product + rest[0]) ** 2}
        if self.launcher == "swiglu":
            gate, up = (product, self.product(a, rest[0])) if rest else (product[..., : self.N], product[..., self.N :])
            if self.paired == "interleaved":
                gate, up = product[..., ::2], product[..., 1::2]
            with np.errstate(over="ignore"):
                return {"y": gate / (1 + np.exp(-gate)) * up}
        if self.launcher == "statistics":
            sums = {"row_sum": product.sum(2), "column_sum": product.sum(1)}
            row_max = product.max(2, initial=-np.inf)
            return {"y": product, **sums, "row_max": row_max, "column_min": product.min(1, initial=np.inf)}
        return {"y": product}

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a @ (b.transpose(0, 2, 1) if self.b_is_nk else b)

    def read(self, b: np.ndarray, scale: np.ndarray | None = None) -> np.ndarray:
        """b with one number in an element along K, and with its scales."""
        assert self.loading is not None
        along = 2 if self.b_is_nk else 1
        if self.loading.bits == 4:
            bytes_ = b.astype(np.int64) & 255
            halves = np.stack([bytes_ & 15, bytes_ >> 4], along + 1)
            shape = [2 * n if d == along else n for d, n in enumerate(b.shape)]
            b = ((halves.reshape(shape) ^ self.loading.flip) - self.loading.offset).astype(np.float64)
            b = np.take(b, range(self.K), along)
        if scale is None:
            return b
        whole = np.take(np.repeat(scale, self.loading.group, 0), range(self.K), 0)
        return b * (whole.T if self.b_is_nk else whole)

    def check(self, got: tuple[np.ndarray, ...], given: dict[str, np.ndarray]) -> None:
        """Compares outputs with the expected ones: to the bit, except where functions are approximated."""
        expected = self.expected(given)
        finish = {"row_sum": (np.sum, 2), "row_max": (np.max, 2), "column_sum": (np.sum, 1), "column_min": (np.min, 1)}
        for name, array in zip(self.outputs, got, strict=True):
            held = np.asarray(array).astype(np.float64)
            if name in finish:
                fold, axis = finish[name]
                held = fold(held, axis=axis) if held.shape[axis] else expected[name]
            if self.launcher == "swiglu":
                np.testing.assert_allclose(held, expected[name], rtol=1e-5 + _half_ulp(self.out), atol=1e-30)
            else:
                want = expected[name] if name in finish else expected[name].astype(self.dtype_of(name))
                np.testing.assert_array_equal(held, want.astype(np.float64), err_msg=f"{self}: {name}")


def _half_ulp(dtype: str) -> float:
    return {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]


def spread(case: Case, sizes: list[tuple[int, int, int]]) -> list[Case]:
    """The same case with other (M, N, K)."""
    return [replace(case, M=m, N=n, K=k) for m, n, k in sizes]


BF16 = Case("plain", "bfloat16", 64, 64, 64)
# Whole tiles, part of one, more than one in each direction; odd sizes, 1, 0
SIZES = [
    (64, 64, 64),
    (70, 72, 136),
    (131, 200, 24),
    (33, 67, 35),
    (1, 1, 1),
    (17, 24, 0),
    (0, 16, 8),
    (8, 0, 8),
    (5, 66, 258),
]

FOUR = Case(
    "scaled", "bfloat16", 20, 40, 264, b_dtype="uint8", loading=Loading(4, 0, 8, 128), tiles=replace(NARROW, tile_k=128)
)

CASES = [
    *spread(BF16, SIZES),
    *spread(replace(BF16, b_is_nk=False, out="bfloat16"), SIZES),
    *spread(replace(BF16, dtype="float16", b_is_nk=False), [(70, 72, 136), (33, 67, 35)]),
    *spread(replace(BF16, dtype="float32", tiles=TF32), [(64, 64, 64), (33, 67, 35), (70, 66, 4)]),
    *spread(replace(BF16, dtype="float32", tiles=TF32, b_is_nk=False), [(70, 72, 136), (33, 67, 35), (5, 66, 70)]),
    *spread(replace(BF16, dtype="float32", tiles=PRECISE), [(70, 72, 136)]),
    *spread(replace(BF16, dtype="int8", out="int32", tiles=INT8), [(64, 64, 128), (33, 67, 35), (70, 66, 260)]),
    *spread(replace(BF16, dtype="int8", out="int32", tiles=INT8, b_is_nk=False), [(70, 80, 144), (33, 67, 35), (5, 66, 70)]),
    *spread(replace(BF16, dtype="float8_e4m3fn", tiles=INT8), [(70, 72, 144)]),
    *spread(replace(BF16, dtype="float8_e5m2", tiles=INT8, b_is_nk=False), [(70, 80, 144), (33, 67, 35)]),
    # b of a byte, which is converted in registers
    *spread(replace(BF16, b_dtype="int8"), [(40, 72, 136), (5, 67, 35)]),
    *spread(replace(BF16, b_dtype="int8", dtype="float16", b_is_nk=False, tiles=NARROW), [(20, 80, 144), (3, 66, 70)]),
    *spread(replace(BF16, b_dtype="float8_e5m2"), [(40, 72, 80)]),
    *spread(replace(BF16, b_dtype="float8_e4m3fn", dtype="float16", b_is_nk=False, tiles=NARROW), [(20, 80, 144)]),
    *spread(replace(FOUR, M=20), [(20, 40, 264), (5, 66, 270)]),
    *spread(replace(FOUR, M=20, b_is_nk=False, dtype="float16", loading=Loading(4, 8, 8, 128), scale="bfloat16"), [(20, 80, 264)]),
    *spread(replace(FOUR, b_dtype="int8", loading=Loading(group=64), tiles=NARROW, scale="bfloat16"), [(20, 80, 144)]),
    *spread(replace(BF16, L=3, shared_b=True), [(70, 72, 40), (3, 5, 7)]),
    *spread(replace(BF16, L=2, b_is_nk=False), [(70, 72, 40), (3, 5, 7)]),
    # other tiles: more warps, one, narrow rows in shared memory, two stages, other vectors
    *spread(replace(BF16, tiles=AmpereTiles(128, 64, 32, 4, 1, 2), vec=4), [(150, 68, 100)]),
    *spread(replace(BF16, tiles=AmpereTiles(32, 128, 32, 1, 4, 4), vec=16, b_is_nk=False), [(40, 144, 100)]),
    *spread(replace(BF16, tiles=AmpereTiles(16, 32, 64, 1, 1, 2), b_is_nk=False), [(40, 48, 100)]),
    *spread(replace(BF16, tiles=AmpereTiles(64, 32, 64, 2, 2, 3), b_is_nk=False), [(70, 48, 100)]),
    *spread(replace(BF16, tiles=AmpereTiles(64, 32, 32, 2, 2, 3), dtype="float32", b_is_nk=False), [(70, 48, 100)]),
    # groups of warps that share K: more pieces than groups, fewer, none; scales along K; reductions in the epilogue
    *spread(replace(BF16, tiles=AmpereTiles(32, 32, 32, 1, 2, 2, warps_k=2)), [(40, 48, 136), (33, 35, 20), (5, 6, 0)]),
    *spread(replace(BF16, b_dtype="int8", b_is_nk=False, tiles=replace(NARROW, stages=2, warps_k=4)), [(20, 80, 264)]),
    *spread(replace(FOUR, tiles=replace(NARROW, tile_k=128, stages=2, warps_k=2)), [(20, 40, 520)]),
    *spread(replace(BF16, launcher="statistics", L=2, tiles=AmpereTiles(32, 32, 32, 2, 1, 2, warps_k=2)), [(40, 35, 100)]),
    # epilogues
    *spread(replace(BF16, launcher="bias_relu", out="bfloat16"), [(70, 72, 40), (33, 67, 35)]),
    *spread(replace(BF16, launcher="residual"), [(70, 72, 40), (33, 67, 35)]),
    *[
        replace(BF16, launcher="swiglu", paired=paired, b_is_nk=b_is_nk, M=m, N=n, K=k, out="bfloat16")
        for paired in ("halves", "interleaved", "two") for b_is_nk in (True, False) for m, n, k in [(70, 72, 40), (33, 37, 35)]
    ],
    replace(BF16, launcher="swiglu", dtype="int8", paired="halves", b_is_nk=False, M=20, N=48, K=40, tiles=INT8),
    replace(BF16, launcher="swiglu", dtype="float32", paired="halves", b_is_nk=False, M=20, N=48, K=40, tiles=TF32),
    *spread(replace(BF16, launcher="statistics", L=2), [(70, 72, 40), (133, 67, 35), (1, 1, 1), (0, 8, 8), (8, 0, 8)]),
    *spread(replace(BF16, launcher="statistics", tiles=AmpereTiles(64, 64, 64, 4, 1, 2)), [(70, 72, 40), (133, 67, 35)]),
    *spread(replace(BF16, launcher="statistics", tiles=AmpereTiles(32, 64, 64, 1, 2, 2), vec=16), [(70, 80, 40)]),
]  # fmt: skip
