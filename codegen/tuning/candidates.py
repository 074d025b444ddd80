"""The launches to try: every change of one setting, then changes of the best."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.plan.attention import AttentionBackward, AttentionPlan
from codegen.plan.elementwise import Elementwise
from codegen.plan.launches import AnyLaunch, KernelLaunch, PlannedCall
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.selecting import Selection
from codegen.shared import WARP, AttentionLaunch, Launch, RowLaunch, SelectLaunch
from codegen.tuning.choosing import Changes, changed, has_expensive_values

THREADS = (64, 128, 256, 512, 1024)
CLUSTERS = (1, 2, 4, 8)
VECTOR_BYTES = (16, 8, 4)
# Threads that an SM has registers for, at least; 0: as the compiler likes
RESIDENT_THREADS = (0, 512, 768, 1024, 1280, 1536, 2048)
PARTS = (0.5, 2, 4)  # times the planned ones


def neighbours(
    plan: Elementwise | Reduction | Selection | AttentionPlan,
    call: PlannedCall,
    base: Changes,
) -> dict[AnyLaunch, Changes]:
    """The launches that fit and differ in one setting from the launch with the changes `base`; each with all its
    changes. Equal launches are listed once."""
    start = changed(plan, call, base)
    if start is None:
        return {}
    found: dict[AnyLaunch, Changes] = {}
    for name, value in settings(plan, start):
        changes = {**base, name: value}
        how = changed(plan, call, changes)
        if how is not None and how != start:
            found.setdefault(how, changes)
    return found


def settings(
    plan: Elementwise | Reduction | Selection | AttentionPlan,
    how: KernelLaunch,
) -> Iterator[tuple[str, int | float | bool]]:
    """Each setting of a launch with each value to try."""
    if isinstance(how, AttentionLaunch):
        if isinstance(plan, AttentionBackward):
            yield "joint", not how.joint
            yield from (("tile_m", n) for n in (32, 48, 64, 128))
        yield from (("tile_n", n) for n in range(16, 256 + 1, 16))
        yield from (("stages", n) for n in (1, 2, 3))
        yield from (("splits", max(1, int(how.splits * times))) for times in PARTS if how.splits > 1)
        return
    yield from (("threads", n) for n in THREADS)
    yield from (("vector_bytes", n) for n in VECTOR_BYTES)
    if isinstance(how, Launch | SelectLaunch):
        return
    whole = how.holds_row if isinstance(how, RowLaunch) else how.whole and not plan.collapsed
    if whole:
        yield from (("threads_per_row", n) for n in threads_per_row(how.per_row))
    if whole or isinstance(how, RowLaunch):
        yield from (("cluster", n) for n in CLUSTERS)
    yield from (("resident", n // how.threads) for n in RESIDENT_THREADS)
    yield "only_row", not how.only_row
    if isinstance(how, RowLaunch):
        yield from [("holds_expensive", not how.holds_expensive)] if has_expensive_values(plan) else []
        yield from () if how.holds_row else (("vectors", n) for n in (1, 2, 4, 8))
        return
    yield "paced", False
    yield from (("at_once", n) for n in (1, 2, 4, 8))
    yield from (("parts", times) for times in PARTS)


def threads_per_row(planned: int) -> Iterator[int]:
    """The numbers to try: whole warps, and below a warp powers of two."""
    for eighths in (2, 3, 4, 5, 6, 7, 10, 12, 16, 32):
        threads, rest = divmod(planned * eighths, 8)
        power = planned <= WARP and eighths & (eighths - 1) == 0
        if threads and not rest and (power or threads % WARP == 0):
            yield threads
