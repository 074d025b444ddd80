"""What is known of a machine before JAX starts there: whether it has a GPU, and flags that its XLA takes."""

import contextlib
import os
import subprocess
import sys

# What XLA compiles for a CPU runs once or twice, on little: code that is made in a third of the time does
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


def quick() -> str:
    """Flags that make XLA's compiler for CPUs quick, or none where it does not know them."""
    return QUICK if has_flags(QUICK) else ""


def has_flags(flags: str) -> bool:
    """Whether XLA knows them: it aborts where it does not."""
    start = [sys.executable, "-c", "from jaxlib import xla_client; xla_client.make_cpu_client()"]
    environment = {**os.environ, "XLA_FLAGS": flags}
    return subprocess.run(start, env=environment, capture_output=True, check=False).returncode == 0


def has_gpu() -> bool:
    """Whether the driver answers, and JAX was not told to leave the GPU alone."""
    if (os.environ.get("JAX_PLATFORMS") or "cuda").split(",")[0] not in ("cuda", "gpu"):
        return False
    with contextlib.suppress(OSError):
        return b"GPU " in subprocess.run(["nvidia-smi", "-L"], capture_output=True, check=False).stdout
    return False
