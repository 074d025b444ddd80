"""Artifacts of `codegen export` where they are for: in a process that cannot import this program, on a GPU.

python tests/gpu/run_exported.py --make FOLDER   # makes them; any machine will do
python tests/gpu/run_exported.py FOLDER          # loads those in it, and compares each with jnp for several numbers of rows

Where there is no GPU, the artifacts that have a CPU's half run that one.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent.parent
ROWS = {"cuda": (1, 7, 4099), "cpu": (1, 7, 131)}
EPS = 1e-5
COMMON = ["--arch", "sm_90a", "--types", "T=bfloat16"]
# For each artifact: the op, the options, and the shapes of its inputs for a number of rows
ARTIFACTS = {
    "bias_relu": (["bias_relu", "--shape", "...=rows,N=4096"], lambda n: [(n, 4096), (4096,)]),
    "bias_relu_open": (["bias_relu", "--shape", "...=(b, s),N=n"], lambda n: [(3, n, 511), (511,)]),
    "swiglu_eights": (["swiglu", "--shape", "...=rows,N=8*n", "--platforms", "cuda,cpu"], lambda n: [(n, 2 * 1544)]),
    "rmsnorm": (["rmsnorm", "--shape", "...=rows,N=4096", "--param", f"eps={EPS}"], lambda n: [(n, 4096), (4096,)]),
    "rmsnorm_open": (
        ["rmsnorm", "--shape", "...=rows,N=n", "--param", f"eps={EPS}", "--platforms", "cuda,cpu"],
        lambda n: [(n, 1031), (1031,)],
    ),
    "bias_grad": (["bias_grad", "--shape", "...=rows,N=4096", "--platforms", "cuda,cpu"], lambda n: [(n, 4096)]),
    "rmsnorm_vjp": (
        ["rmsnorm", "--shape", "...=rows,N=4096", "--param", f"eps={EPS}", "--vjp", "--platforms", "cuda,cpu"],
        lambda n: [(n, 4096), (4096,)],
    ),
}


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (words, _) in ARTIFACTS.items():
        command = [sys.executable, "-m", "codegen", "export", *words, *COMMON, "--out", str(folder.resolve() / name)]
        subprocess.run(command, check=True, cwd=ROOT)


class Absent:
    """An import of this program is an error: an artifact must not need it."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("codegen", "generated"):
            raise ImportError(f"{name} is not there where an artifact runs")


def expected(name: str, inputs: list):
    """The result in float32, of JAX, so that its VJP can be taken."""
    import jax
    import jax.numpy as jnp

    first, *rest = (x.astype(jnp.float32) for x in inputs)
    if name.startswith("bias_relu"):
        return jnp.maximum(first + rest[0], 0)
    if name.startswith("swiglu"):
        gate, up = jnp.split(first, 2, axis=-1)
        return gate * jax.nn.sigmoid(gate) * up
    if name.startswith("rmsnorm"):
        return first / jnp.sqrt(jnp.mean(first * first, axis=-1, keepdims=True) + EPS) * rest[0]
    return jnp.sum(first, axis=0)


def agree(got, wanted, rows: int) -> None:
    """Within one rounding of bfloat16; where rows are summed, their values may cancel."""
    assert got.shape == wanted.shape, f"{got.shape}, not {wanted.shape}"
    got, wanted = (np.asarray(x, np.float64) for x in (got, wanted))
    np.testing.assert_allclose(got, wanted, rtol=2**-7, atol=2e-5 * np.sqrt(rows))


def run(name: str, data: bytes) -> str:
    """Compares one artifact with jnp; returns a line about it."""
    import jax
    import jax.numpy as jnp

    held = jax.export.deserialize(bytearray(data))
    platform = {"gpu": "cuda"}.get(jax.default_backend(), "cpu")
    if platform not in held.platforms:
        return f"loaded; it is for {', '.join(held.platforms)}"
    shapes = ARTIFACTS[name][1]
    for rows in ROWS[platform]:
        keys = jax.random.split(jax.random.key(rows), 4)
        inputs = [jax.random.normal(k, s, jnp.bfloat16) for k, s in zip(keys, shapes(rows), strict=False)]
        got, wanted = jax.jit(held.call)(*inputs), expected(name, inputs)
        agree(got, wanted, rows)
        if held.has_vjp():
            cotangent = jax.random.normal(keys[3], got.shape, jnp.bfloat16)
            ours = jax.vjp(held.call, *inputs)[1](cotangent)
            theirs = jax.vjp(lambda *x: expected(name, x), *inputs)[1](cotangent.astype(jnp.float32))
            dx, dweight = (np.abs(np.asarray(t, np.float64)).max() for t in theirs)
            np.testing.assert_allclose(
                *(np.asarray(g[0], np.float64) for g in (ours, theirs)), rtol=2**-6, atol=2**-8 * dx
            )
            np.testing.assert_allclose(
                *(np.asarray(g[1], np.float64) for g in (ours, theirs)), rtol=2**-6, atol=2**-8 * dweight
            )
    wrong = [jnp.zeros((*s[:-1], s[-1] + 1), jnp.bfloat16) for s in shapes(7)]
    if name not in ("bias_relu_open", "rmsnorm_open"):
        try:
            held.call(*wrong)
        except ValueError:
            pass
        else:
            raise AssertionError("took an extent that it is not for")
    if name == "rmsnorm_vjp":
        assert "rmsnorm_backward_kernel" in held.vjp().mlir_module(), "the VJP holds no kernel"
    return f"agrees with jnp on {platform} for {', '.join(map(str, ROWS[platform]))} rows" + (
        ", its VJP too" * held.has_vjp()
    )


def main() -> None:
    if sys.argv[1] == "--make":
        make(Path(sys.argv[2]))
        return
    sys.meta_path.insert(0, Absent())
    import cutlass.jax

    cutlass.jax.register_ffi()
    for name in ARTIFACTS:
        path = Path(sys.argv[1]) / name
        if path.exists():
            print(f"{name}: {run(name, path.read_bytes())}")


if __name__ == "__main__":
    main()
