"""Twelve kinds of attention, each one op of the library, next to plain jnp: python examples/attention.py

A kind is the call of its op, and the same weights in jnp from the whole array of scores. The script prints how far the results and
the gradients are apart. On an NVIDIA GPU the ops run their kernels, elsewhere their jnp forms; `--interpret` runs the compiled
kernels on the CPU instead.
"""

import argparse
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

import cutefuse as ops
from codegen.runtime import interpret_mode

B, S, H, D = 2, 80, 4, 16  # sequences, positions, heads, elements of a head
SCALE = D**-0.5
PAGE = 16  # positions in a page of a cache

softmax, where, inf = jax.nn.softmax, jnp.where, jnp.inf


@dataclass(frozen=True)
class Kind:
    """Both functions take the kind's arrays last. Its gradients are those of q, k, v and of its floating arrays."""

    fused: Callable[..., jax.Array]  # of q: [B, Q, H, D], k and v: [B, S, groups, D]
    weights: Callable[..., jax.Array]  # of the scores q @ k: [B, H, Q, S], and of the positions i of rows and j of keys
    arrays: Callable[[], dict[str, jax.Array]] = dict
    rows: int = S  # the last ones of the sequence
    groups: int = 2  # of heads that share a head of k and v


def plain(kind: Kind, q: jax.Array, k: jax.Array, v: jax.Array, *arrays: jax.Array) -> jax.Array:
    """Attention in float32 that stores its scores."""
    q, k, v, *arrays = (a.astype(jnp.float32) if a.dtype == jnp.bfloat16 else a for a in (q, k, v, *arrays))
    k, v = (jnp.repeat(a, H // kind.groups, axis=2) for a in (k, v))
    i, j = jnp.arange(S - kind.rows, S)[:, None], jnp.arange(S)
    scores = jnp.einsum("bqhd,bshd->bhqs", q, k)
    return jnp.einsum("bhqs,bshd->bqhd", kind.weights(scores, i, j, *arrays), v)


def heads_first(
    op: Callable[..., jax.Array], q: jax.Array, k: jax.Array, v: jax.Array, *arrays: jax.Array
) -> jax.Array:
    """The call of an op whose arrays have the axis of heads before that of rows."""
    q, k, v = (a.swapaxes(1, 2) for a in (q, k, v))
    return op(q, k, v, *arrays).swapaxes(1, 2)


def sinks(s: jax.Array, i: jax.Array, j: jax.Array, sink: jax.Array) -> jax.Array:
    """A softmax with one more column, whose value is zero."""
    s = where(j <= i, s * SCALE, -inf)
    column = jnp.broadcast_to(sink[:, None, None], (*s.shape[:-1], 1))
    return softmax(jnp.concatenate([s, column], -1))[..., :-1]


def from_pages(q: jax.Array, k: jax.Array, v: jax.Array, pages: jax.Array) -> jax.Array:
    """New rows attend to a cache whose pages of k and v lie in any order. A server keeps the cache in this shape."""
    k, v = (
        jnp.zeros((pages.size, PAGE, *a.shape[2:]), a.dtype).at[pages].set(a.reshape(B, -1, PAGE, *a.shape[2:]))
        for a in (k, v)
    )
    return ops.paged_decoding(q, k, v, pages, jnp.full(B, S - q.shape[1], jnp.int32), scale=SCALE)


def in_documents(q: jax.Array, k: jax.Array, v: jax.Array, bias: jax.Array, document: jax.Array) -> jax.Array:
    document = jnp.broadcast_to(document[:, None], (B, H, S))
    return heads_first(lambda *a: ops.sigmoid_attention(*a, bias, document, document, scale=SCALE), q, k, v)


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, jnp.bfloat16)


def documents() -> jax.Array:
    """Four documents in each sequence."""
    return jnp.tile(jnp.repeat(jnp.arange(4, dtype=jnp.int32), S // 4), (B, 1))


KINDS = {
    "causal": Kind(
        lambda q, k, v: ops.causal_attention(q, k, v, scale=SCALE).o,
        lambda s, i, j: softmax(where(j <= i, s * SCALE, -inf)),
    ),
    "full": Kind(
        lambda q, k, v: ops.full_attention(q, k, v, scale=SCALE),
        lambda s, i, j: softmax(s * SCALE),
    ),
    "sliding window, soft cap": Kind(
        lambda q, k, v: ops.sliding_attention(q, k, v, scale=SCALE, cap=5.0, window=24),
        lambda s, i, j: softmax(where((j <= i) & (i - j < 24), 5 * jnp.tanh(s * SCALE / 5), -inf)),
    ),
    "ALiBi": Kind(
        lambda q, k, v, slopes: ops.alibi_attention(q, k, v, slopes, scale=SCALE),
        lambda s, i, j, slopes: softmax(where(j <= i, s * SCALE + slopes[:, None, None] * (j - i), -inf)),
        lambda: {"slopes": 2.0 ** -jnp.arange(1, H + 1)},
        groups=H,
    ),
    "relative bias": Kind(
        lambda q, k, v, bias: heads_first(ops.relative_bias_attention, q * SCALE, k, v, bias),
        lambda s, i, j, bias: softmax(s * SCALE + bias),
        lambda: {"bias": normal(4, H, S, S)},
        groups=H,
    ),
    "sinks": Kind(
        lambda q, k, v, sink: heads_first(lambda *a: ops.sink_attention(*a, sink, scale=SCALE), q, k, v),
        sinks,
        lambda: {"sink": jnp.linspace(-1.0, 2.0, H)},
        groups=H,
    ),
    "documents": Kind(
        lambda q, k, v, document: ops.document_attention(q, k, v, document, document, scale=SCALE),
        lambda s, i, j, document: softmax(
            where((document[:, None, :, None] == document[:, None, None]) & (j <= i), s * SCALE, -inf)
        ),
        lambda: {"document": documents()},
    ),
    "prefix LM": Kind(
        lambda q, k, v, prefix: heads_first(lambda *a: ops.prefix_attention(*a, prefix, scale=SCALE), q, k, v),
        lambda s, i, j, prefix: softmax(where((j <= i) | (j < prefix[:, None, None, None]), s * SCALE, -inf)),
        lambda: {"prefix": jnp.array([10, 40], jnp.int32)},
        groups=H,
    ),
    "dilated": Kind(
        lambda q, k, v: ops.dilated_attention(q, k, v, scale=SCALE, step=3, window=30),
        lambda s, i, j: softmax(where((j <= i) & (i - j < 30) & ((i - j) % 3 == 0), s * SCALE, -inf)),
        groups=H,
    ),
    "paged decoding": Kind(
        from_pages,
        lambda s, i, j, pages: softmax(where(j <= i, s * SCALE, -inf)),
        lambda: {"pages": jax.random.permutation(jax.random.key(5), B * S // PAGE).reshape(B, -1)},
        rows=2,
    ),
    "sigmoid": Kind(
        in_documents,
        lambda s, i, j, bias, document: where(
            document[:, None, :, None] == document[:, None, None], jax.nn.sigmoid(s * SCALE + bias), 0
        ),
        lambda: {"bias": normal(6, S, S) - 3, "document": documents()},
        groups=H,
    ),
    "retention": Kind(
        lambda q, k, v, log_decay: ops.retention(q, k, v, log_decay, scale=SCALE),
        lambda s, i, j, log_decay: where(
            j <= i, s * SCALE * jnp.exp(log_decay[:, None, None] * jnp.maximum(i - j, 0)), 0
        ),
        lambda: {"log_decay": jnp.log1p(-(2.0 ** -jnp.arange(2, H + 2)))},
        groups=H,
    ),
}


def differences(kind: Kind) -> dict[str, float]:
    """Of the result and of each gradient: the root mean square of the difference, as a part of plain attention's."""
    q, k, v = normal(0, B, kind.rows, H, D), normal(1, B, S, kind.groups, D), normal(2, B, S, kind.groups, D)
    inputs = {"q": q, "k": k, "v": v, **kind.arrays()}
    floating = {name: at for at, (name, a) in enumerate(inputs.items()) if jnp.issubdtype(a.dtype, jnp.floating)}
    cotangent = normal(3, *q.shape)

    def with_gradients(attention: Callable[..., jax.Array]) -> list[jax.Array]:
        def loss(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
            o = attention(*arrays)
            return jnp.sum(o.astype(jnp.float32) * cotangent), o

        gradients, o = jax.jit(jax.grad(loss, tuple(floating.values()), has_aux=True))(*inputs.values())
        return [jnp.float32(a) for a in (o, *gradients)]

    pairs = zip(with_gradients(kind.fused), with_gradients(lambda *arrays: plain(kind, *arrays)), strict=True)
    parts = [float(jnp.linalg.norm(ours - theirs) / jnp.linalg.norm(theirs)) for ours, theirs in pairs]
    return dict(zip(["o", *(f"d{name}" for name in floating)], parts, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--interpret", action="store_true", help="run the compiled kernels on the CPU")
    with interpret_mode() if parser.parse_args().interpret else contextlib.nullcontext():
        for name, kind in KINDS.items():
            print(f"{name:26}", *(f"{of} {part:.4f}" for of, part in differences(kind).items()), sep="  ")


if __name__ == "__main__":
    main()
