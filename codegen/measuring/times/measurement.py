"""The measurement of one op at one shape."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """Microseconds per call of each candidate (`ours`, `xla`, `copy`), one number per group, for one op at one shape. `kind` is
    the kind of its kernel, or "" where it is not known. `instructions` are the least microseconds that each kind of instruction takes,
    by the names in `targets.LIMITS`; none where they were not counted."""

    op: str
    shape: tuple[tuple[str, int], ...]
    types: tuple[tuple[str, str], ...]
    bytes: int
    groups: tuple[tuple[str, tuple[float, ...]], ...]
    error: str = ""
    kind: str = ""
    instructions: tuple[tuple[str, float], ...] = ()

    def us(self, name: str) -> float:
        return statistics.median(dict(self.groups)[name])

    def bandwidth(self, name: str) -> float:
        """The bandwidth in TB/s."""
        return self.bytes / self.us(name) / 1e6

    @property
    def over_xla(self) -> float:
        """XLA's time over ours."""
        return self.us("xla") / self.us("ours")

    @property
    def of_copy(self) -> float:
        """Our bandwidth over the copy's."""
        return self.us("copy") / self.us("ours")

    @property
    def limit(self) -> tuple[str, float]:
        """The limit of a call, moving its bytes or its instructions of one kind, and its least time in microseconds."""
        return max([("bytes", self.us("copy")), *self.instructions], key=lambda found: found[1])

    @property
    def of_limit(self) -> float:
        """The time at the limit over ours."""
        return self.limit[1] / self.us("ours")

    @property
    def shape_text(self) -> str:
        return ", ".join(f"{axis}={extent}" for axis, extent in self.shape)

    @property
    def types_text(self) -> str:
        return " ".join(dtype if len(self.types) == 1 else f"{name}={dtype}" for name, dtype in self.types) or "-"
