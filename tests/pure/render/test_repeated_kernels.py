"""A module has each kernel once, also where several of its ops are equal but for their names."""

import ast

from codegen.pipeline import read_op
from codegen.render import render_op

SPEC = {
    "op": "spread",
    "summary": "Each channel scaled by its norm.",
    "types": {"T": ["float32", "bfloat16"]},
    "inputs": {"x": "T[B, S, C]", "scale": "T[C]"},
    "outputs": {"y": "T[B, S, C]"},
    "chain": "length = norm(x, axis=S)\ny = scale * x * length / (mean(length, axis=C) + 1)\n",
    "reference": "n = jnp.sqrt(jnp.sum(x * x, axis=1, keepdims=True))\n"
    "y = scale * x * n / (jnp.mean(n, axis=-1, keepdims=True) + 1)\n",
}


def test_stages_of_both_backwards_share_their_functions():
    module = ast.parse(render_op(read_op("specs/spread.yaml", SPEC)))
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    decorator = functions["spread"].decorator_list[0]
    given = {k.arg: k.value.id for k in decorator.keywords if k.arg.endswith(("_launch", "_xla"))}
    assert set(given.values()) <= functions.keys()
    assert given["backward_stage1_launch"] == given["frozen_stage1_launch"]
    assert given["backward_stage1_xla"] == given["frozen_stage1_xla"]
    others = [name for name in functions if name.startswith("spread_backward_stage1")]
    assert others == []
    apart = {ast.unparse(functions[name]).replace(name.removesuffix("_launch"), "") for name in given.values()}
    assert len(apart) == len({*given.values()})
