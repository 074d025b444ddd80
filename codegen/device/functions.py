"""Device functions that every generated kernel shares, on per-thread vectors (`cute.TensorSSA`).

They are traced into the kernel that calls them. Arguments named `a`, `b`, `x` are vectors of one type. Where a row of the op
table allows a constant with a vector, they also take a Python number. Behaviour at NaN, infinities and signed zeros is jnp's.
Error bounds are in ulp of the exact result, float32, measured over every float32 input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import BFloat16, Boolean, Float32, Float64, Int16, Int32, Int64, Numeric, Uint8, Uint32, Uint64
from cutlass._mlir import ir
from cutlass._mlir.dialects import arith, llvm
from cutlass._mlir.dialects import vector as mlir_vector

from codegen.device.math.opaque import orders, unmerged, unseen

Vector: TypeAlias = Any  # cute.TensorSSA
Operand: TypeAlias = Any  # a Vector, or a Python number used with one


def compute_type(*tensors: cute.Tensor | None) -> type[Numeric]:
    """The type in which floats are computed: float64 where an operand is float64, else float32."""
    return Float64 if any(t is not None and t.element_type is Float64 for t in tensors) else Float32


def narrow(*arrays: cute.Tensor | None) -> bool:
    """Whether all present arrays hold floats narrower than float32. The arrays are outputs, where the error of approximations is
    then less than half an ulp, or the arguments of a sum's terms."""
    return all(t.element_type.is_float and t.element_type.width < 32 for t in arrays if t is not None)


def as_vectors(*operands: Operand) -> list[Vector]:
    """The operands, with Python numbers converted to vectors like the others."""
    like = next(o for o in operands if isinstance(o, cute.TensorSSA) and o.dtype is not Boolean)
    return [o if isinstance(o, cute.TensorSSA) else cute.full_like(like, o) for o in operands]


def copy_whole_or_part(src: cute.Tensor, dst: cute.Tensor, valid: cutlass.Int64) -> None:
    """Copy a vector between memory and registers: one wide access, or its first `valid` elements at an array's end."""
    _copy_whole_or_part(src, dst, valid)


@cute.jit
def _copy_whole_or_part(src: cute.Tensor, dst: cute.Tensor, valid: cutlass.Int64) -> None:
    if valid >= cute.size(src):
        cute.autovec_copy(src, dst)
    else:
        left = valid
        if cutlass.const_expr(cute.size(src) & (cute.size(src) - 1) != 0):
            # Elements are copied together: from one element's presence the compiler would infer others', and read past the last
            left = unseen(Int32(valid))
        for i in cutlass.range(cute.size(src), unroll_full=True):
            if i < left:
                dst[i] = src[i]


def next_coordinates(at: tuple[Int32, ...], extents: tuple[Int32, ...]) -> tuple[Int32, ...]:
    """The coordinates of the next element, in memory order. `extents` are the sizes of the last coordinates; a coordinate without
    one never wraps."""
    found, carry = list(at), Int32(1)
    for i in reversed(range(len(found))):
        found[i] += carry
        place = i - (len(found) - len(extents))
        if place < 0:
            break
        wraps = found[i] == extents[place]
        found[i] = cutlass.select_(wraps, Int32(0), found[i])
        carry = Int32(wraps)
    return tuple(found)


@cute.jit
def load_anywhere(src: cute.Tensor, offset: cutlass.Int64, dst: cute.Tensor) -> None:
    """Copy the elements from `offset` on of a compact tensor to registers, at any alignment: loads the two aligned vectors that
    contain them, and shifts. Where the tensor's last elements fill no vector, it loads them one by one."""
    vec = cute.size(dst)
    if cutlass.const_expr(not shiftable(dst)):
        load_elements(src, offset, dst)
    else:
        skip, whole = misalignment(offset, vec), whole_vectors(src, vec)
        both = cute.make_rmem_tensor((vec, 2), src.element_type)
        both.fill(0)
        for k in cutlass.range_constexpr(2):
            if offset - skip + k * vec < whole:
                cute.autovec_copy(vector(src, offset - skip + k * vec, vec), both[None, k])
        shift_into(both, skip, dst)
        if offset + vec > whole:
            load_elements(src, offset, dst)


def shiftable(vector: cute.Tensor) -> bool:
    """Whether `shift_into` can fill these registers: a vector of whole words, its size a power of two."""
    return _in_words(vector) and cute.size(vector) & (cute.size(vector) - 1) == 0


def shift_into(both: cute.Tensor, skip: cutlass.Int32, dst: cute.Tensor) -> None:
    """dst = a vector's worth of the elements in two adjacent vectors, from element `skip` of the first on."""
    words = cute.recast_tensor(both, Uint32)
    shift_words([words[i] for i in range(cute.size(words))], skip, cute.size(dst) - 1, dst)


@cute.jit
def load_elements(src: cute.Tensor, offset: cutlass.Int64, dst: cute.Tensor) -> None:
    """Copy the elements from `offset` on of a compact tensor to registers one by one; zeros outside the tensor."""
    extent = extent_of(src)
    # Stored at once: registers that are filled in pieces would serialise the loads of other vectors
    held = cute.make_rmem_tensor((cute.size(dst),), src.element_type)
    held.fill(0)
    for i in cutlass.range(cute.size(dst), unroll_full=True):
        if (offset + i >= 0) & (offset + i < extent):
            held[i] = (src.iterator + offset + i).load()
    cute.autovec_copy(held, dst)


def whole_vectors(tensor: cute.Tensor, vec: int) -> cutlass.Int64:
    """The number of a compact tensor's elements in complete aligned vectors: all except the last few."""
    extent = extent_of(tensor)
    return extent - extent % vec


def vector(tensor: cute.Tensor, place: cutlass.Int64, vec: int) -> cute.Tensor:
    """An aligned vector in memory."""
    return cute.make_tensor(tensor.iterator + cute.assume(place, divby=vec), cute.make_layout((vec,)))


@cute.jit
def store_anywhere(
    src: cute.Tensor, dst: cute.Tensor, offset: cutlass.Int64, before: cutlass.Int32, after: cutlass.Int32,
    valid: cutlass.Int64, group: cutlass.Constexpr[int] = 32, stride: cutlass.Constexpr[int] = 1,
) -> cutlass.Uint32:  # fmt: skip
    """Store a lane's vector to a compact tensor from `offset` on, at any alignment: each lane stores the aligned vector that begins
    with the end of the previous lane's vector. All lanes of a warp take part; `group` lanes, `stride` apart, have consecutive vectors.
    `before` and `after` are the numbers of the row's elements before this vector and from its start on, and `valid` of the array's
    from its start on. Returns a bit mask of the elements left to store one by one, at the ends of warps and rows."""
    vec = cute.size(src)
    rest = first_bits(valid, vec)
    if cutlass.const_expr(_in_words(src)):
        lane = cute.arch.lane_idx() // stride % group
        skip = misalignment(offset, vec)
        base = cute.assume(offset - skip, divby=vec)
        own = cute.recast_tensor(src, Uint32)
        words = [own[i] for i in range(cute.size(own))]
        previous = [cute.arch.shuffle_sync_up(word, stride) for word in words]
        shifted = cute.make_rmem_tensor((vec,), src.element_type)
        shift_words([*previous, *words], vec - skip, vec, shifted)
        joined = (lane > 0) & (before >= vec)
        stores = (valid > 0) & (before >= 0) & (after >= vec - skip) & ((skip == 0) | joined)
        if stores:
            cute.autovec_copy(shifted, vector(dst, base, vec))
        head = first_bits(vec - skip, vec)  # its elements in this lane's aligned vector; the next lane stores the rest
        taken = cutlass.select_(stores, head, Uint32(0))
        next_stores = (lane < group - 1) & (before >= 0) & (after >= 2 * vec - skip)
        taken = taken | cutlass.select_(next_stores, ~head, Uint32(0))
        rest = rest & ~taken
    return rest


def first_bits(count: cutlass.Int64 | cutlass.Int32, width: int) -> cutlass.Uint32:
    """The lowest `count` bits set, of at most `width`."""
    if not isinstance(count, Int32):
        count = Int32(cutlass.select_(count < width, count, cutlass.Int64(width)))
        count = cutlass.select_(count < 0, Int32(0), count)
    return (Uint32(1) << Uint32(count)) - Uint32(1)


def bit(bits: cutlass.Uint32, place: cutlass.Int32) -> cutlass.Boolean:
    """Whether the bit at this place is set."""
    return ((bits >> Uint32(place)) & Uint32(1)) != 0


def _in_words(vector: cute.Tensor) -> bool:
    return cute.size(vector) * vector.element_type.width % 32 == 0


def misalignment(offset: cutlass.Int64, vec: int) -> cutlass.Int32:
    """The distance in elements from a multiple of `vec`, a power of two, to a place that is not negative."""
    return Int32(offset) & (vec - 1)


def extent_of(tensor: cute.Tensor) -> cutlass.Int64:
    """The number of a tensor's elements."""
    extent = cutlass.Int64(1)
    for length in cute.flatten(tensor.shape) if cute.rank(tensor) else ():
        extent = extent * length
    return extent


def shift_words(words: list[cutlass.Uint32], skip: cutlass.Int32, most: int, dst: cute.Tensor) -> None:
    """dst = the elements in `words` from element `skip` on, where `skip` is at most `most`: whole words by selection, the rest by a
    funnel shift."""
    target = cute.recast_tensor(dst, Uint32)
    width, count = dst.element_type.width, cute.size(target)
    bits = skip * width
    words = [*words, words[-1]]  # elements after the last word are never used
    step = 1 << (max(most * width // 32, 1).bit_length() - 1)
    while step:
        far = (bits & (32 * step)) != 0
        last = len(words) - 1
        words = [cutlass.select_(far, words[min(i + step, last)], words[i]) for i in range(min(last + 1, count + step))]
        step //= 2
    for i in range(count):
        if width < 32:
            pair = Uint64(words[i]) | (Uint64(words[i + 1]) << 32)
            target[i] = Uint32(pair >> Uint64(bits & 31))
        else:
            target[i] = words[i]


def as_bytes(tensor: cute.Tensor | None) -> cute.Tensor | None:
    """A tensor of bools as their bytes in memory, 0 or 1."""
    if tensor is None:
        return None
    return cute.make_tensor(cute.recast_ptr(tensor.iterator, dtype=Uint8), tensor.layout)


def place(own: cutlass.Int32, first: cute.Tensor | None) -> cutlass.Int32:
    """The position in the whole array of a position in a shard that begins at `first` (1,), or at 0 without."""
    return own if first is None else own + first[0]


def count_up(dst: cute.Tensor, first: cutlass.Int32) -> None:
    """Fill a vector with first, first + 1, ..."""
    dst.store(counting(cute.size(dst), first))


def counting(vec: int, first: cutlass.Int32) -> Vector:
    """first, first + 1, ..."""
    steps = ir.DenseElementsAttr.get(np.arange(vec, dtype=np.int32), type=ir.VectorType.get([vec], Int32.mlir_type))
    return cute.full((vec,), first, Int32) + cute.TensorSSA(arith.constant(steps.type, steps), (vec,), Int32)


def clip_index(index: Numeric, extent: cutlass.Int32) -> cutlass.Int32:
    """An index clamped to 0 .. `extent` - 1, as jnp.take(mode="clip"); a negative index becomes 0."""
    index = cutlass.Int64(index)
    index = cutlass.select_(index < 0, cutlass.Int64(0), index)
    last = cutlass.Int64(extent) - 1
    return cutlass.Int32(cutlass.select_(index > last, last, index))


# Arithmetic


def add(a: Operand, b: Operand) -> Vector:
    """a + b, never fused with a product that is an operand."""
    return _rounded("add", *as_vectors(a, b))


def subtract(a: Operand, b: Operand) -> Vector:
    """a - b, never fused with a product that is an operand."""
    a, b = as_vectors(a, b)
    return _rounded("add", a, -b)


def multiply(a: Operand, b: Operand) -> Vector:
    """a * b, never fused with a sum that takes it."""
    return _rounded("mul", *as_vectors(a, b))


def settled(x: Vector) -> Vector:
    """x, never fused with a sum that takes it. Where its last operation is a product, that is rounded separately; else x + -0.0 is."""
    made = x.ir_value().owner
    if getattr(made, "name", "") == "arith.mulf":
        return _rounded("mul", *(cute.TensorSSA(factor, x.shape, x.dtype) for factor in made.operands))
    if getattr(made, "name", "") == "math.fma":
        return x
    return _rounded("add", x, cute.full_like(x, negative_zero(x.dtype)))


def _rounded(name: str, a: Vector, b: Vector) -> Vector:
    """A float operation by an instruction that compilers do not fuse: `mul.rn` or `add.rn` in PTX."""
    intrinsic = f"llvm.nvvm.{name}.rn.{'d' if a.dtype is Float64 else 'f'}"

    def apply(p: Numeric, q: Numeric) -> Numeric:
        return a.dtype(llvm.call_intrinsic(a.dtype.mlir_type, intrinsic, [p.ir_value(), q.ir_value()], [], []))

    return each(apply, a, b)


def fma(a: Vector, b: Operand, c: Operand) -> Vector:
    """a * b + c, rounded once."""
    return cute.math.fma(*as_vectors(a, b, c))


def polynomial(x: Vector, coefficients: Sequence[float]) -> Vector:
    """A polynomial of at least degree 1, its coefficients given from that of the highest power on."""
    result: Operand = coefficients[0]
    for coefficient in coefficients[1:]:
        result = fma(x, result, coefficient)
    return result


def rcp(x: Vector) -> Vector:
    """The hardware's 1 / x, within 1 ulp; denormal numbers flushed."""
    return cute.math.rcp(x, approx=True, ftz=True)


def sqrt(x: Vector, approx: bool) -> Vector:
    """sqrt(x), correctly rounded; approximately within 2**-22 of relative error, denormal numbers included, which squares of
    normal numbers may be."""
    if approx and x.dtype is Float32:
        return each(lambda v: cute.math.sqrt(v, approx=True), x)
    return cute.math.sqrt(x)


def rsqrt(x: Vector, approx: bool) -> Vector:
    """1 / sqrt(x) within 1 ulp; approximately within 2**-22 of relative error, denormal numbers included."""
    if x.dtype is not Float32:
        return cute.full_like(x, 1.0) / cute.math.sqrt(x)
    near = each(lambda v: cute.math.rsqrt(v, approx=True), x)
    if approx:
        return near
    rest = fma(-(x * near), near, 1.0)  # NaN for zeros, infinities and negative numbers, for which `near` is exact
    return where(rest == rest, fma(near * 0.5, rest, near), near)


def remainder(a: Operand, b: Operand) -> Vector:
    """The remainder of a / b rounded toward zero: its sign is a's."""
    a, b = as_vectors(a, b)
    if a.dtype.is_float:
        return cute.math.rem(a, b)
    zero = b == 0
    safe = cute.where(zero, cute.full_like(b, 1), b)
    magnitude = cute.math.abs(a) % cute.math.abs(safe)
    # The smallest integer has no absolute value, but is already negative
    negative = cute.where(magnitude > 0, -magnitude, magnitude)
    result = cute.where(a < 0, negative, magnitude)
    return cute.where(zero, a, result)


# Order


def maximum(a: Operand, b: Operand) -> Vector:
    """The larger of two; NaN where either is."""
    a, b = as_vectors(a, b)
    if a.dtype is Float32:  # one instruction
        return each(lambda p, q: cute.arch.fmax(p, q, nan=True), a, b)
    return _unmerged(cute.math.max(a, b, propagate_nan=True))


def minimum(a: Operand, b: Operand) -> Vector:
    """The smaller of two; NaN where either is."""
    a, b = as_vectors(a, b)
    if a.dtype is Float32:
        return each(lambda p, q: cute.arch.fmin(p, q, nan=True), a, b)
    return _unmerged(cute.math.min(a, b, propagate_nan=True))


def _unmerged(extremes: Vector) -> Vector:
    return each(unmerged, extremes) if extremes.dtype is Int32 else extremes


def sign(x: Vector) -> Vector:
    """-1, 0 or 1; zeros and NaN are unchanged."""
    one = cute.full_like(x, 1)
    return cute.where(x > 0, one, cute.where(x < 0, -one, x))


def where(condition: Vector, a: Operand, b: Operand) -> Vector:
    """a where the condition holds, else b."""
    if not isinstance(a, cute.TensorSSA) and not isinstance(b, cute.TensorSSA):
        dtype = Boolean if isinstance(a, bool) else Int32 if isinstance(a, int) else Float32
        a = cute.full_like(condition, a, dtype)
        b = cute.full_like(condition, b, dtype)
    elif not isinstance(a, cute.TensorSSA):
        a = cute.full_like(b, a)
    elif not isinstance(b, cute.TensorSSA):
        b = cute.full_like(a, b)
    chosen = cute.where(condition, a, b)
    return _unmerged(chosen) if orders(condition.ir_value(), a.ir_value(), b.ir_value()) else chosen


def equal_index(index: Vector, other: Operand) -> Vector:
    """index == other, where `index` may be `counting`: then each element is compared with a constant, after one subtraction for all
    that have one value of `other`."""
    index, other = as_vectors(index, other)
    made = index.ir_value().owner
    if getattr(made, "name", "") != "arith.addi":
        return index == other
    first, steps = (cute.TensorSSA(term, index.shape, index.dtype) for term in made.operands)
    return steps == other - first


def isnan(x: Vector) -> Vector:
    return x != x


def isinf(x: Vector) -> Vector:
    return cute.math.abs(x) == float("inf")


def isfinite(x: Vector) -> Vector:
    return cute.math.abs(x) < float("inf")


# Conversions


def cast(x: Vector, dtype: type[Numeric]) -> Vector:
    """Converts to another type: floats are rounded to nearest even, float8 saturates; to integers, rounds toward zero, saturates,
    and NaN becomes 0."""
    if x.dtype is dtype:
        return x
    if x.dtype is BFloat16 and dtype is Float32 and cute.size(x.shape) % 2 == 0:
        return _widened(x)
    if dtype.is_float and dtype.width < 16 and not x.dtype.is_float:
        # No instruction converts integers, which the compiler ignores where it merges two conversions
        x = minimum(x.to(Float32), 2.0**20)
    if x.dtype is Boolean or dtype.is_float:
        words = dtype.is_float and dtype.width == 8 and cute.size(x.shape) % 4 == 0
        return _words_of_pairs(x.to(dtype)) if words else x.to(dtype)
    low, high = limits(dtype)
    if not x.dtype.is_float:
        if dtype.width < x.dtype.width or limits(x.dtype)[0] < low or limits(x.dtype)[1] > high:
            bottom, top = max(low, limits(x.dtype)[0]), min(high, limits(x.dtype)[1])
            x = minimum(maximum(x, bottom), top)
        return x.to(dtype)
    x = where(isnan(x), 0.0, x)
    if dtype.width < 32:  # exact in float32: clamp, then convert through int32
        return minimum(maximum(x, float(low)), float(high)).to(Int32).to(dtype)
    # PTX saturates conversions to 32 and 64 bits; values that saturate give exactly the limit
    return maximum(x, float(low)).to(dtype)


def floats(x: Vector | cute.Tensor, dtype: type[Numeric] = Float32) -> Vector:
    """A vector, or registers' values, in the type that floats are computed in."""
    return cast(x.load() if isinstance(x, cute.Tensor) else x, dtype)


def full(count: int, value: Operand, dtype: type[Numeric] = Float32) -> Vector:
    """A vector that holds one value."""
    return cute.full((count,), value, dtype)


# Floats near it are one apart: adding it to a number rounds that to a whole number, ties to even
UNITS = 1.5 * 2.0**23


def round_to(x: Vector, dtype: type[Numeric]) -> Vector:
    """round(x) in an integer type, saturating, NaN to 0. For at most 16 bits it uses additions: the instructions that round and
    convert take four times as long as others, and each element would need both."""
    if x.dtype is not Float32 or dtype.width > 16:
        return cast(cute.math.roundeven(x), dtype)
    low, high = limits(dtype)
    x = minimum(maximum(where(isnan(x), 0.0, x), float(low)), float(high))
    units = cute.full((1,), UNITS, Float32).bitcast(Int32)[0]
    # The subtraction is left out, since it does not change the low bits. Where the low bits of a register are stored that a float
    # instruction wrote, ptxas converts the float. A move between them costs nothing and prevents that
    return (each(unseen, (x + UNITS).bitcast(Int32)) - units).to(dtype)


def _words_of_pairs(x: Vector) -> Vector:
    """The same float8 numbers. ptxas merges the conversions of a word's two pairs, wrongly where both are of the same values. A
    permutation between them prevents that, since ptxas does not see what it does."""
    pairs, words = x.bitcast(Int16).to(Int32), cute.make_rmem_tensor((cute.size(x.shape) // 4,), Int32)
    for i in range(cute.size(words)):
        both = [pairs[k].ir_value() for k in (2 * i, 2 * i + 1)]
        words[i] = Int32(llvm.inline_asm(Int32.mlir_type, both, "prmt.b32 $0, $1, $2, 0x5410;", "=r,r,r"))
    return words.load().bitcast(x.dtype).reshape(x.shape)


def _widened(x: Vector) -> Vector:
    """An even number of bfloat16 to float32: each is the upper half of a float32. It takes one instruction per element, where the
    compiler's conversion takes two for every second element, which is already an upper half."""
    words, count = x.bitcast(Int32), cute.size(x.shape)
    order = [half * (count // 2) + i for i in range(count // 2) for half in (0, 1)]
    both = mlir_vector.shuffle((words * 0x10000).ir_value(), (words & -0x10000).ir_value(), order)
    return cute.TensorSSA(both, x.shape, Int32).bitcast(Float32)


def negative_zero(dtype: type[Numeric]) -> Numeric:
    """-0.0, from its bits: the DSL makes one constant of the equal Python numbers -0.0 and 0.0, the first one it sees."""
    integer = {16: Int16, 32: Int32, 64: Int64}[dtype.width]
    return cute.full((1,), -(2 ** (dtype.width - 1)), integer).bitcast(dtype)[0]


def limits(dtype: type[Numeric]) -> tuple[int, int]:
    """The smallest and the largest value of an integer type."""
    if dtype.signed:
        return -(2 ** (dtype.width - 1)), 2 ** (dtype.width - 1) - 1
    return 0, 2**dtype.width - 1


def each(function: Callable[..., Any], *vectors: Vector) -> Vector:
    """A scalar function, element by element."""
    # A vector keeps the layout that its first element is found by. If that was in a loop, it could not be read after the loop
    vectors = tuple(cute.TensorSSA(v.ir_value(), v.shape, v.dtype) for v in vectors)
    result = cute.make_rmem_tensor(vectors[0].shape, vectors[0].dtype)
    for i in range(cute.size(vectors[0].shape)):
        result[i] = function(*(v[i] for v in vectors))
    return result.load()
