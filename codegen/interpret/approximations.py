"""The functions whose results PTX bounds but does not define: their error bounds, and how much two machines may differ.

A GPU's result of such a function may be anywhere within its bound; ours is the number nearest to the exact result. So a
GPU's outputs and ours may differ, by an amount that depends on the kernel. `compare` measures this amount by stochastic
arithmetic: it runs the kernel a few more times with random noise. The noise is up to the bound in each approximate
result, and up to a unit in the last place in each rounding of a value computed from one. One of the two machines is
wrong if a GPU's output differs by more than a unit in the last place and MARGIN times the largest difference of these
runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, pi

import numpy as np

from codegen.interpret.decode.decoding import Execute, Machine
from codegen.interpret.ptx import Instruction, Operand, Program, Reg, Vector

Number = np.ndarray
RUNS, MARGIN = 16, 4


@dataclass(frozen=True)
class Bound:
    """The largest error while the magnitude of the (last) operand is below `below`: absolute, relative to the exact
    result, or in units in the last place of float32."""

    below: float = inf
    absolute: float = 0.0
    relative: float = 0.0
    ulps: float = 0.0


# From the PTX manual (ISA 9.0, section 9.7.3); beyond the last `below` there is no bound
BOUNDS: dict[str, tuple[Bound, ...]] = {
    "div.approx.f32": (Bound(2.0**-126, ulps=inf), Bound(2.0**126 * (1 + 2**-52), ulps=2), Bound(absolute=0)),
    "div.full.f32": (Bound(ulps=2),),
    "rcp.approx.f32": (Bound(ulps=1),),
    "sqrt.approx.f32": (Bound(relative=2**-23),),
    "rsqrt.approx.f32": (Bound(relative=2**-22.9),),
    "sin.approx.f32": (Bound(2 * pi, absolute=2**-20.5), Bound(100 * pi, absolute=2**-14.7), Bound(absolute=2)),
    "cos.approx.f32": (Bound(2 * pi, absolute=2**-20.5), Bound(100 * pi, absolute=2**-14.7), Bound(absolute=2)),
    "lg2.approx.f32": (Bound(0.5, relative=2**-22), Bound(2, absolute=2**-22), Bound(relative=2**-22)),
    # from the correctly rounded result, which is within half a unit of the exact one
    "ex2.approx.f32": (Bound(ulps=2.5),),
    "tanh.approx.f32": (Bound(relative=2**-11),),
}


def bounds_of(op: str) -> tuple[Bound, ...] | None:
    """The bounds of an opcode; None where PTX defines its result exactly."""
    return BOUNDS.get(".".join(word for word in op.split(".") if word != "ftz"))


def allowed(op: str, operand: Number, exact: Number) -> Number:
    """The largest error that PTX allows, for operands (a division's divisors) and exact results in float64."""
    bounds = bounds_of(op)
    assert bounds is not None
    size, result = np.abs(operand.astype(np.float64)), np.abs(exact)
    ulp = ulp_of(result)
    errors = [b.absolute + (b.relative * result if b.relative else 0) + (b.ulps * ulp if b.ulps else 0) for b in bounds]
    chosen = np.select([size < b.below for b in bounds[:-1]], errors[:-1], errors[-1]) if len(bounds) > 1 else errors[0]
    return np.where(np.isfinite(exact), chosen, 0.0)


def ulp_of(x: Number) -> Number:
    """A unit in the last place of float32 at numbers in float64."""
    return np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 24, -149))


# Noise


ROUNDED = ("add", "sub", "mul", "fma", "div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")


def reached(program: Program) -> set[int]:
    """The instructions, by id, whose operands depend on approximate results, directly or not; memory is not followed."""
    found: set[int] = set()
    tainted: set[Operand] = set()
    before = -1
    while before != len(tainted):
        before = len(tainted)
        for instruction in (i for block in program.blocks for i in block if i.operands):
            target, *sources = instruction.operands
            reads = {r for s in sources for r in (s.items if isinstance(s, Vector) else (s,))}
            if reads & tainted:
                found.add(id(instruction))
            if reads & tainted or bounds_of(instruction.op):
                tainted |= {
                    r for r in (target.items if isinstance(target, Vector) else (target,)) if isinstance(r, Reg)
                }
    return found


class Noise:
    """A kernel's instructions with random errors that another machine might make."""

    def __init__(self, seed: int, program: Program):
        self.random = np.random.default_rng(seed)
        self.reached = reached(program)

    def around(self, execute: Execute, instruction: Instruction) -> Execute:
        words = instruction.words
        approximate = bounds_of(instruction.op) is not None
        if words[0] not in ROUNDED or words[-1] != "f32" or not (approximate or id(instruction) in self.reached):
            return execute
        target, *sources = instruction.operands

        def run(m: Machine) -> None:
            operand = m.read(sources[-1], "f32")
            execute(m)
            result = np.broadcast_to(m.read(target, "f32"), (m.width(),)).astype(np.float64)
            room = allowed(instruction.op, operand, result) if approximate else ulp_of(result)
            error = room * self.random.uniform(-1, 1, result.shape)
            m.write(target, np.where(np.isfinite(result) & (result != 0), result + error, result).astype(np.float32))

        return run


_seed: int | None = None


@contextlib.contextmanager
def noise(seed: int) -> Iterator[None]:
    """A context in which interpreted kernels have noise."""
    global _seed
    _seed = seed
    try:
        yield
    finally:
        _seed = None


def noise_of(program: Program) -> Noise | None:
    """The noise for a launch of a kernel now, if any."""
    return None if _seed is None else Noise(_seed, program)


# Two machines


@dataclass(frozen=True)
class Agreement:
    """How two machines' outputs compare: the numbers of elements that are equal, that differ, and that differ by more
    than the bounds allow; and the largest ratio of a difference to the allowed one (0 if none differ)."""

    equal: int
    differing: int
    beyond: int
    worst: float


def compare(
    run: Callable[[], Sequence[Number]], theirs: Sequence[Number], approximate: Callable[[], bool]
) -> Agreement:
    """Compare a GPU's outputs with the outputs of `run`, which interprets the same call. `approximate` says whether that just ran
    a kernel with approximate instructions. If not, only equal bits agree (NaN equals NaN)."""
    ours = list(run())
    same = [same_bits(a, b) for a, b in zip(ours, theirs, strict=True)]
    equal, differing = sum(int(s.sum()) for s in same), sum(int((~s).sum()) for s in same)
    if not differing:
        return Agreement(equal, 0, 0, 0.0)
    room = [np.zeros(a.shape) for a in ours]
    if approximate():
        for seed in range(RUNS):
            with noise(seed):
                room = [np.maximum(r, distance(a, b)) for r, a, b in zip(room, ours, run(), strict=True)]
        room = [MARGIN * r + unit(a) for r, a in zip(room, ours, strict=True)]
    shares = [np.where(s, 0.0, _share(distance(a, b), r)) for a, b, r, s in zip(ours, theirs, room, same, strict=True)]
    worst = max(float(np.max(s, initial=0)) for s in shares)
    return Agreement(equal, differing, sum(int((s > 1).sum()) for s in shares), worst)


def _share(gap: Number, room: Number) -> Number:
    with np.errstate(all="ignore"):
        return np.where(gap <= room, np.where(gap < inf, gap / room, 1.0), np.where(room > 0, gap / room, inf))


def same_bits(a: Number, b: Number) -> Number:
    """Which elements have the same bits. NaN equals NaN, whatever its bits."""
    a, b = np.asarray(a), np.asarray(b)
    bits = f"u{a.dtype.itemsize}"
    x, y = _numbers(a), _numbers(b)
    return (np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)) | (np.isnan(x) & np.isnan(y))


def distance(a: Number, b: Number) -> Number:
    """|a - b|: 0 for equal infinities or NaN and NaN, infinite where only one is finite."""
    x, y = _numbers(np.asarray(a)), _numbers(np.asarray(b))
    with np.errstate(all="ignore"):
        gap = np.abs(x - y)
    alike = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.where(alike, 0.0, np.where(np.isfinite(gap), gap, inf))


def unit(a: Number) -> Number:
    """A unit in the last place of each element: 1 for an integer, 0 for a bool."""
    a = np.ascontiguousarray(a)
    if a.dtype == np.bool_:
        return np.zeros(a.shape)
    if a.dtype.kind in "iu":
        return np.ones(a.shape)
    bits = a.view(f"u{a.dtype.itemsize}")
    top = bits.dtype.type(1 << (8 * a.dtype.itemsize - 1))
    size = np.abs(_numbers(a))
    up, down = (np.abs(_numbers(((bits & ~top) + bits.dtype.type(d)).view(a.dtype))) for d in (1, -1 % (int(top) * 2)))
    with np.errstate(all="ignore"):
        gap = np.where(np.isfinite(up), up - size, size - down)
    return np.where(np.isfinite(gap), gap, 0.0)


def _numbers(a: Number) -> Number:
    with np.errstate(all="ignore"):
        return a.astype(np.float64)
