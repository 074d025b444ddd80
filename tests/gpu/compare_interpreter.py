"""Checks that a GPU and the interpreter agree, for every op and combination of types:

    python tests/gpu/compare_interpreter.py OUT.json [first [step]]

Kernels whose results PTX fixes must give the same bits (NaN equals NaN). Where a kernel uses approximate functions
(ex2, rcp, ...), elements may differ by what PTX's error bounds for them allow; `beyond` counts those that differ by
more, and `worst` is the largest difference as a share of what is allowed. Exit status 1 where any is beyond or a case
fails to run; OUT.json is written after every case, so that what was cut short is not lost.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np

import generated
from codegen.interpret import approximations
from codegen.runtime import draw, interpreted
from codegen.runtime.compile import bindings


def case_of(op, types, seed: int, inner: int) -> draw.Case:
    """17 rows, `inner` elements along the last axis, with special values among them."""
    axes = [axis for axis in op.spec.axes if axis != "..."]
    extents = {axis: op.spec.extents.get(axis, 3) for axis in axes} | ({axes[-1]: inner} if axes else {})
    params = tuple((p.name, 1 if p.default is None else p.default) for p in op.spec.params)
    rows = (17,) if "..." in op.spec.axes else ()
    return draw.Case(types, rows, tuple(extents.items()), (), params, True, 3.0, seed)


def approximate() -> bool:
    return any(report.approximate for report in interpreted.last_reports())


def check(op, types) -> dict:
    """The sums over whole and over ragged vectors, for a row of OUT.json."""
    row = {"equal": 0, "differing": 0, "beyond": 0, "worst": 0.0, "approximate": False}
    for seed, inner in enumerate((1024, 1021)):
        with jax.enable_x64(True):
            case = case_of(op, types, seed, inner)
            args, keywords = draw.operands(op, case, draw.arrays(op, case))

            def outputs(implementation: str, args=args, keywords=keywords) -> list[np.ndarray]:
                made = op(*args, **keywords, implementation=implementation)
                return [np.asarray(y) for y in (made if len(op.spec.outputs) > 1 else [made])]

            agreement = approximations.compare(lambda: outputs("interpret"), outputs("cute"), approximate)
        for key in ("equal", "differing", "beyond"):
            row[key] += getattr(agreement, key)
        row["worst"] = max(row["worst"], agreement.worst)
        row["approximate"] |= approximate()
    return row


def main() -> int:
    out = Path(sys.argv[1])
    first, step = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else (0, 1)
    rows = []
    for name in generated.__all__[first::step]:
        op = getattr(generated, name)
        for types in bindings(op.spec):
            row = {"op": name, "types": dict(types.variables)}
            try:
                row |= check(op, types)
            except Exception as error:  # one op's failure is a row, not the end of the run
                row |= {"error": f"{type(error).__name__}: {error}"[:2000]}
            rows.append(row)
            print(row, flush=True)
            out.write_text(json.dumps(rows, indent=1, default=str))
    bad = [row for row in rows if "error" in row or row["beyond"]]
    differing, total = (
        sum(r.get("differing", 0) for r in rows),
        sum(r.get("equal", 0) + r.get("differing", 0) for r in rows),
    )
    print(f"{len(rows)} cases: {differing} of {total} elements differ; {len(bad)} cases are wrong")
    for row in bad:
        print(f"  {row['op']} {row['types']}: {row.get('error') or str(row['beyond']) + ' elements beyond the bounds'}")
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
