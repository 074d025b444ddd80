"""The architectures of GPUs that CuTe DSL compiles for, and what GPUs of them can do in a second."""

from __future__ import annotations

from dataclasses import dataclass

ARCHITECTURES = tuple("""
    sm_80 sm_86 sm_87 sm_89 sm_90 sm_90a sm_100 sm_100a sm_100f sm_101 sm_101a sm_101f sm_103 sm_103a sm_103f
    sm_107 sm_107a sm_107f sm_110 sm_110a sm_110f sm_120 sm_120a sm_120f sm_121 sm_121a sm_121f
""".split())  # fmt: skip
REGISTERS_OF_SM, MOST_REGISTERS = 64 * 1024, 255  # of an SM, and of a thread
PARTS_WARPS, REGISTER_UNIT = 128, 8  # the threads of a warp in each part of an SM; what a thread has a multiple of
# Those that run at a time, at most: 1536, and 16 or 24, on GPUs that are not for data centers
THREADS_OF_SM, BLOCKS_OF_SM = 2048, 32
THREADS_OF_BLOCK = 1024  # at most
USUAL = "sm_80,sm_90a,sm_100a,sm_120a"  # the ones that kernels are compiled for where none is named


def family(arch: str) -> str:
    """An architecture without the letter of its variant: sm_90 of sm_90a."""
    return arch.rstrip("af")


@dataclass(frozen=True)
class Features:
    """The facts about a family of architectures that plans need."""

    processors: int  # the SMs of its largest GPU
    shared: int  # KiB of shared memory that the blocks on one SM may take
    clusters: bool = False  # whether blocks share rows through each other's shared memory
    uneven: bool = False  # whether memory serves some SMs faster than others
    emulates_float8: bool = False  # whether mma.sync of float8 is one of float16 with conversions, which take registers

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory that the blocks on one SM may take."""
        return self.shared * 1024


FEATURES = {
    "sm_80": Features(processors=108, shared=160),
    "sm_90": Features(processors=132, shared=224, clusters=True, uneven=True, emulates_float8=True),
    "sm_100": Features(processors=148, shared=224, clusters=True, emulates_float8=True),
    "sm_103": Features(processors=148, shared=224, clusters=True, emulates_float8=True),
    "sm_120": Features(processors=170, shared=96),
}
UNKNOWN = Features(processors=132, shared=96)


def features(arch: str | None) -> Features:
    """The features of an architecture; for those without a row, and for None, some that suit most."""
    return UNKNOWN if arch is None else FEATURES.get(family(arch), UNKNOWN)


def registers_of_thread(threads: int) -> int:
    """The registers that a thread may have where an SM runs so many threads at a time. Each of its four parts has a quarter of the
    registers, for whole warps."""
    each = -(-threads // PARTS_WARPS) * PARTS_WARPS
    return min(MOST_REGISTERS, REGISTERS_OF_SM // each // REGISTER_UNIT * REGISTER_UNIT)


def has_wgmma(arch: str | None) -> bool:
    """Whether warpgroups of the architecture multiply matrices from shared memory, for which there are main loops of their own."""
    return arch == "sm_90a"


@dataclass(frozen=True)
class Work:
    """Counts of instructions, for an element or for a thread: of all, each of which takes an issue slot; of those on
    the unit for special functions and conversions; and of those on integers, comparisons and selections, which run at
    half the rate of float32."""

    issue: float
    special: float
    half: float

    def __add__(self, other: Work) -> Work:
        return Work(self.issue + other.issue, self.special + other.special, self.half + other.half)

    def times(self, factor: float) -> Work:
        return Work(self.issue * factor, self.special * factor, self.half * factor)


# What an SM does in a clock, in instructions of a thread. CUDA C++ Programming Guide, "Arithmetic Instructions", table "Throughput
# of Native Arithmetic Instructions": results per clock and SM of float32 (128 where all four schedulers issue), of
# reciprocals, logarithms and exponentials, and of comparisons, shifts and integer additions. The same on all architectures here
PER_CLOCK = Work(issue=128, special=16, half=64)
LIMITS = {"issue": "issue slots", "special": "special functions", "half": "integers and comparisons"}


@dataclass(frozen=True)
class Gpu:
    """A GPU of an architecture, with NVIDIA's figures: its memory bandwidth in bytes per second; the operations per second of its
    tensor cores on dense bfloat16, summed in float32; its SMs, and their highest clock in hertz."""

    arch: str
    name: str
    bandwidth: float
    tensor_cores: float
    processors: int
    clock: float

    def seconds(self, work: Work, clock: float | None = None) -> dict[str, float]:
        """The least time that each kind of instruction takes, by the names in `LIMITS`, at this clock or the highest one."""
        rate = self.processors * (clock or self.clock)
        return {name: getattr(work, name) / getattr(PER_CLOCK, name) / rate for name in LIMITS}


GPUS = (
    Gpu("sm_80", "A100 80GB SXM", 2.039e12, 312e12, 108, 1.41e9),
    Gpu("sm_89", "L4", 0.300e12, 121e12, 58, 2.04e9),
    Gpu("sm_89", "RTX 4090", 1.008e12, 165.2e12, 128, 2.52e9),
    Gpu("sm_90a", "H100 SXM", 3.35e12, 989.4e12, 132, 1.98e9),
    Gpu("sm_90a", "H200", 4.8e12, 989.4e12, 132, 1.98e9),
    Gpu("sm_100a", "B200", 8.0e12, 2250e12, 148, 1.965e9),
    Gpu("sm_120a", "RTX 5090", 1.792e12, 209.5e12, 170, 2.407e9),
)
