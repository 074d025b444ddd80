"""Products of the same left factor in one launch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from codegen.runtime.compiled import interpreted
from tests.making import make_op, spec_text
from tests.meshes import normal
from tests.turns import some

INPUTS = "x: T[..., K]; wq: T[{q}]; wk: T[{k}]; wv: T[{k}]; b: T[Q]"
OUTPUTS = "q: T[..., Q]; m: float32[...]; k: T[..., H]; v: T[..., H]"
CHAIN = "q = relu(x @ wq + b); m = max(abs(x @ wq), axis=Q); k = x @ wk; v = where(index(H) < 3, 1, silu(x @ wv))"


def made(folder, nk: bool):
    """An op of three products, whose epilogues differ: the first one has a reduction, the last one positions."""
    dims = {"q": "Q, K", "k": "H, K"} if nk else {"q": "K, Q", "k": "K, H"}
    turn = ".T" if nk else ""
    reference = f"z = x @ wq{turn}; q = jax.nn.relu(z + b); m = jnp.max(jnp.abs(z), axis=-1); k = x @ wk{turn}; "
    reference += f"v = jnp.where(jnp.arange(wv.shape[{0 if nk else 1}]) < 3, 1, jax.nn.silu(x @ wv{turn}))"
    types = "{T: [float32, float16, bfloat16]}"
    return make_op(folder, spec_text(INPUTS.format(**dims), OUTPUTS, CHAIN, reference, types=types))


def arguments(op, rows: int, dtype: str, q: int = 72, h: int = 40, k: int = 48):
    sizes = {"K": k, "Q": q, "H": h}
    shapes = [(rows, k), *(tuple(sizes[a] for a in x.axes) for x in op.spec.inputs[1:])]
    # exact in every type, and so are their products
    return [jnp.asarray(np.round(4 * normal(*s, seed=i)) / 4, dtype) for i, s in enumerate(shapes)]


@pytest.fixture
def launches(monkeypatch):
    """The kernels that were launched, by name."""
    found, run = [], interpreted.run

    def noted(call, *rest):
        found.append(call)
        return run(call, *rest)

    monkeypatch.setattr(interpreted, "run", noted)
    return found


def check(op, args, **keywords):
    for y, expected in zip(op(*args, implementation="interpret", **keywords), op.reference(*args), strict=True):
        tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[y.dtype.name]
        np.testing.assert_allclose(y.astype("float32"), expected.astype("float32"), rtol=tolerance, atol=1e-4)


@pytest.mark.parametrize(
    ("arch", "dtype", "nk", "rows"),
    some(
        [
            ("sm_90a", "bfloat16", False, 130),
            ("sm_90a", "float16", True, 5),
            ("sm_80", "float32", False, 9),
            ("sm_80", "bfloat16", True, 40),
        ],
        1,
    ),
)
def test_one_launch_computes_all(arch, dtype, nk, rows, tmp_path, launches):
    op = made(tmp_path, nk)
    assert op.plan.joint == (range(3),)
    with interpreted.interpreting_for(arch):
        check(op, arguments(op, rows, dtype))
    assert len(launches) == 1


def test_it_is_mapped_over_rows(tmp_path, launches):
    op = made(tmp_path, True)
    x, *rest = arguments(op, 6, "float16")
    mapped = jax.vmap(lambda x: op(x, *rest, implementation="interpret"))(x.reshape(3, 2, -1))
    for y, expected in zip(mapped, op.reference(x, *rest), strict=True):
        np.testing.assert_allclose(
            y.reshape(expected.shape).astype("float32"), expected.astype("float32"), rtol=2e-3, atol=1e-4
        )
    assert len(launches) == 1
