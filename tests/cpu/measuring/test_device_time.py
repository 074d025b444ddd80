"""Times read from a profiler's trace. The trace is made up, in the form in which JAX writes it."""

import time

import pytest

from codegen.measuring.times.device_time import GROUP, MARK, busy_times, calls_in_group, covered


def named(kind: str, name: str, pid: int, tid: int | None = None) -> dict:
    return {"ph": "M", "name": kind, "pid": pid, "args": {"name": name}} | ({} if tid is None else {"tid": tid})


def ran(name: str, pid: int, tid: int, start: float, end: float) -> dict:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start, "dur": end - start}


TRACE = {
    "traceEvents": [
        named("process_name", "/device:GPU:0", 1),
        named("process_name", "/host:CPU", 7),
        named("thread_name", "Stream #13(Compute)", 1, 13),
        named("thread_name", "Stream #14(MemcpyD2D)", 1, 14),
        named("thread_name", "XLA Ops", 1, 2),
        {"ph": "M", "name": "process_sort_index", "pid": 1, "args": {"sort_index": 1}},
        ran(f"{MARK}0 ours", 7, 5, 100, 200),
        ran(f"{MARK}0 xla", 7, 5, 300, 400),
        ran("kernel", 1, 13, 90, 110),  # began before: only its last part is in the group
        ran("kernel", 1, 13, 120, 140),
        ran("copy", 1, 14, 130, 150),  # overlaps another one
        ran("fusion", 1, 2, 100, 200),  # the same work with other names
        ran("kernel", 1, 13, 210, 250),  # not in a group
        ran("kernel", 1, 13, 310, 311),
        ran("python", 7, 5, 300, 400),
        {},
    ]
}


def test_only_kernels_and_copies_count_and_together_once():
    assert busy_times(TRACE) == {"0 ours": pytest.approx(10 + 30), "0 xla": pytest.approx(1)}


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], 0),
        ([(0, 100)], 10),
        ([(0, 4)], 0),
        ([(6, 8), (7, 9), (7.5, 8)], 3),
        ([(6, 14), (8, 9), (20, 30)], 8),
        ([(14, 16)], 1),
    ],
)
def test_covered_time(intervals, expected):
    assert covered(intervals, 5, 15) == expected


def test_slow_calls_are_fewer_in_a_group():
    assert calls_in_group(lambda i: time.sleep(GROUP / 2), 25) == 1
    assert calls_in_group(lambda i: time.sleep(2 * GROUP), 25) == 1
    assert calls_in_group(lambda i: None, 2) == 2
