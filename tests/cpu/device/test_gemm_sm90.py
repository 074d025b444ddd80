"""The Hopper main loop with hand-written epilogues, compiled: it multiplies by WGMMA, loads by TMA, and spills nothing."""

import contextlib
import dataclasses
import io

import cutlass
import cutlass.cute as cute
import pytest
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from gemm_running import Product
from hopper_choice import choose
from making import make_op

from codegen.graph.nodes import DTYPES
from codegen.measuring.compiled.compile import compile_kernel
from codegen.measuring.compiled.variants import variants
from codegen.plan.gemms.hopper_tiles import SHARED, SQUARE, TABLE, WIDE, EpilogueNeeds, refusal
from codegen.runtime.compiled import interpreted
from codegen.runtime.compiled.cubins import read_cubin
from codegen.runtime.compiled.platform import COMPILE_OPTIONS, compiling_for
from codegen.shared import Tiles

SPILLS = 32  # bytes of stack for a value or two that are needed between tiles


def compiled(product: Product, options: str = "") -> tuple[str, int, str]:
    """PTX, stack in bytes, and the assembler's report if `options` ask for it."""

    def tensor(described):
        dtype, divisors, alignment = described
        shape = tuple(cute.sym_int(divisibility=d) for d in divisors)
        order = tuple(reversed(range(len(shape))))
        kind = getattr(cutlass, DTYPES[dtype].cutlass)
        return make_fake_compact_tensor(kind, shape, stride_order=order, assumed_align=alignment)

    call = product.call
    arguments = [*map(tensor, call.inputs + call.outputs), *(value for _, value in call.constants)]
    options = f"{COMPILE_OPTIONS} --keep-ptx --keep-cubin {options}"
    with compiling_for("sm_90a"), contextlib.redirect_stderr(io.StringIO()) as log:
        made = cute.compile(call.launch, make_fake_stream(), *arguments, options=options, no_jit_engine=True)
        return made.__ptx__, read_cubin(made.__cubin__)[1], log.getvalue()


GELU = Product("gelu", 512, 512, 768, tiles=WIDE)
WHOLE = Tiles(128, 256, 128, 4, 2)
SHAPES = [
    GELU,
    dataclasses.replace(GELU, b_is_nk=True, N=777),  # rows of y that are not whole vectors
    dataclasses.replace(GELU, name="dgelu", tiles=SQUARE),
    dataclasses.replace(GELU, tiles=dataclasses.replace(WIDE, rolled=True)),
    dataclasses.replace(GELU, name="residual", tiles=dataclasses.replace(WIDE, stages=5, piece=32, ahead=2)),
    dataclasses.replace(GELU, name="residual", tiles=dataclasses.replace(SQUARE, rolled=True)),  # read in the loop
    dataclasses.replace(GELU, name="residual", tiles=dataclasses.replace(WIDE, ahead=2, rolled=True, staged=2048)),
    # with fewer pieces than are prefetched
    dataclasses.replace(GELU, name="dgelu", tiles=dataclasses.replace(TABLE[-1], rolled=True, staged=2048)),
    dataclasses.replace(GELU, tiles=Tiles(128, 256, 64, 4, 1, 2), dtype="float16", out="float16"),
    dataclasses.replace(GELU, name="swiglu", paired="halves", tiles=Tiles(128, 256, 64, 4, 2)),
    dataclasses.replace(GELU, name="swiglu", paired="interleaved"),
    dataclasses.replace(GELU, name="sums", tiles=Tiles(128, 256, 64, 4, 2)),
    dataclasses.replace(GELU, name="row_sums", tiles=dataclasses.replace(WIDE, rolled=True)),
    dataclasses.replace(GELU, name="sums", tiles=dataclasses.replace(SQUARE, cluster_m=1, splits=4)),
    dataclasses.replace(GELU, name="sums", tiles=Tiles(128, 256, 64, 4, splits=8), b_is_nk=True),
    dataclasses.replace(GELU, name="swiglu", paired="halves", tiles=dataclasses.replace(TABLE[-2], splits=4)),
    dataclasses.replace(GELU, name="plain", dtype="int8", out="int32", b_is_nk=True, tiles=WHOLE),
    dataclasses.replace(GELU, dtype="float8_e4m3fn", b_is_nk=True, tiles=dataclasses.replace(WIDE, tile_k=128)),
]


@pytest.mark.turns(3)
@pytest.mark.parametrize("product", SHAPES, ids=str)
def test_the_tensor_cores_are_fed_by_tma(product):
    tiles, kind = product.tiles, DTYPES[product.dtype]
    parts = 2 if product.paired == "halves" else 1
    assert not refusal(tiles, kind.name, kind.name, b_is_nk=product.b_is_nk, paired=product.paired)
    ptx, stack, remarks = compiled(product, "remarks{ptx}")
    slabs = tiles.tile_m // 64 // (1 if tiles.pingpong else 2)
    # WGMMA instructions of a stage; twice as many if the code of a tile's first stage is separate
    products = slabs * tiles.tile_k * kind.size // 32
    assert ptx.count("wgmma.mma_async.sync.aligned") == products * (2 if tiles.rolled else 1)
    assert ptx.count("cp.async.bulk.tensor") >= 1 + parts
    assert (".multicast::cluster" in ptx) == (tiles.multicast > 1)
    assert ("cp.async.bulk.tensor.2d" in ptx) == (tiles.staged > 0)  # the epilogue's operands; the factors have a batch
    assert ("ld.shared::cluster.v4" in ptx) == (tiles.splits > 1)  # the other blocks' accumulators
    assert stack <= SPILLS
    assert "bytes spill" in remarks  # the assembler's report
    assert "serializ" not in remarks and "setmaxnreg" not in remarks


@pytest.mark.turns(3)
@pytest.mark.parametrize("tiles", TABLE, ids=str)
def test_tiles_of_the_table_compile(tiles):
    product = dataclasses.replace(GELU, tiles=tiles)
    ptx, stack, _ = compiled(product)
    assert ptx.count("wgmma") > 4 and stack <= SPILLS
    assert tiles.shared(2, 2) <= SHARED


@pytest.mark.turns(3)
@pytest.mark.parametrize("product", [p for p in SHAPES if p.dtype == "bfloat16"], ids=str)
def test_shared_memory_is_what_a_launch_asks_for(product):
    launcher = interpreted.compile_call(product.call).launcher
    buffers = [(2**20 * i, x.shape) for i, x in enumerate((*product.inputs, *product.outputs), 1)]
    (launch,) = launcher.launches(buffers)
    assert launch.shared == product.tiles.shared(*2 * [DTYPES[product.dtype].size])


SHARED_OUT = [
    tiles
    for row in TABLE
    for tiles in (dataclasses.replace(row, cluster_m=1, splits=splits) for splits in (2, 4, 8))
    if not refusal(tiles, "bfloat16", "bfloat16", b_is_nk=False)
]


@pytest.mark.turns(4)
@pytest.mark.parametrize("tiles", SHARED_OUT, ids=lambda t: f"{t.tile_m}x{t.tile_n}-{t.splits}")
def test_tiles_whose_blocks_share_k_out_compile(tiles):
    ptx, stack, _ = compiled(dataclasses.replace(GELU, tiles=tiles))
    assert "ld.shared::cluster.v4" in ptx and stack <= SPILLS


def test_parts_of_pairs_come_together(tmp_path):
    """An epilogue that reads one of two neighbouring columns has both copied to shared memory."""
    op = make_op(
        tmp_path,
        "op: made\nsummary: Made here.\ninputs: {x: 'bfloat16[..., K]', w: 'bfloat16[K, (N 2)]', r: 'bfloat16[..., (N 2)]'}\n"
        "outputs: {y: 'bfloat16[..., N]'}\nchain: y = (x @ w[0]) * (x @ w[1]) + r[1]\nreference: y = 0\n",
    )
    kernel = op.kernels[0]
    (whole,) = [v for v in variants(kernel) if not v.ragged]
    assert "cp.async.bulk.tensor.2d" in compile_kernel(kernel, whole, "sm_90a").ptx


def test_statistics_of_columns_pass_through_shared_memory():
    """There is room for the statistics of some tiles' columns."""
    for count in range(1, 9):
        tiles = choose(4096, 4096, 4096, epilogue=EpilogueNeeds(folds=True, keeps=True, over_rows=count))
        assert tiles is None or count * tiles.tile_n <= 16 * tiles.piece
    assert choose(4096, 4096, 4096, epilogue=EpilogueNeeds(folds=True, keeps=True, over_rows=5)) is not None
