"""Hints for functions that jnp, NumPy and PyTorch have and the language does not: what a formula says instead."""

from __future__ import annotations

import ast

from codegen.errors import known, nearest
from codegen.language.formula.calls import FORMS, functions
from codegen.language.prelude import prelude
from codegen.language.scope import CONSTANTS, Scope

MOST_CODE = 60  # characters of a user's code that a hint repeats
# Functions
INSTEAD = {
    "average": "write mean(x, axis=N)", "amax": "write max(x, axis=N)", "amin": "write min(x, axis=N)",
    "median": "as in a sort, of which where(index(N) == size(N) // 2, s, 0) is summed",
    "matmul": "as in a @ b", "einsum": "as in dot(a, b, axis=K)", "tensordot": "as in dot(a, b, axis=K)",
    "power": "as in a ** b", "pow": "as in a ** b", "mod": "as in a % b", "remainder": "as in a % b",
    "floor_divide": "as in a // b", "divide": "as in a / b", "multiply": "as in a * b", "add": "as in a + b", "subtract": "as in a - b",
    "negative": "as in -a", "logical_and": "as in a & b", "logical_or": "as in a | b", "logical_not": "as in ~a",
    "log10": "as in log(x) / log(10)", "swish": "it is silu(x)", "expit": "it is sigmoid(x)", "logistic": "it is sigmoid(x)",
    "one_hot": "compare positions, as in where(index(N) == label, 1, 0)", "arange": "it is index(N)", "iota": "it is index(N)",
    "eye": "compare positions, as in where(index(N) == index(M), 1, 0)",
    "tril": "compare positions, as in where(index(K) <= index(Q), x, 0)", "triu": "compare positions, as in where(index(K) >= index(Q), x, 0)",
    "clamp": "as in clip(x, lo, hi)", "trunc": "as in where(x < 0, ceil(x), floor(x))", "frac": "as in rem(x, 1.0)", "fmod": "it is rem(a, b)",
    "hypot": "as in sqrt(square(a) + square(b))", "logit": "as in log(x / (1 - x))", "sinc": "as in where(x == 0, 1, sin(pi * x) / (pi * x))",
    "heaviside": "as in where(x > 0, 1, 0)", "isclose": "as in abs(a - b) <= 1e-5", "nan_to_num": "as in where(isnan(x), 0, x)",
    "lerp": "as in a + w * (b - a)", "count_nonzero": "as in sum(x != 0, axis=N)",
    "logcumsumexp": "it is cumlogsumexp(x, axis=N)", "ema": "as in scan(a, (1 - a) * x, axis=N)", "diff": "as in x - shift(x, axis=N)",
    "flip": "from an axis' end, a running sum is cumsum(x, axis=N, reverse=true)", "conv": "as in w0 * x + w1 * shift(x, axis=N, by=1)",
    "pad": "shift(x, axis=N, by=1) has a fill where it is outside", "gather": "as in take(table, i, axis=N)",
    "scatter": "as in y = put(table, value, i, axis=N)", "scatter_add": "as in y = put(table, value, i, axis=N, how=add)",
    "segment_sum": "as in y = put(zeros, value, i, axis=N, how=add)", "bincount": "as in y = put(zeros, 1, i, axis=N, how=add)",
    "take_along_axis": "as in take(x, i, axis=N), or sum(where(index(N) == i, x, 0), axis=N)",
    "concat": "declare the output with parts, (2 N), and assign y[0] and y[1]", "concatenate": "declare the output with parts, (2 N), and assign y[0] and y[1]",
    "stack": "declare the output with parts, (N 2), and assign y[0] and y[1]",
    "split": "declare the input with parts, (2 N), and use x[0] and x[1]",
    "reshape": "declare the axis as the array has it, (H D), and the output's axes",
    "transpose": "declare the output with its axes in that order", "swapaxes": "declare the output with its axes in that order",
    "broadcast_to": "arrays broadcast by the names of their axes", "expand_dims": "arrays broadcast by the names of their axes",
    "astype": "as in cast(x, float32)", "float32": "as in cast(x, float32)", "bfloat16": "as in cast(x, bfloat16)",
    "roll": "shift(x, axis=N, by=1) has a fill where it is outside", "zeros_like": "a number broadcasts", "ones_like": "a number broadcasts",
    "item": "a scalar array is a value as it is", "copy": "a value is never changed: use its name",
    "squeeze": "arrays broadcast by the names of their axes", "unsqueeze": "arrays broadcast by the names of their axes",
    "view": "declare the axis as the array has it, (H D), and the output's axes", "permute": "declare the output with its axes in that order",
    "masked_fill": "as in where(mask, value, x)", "to": "as in cast(x, float32)", "float": "as in cast(x, float32)", "int": "as in cast(x, int32)",
    "len": "it is size(N)", "shape": "it is size(N)",
    "dropout": "as in where(bernoulli(key, keep), x / keep, 0)", "rand": "as in uniform(key)", "randn": "as in normal(key)",
    "layernorm": "as in (x - mean(x, axis=N)) * rsqrt(var(x, axis=N) + eps)", "layer_norm": "as in (x - mean(x, axis=N)) * rsqrt(var(x, axis=N) + eps)",
    "rmsnorm": "as in x * rsqrt(mean(square(x), axis=N) + eps)", "rms_norm": "as in x * rsqrt(mean(square(x), axis=N) + eps)",
    "scaled_dot_product_attention": "as in softmax(dot(q, k, axis=D) * scale, axis=K) @ v", "dot_product_attention": "as in softmax(dot(q, k, axis=D) * scale, axis=K) @ v",
}  # fmt: skip
ATTRIBUTES = {
    "shape": "the size of an axis is size(N)", "ndim": "an array's axes are those it is declared with",
    "T": "axes are found by their names: write {of}", "mT": "axes are found by their names: write {of}",
    "dtype": "a type is named, as in cast(x, float32)",
    "at": "declare the table as an input, and write y = put(table, value, i, axis=N)",
}  # fmt: skip
FORMULAS = "formulas have numbers, names, + - * / // % **, comparisons, & | ^ ~ << >>, x[0], a @ b and calls"
BROADCAST = "arrays broadcast by the names of their axes: write {of}"
PARTS = "name parts: of an axis (2 N), x[0] and x[1] are its halves; of (N 2), every second element"


def for_name(name: str, scope: Scope) -> str:
    """The hint for an unknown name."""
    names = scope.names()
    return known(name, names) + ("" if nearest(name, names) else " A named number is declared in `params`.")


def for_function(name: str) -> str:
    """The hint for a function that the language has not."""
    return INSTEAD.get(name) or known(name, functions(), "functions")


def for_call(tree: ast.Call, scope: Scope) -> str:
    """The hint for a call of a function of a module, or of a value's method: the call as the language has it."""
    function = tree.func
    if not isinstance(function, ast.Attribute):
        return "as in tanh(x)"
    name, base = function.attr, function.value
    if name in INSTEAD or name not in functions():
        return for_function(name)
    root = base
    while isinstance(root, ast.Attribute):
        root = root.value
    is_module = isinstance(root, ast.Name) and root.id not in scope.names()
    arguments = [ast.unparse(argument) for argument in (*(() if is_module else (base,)), *tree.args)]
    if "axis" in _params(name):
        arguments = [arguments[0] if arguments else "x", f"axis={scope.example_axis}"]
    call = f"{name}({', '.join(arguments)})"
    return f"write {call}" if len(call) <= MOST_CODE else f"write {name}(...)"


def _params(name: str) -> tuple[str, ...]:
    """The parameters that have names, of a function of the language."""
    return FORMS[name].params if name in FORMS else prelude()[name].params if name in prelude() else ()


def for_construct(tree: ast.AST) -> str:
    """The hint for an expression of Python that is not part of the language."""
    if isinstance(tree, ast.Lambda):
        return "use its formula where it is called"
    if not isinstance(tree, ast.Attribute):
        return FORMULAS
    if tree.attr in functions() or tree.attr in CONSTANTS:
        return f"write {tree.attr}"
    return ATTRIBUTES.get(tree.attr, FORMULAS).format(of=shortened(ast.unparse(tree.value)))


def for_index(tree: ast.Subscript) -> str:
    """The hint for an index of a value without parts; "" if there is no better one than its name."""
    base, index = tree.value, tree.slice
    if isinstance(base, ast.Attribute) and base.attr in ATTRIBUTES:
        return for_construct(base)
    indices = index.elts if isinstance(index, ast.Tuple) else [index]
    if any(isinstance(i, ast.Slice) and (i.lower or i.upper or i.step) for i in indices):
        return PARTS
    if any(isinstance(i, ast.Constant) and i.value is None for i in indices):
        return BROADCAST.format(of=shortened(ast.unparse(base)))
    if any(isinstance(i, ast.Name | ast.Call | ast.BinOp) for i in indices):
        return f"as in take({shortened(ast.unparse(base))}, i, axis=N)"
    return ""


def shortened(code: str) -> str:
    """A user's code for a hint; "x" for long code."""
    return code if len(code) <= MOST_CODE else "x"
