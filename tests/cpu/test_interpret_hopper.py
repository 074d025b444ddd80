"""Hopper's kernels, interpreted: what TMA brings, what WGMMA multiplies, and every wait that they need."""

import dataclasses
import functools
import re

import numpy as np
import pytest
from gemm_running import BASE, KINDS, STAGED, Product, check

from codegen.hopper_tiles import TABLE
from codegen.interpret import host, ptx
from codegen.interpret.machine import InterpretError, Kernel
from codegen.runtime import interpreted, kernels


def step_of(product: Product) -> int:
    """What rows in memory are multiples of: 16 bytes."""
    return 16 // np.dtype(product.inputs[0].dtype).itemsize


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_any_extents(kind):
    """Blocks are few, so that each has several tiles."""
    rng = np.random.default_rng(len(str(kind)))
    step = step_of(kind)
    n = int(rng.integers(1, 300))
    n = n if kind.b_is_nk else -(-n // step) * step
    m, k = int(rng.integers(1, 400)), step * int(rng.integers(1, 40))
    tiles = dataclasses.replace(kind.tiles, blocks=2 * kind.tiles.multicast)
    check(dataclasses.replace(kind, M=m, N=n, K=k, tiles=tiles), 0, Product.interpret)


@pytest.mark.parametrize("extents", [(0, 64, 64), (64, 0, 64), (64, 64, 0), (1, 8, 8)], ids=str)
def test_nothing_and_next_to_nothing(extents):
    m, k, n = extents
    check(dataclasses.replace(BASE, M=m, K=k, N=n), 0, Product.interpret)
    check(dataclasses.replace(BASE, name="residual", M=m, K=k, N=n, L=2, tiles=STAGED), 0, Product.interpret)
    check(dataclasses.replace(BASE, M=m, K=k, N=n, L=2, shared_b=True, tiles=TABLE[3]), 0, Product.interpret)


# A kernel with a fault. Six steps along K, by way of four stages; two tiles for each of two blocks, which share b

CASE = dataclasses.replace(BASE, M=512, N=192, K=384, tiles=dataclasses.replace(BASE.tiles, blocks=2))


@functools.cache
def compiled(case: Product):
    return kernels.binary(case.call, "ptx")


def run_edited(monkeypatch, edit, case: Product = CASE) -> None:
    made = compiled(case)
    text = edit(made.ptx)
    assert text != made.ptx
    programs = ptx.parse(text)
    launcher = host.Launcher(made.module, programs)
    made_anew = interpreted.Compiled(launcher, {name: Kernel(program) for name, program in programs.items()})
    monkeypatch.setattr(interpreted, "compile_call", lambda call, lines=False: made_anew)
    check(case, 0, Product.interpret)


def changed(pattern: str, which: int, by: str = ""):
    """PTX in which the n-th match is replaced."""

    def edit(text: str) -> str:
        place = list(re.finditer(pattern, text, re.M))[which]
        return text[: place.start()] + place.expand(by) + text[place.end() :]

    return edit


def line(pattern: str) -> str:
    return rf"^\s*{pattern}.*\n"


NO_WAIT = r"mbarrier\.try_wait\S* P1, .*;"  # replaced: whoever waits goes on
SENT = line(r"mbarrier\.arrive\.shared::cluster")


def many(number: int, by: int):
    return changed(rf"(mov\.b32\s+%r\d+, ){number};", 0, rf"\g<1>{by};")


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (changed(line(r"wgmma\.fence"), 0), "wgmma with no wgmma.fence since the last wait"),
        (changed(line(r"wgmma\.commit_group"), 0), "which a wgmma that is not waited for may still read"),
        (changed(line(r"wgmma\.wait_group\S*\s+1"), 0), "which a wgmma that is not waited for may still read"),
        (changed(line(r"wgmma\.wait_group\S*\s+0"), 0), "a wgmma that is not waited for may still"),
        (changed(r", 1,  1, 0, 1;", 0, ", 1,  1, 0, 0;"), "Not equal to tolerance"),
        # The producer, for a stage to be free: it is two phases ahead of whoever waits for one
        (changed(NO_WAIT, 0, "setp.eq.u32 P1, 0, 0;"), "it takes 256 threads, and 128 are there"),
        (changed(NO_WAIT, 1, "setp.eq.u32 P1, 0, 0;"), "exits without a wait for the last phase of the mbarrier"),
        (changed(NO_WAIT, 5, "setp.eq.u32 P1, 0, 0;"), "race: wgmma of byte"),  # a consumer, for a stage to be full
        (many(40960, 40944), "it takes 256 threads, and 128 are there"),  # the first consumer waits for ever
        (many(40960, 40976), "it takes 256 threads, and 128 are there"),
        (many(8, 7), "race: write of byte 0 of shared memory that another thread read"),  # of 8 warps that read a stage
        (many(8, 9), "it takes 256 threads, and 128 are there"),
        (changed(SENT, 0), "it takes 256 threads, and 128 are there"),
        (changed(SENT, 1), "a wait for a phase of an mbarrier that nothing brings to its end"),
        (changed(line(r"fence\.mbarrier_init"), 0), "race: use of an mbarrier that another thread initialised"),
        (changed(line(r"barrier\.cluster\.wait"), 0), "race: use of an mbarrier that another thread initialised"),
        (changed(line(r"bar\.arrive"), 0), "it takes 256 threads, and 128 are there"),  # that it is the other's turn
        (changed(line(r"bar\.arrive"), 1), "it takes 256 threads, and 128 are there"),
        (changed(line(r"bar\.warp\.sync"), 1), "race: read of byte"),  # of what the epilogue exchanges
        (changed(line(r"cp\.async\.bulk\.tensor"), 0), "it takes 256 threads, and 128 are there"),
        (changed(r"(mov\.b16\s+%rs\d+, )3;", 0, r"\g<1>1;"), "it takes 256 threads, and 128 are there"),
        (changed(r"(mov\.b16\s+%rs\d+, )3;", 0, r"\g<1>7;"), "a mask of blocks, 0x7, in a cluster of 2"),
        (changed(r"(mov\.b16\s+%rs\d+, )3;", 0, r"\g<1>0;"), "a mask of blocks, 0x0, in a cluster of 2"),
    ],
)  # fmt: skip
def test_faults(monkeypatch, edit, message):
    with pytest.raises((InterpretError, AssertionError), match=re.escape(message)):
        run_edited(monkeypatch, edit)


def test_a_turn_is_only_for_speed(monkeypatch):
    """What the consumers share is guarded by the stages' own barriers."""
    run_edited(monkeypatch, changed(line(r"bar\.sync"), 0))
