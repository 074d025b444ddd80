"""Finds out before JAX starts whether the machine has a GPU, and which flags its XLA accepts."""

import contextlib
import os
import subprocess
import sys

# Programs that XLA compiles for a CPU run once or twice, on small arrays: they are compiled in a fifth of the time. Each is one module for
# LLVM, since tests keep all processors busy anyway
QUICK = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)


def quick() -> str:
    """Flags that make XLA's compiler for CPUs fast, or "" if it does not know them."""
    return QUICK if has_flags(QUICK) else ""


def has_flags(flags: str) -> bool:
    """Whether XLA knows the flags: it aborts if it does not."""
    start = [sys.executable, "-c", "from jaxlib import xla_client; xla_client.make_cpu_client()"]
    environment = {**os.environ, "XLA_FLAGS": flags}
    return subprocess.run(start, env=environment, capture_output=True, check=False).returncode == 0


def has_gpu() -> bool:
    """Whether the driver answers, and JAX was not told to ignore the GPU."""
    if (os.environ.get("JAX_PLATFORMS") or "cuda").split(",")[0] not in ("cuda", "gpu"):
        return False
    with contextlib.suppress(OSError):
        return b"GPU " in subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).stdout
    return False
