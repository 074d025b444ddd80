"""The values of templates of kernels with reductions: frozen dataclasses, as in `records.py`."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.render.records import Constant, Fragment, Function, Kernel, Tensor

# Kernels with statistics of rows


@dataclass(frozen=True)
class RowLoad:
    """A load of one value for each row."""

    tensor: str
    place: str
    registers: str
    guard: str  # the tensor, if it may be left out
    of_row: bool
    first: bool  # whether other loads of the row need it

    @property
    def call(self) -> str:
        return f"load_one({self.tensor}, {self.place}, {self.registers})"


@dataclass(frozen=True)
class Staged:
    """How loaded values are prefetched in shared memory."""

    memory: str
    fetch: str  # methods of the thread's view of the row
    take: str


@dataclass(frozen=True)
class Load:
    """A load of vectors of a row."""

    name: str  # its registers, for all rows that a thread has
    tensor: str
    registers: str
    values: set[str]  # their names in the chain
    of_row: bool  # whether each row has its own values
    one_vector: bool  # whether it is read when it is needed, since all rows share it
    call: str
    together: str = ""  # the load of all rows that a thread has
    memory: str = ""  # along middle axes: the shared memory that may hold what registers do not
    staged: Staged | None = None


@dataclass(frozen=True)
class Run:
    """The run of a block's rows, or of a row, of an array, in shared memory."""

    name: str
    tensor: str
    parts: int  # elements of a column
    whole: bool  # whether it is the sum of all rows of a block
    start: str  # the position of a row in the array
    halves: bool = False  # whether the parts of a row lie one after the other

    def made(self, function: str, rows: str, columns: str) -> str:
        """The call of a function that makes it."""
        which = f"halves(rowwise.{function}, how" if self.halves else f"{function}(how"
        return f"rowwise.{which}, {self.tensor}, {rows}, {columns}{self.each})"

    @property
    def each(self) -> str:
        """The factor of the columns, and the next argument."""
        return f" * {self.parts}, {self.parts}" if self.parts > 1 else ""

    @property
    def of_parts(self) -> str:
        """The parts, as an argument."""
        return f", parts={self.parts}" if self.parts > 1 else ""


@dataclass(frozen=True)
class HeldRegisters:
    """The registers of a value that is held from sweep to sweep."""

    name: str
    register: str
    type: str


@dataclass(frozen=True)
class HeldValues:
    """The values that are held from a sweep on, in one that needs some of them; "_" where it does not."""

    names: list[str]
    registers: list[str]
    first: bool  # whether this sweep computes them
    function: Function
    arguments: list[str]

    @property
    def held(self) -> list[tuple[str, str]]:
        """The names that are needed, and their registers."""
        return [both for both in zip(self.names, self.registers, strict=True) if both[0] != "_"]

    @property
    def results(self) -> str:
        return ", ".join(self.names)


@dataclass(frozen=True)
class Reductions:
    """Statistics that are reduced together."""

    names: list[str]
    ops: str
    running: list[str]  # the registers of the partial results
    type_tuple: str
    statistics: list[tuple[str, str, str, str]]  # of each: name, registers, reduction, type


@dataclass(frozen=True)
class Stage(Reductions):
    """The reductions of each vector."""

    shared: str
    memory: str
    function: Function
    arguments: list[str]
    held: list[HeldValues]
    loads: list[Load]
    at: bool  # whether they name the vector itself: its columns, or what is loaded for it alone
    results: str  # the names of the function's results, of which `values` are reduced
    values: str
    stores: list[str]


@dataclass(frozen=True)
class Maximum:
    """A maximum that sums of exponentials follow in the same sweep."""

    name: str
    seen: str
    type: str
    risen: str


@dataclass(frozen=True)
class Rising:
    """How sums of exponentials follow maxima in the same sweep."""

    maxima: list[Maximum]
    rescaled: str
    held_values: list[str]


@dataclass(frozen=True)
class Sweep(Rising, Reductions):
    """One sweep over a row."""

    shared: str
    memory: str
    stages: list[Stage]
    loads: list[Load]


@dataclass(frozen=True)
class Final:
    """The last sweep, which computes the outputs along rows."""

    function: Function
    results: str
    arguments: list[str]
    held: list[HeldValues]
    loads: list[Load]
    stores: list[str]


@dataclass(frozen=True)
class RowOutputs:
    """The outputs with one value for each row."""

    function: Function
    results: str
    arguments: list[str]
    stores: list[str]


@dataclass(frozen=True)
class RowsKernel(Kernel):
    """The values of every kernel with statistics of rows."""

    row_lines: list[str]
    extents: list[str]
    settings: list[str]
    fragments: list[Fragment]
    row_loads: list[RowLoad]
    loads: list[Load]
    stages: list[Stage]
    sweeps: list[Sweep]
    meeting: str
    row_outputs: RowOutputs | None
    held_values: list[HeldRegisters]
    columns: str
    launch_arguments: str


@dataclass(frozen=True)
class RowKernel(RowsKernel):
    """The values of `row.py.jinja`."""

    functions: list[Function]
    final: Final | None
    rows: str
    launch_extents: list[str]
    shifts: bool
    whole_rows: bool
    rows_registers: str
    rows_stores: list[str]
    runs_read: list[Run]
    runs_written: list[Run]
    step: bool = False  # whether it is a function that a kernel calls, and no kernel


# Kernels that reduce over rows


@dataclass(frozen=True)
class ColumnStatistic:
    """A statistic of columns or of everything: its registers and its tensor of partial results."""

    name: str
    op: str
    type: str
    running: str
    parts: str


@dataclass(frozen=True)
class RowStatistic:
    """A statistic of rows that another kernel has written."""

    name: str
    register: str
    tensor: str
    load: str


@dataclass(frozen=True)
class FirstLaunch:
    """The launch of the kernel that writes the statistics of rows."""

    name: str
    arguments: str
    counter: str


@dataclass(frozen=True)
class Places:
    """The kernel whose threads reduce all rows of a place."""

    settings: list[str]
    fragments: list[Fragment]
    statistics: list[str]
    function: Function
    arguments: list[str]
    results: str
    stores: list[str]


@dataclass(frozen=True)
class Settled:
    """What a block writes if it reduces all rows of a place: the results of its columns, which the kernel `finish`
    computes otherwise, and partial results."""

    finish: str
    results: Places
    store_parts: str
    rescaled: str


@dataclass(frozen=True)
class Walk:
    """The code that a thread runs for each vector of a row."""

    function: Function
    arguments: list[str]
    results: str
    held: list[HeldValues]
    inside: bool
    once: bool
    folds: list[str]
    store_parts: str
    gathered: str  # the running values, and how they are reduced
    rescaled: str  # the argument that says which statistics of columns follow which maxima; "" where none does
    over_row: str
    totals_rescaled: str
    stores: list[str]


@dataclass(frozen=True)
class PartialFold:
    """How partial results of some statistics are reduced, and the lines that make sums that followed maxima, and means, of them."""

    names: str
    text: str
    ends: list[str]


@dataclass(frozen=True)
class FinishKernel:
    """A kernel that reduces the blocks' partial results."""

    name: str
    what: str
    by_columns: bool
    joined: str  # what says which result a thread has, where a result has several columns; "" where there is one result
    coordinates: list[str]
    function: Function
    tensors: list[Tensor]
    static_params: list[Constant]
    each: bool
    numbers: list[tuple[str, str, str]]  # of each: name, type, value
    folds: list[PartialFold]
    parts: str
    settings: list[str]
    fragments: list[Fragment]
    loads: list[str]
    arguments: list[str]
    results: str
    stores: list[str]
    grid: str
    launch_arguments: list[str]


@dataclass(frozen=True)
class WalkKernel(RowsKernel):
    """The values of `column.py.jinja`."""

    functions: list[Function]
    everything: bool
    column_statistics: list[ColumnStatistic]
    column_types: str
    totals: list[ColumnStatistic]
    total_types: str
    parts_tensor: str
    tiles: bool
    first: FirstLaunch | None
    row_statistics: list[RowStatistic]
    staging: list[Load]
    column_loads: list[Load]
    once_loads: list[RowLoad]
    walk: Walk
    finishes: list[FinishKernel]
    places: Places | None
    settled: Settled | None
    meets: bool
    launch_extents: list[str]
    apart: str
    place_lines: list[str]
    shares: bool
    rows: str
    runs_written: list[Run]


@dataclass(frozen=True)
class MiddleKernel(RowsKernel):
    """The values of `middle.py.jinja`."""

    functions: list[Function]
    final: Final | None
    rows: str
    launch_extents: list[str]
    element_lines: list[str]
    held_loads: list[Load]  # of each element of the rows
    once_loads: list[Load]  # of the rows
    column_statistics: list[ColumnStatistic]
    column_ops: str
    finishes: list[FinishKernel]
