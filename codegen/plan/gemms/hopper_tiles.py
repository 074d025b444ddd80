"""The Hopper GEMM's tiles: which ones fit on an SM, and which one to choose for a product. Plain Python, without a GPU.

Times are in cycles of an SM, fitted to measurements on one H100. For 32 bytes along K the tensor cores work on a tile for
tile_m/64 * tile_n/2 cycles. In large products power does not let them work all the time: a little longer with tiles that
consumers share, which in turn leave them idle between two tiles. Small tiles wait for shared memory or for the L2 cache. Shared
memory moves 128 bytes a cycle: TMA writes (tile_m + tile_n) * 32 bytes, and WGMMA reads a's part and all of b's for each 64 rows.
The L2 cache gives each SM 35 bytes a cycle, and memory gives all SMs 1450, if enough bytes are in flight. A warp that runs an
epilogue during another's main loop issues an instruction every four or five cycles, partly because it fetches code that it runs
once for each tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from codegen.graph.nodes import DTYPES
from codegen.shared import STAGED_ROWS, Tiles

SHARED = 227 * 1024  # bytes of shared memory that a block may have
MOST_ACCUMULATORS = 200  # registers of a thread, of 240, which leaves the epilogue enough
MOST_WITH_OTHERS = 128  # and if it adds up accumulators of other blocks, or reads elements one by one
MOST_WITH_COLUMNS = 180  # together with the results of a thread's columns
HALVES = {"float16", "bfloat16"}
FLOAT8 = {"float8_e4m3fn", "float8_e5m2"}
MEMORY = 1450  # bytes a cycle that all SMs together read or write
LATENCY = 5000  # cycles until requested bytes arrive, if all SMs request many
CYCLES = 1755  # in a microsecond
SLOWDOWN = 1.15  # of tensor cores in large products: power allows no more
SLOWDOWN_SHARED = 1.1  # where consumers share a tile
CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 14}  # of so many blocks that are resident on 132 SMs, one block each
ALONE = 4500  # cycles in which a tile's first bytes arrive and its last ones are stored, where consumers share a tile
DEEP = 512  # bytes along K that a block multiplies at least, if several split K
DOUBT = 1.1  # by these estimates, another way must be so much faster than the usual one to be chosen


def refusal(tiles: Tiles, a: str, b: str, *, b_is_nk: bool, paired: str = "", K: int = 0, N: int = 0) -> str:
    """Why the main loop cannot compute a product of these dtypes with these tiles, in one sentence; "" if it can. K and N are
    the sizes of the operands in memory, 2N if pairs are interleaved; a divisor of them is enough."""
    if not ((a == b and a in HALVES) or (b_is_nk and (a == b == "int8" or {a, b} <= FLOAT8))):
        order = "" if b_is_nk else ", b of shape (K, N)"
        return f"WGMMA multiplies float16, bfloat16, and, b of shape (N, K), float8 or int8; got {a} and {b}{order}"
    for name, columns, dtype in (("a", K, a), ("b", K if b_is_nk else N, b)):
        if columns * DTYPES[dtype].size % 16:
            return f"TMA loads rows of whole 16 bytes; a row of {name} has {columns} of {dtype}"
    own = tiles.tile_n // (2 if paired == "halves" else 1)
    step = 8 * tiles.cluster_m if b_is_nk else 64 if paired == "halves" else 32  # columns that are neighbours
    if own % step:
        return f"a tile's {own} columns of each b are not a multiple of {step}"
    if tiles.multicast > 2:
        return f"two blocks at most load for each other; got {tiles.cluster_m} x {tiles.cluster_n}"
    if tiles.splits > 1 and (why := _unsplit(tiles, b, paired)):
        return why
    if tiles.tile_m % (64 if tiles.pingpong else 128) or not 16 <= tiles.tile_n <= 256 or tiles.tile_n % 16:
        return f"WGMMA cannot make tiles of {tiles.tile_m} x {tiles.tile_n}{' (pingpong)' if tiles.pingpong else ''}"
    if tiles.tile_k * DTYPES[a].size % 32:
        return f"a tile is {tiles.tile_k * DTYPES[a].size} bytes wide along K, WGMMA takes 32 at once"
    if tiles.accumulators > MOST_ACCUMULATORS:
        return (
            f"a thread would hold {tiles.accumulators} accumulators; {MOST_ACCUMULATORS} leave enough of its registers"
        )
    if tiles.shared(DTYPES[a].size, DTYPES[b].size) > SHARED:
        return f"{tiles.stages} stages need {tiles.shared(DTYPES[a].size, DTYPES[b].size)} bytes of shared memory; a block has {SHARED}"
    return ""


def _unsplit(tiles: Tiles, b: str, paired: str) -> str:
    """Why K cannot be split so."""
    least = 32 if paired else 16
    if tiles.multicast > 1 or tiles.splits not in (2, 4, 8):
        return f"K is split among two, four or eight blocks of a cluster; got {tiles.splits}"
    if tiles.tile_n % (least * tiles.splits):
        return f"{tiles.splits} blocks cannot finish {least} columns each, or a multiple of them, of {tiles.tile_n}"
    if tiles.accumulators > MOST_WITH_OTHERS:
        return f"a thread would add up others' accumulators besides {tiles.accumulators} of its own; {MOST_WITH_OTHERS} leave room"
    if tiles.stages * tiles.tile_k * DTYPES[b].size < 4 * tiles.tile_m:
        return (
            f"the accumulators of {tiles.tile_m} rows do not fit into the shared memory of {tiles.stages} stages of b"
        )
    return ""


# The tiles that were fastest for some product. Tiles of 128 x 192 load the fewest bytes for a product. Tiles of 128 x 128 divide
# small products better and leave registers to long epilogues. If an epilogue reads tiles, prefetching needs them or smaller pieces.
WIDE, SQUARE = Tiles(128, 192, 64, 4, 2, pingpong=True), Tiles(128, 128, 64, 6, 2, pingpong=True, ahead=2)
TABLE = (
    WIDE,
    Tiles(128, 160, 64, 5, 2, pingpong=True, ahead=2),
    SQUARE,
    Tiles(128, 256, 64, 4, 2, ahead=2),
    Tiles(256, 128, 64, 4, 2, ahead=2),
    Tiles(128, 64, 64, 8, 2, pingpong=True, ahead=2),
    Tiles(64, 256, 64, 4, pingpong=True, ahead=2),
    Tiles(64, 128, 64, 8, pingpong=True, ahead=2),
    Tiles(64, 64, 64, 10, pingpong=True, ahead=2),
)


@dataclass(frozen=True)
class EpilogueNeeds:
    """The needs of an epilogue, for which the tiles of a product are chosen."""

    work: int = 12  # instructions for each accumulator
    reads: int = 0  # bytes that are read for each output, of arrays with the output's shape
    ragged: bool = False  # whether their rows are not whole vectors
    boxes: bool = False  # whether TMA can copy them
    folds: bool = False  # whether rows are reduced
    keeps: bool = False  # whether many registers hold operands
    over_rows: int = 0  # reductions over the rows of a column, which pass through a warp's shared memory
    segment: int = 0  # accumulators of a row's segments, of which tiles have whole ones, or 0

    @property
    def late(self) -> bool:
        """Whether operands are loaded when they are needed."""
        return self.reads > 0 and (self.ragged or not self.boxes)

    def rolled(self, tiles: Tiles) -> bool:
        """Whether the epilogue of a piece is a loop."""
        return self.folds or self.ragged or self.over_rows > 0 or self.late or (tiles == WIDE and not self.reads)


def options(
    M: int, N: int, K: int, L: int = 1, epilogue: EpilogueNeeds = EpilogueNeeds(), *, a: str = "bfloat16", b: str = "bfloat16",
    b_is_nk: bool = False, paired: str = "", processors: int = 132,
) -> dict[Tiles, float]:  # fmt: skip
    """The tiles that fit a product of M x N outputs, and the cycles that each should take."""
    columns = N if not paired else 2 * N
    size, segment, over_rows = DTYPES[a].size, epilogue.segment, epilogue.over_rows
    found: dict[Tiles, float] = {}
    for row in TABLE:
        tiles = row
        crowded = (epilogue.keeps and row == WIDE) or (epilogue.late and row.accumulators > MOST_WITH_OTHERS)
        sums = over_rows * row.tile_n // 8  # registers of a thread for the results of its columns
        if segment and row.tile_n % segment:
            continue
        if crowded or (sums and row.accumulators + sums > MOST_WITH_COLUMNS):
            continue
        if epilogue.reads and epilogue.boxes and (staged := _staged(row, epilogue.reads, 2 if paired else 1)):
            tiles = staged
        elif epilogue.rolled(row):
            tiles = replace(row, rolled=True)
        elif epilogue.reads and row == WIDE:
            tiles = replace(row, stages=5, piece=32, ahead=3)
        if over_rows * tiles.tile_n // (2 if paired else 1) > STAGED_ROWS * tiles.piece:
            continue
        held = 2 * N if paired in ("interleaved", "segments") else N
        alone = replace(row, cluster_m=1, cluster_n=1)
        for one in (tiles, *(replace(alone, splits=s) for s in (2, 4, 8) if K * size >= s * DEEP)):
            if segment and one.tile_n % (one.splits * segment):
                continue
            one = replace(one, tile_k=row.tile_k * 2 // size, blocks=processors)
            if not refusal(one, a, b, b_is_nk=b_is_nk, paired=paired, K=K, N=held):
                found[one] = cycles(one, M, columns, K * size, L, epilogue.work) * (1 if one.splits == 1 else DOUBT)
    return found


def _staged(tiles: Tiles, reads: int, parts: int) -> Tiles | None:
    """The same tiles with the epilogue's operands in shared memory, at the cost of a stage, or with smaller pieces.
    None if there is no room for them."""
    for piece, stages in (
        (64, tiles.stages),
        (64, max(4, tiles.stages - 1)),
        (32, tiles.stages),
        (32, tiles.stages - 1),
    ):
        staged = STAGED_ROWS * piece // parts * reads
        found = replace(tiles, piece=piece, stages=stages, ahead=2, rolled=True, staged=staged)
        if found.shared(2, 2) <= SHARED:
            return found
    return None


def loses(tiles: Tiles, M: int, N: int, K: int, L: int, *, a: str, paired: str, work: int) -> str:
    """Why XLA's product and then a kernel for the epilogue should be faster than these tiles; "" if they should not.
    They are if there are few tiles and K is long: a cluster then has too few blocks, or its blocks read too much."""
    columns, row_bytes = N * (2 if paired else 1), K * DTYPES[a].size
    one, two = cycles(tiles, M, columns, row_bytes, L, work), cycles_of_two(M, columns, row_bytes, L, work)
    if one <= DOUBT * two:
        return ""
    return f"by estimate {two / CYCLES:.0f} us, and {one / CYCLES:.0f} as one kernel"


def cycles(tiles: Tiles, M: int, columns: int, row_bytes: int, L: int, work: int) -> float:
    """The approximate time of a product: M rows, `columns` of accumulators, `row_bytes` along K."""
    slabs, steps = tiles.tile_m // 64, _up(row_bytes, 32)
    if tiles.splits > 1:  # whole tiles along K, each of 128 bytes
        steps = 4 * _up(_up(row_bytes, 128), tiles.splits)
    tensor_cores = slabs * tiles.tile_n / 2 * (SLOWDOWN if tiles.pingpong else SLOWDOWN_SHARED)
    shared_memory = (tiles.tile_m + tiles.tile_n + slabs * (64 + tiles.tile_n)) * 32 / 128
    cache = (min(tiles.tile_m, M) / tiles.cluster_n + tiles.tile_n / tiles.cluster_m) * 32 / 35
    main = steps * max(tensor_cores, shared_memory, cache)
    pace = 2.9 if not tiles.pingpong else 3.2 if tiles.rolled else 4.6 if tiles.accumulators > 160 else 3.4
    epilogue = tiles.accumulators * work * pace / tiles.splits
    # One epilogue overlaps the other main loop, or the other epilogue if it takes longer
    each = max(main + 1400, (main + epilogue) / 2) if tiles.pingpong else main + ALONE + epilogue
    clusters = _up(M, tiles.tile_m * tiles.cluster_m) * _up(columns, tiles.tile_n * tiles.cluster_n) * L
    resident = max(min(clusters * tiles.cluster, CLUSTERS[tiles.splits] * tiles.splits), 1)
    memory = (M + columns) * row_bytes * L / min(MEMORY, resident * tiles.stages * tiles.tile_n * 128 / LATENCY)
    if tiles.splits > 1:  # to meet, and to write and read the other blocks' parts
        epilogue += 2500 + tiles.tile_m * tiles.tile_n * 4 / 25
        turns = _up(clusters, max(CLUSTERS[tiles.splits] * tiles.blocks // CLUSTERS[1], 1))
        return _beside(turns * main, memory) + turns * (500 + epilogue)
    turns = _up(clusters, max(tiles.blocks // tiles.multicast, 1))
    return _beside(turns * each, memory) + 0.6 * epilogue  # the last one, alone


def cycles_of_two(M: int, columns: int, row_bytes: int, L: int, work: int) -> float:
    """The approximate time of a library's product, with the best tiles and parts of K, followed by a kernel for the
    epilogue."""
    tensor_cores = M / 64 * columns / 2 * _up(row_bytes, 32) / CLUSTERS[1] * SLOWDOWN
    memory = (M + columns) * row_bytes / MEMORY
    epilogue = M * columns * max(6 / MEMORY, work / (64 * CLUSTERS[1]))  # bytes, or instructions of lanes
    return L * (1.1 * _beside(tensor_cores, memory) + epilogue) + 11_000


def _beside(a: float, b: float) -> float:
    """The time of two activities that overlap, and slow each other down a little."""
    return max(a, b) + min(a, b) / 2


def _up(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
