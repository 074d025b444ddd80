"""A module has each kernel once, also where several of its ops are equal but for their names."""

import ast

import pytest

from codegen.pipeline import read_op
from codegen.render import render_op

NORM = {
    "op": "spread",
    "summary": "Each channel scaled by its norm.",
    "types": {"T": ["float32", "bfloat16"]},
    "inputs": {"x": "T[B, S, C]", "scale": "T[C]"},
    "outputs": {"y": "T[B, S, C]"},
    "chain": "length = norm(x, axis=S)\ny = scale * x * length / (mean(length, axis=C) + 1)\n",
    "reference": "n = jnp.sqrt(jnp.sum(x * x, axis=1, keepdims=True))\n"
    "y = scale * x * n / (jnp.mean(n, axis=-1, keepdims=True) + 1)\n",
}
PRODUCTS = {
    "op": "spread",
    "summary": "Two products, and a square between them.",
    "types": {"T": ["float16", "bfloat16"]},
    "inputs": {"x": "T[..., K]", "up": "T[F, K]", "down": "T[K, F]"},
    "outputs": {"y": "T[..., K]"},
    "chain": "z = x @ up\ny = square(relu(z)) @ down\n",
    "reference": "jnp.square(jax.nn.relu(x @ up.T)) @ down.T",
}


@pytest.mark.parametrize(
    ("spec", "second", "one"),
    [
        (NORM, "backward_stage1", "frozen_stage1"),
        (PRODUCTS, "forward_stage2", "stage2"),
        (PRODUCTS, "forward_stage2_epilogue", "stage2_epilogue"),
    ],
)
def test_equal_kernels_share_their_functions(spec, second, one):
    module = ast.parse(render_op(read_op("specs/spread.yaml", spec)))
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    decorator = functions["spread"].decorator_list[0]
    given = {k.arg: k.value.id for k in decorator.keywords if k.arg.endswith(("_launch", "_xla"))}
    assert given[f"{second}_launch"] == given[f"{one}_launch"] == f"spread_{one}_launch"
    assert not [name for name in functions if name.startswith(f"spread_{second}")]
    assert {
        n.id for n in ast.walk(module) if isinstance(n, ast.Name) and n.id.startswith("spread_")
    } <= functions.keys()
