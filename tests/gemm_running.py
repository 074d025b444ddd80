"""Products with the epilogues of `gemm_epilogues.py`: as calls of the runtime, and in float64."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from gemm_epilogues import LAUNCHERS

from codegen.hopper_tiles import Tiles
from codegen.runtime import kernels


def divisor(extent: int, most: int) -> int:
    """The largest power of two that divides an extent, up to `most`."""
    return next(d for d in (16, 8, 4, 2, 1) if d <= most and extent % d == 0)


def call_of(name: str, inputs, outputs, tiles: Tiles, b_is_nk: bool, paired: str, arch: str) -> kernels.Call:
    """The launcher's call for arrays of these shapes and dtypes. The last input or output decides the vectors."""
    y = outputs[0]
    vec = 16 // max(1, y.dtype.itemsize)
    vec = min(vec, 8) if paired else vec

    def described(x):
        most = 16 // x.dtype.itemsize
        return (x.dtype.name, (*(1 for _ in x.shape[:-1]), divisor(x.shape[-1], max(most, vec))), 16)

    constants = {"name": name.removesuffix("_two"), "b_is_nk": b_is_nk, "paired": paired, "vec": vec,
                 "ragged": y.shape[-1] % vec != 0} | dataclasses.asdict(tiles)  # fmt: skip
    launcher, _ = LAUNCHERS[name]
    return kernels.Call(
        launcher, tuple(map(described, inputs)), tuple(map(described, outputs)), tuple(constants.items()), arch
    )


def outputs_of(name: str, a, bs, tiles: Tiles, b_is_nk: bool, paired: str, dtype) -> list[jax.ShapeDtypeStruct]:
    """What a launcher writes."""
    L, M, _ = a.shape
    N = bs[0].shape[1 if b_is_nk else 2] // (2 if paired == "interleaved" else 1)
    shapes = [jax.ShapeDtypeStruct((L, M, N), dtype)]
    if name == "sums":
        wide, high = -(-N // tiles.tile_n), -(-M // tiles.tile_m)
        shapes += [jax.ShapeDtypeStruct((L, M, wide), jnp.float32)] * 2
        shapes += [jax.ShapeDtypeStruct((L, high, N), jnp.float32)]
    return shapes


def arguments(name: str, L: int, M: int, K: int, N: int, dtype, b_is_nk: bool, paired: str, seed: int = 0, lb: int = 0):
    """Random a, one or two b, and the epilogue's operands: small integers where `dtype` is an integer's, else normal."""
    rng = np.random.default_rng(seed)
    lb = lb or L

    def draw(*shape, scale=1.0, kind=dtype):
        if jnp.issubdtype(kind, jnp.integer):
            return jnp.asarray(rng.integers(-128, 128, shape), kind)
        return jnp.asarray(rng.standard_normal(shape, np.float32) * scale, kind)

    columns = 2 * N if paired == "interleaved" else N
    b_shape = (lb, columns, K) if b_is_nk else (lb, K, columns)
    scale = max(K, 1) ** -0.5 * 2
    bs = [draw(*b_shape, scale=scale) for _ in range(2 if name.endswith("_two") else 1)]
    wide = jnp.bfloat16 if jnp.dtype(dtype).itemsize == 1 else dtype
    kinds = {"r": lambda: draw(N, kind=wide), "t": lambda: draw(L, M, N, kind=wide)}
    return draw(L, M, K), bs, [kinds[kind]() for kind in LAUNCHERS[name][1]]


@functools.cache
def _jitted(call: kernels.Call, outputs: tuple):
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in outputs]
    return jax.jit(lambda *operands: kernels.launch(call, operands, shapes, {}))


def run(name: str, a, bs, others, tiles: Tiles, b_is_nk: bool, paired: str, dtype, arch: str = "sm_90a"):
    """The kernel, on a GPU: its outputs."""
    shapes = outputs_of(name, a, bs, tiles, b_is_nk, paired, dtype)
    inputs = [a, *bs, *others]
    call = call_of(name, inputs, shapes, tiles, b_is_nk, paired, arch)
    return _jitted(call, tuple((s.shape, s.dtype) for s in shapes))(*inputs)


def expected(name: str, a, bs, others, b_is_nk: bool, paired: str) -> list[np.ndarray]:
    """The outputs in float64."""
    a, *rest = (np.asarray(x.astype(jnp.float32), np.float64) for x in (a, *bs, *others))
    bs, others = rest[: len(bs)], rest[len(bs) :]
    accs = [a @ (np.swapaxes(b, 1, 2) if b_is_nk else b) for b in bs]
    if paired == "interleaved":
        accs = [accs[0][..., 0::2], accs[0][..., 1::2]]
    acc = accs[0]
    if name == "plain":
        return [acc]
    if name == "sums":
        return [acc, acc.sum(2), acc.max(2, initial=-np.inf), acc.sum(1)]
    if name.startswith("swiglu"):
        return [acc / (1 + np.exp(-acc)) * accs[1]]
    if name == "dgelu":
        z = others[0]
        c, d = 0.7978845608028654, 0.044715
        t = np.tanh(c * (z + d * z**3))
        return [acc * (0.5 + 0.5 * t + 0.5 * z * (1 - t * t) * c * (1 + 3 * d * z * z))]
    z = acc + others[0]
    if name == "relu":
        return [np.maximum(z, 0)]
    if name == "gelu":
        return [0.5 * z * (1 + np.tanh(0.7978845608028654 * (z + 0.044715 * z**3)))]
    if name == "gelu_erf":
        from math import erf

        return [0.5 * z * (1 + np.vectorize(erf, otypes=[float])(z / 2**0.5))]
    return [z / (1 + np.exp(-z)) + others[1]]
