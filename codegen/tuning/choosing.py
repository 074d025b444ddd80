"""Chooses a call's launch: the planned one, with the changes that were measured to be faster for such calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from codegen.plan.attention import AttentionBackward, AttentionPlan
from codegen.plan.elementwise import Elementwise
from codegen.plan.launches import AnyLaunch, Extents, KernelLaunch, PlannedCall, Tuned
from codegen.plan.limits import left_to_xla as estimated_left_to_xla
from codegen.plan.op import Gemm, KernelPlan
from codegen.plan.rows.launching import cost
from codegen.plan.rows.reductions import Reduction
from codegen.shared import WARP, AttentionLaunch, Launch, RowLaunch, SelectLaunch, WalkLaunch
from codegen.targets import BLOCKS_OF_SM, MOST_REGISTERS, REGISTERS_OF_SM, THREADS_OF_SM

Changes = Mapping[str, int | float | bool]

# What the planner itself takes, from which it derives the rest; and fields of a record that are changed alone
SCHEDULE = ("threads", "vector_bytes", "threads_per_row", "cluster")
FIELDS: dict[type, tuple[str, ...]] = {
    RowLaunch: ("resident", "only_row", "holds_expensive", "vectors"), WalkLaunch: ("resident", "only_row", "paced", "at_once", "parts"),
    AttentionLaunch: ("tile_m", "tile_n", "stages", "splits", "joint"),
}  # fmt: skip
MOST_DIVISOR = 16  # what a number of elements that is not known may be given as


def sizes_of(plan: KernelPlan, extents: Extents) -> dict[str, int]:
    """The sizes by which a call's measurement is looked up; {} if one is unknown."""
    if isinstance(plan, Elementwise) or plan.collapsed:
        known = extents.total is not None and extents.total > MOST_DIVISOR
        return {"elements": extents.total or 0} if known else {}
    if extents.rows is None or extents.columns is None:
        return {}
    return {"rows": extents.rows * (extents.apart or 1), "columns": extents.columns}


def size_class(name: str, size: int) -> tuple[str, int, int | None]:
    """The class of a size: from a power of two to the next; for rows and elements from a power of eight, with no more
    classes above a size that is enough for every SM."""
    step, last = (3, {"rows": 12, "elements": 24}[name]) if name in ("rows", "elements") else (1, 64)
    power = min(max(size, 1).bit_length() - 1, last) // step * step
    return name, 2**power if size else 0, None if power >= last else 2 ** (power + step) - 1


def found(
    tuned: Iterable[Tuned], kernel: str, arch: str | None, types: Iterable[tuple[str, str]], sizes: Mapping[str, int]
) -> Tuned | None:
    """The measurement for such a call."""
    bound = dict(types)
    return next((t for t in tuned if t.kernel == kernel and t.arch == arch and _is_of(t, bound, sizes)), None)


def _is_of(tuned: Tuned, types: Mapping[str, str], sizes: Mapping[str, int]) -> bool:
    if any(types.get(name) != dtype for name, dtype in tuned.types):
        return False
    return all(
        name in sizes and least <= sizes[name] and (most is None or sizes[name] <= most)
        for name, least, most in tuned.sizes
    )


def launch(plan: KernelPlan, call: PlannedCall, tuned: Tuned | None = None) -> KernelLaunch:
    """The launch of a call: the planned one, with measured changes if there are any and they fit."""
    if tuned is not None and tuned.take == "launch":
        how = changed(plan, call, dict(tuned.launch))
        if how is not None:
            return how
    return plan.launch(call)


def changed(plan: KernelPlan, call: PlannedCall, changes: Changes) -> KernelLaunch | None:
    """The planned launch with changes; None if there is none, or if it could not run. What the spec fixes takes
    precedence."""
    schedule = {name: int(changes[name]) for name in SCHEDULE if name in changes}
    call = replace(call, schedule=schedule | dict(call.schedule))
    how = plan.launch(call)
    alone = {name: value for name, value in changes.items() if name not in SCHEDULE}
    if not alone.keys() <= set(FIELDS.get(type(how), ())):
        return None
    if isinstance(how, RowLaunch) and alone:
        if ("vectors" in alone and how.holds_row) or (alone.get("holds_expensive") and not has_expensive_values(plan)):
            return None
        how = replace(how, **alone)  # type: ignore[arg-type]
        how = replace(how, holds_expensive=how.holds_expensive and not how.only_row)
    if isinstance(how, WalkLaunch) and alone:
        several = how.by_place or (not how.staged and (not how.whole or plan.collapsed))
        if ("at_once" in alone and not several) or ("parts" in alone and how.by_place):
            return None
        # Blocks that wait for others must all run at once, as planned
        paced = bool(alone.pop("paced", True)) and how.paced and not alone.keys() & {"resident", "parts"}
        parts = max(min(1, how.parts), round(how.parts * alone.pop("parts", 1)))  # a multiple of the planned ones
        settles = how.settles and parts == (how.meets or 1)
        how = replace(
            how, parts=parts, paced=paced, long=how.long and paced, settles=settles, meets=how.meets * settles
        )
        how = replace(how, **alone)  # type: ignore[arg-type]
    if isinstance(how, AttentionLaunch) and alone:
        if alone.keys() & {"tile_m", "joint"} and not isinstance(plan, AttentionBackward):
            return None
        how = replace(how, **alone)  # type: ignore[arg-type]
    return None if unfit(plan, how, call) else how


def left_to_xla(
    plan: KernelPlan | Gemm,
    how: AnyLaunch,
    call: PlannedCall,
    tuned: Tuned | None = None,
) -> str:
    """Why a call that names no implementation runs the jnp form although there is a kernel, from a measurement or else
    from the plan's estimate; "" if it runs the kernel."""
    if tuned is not None:
        return tuned.why if tuned.take == "xla" else ""
    return estimated_left_to_xla(plan, how, call)


def has_expensive_values(plan: KernelPlan) -> bool:
    """Whether a kernel has expensive values, which it holds in registers or recomputes."""
    return isinstance(plan, Reduction) and bool(plan.expensive)


def unfit(
    plan: KernelPlan,
    how: KernelLaunch,
    call: PlannedCall,
) -> str:
    """Why a launch could not run; "" if no reason is known."""
    if how.threads % 32 or not 32 <= how.threads <= 1024:
        return f"{how.threads} threads"
    if isinstance(how, AttentionLaunch) and isinstance(plan, AttentionPlan):
        return plan.unfit(how)
    if isinstance(how, AttentionLaunch | Launch | SelectLaunch):
        return ""
    if how.cluster not in ((1, 2, 4, 8) if call.clusters else (1,)):
        return f"clusters of {how.cluster} blocks"
    if how.per_row > how.threads or how.threads % how.per_row or how.at_once < 1:
        return f"{how.per_row} of {how.threads} threads a row"
    if how.resident * how.threads > THREADS_OF_SM or how.resident > BLOCKS_OF_SM:
        return f"{how.resident} blocks of {how.threads} threads at once"
    assert isinstance(plan, Reduction)
    if plan.lanes(how.vec) > WARP:
        return f"{plan.lanes(how.vec)} threads that hold a group of columns"
    rows = 1 if isinstance(how, RowLaunch) or how.staged else how.at_once
    data = rows * how.vectors * how.vec * plan.column_bytes(call) // 4
    most = min(MOST_REGISTERS, REGISTERS_OF_SM // (how.threads * max(1, how.resident)))
    if data + cost.OWN_REGISTERS > most:
        return f"{data} registers of data, of {most}"
    if isinstance(how, WalkLaunch) and how.whole and not plan.collapsed:
        needs = plan.walking_needs(how.vec, how.each or 1, call)
        each = how.at_once * needs.width * how.staged + needs.sums * how.shared_sums
        each += needs.sums * (how.threads > how.per_row)  # in the end, for rows side by side
        if how.threads * how.vectors * each > call.shared_memory:
            return f"{how.threads * how.vectors * each} bytes of shared memory"
    return ""
