"""Tests are sorted by what they need.

tests/pure       nothing: neither jax nor cutlass is imported
tests/cpu        JAX on the CPU; kernels are cross-compiled and interpreted
tests/generated  the property tests of every op: on the CPU, and on a GPU where there is one
tests/gpu        an NVIDIA GPU; only these are skipped where there is none
"""

import contextlib
import ctypes
import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import repeated_work, versions, xla_flags
from tests.turns import EVERY, FEWER, SPARSER

# Kernels are cached between runs, in a folder of the checkout; the processes that tests start use the same cache
os.environ.setdefault("CODEGEN_CACHE_DIR", str(Path(__file__).parent.parent / ".codegen-cache"))
# Builds are not: their tests are of builds that read and render each spec
os.environ["CODEGEN_BUILD_CACHE"] = "0"
if not EVERY:
    os.environ.setdefault("CODEGEN_WHOLE_ROWS", "1")

# Processes hold many traced programs: with Python's defaults, garbage collection takes up to a tenth of the time
gc.set_threshold(100_000, 20, 100)

GPU_TESTS = f"{Path(__file__).parent / 'gpu'}{os.sep}"
# Tests of generated ops, of which those of each n-th op run by default, and the first of these: of gradients, interpreted and in jnp;
# of values of the jnp form. The gradients in jnp are of ops that have nearly every operation
OF_OPS = {
    re.compile(r"test_gradient_of_.*\[interpret\]"): (30, 0),
    re.compile(r"test_(?!gradient_of_).*_agrees_with_its_reference\[interpret\]"): (2, 0),
    re.compile(r"test_gradient_of_.*\[xla\]"): (6, 1),
    re.compile(r"test_(?!gradient_of_).*_agrees_with_its_reference\[xla\]"): (10, 0),
}

hypothesis.settings.register_profile(
    "ci", max_examples=100 // FEWER, derandomize=True, database=None, deadline=None, print_blob=True
)
hypothesis.settings.load_profile("ci")
repeated_work.read_no_constants()


GPU = xla_flags.has_gpu()
if GPU:
    # Several test processes share the GPU
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
else:
    os.environ["JAX_PLATFORMS"] = "cpu"

given = os.environ.get("XLA_FLAGS", "")
if "device_count" not in given:  # pytest-xdist's processes inherit it
    # Sharded arrays are tested on eight virtual devices of the CPU: this must be set before JAX starts
    quick = "" if GPU else xla_flags.quick()
    os.environ["XLA_FLAGS"] = " ".join([quick, given, "--xla_force_host_platform_device_count=8"])


@pytest.hookimpl(trylast=True)  # after the selection of the command line
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept = set(of_tried_versions([item.name for item in items]))
    config.hook.pytest_deselected(items=[item for item in items if item.name not in kept])
    items[:] = [item for item in items if item.name in kept]
    in_turns(config, items)
    if GPU:
        return
    for item in items:
        if str(item.path).startswith(GPU_TESTS):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


def of_tried_versions(names: list[str]) -> list[str]:
    """The tests that run. With an untried version of JAX or CuTe DSL only the test that reports it runs, so that one test
    fails and not all that the new version breaks. With CODEGEN_UNTRIED all tests run."""
    if os.environ.get("CODEGEN_UNTRIED") or not versions.untried():
        return names
    return [name for name in names if name == "test_the_versions_installed_are_tried"]


def in_turns(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests, unless all are requested. Of a test with `@pytest.mark.turns(n)`, one set of parameters in n * SPARSER runs; of
    those of generated ops, what `OF_OPS` says; of one that is marked `each`, what `has_each` says; none that is marked `whole`."""
    found: Counter[str] = Counter()
    kept, left = [], []
    for item in items:
        mark, name = item.get_closest_marker("turns"), item.nodeid.partition("[")[0]
        turns, first = mark.args[0] * SPARSER if mark else 1, 0
        for pattern, own in OF_OPS.items():
            if pattern.fullmatch(item.name):
                name, (turns, first) = pattern.pattern, own
        left_out = (found[name] - first) % turns or item.get_closest_marker("whole")
        left_out = left_out or (item.get_closest_marker("each") and not has_each(item))
        (left if not EVERY and left_out else kept).append(item)
        found[name] += 1
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def has_each(item: pytest.Item) -> bool:
    """Whether a test is among as few of all combinations of its lists of parameters as have each item of each list: the first items,
    the second ones, and so on, where a list that is shorter than others begins again."""
    lists = [
        (place_of(item.callspec.params, *mark.args), len(mark.args[1])) for mark in item.iter_markers("parametrize")
    ]
    return any(all(i % n == place for place, n in lists) for i in range(max(n for _, n in lists)))


def place_of(params: Mapping[str, Any], names: str | Sequence[str], sets: Sequence[Any]) -> int:
    """The place of a test's parameters of these names in a list of such sets."""
    wanted = [params[n.strip()] for n in (names.split(",") if isinstance(names, str) else names)]
    found = [s if isinstance(s, tuple | list) and len(wanted) > 1 else (s,) for s in sets]
    return next(i for i, own in enumerate(found) if all(a is b for a, b in zip(own, wanted, strict=True)))


def pytest_collection_finish() -> None:
    """Exempts everything that is imported from garbage collection, since it stays until the end."""
    repeated_work.share_contexts()
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Collects garbage once at the end. pytest does it five times, and each takes a second or more in a process that holds many
    programs: it finds nothing then."""
    gc.collect()
    gc.freeze()


MOST_RESIDENT = 3 * 2**30  # bytes of memory above which a process clears its caches


def resident() -> int:
    """The bytes of memory that this process uses."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


@pytest.fixture(scope="module", autouse=True)
def forgetful() -> Iterator[None]:
    """Clears the caches after a module of tests if the process uses much memory. The next module needs little of them."""
    yield
    if "codegen.runtime.ops.op" in sys.modules and resident() > MOST_RESIDENT:
        import jax

        from codegen.runtime.compiled import interpreted, kernels

        jax.clear_caches()
        kernels.forget()
        interpreted.compile_call.cache_clear()
        give_back()


def give_back() -> None:
    """Gives freed memory back to the system, where the C library can. Without it a process that once used much memory goes on
    doing so, and would clear its caches after every module."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture
def cold_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of compiled kernels that is empty, in memory and on disk."""
    from codegen.runtime.compiled import interpreted, kernels

    folder = tmp_path / "cache"
    monkeypatch.setenv("CODEGEN_CACHE_DIR", str(folder))
    kernels.forget()
    interpreted.compile_call.cache_clear()
    return folder


@pytest.fixture
def strict_jax() -> Iterator[None]:
    """JAX that refuses implicit type promotion and broadcasting between ranks, so that hidden upcasts are errors."""
    import jax

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield
