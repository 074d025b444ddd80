"""Numbers that kernels of all kinds use: sizes, exponents, and the distance between elements of a sample."""

WARP = 32  # threads
HALF_POWERS = (-2.5, -1.5, -0.5, 0.5, 1.5, 2.5)  # exponents of powers that are computed by a square root
WHOLE_POWERS = (1.0, 2.0, 3.0, 4.0)  # exponents of powers that are products

# Evenly spaced elements are the sample from which the centre of a variance is computed
SPACING = 32  # the largest distance between them: a compromise of accuracy and bytes
LEAST_SAMPLED = 2**20  # elements of an array: a smaller one is in a cache when it is read again
LEAST_SPACING = 8  # the least distance that divides a size: each device of a sharded axis has a part of the sample


def spacing(size: object) -> int:
    """The distance along an axis between elements of the sample: the largest one that divides the size, unless that is small; 1 where
    the size is unknown."""
    if not isinstance(size, int) or size <= 0:
        return 1
    return next((s for s in range(SPACING, LEAST_SPACING - 1, -1) if size % s == 0), min(SPACING, size))
