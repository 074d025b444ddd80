"""Launches: what a call adds to a plan. One frozen record for each kind of kernel, those that kernels are compiled for in
`codegen.shared`; `constants` are what its launcher takes."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.shared import Contraction, Launch, RowLaunch, WalkLaunch


@dataclass(frozen=True)
class Extents:
    """What a call's shapes come to; None where it is unknown when compiling."""

    inner: int | None  # of the innermost axes that stay together, or a number that divides it
    total: int | None  # elements, or a number that divides them
    columns: int | None = None  # of a row, where rows are reduced
    rows: int | None = None  # that are folded into one
    apart: int | None = 1  # how many places have rows of their own to fold


IDLE = RowLaunch(1, False, 32, 32, 1, 1, True, True, False)  # of a kernel that a call does not launch


@dataclass(frozen=True)
class GemmLaunch(Contraction):
    """What a call adds to a tile's plan: the main loop and its tiles, and the vectors of the epilogue."""

    why: str  # XLA's matmul and then a kernel for the epilogue should take less time; empty where they should not

    @property
    def fast(self) -> bool:
        """Whether it should take less time than XLA's matmul and a kernel for the epilogue."""
        return not self.why

    @property
    def constants(self) -> dict[str, Contraction]:
        """What the launcher takes of it."""
        return {"how": Contraction(self.vec, self.ragged, self.tiles)}


AnyLaunch = Launch | RowLaunch | WalkLaunch | GemmLaunch


@dataclass(frozen=True)
class Tuned:
    """What `codegen tune` measured for a kernel's calls of these dtypes and sizes on an architecture."""

    kernel: str
    arch: str
    types: tuple[tuple[str, str], ...]
    sizes: tuple[tuple[str, int, int | None], ...]  # (name, least, most), as `tuning.choosing.sizes_of` names them
    take: str  # what is fastest: "plan", the planned launch; "launch", that with changes; "xla"
    launch: tuple[tuple[str, int | float | bool], ...] = ()  # the changes
    measured: tuple[tuple[str, object], ...] = ()  # microseconds, the shape, where and when

    @property
    def why(self) -> str:
        """Why a call is XLA's."""
        us = dict(self.measured)
        return f"measured: {us['xla_us']} us, the kernel {us['us']} us" if {"xla_us", "us"} <= us.keys() else "measured"
