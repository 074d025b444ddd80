"""The documents' specs build, their messages are the real ones, their numbers are measured, and their lists are
complete."""

import ast
import json
import os
import re
import sys
from pathlib import Path

import pytest

from codegen.autodiff.backward import backward_of
from codegen.errors import SpecError
from codegen.graph.nodes import DTYPES, print_statements
from codegen.language.formula.calls import functions
from codegen.pipeline import read_op
from codegen.render import render_op
from codegen.spec.specfile import KEYS
from tests.places import ROOT

README, CONTRIBUTING, CHANGELOG = (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))
TUTORIAL, LANGUAGE, ARCHITECTURE, COMMANDS = (
    ROOT / f"docs/{name}.md" for name in ("tutorial", "language", "architecture", "commands")
)
DOCUMENTS = [README, CONTRIBUTING, CHANGELOG, *sorted((ROOT / "docs").rglob("*.md"))]


def title(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def blocks(document: Path, info: str) -> list[str]:
    """The contents of the fenced blocks that open with ```info, and perhaps another word."""
    return re.findall(rf"^```{re.escape(info)}(?: [^\n]*)?\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


def name(spec: str) -> str:
    return spec.partition("\n")[0].removeprefix("op: ")


def section(document: Path, heading: str) -> str:
    """The text from a heading to the next one of its level or above."""
    level = heading.partition(" ")[0]
    rest = document.read_text().partition(f"\n{heading}\n")[2]
    assert rest, f"{document.name} has no heading {heading!r}"
    return re.split(rf"^#{{1,{len(level)}}} ", rest, flags=re.MULTILINE)[0]


SPECS = [
    pytest.param(spec, id=f"{title(document)}-{name(spec)}")
    for document in DOCUMENTS
    for spec in blocks(document, "yaml spec")
]


@pytest.mark.parametrize("spec", SPECS)
def test_every_whole_spec_builds(spec):
    ast.parse(render_op(read_op(f"specs/{name(spec)}.yaml", spec)))


def test_there_are_specs_to_build():
    assert len(SPECS) >= 16


def test_the_first_spec_is_the_library_s():
    text = (ROOT / "specs/bias_relu.yaml").read_text()
    assert text.startswith(blocks(README, "yaml spec")[0])


def test_the_excerpt_stands_in_the_generated_file():
    """The kernel from a vector's load to its result; UPDATE=1 rewrites it."""
    source = (ROOT / "generated/bias_relu.py").read_text()
    heart = re.search(r"^    at = flat\.vector\(.*?at\.store\(.*?\n", source, re.MULTILINE | re.DOTALL)
    (excerpt,) = blocks(TUTORIAL, "python generated/bias_relu.py")
    assert heart
    rewrite(TUTORIAL, TUTORIAL.read_text().replace(excerpt, heart[0]))


def rewrite(document: Path, expected: str) -> None:
    """Compares a document with its expected text, or writes that with UPDATE=1."""
    if os.environ.get("UPDATE"):
        document.write_text(expected)
    else:
        assert document.read_text() == expected, f"UPDATE=1 python -m pytest {__file__} writes it anew"


def test_the_backward_of_the_tutorial_is_what_is_derived():
    (spec,) = blocks(TUTORIAL, "yaml spec")
    backward = backward_of(read_op("specs/gated_norm.yaml", spec))
    assert f"```\n{backward.op.spec.chain.value}```\n" in TUTORIAL.read_text()


def test_the_graph_of_the_walk_through_is_what_is_read():
    (shown,) = blocks(ARCHITECTURE, "text graph")
    assert shown == print_statements(read_op(ROOT / "specs/rmsnorm.yaml").statements)


def test_the_modules_to_begin_with_exist():
    table = section(ARCHITECTURE, "## One op, step by step").partition("| module |")[2]
    names = re.findall(r"`([\w/.]+)`", "".join(re.findall(r"^\| `.*?\|", table, re.M)))
    assert len(names) >= 10
    assert [name for name in names if not any((ROOT / folder / name).is_file() for folder in ("", "codegen"))] == []


def test_the_functions_of_the_walk_through_are_called_in_this_order(monkeypatch):
    """The table of functions, against those that its script calls."""
    shown = re.findall(r"^\| `([\w.]+)` in `([\w/.]+)` \|", section(ARCHITECTURE, "## One op, step by step"), re.M)
    monkeypatch.chdir(ROOT)
    (script,) = blocks(ARCHITECTURE, "python run")
    called: dict[tuple[str, str], None] = {}

    def note(frame, event, _):
        if event == "call" and "/codegen/" in frame.f_code.co_filename:
            called.setdefault((frame.f_code.co_qualname, frame.f_code.co_filename.rpartition("/codegen/")[2]))

    code = compile(script, str(ARCHITECTURE), "exec")
    sys.setprofile(note)
    try:
        exec(code, {})
    finally:
        sys.setprofile(None)
    assert len(shown) >= 20 and [pair for pair in called if pair in shown] == shown


def message(spec: str) -> str:
    with pytest.raises(SpecError) as error:
        read_op(f"specs/{name(spec)}.yaml", spec)
    return str(error.value)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d, "yaml error")], ids=title)
def test_every_mistake_has_the_message_shown(document):
    """A block of `yaml error` is followed by its `text error`; UPDATE=1 rewrites the messages."""
    pairs = re.compile(r"^(```yaml error\n(.*?)^```\n\n```text error\n)(.*?)^```$", re.MULTILINE | re.DOTALL)
    expected, count = pairs.subn(lambda m: f"{m[1]}{message(m[2])}\n```", document.read_text())
    assert count == len(blocks(document, "yaml error"))
    rewrite(document, expected)


def test_there_are_mistakes_to_show():
    assert sum(len(blocks(document, "yaml error")) for document in DOCUMENTS) >= 5


def first_column(text: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)", text, re.MULTILINE))


def test_the_reference_lists_every_function():
    assert first_column(section(LANGUAGE, "## Functions")) == set(functions())


def test_the_reference_lists_every_key():
    assert first_column(section(LANGUAGE, "## Keys")) == set(KEYS)


def test_the_reference_lists_every_dtype():
    assert first_column(section(LANGUAGE, "## Types")) == set(DTYPES)


def test_every_command_is_listed():
    from codegen.cli.program import app

    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    listed = set(re.findall(r"^\| `codegen (\w+)` ", COMMANDS.read_text(), re.MULTILINE))
    assert commands <= listed


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.M | re.S), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=title)
def test_links_lead_somewhere(document):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", document.read_text()):
        path = document.parent / target if target else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


# What the README says of speed


ROWS = (  # op, which of its measurements, and what it is called
    ("library", "rmsnorm", 0), ("backward", "rmsnorm_backward", 0),
    ("library", "layernorm", 0), ("backward", "layernorm_backward", 0),
    ("library", "bias_gelu", 0), ("backward", "bias_gelu_backward", 0),
    ("library", "cross_entropy", 0), ("backward", "cross_entropy_backward", 0),
    ("gemm_sustained", "dense_gelu", 0), ("gemm_sustained", "dense_gelu", 2),
)  # fmt: skip


def measured(name: str, op: str, place: int) -> str:
    """A row of the README's table, from the committed measurements."""
    results = json.loads((ROOT / f"benchmarks/{name}.json").read_text())
    if name == "gemm_sustained":
        row = [r for r in results["rows"] if r["op"] == op][place]
        shape, limit = [row["M"], row["K"], row["N"]], row["us"]["matmul"]
    else:
        row = [r for r in results["measurements"] if r["op"] == op][place]
        shape, limit = list(row["shape"].values()), row["us"]["copy"]
    ours, xla = row["us"]["ours"], row["us"]["xla"]
    label = "its backward" if op.endswith("_backward") else f"`{op}`"
    return f"| {label} | {' x '.join(map(str, shape))} | {ours:.0f} us | {xla:.0f} us | {xla / ours:.2f}x | {limit / ours:.2f} |\n"


def test_the_readme_s_numbers_are_measured():
    """UPDATE=1 rewrites them."""
    text = README.read_text()
    head, rest = text.split("|---|---|---:|---:|---:|---:|\n")
    _, tail = rest.split("<!-- end of numbers -->")
    rows = "".join(measured(*row) for row in ROWS)
    rewrite(README, f"{head}|---|---|---:|---:|---:|---:|\n{rows}<!-- end of numbers -->{tail}")


def test_the_readme_is_short():
    assert len(README.read_text().splitlines()) <= 200


def packages_of(tree: str) -> set[Path]:
    """The folders of an indented tree of files."""
    found, above = set(), list[Path]()
    for line in tree.strip("\n").split("\n"):
        name, depth = line.split()[0], (len(line) - len(line.lstrip())) // 2
        if name.endswith("/"):
            above[depth:] = [above[depth - 1] / name if depth else ROOT / name]
            found.add(above[depth])
    return found


def test_every_package_has_its_line_and_every_module_its_sentence():
    """A package in the architecture's tree, a module in its first line."""
    tree = ARCHITECTURE.read_text().split("```")[1]
    assert packages_of(tree) == {path.parent for path in (ROOT / "codegen").rglob("*.py")}
    for path in (ROOT / "codegen").rglob("*.py"):
        if path.parent == ROOT / "codegen" and not path.name.startswith("__"):
            assert re.search(rf"\b{path.stem}\b", tree), path
        if path.name != "__init__.py":
            first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
            assert first, f"{path} does not say what it is for"
