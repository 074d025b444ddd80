"""Products on the Hopper main loop with the epilogues of `gemm_epilogues`: as calls of the runtime, and in float64."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from gemm_epilogues import LAUNCHERS

from codegen.hopper_tiles import SQUARE, Tiles
from codegen.runtime import kernels


@dataclass(frozen=True)
class Product:
    """One call of one launcher. The epilogue's operands have the type of a, or are bfloat16 where that is one byte wide."""

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

    def __str__(self) -> str:
        t = self.tiles
        words = [
            self.name,
            self.dtype,
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
            *[jax.ShapeDtypeStruct(b, kind)] * (2 if self.paired == "halves" else 1),
            *(jax.ShapeDtypeStruct(operands[o], wide) for o in LAUNCHERS[self.name][1]),
        ]

    @property
    def outputs(self) -> list[jax.ShapeDtypeStruct]:
        found = [jax.ShapeDtypeStruct((self.L, self.M, self.N), jnp.dtype(self.out))]
        if self.name == "sums":
            wide, high = self.tiles.row_pieces(self.N, self.paired), self.tiles.column_pieces(self.M)
            found += [jax.ShapeDtypeStruct((self.L, self.M, wide), jnp.float32)] * 2
            found += [jax.ShapeDtypeStruct((self.L, high, self.N), jnp.float32)]
        return found

    @property
    def call(self) -> kernels.Call:
        """For sm_90a."""
        vec = 16 // jnp.dtype(self.out).itemsize
        vec = min(vec, 8) if self.paired else vec

        def described(x):
            widest = max(16 // x.dtype.itemsize, vec)
            divisor = next(d for d in (16, 8, 4, 2, 1) if d <= widest and x.shape[-1] % d == 0)
            return x.dtype.name, (*(1 for _ in x.shape[:-1]), divisor), 16

        constants = {"name": self.name, "b_is_nk": self.b_is_nk, "paired": self.paired, "vec": vec,
                     "ragged": self.N % vec != 0} | dataclasses.asdict(self.tiles)  # fmt: skip
        launcher = LAUNCHERS[self.name][0] if self.paired != "halves" else LAUNCHERS["two"][0]
        inputs, outputs = (tuple(map(described, xs)) for xs in (self.inputs, self.outputs))
        return kernels.Call(launcher, inputs, outputs, tuple(constants.items()), "sm_90a")

    def draw(self, seed: int) -> list[jax.Array]:
        """Inputs: any integers, or normal numbers, b scaled so that sums are of size 2."""
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
        """The kernel, on a GPU."""
        return _jitted(self)(*inputs)

    def expected(self, inputs: list[jax.Array]) -> list[np.ndarray]:
        """The outputs in float64; of folds, their results."""
        a, *rest = (np.asarray(x.astype(jnp.float32), np.float64) for x in inputs)
        bs = [np.swapaxes(b, 1, 2) if self.b_is_nk else b for b in rest[: 2 if self.paired == "halves" else 1]]
        accs, operands = [a @ b for b in bs], rest[len(bs) :]
        if self.paired == "interleaved":
            accs = [accs[0][..., 0::2], accs[0][..., 1::2]]
        acc = accs[0]
        if self.name == "sums":
            return [acc, acc.sum(2), acc.max(2, initial=-np.inf), acc.sum(1)]
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
