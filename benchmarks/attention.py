"""Attention on a GPU against cuDNN, which `jax.nn.dot_product_attention` calls, in turns in one run, and the error of both against float64.

    python -m benchmarks.attention --out attention.json     # some minutes, most of them to compile
    python -m benchmarks.attention --cases "causal,soft cap"
    python -m benchmarks.attention --tiny                   # anywhere, to see that it runs

A case is the score of a chain: ours is the op of that chain, cuDNN's takes the same mask as its own where it has it, else as a dense mask
or bias. A backward is the function that `jax.vjp` returns, alone. Errors are root mean squares over those of the exact results, of one
head; of gradients, the largest. `tiles` is the part of all tiles that a mask leaves. Worker processes compile our kernels at the
same time into the cache on disk.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

GROUPS, CALLS = 5, 10
WORKERS = 12
SEQUENCE, HEADS = 16384, 16
LONG, SHORT = 32768, 512  # positions of sequences in decoding
CAP, WINDOW = 50.0, 1024

Arrays = dict[str, Any]

SPEC = """
op: {op}
summary: Measured by benchmarks/attention.py.
types: {{T: [bfloat16]}}
inputs: {{q: "T[B, Q, (H G), D]", k: "T[B, S, H, D]", v: "T[B, S, H, E]"{more}}}
outputs: {{o: "T[B, Q, (H G), E]"}}
params: {{scale: {scale}}}
chain: |
  s = (q @ k) * scale
  o = softmax({scores}, axis=S) @ v
reference: |
  o = q
"""


@dataclass(frozen=True)
class Case:
    """The scores of a chain, `exact` ones for arrays of products `s`, and how cuDNN takes them: keywords, or None."""

    name: str
    scores: str = "where(index(S) <= index(Q), s, -inf)"
    exact: Callable[..., Any] = lambda s, i, j, given: seen(s, j <= i)
    rival: Callable[[Arrays, int, int], Arrays] | None = lambda given, rows, columns: {"is_causal": True}
    more: Mapping[str, str] | None = None  # further inputs
    d: int = 128
    e: int = 128
    batch: int = 1
    rows: int = SEQUENCE
    columns: int = SEQUENCE
    heads: int = HEADS
    groups: int = 1  # heads of q that share one of k
    backward: bool = True

    @property
    def op(self) -> str:
        return "attention_" + self.name.lower().replace(" ", "_").replace("/", "_")

    @property
    def text(self) -> str:
        more = "".join(f', {name}: "{kind}"' for name, kind in (self.more or {}).items())
        return SPEC.format(op=self.op, more=more, scale=self.d**-0.5, scores=self.scores)

    def tiny(self) -> Case:
        """The same for a CPU."""
        return replace(self, rows=min(self.rows, 256), columns=256, heads=min(self.heads, 2))


def seen(s: Any, mask: Any) -> Any:
    import jax.numpy as jnp

    return jnp.where(mask, s, -jnp.inf)


def positions(rows: int, columns: int) -> tuple[Any, Any]:
    import jax.numpy as jnp

    return jnp.arange(rows)[:, None], jnp.arange(columns)


def capped(s: Any, i: Any, j: Any, given: Arrays) -> Any:
    import jax.numpy as jnp

    return seen(CAP * jnp.tanh(s / CAP), j <= i)


def dense_alibi(given: Arrays, rows: int, columns: int) -> Arrays:
    import jax.numpy as jnp

    i, j = positions(rows, columns)
    return {"is_causal": True, "bias": (given["slopes"][:, None, None] * (j - i)).astype(jnp.bfloat16)[None]}


CAUSAL = Case("causal")
SCORES = (
    CAUSAL,
    Case("full", "s", lambda s, i, j, given: s, lambda given, rows, columns: {}),
    Case("soft cap", f"where(index(S) <= index(Q), {CAP} * tanh(s / {CAP}), -inf)", capped, None),
    Case(
        "ALiBi",
        "where(index(S) <= index(Q), s + slopes * (index(S) - index(Q)), -inf)",
        lambda s, i, j, given: seen(s + given["slopes"][:, None, None] * (j - i), j <= i),
        dense_alibi,
        {"slopes": "float32[H]"},
    ),
    Case(
        "bias",
        "s + bias",
        lambda s, i, j, given: s + given["bias"],
        lambda given, rows, columns: {"bias": given["bias"][None]},
        {"bias": "T[H, Q, S]"}, batch=2, rows=SEQUENCE // 2, columns=SEQUENCE // 2,
    ),
    Case("full of two", "s", lambda s, i, j, given: s, lambda given, rows, columns: {}, batch=2, rows=SEQUENCE // 2, columns=SEQUENCE // 2),
    Case(
        "window",
        f"where((index(S) <= index(Q)) & (index(Q) - index(S) < {WINDOW}), s, -inf)",
        lambda s, i, j, given: seen(s, (j <= i) & (i - j < WINDOW)),
        lambda given, rows, columns: {"is_causal": True, "local_window_size": (WINDOW - 1, 0)},
    ),
    Case(
        "documents",
        "where((index(S) <= index(Q)) & (own == their), s, -inf)",
        lambda s, i, j, given: seen(s, (j <= i) & (given["own"][:, None, :, None] == given["their"][:, None, None])),
        lambda given, rows, columns: {"is_causal": True, "mask": given["own"][:, None, :, None] == given["their"][:, None, None]},
        {"own": "int32[B, Q]", "their": "int32[B, S]"},
    ),
)  # fmt: skip
SIZES = tuple(
    Case(f"heads of {d}" if d == e else f"heads of {d}/{e}", d=d, e=e, heads=heads)
    for d, e, heads in ((64, 64, 32), (80, 80, 24), (96, 96, 20), (192, 128, 12), (256, 256, 8))
)
DECODING = tuple(
    Case(
        name,
        "where(index(S) < lengths, s, -inf)",
        lambda s, i, j, given: seen(s, j < given["lengths"][:, None, None, None]),
        lambda given, rows, columns: {"key_value_seq_lengths": given["lengths"]},
        {"lengths": "int32[B]"}, batch=8, rows=rows, columns=LONG, heads=8, groups=4, backward=False,
    )
    for name, rows in (("decoding", 1), ("decoding 4 rows", 4), ("decoding uneven", 1))
)  # fmt: skip
CASES = SCORES + SIZES + DECODING


def arrays_of(case: Case) -> Arrays:
    """Random arguments."""
    import jax
    import jax.numpy as jnp

    keys = iter(jax.random.split(jax.random.key(1), 4))
    B, Q, S, H, N = case.batch, case.rows, case.columns, case.heads, case.heads * case.groups
    shapes = (B, Q, N, case.d), (B, S, H, case.d), (B, S, H, case.e)
    found = {
        name: jax.random.normal(next(keys), shape, jnp.bfloat16) for name, shape in zip("qkv", shapes, strict=True)
    }
    own = {
        "slopes": lambda: jnp.exp2(-8.0 * (jnp.arange(H) + 1) / H),
        "bias": lambda: jax.random.normal(next(keys), (H, Q, S), jnp.bfloat16),
        "own": lambda: jnp.broadcast_to(jnp.arange(Q) * 16 // Q, (B, Q)).astype(jnp.int32),
        "their": lambda: jnp.broadcast_to(jnp.arange(S) * 16 // S, (B, S)).astype(jnp.int32),
        "lengths": lambda: jnp.where(jnp.arange(B) % 8 == 3, S, SHORT if "uneven" in case.name else S).astype(
            jnp.int32
        ),
    }
    return found | {name: own[name]() for name in case.more or {}}


def exactly(case: Case, given: Arrays) -> Any:
    """The formula, in the type of its arguments."""
    import jax
    import jax.numpy as jnp

    q, k, v = (given[name] for name in "qkv")
    b, rows, heads, d = q.shape
    grouped = q.reshape(b, rows, k.shape[2], heads // k.shape[2], d)
    s = jnp.einsum("bqhgd,bshd->bhgqs", grouped, k).reshape(b, heads, rows, k.shape[1]) * case.d**-0.5
    p = jax.nn.softmax(case.exact(s, *positions(rows, k.shape[1]), given))
    o = jnp.einsum("bhgqs,bshe->bqhge", p.reshape(b, k.shape[2], heads // k.shape[2], rows, k.shape[1]), v)
    return o.reshape(b, rows, heads, v.shape[-1])


def forms(case: Case, op: Any, tiny: bool) -> dict[str, Callable[[Arrays], Any]]:
    """The functions to measure, of all arrays."""
    import jax

    rival = case.rival
    found: dict[str, Callable[[Arrays], Any]] = {"ours": lambda given: op(**given)}
    if rival is not None:

        def theirs(given: Arrays) -> Any:
            own = rival(given, case.rows, case.columns)
            how = "xla" if tiny else "cudnn"
            return jax.nn.dot_product_attention(*(given[n] for n in "qkv"), **own, implementation=how)

        found["cuDNN"] = theirs
    return found


@dataclass(frozen=True)
class Way:
    """A form of a case, compiled: its forward, and of its backward what gives the saved arrays and what takes them."""

    forward: Any
    saving: Any = None
    backward: Any = None


def pulled(form: Callable[[Arrays], Any], given: Arrays) -> Any:
    """The function that gives the gradients of floating arrays."""
    import jax
    import jax.numpy as jnp

    own = {name: x for name, x in given.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    rest = {name: x for name, x in given.items() if name not in own}
    return jax.vjp(lambda own: form({**rest, **own}), own)[1]


def compiled(case: Case, form: Callable[[Arrays], Any], backward: bool) -> Way:
    import jax

    given = jax.eval_shape(lambda: arrays_of(case))
    forward = jax.jit(form).lower(given).compile()
    if not backward:
        return Way(forward)
    saving = jax.jit(lambda given: pulled(form, given))
    pull, do = jax.eval_shape(saving, given), jax.eval_shape(form, given)
    apply = jax.jit(lambda pull, do: pull(do)[0])
    return Way(forward, saving.lower(given).compile(), apply.lower(pull, do).compile())


def prepared(case: Case, form: Callable[[Arrays], Any]) -> tuple[Way | None, str]:
    """A form, compiled; where that fails for the backward, without it; and why."""
    why = ""
    for backward in (True, False) if case.backward else (False,):
        try:
            return compiled(case, form, backward), why
        except Exception as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return None, why


def written(folder: Path, cases: Sequence[Case]) -> dict[str, Path]:
    """The modules of the cases' ops."""
    from codegen.pipeline import read_op
    from codegen.render import render_op

    found = {}
    for case in cases:
        found[case.name] = folder / f"{case.op}.py"
        found[case.name].write_text(render_op(read_op(f"specs/{case.op}.yaml", case.text)))
    return found


def imported(path: Path) -> Any:
    sys.path.insert(0, str(path.parent))
    try:
        return getattr(__import__(path.stem), path.stem)
    finally:
        sys.path.remove(str(path.parent))


def compile_ours(name: str, path: Path) -> None:
    """Compile a case's kernels into the cache; a worker's task."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "CUTE_DSL_ARCH": "sm_90a"}
    import jax

    case = next(c for c in CASES if c.name == name)
    form, given = forms(case, imported(path), False)["ours"], jax.eval_shape(lambda: arrays_of(case))
    jax.jit(form).trace(given).lower(lowering_platforms=("cuda",))
    if case.backward:
        do = jax.eval_shape(form, given)
        jax.jit(lambda given, do: pulled(form, given)(do)).trace(given, do).lower(lowering_platforms=("cuda",))


# What is measured


def errors(case: Case, ways: Mapping[str, Way], given: Arrays, made: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """The errors of each form's forward and backward, of the first head."""
    import jax
    import jax.numpy as jnp

    def first(name: str, x: Any) -> Any:
        of_heads = {"q": 2, "k": 2, "v": 2, "slopes": 0, "bias": 0}
        own = jax.lax.slice_in_dim(x, 0, 1, axis=of_heads[name]) if name in of_heads else x
        return own.astype(jnp.float64) if jnp.issubdtype(own.dtype, jnp.floating) else own

    def off(found: Any, exact: Any) -> float:
        return float(jnp.sqrt(jnp.mean((found - exact) ** 2) / jnp.mean(exact**2)))

    with jax.enable_x64(True):
        own = {name: first(name, x) for name, x in given.items()}
        o = jax.jit(lambda own: exactly(case, own))(own)
        found = {name: {"forward": off(first("q", made[name][0]), o)} for name in ways}
        if case.backward:
            do = first("q", cotangent(made["ours"][0]))
            gradients = jax.jit(lambda own, do: pulled(lambda x: exactly(case, x), own)(do)[0])(own, do)
            for name, (_, theirs) in made.items():
                if theirs is not None:
                    each = [off(first(n, theirs[n]), x) for n, x in gradients.items() if n in theirs]
                    found[name]["backward"] = max(each)
    return {name: {way: float(f"{x:.3e}") for way, x in own.items()} for name, own in found.items()}


def cotangent(o: Any) -> Any:
    import jax

    return jax.random.normal(jax.random.key(2), o.shape, o.dtype)


def share(case: Case, given: Arrays, tile: tuple[int, int] = (128, 128)) -> float:
    """The part of all tiles in which the mask holds somewhere, of the first sequence."""
    import jax.numpy as jnp

    i, j = positions(case.rows, case.columns)
    zeros = jnp.zeros((1, 1, case.rows, case.columns), jnp.float32)
    alone = {name: x[:1] for name, x in given.items()}
    there = jnp.isfinite(jnp.broadcast_to(case.exact(zeros, i, j, alone), zeros.shape)[0, 0])
    rows, columns = (n // t for n, t in zip(there.shape, tile, strict=True))
    return float(there.reshape(rows, tile[0], columns, tile[1]).any(axis=(1, 3)).mean())


def measured(cases: Sequence[Case], ways: Mapping[str, Mapping[str, Way]], tiny: bool) -> list[dict[str, Any]]:
    """The rows of cases that take turns."""
    import jax

    from codegen.measuring.times.bench import measure

    calls: dict[str, Callable[[int], Any]] = {}
    rows: list[dict[str, Any]] = []
    for case in cases:
        given, own, made = arrays_of(case), ways[case.name], {}
        row: dict[str, Any] = {"case": case.name, "why": {}}
        rows.append(row)
        for name, way in own.items():
            try:
                o, gradients = way.forward(given), None
                calls[f"{case.name}|{name}|forward"] = lambda i, way=way, given=given: way.forward(given)
                if way.backward is not None:
                    pull, do = way.saving(given), cotangent(o)
                    gradients = way.backward(pull, do)
                    calls[f"{case.name}|{name}|backward"] = lambda i, way=way, pull=pull, do=do: way.backward(pull, do)
                made[name] = jax.block_until_ready((o, gradients))
            except Exception as error:
                row["why"][name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        if "ours" in made and case.rows > 4:
            row["errors"] = errors(case, {n: own[n] for n in made}, given, made)
            row["tiles"] = round(share(case, given), 4) if "bias" not in given and "slopes" not in given else None
        if not case.backward:
            words = jax.random.bits(jax.random.key(3), (int(bytes_read(case, given)) // 8,), "uint32")
            copy = jax.jit(lambda words: words ^ 1)
            calls[f"{case.name}|copy|forward"] = lambda i, copy=copy, words=words: copy(words)
    times = measure(calls, 1 if tiny else GROUPS, 1 if tiny else CALLS)
    for row in rows:
        for key, found in times.items():
            case_name, name, way = key.split("|")
            if case_name == row["case"]:
                row.setdefault(way, {})[name] = round(statistics.median(found), 1)
    return rows


def bytes_read(case: Case, given: Arrays) -> float:
    """The bytes of k and v that a call of decoding reads."""
    return float(given["lengths"].sum()) * case.heads * (case.d + case.e) * 2


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    lines = ["| | forward | cuDNN | over it | backward | cuDNN | over it | error | cuDNN |", "|---" * 9 + "|"]
    for row in rows:
        cells = [row["case"]]
        for way in ("forward", "backward"):
            us = row.get(way, {})
            ours, theirs = us.get("ours"), us.get("cuDNN") or us.get("copy")
            other = "" if theirs is None else f"{theirs:.0f}" + (" (a copy)" if "cuDNN" not in us else "")
            ratio = f"{theirs / ours:.2f}" if ours and theirs else ""
            cells += ["" if ours is None else f"{ours:.0f}", other, ratio]
        found = row.get("errors", {})
        for name in ("ours", "cuDNN"):
            cells.append(" / ".join(f"{found[name][w] * 1e3:.1f}" for w in found.get(name, {})))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def chosen(names: str, tiny: bool) -> list[Case]:
    cases = [c for c in CASES if not names or c.name in names.split(",")]
    return [c.tiny() for c in cases] if tiny else cases


def main() -> None:
    report: dict[str, Any] = {}
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--cases", default="", help=f"some of: {', '.join(c.name for c in CASES)}")
    words.add_argument("--tiny", action="store_true")
    words.add_argument("--out", type=Path)
    words.add_argument("--join", type=Path, nargs="+", help="files of some cases each, to one: nothing is measured")
    given = words.parse_args()
    if given.join:
        found = [json.loads(path.read_text()) for path in given.join]
        report = {"runs": [{k: v for k, v in one.items() if k != "rows"} for one in found]}
        report["rows"] = [{"run": i, **row} for i, one in enumerate(found) for row in one["rows"]]
        given.out.write_text(json.dumps(report, indent=1) + "\n")
        print(table(report["rows"]))
        return
    cases = chosen(given.cases, given.tiny)
    with tempfile.TemporaryDirectory() as name:
        for report in run(cases, Path(name), given.tiny):
            print(json.dumps(report["rows"][-1]), flush=True)
            if given.out:
                given.out.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report["rows"]))


def run(cases: Sequence[Case], folder: Path, tiny: bool) -> Iterator[dict[str, Any]]:
    """The report so far, after each set of cases that take turns."""
    start = time.time()
    made = all_compiled(cases, folder, tiny)
    from codegen.measuring.times.bench import machine

    report: dict[str, Any] = {
        "machine": {} if tiny else machine(),
        "compiling_s": round(time.time() - start, 1),
        "rows": [],
    }
    print(f"compiled in {report['compiling_s']} s", flush=True)
    scores = [c for c in cases if c.name in {s.name for s in SCORES}]
    for group in ([scores] if scores else []) + [[c] for c in cases if c not in scores]:
        ways = {c.name: {n: w for n, (w, _) in made[c.name].items() if w is not None} for c in group}
        rows = measured(group, ways, tiny)
        for row in rows:
            row["why"] |= {n: why for n, (_, why) in made[row["case"]].items() if why}
        report["rows"] += rows
        yield report


def all_compiled(cases: Sequence[Case], folder: Path, tiny: bool) -> dict[str, dict[str, tuple[Way | None, str]]]:
    """The forms of each case, compiled at the same time: our kernels by processes, for a GPU."""
    paths = written(folder, cases)
    count = min(WORKERS, len(cases), os.cpu_count() or 1)
    with concurrent.futures.ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as workers:
        pending = {} if tiny else {c.name: workers.submit(compile_ours, c.name, paths[c.name]) for c in cases}

        def both(case: Case) -> dict[str, tuple[Way | None, str]]:
            made = {}
            for name, form in reversed(forms(case, imported(paths[case.name]), tiny).items()):
                if name == "ours" and pending and (error := pending[case.name].exception()):
                    print(f"{case.name}: {error}", flush=True)
                made[name] = prepared(case, form)
            return made

        with concurrent.futures.ThreadPoolExecutor(count) as threads:
            return dict(zip((c.name for c in cases), threads.map(both, cases), strict=True))


if __name__ == "__main__":
    main()
