"""Launches: what a call adds to a plan. There is a frozen dataclass for each kind of kernel. The launches that kernels are
compiled for are in `codegen.shared`; their `constants` are arguments of the launcher."""

from __future__ import annotations

from dataclasses import dataclass, field

from codegen.shared import AttentionLaunch, Contraction, Launch, RowLaunch, SelectLaunch, WalkLaunch


@dataclass(frozen=True)
class Extents:
    """The sizes of a call; None where one is unknown during compilation."""

    inner: int | None  # elements of the innermost axes that stay together, or a divisor of their number
    total: int | None  # elements, or a divisor of their number
    columns: int | None = None  # columns of a row, where rows are reduced
    rows: int | None = None  # rows that are reduced to one
    apart: int | None = 1  # the number of places with rows of their own to reduce
    turned: int | None = None  # elements along which arrays in another order lie, or a divisor of their number
    page: int | None = 16  # rows of a page of attention's k and v
    outer: int | None = field(default=None, kw_only=True)  # elements of the outermost axes that stay together
    tables: tuple[int | None, ...] = field(
        default=(), kw_only=True
    )  # elements of the tables that are read at computed indices


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


AnyLaunch = Launch | RowLaunch | WalkLaunch | SelectLaunch | AttentionLaunch | GemmLaunch


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
