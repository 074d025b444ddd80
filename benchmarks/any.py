"""How fast ops are that nobody has tuned: random ops as users write them, against XLA and a copy.

    python -m benchmarks.any --seed 1 --count 200 --out any.json      # on a GPU; 200 ops take some minutes
    python -m benchmarks.any --seed 1 --only 17                       # one of them again
    python -m benchmarks.any --seed 1 --kinds newer                   # scans, random numbers, products, tables, ...
    python -m benchmarks.any --seed 1 --count 5 --dry                 # without a GPU: build, plan and compile for sm_90a

Each op of `tests/random_specs/usual.py`, or of `newer.py` next to it, is built, its kernels are compiled, its results and its gradients are compared with
those of the jnp form (`exact.py` judges those that differ), and both are timed with a copy of as many bytes, on the device's own clock, in turns. Worker processes
build and compile at the same time. One at a time uses the GPU. A process that dies is replaced, and its op has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import xla_flags
from tests.random_specs.newer import newer_spec
from tests.random_specs.usual import LARGE, usual_spec

KINDS = {"usual": usual_spec, "newer": newer_spec}  # a seed and a number give the same op of a kind in every version
GROUPS, CALLS = 5, 10
WAYS = ("forward", "backward")
FROZEN = 4  # of so many ops, the frozen backward of one is timed too
PATIENCE = 180  # seconds that an op may take, all others' time on the GPU included
GPU_WORKERS = 10  # each holds the memory that its largest op took
WORST = 15
LEAST = {"of_limit": 0.70, "over_xla": 0.97}  # a row below either is slow


# A worker: one op after the other, by its number


@dataclass(frozen=True)
class Way:
    """The forward or the backward of an op, compiled: what makes its arguments from a seed, and its candidates."""

    name: str
    row: dict[str, Any]
    sets: int
    make: Callable[[Any], Any]
    ours: Callable[[Any], Any]
    xla: Callable[[Any], Any]
    copy: Callable[[Any], Any]
    words: Callable[[Any], Any]
    differ: Callable[[Any, Any], Any]
    fault: Callable[..., str]


def work(given: argparse.Namespace) -> None:
    """Reads numbers, writes a line of JSON for each: its rows."""
    for line in sys.stdin:
        number, start = int(line), time.time()
        usual = KINDS[given.kinds](given.seed, number)
        found = {"number": number, "layout": usual.layout, "shape": usual.shape, "text": chain_of(usual.spec.text)}
        try:
            found |= {"rows": trial(usual, given.ways, given.dry, given.folder, number % FROZEN == 0)}
        except Exception as error:
            found |= {"rows": [], "error": short(error), "trace": traceback.format_exc(limit=-4)}
        found["seconds"] = round(time.time() - start, 2)
        print(json.dumps(found), flush=True)
        if is_last(found):
            return


def is_last(found: dict[str, Any]) -> bool:
    """Whether a worker ends with this op: after a kernel's error, nothing may run in its process."""
    return any("CUDA" in row.get("error", "") for row in [found, *found["rows"]])


def chain_of(text: str) -> str:
    """A spec's text without its reference."""
    head, _, rest = text.partition("reference: |\n")
    return head + "\n".join(line for line in rest.splitlines() if line and not line.startswith(" "))


def short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def trial(usual: Any, ways: Sequence[str], dry: bool, folder: Path, frozen: bool = False) -> list[dict[str, Any]]:
    """The rows of an op: one for its forward, one for its backward if that is a kernel, and if it is to be timed too one for
    its backward without the gradients of arrays that all rows share."""
    from codegen.runtime.ops.backward import backward_ops
    from tests.making import make_op

    op = make_op(folder, usual.spec.text)
    kernels: dict[str, Any] = {"forward": op}
    for kernel in backward_ops(op):
        name = "frozen" if kernel.spec.op.endswith("_frozen") else "backward"
        kernels |= {name: kernel} if frozen or name != "frozen" else {}
    rows, made = [], []
    for name, kernel in kernels.items():
        if ("forward" if name == "forward" else "backward") not in ways:
            continue
        row: dict[str, Any] = {"way": name}
        rows.append(row)
        try:
            row |= described(kernel, usual.shape)
            made.append(compiled(kernel, usual.shape, row, dry))
        except Exception as error:
            row |= {"error": short(error), "trace": traceback.format_exc(limit=-4)}
    if not dry and made:
        with the_gpu(folder):
            time_ways(made)
    return rows


def described(op: Any, shape: dict[str, int]) -> dict[str, Any]:
    """The facts of a row that need no timing: the kernel's kind, its bytes and launch, its registers and stack, and whether XLA
    takes the call. An op of several kernels has the launches of all its stages."""
    import jax

    from codegen.explain.traffic import fused_bytes
    from codegen.language.sizes import array_bytes, array_shape
    from codegen.measuring.compiled import limits
    from codegen.measuring.compiled.compile import resources_of_call
    from codegen.measuring.times.bench import typical
    from codegen.runtime.call import arguments
    from codegen.runtime.call.arguments import Types
    from codegen.runtime.compiled import interpreted
    from codegen.runtime.ops.backward import kernels_of_call

    binding = typical(op.spec, {})
    assert binding is not None
    types, arch = Types(binding.types, "float32"), interpreted.architecture()
    found: dict[str, list[Any]] = {"registers": [], "stack": [], "launch": [], "left": []}
    inputs = {a.name: jax.ShapeDtypeStruct(array_shape(a, shape), types.dtype(a)) for a in op.spec.inputs}
    kernels = kernels_of_call(op, types, arguments.bind_axes(op.spec, inputs))
    for kernel in kernels:
        arrays = {a.name: jax.ShapeDtypeStruct(array_shape(a, shape), types.dtype(a)) for a in kernel.spec.inputs}
        axes = arguments.bind_axes(kernel.spec, arrays)
        registers, stack, _ = resources_of_call(kernel, types, shape, arch)
        found["registers"].append(registers)
        found["stack"].append(stack)
        found["launch"].append(str(kernel.launch_for(types, axes)))
        found["left"].append(kernel.left_to_xla(types, axes))
    sizes = [math.prod(array_shape(a, shape)) for a in op.spec.arrays]
    # Where elements wait for others of other blocks, inputs are read a second time, at least
    again = len(kernels) > 1
    twice = sum(array_bytes(a, shape, binding.dtype(a)) for a in op.spec.inputs) if again else 0
    return {
        "registers": max(found["registers"]),
        "stack": max(found["stack"]),
        "kind": op.plan.kind,
        "bytes": fused_bytes(binding, shape, op.statements) + twice,
        "large": max(sizes) >= LARGE // 4,
        "launch": "; ".join(found["launch"]),
        "left": "; ".join(filter(None, found["left"])),
        "instructions_us": dict(limits.instruction_times(op, binding, shape)) | product_times(op, shape),
    }


def product_times(op: Any, shape: dict[str, int]) -> dict[str, float]:
    """The microseconds that the tensor cores take for an op's products, where the GPU's rate is known. In the backward of an op that
    contracts, each factor's gradient is a product of as much work; only one of the two is not shared by all rows."""
    import jax

    from codegen.graph.nodes import topological
    from codegen.measuring.compiled.limits import this_gpu
    from codegen.runtime.compiled.platform import current_arch
    from codegen.runtime.ops.backward import GemmBackwardOp

    nodes = [n for n in topological(s.value for s in op.statements) if n.op == "contract"]
    if isinstance(op, GemmBackwardOp):
        nodes = [n for n in topological(s.value for s in op.origin.statements) if n.op == "contract"]
        nodes *= 1 if op.spec.op.endswith("_frozen") else 2
    arch = current_arch()
    gpu = this_gpu(arch, jax.devices()[0].device_kind) if arch and nodes else None
    flops = sum(2 * math.prod(shape[a] for a in {*n.args[0].dims, *n.args[1].dims}) for n in nodes)
    return {} if gpu is None else {"products": flops / gpu.tensor_cores * 1e6}


def compiled(op: Any, shape: dict[str, int], row: dict[str, Any], dry: bool) -> Way:
    """The candidates of an op at a shape, compiled; in a dry run its kernels alone."""
    import jax

    from benchmarks.exact import fault
    from codegen.measuring.times import bench, calls

    start = time.time()
    origin = getattr(op, "origin", op)
    binding = bench.typical(origin.spec, {})
    assert binding is not None
    found = calls.calls_of(op, binding, shape)
    make, ours, xla = found.make, found.run(None), found.run("xla")
    given = jax.eval_shape(make, 0)
    if dry:
        jax.jit(ours).trace(given).lower(lowering_platforms=("cuda",))
        row["compiling"] = round(time.time() - start, 2)
        return Way(row["way"], row, 0, make, ours, xla, ours, ours, ours, ours)
    count = max(1, row["bytes"] // 8 // bench.WHOLE * bench.WHOLE)
    seed = jax.numpy.uint32(0)

    def words(seed: Any) -> Any:
        return jax.random.bits(jax.random.key(seed), (count,), "uint32")

    result, ahead = jax.eval_shape(ours, given), calls.compiled
    way = Way(
        row["way"], row, bench.sets_of(row["bytes"]), ahead(make, seed), ahead(ours, given), ahead(xla, given),
        ahead(lambda words: words ^ 1, jax.eval_shape(words, 0)), ahead(words, seed),
        ahead(calls.differences, result, result), functools.partial(fault, op, binding),
    )  # fmt: skip
    row["compiling"] = round(time.time() - start, 2)
    return way


@contextlib.contextmanager
def the_gpu(folder: Path) -> Iterator[None]:
    """A lock: one process at a time uses the GPU. A process that dies releases it."""
    with open(folder / "gpu.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def time_ways(ways: Sequence[Way]) -> None:
    """Compare and time them; the rows then hold what was found."""
    candidates: dict[str, Callable[[int], Any]] = {}
    sets = []
    for way in ways:
        try:
            candidates |= prepared(way, sets)
        except Exception as error:
            way.row.update({"error": short(error), "trace": traceback.format_exc(limit=-4)})
    good = [way for way in ways if "error" not in way.row]
    if not good:
        return
    from codegen.measuring.times import bench

    try:
        times = bench.measure(candidates, GROUPS, CALLS)
    except Exception as error:
        for way in good:
            way.row.update({"error": short(error)})
        return
    for way in good:
        found = {name: times[f"{way.name} {name}"] for name in ("ours", "xla", "copy")}
        way.row.update(numbers(found, way.row["instructions_us"]))


def prepared(way: Way, kept: list[Any]) -> dict[str, Callable[[int], Any]]:
    """The candidates of a way on arrays that are `kept`; the results of the first are compared."""
    import jax.numpy as jnp

    from codegen.measuring.times import calls

    given = [way.make(jnp.uint32(i)) for i in range(way.sets)]
    words = [way.words(jnp.uint32(i)) for i in range(way.sets)]
    kept += [given, words]
    compared = [(float(off), float(error)) for off, error in way.differ(way.ours(given[0]), way.xla(given[0]))]
    way.row.update({"differs": max(off for off, _ in compared), "error_of_xla": max(error for _, error in compared)})
    if way.row["differs"] > calls.WRONG:
        way.row["fault"] = judged(way)
    return {
        f"{way.name} ours": lambda i: way.ours(given[i % len(given)]),
        f"{way.name} xla": lambda i: way.xla(given[i % len(given)]),
        f"{way.name} copy": lambda i: way.copy(words[i % len(words)]),
    }


def judged(way: Way) -> str:
    """Says what is wrong with our results, which differ from the jnp form's; an empty string if nothing is."""
    try:
        return way.fault(way.make, way.ours, way.xla)
    except Exception as error:
        return f"could not be compared in float64: {short(error)}"


def numbers(times: dict[str, tuple[float, ...]], instructions: dict[str, float]) -> dict[str, Any]:
    """The times of a row, as JSON has them. The limit is a copy's time, or the time of the instructions if that is longer."""
    us = {name: sorted(found)[len(found) // 2] for name, found in times.items()}
    least = {"bytes": us["copy"], **instructions}
    limit = max(least, key=lambda name: least[name])
    return {
        "us": {name: round(t, 3) for name, t in us.items()},
        "limit": limit,
        "of_limit": round(least[limit] / us["ours"], 4),
        "over_xla": round(us["xla"] / us["ours"], 4),
        "spread": round(max(times["ours"]) / min(times["ours"]) - 1, 4),
    }


# The parent: workers, and what they found


class Crew:
    """Worker processes, each with a thread here that gives it numbers until there are none, or the time is over."""

    def __init__(self, given: argparse.Namespace, folder: Path, numbers: Sequence[int]):
        self.given, self.folder = given, folder
        self.left, self.found = list(numbers), list[dict[str, Any]]()
        self.end = time.time() + 60 * given.minutes
        self.lock = threading.Lock()

    def run(self, workers: int) -> list[dict[str, Any]]:
        threads = [threading.Thread(target=self.serve, daemon=True) for _ in range(min(workers, len(self.left)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(self.found, key=lambda row: row["number"])

    def next(self) -> int | None:
        with self.lock:
            return self.left.pop(0) if self.left and time.time() < self.end else None

    def serve(self) -> None:
        process = None
        while (number := self.next()) is not None:
            process = process or self.start()
            self.report(row := self.ask(process, number))
            if process.poll() is not None or is_last(row):
                ended(process)
                process = None
        if process is not None:
            ended(process)

    def start(self) -> subprocess.Popen:
        options = [
            f"--seed={self.given.seed}",
            f"--kinds={self.given.kinds}",
            f"--folder={self.folder}",
            *(f"--{way}" for way in self.given.ways),
        ]
        command = [sys.executable, "-m", "benchmarks.any", "--worker", *options, *(["--dry"] if self.given.dry else [])]
        with open(self.folder / "log", "a") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def ask(self, process: subprocess.Popen, number: int) -> dict[str, Any]:
        assert process.stdin and process.stdout
        timer = threading.Timer(PATIENCE, process.kill)
        timer.start()
        try:
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.startswith('{"number"'):
                    return json.loads(line)
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        usual = KINDS[self.given.kinds](self.given.seed, number)
        died = f"its process ended with {process.wait()}"
        text = chain_of(usual.spec.text)
        return {"number": number, "layout": usual.layout, "shape": usual.shape, "text": text, "rows": [], "error": died}

    def report(self, row: dict[str, Any]) -> None:
        with self.lock:
            self.found.append(row)
            words = [
                f"{r['way']} {r['of_limit']:.2f} of the limit, {r['over_xla']:.2f}x XLA"
                for r in row["rows"]
                if "us" in r
            ]
            words += [f"{r.get('way', '')} {r['error']}" for r in [row, *row["rows"]] if "error" in r]
            print(
                f"{len(self.found)}: {row['number']} {row['layout']}, {row.get('seconds')} s; {'; '.join(words)}",
                flush=True,
            )


def ended(process: subprocess.Popen) -> None:
    """Wait for a worker, which ends when nothing more is written to it."""
    with contextlib.suppress(BrokenPipeError):
        process.communicate()


def flat(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of all ops, each with what is said of its op."""
    return [{k: v for k, v in op.items() if k != "rows"} | row for op in found for row in op["rows"]]


def geometric(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def badness(row: dict[str, Any]) -> float:
    return min(row[name] / least for name, least in LEAST.items())


def summary(found: Sequence[dict[str, Any]]) -> str:
    rows = flat(found)
    timed = [r for r in rows if "us" in r]
    large = [r for r in timed if r["large"]]
    lines = [f"{len(found)} ops, {len(timed)} rows timed, {len(large)} of them large"]
    groups: dict[str, list[dict[str, Any]]] = {"all large": large, "small": [r for r in timed if not r["large"]]}
    for row in large:
        groups.setdefault(row["way"], []).append(row)
    for row in sorted(large, key=lambda r: (r["way"], r["layout"])):
        groups.setdefault(f"{row['way']} {row['layout']}", []).append(row)
    lines.append(f"{'':34} rows  of the limit (worst)   over XLA (worst)   slow")
    for name, own in groups.items():
        if own:
            of, over = [r["of_limit"] for r in own], [r["over_xla"] for r in own]
            slow = sum(badness(r) < 1 for r in own)
            lines.append(
                f"{name:34} {len(own):4}  {geometric(of):8.3f} ({min(of):.3f})  {geometric(over):12.3f} ({min(over):.3f})  {slow:5}"
            )
    lines += [
        "",
        f"The worst {WORST}, by how far below {LEAST['of_limit']} of the limit or {LEAST['over_xla']} of XLA:",
    ]
    for row in sorted(large, key=badness)[:WORST]:
        lines += ["", *told(row)]
    small = [r for r in timed if not r["large"] and r["over_xla"] < LEAST["over_xla"]]
    lines += ["", f"Small ones slower than XLA ({len(small)}):"] if small else []
    lines += [told(row)[0] for row in sorted(small, key=lambda r: r["over_xla"])[:WORST]]
    wrong = [r for r in timed if r.get("fault")]
    alike = sum("fault" in r for r in timed) - len(wrong)
    lines += ["", f"Differ from the jnp form, which is as far from float64: {alike} rows"] if alike else []
    lines += ["", f"Wrong ({len(wrong)}):"] if wrong else []
    for row in wrong:
        lines += [
            f"{row['differs']:.2g} of the elements, by {row['error_of_xla']:.2g} at most; {row['fault']}",
            *told(row),
        ]
    failed = [op for op in found if "error" in op] + [r for r in rows if "error" in r]
    lines += ["", f"Failed ({len(failed)}):"] if failed else []
    for row in failed:
        lines += [f"#{row['number']} {row.get('way', '')} {row['layout']} {row['shape']}: {row['error']}"]
    return "\n".join(lines)


def told(row: dict[str, Any]) -> list[str]:
    """A row, its launch and its spec."""
    us = row["us"]
    lines = [
        f"#{row['number']} {row['way']} {row['kind']} {row['shape']}: {row['of_limit']:.3f} of the limit ({row.get('limit', 'bytes')}), {row['over_xla']:.3f}x XLA;"
        f" us: ours {us['ours']:.1f}, XLA {us['xla']:.1f}, copy {us['copy']:.1f}" + (f"; XLA took it: {row['left']}" if row["left"] else ""),
        f"  {row['registers']} registers, {row['stack']} bytes of stack; {row['launch']}",
    ]  # fmt: skip
    return lines + [f"    {line}" for line in row["text"].splitlines() if not line.startswith(("op:", "summary:"))]


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m benchmarks.any", description=__doc__.partition("\n")[0])
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--kinds", choices=KINDS, default="usual", help="which ops are drawn")
    words.add_argument("--count", type=int, default=200, help="ops")
    words.add_argument("--only", type=int, help="one op, by its number")
    words.add_argument("--minutes", type=float, default=8.0, help="begin no op after so many")
    words.add_argument("--out", type=Path, help="the JSON file to write")
    words.add_argument("--forward", action="append_const", const="forward", dest="ways", help="time no backward")
    words.add_argument("--backward", action="append_const", const="backward", dest="ways", help="time no forward")
    words.add_argument("--dry", action="store_true", help="build, plan and compile for sm_90a; needs no GPU")
    words.add_argument("--workers", type=int, help="processes")
    words.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    words.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = words.parse_args()
    given.ways = given.ways or list(WAYS)
    if given.worker:
        work(given)
        return
    workers = given.workers or min(os.cpu_count() or 1, GPU_WORKERS)
    if given.dry:
        os.environ |= {"JAX_PLATFORMS": "cpu", "CUTE_DSL_ARCH": "sm_90a"}
    elif not xla_flags.has_gpu():
        sys.exit("there is no NVIDIA GPU here: --dry builds and compiles without")
    else:
        os.environ |= {
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.75 / workers:.3f}",
        }
    wanted = range(given.count) if given.only is None else [given.only]
    start = time.time()
    with tempfile.TemporaryDirectory() as name:
        crew = Crew(given, Path(name), wanted)
        found = crew.run(workers)
        log = (Path(name) / "log").read_text(errors="replace")
    print(f"{time.time() - start:.0f} s with {workers} workers")
    result = {
        "kinds": given.kinds,
        "seed": given.seed,
        "dry": given.dry,
        "seconds": round(time.time() - start),
        "ops": found,
    }
    if given.dry:
        rows = flat(found)
        failed = [r for r in [*(op for op in found if "error" in op), *rows] if "error" in r]
        print(
            f"{len(found)} ops, {len(rows)} rows, {len(failed)} failed, {sum(bool(r.get('left')) for r in rows)} left to XLA"
        )
        for row in failed:
            print(
                f"#{row['number']} {row['layout']} {row['shape']}: {row['error']}\n{row.get('trace', '')}{row['text']}"
            )
    else:
        from codegen.measuring.times import bench

        result["machine"] = bench.machine()
        print(summary(found))
    if given.only is not None:
        print(found[0]["text"], *(json.dumps(row, indent=1) for row in found[0]["rows"]), sep="\n")
    if any("its process ended" in op.get("error", "") for op in found):
        print(log[-3000:])
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
