"""The sums of exponentials that are computed in the sweep that finds their maximum."""

import pytest

from codegen.pipeline import read_op

SPEC = """
op: made
summary: Made here.
inputs: {{x: "float32[..., N]", z: "float32[..., N]", t: "float32[...]"}}
outputs: {{y: "float32[..., N]"{more}}}
params: {{scale: {{type: float, default: 2.0}}}}
chain: |
  {chain}
reference: |
  {reference}
"""


def sweeps(*chain: str, more: str = "") -> tuple[tuple[int, ...], ...]:
    names = [line.split(" = ")[0] for line in chain]
    outputs = [n for n in ("y", "c") if n in names]
    reference = "\n  ".join(f"{n} = x + z + t + scale" for n in outputs)
    text = SPEC.format(chain="\n  ".join([*chain]), reference=reference, more=more)
    return read_op("specs/made.yaml", text).plan.sweeps


USED = " + 0 * (x + z + t) * scale"  # every array of the spec is used


@pytest.mark.parametrize(
    "total",
    [
        "sum(exp(x - max(x, axis=N)), axis=N)",
        "mean(exp2(x - max(x, axis=N)), axis=N)",
        "sum(exp((x - max(x, axis=N)) * 0.5), axis=N)",
        "sum(exp(3 * (x - max(x, axis=N)) / 7), axis=N)",
        "sum(exp((x * scale + z) - max(x * scale + z, axis=N)), axis=N)",
        "exp(logsumexp(x / scale, axis=N))",
        "sum(exp(z - max(z, axis=N)), axis=N) + sum(exp(x - max(x, axis=N)), axis=N)",
    ],
)
def test_one_pass(total):
    assert sweeps(f"y = x / ({total}){USED}") == ((0, 1),)


@pytest.mark.parametrize(
    "total",
    [
        "sum(exp((x - max(x, axis=N)) * -1), axis=N)",  # grows as the maximum rises
        "sum(exp((x - max(x, axis=N)) * 0), axis=N)",
        "sum(exp((x - max(x, axis=N)) * scale), axis=N)",  # whose sign nobody knows
        "sum(exp(x - max(z, axis=N)), axis=N)",
        "sum(exp(x - min(x, axis=N)), axis=N)",
        "sum(exp(max(x, axis=N) - x), axis=N)",
        "sum(z * exp(x - max(x, axis=N)), axis=N)",
        "max(exp(x - max(x, axis=N)), axis=N)",
        "sum(exp(x - max(x, axis=N)), axis=N) + sum(square(x - max(x, axis=N)), axis=N)",  # the second one waits
    ],
)
def test_two_passes(total):
    assert sweeps(f"y = x / ({total}){USED}") == ((0,), (1,))


def test_what_needs_the_sum_takes_a_pass_of_its_own():
    p = "p = exp(x - max(x, axis=N)) / sum(exp(x - max(x, axis=N)), axis=N)"
    assert sweeps(p, f"y = p * sum(p * z, axis=N){USED}") == ((0, 1), (2,))


def test_maxima_of_one_pass_do_not_begin_another():
    """A sum that follows a maximum which itself needs such a sum."""
    chain = (
        "u = x / sum(exp(x - max(x, axis=N)), axis=N)",
        f"y = exp(u - max(u, axis=N)) / sum(exp(u - max(u, axis=N)), axis=N){USED}",
    )
    assert sweeps(*chain) == ((0, 1), (2, 3))


def test_kernels_that_walk_down_rows_keep_them_and_fold_in_turns():
    chain = f"y = x / sum(exp(x - max(x, axis=N)), axis=N){USED}"
    assert sweeps(chain, "c = sum(x, axis=...)", more=', c: "float32[N]"') == ((0,), (1,))
