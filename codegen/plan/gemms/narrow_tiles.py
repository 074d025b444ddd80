"""Products whose b has elements of a byte, or of 4 bits, and is converted in registers to a's 16 bits (`device/gemm/narrow.py`). It
chooses the tiles, and whether to copy b to 16 bits first and multiply that, where it takes less time. Plain Python, without a GPU.

Times are in cycles of an H100, as in `hopper_tiles`. The main loop's mma.sync is taken to reach a third of WGMMA's peak
rate. A warp converts four elements in 8 instructions, and every row of tiles converts b again. With few rows, memory is
the limit: this way moves one byte of each element. With a copy it is five: the copy reads one and writes two, which the
product reads.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.plan.gemms.hopper_tiles import CLUSTERS, FLOAT8, MEMORY, cycles
from codegen.shared import AmpereTiles, Tiles

PRODUCTS = 700  # of two elements, that an SM multiplies and adds in a cycle by mma.sync
CONVERTED = 20  # elements that an SM converts in a cycle while it multiplies
IN_FLIGHT = 99_840  # bytes of shared memory that a block has on every architecture
COPY = 4000  # cycles that a kernel before the product takes besides its bytes
SOURCES = {"int8"} | FLOAT8
# Rows up to which XLA, which converts bytes in its own product, is faster. On an H100, for int8 weights of 4096 x 14336, it took
# 29, 49 and 70 us for 16, 128 and 256 rows. For 8192 rows it took 1394 us, and these kernels 1280. On an H200 it took 25, 30, 37,
# 70 and 239 us for 16, 32, 64, 256 and 1024 rows, where these kernels took 20, 27, 46, 133 and 523. For 16 rows times 4096 x 4096
# it took 9, and these kernels 7. For 16 rows times 4096 x 14336 in 4 bits, which XLA cannot multiply, they took 17; for float8 XLA
# took 21, and they 20.
FEW_ROWS = 1024
FEWEST_ROWS = 32  # up to which it is not faster


def tiles_for(M: int, N: int, L: int, parts: int, bits: int = 8, group: int = 0) -> AmpereTiles:
    """The tiles of a product of M rows, and of N columns of each of the `parts` of b, with a scale for each `group` along K. There
    is a block for each SM, if there are enough columns."""
    deep = 64 * 8 // bits
    few = CLUSTERS[1] > -(-N // 64) * L * -(-M // 64)
    if M <= 32:
        # So few warps wait for their own instructions: groups of them share K, but where scales, sums and a's fragments of 32 rows
        # fill the registers
        warps = 2 if few else 4
        groups = 1 if bits < 8 and M > 16 else 4 if few and bits == 8 else 2
        columns = 16 * parts * warps
        if not few and parts == 1 and (M <= 16 or bits == 8):
            deep, warps = 128 if group % 128 == 0 else deep, 4 if M <= 16 and bits == 8 else 2
        made = AmpereTiles(
            16 if M <= 16 else 32, columns, deep, warps_m=1, warps_n=warps, stages=2, blocks=2, warps_k=groups,
        )  # fmt: skip
    elif M <= 64 and parts == 1 and bits < 8 and not few:
        # Wide tiles: fewer blocks read a, and 39 us instead of 42 for 64 rows times 4096 x 14336 on an H200
        made = AmpereTiles(64, 128, deep, warps_m=2, warps_n=4, stages=2, blocks=1)
    else:
        # In 4 bits, registers have a's fragments for 64 elements along K, and the sums of a group besides all sums
        rows = 64 if M <= 64 or few or bits < 8 else 128
        made = AmpereTiles(
            rows, 128 if rows == 128 else 64 * parts, deep, warps_m=2, warps_n=2, stages=2, blocks=3 - parts
        )
    # As many bytes in flight as fit: few rows wait for memory alone. Of scales a column has 4
    stage = made.tile_m * deep * 2 + made.tile_n * (deep * bits // 8 + 4)
    return replace(made, stages=max(2, min(12, IN_FLIGHT // (stage * made.warps_k))))


def loses(M: int, bits: int, group: int) -> str:
    """Why XLA's product should be faster; "" if it should not. It has none for 4 bits, nor for scales along K."""
    slower = FEWEST_ROWS < M <= FEW_ROWS and bits == 8 and not group
    return "XLA converts bytes in its own product of few rows" if slower else ""


def cycles_converting(tiles: AmpereTiles, M: int, N: int, K: int, L: int, bits: int = 8) -> float:
    """The approximate time with b converted in registers; N columns of all parts."""
    rows = -(-M // tiles.tile_m)
    products = rows * tiles.tile_m * N * K * L / PRODUCTS / CLUSTERS[1]
    converted = rows * tiles.warps_m * N * K * L / CONVERTED / CLUSTERS[1]
    memory = (2 * M * K + N * K * bits / 8) * L / MEMORY
    return max(products + converted, memory)


def cycles_copying(tiles: Tiles | AmpereTiles, M: int, N: int, K: int, L: int, bits: int, work: int) -> float:
    """The approximate time with a copy of b in 16 bits, and a product of that with these tiles."""
    copy = COPY + (2 + bits / 8) * N * K * L / MEMORY
    if isinstance(tiles, Tiles):
        return copy + cycles(tiles, M, N, 2 * K, L, work)
    return copy + max(M * N * K * L / PRODUCTS / CLUSTERS[1], 2 * (M + N) * K * L / MEMORY)
