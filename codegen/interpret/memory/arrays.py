"""Checked global memory: the arrays of a launch.

Every access is checked for bounds, alignment and initialisation before it happens. The writer of each byte is recorded.
So two threads that write different values to one place are found, and reads of another thread's writes, which no
barrier within a launch orders.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

ALIGNMENT = 256  # bytes, of every array: the alignment of XLA's buffers
GUARD = 64  # bytes after an array that no access may reach


SETTLED = -2  # the owner of bytes that an earlier launch wrote


class Fault(Exception):
    """A check that failed; the machine adds the thread, the instruction and its place."""

    def __init__(self, lane: int, message: str):
        super().__init__(message)
        self.lane, self.message = lane, message


@dataclass
class Array:
    """An operand in global memory: its bytes, which of them are initialised, and who accessed them."""

    name: str
    data: np.ndarray  # uint8, `size` bytes and a guard, at an aligned address
    size: int
    itemsize: int
    writable: bool
    initialised: np.ndarray | None = None  # None: all of it
    owner: np.ndarray | None = None  # the thread that wrote each byte, -1 for none
    read: np.ndarray | None = None
    requests: dict[str, list[int]] = field(default_factory=lambda: {"ld": [0, 0, 0], "st": [0, 0, 0]})
    # each: bytes, warp requests, 32-byte sectors they touched

    @property
    def address(self) -> int:
        return self.data.ctypes.data

    def begin_as(self, values: np.ndarray) -> None:
        """An output that has an input's buffer begins with its elements."""
        self.data[: self.size] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.initialised = np.ones(self.size, bool)

    def settle(self) -> None:
        """The end of a launch: all threads of the next launch may read what it wrote."""
        if self.owner is not None:
            self.owner[self.owner >= 0] = SETTLED


def make_array(name: str, values: np.ndarray, output: bool) -> Array:
    """An operand's array: a copy at an aligned address. An output starts poisoned and uninitialised."""
    size = values.nbytes
    whole = -(-size // GUARD) * GUARD + GUARD
    store = np.empty(whole + ALIGNMENT, np.uint8)
    start = -store.ctypes.data % ALIGNMENT
    data = store[start : start + whole]
    data[size:] = 0xAB
    data[:size] = 0xCD if output else np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    array = Array(name, data, size, values.dtype.itemsize, output, read=np.zeros(size, bool))
    if output:
        array.initialised, array.owner = np.zeros(size, bool), np.full(size, -1, np.int64)
    return array


class Global:
    """The arrays of a launch, found by address."""

    def __init__(self, arrays: list[Array]):
        self.arrays = sorted(arrays, key=lambda a: a.address)
        self.starts = np.array([a.address for a in self.arrays], np.int64)

    def find(
        self, addresses: np.ndarray, width: int, lanes: np.ndarray, verb: str, alignment: int = 0
    ) -> list[tuple[Array, np.ndarray | None]]:
        """The arrays that contain addresses, each with the indices of its addresses (None: all)."""
        alignment = alignment or width
        first = self.owner_of(int(addresses[0]))
        if first is not None:
            offset = addresses - first.address
            good = (offset >= 0) & (offset + width <= first.size)
            if good.all():
                self.aligned(first, offset, alignment, lanes, verb)
                return [(first, None)]
        found: list[tuple[Array, np.ndarray | None]] = []
        left = np.ones(addresses.shape, bool)
        for array in self.arrays:
            offset = addresses - array.address
            inside = (offset >= 0) & (offset + width <= array.size)
            if inside.any():
                self.aligned(array, offset[inside], alignment, lanes[inside], verb)
                found.append((array, inside))
                left &= ~inside
        if left.any():
            place = int(np.flatnonzero(left)[0])
            raise Fault(int(lanes[place]), self.out_of_bounds(int(addresses[place]), width, verb))
        return found

    def owner_of(self, address: int) -> Array | None:
        place = int(np.searchsorted(self.starts, address, "right")) - 1
        return self.arrays[place] if place >= 0 else None

    def aligned(self, array: Array, offset: np.ndarray, width: int, lanes: np.ndarray, verb: str) -> None:
        wrong = offset % width != 0
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            at = int(offset[place])
            raise Fault(int(lanes[place]), f"misaligned {verb} of {width} bytes at byte {at} of {array.name!r}")

    def out_of_bounds(self, address: int, width: int, verb: str) -> str:
        near = min(
            self.arrays, key=lambda a: max(a.address - address, address + width - a.address - a.size), default=None
        )
        if near is None:
            return f"{verb} of {width} bytes at {address:#x}, where no array is"
        at = address - near.address
        element = f"element {at // near.itemsize} of {near.size // near.itemsize}" if at >= 0 else "before its start"
        return f"{verb} of {width} bytes out of bounds of {near.name!r}: byte {at} of {near.size} ({element})"

    def load(
        self, addresses: np.ndarray, words: int, wordsize: int, lanes: np.ndarray, thread: np.ndarray, asked: int, strong: bool = False
    ) -> list[np.ndarray]:  # fmt: skip
        """`words` consecutive words for each address, as unsigned arrays, of an access that is `asked` words wide. A `strong` access
        may read what another thread writes at the same time."""
        width = words * wordsize
        results = None
        for array, where in self.find(addresses, width, lanes, "load", asked * wordsize):
            offset = (addresses if where is None else addresses[where]) - array.address
            own = lanes if where is None else lanes[where]
            self.check_read(array, offset, width, own, None if strong else thread if where is None else thread[where])
            index = offset // wordsize
            view = array.data.view(f"u{wordsize}")
            values = [view[index + k] for k in range(words)]
            count(array, "ld", addresses if where is None else addresses[where], width, own)
            assert array.read is not None
            _spread(array.read, offset, width, True)
            if where is None:
                return values
            results = results or [np.zeros(addresses.shape, f"u{wordsize}") for _ in range(words)]
            for total, part in zip(results, values, strict=True):
                total[where] = part
        assert results is not None
        return results

    def check_read(
        self, array: Array, offset: np.ndarray, width: int, lanes: np.ndarray, thread: np.ndarray | None
    ) -> None:
        """Raises `Fault` for bytes that nothing has written, or that another thread wrote."""
        if array.initialised is None:
            return
        for k in range(0, width, min(array.itemsize, width)):
            missing = ~array.initialised[offset + k]
            if missing.any():
                place = int(np.flatnonzero(missing)[0])
                at = (int(offset[place]) + k) // array.itemsize
                raise Fault(int(lanes[place]), f"read of element {at} of {array.name!r}, which nothing has written")
            if thread is None:
                continue
            assert array.owner is not None
            owner = array.owner[offset + k]
            foreign = (owner != thread) & (owner != SETTLED)
            if foreign.any():
                place = int(np.flatnonzero(foreign)[0])
                at = (int(offset[place]) + k) // array.itemsize
                raise Fault(
                    int(lanes[place]), f"race: read of element {at} of {array.name!r}, which another thread wrote"
                )

    def store(
        self, addresses: np.ndarray, values: list[np.ndarray], wordsize: int, lanes: np.ndarray, thread: np.ndarray, strong: bool = False
    ) -> None:  # fmt: skip
        """Store consecutive words at each address. A `strong` access may overwrite what another thread writes."""
        width = len(values) * wordsize
        for array, where in self.find(addresses, width, lanes, "store"):
            pick = slice(None) if where is None else where
            offset, own, writer = addresses[pick] - array.address, lanes[pick], thread[pick]
            if not array.writable:
                raise Fault(int(own[0]), f"store into the input {array.name!r}")
            assert array.owner is not None and array.initialised is not None
            view, index = array.data.view(f"u{wordsize}"), offset // wordsize
            parts = [np.broadcast_to(v, addresses.shape)[pick] for v in values]
            if not strong:
                self.check_write(array, view, offset, index, parts, wordsize, own, writer)
            for k, part in enumerate(parts):
                view[index + k] = part
            _spread(array.owner, offset, width, writer)
            _spread(array.initialised, offset, width, True)
            for k, part in enumerate(parts):  # within one instruction the last of two threads wins
                bad = view[index + k] != part
                if bad.any():
                    place = int(np.flatnonzero(bad)[0])
                    self.differing(array, int(offset[place]) + k * wordsize, int(own[place]))
            count(array, "st", addresses[pick], width, own)

    def check_write(
        self,
        array: Array,
        view: np.ndarray,
        offset: np.ndarray,
        index: np.ndarray,
        parts: list[np.ndarray],
        wordsize: int,
        lanes: np.ndarray,
        writer: np.ndarray,
    ) -> None:
        """Raises `Fault` where another thread wrote other values."""
        assert array.owner is not None
        for k, part in enumerate(parts):
            owner = array.owner[offset + k * wordsize]
            bad = (owner >= 0) & (owner != writer) & (view[index + k] != part)
            if bad.any():
                place = int(np.flatnonzero(bad)[0])
                self.differing(array, int(offset[place]) + k * wordsize, int(lanes[place]))

    def differing(self, array: Array, at: int, lane: int) -> None:
        raise Fault(lane, f"race: two threads write element {at // array.itemsize} of {array.name!r} differently")

    def cell(self, address: np.ndarray, size: int, lane: np.ndarray, alignment: int = 0) -> np.ndarray:
        """The bytes that an atomic, or a bulk copy that adds, of one lane works on."""
        ((array, _),) = self.find(address, size, lane, "atomic", alignment)
        if not array.writable:
            raise Fault(int(lane[0]), f"atomic on the input {array.name!r}")
        assert array.initialised is not None
        offset = int(address[0] - array.address)
        if not array.initialised[offset : offset + size].all():
            what = f"element {offset // array.itemsize} of {array.name!r}"
            raise Fault(int(lane[0]), f"atomic on {what}, which nothing has written")
        return array.data[offset : offset + size]

    def unwritten(self) -> tuple[Array, int, int] | None:
        """An output with unwritten elements: the array, the first of them, and their number."""
        for array in self.arrays:
            if array.writable and array.initialised is not None and not array.initialised.all():
                missing = np.unique(np.flatnonzero(~array.initialised) // array.itemsize)
                return array, int(missing[0]), len(missing)
        return None


def _spread(target: np.ndarray, offset: np.ndarray, width: int, value: np.ndarray | bool | int) -> None:
    """target[offset + 0 .. width - 1] = value."""
    if width & (width - 1):  # part of a wider access
        for k in range(width):
            target[offset + k] = value
        return
    rows = target[: len(target) // width * width].reshape(-1, width)
    rows[offset // width] = value if np.isscalar(value) else np.asarray(value)[:, None]


def count(array: Array, verb: str, addresses: np.ndarray, width: int, lanes: np.ndarray) -> None:
    """Count a warp's request and the 32-byte sectors that it touches."""
    tally = array.requests[verb]
    tally[0] += len(addresses) * width
    warps = lanes >> 5
    key = (warps << 40) + (addresses >> 5) - (array.address >> 5)
    order = np.sort(key) if len(key) > 1 and np.any(key[1:] < key[:-1]) else key
    tally[2] += 1 + int(np.count_nonzero(order[1:] != order[:-1]))
    tally[1] += 1 + int(np.count_nonzero(np.diff(warps)))
