"""A mutation fuzzer of spec files: it edits bytes, tokens, lines and trees of real specs.

Every mutant must end in a `SpecError`, or in an op whose module renders and compiles, within a second and limited
memory. The seed and the number of a mutant determine it, so a failure can be repeated.

    python -m tests.mutants --inputs 1000000 --processes 2
"""

from __future__ import annotations

import argparse
import ast
import builtins
import collections
import contextlib
import functools
import gc
import json
import multiprocessing
import multiprocessing.connection
import random
import re
import resource
import signal
import symtable
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from codegen.errors import SpecError
from codegen.graph.nodes import DTYPES
from codegen.language.formula.calls import functions
from codegen.pipeline import read_op
from codegen.plan.op import Op
from codegen.render import render_op
from codegen.render.literals import dict_literal
from codegen.spec.embedding import to_data
from codegen.spec.spec import Spec
from codegen.spec.specfile import KEYS, load_spec
from codegen.spec.tree import Scalar
from tests.places import ROOT

GOOD, BAD = ("specs", "tests/pure/good_specs"), ("tests/pure/bad_specs",)
SECONDS = 1.0  # of processor time that an input may take
MEMORY = 512 * 2**20  # bytes of address space that a process may use in addition to those at its start
CHUNK = 1000  # inputs that one process examines

WORDS = [
    *KEYS, *DTYPES, *functions(), "T", "N", "...", "x", "y", "x[0]", "p[1]", "T[..., N]", "T[..., (2 N)]", "T[..., (B G=128)]",
    "T[] = 0", "axis=N", "axis=...", "axis=(..., N)", "0", "1", "-1", "2.5", "64", "1e-6", "1e999999999", ".inf", ".nan",
    "9999999999999999999", "16777217", "0x10", "1_0", "true", "null", "~", "=", "==", "+", "-", "*", "/", "**", "@", "&", "|", "~x",
    "(", ")", "[", "]", "{", "}", ",", ":", ": ", "#", "'", '"', "\\", "\n", "\n  ", "\n    ", "  ", "\t", "- ", "? ", "| ", ">",
    "&a ", "*a", "!!x ", "%", "---\n", "...\n", "<<", "é", "漢", "\x00", "\x1b[31m", "\x85", "\u2028", "\u202e", "\ufeff", "\ud800",
    '"\\0"', '"\\e[31m"', '"\\u202e"', '"\\ud800"', '"\\N"', "𝐢𝐟", "²", "lambda", "if", "else", "for", "not", "and", "in", "jnp.",
    "jax.nn.", ".at[0].set(1)", "__import__('os')", "f'{x}'",
]  # fmt: skip


# The rules for every outcome


def examine(data: bytes | str, stem: str = "f") -> Op | SpecError:
    """Reads and renders a spec. Raises `AssertionError` for an outcome that none may have, and any exception of the
    generator other than `SpecError`."""
    outcome, source, seconds = timed(data, stem)
    if (
        seconds >= SECONDS
    ):  # the machine's fault, or the first of its kind in a process, which waits for modules and templates
        outcome, source, seconds = timed(data, stem)
    if seconds >= SECONDS:
        raise Slow(f"{seconds:.2f} seconds")
    if isinstance(outcome, SpecError):
        check_error(outcome, data)
    else:
        check_names(source)
        check_characters(source)
        check_data(outcome.spec, source)
    return outcome


def timed(data: bytes | str, stem: str) -> tuple[Op | SpecError, str, float]:
    """The outcome of a spec, the module rendered from it ("" for an error), and the seconds of processor time that it took."""
    outcome: Op | SpecError
    source = ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        start = time.process_time()
        try:
            outcome = read_op(f"specs/{stem}.yaml", data)
            source = render_op(outcome)
            compile(source, "generated.py", "exec")
        except SpecError as error:
            outcome = error
        return outcome, source, time.process_time() - start


def check_names(source: str) -> None:
    """Checks that every name which a generated function reads is its own, the module's or Python's."""
    module = symtable.symtable(source, "generated.py", "exec")
    known = {*dir(builtins), *(s.get_name() for s in module.get_symbols() if s.is_assigned() or s.is_imported())}
    tables = list(module.get_children())
    while tables:
        table = tables.pop()
        tables += table.get_children()
        if isinstance(table, symtable.Function):
            assert known.issuperset(table.get_globals()), table.get_name()


def check_data(spec: Spec, source: str) -> None:
    """Checks that the data in a generated module reads as the spec that it was made from."""
    written = dict_literal(to_data(spec))
    assert f"\nSPEC = {written}\n" in source
    data = ast.literal_eval(written)
    assert data == to_data(spec)
    assert meaning(load_spec(spec.path, data)) == meaning(spec)


def meaning(spec: Spec) -> dict[str, str]:
    """The content of a spec, without its places. Values are texts, since 1, 1.0 and True are equal, and a NaN is not
    equal to itself."""

    def plain(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        return value.value if isinstance(value, Scalar) else value

    found = {item.name: repr(plain(getattr(spec, item.name))) for item in fields(spec) if item.name != "graph"}
    return found | {"source": "", "places": repr(sorted(spec.places))}


def check_error(error: SpecError, data: bytes | str) -> None:
    """Checks that every error has a message, and a place in the file."""
    text = data if isinstance(data, str) else data.decode(errors="replace")
    rows = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert error.diagnostics
    for diagnostic in error.diagnostics:
        span = diagnostic.span
        assert diagnostic.message
        assert "\n" not in diagnostic.message
        assert len(diagnostic.message) < 1000
        assert 1 <= span.line <= len(rows)
        assert span.length >= 1
        if "UTF-8" not in diagnostic.message:  # bytes are counted: there are no characters
            assert 1 <= span.column <= len(rows[span.line - 1]) + 1
    assert str(error).count(": error: ") >= min(100, len(error.diagnostics))
    check_characters(str(error))


# Control characters, marks that change the direction of text, line breaks that Python does not know, lone surrogates
UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def check_characters(text: str) -> None:
    """Checks that a text has no character that a terminal would not show as it is."""
    found = UNSEEN.search(text)
    assert not found, f"U+{ord(found.group()):04X} in {text[max(0, found.start() - 40) : found.end()]!r}"


# Mutants


@functools.cache
def corpus(folders: tuple[str, ...] = (*GOOD, *BAD)) -> tuple[tuple[str, str], ...]:
    """Names and texts of the specs that are mutated."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).glob("*.yaml"))]
    return tuple((path.stem, path.read_bytes().decode("utf-8", "replace")) for path in paths)


@functools.cache
def trees() -> tuple[tuple[str, dict[str, Any]], ...]:
    """The specs that are YAML mappings, with all scalars as text."""
    found = []
    for stem, text in corpus():
        try:
            tree = yaml.load(text, Loader=yaml.CBaseLoader)
        except (yaml.YAMLError, ValueError):
            continue
        if isinstance(tree, dict) and isinstance(tree.get("chain"), str):
            found.append((stem, tree))
    return tuple(found)


@functools.cache
def expressions() -> tuple[str, ...]:
    """Every part of every formula of the corpus that is not a bare name."""
    found: set[str] = set()
    for _, tree in trees():
        for text in (tree["chain"], str(tree.get("reference", ""))):
            with contextlib.suppress(SyntaxError, ValueError):  # ValueError: a number too long to print
                parts = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.expr)]
                found |= {ast.unparse(node) for node in parts if not isinstance(node, ast.Name)}
    return tuple(sorted(text for text in found if len(text) < 200 and is_expression(text)))


def is_expression(text: str) -> bool:
    """Whether a text is an expression by itself, which a slice is not."""
    with contextlib.suppress(SyntaxError):
        ast.parse(text, mode="eval")
        return True
    return False


def mutant(seed: int, number: int) -> tuple[str, bytes]:
    """The stem and the bytes of one input."""
    rng = random.Random(f"{seed}:{number}")
    stem, text = rng.choice(corpus(BAD if rng.random() < 0.1 else GOOD))
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3, 5))):
        with contextlib.suppress(SyntaxError, ValueError, IndexError, RecursionError):  # not a formula
            stem, text = rng.choice(MUTATIONS)(rng, stem, text)
    return stem, to_bytes(text)


def to_bytes(text: str) -> bytes:
    """A text as bytes: bytes that were not UTF-8 are restored, and other lone surrogates are written as in a file."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def mutate_bytes(rng: random.Random, stem: str, text: str) -> tuple[str, str]:
    data = bytearray(to_bytes(text))
    start = rng.randint(0, len(data))
    end = min(len(data), start + rng.choice((1, 1, 2, 8, 40)))
    kind = rng.randrange(5)
    if kind == 0:
        del data[start:end]
    elif kind == 1:
        data[start:start] = data[start:end] * rng.choice((1, 2, 100))
    elif kind == 2:
        data[start:end] = rng.randbytes(end - start)
    elif kind == 3:
        data.insert(start, rng.randrange(128))
    else:
        for i in range(start, end):
            data[i] ^= 1 << rng.randrange(8)
    return stem, data.decode("utf-8", "surrogateescape")


def mutate_tokens(rng: random.Random, stem: str, text: str) -> tuple[str, str]:
    tokens = re.findall(r"\w+|[ \t]+|.|\n", text, re.DOTALL)
    if not tokens:
        return stem, rng.choice(WORDS)
    i, j = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    kind = rng.randrange(6)
    if kind == 0:
        del tokens[i]
    elif kind == 1:
        tokens[i] = rng.choice(WORDS)
    elif kind == 2:
        tokens[i], tokens[j] = tokens[j], tokens[i]
    elif kind == 3:
        tokens.insert(i, tokens[j] if rng.random() < 0.5 else rng.choice(WORDS))
    elif kind == 4:  # one name replaced by another, everywhere
        old, new = tokens[i], tokens[j]
        tokens = [new if token == old else token for token in tokens]
    else:
        numbers = [k for k, token in enumerate(tokens) if token.isdigit()]
        if numbers:
            tokens[rng.choice(numbers)] = rng.choice(("0", "1", "2", "3", "64", "65", "1000", "2147483648", "9" * 30))
    return stem, "".join(tokens)


def mutate_lines(rng: random.Random, stem: str, text: str) -> tuple[str, str]:
    lines = text.split("\n")
    i, j = sorted((rng.randrange(len(lines)), rng.randrange(len(lines))))
    kind = rng.randrange(7)
    if kind == 0:
        del lines[i : i + rng.choice((1, 1, 3))]
    elif kind == 1:
        lines[i], lines[j] = lines[j], lines[i]
    elif kind == 2:
        lines.insert(j, lines[i])
    elif kind == 3:
        lines[i] = rng.choice((" ", "  ", "\t", "- ", "# ")) + lines[i]
    elif kind == 4:
        lines[i] = lines[i].lstrip()
    else:  # a splice
        other_stem, other = rng.choice(corpus())
        rows = other.split("\n")
        k = rng.randrange(len(rows))
        if kind == 5:
            lines[i:j] = rows[k : k + rng.choice((1, 2, 5))]
        else:
            lines, stem = lines[:i] + rows[k:], rng.choice((stem, other_stem))
    return stem, "\n".join(lines)


def mutate_tree(rng: random.Random, stem: str, text: str) -> tuple[str, str]:
    """A change of the YAML tree: a key is removed, or added from another spec, or an array or a formula is changed."""
    try:
        tree = yaml.load(text, Loader=yaml.CBaseLoader)
    except (yaml.YAMLError, ValueError):
        tree = None
    if not isinstance(tree, dict) or not tree:
        stem, tree = rng.choice(trees())
    tree = dict(tree)
    _, other = rng.choice(trees())
    key = rng.choice(tuple(other))
    kind = rng.randrange(20)
    if kind == 0:
        tree.pop(rng.choice(tuple(tree)))
    elif kind == 1:
        tree[key] = other[key]
    elif kind == 2:
        tree[key] = rng.choice(
            (other[rng.choice(tuple(other))], [], {}, "", [other[key]], {key: other[key]}, rng.choice(WORDS))
        )
    elif kind == 3:
        tree["inputs"] = change_array(rng, tree.get("inputs"), other.get("inputs"))
    elif kind == 4:
        tree["outputs"] = change_array(rng, tree.get("outputs"), other.get("outputs"))
    elif kind == 5 and isinstance(tree.get("reference"), str):
        tree["reference"] = change_formula(rng, tree["reference"])
    elif isinstance(tree.get("chain"), str):
        tree["chain"] = change_formula(rng, tree["chain"])
    return stem, yaml.dump(tree, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=rng.random() < 0.5)


def change_array(rng: random.Random, arrays: object, others: object) -> object:
    """Arrays with one removed, added, or changed."""
    if not isinstance(arrays, dict) or not arrays:
        return others
    arrays = dict(arrays)
    name = rng.choice(tuple(arrays))
    kind = rng.randrange(4)
    if kind == 0:
        return {rng.choice(("a", "b", "x", name)): "T[..., N]"} | arrays
    if kind == 1:
        arrays.pop(name)
    elif kind == 2 and isinstance(others, dict) and others:
        arrays[rng.choice((name, rng.choice(tuple(others))))] = rng.choice(tuple(others.values()))
    else:
        words = re.findall(r"\w+|\s+|\.\.\.|.", str(arrays[name]))
        words[rng.randrange(len(words))] = rng.choice(
            ("T", "N", "K", "...", "2", "(2 N)", "(B G=4)", "float64", "int32", "bool", "")
        )
        arrays[name] = "".join(words)
    return arrays


def change_formula(rng: random.Random, text: str) -> str:
    """Statements with one part of an expression replaced, or in another order."""
    tree = ast.parse(text)
    statement = rng.choice(tree.body)
    kind = rng.randrange(7)
    if kind == 0:
        rng.shuffle(tree.body)
    elif kind == 1:
        for sign in [n for n in ast.walk(statement) if isinstance(n, ast.BinOp)][:1]:
            sign.op = rng.choice(SIGNS)()
    elif kind == 2:
        names = sorted({n.id for n in ast.walk(tree) if isinstance(n, ast.Name)})
        for name in [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == rng.choice(names)][:1]:
            name.id = rng.choice(names)
    else:
        places = list(parts(statement))
        node, name, index = rng.choice(places)
        old = getattr(node, name) if index is None else getattr(node, name)[index]
        if kind == 3:
            new = ast.parse(rng.choice(expressions()), mode="eval").body
        elif kind == 4:
            new = wrapped(rng, old)
        else:
            new = ast.BinOp(old, rng.choice(SIGNS)(), ast.parse(rng.choice(expressions()), mode="eval").body)
        if index is None:
            setattr(node, name, new)
        else:
            getattr(node, name)[index] = new
    return ast.unparse(tree)


def parts(statement: ast.stmt) -> Iterator[tuple[ast.AST, str, int | None]]:
    """The places of a statement's expressions: a node, its field, and the index in the field if that is a list."""
    for node in ast.walk(statement):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and name != "func":
                yield node, name, None
            elif isinstance(value, list) and name != "targets":
                yield from ((node, name, i) for i, item in enumerate(value) if isinstance(item, ast.expr))


SIGNS = ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mult, ast.Pow, ast.MatMult


def wrapped(rng: random.Random, part: ast.expr) -> ast.expr:
    """A call of a function on a part of an expression."""
    name = rng.choice(
        ("abs", "exp", "sqrt", "square", "log", "floor", "gelu", "softplus", "softmax", "mean", "sum", "max", "cast")
    )
    call = ast.Call(ast.Name(name, ast.Load()), [part], [])
    if name in ("softmax", "mean", "sum", "max"):
        axis = rng.choice(("N", "N", "...", "(..., N)", "K", "G"))
        call.keywords = [ast.keyword("axis", ast.parse(axis, mode="eval").body)]
    elif name == "cast":
        call.args.append(ast.Name(rng.choice(("T", "float32", "bfloat16", "int32", "float8_e4m3fn")), ast.Load()))
    return call


Mutation = Callable[[random.Random, str, str], tuple[str, str]]
MUTATIONS: tuple[Mutation, ...] = (
    mutate_bytes,
    mutate_tokens,
    mutate_tokens,
    mutate_lines,
    mutate_tree,
    mutate_tree,
    mutate_tree,
)


# Many mutants


class Slow(AssertionError):
    """More than `SECONDS` of processor time."""


class TooLong(BaseException):
    """Raised in code that takes too long; no `except Exception` catches it."""


@dataclass
class Tally:
    """The outcomes of some inputs."""

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)  # numbers of inputs, and the errors
    slowest: tuple[float, int] = (0.0, -1)  # seconds of processor time, the input's number
    resident: int = 0  # the most bytes of memory of a process

    def add(self, other: Tally) -> None:
        self.outcomes += other.outcomes
        self.failures += other.failures
        self.slowest = max(self.slowest, other.slowest)
        self.resident = max(self.resident, other.resident)


def too_long(_number: int, _frame: object) -> None:
    raise TooLong


def attempt(seed: int, number: int) -> tuple[str, str]:
    """The outcome of an input, and the error if it is wrong."""
    stem, data = mutant(seed, number)
    signal.setitimer(signal.ITIMER_VIRTUAL, 3 * SECONDS)
    signal.setitimer(signal.ITIMER_PROF, 10 * SECONDS)  # its signal ends a process that no exception can end
    try:
        outcome = examine(data, stem)
    except (Slow, TooLong):
        return "slow", traceback.format_exc(limit=-8)
    except AssertionError:
        return "wrong", traceback.format_exc(limit=-4)
    except BaseException:
        return "crash", traceback.format_exc(limit=-8)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ("spec" if isinstance(outcome, Op) else "error"), ""


def examine_all(seed: int, numbers: Iterable[int]) -> Iterator[tuple[int, Tally]]:
    """The inputs with these numbers, each with its outcome."""
    for number in numbers:
        yield number, Tally()
        start = time.process_time()
        outcome, wrong = attempt(seed, number)
        seconds = time.process_time() - start
        failures = [(number, wrong)] if wrong else []
        yield number, Tally(collections.Counter({outcome: 1}), failures, (seconds, number))


def work(seed: int, numbers: range, pipe: multiprocessing.connection.Connection) -> None:
    """One process: it sends the number of each input before it examines it, and the tally of all inputs at the end."""
    gc.set_threshold(100_000, 20, 100)
    signal.signal(signal.SIGVTALRM, too_long)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number, tally in examine_all(seed, numbers):
        tally.resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        pipe.send((number, tally))
    pipe.close()


@dataclass
class Worker:
    """A process and the inputs that remain to it."""

    seed: int
    numbers: range
    now: int = -1  # the input that it examines, once it has sent it

    def __post_init__(self) -> None:
        self.pipe, other = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=work, args=(self.seed, self.numbers, other), daemon=True)
        self.process.start()
        other.close()

    def died(self) -> Tally:
        """The input during which the process ended."""
        self.process.join()
        wrong = f"the process ended with status {self.process.exitcode}"
        return Tally(collections.Counter(killed=1), [(self.now, wrong)])


def fuzz(seed: int, numbers: range, processes: int, report: Callable[[Tally], None] = lambda _tally: None) -> Tally:
    """Examines the mutants with these numbers in some processes at once."""
    expressions()
    with contextlib.suppress(SpecError):  # files that are read once are read before processes are forked
        render_op(read_op(ROOT / "specs" / "rmsnorm.yaml"))
    total = Tally()
    waiting = [numbers[i : i + CHUNK] for i in range(0, len(numbers), CHUNK)][::-1]
    workers: list[Worker] = []
    while waiting or workers:
        while waiting and len(workers) < processes:
            workers.append(Worker(seed, waiting.pop()))
        ready = multiprocessing.connection.wait([w.pipe for w in workers])
        for worker in [w for w in workers if w.pipe in ready]:
            try:
                worker.now, tally = worker.pipe.recv()
                total.add(tally)
            except EOFError:
                workers.remove(worker)
                worker.process.join()
                if worker.process.exitcode:
                    total.add(worker.died())
                    rest = worker.numbers[worker.numbers.index(worker.now) + 1 :]
                    waiting += [rest] if rest else []
                report(total)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--save", type=Path, help="a folder for the inputs that failed, which edited specs make others of"
    )
    parser.add_argument("--show", action="store_true", help="print the first input and stop")
    options = parser.parse_args()
    if options.show:
        _, data = mutant(options.seed, options.first)
        sys.stdout.buffer.write(data)
        return
    start = time.time()
    reported: set[int] = set()

    def report(tally: Tally) -> None:
        for number, wrong in tally.failures:
            if number not in reported:
                reported.add(number)
                print(f"--seed {options.seed} --first {number}: {wrong}", flush=True)
                if options.save:
                    options.save.mkdir(parents=True, exist_ok=True)
                    (options.save / f"{options.seed}_{number}.yaml").write_bytes(mutant(options.seed, number)[1])
        figures = {"inputs": tally.outcomes.total(), **tally.outcomes, "slowest": tally.slowest}
        print(json.dumps(figures | {"MiB": tally.resident >> 20, "seconds": round(time.time() - start)}), flush=True)

    tally = fuzz(options.seed, range(options.first, options.first + options.inputs), options.processes, report)
    sys.exit(1 if tally.failures else 0)


if __name__ == "__main__":
    main()
