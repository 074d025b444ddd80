"""The documents' specs build, their messages are the real ones, and their lists are complete."""

import ast
import os
import re
from pathlib import Path

import pytest

from codegen.errors import SpecError
from codegen.formula import functions
from codegen.ir import DTYPES
from codegen.pipeline import read_op
from codegen.render import render_op
from codegen.specfile import KEYS

ROOT = Path(__file__).parent.parent.parent
README, LANGUAGE, ARCHITECTURE = (ROOT / name for name in ("README.md", "docs/language.md", "docs/architecture.md"))


def blocks(document: Path, info: str) -> list[str]:
    """The contents of the fenced blocks that open with ```info."""
    return re.findall(rf"^```{re.escape(info)}\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


def name(spec: str) -> str:
    return spec.partition("\n")[0].removeprefix("op: ")


def section(document: Path, heading: str) -> str:
    """The text from a heading to the next of its level or above."""
    level = heading.partition(" ")[0]
    rest = document.read_text().partition(f"\n{heading}\n")[2]
    assert rest, f"{document.name} has no heading {heading!r}"
    return re.split(rf"^#{{1,{len(level)}}} ", rest, flags=re.MULTILINE)[0]


SPECS = [
    pytest.param(spec, id=f"{document.name}-{name(spec)}")
    for document in (README, LANGUAGE)
    for spec in blocks(document, "yaml spec")
]


@pytest.mark.parametrize("spec", SPECS)
def test_every_whole_spec_builds(spec):
    ast.parse(render_op(read_op(f"specs/{name(spec)}.yaml", spec)))


def test_there_are_specs_to_build():
    assert len(SPECS) >= 8


def test_the_first_spec_is_the_library_s():
    text = (ROOT / "specs/bias_relu.yaml").read_text()
    assert text.startswith(blocks(README, "yaml spec")[0])


def test_the_excerpt_stands_in_the_generated_file():
    """The kernel from a vector's load to its result; UPDATE=1 writes it anew."""
    source = (ROOT / "generated/bias_relu.py").read_text()
    heart = re.search(r"^    if valid > 0:\n.*?rY\.store\(.*?\n", source, re.MULTILINE | re.DOTALL)
    (excerpt,) = blocks(README, "python generated/bias_relu.py")
    assert heart
    if os.environ.get("UPDATE"):
        README.write_text(README.read_text().replace(excerpt, heart[0]))
    else:
        assert excerpt == heart[0]


def message(spec: str) -> str:
    with pytest.raises(SpecError) as error:
        read_op(f"specs/{name(spec)}.yaml", spec)
    return str(error.value)


@pytest.mark.parametrize("document", [README, LANGUAGE], ids=lambda d: d.name)
def test_every_mistake_has_the_message_shown(document):
    """A block of `yaml mistake` is followed by its `text error`; UPDATE=1 writes the messages anew."""
    text = document.read_text()
    pairs = re.compile(r"^(```yaml mistake\n(.*?)^```\n\n```text error\n)(.*?)^```$", re.MULTILINE | re.DOTALL)
    expected, count = pairs.subn(lambda m: f"{m[1]}{message(m[2])}\n```", text)
    assert count == len(blocks(document, "yaml mistake")) > 0
    if os.environ.get("UPDATE"):
        document.write_text(expected)
    else:
        assert text == expected


def first_column(text: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)", text, re.MULTILINE))


def test_the_reference_lists_every_function():
    assert first_column(section(LANGUAGE, "## Functions")) == set(functions())


def test_the_reference_lists_every_key():
    assert first_column(section(LANGUAGE, "## Keys")) == set(KEYS)


def test_the_reference_lists_every_dtype():
    assert first_column(section(LANGUAGE, "## Types")) == set(DTYPES)


def test_the_readme_lists_every_command():
    from codegen.__main__ import app

    commands = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    listed = set(re.findall(r"^\| `codegen (\w+)` ", section(README, "## Commands"), re.MULTILINE))
    assert commands <= listed


@pytest.mark.parametrize("document", [README, LANGUAGE, ROOT / "docs/architecture.md"], ids=lambda d: d.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_every_module_has_its_line():
    """In the architecture's tables: by its path below `codegen/`, or, where a line names several of a folder, by its name."""
    rows = re.findall(r"^\| `.*$", ARCHITECTURE.read_text(), re.MULTILINE)
    found = {word for row in rows for word in re.findall(r"`(.*?)`", row)}
    for path in (ROOT / "codegen").rglob("*.py"):
        place = path.relative_to(ROOT / "codegen").as_posix()
        known = {place, path.name} if place.startswith("interpret/") else {place}
        if path.name != "__init__.py" and not place.startswith("render/"):
            assert known & found, f"docs/architecture.md says nothing of {place}"
