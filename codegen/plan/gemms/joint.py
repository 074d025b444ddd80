"""Products of the same left factor in one launch: `q = x @ wq`, `k = x @ wk` and `v = x @ wv`, stages with epilogues of their own.

Their tiles are in one grid, column after column of all of them. So blocks that run at the same time share tiles of x in the L2
cache, and only the last tiles of all leave SMs idle. All products have the same tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from codegen.errors import UserError
from codegen.graph.nodes import DTYPES
from codegen.plan.gemms import hopper_tiles
from codegen.plan.gemms.tiles import Product, Tile
from codegen.plan.launches import GemmLaunch, ProductCall
from codegen.shared import Tiles

LAUNCH = 4000  # cycles between two kernels: the last blocks of one, and the first loads of the next
# How much longer one launch of several products takes for their tiles: each block chooses its product and epilogue,
# which reads nothing before the product ends. An H200's microseconds in one launch, and in three. 8192 x 4096 times
# 4096 + 1024 + 1024 columns: 533 and 533 (551 with tiles of 192 columns, which divide no product). 32768 x 1280 times 3
# x 1280: 440 and 449. 2048 x 2048 times 2048 + 512 + 512: 36 and 44. 512 rows of 4096 times 4096 + 1024 + 1024: 43 and
# 50; 256 rows: 24 and 36.
SHARED = 1.05


def alike(first: tuple[Product, Tile], other: tuple[Product, Tile]) -> bool:
    """Whether two products may be in one launch: they have the same left factor, and their second factors the same type and order."""
    (p, tile), (q, also) = first, other
    same = (p.a, p.axes, p.b.dtype, tile.b_is_nk, tile.rows, tile.batch)
    return (
        same == (q.a, q.axes, q.b.dtype, also.b_is_nk, also.rows, also.batch)
        and _takes_part(*first)
        and _takes_part(*other)
    )


def _takes_part(product: Product, tile: Tile) -> bool:
    """Whether a product may be in a launch with others. It may not if its epilogue has two accumulators, if shared
    memory would hold an array with an element for each row and column, or if registers convert its factor."""
    reads = any(tile.tiled(access) for access in tile.plan.loads)
    return product.loaded is None and not tile.paired and not reads


@dataclass(frozen=True)
class Member:
    """A product that may be launched with others: its call, and its launch where it is alone."""

    tile: Tile
    call: ProductCall
    alone: GemmLaunch


def launches(members: Sequence[Member]) -> tuple[GemmLaunch, ...]:
    """The launches of some products, all with the same tiles. `why` says why they should take more time together than
    one after the other. Raises `UserError` where there are none."""
    columns = sum(c.call.extents["N"] for c in members)
    if all(isinstance(c.alone.tiles, Tiles) for c in members):
        return _on_hopper(members, columns)
    wide = [c.tile.launch(c.call.with_columns(columns)) for c in members]
    tiles = max((how.tiles for how in wide), key=lambda t: t.tile_n)
    if any(isinstance(c.alone.tiles, Tiles) for c in members) or isinstance(tiles, Tiles):
        raise UserError("only some of the products have the main loop for Hopper")
    if any(how.segment and tiles.tile_n % how.segment for how in wide):
        raise UserError("no tiles have whole segments of each")
    return tuple(replace(c.alone, tiles=tiles) for c in members)


def _on_hopper(members: Sequence[Member], columns: int) -> tuple[GemmLaunch, ...]:
    """The launches with the main loop for Hopper."""
    options = [c.tile.hopper(c.call, c.alone.ragged) for c in members]
    common = set.intersection(*({_main_loop(tiles) for tiles in found} for found in options))
    if not common:
        raise UserError("no tiles fit each of the products")
    L, M, _, K = members[0].call.sizes
    size = K * DTYPES[members[0].call.dtypes["a"]].size
    work = sum(c.tile.all_work * c.call.extents["N"] for c in members) // max(columns, 1)
    own = [c.call.extents["N"] for c in members]
    times = {t: hopper_tiles.cycles(t, M, _whole_tiles(own, t), size, L, work) for t in common}
    best = min(times, key=lambda tiles: (times[tiles], str(tiles)))
    tiles = replace(best, rolled=any(t.rolled for found in options for t in found if _main_loop(t) == best))
    apart = sum(LAUNCH + _alone(c, size) for c in members)
    once = SHARED * times[best] + LAUNCH
    us = f"{apart / hopper_tiles.CYCLES:.0f} us, and {once / hopper_tiles.CYCLES:.0f} in one launch"
    why = "" if once <= apart else f"by estimate {us}"
    return tuple(replace(c.alone, tiles=tiles, why=why) for c in members)


def _alone(product: Member, row_bytes: int) -> float:
    """The cycles of a product's own launch, or of a library's product and a kernel for the epilogue if those should be
    faster. If nothing follows the product, both take as long."""
    (L, M, N, _), work, alone = product.call.sizes, product.tile.all_work, product.alone
    if isinstance(alone.tiles, Tiles) and (alone.fast or product.tile.stores_products):
        return hopper_tiles.cycles(alone.tiles, M, N, row_bytes, L, work)
    return hopper_tiles.cycles_of_two(M, N, row_bytes, L, work)


def _whole_tiles(columns: Sequence[int], tiles: Tiles) -> int:
    """The columns of whole clusters of tiles that some products have: no cluster has columns of two."""
    each = tiles.tile_n * tiles.cluster_n
    return sum(-(-n // each) * each for n in columns)


def _main_loop(tiles: Tiles) -> Tiles:
    """Tiles without what only epilogues differ in."""
    return replace(tiles, rolled=False)
