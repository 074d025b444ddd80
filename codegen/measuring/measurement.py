"""The measurement of one op at one shape."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """Microseconds per call of each candidate (`ours`, `xla`, `copy`), one number per group, for one op at one shape. `kind` is
    the kind of its kernel, or "" where it is not known."""

    op: str
    shape: tuple[tuple[str, int], ...]
    types: tuple[tuple[str, str], ...]
    bytes: int
    groups: tuple[tuple[str, tuple[float, ...]], ...]
    error: str = ""
    kind: str = ""

    def us(self, name: str) -> float:
        return statistics.median(dict(self.groups)[name])

    def bandwidth(self, name: str) -> float:
        """TB/s."""
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
    def shape_text(self) -> str:
        return ", ".join(f"{axis}={extent}" for axis, extent in self.shape)

    @property
    def types_text(self) -> str:
        return " ".join(dtype if len(self.types) == 1 else f"{name}={dtype}" for name, dtype in self.types) or "-"
