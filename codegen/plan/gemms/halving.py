"""Products that XLA computes in less time as the sum of two: the contracted axis is long, and the tiles leave SMs idle at the end."""

from __future__ import annotations

from codegen.targets import family, features

TILE = 128, 160  # of the matmul that XLA takes on Hopper for the gradients of weights
LEAST = 0.1  # of the time, that halves must save: the tile is not certain
ELEMENTS = 2048  # of the long axis, whose products take as long as adding the two halves


def saves_time(rows: int, columns: int, contracted: int, arch: str | None) -> bool:
    """Whether a product of [rows, contracted] and [contracted, columns] takes less time in two halves of the contracted axis, on the
    architecture. Each tile then takes half the time, and fewer SMs are idle in the last round of tiles."""
    if arch is None or family(arch) != "sm_90" or not rows * columns or contracted % 2:
        return False
    tiles, processed = -(-rows // TILE[0]) * -(-columns // TILE[1]), features(arch).processors
    whole, halves = -(-tiles // processed), -(-2 * tiles // processed) / 2
    saved = 1 - halves / whole
    return saved > LEAST and saved * contracted > ELEMENTS
