"""What type checkers know about ops: arguments, keywords, results. JAX and the compiler are stubs, so mypy reads only
this program."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from tests.places import ROOT
from tests.pure.building import HERE

JAX = """
from typing import Any
class Array: ...
def __getattr__(name: str) -> Any: ...
"""
CONFIGURATION = f"""
[mypy]
ignore_missing_imports = True
python_executable = {sys.executable}
[mypy-cutlass.*,cuda.*,jaxlib.*,numpy.*,rich.*,ml_dtypes.*,jinja2.*,yaml.*]
follow_imports = skip
[mypy-codegen.*]
follow_imports = silent
"""
USER = """
import jax

from ops import add_rmsnorm, bias_relu, rmsnorm


def use(x: jax.Array, b: jax.Array) -> None:
    reveal_type(bias_relu(x, b))
    reveal_type(bias_relu(x, bias=b, implementation="xla"))
    reveal_type(add_rmsnorm(x, residual=x, weight=b).residual_out)
    y, residual_out = add_rmsnorm(x, x, b, eps=1e-5)
    reveal_type(y)
    reveal_type(bias_relu.spec)
    bias_relu(x)
    bias_relu(x, b, implementation="cuda")
    bias_relu(x, b, eps=1.0)
    rmsnorm(x, b, eps="small")
    add_rmsnorm(x, x, b).nonsuch
"""
PYRIGHT = shutil.which("pyright")
PYRIGHT_USER = """
import jax

from ops import dense_gelu, layernorm_stats


def use(x: jax.Array) -> None:
    reveal_type(dense_gelu(x, x, x))
    reveal_type(layernorm_stats(x))
    layernorm_stats(x, epsilon=1.0)
"""
FOUND = [
    "8: Revealed type is 'jax.Array'",
    "9: Revealed type is 'jax.Array'",
    "10: Revealed type is 'jax.Array'",
    "12: Revealed type is 'jax.Array'",
    "13: Revealed type is 'codegen.spec.spec.Spec'",
    "14: Missing positional argument 'bias' in call to '__call__' of 'Op'",
    "15: Argument 'implementation' to '__call__' of 'Op' has incompatible type",
    "16: Unexpected keyword argument 'eps' for '__call__' of 'Op'",
    "17: Argument 'eps' to '__call__' of 'Op' has incompatible type 'str'",
    "18: 'AddRmsnormOutputs' has no attribute 'nonsuch'",
]


@pytest.mark.long
def test_ops_have_their_signatures(run, tmp_path):
    specs = [str(ROOT / f"specs/{name}.yaml") for name in ("add_rmsnorm", "bias_relu", "rmsnorm")]
    assert run("build", *specs, "--package", "ops", "--tests", "").status == 0
    (tmp_path / "stubs/jax").mkdir(parents=True)
    (tmp_path / "stubs/jax/__init__.pyi").write_text(JAX)
    (tmp_path / "mypy.ini").write_text(CONFIGURATION)
    (tmp_path / "user.py").write_text(USER)
    cache = ROOT / ".mypy_cache/signatures"  # what does not change from one run to the next is read once
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", f"--cache-dir={cache}", "user.py", "ops"]
    environment = {"MYPYPATH": f"stubs:{ROOT}", "PATH": ""}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    lines = [line.replace('"', "'") for line in result.stdout.splitlines()]
    lines = [re.sub(r"^user.py:(\d+): (?:note|error):", r"\1:", line) for line in lines if "defined in" not in line]
    assert len(lines) == len(FOUND) + 1, result  # and nothing is wrong in the package itself
    assert [line[: len(found)] for line, found in zip(lines, FOUND, strict=False)] == FOUND


@pytest.mark.skipif(not PYRIGHT, reason="pyright is not installed")
def test_pyright_sees_them_too(run, tmp_path):
    """It finds no error in generated modules, though it does not know the types in their kernels."""
    # A kernel of each kind
    names = ("bias_gelu_tanh", "cross_entropy_grad", "dense_gelu", "dgroup_norm", "layernorm_stats")
    specs = [str(ROOT / f"specs/{name}.yaml") for name in names]
    assert run("build", *specs, "--package", "ops", "--tests", "").status == 0
    (tmp_path / "user.py").write_text(PYRIGHT_USER)
    command = [PYRIGHT, "--pythonpath", sys.executable, "--outputjson", "user.py", "ops"]
    result = subprocess.run(command, cwd=tmp_path, env=HERE, capture_output=True, text=True)
    found = [(d["severity"], d["message"]) for d in json.loads(result.stdout)["generalDiagnostics"]]
    assert found == [
        ("information", 'Type of "dense_gelu(x, x, x)" is "Array"'),
        ("information", 'Type of "layernorm_stats(x)" is "LayernormStatsOutputs"'),
        ("error", 'No parameter named "epsilon"'),
    ]


def test_installed_packages_say_that_they_are_typed():
    assert (ROOT / "codegen/py.typed").is_file()
    assert (ROOT / "generated/py.typed").is_file()
