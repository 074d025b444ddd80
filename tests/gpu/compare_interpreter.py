"""Checks that a GPU and the interpreter agree, for every op but those that contract and every combination of types:

    python tests/gpu/compare_interpreter.py record OUT.npz [first step]    on a GPU: the outputs of its kernels
    python tests/gpu/compare_interpreter.py check OUT.json IN.npz...       anywhere: against the interpreter's

Kernels whose results PTX fixes must give the same bits (NaN equals NaN). Where a kernel uses approximate functions
(ex2, rcp, ...), elements may differ by what PTX's error bounds for them allow; `beyond` counts those that differ by
more, and `worst` is the largest difference as a share of what is allowed. In what order, and how precisely, tensor cores
sum, PTX leaves to them. Both machines draw the same inputs: a digest of them is recorded and compared. Exit status 1 where
any element is beyond, a case fails to run, or one was not recorded.
"""

import hashlib
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

import cutefuse
from codegen.checking import draw
from codegen.interpret import approximations
from codegen.runtime.call.arguments import all_types
from codegen.runtime.compiled import interpreted
from codegen.runtime.ops.gemm_op import GemmOp

INNERS = (1024, 1021)  # whole vectors, and ragged ones


def case_of(op, types, seed: int, inner: int) -> draw.Case:
    """A case of 17 rows, and `inner` elements along the last axis without a fixed size, with special values among them."""
    free = [axis for axis in op.spec.axes if axis != "..." and axis not in op.spec.extents]
    inner = max(1, inner // math.prod(op.spec.extents.values()))
    extents = op.spec.extents | {axis: inner if axis == free[-1] else 3 for axis in free}
    params = tuple((p.name, 1 if p.default is None else p.default) for p in op.spec.params)
    rows = (17,) if "..." in op.spec.axes else ()
    return draw.Case(types, rows, tuple(extents.items()), (), params, True, 3.0, seed)


def name_of(op, types) -> str:
    return " ".join([op.__name__, *(f"{t}={d}" for t, d in types.variables)])


def cases() -> Iterator[tuple]:
    for name in cutefuse.__all__:
        op = getattr(cutefuse, name)
        for types in () if isinstance(op, GemmOp) else all_types(op.spec):
            yield op, types


def call(op, types, seed: int):
    """A function that runs the case in an implementation, and a digest of its inputs."""
    case = case_of(op, types, seed, INNERS[seed])
    args, keywords = draw.operands(op, case, draw.arrays(op, case))
    digest = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in args if x is not None)).hexdigest()

    def outputs(implementation: str) -> list[np.ndarray]:
        made = op(*args, **keywords, implementation=implementation)
        return [np.asarray(y) for y in (made if len(op.spec.outputs) > 1 else [made])]

    return outputs, digest


def record(out: Path, first: int, step: int) -> int:
    """The GPU's outputs, as bytes: .npz files have no bfloat16."""
    found: dict[str, np.ndarray] = {}
    failed = 0
    for op, types in list(cases())[first::step]:
        for seed in range(len(INNERS)):
            key = f"{name_of(op, types)} {seed}"
            try:
                with jax.enable_x64(True):
                    outputs, digest = call(op, types, seed)
                    made = outputs("cute")
            except Exception as error:  # one op's failure is a line, not the end of the run
                failed += 1
                print(f"{key}: {type(error).__name__}: {error}"[:2000], flush=True)
                continue
            found[f"{key} inputs"] = np.frombuffer(bytes.fromhex(digest), np.uint8)
            for i, y in enumerate(made):
                found[f"{key} {i}"] = np.frombuffer(y.tobytes(), np.uint8)
    np.savez_compressed(out, **found)
    print(f"{len(found)} arrays; {failed} calls failed")
    return 1 if failed or not found else 0


def approximate() -> bool:
    return any(report.approximate for report in interpreted.last_reports())


def check_case(number: int) -> dict:
    """A row of OUT.json: the sums over whole and ragged vectors."""
    op, types = list(cases())[number]
    row = {"op": op.__name__, "types": dict(types.variables)}
    row |= {"equal": 0, "differing": 0, "beyond": 0, "worst": 0.0, "approximate": False}
    try:
        for seed in range(len(INNERS)):
            with jax.enable_x64(True):
                outputs, digest = call(op, types, seed)
                key = f"{name_of(op, types)} {seed}"
                if _recorded[f"{key} inputs"].tobytes().hex() != digest:
                    raise ValueError("the inputs are not those of the recording")
                ours = outputs("interpret")
                theirs = [np.frombuffer(_recorded[f"{key} {i}"], y.dtype).reshape(y.shape) for i, y in enumerate(ours)]
                agreement = approximations.compare(lambda run=outputs: run("interpret"), theirs, approximate)
            for key in ("equal", "differing", "beyond"):
                row[key] += getattr(agreement, key)
            row["worst"] = max(row["worst"], agreement.worst)
            row["approximate"] |= approximate()
    except Exception as error:  # one op's failure is a row, not the end of the run
        row["error"] = f"{type(error).__name__}: {error}"[:2000]
    return row


_recorded: dict[str, np.ndarray] = {}


def load(paths: list[str]) -> None:
    for path in paths:
        with np.load(path) as archive:
            _recorded.update(archive)


def check(out: Path, paths: list[str]) -> int:
    numbers = range(len(list(cases())))
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), load, (paths,)) as pool:
        rows = pool.map(check_case, numbers, chunksize=4)
    out.write_text(json.dumps(rows, indent=1) + "\n")
    bad = [row for row in rows if "error" in row or row["beyond"]]
    differing, total = sum(r["differing"] for r in rows), sum(r["equal"] + r["differing"] for r in rows)
    print(f"{len(rows)} cases: {differing} of {total} elements differ; {len(bad)} cases are wrong")
    for row in bad:
        print(f"  {row['op']} {row['types']}: {row.get('error') or str(row['beyond']) + ' elements beyond the bounds'}")
    return 1 if bad or not rows else 0


def main(arguments: list[str]) -> int:
    if len(arguments) >= 3 and arguments[0] == "check":
        return check(Path(arguments[1]), arguments[2:])
    if len(arguments) in (2, 4) and arguments[0] == "record":
        first, step = map(int, arguments[2:] or ("0", "1"))
        return record(Path(arguments[1]), first, step)
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
