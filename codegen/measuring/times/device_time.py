"""Measures how long a GPU works on calls, from the profiler's trace: the time in which at least one kernel or copy runs.

A call's dispatch from Python takes 30 to 60 microseconds, which hides how long a short kernel takes. The profiler records
each kernel's start and duration on the device's own clock.
"""

from __future__ import annotations

import functools
import gzip
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

GROUP = 0.1  # seconds that a group of calls takes at most, if it has more than one
MARK = "codegen bench "  # the names of the annotations around groups of calls begin with this

Candidate = Callable[[int], Any]  # queues the call of this number, and returns its future result


def measure(candidates: Mapping[str, Candidate], groups: int, calls: int) -> dict[str, tuple[float, ...]]:
    """Microseconds per call, one number per group, for candidates that take turns. A group has at most `calls` calls, fewer of a
    candidate whose calls take long: a loop of thousands of kernels would overflow the profiler's buffers."""
    names = list(candidates)
    for name in names:  # compiled, and warm
        jax.block_until_ready(candidates[name](0))
    counts = {name: calls_in_group(candidates[name], calls) for name in names}

    def run() -> None:
        for group in range(groups):
            for name in names if group % 2 else reversed(names):
                call = candidates[name]
                jax.block_until_ready(call(0))
                with jax.profiler.TraceAnnotation(f"{MARK}{group} {name}"):
                    for i in range(counts[name]):
                        result = call(i)  # the last result's memory is freed as soon as the GPU is done with it
                    jax.block_until_ready(result)

    found = busy_times(traced(run))
    return {name: tuple(found[f"{group} {name}"] / counts[name] for group in range(groups)) for name in names}


def calls_in_group(call: Candidate, most: int) -> int:
    """How many of a candidate's calls, which are warm, take `GROUP` seconds together: 1 to `most`."""
    start = time.perf_counter()
    jax.block_until_ready(call(0))
    return max(1, min(most, int(GROUP / (time.perf_counter() - start))))


@functools.cache
def is_available() -> bool:
    """Whether the profiler sees a GPU's kernels: without CUPTI, or permission to use it, it sees none."""
    if jax.default_backend() != "gpu":
        return False
    one = jax.jit(lambda words: words ^ 1)
    word = jnp.zeros(1024, "uint32")
    try:
        return measure({"one": lambda i: one(word)}, 1, 4)["one"][0] > 0
    except (KeyError, OSError, RuntimeError):
        return False


def traced(run: Callable[[], None]) -> dict[str, Any]:
    """The profiler's trace of a function, in Chrome's trace format."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's own calls would be most of the trace
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            run()
        (path,) = Path(folder).rglob("*.trace.json.gz")
        found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def busy_times(trace: Mapping[str, Any]) -> dict[str, float]:
    """The microseconds for which a GPU ran a kernel or a copy during each annotation whose name begins with `MARK`, by the rest of
    that name."""
    events = trace["traceEvents"]
    named = {
        (e["name"], e["pid"], e.get("tid")): e["args"]["name"]
        for e in events
        if e.get("ph") == "M" and "name" in e.get("args", {})
    }
    devices = {pid for (kind, pid, _), name in named.items() if kind == "process_name" and "/device:GPU" in name}
    streams = {
        (pid, tid) for (kind, pid, tid), name in named.items()
        if kind == "thread_name" and pid in devices and name.startswith("Stream")
    }  # fmt: skip
    ran = sorted(
        (e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and (e["pid"], e["tid"]) in streams
    )
    marks = {e["name"].removeprefix(MARK): e for e in events if e.get("ph") == "X" and e["name"].startswith(MARK)}
    return {name: covered(ran, e["ts"], e["ts"] + e["dur"]) for name, e in marks.items()}


def covered(intervals: Iterable[tuple[float, float]], start: float, end: float) -> float:
    """The part of the time from `start` to `end` that sorted intervals cover; overlaps count once."""
    total, reached = 0.0, start
    for first, last in intervals:
        first, last = max(first, reached), min(last, end)
        if last > first:
            total, reached = total + last - first, last
    return total
