"""The Python code of the documents runs as written, and so does the tutorial, from its spec to its sharded arrays."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.places import ROOT

TUTORIAL, ARCHITECTURE = ROOT / "docs/tutorial.md", ROOT / "docs/architecture.md"
BLOCK = re.compile(r"^```(python|console) run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTS = [
    pytest.param(document, id=document.relative_to(ROOT).as_posix())
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if document != TUTORIAL and BLOCK.search(document.read_text())
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_python_of_a_document_runs(document, monkeypatch):
    """Its blocks run one after the other, as for a reader."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")  # undone after a document that sets it
    names = {"__name__": "document"}
    for language, code in BLOCK.findall(document.read_text()):
        assert language == "python"
        exec(compile(code, document.name, "exec"), names)


def test_there_are_documents_to_run():
    assert len(DOCUMENTS) >= 6


CALLED = """
import json, sys
import jax.numpy as jnp
from codegen.runtime.compiled import kernels

kernels.launch = lambda call, operands, outputs, pairs: [jnp.zeros(y.shape, y.dtype) for y in outputs]

def called(script):
    found = {}
    def note(frame, event, _):
        if event == "call" and "/codegen/" in frame.f_code.co_filename:
            found.setdefault((frame.f_code.co_qualname, frame.f_code.co_filename.rpartition("/codegen/")[2]))
    sys.setprofile(note)
    exec(compile(script, "architecture.md", "exec"), {"__name__": "document"})
    sys.setprofile(None)
    return list(found)

found = [called(script) for script in sys.argv[1:]]
print(json.dumps(found))
"""


def test_the_functions_of_the_walk_throughs_are_called_in_this_order():
    """The tables of a call and of `fuse`, against the functions that their scripts call. Nothing is compiled."""
    sections = re.split(r"^## ", ARCHITECTURE.read_text(), flags=re.MULTILINE)
    walks = [
        (re.findall(r"^\| `([\w.]+)` in `([\w/.]+)` \|", text, re.MULTILINE), script[1])
        for text in sections
        if (script := re.search(r"^```python walk\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    ]
    assert [len(shown) >= 15 for shown, _ in walks] == [True, True]
    environment = {**os.environ, "CUTE_DSL_ARCH": "sm_90a"}
    command = [sys.executable, "-c", CALLED, *(script for _, script in walks)]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    for (shown, _), called in zip(walks, json.loads(result.stdout.splitlines()[-1]), strict=True):
        assert [tuple(pair) for pair in called if tuple(pair) in shown] == shown


STEPS = """
import contextlib, shlex, sys
from codegen.__main__ import main

names = {"__name__": "tutorial"}
for step in sys.argv[1:]:
    language, _, text = step.partition(":")
    if language == "python":
        exec(compile(text, "tutorial.md", "exec"), names)
    for line in text.splitlines() if language == "console" else ():
        sys.argv = shlex.split(line.removeprefix("$ "), comments=True)
        try:
            main()
        except SystemExit as stopped:
            assert not stopped.code, line
"""


def test_the_tutorial_runs(tmp_path):
    """In its own folder, with only the spec that it shows."""
    text = TUTORIAL.read_text()
    for path, spec in re.findall(r"^```yaml spec (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(spec)
    steps = [f"{language}:{code}" for language, code in BLOCK.findall(text)]
    assert len(steps) >= 8
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-c", STEPS, *steps]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "1 of 1 ops agree" in result.stdout
