"""The next process finds kernels in the cache on disk and XLA's programs in JAX's cache; artifacts need no process of
ours."""

import json
import os
import subprocess
import sys
from pathlib import Path

CODE = """
import json, sys, time
import jax, jax.numpy as jnp
import cutlass.jax.compile as compiling
counted, original = [], compiling.cutlass.cute.compile
compiling.cutlass.cute.compile = lambda *a, **k: counted.append(1) or original(*a, **k)
import generated

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
start, found = time.perf_counter(), []
for rows in (1, 5, 300):
    x = jax.random.normal(jax.random.key(0), (rows, 4096), jnp.bfloat16)
    w = jnp.ones(4096, jnp.bfloat16)
    for y in (
        generated.bias_relu(x, w, implementation="cute"),
        generated.rmsnorm(x, w, implementation="cute"),
        generated.bias_grad(x, implementation="cute"),
    ):
        found.append(float(jnp.sum(jnp.abs(y.astype(jnp.float32)))))
print(json.dumps([len(counted), found, time.perf_counter() - start]))
"""


def process(folder: Path) -> tuple[int, list[float], float]:
    environment = os.environ | {
        "CODEGEN_CACHE_DIR": str(folder / "kernels"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-c", CODE, str(folder / "jax")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def programs(folder: Path) -> set[str]:
    """The programs in JAX's cache, without the times of their last use."""
    return {path.name for path in (folder / "jax").iterdir() if not path.name.endswith("-atime")}


def test_a_second_process_compiles_nothing(tmp_path):
    compiled, found, seconds = process(tmp_path)
    assert compiled == 3  # whatever the number of rows
    kept = programs(tmp_path)
    assert kept
    again, same, sooner = process(tmp_path)
    assert (again, same) == (0, found)
    assert programs(tmp_path) == kept  # JAX found every program: the kernels' bytes in them are equal
    print(f"{seconds:.2f} s, then {sooner:.2f} s")


def test_artifacts_run_without_this_program(tmp_path):
    script = Path(__file__).with_name("run_exported.py")
    for words in (["--make", tmp_path], [tmp_path]):
        done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines and all("agrees with jnp on cuda" in line for line in lines)
