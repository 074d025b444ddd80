"""The call that a launch is planned for, and launches: what it adds to a plan. There is a frozen dataclass for each kind of kernel.
The launches that kernels are compiled for are in `codegen.shared`; their `constants` are arguments of the launcher."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from codegen.errors import UserError
from codegen.graph.nodes import DTYPES
from codegen.shared import AttentionLaunch, Contraction, Launch, RowLaunch, SelectLaunch, WalkLaunch
from codegen.spec.spec import Array
from codegen.targets import Features, features


@dataclass(frozen=True)
class Extents:
    """The sizes of a call; None where one is unknown during compilation."""

    inner: int | None = None  # elements of the innermost axes that stay together, or a divisor of their number
    total: int | None = None  # elements, or a divisor of their number
    columns: int | None = None  # columns of a row, where rows are reduced
    rows: int | None = None  # rows that are reduced to one
    apart: int | None = 1  # the number of places with rows of their own to reduce
    turned: int | None = None  # elements along which arrays in another order lie, or a divisor of their number
    page: int | None = 16  # rows of a page of attention's k and v
    outer: int | None = field(default=None, kw_only=True)  # elements of the outermost axes that stay together
    # Elements of the tables that are read at computed indices
    tables: tuple[int | None, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, eq=False)
class PlannedCall:
    """The call that a launch is planned for: all that decides the launch, besides the plan."""

    dtypes: Mapping[str, str]  # of the arrays, by name
    extents: Extents = Extents()
    schedule: Mapping[str, int] = field(default_factory=dict)  # settings that the spec fixes, or that a search tries
    arch: str | None = None  # None for figures that suit most architectures

    @property
    def features(self) -> Features:
        return features(self.arch)

    @property
    def processors(self) -> int:
        """The number of SMs."""
        return self.features.processors

    @property
    def shared_memory(self) -> int:
        """The bytes of shared memory that the blocks on one SM may take."""
        return self.features.shared_bytes

    @property
    def clusters(self) -> bool:
        """Whether blocks share rows through each other's shared memory."""
        return self.features.clusters

    def size(self, array: Array | None) -> int:
        """The bytes of an element of an array."""
        assert array is not None
        return DTYPES[self.dtypes[array.name]].size

    @functools.cached_property
    def packed(self) -> bool:
        """Whether an array has two numbers in a byte."""
        return any(DTYPES[dtype].packed for dtype in self.dtypes.values())

    def vector(self, width: int) -> int:
        """The number of elements of a vector, if the widest of them has `width` bytes."""
        return vector_width(width, self.schedule.get("vector_bytes", VECTOR_BYTES))

    def whole_pairs(self, vec: int, elements: int | None) -> int:
        """The number of elements of a vector: `vec`, unless some arrays have 4-bit numbers, which are read and written by the byte.
        Then each vector must be whole bytes, so an axis, or an array, of so many `elements` must have an even number. Raises
        `UserError` for an odd number, and for one that is not known (None)."""
        if not self.packed:
            return vec
        if elements is None or elements % 2:
            rest = "their number may be odd" if elements is None else f"{elements} of them do not fill whole bytes"
            raise UserError(f"two 4-bit numbers share a byte, and {rest}", "pad the last axis to an even size")
        return math.gcd(max(vec, 2), elements)  # two, even where the other arrays or the spec's schedule ask for one

    def fixes(self, *settings: str) -> bool:
        """Whether some of these settings are fixed."""
        return not self.schedule.keys().isdisjoint(settings)

    def fixing(self, **settings: int) -> PlannedCall:
        """The call with other settings fixed too."""
        return replace(self, schedule={**self.schedule, **settings})

    def of(self, **extents: int | None) -> PlannedCall:
        """The call with other sizes."""
        return replace(self, extents=replace(self.extents, **extents))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class ProductCall:
    """The call that the launch of a product's kernel is planned for."""

    # The dtypes of the epilogue's arrays by their names, of the factors as "a" and "b", and of their scales as "scale"
    dtypes: Mapping[str, str]
    # L, M, N and K; the size of the columns' innermost axis D, if they have several; "covered", see `loading`
    extents: Mapping[str, int]
    precise: bool  # whether float32 factors are not rounded to TF32
    arch: str

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The size of the batch, those of rows and columns, and that of the contracted axis."""
        L, M, N, K = (self.extents[name] for name in "LMNK")
        return L, M, N, K

    def with_columns(self, columns: int) -> ProductCall:
        """The call with another number of columns."""
        return replace(self, extents={**self.extents, "N": columns})


VECTOR_BYTES = 16  # of the widest vector that an instruction loads or stores


def vector_width(width: int, most: int = VECTOR_BYTES) -> int:
    """The number of elements of a vector with at most so many bytes, if the widest of them has `width` bytes."""
    vec = 1
    while vec * 2 * width <= most:
        vec *= 2
    return vec


IDLE = RowLaunch(1, False, 32, 32, 1, 1, True, True, False)  # of a kernel that a call does not launch


@dataclass(frozen=True)
class GemmLaunch(Contraction):
    """The settings that a call adds to a tile's plan: the main loop and its tiles, and the vectors of the epilogue."""

    why: str = ""  # why XLA's matmul and then a kernel for the epilogue should take less time; "" if they should not
    # Why XLA writes b in the type of a before the kernel, where that is wider; "" if registers convert it
    copied: str = ""

    @property
    def fast(self) -> bool:
        """Whether the kernel should take less time than XLA's matmul and a kernel for the epilogue."""
        return not self.why

    @property
    def constants(self) -> dict[str, Contraction]:
        """The launcher's arguments from this record."""
        return {"how": Contraction(self.vec, self.ragged, self.tiles, self.segment)}


# Of every kernel but products of matrices
KernelLaunch = Launch | RowLaunch | WalkLaunch | SelectLaunch | AttentionLaunch
AnyLaunch = KernelLaunch | GemmLaunch


@dataclass(frozen=True)
class Tuned:
    """A measurement of `codegen tune`, for a kernel's calls of these dtypes and sizes on an architecture."""

    kernel: str
    arch: str
    types: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, int, int | None], ...]  # (name, least, most), as `tuning.choosing.sizes_of` names them
    take: str  # what is fastest: "plan", the planned launch; "launch", that with changes; "xla"
    launch: tuple[tuple[str, int | float | bool], ...] = ()  # the changes
    measured: tuple[tuple[str, object], ...] = ()  # microseconds, the shape, where and when

    @property
    def why(self) -> str:
        """Why a call is left to XLA."""
        us = dict(self.measured)
        return f"measured: {us['xla_us']} us, the kernel {us['us']} us" if {"xla_us", "us"} <= us.keys() else "measured"
