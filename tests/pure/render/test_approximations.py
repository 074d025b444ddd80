"""Where a kernel's functions may be approximate, as its text says."""

import re

import pytest

from codegen.pipeline import read_op
from codegen.render import render_op

SPEC = """
op: made
summary: Made here.
types: {{{types}}}
inputs: {{{inputs}}}
outputs: {{{outputs}}}
params: {{{params}}}
math: {math}
chain: |
  {chain}
reference: |
  {reference}
"""
LOGSUMEXP = "a = log(sum(exp({0} - max({0}, axis=N)), axis=N))"


def text(
    *chain: str,
    inputs: str = 'x: "T[..., N]"',
    outputs: str = 'a: "float32[...]"',
    params: str = "",
    math: str = "auto",
) -> str:
    reference = "\n  ".join(f"{name} = x" for name in re.findall(r"(\w+): \"", outputs))
    types = ", ".join(f"{name}: [float32, bfloat16]" for name in "TS" if f'"{name}[' in inputs)
    made = {
        "types": types,
        "inputs": inputs,
        "outputs": outputs,
        "params": params,
        "math": math,
        "reference": reference,
    }
    return render_op(read_op("specs/made.yaml", SPEC.format(chain="\n  ".join(chain), **made)))


def flags(source: str) -> dict[str, str]:
    return dict(re.findall(r"^    (\w+) = device\.narrow\((.*)\)$", source.partition("def made_backward")[0], re.M))


@pytest.mark.parametrize("chain", [[LOGSUMEXP.format("x")], ["e = exp(x - max(x, axis=N))", "a = log(sum(e, axis=N))"]])
def test_terms_are_approximate_where_what_they_are_made_of_is_narrow(chain):
    source = text(*chain)
    assert flags(source) == {"approx_terms": "mX"}
    assert re.search(r"device\.exp_term\(x - row_max, approx_terms\)", source)


def test_each_sum_has_its_own_arrays():
    source = text(
        LOGSUMEXP.format("x"), LOGSUMEXP.format("y").replace("a =", "b ="),
        inputs='x: "T[..., N]", y: "S[..., N]"', outputs='a: "float32[...]", b: "float32[...]"',
    )  # fmt: skip
    found = flags(source)
    assert sorted(found.values()) == ["mX", "mY"]
    for name, array in found.items():
        assert re.search(rf"exp_term\({array[1:].lower()} - \w+, {name}\)", source)


@pytest.mark.parametrize(("math", "text_of_flag"), [("precise", "False"), ("fast", "True")])
def test_the_spec_decides_for_all_types(math, text_of_flag):
    source = text(LOGSUMEXP.format("x"), math=math)
    assert flags(source) == {}
    assert f"device.exp_term(x - row_max, {text_of_flag})" in source


def test_a_term_that_is_used_elsewhere_is_precise():
    source = text(
        "e = exp(x - max(x, axis=N))", "a = log(sum(e, axis=N))", "e2 = e * 2",
        outputs='a: "float32[...]", e2: "float32[..., N]"',
    )  # fmt: skip
    assert "exp_term" not in source.partition("def made_backward")[0]


def test_a_flag_leaves_users_their_names():
    source = text(
        LOGSUMEXP.format("x").replace("a = ", "a = approx_terms * "), params="approx_terms: {type: float, default: 2.0}"
    )
    assert flags(source) == {"approx_terms2": "mX"}


@pytest.mark.parametrize(
    "chain", ["a = softmax(x, axis=N) + x", "a = (x - mean(x, axis=N)) * rsqrt(var(x, axis=N) + 1)"]
)
def test_what_is_kept_for_a_backward_makes_nothing_exact(chain):
    """The sums and deviations that a forward keeps in float32 are those of the output, which is of fewer bits."""
    source = text(chain, outputs='a: "T[..., N]"')
    kept = source.partition("def made_forward")[2].partition("def made_frozen")[0].partition("def made_backward")[0]
    found = re.findall(r"device\.\w+\([^\n]*, (approx|True|False)\)", kept)
    assert kept and found and set(found) == {"approx"}


def test_an_output_that_a_spec_saves_is_as_exact_as_any():
    """It is the user's, whatever else takes it."""
    chain = ["a = x * sigmoid(x)", "b = a * 2"]
    outputs = 'a: "float32[..., N]", b: "bfloat16[..., N]"'
    source = text(*chain, outputs=outputs, math="auto\nsave: [a]")
    assert source.partition("def made_backward")[0].count("device.sigmoid(x, False)") == 1


def test_sine_and_cosine_of_one_argument_are_made_together():
    """Their arguments are reduced once. Not where one of them may be approximate and the other may not."""
    source = text("a = sin(x * x) * cos(x * x) + cos(x)", outputs='a: "float32[..., N]"')
    forward = source.partition("def made_backward")[0]
    assert "t1, t2 = device.sine_and_cosine(t0, False)" in forward and "device.cos(x, False)" in forward
    assert "device.sin(" not in forward
    apart = text("a = sin(x)", "b = cos(x)", outputs='a: "float32[..., N]", b: "bfloat16[..., N]"')
    assert "device.sin(x, False)" in apart and "device.cos(x, True)" in apart
