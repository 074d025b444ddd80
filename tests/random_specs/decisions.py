"""What is drawn for a random spec, and how often: the kinds of kernel, the dtypes, the forms of an expression."""

from __future__ import annotations

from typing import NamedTuple

from tests.random_specs.nodes import OPS, ROWS


class Family(NamedTuple):
    """A kind of kernel: its axes, those that reductions along a row may reduce, those that reductions over rows do, and
    how often it is drawn. `width` is the size of the last axis, an inner one of a split, if it is fixed.
    In a `staged` op, elements and other reductions use those over rows. `forms` are calls (of `forms.py`) that its values
    have, and `maker` draws the whole op (of `makers.py`). In a `narrow` op, arrays may have types of 4 bits and powers of
    two."""

    axes: tuple[str, ...]
    along: tuple[tuple[str, ...], ...] = ()
    over: tuple[tuple[str, ...], ...] = ()
    often: int = 2
    split: bool = False
    contracts: bool = False
    staged: bool = False
    forms: tuple[str, ...] = ()
    maker: str = ""
    narrow: bool = False


LAST = (("N",),)
FAMILIES = {
    "elementwise": Family((ROWS, "N"), often=6),
    "elementwise of one axis": Family(("N",)),
    "elementwise of rows": Family((ROWS,), often=1),
    "elementwise of named axes": Family(("B", "S", "N"), often=4),
    "elementwise of rows and named axes": Family((ROWS, "S", "N"), often=3),
    "elementwise of blocks": Family((ROWS, "B", "G"), often=3, split=True),
    "row": Family((ROWS, "N"), LAST, often=9),
    "row of one": Family(("N",), LAST, often=2),
    "row of several axes": Family(("B", "S", "N"), (("S", "N"),), often=3),
    "row of named axes": Family(("B", "S", "N"), LAST, often=3),
    "row of blocks": Family((ROWS, "B", "G"), (("G",), ("G",), ("B", "G")), often=5, split=True),
    "column": Family((ROWS, "N"), over=((ROWS,),), often=6),
    "column of named axes": Family(("B", "N"), over=(("B",),), often=2),
    "column of several axes": Family(("B", "S", "N"), over=(("B",), ("B", "S"), ("B", "N")), often=3),
    "all": Family((ROWS, "N"), over=((ROWS, "N"),), often=3),
    "row and column": Family((ROWS, "N"), LAST, ((ROWS,),), often=7),
    "row and column of named axes": Family(("B", "S", "N"), LAST, (("B", "S"),), often=3),
    "row and column of blocks": Family((ROWS, "B", "G"), (("G",),), ((ROWS,),), often=2, split=True),
    "staged": Family((ROWS, "N"), over=((ROWS,), (ROWS, "N")), often=3, staged=True),
    "staged, of rows": Family((ROWS, "N"), LAST, ((ROWS,),), often=3, staged=True),
    "staged, of named axes": Family(("B", "S", "N"), LAST, (("S",), ("B",), ("B", "S")), often=3, staged=True),
    "staged, of blocks": Family((ROWS, "B", "G"), (("G",),), ((ROWS,), ("B",)), often=2, split=True, staged=True),
    "product": Family((ROWS, "N"), contracts=True, often=5),
    "product of batches": Family(("B", "S", "N"), contracts=True, often=2),
    "product and folds": Family((ROWS, "N"), LAST, ((ROWS,),), contracts=True, often=3),
}

# Kinds of ops with further calls and types, drawn apart from those above
ORDERS = ("top_k", "top_k", "sort", "argsort", "unsort", "argmax", "nucleus")
ANYWHERE = ("shift", "draw", "gather", "argmax")
EVERYTHING = ("scan", "shift", "draw", "gather", *ORDERS)
FURTHER = {
    "scan": Family(("B", "S", "N"), forms=("scan",), often=4),
    "scan of rows": Family((ROWS, "N"), forms=("scan", "scan", "shift", "draw"), often=3),
    "scan of one axis": Family(("N",), forms=("scan",), often=1),
    "scan and more": Family(("B", "S", "N"), LAST, (("S",), ("B", "S")), forms=("scan", "scan", "shift", "gather"), often=3, staged=True),
    "states": Family(("B", "S", "N"), forms=("states",), often=2),
    "shift": Family(("B", "S", "N"), forms=("shift",), often=3),
    "shift of rows": Family((ROWS, "N"), forms=("shift",), often=2),
    "shift and row": Family(("B", "S", "N"), LAST, forms=("shift",), often=2),
    "shift and column": Family(("B", "S", "N"), (), (("B", "S"), ("B",)), forms=("shift", "shift", "draw"), often=2),
    "order": Family((ROWS, "N"), forms=ORDERS, often=4),
    "order of named axes": Family(("B", "S", "N"), forms=ORDERS, often=3),
    "order and row": Family((ROWS, "N"), LAST, forms=ORDERS, often=2),
    "draw": Family((ROWS, "N"), forms=("draw",), often=2),
    "draw of named axes": Family(("B", "S", "N"), LAST, (("B", "S"),), forms=("draw",), often=2),
    "gather": Family((ROWS, "N"), forms=("gather",), often=2),
    "gather and row": Family(("B", "S", "N"), LAST, forms=("gather", "shift"), often=2),
    "gather and column": Family((ROWS, "N"), (), ((ROWS,),), forms=("gather", "draw"), often=2),
    "put": Family(("B", "N"), forms=("put",), often=2),
    "put of rows": Family((ROWS, "N"), forms=("put",), often=2),
    "everything": Family((ROWS, "N"), LAST, ((ROWS,),), forms=EVERYTHING, often=3, staged=True),
    "everything of named axes": Family(("B", "S", "N"), LAST, (("S",), ("B", "S")), forms=EVERYTHING, often=3, staged=True),
    "product and calls": Family((ROWS, "N"), contracts=True, forms=ANYWHERE, often=2),
    "narrow": Family((ROWS, "N"), often=3, narrow=True),
    "narrow rows": Family((ROWS, "N"), LAST, often=2, narrow=True),
    "narrow blocks": Family((ROWS, "B", "G"), (("G",),), often=4, split=True, narrow=True),
    "narrow and calls": Family((ROWS, "N"), forms=("shift", "draw", "gather"), often=1, narrow=True),
    "parts of blocks": Family((ROWS, "B", "G"), (("G",),), often=3, split=True, forms=("parts",)),
    "blocks and calls": Family((ROWS, "B", "G"), (("G",),), often=2, split=True, forms=("parts", "draw", "shift", "argmax")),
    "attention": Family(("B", "H", "Q", "E"), maker="attention", often=8),
    "layers": Family((ROWS, "M"), maker="layers", often=8),
}  # fmt: skip

# Two of these at once, and shapes that the others lack; drawn apart from both
FIVE = ("A", "B", "C", "S", "N")
COMBINED = {
    "product and orders": Family((ROWS, "N"), contracts=True, forms=("scan", *ORDERS), often=3),
    "product of batches and calls": Family(("B", "S", "N"), contracts=True, forms=("scan", "shift", "top_k", "sort", "lookup"), often=3),
    "statistics and put": Family(("B", "N"), LAST, forms=("put",), often=2),
    "scan and put": Family(("B", "S", "N"), forms=("put", "scan"), often=1),
    "lookups": Family((ROWS, "N"), forms=("lookup",), often=2),
    "lookups of named axes": Family(("B", "S", "N"), LAST, (("S",), ("B", "S")), forms=("lookup", "scan", "top_k"), often=3, staged=True),
    "five axes": Family(FIVE, (("S", "N"), ("N",)), often=2),
    "five axes, over some": Family(FIVE, over=(("A", "B"), ("B", "S"), ("A", "C")), often=2),
    "five axes, staged": Family(FIVE, LAST, (("S",), ("B", "C"), ("A", "B", "C")), often=2, staged=True),
    "five axes and calls": Family(FIVE, forms=("shift", "scan", "draw", "argmax"), often=2),
    "blocks in the middle": Family((ROWS, "B", "G", "N"), over=(("G",),), often=3, split=True, staged=True),
    "blocks in the middle, and calls": Family(("S", "B", "G", "N"), LAST, (("G",), ("S",)), forms=("scan", "shift"), often=2, split=True, staged=True),
    "blocks, scans and orders": Family((ROWS, "B", "G"), (("G",),), forms=("scan", "top_k", "sort", "unsort"), often=2, split=True),
}  # fmt: skip

# Dtypes of a float array or variable, with how often each is drawn
FLOATS = {("float32",): 8, ("bfloat16",): 4, ("float16",): 3, ("float32", "bfloat16"): 5, ("bfloat16", "float16"): 1,
          ("float8_e4m3fn",): 1, ("float8_e5m2",): 1}  # fmt: skip
DOUBLES = {("float64",): 3, ("float32", "float64"): 1, ("float32",): 2}
INTS = {("int32",): 5, ("int8",): 3, ("uint8",): 2, ("int16",): 2, ("uint16",): 1, ("int8", "int32"): 1}
WIDE_INTS = {("int64",): 2, ("int32",): 2}
FACTORS = {
    ("float32",): 3,
    ("bfloat16",): 4,
    ("float16",): 3,
    ("float32", "bfloat16"): 2,
    ("int8",): 1,
    ("float8_e4m3fn",): 1,
}

NARROW_FLOATS = {("float32",): 3, ("bfloat16",): 2, ("float4_e2m1fn",): 3, ("float8_e8m0fnu",): 2,
                 ("float4_e2m1fn", "float8_e4m3fn"): 1}  # fmt: skip
NARROW_INTS = {("int4",): 3, ("uint4",): 2, ("int8",): 1, ("int4", "int8"): 1}
NO_GRADIENT = {"float4_e2m1fn", "float8_e8m0fnu"}  # which have no gradient
QUERIES = {("bfloat16",): 4, ("float16",): 3, ("float16", "bfloat16"): 2, ("float32",): 2, ("float8_e4m3fn",): 1}

OF_INTEGERS = ("invert", "popcount")
UNARY = [
    name for name, row in OPS.items()
    if row.takes in ("f", "n") and row.gives in ("f", "n") and name != "pow" and name not in OF_INTEGERS
]  # fmt: skip
PREDICATES = ["isnan", "isinf", "isfinite"]
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]
# Forms of a float, of an integer and of a bool, with how often each is drawn
FORMS = {
    "float": {"add": 6, "sub": 4, "mul": 8, "unary": 12, "div": 2, "minimum": 1, "maximum": 1, "where": 3, "gate": 1, "clip": 1,
              "pow": 1, "rem": 1, "floordiv": 1, "mod": 1, "ldexp": 1, "logaddexp": 1, "atan2": 1, "cast": 1, "square": 1, "leaf": 3, "of_bool": 1},
    "int": {"add": 3, "sub": 2, "mul": 2, "minimum": 1, "maximum": 1, "where": 1, "abs": 1, "square": 1, "neg": 1, "rem": 1,
            "floordiv": 1, "mod": 1, "bits_and": 1, "bits_or": 1, "bits_xor": 1, "shl": 1, "shr": 1, "invert": 1, "popcount": 1,
            "clip": 1, "cast": 1, "leaf": 4, "of_bool": 1, "of_float": 1},
    "bool": {"compare": 6, "predicate": 1, "both": 2, "either": 2, "differ": 1, "not": 1, "leaf": 2},
}  # fmt: skip
EXPONENTS = [2, 3, 4, 0.5, -1, -2, 1.5, -0.5]
CONSTANTS = {
    "float": [0.5, 2.0, -1.5, 0.25, 3.0, 1.0, -1.0, 1e-3, 0.7],
    "int": [1, 2, 3, -1, 7, 0],
    "bool": [True, False],
}
SPECIAL = ["inf", "-inf", "nan", 0.0, -0.0, 1e-40, 3e38]
CASTS = ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float32"]
FLOAT_FOLDS = {"sum": 5, "mean": 5, "max": 4, "min": 3, "prod": 1, "var": 2, "std": 1, "norm": 2, "logsumexp": 2}
TWICE = {"var", "std", "logsumexp"}  # reductions of what needs one itself
EXTREMES = {"max", "min", "logsumexp"}
NAMES = "abcdefghijklmnopqrstuvwxyz"
