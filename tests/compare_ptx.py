"""Compare the PTX of the kernels that two checkouts generate.

Usage: `python tests/compare_ptx.py BEFORE AFTER [--ops NAMES] [--every N] [--archs sm_90a,sm_80] [--variants N] [--jobs N]`

A change of how generated kernels are written must not change what they do. This compiles some variants of each op in both
checkouts and compares what they do: their accesses, branches and other effects in order, and the expressions of the values that
these take. It says which kernels are the same, and prints the first different lines of the others. It exits with 1 if there are
any.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

# More bytes of a row's inputs: several rows in a thread, clusters, read again
LENGTHS = (12, 80 * 1024, 4 * 1024 * 1024)


def collect(task: tuple[str, str, int]) -> dict[str, str]:
    """The PTX of some variants of an op's kernels, in the checkout that this process runs in."""
    from codegen.measuring.compiled.tasks import kernels_named, load_package
    from codegen.runtime.compiled import kernels

    name, arch, count = task
    found = {}
    for op in kernels_named(load_package(Path("generated")), [name]):
        for label, call in chosen(op, arch, count):
            try:
                found[f"{op.spec.op} {arch} {label}"] = kernels.binary(call, "ptx").ptx
            except Exception as error:  # both checkouts must fail alike
                found[f"{op.spec.op} {arch} {label}"] = f"{type(error).__name__}: {error}"
    return found


def chosen(op, arch: str, count: int) -> Iterator[tuple[str, object]]:
    """At most so many of a kernel's variants, evenly spread, and one of each further row length."""
    from codegen.measuring.compiled import compile as compiling
    from codegen.measuring.compiled.variants import row_lengths, variants
    from codegen.plan.launches import Extents
    from codegen.plan.limits import lacks
    from codegen.plan.planner import planned_call
    from codegen.plan.rows.reductions import Reduction

    every = [v for v in variants(op) if not lacks(op, v.types, arch)]
    picked = [every[i * len(every) // count] for i in range(count)] if len(every) > count else every
    plan = op.plan
    if every and isinstance(plan, Reduction) and row_lengths(op, every[0].types)[0] is not None:
        fixed = any(axis in op.spec.extents for group in plan.column_groups for axis in group.axes)
        types = every[0].types
        width = plan.column_bytes(planned_call(op.spec, types, Extents()))
        if not fixed:
            picked += [replace(every[0], columns=size // width) for size in LENGTHS]
    for variant in picked:
        try:
            yield str(variant), compiling._call(op, variant, arch)[0]
        except Exception as error:
            print(f"{op.spec.op} {arch} {variant}: {error}", file=sys.stderr)


def comparable(ptx: str) -> list[str]:
    """What PTX does, in order: its accesses, branches and whatever else has an effect. The values that these take are digests of
    expressions, so neither names count nor the order of instructions that compute a value alone."""
    names: dict[str, str] = {}
    for match in re.finditer(r"\.entry\s+(\w+)|\.(?:shared|global|const)\b[^;={]*?(\w+)\[", ptx):
        name = match[1] or match[2]
        names.setdefault(name, f"name{len(names)}")
    for name in sorted(names, key=len, reverse=True):
        ptx = re.sub(rf"\b{re.escape(name)}(?=\b|_param)", names[name], ptx)
    lines = [line for line in (re.sub(r"//.*", "", line).strip() for line in ptx.splitlines()) if line]
    starts = [i for i, line in enumerate(lines) if ".entry" in line or ".func" in line]
    found = lines[: starts[0]] if starts else lines
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        found += _effects([line for line in lines[start:end] if not line.startswith(".reg ")])
    return found


# Operations that compute their results alone, and those of them whose first two operands commute
_PURE = re.compile(
    r"(abs|add|and|bfe|bfi|bfind|brev|clz|cnot|copysign|cos|cvt|cvta|div|ex2|fma|ld\.param|lg2|lop3|mad|max|min|mov|mul|neg|"
    r"not|or|popc|prmt|rcp|rem|rsqrt|selp|setp|shf|shl|shr|sin|slct|sqrt|sub|tanh|testp|xor)\."
)
_COMMUTES = re.compile(r"(add|and|fma|mad|max|min|mul|or|xor)\.")
_NO_RESULT = re.compile(r"(bar|barrier|bra|brx|call|cp|ret|setmaxnreg|st)\b")
_REGISTER, _LABEL = re.compile(r"%[a-z]+\d+\b"), re.compile(r"\$L__\w+")
_INSTRUCTION = re.compile(r"(@!?%p\d+\s+)?([a-z][\w.:]*)\s+(\{[^}]*\}|[^,;]+)?(?:,\s*)?(.*?);?$")


def _effects(lines: list[str]) -> list[str]:
    """A function's instructions that have an effect, or write a register that others write too."""
    parsed = [_INSTRUCTION.match(line) for line in lines]
    results = [
        _REGISTER.findall(m[3] or "") if m and not _NO_RESULT.match(m[2]) and "[" not in (m[3] or "") else []
        for m in parsed
    ]
    counts = Counter(register for own in results for register in own)
    values: dict[str, str] = {}
    labels: dict[str, str] = {}
    unset: dict[str, str] = {}  # read before they are written, in a loop or where they may be missing

    def valued(text: str) -> str:
        text = _REGISTER.sub(lambda m: values.get(m[0]) or unset.setdefault(m[0], f"unset{len(unset)}"), text)
        return _LABEL.sub(lambda m: labels.setdefault(m[0], f"label{len(labels)}"), text)

    found = []
    for line, match, own in zip(lines, parsed, results, strict=True):
        if not own or match is None:
            found.append(valued(line))
            continue
        operation, operands = match[2], [valued(text) for text in (match[4] or "").split(", ")]
        if _COMMUTES.match(operation):
            operands[:2] = sorted(operands[:2])
        text = f"{valued(match[1] or '')}{operation} {', '.join(operands)}"
        alone = _PURE.match(operation) and not match[1] and all(counts[register] == 1 for register in own)
        if not alone:
            found.append(text)
        digest = hashlib.md5((text if alone else f"{len(found)} {text}").encode()).hexdigest()[:12]
        values |= {register: f"{digest}.{k}" for k, register in enumerate(own)}
    return found


def run(checkout: Path, options: argparse.Namespace) -> dict[str, str]:
    """What `collect` finds in another checkout."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "ptx.json"
        own = checkout / "tests/compare_ptx.py"  # which knows where things are there
        script = own if own.exists() else Path(__file__).resolve()
        command = [sys.executable, str(script), "--collect", str(out), *sys.argv[1:]]
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        subprocess.run(command, cwd=checkout, env=environment, check=True)
        return json.loads(out.read_text())


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the PTX of the kernels that two checkouts generate.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--ops", default="", help="names, separated by commas; all if left out")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th of them")
    parser.add_argument("--archs", default="sm_90a,sm_80")
    parser.add_argument("--variants", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--collect", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parsed()
    if options.collect:
        sys.path[0] = ""  # this checkout's modules, not those beside this file
        from codegen.measuring.compiled.tasks import load_package

        names = options.ops.split(",") if options.ops else load_package(Path("generated")).__all__[:: options.every]
        tasks = [(name, arch, options.variants) for name in names for arch in options.archs.split(",")]
        found: dict[str, str] = {}
        with get_context("spawn").Pool(options.jobs, maxtasksperchild=16) as pool:
            for more in pool.imap_unordered(collect, tasks):
                found |= more
        options.collect.write_text(json.dumps(found))
        return 0
    before, after = run(options.before.resolve(), options), run(options.after.resolve(), options)
    different = sorted(before.keys() ^ after.keys())
    for key in different:
        print(f"only {'before' if key in before else 'after'}: {key}")
    for key in sorted(before.keys() & after.keys()):
        texts = comparable(before[key]), comparable(after[key])
        if texts[0] != texts[1]:
            different.append(key)
            print(f"different: {key}")
            print("\n".join(list(difflib.unified_diff(*texts, "before", "after", lineterm="", n=1))[:40]))
    print(f"{len(before.keys() | after.keys()) - len(different)} kernels are the same, {len(different)} are not")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
