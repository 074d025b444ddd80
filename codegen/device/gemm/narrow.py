"""Converts the elements of a factor in int8, float8 or 4 bits to float16 or bfloat16 in registers, exactly, and multiplies sums by
scales of groups along K.

A step of 32 bytes along K has 32 elements of a byte, and two steps of 16-bit elements; of 4 bits twice as many. As `tensorcore` has
fragments of bytes, a lane q of four holds in a word the bytes 4q .. 4q + 3 of each 16, which are 4 or 8 elements next to each
other. A product may take K in any order. So a step's first word of 16-bit elements has the first two of four neighbours and its
second word the next two, for both operands.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, Int64, Numeric, Uint32
from cutlass._mlir.dialects import llvm

from codegen.device.gemm import tensorcore
from codegen.shared import Loading

FLOAT8: dict[type[Numeric], str] = {Float8E4M3FN: "e4m3x2", Float8E5M2: "e5m2x2"}  # from sm_89 on


def widened(word: Uint32, source: type[Numeric], target: type[Numeric], how: Loading) -> list[Uint32]:
    """Four int8 or float8 of a word, or eight numbers of 4 bits, as words of two float16 or bfloat16."""
    if how.bits == 4:
        return _of_four_bits(word, target, how)
    if source is Int8 and target is Float16:  # x + 128, not negative, as the last bits of 1024 + 128 + x
        biased = word ^ Uint32(0x80808080)
        pairs = [tensorcore.pick_bytes(biased, Uint32(0x64646464), places) for places in (0x4140, 0x4342)]
        return [_of_two("sub.f16x2 $0, $1, $2;", pair, Uint32(0x64806480)) for pair in pairs]
    if source is Int8:  # the last seven bits as those of 128 + x, less 128 or, where the first bit is set, 256
        found = []
        for places in (0x4140, 0x4342):
            pair = tensorcore.pick_bytes(word, Uint32(0), places)
            more = tensorcore.replace_bits(pair, 0x007F007F, 0x43004300)
            less = tensorcore.replace_bits(pair, 0x00800080, 0xC300C300)
            found.append(_of_two("fma.rn.bf16x2 $0, $1, $2, $3;", more, Uint32(0x3F803F80), less))
        return found
    halves = [_from_float8(word >> shift, FLOAT8[source]) for shift in (0, 16)]
    if target is Float16:
        return halves
    return _of_floats([_float_of(half >> shift) for half in halves for shift in (0, 16)])


def multiply(
    types: tuple[type[Numeric], type[Numeric]], acc: cute.Tensor, rA: cute.Tensor, rB: cute.Tensor, how: Loading
) -> None:
    """acc (4, I, J) += the products of fragments (4, I * steps) and (2, J): the steps of a that go with one of b."""
    dtype, source = types
    each = dtype.width // how.bits
    for j in range(cute.size(rB, mode=[1])):
        words = [w for half in range(2) for w in widened(rB[half, j], source, dtype, how)]
        for step in range(each):
            for i in range(cute.size(acc, mode=[1])):
                a = [rA[w, i * each + step] for w in range(4)]
                tensorcore.mma(dtype, dtype, acc[None, i, j], a, words[2 * step : 2 * step + 2])


def steps_of_a(address: Int32, eight_rows: int, words: int) -> list[list[Uint32]]:
    """The fragments of a's 16-bit elements, in this order, that are multiplied with a word of b. They come from so many words of a
    lane's row, and of the row that is `eight_rows` bytes further."""
    low, high = (tensorcore.load_words(address + more, words) for more in (0, eight_rows))
    return [[low[w], high[w], low[w + 1], high[w + 1]] for w in range(0, words, 2)]


def _of_four_bits(word: Uint32, target: type[Numeric], how: Loading) -> list[Uint32]:
    """As the last bits of 1024 + x in float16, and of 128 + x in bfloat16."""
    if how.flip:
        word = word ^ Uint32(how.flip * 0x11111111)
    low, high = word & Uint32(0x0F0F0F0F), (word >> 4) & Uint32(0x0F0F0F0F)
    found = []
    for order in (0x5140, 0x7362):
        numbers = tensorcore.pick_bytes(low, high, order)
        for places in (0x4140, 0x4342):
            if target is Float16:
                pair = tensorcore.pick_bytes(numbers, Uint32(0x64646464), places)
                found.append(_of_two("sub.f16x2 $0, $1, $2;", pair, Uint32(0x64006400 + how.offset * 0x10001)))
            else:
                pair = tensorcore.pick_bytes(numbers, Uint32(0x43434343), places)
                one, less = Uint32(0x3F803F80), Uint32(0xC300C300 + how.offset * 0x10001)
                found.append(_of_two("fma.rn.bf16x2 $0, $1, $2, $3;", pair, one, less))
    return found


@dataclass(frozen=True)
class Scales:
    """The scales of a tile's columns in a stage of shared memory: `columns` of each b, one b after the other, in `dtype`. Without parts
    there are none, and nothing is done."""

    dtype: type[Numeric]
    columns: int
    parts: int
    tile_k: int
    group: int  # elements along K, a multiple of tile_k
    threads: int

    @property
    def size(self) -> int:
        """In bytes; tiles begin at multiples of 128."""
        return -(-self.parts * self.columns * self.dtype.width // 8 // 128) * 128

    def load(
        self, tensors: tuple[cute.Tensor, ...], turn: Int32, column: Int32, target: Int32, tidx: Int32, some: Boolean
    ) -> None:
        """Start the copies for the tile of a turn, from tensors (B, N) with whole words in a row; zeros outside, or unless `some`."""
        size = self.dtype.width // 8
        words = self.columns * size // 4
        for part, tensor in enumerate(tensors):
            block = turn * self.tile_k // self.group
            for start in range(0, words, self.threads):
                word = tidx + start
                own = column + word * (4 // size)
                inside = some & (own < tensor.shape[1]) & (block < tensor.shape[0])
                source = tensor.iterator.toint() + (Int64(block) * tensor.stride[0] + Int64(own)) * size
                at = target + part * self.columns * size + word * 4
                _copy(at, source, cutlass.select_(inside, Int32(4), Int32(0)), word < words)

    def columns_of(self, lane: Int32, first: Int32, columns: int, fours: bool) -> list[tuple[int, Int32]]:
        """The part and the column in it of a lane's accumulators: two for each block of 8 columns, of `columns` of a warp in each part.
        The blocks of b's bytes across K have the even and the odd of 16 columns (`fours`)."""
        found = []
        for part in range(self.parts):
            for block in range(columns // 8):
                for e in range(2):
                    own = lane % 4 * 2 + e
                    own = block // 2 * 16 + own * 2 + block % 2 if fours else block * 8 + own
                    found.append((part, first + own))
        return found

    def read(self, base: Int32, columns: list[tuple[int, Int32]]) -> list[Float32]:
        """The scales of some columns of parts."""
        found, size = [], self.dtype.width // 8
        for part, column in columns:
            at = base + (part * self.columns + column) * size
            pointer = cute.make_ptr(self.dtype, at, cute.AddressSpace.smem, assumed_align=size)
            found.append(pointer.load().to(Float32))
        return found

    def sums(self, acc: cute.Tensor) -> cute.Tensor:
        """The sums of a tile along K: the accumulators themselves without scales."""
        if self.parts == 0:
            return acc
        made = cute.make_rmem_tensor(acc.layout, Float32)
        made.fill(0)
        return made

    def add(self, acc: cute.Tensor, sums: cute.Tensor, scales: list[Float32]) -> None:
        """acc (4, I, J) += sums * the scales of the columns, two for each J; the sums become 0."""
        if self.parts == 0:
            return
        for j in range(cute.size(acc, mode=[2])):
            for i in range(cute.size(acc, mode=[1])):
                for e in range(4):
                    acc[e, i, j] = acc[e, i, j] + sums[e, i, j] * scales[2 * j + e % 2]
        sums.fill(0)


def scales_of(tensors: tuple[cute.Tensor, ...], columns: int, tile_k: int, threads: int, how: Loading) -> Scales:
    """The scales in these tensors, of which there may be none."""
    return Scales(tensors[0].element_type if tensors else Float32, columns, len(tensors), tile_k, how.group, threads)


@cute.jit
def _copy(target: cutlass.Int32, source: cutlass.Int64, size: cutlass.Int32, there: cutlass.Boolean) -> None:
    if there:
        tensorcore.copy_async(target, source, 4, size)


def _of_floats(values: list[Float32]) -> list[Uint32]:
    """Four float32 that bfloat16 has, as two words: their upper halves."""
    bits = [v.bitcast(Uint32) for v in values]
    return [tensorcore.pick_bytes(bits[w], bits[w + 1], 0x7632) for w in (0, 2)]


def _of_two(text: str, *words: Uint32) -> Uint32:
    """An instruction for two elements in a word."""
    constraints = ",".join(["=r", *("r" for _ in words)])
    return Uint32(llvm.inline_asm(Uint32.mlir_type, [w.ir_value() for w in words], text, constraints))


def _from_float8(word: Uint32, name: str) -> Uint32:
    """The two float8 in a word's lower half, as two float16."""
    text = f"{{.reg .b16 pair; cvt.u16.u32 pair, $1; cvt.rn.f16x2.{name} $0, pair;}}"
    return Uint32(llvm.inline_asm(Uint32.mlir_type, [word.ir_value()], text, "=r,r"))


def _float_of(word: Uint32) -> Float32:
    """The float16 in a word's lower half."""
    text = "{.reg .b16 one; cvt.u16.u32 one, $1; cvt.f32.f16 $0, one;}"
    return Float32(llvm.inline_asm(Float32.mlir_type, [word.ir_value()], text, "=f,r"))
