"""Tries a random spec: it builds, its kernels compile, its values and gradients agree with its reference."""

from __future__ import annotations

import contextlib
import hashlib
import random
import re
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np

from codegen.autodiff.backward import Derived
from codegen.checking import draw, testing
from codegen.checking.draw import Case
from codegen.checking.gradients import gradient_call
from codegen.checking.rounding import rounded_apart
from codegen.device import functions as device
from codegen.errors import SpecError, UserError
from codegen.measuring.compiled.compile import compile_kernel
from codegen.measuring.compiled.variants import variants
from codegen.pipeline import read_op
from codegen.plan.limits import lacks
from codegen.render import render_op
from codegen.runtime.ops.op import Op
from tests.making import make_op
from tests.mutants import check_names
from tests.random_specs.tree import RandomSpec

LOADED = device  # with CuTe DSL, whose import would count as the first spec's build
ARCH = "sm_90a"
IMPLEMENTATIONS = testing.IMPLEMENTATIONS  # on a GPU its own kernels, elsewhere interpreted
SLOW = 3.0  # seconds that a build may take, on a machine that others use too


@dataclass(frozen=True)
class Effort:
    """How much is tried: variants compiled of each kernel, calls of each implementation, calls whose gradients are
    compared; or only the build."""

    variants: int = 2
    calls: int = 2
    gradients: int = 1
    build_only: bool = False


@dataclass
class Outcome:
    """The result for a spec: `failure` is the stage and the kind of the failure, or ""."""

    name: str
    failure: str = ""
    message: str = ""
    refused: str = ""
    counts: Counter[str] = field(default_factory=Counter)

    def alike(self, other: Outcome) -> bool:
        return bool(self.failure) and self.failure == other.failure


class Failed(Exception):
    """A failure and its message."""


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """An exception inside is a failure of this stage. Failures whose messages differ only in numbers are alike."""
    try:
        yield
    except Failed:
        raise
    except testing.BrokenReference as error:
        raise Failed(f"{name}: broken reference", str(error)) from error
    except testing.Disagreement as error:
        raise Failed(f"{name}: disagreement", str(error)) from error
    except (Exception, RecursionError) as error:
        text = "".join(traceback.format_exception(error, limit=-6))[-6000:]
        raise Failed(f"{name}: {type(error).__name__} {_shape(str(error))}", text) from error


@contextlib.contextmanager
def timed(name: str, outcome: Outcome) -> Iterator[None]:
    start = time.process_time()
    try:
        yield
    finally:
        outcome.counts[f"seconds: {name}"] += time.process_time() - start  # type: ignore[assignment]


def _shape(message: str) -> str:
    """A message without the parts that differ between calls."""
    first = message.strip().partition("\n")[0][:120]
    return re.sub(r"0x[0-9a-f]+|\d+|'[^']*'|%\w+", "_", first)


def try_spec(spec: RandomSpec, folder: Path, effort: Effort = Effort()) -> Outcome:
    """Tries everything. Raises nothing, unless the process ends."""
    outcome = Outcome(spec.name)
    try:
        with stage("build"):
            start = time.process_time()
            try:
                if effort.build_only:
                    check_names(render_op(read_op(f"specs/{spec.name}.yaml", spec.text)))
                else:
                    op = make_op(folder, spec.text)
            except SpecError as error:
                outcome.refused = error.diagnostics[0].message
                outcome.counts["refused"] += 1
                return outcome
            if time.process_time() - start > SLOW:
                raise Failed("build: slow", f"{time.process_time() - start:.1f} s")
        outcome.counts["built"] += 1
        if effort.build_only:
            return outcome
        outcome.counts[f"kind: {op.plan.kind}"] += 1
        with timed("compile", outcome):
            _compile(op, effort, outcome)
        with timed("values", outcome):
            _values(op, effort, outcome)
        if op.spec.grad != "none" and any(op.spec.kind(a) == "float" for a in op.spec.outputs):
            with timed("gradients", outcome):
                _gradients(op, spec, effort, outcome)
    except Failed as failed:
        outcome.failure, outcome.message = failed.args
        outcome.counts["failed"] += 1
    return outcome


def _compile(op: Op, effort: Effort, outcome: Outcome) -> None:
    """Compiles some variants of every kernel."""
    rng = random.Random(op.spec.op)
    for kernel in op.kernels:
        with stage(f"compile {kernel.spec.op.removeprefix(op.spec.op) or 'forward'}"):
            found = [v for v in variants(kernel) if not lacks(kernel, v.types, ARCH)]
            for variant in rng.sample(found, min(effort.variants, len(found))):
                try:
                    compile_kernel(kernel, variant, ARCH)
                except UserError:  # no tile: products by XLA
                    outcome.counts["products without a kernel"] += 1
                    continue
                outcome.counts["kernels compiled"] += 1


def cases(op: Op, count: int, salt: str, implementation: str, specials: bool | None = None) -> list[Case]:
    """Calls of an op that an implementation runs, the same every time, without Hypothesis's first one, which is the simplest."""
    found: list[Case] = []
    gradients = salt == "gradients"
    types = draw.types_of_calls(op, implementation, gradients)

    @hypothesis.settings(max_examples=count + 1, deadline=None, database=None, phases=[hypothesis.Phase.generate],
                         suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip
    @hypothesis.seed(int(hashlib.sha256(f"{op.spec.op} {salt}".encode()).hexdigest(), 16) % 2**32)
    @hypothesis.given(draw.cases(op, specials=specials, types=types, gradients=gradients))
    def collect(case: Case) -> None:
        found.append(case)

    if types:
        collect()
    return [case for case in found[1:] if not lacks(op, case.types, ARCH)]


def _values(op: Op, effort: Effort, outcome: Outcome) -> None:
    report = testing.Report()
    for implementation in IMPLEMENTATIONS:
        for case in cases(op, effort.calls, "values", implementation):
            with stage(f"values {implementation}"):
                testing.check_case(op, implementation, case, report)
            outcome.counts["calls compared"] += 1
    outcome.counts["elements"] += report.elements
    outcome.counts["elements that differ, undecided"] += report.undecided


def _gradients(op: Op, spec: RandomSpec, effort: Effort, outcome: Outcome) -> None:
    kernel = isinstance(op.backward, Derived)
    outcome.counts["backwards that are kernels" if kernel else "backwards by jnp"] += 1
    dynamic = any(p.kind == "float" and not p.static for p in op.spec.params)
    for implementation in IMPLEMENTATIONS:
        for case in cases(op, effort.gradients, "gradients", implementation, specials=False):
            if not dynamic and not any(
                op.spec.kind(a) == "float" and a.name not in case.absent for a in op.spec.inputs
            ):
                continue
            try:
                with stage(f"gradient {implementation}"):
                    testing.check_gradient_case(op, implementation, case)
            except Failed as failed:
                reason = unjudged(spec, failed.args[1]) if failed.args[0].endswith("disagreement") else ""
                if not reason and failed.args[0].endswith("disagreement") and jumps(op, case):
                    reason = "it jumps where operations are rounded"
                if not reason:
                    raise
                outcome.counts[f"gradients that differ, unjudged: {reason}"] += 1
                continue
            outcome.counts["gradients compared"] += 1


def jumps(op: Op, case: Case) -> bool:
    """Whether the reference's own gradient changes where each of its operations is rounded as in float32: another element is
    the smallest, or a comparison goes the other way."""
    with jax.enable_x64(True):
        given = gradient_call(op, replace(case, scale=1.0))
        outer, rounded = tuple(map(jnp.asarray, given.outer)), rounded_apart(given.exact)
        for seed in range(16):
            made = rounded(seed, given.wide, outer)
            for name, expected in given.expected.items():
                largest = np.abs(expected).max(initial=0, where=np.isfinite(expected))
                if (np.abs(np.asarray(made[name]) - expected) > 1e-3 * largest).any():
                    return True
    return False


def unjudged(spec: RandomSpec, message: str) -> str:
    """Why the tolerance of gradients does not apply to a spec: it is meant for float32, moderate values, and functions
    that are accurate to float32."""
    if spec.wild:
        return "values are not moderate"
    if ("math", "fast") in spec.keys:
        return "math: fast"
    if any(n.op == "cast" and n.kind == "float" and n.attr != "float32" for n in spec.values):
        return "a cast rounds cotangents"
    halves = any("float16" in spec.dtypes(a) for a in spec.inputs) and any(n.op == "product" for n in spec.values)
    if halves and re.search(r"is NaN in (\d+) of \1 elements", message):
        return "a product's cotangent that float16 does not hold"
    return ""
