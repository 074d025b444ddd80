"""Products of the same left factor in one launch: which stages are, with which tiles, and why others are not."""

import pytest

from codegen.explain.launching import bindings
from codegen.explain.report import main_loops
from codegen.pipeline import read_op
from codegen.plan.op import Staged
from tests.making import spec_text

OUTPUTS = "q: T[..., Q]; k: T[..., H]; v: T[..., H]"


def made(last: str, inputs: str):
    text = spec_text(
        f"x: T[..., K]; wq: T[K, Q]; wk: T[K, H]; {inputs}", OUTPUTS, f"q = relu(x @ wq); k = x @ wk; {last}",
        types="{T: [bfloat16]}",
    )  # fmt: skip
    op = read_op("specs/made.yaml", text)
    assert isinstance(op.plan, Staged)
    return op


@pytest.mark.parametrize(("rows", "q", "h"), [(8192, 4096, 1024), (32768, 1280, 1280), (256, 4096, 1024)])
def test_tiles_divide_each_product(rows, q, h):
    """No tile has columns of two products: tiles that divide the columns of all together are not best."""
    op = made("v = silu(x @ wv)", "wv: T[K, H]")
    loops = main_loops(op, next(bindings(op.spec)), {"...": rows, "K": 4096, "Q": q, "H": h})
    assert [loop["joint"] for loop in loops] == [[1, 2, 3]] * 3 and not loops[0]["apart"]
    assert len({str(loop["tiles"]) for loop in loops}) == 1 and h % loops[0]["tiles"]["tile_n"] == 0


@pytest.mark.parametrize(
    ("last", "inputs"),
    [
        ("v = x @ wv + r", "wv: T[K, H]; r: T[..., H]"),  # reads an array with an element for each of its results
        ("v = x @ wv", "wv: T[H, K]"),  # in another order
        ("v = u @ wv", "u: T[..., K]; wv: T[K, H]"),  # another left factor
        ("v = x @ wg * (x @ wv)", "wg: T[K, H]; wv: T[K, H]"),  # of two accumulators
    ],
)
def test_other_products_have_a_launch_of_their_own(last, inputs):
    assert made(last, inputs).plan.joint == (range(2),)
