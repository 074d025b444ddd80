"""The README's Python runs as it stands there."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent.parent / "README.md").read_text()
SNIPPETS = re.findall(r"^```python run\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet_runs(code, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")  # undone after a snippet that sets it
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_there_are_snippets():
    assert len(SNIPPETS) >= 3
