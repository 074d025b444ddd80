"""A training step of the examples' models on a GPU: as plain JAX, fused by hand, by `codegen.fuse`, and in PyTorch under torch.compile.

    python -m benchmarks.models gpt --out gpt.json                  # at full size: about two minutes
    python -m benchmarks.models gpt --forms plain,fused --tiny      # anywhere, to see that it runs

The forms in JAX take turns. A time is the median over groups of five steps that are queued back to back, until they are done, by Python's
clock: dispatch is hidden behind the steps. PyTorch has a process of its own, before them. Memory is the compiler's own count: the
arguments, and the most that is alive besides (for PyTorch, the most that its allocator held). Where the time goes is the profiler's
trace of two steps, by kernels.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GROUPS, STEPS, TRACED = 4, 5, 2
FORMS = ("plain", "fused", "fuse", "torch")
LOSSES = 20

# Parts of a step: kernels whose name says what they are, then the layer that a kernel belongs to
KERNELS = {
    "attention": r"cudnn|flash|fmha|sdpa|attention",
    "products": r"gemm|nvjet|xmma|cublas|wgmma|splitK|kernel_cutlass__kernel|triton_mm",
}
LAYERS = {
    "loss": "loss|cross_entropy",
    "queries and keys": "heads|rotated|rotary",
    "norms": "norm|branch|junction",
    "activations": "mlp|dense|gelu",
    "optimiser": "update|adamw",
}


@dataclass
class Form:
    """A compiled step. Its state is replaced at each call."""

    run: Callable[[int], Any]
    memory: dict[str, int]
    scopes: dict[str, str]  # by instruction: the layers that it belongs to
    compile_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("gpt", "gemma"))
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    report = measured(given.model, given.forms.split(","), given.tiny)
    if given.out:
        given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))


def measured(model: str, names: list[str], tiny: bool) -> dict[str, Any]:
    """The report: for each form its times, memory, losses and parts."""
    rows: dict[str, dict[str, Any]] = {}
    if "torch" in names:  # first, while the GPU's memory is free
        command = [sys.executable, "-m", "benchmarks.models_torch", model, *(["--tiny"] if tiny else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        last = done.stdout.strip().splitlines()[-1:] or ["{}"]
        rows["torch"] = json.loads(last[0]) if done.returncode == 0 else {"error": done.stderr[-2000:]}
        print("torch", rows["torch"].get("ms", rows["torch"]), flush=True)
    import jax

    from codegen.measuring.times.bench import machine

    forms: dict[str, Form] = {}
    for name in (n for n in names if n != "torch"):
        step = jax_form(model, name, tiny)
        if step is None:
            print(f"{name}: not there", flush=True)
            continue
        losses = [float(step.run(i)) for i in range(LOSSES)]
        forms[name] = step
        rows[name] = {"losses": losses, "compile_s": step.compile_s, **step.memory}
        print(f"{name}: compiled in {step.compile_s} s", flush=True)
    for name, times in in_turns({name: form.run for name, form in forms.items()}).items():
        rows[name] |= {"ms": round(statistics.median(times), 3), "groups_ms": times}
        print(name, rows[name]["ms"], flush=True)
    if jax.default_backend() == "gpu":
        for name, form in forms.items():
            rows[name] |= parts_of(form)
    sizes = str(config_of(model, tiny))
    return {"model": model, "sizes": sizes, "machine": machine(), "forms": rows}


def config_of(model: str, tiny: bool) -> Any:
    module = importlib.import_module(f"examples.{model}.model")
    return module.TINY if tiny else module.Config()


def jax_form(model: str, name: str, tiny: bool) -> Form | None:
    """A form of the model, or none where this version has no `codegen.fuse`."""
    import jax
    import jax.numpy as jnp

    import codegen
    from examples import text

    train = importlib.import_module(f"examples.{model}.train")
    config = config_of(model, tiny)
    if name == "fuse":
        fuse = getattr(codegen, "fuse", None)
        if fuse is None:
            return None
        state, step = train.setup(config, "plain", fuse)
    else:
        state, step = train.setup(config, name)
    batches = [jax.device_put(text.batch(i, config.sequences, config.length, config.vocabulary)) for i in range(8)]
    start = time.perf_counter()
    compiled = step.lower(state, jnp.int32(0), *batches[0]).compile()
    took = round(time.perf_counter() - start, 1)
    analysis = compiled.memory_analysis()
    memory = {"arguments": analysis.argument_size_in_bytes, "temporaries": analysis.temp_size_in_bytes}
    held = {"state": state, "count": 0}
    del state

    def run(i: int) -> Any:
        held["state"], loss = compiled(held["state"], jnp.int32(held["count"]), *batches[i % len(batches)])
        held["count"] += 1
        return loss

    scopes = dict(re.findall(r'%?([\w.-]+) = .*op_name="([^"]*)"', compiled.as_text()))
    return Form(run, memory, scopes, took)


def in_turns(runs: Mapping[str, Callable[[int], Any]], groups: int = GROUPS) -> dict[str, list[float]]:
    """Milliseconds a step, one number a group. The first group of each warms up."""
    import jax

    times: dict[str, list[float]] = {name: [] for name in runs}
    for group in range(groups + 1):
        for name, run in runs.items():
            jax.block_until_ready(run(0))
            start = time.perf_counter()
            for i in range(STEPS):
                result = run(i)
            jax.block_until_ready(result)
            if group:
                times[name].append(round((time.perf_counter() - start) / STEPS * 1e3, 3))
    return times


def parts_of(form: Form) -> dict[str, Any]:
    """Where the time goes, in milliseconds a step: by parts, and the longest kernels with their layers."""
    import jax

    from codegen.measuring.times.device_time import traced

    jax.block_until_ready(form.run(0))
    trace = traced(lambda: jax.block_until_ready([form.run(i) for i in range(TRACED)]))
    events = trace["traceEvents"]
    devices = {
        e["pid"] for e in events if e.get("name") == "process_name" and "/device:GPU" in e["args"].get("name", "")
    }
    streams = {
        (e["pid"], e["tid"])
        for e in events
        if e.get("name") == "thread_name" and e["pid"] in devices and e["args"]["name"].startswith("Stream")
    }
    scopes = {name.replace(".", "_"): scope for name, scope in form.scopes.items()}  # as kernels are named
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and (e["pid"], e["tid"]) in streams]
    span = (max(end for _, end in spans) - min(start for start, _ in spans)) / 1e3 / TRACED
    parts: dict[str, float] = collections.defaultdict(float)
    kernels: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    for e in events:
        if e.get("ph") == "X" and (e["pid"], e["tid"]) in streams:
            scope = form.scopes.get(str(e.get("args", {}).get("hlo_op", "")), "") or scopes.get(e["name"], "")
            parts[part_of(e["name"], scope)] += e["dur"] / 1e3 / TRACED
            kernels[e["name"][:100], scope[-80:]].append(e["dur"] / 1e3)
    longest = sorted(kernels.items(), key=lambda item: -sum(item[1]))[:80]
    listed = [[round(sum(ms) / TRACED, 3), len(ms) / TRACED, *which] for which, ms in longest]
    found = {name: round(ms, 2) for name, ms in sorted(parts.items())}
    return {"parts_ms": found, "traced_ms": round(span, 2), "kernels": listed}


def part_of(kernel: str, scope: str) -> str:
    """The part of a step that a kernel belongs to."""
    for part, pattern in KERNELS.items():
        if re.search(pattern, kernel, re.IGNORECASE):
            return part
    for part, pattern in LAYERS.items():
        if re.search(pattern, scope or kernel):
            return part
    return "other"


def table(report: Mapping[str, Any]) -> str:
    """A report in Markdown: a row for each form, and where the time of a step goes."""
    rows = {name: row for name, row in report["forms"].items() if "ms" in row}
    lines = [f"{report['model']}: {report['sizes']}", ""]
    lines += [
        "| form | ms a step | plain over it | memory, GiB | temporaries, GiB | last loss |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        over = rows["plain"]["ms"] / row["ms"] if "plain" in rows else float("nan")
        held = [(row.get("arguments", 0) + row["temporaries"]) / 2**30, row["temporaries"] / 2**30]
        lines.append(
            f"| {name} | {row['ms']:.2f} | {over:.3f} | {held[0]:.1f} | {held[1]:.1f} | {row['losses'][-1]:.4f} |"
        )
    found = {name: row["parts_ms"] for name, row in rows.items() if "parts_ms" in row}
    names = sorted({part for parts in found.values() for part in parts})
    if found:
        lines += ["", "| ms a step | " + " | ".join(found) + " |", "|---|" + "---|" * len(found)]
        lines += [f"| {part} | " + " | ".join(f"{p.get(part, 0):.2f}" for p in found.values()) + " |" for part in names]
        lines += ["| all | " + " | ".join(f"{sum(p.values()):.2f}" for p in found.values()) + " |"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
