"""The values of templates: frozen dataclasses, whose fields are lines and names of generated code. No decision is made
here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Tensor:
    """A tensor of a kernel."""

    name: str
    hint: str
    comment: str


@dataclass(frozen=True)
class Constant:
    """A parameter that is compiled in."""

    name: str
    kind: str


@dataclass(frozen=True)
class Fragment:
    """Registers of a thread: their name, and the expression that makes them."""

    name: str
    text: str


@dataclass(frozen=True)
class Function:
    """A function of a kernel: it computes some of the chain's values from vectors of their operands."""

    name: str
    doc: str
    params: list[str]
    lines: list[str]
    results: list[str]

    @property
    def returns(self) -> str:
        return ", ".join(self.results)


# The module of an op


@dataclass(frozen=True)
class Jnp:
    """The chain in jnp."""

    params: list[str]
    extra: list[str]  # the parameters that are not operands
    doc: str
    lines: list[str]
    returns: str


@dataclass(frozen=True)
class Reference:
    """The reference."""

    params: list[str]
    lines: list[str]


@dataclass(frozen=True)
class ResultClass:
    """The named tuple of an op's outputs."""

    name: str
    fields: list[str]


@dataclass(frozen=True)
class Head:
    """The values that every kernel has: its op's name, arrays and parameters."""

    op: str
    tensors: list[Tensor]
    static_params: list[Constant]
    byte_tensors: list[str]


@dataclass(frozen=True)
class Described(Head):
    """The values that every op has besides: its jnp form, its reference, its function for JAX."""

    path: str
    template: str
    summary: str
    xla: Jnp | None
    reference: Reference
    result_class: ResultClass | None
    signature: list[str]
    returns: str
    doc: list[str]


@dataclass(frozen=True)
class DerivedKernel:
    """A kernel that an op's module holds besides the op's own: of its backward, say."""

    op: str  # by whose name the functions are called
    kernel: str
    xla: Jnp | None
    kind: str
    repeated: bool = False  # whether these are the functions of an earlier kernel of the module


@dataclass(frozen=True)
class Module(Described):
    """The values of `op.py.jinja`."""

    kernel: str
    kind: str  # of the op, where the runtime has a class for it
    derived: Mapping[str, DerivedKernel]
    spec: str
    tuning: list[str]


@dataclass(frozen=True)
class Kernel:
    """The values that a kernel's template shows besides those of every op."""


# Element-wise kernels, and epilogues of products


@dataclass(frozen=True)
class Chain:
    """The chain's function, and a call of it."""

    params: list[str]
    extra: list[str]  # the parameters that are not operands
    doc: str
    cute: list[str]
    returns: str
    results: str
    arguments: list[str]
    name: str = ""
    written: bool = False  # another kernel of the module has it


@dataclass(frozen=True)
class NearValues:
    """An expensive value that a thread computes once for all of its rows and those next to them."""

    function: Function
    name: str
    rows: str  # the name of the registers of its operands, by row
    places: str  # how many places back rows need it
    loads: tuple[str, ...]
    loaded: str
    arguments: list[str]


@dataclass(frozen=True)
class ElementwiseKernel(Kernel):
    """The values of `elementwise.py.jinja`, `neighbours.py.jinja` and `turned.py.jinja`."""

    chain: Chain
    vector: str
    axes: str
    settings: list[str]
    written: list[str]
    loads: list[str]
    loaded: str
    stores: list[str]
    ragged_stores: list[str]
    grid: str
    launch_arguments: str
    finished: tuple[str, ...] = ()  # the stores after all rows of a thread's tile
    steady: tuple[str, ...] = ()  # the loads of what is the same for all rows of a thread
    steady_loaded: str = ""
    nearby: tuple[NearValues, ...] = ()


@dataclass(frozen=True)
class Heads:
    """The first lines of an epilogue's functions."""

    columns: list[str]
    tiles: list[str]
    tile: list[str]


@dataclass(frozen=True)
class Products:
    """The operands of matrix products, and how they lie."""

    tensors: list[Tensor]
    a: str
    bs: str
    scales: str  # of groups along K, with how b is loaded; "" without
    batched: bool
    b_is_nk: bool
    paired: str


@dataclass(frozen=True)
class TileFolds:
    """The reductions of an epilogue's results."""

    returned: str
    tensors: list[Tensor]
    row_ops: str
    column_ops: str
    rescaled: str
    row_parts: str
    column_parts: str


@dataclass(frozen=True)
class SegmentChain:
    """The function of what is reduced of each segment of a row, and how the launcher names it."""

    name: str
    chain: Chain
    text: str


@dataclass(frozen=True)
class GemmKernel(Kernel):
    """The values of `gemm.py.jinja`: the epilogue's own tensors and parameters instead of the op's."""

    op: str
    flags: list[str]  # what the launcher tells the tiles of the factors' types
    epilogue: str
    reads: str
    whole: str
    static_params: list[Constant]
    byte_tensors: list[str]
    chain: Chain
    products: Products
    operands: list[Tensor]
    folds: TileFolds
    segments: SegmentChain | None
    settings: list[str]
    columns: list[Fragment]
    tiles: list[Fragment]
    heads: Heads
    made: list[str]
    stores: list[str]


# Attention


@dataclass(frozen=True)
class PartFunction:
    """The function of scores, or of rows, around its chain."""

    head: list[str]
    chain: Chain
    given: str
    stores: list[str]
    factor: str


@dataclass(frozen=True)
class TileFunction:
    """The function that says where a mask holds."""

    head: list[str]
    bounds: str


@dataclass(frozen=True)
class AttentionKernel(Kernel):
    """The values of `attention.py.jinja`."""

    chains: list[Chain]
    product: str
    static: str
    score: PartFunction
    full: PartFunction | None
    tiles: TileFunction | None
    row: PartFunction | None
    weight: PartFunction | None
    weigh: list[str]  # its function, if any
    output: str
    value: str
    sizes: str
    batch: str
    factors: list[str]
    pages: list[str]  # of k and of v; none where these have their rows in order
    others: list[str]
    functions: list[str]
    scale: str


@dataclass(frozen=True)
class AttentionBackwardKernel(Kernel):
    """The values of `attention_backward.py.jinja`."""

    chains: list[Chain]
    products: str
    more: str
    static: str
    slope: PartFunction
    full: PartFunction | None
    tiles: TileFunction | None
    sizes: str
    batch: str
    arrays: list[str]
    others: list[str]
    functions: list[str]
    bend: str
