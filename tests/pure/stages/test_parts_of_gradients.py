"""Chains whose gradients, or whose stages, have parts that were once not rendered."""

import ast

import pytest

from codegen.pipeline import read_op
from codegen.render import render_op

HEAD = "op: made\nsummary: Drawn at random.\n"
TERMS_THAT_CANCEL = (
    HEAD
    + """\
inputs: {x: "float32[..., (2 N)]"}
outputs: {y: "bfloat16[...]"}
chain: |
  v = -x[1]
  y = sum(x[1] * v - x[1] * v, axis=N)
reference: x
"""
)
ROWS_OF_AN_EPILOGUE = (
    HEAD
    + """\
inputs: {x: "float32[..., K]", w: "float32[F, K]", c: "float32[F]", u: "float32[M, F]"}
outputs: {y: "bfloat16[M]"}
chain: |
  p = dot(c - dot(x, w, axis=K), u, axis=F)
  y = mean(p, axis=...)
reference: x
"""
)
SIZE_OF_BLOCKS_IN_A_STAGE = (
    HEAD
    + """\
types:
  T0: [bfloat16]
  T1: [float32]
inputs:
  j0: 'float8_e5m2[..., (B G=8)]'
  f0: 'T0[]'
outputs:
  y0: 'T1[...]'
  y1: 'uint16[..., (B G=8)]'
  y2: 'T1[..., B, G]'
params:
  param0: {type: float, default: 0.5, static: false}
chain: |
  z0 = ((param0 / (abs(j0) + 0.5)) * f0)
  s0 = logsumexp(((maximum(f0, f0) * sinh((tanh(param0) * 3.0))) + z0), axis=G)
  most0 = max(z0, axis=G)
  first0 = min(where((z0 == most0), index(G), size(G)), axis=G)
  s1 = sum((minimum(minimum(param0, s0), (s0 + first0)) + j0), axis=G)
  most1 = max(z0, axis=G)
  first1 = min(where((z0 == most1), index(G), size(G)), axis=G)
  s2 = max((((param0 - first1) - ((abs(param0) + 0.5) ** 0.5)) + z0), axis=G)
  most2 = max(j0, axis=G)
  s3 = var(z0, axis=(B, G))
  most3 = min(j0, axis=(B, G))
  s4 = norm((minimum(log2((abs(s0) + 0.5)), clip(s3, (-1.0), 1.25)) - j0), axis=(B, G))
  y0 = ((s4 + s4) * s3)
  y1 = cast(where((most0 < (-1.5)), j0, z0), uint8)
  y2 = (((((param0 * j0) + s1) * s2) + most2) * most3)
reference: |
  y0 = j0
  y1 = j0
  y2 = j0
"""
)
SUM_OF_A_SCAN_ALONG_A_NEW_AXIS = (
    HEAD
    + """\
inputs: {x: "float32[B, S, N]", w: "float32[K]"}
outputs: {y: "float32[B, S, N]", z: "float32[B, N, K]"}
chain: |
  h = scan(0.9, x, axis=S)
  y = h * sum(w, axis=K)
  z = sum(h, axis=S)
reference: |
  y = x
  z = x
"""
)
SELECTION_ALONG_A_NEW_AXIS = (
    HEAD
    + """\
inputs: {x: "float32[B, S]", w: "float32[L]"}
outputs: {z: "float32[B, L, K=3]", v: "float32[L]"}
chain: |
  z = top_k(x, K, axis=S)
  v = w * 2
reference: |
  z = x
  v = w
"""
)
SIZE_OF_A_FIXED_AXIS_OF_A_GRADIENT = (
    HEAD
    + """\
inputs: {x: "float32[B, S, N]", h0: "float32[B, K=4]"}
outputs: {y: "float32[B, S, N]"}
chain: |
  h = scan(0.9, x, axis=S, initial=h0)
  y = sum(h, axis=K)
reference: x
"""
)
REDUCTION_OF_AN_OPTIONAL_INPUT = (
    HEAD
    + """\
inputs: {x: "float32[B]", h: "float32[B, K=4] = -1.0"}
outputs: {y: "float32[B]"}
chain: |
  y = x + max(h, axis=K)
reference: x
"""
)
SELECTED_KEYS_OF_ATTENTION = (
    HEAD
    + """\
inputs: {q: "bfloat16[..., Q, D]", k: "bfloat16[..., S, D]", v: "bfloat16[..., S, E]", b: "float32[..., S]"}
outputs: {o: "bfloat16[..., Q, E]"}
chain: |
  least = min(top_k(b, K=3, axis=S), axis=K)
  o = softmax(where(b >= least, q @ k, -inf), axis=S) @ v
reference: q
"""
)
TEXTS = [
    TERMS_THAT_CANCEL,
    ROWS_OF_AN_EPILOGUE,
    SIZE_OF_BLOCKS_IN_A_STAGE,
    SUM_OF_A_SCAN_ALONG_A_NEW_AXIS,
    SELECTION_ALONG_A_NEW_AXIS,
    SIZE_OF_A_FIXED_AXIS_OF_A_GRADIENT,
    REDUCTION_OF_AN_OPTIONAL_INPUT,
]


@pytest.mark.parametrize("text", TEXTS)
def test_they_are_rendered(text):
    ast.parse(render_op(read_op("specs/made.yaml", text)))
