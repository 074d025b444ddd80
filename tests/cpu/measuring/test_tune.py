"""The search for launches, without a GPU: with times that are made up, and one task in earnest on the jnp form."""

import os
from pathlib import Path

import pytest

import generated
from codegen.measuring.tune import search as tune
from codegen.measuring.tune.clock import Device, _compile
from codegen.measuring.tune.search import Found, Kernel, Task, search, tasks_of, tune_all
from codegen.tuning.choosing import Changes

ARCH = "sm_90a"
TASK = Task("softmax", "softmax", (("T", "bfloat16"),), (("...", 4096), ("N", 4096)))


class MadeUp:
    """A clock by which every launch takes as long as `cost` says, of a plan that takes 100 us."""

    def __init__(self, cost, xla: float = 300.0, now=lambda: None):
        self.cost, self.xla, self.now = cost, xla, now
        self.prepared: list[str] = []
        self.measured: list[Changes] = []

    def prepare(self, kernel, some):
        self.prepared.append(kernel.task.kernel)

    def measure(self, kernel, some):
        self.now()
        self.measured += some
        return [self.cost(changes) for changes in some]

    def compare(self, kernel, best):
        us = 100 * (self.cost(best) if best else 1.0)
        return {"us": us, "planned_us": 100.0, "xla_us": self.xla, "copy_us": 50.0}


def fast_with(**wanted):
    """A tenth less for every setting that is as wanted."""
    return lambda changes: 1 - 0.1 * sum(changes.get(name) == value for name, value in wanted.items())


def test_the_search_goes_on_from_the_best():
    """The second setting is found only beside the first; nothing is timed twice."""
    clock = MadeUp(fast_with(threads=256, resident=4))
    kernel = Kernel(generated.softmax, TASK, ARCH)
    best, times = search(kernel.neighbours, lambda some: clock.measure(kernel, some))
    assert best == {"threads": 256, "resident": 4}
    assert len(times) == len(clock.measured) == len({tuple(c.items()) for c in clock.measured})


def test_a_search_ends_where_nothing_is_better_by_more_than_chance():
    kernel = Kernel(generated.softmax, TASK, ARCH)
    for cost in (lambda changes: 0.99, lambda changes: None, lambda changes: 1.5):
        clock = MadeUp(cost)
        best, times = search(kernel.neighbours, lambda some, clock=clock: clock.measure(kernel, some))
        assert best == {} and len(times) == len(kernel.neighbours({}))


@pytest.mark.parametrize(
    ("cost", "xla", "take", "launch"),
    [
        (fast_with(threads=256), 300.0, "launch", (("threads", 256),)),
        (fast_with(), 300.0, "plan", ()),
        (fast_with(threads=256), 80.0, "xla", ()),
        (fast_with(), 99.0, "plan", ()),
    ],
)
def test_what_is_kept_of_a_task(cost, xla, take, launch):
    found = tune.tune(generated.softmax, TASK, ARCH, MadeUp(cost, xla))
    assert found.entry is not None
    assert (found.entry.take, found.entry.launch) == (take, launch)
    assert found.entry.sizes == (("rows", 4096, None), ("columns", 4096, 8191))
    assert found.loss == pytest.approx(0.1 / 0.9 if cost({"threads": 256}) < 1 else 0)
    # and it is not measured again, unless the plan is another
    assert tune.is_done(generated.softmax, TASK, ARCH, [found.entry])
    other = tune.Tuned(
        *[getattr(found.entry, n) for n in ("kernel", "arch", "types", "sizes", "take", "launch")],
        (("plan", "00000000"),),
    )
    assert not tune.is_done(generated.softmax, TASK, ARCH, [other])
    assert not tune.is_done(generated.softmax, TASK, ARCH, [])


def test_a_launch_that_is_measured_is_the_one_that_calls_take():
    found = tune.tune(generated.softmax, TASK, ARCH, MadeUp(fast_with(threads=256)))
    kernel = Kernel(generated.softmax, TASK, ARCH)
    op = generated.softmax.with_tuning([found.entry])
    assert kernel.planned.threads != 256
    assert op.launch_for(kernel.types, kernel.axes, ARCH).threads == 256


def test_an_error_is_a_result_and_one_of_the_gpu_ends_the_run():
    def fails(changes):
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS" if changes.get("threads") == 1024 else "out of memory")

    todo = [(generated.softmax, TASK), (generated.rmsnorm, Task("rmsnorm", "rmsnorm", TASK.types, TASK.shape))]
    found = list(tune_all(todo, ARCH, MadeUp(lambda changes: fails({})), 100))
    assert [f.error for f in found] == ["RuntimeError: out of memory"] * 2
    assert [f.entry for f in found] == [None] * 2
    found = list(tune_all(todo, ARCH, MadeUp(lambda changes: fails({"threads": 1024})), 100))
    assert [f.error for f in found] == ["RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS"]
    assert tune.is_done(generated.softmax, TASK, ARCH, [found[0].entry])  # the next run begins after it


def test_nothing_begins_once_the_time_is_over_and_the_next_task_is_compiled_meanwhile():
    clock_time = 0.0

    def passes():
        nonlocal clock_time
        clock_time += 40

    shapes = lambda op: [{"...": 4096, "N": n} for n in (1024, 4096)]  # noqa: E731
    todo = [(generated.softmax, task) for task in tasks_of([generated.softmax], shapes, {}, ARCH)]
    assert [(t.kernel, t.shape[1][1]) for _, t in todo] == [
        ("softmax", 1024),
        ("softmax", 4096),
        ("softmax_backward", 1024),
        ("softmax_backward", 4096),
    ]
    clock = MadeUp(fast_with(), now=passes)
    found = list(tune_all(todo, ARCH, clock, 60, lambda: clock_time))
    assert [f.task for f in found] == [task for _, task in todo[:2]]
    assert clock.prepared == ["softmax", "softmax", "softmax", "softmax_backward"]


def test_tasks_are_kernels_that_run_alone():
    shapes = lambda op: [dict.fromkeys(op.spec.axes, 64)]  # noqa: E731
    ops = [generated.rmsnorm, generated.dense_gelu]
    assert list(tasks_of([generated.float64_polynomial], shapes, {"T": "float64"}, ARCH)) == []
    assert [t.kernel for t in tasks_of(ops, shapes, {}, ARCH)] == [
        "rmsnorm",
        "rmsnorm_frozen",
        "rmsnorm_backward",
        "dense_gelu",
    ]


ATTENTION = (("B", 1), ("Q", 256), ("S", 256), ("H", 2), ("G", 2), ("D", 128), ("E", 128))


def test_stages_are_tasks_but_products_and_those_of_a_sample():
    ops = [generated.causal_attention, generated.batch_norm_train, generated.mlp_swiglu]
    shapes = lambda op: [dict.fromkeys(op.spec.axes, 4096) | dict(ATTENTION)]  # noqa: E731
    assert [t.kernel for t in tasks_of(ops, shapes, {}, ARCH)] == [
        "causal_attention",
        "causal_attention_backward_stage1",
        "causal_attention_backward_stage2",
        "batch_norm_train_stage2",
        "batch_norm_train_stage3",
        "batch_norm_train_backward_stage1",
        "batch_norm_train_backward_stage2",
    ]


def test_two_kernels_of_attention_s_gradients_are_tried_in_place_of_one(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", ARCH)
    op, name = generated.causal_attention, "causal_attention_backward_stage2"
    kernel = Kernel(op, Task("causal_attention", name, TASK.types, ATTENTION), ARCH)
    assert kernel.planned.joint
    found = list(kernel.neighbours({"joint": False}).values())
    assert {"joint": False} in kernel.neighbours({}).values()
    assert {"joint": False, "tile_m": 48} in found and {"joint": False, "tile_n": 64} in found
    assert _compile(Path(generated.__file__).parent, kernel.task, (("joint", False), ("tile_n", 64)), ARCH) == ""


def test_a_stage_in_earnest_on_a_cpu(tmp_path):
    """XLA does not run one stage alone: it is not timed."""
    task = Task("batch_norm_train", "batch_norm_train_stage3", (("T", "float32"),), (("...", 64), ("N", 256)))
    device, kernel = Device(tmp_path, ARCH, 0, "xla"), Kernel(generated.batch_norm_train, task, ARCH)
    some = list(kernel.neighbours({}).values())[:1]
    assert all(t is not None and t > 0 for t in device.measure(kernel, some))
    assert device.compare(kernel, some[0]).keys() == {"us", "planned_us", "copy_us"}
    found = tune.tune(generated.batch_norm_train, task, ARCH, device)
    assert found.entry.take in ("plan", "launch") and tune.as_table([found]).row_count == 1


def test_tiles_of_a_product_are_tried():
    shape = (("...", 4096), ("K", 1024), ("N", 4096))
    kernel = Kernel(generated.dense_gelu, Task("dense_gelu", "dense_gelu", TASK.types, shape), ARCH)
    found = kernel.neighbours({})
    assert len(found) > 4 and kernel.planned not in found
    assert kernel.neighbours({"tile_m": 128}) == {}
    for how, changes in found.items():
        op = generated.dense_gelu.with_tuning([kernel.entry("launch", changes)])
        assert op.launch_for(kernel.types, kernel.axes, ARCH) == how


def test_a_task_in_earnest_on_a_cpu(tmp_path):
    """The jnp form stands for the kernel: results are equal, and all four are timed."""
    task = Task("softmax", "softmax_backward", (("T", "float32"),), (("...", 64), ("N", 256)))
    device = Device(tmp_path, ARCH, 0, "xla")
    kernel = Kernel(generated.softmax, task, ARCH)
    some = list(kernel.neighbours({}).values())[:2]
    times = device.measure(kernel, some)
    assert len(times) == 2 and all(t is not None and t > 0 for t in times)
    assert device.compare(kernel, some[0]).keys() == {"us", "planned_us", "xla_us", "copy_us"}


def test_a_launch_with_other_results_is_left_out(tmp_path, monkeypatch):
    task = Task("softmax", "softmax", (("T", "float32"),), (("...", 64), ("N", 256)))
    device, kernel = Device(tmp_path, ARCH, 0, "xla"), Kernel(generated.softmax, task, ARCH)
    some = list(kernel.neighbours({}).values())[:1]
    assert device.measure(kernel, some) != [None]
    device.expected = device.expected + 1
    assert device.measure(kernel, some) == [None]


def test_a_process_compiles_a_launch_into_the_cache(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", ARCH)
    folder = Path(generated.__file__).parent
    assert _compile(folder, TASK, (("threads", 256),), ARCH) == ""
    assert "StopIteration" in _compile(folder, Task("softmax", "softmin", TASK.types, TASK.shape), (), ARCH)
    assert os.environ["CUTE_DSL_ARCH"] == ARCH


def test_the_report_says_what_plans_lose():
    us = {"us": 100.0, "planned_us": 103.0, "xla_us": 200.0, "copy_us": 90.0}
    kernel = Kernel(generated.softmax, TASK, ARCH)
    found = [
        Found(TASK, kernel.entry("launch", {"threads": 256}), us),
        Found(TASK, kernel.entry("plan"), us | {"planned_us": 100.0}),
        Found(TASK, kernel.entry("xla"), us | {"planned_us": 110.0, "xla_us": 50.0}),
        Found(TASK, None, error="out of memory"),
    ]
    text = tune.summary(found)
    assert "3.0% longer than the fastest at the median, 10.0% at worst (softmax)" in text
    assert "2 of 3 have a faster one, XLA is faster than 1" in text
    assert tune.as_table(found).row_count == 4
    assert [row.get("take") for row in tune.rows(found)] == ["launch", "plan", "xla", None]
