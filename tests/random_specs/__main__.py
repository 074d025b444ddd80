"""Tries random specs by hand: `python -m tests.random_specs --seeds 0:1000 --minutes 60`.

Batches of specs run in their own processes, so that a crash is noticed. Failures are printed with a smaller spec that
fails alike, and at the end a table of what was done.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from tests import xla_flags
from tests.random_specs.generate import Wanted, random_spec

BATCH = {False: 15, True: 500}  # specs of a process; where they are only built


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m tests.random_specs", description=__doc__.partition("\n")[0])
    words.add_argument("--seeds", default="0:1000000", help="A:B, from A up to and without B")
    words.add_argument("--minutes", type=float, default=10.0, help="stop after so many")
    words.add_argument("--variants", type=int, default=2, help="variants compiled of each kernel")
    words.add_argument("--calls", type=int, default=2, help="calls compared of each spec")
    words.add_argument("--gradients", type=int, default=1, help="calls whose gradients are compared")
    words.add_argument(
        "--ties",
        action=argparse.BooleanOptionalAction,
        default=Wanted.ties,
        help="compare computed values with their own maxima",
    )
    words.add_argument(
        "--further",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="only (or no) ops with scans, selections, attention and other further calls and types; else every second seed",
    )
    words.add_argument("--no-shrink", dest="shrink", action="store_false", help="print failing specs as they are")
    words.add_argument("--build-only", action="store_true", help="build specs, compile nothing")
    words.add_argument("--print", action="store_true", help="print the specs and try none")
    words.add_argument("--batch", action="store_true", help=argparse.SUPPRESS)
    given = words.parse_args()
    first, _, end = given.seeds.partition(":")
    seeds = range(int(first), int(end or int(first) + 1))
    (batch if given.batch or given.print else whole)(given, seeds)


def whole(given: argparse.Namespace, seeds: range) -> None:
    """Runs batch after batch until the time is over; a seed that ends its process is a failure too."""
    start, counts = time.time(), Counter[str]()
    failures: list[dict] = []
    seed = seeds.start
    try:
        while seed < seeds.stop and time.time() - start < 60 * given.minutes:
            last = min(seed + BATCH[given.build_only], seeds.stop)
            left = 60 * given.minutes - (time.time() - start)
            for row in run(given, seed, last, left):
                seed = row["seed"] + 1
                counts.update(row["counts"])
                if row["failure"]:
                    failures.append(row)
                    print(f"\n=== seed {row['seed']}: {row['failure']}\n{row['message']}\n{row['spec']}", flush=True)
                if row["refused"]:
                    counts[f"refused: {row['refused'][:90]}"] += 1
            minutes = (time.time() - start) / 60
            print(f"seeds {seeds.start}:{seed}, {len(failures)} failed, {minutes:.1f} minutes", flush=True)
    except KeyboardInterrupt:
        pass
    print()
    for name, count in sorted(counts.items()):
        print(f"{count:9.0f}  {name}")
    for failure, count in Counter(row["failure"] for row in failures).most_common():
        print(
            f"{count:9}  FAILED {failure}: seeds {', '.join(str(r['seed']) for r in failures if r['failure'] == failure)}"
        )
    sys.exit(bool(failures))


@functools.cache
def surroundings() -> dict[str, str]:
    """The environment of batches: on a GPU if there is one, next to other users of it."""
    if xla_flags.has_gpu():
        return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags.quick()}


def run(given: argparse.Namespace, first: int, last: int, seconds: float):
    """The rows that a batch in its own process prints; a batch that dies prints a row about it."""
    options = [f"--{name}={getattr(given, name)}" for name in ("variants", "calls", "gradients")]
    options += ["--ties" if given.ties else "--no-ties"]
    if given.further is not None:
        options += ["--further" if given.further else "--no-further"]
    options += [] if given.shrink else ["--no-shrink"]
    options += ["--build-only"] if given.build_only else []
    environment = surroundings() | os.environ
    command = [sys.executable, "-m", "tests.random_specs", "--batch", f"--seeds={first}:{last}", *options]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
    ) as process:  # fmt: skip
        assert process.stdout
        seed, start = first, time.time()
        for line in process.stdout:
            if line.startswith('{"seed"'):
                yield (row := json.loads(line))
                seed = row["seed"] + 1
            if time.time() - start > seconds:  # the rest of the batch is left
                process.kill()
                return
        if process.wait() and seed < last:
            log.seek(0)
            message = f"exit status {process.returncode}\n{log.read()[-2000:]}"
            yield {
                "seed": seed,
                "failure": "process: died",
                "message": message,
                "spec": "",
                "refused": "",
                "counts": {"failed": 1},
            }


def batch(given: argparse.Namespace, seeds: range) -> None:
    """Tries one spec after the other, and prints a line of JSON for each."""
    for seed in seeds:
        further = seed % 2 == 1 if given.further is None else given.further
        spec = random_spec(seed, Wanted(ties=given.ties, further=further))
        if given.print:
            print(spec.text)
            continue
        print(json.dumps(row(given, seed, spec)), flush=True)


def row(given: argparse.Namespace, seed: int, spec) -> dict:
    from tests.random_specs.shrink import shrunk
    from tests.random_specs.trial import Effort, try_spec

    effort = Effort(given.variants, given.calls, given.gradients, given.build_only)
    with tempfile.TemporaryDirectory() as folder:
        outcome = try_spec(spec, Path(folder), effort)
        found, text = outcome, spec.text
        if outcome.failure and given.shrink:

            def fails(smaller) -> bool:
                nonlocal found
                made = try_spec(smaller, Path(folder), replace(effort, calls=max(3, effort.calls)))
                found = made if made.alike(outcome) else found
                return made.alike(outcome)

            text = shrunk(spec, fails).text
    return {
        "seed": seed, "failure": outcome.failure, "message": found.message, "spec": text, "refused": outcome.refused,
        "counts": dict(outcome.counts),
    }  # fmt: skip


if __name__ == "__main__":
    main()
