"""Where a kernel's functions may be approximate, as its text says."""

import re

import pytest

from codegen.pipeline import read_op
from codegen.render import context_of, render_op

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
    assert flags(source) == {"approx": "mX"}
    assert re.search(r"device\.exp_term\(x - row_max, approx\)", source)


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


def test_a_narrow_result_of_a_term_may_add_what_the_term_is_made_of():
    chain = ["e = exp(x)", "a = log(sum(e, axis=N))", "b = e + e * x"]
    source = text(*chain, outputs='a: "float32[...]", b: "T[..., N]"')
    assert re.search(r"device\.exp\(x, approx\)", source)
    source = text(*chain[:2], "c = sum(e + e * x, axis=N)", outputs='a: "float32[...]", c: "float32[...]"')
    assert re.search(r"device\.exp\(x, False\)", source)


def test_a_flag_leaves_users_their_names():
    source = text(
        LOGSUMEXP.format("x").replace("a = ", "a = approx_x * "), LOGSUMEXP.format("y").replace("a =", "b ="),
        inputs='x: "T[..., N]", y: "S[..., N]"', outputs='a: "float32[...]", b: "float32[...]"',
        params="approx_x: {type: float, default: 2.0}",
    )  # fmt: skip
    assert flags(source) == {"approx_x2": "mX", "approx_y": "mY"}


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
    """It is the user's output, whatever else reads it."""
    chain = ["a = x * sigmoid(x)", "b = a * 2"]
    outputs = 'a: "float32[..., N]", b: "bfloat16[..., N]"'
    source = text(*chain, outputs=outputs, math="auto\nsave: [a]")
    assert source.partition("def made_backward")[0].count("device.sigmoid(x, False)") == 1


def test_sine_and_cosine_of_one_argument_are_made_together():
    """Their argument is reduced once, also where only one of them may be approximate."""
    source = text("a = sin(x * x) * cos(x * x) + cos(x)", outputs='a: "float32[..., N]"')
    forward = source.partition("def made_backward")[0]
    assert "t1, t2 = device.sine_and_cosine(t0, False)" in forward and "device.cos(x, False)" in forward
    assert "device.sin(" not in forward
    apart = text("a = sin(x)", "b = cos(x)", outputs='a: "float32[..., N]", b: "bfloat16[..., N]"')
    assert "device.sine_and_cosine(x, False, True)" in apart


def test_sigmoids_of_an_argument_and_its_negative_are_made_together():
    source = text("a = sigmoid(x) * sigmoid(-x)", outputs='a: "float32[..., N]"').partition("def made_backward")[0]
    assert "t0, t1 = device.both_sigmoids(x, False)" in source and "device.sigmoid(" not in source
    # Where another function has computed the negative, nothing computes the argument before
    shared = text("a = scan(0.5, sigmoid(-x) * sigmoid(x), axis=N) * exp(-x)", outputs='a: "float32[..., N]"')
    assert "device.sigmoid(shared, approx)" in shared and "device.sigmoid(x, approx)" in shared


# Chains with one float32 result, and whether `device.{0}` is approximate in its kernel for 16-bit x and y
RULE = {
    "a = sum(tanh(x), axis=N)": True,
    "a = sum(tanh(x) * tanh(x), axis=N)": True,
    "a = sum(y + tanh(x), axis=N)": True,
    "a = mean(square(tanh(x) - mean(tanh(x), axis=N)), axis=N)": True,
    "a = max(tanh(x), axis=N)": True,
    "a = sum(where(index(N) == 3, tanh(x), 0), axis=N)": True,
    "a = sum(where(isfinite(tanh(x)), tanh(x), 0), axis=N)": True,
    "a = sum(x - tanh(x), axis=N)": False,  # both are made of x, and nearly cancel where it is small
    "a = sum(tanh(x) * y + x, axis=N)": False,
    "a = sum(tanh(x * z), axis=N)": False,  # z is float32
    "a = sum(where(tanh(x) > 0.5, 1.0, 0.0), axis=N)": False,
    "a = sum(floor(4 * tanh(x)), axis=N)": False,
    "a = prod(tanh(x), axis=N)": False,
    "a = tanh(sum(x, axis=N))": False,
    "a = sum(tanh(x), axis=N) + tanh(mean(x, axis=N))": None,  # the first is, the second is not
}


@pytest.mark.parametrize("chain", RULE)
def test_what_may_be_approximate_in_a_float32_statistic(chain):
    inputs = 'x: "T[..., N]", y: "T[..., N]", z: "float32[..., N]"'
    lines = [*(f"unused{i} = sum({n}, axis=N)" for i, n in enumerate("xyz")), "b = unused0 + unused1 + unused2", chain]
    source = text(*lines, inputs=inputs, outputs='a: "float32[...]", b: "float32[...]"')
    own = source.partition("def made_xla")[0]
    found = set(re.findall(r"device\.tanh\(.*?, (approx|False)\)", own))
    assert found == {True: {"approx"}, False: {"False"}, None: {"approx", "False"}}[RULE[chain]]
    assert flags(own) == ({} if RULE[chain] is False else {"approx": "mX"})


def test_precise_allows_no_approximation_in_a_sum():
    source = text("a = sum(tanh(x), axis=N)", math="precise")
    assert flags(source) == {} and "device.tanh(x, False)" in source


def test_a_narrow_output_beside_a_statistic_decides_with_its_inputs():
    """The output's own type decides for it, that of x for the maximum."""
    source = text(
        "v = tanh(x) * w", "y = v", "a = max(abs(v), axis=N)", outputs='y: "S[..., N]", a: "float32[...]"',
        inputs='x: "T[..., N]", w: "S[N]"',
    )  # fmt: skip
    (arrays,) = flags(source.partition("def made_xla")[0]).values()
    assert set(arrays.split(", ")) == {"mY", "mX"}


@pytest.mark.parametrize(
    ("chain", "approximate"),
    [("a = scan(0.5, exp(x), axis=N)", True), ("a = cumsum(exp(x), axis=N)", True),
     ("a = scan(exp(-exp(x)), x, axis=N)", False), ("a = cumprod(exp(x), axis=N)", False),
     ("a = scan(exp(x), exp(x) * x, axis=N)", False)],
)  # fmt: skip
def test_what_a_scan_adds_up_is_approximate(chain, approximate):
    """Errors of what it multiplies grow, so these are precise: also where both have one value."""
    for dtype in ("T", "float32"):
        source = text(chain, outputs=f'a: "{dtype}[..., N]"')
        assert bool(flags(source)) == approximate, dtype


def test_flags_are_in_the_order_of_the_chain():
    """Not in an order of addresses, which differ from build to build."""
    lines = {
        "types": "T{0}: [float32, bfloat16]",
        "inputs": "x{0}: T{0}[..., N]",
        "outputs": "y{0}: T{0}[..., N]",
        "chain": "y{0} = exp(x{0})",
        "reference": "y{0} = jnp.exp(x{0})",
    }
    text = "op: made\nsummary: Made here.\n"
    for key, line in lines.items():
        text += "\n  ".join([f"{key}:{' |' * ('=' in line)}", *(line.format(i) for i in range(8))]) + "\n"
    assert context_of(read_op("specs/made.yaml", text)).flags == [f"approx_y{i}" for i in range(8)]
