"""What tests need decides where they stand.

tests/pure       nothing: neither jax nor cutlass is imported
tests/cpu        JAX on the CPU; kernels are cross-compiled, never run
tests/generated  the property tests of every op: on the CPU, and on a GPU where there is one
tests/gpu        an NVIDIA GPU; skipped, here and nowhere else, where there is none
"""

import contextlib
import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests import versions, xla_flags
from tests.turns import EVERY, SPARSER

# Kernels are kept between runs, but beside the checkout; also by the processes that tests start
os.environ.setdefault("CODEGEN_CACHE_DIR", str(Path(__file__).parent.parent / ".codegen-cache"))

# Processes full of traced programs: looking through them for garbage as often as Python does takes up to a tenth of the time
gc.set_threshold(100_000, 20, 100)

GPU_TESTS = Path(__file__).parent / "gpu"

hypothesis.settings.register_profile("ci", derandomize=True, database=None, deadline=None, print_blob=True)
hypothesis.settings.load_profile("ci")


GPU = xla_flags.has_gpu()
if GPU:
    # Several test processes share the GPU
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
else:
    os.environ["JAX_PLATFORMS"] = "cpu"

given = os.environ.get("XLA_FLAGS", "")
if "device_count" not in given:  # as it is in the processes of pytest-xdist
    # Sharded arrays are tested on eight devices that the CPU stands for: decided here, before JAX starts
    quick = "" if GPU else xla_flags.quick()
    os.environ["XLA_FLAGS"] = " ".join([quick, given, "--xla_force_host_platform_device_count=8"])


@pytest.hookimpl(trylast=True)  # of what the command line selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = set(of_tried_versions([item.name for item in items]))
    config.hook.pytest_deselected(items=[item for item in items if item.name not in kept])
    items[:] = [item for item in items if item.name in kept]
    in_turns(config, items)
    if GPU:
        return
    for item in items:
        if GPU_TESTS in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def of_tried_versions(names: list[str]) -> list[str]:
    """The tests that run. With a version of JAX or CuTe DSL that was never tried, it is the one that says so, unless
    CODEGEN_UNTRIED is set: one test fails, not all that meet what is new."""
    if os.environ.get("CODEGEN_UNTRIED") or not versions.untried():
        return names
    return [name for name in names if name == "test_the_versions_installed_are_tried"]


def in_turns(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test with `@pytest.mark.turns(n)` one set of parameters in n * SPARSER, where not all are asked for."""
    found: Counter[str] = Counter()
    kept, left = [], []
    for item in items:
        mark, name = item.get_closest_marker("turns"), item.nodeid.partition("[")[0]
        (left if mark and not EVERY and found[name] % (mark.args[0] * SPARSER) else kept).append(item)
        found[name] += 1
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def pytest_collection_finish() -> None:
    """What was imported stays: no collection of garbage need look through it again."""
    gc.collect()
    gc.freeze()


MOST_RESIDENT = 3 * 2**30  # bytes of a process that keeps what it compiled


def resident() -> int:
    """The bytes of memory that this process has."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


@pytest.fixture(scope="module", autouse=True)
def forgetful() -> Iterator[None]:
    """What a module compiled is of little use to the next, and several processes share the memory of a small machine."""
    yield
    if "codegen.runtime.ops.op" in sys.modules and resident() > MOST_RESIDENT:
        import jax

        from codegen.runtime.compiled import interpreted, kernels

        jax.clear_caches()
        kernels.forget()
        interpreted.compile_call.cache_clear()


@pytest.fixture
def cold_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of compiled kernels with nothing in it, here or on disk."""
    from codegen.runtime.compiled import interpreted, kernels

    folder = tmp_path / "cache"
    monkeypatch.setenv("CODEGEN_CACHE_DIR", str(folder))
    kernels.forget()
    interpreted.compile_call.cache_clear()
    return folder


@pytest.fixture
def strict_jax() -> Iterator[None]:
    """JAX that refuses implicit type promotion and broadcasting between ranks: hidden upcasts die here."""
    import jax

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
